//! The lines of a run as text: fixed columns, every number with its unit.
//!
//! In: records. Out: text without line ends. Invariant: pure; nothing is printed here.

use std::collections::BTreeMap;
use std::time::Duration;

use super::format::{bytes, grouped, seconds, time_left};
use crate::config::TrainConfig;
use crate::measure::metrics::{ScoreSums, StepLine};
use records::{
    BenchResult, Best, DeviceKernels, EpochRecord, Evaluation, EvaluationByClass, Seconds,
    SlowestRank, Summary, ThroughputStats,
};

/// Width of the configuration table, columns.
const TABLE_WIDTH: usize = 110;

/// `epoch 03 step 001172/003900 | loss 1.2046 | acc 56.3 % | lr 0.0921 | 41.7 ms (data 0.4 …) | 12 270 img/s | 31 min left`.
/// Steps are numbered as done: the last is `003900/003900`.
pub(super) fn step(step: &StepLine) -> String {
    let [loss, accuracy] = running(&step.scores);
    format!(
        "epoch {:02} step {:06}/{:06} | loss {loss} | acc {accuracy} % | lr {} | {:6.1} ms ({}) | {:>7} img/s{}",
        step.epoch,
        step.step_in_epoch + 1,
        step.steps_per_epoch,
        records::learning_rate(step.learning_rate),
        step.duration.as_secs_f64() * 1e3,
        phases(&step.seconds, 1e3),
        grouped(images_per_second(step)),
        left(step.time_left),
    )
}

/// The time that is left, as the end of a line.
fn left(time: Option<Duration>) -> String {
    time.map_or_else(String::new, |time| format!(" | {} left", time_left(time)))
}

/// `eval | batch 12/300 | 31 min left`.
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
    let [loss, accuracy] = running(&step.scores);
    format!(
        "loss {loss} acc {accuracy} % {:.1} ms {} img/s{}",
        step.duration.as_secs_f64() * 1e3,
        grouped(images_per_second(step)),
        left(step.time_left),
    )
}

/// Loss and accuracy in per cent; dashes where no step has counted yet.
fn running(scores: &ScoreSums) -> [String; 2] {
    match scores.num_samples {
        0 => ["     -".to_owned(), "   -".to_owned()],
        _ => [
            format!("{:6.4}", scores.loss_mean()),
            format!("{:4.1}", 100.0 * scores.top1()),
        ],
    }
}

fn images_per_second(step: &StepLine) -> u64 {
    (step.global_num_samples as f64 / step.duration.as_secs_f64()).round() as u64
}

/// The five phases of a step, in seconds times `scale`.
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

/// What a program of its own measures.
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
            scores(of.loss, of.top1, of.top5),
            metrics(&of.metrics)
        ),
        None => "not evaluated".to_owned(),
    };
    let train = match (record.train_loss, record.train_top1, record.train_top5) {
        (Some(loss), Some(top1), Some(top5)) => scores(loss, top1, top5),
        _ => "no step counted".to_owned(),
    };
    let mut line = format!(
        "epoch {:02} done | train {train} | {evaluated} | {:>7} img/s | {:>7} ({} eval {:4.1} save {:4.1}) | peak {}",
        record.epoch,
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
            " | compression leaves out {:.2} %",
            100.0 * record.compression_error
        ));
    }
    if let Some(factor) = record.loss_scale {
        line.push_str(&format!(
            " | loss scale {factor}, {} steps left out",
            grouped(record.overflowed_steps)
        ));
    }
    if let Some(joules) = record.joules_per_image {
        line.push_str(&format!(" | {joules:.3} J an image"));
    }
    if let Some(noise) = &record.gradient_noise {
        line.push_str(&match noise.batch_size {
            Some(size) => format!(
                " | gradient noise suggests batches of {}",
                grouped(size.round() as u64)
            ),
            None => " | gradient noise suggests no batch size".to_owned(),
        });
    }
    line
}

fn scores(loss_mean: f64, top1: f64, top5: f64) -> String {
    format!(
        "loss {loss_mean:6.4} top-1 {:5.2} % top-5 {:5.2} %",
        100.0 * top1,
        100.0 * top5
    )
}

