//! Time of a step by phase, and the staleness of asynchronous updates.
//!
//! In: runs, traces, measurements. Out: stacked bars in milliseconds per step; histograms.
//! Invariant: a bar is a mean over the steps of one rank. Communication is only the time that the
//! step waited.

use super::Facts;
use crate::chart::{Axis, Bar, Marks};
use crate::document::Section;
use crate::sources::Run;
use records::{AttemptRecord, RankSeconds, Seconds, Spread};

const PHASES: [&str; 6] = [
    "data",
    "forward",
    "backward",
    "communication",
    "optimizer",
    "other",
];

/// Most ranks of a run or trace that are drawn.
const MOST_RANKS: usize = 64;

const COMMUNICATION: &str = "Communication is the time that the step waited; communication hidden behind the backward pass is not part of it.";

pub(super) fn step_time(facts: &Facts<'_>, section: &mut Section) {
    let sources = facts.sources;
    let mut bars: Vec<Bar> = Vec::new();
    for run in &sources.runs {
        let ranks = run.summary.iter().flat_map(|summary| &summary.rank_seconds);
        let mut ranks: Vec<RankSeconds> = ranks.cloned().collect();
        if ranks.iter().all(|rank| rank.num_steps == 0) {
            ranks = of_epochs(run).into_iter().collect();
        }
        bars.extend(of_ranks(&run.label, &ranks));
    }
    for (name, ranks) in &sources.traces {
        bars.extend(of_ranks(name, ranks));
    }
    let caption = format!(
        "Mean over the steps of the last session with warm-up, or over those in a trace; of a run without summary over all epochs of rank 0. {COMMUNICATION}"
    );
    draw(section, ["step-time", "Step time", &caption], &bars);
    let cells = facts.measurements.iter().filter_map(|one| {
        let phases: Vec<_> = one.attempts.iter().filter_map(phases).collect();
        let median = |phase: usize| Spread::of(phases.iter().map(|phases| phases[phase]));
        let medians =
            std::array::from_fn(|phase| median(phase).map_or(0.0, |spread| spread.median));
        (!phases.is_empty()).then(|| stacked(facts.name_of(one), medians))
    });
    let caption = format!(
        "The slowest rank of every cell; each phase is the median of the repetitions. {COMMUNICATION} {}",
        facts.speed_words()
    );
    draw(
        section,
        ["step-time-cells", "Step time of the slowest rank", &caption],
        &cells.collect::<Vec<Bar>>(),
    );
}

fn draw(section: &mut Section, words: [&str; 3], bars: &[Bar]) {
    section.bars(words, "milliseconds per step", &PHASES, bars);
}

/// Returns a bar for each rank that ran steps.
fn of_ranks(name: &str, ranks: &[RankSeconds]) -> impl Iterator<Item = Bar> {
    let bar = move |rank: &RankSeconds| {
        let seconds = [
            rank.data,
            rank.forward,
            rank.backward,
            rank.communication,
            rank.optimizer,
            rank.other,
        ];
        let label = match rank.node.as_str() {
            "" => format!("rank {}", rank.rank),
            node => format!("rank {} on {node}", rank.rank),
        };
        let phases_ms = seconds.map(|seconds| 1e3 * seconds / rank.num_steps as f64);
        Bar {
            group: match ranks.len() > MOST_RANKS {
                true => format!("{name}, the first {MOST_RANKS} of {} ranks", ranks.len()),
                false => name.to_owned(),
            },
            ..stacked(label, phases_ms)
        }
    };
    let active = ranks.iter().filter(|rank| rank.num_steps > 0);
    active.take(MOST_RANKS).map(bar)
}

fn stacked(label: String, phases_ms: [f64; PHASES.len()]) -> Bar {
    Bar {
        label,
        values: phases_ms.to_vec(),
        style: Some(0),
        ..Bar::default()
    }
}

/// Returns the milliseconds per step of a result of `bench`, whose seconds are those of the
/// measured steps.
fn phases(attempt: &AttemptRecord) -> Option<[f64; PHASES.len()]> {
    let result = &attempt.result;
    let steps = result["steps"].as_f64().filter(|steps| *steps > 0.0)?;
    let mut phases = [0.0; PHASES.len()];
    let (other, named) = phases.split_last_mut()?;
    for (phase, name) in named.iter_mut().zip(PHASES) {
        *phase = result["seconds"][name].as_f64()? / steps * 1e3;
    }
    let step_ms = result["global_batch_size"].as_f64()? / attempt.images_per_second()? * 1e3;
    *other = (step_ms - named.iter().sum::<f64>()).max(0.0);
    Some(phases)
}

/// Returns the time of rank 0 over the epochs whose steps were measured.
fn of_epochs(run: &Run) -> Option<RankSeconds> {
    let mut num_steps = 0;
    let mut total = Seconds::default();
    // A session that resumed in an evaluation measured no step of its epoch.
    let epochs = run.epochs.iter();
    for epoch in epochs.filter(|epoch| epoch.seconds.step_total() > 0.0) {
        num_steps += epoch.num_steps?;
        total += epoch.seconds;
    }
    Some(RankSeconds {
        num_steps,
        data: total.data,
        forward: total.forward,
        backward: total.backward,
        communication: total.communication,
        optimizer: total.optimizer,
        ..RankSeconds::default()
    })
}

/// Draws how many updates used gradients of parameters that a number of other updates had changed.
pub(super) fn staleness(facts: &Facts<'_>, section: &mut Section) {
    for run in &facts.sources.runs {
        let summary = run.summary.as_ref();
        let counts = summary.and_then(|summary| summary.staleness.as_ref());
        let counts = counts.map_or(&[][..], Vec::as_slice);
        let total = counts
            .iter()
            .fold(0, |sum: u64, count| sum.saturating_add(*count));
        let numbered = || (0..).zip(counts);
        let weighted = numbered().map(|(at, count): (u64, _)| at as f64 * *count as f64);
        let mean = weighted.sum::<f64>() / total as f64;
        if total == 0 {
            continue;
        }
        let bars = numbered()
            .map(|(at, count): (u64, _)| Bar::of(at.to_string(), Spread::of([*count as f64])));
        let caption = format!(
            "{} updates of the servers, by the number of other updates since the gradient's parameters were read; mean {mean:.2}. All steps of the last session, warm-up included.",
            records::grouped(total)
        );
        section.figure(
            [
                "staleness",
                &format!("Staleness of {}", run.label),
                &caption,
            ],
            None,
            Axis::whole("updates"),
            Marks::Bars(Vec::new(), bars.collect()),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use records::EpochRecord;

    #[test]
    fn a_resumed_epoch_counts_the_steps_of_the_session_that_ended_it() {
        let epoch = |num_steps, forward| EpochRecord {
            num_steps: Some(num_steps),
            seconds: Seconds {
                forward,
                ..Seconds::default()
            },
            ..EpochRecord::default()
        };
        let forward = |epochs: &[EpochRecord]| {
            let run = Run {
                epochs: epochs.to_vec(),
                ..Run::default()
            };
            of_epochs(&run).map(|rank| (rank.forward, rank.num_steps))
        };
        assert_eq!(forward(&[epoch(4, 1.0)]), Some((1.0, 4)));
        let not_measured = epoch(10, 0.0);
        let epochs = [epoch(10, 1.0), not_measured.clone(), epoch(10, 3.0)];
        assert_eq!(forward(&epochs), Some((4.0, 20)));
        assert_eq!(forward(&[not_measured]), Some((0.0, 0)));
    }
}
