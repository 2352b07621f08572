//! Where a step's time goes, and how stale asynchronous updates were.
//!
//! In: runs, traces, measurements. Out: stacked bars in milliseconds a step; histograms.
//! Invariant: a bar is a mean over steps of one rank; communication is what the step waited for, not what was hidden beside it.

use super::Facts;
use crate::chart::{Axis, Bar, BarPlot, Kind, LinePlot, Plot, Point, Series};
use crate::document::{Block, Cell, Figure, Table};
use crate::measurements::{Measurement, PHASES, median};
use crate::sources::{Run, Trace};
use records::RankSeconds;
use std::collections::BTreeMap;

/// Bars in one figure.
const MOST_BARS: usize = 16;

const COMMUNICATION: &str = "Communication is what the step waited for; what is hidden beside the backward pass is not in it.";

/// Names of a trace's stretches in the order of [`PHASES`].
const TRACED: [&str; PHASES.len() - 1] = [
    "input",
    "forward",
    "backward",
    "exposed communication",
    "optimizer",
];

pub(super) fn blocks(facts: &Facts<'_>) -> Vec<Block> {
    let mut figures = Vec::new();
    for (number, run) in facts.sources.runs.iter().enumerate() {
        figures.extend(of_run(run, number + 1));
    }
    for (number, (name, trace)) in facts.sources.traces.iter().enumerate() {
        figures.extend(of_trace(name, trace, number + 1));
    }
    let measured: Vec<&Measurement> = facts
        .measurements
        .iter()
        .filter(|one| !one.phases_ms.is_empty())
        .collect();
    let parts: Vec<&[&Measurement]> = measured.chunks(MOST_BARS).collect();
    figures.extend(
        parts
            .iter()
            .enumerate()
            .map(|(number, part)| of_measurements(facts, part, number + 1)),
    );
    figures
        .into_iter()
        .map(|figure| Block::Figure(Box::new(figure)))
        .collect()
}

fn figure(
    id: String,
    title: String,
    caption: String,
    bars: Vec<(String, [f64; PHASES.len()])>,
) -> Figure {
    let mut columns = vec!["bar"];
    columns.extend(PHASES);
    let mut data = Table::new(id, title, &columns);
    for (label, phases) in &bars {
        let mut row = vec![Cell::text(label.clone())];
        row.extend(phases.map(|phase| Cell::number(phase, 3)));
        data.push(row);
    }
    let rows = bars
        .into_iter()
        .map(|(label, phases)| Bar {
            label,
            values: phases.to_vec(),
            ..Bar::default()
        })
        .collect();
    let parts = PHASES.map(str::to_owned).to_vec();
    Figure {
        caption,
        plot: Plot::Bars(BarPlot {
            x: Axis::from_zero("milliseconds a step"),
            parts,
            rows,
        }),
        data,
    }
}

/// Of every rank, as the summary tells; else of root alone, from the epochs.
fn of_run(run: &Run, number: usize) -> Option<Figure> {
    let id = format!("step-time-{number}");
    let title = format!("Step time of {}", run.label);
    let all = run
        .summary
        .as_ref()
        .map(|summary| summary.rank_seconds.as_slice());
    if let Some(ranks) = all.filter(|ranks| ranks.iter().any(|rank| rank.num_steps > 0)) {
        let bars: Vec<_> = ranks.iter().take(4 * MOST_BARS).map(of_rank).collect();
        let more = if ranks.len() > bars.len() {
            format!(" The first {} of {} ranks.", bars.len(), ranks.len())
        } else {
            String::new()
        };
        let caption = format!(
            "Mean over all steps of the last session, warm-up included.{more} {COMMUNICATION}"
        );
        return Some(figure(id, title, caption, bars));
    }
    let mut num_steps = 0;
    let mut total = records::Seconds::default();
    let starts =
        std::iter::once((0, 0)).chain(run.epochs.iter().map(|epoch| (epoch.number(), epoch.step)));
    for (epoch, (number, before)) in run.epochs.iter().zip(starts) {
        // An older file tells them if the record before is there, and the epoch was of one start.
        let steps_between = (epoch.epoch == number).then(|| epoch.step.saturating_sub(before));
        // Where a run was resumed in the evaluation there are none.
        let known = epoch
            .num_steps
            .or(steps_between)
            .filter(|_| epoch.seconds.step_total() > 0.0);
        let Some(steps) = known else { continue };
        num_steps += steps;
        total += epoch.seconds;
    }
    if num_steps == 0 {
        return None;
    }
    let phases = [
        total.data,
        total.forward,
        total.backward,
        total.communication,
        total.optimizer,
        0.0,
    ]
    .map(|seconds| seconds / num_steps as f64 * 1e3);
    let caption = format!(
        "Mean over all steps of its epochs, warm-up included; the run's files tell of rank 0 only. {COMMUNICATION}"
    );
    Some(figure(
        id,
        title,
        caption,
        vec![("rank 0".to_owned(), phases)],
    ))
}

fn of_rank(rank: &RankSeconds) -> (String, [f64; PHASES.len()]) {
    let seconds = [
        rank.data,
        rank.forward,
        rank.backward,
        rank.communication,
        rank.optimizer,
        rank.other,
    ];
    (
        format!("rank {} on {}", rank.rank, rank.node),
        seconds.map(|seconds| seconds / rank.num_steps.max(1) as f64 * 1e3),
    )
}

