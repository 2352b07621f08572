//! The page of a run that is watched, out of widgets of ratatui.
//!
//! In: [`Live`], an area of a terminal or of text. Out: its cells. Invariant: pure; without colours it says the same.

use std::time::Duration;

use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{
    Axis, Block, Cell, Chart, Dataset, Gauge, GraphType, Paragraph, Row, Table, Widget,
};
use records::{EpochRecord, RankSeconds, Seconds};

use super::state::{Live, Stage};

const TRAIN: Color = Color::Yellow;
const TEST: Color = Color::Cyan;

/// Rows of alerts, and of the log, with their frames.
const LINES: [u16; 2] = [3, 6];

/// Rows of the bar, and the least of the charts.
const FIXED: [u16; 2] = [1, 5];

/// Rows of a terminal that is not small.
const TALL: u16 = 30;

/// Columns of the table of ranks in which all of it can be read.
const WIDE: u16 = 55;

/// Draws the page.
pub(super) fn render(live: &Live, area: Rect, buffer: &mut Buffer) {
    let ranks = live
        .progress
        .as_ref()
        .map(|progress| progress.ranks.as_slice());
    let ranks = ranks
        .filter(|ranks| ranks.iter().any(|rank| rank.num_steps > 0))
        .unwrap_or_default();
    let head_lines = head_lines(live, area.width);
    let alert_lines: Vec<String> = live
        .alerts
        .iter()
        .flat_map(|alert| wrapped(alert, " ", area.width.saturating_sub(2)))
        .collect();
    let rows = |number: usize| u16::try_from(number).unwrap_or(u16::MAX);
    let ranks_height =
        (rows(ranks.len().clamp(1, 8)) + 3).max(if area.height < TALL { 5 } else { 7 });
    let fixed = rows(head_lines.len()) + ranks_height + FIXED.iter().sum::<u16>();
    let [least, most] = LINES;
    let left = area.height.saturating_sub(fixed + least).max(least);
    let alerts_height = (rows(alert_lines.len()).saturating_add(2)).clamp(least, most.min(left));
    let log_height = ((left + least - alerts_height) / 2).clamp(least, most);
    let [head, bar, charts, middle, alerts, log] = Layout::vertical([
        Constraint::Length(rows(head_lines.len())),
        Constraint::Length(FIXED[0]),
        Constraint::Min(FIXED[1]),
        Constraint::Length(ranks_height),
        Constraint::Length(alerts_height),
        Constraint::Length(log_height),
    ])
    .areas(area);
    Paragraph::new(head_lines).render(head, buffer);
    progress_bar(live, bar, buffer);
    let [loss, accuracy] =
        Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).areas(charts);
    chart(
        live,
        "loss",
        [
            |epoch| epoch.train_loss,
            |epoch| epoch.evaluation().map(|(_, scores)| scores.loss),
        ],
        loss,
        buffer,
    );
    chart(
        live,
        "accuracy, %",
        [
            |epoch| per_cent(epoch.train_top1),
            |epoch| per_cent(epoch.evaluated_top1()),
        ],
        accuracy,
        buffer,
    );
    let [speed, table] =
        Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).areas(middle);
    chart(
        live,
        "images/s by epoch",
        [EpochRecord::speed, |_| None],
        speed,
        buffer,
    );
    ranks_table(live, ranks, table, buffer);
    lines(
        " warnings and errors ",
        &alert_lines,
        Style::new().fg(Color::Red),
        alerts,
        buffer,
    );
    lines(" log ", &live.log, Style::new(), log, buffer);
}

fn per_cent(share: Option<f64>) -> Option<f64> {
    share.map(|share| 100.0 * share)
}

