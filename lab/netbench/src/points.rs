//! Times of one size: a message and its answer, or a collective of all ranks.
//!
//! In: a communicator, a size, a time limit. Out: [`SizeTimes`], on the deciding rank.
//! Invariant: one rank decides the number of repetitions and sends it, so that all make the same
//! calls; at least three repetitions, however slow the network. Nothing is assumed about the
//! distribution of the times.
//! Source: Snell, Mikler & Gustafson 1996, NetPIPE (half of a round trip); Hoefler & Belli 2015,
//! rules 9 and 10 (the slowest of the ranks), sections 3.1.3 and 4.2.2 (repeat until the confidence
//! interval of the median is narrow enough); Hyndman & Fan 1996, Sample Quantiles, definition 7.

use distributed::{CollectiveError, Communicator, ROOT};
use records::{SizeTimes, StoppedBy, median_interval};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// Largest reach of the median's interval to either side, as a share of the median.
pub(crate) const PRECISION: f64 = 0.05;

/// Fewest repetitions of a point, and fewest for which the precision counts.
const LEAST: usize = 3;
const LEAST_PRECISE: usize = 10;

/// Most repetitions of a point.
pub(crate) const MOST: usize = 10_000;

/// Tags of timed messages, and of orders with a number of messages.
const TIMED_TAG: u16 = 101;
const ORDER_TAG: u16 = 102;

/// Times messages of `bytes` between the ranks of a pair as half of a round trip; the first rank
/// gets the point.
///
/// # Collective
/// Must be called by both ranks of the pair, and by no other.
pub(super) fn ping_pong(
    communicator: &dyn Communicator,
    [first, second]: [usize; 2],
    bytes: usize,
    budget: Duration,
) -> Result<Option<SizeTimes>, CollectiveError> {
    let is_first = communicator.rank() == first;
    let round_trip = |tag, buffer: &mut [u8]| {
        if is_first {
            communicator.send(second, tag, buffer)?;
            communicator.receive(second, tag, buffer)
        } else {
            communicator.receive(first, tag, buffer)?;
            communicator.send(first, tag, buffer)
        }
    };
    let mut buffer = vec![1; bytes];
    let once = || {
        let start = Instant::now();
        round_trip(TIMED_TAG, &mut buffer)?;
        Ok(nanos_since(start))
    };
    // The echo keeps the order out of the first timed round trip.
    let order = |number: &mut [u8; 8]| round_trip(ORDER_TAG, number);
    let times = repeated(budget, is_first, order, once, |_| Ok(()))?;
    Ok(times.map(|(times, why)| point_of(bytes, &times, 2.0, why)))
}

/// Times `once`, a collective of `bytes`: a repetition takes as long as on the slowest rank. Root
/// gets the point. Collective: all ranks.
pub(super) fn repeat_together(
    communicator: &dyn Communicator,
    bytes: usize,
    budget: Duration,
    mut once: impl FnMut() -> Result<(), CollectiveError>,
) -> Result<Option<SizeTimes>, CollectiveError> {
    // Ranks leave the barrier at slightly different times, which is included.
    let timed = || {
        communicator.barrier()?;
        let start = Instant::now();
        once()?;
        Ok(nanos_since(start))
    };
    let order = |number: &mut [u8; 8]| communicator.broadcast(ROOT, number);
    let slowest = |times: &mut [u64]| communicator.all_reduce_max_u64(times);
    let times = repeated(budget, communicator.rank() == ROOT, order, timed, slowest)?;
    Ok(times.map(|(times, why)| point_of(bytes, &times, 1.0, why)))
}

/// Repeats `once` as often as the deciding rank orders, and returns its times there, ascending in
/// nanoseconds. `order` sends the number of further repetitions, `join` combines the times of all
/// ranks.
///
/// The first repetition opens connections and touches memory; it does not count.
fn repeated(
    budget: Duration,
    decides: bool,
    order: impl Fn(&mut [u8; 8]) -> Result<(), CollectiveError>,
    mut once: impl FnMut() -> Result<u64, CollectiveError>,
    join: impl Fn(&mut [u64]) -> Result<(), CollectiveError>,
) -> Result<Option<(Vec<u64>, StoppedBy)>, CollectiveError> {
    once()?;
    let start = Instant::now();
    let mut times = Vec::new();
    loop {
        times.sort_unstable();
        let mut number = [0; 8];
        let mut stopped_by = None;
        if decides {
            match next(&times, start.elapsed(), budget) {
                ControlFlow::Continue(more) => number = (more as u64).to_le_bytes(),
                ControlFlow::Break(why) => stopped_by = Some(why),
            }
        }
        order(&mut number)?;
        let number = u64::from_le_bytes(number);
        if number == 0 {
            return Ok(stopped_by.map(|why| (times, why)));
        }
        let mut more = (0..number).map(|_| once()).collect::<Result<Vec<_>, _>>()?;
        join(&mut more)?;
        times.extend(more);
    }
}

