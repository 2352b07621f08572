//! Reductions through memory that the processes of one node share.
//!
//! In: the buffers of a node's processes. Out: their sum. Each process sums one slice in rank
//! order.
//! Invariant: memory is read only after its writer has set a flag, and is overwritten only after
//! its readers have set their flags.
//! Source: MPI standard 3.1, section 11.2.3 (`MPI_Win_allocate_shared`).
//!
//! The memory holds one line of flags and one part per process, and one result. For each piece a
//! process takes three steps:
//! 1. It copies the slices that other processes reduce into its part (`arrived`).
//! 2. It reduces its slice over all parts into its buffer and the result (`reduced`).
//! 3. It copies the other slices from the result.
//!
//! Two flags suffice. A process that sees all `reduced` flags may overwrite its part, because no
//! process reads the part any more. A process that sees all `arrived` flags of the next piece may
//! overwrite the result, because each process has copied it.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::ops::Range;
use std::os::raw::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ::mpi::ffi;

use super::end::Membership;
use super::wait_policy::SharedWaitPolicy;
use super::{MpiCommunicator, count};
use crate::algorithms::{Number, add};
use crate::communicator::{BetweenNodes, NodeMemory, ReduceBuffer};
use crate::{CollectiveError, Communicator};

/// Bytes between the flags of two processes, so that they share neither a cache line nor a pair of
/// cache lines.
const FLAGS_BYTES: usize = 128;

/// Shared memory of a node's processes.
pub(super) struct SharedMemory {
    base: NonNull<u8>,
    /// Number of processes, and the index of this process.
    size: usize,
    index: usize,
    /// Bytes of a part and of the result.
    bytes: usize,
    /// Number of pieces reduced so far.
    round: u64,
    wait_policy: Arc<SharedWaitPolicy>,
    /// Membership that keeps MPI, which owns the memory, from being finalized.
    _membership: Arc<Membership>,
}

// SAFETY: the memory is mapped for the whole process. Any thread may use `base`, but only through
// `&mut self`.
unsafe impl Send for SharedMemory {}

/// The progress of a process, in pieces.
#[repr(C)]
struct Flags {
    arrived: AtomicU64,
    reduced: AtomicU64,
    /// Progress of the first process only: the result is complete for all nodes.
    released: AtomicU64,
}

impl MpiCommunicator {
    /// Allocates memory for `members` to share. Returns `None` on all ranks if sharing is
    /// impossible.
    pub(super) fn share_memory(
        &self,
        members: &[usize],
        bytes: usize,
    ) -> Result<Option<SharedMemory>, CollectiveError> {
        let bytes = bytes.next_multiple_of(FLAGS_BYTES);
        let total = members.len() * (FLAGS_BYTES + bytes) + bytes;
        let node = self.split_by_node(members)?;
        let leads = members.first() == Some(&self.topology.rank);
        let is_possible = self.group_size(node)? == members.len() && (!leads || has_room(total));
        let mut failed = [u64::from(!is_possible)];
        self.all_reduce(ReduceBuffer::MaxU64(&mut failed))?;
        if failed[0] > 0 {
            return Ok(None);
        }
        let base = self.allocate(node, if leads { total } else { 0 });
        let mut failed = [u64::from(base.is_err())];
        self.all_reduce(ReduceBuffer::MaxU64(&mut failed))?;
        let (Ok(base), 0) = (base, failed[0]) else {
            return Ok(None);
        };
        let index = members
            .iter()
            .position(|&member| member == self.topology.rank);
        let memory = SharedMemory {
            base,
            size: members.len(),
            index: index.expect("a rank is a member of its node"),
            bytes,
            round: 0,
            wait_policy: Arc::clone(&self.wait_policy),
            _membership: Arc::clone(&self.membership),
        };
        let flags = memory.flags(memory.index);
        for flag in [&flags.arrived, &flags.reduced, &flags.released] {
            flag.store(0, Ordering::Release);
        }
        // All flags must be zero before any process reads them.
        self.meet()?;
        Ok(Some(memory))
    }

    /// Returns a communicator of the processes that can share memory with this process and have the
    /// same first member.
    fn split_by_node(&self, members: &[usize]) -> Result<ffi::MPI_Comm, CollectiveError> {
        let mut machine = self.raw();
        let mut node = self.raw();
        let key = count(self.topology.rank);
        let colour = count(members.first().copied().unwrap_or(0));
        // SAFETY: the communicator is live, and `machine` outlives the call that writes it.
        let code = unsafe {
            ffi::MPI_Comm_split_type(
                self.raw(),
                ffi::RSMPI_COMM_TYPE_SHARED,
                key,
                ffi::RSMPI_INFO_NULL,
                &mut machine,
            )
        };
        self.check("MPI_Comm_split_type", code)?;
        // SAFETY: as above.
        self.check("MPI_Comm_split", unsafe {
            ffi::MPI_Comm_split(machine, colour, key, &mut node)
        })?;
        // SAFETY: the communicator is live; the error handler is one of MPI's own.
        let code = unsafe { ffi::MPI_Comm_set_errhandler(node, ffi::RSMPI_ERRORS_RETURN) };
        self.check("MPI_Comm_set_errhandler", code)?;
        Ok(node)
    }

