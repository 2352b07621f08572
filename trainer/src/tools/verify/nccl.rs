//! NCCL sums on this GPU: of one rank, what it was given.
//!
//! In: a GPU. Out: whether two buckets come back as they went. Invariant: a machine without NCCL or without a GPU skips this.

use anyhow::Result;

use super::Subject;
use super::comparison::Finding;

pub(super) const EXPECTATION: &str = "NCCL joins one rank and gives its buckets back";

#[cfg(feature = "nccl")]
pub(super) fn check(subject: &Subject<'_>) -> Result<Finding> {
    use std::sync::Arc;

    use distributed::{
        CollectiveError,
        communicator::SingleCommunicator,
        reduction::{BucketContext, BucketReduction, NcclReduction},
    };

    use super::comparison::Comparison;
    use crate::config::DeviceChoice;

    let DeviceChoice::Cuda(gpu) = subject.compute().device else {
        return Ok(Finding::Skipped(
            "NCCL sums on NVIDIA GPUs: --device cuda".to_owned(),
        ));
    };
    let alone = SingleCommunicator::new();
    let mut reduction = match NcclReduction::new(&alone, gpu.unwrap_or(0), Arc::default()) {
        Err(error @ CollectiveError::NcclUnavailable { .. }) => {
            return Ok(Finding::Skipped(error.to_string()));
        }
        reduction => reduction?,
    };
    // Of different lengths, the first again behind the second, which uses its memory anew.
    let buckets = [(0, 1 << 18), (1, 1001), (0, 1 << 18)].map(|(index, len)| (index, ramp(len)));
    let (mut expected, mut got) = (Vec::new(), Vec::new());
    for (index, values) in buckets {
        expected.extend_from_slice(&values);
        let mut values = values;
        reduction.reduce(BucketContext::default(), index, &mut values)?;
        got.extend(values);
    }
    Ok(Finding::Compared(vec![Comparison::same_bits(
        "three buckets",
        &expected,
        &got,
    )]))
}

/// Different values.
#[cfg(feature = "nccl")]
fn ramp(len: usize) -> Vec<f32> {
    (0..len).map(|index| index as f32 - 7.25).collect()
}

#[cfg(not(feature = "nccl"))]
pub(super) fn check(_subject: &Subject<'_>) -> Result<Finding> {
    Ok(Finding::Skipped(
        "this program was built without nccl: rebuild with --features cuda".to_owned(),
    ))
}
