//! The files of a run beside its checkpoints: configuration, manifest, metrics, summary.
//!
//! In: what root knows. Out: `run.toml`, `manifest.json`, `hashes.jsonl`, `metrics.jsonl`, `evaluation.json`, `summary.json`.
//! Invariant: root alone writes; on other ranks every call does nothing.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};
use records::{EpochRecord, EvaluationByClass, Manifest, StepHashes, Summary};

use crate::config::{ConfigError, TrainConfig};
use crate::measure::manifest::bearing_on_bits;
use crate::measure::whole_file::{write_atomically, write_json};
use crate::run::lock::DirectoryLock;
use crate::run::metrics_file::MetricsFile;
use crate::run::output::OutputDirectory;
use crate::run::step_hashes;

/// One run's files, on root.
#[derive(Debug)]
pub struct RunFiles {
    root: Option<RootFiles>,
}

#[derive(Debug)]
struct RootFiles {
    directory: OutputDirectory,
    /// Kept until the run ends; absent where the file system has no locks.
    lock: Option<DirectoryLock>,
    metrics: Mutex<Option<MetricsFile>>,
}

impl RunFiles {
    /// Makes the output directory and locks it for `holder`, if this is root.
    ///
    /// # Errors
    /// When it cannot be made, another run is writing to it, or it holds another run and resuming was not asked for.
    pub fn prepare(config: &TrainConfig, is_root: bool, holder: &str) -> Result<Self> {
        if !is_root {
            return Ok(Self { root: None });
        }
        let directory = OutputDirectory::prepare(config)?;
        let lock = directory.lock(config, holder)?;
        Ok(Self {
            root: Some(RootFiles {
                directory,
                lock,
                metrics: Mutex::new(None),
            }),
        })
    }

    /// Whether another run could write to the same directory unnoticed, on root.
    pub fn is_unlocked(&self) -> bool {
        self.root.as_ref().is_some_and(|root| root.lock.is_none())
    }

    /// Refuses to go on where the output directory is no longer at its path, on root.
    ///
    /// # Errors
    /// As [`DirectoryLock::expect_in_place`].
    pub fn expect_in_place(&self) -> Result<(), ConfigError> {
        let lock = self.root.as_ref().and_then(|root| root.lock.as_ref());
        lock.map_or(Ok(()), DirectoryLock::expect_in_place)
    }

    pub fn directory(&self) -> Option<&OutputDirectory> {
        self.root.as_ref().map(|root| &root.directory)
    }

    /// Writes configuration and manifest. Those of an earlier session, and its summary, are kept beside them where the run goes on from
    /// it; else they are of no run any more.
    pub fn begin(&self, config: &TrainConfig, manifest: &Manifest, goes_on: bool) -> Result<()> {
        let Some(root) = &self.root else {
            return Ok(());
        };
        let earlier = if goes_on {
            root.directory.keep_session()?
        } else {
            None
        };
        write_json(&root.directory.manifest(), manifest)?;
        root.directory.write_run_toml(config)?;
        match earlier {
            Some(session) => root.directory.keep_summary(session),
            None => root.directory.forget_sessions(),
        }
    }

    /// Opens the metrics to go on with `epoch`; what of them is lost.
    ///
    /// # Errors
    /// When the file cannot be read or written.
    pub fn open_metrics(&self, epoch: u64) -> Result<Option<String>> {
        let Some(root) = &self.root else {
            return Ok(None);
        };
        let (file, warning) = MetricsFile::truncate_from(&root.directory.metrics(), epoch)?;
        *root.metrics.lock().unwrap_or_else(PoisonError::into_inner) = Some(file);
        Ok(warning)
    }

    /// Adds one epoch to the metrics; what happened to them meanwhile.
    pub fn epoch(&self, record: &EpochRecord) -> Result<Option<String>> {
        let Some(root) = &self.root else {
            return Ok(None);
        };
        let mut metrics = root.metrics.lock().unwrap_or_else(PoisonError::into_inner);
        metrics
            .as_mut()
            .context("metrics: not opened")?
            .append(record)
    }

    /// Writes `evaluation.json`; a warning where that fails, which is no reason to end a run.
    pub fn evaluation(&self, evaluation: impl FnOnce() -> EvaluationByClass) -> Option<String> {
        let root = self.root.as_ref()?;
        // On one line: a matrix of many classes would have a line for each of its numbers.
        let text = serde_json::to_vec(&evaluation()).map_err(anyhow::Error::from);
        let written = text.and_then(|text| write_atomically(&root.directory.evaluation(), &text));
        written.err().map(|error| {
            format!("{error:#}; the run continues, and that file lacks this evaluation")
        })
    }

    /// The evaluation that was written last, on root; `None` where it cannot be read.
    pub fn read_evaluation(&self) -> Option<EvaluationByClass> {
        let text = records::file::read(&self.root.as_ref()?.directory.evaluation()).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Puts the hashes of these steps, one after the other, in place of those that an earlier session left of them and of later ones;
    /// does nothing where the steps before have none that can be read.
    pub fn hashes(&self, steps: &[StepHashes]) -> Result<()> {
        let (Some(root), Some(first)) = (&self.root, steps.first()) else {
            return Ok(());
        };
        let path = root.directory.hashes();
        let mut lines = if first.step == 0 {
            Vec::new()
        } else {
            step_hashes::read(&path).unwrap_or_default()
        };
        lines.retain(|line| line.step < first.step);
        if lines.len() as u64 != first.step {
            return Ok(());
        }
        lines.extend_from_slice(steps);
        write_hashes(&path, &lines)
    }

    /// Whether the session before computed on the same program, machine and data; not where its manifest cannot be read.
    pub fn was_begun_alike(&self, manifest: &Manifest) -> bool {
        let read = |root: &RootFiles| records::file::read(&root.directory.manifest()).ok();
        let before = self
            .root
            .as_ref()
            .and_then(read)
            .and_then(|text| serde_json::from_slice(&text).ok());
        before.is_some_and(|before| bearing_on_bits(&before) == bearing_on_bits(manifest))
    }

    /// Forgets the hashes of steps from `step` on, which others will follow; a file that cannot be read stays.
    pub fn end_hashes(&self, step: u64) {
        let Some(root) = &self.root else { return };
        let path = root.directory.hashes();
        if let Ok(mut lines) = step_hashes::read(&path) {
            lines.retain(|line| line.step < step);
            // Without them `verify-run` has less to compare, which is no reason to end a run.
            let _ = write_hashes(&path, &lines);
        }
    }

    /// Writes the summary.
    ///
    /// # Errors
    /// When it cannot be written, or the directory is no longer there.
    pub fn finish(&self, summary: &Summary) -> Result<()> {
        let Some(root) = &self.root else {
            return Ok(());
        };
        self.expect_in_place()?;
        write_json(&root.directory.summary(), summary)
    }
}

fn write_hashes(path: &Path, lines: &[StepHashes]) -> Result<()> {
    let mut text = String::new();
    for line in lines {
        text.push_str(&serde_json::to_string(line)?);
        text.push('\n');
    }
    write_atomically(path, text.as_bytes())
}
