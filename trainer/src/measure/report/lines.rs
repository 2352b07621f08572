//! The lines of a run as text: fixed columns, every number with its unit.
//!
//! In: records. Out: text without line ends.
//! Invariant: the functions are pure and print nothing. Epochs and steps count from 1.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::measure::metrics::{ScoreSums, StepLine};
use records::{
    BenchResult, DeviceKernels, EpochRecord, Evaluation, EvaluationByClass, Seconds, SlowestRank,
    Summary, ThroughputStats, bytes, counted, decimal, grouped,
};

/// Largest width of a line, columns. Names of files and of classes may be longer.
pub(crate) const WIDTH: usize = 100;

/// Columns of most terminals, at which rows continue on the next line.
const NARROW: usize = 80;

/// Formats a row of a table: the name, and the cells on as many lines as they need.
pub(crate) fn row(name: &str, cells: &[String]) -> Vec<String> {
    let mut lines = vec![format!("{name:8} ")];
    for (index, cell) in cells.iter().enumerate() {
        let last = lines.len() - 1;
        if index > 0 && columns(&lines[last]) + columns(cell) + 3 > NARROW {
            lines.push(format!("{:8} {cell}", ""));
        } else {
            lines[last].push_str(if index > 0 { " | " } else { "" });
            lines[last].push_str(cell);
        }
    }
    lines
}

fn columns(text: &str) -> usize {
    text.chars().count()
}

/// Formats seconds as `31.2 s`, and an hour or more as `2 h 05 min`.
fn seconds(seconds: f64) -> String {
    if (seconds * 10.0).round() < 36_000.0 {
        return format!("{seconds:.1} s");
    }
    let minutes = (seconds / 60.0).round() as u64;
    format!("{} h {:02} min", minutes / 60, minutes % 60)
}

/// Formats the time left as the end of a line, with at most two units: `45 s`, `31 min`,
/// `2 h 05 min`.
pub(super) fn left(time: Option<Duration>) -> String {
    let Some(time) = time else {
        return String::new();
    };
    match time.as_secs() {
        seconds if seconds < 120 => format!(" | {seconds} s left"),
        seconds if seconds < 7200 => format!(" | {} min left", (seconds + 30) / 60),
        seconds => format!(" | {} h {:02} min left", seconds / 3600, seconds / 60 % 60),
    }
}

/// Formats a step: `epoch 4 step 1172/3900 | loss 1.2046 | acc 56.3 % | lr 0.0921 | 41.7 ms | 1,227
/// samples/s | 31 min left`. A verbose line ends with the phases. Others leave out the time of the
/// step, then the learning rate, if the line is too wide.
pub(super) fn step(step: &StepLine, is_verbose: bool) -> String {
    let running = running(&step.scores, " | ");
    let all = step.steps_per_epoch.to_string();
    let width = all.len();
    let number = step.step_in_epoch + 1;
    let place = format!(
        "epoch {} step {number:>width$}/{all} | {running}",
        step.epoch + 1
    );
    let rate = format!(" | lr {}", records::learning_rate(step.learning_rate));
    let duration = format!(" | {:.1} ms", step.duration.as_secs_f64() * 1e3);
    let speed = grouped(images_per_second(step));
    let speed = format!(" | {speed} samples/s{}", left(step.time_left));
    let line = format!("{place}{rate}{duration}{speed}");
    if is_verbose {
        return format!("{line} | {}", phases(&step.seconds, 1e3));
    }
    [line, format!("{place}{rate}{speed}")]
        .into_iter()
        .find(|line| columns(line) <= WIDTH)
        .unwrap_or(format!("{place}{speed}"))
}

/// Formats progress: `eval | batch 12/300 | 31 min left`.
pub(super) fn part_done(
    what: &str,
    unit: &str,
    [done, all]: [usize; 2],
    elapsed: Duration,
) -> String {
    let rest = all.saturating_sub(done) as f64 / done.max(1) as f64;
    let time = Duration::try_from_secs_f64(elapsed.as_secs_f64() * rest)
        .ok()
        .filter(|_| done > 0);
    format!("{what} | {unit} {done}/{all}{}", left(time))
}

