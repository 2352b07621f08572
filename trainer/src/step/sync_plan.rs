//! Decisions that follow from the synchronisation: shards of a rank, size of buckets, staleness.
//!
//! In: the resolved choice. Out: decisions. Invariant: pure functions, so that all ranks, and a
//! prediction, decide alike.

use std::ops::Range;

use distributed::gradients::{BucketPlan, CompressionKind, Consistency, ReductionState};

use crate::config::{Staleness, SyncMethod, SyncSection};

/// Returns the largest age, in updates, of the parameters that a rank computes with, if ranks do
/// not wait for each other in a step; an inner `None` is no bound.
pub fn staleness(method: &SyncMethod) -> Option<Option<u64>> {
    match method {
        SyncMethod::ParameterServer { asynchronous, .. } => match consistency(*asynchronous) {
            Consistency::Synchronous => None,
            Consistency::Asynchronous { bound } => Some(bound),
        },
        _ => None,
    }
}

/// Returns the largest distance of ranks in `step`, as [`staleness`] does, if they run
/// independently.
pub(crate) fn distance(method: &SyncMethod, step: u64) -> Option<Option<u64>> {
    match method {
        SyncMethod::LocalSgd { from_step, .. } => (step >= *from_step).then_some(None),
        _ => staleness(method),
    }
}

/// Returns true if ranks that run independently average their parameters after `step`.
pub(crate) fn meets_after(method: &SyncMethod, step: u64) -> bool {
    matches!(method, SyncMethod::LocalSgd { every, .. } if (step + 1).is_multiple_of(*every))
}

/// Returns true if a forced synchronisation of `num_workers` ranks after `step` is an extra
/// average.
pub(crate) fn averages_early(method: &SyncMethod, num_workers: usize, step: u64) -> bool {
    let is_local = matches!(method, SyncMethod::LocalSgd { from_step, .. } if step >= *from_step);
    is_local && num_workers > 1 && !meets_after(method, step)
}

/// Returns the warning that a compression reduces no tensor, as its `state` has no factors.
pub(crate) fn vain_compression(
    method: &SyncMethod,
    state: impl FnOnce() -> Option<ReductionState>,
) -> Option<String> {
    let SyncMethod::Allreduce { compression, .. } = method else {
        return None;
    };
    let is_vain = matches!(compression.0, CompressionKind::PowerSgd { .. })
        && state().is_none_or(|state| state.factors.is_empty());
    is_vain.then(|| {
        format!("--compress {compression}: no tensor of the model becomes less than half as large; give a smaller rank")
    })
}

/// Returns the consistency of servers; a bound of 0 is synchronous.
pub(crate) fn consistency(asynchronous: Option<Staleness>) -> Consistency {
    match asynchronous {
        None | Some(Staleness { bound: Some(0) }) => Consistency::Synchronous,
        Some(Staleness { bound }) => Consistency::Asynchronous { bound },
    }
}

/// Returns the limit of a bucket, in bytes, of a model with `total_bytes` of gradients.
pub fn bucket_cap_bytes(config: &SyncSection, total_bytes: usize) -> usize {
    let cap_bytes = config
        .bucket_cap_bytes()
        .unwrap_or_else(|| BucketPlan::default_cap_bytes(total_bytes));
    match config.method {
        // Servers share the buckets: there are at least two for each.
        SyncMethod::ParameterServer { servers, .. } => {
            cap_bytes.min(total_bytes.div_ceil(2 * servers))
        }
        _ => cap_bytes,
    }
}

/// Returns the virtual shards of a rank, consecutive and evenly distributed over the ranks.
pub fn own_shards(num_shards: usize, rank: usize, world_size: usize) -> Range<usize> {
    num_shards * rank / world_size..num_shards * (rank + 1) / world_size
}
