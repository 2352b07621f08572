//! Ranks as processes joined by MPI; the only file that names the mpi crate and has `unsafe` code.
//!
//! In: the buffers of this process. Out: MPI's collectives on `MPI_COMM_WORLD`, cut into pieces whose counts fit a C `int`.
//! Invariant: no rank ends quietly: a panic on any thread and [`Communicator::abort`] end the job everywhere.
//! Source: MPI standard 3.1, chapter 5 (collectives), 8.3 (error handlers), 8.7 (`MPI_Abort`), 12.4 (threads).
//!
//! The collectives go through `mpi::ffi`, because the crate's own calls ignore return codes and do not compare buffer lengths.
#![allow(unsafe_code, reason = "calls into the MPI library")]

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::Write;
use std::os::raw::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ::mpi::environment::{
    Threading, Universe, initialize_with_threading, is_finalized, library_version, processor_name,
};
use ::mpi::ffi;

use crate::{CollectiveError, Communicator, Topology};

/// Most elements of one reduction; larger ones are cut. It also bounds the second buffer, to 64 MiB.
const REDUCE_MAX_ELEMENTS: usize = 1 << 23;

/// Most bytes of one broadcast or gather; larger ones are cut. Counts are C `int`s.
const COPY_MAX_BYTES: usize = 1 << 30;

/// Exit code of a job that a panic ends, as of a Rust program that panics.
const PANIC_EXIT_CODE: c_int = 101;

/// The communicator of all processes that `mpirun` or `srun` started together; a world of one without them.
///
/// Dropping it finalizes MPI, which waits for the other ranks: after an error call [`Communicator::abort`] first. Drop the last
/// owner at the end of `main`, on the thread that called [`init`](MpiCommunicator::init): a process that ends without finalizing
/// counts as failed.
pub struct MpiCommunicator {
    topology: Topology,
    thread_level: Threading,
    /// MPI allows one collective at a time on a communicator; the lock also guards the second buffers.
    scratch: Mutex<Scratch>,
    /// Finalizes MPI when dropped.
    _universe: Universe,
}

