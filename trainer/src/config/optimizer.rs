//! Defaults and checks of the flags of descent and loss.

use super::checks::{Filled, at_least, in_range, is_share, no_effect};
use super::error::ConfigError;
use crate::config::choices::LossScaling;
use crate::config::choices::{Dtype, SyncKind};
use crate::config::cli::OptimizerArgs;

impl OptimizerArgs {
    /// Fills the gaps for activations of `dtype`, and refuses what contradicts itself.
    pub(super) fn fill(&mut self, dtype: Dtype) -> Result<(), ConfigError> {
        in_range("--learning-rate", *self.learning_rate.get_or_insert(0.1), "above 0", |rate| rate > 0.0)?;
        if *self.scale_learning_rate.get_or_insert(false) {
            at_least("--reference-batch-size", *self.reference_batch_size.get_or_insert(128), 1)?;
        } else if self.reference_batch_size.is_some() {
            let because = "without --scale-learning-rate";
            return Err(no_effect("--reference-batch-size", because, "add that or leave this out"));
        }
        let momentum = *self.momentum.get_or_insert(0.9);
        in_range("--momentum", momentum, "0 up to but not 1", is_share)?;
        if *self.nesterov.get_or_insert(false) && momentum == 0.0 {
            return Err(ConfigError::Conflict {
                option: "--nesterov",
                other: "--momentum 0".to_owned(),
                remedy: "give a momentum above 0, or --nesterov=false".to_owned(),
            });
        }
        self.fill_decay()?;
        let smoothing = *self.label_smoothing.get_or_insert(0.0);
        in_range("--label-smoothing", smoothing, "0 up to but not 1", is_share)?;
        if let Some(norm) = self.clip_grad_norm {
            in_range("--clip-grad-norm", norm, "above 0", |norm| norm > 0.0)?;
        }
        if let Some(decay) = self.ema_decay {
            in_range("--ema-decay", decay, "0 up to but not 1", is_share)?;
        }
        self.loss_scale.get_or_insert(LossScaling::of(dtype));
        Ok(())
    }

    fn fill_decay(&mut self) -> Result<(), ConfigError> {
        let weight_decay = *self.weight_decay.get_or_insert(1e-4);
        in_range("--weight-decay", weight_decay, "0 or more", |decay| decay >= 0.0)?;
        if weight_decay > 0.0 {
            self.decay_norm_and_bias.get_or_insert(true);
        } else if self.decay_norm_and_bias.take() == Some(false) {
            return Err(no_effect("--decay-norm-and-bias=false", "with --weight-decay 0", "leave it out"));
        }
        Ok(())
    }

    /// Refuses what a rank cannot do that is updated on its device.
    pub(super) fn expect_update(&self, is_on_device: bool) -> Result<(), ConfigError> {
        if is_on_device && self.ema_decay.is_some() {
            return Err(ConfigError::Conflict {
                option: "--ema-decay",
                other: "--update device, the default of --device cuda".to_owned(),
                remedy: "the average is kept in main memory; give --update host".to_owned(),
            });
        }
        Ok(())
    }

    /// Refuses what ranks cannot do that synchronise in this way.
    pub(super) fn expect_sync(&self, sync: SyncKind) -> Result<(), ConfigError> {
        let drifts_apart = !matches!(sync, SyncKind::Allreduce | SyncKind::ParameterServer);
        if drifts_apart && self.ema_decay.is_some() {
            return Err(ConfigError::Conflict {
                option: "--ema-decay",
                other: format!("--sync {sync}"),
                remedy: "its ranks have parameters of their own after a step; use --sync allreduce or parameter-server"
                    .to_owned(),
            });
        }
        if sync != SyncKind::Allreduce && self.clip_grad_norm.is_some() {
            return Err(ConfigError::Conflict {
                option: "--clip-grad-norm",
                other: format!("--sync {sync}"),
                remedy: "only --sync allreduce has the norm of the whole mean gradient before the update".to_owned(),
            });
        }
        Ok(())
    }

    /// Learning rate after warmup: scaled by global batch size / reference batch size if asked for
    /// (linear scaling rule, Goyal et al. 2017, 1706.02677, section 2.1).
    pub(super) fn peak_learning_rate(&self, global_batch_size: usize) -> f64 {
        let learning_rate = self.learning_rate.filled();
        match self.reference_batch_size {
            None => learning_rate,
            Some(reference) => learning_rate * global_batch_size as f64 / reference as f64,
        }
    }
}
