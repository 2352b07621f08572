//! The page of a watched run, made of ratatui's widgets.
//!
//! In: [`Live`], an area of a terminal or of text. Out: its cells. Invariant: pure; colours only
//! repeat the text.

use std::time::Duration;

use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{
    Axis, Block, Chart, Dataset, Gauge, GraphType, Paragraph, Row, Table, Widget,
};
use records::{EpochRecord, RankSeconds, RunProgress, counted, decimal, grouped, wrapped};

use super::state::{Live, Stage, StepScores};

const SPEED: &str = "samples/s";

const TRAIN: Color = Color::Yellow;
const TEST: Color = Color::Cyan;

/// Least and most rows of alerts and of the log, with their frames.
const LEAST: u16 = 3;
const MOST: u16 = 6;

/// Rows of the progress bar, and least rows of the charts.
const BAR: u16 = 1;
const CHARTS: u16 = 5;

/// Names of the table's columns and their least widths.
const COLUMNS: [(&str, u16); 9] = [
    ("rank", 4),
    ("node", 9),
    ("samples/s", 9),
    ("waits", 7),
    ("data", 5),
    ("fwd", 6),
    ("bwd", 6),
    ("comm", 5),
    ("opt", 5),
];

/// Rows of a terminal that is not small.
const TALL: u16 = 30;

/// Columns that the whole table of ranks needs, and those of a terminal that shows it.
const TABLE: u16 = 66;
const WIDE: u16 = 96;

/// Draws the page.
pub(super) fn render(live: &Live, area: Rect, buffer: &mut Buffer) {
    let ranks = live
        .progress
        .as_ref()
        .map_or(&[][..], |progress| &progress.ranks);
    let has_steps = ranks.iter().any(|rank| rank.num_steps > 0);
    let ranks = if has_steps { ranks } else { &[] };
    let head_lines = head_lines(live, area.width);
    let columns = usize::from(area.width.saturating_sub(2));
    let alerts: Vec<String> = live
        .alerts
        .iter()
        .flat_map(|alert| wrapped(alert, columns))
        .collect();
    let rows = |number: usize| u16::try_from(number).unwrap_or(u16::MAX);
    let least_of_ranks = if area.height < TALL { 5 } else { 7 };
    let ranks_height = (rows(ranks.len().clamp(1, 8)) + 3).max(least_of_ranks);
    let fixed = rows(head_lines.len()) + ranks_height + BAR + CHARTS;
    let left = area.height.saturating_sub(fixed + LEAST).max(LEAST);
    let alerts_height = rows(alerts.len())
        .saturating_add(2)
        .clamp(LEAST, MOST.min(left));
    let log_height = ((left + LEAST - alerts_height) / 2).clamp(LEAST, MOST);
    let [head, bar, charts, middle, alerts_area, log] = Layout::vertical([
        Constraint::Length(rows(head_lines.len())),
        Constraint::Length(BAR),
        Constraint::Min(CHARTS),
        Constraint::Length(ranks_height),
        Constraint::Length(alerts_height),
        Constraint::Length(log_height),
    ])
    .areas(area);
    Paragraph::new(head_lines).render(head, buffer);
    progress_bar(live, bar, buffer);
    let halves = || Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]);
    let [loss, accuracy] = halves().areas(charts);
    let [speed, table] = match area.width < WIDE {
        true => halves(),
        false => Layout::horizontal([
            Constraint::Fill(1),
            Constraint::Length(TABLE.max(area.width / 2)),
        ]),
    }
    .areas(middle);
    let figure = figure(live);
    match curves(live, figure).iter().all(Vec::is_empty) {
        true => chart(live, "loss", charts, buffer),
        false => {
            chart(live, "loss", loss, buffer);
            chart(live, figure, accuracy, buffer);
        }
    }
    chart(live, SPEED, speed, buffer);
    ranks_table(live, ranks, table, buffer);
    let red = Style::new().fg(Color::Red);
    lines(" warnings and errors ", &alerts, red, alerts_area, buffer);
    lines(" log ", &live.run.log, Style::new(), log, buffer);
}

/// Returns the accuracy, or the first metric of a task without accuracy.
fn figure(live: &Live) -> &str {
    let mut epochs = live.run.epochs.iter().rev();
    let scores = epochs.find_map(|epoch| Some(epoch.evaluation()?.1));
    let scores = scores.filter(|scores| scores.top1.is_none());
    let metric = scores.and_then(|scores| scores.metrics.keys().next());
    metric.map_or("top1", String::as_str)
}