pub(super) fn bar_message(step: &StepLine) -> String {
    let running = running(&step.scores, " ");
    format!(
        "{running} {:.1} ms {} samples/s{}",
        step.duration.as_secs_f64() * 1e3,
        grouped(images_per_second(step)),
        left(step.time_left),
    )
}

/// Formats the loss and, if the task has it, the accuracy in per cent. Returns dashes before the
/// first result.
fn running(scores: &ScoreSums, between: &str) -> String {
    if scores.num_samples == 0 {
        return "loss -".to_owned();
    }
    let loss = format!("loss {:.4}", scores.loss_mean());
    match scores.top1() {
        Some(top1) => format!("{loss}{between}acc {:4.1} %", 100.0 * top1),
        None => loss,
    }
}

fn images_per_second(step: &StepLine) -> u64 {
    (step.global_num_samples as f64 / step.duration.as_secs_f64()).round() as u64
}

/// Formats the five phases of a step, in seconds times `scale`.
fn phases(times: &Seconds, scale: f64) -> String {
    format!(
        "data {:4.1} fwd {:5.1} bwd {:5.1} comm {:4.1} opt {:4.1}",
        times.data * scale,
        times.forward * scale,
        times.backward * scale,
        times.communication * scale,
        times.optimizer * scale,
    )
}

fn metrics(metrics: &BTreeMap<String, f64>) -> impl Iterator<Item = String> {
    let metrics = metrics.iter();
    metrics.map(|(name, value)| format!("{name} {value:.4}"))
}

/// Formats an epoch: a line whose `*` marks the best evaluation so far, and a row with what does
/// not fit there, with what a flag measures, and with the phases if `is_verbose`.
pub(super) fn epoch(record: &EpochRecord, is_best: bool, is_verbose: bool) -> Vec<String> {
    let scores = |loss: f64, top1: Option<f64>| match top1 {
        Some(top1) => format!("{loss:.4} {:.2} %", 100.0 * top1),
        None => format!("loss {loss:.4}"),
    };
    let train = record
        .train_loss
        .map_or("all steps skipped".to_owned(), |loss| {
            scores(loss, record.train_top1)
        });
    let speed = record.speed().map(|speed| grouped(speed.round() as u64));
    let speed = speed.as_deref().unwrap_or("-");
    let time = seconds(record.seconds_total);
    let mut cells = Vec::new();
    let mut evaluated = "not evaluated".to_owned();
    if let Some((split, of)) = record.evaluation() {
        cells.extend(metrics(&of.metrics));
        evaluated = format!("{split} {}", scores(of.loss, of.top1));
    }
    let line = |further: &str| {
        let number = record.number();
        let mark = if is_best { " *" } else { "" };
        format!(
            "epoch {number} | train {train} | {evaluated}{further}{mark} | {speed} samples/s | {time}"
        )
    };
    let mut first = line(
        &cells
            .iter()
            .map(|cell| format!(" {cell}"))
            .collect::<String>(),
    );
    if columns(&first) <= WIDTH {
        cells.clear();
    } else {
        first = line("");
    }
    if is_verbose {
        let train = metrics(&record.train_metrics);
        cells.extend(train.map(|metric| format!("train {metric}")));
    }
    if record.compression_error > 0.0 {
        let error = 100.0 * record.compression_error;
        cells.push(format!("compression error {error:.2} %"));
    }
    if let Some(factor) = record.loss_scale {
        let skipped = counted(record.overflowed_steps as usize, "step");
        cells.push(format!("loss scale {factor}, {skipped} skipped"));
    }
    if let Some(joules) = record.joules_per_image {
        cells.push(format!("{joules:.3} J a sample"));
    }
    if let Some(noise) = &record.gradient_noise {
        let size = noise.batch_size.map(|size| grouped(size.round() as u64));
        let size = size.as_deref().unwrap_or("unknown");
        cells.push(format!("noise scale {size} samples"));
    }
    if is_verbose {
        cells.push(phases(&record.seconds, 1.0));
        let Seconds {
            evaluation,
            checkpoint,
            ..
        } = record.seconds;
        cells.push(format!("eval {evaluation:.1} save {checkpoint:.1} s"));
        cells.push(format!("peak {}", bytes(record.peak_memory_bytes)));
        if record.num_ranks > 1 {
            let exposed = 100.0 * record.exposed_communication_share;
            let sent = bytes(record.bytes_sent_per_step);
            cells.push(format!("exposed comm {exposed:.1} %"));
            cells.push(format!("sent {sent} a step"));
        }
    }
    let mut lines = vec![first];
    if !cells.is_empty() {
        lines.extend(row("", &cells));
    }
    lines
}

