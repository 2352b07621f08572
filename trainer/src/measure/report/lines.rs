//! The lines of a run as text: fixed columns, every number with its unit.
//!
//! In: records. Out: text without line ends.
//! Invariant: the functions are pure and print nothing. Epochs and steps count from 1.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::config::TrainConfig;
use crate::measure::metrics::{ScoreSums, StepLine};
use records::{
    BenchResult, DeviceKernels, EpochRecord, Evaluation, EvaluationByClass, Seconds, SlowestRank,
    Summary, ThroughputStats, bytes, decimal, grouped,
};

/// Width of the configuration table, columns.
const TABLE_WIDTH: usize = 110;

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

/// Formats a step: `epoch 4 step 1172/3900 | loss 1.2046 | acc 56.3 % | lr 0.0921 | 41.7 ms (data
/// 0.4 …) | 12,270 samples/s | 31 min left`.
pub(super) fn step(step: &StepLine) -> String {
    let running = running(&step.scores, " | ");
    let all = step.steps_per_epoch.to_string();
    let width = all.len();
    format!(
        "epoch {} step {:>width$}/{all} | {running} | lr {} | {:6.1} ms ({}) | {:>7} samples/s{}",
        step.epoch + 1,
        step.step_in_epoch + 1,
        records::learning_rate(step.learning_rate),
        step.duration.as_secs_f64() * 1e3,
        phases(&step.seconds, 1e3),
        grouped(images_per_second(step)),
        left(step.time_left),
    )
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
        return "loss      -".to_owned();
    }
    let loss = format!("loss {:6.4}", scores.loss_mean());
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

pub(super) fn metrics(metrics: &BTreeMap<String, f64>) -> String {
    metrics
        .iter()
        .map(|(name, value)| format!(" {name} {value:.4}"))
        .collect()
}

pub(super) fn epoch(record: &EpochRecord) -> String {
    let evaluated = match record.evaluation() {
        Some((split, of)) => format!(
            "{split} {}{}",
            scores(of.loss, of.top1.zip(of.top5)),
            metrics(&of.metrics)
        ),
        None => "not evaluated".to_owned(),
    };
    let train = match record.train_loss {
        Some(loss) => format!(
            "{}{}",
            scores(loss, record.train_top1.zip(record.train_top5)),
            metrics(&record.train_metrics)
        ),
        None => "all steps skipped".to_owned(),
    };
    let mut line = format!(
        "epoch {} done | train {train} | {evaluated} | {:>7} samples/s | {:>7} ({} eval {:4.1} save {:4.1}) | peak {}",
        record.number(),
        record
            .speed()
            .map_or("-".to_owned(), |speed| grouped(speed.round() as u64)),
        seconds(record.seconds_total),
        phases(&record.seconds, 1.0),
        record.seconds.evaluation,
        record.seconds.checkpoint,
        bytes(record.peak_memory_bytes),
    );
    if record.num_ranks > 1 {
        line.push_str(&format!(
            " | exposed comm {:4.1} % | sent {} a step",
            100.0 * record.exposed_communication_share,
            bytes(record.bytes_sent_per_step)
        ));
    }
    if record.compression_error > 0.0 {
        line.push_str(&format!(
            " | compression error {:.2} %",
            100.0 * record.compression_error
        ));
    }
    if let Some(factor) = record.loss_scale {
        line.push_str(&format!(
            " | loss scale {factor}, {} steps skipped",
            grouped(record.overflowed_steps)
        ));
    }
    if let Some(joules) = record.joules_per_image {
        line.push_str(&format!(" | {joules:.3} J a sample"));
    }
    if let Some(noise) = &record.gradient_noise {
        let size = noise
            .batch_size
            .map_or("unknown".to_owned(), |size| grouped(size.round() as u64));
        line.push_str(&format!(" | noise scale {size} samples"));
    }
    line
}

fn scores(loss_mean: f64, accuracies: Option<(f64, f64)>) -> String {
    let loss = format!("loss {loss_mean:6.4}");
    let Some((top1, top5)) = accuracies else {
        return loss;
    };
    format!(
        "{loss} top-1 {:5.2} % top-5 {:5.2} %",
        100.0 * top1,
        100.0 * top5
    )
}

