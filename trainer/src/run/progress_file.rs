//! The file by which others see a run go on: `trainer watch`.
//!
//! In: steps, phases, epochs. Out: `progress.json`, by root. Invariant: it is written at most every other second and when a phase
//! begins, whole at any time; one that cannot be written stops no run.

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use records::{RunProgress, Seconds};

use crate::measure::gather::{RankTimes, rank_seconds};
use crate::measure::metrics::StepLine;
use crate::measure::whole_file::replace;
use crate::run::session::Session;

/// Between two writings of one phase.
const PAUSE: Duration = Duration::from_secs(2);

/// The phase of steps.
const TRAINING: &str = "training";

/// What root tells of the session under way.
#[derive(Debug)]
pub struct ProgressFile {
    /// Absent on other ranks.
    path: Option<PathBuf>,
    start: Instant,
    /// When it was written last.
    written: Option<Instant>,
    record: RunProgress,
    /// Of the steps since then.
    images: u64,
    duration: Duration,
    seconds: Seconds,
}

impl ProgressFile {
    /// For a session that begins now.
    pub fn new(session: &Session<'_>) -> Self {
        let record = RunProgress {
            started: session.manifest.started.clone(),
            epochs: session.config.schedule.epochs,
            global_batch_size: session.config.batch.global_batch_size as u64,
            ..RunProgress::default()
        };
        Self {
            path: session
                .files
                .directory()
                .map(|directory| directory.progress()),
            start: Instant::now(),
            written: None,
            record,
            images: 0,
            duration: Duration::ZERO,
            seconds: Seconds::default(),
        }
    }

    /// Notes a step, after which the run has done `num_steps`; returns the time that is left, on root.
    pub fn step(&mut self, line: &StepLine, num_steps: u64) -> Option<Duration> {
        self.path.as_ref()?;
        let record = &mut self.record;
        (record.epoch, record.step) = (line.epoch, num_steps);
        (record.step_in_epoch, record.steps_per_epoch) =
            (line.step_in_epoch + 1, line.steps_per_epoch);
        record.session_steps += 1;
        record.session_seconds = self.start.elapsed().as_secs_f64();
        let known = Some(line.scores).filter(|scores| scores.num_samples > 0);
        (record.loss, record.top1) = (
            known.map(|scores| scores.loss_mean()),
            known.map(|scores| scores.top1()),
        );
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

    /// Something begins that may take long.
    pub fn enter(&mut self, phase: &str) {
        // Where no step is new, the speed is that of the last ones.
        if self.images > 0 {
            self.record.images_per_second = self.images as f64 / self.duration.as_secs_f64();
            self.record.seconds = std::mem::take(&mut self.seconds);
        }
        (self.images, self.duration) = (0, Duration::ZERO);
        self.write(phase);
        self.written = Some(Instant::now());
    }

    fn write(&mut self, phase: &str) {
        let Some(path) = &self.path else { return };
        phase.clone_into(&mut self.record.phase);
        self.record.written = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        if let Ok(text) = serde_json::to_vec_pretty(&self.record) {
            // What matters is written elsewhere with its errors checked.
            let _ = replace(path, &text);
        }
    }

    /// An epoch's times, of all ranks on root.
    pub fn epoch(&mut self, world: &[RankTimes]) {
        self.record.ranks = rank_seconds(world);
    }
}
