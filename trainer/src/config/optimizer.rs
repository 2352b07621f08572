//! Defaults and checks of the flags of descent and loss.

use super::checks::{Filled, at_least, conflict, expect_needs, in_range, is_share, no_effect};
use super::error::ConfigError;
use crate::config::choices::{Dtype, LossKind, LossScaling, OptimizerKind, RateFactor, SyncKind};
use crate::config::cli::OptimizerArgs;

impl OptimizerArgs {
    fn fill_loss(&mut self) -> Result<(), ConfigError> {
        let loss = *self.loss.get_or_insert(LossKind::CrossEntropy);
        if loss != LossKind::CrossEntropy && self.class_weights.is_some() {
            return Err(no_effect(
                "--class-weights",
                format!("with --loss {loss}"),
                "it is for --loss cross-entropy",
            ));
        }
        if loss == LossKind::CrossEntropy {
            let smoothing = *self.label_smoothing.get_or_insert(0.0);
            return in_range(
                "--label-smoothing",
                smoothing,
                "0 up to but not 1",
                is_share,
            )
            .map(drop);
        }
        match self.label_smoothing {
            None => Ok(()),
            Some(_) => Err(no_effect(
                "--label-smoothing",
                format!("with --loss {loss}"),
                "it is for --loss cross-entropy",
            )),
        }
    }

    /// Fills the gaps for activations of `dtype`, and refuses what contradicts itself.
    pub(super) fn fill(&mut self, dtype: Dtype) -> Result<(), ConfigError> {
        let kind = *self.optimizer.get_or_insert(OptimizerKind::Sgd);
        self.reject_inapplicable(kind)?;
        let default = match kind {
            OptimizerKind::Sgd => 0.1,
            OptimizerKind::Adamw | OptimizerKind::Lamb | OptimizerKind::Own => 1e-3,
            OptimizerKind::Lars => 1.0,
        };
        in_range(
            "--learning-rate",
            *self.learning_rate.get_or_insert(default),
            "above 0",
            |rate| rate > 0.0,
        )?;
        if *self.scale_learning_rate.get_or_insert(false) {
            at_least(
                "--reference-batch-size",
                *self.reference_batch_size.get_or_insert(128),
                1,
            )?;
        } else if self.reference_batch_size.is_some() {
            let because = "without --scale-learning-rate";
            return Err(no_effect(
                "--reference-batch-size",
                because,
                "add that or leave this out",
            ));
        }
        if kind.has_momentum() {
            self.fill_momentum(kind)?;
        } else if kind.has_two_moments() {
            self.fill_moments(kind)?;
        }
        if kind != OptimizerKind::Own {
            self.fill_decay(kind)?;
        }
        self.fill_loss()?;
        if let Some(norm) = self.clip_grad_norm {
            in_range("--clip-grad-norm", norm, "above 0", |norm| norm > 0.0)?;
        }
        if let Some(size) = self.clip_grad_value {
            in_range("--clip-grad-value", size, "above 0", |size| size > 0.0)?;
            if self.clip_grad_norm.is_some() {
                return Err(conflict(
                    "--clip-grad-value",
                    "--clip-grad-norm",
                    "choose one of them",
                ));
            }
        }
        for RateFactor { factor, .. } in self.learning_rate_factors.iter().flatten() {
            in_range(
                "--learning-rate-factors",
                *factor,
                "above 0 for every part",
                |factor| factor > 0.0,
            )?;
        }
        if let Some(decay) = self.ema_decay {
            in_range("--ema-decay", decay, "0 up to but not 1", is_share)?;
        }
        self.loss_scale.get_or_insert(LossScaling::of(dtype));
        Ok(())
    }

    /// Refuses options of other optimizers than the chosen one.
    fn reject_inapplicable(&self, kind: OptimizerKind) -> Result<(), ConfigError> {
        let (sgd_or_lars, adamw_or_lamb) = ("--optimizer sgd or lars", "--optimizer adamw or lamb");
        let (is_lars, has_momentum, has_two_moments) = (
            kind == OptimizerKind::Lars,
            kind.has_momentum(),
            kind.has_two_moments(),
        );
        let (is_built_in, built_in) = (
            kind != OptimizerKind::Own,
            "--optimizer sgd, adamw, lars or lamb",
        );
        let rules = [
            (
                "--weight-decay",
                self.weight_decay.is_some(),
                is_built_in,
                built_in,
            ),
            (
                "--decay-norm-and-bias",
                self.decay_norm_and_bias.is_some(),
                is_built_in,
                built_in,
            ),
            (
                "--learning-rate-factors",
                self.learning_rate_factors.is_some(),
                is_built_in,
                built_in,
            ),
            (
                "--momentum",
                self.momentum.is_some(),
                has_momentum,
                sgd_or_lars,
            ),
            (
                "--nesterov",
                self.nesterov.is_some(),
                has_momentum,
                sgd_or_lars,
            ),
            (
                "--beta1",
                self.beta1.is_some(),
                has_two_moments,
                adamw_or_lamb,
            ),
            (
                "--beta2",
                self.beta2.is_some(),
                has_two_moments,
                adamw_or_lamb,
            ),
            (
                "--epsilon",
                self.epsilon.is_some(),
                has_two_moments,
                adamw_or_lamb,
            ),
            (
                "--trust-coefficient",
                self.trust_coefficient.is_some(),
                is_lars,
                "--optimizer lars",
            ),
        ];
        expect_needs(rules)
    }