/// Returns the cells of an evaluation: loss, accuracies with the number of samples, metrics.
fn evaluation_cells(of: &Evaluation) -> Vec<String> {
    let mut cells = vec![format!("loss {:.4}", of.loss)];
    for (name, share, correct) in [
        ("top-1", of.top1, of.top1_correct),
        ("top-5", of.top5, of.top5_correct),
    ] {
        let Some(share) = share else { continue };
        // It says nothing more, and of up to five classes it is always so.
        if name == "top-5" && share == 1.0 {
            continue;
        }
        let mut cell = format!("{name} {:.2} %", 100.0 * share);
        if let Some(correct) = correct {
            let all = grouped(of.num_samples);
            cell.push_str(&format!(" ({} of {all})", grouped(correct)));
        }
        cells.push(cell);
    }
    cells.extend(metrics(&of.metrics));
    cells
}

pub(super) fn evaluation(name: &str, of: &Evaluation) -> Vec<String> {
    let mut cells = evaluation_cells(of);
    if of.top1.is_none() {
        cells.push(counted(of.num_samples as usize, "sample"));
    }
    let mut lines = row("eval", &[name.to_owned()]);
    lines.extend(row("", &cells));
    lines
}

/// Maximum number of rows in a table of classes, and of classes in a printed confusion matrix.
const MOST_CLASSES: usize = 16;

/// Returns a table of the classes, lowest accuracy first; nothing without classes.
///
/// Few classes also get a confusion matrix. Many classes are reduced to the worst classes and the
/// most frequent confusions.
pub(super) fn classes(by_class: &EvaluationByClass) -> Vec<String> {
    if by_class.classes.is_empty() {
        return Vec::new();
    }
    let worst = by_class.worst_first();
    let shown = &worst[..worst.len().min(MOST_CLASSES)];
    let names: Vec<&str> = shown.iter().map(|class| class.name.as_str()).collect();
    let width = width_of(&names);
    let mut lines = vec![match worst.len() {
        0..=MOST_CLASSES => "classes, lowest accuracy first".to_owned(),
        all => format!(
            "the {MOST_CLASSES} of {} classes with the lowest accuracy",
            grouped(all as u64)
        ),
    }];
    for class in shown {
        let confused: Vec<String> = class
            .confused_with
            .iter()
            .map(|confusion| format!("{} {}", confusion.name, grouped(confusion.count)))
            .collect();
        let mut line = format!(
            "  {:width$} {:6.2} % ({} of {})",
            class.name,
            100.0 * class.accuracy().unwrap_or(f64::NAN),
            grouped(class.correct),
            grouped(class.num_samples)
        );
        if !confused.is_empty() {
            line.push_str(&format!(" | taken for {}", confused.join(", ")));
        }
        lines.push(line);
    }
    if worst.len() > MOST_CLASSES {
        lines.push("the most frequent confusions".to_owned());
        for (class, answer, count) in by_class.confusions().iter().take(MOST_CLASSES) {
            lines.push(format!("  {class} taken for {answer}: {}", grouped(*count)));
        }
    } else if let Some(matrix) = &by_class.confusion_matrix {
        lines.push(
            "confusion matrix: a row for each class, a column for each answer, by label".to_owned(),
        );
        let most = matrix.iter().flatten().max().copied().unwrap_or(0);
        let label_digits = (matrix.len().max(1) - 1).to_string().len();
        let digits = most.to_string().len().max(label_digits);
        let row = |numbers: &mut dyn Iterator<Item = u64>| {
            let cells: Vec<String> = numbers.map(|number| format!("{number:digits$}")).collect();
            cells.join(" ")
        };
        let labels = row(&mut (0..matrix.len() as u64));
        lines.push(format!("  {:1$} {labels}", "", width + 1 + label_digits));
        for (label, (counts, class)) in matrix.iter().zip(&by_class.classes).enumerate() {
            let counts = row(&mut counts.iter().copied());
            lines.push(format!(
                "  {:width$} {label:label_digits$} {counts}",
                class.name
            ));
        }
    }
    // Names of classes come from files.
    lines.iter().map(|line| printable(line)).collect()
}

