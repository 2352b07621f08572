//! Time of a step by phase, and the staleness of asynchronous updates.
//!
//! In: runs, traces, measurements. Out: stacked bars in milliseconds per step; histograms.
//! Invariant: a bar is a mean over the steps of one rank; communication is only the time that the step waited.

use super::{Facts, parts, suffix};
use crate::chart::{Axis, Bar, BarPlot, Plot};
use crate::document::{Content, Figure};
use crate::measurements::PHASES;
use crate::sources::{Run, Trace};
use records::{RankSeconds, Seconds, Spread};
use std::collections::BTreeMap;

/// Bars of cells in one figure.
const MOST_CELLS: usize = 16;

/// Most ranks of a run or trace that are drawn.
const MOST_RANKS: usize = 64;

const COMMUNICATION: &str = "Communication is the time that the step waited; communication hidden behind the backward pass is not part of it.";

/// Names of the phases in a trace, in the order of [`PHASES`] without the last.
const TRACED: [&str; PHASES.len() - 1] = [
    "input",
    "forward",
    "backward",
    "exposed communication",
    "optimizer",
];

pub(super) fn step_time(facts: &Facts<'_>) -> Vec<Content> {
    let sources = facts.sources;
    let mut figures = Vec::new();
    for (index, run) in sources.runs.iter().enumerate() {
        figures.extend(of_run(run, &suffix(index, sources.runs.len())));
    }
    for (index, (name, trace)) in sources.traces.iter().enumerate() {
        figures.extend(of_trace(name, trace, &suffix(index, sources.traces.len())));
    }
    let cells = facts.measurements.iter().filter_map(|one| {
        let phases: Vec<_> = one
            .repetitions
            .iter()
            .filter_map(|one| one.phases_ms)
            .collect();
        let median = |phase: usize| Spread::of(phases.iter().map(|phases| phases[phase]));
        let medians =
            std::array::from_fn(|phase| median(phase).map_or(0.0, |spread| spread.median));
        (!phases.is_empty()).then(|| stacked(facts.name_of(one), medians))
    });
    let cells: Vec<Bar> = cells.collect();
    for (suffix, part) in parts(&cells, MOST_CELLS) {
        let caption = format!(
            "The slowest rank of every cell; each phase is the median of the repetitions. {COMMUNICATION} {}",
            facts.speed_words()
        );
        let title = "Step time of the slowest rank".to_owned();
        figures.push(figure(
            format!("step-time-cells{suffix}"),
            title,
            caption,
            part.to_vec(),
        ));
    }
    figures.into_iter().map(Content::Figure).collect()
}

fn figure(id: String, title: String, caption: String, bars: Vec<Bar>) -> Figure {
    let plot = BarPlot {
        x: Axis::from_zero("milliseconds per step"),
        parts: PHASES.to_vec(),
        bars,
    };
    Figure {
        id,
        title,
        caption,
        plot: Plot::Bars(plot),
    }
}

fn stacked(label: String, phases_ms: [f64; PHASES.len()]) -> Bar {
    Bar {
        label,
        values: phases_ms.to_vec(),
        style: Some(0),
        ..Bar::default()
    }
}

/// Draws every rank as in the summary; without a summary, rank 0 as in the metrics.
fn of_run(run: &Run, suffix: &str) -> Option<Figure> {
    let ranks = run
        .summary
        .as_ref()
        .map(|summary| &summary.rank_seconds[..]);
    let ranks = ranks.filter(|ranks| ranks.iter().any(|rank| rank.num_steps > 0));
    let (bars, caption) = match ranks {
        Some(ranks) => {
            let bars: Vec<Bar> = ranks.iter().take(MOST_RANKS).map(of_rank).collect();
            let more = if ranks.len() > bars.len() {
                format!(" The first {} of {} ranks.", bars.len(), ranks.len())
            } else {
                String::new()
            };
            (
                bars,
                format!("Mean over all steps of the last session, warm-up included.{more}"),
            )
        }
        None => {
            let bar = of_epochs(run)?;
            (vec![bar], "Mean over all steps of the recorded epochs, warm-up included; the metrics contain rank 0 only.".to_owned())
        }
    };
    let title = format!("Step time of {}", run.label);
    Some(figure(
        format!("step-time{suffix}"),
        title,
        format!("{caption} {COMMUNICATION}"),
        bars,
    ))
}

