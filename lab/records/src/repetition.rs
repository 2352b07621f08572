//! Repetitions of a measurement: which attempt at each counts, and how speeds of several are
//! compared.
//!
//! Invariant: what drifts from one repetition to the next meets both sides of a ratio.

/// One repetition that counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Repeated<'a> {
    /// From 1.
    pub number: u64,
    /// Begin in UTC, RFC 3339; empty where it is not told.
    pub started: &'a str,
    /// Images/s.
    pub speed: f64,
}

/// The speeds over those of `base`, in each repetition that both have, begun within an hour of each
/// other.
pub fn ratios(own: &[Repeated<'_>], base: &[Repeated<'_>]) -> Vec<f64> {
    let in_turn = own.iter().filter_map(|one| {
        let is_its = |other: &&Repeated<'_>| {
            other.number == one.number && are_near(one.started, other.started)
        };
        Some(one.speed / base.iter().find(is_its)?.speed)
    });
    in_turn.filter(|ratio| ratio.is_finite()).collect()
}

/// Whether two repetitions began within an hour, or may have, as one does not tell its begin.
fn are_near(a: &str, b: &str) -> bool {
    seconds(a)
        .zip(seconds(b))
        .is_none_or(|(a, b)| a.abs_diff(b) <= 3600)
}

/// Seconds of a time in UTC, as RFC 3339 has it, from some day on.
fn seconds(text: &str) -> Option<i64> {
    let numbers: Vec<i64> = text
        .split(|c: char| !c.is_ascii_digit())
        .map_while(|part| part.parse().ok())
        .collect();
    let [year, month, day, hour, minute, second, ..] = numbers[..] else {
        return None;
    };
    // Years that begin in March end with the leap day.
    let (year, month) = if month < 3 {
        (year - 1, month + 9)
    } else {
        (year, month - 3)
    };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day;
    Some(((24 * days + hour) * 60 + minute) * 60 + second)
}
