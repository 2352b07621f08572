//! What communication takes from the computing beside it.
//!
//! In: the ranks. Out: [`Overlap`]: how much slower all ranks compute while they sum, from a thread that sleeps between looks, as in a
//! training step, and how much longer the sums take. Invariant: all ranks make the same sums; the computing needs no memory beyond the first cache, so that only the
//! processor's time is shared.
//! Source: Hoefler, Lumsdaine & Rehm 2007, Implementation and performance analysis of non-blocking collective operations for MPI (the
//! overlap benchmark of NBCBench), with a thread in place of non-blocking calls.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use distributed::{AllReducer, CollectiveError, Communicator, ReductionKind, WaitPolicy};
use records::{Overlap, median};

/// A default gradient bucket.
const BYTES: usize = 512 << 10;

/// Values that are computed with.
const NUM_VALUES: usize = 1024;

/// Measurements of each kind, in turn.
const NUM_ROUNDS: usize = 5;

/// Sums of a round.
const FEWEST_SUMS: u64 = 4;
const MOST_SUMS: u64 = 10_000;

/// Measures it; `None` on one rank, and where ranks cannot communicate from several threads.
///
/// # Errors
/// When a collective fails.
///
/// # Collective
/// Must be called by all ranks.
pub fn measure(
    communicator: &Arc<dyn Communicator>,
    time_per_round: Duration,
) -> Result<Option<Overlap>, CollectiveError> {
    if communicator.world_size() == 1 || !communicator.supports_threads() {
        return Ok(None);
    }
    let beside = communicator.duplicate()?;
    beside.set_wait_policy(WaitPolicy::Sleep);
    let mut reducer = AllReducer::new(ReductionKind::Hierarchical, beside)?;
    let mut values = vec![0.0; BYTES / size_of::<f32>()];
    let mut sum_several = |number: u64| (0..number).try_for_each(|_| reducer.sum(&mut values));
    sum_several(1)?;
    let start = Instant::now();
    sum_several(FEWEST_SUMS)?;
    let mut nanos = [start.elapsed().as_nanos() as u64 / FEWEST_SUMS];
    communicator.all_reduce_max_u64(&mut nanos)?;
    let number = (time_per_round.as_nanos() as u64 / nanos[0].max(1)).clamp(FEWEST_SUMS, MOST_SUMS);

    let (mut shares, mut alone_s, mut beside_s) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..NUM_ROUNDS {
        communicator.barrier()?;
        let start = Instant::now();
        let alone = units_a_second(|| start.elapsed() < time_per_round);
        communicator.barrier()?;
        let start = Instant::now();
        sum_several(number)?;
        alone_s.push(start.elapsed().as_secs_f64() / number as f64);
        communicator.barrier()?;
        let is_summing = AtomicBool::new(true);
        let (summed, shared) = std::thread::scope(|scope| {
            let sums = scope.spawn(|| {
                let start = Instant::now();
                let summed = sum_several(number).map(|()| start.elapsed().as_secs_f64() / number as f64);
                is_summing.store(false, Ordering::Release);
                summed
            });
            let shared = units_a_second(|| is_summing.load(Ordering::Acquire));
            (sums.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), shared)
        });
        beside_s.push(summed?);
        shares.push(1.0 - shared / alone);
    }
    let mut sum = [median(&mut shares)];
    communicator.all_reduce_sum_f64(&mut sum)?;
    let mean = sum[0] / communicator.world_size() as f64;
    let mut nanos = [&mut alone_s, &mut beside_s].map(|seconds| (median(seconds) * 1e9).round() as u64);
    communicator.all_reduce_max_u64(&mut nanos)?;
    let [sum_seconds, sum_seconds_beside] = nanos.map(|nanos| nanos as f64 / 1e9);
    Ok(Some(Overlap {
        computing_share: (mean.clamp(0.0, 0.99) * 1e4).round() / 1e4,
        bytes: BYTES as u64,
        sum_seconds,
        sum_seconds_beside,
    }))
}

/// How many times a second a row of values is computed anew, for as long as `goes_on`.
fn units_a_second(goes_on: impl Fn() -> bool) -> f64 {
    let mut values = [1.0_f32; NUM_VALUES];
    let (start, mut number) = (Instant::now(), 0_u64);
    while goes_on() {
        for _ in 0..64 {
            values.iter_mut().for_each(|value| *value = value.mul_add(0.999, 0.001));
            black_box(&mut values);
        }
        number += 1;
    }
    number as f64 / start.elapsed().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use distributed::run_ranks;

    #[test]
    fn ranks_agree_on_a_share_below_one_and_a_rank_alone_has_none() {
        let measured = run_ranks(2, |communicator| {
            let communicator: Arc<dyn Communicator> = Arc::new(communicator);
            measure(&communicator, Duration::from_millis(5)).unwrap().unwrap()
        });
        assert_eq!(measured[0], measured[1]);
        assert!((0.0..1.0).contains(&measured[0].computing_share), "{measured:?}");
        assert!(measured[0].sum_seconds > 0.0 && measured[0].sum_seconds_beside > 0.0 && measured[0].bytes == 1 << 19);
        let alone: Arc<dyn Communicator> = Arc::new(distributed::SingleCommunicator::new());
        assert_eq!(measure(&alone, Duration::from_millis(1)).unwrap(), None);
    }
}