    fn group_size(&self, communicator: ffi::MPI_Comm) -> Result<usize, CollectiveError> {
        let mut size: c_int = 0;
        // SAFETY: the communicator is live, and `size` outlives the call that writes it.
        self.check("MPI_Comm_size", unsafe {
            ffi::MPI_Comm_size(communicator, &mut size)
        })?;
        Ok(usize::try_from(size).expect("sizes are not negative"))
    }

    /// Allocates shared memory, `bytes` per process. Returns the address of the first process's
    /// memory.
    fn allocate(&self, node: ffi::MPI_Comm, bytes: usize) -> Result<NonNull<u8>, CollectiveError> {
        let bytes =
            ffi::MPI_Aint::try_from(bytes).expect("shared memory is far smaller than memory");
        let mut mine: *mut c_void = std::ptr::null_mut();
        // SAFETY: the mpi crate's C shim initializes these constants before `main`; they are not
        // written later.
        let (mut window, info) = unsafe { (ffi::RSMPI_WIN_NULL, ffi::RSMPI_INFO_NULL) };
        // SAFETY: MPI writes the address of the memory to `mine` and the window to `window`; both
        // outlive the call.
        let code = unsafe {
            let address = (&raw mut mine).cast::<c_void>();
            ffi::MPI_Win_allocate_shared(bytes, 1, info, node, address, &mut window)
        };
        self.check("MPI_Win_allocate_shared", code)?;
        let mut size: ffi::MPI_Aint = 0;
        let mut unit: c_int = 0;
        let mut base: *mut c_void = std::ptr::null_mut();
        // SAFETY: the window is live; MPI writes the address of the first process's memory to
        // `base`; all outlive the call.
        let code = unsafe {
            let address = (&raw mut base).cast::<c_void>();
            ffi::MPI_Win_shared_query(window, 0, &mut size, &mut unit, address)
        };
        self.check("MPI_Win_shared_query", code)?;
        NonNull::new(base.cast::<u8>()).ok_or_else(|| {
            CollectiveError::Failed(format!(
                "MPI_Win_shared_query failed on rank {}: no memory",
                self.topology.rank
            ))
        })
    }
}

/// Returns true if the file system of Open MPI's shared memory has room for `bytes`. Without room,
/// the first process gives up and the others wait for it forever. The standard library has no query
/// of free space, so the function creates a file.
fn has_room(bytes: usize) -> bool {
    let path = format!("/dev/shm/lockstep-room-{}", std::process::id());
    // A killed process with this number may have left a file.
    let _ = fs::remove_file(&path);
    // Without such a folder, the memory is elsewhere. Open MPI needs a twentieth more, plus a page.
    let mut file = match File::create_new(&path) {
        Ok(file) => file,
        Err(error) => return error.kind() != ErrorKind::StorageFull,
    };
    let written = file.write_all(&vec![0; bytes + bytes / 16 + (1 << 16)]);
    let _ = fs::remove_file(&path);
    !written.is_err_and(|error| error.kind() == ErrorKind::StorageFull)
}

impl SharedMemory {
    fn flags(&self, index: usize) -> &Flags {
        assert!(index < self.size, "every process has its flags");
        // SAFETY: the first `size * FLAGS_BYTES` bytes of the memory are aligned flags. The flags
        // are atomic, so any process may write them at any time.
        unsafe { self.base.add(index * FLAGS_BYTES).cast::<Flags>().as_ref() }
    }

    /// Returns the start of the part of a process. The index `size` stands for the result.
    fn part<T: Number>(&self, index: usize) -> NonNull<T> {
        assert!(index <= self.size, "every process has its part");
        // SAFETY: the part is inside the memory, which has room for all flags, parts and the
        // result.
        unsafe { self.base.add(self.size * FLAGS_BYTES + index * self.bytes) }.cast::<T>()
    }

    /// Returns elements of a part.
    ///
    /// # Safety
    /// No code writes the elements while the slice lives.
    unsafe fn read<T: Number>(&self, part: usize, range: Range<usize>) -> &[T] {
        assert!(
            range.start <= range.end && range.end * size_of::<T>() <= self.bytes,
            "pieces fit into a part"
        );
        // SAFETY: the range is inside the part, whose start is aligned to FLAGS_BYTES. Any bits are
        // a valid number.
        unsafe {
            std::slice::from_raw_parts(self.part::<T>(part).add(range.start).as_ptr(), range.len())
        }
    }