fn of_trace(name: &str, trace: &Trace, number: usize) -> Option<Figure> {
    let bar = |(rank, seconds): (&u64, &BTreeMap<String, f64>)| {
        let num_steps = trace
            .num_steps
            .get(rank)
            .copied()
            .filter(|steps| *steps > 0)?;
        let mut phases = [0.0; PHASES.len()];
        for (phase, name) in phases.iter_mut().zip(TRACED) {
            *phase = seconds.get(name).copied().unwrap_or(0.0) / num_steps as f64 * 1e3;
        }
        Some((
            trace
                .names
                .get(rank)
                .cloned()
                .unwrap_or(format!("rank {rank}")),
            phases,
        ))
    };
    let bars: Vec<_> = trace
        .seconds
        .iter()
        .filter_map(bar)
        .take(4 * MOST_BARS)
        .collect();
    let caption = format!(
        "Mean over the steps in the trace; what is between its stretches is left out. {COMMUNICATION}"
    );
    (!bars.is_empty()).then(|| {
        figure(
            format!("step-time-trace-{number}"),
            format!("Step time in {name}"),
            caption,
            bars,
        )
    })
}

fn of_measurements(facts: &Facts<'_>, part: &[&Measurement], number: usize) -> Figure {
    let bar = |one: &&Measurement| {
        let middle = |phase: usize| {
            median(
                &one.phases_ms
                    .iter()
                    .map(|phases| phases[phase])
                    .collect::<Vec<_>>(),
            )
            .unwrap_or(0.0)
        };
        (facts.name_of(one), std::array::from_fn(middle))
    };
    let caption = format!(
        "The slowest rank of every cell; of each phase, the median of the repetitions. {COMMUNICATION} {}",
        facts.speed_words()
    );
    figure(
        format!("step-time-cells-{number}"),
        "Step time of the slowest rank".to_owned(),
        caption,
        part.iter().map(bar).collect(),
    )
}

/// How many updates were made with gradients of parameters that so many others had changed.
pub(super) fn staleness(facts: &Facts<'_>) -> Vec<Block> {
    let histogram = |(number, run): (usize, &Run)| {
        let counts = run
            .summary
            .as_ref()?
            .staleness
            .as_ref()
            .filter(|counts| counts.iter().any(|count| *count > 0))?;
        let id = format!("staleness-{}", number + 1);
        let title = format!("Staleness of {}", run.label);
        let mut data = Table::new(id, title, &["staleness", "updates"]);
        let points: Vec<Point> = counts
            .iter()
            .enumerate()
            .map(|(at, count)| Point::new(at as f64, *count as f64))
            .collect();
        for (at, count) in counts.iter().enumerate() {
            data.push(vec![Cell::count(at as u64), Cell::count(*count)]);
        }
        let total = counts
            .iter()
            .fold(0_u64, |total, count| total.saturating_add(*count));
        let weighted: f64 = points.iter().map(|point| point.x * point.y).sum();
        let caption = format!(
            "{total} updates of the servers by how many others had changed the parameters since the gradient's were read; mean {:.2}. All steps of the last session, warm-up included.",
            weighted / total as f64
        );
        let ticks: Vec<f64> = (0..counts.len()).map(|at| at as f64).collect();
        let x = Axis {
            ticks: Some(ticks),
            ..Axis::linear("updates in between")
        };
        let series = vec![Series {
            name: "updates".to_owned(),
            style: 0,
            kind: Kind::Columns,
            lines: vec![points],
        }];
        let plot = Plot::Lines(LinePlot {
            x,
            y: Axis::whole("updates"),
            series,
            band: None,
        });
        Some(Block::Figure(Box::new(Figure {
            caption,
            plot,
            data,
        })))
    };
    facts
        .sources
        .runs
        .iter()
        .enumerate()
        .filter_map(histogram)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use records::{EpochRecord, Seconds};

    #[test]
    fn an_epoch_that_was_resumed_has_the_steps_of_the_start_that_ended_it() {
        let seconds = Seconds {
            forward: 1.0,
            ..Seconds::default()
        };
        let epochs = vec![EpochRecord {
            step: 10,
            num_steps: Some(4),
            seconds,
            ..EpochRecord::default()
        }];
        let Plot::Bars(bars) = of_run(
            &Run {
                epochs,
                ..Run::default()
            },
            1,
        )
        .unwrap()
        .plot
        else {
            panic!()
        };
        assert_eq!(bars.rows[0].values[1], 250.0);
    }

    #[test]
    fn steps_of_which_no_session_measured_anything_are_in_no_mean() {
        let epoch = |step, forward| {
            let seconds = Seconds {
                forward,
                ..Seconds::default()
            };
            EpochRecord {
                epoch: step / 10 - 1,
                step,
                seconds,
                ..EpochRecord::default()
            }
        };
        let run = |epochs: &[EpochRecord]| Run {
            epochs: epochs.to_vec(),
            ..Run::default()
        };
        let figure = of_run(&run(&[epoch(10, 1.0), epoch(20, 0.0), epoch(30, 3.0)]), 1).unwrap();
        let Plot::Bars(bars) = figure.plot else {
            panic!("expected bars")
        };
        assert_eq!(bars.rows[0].values[1], 200.0);
        assert!(of_run(&run(&[epoch(10, 0.0)]), 1).is_none());
        assert!(
            of_run(&run(&[epoch(20, 1.0)]), 1).is_none(),
            "the record of the first ten steps is missing"
        );
    }
}
