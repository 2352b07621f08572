//! This rank's GPU and its connection to the other GPUs. Only this file calls CUDA.
//!
//! In: a GPU's index, the group's id; values in host memory, or memory of the GPU and a stream.
//! Out: sums in the same kind of memory.
//! Invariant: a sum is an operation of the stream that wrote its values.
//! Source: NVIDIA, NCCL user guide, "Thread safety": one call at a time, from any thread.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use cudarc::driver::sys::CUstream;
use cudarc::driver::{CudaContext, CudaEvent, CudaStream, DevicePtrMut, DriverError};

use super::api::{Api, Connection, NAMES, UniqueId};
use super::readiness::Readiness;
use crate::pause::pause_after;
use crate::topology::nccl_may_share_gpus;

/// Limit of a pause. No other thread wakes this thread, and the GPU computes during the pause.
const LONGEST_PAUSE: Duration = Duration::from_micros(250);

/// First NCCL that reads `NCCL_MULTI_RANK_GPU_ENABLE`.
const SHARES_GPUS: i32 = 23_000;

/// A failed call of CUDA or NCCL.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) call: &'static str,
    pub(super) text: String,
}

fn by_driver(call: &'static str) -> impl Fn(DriverError) -> Failure {
    move |error| Failure {
        call,
        text: error.to_string(),
    }
}

/// Returns NCCL if the driver loads too, or the missing part. cudarc panics without a driver, so
/// the driver is checked first.
fn load() -> Result<&'static Api, Readiness> {
    if !driver_loads() {
        return Err(Readiness::Lacking {
            problem: "expected NVIDIA's driver to load (libcuda.so.1), got none in the loader's path".to_owned(),
            remedy: "Run on nodes with GPUs; in a container, give it the GPUs (docker run --gpus all, apptainer exec --nv)"
                .to_owned(),
        });
    }
    Api::get().map_err(|reason| Readiness::Lacking {
        problem: format!("expected NCCL to load ({}), got {reason}", NAMES.join(" or ")),
        remedy: "Install NCCL, or add its folder to LD_LIBRARY_PATH (in PyTorch's wheels: site-packages/nvidia/nccl/lib)"
            .to_owned(),
    })
}

/// Returns the version of the NCCL that this process would use, such as `2.21.5`. Returns `None` if
/// NCCL does not load.
pub fn library_version() -> Option<String> {
    Some(version_text(Api::get().ok()?.version().ok()?))
}

/// Formats NCCL's version number. Up to 2.8 the minor version had one digit less.
fn version_text(code: i32) -> String {
    let thousands = if code < 10_000 { 1_000 } else { 10_000 };
    format!(
        "{}.{}.{}",
        code / thousands,
        code % thousands / 100,
        code % 100
    )
}

fn driver_loads() -> bool {
    // SAFETY: loading runs the library's initialisers. Every CUDA program runs them, including
    // programs with burn.
    unsafe { cudarc::driver::sys::is_culib_present() }
}

