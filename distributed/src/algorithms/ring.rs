//! Ring all-reduce. Each slice of the buffer passes all ranks once for the sum and once for the
//! copies.
//!
//! In: a buffer on every rank of a group. Out: the sum, the same bits on every rank.
//! Invariant: slice `i` is summed in the order of the ring, starting at rank `i`.
//! Source: Patarasuk & Yuan 2009, Bandwidth optimal all-reduce algorithms for clusters of
//! workstations.

use std::ops::Range;

use super::group::{Group, Number, Scratch, add, exchange, piece};
use crate::communicator::ReduceBuffer;
use crate::{CollectiveError, Communicator};

/// Limit of a message in bytes. Received data are added while they are in the core's cache.
const SEGMENT_BYTES: usize = 1 << 18;

/// Replaces `values` by their sum over the group.
pub(super) fn sum<T: Number>(
    communicator: &dyn Communicator,
    group: &Group,
    scratch: &mut Scratch,
    values: &mut [T],
) -> Result<(), CollectiveError> {
    let length = values.len();
    let size = group.len();
    let index = group.index;
    if size == 1 {
        return Ok(());
    }
    let next = group.ranks[(index + 1) % size];
    let previous = group.ranks[(index + size - 1) % size];
    let segment = piece(SEGMENT_BYTES / size_of::<T>(), scratch.magnification);
    // All slices have as many segments as the longest slice, so that both ends of a message expect
    // the same number.
    let segments = length.div_ceil(size).div_ceil(segment);
    let range = |step: usize, number: usize| -> Range<usize> {
        let slice = (index + 2 * size - step) % size;
        let start = length * slice / size;
        let end = length * (slice + 1) / size;
        (start + number * segment).min(end)..(start + (number + 1) * segment).min(end)
    };
    for step in 0..size - 1 {
        for number in 0..segments {
            let outgoing = range(step, number);
            let incoming = range(step + 1, number);
            let received = scratch.take(incoming.len());
            exchange(communicator, next, &values[outgoing], previous, received)?;
            add(&mut values[incoming], received);
        }
    }
    for step in 0..size - 1 {
        for number in 0..segments {
            // The slice of the last step is sent next.
            let outgoing = range(step + size - 1, number);
            let incoming = range(step + size, number);
            let [outgoing, incoming] = values
                .get_disjoint_mut([outgoing, incoming])
                .expect("slices do not overlap");
            exchange(communicator, next, outgoing, previous, incoming)?;
        }
    }
    Ok(())
}

/// Replaces the elements of `buffer` by their sum over the group.
pub(super) fn sum_buffer(
    communicator: &dyn Communicator,
    group: &Group,
    scratch: &mut Scratch,
    buffer: ReduceBuffer<'_>,
) -> Result<(), CollectiveError> {
    match buffer {
        ReduceBuffer::SumF32(values) => sum(communicator, group, scratch, values),
        ReduceBuffer::SumU64(values) => sum(communicator, group, scratch, values),
        ReduceBuffer::SumF64(_) | ReduceBuffer::MaxU64(_) => {
            unreachable!("nodes sum f32 and u64")
        }
    }
}
