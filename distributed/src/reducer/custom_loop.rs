//! Custom training loops: a step in one call, parameters whose ids change, and checks.
//!
//! In: the module of a step, a loss, and this rank's share of the samples. Out: gradients for
//! burn's optimizers.
//! Invariant: misuse that would give wrong gradients is an error, the same on all ranks.

use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::Tensor;

use super::{GradientReducer, MicroStepConfig};
use crate::on_device::identities;
use crate::{CollectiveError, replica::ParameterLayout};

/// Tolerance for the sum of all ranks' shares, which must be 1.
const SHARE_TOLERANCE: f64 = 1e-3;

impl GradientReducer {
    /// Runs the backward pass of `loss` and returns the sum over ranks of `share` times the
    /// gradients, for burn's optimizers. The result is the exact mean over the global batch if
    /// `loss` is the mean over a rank's samples, and `share` is the rank's share of the global
    /// batch.
    ///
    /// Gradients from hooks are sent during the pass. A rank without samples calls
    /// [`reduce`](Self::reduce) instead. `module` may have been rebuilt or loaded since the last
    /// step.
    ///
    /// # Errors
    /// Returns an error:
    /// - on all ranks, if the shares do not add up to 1 (not checked with
    ///   [`with_reduction`](Self::with_reduction))
    /// - in the cases of [`rename`](Self::rename)
    /// - if a parameter was frozen at the reducer's creation
    /// - if a collective fails
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
        // The loss is weighted before the pass, because synchronised norms sum over ranks during
        // the pass.
        let gradients = loss.mul_scalar(share).backward();
        self.accumulate(module, gradients, 1.0);
        Ok(self.reduce()?.to_params(module))
    }

    /// Sets the ids of the parameters to those of `module`, which was rebuilt or loaded. A loaded
    /// record has the ids of its file. [`backward`](Self::backward) calls this method itself.
    ///
    /// # Errors
    /// Returns an error if two parameters have the same id, for example if two modules were loaded
    /// from the same file.
    pub fn rename<M: Module>(&self, module: &M) -> Result<(), CollectiveError> {
        let layout = ParameterLayout::new(module);
        layout.expect_unshared()?;
        self.collector.rename(&layout);
        Ok(())
    }

    /// Returns the paths of the parameters that have had no gradient in any backward pass of this
    /// rank. The forward pass does not use them, or detaches them. Empty before the first step.
    pub fn unused_parameters(&self) -> Vec<&str> {
        let entries = self.layout().entries();
        let unused = self.collector.unused().into_iter();
        unused.map(|index| entries[index].path.as_str()).collect()
    }

    /// # Panics
    /// Panics if hooks delivered gradients of this pass with ids that `module` does not have.
    pub(super) fn expect_ids<M: Module>(&self, module: &M) {
        let has_taken = self.collector.lock().has_taken;
        let is_renamed = self
            .identify(module)
            .unwrap_or_else(|error| panic!("{error}"));
        assert!(
            !(is_renamed && has_taken),
            "gradient reducer: the module's parameter ids have changed since the last step, so gradients given by hooks are lost (a loaded \
             record brings the ids of its file). Call `rename` after loading, or use `backward`"
        );
    }

    /// Sets the ids of the parameters to those of `module`. Returns true if the ids have changed.
    ///
    /// # Errors
    /// Returns an error in the cases of [`rename`](Self::rename), and if a trained parameter is not
    /// in the layout.
    fn identify<M: Module>(&self, module: &M) -> Result<bool, CollectiveError> {
        let identities = identities(module, self.layout());
        if let Some(path) = identities.unlisted {
            return Err(CollectiveError::Failed(format!(
                "{path} requires a gradient, and was frozen when the gradient reducer was made. Make the reducer after parameters are unfrozen"
            )));
        }
        let is_other = !self.collector.knows(&identities.ids);
        if is_other {
            self.rename(module)?;
        }
        Ok(is_other)
    }

    /// Checks that the shares add up to 1, over the ranks that have a share.
    ///
    /// # Errors
    /// Returns an error on all ranks if the sum is not 1.
    ///
    /// # Collective
    /// Must be called by all ranks.
    pub(super) fn check_shares(&mut self) -> Result<(), CollectiveError> {
        let share = self.share.take();
        let num_given = if share.is_some() { 1.0 } else { 0.0 };
        let mut sums = [share.unwrap_or_default(), num_given];
        self.communicator.all_reduce_sum_f64(&mut sums)?;
        let [total, num_given] = sums;
        if num_given > 0.0 && (total - 1.0).abs() > SHARE_TOLERANCE {
            return Err(CollectiveError::Failed(format!(
                "share: the shares of all ranks add up to {total:.4}, expected 1. Give each rank its samples divided by those of all ranks, \
                 with the mean loss over its samples"
            )));
        }
        Ok(())
    }
}
