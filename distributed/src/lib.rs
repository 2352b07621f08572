//! Ranks, collectives and gradient synchronisation for any burn module.
//!
//! In: a module built on every rank, its gradients, a launcher's environment. Out: the exact global gradient, equal on all ranks.
//! Invariant: every rank makes the same sequence of collectives; what differs between ranks is found and named, never guessed.
//! Source: Li et al. 2020, PyTorch Distributed (2006.15704), for buckets; the MPI standard 3.1 for the collectives.
//!
//! A communicator is [`SingleCommunicator`] (one rank), [`ThreadCommunicator`] (ranks as threads of one process, for tests) or
//! `MpiCommunicator` (cargo feature `mpi`); everything above them is one code path:
//!
//! ```
//! use std::sync::Arc;
//! use burn::{nn::LinearConfig, tensor::{Device, Tensor}};
//! use distributed::{Communicator, GradientReducer, ReducerConfig, broadcast_module, run_ranks};
//!
//! let norms = run_ranks(2, |communicator| {
//!     let communicator: Arc<dyn Communicator> = Arc::new(communicator);
//!     let device = Device::flex().autodiff();
//!     let model = broadcast_module(LinearConfig::new(3, 2).init(&device), &*communicator, 0)?;
//!     let mut reducer = GradientReducer::new(&model, communicator, &ReducerConfig::default())?;
//!     let gradients = model.forward(Tensor::<2>::ones([4, 3], &device)).mean().backward();
//!     reducer.accumulate(&model, gradients, 0.5);
//!     Ok::<f64, distributed::CollectiveError>(reducer.reduce()?.norm())
//! });
//! assert_eq!(norms[0].as_ref().unwrap(), norms[1].as_ref().unwrap());
//! ```

mod algorithms;
mod bucket;
mod bytes;
mod communicator;
mod compress;
mod cpus;
mod error;
mod header;
mod launch;
mod layout;
#[cfg(feature = "mpi")]
mod mpi;
#[cfg(feature = "nccl")]
pub mod nccl;
mod on_device;
mod panic;
mod parameter_server;
mod pause;
mod reducer;
mod reduction;
mod seed;
mod single;
mod sync;
mod threads;
mod topology;
pub mod watchdog;

#[cfg(feature = "mpi")]
pub use self::mpi::MpiCommunicator;
#[cfg(feature = "nccl")]
pub use self::nccl::NcclReduction;
pub use algorithms::{AllReducer, ExactReducer, HierarchicalReducer, ReductionKind};
pub use bucket::{Bucket, BucketPlan};
pub use bytes::{bytes_to_floats, floats_to_bytes};
pub use communicator::{Between, Communicator, NodeMemory, ROOT, WaitPolicy, expect_peer};
pub use compress::{
    BucketCompressor, CompressionKind, CompressionReport, ParseCompressionError, PowerSgdLimits,
    TensorSpan,
};
pub use cpus::{CpuLimits, CpuQuota, control_groups};
pub use error::CollectiveError;
pub use header::{GlobalStepStatus, StepHeader, agree, locate_non_finite};
pub use launch::{check_world, join, launch, launch_with, mpi_library};
pub use layout::{ParameterEntry, ParameterLayout, read, write};
pub use on_device::{ElementOrder, replace, take_gradients, tensors};
pub use parameter_server::{
    Consistency, Server, ServerClient, ServerPlan, Shard, ShardUpdate, assign_buckets,
};
pub use pause::pause_after;
pub use reducer::{
    BucketTimes, GradientCollector, GradientReducer, LocalBucket, MicroStepConfig, ReducerConfig,
    StepReport, SyncedBucket, SyncedGradients,
};
pub use reduction::{
    BucketContext, BucketReduction, CompressedReduction, ExactReduction, ReductionState, Traffic,
    tensor_spans,
};
pub use seed::draw_seed;
pub use single::SingleCommunicator;
pub use sync::{
    Fingerprint, average_norm_statistics, broadcast_module, check_fingerprint, fingerprint,
    tensor_hashes,
};
pub use threads::{ThreadCommunicator, run_ranks};
pub use topology::{Launcher, Topology, check_place, check_world_size, scheduler_job};
pub use watchdog::{Alarm, Phase, RankStatus, Watchdog, WatchedCommunicator, WatchedReduction};

/// The example of the crate's page, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
