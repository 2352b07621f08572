//! A trained model, which root finds and reads for all ranks.
//!
//! In: a checkpoint or a weights file. Out: its state and its model, both equal on all ranks.
//! Invariant: only root reads the disk. A family can reject a model that the file cannot hold
//! before its memory is allocated.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use burn_resnet::Head;
use distributed::ROOT;
use distributed::replica::broadcast_module;
use distributed::watchdog::Phase;

use crate::config::{TrainConfig, WeightSource};
use crate::measure::gather::from_root;
use crate::model::family::ModelRequest;
use crate::model::network::load_weights_with_report;
use crate::run::checkpoint::{self, CheckpointState};
use crate::task::{Task, build_within};
use crate::world::ranks::World;

/// Parameters that were found and are not read yet.
#[derive(Clone, Debug)]
pub struct TrainedModel {
    /// The file on root; the value of the flag on other ranks.
    path: PathBuf,
    num_bytes: u64,
    /// State of the checkpoint; `None` for a weights file.
    pub state: Option<CheckpointState>,
}

impl TrainedModel {
    /// Finds the file. Root warns of damaged checkpoints that it skips.
    /// Collective: all ranks.
    ///
    /// # Errors
    /// If there is no file, or no checkpoint is whole.
    pub fn find(source: &WeightSource, world: &World) -> Result<Self> {
        world.rank_status.enter(Phase::Checkpoint);
        let (WeightSource::File(path) | WeightSource::Checkpoint(path)) = source;
        let mut path = path.clone();
        let mut message = Vec::new();
        if world.is_root() {
            let mut state = None;
            if let WeightSource::Checkpoint(directory) = source {
                let (found, warnings) = checkpoint::find(directory).context("--checkpoint")?;
                for warning in &warnings {
                    world.reporter.warn(warning);
                }
                path = found.model_path();
                state = Some(found.state);
            }
            let metadata =
                fs::metadata(&path).with_context(|| format!("--weights {}", path.display()))?;
            ensure!(
                metadata.is_file(),
                "--weights {}: expected a file of weights, got a folder or a device; a run's folder is for --checkpoint",
                path.display()
            );
            let num_bytes = metadata.len();
            message = serde_json::to_vec(&(num_bytes, state))?;
        }
        // Root also parses its message, so that all ranks have equal numbers.
        let message = from_root(&*world.communicator, &message)?;
        let (num_bytes, state) =
            serde_json::from_slice(&message).context("checkpoint state from root")?;
        Ok(Self {
            path,
            num_bytes,
            state,
        })
    }

    /// Returns the configuration of the checkpoint's run; `None` for a weights file.
    ///
    /// # Errors
    /// If it is not a configuration of this program.
    pub fn trained(&self) -> Result<Option<TrainConfig>> {
        let Some(state) = &self.state else {
            return Ok(None);
        };
        serde_json::from_value(state.config.clone()).context("configuration in the checkpoint")
    }

    /// Returns the model with the saved values.
    /// Collective: all ranks, with the same model.
    ///
    /// # Errors
    /// If the file is too short for such a model, or does not have its tensors.
    pub fn model<T: Task>(
        &self,
        task: &T,
        args: &T::Args,
        request: &ModelRequest<'_>,
        world: &World,
    ) -> Result<T::Model> {
        let mut model =
            build_within(task, self.num_bytes, args, request).with_context(|| self.name())?;
        if world.is_root() {
            model = load_weights_with_report(model, &self.path, Head::OfFile, &world.reporter)?;
        }
        Ok(broadcast_module(model, &*world.communicator, ROOT)?)
    }

    /// Returns the path of the file.
    pub fn name(&self) -> String {
        self.path.display().to_string()
    }
}