    fn fill_momentum(&mut self, kind: OptimizerKind) -> Result<(), ConfigError> {
        let momentum = *self.momentum.get_or_insert(0.9);
        in_range("--momentum", momentum, "0 up to but not 1", is_share)?;
        if *self.nesterov.get_or_insert(false) && momentum == 0.0 {
            return Err(conflict(
                "--nesterov",
                "--momentum 0",
                "give a momentum above 0, or --nesterov=false",
            ));
        }
        if kind == OptimizerKind::Lars {
            let coefficient = *self.trust_coefficient.get_or_insert(0.001);
            in_range(
                "--trust-coefficient",
                coefficient,
                "above 0",
                |coefficient| coefficient > 0.0,
            )?;
        }
        Ok(())
    }

    fn fill_moments(&mut self, kind: OptimizerKind) -> Result<(), ConfigError> {
        in_range(
            "--beta1",
            *self.beta1.get_or_insert(0.9),
            "0 up to but not 1",
            is_share,
        )?;
        in_range(
            "--beta2",
            *self.beta2.get_or_insert(0.999),
            "0 up to but not 1",
            is_share,
        )?;
        let default = if kind == OptimizerKind::Lamb {
            1e-6
        } else {
            1e-8
        };
        let epsilon = *self.epsilon.get_or_insert(default);
        // A smaller one would be 0 as f32.
        in_range("--epsilon", epsilon, "above 1e-38", |epsilon| {
            epsilon > 1e-38
        })?;
        Ok(())
    }

    fn fill_decay(&mut self, kind: OptimizerKind) -> Result<(), ConfigError> {
        let default = if kind.has_momentum() { 1e-4 } else { 0.01 };
        let weight_decay = *self.weight_decay.get_or_insert(default);
        in_range("--weight-decay", weight_decay, "0 or more", |decay| {
            decay >= 0.0
        })?;
        if weight_decay > 0.0 || kind.adapts() {
            self.decay_norm_and_bias
                .get_or_insert(kind.decays_norm_and_bias());
        } else if self.decay_norm_and_bias.take() == Some(false) {
            return Err(no_effect(
                "--decay-norm-and-bias=false",
                "with --weight-decay 0",
                "leave it out",
            ));
        }
        Ok(())
    }

    /// Refuses what a rank cannot do that is updated on its device.
    pub(super) fn expect_update(&self, is_on_device: bool) -> Result<(), ConfigError> {
        let kind = self.optimizer.filled();
        let is_other = !matches!(kind, OptimizerKind::Sgd | OptimizerKind::Adamw);
        let rules = [
            (
                kind.flag(),
                is_other,
                "devices update by sgd or adamw; give --update host",
            ),
            (
                "--learning-rate-factors",
                self.learning_rate_factors.is_some(),
                "devices update all parameters alike; give --update host",
            ),
            (
                "--ema-decay",
                self.ema_decay.is_some(),
                "the average is kept in main memory; give --update host",
            ),
        ];
        match rules
            .into_iter()
            .find(|(_, is_given, _)| is_on_device && *is_given)
        {
            None => Ok(()),
            Some((option, _, remedy)) => Err(conflict(
                option,
                "--update device, the default of --device cuda",
                remedy,
            )),
        }
    }

    /// Refuses what ranks cannot do that synchronise in this way.
    pub(super) fn expect_sync(&self, sync: SyncKind) -> Result<(), ConfigError> {
        let kind = self.optimizer.filled();
        let sums = sync == SyncKind::Allreduce;
        let serves = matches!(
            sync,
            SyncKind::ParameterServer | SyncKind::AsyncParameterServer
        );
        let drifts_apart = !matches!(sync, SyncKind::Allreduce | SyncKind::ParameterServer);
        let clipping = "only --sync allreduce has the whole mean gradient before the update";
        let rules = [
            (
                kind.flag(),
                !sums && kind != OptimizerKind::Sgd,
                "servers, and ranks that run apart, update by sgd alone; use --sync allreduce",
            ),
            (
                "--learning-rate-factors",
                serves && self.learning_rate_factors.is_some(),
                "servers update all parameters alike; use --sync allreduce or local-sgd",
            ),
            (
                "--ema-decay",
                drifts_apart && self.ema_decay.is_some(),
                "its ranks have parameters of their own after a step; use --sync allreduce or parameter-server",
            ),
            (
                "--clip-grad-norm",
                !sums && self.clip_grad_norm.is_some(),
                clipping,
            ),
            (
                "--clip-grad-value",
                !sums && self.clip_grad_value.is_some(),
                clipping,
            ),
        ];
        match rules.into_iter().find(|(_, is_refused, _)| *is_refused) {
            None => Ok(()),
            Some((option, _, remedy)) => Err(conflict(option, format!("--sync {sync}"), remedy)),
        }
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

impl OptimizerKind {
    /// With its flag.
    fn flag(self) -> &'static str {
        match self {
            Self::Sgd => "--optimizer sgd",
            Self::Adamw => "--optimizer adamw",
            Self::Lars => "--optimizer lars",
            Self::Lamb => "--optimizer lamb",
            Self::Own => "--optimizer own",
        }
    }

    /// Whether it has first and second moments.
    fn has_two_moments(self) -> bool {
        matches!(self, Self::Adamw | Self::Lamb)
    }

    /// Whether it has velocities.
    fn has_momentum(self) -> bool {
        matches!(self, Self::Sgd | Self::Lars)
    }

    /// Whether it scales the step of each tensor.
    fn adapts(self) -> bool {
        matches!(self, Self::Lars | Self::Lamb)
    }

    /// Whether parameters of one axis decay, and are adapted, unless asked for otherwise.
    pub(crate) fn decays_norm_and_bias(self) -> bool {
        !self.adapts()
    }
}