/// Returns the readiness of this rank with `gpu`. If the rank is ready, also returns the GPU and
/// NCCL's functions.
pub(super) fn open(gpu: usize) -> (Readiness, Option<(Arc<CudaContext>, &'static Api)>) {
    let api = match load() {
        Ok(api) => api,
        Err(lacking) => return (lacking, None),
    };
    let lacking = |problem: String, remedy: &str| {
        (
            Readiness::Lacking {
                problem,
                remedy: remedy.to_owned(),
            },
            None,
        )
    };
    let Some(version) = library_version() else {
        return lacking(
            "expected NCCL to return its version, got an error".to_owned(),
            "Load another NCCL",
        );
    };
    let may_share = nccl_may_share_gpus() && api.version().is_ok_and(|code| code >= SHARES_GPUS);
    let opened = CudaContext::new(gpu).and_then(|context| Ok((context.uuid()?, context)));
    match opened {
        Ok((uuid, context)) => (
            Readiness::Ready {
                version,
                gpu: match may_share {
                    true => String::new(),
                    false => name(bytemuck::cast_slice(&uuid.bytes)),
                },
            },
            Some((context, api)),
        ),
        Err(error) => {
            let count =
                CudaContext::device_count().map_or("unknown".to_owned(), |count| count.to_string());
            lacking(
                format!("expected GPU {gpu} to open, got {error} (GPUs seen: {count})"),
                "Start as many ranks per node as it has GPUs, or use --device cuda:0 if each rank sees only its GPU",
            )
        }
    }
}

/// Returns a GPU's UUID in the format of `nvidia-smi -L`.
fn name(uuid: &[u8]) -> String {
    let hexadecimal = |bytes: &[u8]| {
        bytes
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    };
    let parts: Vec<String> = [0..4, 4..6, 6..8, 8..10, 10..16]
        .map(|part| hexadecimal(&uuid[part]))
        .to_vec();
    format!("GPU-{}", parts.join("-"))
}

/// Connection of this rank's GPU to the other GPUs.
#[derive(Debug)]
pub(super) struct Link {
    // Dropped first, because its end waits for pending work on the stream.
    connection: Mutex<Connection>,
    /// Events before and after each sum that was not seen to end, oldest first.
    pending: Mutex<VecDeque<[CudaEvent; 2]>>,
    /// Stream of the sums of values in host memory.
    stream: Arc<CudaStream>,
}

impl Link {
    /// Waits until all ranks of `id` have joined.
    pub(super) fn new(
        (context, api): (Arc<CudaContext>, &'static Api),
        (rank, world_size): (usize, usize),
        id: UniqueId,
    ) -> Result<Self, Failure> {
        // NCCL uses the GPU whose context is current.
        context
            .bind_to_thread()
            .map_err(by_driver("cuCtxSetCurrent"))?;
        // Ahead of the connection: cudarc waits for all work of the GPU, and another rank may sum
        // as soon as all have joined.
        let stream = context.new_stream().map_err(by_driver("cuStreamCreate"))?;
        Ok(Self {
            connection: Mutex::new(Connection::new(api, rank, world_size, id)?),
            pending: Mutex::default(),
            stream,
        })
    }

    /// Returns the CUDA index of this rank's GPU.
    #[cfg(feature = "cuda")]
    pub(super) fn gpu(&self) -> usize {
        self.stream.context().ordinal()
    }

    /// Queues a sum on `stream`: that of `len` values at `from` over all ranks, into `to`.
    ///
    /// # Safety
    /// As for [`Connection::sum`]. No capture of `stream` is under way.
    pub(super) unsafe fn queue_sum(
        &self,
        [from, to]: [u64; 2],
        len: usize,
        stream: CUstream,
    ) -> Result<(), Failure> {
        let context = Arc::clone(self.stream.context());
        // SAFETY: the caller guarantees that the stream lives during this call and is of this GPU.
        let borrowed = unsafe { context.wrap_borrowed_stream(stream) };
        let event = || {
            let event = borrowed.record_event(None);
            event.map_err(by_driver("cuEventRecord"))
        };
        let before = event()?;
        // SAFETY: as the caller guarantees.
        unsafe { lock(&self.connection).sum([from, to], len, stream.cast())? };
        let after = event()?;
        let mut pending = self.pending()?;
        pending.push_back([before, after]);
        Ok(())
    }

    /// Returns the sums that have not completed.
    fn pending(&self) -> Result<MutexGuard<'_, VecDeque<[CudaEvent; 2]>>, Failure> {
        let mut pending = lock(&self.pending);
        while let Some([_, after]) = pending.front()
            && is_complete(after)?
        {
            pending.pop_front();
        }
        Ok(pending)
    }

    /// Returns true if this rank's GPU is in a sum, where it may wait for other ranks.
    ///
    /// # Errors
    /// If the connection has failed, after which a pending sum would never complete.
    pub(super) fn is_summing(&self) -> Result<bool, Failure> {
        match self.connection.try_lock() {
            Ok(mut connection) => connection.check()?,
            // Another thread is in a call, where it may wait too.
            Err(TryLockError::WouldBlock) => return Ok(true),
            Err(TryLockError::Poisoned(error)) => error.into_inner().check()?,
        }
        let pending = self.pending()?;
        let before = pending.front().map(|[before, _]| is_complete(before));
        before.unwrap_or(Ok(false))
    }

    /// Replaces `values` in host memory by their sum over all ranks, and waits.
    pub(super) fn sum(&self, values: &mut [f32]) -> Result<(), Failure> {
        if values.is_empty() {
            return Ok(());
        }
        let stream = &self.stream;
        let memory = stream.clone_htod(values);
        let mut memory = memory.map_err(by_driver("cuMemcpyHtoDAsync"))?;
        {
            let (address, _written) = memory.device_ptr_mut(stream);
            // SAFETY: the memory is on this GPU, has this number of values and is used only on this
            // stream.
            unsafe { self.queue_sum([address; 2], values.len(), stream.cu_stream())? };
        }
        self.wait()?;
        stream
            .memcpy_dtoh(&memory, values)
            .and_then(|()| stream.synchronize())
            .map_err(by_driver("cuMemcpyDtoHAsync"))?;
        // cudarc keeps errors of earlier calls.
        stream
            .context()
            .check_err()
            .map_err(by_driver("ncclAllReduce"))
    }

    /// Waits until the stream has no pending work. Sleeps between polls, because a wait for the
    /// stream would keep the core busy.
    fn wait(&self) -> Result<(), Failure> {
        let done = self.stream.record_event(None);
        let done = done.map_err(by_driver("cuEventRecord"))?;
        let start = Instant::now();
        while !is_complete(&done)? {
            self.is_summing()?;
            thread::sleep(pause_after(start.elapsed()).min(LONGEST_PAUSE));
        }
        lock(&self.connection).check()
    }
}

fn is_complete(event: &CudaEvent) -> Result<bool, Failure> {
    event.try_is_complete().map_err(by_driver("cuEventQuery"))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::{name, version_text};

    #[test]
    fn versions_are_read_in_both_of_their_forms() {
        assert_eq!(version_text(2708), "2.7.8");
        assert_eq!(version_text(22105), "2.21.5");
        assert_eq!(version_text(23203), "2.32.3");
    }

    #[test]
    fn a_gpu_is_named_as_nvidia_smi_does() {
        let bytes: Vec<u8> = (0..16).collect();
        assert_eq!(name(&bytes), "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f");
    }
}