fn head_lines(live: &Live, width: u16) -> Vec<Line<'_>> {
    let run = &live.run;
    let setting = |key| run.setting(key).unwrap_or("?");
    let launch = run.manifest().map(|manifest| &manifest.launch);
    let ranks = launch.map_or(String::new(), |launch| {
        format!(
            "{} ranks of {} threads on {}",
            launch.ranks,
            launch.threads_per_rank,
            launch.nodes.join(", ")
        )
    });
    let directory = Span::from(run.directory.display().to_string()).bold();
    let style = stage_style(&live.stage);
    let title = Line::from(vec![
        directory.clone(),
        Span::from("  "),
        Span::styled(stage(live), style),
    ]);
    let mut lines = if title.width() <= usize::from(width) {
        vec![title]
    } else {
        let stage = wrapped(&stage(live), " ", width)
            .into_iter()
            .map(|row| Line::styled(row, style));
        std::iter::once(Line::from(directory))
            .chain(stage)
            .collect()
    };
    let job = match live.stage {
        Stage::NotBegun => String::new(),
        _ => format!(
            "{} on {} | {ranks}",
            setting("model.model"),
            setting("data.dataset")
        ),
    };
    let below = [job, speed(live), newest(live)];
    lines.extend(
        below
            .iter()
            .flat_map(|text| wrapped(text, " | ", width))
            .map(Line::from),
    );
    lines
}

/// A text in rows that end where something stands `between` its parts; a part that is longer than a row is cut.
fn wrapped(text: &str, between: &str, width: u16) -> Vec<String> {
    let mut rows: Vec<String> = Vec::new();
    for part in text.split(between) {
        match rows
            .last_mut()
            .filter(|row| Line::from(format!("{row}{between}{part}")).width() <= usize::from(width))
        {
            Some(row) => row.extend([between, part]),
            None => rows.push(part.to_owned()),
        }
    }
    rows
}

