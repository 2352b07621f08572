//! The section `[run]`: start, output and intervals.

use super::error::{ConfigError, invalid, no_effect};
use super::file;
use crate::config::choices::{ModelOption, Monitor, OnNonFiniteKind};
use crate::config::cli::RunArgs;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Start, output and intervals of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct RunSection {
    #[serde(flatten)]
    pub on_non_finite: OnNonFinite,
    pub seed: u64,
    /// `None` for families without this option.
    pub zero_gamma: Option<bool>,
    pub weights: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "is_off")]
    pub new_head: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub output_dir: Option<PathBuf>,
    pub eval_every_epochs: u64,
    pub patience: Option<u64>,
    pub monitor: Option<Monitor>,
    pub checkpoint_every_epochs: u64,
    pub checkpoint_every_steps: Option<u64>,
    pub keep_checkpoints: usize,
    pub log_every_steps: u64,
    pub log_every_seconds: u64,
    #[serde(default, skip_serializing_if = "is_off")]
    pub log_steps: bool,
    #[serde(default, skip_serializing_if = "is_off")]
    pub verbose: bool,
    pub tensorboard: Option<PathBuf>,
    pub tensorboard_every: Option<u64>,
    pub warmup_steps: u64,
    #[serde(default, skip_serializing_if = "is_off")]
    pub gradient_noise: bool,
}

/// Treatment of a loss or gradient that is not finite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    tag = "on-non-finite",
    rename_all = "kebab-case",
    rename_all_fields = "kebab-case"
)]
pub enum OnNonFinite {
    /// All ranks stop.
    Stop,
    /// All ranks skip the step.
    Skip {
        /// Largest number of skipped steps in the run.
        max_skipped_steps: u64,
    },
}

fn is_off(switch: &bool) -> bool {
    !switch
}

impl RunArgs {
    /// Applies the defaults and rejects contradictions. `supported`: options of the model's family.
    pub(super) fn decide(mut self, supported: &[ModelOption]) -> Result<RunSection, ConfigError> {
        if self.zero_gamma == Some(true) && self.weights.is_some() {
            return Err(no_effect(
                "--zero-gamma",
                "with --weights, which replace all initial weights",
                "remove one of them",
            ));
        }
        if let Some(name) = &self.name {
            if self.output_dir.is_some() {
                return Err(no_effect(
                    "--name",
                    "with --output-dir, which names the directory",
                    "remove one of them",
                ));
            }
            let is_file_name =
                !name.contains(['/', '\\', '\0']) && !["", ".", ".."].contains(&name.as_str());
            if !is_file_name {
                let expected = "the name of a directory in runs, without slashes";
                return Err(invalid("--name", expected, name));
            }
        }
        self.on_non_finite.get_or_insert(OnNonFiniteKind::Stop);
        // Enough for a bad file, but too few for a run that has diverged.
        self.max_skipped_steps.get_or_insert(10);
        self.seed.get_or_insert(0);
        self.zero_gamma = supported
            .contains(&ModelOption::ZeroGamma)
            .then(|| self.zero_gamma.unwrap_or(false));
        if self.weights.is_none() {
            self.new_head = None;
        }
        self.eval_every_epochs.get_or_insert(1);
        self.checkpoint_every_epochs.get_or_insert(1);
        self.keep_checkpoints.get_or_insert(2);
        self.log_every_steps.get_or_insert(50);
        self.log_every_seconds.get_or_insert(10);
        if self.tensorboard.is_none() {
            self.tensorboard_every = None;
        }
        self.warmup_steps.get_or_insert(5);
        file::section(&self)
    }
}