/// Returns a score of the epochs while they trained and after them; before the first epoch, a score
/// of the steps.
fn curves(live: &Live, figure: &str) -> [Vec<(f64, f64)>; 2] {
    let epochs = &live.run.epochs;
    let of_epochs = |value: &dyn Fn(&EpochRecord) -> Option<f64>| {
        let point = |epoch: &EpochRecord| Some((epoch.number() as f64, value(epoch)?));
        epochs.iter().filter_map(point).collect()
    };
    let steps = live.steps.iter().filter(|_| epochs.is_empty());
    let of_step = |(step, [loss, top1, speed]): (&u64, &StepScores)| {
        let value = match figure {
            "loss" => *loss,
            "top1" => *top1,
            SPEED => *speed,
            _ => None,
        };
        Some((*step as f64, value?))
    };
    let trained: Vec<(f64, f64)> = match figure {
        _ if epochs.is_empty() => steps.filter_map(of_step).collect(),
        SPEED => of_epochs(&EpochRecord::speed),
        figure => of_epochs(&|epoch| epoch.trained(figure)),
    };
    let factor = if figure == "top1" { 100.0 } else { 1.0 };
    [trained, of_epochs(&|epoch| epoch.evaluated(figure))].map(|points| {
        let points = points.into_iter().map(|(x, y)| (x, factor * y));
        points.filter(|(_, y)| y.is_finite()).collect()
    })
}

fn percent(share: Option<f64>) -> Option<f64> {
    share.map(|share| 100.0 * share)
}

fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".to_owned())
}

fn head_lines(live: &Live, width: u16) -> Vec<Line<'_>> {
    let run = &live.run;
    let directory = Span::from(run.directory.display().to_string()).bold();
    let style = stage_style(&live.stage);
    let stage = stage(live);
    let title = Line::from_iter([
        directory.clone(),
        Span::from("  "),
        Span::styled(&stage, style),
    ]);
    let mut lines = Vec::new();
    if title.width() <= usize::from(width) {
        lines.push(Line::from_iter([
            directory,
            Span::from("  "),
            Span::styled(stage, style),
        ]));
    } else {
        lines.push(Line::from(directory));
        let stage = wrapped(&stage, usize::from(width)).into_iter();
        lines.extend(stage.map(|row| Line::styled(row, style)));
    }
    if live.stage != Stage::NotBegun {
        let data = run.setting("data.dataset").unwrap_or("?");
        let mut job = vec![format!("{} on {data}", run.model().unwrap_or("?"))];
        job.extend(run.manifest().map(|manifest| {
            let launch = &manifest.launch;
            let ranks = counted(launch.ranks, "rank");
            let threads = counted(launch.threads_per_rank, "thread");
            format!("{ranks} of {threads} on {}", launch.nodes.join(", "))
        }));
        lines.extend(joined(&job, width));
    }
    lines.extend(joined(&speed(live), width));
    lines.extend(joined(&newest(live), width));
    lines
}

/// Joins parts by ` | ` into lines of at most `width` columns; a longer part has its own line.
fn joined(parts: &[String], width: u16) -> Vec<Line<'static>> {
    let mut rows: Vec<String> = Vec::new();
    for part in parts {
        match rows.last_mut() {
            Some(row) if row.chars().count() + 3 + part.chars().count() <= usize::from(width) => {
                row.push_str(" | ");
                row.push_str(part);
            }
            _ => rows.push(part.clone()),
        }
    }
    rows.into_iter().map(Line::from).collect()
}

fn stage(live: &Live) -> String {
    let phase = live
        .progress
        .as_ref()
        .map_or("starting", |progress| &progress.phase);
    let ran_no_step = live
        .run
        .summary
        .as_ref()
        .is_some_and(|summary| summary.steps == 0);
    let resumes = live.run.manifest().map_or_else(String::new, |manifest| {
        let command = manifest.resume_command(&live.run.directory);
        format!("; `{command}` continues")
    });
    match &live.stage {
        Stage::NotBegun => {
            "not started: the directory has no files of a run; if its job waits in a queue, see `trainer slurm status`".to_owned()
        }
        Stage::Running(age) => format!("running: {phase} (written {} ago)", time(*age)),
        Stage::Silent(age) => format!("silent for {} in {phase}: slow or dead", time(*age)),
        Stage::Dead => format!("dead: its process ended in {phase}{resumes}"),
        Stage::Stopped if ran_no_step => {
            format!("stopped before its first step, without a checkpoint{resumes}")
        }
        Stage::Stopped => format!("stopped with a checkpoint{resumes}"),
        Stage::Finished => "finished".to_owned(),
    }
}

fn stage_style(stage: &Stage) -> Style {
    let colour = match stage {
        Stage::Running(_) | Stage::Finished => Color::Green,
        Stage::NotBegun | Stage::Stopped | Stage::Silent(_) => Color::Yellow,
        Stage::Dead => Color::Red,
    };
    Style::new().fg(colour).bold()
}