fn stage(live: &Live) -> String {
    let phase = live
        .progress
        .as_ref()
        .map_or("starting", |progress| &progress.phase);
    match &live.stage {
        Stage::NotBegun => {
            "not begun: no file of a run is here yet; does its job wait (`trainer slurm status`)?".to_owned()
        }
        Stage::Running(age) => format!("running: {phase} (written {} ago)", time(*age)),
        Stage::Silent(age) => format!("silent for {} in {phase}: long at it, or dead", time(*age)),
        Stage::Dead => format!("dead: its process is gone, in {phase}; `trainer train --resume` goes on"),
        Stage::Stopped if live.run.summary.as_ref().is_some_and(|summary| summary.steps == 0) => {
            "stopped before its first step: there is nothing to go on from; `trainer train --resume` begins it anew"
                .to_owned()
        }
        Stage::Stopped => "stopped with a checkpoint; `trainer train --resume` goes on".to_owned(),
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

/// The speed now: of the last seconds while it runs, else of the session.
fn speed(live: &Live) -> String {
    let run = &live.run;
    let exposed = |seconds: &Seconds| {
        Some(100.0 * seconds.communication / seconds.step_total()).filter(|share| share.is_finite())
    };
    let exposed_in_epoch = run.of_last_epochs(EpochRecord::exposed_share);
    let (speed, exposed) = match (&live.stage, &live.progress) {
        (Stage::Running(_), Some(progress)) => (
            Some(progress.images_per_second).filter(|speed| *speed > 0.0),
            exposed(&progress.seconds),
        ),
        _ => (
            run.images_per_second(),
            exposed_in_epoch.map(|share| 100.0 * share),
        ),
    };
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    format!(
        "{} images/s | exposed communication {} % | memory {}",
        or_dash(speed.map(|speed| format!("{speed:.1}"))),
        or_dash(exposed.map(|exposed| format!("{exposed:.1}"))),
        or_dash(run.peak_memory_bytes().map(records::bytes)),
    )
}

/// The newest scores.
fn newest(live: &Live) -> String {
    let mut parts = Vec::new();
    if let Some(progress) = &live.progress {
        let [loss, top1] = [progress.loss, progress.top1.map(|share| 100.0 * share)];
        let of_step = loss
            .zip(top1)
            .map(|(loss, top1)| format!("loss {loss:.4} accuracy {top1:.1} %"));
        let rate = records::learning_rate(progress.learning_rate);
        parts.push(format!(
            "step {}: {} rate {rate}",
            progress.step,
            of_step.unwrap_or_default()
        ));
    }
    let evaluated = |epoch: &'_ EpochRecord| {
        epoch
            .evaluation()
            .map(|(split, scores)| (epoch.number(), split, scores.clone()))
    };
    if let Some((epoch, split, scores)) = live.run.epochs.iter().rev().find_map(evaluated) {
        let (loss, top1) = (scores.loss, 100.0 * scores.top1);
        parts.push(format!(
            "epoch {epoch}: {split} loss {loss:.4} accuracy {top1:.2} %"
        ));
    }
    let best = live
        .run
        .epochs
        .iter()
        .filter_map(|epoch| Some((epoch.evaluated_top1()?, epoch.number())));
    // Of equals the first, as in the log.
    if let Some((top1, epoch)) = best.rev().max_by(|a, b| a.0.total_cmp(&b.0)) {
        parts.push(format!("highest {:.2} % in epoch {epoch}", 100.0 * top1));
    }
    parts.join(" | ")
}

fn progress_bar(live: &Live, area: Rect, buffer: &mut Buffer) {
    let whole = live
        .epochs()
        .map(|epochs| (live.run.epochs.len() as u64, epochs));
    let Some((done, all)) = live.steps().or(whole) else {
        return;
    };
    let place = live.progress.as_ref().map_or_else(
        || format!("{done} of {all} epochs"),
        |progress| {
            format!(
                "epoch {} of {}, step {} of {}",
                progress.epoch.saturating_add(1),
                progress.epochs,
                progress.step_in_epoch,
                progress.steps_per_epoch
            )
        },
    );
    let left = live
        .time_left()
        .map_or(String::new(), |left| format!(", {} left", time(left)));
    let ratio = (done as f64 / all as f64).clamp(0.0, 1.0);
    let label = format!("{:.0} % | {place}{left}", 100.0 * ratio);
    Gauge::default()
        .ratio(ratio)
        .label(label)
        .gauge_style(Style::new().fg(Color::Blue))
        .render(area, buffer);
}

/// A curve or two by epoch.
fn chart(
    live: &Live,
    title: &str,
    values: [fn(&EpochRecord) -> Option<f64>; 2],
    area: Rect,
    buffer: &mut Buffer,
) {
    let epochs = &live.run.epochs;
    let points = |value: fn(&EpochRecord) -> Option<f64>| -> Vec<(f64, f64)> {
        let point = |epoch: &EpochRecord| {
            Some((
                epoch.number() as f64,
                value(epoch).filter(|value| value.is_finite())?,
            ))
        };
        epochs.iter().filter_map(point).collect()
    };
    let curves = values.map(points);
    let all = || curves.iter().flatten().map(|point| point.1);
    let (least, most) = (
        all().fold(f64::INFINITY, f64::min),
        all().fold(f64::NEG_INFINITY, f64::max),
    );
    let (least, most) = match () {
        () if least > most => (0.0, 1.0),
        () if least == most => (least - 0.5, most + 0.5),
        () => (least, most),
    };
    let last = epochs.last().map_or(2, |epoch| epoch.number().max(2)) as f64;
    let evaluated = if epochs.iter().any(|epoch| epoch.val.is_some()) {
        "• val "
    } else {
        "• test "
    };
    let shown = [
        ("⠒ train ", TRAIN, Marker::Braille),
        (evaluated, TEST, Marker::Dot),
    ]
    .into_iter()
    .zip(&curves);
    let shown: Vec<_> = shown.filter(|(_, points)| !points.is_empty()).collect();
    let mut title = vec![Span::from(format!(" {title} "))];
    if shown.len() > 1 {
        title.extend(
            shown
                .iter()
                .map(|((name, colour, _), _)| Span::styled(*name, *colour)),
        );
    }
    let datasets = shown.iter().map(|((_, colour, marker), points)| {
        let (marker, kind) = if points.len() > 1 {
            (*marker, GraphType::Line)
        } else {
            (Marker::Dot, GraphType::Scatter)
        };
        Dataset::default()
            .marker(marker)
            .graph_type(kind)
            .style(Style::new().fg(*colour))
            .data(points)
    });
    let digits = if most - least < 10.0 { 2 } else { 0 };
    let y_labels =
        [least, f64::midpoint(least, most), most].map(|value| format!("{value:.digits$}"));
    Chart::new(datasets.collect())
        .block(Block::bordered().title(Line::from(title)))
        .x_axis(
            Axis::default()
                .bounds([1.0, last])
                .labels(["epoch 1".to_owned(), format!("{last}")]),
        )
        .y_axis(Axis::default().bounds([least, most]).labels(y_labels))
        .legend_position(None)
        .render(area, buffer);
}

/// What every rank did in the last epoch: how fast it is when it does not wait, and where a step's time goes.
fn ranks_table(live: &Live, ranks: &[RankSeconds], area: Rect, buffer: &mut Buffer) {
    let block = Block::bordered().title(" ranks, last epoch of this session ");
    let num_images = live
        .progress
        .as_ref()
        .map_or(0, |progress| progress.global_batch_size);
    if ranks.is_empty() {
        return Paragraph::new("known after the first epoch")
            .dim()
            .block(block)
            .render(area, buffer);
    }
    let per_rank = num_images as f64 / ranks.len() as f64;
    let num_columns = if area.width < WIDE { 4 } else { 8 };
    let row = |rank: &RankSeconds| {
        let own = rank.data + rank.forward + rank.backward + rank.optimizer + rank.other;
        let [steps, whole] = [
            rank.num_steps.max(1) as f64,
            (own + rank.communication).max(f64::MIN_POSITIVE),
        ];
        let milliseconds = |seconds: f64| format!("{:.1}", 1e3 * seconds / steps);
        let cells = vec![
            Cell::from(rank.rank.to_string()),
            Cell::from(rank.node.clone()),
            Cell::from(format!(
                "{:.1}",
                per_rank * steps / own.max(f64::MIN_POSITIVE)
            )),
            Cell::from(format!("{:.1} %", 100.0 * rank.communication / whole)),
            Cell::from(milliseconds(rank.data)),
            Cell::from(milliseconds(rank.forward)),
            Cell::from(milliseconds(rank.backward)),
            Cell::from(milliseconds(rank.optimizer)),
        ];
        Row::new(cells.into_iter().take(num_columns))
    };
    let columns = [
        "rank", "node", "images/s", "waits", "data ms", "fwd", "bwd", "opt",
    ];
    let widths = [4, 9, 8, 7, 7, 6, 6, 5].map(Constraint::Min);
    let header = Row::new(columns[..num_columns].to_vec()).bold();
    let table = Table::new(ranks.iter().map(row), &widths[..num_columns])
        .header(header)
        .block(block);
    Widget::render(table, area, buffer);
}

/// The last of these lines.
fn lines(title: &str, lines: &[String], style: Style, area: Rect, buffer: &mut Buffer) {
    let first = lines
        .len()
        .saturating_sub(usize::from(area.height.saturating_sub(2)));
    let shown: Vec<Line<'_>> = lines[first..]
        .iter()
        .map(|line| Line::from(line.as_str()).style(style))
        .collect();
    Paragraph::new(shown)
        .block(Block::bordered().title(title))
        .render(area, buffer);
}

/// Seconds at most: `2h 3m`.
fn time(duration: Duration) -> String {
    let whole = match duration.as_secs() {
        seconds if seconds >= 3600 => seconds / 60 * 60,
        seconds => seconds,
    };
    humantime::format_duration(Duration::from_secs(whole)).to_string()
}
