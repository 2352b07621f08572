//! Median of several measurements of one quantity, with a confidence interval.
//!
//! Source: Hoefler & Belli 2015, Scientific benchmarking of parallel computing systems, rules 5 to
//! 7: medians with non-parametric confidence intervals; Le Boudec 2010, Performance evaluation of
//! computer and communication systems, appendix A.

use crate::median;

/// Confidence of an interval.
pub const CONFIDENCE: f64 = 0.95;

/// The 97.5 % quantile of the normal distribution.
const NORMAL_QUANTILE: f64 = 1.959_963_985;

/// Most values for which the binomial distribution is summed; 2^-n is still a normal number.
const MOST_SUMMED: usize = 1000;

/// Median of several measurements, in their unit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    /// Median of the measurements.
    pub median: f64,
    /// Smallest and largest bound of the true median, with a confidence of at least 95 % for any
    /// distribution; absent (null) below six measurements.
    pub interval: Option<[f64; 2]>,
}

impl Estimate {
    /// Estimates from independent measurements; `None` without measurements, or if one is not
    /// finite.
    pub fn of(values: &[f64]) -> Option<Self> {
        if values.is_empty() || values.iter().any(|value| !value.is_finite()) {
            return None;
        }
        let mut sorted = values.to_vec();
        let median = median(&mut sorted);
        let interval = median_interval(sorted.len()).map(|(low, high)| [sorted[low], sorted[high]]);
        Some(Estimate { median, interval })
    }

    /// Formats the estimate for a table: `0.51 (0.49 to 0.53)`, or only the median without an
    /// interval.
    pub fn shown(&self, decimals: usize) -> String {
        let median = format!("{:.decimals$}", self.median);
        match self.interval {
            None => median,
            Some([low, high]) => format!("{median} ({low:.decimals$} to {high:.decimals$})"),
        }
    }
}

/// Returns two positions (from 0) in `number` ascending values. With at least 95 % confidence, the
/// true median lies between the values at these positions. Returns `None` below six values.
///
/// The number of values below the median is binomial with probability 1/2, for any distribution.
pub fn median_interval(number: usize) -> Option<(usize, usize)> {
    let outside = (1.0 - CONFIDENCE) / 2.0;
    let from_one = if number <= MOST_SUMMED {
        let mut term = 0.5_f64.powi(i32::try_from(number).expect("at most a thousand"));
        let mut sum = 0.0;
        let mut rank = 0;
        while sum + term <= outside {
            sum += term;
            term *= (number - rank) as f64 / (rank + 1) as f64;
            rank += 1;
        }
        rank
    } else {
        ((number as f64 - NORMAL_QUANTILE * (number as f64).sqrt()) / 2.0) as usize
    };
    (from_one > 0).then(|| (from_one - 1, number - from_one))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_needs_six_measurements_and_leaves_out_what_the_binomial_distribution_allows() {
        // 1 - 2 x 9 / 256 = 0.93 is too little for 8 without their ends, 1 - 2 x 10 / 512 = 0.96 is
        // enough for 9.
        assert_eq!(
            [5, 6, 8, 9, 20].map(|n| median_interval(n).map(|(low, _)| low)),
            [None, Some(0), Some(0), Some(1), Some(5)]
        );
        assert_eq!(
            Estimate::of(&[1.0; 5]),
            Some(Estimate {
                median: 1.0,
                interval: None
            })
        );
        let estimate = Estimate::of(&[6.0, 1.0, 2.0, 5.0, 3.0, 4.0]).unwrap();
        assert_eq!(
            estimate,
            Estimate {
                median: 3.5,
                interval: Some([1.0, 6.0])
            }
        );
        assert_eq!(estimate.shown(2), "3.50 (1.00 to 6.00)");
    }

    #[test]
    fn the_interval_of_the_median_is_that_of_published_tables() {
        // Number of values, and the rank from 1 of the lower end: tables of the sign test at 5 %,
        // two-sided, such as Conover 1999, A3.
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
                let mut term = 0.5_f64.powi(number as i32);
                let mut sum = 0.0;
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
        let exact = median_interval(1000).unwrap();
        let normal = median_interval(1001).unwrap();
        assert_eq!(exact, (468, 531));
        assert!(
            normal.0.abs_diff(exact.0) <= 1 && normal.1.abs_diff(exact.1) <= 2,
            "{normal:?}"
        );
    }

    #[test]
    fn nothing_and_what_is_no_number_have_no_middle() {
        assert_eq!(
            (Estimate::of(&[]), Estimate::of(&[1.0, f64::NAN])),
            (None, None)
        );
    }
}
