//! All that a run prints: on the root's console, and the same text in its log file.
//!
//! In: records of [`crate::measure::metrics`]. Out: lines on stdout, progress bars and warnings on stderr, `train.log`.
//! Invariant: only root prints, but for the error that ends the program; a console or log that cannot be written never stops a run.

pub(crate) mod format;
mod lines;
mod look;

pub use format::{bytes, grouped, seconds};
pub use look::ConsoleLook;

use crate::config::TrainConfig;
use crate::measure::held_file::HeldFile;
use crate::measure::metrics::StepLine;
use anyhow::{Context, Result};
use cluster::output::unless_reader_left;
use indicatif::{ProgressBar, ProgressStyle};
use records::{
    BenchResult, DeviceKernels, EpochRecord, EvaluationByClass, Summary, ThroughputStats,
};
use serde::Serialize;
use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Steps differing by more than this share of the mean speed are worth a warning.
const UNEVEN_SHARE: f64 = 0.1;

/// What is under way has a line at least this often.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Prints for root and is silent on all other ranks; a clone has the same console and log.
#[derive(Clone)]
pub struct Reporter {
    output: Option<Arc<Mutex<Output>>>,
}

struct Output {
    console: Box<dyn Write + Send>,
    warnings: Box<dyn Write + Send>,
    log: Option<HeldFile>,
    /// A bar moves on stderr instead of step lines on stdout.
    has_bars: bool,
    /// Step lines go to stdout too: it is no terminal, so no bar is seen there.
    has_step_lines: bool,
    bar: Option<ProgressBar>,
    /// When the last step's line was printed, in this session.
    last_step_line: Option<Instant>,
    /// Tenths of a download that were told.
    told_tenths: u64,
}

impl Reporter {
    /// A reporter for stdout and stderr that speaks if `is_root`, into `log` too.
    pub fn new(is_root: bool, log: Option<HeldFile>) -> Self {
        let has_bars = io::stderr().is_terminal();
        let has_step_lines = !(has_bars && io::stdout().is_terminal());
        let output = Output {
            has_bars,
            has_step_lines,
            ..Output::plain(Box::new(io::stdout()), Box::new(io::stderr()), log)
        };
        Self {
            output: is_root.then(|| Arc::new(Mutex::new(output))),
        }
    }

    #[cfg(test)]
    fn with_console(console: Box<dyn Write + Send>, warnings: Box<dyn Write + Send>) -> Self {
        Self {
            output: Some(Arc::new(Mutex::new(Output::plain(console, warnings, None)))),
        }
    }

    /// From now on the text goes into `log` too.
    pub fn log_to(&self, log: HeldFile) {
        if let Some(mut output) = self.lock() {
            output.log = Some(log);
        }
    }

    pub fn note(&self, text: &str) {
        if let Some(mut output) = self.lock() {
            output.line(text);
        }
    }

    pub fn notes(&self, lines: &[String]) {
        lines.iter().for_each(|line| self.note(line));
    }

    /// Prints a line that starts with `warning:`, on stderr.
    pub fn warn(&self, text: &str) {
        if let Some(mut output) = self.lock() {
            output.warn(text);
        }
    }

    /// Adds a line to the log alone, of something that is said elsewhere and may end the program: it waits for nobody who may hold
    /// the console.
    pub fn log(&self, text: &str) {
        if let Some(mut output) = self
            .output
            .as_ref()
            .and_then(|output| output.try_lock().ok())
        {
            output.log_line(text);
        }
    }

    /// Prints the resolved configuration as one aligned table, followed by `facts` of the launch as (name, value).
    pub fn configuration(&self, config: &TrainConfig, facts: &[(&str, String)]) {
        self.notes(&lines::configuration(config, facts));
    }

    /// Returns true for the first step of the session, and for one after ten seconds without a step's line. False where nothing is printed.
    pub fn is_step_due(&self) -> bool {
        self.lock().is_some_and(|output| {
            output
                .last_step_line
                .is_none_or(|printed| printed.elapsed() >= LINE_EVERY)
        })
    }

    /// Shows a step: moves the bar, and prints the step's line if that `is_due`.
    pub fn step(&self, step: &StepLine, is_due: bool) {
        let Some(mut output) = self.lock() else {
            return;
        };
        if output.has_bars {
            let bar = output.bar.get_or_insert_with(|| step_bar(step)).clone();
            bar.set_position(step.step_in_epoch + 1);
            bar.set_message(lines::bar_message(step));
        }
        if is_due {
            output.last_step_line = Some(Instant::now());
            let line = lines::step(step);
            if output.has_step_lines {
                output.line(&line);
            } else {
                output.log_line(&line);
            }
        }
    }

