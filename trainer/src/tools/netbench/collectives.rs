//! The collectives that are timed.
//!
//! In: ranks, sizes. Out: a [`CollectiveTimes`] for each algorithm of all-reduce, for broadcast and all-gather, with root's points.
//! Invariant: what is summed does not grow with the repetitions, and each begins with the same values.

use super::points::{Work, repeat_together};
use crate::config::{NetbenchConfig, ReductionChoice};
use distributed::{AllReducer, CollectiveError, Communicator, ROOT};
use records::{CollectiveTimes, Operation};
use simulate::{NetworkModel, reduction_seconds};
use std::sync::Arc;

/// Ranks up to which all-reduces are simulated too, in little time.
const MOST_SIMULATED: usize = 64;

/// The sizes of whole `f32` that come next to `sizes`, ascending.
fn whole_sizes(sizes: &[usize]) -> Vec<usize> {
    let mut whole: Vec<usize> = sizes.iter().map(|bytes| bytes.next_multiple_of(size_of::<f32>())).collect();
    whole.dedup();
    whole
}

/// How many of the gathered bytes are this rank's: parts differ by one at most.
fn own_part(bytes: usize, rank: usize, ranks: usize) -> usize {
    bytes / ranks + usize::from(rank < bytes % ranks)
}

/// Times all collectives on the ranks of `communicator`.
///
/// # Errors
/// When a collective fails.
///
/// # Collective
/// Must be called by all ranks of the communicator, with the same configuration.
pub fn measure(
    config: &NetbenchConfig,
    communicator: &Arc<dyn Communicator>,
) -> Result<Vec<CollectiveTimes>, CollectiveError> {
    let mut all = Vec::new();
    for &choice in &config.reductions {
        let Some(kind) = choice.kind() else { continue };
        let reducer = AllReducer::new(kind, Arc::clone(communicator))?;
        let mut work = Summing { reducer, values: Vec::new() };
        let resize = |work: &mut Summing, bytes: usize| work.values.resize(bytes / size_of::<f32>(), 0.0);
        all.push(by_size(config, &**communicator, (Operation::AllReduce, choice), &mut work, resize)?);
    }
    let library = ReductionChoice::Mpi;
    let resize = |work: &mut Broadcasting, bytes| work.0.resize(bytes, 1);
    let mut work = Broadcasting(Vec::new());
    all.push(by_size(config, &**communicator, (Operation::Broadcast, library), &mut work, resize)?);
    let ranks = communicator.world_size();
    let resize = |work: &mut Gathering, bytes| work.0.resize(own_part(bytes, communicator.rank(), ranks), 1);
    let mut work = Gathering(Vec::new());
    all.push(by_size(config, &**communicator, (Operation::AllGather, library), &mut work, resize)?);
    Ok(all)
}

fn by_size<W: Work>(
    config: &NetbenchConfig,
    communicator: &dyn Communicator,
    (operation, choice): (Operation, ReductionChoice),
    work: &mut W,
    resize: impl Fn(&mut W, usize),
) -> Result<CollectiveTimes, CollectiveError> {
    let ranks = communicator.world_size();
    let mut points = Vec::new();
    for bytes in whole_sizes(&config.sizes) {
        resize(work, bytes);
        points.extend(repeat_together(communicator, bytes, config.time_per_point, work)?);
    }
    Ok(CollectiveTimes { operation, algorithm: choice.to_string(), ranks, points })
}

/// Adds to all-reduces what a simulation with `network` takes for them, where there are few ranks.
pub fn simulate(all: &mut [CollectiveTimes], reductions: &[ReductionChoice], network: &NetworkModel) {
    let sums = all.iter_mut().filter(|times| times.operation == Operation::AllReduce && times.ranks <= MOST_SIMULATED);
    for times in sums {
        let choice = reductions.iter().find(|choice| choice.to_string() == times.algorithm);
        let Some(kind) = choice.and_then(|choice| choice.kind()) else { continue };
        for point in &mut times.points {
            // A network that cannot be simulated leaves the measurement as it is.
            point.simulated_seconds = reduction_seconds(kind, network, times.ranks, point.bytes).ok();
        }
    }
}

struct Summing {
    reducer: AllReducer,
    values: Vec<f32>,
}

impl Work for Summing {
    fn prepare(&mut self) {
        self.values.fill(1.0);
    }

    fn run(&mut self, _communicator: &dyn Communicator) -> Result<(), CollectiveError> {
        self.reducer.sum(&mut self.values)
    }
}

struct Broadcasting(Vec<u8>);

impl Work for Broadcasting {
    fn prepare(&mut self) {}

    fn run(&mut self, communicator: &dyn Communicator) -> Result<(), CollectiveError> {
        communicator.broadcast(ROOT, &mut self.0)
    }
}

struct Gathering(Vec<u8>);

impl Work for Gathering {
    fn prepare(&mut self) {}

    fn run(&mut self, communicator: &dyn Communicator) -> Result<(), CollectiveError> {
        communicator.all_gather(&self.0).map(drop)
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
            let parts: Vec<usize> = (0..ranks).map(|rank| own_part(bytes, rank, ranks)).collect();
            assert_eq!(parts.iter().sum::<usize>(), bytes);
            assert!(parts[0] - parts[ranks - 1] <= 1);
        }
    }
}