/// Returns speed, exposed communication and memory: of the last seconds while the run trains, else
/// of the session.
fn speed(live: &Live) -> [String; 3] {
    let run = &live.run;
    let (speed, exposed) = match (&live.stage, &live.progress) {
        (Stage::Running(_), Some(progress)) => {
            let seconds = &progress.seconds;
            let exposed = seconds.communication / seconds.step_total();
            let speed = Some(progress.images_per_second).filter(|speed| *speed > 0.0);
            (speed, Some(exposed).filter(|exposed| exposed.is_finite()))
        }
        _ => (
            run.images_per_second(),
            run.of_last_epochs(EpochRecord::exposed_share),
        ),
    };
    [
        format!(
            "{} samples/s",
            or_dash(speed.map(|speed| decimal(speed, 1)))
        ),
        format!(
            "exposed communication {} %",
            or_dash(exposed.map(|exposed| decimal(100.0 * exposed, 1)))
        ),
        format!(
            "memory {}",
            or_dash(run.peak_memory_bytes().map(records::bytes))
        ),
    ]
}

/// Returns the newest scores.
fn newest(live: &Live) -> Vec<String> {
    let mut parts = Vec::new();
    if let Some(progress) = &live.progress {
        let loss = progress.loss.map(|loss| format!("loss {loss:.4}"));
        let accuracy = percent(progress.top1).map(|top1| format!("accuracy {top1:.1} %"));
        let rate = records::learning_rate(progress.learning_rate);
        let of_step = Vec::from_iter([loss, accuracy].into_iter().flatten()).join(" ");
        parts.push(format!(
            "step {}: {of_step} rate {rate}",
            grouped(progress.step)
        ));
    }
    let epochs = &live.run.epochs;
    let evaluated = epochs
        .iter()
        .rev()
        .find_map(|epoch| Some((epoch, epoch.evaluation()?)));
    if let Some((epoch, (split, scores))) = evaluated {
        let mut part = format!("epoch {}: {split} loss {:.4}", epoch.number(), scores.loss);
        if let Some(top1) = percent(scores.top1) {
            part.push_str(&format!(" accuracy {top1:.2} %"));
        }
        for (name, value) in &scores.metrics {
            part.push_str(&format!(" {name} {value:.4}"));
        }
        parts.push(part);
    }
    let accuracies = epochs
        .iter()
        .filter_map(|epoch| Some((epoch.evaluated_top1()?, epoch.number())));
    // The first of equals, as in the log.
    if let Some((top1, epoch)) = accuracies.rev().max_by(|a, b| a.0.total_cmp(&b.0)) {
        parts.push(format!("highest {:.2} % in epoch {epoch}", 100.0 * top1));
    }
    parts
}

fn progress_bar(live: &Live, area: Rect, buffer: &mut Buffer) {
    let epochs = live.epochs().map(|all| (live.run.epochs.len() as u64, all));
    let Some((done, all)) = live.num_steps().or(epochs) else {
        return;
    };
    let place = match &live.progress {
        None => format!("{} of {}", grouped(done), counted(all as usize, "epoch")),
        Some(RunProgress {
            epoch,
            epochs,
            step_in_epoch,
            steps_per_epoch,
            ..
        }) => {
            let steps = match steps_per_epoch {
                // Unknown in a custom loop.
                0 => String::new(),
                steps => format!(" of {}", grouped(*steps)),
            };
            format!(
                "epoch {} of {}, step {}{steps}",
                grouped(epoch.saturating_add(1).min(*epochs)),
                grouped(*epochs),
                grouped(*step_in_epoch),
            )
        }
    };
    let left = live
        .time_left()
        .map(|left| format!(", {} left", time(left)));
    let ratio = (done as f64 / all as f64).clamp(0.0, 1.0);
    let label = format!(
        "{:.0} % | {place}{}",
        100.0 * ratio,
        left.unwrap_or_default()
    );
    let style = Style::new().fg(Color::Blue);
    Gauge::default()
        .ratio(ratio)
        .label(label)
        .gauge_style(style)
        .render(area, buffer);
}

