//! Defaults and checks of the flags of a run's start, output and cadence.

use super::checks::{at_least, at_least_one, conflict, invalid, no_effect};
use super::error::ConfigError;
use super::family::ModelOption;
use super::sync::{SyncConfig, SyncMethod};
use crate::config::choices::{OnNonFiniteKind, SyncKind};
use crate::config::cli::RunArgs;

/// Steps that are skipped by default before a run is given up: as many as a bad file may spoil, fewer than a run that has diverged.
const MAX_SKIPPED_STEPS: u64 = 10;

impl RunArgs {
    /// Fills the gaps, and refuses what contradicts itself. `heeded`: the options that the model's family heeds.
    pub(super) fn fill(&mut self, heeded: &[ModelOption]) -> Result<(), ConfigError> {
        if self.zero_gamma == Some(true) && self.weights.is_some() {
            return Err(no_effect(
                "--zero-gamma",
                "with --weights, which bring their own",
                "leave one of them out",
            ));
        }
        if self.new_head == Some(true) && self.weights.is_none() {
            return Err(no_effect(
                "--new-head",
                "without --weights",
                "add that or leave this out",
            ));
        }
        if let Some(name) = &self.name {
            if self.output_dir.is_some() {
                return Err(no_effect(
                    "--name",
                    "with --output-dir, which names the directory",
                    "leave one of them out",
                ));
            }
            let is_file_name =
                !name.contains(['/', '\\', '\0']) && !["", ".", ".."].contains(&name.as_str());
            if !is_file_name {
                return Err(invalid(
                    "--name",
                    "the name of a directory in runs, without slashes",
                    name,
                ));
            }
        }
        if heeded.contains(&ModelOption::ZeroGamma) {
            self.zero_gamma.get_or_insert(false);
        }
        match self.on_non_finite.get_or_insert(OnNonFiniteKind::Stop) {
            OnNonFiniteKind::Skip => _ = self.max_skipped_steps.get_or_insert(MAX_SKIPPED_STEPS),
            OnNonFiniteKind::Stop if self.max_skipped_steps.is_some() => {
                let because = "without --on-non-finite skip";
                return Err(no_effect(
                    "--max-skipped-steps",
                    because,
                    "add it, or leave this out",
                ));
            }
            OnNonFiniteKind::Stop => {}
        }
        self.seed.get_or_insert(0);
        at_least(
            "--eval-every-epochs",
            *self.eval_every_epochs.get_or_insert(1),
            1,
        )?;
        at_least_one("--patience", self.patience)?;
        at_least(
            "--checkpoint-every-epochs",
            *self.checkpoint_every_epochs.get_or_insert(1),
            1,
        )?;
        at_least_one("--checkpoint-every-steps", self.checkpoint_every_steps)?;
        at_least(
            "--keep-checkpoints",
            *self.keep_checkpoints.get_or_insert(2),
            1,
        )?;
        at_least(
            "--log-every-steps",
            *self.log_every_steps.get_or_insert(50),
            1,
        )?;
        at_least_one("--tensorboard-every", self.tensorboard_every)?;
        if self.tensorboard_every.is_some() && self.tensorboard.is_none() {
            return Err(no_effect(
                "--tensorboard-every",
                "without --tensorboard",
                "add that or leave this out",
            ));
        }
        self.warmup_steps.get_or_insert(5);
        Ok(())
    }

    /// Refuses to measure the noise of gradients where a step has no small ones beside their sum.
    pub(super) fn expect_noise(
        &mut self,
        sync: &SyncConfig,
        num_parts: usize,
        joins_norms: bool,
        updates_on_device: bool,
    ) -> Result<(), ConfigError> {
        if self.gradient_noise.take_if(|measures| !*measures).is_some()
            || self.gradient_noise.is_none()
        {
            return Ok(());
        }
        let (other, remedy) = match &sync.method {
            _ if joins_norms => (
                "--batch-norm sync".to_owned(),
                "a rank's part is no small batch's gradient there, but its term of the joined batch's; measure with --batch-norm local",
            ),
            SyncMethod::Allreduce { compression, .. } if compression.is_some() => (
                format!("--compress {compression}"),
                "a compressed sum is not that of the ranks' gradients; leave one of them out",
            ),
            SyncMethod::Allreduce { .. } if updates_on_device => (
                "--update device".to_owned(),
                "it adds gradients up unseen; give --update host",
            ),
            SyncMethod::Allreduce { .. } | SyncMethod::Exact { .. } if num_parts < 2 => {
                return Err(no_effect(
                    "--gradient-noise",
                    "with one pass a step, whose gradient is the sum",
                    "train on several ranks, or give --grad-accum-steps 2 or more",
                ));
            }
            SyncMethod::Allreduce { .. } | SyncMethod::Exact { .. } => return Ok(()),
            method => (
                format!("--sync {}", method.kind()),
                "there no rank has the sum of all gradients; use --sync allreduce",
            ),
        };
        Err(conflict("--gradient-noise", other, remedy))
    }

    /// Refuses to skip steps where ranks do not make them together.
    pub(super) fn expect_sync(&self, sync: SyncKind) -> Result<(), ConfigError> {
        if sync != SyncKind::Allreduce && self.on_non_finite == Some(OnNonFiniteKind::Skip) {
            return Err(conflict(
                "--on-non-finite skip",
                format!("--sync {sync}"),
                "only with --sync allreduce do all ranks know of a step before it is made",
            ));
        }
        Ok(())
    }
}
