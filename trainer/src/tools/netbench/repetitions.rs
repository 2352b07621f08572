//! How often a point is measured.
//!
//! In: the times so far. Out: how many more repetitions, or why there are enough.
//! Invariant: a pure decision of one rank, which tells the others; three repetitions at least, however slow the network.
//! Source: Hoefler & Belli 2015, section 4.2.2: repeat until the confidence interval of the median is narrow enough.

use super::statistics::Spread;
use records::StoppedBy;
use std::time::Duration;

/// How far the median's interval may reach to either side, as a share of the median.
pub const PRECISION: f64 = 0.05;

/// Repetitions of a point at least, and before the median's precision counts.
const LEAST: usize = 3;
const LEAST_PRECISE: usize = 10;

/// Repetitions of a point at most.
pub const MOST: usize = 10_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// So many more repetitions, at least one.
    Repeat(usize),
    /// None.
    Stop(StoppedBy),
}

/// Decides by the times so far, ascending, and the time that all of them took with what surrounds them.
///
/// Looking again and again and stopping at the first narrow interval makes its confidence somewhat less than 95 %; looks are few, as the
/// number of repetitions doubles between them.
pub fn next(sorted: &[u64], elapsed: Duration, budget: Duration) -> Next {
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

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: Duration = Duration::from_secs(1);

    /// Times of which no median is sure: half of them are a thousand times the others.
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
        let (mut number, mut looks) = (0, 0);
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
}
