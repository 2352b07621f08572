//! What a way to synchronise means in numbers: who computes which shards, how large buckets are, how far ranks may run apart.
//!
//! In: the resolved choice. Out: decisions. Invariant: pure functions, so that all ranks, and a prediction, decide alike.

use std::ops::Range;

use distributed::{
    gradients::BucketPlan,
    parameter_server::Consistency,
    reduction::{CompressionKind, ReductionState},
};

use crate::config::{Staleness, SyncConfig, SyncMethod};

/// How many updates old the parameters may be that a rank computes with, if the ranks run apart inside a step at all; unbounded if
/// within it there is none.
pub fn staleness(method: &SyncMethod) -> Option<Option<u64>> {
    match method {
        SyncMethod::ParameterServer { asynchronous, .. } => match consistency(*asynchronous) {
            Consistency::Synchronous => None,
            Consistency::Asynchronous { bound } => Some(bound),
        },
        _ => None,
    }
}

/// How far ranks that make `step` may be apart, as [`staleness`] says it, where they do not learn of each other in it.
pub(crate) fn distance(method: &SyncMethod, step: u64) -> Option<Option<u64>> {
    match method {
        SyncMethod::LocalSgd { from_step, .. } => (step >= *from_step).then_some(None),
        _ => staleness(method),
    }
}

/// Whether ranks that run apart meet after `step` anyway.
pub(crate) fn meets_after(method: &SyncMethod, step: u64) -> bool {
    matches!(method, SyncMethod::LocalSgd { every, .. } if (step + 1).is_multiple_of(*every))
}

/// Whether `num_workers` ranks that are made to meet after `step` average their parameters there, though they would not have.
pub(crate) fn averages_early(method: &SyncMethod, num_workers: usize, step: u64) -> bool {
    let is_apart = matches!(method, SyncMethod::LocalSgd { from_step, .. } if step >= *from_step);
    is_apart && num_workers > 1 && !meets_after(method, step)
}

/// That a compression is in vain, whose factors, which are `state`, would be as large as every tensor.
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

/// When servers update: a bound of 0 leaves no room for asynchrony.
pub(crate) fn consistency(asynchronous: Option<Staleness>) -> Consistency {
    match asynchronous {
        None | Some(Staleness { bound: Some(0) }) => Consistency::Synchronous,
        Some(Staleness { bound }) => Consistency::Asynchronous { bound },
    }
}

/// The largest bucket of a model with `total_bytes` of gradients.
pub fn bucket_cap_bytes(config: &SyncConfig, total_bytes: usize) -> usize {
    let cap_bytes = config
        .bucket_cap_bytes
        .unwrap_or_else(|| BucketPlan::default_cap_bytes(total_bytes));
    match config.method {
        // Buckets are what servers share: there are at least two for each.
        SyncMethod::ParameterServer { servers, .. } => {
            cap_bytes.min(total_bytes.div_ceil(2 * servers))
        }
        _ => cap_bytes,
    }
}

/// The virtual shards of a rank: consecutive ones, as many on each rank as can be.
pub fn own_shards(num_shards: usize, rank: usize, world_size: usize) -> Range<usize> {
    num_shards * rank / world_size..num_shards * (rank + 1) / world_size
}