/// Escapes the control characters of a text from a file, so that a terminal does not obey them.
pub fn printable(text: &str) -> String {
    let mut printable = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter.is_control() {
            true => printable.extend(letter.escape_default()),
            false => printable.push(letter),
        }
    }
    printable
}

fn width_of(names: &[&str]) -> usize {
    let widths = names.iter().map(|name| name.chars().count());
    widths.max().unwrap_or(0)
}

/// Formats the end of a run as rows: what was trained, the best and the last or final evaluation.
pub(super) fn finish(summary: &Summary) -> Vec<String> {
    let number = |count: u64, noun| counted(count as usize, noun);
    let time = seconds(summary.seconds_total);
    let mut cells = vec![
        number(summary.epochs, "epoch"),
        number(summary.steps, "step"),
        number(summary.images, "sample"),
    ];
    // The time is that of this session.
    cells.push(match summary.rank_seconds.first() {
        Some(root) if root.num_steps < summary.steps => {
            format!("this session {} in {time}", number(root.num_steps, "step"))
        }
        _ => time,
    });
    if summary.skipped_steps > 0 {
        cells.push(format!("{} skipped", number(summary.skipped_steps, "step")));
    }
    if let Some(evaluations) = summary.patience_ended_after {
        let evaluations = number(evaluations, "evaluation");
        cells.push(format!("patience ended after {evaluations}"));
    }
    let mut lines = row(
        if summary.stopped_early {
            "stopped"
        } else {
            "done"
        },
        &cells,
    );
    if let Some(best) = &summary.best {
        let value = match best.monitor.ends_with("-top1") {
            true => format!("{:.2} %", 100.0 * best.value),
            false => format!("{:.4}", best.value),
        };
        let best = [
            format!("{} {value}", best.monitor),
            format!("epoch {}", best.epoch + 1),
        ];
        lines.extend(row("best", &best));
    }
    let last = summary.final_epoch.as_ref();
    let last = last.and_then(|last| Some((last.evaluation()?, last.number())));
    let tested = summary.test.as_ref();
    let tested = tested.map(|test| (("test", &test.scores), test.epoch + 1));
    if let Some(((split, scores), epoch)) = tested.or(last) {
        let mut cells = evaluation_cells(scores);
        let is_best = summary.best.as_ref().map(|best| best.epoch + 1) == Some(epoch);
        let which = match (is_best, epoch == summary.epochs) {
            (true, true) => " (last and best)",
            (true, false) => " (best)",
            (false, true) => " (last)",
            (false, false) => "",
        };
        cells.push(format!("epoch {epoch}{which}"));
        lines.extend(row(split, &cells));
    }
    lines
}

pub(super) fn speed(stats: &ThroughputStats, peak_memory_bytes: u64) -> Vec<String> {
    let mean = decimal(stats.mean, 1);
    let sigma = decimal(stats.sigma, 1);
    let steps = counted(stats.num_steps as usize, "step");
    let cells = [
        format!("{mean} ± {sigma} samples/s ({steps})"),
        format!("median step {:.1} ms", stats.step_milliseconds_median),
        format!("peak {}", bytes(peak_memory_bytes)),
    ];
    row("speed", &cells)
}

