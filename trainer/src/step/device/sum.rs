//! The sum of a device's flat gradient over all ranks.
//!
//! In: one flat tensor per rank, of equal lengths. Out: their sum, the same bits on every rank.
//! Invariant: one collective call per step on every rank. The values of the given tensor stay, as
//! they explain a sum that is not finite.

use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use burn::tensor::{Device, Tensor, TensorData};
use distributed::gradients::{AllReducer, BucketContext, BucketReduction, ReductionKind, Traffic};
use distributed::{CollectiveError, Communicator};

use super::half_sum::HalfSum;
use super::placement::FlatPlacement;
use crate::config::{ReductionChoice, SyncMethod};
use crate::measure::timer::Timer;
use crate::model::floats;
use crate::step::config::StepConfig;
use crate::step::readback::Readback;

/// A way to sum flat tensors over ranks.
#[derive(Debug)]
pub(super) enum DeviceSum {
    /// One rank, whose tensor is the sum.
    OneRank,
    /// Sum by NCCL on the GPU's stream.
    #[cfg(feature = "cuda")]
    Nccl(Arc<distributed::gradients::NcclReduction>),
    /// Through main memory, by any communicator: one copy from the device and one to the device.
    Staged {
        reducer: Box<AllReducer>,
        /// The reason why NCCL does not sum.
        obstacle: Option<CollectiveError>,
    },
    /// As `Staged`, in bf16.
    Half(Box<HalfSum>),
}

impl DeviceSum {
    /// Collective: all ranks.
    pub(super) fn new(
        config: &StepConfig,
        communicator: &Arc<dyn Communicator>,
        placement: &FlatPlacement,
    ) -> Result<Self, CollectiveError> {
        let SyncMethod::Allreduce {
            reduction,
            compression,
            ..
        } = config.sync.method
        else {
            unreachable!("`step::check` accepts only sums on devices in f32 or bf16");
        };
        if compression.is_some() {
            // One rank rounds too.
            return Ok(Self::Half(Box::new(HalfSum::new(placement, communicator))));
        }
        if communicator.world_size() == 1 {
            return Ok(Self::OneRank);
        }
        let mut obstacle = None;
        if matches!(reduction, None | Some(ReductionChoice::Nccl)) {
            match nccl_sum(config, communicator, placement.device()) {
                Ok(sum) => return Ok(sum),
                Err(error @ CollectiveError::NcclUnavailable { .. }) if reduction.is_none() => {
                    obstacle = Some(error);
                }
                Err(error) => return Err(error),
            }
        }
        let kind = reduction.and_then(ReductionChoice::kind);
        let kind = kind.unwrap_or(ReductionKind::Hierarchical);
        let reducer = Box::new(AllReducer::new(kind, Arc::clone(communicator))?);
        Ok(Self::Staged { reducer, obstacle })
    }

    /// Returns true if a captured step can contain the sum.
    pub(super) fn is_capturable(&self) -> bool {
        // Every rank must replay NCCL's sum or none, but each rank decides from its own batches.
        matches!(self, Self::OneRank)
    }

    /// Returns the sum of `own`, `[len]`, over all ranks.
    /// Collective: all ranks.
    pub(super) fn sum(&mut self, own: Tensor<1>, timer: &Timer) -> Result<(Tensor<1>, Traffic)> {
        let start = Instant::now();
        let summed = match self {
            Self::OneRank => return Ok((own, Traffic::default())),
            // The host only queues the sum and cannot time it.
            #[cfg(feature = "cuda")]
            Self::Nccl(sum) => return Ok(sum.sum(own)),
            Self::Half(sum) => sum.sum(own)?,
            Self::Staged { reducer, .. } => {
                let device = own.device();
                let [len] = own.dims();
                let mut values = floats(own.into_data())?;
                let traffic = reducer.reduce(BucketContext::default(), 0, &mut values)?;
                let sum = Tensor::from_data(TensorData::new(values, [len]), &device);
                (sum, traffic)
            }
        };
        timer.add_bucket(0, start, Instant::now());
        Ok(summed)
    }

    /// Waits for the next answer, which may need a sum; `None` if all were received.
    ///
    /// # Errors
    /// If the sum fails.
    pub(super) fn receive<I, O>(&self, readback: &mut Readback<I, O>) -> Result<Option<O>>
    where
        I: Send + 'static,
        O: Send + 'static,
    {
        #[cfg(feature = "cuda")]
        if let Self::Nccl(sum) = self
            && readback.num_unanswered() > 0
        {
            /// Time between two checks of the connection.
            const LIMIT: std::time::Duration = std::time::Duration::from_millis(50);
            return Ok(Some(sum.wait_for(|| readback.receive_within(LIMIT))?));
        }
        Ok(readback.receive())
    }

    /// Describes the sum.
    pub(super) fn route(&self) -> &'static str {
        match self {
            Self::OneRank => "none, one rank",
            #[cfg(feature = "cuda")]
            Self::Nccl(_) => "in one piece after the backward pass, by NCCL",
            Self::Half(_) => "in one piece in bf16 after the backward pass, through main memory",
            Self::Staged { .. } => "in one piece after the backward pass, through main memory",
        }
    }

    /// Returns the algorithm of the sum if the configuration leaves it open.
    pub(super) fn chosen(&self) -> ReductionChoice {
        #[cfg(feature = "cuda")]
        if matches!(self, Self::Nccl(_)) {
            return ReductionChoice::Nccl;
        }
        ReductionChoice::Hierarchical
    }

    /// Returns a warning if NCCL was tried and does not sum.
    pub(super) fn warning(&self) -> Option<String> {
        let Self::Staged {
            obstacle:
                Some(CollectiveError::NcclUnavailable {
                    ranks,
                    problem,
                    remedy,
                }),
            ..
        } = self
        else {
            return None;
        };
        Some(format!(
            "gradients are summed through main memory, not by NCCL (rank {}): {problem}. {remedy}, or give \
             --reduction hierarchical.",
            ranks[0]
        ))
    }
}

/// Returns the sum by NCCL on this rank's GPU.
/// Collective: all ranks.
#[cfg_attr(not(feature = "cuda"), expect(unused_variables))]
fn nccl_sum(
    config: &StepConfig,
    communicator: &Arc<dyn Communicator>,
    device: &Device,
) -> Result<DeviceSum, CollectiveError> {
    #[cfg(feature = "cuda")]
    if let Some(gpu) = distributed::gradients::NcclReduction::gpu_of(device) {
        let rank_status = Arc::clone(&config.rank_status);
        let sum = distributed::gradients::NcclReduction::new(&**communicator, gpu, rank_status)?;
        return Ok(DeviceSum::Nccl(Arc::new(sum)));
    }
    Err(CollectiveError::NcclUnavailable {
        ranks: (0..communicator.world_size()).collect(),
        problem: format!("NCCL sums on NVIDIA GPUs, got {device:?}"),
        remedy: "Use --device cuda".to_owned(),
    })
}
