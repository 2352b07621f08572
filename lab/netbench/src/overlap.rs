//! The cost of communication for the computation at the same time.
//!
//! In: the ranks. Out: [`Overlap`]: how much slower all ranks compute during sums by a thread that
//! sleeps between looks, as in a training step, and how much longer these sums take than busily
//! awaited ones.
//! Invariant: all ranks make the same sums. The computation fills most of a second-level cache,
//! like a step's kernels, so that messages take time and cache from it as from a step.
//! Source: Hoefler, Lumsdaine & Rehm 2007, Implementation and performance analysis of non-blocking
//! collective operations for MPI (the overlap benchmark of NBCBench), with a thread in place of
//! non-blocking calls.

use std::sync::Arc;
use std::thread::Builder;
use std::time::{Duration, Instant};

use distributed::communicator::WaitPolicy;
use distributed::gradients::{AllReducer, ReductionKind};
use distributed::{CollectiveError, Communicator};
use kernels::optimizer::sgd::{self, SgdUpdate};
use kernels::simd::Isa;
use records::{Overlap, median};

/// Default size of a gradient bucket.
const BYTES: usize = 512 << 10;

/// Values of each of the three arrays: 1.5 MiB together. On two hosts over 1 Gbit/s and 200 Mbit/s
/// a computation in the first-level cache was 16 % and 7 % slower during sums, this one 24 to 30 %
/// and 14 to 17 %.
const NUM_VALUES: usize = 128 << 10;

/// Alternating measurements of each kind.
const NUM_ROUNDS: usize = 5;

/// Limits of the sums in a round.
const FEWEST_SUMS: u64 = 4;
const MOST_SUMS: u64 = 10_000;

/// Measures the overlap; `None` on one rank, or if ranks cannot communicate from several threads.
/// Collective: all ranks.
pub(crate) fn measure(
    communicator: &Arc<dyn Communicator>,
    time_per_round: Duration,
) -> Result<Option<Overlap>, CollectiveError> {
    if communicator.world_size() == 1 || !communicator.supports_threads() {
        return Ok(None);
    }
    let second = communicator.duplicate()?;
    let mut reducer = AllReducer::new(ReductionKind::Hierarchical, Arc::clone(&second))?;
    let mut values = vec![0.0; BYTES / size_of::<f32>()];
    let mut sum_several = |number: u64| (0..number).try_for_each(|_| reducer.sum(&mut values));
    sum_several(1)?;
    let start = Instant::now();
    sum_several(FEWEST_SUMS)?;
    let mut nanos = [start.elapsed().as_nanos() as u64 / FEWEST_SUMS];
    communicator.all_reduce_max_u64(&mut nanos)?;
    let number = (time_per_round.as_nanos() as u64 / nanos[0].max(1)).clamp(FEWEST_SUMS, MOST_SUMS);

    let mut shares = Vec::new();
    let mut alone_s = Vec::new();
    let mut beside_s = Vec::new();
    for _ in 0..NUM_ROUNDS {
        communicator.barrier()?;
        let start = Instant::now();
        let alone = updates_a_second(|| start.elapsed() < time_per_round);
        communicator.barrier()?;
        let start = Instant::now();
        sum_several(number)?;
        alone_s.push(start.elapsed().as_secs_f64() / number as f64);
        communicator.barrier()?;
        second.set_wait_policy(WaitPolicy::Sleep);
        let (summed, shared) = std::thread::scope(|scope| -> Result<_, CollectiveError> {
            let sums = Builder::new()
                .name("sums".to_owned())
                .spawn_scoped(scope, || {
                    let start = Instant::now();
                    sum_several(number).map(|()| start.elapsed().as_secs_f64() / number as f64)
                });
            let sums = sums.map_err(CollectiveError::no_thread)?;
            let shared = updates_a_second(|| !sums.is_finished());
            Ok((
                sums.join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                shared,
            ))
        })?;
        second.set_wait_policy(WaitPolicy::Spin);
        beside_s.push(summed?);
        shares.push(1.0 - shared / alone);
    }
    let mut sum = [median(&mut shares)];
    communicator.all_reduce_sum_f64(&mut sum)?;
    let mean = sum[0] / communicator.world_size() as f64;
    let mut nanos =
        [&mut alone_s, &mut beside_s].map(|seconds| (median(seconds) * 1e9).round() as u64);
    communicator.all_reduce_max_u64(&mut nanos)?;
    let [sum_seconds, sum_seconds_beside] = nanos.map(|nanos| nanos as f64 / 1e9);
    Ok(Some(Overlap {
        computing_share: (mean.clamp(0.0, 0.99) * 1e4).round() / 1e4,
        bytes: BYTES as u64,
        sum_seconds,
        sum_seconds_beside,
    }))
}

/// Returns the updates of the same values in a second, while `goes_on` is true.
fn updates_a_second(goes_on: impl Fn() -> bool) -> f64 {
    let (isa, gradients) = (Isa::detect(), vec![1e-3; NUM_VALUES]);
    let mut parameters = gradients.clone();
    let mut velocities = gradients.clone();
    let update = SgdUpdate {
        learning_rate: 0.1,
        momentum: 0.9,
        weight_decay: 1e-4,
        nesterov: true,
    };
    let start = Instant::now();
    let mut number = 0_u64;
    while goes_on() {
        sgd::step_alone(isa, &update, &mut parameters, &mut velocities, &gradients);
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
            measure(&communicator, Duration::from_millis(5))
                .unwrap()
                .unwrap()
        });
        assert_eq!(measured[0], measured[1]);
        assert!(
            (0.0..1.0).contains(&measured[0].computing_share),
            "{measured:?}"
        );
        assert!(
            measured[0].sum_seconds > 0.0
                && measured[0].sum_seconds_beside > 0.0
                && measured[0].bytes == 1 << 19
        );
        let alone: Arc<dyn Communicator> =
            Arc::new(distributed::communicator::SingleCommunicator::new());
        assert_eq!(measure(&alone, Duration::from_millis(1)).unwrap(), None);
    }
}
