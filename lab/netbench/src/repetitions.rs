//! The number of repetitions of a point, and the spread of their times.
//!
//! In: the times so far. Out: the number of further repetitions, or why there are enough;
//! [`Spread`].
//! Invariant: a pure decision; at least three repetitions, however slow the network. Nothing is
//! assumed about the distribution.
//! Source: Hoefler & Belli 2015, sections 3.1.3 and 4.2.2: repeat until the confidence interval of
//! the median is narrow enough; Hyndman & Fan 1996, Sample Quantiles, definition 7.

use records::{StoppedBy, median_interval};
use std::time::Duration;

/// Largest reach of the median's interval to either side, as a share of the median.
pub(crate) const PRECISION: f64 = 0.05;

/// Fewest repetitions of a point, and fewest for which the precision counts.
const LEAST: usize = 3;
const LEAST_PRECISE: usize = 10;

/// Most repetitions of a point.
pub(crate) const MOST: usize = 10_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Further repetitions, at least one.
    Repeat(usize),
    /// Enough, for this reason.
    Stop(StoppedBy),
}

/// Decides from the times so far, ascending, and their total time with overhead.
///
/// Repeated looks, and the stop at the first narrow interval, make its confidence somewhat less
/// than 95 %. Looks are few, as the number of repetitions doubles between them.
pub(crate) fn next(sorted: &[u64], elapsed: Duration, budget: Duration) -> Next {
    let number = sorted.len();
    if number < LEAST {
        return Next::Repeat(LEAST - number);
    }
    let reach = Spread::of(sorted).and_then(|spread| spread.relative_reach);
    if number >= LEAST_PRECISE && reach.is_some_and(|reach| reach < PRECISION) {
        return Next::Stop(StoppedBy::Precision);
    }
    if number >= MOST {
        return Next::Stop(StoppedBy::Count);
    }
    let each = elapsed.as_secs_f64() / number as f64;
    let left = budget.saturating_sub(elapsed).as_secs_f64();
    let wanted = number.max(LEAST_PRECISE - LEAST).min(MOST - number);
    match wanted.min((left / each.max(1e-9)) as usize) {
        0 => Next::Stop(StoppedBy::Time),
        more => Next::Repeat(more),
    }
}

/// Times of one point, in the unit of the times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    /// Median.
    pub(crate) median: f64,
    /// First decile.
    pub(crate) p10: f64,
    /// Ninth decile.
    pub(crate) p90: f64,
    /// Larger reach of the median's 95 % confidence interval to a side, as a share of the median;
    /// `None` for fewer than six times.
    pub(crate) relative_reach: Option<f64>,
}

impl Spread {
    /// Returns the spread of `sorted`, ascending; `None` without values.
    pub(crate) fn of(sorted: &[u64]) -> Option<Self> {
        if sorted.is_empty() {
            return None;
        }
        let median = percentile(sorted, 0.5);
        let reach = median_interval(sorted.len())
            .map(|(low, high)| f64::max(sorted[high] as f64 - median, median - sorted[low] as f64));
        Some(Self {
            median,
            p10: percentile(sorted, 0.1),
            p90: percentile(sorted, 0.9),
            relative_reach: reach.map(|reach| if reach == 0.0 { 0.0 } else { reach / median }),
        })
    }
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
        assert_eq!(next(0), Next::Repeat(3));
        assert_eq!(next(3), Next::Repeat(7));
        assert_eq!(next(10), Next::Stop(StoppedBy::Precision));
    }

    #[test]
    fn unsure_times_double_until_the_count_is_reached() {
        let mut number = 0;
        let mut looks = 0;
        loop {
            looks += 1;
            match next(&wild(number), Duration::from_nanos(number as u64), BUDGET) {
                Next::Repeat(more) => number += more,
                Next::Stop(why) => break assert_eq!(why, StoppedBy::Count),
            }
        }
        assert_eq!(number, MOST);
        assert!(looks < 16, "{looks}");
    }

    #[test]
    fn the_time_of_a_point_is_kept_but_for_three_repetitions() {
        let at =
            |number, milliseconds| next(&wild(number), Duration::from_millis(milliseconds), BUDGET);
        assert_eq!(at(1, 5_000), Next::Repeat(2));
        assert_eq!(at(3, 5_000), Next::Stop(StoppedBy::Time));
        // 100 ms each: seven more fit.
        assert_eq!(at(3, 300), Next::Repeat(7));
        assert_eq!(at(8, 800), Next::Repeat(2));
        assert_eq!(at(10, 1_000), Next::Stop(StoppedBy::Time));
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
    fn a_spread_tells_how_sure_its_median_is() {
        assert_eq!(Spread::of(&[]), None);
        assert_eq!(Spread::of(&[5, 5, 5]).unwrap().relative_reach, None);
        let spread = Spread::of(&[90, 100, 100, 100, 100, 110]).unwrap();
        assert_eq!((spread.median, spread.relative_reach), (100.0, Some(0.1)));
        assert_eq!(
            Spread::of(&[99, 100, 100, 100, 100, 150])
                .unwrap()
                .relative_reach,
            Some(0.5),
            "the farther side"
        );
        assert_eq!(Spread::of(&[0; 8]).unwrap().relative_reach, Some(0.0));
    }
}