impl MpiCommunicator {
    /// Initializes MPI, asking for `MPI_THREAD_MULTIPLE`, and replaces the panic hook by one that ends the job.
    ///
    /// From now on a panic on any thread of this process prints `error (rank R): panicked …` and calls `MPI_Abort` with exit
    /// code 101, also where the panic would have been caught.
    ///
    /// # Errors
    /// When MPI was initialized before, allows calls from one thread only, or a first collective fails.
    ///
    /// # Collective
    /// Must be called by all processes of the job.
    pub fn init() -> Result<Self, CollectiveError> {
        let (universe, thread_level) =
            initialize_with_threading(Threading::Multiple).ok_or(CollectiveError::MpiInitializedBefore)?;
        let world = |call, query: unsafe extern "C" fn(ffi::MPI_Comm, *mut c_int) -> c_int| {
            let mut value: c_int = 0;
            // SAFETY: MPI is initialized, and `value` outlives the call that writes it.
            check(call, 0, unsafe { query(ffi::RSMPI_COMM_WORLD, &mut value) })?;
            Ok(usize::try_from(value).expect("ranks and sizes are not negative"))
        };
        let rank = world("MPI_Comm_rank", ffi::MPI_Comm_rank)?;
        let world_size = world("MPI_Comm_size", ffi::MPI_Comm_size)?;
        end_job_on_panic(rank);
        // The lock makes calls one after the other, so less than `Multiple` will do as long as any thread may call.
        if thread_level < Threading::Serialized {
            return Err(CollectiveError::ThreadLevel {
                expected: "MPI_THREAD_SERIALIZED",
                got: format!("{thread_level:?}"),
            });
        }
        // SAFETY: MPI is initialized; the error handler is one of MPI's own.
        let code = unsafe { ffi::MPI_Comm_set_errhandler(ffi::RSMPI_COMM_WORLD, ffi::RSMPI_ERRORS_RETURN) };
        check("MPI_Comm_set_errhandler", rank, code)?;

        let node = processor_name().unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned());
        let topology = Topology::from_nodes(0, &vec![node.clone(); world_size]);
        let mut communicator = Self {
            topology: Topology { rank, ..topology },
            thread_level,
            scratch: Mutex::new(Scratch::default()),
            _universe: universe,
        };
        let nodes: Vec<String> = communicator
            .all_gather(node.as_bytes())?
            .iter()
            .map(|name| String::from_utf8_lossy(name).into_owned())
            .collect();
        communicator.topology = Topology::from_nodes(rank, &nodes);
        Ok(communicator)
    }

    /// The thread level MPI gave: `Serialized` or `Multiple`.
    pub fn thread_level(&self) -> String {
        format!("{:?}", self.thread_level)
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<(), CollectiveError> {
        check(call, self.topology.rank, code)
    }

    fn lock(&self) -> MutexGuard<'_, Scratch> {
        self.scratch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sum<T: Element>(&self, values: &mut [T]) -> Result<(), CollectiveError> {
        let mut scratch = self.lock();
        // MPI forbids one buffer for both directions. MPI_IN_PLACE, which would allow it, is a macro with another value in each
        // library and not among the constants of the mpi crate: so the values are sent from a copy.
        let copy = T::buffer(&mut scratch);
        for values in values.chunks_mut(REDUCE_MAX_ELEMENTS) {
            copy.clear();
            copy.extend_from_slice(values);
            // SAFETY: both buffers hold `values.len()` elements of the datatype, do not overlap and outlive the blocking call.
            let code = unsafe {
                ffi::MPI_Allreduce(
                    copy.as_ptr().cast::<c_void>(),
                    values.as_mut_ptr().cast::<c_void>(),
                    count(values.len()),
                    T::datatype(),
                    ffi::RSMPI_SUM,
                    ffi::RSMPI_COMM_WORLD,
                )
            };
            self.check("MPI_Allreduce", code)?;
        }
        Ok(())
    }

    /// The lengths of every rank's bytes.
    fn gather_lengths(&self, length: usize) -> Result<Vec<usize>, CollectiveError> {
        let mine = [length as u64];
        let mut lengths = vec![0_u64; self.topology.world_size];
        // SAFETY: every rank sends one u64 and `lengths` has room for one of each; both outlive the blocking call.
        let code = unsafe {
            ffi::MPI_Allgather(
                mine.as_ptr().cast::<c_void>(),
                1,
                u64::datatype(),
                lengths.as_mut_ptr().cast::<c_void>(),
                1,
                u64::datatype(),
                ffi::RSMPI_COMM_WORLD,
            )
        };
        self.check("MPI_Allgather", code)?;
        Ok(lengths.into_iter().map(|length| length as usize).collect())
    }

    /// One round of a gather: `bytes` of this rank, `lengths[r]` bytes of rank r; all of them, end to end, in rank order.
    fn gather_round(&self, bytes: &[u8], lengths: &[usize]) -> Result<Vec<u8>, CollectiveError> {
        assert_eq!(bytes.len(), lengths[self.topology.rank], "a rank brings as many bytes as it announced");
        let counts: Vec<c_int> = lengths.iter().map(|&length| count(length)).collect();
        let mut offset = 0;
        let mut offsets: Vec<c_int> = Vec::with_capacity(lengths.len());
        for length in lengths {
            offsets.push(count(offset));
            offset += length;
        }
        let mut gathered = vec![0_u8; offset];
        // SAFETY: `gathered` has room for the sum of all counts at the given offsets, `bytes` for this rank's count (asserted), and
        // all buffers outlive the blocking call.
        let code = unsafe {
            ffi::MPI_Allgatherv(
                bytes.as_ptr().cast::<c_void>(),
                count(bytes.len()),
                ffi::RSMPI_UINT8_T,
                gathered.as_mut_ptr().cast::<c_void>(),
                counts.as_ptr(),
                offsets.as_ptr(),
                ffi::RSMPI_UINT8_T,
                ffi::RSMPI_COMM_WORLD,
            )
        };
        self.check("MPI_Allgatherv", code)?;
        Ok(gathered)
    }
}