    /// Prints the line of an epoch and takes its bar away; the log is then the file of its name, whoever replaced it.
    pub fn epoch(&self, record: &EpochRecord) {
        if let Some(mut output) = self.lock() {
            output.clear_bar();
            output.follow_log();
            output.line(&lines::epoch(record));
        }
    }

    /// Shows a download: a bar, or a line at every tenth.
    ///
    /// # Units
    /// `done` and `total` in bytes.
    pub fn download(&self, name: &str, done: u64, total: Option<u64>) {
        let Some(mut output) = self.lock() else {
            return;
        };
        let is_complete = total == Some(done);
        if output.has_bars {
            let bar = output
                .bar
                .get_or_insert_with(|| download_bar(name, total))
                .clone();
            bar.set_position(done);
            if is_complete {
                output.clear_bar();
            }
        }
        let tenths = total.map_or(0, |total| done.saturating_mul(10) / total.max(1));
        if !output.has_bars && tenths > output.told_tenths {
            let whole = total.map_or(String::new(), |total| format!(" of {}", bytes(total)));
            output.line(&format!("{name}: {}{whole}", bytes(done)));
        }
        output.told_tenths = if is_complete { 0 } else { tenths };
    }

    /// Passes `items` on, so many of a `unit`, and prints every ten seconds how many are done.
    pub fn paced<I: Iterator>(
        &self,
        what: &'static str,
        (unit, num_units): (&'static str, usize),
        items: I,
    ) -> impl Iterator<Item = I::Item> + use<I> {
        let mut pace = self.pace(what, unit, num_units);
        items.enumerate().map(move |(num_done, item)| {
            pace.done(num_done);
            item
        })
    }

    fn pace(&self, what: &'static str, unit: &'static str, num_units: usize) -> Pace {
        let start = Instant::now();
        Pace {
            reporter: self.clone(),
            what,
            unit,
            num_units,
            start,
            last_line: start,
        }
    }

    /// Prints the scores of an evaluation, over all classes and of each.
    pub fn evaluation(&self, name: &str, by_class: &EvaluationByClass) {
        self.note(&lines::evaluation(name, &by_class.scores));
        self.notes(&lines::classes(by_class));
    }

    /// Prints a measured speed, with a warning if the steps vary.
    pub fn speed(&self, stats: &ThroughputStats, peak_memory_bytes: u64) {
        self.note(&lines::speed(stats, peak_memory_bytes));
        if stats.whole_batch_variation > UNEVEN_SHARE {
            self.warn(&format!(
                "step speeds vary by {:.0} %: other programs may share the processors; leave cores free, pin the ranks \
                 (mpirun --bind-to core) or lower --threads",
                100.0 * stats.whole_batch_variation
            ));
        }
    }

    /// Prints where the time of root's measured steps went.
    pub fn step_parts(&self, seconds: f64, result: &BenchResult) {
        self.notes(&lines::step_parts(seconds, result));
    }

    /// Prints what a GPU ran.
    pub fn device_kernels(&self, kernels: &DeviceKernels) {
        self.notes(&lines::device_kernels(kernels));
    }

    /// Prints the end of a run, with warnings for uneven steps and ranks.
    pub fn finish(&self, summary: &Summary) {
        if let Some(mut output) = self.lock() {
            output.clear_bar();
        }
        self.note(&lines::finish(summary));
        if let Some(stats) = &summary.images_per_second {
            self.speed(stats, summary.peak_memory_bytes);
        }
        if let Some(histogram) = &summary.staleness {
            self.note(&lines::staleness(histogram));
        }
        if let Some(slowest) = &summary.slowest_rank {
            self.note(&lines::slowest(slowest));
            let excess =
                slowest.own_milliseconds_per_step / slowest.mean_milliseconds_per_step - 1.0;
            if excess > UNEVEN_SHARE {
                self.warn(&format!(
                    "rank {} on {} needs {:.0} % more time a step than the mean, and all ranks wait for it: look for \
                     other load on that machine and at how its ranks are bound to cores",
                    slowest.rank,
                    slowest.node,
                    100.0 * excess
                ));
            }
        }
        self.note(&format!("parameters sha256 {}", summary.parameter_hash));
    }

    /// Prints `value` as one line of JSON, as [`result`](Self::result) does.
    ///
    /// # Errors
    /// As [`result`](Self::result).
    pub fn json(&self, value: &impl Serialize) -> Result<()> {
        self.result(&serde_json::to_string(value)?)
    }

    /// Prints what a command was asked for, on stdout and not in the log. A reader who has left has what he wanted.
    pub fn result(&self, text: &str) -> Result<()> {
        let Some(mut output) = self.lock() else {
            return Ok(());
        };
        output.clear_bar();
        unless_reader_left(one_write(&mut output.console, text)).context("standard output")
    }

    fn lock(&self) -> Option<MutexGuard<'_, Output>> {
        // Lines are whole even if a thread panicked between two of them.
        self.output
            .as_ref()
            .map(|output| output.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Something under way that has a line every ten seconds.
struct Pace {
    reporter: Reporter,
    what: &'static str,
    unit: &'static str,
    num_units: usize,
    start: Instant,
    last_line: Instant,
}

impl Pace {
    /// Prints that so many units are done, if a line is due.
    fn done(&mut self, num_done: usize) {
        if self.last_line.elapsed() >= LINE_EVERY {
            self.last_line = Instant::now();
            let counts = [num_done, self.num_units];
            self.reporter.note(&lines::part_done(
                self.what,
                self.unit,
                counts,
                self.start.elapsed(),
            ));
        }
    }
}

impl Output {
    fn plain(
        console: Box<dyn Write + Send>,
        warnings: Box<dyn Write + Send>,
        log: Option<HeldFile>,
    ) -> Self {
        Self {
            console,
            warnings,
            log,
            has_bars: false,
            has_step_lines: true,
            bar: None,
            last_step_line: None,
            told_tenths: 0,
        }
    }

    fn line(&mut self, text: &str) {
        self.console_line(text);
        self.log_line(text);
    }

    // Errors of these writes are dropped: a closed pipe or a full disk is no reason to lose hours of training, and
    // what matters is written elsewhere with its errors checked.

    fn console_line(&mut self, text: &str) {
        let console = &mut self.console;
        let mut write = || {
            let _ = one_write(console, text);
        };
        match &self.bar {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }

    fn warn(&mut self, text: &str) {
        let line = format!("warning: {text}");
        let warnings = &mut self.warnings;
        let mut write = || {
            let _ = one_write(warnings, &line);
        };
        match &self.bar {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
        self.log_line(&line);
    }

    fn log_line(&mut self, text: &str) {
        if let Some(log) = &mut self.log {
            let _ = log.add(&format!("{text}\n"));
        }
    }

    fn follow_log(&mut self) {
        let Some(log) = &mut self.log else { return };
        let path = log.path().display().to_string();
        match log.follow() {
            Ok(false) => {}
            Ok(true) => self.warn(&format!(
                "{path} was replaced or removed during the run: earlier lines may be lost"
            )),
            Err(error) => {
                self.log = None;
                self.warn(&format!(
                    "{error:#}: nothing more of this run goes into its log"
                ));
            }
        }
    }

    fn clear_bar(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

/// Prints why this rank ends the job, on stderr.
pub fn alarm(message: &str) {
    let _ = one_write(&mut io::stderr().lock(), message.trim_end());
}

/// Says on stderr what ended the program, whoever says it: root may be the one that is gone.
pub fn failure(rank: Option<usize>, error: &anyhow::Error) {
    alarm(&match rank {
        Some(rank) => format!("error (rank {rank}): {error:#}"),
        None => format!("error: {error:#}"),
    });
}

/// A line in one piece: launchers pass on what they have read, and lines of other streams come between two pieces.
fn one_write(to: &mut dyn Write, line: &str) -> io::Result<()> {
    to.write_all(format!("{line}\n").as_bytes())
        .and_then(|()| to.flush())
}

impl std::fmt::Debug for Reporter {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Reporter")
            .field("speaks", &self.output.is_some())
            .finish()
    }
}

fn step_bar(step: &StepLine) -> ProgressBar {
    let bar =
        ProgressBar::new(step.steps_per_epoch).with_prefix(format!("epoch {:02}", step.epoch));
    bar.with_style(style("{prefix} {wide_bar} {pos}/{len} {msg}"))
}

fn download_bar(name: &str, total: Option<u64>) -> ProgressBar {
    let bar = total
        .map_or_else(ProgressBar::no_length, ProgressBar::new)
        .with_prefix(name.to_owned());
    bar.with_style(style(
        "{prefix} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta} left",
    ))
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the templates in this file are valid")
}

#[cfg(test)]
mod tests;
