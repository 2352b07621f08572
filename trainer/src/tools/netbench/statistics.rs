//! Medians, percentiles and how sure a median is.
//!
//! In: times of repetitions. Out: [`Spread`]. Invariant: nothing is assumed of the times' distribution.
//! Source: Hoefler & Belli 2015, Scientific Benchmarking of Parallel Computing Systems, rules 5 to 8 and section 3.1.3 (the interval
//! between two order statistics); Hyndman & Fan 1996, Sample Quantiles, definition 7.

use records::median_interval;

/// Times of one point, in the unit of the times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Half of the times are shorter.
    pub median: f64,
    /// A tenth of the times are shorter.
    pub p10: f64,
    /// Nine tenths of the times are shorter.
    pub p90: f64,
    /// How far the interval that holds the true median with 95 % confidence reaches to its farther side, as a share of the median;
    /// `None` for fewer than six times, which have no such interval.
    pub relative_reach: Option<f64>,
}

impl Spread {
    /// The spread of `sorted`, ascending; `None` of nothing.
    pub fn of(sorted: &[u64]) -> Option<Self> {
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

/// The value below which `share` of `sorted` lies, by linear interpolation between two neighbours.
///
/// # Panics
/// When there is no value.
pub fn percentile(sorted: &[u64], share: f64) -> f64 {
    assert!(!sorted.is_empty(), "a percentile of nothing");
    let position = share * (sorted.len() - 1) as f64;
    let below = sorted[position as usize] as f64;
    let above = sorted[(position as usize + 1).min(sorted.len() - 1)] as f64;
    below + (above - below) * position.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn the_interval_of_the_median_is_that_of_published_tables() {
        // Number of values, and the rank from 1 of the lower end: tables of the sign test at 5 %, two-sided, such as Conover 1999, A3.
        let numbers = [6, 7, 8, 9, 10, 12, 15, 20, 25, 30, 50, 100];
        let ranks = [1, 1, 1, 2, 2, 3, 4, 6, 8, 10, 18, 40];
        for (number, rank) in numbers.into_iter().zip(ranks) {
            assert_eq!(
                median_interval(number),
                Some((rank - 1, number - rank)),
                "{number} values"
            );
        }
        for number in 0..6 {
            assert_eq!(median_interval(number), None, "{number} values");
        }
    }

    #[test]
    fn the_interval_holds_the_median_with_at_least_95_percent_and_is_no_wider_than_that_needs() {
        for number in 6..200_usize {
            let (low, high) = median_interval(number).unwrap();
            assert_eq!(low, number - 1 - high, "symmetric");
            // The chance that at most `count` of the values lie below the median.
            let at_most = |count: usize| {
                let (mut term, mut sum) = (0.5_f64.powi(number as i32), 0.0);
                for below in 0..=count {
                    sum += term;
                    term *= (number - below) as f64 / (below + 1) as f64;
                }
                sum
            };
            assert!(1.0 - 2.0 * at_most(low) >= 0.95, "{number} values");
            assert!(1.0 - 2.0 * at_most(low + 1) < 0.95, "{number} values");
        }
    }

    #[test]
    fn the_interval_of_many_values_goes_on_where_the_exact_one_ends() {
        let (exact, normal) = (
            median_interval(1000).unwrap(),
            median_interval(1001).unwrap(),
        );
        assert_eq!(exact, (468, 531));
        assert!(
            normal.0.abs_diff(exact.0) <= 1 && normal.1.abs_diff(exact.1) <= 2,
            "{normal:?}"
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
