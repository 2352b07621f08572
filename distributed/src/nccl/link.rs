//! This rank's GPU and its connection to the other GPUs. Only this file calls CUDA.
//!
//! In: a GPU's index, the group's id, buckets in host memory. Out: sums in host memory.
//! Invariant: a bucket's memory is written and read only while no copy of it is pending.
//! Source: NVIDIA, NCCL user guide, "Thread safety": one call at a time, from any thread.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use cudarc::driver::{
    CudaContext, CudaSlice, CudaStream, DevicePtrMut, DriverError, PinnedHostSlice,
};

use super::api::{Api, Connection, NAMES, UniqueId};
use super::readiness::Readiness;
use crate::pause::pause_after;
use crate::topology::nccl_may_share_gpus;

/// Limit of a pause. No other thread wakes this thread, and the GPU computes during the pause.
const LONGEST_PAUSE: Duration = Duration::from_micros(250);

/// First NCCL that reads `NCCL_MULTI_RANK_GPU_ENABLE`.
const SHARES_GPUS: i32 = 23_000;

/// A failed call of CUDA or NCCL.
#[derive(Debug)]
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
    connection: Connection,
    stream: Arc<CudaStream>,
}

// SAFETY: an NCCL communicator belongs to no thread. Any thread may call its functions, one at a
// time. `Link` does not share the communicator and is not `Sync`.
unsafe impl Send for Link {}

/// Buffers of a bucket in pinned host memory and on the GPU.
#[derive(Debug)]
pub(super) struct Staging {
    host: PinnedHostSlice<f32>,
    device: CudaSlice<f32>,
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
        let stream = context.new_stream().map_err(by_driver("cuStreamCreate"))?;
        Ok(Self {
            connection: Connection::new(api, rank, world_size, id)?,
            stream,
        })
    }

    /// Replaces `values` by their sum over all ranks. `staging` is reallocated if its size differs.
    pub(super) fn sum(
        &self,
        staging: &mut Option<Staging>,
        values: &mut [f32],
    ) -> Result<(), Failure> {
        if values.is_empty() {
            return Ok(());
        }
        if staging
            .as_ref()
            .is_none_or(|staging| staging.host.len() != values.len())
        {
            *staging = None;
        }
        let Staging { host, device } = match staging {
            Some(staging) => staging,
            None => staging.insert(self.staging(values.len())?),
        };
        host.as_mut_slice()
            .map_err(by_driver("cuEventSynchronize"))?
            .copy_from_slice(values);
        self.stream
            .memcpy_htod(host, device)
            .map_err(by_driver("cuMemcpyHtoDAsync"))?;
        {
            let (address, _written) = device.device_ptr_mut(&self.stream);
            // SAFETY: the memory of `staging` is on this GPU and has the same number of values. All
            // its copies are on this stream.
            unsafe {
                self.connection.sum_in_place(
                    address,
                    values.len(),
                    self.stream.cu_stream().cast(),
                )?
            };
        }
        self.stream
            .memcpy_dtoh(device, host)
            .map_err(by_driver("cuMemcpyDtoHAsync"))?;
        self.wait()?;
        let sums = host.as_slice().map_err(by_driver("cuEventSynchronize"))?;
        // cudarc keeps errors of earlier calls.
        self.stream
            .context()
            .check_err()
            .map_err(by_driver("ncclAllReduce"))?;
        values.copy_from_slice(sums);
        Ok(())
    }

    /// Waits until the stream has no pending work, or the connection has failed, after which the
    /// work would never complete. Sleeps between polls, because a wait for the stream would keep
    /// the core busy.
    fn wait(&self) -> Result<(), Failure> {
        let done = self
            .stream
            .record_event(None)
            .map_err(by_driver("cuEventRecord"))?;
        let start = Instant::now();
        while !done.try_is_complete().map_err(by_driver("cuEventQuery"))? {
            self.connection.check()?;
            thread::sleep(pause_after(start.elapsed()).min(LONGEST_PAUSE));
        }
        self.connection.check()
    }

    fn staging(&self, len: usize) -> Result<Staging, Failure> {
        // SAFETY: the memory is written completely before it is first read, and any bits are a
        // valid number.
        // The flags are 0, because write-combined memory would make reads slow.
        let host = unsafe { self.stream.context().alloc_pinned_with_flags(len, 0) };
        let host = host.map_err(by_driver("cuMemHostAlloc"))?;
        let device = self
            .stream
            .alloc_zeros(len)
            .map_err(by_driver("cuMemAllocAsync"))?;
        Ok(Staging { host, device })
    }
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
