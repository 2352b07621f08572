//! What the first steps of a run computed, as hashes: `hashes.jsonl`, with which `trainer verify-run` compares a repetition.
//!
//! In: a rank's loss and parameters after each of these steps. Out: a line a step, written by root.
//! Invariant: a rank hashes by itself, outside the time of its step; ranks meet only where they add up their scores anyway. A file that
//! cannot be read or written stops no run.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use distributed::{
    Communicator,
    replica::{ParameterLayout, tensor_hashes},
};
use records::StepHashes;
use sha2::{Digest, Sha256};

use crate::config::TrainConfig;
use crate::measure::metrics::ScoreSums;
use crate::measure::report::Reporter;
use crate::run::checkpoint::Progress;
use crate::run::run_files::RunFiles;
use crate::step::sync_plan::staleness;

/// Steps of the first epoch that are hashed.
pub const NUM_HASHED_STEPS: u64 = 20;

/// What a rank hashed and root has not written.
#[derive(Debug, Default)]
pub struct OwnHashes {
    steps: Vec<OwnStep>,
    /// On root, once it could not write or the run took another course.
    gave_up: bool,
}

#[derive(Debug)]
struct OwnStep {
    step: u64,
    loss: u64,
    parameters: u64,
    tensors: Vec<u64>,
}

impl OwnHashes {
    /// None yet; `None` where ranks run apart, and no two runs are alike, and where the device updates, which would be waited for.
    pub fn of_run(config: &TrainConfig) -> Option<Self> {
        let is_on_device = config.sync_config().updates_on_device(config.num_workers());
        (staleness(&config.sync.method).is_none() && !is_on_device).then(Self::default)
    }

    /// Writes no more: what follows is no part of what a repetition of the run's beginning would compute.
    pub fn give_up(&mut self) {
        self.gave_up = true;
    }

    /// Whether the step that follows on `progress` is hashed; the same on all ranks.
    pub fn is_of(own: &Option<Self>, progress: &Progress) -> bool {
        own.is_some() && progress.epoch == 0 && progress.step < NUM_HASHED_STEPS
    }

    /// Hashes what a step left: the parameters, flat as `layout` says. `scores` are this rank's in it, if it had samples.
    pub fn add(
        &mut self,
        step: u64,
        scores: Option<ScoreSums>,
        layout: &ParameterLayout,
        parameters: &[f32],
    ) {
        let tensors = tensor_hashes(layout, parameters);
        let mut digest = Sha256::new();
        tensors
            .iter()
            .for_each(|hash| digest.update(hash.to_be_bytes()));
        let digest = digest.finalize();
        let parameters = u64::from_be_bytes(std::array::from_fn(|index| digest[index]));
        let loss = scores.map_or(0.0, |scores| scores.loss_sum).to_bits();
        self.steps.push(OwnStep {
            step,
            loss,
            parameters,
            tensors,
        });
    }

    /// Writes what was hashed since the last call; where root cannot, it warns and writes no more.
    ///
    /// # Collective
    /// Must be called by all ranks, after the same steps.
    pub fn write(
        &mut self,
        layout: &ParameterLayout,
        communicator: &dyn Communicator,
        (files, reporter): (&RunFiles, &Reporter),
    ) -> Result<()> {
        let own = std::mem::take(&mut self.steps);
        if own.is_empty() {
            return Ok(());
        }
        let bytes: Vec<u8> = own
            .iter()
            .flat_map(|step| [step.loss, step.parameters])
            .flat_map(u64::to_be_bytes)
            .collect();
        let all = communicator.all_gather(&bytes)?;
        // Of every rank, the word at this place.
        let words = |place: usize| {
            all.iter()
                .map(|bytes| {
                    bytes[8 * place..8 * place + 8]
                        .iter()
                        .map(|byte| format!("{byte:02x}"))
                        .collect()
                })
                .collect()
        };
        let line = |(index, step): (usize, &OwnStep)| StepHashes {
            step: step.step,
            losses: words(2 * index),
            parameters: words(2 * index + 1),
            tensors: step
                .tensors
                .iter()
                .map(|hash| format!("{hash:016x}"))
                .collect(),
            names: match step.step {
                0 => layout
                    .entries()
                    .iter()
                    .map(|entry| entry.path.clone())
                    .collect(),
                _ => Vec::new(),
            },
        };
        if !self.gave_up
            && let Err(error) = files.hashes(&own.iter().enumerate().map(line).collect::<Vec<_>>())
        {
            reporter.warn(&format!(
                "hashes of the first steps: {error:#}; no more are written for trainer verify-run"
            ));
            self.gave_up = true;
        }
        Ok(())
    }
}

/// The lines of `hashes.jsonl`, from step 0 on.
///
/// # Errors
/// When the file cannot be read, or is none of these.
pub fn read(path: &Path) -> Result<Vec<StepHashes>> {
    let context = || format!("cannot read {}", path.display());
    let text = records::file::read_to_string(path).with_context(context)?;
    let lines: Vec<StepHashes> = text
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()
        .with_context(context)?;
    let is_whole = lines.iter().zip(0..).all(|(line, step)| line.step == step);
    ensure!(
        is_whole,
        "{}: expected a line for each step from 0 on, got others",
        path.display()
    );
    Ok(lines)
}