pub(super) fn evaluation(name: &str, of: &Evaluation) -> String {
    format!(
        "{name} | {} | {} of {} right, {} among five{}",
        scores(of.loss, of.top1, of.top5),
        grouped(of.top1_correct),
        grouped(of.num_samples),
        grouped(of.top5_correct),
        metrics(&of.metrics),
    )
}

/// Rows of a table of classes, and the most classes of a matrix that is printed.
const MOST_CLASSES: usize = 16;

/// A table of the classes, those with the lowest accuracy first, with the confusion matrix of few classes; of many classes the worst and the most
/// frequent confusions.
pub(super) fn classes(by_class: &EvaluationByClass) -> Vec<String> {
    let worst = by_class.worst_first();
    let mut lines = vec![match worst.len() {
        0..=MOST_CLASSES => "classes, lowest accuracy first".to_owned(),
        all => format!(
            "the {MOST_CLASSES} of {} classes with the lowest accuracy",
            grouped(all as u64)
        ),
    }];
    let shown = &worst[..worst.len().min(MOST_CLASSES)];
    let width = shown
        .iter()
        .map(|class| class.name.chars().count())
        .max()
        .unwrap_or(0);
    lines.extend(shown.iter().map(|class| {
        let confused: Vec<String> = class
            .confused_with
            .iter()
            .map(|confusion| format!("{} {}", confusion.name, grouped(confusion.count)))
            .collect();
        let taken = if confused.is_empty() {
            String::new()
        } else {
            format!(" | taken for {}", confused.join(", "))
        };
        let (correct, all) = (grouped(class.correct), grouped(class.num_samples));
        let accuracy = 100.0 * class.accuracy().unwrap_or(f64::NAN);
        format!(
            "  {:width$} {accuracy:6.2} % ({correct} of {all}){taken}",
            class.name
        )
    }));
    if worst.len() > MOST_CLASSES {
        lines.push("the most frequent confusions".to_owned());
        let confusion = |(class, answer, count): &(&str, &str, u64)| {
            format!("  {class} taken for {answer}: {}", grouped(*count))
        };
        lines.extend(
            by_class
                .confusions()
                .iter()
                .take(MOST_CLASSES)
                .map(confusion),
        );
    }
    if let Some(matrix) = by_class
        .confusion_matrix
        .as_ref()
        .filter(|_| by_class.classes.len() <= MOST_CLASSES)
    {
        lines.push(
            "confusion matrix: a row for each class, a column for each answer, in label order"
                .to_owned(),
        );
        let names = by_class
            .classes
            .iter()
            .map(|class| class.name.chars().count())
            .max()
            .unwrap_or(0);
        let digits = matrix
            .iter()
            .flatten()
            .max()
            .map_or(1, |most| most.to_string().len());
        lines.extend(matrix.iter().zip(&by_class.classes).map(|(row, class)| {
            let counts: Vec<String> = row.iter().map(|count| format!("{count:digits$}")).collect();
            format!("  {:names$} {}", class.name, counts.join(" "))
        }));
    }
    lines
}

pub(super) fn finish(summary: &Summary) -> String {
    // Of a run that went on only these steps took the time of this start.
    let own_steps = summary
        .rank_seconds
        .first()
        .map(|root| root.num_steps)
        .filter(|steps| *steps < summary.steps);
    let mut line = format!(
        "{} | {} epochs, {} steps, {} images{} in {}",
        if summary.stopped_early {
            "stopped"
        } else {
            "done"
        },
        summary.epochs,
        grouped(summary.steps),
        grouped(summary.images),
        own_steps.map_or(String::new(), |steps| format!(
            "; this start: {} steps",
            grouped(steps)
        )),
        seconds(summary.seconds_total),
    );
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
    if let Some((split, scores)) = summary
        .final_epoch
        .as_ref()
        .and_then(EpochRecord::evaluation)
    {
        line.push_str(&format!(" | {split} top-1 {:5.2} %", 100.0 * scores.top1));
    }
    if let Some(Best {
        epoch,
        monitor,
        value,
    }) = &summary.best
    {
        let value = match monitor.ends_with("-top1") {
            true => format!("{:5.2} %", 100.0 * value),
            false => format!("{value:.4}"),
        };
        line.push_str(&format!(" | best {monitor} {value} after epoch {epoch:02}"));
    }
    if let Some(test) = &summary.test {
        line.push_str(&format!(
            " | test of epoch {:02}: {}",
            test.epoch,
            scores(test.scores.loss, test.scores.top1, test.scores.top5)
        ));
    }
    line
}

