//! The sum of a device's flat gradient over all ranks.
//!
//! In: one flat tensor per rank, of equal lengths. Out: their sum, the same bits on every rank.
//! Invariant: one collective call per step on every rank. The values of the given tensor stay, as
//! they explain a sum that is not finite.

use std::sync::Arc;

use anyhow::Result;
use burn::tensor::{Tensor, TensorData};
use distributed::gradients::{AllReducer, BucketContext, BucketReduction, Traffic};
use distributed::{CollectiveError, Communicator};

use super::half_sum::HalfSum;
use super::placement::FlatPlacement;
use crate::config::{SyncMethod, SyncSection};
use crate::model::floats;

/// A way to sum flat tensors over ranks.
#[derive(Debug)]
pub(super) enum DeviceSum {
    /// One rank, whose tensor is the sum.
    OneRank,
    /// Through main memory, by any communicator: one copy from the device and one to the device.
    Staged(Box<AllReducer>),
    /// As `Staged`, in bf16.
    Half(Box<HalfSum>),
}

impl DeviceSum {
    /// Collective: all ranks.
    pub(super) fn new(
        sync: &SyncSection,
        communicator: &Arc<dyn Communicator>,
        placement: &FlatPlacement,
    ) -> Result<Self, CollectiveError> {
        if let SyncMethod::Allreduce { compression, .. } = sync.method
            && compression.is_some()
        {
            // One rank rounds too.
            return Ok(Self::Half(Box::new(HalfSum::new(placement, communicator))));
        }
        if communicator.world_size() == 1 {
            return Ok(Self::OneRank);
        }
        let kind = match sync.method {
            SyncMethod::Allreduce { reduction, .. } => reduction.kind(),
            _ => None,
        };
        let kind = kind.expect("`step::check` accepts only sums on devices in f32 or bf16");
        let reducer = AllReducer::new(kind, Arc::clone(communicator))?;
        Ok(Self::Staged(Box::new(reducer)))
    }

    /// Returns true if a captured step can contain the sum.
    pub(super) fn is_capturable(&self) -> bool {
        matches!(self, Self::OneRank)
    }

    /// Returns the sum of `own`, `[len]`, over all ranks.
    /// Collective: all ranks.
    pub(super) fn sum(&mut self, own: Tensor<1>) -> Result<(Tensor<1>, Traffic)> {
        let reducer = match self {
            Self::OneRank => return Ok((own, Traffic::default())),
            Self::Half(sum) => return sum.sum(own),
            Self::Staged(reducer) => reducer,
        };
        let device = own.device();
        let [len] = own.dims();
        let mut values = floats(own.into_data())?;
        let traffic = reducer.reduce(BucketContext::default(), 0, &mut values)?;
        let sum = Tensor::from_data(TensorData::new(values, [len]), &device);
        Ok((sum, traffic))
    }
}
