//! Curves, images and histograms of a run for TensorBoard, with `--tensorboard`.
//!
//! In: steps and epochs of a run. Out: an event file for each session, written by root.
//! Invariant: steps count from 1, so that the end of an epoch and a resumed session write at
//! different steps. If the file cannot be written, the run continues with a warning and writes no
//! more events.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use datasets::Picture;
use distributed::ROOT;
use distributed::replica::ParameterLayout;
use records::EpochRecord;

use crate::config::{SyncMethod, TrainConfig};
use crate::measure::event_file::{EventFile, EventValue, Histogram};
use crate::measure::metrics::StepLine;
use crate::measure::report::Reporter;
use crate::run::session::Session;
use crate::task::Task;

/// The event file on root; no file on other ranks and without `--tensorboard`.
#[derive(Debug)]
pub struct Tensorboard<'a> {
    file: Option<EventFile>,
    reporter: &'a Reporter,
}

/// Checks that the directory of `--tensorboard` has no events of another run: the `run_toml` of the
/// run to resume may name it.
///
/// # Errors
/// If it has such events, or cannot be read.
pub fn expect_own_events(config: &TrainConfig, run_toml: Option<&Path>) -> Result<()> {
    let Some(directory) = config.run.tensorboard.as_deref() else {
        return Ok(());
    };
    if !EventFile::is_any_in(directory)? {
        return Ok(());
    }
    let own = run_toml
        .and_then(directory_in)
        .and_then(|own| fs::canonicalize(own).ok());
    ensure!(
        own.is_some() && own == fs::canonicalize(directory).ok(),
        "--tensorboard {}: expected a directory without event files, or that of the run to resume, got one with events of another \
         run. Choose an empty one, or --resume that run",
        directory.display()
    );
    Ok(())
}

/// Returns the directory of events in a `run.toml`.
fn directory_in(run_toml: &Path) -> Option<PathBuf> {
    let options: toml::Table = records::file::read_to_string(run_toml).ok()?.parse().ok()?;
    Some(options.get("run")?.get("tensorboard")?.as_str()?.into())
}

impl<'a> Tensorboard<'a> {
    /// Opens the file of a session that continues after `num_steps` steps.
    pub fn open<T: Task>(session: &Session<'a, T>, num_steps: u64) -> Self {
        let reporter = session.reporter;
        let mut file = None;
        if let Some(directory) = &session.config.run.tensorboard
            && session.communicator.rank() == ROOT
        {
            // Events of the last step stay; a run that starts again at its beginning replaces all
            // events.
            let first_step = if num_steps == 0 { 0 } else { num_steps + 1 };
            let node = &session.communicator.topology().node;
            match EventFile::create(directory, node, first_step) {
                Ok(created) => file = Some(created),
                Err(error) => {
                    reporter.warn(&format!("--tensorboard: {error:#}; no events are written"));
                }
            }
            if let SyncMethod::ParameterServer { .. } = session.config.sync.method {
                reporter.note(
                    "--tensorboard: no histograms, since with parameter servers no rank has the summed gradients",
                );
            }
        }
        Self { file, reporter }
    }

    pub fn is_open(&self) -> bool {
        self.file.is_some()
    }

    /// Writes a picture of root's first batch of a step.
    pub fn picture(&mut self, step: u64, picture: Picture) {
        self.add(
            step,
            vec![("batch/images".to_owned(), EventValue::Picture(picture))],
        );
    }

    /// Writes the figures of a step.
    pub fn step(&mut self, step: u64, line: &StepLine) {
        let seconds = line.duration.as_secs_f64();
        let mut values = vec![
            scalar("step/learning_rate", line.learning_rate),
            scalar(
                "step/images_per_second",
                line.global_num_samples as f64 / seconds,
            ),
        ];
        if line.scores.num_samples > 0 {
            values.push(scalar("step/loss", line.scores.loss_mean()));
            let top1 = line.scores.top1();
            values.extend(top1.map(|top1| scalar("step/accuracy", top1)));
        }
        self.add(step, values);
    }

    /// Writes the gradient of a step, flat as in `layout`.
    pub fn gradients(&mut self, step: u64, layout: &ParameterLayout, gradients: &[f32]) {
        let histogram = |entry: &distributed::replica::ParameterEntry| {
            let histogram = Histogram::of(&gradients[entry.range()])?;
            Some((
                format!("gradients/{}", entry.path),
                EventValue::Histogram(histogram),
            ))
        };
        self.add(
            step,
            layout.entries().iter().filter_map(histogram).collect(),
        );
    }

    /// Writes the figures of an epoch.
    pub fn epoch(&mut self, record: &EpochRecord) {
        let exposed = record.exposed_share().filter(|_| record.num_ranks > 1);
        let measured = [
            ("train/loss", record.train_loss),
            ("train/accuracy", record.train_top1),
            ("epoch/images_per_second", record.speed()),
            ("epoch/exposed_communication_share", exposed),
        ];
        let mut values: Vec<_> = measured
            .iter()
            .filter_map(|(tag, value)| Some(scalar(tag, (*value)?)))
            .collect();
        let train = record.train_metrics.iter();
        values.extend(train.map(|(name, value)| scalar(&format!("train/{name}"), *value)));
        if let Some((split, scores)) = record.evaluation() {
            let mut add =
                |name: &str, value| values.push(scalar(&format!("{split}/{name}"), value));
            add("loss", scores.loss);
            scores
                .top1
                .into_iter()
                .for_each(|top1| add("accuracy", top1));
            for (name, value) in &scores.metrics {
                add(name, *value);
            }
        }
        self.add(record.step, values);
    }

    fn add(&mut self, step: u64, values: Vec<(String, EventValue)>) {
        let Some(file) = &mut self.file else { return };
        if let Err(error) = file.add(step, &values) {
            self.reporter.warn(&format!(
                "--tensorboard: {error:#}; no further events are written"
            ));
            self.file = None;
        }
    }
}

fn scalar(tag: &str, value: f64) -> (String, EventValue) {
    (tag.to_owned(), EventValue::Scalar(value))
}
