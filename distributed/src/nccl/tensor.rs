//! Sums of tensors in the memory of burn's CUDA backend.
//!
//! In: a tensor on this rank's GPU. Out: its sum over all ranks, in other memory of this GPU.
//! Invariant: the sum is an operation of the stream on which burn computes. So it begins after the
//! tensor is written, later operations wait for it, and the host waits for nothing.
//! Source: cubecl 0.11.3, cubecl-cuda, `compute/server.rs`, `reduce_checked`, whose groups have
//! only the GPUs of one process.

use std::any::TypeId;
use std::sync::Arc;

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, DispatchDevice, TensorMetadata, backend_extension};
use burn::tensor::{DType, Device, Tensor};
use burn_cubecl::cubecl::cuda::CudaRuntime;
use burn_cubecl::cubecl::device_handle::DeviceHandle;
use burn_cubecl::cubecl::server::{BufferBinding, ServerError, ServerStorage};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{CubeBackend, CubeDevice};
use cubecl_server::runtime::Runtime;
use cubecl_server::stream::{WriteScoped, failed_writing};

use super::{NcclReduction, failed};
use crate::reduction::Traffic;

type Server = <CudaRuntime as Runtime>::Server;

impl NcclReduction {
    /// Returns the CUDA index of a device of burn's CUDA backend.
    pub fn gpu_of(device: &Device) -> Option<usize> {
        match device.as_dispatch() {
            DispatchDevice::Cube(CubeDevice::Cuda(device)) => Some(device.index),
            _ => None,
        }
    }

    /// Returns the sum of `own`, `[len]` in f32, over all ranks, whose computation is only queued;
    /// and what this rank sends for it.
    ///
    /// If NCCL fails, reading the sum fails.
    ///
    /// # Panics
    /// If `own` is not on the GPU of this reduction.
    ///
    /// # Collective
    /// Must be called by all ranks, with equal lengths.
    pub fn sum(self: &Arc<Self>, own: Tensor<1>) -> (Tensor<1>, Traffic) {
        let traffic = Traffic::of_sum(own.dims()[0], size_of::<f32>(), self.world_size);
        let sum = <Dispatch as TensorSum>::sum_over_ranks(own.into_dispatch(), Arc::clone(self));
        (Tensor::from_dispatch(sum), traffic)
    }
}

/// The sum as an operation of burn, which its fusion queues.
#[backend_extension(Cube, Fusion)]
trait TensorSum: Backend {
    #[fusion(meta = |own, _reduction| own.clone())]
    fn sum_over_ranks(own: FloatTensor<Self>, reduction: Arc<NcclReduction>) -> FloatTensor<Self>;
}

impl TensorSum for CubeBackend {
    fn sum_over_ranks(own: CubeTensor, reduction: Arc<NcclReduction>) -> CubeTensor {
        assert_eq!(own.dtype, DType::F32, "sum over ranks: expected f32");
        let own = into_contiguous(own);
        let service = own.client.service_id();
        assert_eq!(
            (service.service, usize::from(service.device.index_id)),
            (TypeId::of::<Server>(), reduction.link.gpu()),
            "sum over ranks: expected a tensor on the GPU of NCCL"
        );
        let (client, device) = (own.client.clone(), own.device.clone());
        let sum = empty_device_contiguous_dtype(client, device, own.shape(), own.dtype);
        let len = own.shape().num_elements();
        let memory = [&own, &sum].map(|tensor| tensor.handle.clone().binding());
        DeviceHandle::<Server>::new(service.device).submit(move |server| {
            if let Err(error) = queue(server, &memory, len, &reduction) {
                let [_, sum] = memory;
                failed_writing(server, sum.stream, vec![sum], error);
            }
        });
        sum
    }
}

/// Queues the sum of the first memory into the second one.
fn queue(
    server: &mut Server,
    memory: &[BufferBinding; 2],
    len: usize,
    reduction: &NcclReduction,
) -> Result<(), ServerError> {
    let [own, sum] = memory;
    let own = server.get_resource(own.clone(), sum.stream)?;
    let sums = server.get_resource(sum.clone(), sum.stream)?;
    let places = [&own, &sums].map(|managed| managed.resource().ptr);
    // The stream waits here for those that wrote the memory, if they are others.
    let mut streams = server.write_streams().resolve(sum.stream, memory.iter())?;
    let stream = streams.current().sys;
    // SAFETY: both tensors have `len` values on this GPU without gaps. cubecl reuses their memory
    // only after the work that the stream has now. No captured step contains this operation.
    let queued = unsafe { reduction.link.queue_sum(places, len, stream) };
    queued.map_err(|failure| ServerError::Generic {
        reason: failed(reduction.rank, failure).to_string(),
        backtrace: Default::default(),
    })
}
