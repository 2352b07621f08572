//! What loops other than the trainer's need: a step in one call, parameters whose ids change, the checks of both.
//!
//! In: the module of a step, a loss, this rank's share of the samples. Out: gradients for burn's optimizers. Invariant: what would give wrong
//! gradients in silence is an error, the same on all ranks.

use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::Tensor;

use super::{GradientReducer, MicroStepConfig};
use crate::on_device::identities;
use crate::{CollectiveError, replica::ParameterLayout};

/// By how much the shares of all ranks may differ from 1 in sum.
const SHARE_TOLERANCE: f64 = 1e-3;

impl GradientReducer {
    /// A whole step of a loop of your own: differentiates `loss`, and returns the sum over the ranks of `share` times its gradients, for
    /// burn's optimizers. With the mean loss of a rank's samples, and their share of the global batch, that is the exact mean over it.
    ///
    /// What hooks give while the pass goes on travels at once. A rank without samples calls [`reduce`](Self::reduce) instead. `module` may have
    /// been rebuilt or loaded since the last step.
    ///
    /// # Errors
    /// [`CollectiveError::Shares`] on all ranks when the shares do not add up to 1 (not checked with
    /// [`with_reduction`](Self::with_reduction)); [`CollectiveError::SharedParameter`]; [`CollectiveError::Unfrozen`]; a collective failed.
    ///
    /// # Collective
    /// Must be called by all ranks.
    pub fn backward<M: Module>(
        &mut self,
        module: &M,
        loss: Tensor<1>,
        share: f64,
    ) -> Result<GradientsParams, CollectiveError> {
        self.identify(module)?;
        self.share = Some(share);
        self.begin_micro_step(MicroStepConfig {
            is_last: true,
            ..MicroStepConfig::default()
        });
        // Weighted ahead of the pass, in which synchronised norms sum over ranks.
        let gradients = loss.mul_scalar(share).backward();
        self.accumulate(module, gradients, 1.0);
        Ok(self.reduce()?.to_params(module))
    }

    /// Knows the parameters by their ids in `module`, which was rebuilt or loaded: a loaded record brings the ids of its file.
    /// [`backward`](Self::backward) does so by itself.
    ///
    /// # Errors
    /// [`CollectiveError::SharedParameter`] when two parameters have one id, as after two modules were loaded from one file.
    pub fn rename<M: Module>(&self, module: &M) -> Result<(), CollectiveError> {
        let layout = ParameterLayout::new(module);
        layout.expect_unshared()?;
        self.collector.rename(&layout);
        Ok(())
    }

    /// Paths of the parameters that no backward pass of this rank has given a gradient: the forward pass does not use or detaches them. To be
    /// asked after the first step.
    pub fn unused_parameters(&self) -> Vec<&str> {
        let entries = self.layout().entries();
        self.collector
            .unused()
            .into_iter()
            .map(|index| entries[index].path.as_str())
            .collect()
    }

    /// # Panics
    /// When hooks gave gradients of this pass under other ids than those of `module`.
    pub(super) fn expect_ids<M: Module>(&self, module: &M) {
        let has_taken = self.collector.has_taken();
        let is_renamed = self
            .identify(module)
            .unwrap_or_else(|error| panic!("{error}"));
        assert!(
            !(is_renamed && has_taken),
            "gradient reducer: the module's parameter ids have changed since the last step, so gradients given by hooks are lost (a loaded \
             record brings the ids of its file). Call `rename` after loading, or use `backward`"
        );
    }

    /// Knows the parameters by their ids in `module`. Returns true if those were others.
    ///
    /// # Errors
    /// As [`rename`](Self::rename), and [`CollectiveError::Unfrozen`].
    fn identify<M: Module>(&self, module: &M) -> Result<bool, CollectiveError> {
        let identities = identities(module, self.layout());
        if let Some(path) = identities.unlisted {
            return Err(CollectiveError::Unfrozen { path });
        }
        let is_other = !self.collector.knows(&identities.ids);
        if is_other {
            self.rename(module)?;
        }
        Ok(is_other)
    }

    /// # Errors
    /// [`CollectiveError::Shares`] on all ranks when those of the ranks that gave one do not add up to 1.
    ///
    /// # Collective
    /// Must be called by all ranks.
    pub(super) fn check_shares(&mut self) -> Result<(), CollectiveError> {
        let share = self.share.take();
        let mut sums = [
            share.unwrap_or_default(),
            f64::from(u8::from(share.is_some())),
        ];
        self.communicator.all_reduce_sum_f64(&mut sums)?;
        let [total, num_given] = sums;
        let is_whole = (total - 1.0).abs() <= SHARE_TOLERANCE;
        if num_given == 0.0 || is_whole {
            Ok(())
        } else {
            Err(CollectiveError::Shares { total })
        }
    }
}