/// Returns a row for each kind of kernel, the largest first, and rows for the rest of the step.
///
/// A row has the kernel's share of the step, the time of the same calls outside a step, and the
/// bandwidth over activations.
pub fn step_parts(seconds: f64, result: &BenchResult) -> Vec<String> {
    let per_step = |seconds: f64| seconds / result.steps as f64;
    let row = |name: &str, part: f64| {
        format!(
            "  {name:33} {:9.2} ms a step {:5.1} %",
            1e3 * per_step(part),
            100.0 * part / seconds
        )
    };
    let mut kernels: Vec<(&str, f64)> = result
        .kernel_seconds
        .iter()
        .map(|(name, part)| (name.as_str(), *part))
        .collect();
    kernels.sort_by(|a, b| b.1.total_cmp(&a.1));
    let mut in_step = 0.0;
    let mut alone_in_all = 0.0;
    let mut rows: Vec<String> = Vec::new();
    for &(name, part) in &kernels {
        let mut line = row(name, part);
        if let Some(alone) = result.kernels_alone.get(name) {
            in_step += per_step(part);
            alone_in_all += alone.seconds_per_step;
            line.push_str(&format!(" | alone {:8.2} ms", 1e3 * alone.seconds_per_step));
            let speed = alone.bytes_per_step as f64 / per_step(part) / 1e9;
            if speed > 0.0 {
                line.push_str(&format!(", {speed:4.1} GB/s"));
            }
        }
        rows.push(line);
    }
    rows.push(row(
        "outside Lockstep's kernels",
        seconds - kernels.iter().map(|(_, part)| part).sum::<f64>(),
    ));
    if alone_in_all > 0.0 {
        rows.push(format!(
            "  {:33} {:9.2} x their isolated time; {:.1} passes over each layer's output",
            "kernels in the step",
            in_step / alone_in_all,
            result.activation_walks
        ));
    }
    rows.push(format!(
        "  {:33} {:9.1} a step",
        "fresh pages", result.minor_faults_per_step
    ));
    if let Some(joules) = result.joules_per_image {
        rows.push(format!("  {:33} {joules:9.3} J an image", "energy"));
    }
    rows
}

/// Number of kernels that are listed by name. The other kernels are small.
const NUM_NAMED: usize = 12;

/// Returns the kernels of a GPU, the largest first.
pub fn device_kernels(kernels: &DeviceKernels) -> Vec<String> {
    let row = |name: &str, seconds: f64, launches: &str| {
        format!("  {name:30.30} {:9.3} ms a step {launches}", 1e3 * seconds)
    };
    let launches = |number: f64| format!("in {number:.1} launches");
    let mut rows = vec![
        row(
            &format!("kernels of {} further steps", kernels.steps),
            kernels.seconds_per_step,
            &launches(kernels.launches_per_step),
        ),
        row("between them", kernels.idle_seconds_per_step, ""),
    ];
    for kernel in kernels.kernels.iter().take(NUM_NAMED) {
        rows.push(row(
            &kernel.name,
            kernel.seconds_per_step,
            &launches(kernel.launches_per_step),
        ));
    }
    rows
}

pub(super) fn slowest(slowest: &SlowestRank) -> String {
    format!(
        "slowest  rank {} on {} | {:.1} ms a step without communication, mean {:.1} ms",
        slowest.rank,
        slowest.node,
        slowest.own_milliseconds_per_step,
        slowest.mean_milliseconds_per_step
    )
}

/// Formats the histogram of updates by the staleness of their parameters.
pub(super) fn staleness(histogram: &[u64]) -> String {
    let total: u64 = histogram.iter().sum();
    let sum: u64 = histogram
        .iter()
        .zip(0..)
        .map(|(count, staleness)| count * staleness)
        .sum();
    let cells: Vec<String> = histogram
        .iter()
        .enumerate()
        .map(|(staleness, count)| format!("{staleness}: {count}"))
        .collect();
    let mean = sum as f64 / total.max(1) as f64;
    format!(
        "staleness | {} | mean {mean:.2} updates, n = {}",
        cells.join(" | "),
        grouped(total)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_left_has_at_most_two_units() {
        let shown = [0, 119, 120, 1_845, 7_199, 7_500, 180_000]
            .map(|seconds| left(Some(Duration::from_secs(seconds))));
        let expected = [
            "0 s",
            "119 s",
            "2 min",
            "31 min",
            "120 min",
            "2 h 05 min",
            "50 h 00 min",
        ];
        assert_eq!(shown, expected.map(|time| format!(" | {time} left")));
        assert_eq!(left(None), "");
    }

    #[test]
    fn long_times_are_printed_in_hours() {
        assert_eq!(
            [31.24, 3_599.94, 3_599.96, 7_500.0].map(seconds),
            ["31.2 s", "3599.9 s", "1 h 00 min", "2 h 05 min"]
        );
    }
}