pub(super) fn evaluation(name: &str, of: &Evaluation) -> String {
    let num_samples = grouped(of.num_samples);
    let counts = match (of.top1_correct, of.top5_correct) {
        (Some(top1), Some(top5)) => format!(
            "{} of {num_samples} right, {} among five",
            grouped(top1),
            grouped(top5)
        ),
        _ => format!("{num_samples} samples"),
    };
    format!(
        "{name} | {} | {counts}{}",
        scores(of.loss, of.top1.zip(of.top5)),
        metrics(&of.metrics),
    )
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
            "confusion matrix: a row for each class, a column for each answer, in label order"
                .to_owned(),
        );
        let most = matrix.iter().flatten().max().copied().unwrap_or(0);
        let digits = most.to_string().len();
        for (row, class) in matrix.iter().zip(&by_class.classes) {
            let counts: Vec<String> = row.iter().map(|count| format!("{count:digits$}")).collect();
            lines.push(format!("  {:width$} {}", class.name, counts.join(" ")));
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

pub(super) fn finish(summary: &Summary) -> String {
    let mut line = format!(
        "{} | {} epochs, {} steps, {} samples",
        if summary.stopped_early {
            "stopped"
        } else {
            "done"
        },
        grouped(summary.epochs),
        grouped(summary.steps),
        grouped(summary.images),
    );
    // The times are those of this session.
    if let Some(root) = summary.rank_seconds.first()
        && root.num_steps < summary.steps
    {
        line.push_str(&format!(
            "; this session: {} steps",
            grouped(root.num_steps)
        ));
    }
    line.push_str(&format!(" in {}", seconds(summary.seconds_total)));
    if summary.skipped_steps > 0 {
        line.push_str(&format!(
            " | {} steps skipped",
            grouped(summary.skipped_steps)
        ));
    }
    if let Some(evaluations) = summary.patience_ended_after {
        line.push_str(&format!(
            " | ended after {} evaluations without a better one",
            grouped(evaluations)
        ));
    }
    let last = summary.final_epoch.as_ref();
    if let Some((split, scores)) = last.and_then(EpochRecord::evaluation) {
        line.push_str(&match scores.top1 {
            Some(top1) => format!(" | {split} top-1 {:5.2} %", 100.0 * top1),
            None => format!(" | {split} loss {:.4}", scores.loss),
        });
    }
    if let Some(best) = &summary.best {
        let value = match best.monitor.ends_with("-top1") {
            true => format!("{:5.2} %", 100.0 * best.value),
            false => format!("{:.4}", best.value),
        };
        line.push_str(&format!(
            " | best {} {value} after epoch {}",
            best.monitor,
            best.epoch + 1
        ));
    }
    if let Some(test) = &summary.test {
        line.push_str(&format!(
            " | test of epoch {}: {}",
            test.epoch + 1,
            scores(test.scores.loss, test.scores.top1.zip(test.scores.top5))
        ));
    }
    line
}

pub(super) fn speed(stats: &ThroughputStats, peak_memory_bytes: u64) -> String {
    format!(
        "speed | {} +- {} samples/s (min {}, max {}, n = {} steps) | median step {:.1} ms | peak {}",
        decimal(stats.mean, 1),
        decimal(stats.sigma, 1),
        decimal(stats.min, 1),
        decimal(stats.max, 1),
        grouped(stats.num_steps),
        stats.step_milliseconds_median,
        bytes(peak_memory_bytes),
    )
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
        "slowest rank {} on {} | {:.1} ms a step without communication, mean of the ranks {:.1} ms",
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

/// Returns a wrapped row for each section, then sizes that follow from the options.
///
/// The last rows are the facts of the launch.
pub fn configuration(config: &TrainConfig, facts: &[(&str, String)]) -> Vec<String> {
    let mut rows: Vec<(String, Vec<String>)> = Vec::new();
    for (path, value) in config.settings() {
        let (section, key) = path.split_once('.').unwrap_or(("", &path));
        let cell = format!("{key} {}", value.trim_matches('"'));
        match rows.last_mut() {
            Some((last, cells)) if last == section => cells.push(cell),
            _ => rows.push((section.to_owned(), vec![cell])),
        }
    }
    let batch = &config.batch;
    let product = format!(
        "global batch {} = {} a rank * {} accumulated * {} ranks",
        batch.global_batch_size,
        config.micro_batch_size(),
        batch.grad_accum_steps(),
        config.num_workers()
    );
    let peak = format!("learning rate after warmup {}", config.peak_learning_rate());
    rows.push(("derived".to_owned(), vec![product, peak]));
    for (name, value) in facts {
        rows.push(((*name).to_owned(), vec![value.clone()]));
    }
    let names: Vec<&str> = rows.iter().map(|(name, _)| name.as_str()).collect();
    let width = width_of(&names);
    rows.iter()
        .flat_map(|(name, cells)| wrapped(name, width, cells))
        .collect()
}

fn wrapped(name: &str, width: usize, cells: &[String]) -> Vec<String> {
    let mut lines = vec![format!("{name:width$}  ")];
    for (index, cell) in cells.iter().enumerate() {
        let last = lines.len() - 1;
        if index > 0 && lines[last].chars().count() + cell.chars().count() + 3 > TABLE_WIDTH {
            lines.push(format!("{:width$}  {cell}", ""));
        } else {
            lines[last].push_str(if index > 0 { " | " } else { "" });
            lines[last].push_str(cell);
        }
    }
    lines
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
