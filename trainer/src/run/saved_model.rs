//! A trained model that root finds and reads for all ranks.
//!
//! In: a checkpoint or a weights file. Out: what it says of itself, and its model, both equal on all ranks.
//! Invariant: no rank but root looks at the disk; a model that the file cannot hold is not made, where its family can tell.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use burn_resnet::Head;
use distributed::{ROOT, replica::broadcast_module, watchdog::Phase};

use crate::config::cli::ModelSection;
use crate::config::{TrainConfig, WeightSource};
use crate::measure::gather::from_root;
use crate::model::family::{ModelFamily, ModelRequest, build_within};
use crate::model::network::load_weights_aloud;
use crate::run::checkpoint::{self, CheckpointState};
use crate::world::ranks::World;

/// Parameters that were found and not read yet.
#[derive(Clone, Debug)]
pub struct SavedModel {
    /// Root's file; on the other ranks what their flags say.
    path: PathBuf,
    num_bytes: u64,
    /// What the checkpoint says, the same on all ranks; `None` for a weights file.
    pub state: Option<CheckpointState>,
}

impl SavedModel {
    /// Looks for it. Root says of which checkpoints that are not whole another takes the place.
    /// Collective: all ranks.
    ///
    /// # Errors
    /// When there is no file, or no checkpoint is whole.
    pub fn find(source: &WeightSource, world: &World) -> Result<Self> {
        world.rank_status.enter(Phase::Checkpoint);
        let (WeightSource::File(path) | WeightSource::Checkpoint(path)) = source;
        let mut path = path.clone();
        let mut told = Vec::new();
        if world.is_root() {
            let mut state = None;
            if let WeightSource::Checkpoint(directory) = source {
                let (found, warnings) = checkpoint::find(directory)?;
                warnings
                    .iter()
                    .for_each(|warning| world.reporter.warn(warning));
                path = found.model_path();
                state = Some(found.state);
            }
            let metadata = fs::metadata(&path).with_context(|| path.display().to_string())?;
            ensure!(
                metadata.is_file(),
                "{}: expected a file of weights, got a folder or a device; a run's folder is for --checkpoint",
                path.display()
            );
            let num_bytes = metadata.len();
            told = serde_json::to_vec(&(num_bytes, state))?;
        }
        // Root too takes what it told: the same digits are the same numbers.
        let told = from_root(&*world.communicator, &told)?;
        let (num_bytes, state) =
            serde_json::from_slice(&told).context("checkpoint state from root")?;
        Ok(Self {
            path,
            num_bytes,
            state,
        })
    }

    /// The configuration that the checkpoint was trained with; `None` for a weights file.
    ///
    /// # Errors
    /// When it is none of this program's.
    pub fn trained(&self) -> Result<Option<TrainConfig>> {
        let config = self
            .state
            .as_ref()
            .map(|state| serde_json::from_value(state.config.clone()));
        config
            .transpose()
            .context("configuration in the checkpoint")
    }

    /// The model with the saved values.
    ///
    /// # Errors
    /// When the file is too short for such a model, or has not its tensors.
    ///
    /// # Collective
    /// Must be called by all ranks, with the same model.
    pub fn model<F: ModelFamily>(
        &self,
        section: &ModelSection,
        request: &ModelRequest<'_>,
        world: &World,
    ) -> Result<F::Model> {
        let mut model =
            build_within::<F>(self.num_bytes, section, request).with_context(|| self.name())?;
        if world.is_root() {
            model = load_weights_aloud(model, &self.path, Head::OfFile, &world.reporter)?;
        }
        Ok(broadcast_module(model, &*world.communicator, ROOT)?)
    }

    /// The file, as root knows it.
    pub fn name(&self) -> String {
        self.path.display().to_string()
    }
}
