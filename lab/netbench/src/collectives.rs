//! Times of collectives.
//!
//! In: ranks, sizes. Out: a [`CollectiveTimes`] for each algorithm of all-reduce, for broadcast and
//! all-gather, with root's points.
//! Invariant: the sums are of zeros, so that they do not grow with the repetitions.

use crate::NetbenchPlan;
use crate::points::repeat_together;
use distributed::gradients::{AllReducer, ReductionKind};
use distributed::{CollectiveError, Communicator, ROOT};
use records::{CollectiveTimes, Operation, SizeTimes};
use simulate::{NetworkModel, reduction_seconds};
use std::sync::Arc;

/// Largest number of ranks whose all-reduces are simulated.
const MOST_SIMULATED: usize = 64;

/// Algorithm of broadcast and all-gather.
const MPI: &str = "mpi";

/// Rounds the sizes up to whole `f32`, each once.
fn whole_sizes(sizes: &[usize]) -> Vec<usize> {
    let mut whole: Vec<usize> = sizes
        .iter()
        .map(|bytes| bytes.next_multiple_of(size_of::<f32>()))
        .collect();
    whole.dedup();
    whole
}

/// Returns this rank's part of the gathered bytes; parts differ by at most one.
fn own_part(bytes: usize, rank: usize, ranks: usize) -> usize {
    bytes / ranks + usize::from(rank < bytes % ranks)
}

/// Times all collectives on the ranks of `communicator`.
/// Collective: all ranks of the communicator, with the same plan.
pub(crate) fn measure(
    plan: &NetbenchPlan,
    communicator: &Arc<dyn Communicator>,
) -> Result<Vec<CollectiveTimes>, CollectiveError> {
    type Once<'a> = &'a mut dyn FnMut() -> Result<(), CollectiveError>;
    let own = &**communicator;
    let ranks = own.world_size();
    let sizes = whole_sizes(&plan.sizes);
    let repeat = |bytes, once: Once<'_>| repeat_together(own, bytes, plan.time_per_point, once);
    let mut all = Vec::new();
    let mut add = |operation, algorithm: &str, points: Vec<Option<SizeTimes>>| {
        all.push(CollectiveTimes {
            operation,
            algorithm: algorithm.to_owned(),
            ranks,
            points: points.into_iter().flatten().collect(),
        });
    };
    for (kind, name) in &plan.reductions {
        let mut reducer = AllReducer::new(*kind, Arc::clone(communicator))?;
        let sum = |&bytes: &usize| {
            let mut values = vec![0.0; bytes / size_of::<f32>()];
            repeat(bytes, &mut || reducer.sum(&mut values))
        };
        let points = sizes.iter().map(sum).collect::<Result<_, _>>()?;
        add(Operation::AllReduce, name, points);
    }
    let broadcast = |&bytes: &usize| {
        let mut values = vec![1; bytes];
        repeat(bytes, &mut || own.broadcast(ROOT, &mut values))
    };
    let points = sizes.iter().map(broadcast).collect::<Result<_, _>>()?;
    add(Operation::Broadcast, MPI, points);
    let gather = |&bytes: &usize| {
        let values = vec![1; own_part(bytes, own.rank(), ranks)];
        repeat(bytes, &mut || own.all_gather(&values).map(drop))
    };
    let points = sizes.iter().map(gather).collect::<Result<_, _>>()?;
    add(Operation::AllGather, MPI, points);
    Ok(all)
}

/// Adds simulated times to all-reduces of few ranks.
pub(crate) fn simulate(
    all: &mut [CollectiveTimes],
    reductions: &[(ReductionKind, String)],
    network: &NetworkModel,
) {
    let sums = all
        .iter_mut()
        .filter(|times| times.operation == Operation::AllReduce && times.ranks <= MOST_SIMULATED);
    for times in sums {
        let reduction = reductions.iter().find(|(_, name)| *name == times.algorithm);
        let Some((kind, _)) = reduction else {
            continue;
        };
        for point in &mut times.points {
            // Not every network can be simulated.
            point.simulated_seconds =
                reduction_seconds(*kind, network, times.ranks, point.bytes).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_whole_floats_each_once() {
        assert_eq!(whole_sizes(&[1, 4, 16, 1023, 1024]), [4, 16, 1024]);
    }

    #[test]
    fn parts_add_up_to_what_is_gathered() {
        for (bytes, ranks) in [(4, 3), (16, 5), (4, 1000), (1 << 20, 7)] {
            let parts: Vec<usize> = (0..ranks)
                .map(|rank| own_part(bytes, rank, ranks))
                .collect();
            assert_eq!(parts.iter().sum::<usize>(), bytes);
            assert!(parts[0] - parts[ranks - 1] <= 1);
        }
    }
}