/// Draws the curves of a score.
fn chart(live: &Live, figure: &str, area: Rect, buffer: &mut Buffer) {
    let epochs = &live.run.epochs;
    let curves = curves(live, figure);
    let range = |of: fn(&(f64, f64)) -> f64| {
        let values = || curves.iter().flatten().map(of);
        (values().reduce(f64::min), values().reduce(f64::max))
    };
    let (least, most) = match range(|point| point.1) {
        (Some(least), Some(most)) if least < most => (least, most),
        (Some(value), _) => (value - 0.5, value + 0.5),
        _ => (0.0, 1.0),
    };
    let (first, last) = range(|point| point.0);
    let first = first.filter(|_| epochs.is_empty()).unwrap_or(1.0);
    let last = last.unwrap_or(first).max(first + 1.0);
    let has_val = epochs.iter().any(|epoch| epoch.val.is_some());
    let evaluated = if has_val { "• val " } else { "• test " };
    let looks = [
        ("⠒ train ", TRAIN, Marker::Braille),
        (evaluated, TEST, Marker::Dot),
    ];
    let word = if epochs.is_empty() { "step" } else { "epoch" };
    let name = if figure == "top1" {
        "accuracy, %"
    } else {
        figure
    };
    let mut title = vec![Span::from(format!(" {name} "))];
    let has_both = curves.iter().all(|points| !points.is_empty());
    let mut datasets = Vec::new();
    for ((name, colour, marker), points) in looks.into_iter().zip(&curves) {
        if has_both {
            title.push(Span::styled(name, colour));
        }
        let (marker, kind) = match points.len() {
            0 => continue,
            1 => (Marker::Dot, GraphType::Scatter),
            _ => (marker, GraphType::Line),
        };
        let dataset = Dataset::default().marker(marker).graph_type(kind);
        datasets.push(dataset.style(colour).data(points));
    }
    let digits = if most - least < 10.0 { 2 } else { 0 };
    let y_labels = [least, f64::midpoint(least, most), most].map(|value| decimal(value, digits));
    let x_labels = [
        format!("{word} {}", grouped(first as u64)),
        grouped(last as u64),
    ];
    Chart::new(datasets)
        .block(Block::bordered().title(Line::from(title)))
        .x_axis(Axis::default().bounds([first, last]).labels(x_labels))
        .y_axis(Axis::default().bounds([least, most]).labels(y_labels))
        .legend_position(None)
        .render(area, buffer);
}

/// Draws the speed of every rank in the last epoch without waiting, and the parts of its steps.
fn ranks_table(live: &Live, ranks: &[RankSeconds], area: Rect, buffer: &mut Buffer) {
    let word = if live.run.ranks() == Some(1) {
        "rank"
    } else {
        "ranks"
    };
    let (num_columns, unit) = match area.width < TABLE {
        true => (4, ""),
        false => (COLUMNS.len(), ", ms per step"),
    };
    let title = format!(" {word}, last epoch of this session{unit} ");
    let block = Block::bordered().title(title);
    if ranks.is_empty() {
        let text = Paragraph::new("known after the first epoch").dim();
        return text.block(block).render(area, buffer);
    }
    let batch = live
        .progress
        .as_ref()
        .map_or(0, |progress| progress.global_batch_size);
    let per_rank = batch as f64 / ranks.len() as f64;
    let row = |rank: &RankSeconds| {
        let own = rank.data + rank.forward + rank.backward + rank.optimizer + rank.other;
        let steps = rank.num_steps.max(1) as f64;
        let whole = (own + rank.communication).max(f64::MIN_POSITIVE);
        let phases = [
            rank.data,
            rank.forward,
            rank.backward,
            rank.communication,
            rank.optimizer,
        ];
        let phases = phases.map(|seconds| decimal(1e3 * seconds / steps, 1));
        let cells = [
            rank.rank.to_string(),
            rank.node.clone(),
            decimal(per_rank * steps / own.max(f64::MIN_POSITIVE), 1),
            format!("{} %", decimal(100.0 * rank.communication / whole, 1)),
        ];
        Row::new(cells.into_iter().chain(phases).take(num_columns))
    };
    let header = Row::new(COLUMNS[..num_columns].iter().map(|(name, _)| *name)).bold();
    let widths = COLUMNS[..num_columns]
        .iter()
        .map(|(_, width)| Constraint::Min(*width));
    let table = Table::new(ranks.iter().map(row), widths);
    Widget::render(table.header(header).block(block), area, buffer);
}

/// Draws the last lines that fit.
fn lines(title: &str, lines: &[String], style: Style, area: Rect, buffer: &mut Buffer) {
    let height = usize::from(area.height.saturating_sub(2));
    let shown = lines[lines.len().saturating_sub(height)..].iter();
    let shown: Vec<Line<'_>> = shown
        .map(|line| Line::from(line.as_str()).style(style))
        .collect();
    let block = Block::bordered().title(title);
    Paragraph::new(shown).block(block).render(area, buffer);
}

/// Formats a duration to the second, or to the minute from an hour on: `2h 3m`.
fn time(duration: Duration) -> String {
    let whole = match duration.as_secs() {
        seconds if seconds >= 3600 => seconds / 60 * 60,
        seconds => seconds,
    };
    humantime::format_duration(Duration::from_secs(whole)).to_string()
}

/// Names the key that ends the page, in its last row.
pub(super) fn key(area: Rect, buffer: &mut Buffer) {
    let [_, last] = Layout::vertical([Constraint::Fill(1), Constraint::Length(1)]).areas(area);
    Line::from(" q: quit ─")
        .right_aligned()
        .render(last, buffer);
}
