//! Output of a run: lines on root's console, and the same lines in its log file.
//!
//! In: records of [`crate::measure::metrics`]. Out: lines on stdout, progress bars and warnings on
//! stderr, `train.log`.
//! Invariant: only root prints, except for the error that ends the program. The run continues if
//! the console or the log cannot be written.

pub mod lines;

pub use lines::printable;
pub use records::{bytes, grouped};

use crate::measure::metrics::StepLine;
use anyhow::{Context, Result};
use cluster::output::unless_reader_left;
use console::{Term, style as styled};
use indicatif::{ProgressBar, ProgressStyle};
use records::{EpochRecord, EvaluationByClass, Summary, ThroughputStats, file};
use serde::Serialize;
use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Measured steps from which on uneven times are a reason for a warning.
const FEWEST_STEPS: u64 = 20;
/// Variation of the steps above which a warning is printed. Virtual machines without other load
/// reach 0.2.
const UNEVEN_STEPS: f64 = 0.25;
/// Excess of a rank's time above which a warning is printed.
const UNEVEN_RANK: f64 = 0.1;

/// Interval between lines of progress, unless `--log-every-seconds` changes that of steps.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Width and colour of stdout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConsoleLook {
    /// Columns.
    pub width: usize,
    /// True on a terminal, unless `NO_COLOR` is set.
    pub is_colored: bool,
}

impl ConsoleLook {
    /// Returns the look of a console without a known size, such as a pipe.
    pub fn plain() -> Self {
        Self {
            width: 80,
            is_colored: false,
        }
    }

    /// Returns the look of stdout.
    ///
    /// A terminal without a size is plain: a launcher may give one to its ranks and write their
    /// text to a file.
    pub fn of_stdout() -> Self {
        match Term::stdout().size_checked() {
            Some((_, columns)) if columns > 0 => Self {
                width: usize::from(columns),
                is_colored: console::colors_enabled(),
            },
            _ => Self::plain(),
        }
    }
}

/// Returns true if stderr is a terminal, unless `NO_COLOR` is set.
fn has_colored_stderr() -> bool {
    let columns = Term::stderr()
        .size_checked()
        .map_or(0, |(_, columns)| columns);
    columns > 0 && console::colors_enabled_stderr()
}

/// Console and log of root, silent on all other ranks. Clones share both.
#[derive(Clone)]
pub struct Reporter {
    output: Option<Arc<Mutex<Output>>>,
}

struct Output {
    console: Box<dyn Write + Send>,
    warnings: Box<dyn Write + Send>,
    log: Option<LogFile>,
    /// True if stderr shows a bar.
    has_bars: bool,
    /// True if stdout shows step lines. False if stdout is the terminal of the bar.
    has_step_lines: bool,
    bar: Option<ProgressBar>,
    /// True if stdout and stderr show colours.
    colors: [bool; 2],
    /// True with `--verbose`.
    is_verbose: bool,
    /// Longest time between two step lines.
    line_every: Duration,
    /// Time of the last step line in this session.
    last_step_line: Option<Instant>,
    /// Number of reported tenths of a download.
    tenths: u64,
}

impl Reporter {
    /// Returns a reporter for stdout and stderr. The reporter prints only if `is_root`.
    pub fn new(is_root: bool) -> Self {
        let has_bars = io::stderr().is_terminal();
        let output = Output {
            has_bars,
            has_step_lines: !(has_bars && io::stdout().is_terminal()),
            colors: [ConsoleLook::of_stdout().is_colored, has_colored_stderr()],
            ..Output::new(Box::new(io::stdout()), Box::new(io::stderr()))
        };
        Self {
            output: is_root.then(|| Arc::new(Mutex::new(output))),
        }
    }

    #[cfg(test)]
    fn with_console(console: Box<dyn Write + Send>, warnings: Box<dyn Write + Send>) -> Self {
        Self {
            output: Some(Arc::new(Mutex::new(Output::new(console, warnings)))),
        }
    }

    /// Appends all later text to the log at `path`, too.
    ///
    /// # Errors
    /// If the log cannot be opened.
    pub fn log_to(&self, path: &Path) -> Result<()> {
        if let Some(mut output) = self.lock() {
            output.log = Some(LogFile::open(path)?);
        }
        Ok(())
    }

    /// Sets the longest time between two lines of steps, by default ten seconds, and whether
    /// details are printed, by default not.
    pub fn set_lines(&self, line_every: Duration, is_verbose: bool) {
        if let Some(mut output) = self.lock() {
            output.line_every = line_every;
            output.is_verbose = is_verbose;
        }
    }

    pub fn note(&self, text: &str) {
        if let Some(mut output) = self.lock() {
            output.line(text);
        }
    }

    /// Prints a line if the run is verbose.
    pub fn detail(&self, text: &str) {
        if let Some(mut output) = self.lock().filter(|output| output.is_verbose) {
            output.line(text);
        }
    }

