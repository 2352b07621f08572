//! What came of the faults, by kind.
//!
//! In: one fault after the other. Out: a table in Markdown.

use std::collections::BTreeMap;
use std::time::Duration;

use super::fault::{Fault, Kind};

/// One fault's consequences.
#[derive(Debug, Clone, Copy)]
pub(super) struct Consequence {
    /// From the fault to the job's end.
    pub(super) to_end: Duration,
    /// Steps that were done and are to be done again.
    pub(super) steps_lost: u64,
    pub(super) was_writing: bool,
}

/// All of them.
#[derive(Default)]
pub(super) struct Tally(BTreeMap<Kind, Row>);

#[derive(Default)]
struct Row {
    num: usize,
    of_root: usize,
    while_writing: usize,
    longest: Duration,
    most_lost: u64,
    lost: u64,
}

impl Tally {
    pub(super) fn add(&mut self, kind: Kind, fault: &Fault, consequence: Consequence) {
        let row = self.0.entry(kind).or_default();
        row.num += 1;
        row.of_root += usize::from(kind.signal().is_some() && fault.rank == 0);
        row.while_writing += usize::from(consequence.was_writing);
        row.longest = row.longest.max(consequence.to_end);
        row.most_lost = row.most_lost.max(consequence.steps_lost);
        row.lost += consequence.steps_lost;
    }

    pub(super) fn num(&self) -> usize {
        self.0.values().map(|row| row.num).sum()
    }

    pub(super) fn table(&self) -> String {
        let mut text = "| fault | how many | of root | while a checkpoint was written | longest to the job's end, s | steps lost, \
                        most at once | steps lost, mean |\n|---|---|---|---|---|---|---|\n"
            .to_owned();
        for (kind, row) in &self.0 {
            let Row {
                num,
                of_root,
                while_writing,
                longest,
                most_lost,
                lost,
            } = row;
            let of_root = if kind.signal().is_some() {
                of_root.to_string()
            } else {
                "-".to_owned()
            };
            let (longest, mean) = (longest.as_secs_f64(), *lost as f64 / *num as f64);
            text.push_str(&format!(
                "| {kind} | {num} | {of_root} | {while_writing} | {longest:.1} | {most_lost} | {mean:.1} |\n"
            ));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::random::Random;

    #[test]
    fn a_kinds_row_has_its_worst_and_its_mean() {
        let mut tally = Tally::default();
        let fault = Fault {
            rank: 0,
            ..Fault::draw(&mut Random(1), Duration::from_secs(1))
        };
        for (seconds, steps_lost) in [(1, 0), (3, 2), (2, 1)] {
            let consequence = Consequence {
                to_end: Duration::from_secs(seconds),
                steps_lost,
                was_writing: seconds == 2,
            };
            tally.add(Kind::Kill, &fault, consequence);
        }
        tally.add(
            Kind::FullDisk,
            &fault,
            Consequence {
                to_end: Duration::ZERO,
                steps_lost: 0,
                was_writing: false,
            },
        );
        assert_eq!(tally.num(), 4);
        let table = tally.table();
        assert!(
            table.contains("\n| SIGKILL | 3 | 3 | 1 | 3.0 | 2 | 1.0 |\n"),
            "{table}"
        );
        assert!(
            table.contains("\n| full disk | 1 | - | 0 | 0.0 | 0 | 0.0 |\n"),
            "{table}"
        );
    }
}