pub(super) fn speed(stats: &ThroughputStats, peak_memory_bytes: u64) -> String {
    format!(
        "speed | {:.1} +- {:.1} img/s (min {:.1}, max {:.1}, n = {} steps) | median step {:.1} ms | peak {}",
        stats.mean,
        stats.sigma,
        stats.min,
        stats.max,
        grouped(stats.num_steps),
        stats.step_milliseconds_median,
        bytes(peak_memory_bytes),
    )
}

/// A row for each kind of kernel, the largest first: its share of the step, what its calls take alone, how fast it walks over
/// activations; then what is left over.
pub(super) fn step_parts(seconds: f64, result: &BenchResult) -> Vec<String> {
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
    let (mut in_step, mut alone_in_all) = (0.0, 0.0);
    let mut rows: Vec<String> = Vec::new();
    for &(name, part) in &kernels {
        let alone = result.kernels_alone.get(name);
        let beside = alone.map_or_else(String::new, |alone| {
            in_step += per_step(part);
            alone_in_all += alone.seconds_per_step;
            let walks = match alone.bytes_per_step as f64 / per_step(part) / 1e9 {
                speed if speed > 0.0 => format!(", {speed:4.1} GB/s"),
                _ => String::new(),
            };
            format!(" | alone {:8.2} ms{walks}", 1e3 * alone.seconds_per_step)
        });
        rows.push(row(name, part) + &beside);
    }
    rows.push(row(
        "outside our kernels",
        seconds - kernels.iter().map(|(_, part)| part).sum::<f64>(),
    ));
    if alone_in_all > 0.0 {
        rows.push(format!(
            "  {:33} {:9.2} x what they take alone; {:.1} walks over each layer's output",
            "kernels in the step",
            in_step / alone_in_all,
            result.activation_walks
        ));
    }
    rows.push(format!(
        "  {:33} {:9.1} a step",
        "fresh pages", result.minor_faults_per_step
    ));
    rows.extend(
        result
            .joules_per_image
            .map(|joules| format!("  {:33} {joules:9.3} J an image", "energy")),
    );
    rows
}

/// Kernels that are named; the others are small.
const NUM_NAMED: usize = 12;

pub(super) fn device_kernels(kernels: &DeviceKernels) -> Vec<String> {
    let row = |name: &str, seconds: f64, launches: String| {
        format!(
            "  {:30.30} {:9.3} ms a step {launches}",
            name,
            1e3 * seconds
        )
    };
    let launches = |number: f64| format!("in {number:.1} launches");
    let total = launches(kernels.launches_per_step);
    let mut rows = vec![row(
        &format!("kernels of {} further steps", kernels.steps),
        kernels.seconds_per_step,
        total,
    )];
    rows.push(row(
        "between them",
        kernels.idle_seconds_per_step,
        String::new(),
    ));
    let named = kernels.kernels.iter().take(NUM_NAMED);
    rows.extend(named.map(|kernel| {
        row(
            &kernel.name,
            kernel.seconds_per_step,
            launches(kernel.launches_per_step),
        )
    }));
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

/// How many updates were made with gradients of parameters that so many updates had made stale.
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

/// One row a section, wrapped; then what follows from the options, then the facts of the launch.
pub(super) fn configuration(config: &TrainConfig, facts: &[(&str, String)]) -> Vec<String> {
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
    rows.push(("hence".to_owned(), vec![product, peak]));
    rows.extend(
        facts
            .iter()
            .map(|(name, value)| ((*name).to_owned(), vec![value.clone()])),
    );
    let width = rows
        .iter()
        .map(|(name, _)| name.chars().count())
        .max()
        .unwrap_or(0);
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