fn of_epochs(run: &Run) -> Option<Bar> {
    let mut num_steps = 0;
    let mut total = Seconds::default();
    // A session that resumed in an evaluation measured no step of its epoch.
    for epoch in run
        .epochs
        .iter()
        .filter(|epoch| epoch.seconds.step_total() > 0.0)
    {
        num_steps += epoch.num_steps?;
        total += epoch.seconds;
    }
    let phases = [
        total.data,
        total.forward,
        total.backward,
        total.communication,
        total.optimizer,
        0.0,
    ];
    let milliseconds = phases.map(|seconds| seconds / num_steps as f64 * 1e3);
    (num_steps > 0).then(|| stacked("rank 0".to_owned(), milliseconds))
}

fn of_rank(rank: &RankSeconds) -> Bar {
    let seconds = [
        rank.data,
        rank.forward,
        rank.backward,
        rank.communication,
        rank.optimizer,
        rank.other,
    ];
    let steps = rank.num_steps.max(1) as f64;
    let label = format!("rank {} on {}", rank.rank, rank.node);
    stacked(label, seconds.map(|seconds| seconds / steps * 1e3))
}

fn of_trace(name: &str, trace: &Trace, suffix: &str) -> Option<Figure> {
    let bar = |(rank, seconds): (&u64, &BTreeMap<String, f64>)| {
        let num_steps = *trace.num_steps.get(rank)? as f64;
        let mut phases = [0.0; PHASES.len()];
        for (phase, name) in phases.iter_mut().zip(TRACED) {
            *phase = seconds.get(name).copied().unwrap_or(0.0) / num_steps * 1e3;
        }
        let label = trace.names.get(rank).cloned();
        Some(stacked(
            label.unwrap_or_else(|| format!("rank {rank}")),
            phases,
        ))
    };
    let bars: Vec<Bar> = trace
        .seconds
        .iter()
        .filter_map(bar)
        .take(MOST_RANKS)
        .collect();
    let caption = format!(
        "Mean over the steps in the trace, without the time between its phases. {COMMUNICATION}"
    );
    let title = format!("Step time in {name}");
    (!bars.is_empty()).then(|| figure(format!("step-time-trace{suffix}"), title, caption, bars))
}

/// Draws how many updates used gradients of parameters that a number of other updates had changed.
pub(super) fn staleness(facts: &Facts<'_>) -> Vec<Content> {
    let runs = &facts.sources.runs;
    let histogram = |(index, run): (usize, &Run)| {
        let counts = run.summary.as_ref()?.staleness.as_ref()?;
        let total = counts
            .iter()
            .fold(0_u64, |total, count| total.saturating_add(*count));
        if total == 0 {
            return None;
        }
        let weighted = counts
            .iter()
            .enumerate()
            .map(|(at, count)| at as f64 * *count as f64);
        let mean = weighted.sum::<f64>() / total as f64;
        let bar = |(at, count): (usize, &u64)| Bar::of(at.to_string(), Spread::of([*count as f64]));
        let bars = counts.iter().enumerate().map(bar).collect();
        Some(Content::Figure(Figure {
            id: format!("staleness{}", suffix(index, runs.len())),
            title: format!("Staleness of {}", run.label),
            caption: format!(
                "{} updates of the servers, by the number of other updates since the gradient's parameters were read; mean {mean:.2}. All steps of the last session, warm-up included.",
                records::grouped(total)
            ),
            plot: Plot::Bars(BarPlot {
                x: Axis::whole("updates"),
                parts: Vec::new(),
                bars,
            }),
        }))
    };
    runs.iter().enumerate().filter_map(histogram).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use records::EpochRecord;

    #[test]
    fn a_resumed_epoch_counts_the_steps_of_the_session_that_ended_it() {
        let epoch = |step, num_steps, forward| EpochRecord {
            step,
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
            of_epochs(&run).map(|bar| bar.values[1])
        };
        assert_eq!(forward(&[epoch(10, 4, 1.0)]), Some(250.0));
        let not_measured = epoch(20, 10, 0.0);
        let epochs = [epoch(10, 10, 1.0), not_measured.clone(), epoch(30, 10, 3.0)];
        assert_eq!(forward(&epochs), Some(200.0));
        assert_eq!(forward(&[not_measured]), None);
    }
}