    pub fn notes(&self, lines: &[String]) {
        for line in lines {
            self.note(line);
        }
    }

    /// Prints a line that starts with `warning:`, on stderr.
    pub fn warn(&self, text: &str) {
        if let Some(mut output) = self.lock() {
            output.warn(text);
        }
    }

    /// Adds a line to the log only.
    ///
    /// The line is about an error that is printed elsewhere and may end the program. Does not wait
    /// for a thread that holds the console.
    pub fn log(&self, text: &str) {
        if let Some(output) = &self.output
            && let Ok(mut output) = output.try_lock()
        {
            output.log_line(text);
        }
    }

    /// Returns true for the session's first step, and when the last line of a step is old enough.
    ///
    /// Returns false if nothing is printed.
    pub fn is_step_due(&self) -> bool {
        self.lock().is_some_and(|output| {
            output
                .last_step_line
                .is_none_or(|printed| printed.elapsed() >= output.line_every)
        })
    }

    /// Moves the bar, and prints the step's line if `is_due`.
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
            let line = lines::step(step, output.is_verbose);
            if output.has_step_lines {
                output.line(&line);
            } else {
                output.log_line(&line);
            }
        }
    }

    /// Prints the lines of an epoch, the best so far if `is_best`, and removes the bar.
    ///
    /// Opens the log again if it was replaced or removed.
    pub fn epoch(&self, record: &EpochRecord, is_best: bool) {
        if let Some(mut output) = self.lock() {
            output.clear_bar();
            output.follow_log();
            for line in lines::epoch(record, is_best, output.is_verbose) {
                let mark = format!(" {} ", output.green("*"));
                output.line_as(&line.replacen(" * ", &mark, 1), &line);
            }
        }
    }

    /// Shows the progress of a download: a bar, or a line at every tenth.
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
        if !output.has_bars && tenths > output.tenths {
            let whole = total.map_or(String::new(), |total| format!(" of {}", bytes(total)));
            output.line(&format!("{name}: {}{whole}", bytes(done)));
        }
        output.tenths = if is_complete { 0 } else { tenths };
    }

    /// Returns `items`, and prints every ten seconds how many of the `units` are done.
    pub fn paced<I: Iterator>(
        &self,
        what: &'static str,
        units: (&'static str, usize),
        items: I,
    ) -> impl Iterator<Item = I::Item> + use<I> {
        self.paced_every(LINE_EVERY, what, units, items)
    }

    fn paced_every<I: Iterator>(
        &self,
        line_every: Duration,
        what: &'static str,
        (unit, num_units): (&'static str, usize),
        items: I,
    ) -> impl Iterator<Item = I::Item> + use<I> {
        let reporter = self.clone();
        let start = Instant::now();
        let mut last_line = start;
        items.enumerate().map(move |(num_done, item)| {
            if last_line.elapsed() >= line_every {
                last_line = Instant::now();
                let counts = [num_done, num_units];
                reporter.note(&lines::part_done(what, unit, counts, start.elapsed()));
            }
            item
        })
    }

    /// Prints the scores of an evaluation, over all classes and of each.
    pub fn evaluation(&self, name: &str, by_class: &EvaluationByClass) {
        self.notes(&lines::evaluation(name, &by_class.scores));
        self.notes(&lines::classes(by_class));
    }

    /// Prints a measured speed, with a warning if the steps vary.
    pub fn speed(&self, stats: &ThroughputStats, peak_memory_bytes: u64) {
        self.notes(&lines::speed(stats, peak_memory_bytes));
        if stats.num_steps >= FEWEST_STEPS && stats.whole_batch_variation > UNEVEN_STEPS {
            self.warn(&format!(
                "step speeds vary by {:.0} %; other programs may use the CPUs: bind ranks or lower --threads",
                100.0 * stats.whole_batch_variation
            ));
        }
    }

    /// Prints the end of a run in `directory`, with warnings for uneven steps and ranks. `next` are
    /// commands for the run.
    pub fn finish(&self, summary: &Summary, directory: Option<&Path>, next: &[String]) {
        if let Some(mut output) = self.lock() {
            output.clear_bar();
            for line in lines::finish(summary) {
                let is_best = line.starts_with("best ");
                let shown = if is_best {
                    output.green(&line)
                } else {
                    line.clone()
                };
                output.line_as(&shown, &line);
            }
        }
        if let Some(stats) = &summary.images_per_second {
            self.speed(stats, summary.peak_memory_bytes);
        }
        if let Some(histogram) = &summary.staleness {
            self.note(&lines::staleness(histogram));
        }
        if let Some(slowest) = &summary.slowest_rank {
            self.detail(&lines::slowest(slowest));
            let excess =
                slowest.own_milliseconds_per_step / slowest.mean_milliseconds_per_step - 1.0;
            let steps = summary.images_per_second.map_or(0, |stats| stats.num_steps);
            if steps >= FEWEST_STEPS && excess > UNEVEN_RANK {
                self.warn(&format!(
                    "rank {} on {} needs {:.0} % more time a step than the mean, and all ranks wait for it: look for \
                     other load on that machine and at how its ranks are bound to cores",
                    slowest.rank,
                    slowest.node,
                    100.0 * excess
                ));
            }
        }
        if let Some(directory) = directory {
            self.notes(&lines::row("files", &[directory.display().to_string()]));
        }
        for (index, command) in next.iter().enumerate() {
            let name = if index == 0 { "next" } else { "" };
            self.notes(&lines::row(name, std::slice::from_ref(command)));
        }
        self.note(&format!("parameters sha256 {}", summary.parameter_hash));
    }

    /// Prints `value` as one line of JSON, like [`result`](Self::result).
    ///
    /// # Errors
    /// If [`result`](Self::result) fails.
    pub fn json(&self, value: &impl Serialize) -> Result<()> {
        self.result(&serde_json::to_string(value)?)
    }

    /// Prints the result of a command on stdout, but not in the log. A closed pipe is not an error.
    pub fn result(&self, text: &str) -> Result<()> {
        let Some(mut output) = self.lock() else {
            return Ok(());
        };
        output.clear_bar();
        unless_reader_left(one_write(&mut output.console, text)).context("standard output")
    }

    fn lock(&self) -> Option<MutexGuard<'_, Output>> {
        // A panic of another thread leaves no partial line.
        self.output
            .as_ref()
            .map(|output| output.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Output {
    fn new(console: Box<dyn Write + Send>, warnings: Box<dyn Write + Send>) -> Self {
        Self {
            console,
            warnings,
            log: None,
            has_bars: false,
            has_step_lines: true,
            bar: None,
            colors: [false; 2],
            is_verbose: false,
            line_every: LINE_EVERY,
            last_step_line: None,
            tenths: 0,
        }
    }

    // Errors of these writes are ignored: a closed pipe or a full disk must not end a long
    // training run.

    fn line(&mut self, text: &str) {
        self.line_as(text, text);
    }

    /// Writes a line that the console shows in colours, and the log without.
    fn line_as(&mut self, shown: &str, logged: &str) {
        let mut write = || drop(one_write(&mut self.console, shown));
        match &self.bar {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
        self.log_line(logged);
    }

    fn warn(&mut self, text: &str) {
        let name = styled("warning:").yellow().force_styling(self.colors[1]);
        let mut write = || drop(one_write(&mut self.warnings, &format!("{name} {text}")));
        match &self.bar {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
        self.log_line(&format!("warning: {text}"));
    }

    fn green(&self, text: &str) -> String {
        styled(text)
            .green()
            .force_styling(self.colors[0])
            .to_string()
    }

    fn log_line(&mut self, text: &str) {
        if let Some(log) = &mut self.log {
            log.line(text);
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
                self.warn(&format!("{error:#}: the log of this run ends here"));
            }
        }
    }

    fn clear_bar(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

/// `train.log`, opened for appending. After [`follow`](Self::follow), it is the file at the path.
#[derive(Debug)]
struct LogFile {
    file: File,
    path: PathBuf,
}

impl LogFile {
    /// Opens the file, or creates it.
    ///
    /// # Errors
    /// If the path is not a regular file; I/O errors.
    fn open(path: &Path) -> Result<Self> {
        let open = || {
            if path.exists() {
                file::open(path)?;
            }
            OpenOptions::new().create(true).append(true).open(path)
        };
        Ok(Self {
            file: open().with_context(|| format!("cannot open {}", path.display()))?,
            path: path.to_owned(),
        })
    }

    fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the file again if another process has replaced or removed it. Returns true if so.
    fn follow(&mut self) -> Result<bool> {
        let is_replaced = file::is_replaced(&self.file, &self.path);
        if is_replaced {
            *self = Self::open(&self.path)?;
        }
        Ok(is_replaced)
    }

    /// Appends a line. Errors are ignored, because a full disk must not end the run.
    fn line(&mut self, text: &str) {
        let _ = self.file.write_all(format!("{text}\n").as_bytes());
    }
}

/// Prints on stderr the reason why this rank ends the job.
pub fn alarm(message: &str) {
    let _ = one_write(&mut io::stderr().lock(), message.trim_end());
}

/// Prints on stderr the error that ended the program. Any rank prints, as root may have exited.
pub fn failure(rank: Option<usize>, error: &anyhow::Error) {
    let name = match rank {
        Some(rank) => format!("error (rank {rank}):"),
        None => "error:".to_owned(),
    };
    let name = styled(name).red().force_styling(has_colored_stderr());
    alarm(&format!("{name} {error:#}"));
}

/// Writes a line in one call: a launcher may insert lines of other ranks between two calls.
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
    let prefix = format!("epoch {}", step.epoch + 1);
    let bar = ProgressBar::new(step.steps_per_epoch).with_prefix(prefix);
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