    /// Returns writable elements of a part.
    ///
    /// # Safety
    /// No other code reads or writes the elements while the slice lives.
    #[expect(
        clippy::mut_from_ref,
        reason = "the caller promises that no other code uses them"
    )]
    unsafe fn write<T: Number>(&self, part: usize, range: Range<usize>) -> &mut [T] {
        assert!(
            range.start <= range.end && range.end * size_of::<T>() <= self.bytes,
            "pieces fit into a part"
        );
        // SAFETY: as for `read`.
        unsafe {
            std::slice::from_raw_parts_mut(
                self.part::<T>(part).add(range.start).as_ptr(),
                range.len(),
            )
        }
    }

    /// Waits until `flag` of all processes in `who` has reached `round`.
    fn wait(&self, who: Range<usize>, round: u64, flag: impl Fn(&Flags) -> &AtomicU64) {
        for index in who {
            let flag = flag(self.flags(index));
            self.wait_policy
                .wait(|| (flag.load(Ordering::Acquire) >= round).then_some(()));
        }
    }

    fn sum_in_pieces<T: Number>(
        &mut self,
        values: &mut [T],
        mut between: Option<BetweenNodes<'_>>,
    ) -> Result<(), CollectiveError> {
        for piece in values.chunks_mut(self.bytes / size_of::<T>()) {
            self.round += 1;
            self.sum_piece(piece, &mut between)?;
        }
        Ok(())
    }

    fn sum_piece<T: Number>(
        &self,
        values: &mut [T],
        between: &mut Option<BetweenNodes<'_>>,
    ) -> Result<(), CollectiveError> {
        let Self {
            size, index, round, ..
        } = *self;
        let length = values.len();
        let cut = |slice: usize| length * slice / size;
        let mine = cut(index)..cut(index + 1);
        let others = [0..mine.start, mine.end..length];
        for range in others.clone() {
            // SAFETY: only this process writes its part. The other processes have read the last
            // piece, because all of them had set `reduced`.
            unsafe { self.write(index, range.clone()) }.copy_from_slice(&values[range]);
        }
        self.flags(index).arrived.store(round, Ordering::Release);

        self.wait(0..size, round, |flags| &flags.arrived);
        // SAFETY: only this process writes its slice of the result, and no process reads the slice
        // before `reduced`. All processes have copied the last piece, because they have set
        // `arrived` for this one.
        let result = unsafe { self.write::<T>(size, mine.clone()) };
        for part in 0..size {
            let values: &[T] = if part == index {
                &values[mine.clone()]
            } else {
                // SAFETY: the owner wrote the part before `arrived`, and overwrites the part only
                // after this process has set `reduced`.
                unsafe { self.read(part, mine.clone()) }
            };
            if part == 0 {
                result.copy_from_slice(values)
            } else {
                add(result, values)
            }
        }
        self.flags(index).reduced.store(round, Ordering::Release);

        let whole = [0..length, length..length];
        let outside = match between {
            None => {
                values[mine].copy_from_slice(result);
                self.wait(0..size, round, |flags| &flags.reduced);
                others
            }
            Some(between) if index == 0 => {
                self.wait(0..size, round, |flags| &flags.reduced);
                // SAFETY: all slices are reduced, and no process reads them before `released`.
                between(T::buffer(unsafe { self.write(size, 0..length) }))?;
                self.flags(0).released.store(round, Ordering::Release);
                whole
            }
            Some(_) => {
                self.wait(0..1, round, |flags| &flags.released);
                whole
            }
        };
        for range in outside {
            // SAFETY: the result is complete, and is not overwritten before this process sets
            // `arrived` for the next piece.
            values[range.clone()].copy_from_slice(unsafe { self.read(size, range) });
        }
        Ok(())
    }
}

impl std::fmt::Debug for SharedMemory {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut fields = formatter.debug_struct("SharedMemory");
        fields
            .field("size", &self.size)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

impl NodeMemory for SharedMemory {
    fn sum(
        &mut self,
        buffer: ReduceBuffer<'_>,
        between: Option<BetweenNodes<'_>>,
    ) -> Result<(), CollectiveError> {
        match buffer {
            ReduceBuffer::SumF32(values) => self.sum_in_pieces(values, between),
            ReduceBuffer::SumU64(values) => self.sum_in_pieces(values, between),
            ReduceBuffer::SumF64(_) | ReduceBuffer::MaxU64(_) => {
                unreachable!("nodes sum f32 and u64")
            }
        }
    }
}
