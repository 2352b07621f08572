//! The configuration in a checkpoint.
//!
//! In: what this program wrote there as JSON. Out: [`TrainConfig`].
//! Invariant: flags that are read here are filled and checked as typed ones are, but for what depends on the machine.

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::family::{Family, ModelOption};
use super::{TrainConfig, resolve};
use crate::config::cli::TrainArgs;

/// As it is written.
#[derive(Serialize, Deserialize)]
pub(super) struct SavedConfig {
    /// Those that have an effect, by section and key as in a TOML file.
    flags: TrainArgs,
    /// What the flags of another family than the residual networks do not tell.
    own_model: Option<OwnModel>,
    /// All ranks, those that only serve, too.
    world_size: usize,
}

/// What a program that has not the family needs to know of a model.
#[derive(Serialize, Deserialize)]
struct OwnModel {
    name: String,
    /// The general options that it heeds.
    takes: Vec<ModelOption>,
}

impl From<TrainConfig> for SavedConfig {
    fn from(
        TrainConfig {
            flags,
            model_name,
            heeded,
            world_size,
        }: TrainConfig,
    ) -> Self {
        let is_own = flags.model.family() != Family::RESNET.name;
        Self {
            flags,
            own_model: is_own.then_some(OwnModel {
                name: model_name,
                takes: heeded,
            }),
            world_size,
        }
    }
}

impl TryFrom<Value> for TrainConfig {
    type Error = anyhow::Error;

    fn try_from(value: Value) -> Result<Self> {
        let SavedConfig {
            mut flags,
            own_model,
            world_size,
        } = serde_json::from_value(value)?;
        ensure!(world_size > 0, "world_size: expected at least 1, got 0");
        let (model_name, heeded) = match own_model {
            Some(OwnModel { name, takes }) => (name, takes),
            None => (
                Family::RESNET.decide(&mut flags.model)?,
                Family::RESNET.options.to_vec(),
            ),
        };
        resolve::fill(&mut flags, &heeded, world_size)?;
        Ok(Self {
            flags,
            model_name,
            heeded,
            world_size,
        })
    }
}
