//! `hashes.jsonl`: hashes of the first steps of a run, with which `trainer verify-run` compares a
//! repetition.
//!
//! In: loss and parameters of every rank after each of these steps. Out: a line for each step,
//! written by root.
//! Invariant: hashing takes no part of a step's measured time. Ranks communicate only where they
//! add up their scores anyway. If the file cannot be read or written, the run continues.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use distributed::Communicator;
use distributed::replica::{ParameterLayout, tensor_hashes};
use records::{JsonLines, StepHashes, file};
use sha2::{Digest, Sha256};

use crate::config::{TrainConfig, UpdateKind};
use crate::measure::metrics::ScoreSums;
use crate::measure::report::Reporter;
use crate::run::checkpoint::Progress;
use crate::run::directory::{HASHES, RunDirectory};
use crate::step::sync_plan::staleness;

/// Number of hashed steps, all in the first epoch.
pub const NUM_HASHED_STEPS: u64 = 20;

/// The hashes of one rank, and the file on root.
#[derive(Debug)]
pub struct HashRecorder {
    /// Hashed and not written yet.
    steps: Vec<OwnStep>,
    /// Absent on other ranks, after a failed write, and if a repetition would not compute these
    /// steps.
    lines: Option<JsonLines>,
}

#[derive(Debug)]
struct OwnStep {
    step: u64,
    loss: u64,
    parameters: u64,
    tensors: Vec<u64>,
}

impl HashRecorder {
    /// Starts or continues the file of a run that has done `num_steps` steps; `keeps_course` if the
    /// next steps are those of an undisturbed run. Returns `None` if no two such runs have equal
    /// bits, and if the device updates the parameters, which hashing would wait for.
    pub fn of_run(
        config: &TrainConfig,
        directory: Option<&RunDirectory>,
        num_steps: u64,
        keeps_course: bool,
    ) -> Option<Self> {
        let is_on_device = config.sync.update == UpdateKind::Device;
        let is_repeatable = staleness(&config.sync.method).is_none() && !is_on_device;
        let lines = directory.and_then(|directory| continued(&directory.file(HASHES), num_steps));
        is_repeatable.then(|| Self {
            steps: Vec::new(),
            lines: lines.filter(|_| keeps_course),
        })
    }

    /// Returns true if the step that follows `progress` is hashed; the same on all ranks.
    pub fn is_due(recorder: &Option<Self>, progress: &Progress) -> bool {
        recorder.is_some() && progress.epoch == 0 && progress.step < NUM_HASHED_STEPS
    }

    /// Hashes the parameters after a step, flat as in `layout`, and this rank's scores, if it had
    /// samples.
    pub fn add(
        &mut self,
        step: u64,
        scores: Option<ScoreSums>,
        layout: &ParameterLayout,
        parameters: &[f32],
    ) {
        let tensors = tensor_hashes(layout, parameters);
        let mut digest = Sha256::new();
        for hash in &tensors {
            digest.update(hash.to_be_bytes());
        }
        let digest = digest.finalize();
        self.steps.push(OwnStep {
            step,
            loss: scores.map_or(0.0, |scores| scores.loss_sum).to_bits(),
            parameters: u64::from_be_bytes(std::array::from_fn(|index| digest[index])),
            tensors,
        });
    }

    /// Writes the hashes since the last call. If root cannot, it warns and writes no more.
    /// Collective: all ranks, after the same steps.
    pub fn write(
        &mut self,
        layout: &ParameterLayout,
        communicator: &dyn Communicator,
        reporter: &Reporter,
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
        let Some(lines) = &mut self.lines else {
            return Ok(());
        };
        // Two words of every step: its loss and its parameters.
        let words_of_ranks = |place: usize| -> Vec<String> {
            let word = |bytes: &Vec<u8>| u64::from_be_bytes(bytes.as_chunks().0[place]);
            all.iter()
                .map(|bytes| format!("{:016x}", word(bytes)))
                .collect()
        };
        let records: Vec<StepHashes> = own
            .iter()
            .enumerate()
            .map(|(index, step)| StepHashes {
                step: step.step,
                losses: words_of_ranks(2 * index),
                parameters: words_of_ranks(2 * index + 1),
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
            })
            .collect();
        if let Err(error) = lines.append(&records) {
            reporter.warn(&format!(
                "hashes of the first steps: {error}. `trainer verify-run` can compare only the steps before"
            ));
            self.lines = None;
        }
        Ok(())
    }
}

/// Opens the file with its first `num_steps` lines. Returns `None` if the file cannot be read or
/// has fewer.
fn continued(path: &Path, num_steps: u64) -> Option<JsonLines> {
    if num_steps == 0 {
        return Some(JsonLines::new(path));
    }
    let steps = read(path).ok()?;
    let text = file::read_to_string(path).ok()?;
    let lines = text.lines().take(num_steps as usize);
    // Written even if the run takes another course from here on: the lines of later steps would be
    // wrong.
    let file = JsonLines::create(path, lines).ok()?;
    (steps.len() as u64 >= num_steps).then_some(file)
}

/// Reads the lines of `hashes.jsonl`, from step 0 on.
///
/// # Errors
/// If the file cannot be read or is not such a file.
pub fn read(path: &Path) -> Result<Vec<StepHashes>> {
    let context = || format!("cannot read {}", path.display());
    let text = file::read_to_string(path).with_context(context)?;
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
