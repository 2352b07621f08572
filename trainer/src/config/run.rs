//! The section `[run]`: start, output and cadence.

use super::checks::{at_least, at_least_one, invalid, no_effect};
use super::error::ConfigError;
use super::family::ModelOption;
use crate::config::choices::{Monitor, OnNonFiniteKind};
use crate::config::cli::RunArgs;
use serde::Serialize;
use std::path::PathBuf;

/// Default of `--max-skipped-steps`: enough for a bad file, too few for a run that has diverged.
const MAX_SKIPPED_STEPS: u64 = 10;

/// Start, output and cadence of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct RunSection {
    #[serde(flatten)]
    pub on_non_finite: OnNonFinite,
    pub seed: u64,
    /// Absent for families without that option.
    pub zero_gamma: Option<bool>,
    pub weights: Option<PathBuf>,
    #[serde(skip_serializing_if = "is_off")]
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
    pub tensorboard: Option<PathBuf>,
    pub tensorboard_every: Option<u64>,
    pub warmup_steps: u64,
    #[serde(skip_serializing_if = "is_off")]
    pub gradient_noise: bool,
}

/// Treatment of a loss or gradient that is not finite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
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
        /// Steps of the run that may be skipped.
        max_skipped_steps: u64,
    },
}

fn is_off(switch: &bool) -> bool {
    !switch
}

impl RunArgs {
    /// Applies the defaults and refuses contradictions. `supported`: options of the model's family.
    pub(super) fn decide(self, supported: &[ModelOption]) -> Result<RunSection, ConfigError> {
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
        let tensorboard_every = at_least_one("--tensorboard-every", self.tensorboard_every)?;
        Ok(RunSection {
            on_non_finite: match self.on_non_finite.unwrap_or(OnNonFiniteKind::Stop) {
                OnNonFiniteKind::Stop => OnNonFinite::Stop,
                OnNonFiniteKind::Skip => OnNonFinite::Skip {
                    max_skipped_steps: self.max_skipped_steps.unwrap_or(MAX_SKIPPED_STEPS),
                },
            },
            seed: self.seed.unwrap_or(0),
            zero_gamma: supported
                .contains(&ModelOption::ZeroGamma)
                .then(|| self.zero_gamma.unwrap_or(false)),
            new_head: self.weights.is_some() && self.new_head.unwrap_or(false),
            weights: self.weights,
            name: self.name,
            output_dir: self.output_dir,
            eval_every_epochs: at_least(
                "--eval-every-epochs",
                self.eval_every_epochs.unwrap_or(1),
                1,
            )?,
            patience: at_least_one("--patience", self.patience)?,
            monitor: self.monitor,
            checkpoint_every_epochs: at_least(
                "--checkpoint-every-epochs",
                self.checkpoint_every_epochs.unwrap_or(1),
                1,
            )?,
            checkpoint_every_steps: at_least_one(
                "--checkpoint-every-steps",
                self.checkpoint_every_steps,
            )?,
            keep_checkpoints: at_least(
                "--keep-checkpoints",
                self.keep_checkpoints.unwrap_or(2),
                1,
            )?,
            log_every_steps: at_least("--log-every-steps", self.log_every_steps.unwrap_or(50), 1)?,
            tensorboard_every: tensorboard_every.filter(|_| self.tensorboard.is_some()),
            tensorboard: self.tensorboard,
            warmup_steps: self.warmup_steps.unwrap_or(5),
            gradient_noise: self.gradient_noise.unwrap_or(false),
        })
    }
}
