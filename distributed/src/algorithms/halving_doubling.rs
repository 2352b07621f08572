//! All-reduce by recursive halving and doubling, in 2 log2(number of ranks) steps.
//!
//! In: a buffer on every rank of a group. Out: the sum, the same bits on every rank.
//! Invariant: one rank sums each element, in an order that depends only on the ranks.
//! Source: Thakur, Rabenseifner & Gropp 2005, Optimization of collective communication operations
//! in MPICH.

use super::group::{Group, Number, Scratch, add, exchange};
use crate::{CollectiveError, Communicator};

/// Tag of messages of the ranks above the largest power of two.
const EXTRA_TAG: u16 = u16::MAX;

/// Replaces `values` by their sum over the group.
///
/// If the number of ranks is not a power of two, some ranks first send their values to a neighbour.
/// At the end they receive the sum.
pub(super) fn sum<T: Number>(
    communicator: &dyn Communicator,
    group: &Group,
    scratch: &mut Scratch,
    values: &mut [T],
) -> Result<(), CollectiveError> {
    let size = group.len();
    let index = group.index;
    let power = 1 << size.ilog2();
    let extra = size - power;
    if index < 2 * extra && index.is_multiple_of(2) {
        let neighbour = group.ranks[index + 1];
        communicator.send(neighbour, EXTRA_TAG, bytemuck::cast_slice(values))?;
        return communicator.receive(neighbour, EXTRA_TAG, bytemuck::cast_slice_mut(values));
    }
    let neighbour = (index < 2 * extra).then(|| group.ranks[index - 1]);
    if let Some(neighbour) = neighbour {
        let received = scratch.take::<T>(values.len());
        communicator.receive(neighbour, EXTRA_TAG, bytemuck::cast_slice_mut(received))?;
        add(values, received);
    }
    // The remaining ranks are renumbered.
    let place = if index < 2 * extra {
        index / 2
    } else {
        index - extra
    };
    let rank_at = |place: usize| {
        group.ranks[if place < extra {
            2 * place + 1
        } else {
            place + extra
        }]
    };
    halve_and_double(communicator, &rank_at, scratch, values, place, power / 2)?;
    neighbour.map_or(Ok(()), |neighbour| {
        communicator.send(neighbour, EXTRA_TAG, bytemuck::cast_slice(values))
    })
}

/// Sums `values` over the places that differ from `place` in bits up to `mask`.
fn halve_and_double<T: Number>(
    communicator: &dyn Communicator,
    rank_at: &dyn Fn(usize) -> usize,
    scratch: &mut Scratch,
    values: &mut [T],
    place: usize,
    mask: usize,
) -> Result<(), CollectiveError> {
    if mask == 0 {
        return Ok(());
    }
    let partner = rank_at(place ^ mask);
    let (left, right) = values.split_at_mut(values.len() / 2);
    let (kept, given) = if place & mask == 0 {
        (left, right)
    } else {
        (right, left)
    };
    let received = scratch.take(kept.len());
    exchange(communicator, partner, given, partner, received)?;
    add(kept, received);
    halve_and_double(communicator, rank_at, scratch, kept, place, mask / 2)?;
    exchange(communicator, partner, kept, partner, given)
}
