//! The sum of one rank by NCCL on this GPU, which is its own values.
//!
//! In: a GPU. Out: the bits of three buckets. Invariant: skipped without NCCL or without a GPU.

use anyhow::Result;

use super::Subject;
use crate::tools::check::Finding;

#[cfg(feature = "nccl")]
pub(super) fn nccl(subject: &Subject<'_>) -> Result<Finding> {
    use std::sync::Arc;

    use distributed::CollectiveError;
    use distributed::communicator::SingleCommunicator;
    use distributed::gradients::{BucketContext, BucketReduction, NcclReduction};

    use crate::config::DeviceChoice;
    use crate::tools::check::Compared;

    let DeviceChoice::Cuda(gpu) = subject.compute().device else {
        return Ok(Finding::skipped("NCCL sums on NVIDIA GPUs: --device cuda"));
    };
    let alone = SingleCommunicator::new();
    let mut reduction = match NcclReduction::new(&alone, gpu.unwrap_or(0), Arc::default()) {
        Err(error @ CollectiveError::NcclUnavailable { .. }) => {
            return Ok(Finding::skipped(error.to_string()));
        }
        reduction => reduction?,
    };
    // The first bucket again after the second reuses its memory.
    let mut expected = Vec::new();
    let mut got = Vec::new();
    for (index, len) in [(0, 1 << 18), (1, 1001), (0, 1 << 18)] {
        let mut values: Vec<f32> = (0..len).map(|index| index as f32 - 7.25).collect();
        expected.extend_from_slice(&values);
        reduction.reduce(BucketContext::default(), index, &mut values)?;
        got.extend(values);
    }
    Ok(Finding::compared(vec![Compared::same_bits(
        "three buckets",
        &expected,
        &got,
    )]))
}

#[cfg(not(feature = "nccl"))]
pub(super) fn nccl(_subject: &Subject<'_>) -> Result<Finding> {
    Ok(Finding::skipped(
        "this program was built without nccl: rebuild with --features cuda",
    ))
}
