//! Correctness and speed of sums over the ranks.
//!
//! In: a communicator. Out: [`SumFacts`] of the library's all-reduce and of the trainer's default
//! all-reduce.
//! Invariant: every rank makes the same number of sums. The slowest rank determines the number.

use std::sync::Arc;
use std::time::Instant;

use distributed::gradients::{AllReducer, ReductionKind};
use distributed::{CollectiveError, Communicator};
use serde::{Deserialize, Serialize};

/// Lengths of the checked sums: one, a prime, and more than one piece of any algorithm.
const LENGTHS: [usize; 3] = [1, 1009, 200_003];

/// Timed sizes, bytes.
const SIZES: [usize; 3] = [1 << 10, 1 << 20, 16 << 20];

/// Time for the repetitions of a size, nanoseconds.
const TIME_NANOS: u64 = 200_000_000;
/// Permitted number of repetitions of a size.
const REPETITIONS: std::ops::RangeInclusive<u64> = 3..=40;

/// Time of one sum, nanoseconds, above which larger sums are skipped.
const SLOW_NANOS: u64 = 150_000_000;

/// One all-reduce method, measured by one rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct SumFacts {
    pub(super) way: String,
    /// First wrong value.
    pub(super) wrong: Option<String>,
    /// Times by size, smallest first; empty for one rank.
    pub(super) speeds: Vec<SpeedFacts>,
}

/// Time of one all-reduce.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct SpeedFacts {
    pub(super) bytes: u64,
    /// Median time.
    pub(super) seconds: f64,
}

impl SpeedFacts {
    /// Returns the bandwidth of a rank's link, bytes/s.
    ///
    /// An all-reduce moves `2 (N - 1) / N` of its buffer into and out of every rank.
    pub(super) fn bus_bytes_per_s(&self, world_size: usize) -> f64 {
        2.0 * (world_size as f64 - 1.0) / world_size as f64 * self.bytes as f64 / self.seconds
    }
}

/// Checks sums with known results, then measures speeds.
/// Collective: all ranks.
pub(super) fn sums(communicator: &Arc<dyn Communicator>) -> Result<Vec<SumFacts>, CollectiveError> {
    let rank = communicator.rank();
    let world_size = communicator.world_size();
    let mut found = Vec::new();
    for (way, kind) in [
        ("hierarchical", ReductionKind::Hierarchical),
        ("library", ReductionKind::Library),
    ] {
        let mut reducer = AllReducer::new(kind, Arc::clone(communicator))?;
        let mut wrong = None;
        for length in LENGTHS {
            let mut values: Vec<f32> = (0..length).map(|index| own_float(rank, index)).collect();
            reducer.sum(&mut values)?;
            wrong = wrong.or(first_wrong(&values, |index| float_sum(world_size, index)));
        }
        let mut speeds = Vec::new();
        for bytes in SIZES {
            let (seconds, is_slow) = median_seconds(&**communicator, &mut reducer, bytes)?;
            let bytes = bytes as u64;
            speeds.push(SpeedFacts { bytes, seconds });
            if is_slow {
                break;
            }
        }
        if world_size == 1 {
            speeds.clear();
        }
        found.push(SumFacts {
            way: way.to_owned(),
            wrong,
            speeds,
        });
    }
    // These numbers use all 64 bits.
    let own = |rank: usize, index: usize| {
        (rank as u64 + 1)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .wrapping_mul(index as u64 + 1)
    };
    let mut values: Vec<u64> = (0..LENGTHS[1]).map(|index| own(rank, index)).collect();
    communicator.all_reduce_sum_u64(&mut values)?;
    let sum = |index| (0..world_size).fold(0_u64, |sum, rank| sum.wrapping_add(own(rank, index)));
    found.push(SumFacts {
        way: "library's integers".to_owned(),
        wrong: first_wrong(&values, sum),
        speeds: Vec::new(),
    });
    Ok(found)
}

