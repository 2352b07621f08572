//! Ranks, collectives and gradient synchronisation for any burn module.
//!
//! In: a module built on every rank, its gradients, a launcher's environment. Out: the exact global
//! gradient, equal on all ranks.
//! Invariant: every rank calls the same sequence of collectives. Differences between ranks are
//! detected and reported.
//! Source: Li et al. 2020, PyTorch Distributed (2006.15704), for buckets; the MPI standard 3.1 for
//! the collectives.
//!
//! A communicator is [`SingleCommunicator`](communicator::SingleCommunicator) (one rank),
//! [`ThreadCommunicator`](communicator::ThreadCommunicator) (ranks as threads of one process, for
//! tests) or `MpiCommunicator` (cargo feature `mpi`). All code above communicators is the same:
//!
//! ```
//! use std::sync::Arc;
//! use burn::{nn::LinearConfig, tensor::{Device, Tensor}};
//! use distributed::gradients::{GradientReducer, ReducerConfig};
//! use distributed::replica::broadcast_module;
//! use distributed::{Communicator, run_ranks};
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
pub mod communicator;
mod compress;
mod cpus;
mod error;
mod header;
mod launch;
mod layout;
#[cfg(feature = "mpi")]
mod mpi;
#[cfg(feature = "nccl")]
mod nccl;
mod on_device;
mod panic;
mod parameter_server;
mod pause;
mod reducer;
mod reduction;
mod single;
mod sync;
mod threads;
mod topology;
pub mod watchdog;

/// Gradients of a step: buckets, agreement of the ranks, sums over micro-steps and ranks.
pub mod gradients {
    #[cfg(feature = "cli")]
    pub use crate::algorithms::ReductionChoice;
    pub use crate::algorithms::{AllReducer, ExactReducer, HierarchicalReducer, ReductionKind};
    pub use crate::bucket::{Bucket, BucketPlan};
    pub use crate::compress::{
        BucketCompressor, CompressionKind, PowerSgdLimits, RoundedSum, TensorSpan,
    };
    pub use crate::header::{GlobalStepStatus, StepHeader, agree, locate_non_finite};
    #[cfg(feature = "nccl")]
    pub use crate::nccl::{NcclReduction, Readiness, library_version, verdict};
    pub use crate::parameter_server::{
        Consistency, Server, ServerClient, ServerPlacement, ServerPlan, Shard, ShardUpdate,
        assign_buckets,
    };
    pub use crate::pause::pause_after;
    pub use crate::reducer::{
        BucketTimes, GradientCollector, GradientReducer, LocalGradients, MicroStepConfig,
        ReducerConfig, StepReport, SyncedBucket, SyncedGradients,
    };
    pub use crate::reduction::{
        BucketContext, BucketReduction, CompressedReduction, ExactReduction, ReductionState,
        Traffic, tensor_spans,
    };
}

/// Parameters of a module: their layout in a flat buffer, copies, fingerprints, equal replicas.
pub mod replica {
    pub use crate::layout::{ParameterEntry, ParameterLayout, read, write};
    pub use crate::on_device::{ElementOrder, replace, take_gradients, tensors};
    pub use crate::sync::{
        average_norm_statistics, broadcast_module, bytes_to_floats, check_fingerprint, draw_seed,
        fingerprint, floats_to_bytes, tensor_hashes,
    };
}

pub use communicator::{Communicator, ROOT};
pub use error::CollectiveError;
pub use launch::launch;
pub use threads::{run_ranks, try_run_ranks};

/// The example of the crate's documentation, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
