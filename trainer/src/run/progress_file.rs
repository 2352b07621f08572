//! `progress.json`: the position of a run that trains, for `trainer watch`.
//!
//! In: steps, phases, epochs. Out: the file, written by root. Invariant: it is written at most
//! every two seconds and when a phase begins. A reader never sees half of it. If it cannot be
//! written, the run continues.

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use records::{RunProgress, Seconds, file};

use crate::measure::gather::{RankTimes, rank_seconds};
use crate::measure::metrics::StepLine;
use crate::run::checkpoint::Progress;
use crate::run::directory::PROGRESS;
use crate::run::session::Session;
use crate::task::Task;

/// Time between two writes in one phase.
const PAUSE: Duration = Duration::from_secs(2);

const TRAINING: &str = "training";

/// The file of one session.
#[derive(Debug)]
pub struct ProgressFile {
    /// Absent on other ranks than root.
    path: Option<PathBuf>,
    start: Instant,
    written: Option<Instant>,
    record: RunProgress,
    /// Images of the steps since the last write, and their time.
    images: u64,
    duration: Duration,
    seconds: Seconds,
}

impl ProgressFile {
    /// Returns the file at `path` of a session that begins with `record`; no path on other ranks
    /// than root. Nothing is written yet.
    pub fn new(path: Option<PathBuf>, record: RunProgress) -> Self {
        Self {
            path,
            start: Instant::now(),
            written: None,
            record,
            images: 0,
            duration: Duration::ZERO,
            seconds: Seconds::default(),
        }
    }

    /// Returns the file of a session that begins at `progress`. Nothing is written yet.
    pub fn of<T: Task>(
        session: &Session<'_, T>,
        progress: &Progress,
        steps_per_epoch: u64,
    ) -> Self {
        let epochs = session.config.schedule.epochs;
        let has_ended = progress.epoch >= epochs;
        let record = RunProgress {
            started: session.manifest.started.clone(),
            epoch: progress.epoch.saturating_sub(u64::from(has_ended)),
            epochs,
            step: progress.step,
            step_in_epoch: if has_ended {
                steps_per_epoch
            } else {
                progress.step_in_epoch
            },
            steps_per_epoch,
            global_batch_size: session.config.batch.global_batch_size as u64,
            ..RunProgress::default()
        };
        let path = session.directory.map(|directory| directory.file(PROGRESS));
        Self::new(path, record)
    }

    /// Adds a step, after which the run has done `num_steps`. Returns the time left, on root.
    pub fn step(&mut self, line: &StepLine, num_steps: u64) -> Option<Duration> {
        self.path.as_ref()?;
        let known = Some(&line.scores).filter(|scores| scores.num_samples > 0);
        let record = &mut self.record;
        record.epoch = line.epoch;
        record.step = num_steps;
        record.step_in_epoch = line.step_in_epoch + 1;
        record.steps_per_epoch = line.steps_per_epoch;
        record.session_steps += 1;
        record.session_seconds = self.start.elapsed().as_secs_f64();
        record.loss = known.map(|scores| scores.loss_mean());
        record.top1 = known.and_then(|scores| scores.top1());
        record.learning_rate = line.learning_rate;
        self.seconds += line.seconds;
        self.images += line.global_num_samples;
        self.duration += line.duration;
        if self
            .written
            .is_none_or(|written| written.elapsed() >= PAUSE)
        {
            self.enter(TRAINING);
        } else if self.record.phase != TRAINING {
            // One step is too little for a speed.
            self.write(TRAINING);
        }
        self.record.time_left()
    }

    /// Writes the file at the beginning of a phase.
    pub fn enter(&mut self, phase: &str) {
        // Without new steps the speed of the last ones stays.
        if self.images > 0 {
            self.record.images_per_second = self.images as f64 / self.duration.as_secs_f64();
            self.record.seconds = std::mem::take(&mut self.seconds);
        }
        self.images = 0;
        self.duration = Duration::ZERO;
        self.write(phase);
        self.written = Some(Instant::now());
    }

    fn write(&mut self, phase: &str) {
        let Some(path) = &self.path else { return };
        phase.clone_into(&mut self.record.phase);
        self.record.written = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        if let Ok(text) = serde_json::to_vec_pretty(&self.record) {
            // The run does not need this file.
            let _ = file::replace_unsynced(path, &text);
        }
    }

    /// Notes the times of an epoch, of all ranks on root.
    pub fn epoch(&mut self, world: &[RankTimes]) {
        self.record.ranks = rank_seconds(world);
    }
}
