//! The configuration in a checkpoint.
//!
//! In: JSON that this program wrote. Out: [`TrainConfig`].
//! Invariant: saved flags are decided and checked like typed flags, except for checks of the
//! machine.

use super::choices::ModelOption;
use super::cli::TrainArgs;
use super::family::Family;
use super::{Sections, TrainConfig};
use anyhow::{Error, Result, ensure};
use serde::{Deserialize, Serialize};

/// The configuration as written.
#[derive(Serialize)]
pub(super) struct SavedSections {
    flags: Sections,
    own_model: Option<SavedFamily>,
    world_size: usize,
}

/// The configuration as read.
#[derive(Deserialize)]
pub(super) struct SavedFlags {
    flags: TrainArgs,
    own_model: Option<SavedFamily>,
    world_size: usize,
}

/// Facts of a model outside the family of the program, for programs without its family.
#[derive(Serialize, Deserialize)]
struct SavedFamily {
    name: String,
    /// Options that the family supports.
    takes: Vec<ModelOption>,
}

impl From<TrainConfig> for SavedSections {
    fn from(config: TrainConfig) -> Self {
        let is_custom = config.model.family() != Family::BUILT_IN.name;
        Self {
            flags: config.sections,
            own_model: is_custom.then_some(SavedFamily {
                name: config.model_name,
                takes: config.supported,
            }),
            world_size: config.world_size,
        }
    }
}

impl TryFrom<SavedFlags> for TrainConfig {
    type Error = Error;

    fn try_from(saved: SavedFlags) -> Result<Self> {
        let SavedFlags {
            mut flags,
            own_model,
            world_size,
        } = saved;
        ensure!(world_size > 0, "world_size: expected at least 1, got 0");
        let (model_name, supported) = match own_model {
            Some(SavedFamily { name, takes }) => (name, takes),
            None => (
                Family::BUILT_IN.decide(&mut flags.model)?,
                Family::BUILT_IN.options.to_vec(),
            ),
        };
        Ok(Self {
            sections: Sections::decide(flags, &supported, world_size)?,
            resume: false,
            model_name,
            supported,
            world_size,
        })
    }
}
