//! Ranks as MPI processes. Only this module uses the mpi crate and `unsafe` code for MPI.
//!
//! In: the buffers of this process. Out: MPI's collectives and messages on `MPI_COMM_WORLD` or a
//! duplicate.
//! Invariant: no rank ends silently. The job ends on all ranks after a panic on any thread, after
//! [`Communicator::abort`], and if a communicator is dropped before [`Communicator::finish`].
//! Source: MPI standard 3.1, chapter 5 (collectives), 6.4 (duplicates), 8.3 (error handlers), 8.7
//! (`MPI_Abort`), 12.4 (threads).
//!
//! The calls go through `mpi::ffi`, because the crate's own calls ignore return codes and do not
//! compare buffer lengths.
#![allow(unsafe_code, reason = "calls into the MPI library")]

use std::os::raw::{c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::Duration;

use ::mpi::environment::{Threading, initialize_with_threading, library_version, processor_name};
use ::mpi::ffi;

use self::end::{Membership, check, end_job, end_job_on_panic};
use self::pending_call::PendingCall;
use self::wait_policy::SharedWaitPolicy;
use crate::communicator::{expect_peer, expect_root};
use crate::topology::spans_nodes;
use crate::{
    CollectiveError, Communicator,
    communicator::CpuLimits,
    communicator::{NodeMemory, ReduceBuffer, Topology, WaitPolicy},
};

mod collectives;
mod end;
mod messages;
mod node_memory;
mod pending_call;
mod wait_policy;

/// Delay of a rank's first message in a job with several nodes.
///
/// Over TCP, Open MPI (seen with 4.1.4) crashes at its start if a message arrives too early. Ranks
/// of one node may leave `MPI_Init` before ranks of another node (open-mpi/ompi#12495, #13559).
const STARTING: Duration = Duration::from_millis(200);

/// Maximum number of elements of one MPI reduction. Longer reductions are divided. The limit also
/// bounds the second buffer to 64 MiB.
const REDUCE_MAX_ELEMENTS: usize = 1 << 23;

/// Maximum bytes of one MPI broadcast or gather, whose counts are C `int`s. Longer ones are
/// divided.
const COPY_MAX_BYTES: usize = 1 << 30;

/// The communicator of all processes that `mpirun` or `srun` started together. Without a launcher
/// it is a world of one rank.
///
/// Call [`finish`](Communicator::finish) at the end, or use [`launch`](crate::launch()). The drop
/// of the last owner of the communicator and its duplicates finalizes MPI. A drop before `finish`
/// ends the job of several ranks with exit code 1, because other ranks would wait for this rank.
/// Drop the communicator at the end of `main`, on the thread that called
/// [`init`](MpiCommunicator::init). A process that ends without finalizing counts as failed.
pub struct MpiCommunicator {
    /// Duplicated communicator, or `None` for the world's communicator.
    duplicate: Option<Handle>,
    topology: Topology,
    thread_level: Threading,
    wait_policy: Arc<SharedWaitPolicy>,
    /// Second buffers. The lock also serialises collectives, because MPI allows one at a time on a
    /// communicator.
    scratch: Mutex<Vec<u64>>,
    /// Membership, whose last owner finalizes MPI or ends the job.
    membership: Arc<Membership>,
}

/// A communicator that MPI created.
///
/// The communicator is never freed before MPI is finalized, because the free is a collective,
/// hidden in a drop.
#[derive(Clone, Copy)]
struct Handle(ffi::MPI_Comm);

// SAFETY: any thread may use a handle as far as the thread level allows. `lock` and `message_turn`
// serialise calls where the thread level requires it.
unsafe impl Send for Handle {}
// SAFETY: as for `Send`.
unsafe impl Sync for Handle {}

impl MpiCommunicator {
    /// Initializes MPI with a request for `MPI_THREAD_MULTIPLE`, and replaces the panic hook by one
    /// that ends the job.
    ///
    /// From now on a panic on any thread of this process prints `error (rank R): panicked …` and
    /// calls `MPI_Abort` with exit code 101. This includes panics that `catch_unwind` would catch.
    ///
    /// # Errors
    /// Returns an error if MPI was initialized before, if MPI allows calls from only one thread, or
    /// if a first collective fails.
    ///
    /// # Collective
    /// Must be called by all processes of the job.
    pub fn init() -> Result<Self, CollectiveError> {
        let failed = |text: String| CollectiveError::Failed(text);
        let initialized = initialize_with_threading(Threading::Multiple);
        let (universe, thread_level) = initialized.ok_or_else(|| {
            failed("MPI was initialized before in this process. Keep one communicator until the end of main.".to_owned())
        })?;
        if spans_nodes() && Self::library_name().starts_with("Open MPI") {
            sleep(STARTING);
        }
        let world = |call, query: unsafe extern "C" fn(ffi::MPI_Comm, *mut c_int) -> c_int| {
            let mut value: c_int = 0;
            // SAFETY: MPI is initialized, and `value` outlives the call that writes it.
            check(call, 0, unsafe { query(ffi::RSMPI_COMM_WORLD, &mut value) })?;
            Ok(usize::try_from(value).expect("ranks and sizes are not negative"))
        };
        let rank = world("MPI_Comm_rank", ffi::MPI_Comm_rank)?;
        let world_size = world("MPI_Comm_size", ffi::MPI_Comm_size)?;
        end_job_on_panic(rank);
        // The lock serialises calls, so less than `Multiple` suffices if any thread may call.
        if thread_level < Threading::Serialized {
            return Err(failed(format!(
                "MPI thread level: expected at least MPI_THREAD_SERIALIZED, got {thread_level:?}. Use an MPI library built with thread support."
            )));
        }
        // SAFETY: MPI is initialized; the error handler is one of MPI's own.
        let code = unsafe {
            ffi::MPI_Comm_set_errhandler(ffi::RSMPI_COMM_WORLD, ffi::RSMPI_ERRORS_RETURN)
        };
        check("MPI_Comm_set_errhandler", rank, code)?;

        let node = processor_name()
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned());
        let topology = Topology::from_nodes(0, &vec![node.clone(); world_size]);
        let mut communicator = Self {
            duplicate: None,
            topology: Topology { rank, ..topology },
            thread_level,
            wait_policy: Arc::default(),
            scratch: Mutex::default(),
            membership: Arc::new(Membership::new(universe)),
        };
        let own = format!("{node}\n{}", CpuLimits::of_this_process().to_text());
        let place = |bytes: &Vec<u8>| {
            let text = String::from_utf8_lossy(bytes);
            let (node, limits) = text.split_once('\n').unwrap_or((&text, ""));
            (node.to_owned(), CpuLimits::parse(limits))
        };
        let ranks: Vec<(String, CpuLimits)> = communicator
            .all_gather(own.as_bytes())?
            .iter()
            .map(place)
            .collect();
        communicator.topology = Topology::from_ranks(rank, &ranks);
        communicator.membership.begin(&communicator.topology);
        Ok(communicator)
    }

    /// Returns the first line of the library's version text. May be called before
    /// [`init`](MpiCommunicator::init).
    pub(crate) fn library_name() -> String {
        let text = library_version()
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned());
        let first = text.lines().next().unwrap_or("MPI").trim_matches('\0');
        // MPICH: "MPICH Version:\t4.0.2".
        first
            .split_whitespace()
            .filter(|word| *word != "Version:")
            .collect::<Vec<_>>()
            .join(" ")
    }

    /// Returns the thread level of MPI: `Serialized` or `Multiple`.
    pub fn thread_level(&self) -> String {
        format!("{:?}", self.thread_level)
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<(), CollectiveError> {
        check(call, self.topology.rank, code)
    }

    fn is_world(&self) -> bool {
        self.duplicate.is_none()
    }

    fn raw(&self) -> ffi::MPI_Comm {
        // SAFETY: the mpi crate's C shim initializes this constant before `main`; it is not written
        // later.
        self.duplicate.map_or_else(
            || unsafe { ffi::RSMPI_COMM_WORLD },
            |Handle(communicator)| communicator,
        )
    }

    /// Waits for a call with this communicator's wait policy.
    fn finish(&self, request: PendingCall<'_>) -> Result<(), CollectiveError> {
        request.wait(&self.wait_policy)
    }

    /// Wraps a communicator that MPI created from this communicator.
    fn relative(
        &self,
        communicator: ffi::MPI_Comm,
        topology: Topology,
    ) -> Result<Self, CollectiveError> {
        // SAFETY: the communicator is live; the error handler is one of MPI's own.
        let code = unsafe { ffi::MPI_Comm_set_errhandler(communicator, ffi::RSMPI_ERRORS_RETURN) };
        self.check("MPI_Comm_set_errhandler", code)?;
        Ok(Self {
            duplicate: Some(Handle(communicator)),
            topology,
            thread_level: self.thread_level,
            wait_policy: Arc::default(),
            scratch: Mutex::default(),
            membership: Arc::clone(&self.membership),
        })
    }

    /// Locks message calls if MPI allows only one call at a time. Otherwise returns `None`.
    fn message_turn(&self) -> Option<MutexGuard<'_, Vec<u64>>> {
        (self.thread_level < Threading::Multiple).then(|| self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<u64>> {
        self.scratch.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for MpiCommunicator {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut fields = formatter.debug_struct("MpiCommunicator");
        fields
            .field("topology", &self.topology)
            .field("thread_level", &self.thread_level)
            .finish_non_exhaustive()
    }
}

impl Communicator for MpiCommunicator {
    fn topology(&self) -> &Topology {
        &self.topology
    }

    fn all_reduce(&self, mut buffer: ReduceBuffer<'_>) -> Result<(), CollectiveError> {
        // SAFETY: the mpi crate's C shim initializes these constants before `main`; they are not
        // written later.
        let (datatype, operation) = unsafe {
            match &buffer {
                ReduceBuffer::SumF32(_) => (ffi::RSMPI_FLOAT, ffi::RSMPI_SUM),
                ReduceBuffer::SumF64(_) => (ffi::RSMPI_DOUBLE, ffi::RSMPI_SUM),
                ReduceBuffer::SumU64(_) => (ffi::RSMPI_UINT64_T, ffi::RSMPI_SUM),
                ReduceBuffer::MaxU64(_) => (ffi::RSMPI_UINT64_T, ffi::RSMPI_MAX),
            }
        };
        let element_bytes = buffer.element_bytes();
        let mut scratch = self.lock();
        for values in buffer
            .bytes()
            .chunks_mut(REDUCE_MAX_ELEMENTS * element_bytes)
        {
            // MPI forbids one buffer for both directions. The mpi crate does not provide
            // MPI_IN_PLACE, a macro with a different value in each library. So the values are sent
            // from a copy.
            let words = values.len().div_ceil(size_of::<u64>());
            if scratch.len() < words {
                scratch.resize(words, 0);
            }
            let copy = &mut bytemuck::cast_slice_mut(&mut scratch)[..values.len()];
            copy.copy_from_slice(values);
            let from = copy.as_ptr().cast::<c_void>();
            let to = values.as_mut_ptr().cast::<c_void>();
            let length = count(values.len() / element_bytes);
            // SAFETY: both buffers hold `length` elements of the datatype, do not overlap and
            // outlive the call.
            unsafe {
                self.collective(
                    ["MPI_Allreduce", "MPI_Iallreduce"],
                    |comm| ffi::MPI_Allreduce(from, to, length, datatype, operation, comm),
                    |comm, request| {
                        ffi::MPI_Iallreduce(from, to, length, datatype, operation, comm, request)
                    },
                )
            }?;
        }
        Ok(())
    }

    fn broadcast(&self, root: usize, bytes: &mut [u8]) -> Result<(), CollectiveError> {
        expect_root(self.topology.world_size, root)?;
        self.broadcast_bytes(root, bytes)
    }

    fn all_gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        self.gather_bytes(bytes)
    }

    fn barrier(&self) -> Result<(), CollectiveError> {
        self.meet()
    }

    fn finish(&self) -> Result<(), CollectiveError> {
        self.meet()?;
        self.membership.end();
        Ok(())
    }

    fn send(&self, to: usize, tag: u16, bytes: &[u8]) -> Result<(), CollectiveError> {
        expect_peer(&self.topology, "send", to)?;
        self.send_bytes(to, c_int::from(tag), bytes)
    }

    fn receive(&self, from: usize, tag: u16, bytes: &mut [u8]) -> Result<(), CollectiveError> {
        expect_peer(&self.topology, "receive", from)?;
        self.receive_bytes(from, c_int::from(tag), bytes)
    }

    fn exchange(
        &self,
        to: usize,
        outgoing: &[u8],
        from: usize,
        incoming: &mut [u8],
    ) -> Result<(), CollectiveError> {
        expect_peer(&self.topology, "exchange", to)?;
        expect_peer(&self.topology, "exchange", from)?;
        self.exchange_bytes(to, outgoing, from, incoming)
    }

    fn receive_any(&self, tag: u16) -> Result<(usize, Vec<u8>), CollectiveError> {
        if self.world_size() == 1 {
            expect_peer(&self.topology, "receive_any", self.topology.rank)?;
        }
        self.receive_message(c_int::from(tag))
    }

    fn try_receive_any(&self, tag: u16) -> Result<Option<(usize, Vec<u8>)>, CollectiveError> {
        self.try_receive_message(c_int::from(tag))
    }

    fn duplicate(&self) -> Result<Arc<dyn Communicator>, CollectiveError> {
        let _turn = self.lock();
        let mut duplicate = self.raw();
        // SAFETY: the communicator is live, and `duplicate` outlives the call that writes it.
        self.check("MPI_Comm_dup", unsafe {
            ffi::MPI_Comm_dup(self.raw(), &mut duplicate)
        })?;
        Ok(Arc::new(self.relative(duplicate, self.topology.clone())?))
    }

    fn first_ranks(&self, count: usize) -> Result<Option<Arc<dyn Communicator>>, CollectiveError> {
        let Topology {
            rank, world_size, ..
        } = self.topology;
        assert!(
            (1..=world_size).contains(&count),
            "first ranks: {count} of {world_size}"
        );
        let nodes = self.all_gather(self.topology.node.as_bytes())?;
        let _turn = self.lock();
        let mut part = self.raw();
        // The other ranks also form a communicator, which is unused.
        let color = c_int::from(rank >= count);
        // SAFETY: the communicator is live, and `part` outlives the call that writes it.
        let code = unsafe { ffi::MPI_Comm_split(self.raw(), color, self::count(rank), &mut part) };
        self.check("MPI_Comm_split", code)?;
        if rank >= count {
            return Ok(None);
        }
        let nodes: Vec<String> = nodes[..count]
            .iter()
            .map(|name| String::from_utf8_lossy(name).into_owned())
            .collect();
        let topology = Topology {
            num_cpus: self.topology.num_cpus,
            ..Topology::from_nodes(rank, &nodes)
        };
        Ok(Some(Arc::new(self.relative(part, topology)?)))
    }

    fn supports_threads(&self) -> bool {
        self.thread_level == Threading::Multiple
    }

    fn set_wait_policy(&self, wait_policy: WaitPolicy) {
        self.wait_policy.set(wait_policy);
    }

    fn node_memory(
        &self,
        members: &[usize],
        bytes: usize,
    ) -> Result<Option<Box<dyn NodeMemory>>, CollectiveError> {
        Ok(self
            .share_memory(members, bytes)?
            .map(|memory| -> Box<dyn NodeMemory> { Box::new(memory) }))
    }

    fn abort(&self, _reason: &str, exit_code: i32) {
        end_job(exit_code);
    }

    fn library(&self) -> String {
        Self::library_name()
    }
}

/// Returns a length or rank as a C `int`.
fn count(length: usize) -> c_int {
    c_int::try_from(length).expect("pieces are cut to fit a C int")
}
