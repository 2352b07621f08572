//! The slowest of several ranks whose times vary alike.
//!
//! In: a number of ranks. Out: how many standard deviations the largest of so many normal numbers lies above the mean.
//! Invariant: 0 for one, and more for more.
//! Source: Tippett 1925, On the extreme individuals and the range of samples taken from a normal population.

/// Standard deviations to either side of the mean that are summed over; beyond lies less than 10^-15 of the distribution.
const REACH: f64 = 8.0;

/// Pieces of the sum.
const NUM_PIECES: usize = 4000;

/// The expected largest of `number` independent normal numbers, in standard deviations above their mean.
///
/// The integral of x d(F(x)^n) over the distribution function F, by parts: of 1 - F^n above 0, less F^n below. 0 for none.
pub(crate) fn expected_largest(number: usize) -> f64 {
    if number < 2 {
        return 0.0;
    }
    let power = number as f64;
    let width = 2.0 * REACH / NUM_PIECES as f64;
    let density = |x: f64| (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt();
    let (mut below, mut sum) = (0.0, 0.0);
    for piece in 0..NUM_PIECES {
        let start = -REACH + width * piece as f64;
        let middle = start + 0.5 * width;
        // Simpson's rule for the distribution, the midpoint for the expectation.
        let half =
            width / 12.0 * (density(start) + 4.0 * density(start + 0.25 * width) + density(middle));
        let at_middle: f64 = below + half;
        let share = at_middle.min(1.0).powf(power);
        sum += width * if middle > 0.0 { 1.0 - share } else { -share };
        below += width / 6.0 * (density(start) + 4.0 * density(middle) + density(start + width));
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_of_a_few_lies_where_the_tables_say() {
        // 1/sqrt(pi), 3/(2 sqrt(pi)), and Tippett's table.
        for (number, expected) in [
            (1, 0.0),
            (2, 0.564_19),
            (3, 0.846_28),
            (10, 1.538_75),
            (100, 2.507_59),
            (1000, 3.241_4),
        ] {
            let got = expected_largest(number);
            assert!(
                (got - expected).abs() < 1e-4,
                "{number}: expected {expected}, got {got}"
            );
        }
    }
}
