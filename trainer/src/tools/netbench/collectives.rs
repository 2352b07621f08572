//! The collectives that are timed.
//!
//! In: ranks, sizes. Out: a [`CollectiveTimes`] for each algorithm of all-reduce, for broadcast and all-gather, with root's points.
//! Invariant: what is summed does not grow with the repetitions, and each begins with the same values.

use super::points::{repeat_together, timed};
use crate::config::{NetbenchConfig, ReductionChoice};
use distributed::{CollectiveError, Communicator, ROOT, reduction::AllReducer};
use records::{CollectiveTimes, Operation, Point};
use simulate::{NetworkModel, reduction_seconds};
use std::sync::Arc;

/// Ranks up to which all-reduces are simulated too, in little time.
const MOST_SIMULATED: usize = 64;

/// The sizes of whole `f32` that come next to `sizes`, ascending.
fn whole_sizes(sizes: &[usize]) -> Vec<usize> {
    let mut whole: Vec<usize> = sizes
        .iter()
        .map(|bytes| bytes.next_multiple_of(size_of::<f32>()))
        .collect();
    whole.dedup();
    whole
}

/// How many of the gathered bytes are this rank's: parts differ by one at most.
fn own_part(bytes: usize, rank: usize, ranks: usize) -> usize {
    bytes / ranks + usize::from(rank < bytes % ranks)
}

/// Times all collectives on the ranks of `communicator`.
/// Collective: all ranks of the communicator, with the same configuration.
pub fn measure(
    config: &NetbenchConfig,
    communicator: &Arc<dyn Communicator>,
) -> Result<Vec<CollectiveTimes>, CollectiveError> {
    let (ranks, own) = (communicator.world_size(), &**communicator);
    let repeat = |bytes, once: &mut dyn FnMut() -> Result<u64, CollectiveError>| {
        repeat_together(own, bytes, config.time_per_point, once)
    };
    let mut all = Vec::new();
    for &choice in &config.reductions {
        let Some(kind) = choice.kind() else { continue };
        let mut reducer = AllReducer::new(kind, Arc::clone(communicator))?;
        let sum = |bytes| {
            let mut values = vec![0.0; bytes / size_of::<f32>()];
            repeat(bytes, &mut || {
                values.fill(1.0);
                timed(own, || reducer.sum(&mut values))
            })
        };
        all.push(by_size(config, ranks, (Operation::AllReduce, choice), sum)?);
    }
    let broadcast = |bytes| {
        let mut values = vec![1; bytes];
        repeat(bytes, &mut || {
            timed(own, || own.broadcast(ROOT, &mut values))
        })
    };
    all.push(by_size(
        config,
        ranks,
        (Operation::Broadcast, ReductionChoice::Mpi),
        broadcast,
    )?);
    let gather = |bytes| {
        let values = vec![1; own_part(bytes, own.rank(), ranks)];
        repeat(bytes, &mut || {
            timed(own, || own.all_gather(&values).map(drop))
        })
    };
    all.push(by_size(
        config,
        ranks,
        (Operation::AllGather, ReductionChoice::Mpi),
        gather,
    )?);
    Ok(all)
}

fn by_size(
    config: &NetbenchConfig,
    ranks: usize,
    (operation, choice): (Operation, ReductionChoice),
    point: impl FnMut(usize) -> Result<Option<Point>, CollectiveError>,
) -> Result<CollectiveTimes, CollectiveError> {
    let points = whole_sizes(&config.sizes)
        .into_iter()
        .map(point)
        .collect::<Result<Vec<_>, _>>()?;
    let points = points.into_iter().flatten().collect();
    Ok(CollectiveTimes {
        operation,
        algorithm: choice.to_string(),
        ranks,
        points,
    })
}

/// Adds to all-reduces what a simulation with `network` takes for them, where there are few ranks.
pub fn simulate(
    all: &mut [CollectiveTimes],
    reductions: &[ReductionChoice],
    network: &NetworkModel,
) {
    let sums = all
        .iter_mut()
        .filter(|times| times.operation == Operation::AllReduce && times.ranks <= MOST_SIMULATED);
    for times in sums {
        let choice = reductions
            .iter()
            .find(|choice| choice.to_string() == times.algorithm);
        let Some(kind) = choice.and_then(|choice| choice.kind()) else {
            continue;
        };
        for point in &mut times.points {
            // A network that cannot be simulated leaves the measurement as it is.
            point.simulated_seconds =
                reduction_seconds(kind, network, times.ranks, point.bytes).ok();
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
