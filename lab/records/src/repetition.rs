//! Repetitions of a measurement: which attempt at each counts, and how speeds of several are
//! compared.
//!
//! Invariant: what drifts from one repetition to the next meets both sides of a ratio.

use crate::{AttemptRecord, Status, Study, StudyCell};
use std::collections::BTreeMap;

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

impl Study {
    /// Returns the attempt that counts of each repetition, in the order of the cells.
    pub fn counted<'a>(
        &'a self,
        attempts: &'a [AttemptRecord],
    ) -> Vec<(&'a StudyCell, &'a AttemptRecord)> {
        let of_cell = |cell: &'a StudyCell| {
            let own = attempts.iter().filter(|one| one.cell == cell.id);
            counted(own).into_iter().map(move |attempt| (cell, attempt))
        };
        self.cells.iter().flat_map(of_cell).collect()
    }
}

/// Returns the attempt that counts of each repetition of one cell: the last quiet one, otherwise
/// the last disturbed one.
pub(crate) fn counted<'a>(
    attempts: impl Iterator<Item = &'a AttemptRecord>,
) -> Vec<&'a AttemptRecord> {
    let mut counted: BTreeMap<u64, &AttemptRecord> = BTreeMap::new();
    for attempt in attempts.filter(|one| one.status != Status::Failed) {
        let rank = |one: &AttemptRecord| (one.status == Status::Ok, one.attempt);
        let known = counted.entry(attempt.repetition).or_insert(attempt);
        if rank(attempt) >= rank(known) {
            *known = attempt;
        }
    }
    counted.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_undisturbed_attempt_counts_before_a_disturbed_one_and_a_failed_one_never() {
        let record = |repetition: u64, attempt: u64, status: &str| -> AttemptRecord {
            let value = serde_json::json!({ "cell": "a", "repetition": repetition, "attempt": attempt, "status": status });
            serde_json::from_value(value).unwrap()
        };
        let attempts = [
            record(1, 1, "disturbed"),
            record(1, 2, "ok"),
            record(2, 1, "disturbed"),
            record(2, 2, "disturbed"),
            record(3, 1, "failed"),
            record(4, 2, "ok"),
            record(4, 1, "ok"),
            record(4, 3, "disturbed"),
        ];
        let plan = Study {
            cells: vec![StudyCell {
                id: "a".to_owned(),
                ..StudyCell::default()
            }],
            ..Study::default()
        };
        let counted: Vec<(u64, u64)> = plan
            .counted(&attempts)
            .iter()
            .map(|(_, record)| (record.repetition, record.attempt))
            .collect();
        assert_eq!(counted, [(1, 2), (2, 2), (4, 2)]);
    }

    #[test]
    fn speeds_are_compared_in_the_same_repetition_within_an_hour() {
        let at = |number, started, speed| Repeated {
            number,
            started,
            speed,
        };
        let base = [
            at(1, "2028-02-28T23:30:00Z", 100.0),
            at(2, "2028-02-28T23:30:00Z", 200.0),
            at(3, "", 400.0),
            at(4, "2027-12-31T23:59:59Z", 100.0),
        ];
        let own = [
            at(1, "2028-02-29T00:29:59.5Z", 180.0),
            at(2, "2028-02-29T00:31:00Z", 360.0),
            at(3, "2028-01-01T00:00:00Z", 600.0),
            at(4, "2028-01-01T00:59:59Z", 190.0),
            at(5, "", 1.0),
        ];
        assert_eq!(ratios(&own, &base), [1.8, 1.5, 1.9]);
    }
}