fn nanos_since(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Decides from the times so far, ascending, and their total time with overhead: the number of
/// further repetitions, or why there are enough.
///
/// Repeated looks, and the stop at the first narrow interval, make its confidence somewhat less
/// than 95 %. Looks are few, as the number of repetitions doubles between them.
fn next(sorted: &[u64], elapsed: Duration, budget: Duration) -> ControlFlow<StoppedBy, usize> {
    let number = sorted.len();
    if number < LEAST {
        return ControlFlow::Continue(LEAST - number);
    }
    let is_precise = relative_reach(sorted).is_some_and(|reach| reach < PRECISION);
    if number >= LEAST_PRECISE && is_precise {
        return ControlFlow::Break(StoppedBy::Precision);
    }
    if number >= MOST {
        return ControlFlow::Break(StoppedBy::Count);
    }
    let each = elapsed.as_secs_f64() / number as f64;
    let left = budget.saturating_sub(elapsed).as_secs_f64();
    let wanted = number.max(LEAST_PRECISE - LEAST).min(MOST - number);
    match wanted.min((left / each.max(1e-9)) as usize) {
        0 => ControlFlow::Break(StoppedBy::Time),
        more => ControlFlow::Continue(more),
    }
}

/// Returns the point of `sorted` nanoseconds, ascending, each for `parts` messages.
fn point_of(bytes: usize, sorted: &[u64], parts: f64, stopped_by: StoppedBy) -> SizeTimes {
    let seconds = |share| percentile(sorted, share) / parts / 1e9;
    SizeTimes {
        bytes: bytes as u64,
        seconds_median: seconds(0.5),
        seconds_p10: seconds(0.1),
        seconds_p90: seconds(0.9),
        relative_half_width: relative_reach(sorted),
        repetitions: sorted.len() as u64,
        stopped_by,
        simulated_seconds: None,
    }
}

/// Returns the larger reach of the median's 95 % confidence interval to a side, as a share of the
/// median; `None` for fewer than six times.
fn relative_reach(sorted: &[u64]) -> Option<f64> {
    let (low, high) = median_interval(sorted.len())?;
    let median = percentile(sorted, 0.5);
    let reach = f64::max(sorted[high] as f64 - median, median - sorted[low] as f64);
    Some(if reach == 0.0 { 0.0 } else { reach / median })
}

/// Returns the quantile of `sorted`, interpolated between two neighbours.
///
/// # Panics
/// Without a value.
pub(crate) fn percentile(sorted: &[u64], share: f64) -> f64 {
    assert!(!sorted.is_empty(), "a percentile of nothing");
    let position = share * (sorted.len() - 1) as f64;
    let below = sorted[position as usize] as f64;
    let above = sorted[(position as usize + 1).min(sorted.len() - 1)] as f64;
    below + (above - below) * position.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: Duration = Duration::from_secs(1);

    /// Returns times whose median stays unsure: half of them are a thousand times the others.
    fn wild(number: usize) -> Vec<u64> {
        (0..number)
            .map(|index| if index < number / 2 { 1 } else { 1000 })
            .collect()
    }

    #[test]
    fn equal_times_are_precise_after_ten() {
        let next = |number: usize| {
            next(
                &vec![100; number],
                Duration::from_micros(number as u64),
                BUDGET,
            )
        };
        assert_eq!(next(0), ControlFlow::Continue(3));
        assert_eq!(next(3), ControlFlow::Continue(7));
        assert_eq!(next(10), ControlFlow::Break(StoppedBy::Precision));
    }

    #[test]
    fn unsure_times_double_until_the_count_is_reached() {
        let mut number = 0;
        let mut looks = 0;
        loop {
            looks += 1;
            match next(&wild(number), Duration::from_nanos(number as u64), BUDGET) {
                ControlFlow::Continue(more) => number += more,
                ControlFlow::Break(why) => break assert_eq!(why, StoppedBy::Count),
            }
        }
        assert_eq!(number, MOST);
        assert!(looks < 16, "{looks}");
    }

    #[test]
    fn the_time_of_a_point_is_kept_but_for_three_repetitions() {
        let at =
            |number, milliseconds| next(&wild(number), Duration::from_millis(milliseconds), BUDGET);
        assert_eq!(at(1, 5_000), ControlFlow::Continue(2));
        assert_eq!(at(3, 5_000), ControlFlow::Break(StoppedBy::Time));
        // 100 ms each: seven more fit.
        assert_eq!(at(3, 300), ControlFlow::Continue(7));
        assert_eq!(at(8, 800), ControlFlow::Continue(2));
        assert_eq!(at(10, 1_000), ControlFlow::Break(StoppedBy::Time));
    }

    #[test]
    fn percentiles_are_those_computed_by_hand() {
        let values = [10, 20, 30, 40, 50];
        assert_eq!(percentile(&values, 0.5), 30.0);
        // Position 0.1 * 4 = 0.4: 10 + 0.4 * 10.
        assert!((percentile(&values, 0.1) - 14.0).abs() < 1e-12);
        assert!((percentile(&values, 0.9) - 46.0).abs() < 1e-12);
        assert_eq!(percentile(&[1, 2, 3, 10], 0.5), 2.5);
        assert_eq!(
            [0.0, 0.1, 0.5, 1.0].map(|share| percentile(&[7], share)),
            [7.0; 4]
        );
        assert_eq!(
            (percentile(&values, 0.0), percentile(&values, 1.0)),
            (10.0, 50.0)
        );
    }

    #[test]
    fn a_point_has_half_of_the_round_trips_and_the_reach_of_its_median() {
        let times = [1_000, 2_000, 2_000, 2_000, 2_000, 2_000, 2_000, 3_000];
        let point = point_of(4, &times, 2.0, StoppedBy::Time);
        assert_eq!(
            (point.bytes, point.repetitions, point.seconds_median),
            (4, 8, 1e-6)
        );
        // The interval of eight values is from the first to the last.
        assert_eq!(point.relative_half_width, Some(0.5));
        for (times, reach) in [
            (&[5, 5, 5][..], None),
            (&[90, 100, 100, 100, 100, 110], Some(0.1)),
            // The farther side.
            (&[99, 100, 100, 100, 100, 150], Some(0.5)),
            (&[0; 8], Some(0.0)),
        ] {
            assert_eq!(relative_reach(times), reach, "{times:?}");
        }
    }
}