impl std::fmt::Debug for MpiCommunicator {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut fields = formatter.debug_struct("MpiCommunicator");
        fields.field("topology", &self.topology).field("thread_level", &self.thread_level).finish_non_exhaustive()
    }
}

impl Communicator for MpiCommunicator {
    fn rank(&self) -> usize {
        self.topology.rank
    }

    fn world_size(&self) -> usize {
        self.topology.world_size
    }

    fn all_reduce_sum(&self, values: &mut [f32]) -> Result<(), CollectiveError> {
        self.sum(values)
    }

    fn all_reduce_sum_f64(&self, values: &mut [f64]) -> Result<(), CollectiveError> {
        self.sum(values)
    }

    fn all_reduce_sum_u64(&self, values: &mut [u64]) -> Result<(), CollectiveError> {
        self.sum(values)
    }

    fn broadcast(&self, root: usize, bytes: &mut [u8]) -> Result<(), CollectiveError> {
        let world_size = self.topology.world_size;
        if root >= world_size {
            return Err(CollectiveError::NoSuchRoot { collective: "broadcast", root, world_size });
        }
        let _turn = self.lock();
        for bytes in bytes.chunks_mut(COPY_MAX_BYTES) {
            // SAFETY: the buffer holds `bytes.len()` bytes and outlives the blocking call; `root` is a rank.
            let code = unsafe {
                ffi::MPI_Bcast(
                    bytes.as_mut_ptr().cast::<c_void>(),
                    count(bytes.len()),
                    ffi::RSMPI_UINT8_T,
                    count(root),
                    ffi::RSMPI_COMM_WORLD,
                )
            };
            self.check("MPI_Bcast", code)?;
        }
        Ok(())
    }

    fn all_gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        let _turn = self.lock();
        let lengths = self.gather_lengths(bytes.len())?;
        let mut gathered: Vec<Vec<u8>> = lengths.iter().map(|&length| Vec::with_capacity(length)).collect();
        let round_bytes = COPY_MAX_BYTES / lengths.len();
        let longest = lengths.iter().copied().max().unwrap_or(0);
        for start in (0..longest).step_by(round_bytes) {
            let piece = |length: usize| length.min(start + round_bytes) - length.min(start);
            let pieces: Vec<usize> = lengths.iter().map(|&length| piece(length)).collect();
            let from = bytes.len().min(start);
            let round = self.gather_round(&bytes[from..from + piece(bytes.len())], &pieces)?;
            let mut rest = round.as_slice();
            for (rank_bytes, length) in gathered.iter_mut().zip(pieces) {
                let (piece, others) = rest.split_at(length);
                rank_bytes.extend_from_slice(piece);
                rest = others;
            }
        }
        Ok(gathered)
    }

    fn barrier(&self) -> Result<(), CollectiveError> {
        let _turn = self.lock();
        // SAFETY: MPI is initialized, as `self` exists.
        let code = unsafe { ffi::MPI_Barrier(ffi::RSMPI_COMM_WORLD) };
        self.check("MPI_Barrier", code)
    }

    fn abort(&self, _reason: &str, exit_code: i32) {
        end_job(exit_code);
    }

    fn library(&self) -> String {
        let text = library_version().unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned());
        text.lines().next().unwrap_or("MPI").trim_matches(['\0', ' ']).to_owned()
    }

    fn topology(&self) -> &Topology {
        &self.topology
    }
}

