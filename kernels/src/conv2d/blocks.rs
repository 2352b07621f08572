//! Weights and gradients of a block of groups, which is computed like one group.
//!
//! In: weights `[C_out, C_in / groups, K_h, K_w]`.
//! Out: the weights of each block, zero between channels of different groups.
//! Invariant: a block of one group is not copied.

use super::Conv2dShape;

/// Returns the number of elements of a block's weights if groups are merged in it, else 0.
pub(super) fn merged_len(s: &Conv2dShape) -> usize {
    let (block, merged) = s.block();
    if merged == 1 { 0 } else { block.weight_len() }
}

/// Calls `work(shape, weights, packed)` for each block with its equal part of `packed`, at whose
/// end are [`merged_len`] more elements.
pub(super) fn each(
    s: &Conv2dShape,
    weights: &[f32],
    packed: &mut [f32],
    mut work: impl FnMut(&Conv2dShape, &[f32], &mut [f32]),
) {
    let (block, merged) = s.block();
    let num_blocks = s.groups / merged;
    let (packed, all) = packed.split_at_mut(packed.len() - merged_len(s));
    let parts = weights
        .chunks_exact(weights.len() / num_blocks)
        .zip(packed.chunks_exact_mut(packed.len() / num_blocks));
    if merged == 1 {
        return parts.for_each(|(weights, packed)| work(&block, weights, packed));
    }
    all.fill(0.0);
    for (weights, packed) in parts {
        let filters = all
            .chunks_exact_mut(block.filter_len())
            .zip(weights.chunks_exact(s.filter_len()));
        for (filter, (all, weights)) in filters.enumerate() {
            all[group_of(&block, merged, filter) * s.filter_len()..][..s.filter_len()]
                .copy_from_slice(weights);
        }
        work(&block, all, packed);
    }
}

/// Returns the group of a filter of a block.
pub(super) fn group_of(block: &Conv2dShape, merged: usize, filter: usize) -> usize {
    filter / (block.out_channels / merged)
}