/// Returns a small whole number.
///
/// f32 holds the sum of 30,000 ranks exactly, in any order of additions.
fn own_float(rank: usize, index: usize) -> f32 {
    ((rank % 8 + 1) * (index % 61 + 1)) as f32
}

fn float_sum(world_size: usize, index: usize) -> f32 {
    // Each eight ranks sum to 1 + … + 8. The remaining r ranks sum to 1 + … + r.
    let rest = world_size % 8;
    ((36 * (world_size / 8) + rest * (rest + 1) / 2) * (index % 61 + 1)) as f32
}

fn first_wrong<T: PartialEq + Copy + std::fmt::Display>(
    values: &[T],
    expected: impl Fn(usize) -> T,
) -> Option<String> {
    let index = (0..values.len()).find(|&index| values[index] != expected(index))?;
    let number = values.len();
    let expected = expected(index);
    let got = values[index];
    Some(format!(
        "element {index} of {number}: expected {expected}, got {got}"
    ))
}

/// Returns the median time of this rank, and true if the size was slow on any rank.
fn median_seconds(
    communicator: &dyn Communicator,
    reducer: &mut AllReducer,
    bytes: usize,
) -> Result<(f64, bool), CollectiveError> {
    let mut values = vec![0.0; bytes / size_of::<f32>()];
    let mut time_one = || -> Result<u64, CollectiveError> {
        communicator.barrier()?;
        let start = Instant::now();
        reducer.sum(&mut values)?;
        Ok(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    };
    // The first sum touches memory and opens connections.
    time_one()?;
    let mut slowest = [time_one()?];
    communicator.all_reduce_max_u64(&mut slowest)?;
    let repetitions =
        (TIME_NANOS / slowest[0].max(1)).clamp(*REPETITIONS.start(), *REPETITIONS.end());
    let mut times = (0..repetitions)
        .map(|_| time_one())
        .collect::<Result<Vec<_>, _>>()?;
    times.sort_unstable();
    Ok((times[times.len() / 2] as f64 / 1e9, slowest[0] > SLOW_NANOS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use distributed::run_ranks;

    #[test]
    fn known_sums_are_exact_on_any_number_of_ranks() {
        for world_size in 1..=3 {
            let found = run_ranks(world_size, |communicator| {
                let communicator: Arc<dyn Communicator> = Arc::new(communicator);
                sums(&communicator).unwrap()
            });
            for facts in found.iter().flatten() {
                assert_eq!(facts.wrong, None, "{} of {world_size} ranks", facts.way);
                let num_speeds = if facts.way.ends_with("integers") || world_size == 1 {
                    0
                } else {
                    1
                };
                assert!(facts.speeds.len() >= num_speeds, "{facts:?}");
            }
        }
    }

    #[test]
    fn the_known_sum_is_that_of_the_ranks_values() {
        for (world_size, index) in [(1, 0), (7, 60), (8, 61), (20, 1000)] {
            let sum: f32 = (0..world_size).map(|rank| own_float(rank, index)).sum();
            assert_eq!(float_sum(world_size, index), sum);
        }
    }

    #[test]
    fn a_wrong_value_is_named_with_what_was_expected() {
        let mut values: Vec<f32> = (0..100).map(|index| float_sum(2, index)).collect();
        assert_eq!(first_wrong(&values, |index| float_sum(2, index)), None);
        values[7] = 1.0;
        let text = first_wrong(&values, |index| float_sum(2, index)).unwrap();
        assert_eq!(text, "element 7 of 100: expected 24, got 1");
    }

    #[test]
    fn sums_of_many_ranks_stay_below_what_f32_counts() {
        assert!(float_sum(30_000, 60) < 16_777_216.0);
    }

    #[test]
    fn bus_bandwidth_counts_what_a_rank_sends_and_receives() {
        let speed = SpeedFacts {
            bytes: 1000,
            seconds: 0.5,
        };
        assert_eq!(speed.bus_bytes_per_s(2), 2000.0);
        assert_eq!(speed.bus_bytes_per_s(4), 3000.0);
    }
}