/// Second buffers for reductions, kept for the next one.
#[derive(Default)]
struct Scratch {
    f32: Vec<f32>,
    f64: Vec<f64>,
    u64: Vec<u64>,
}

/// A number MPI can add up.
trait Element: Copy {
    fn datatype() -> ffi::MPI_Datatype;
    fn buffer(scratch: &mut Scratch) -> &mut Vec<Self>;
}

impl Element for f32 {
    fn datatype() -> ffi::MPI_Datatype {
        // SAFETY: the mpi crate's C shim initializes this constant before `main`; nobody writes it.
        unsafe { ffi::RSMPI_FLOAT }
    }

    fn buffer(scratch: &mut Scratch) -> &mut Vec<Self> {
        &mut scratch.f32
    }
}

impl Element for f64 {
    fn datatype() -> ffi::MPI_Datatype {
        // SAFETY: as for f32.
        unsafe { ffi::RSMPI_DOUBLE }
    }

    fn buffer(scratch: &mut Scratch) -> &mut Vec<Self> {
        &mut scratch.f64
    }
}

impl Element for u64 {
    fn datatype() -> ffi::MPI_Datatype {
        // SAFETY: as for f32.
        unsafe { ffi::RSMPI_UINT64_T }
    }

    fn buffer(scratch: &mut Scratch) -> &mut Vec<Self> {
        &mut scratch.u64
    }
}

/// A length as a C `int`.
fn count(length: usize) -> c_int {
    c_int::try_from(length).expect("pieces are cut to fit a C int")
}

/// The error of an MPI call that did not return `MPI_SUCCESS`.
fn check(call: &'static str, rank: usize, code: c_int) -> Result<(), CollectiveError> {
    if code == ffi::MPI_SUCCESS as c_int {
        return Ok(());
    }
    let mut text = vec![0_u8; ffi::MPI_MAX_ERROR_STRING as usize];
    let mut length: c_int = 0;
    // SAFETY: `text` has the length MPI asks for, and both outlive the call.
    unsafe { ffi::MPI_Error_string(code, text.as_mut_ptr().cast(), &mut length) };
    text.truncate(usize::try_from(length).unwrap_or(0));
    Err(CollectiveError::Mpi { call, rank, code, text: String::from_utf8_lossy(&text).into_owned() })
}

/// Without this, unwinding would drop the universe, and `MPI_Finalize` would wait forever for ranks that wait for this one.
fn end_job_on_panic(rank: usize) {
    static ENDING: AtomicBool = AtomicBool::new(false);
    std::panic::set_hook(Box::new(move |panic| {
        if is_finalized() {
            report_panic(rank, panic);
            return;
        }
        if ENDING.swap(true, Ordering::SeqCst) {
            // Another thread is ending the job. Returning would unwind into `MPI_Finalize`.
            loop {
                std::thread::park();
            }
        }
        report_panic(rank, panic);
        end_job(PANIC_EXIT_CODE);
    }));
}

/// Prints the panic in one piece, so that lines of several ranks do not mix.
fn report_panic(rank: usize, panic: &std::panic::PanicHookInfo<'_>) {
    let place = panic.location().map_or_else(String::new, |location| format!(" at {location}"));
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or("unnamed");
    let message = panic.payload_as_str().unwrap_or("no message");
    let mut text = format!("error (rank {rank}): panicked{place} (thread {thread}): {message}\n");
    let backtrace = Backtrace::capture();
    if backtrace.status() == BacktraceStatus::Captured {
        text.push_str(&format!("{backtrace}\n"));
    }
    // A closed stderr is no reason to keep the other ranks waiting.
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// Ends all processes of the job.
fn end_job(exit_code: c_int) -> ! {
    let _ = std::io::stderr().flush();
    // SAFETY: MPI is initialized and not finalized: callers hold the communicator, or have asked.
    unsafe { ffi::MPI_Abort(ffi::RSMPI_COMM_WORLD, exit_code) };
    std::process::abort()
}
