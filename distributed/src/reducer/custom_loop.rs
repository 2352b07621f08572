//! Custom training loops: a step in one call, parameters whose ids change, the checks of both.
//!
//! In: the module of a step, a loss, this rank's share of the samples. Out: gradients for burn's
//! optimizers.
//! Invariant: what would silently give wrong gradients is an error, the same on all ranks.

use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::Tensor;

use super::{GradientReducer, MicroStepConfig};
use crate::on_device::identities;
use crate::{CollectiveError, replica::ParameterLayout};

/// Largest difference from 1 of the sum of all ranks' shares.
const SHARE_TOLERANCE: f64 = 1e-3;

impl GradientReducer {
    /// Differentiates `loss` and returns the sum over the ranks of `share` times its gradients, for
    /// burn's optimizers. With the mean loss of a rank's samples, and their share of the global
    /// batch, the result is the exact mean over the global batch.
    ///
    /// Gradients given by hooks are sent during the pass. A rank without samples calls
    /// [`reduce`](Self::reduce) instead. `module` may have been rebuilt or loaded since the last
    /// step.
    ///
    /// # Errors
    /// If the shares do not add up to 1, on all ranks (not checked with
    /// [`with_reduction`](Self::with_reduction)); as [`rename`](Self::rename); if a parameter was
    /// frozen when the reducer was made; a collective failed.
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

    /// Identifies the parameters by their ids in `module`, which was rebuilt or loaded: a loaded
    /// record contains the ids of its file. [`backward`](Self::backward) does this itself.
    ///
    /// # Errors
    /// If two parameters have one id, for example because two modules were loaded from one file.
    pub fn rename<M: Module>(&self, module: &M) -> Result<(), CollectiveError> {
        let layout = ParameterLayout::new(module);
        layout.expect_unshared()?;
        self.collector.rename(&layout);
        Ok(())
    }

    /// Returns the paths of the parameters that no backward pass of this rank has given a gradient,
    /// because the forward pass does not use them or detaches them. Empty before the first step.
    pub fn unused_parameters(&self) -> Vec<&str> {
        let entries = self.layout().entries();
        let unused = self.collector.unused().into_iter();
        unused.map(|index| entries[index].path.as_str()).collect()
    }

    /// # Panics
    /// If hooks gave gradients of this pass under other ids than those of `module`.
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

    /// Identifies the parameters by their ids in `module`. Returns true if the ids have changed.
    ///
    /// # Errors
    /// As [`rename`](Self::rename), and if a trained parameter is not in the layout.
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

    /// Checks that the shares of the ranks that gave one add up to 1.
    ///
    /// # Errors
    /// On all ranks if they do not.
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
