//! Gives gradients to a hook as soon as they are final, while earlier layers are still being
//! differentiated.
//!
//! In: a [`GradientHook`] and the parameters of a layer. Out: calls in backward order, the last
//! layer first.
//! Invariant: a gradient goes either to the hook or to the tape's gradients. The gradient of a
//! frozen parameter goes to neither.
//! Source: Li et al. 2020, PyTorch Distributed, arXiv 2006.15704, section 3.2.3: communication
//! overlaps with the backward pass.

use std::fmt::{self, Debug};
use std::sync::Arc;

use burn::backend::Backend;
use burn::backend::tensor::FloatTensor;
use burn::module::ParamId;
use burn::tensor::{FloatDType, TensorData};

use super::composed::round;
use super::joined_gradients::{Joined, JoinedGradients, to_data};

/// Takes gradients out of a backward pass.
pub trait GradientHook: Debug + Send + Sync {
    /// Takes the final gradient of `parameter` in this backward pass: f32, in PyTorch's layout and
    /// memory order. The backward pass calls this method once for each parameter, on the thread
    /// that computes the gradient.
    ///
    /// A GPU may still be computing the gradient. The first access to the values waits for the GPU
    /// and copies them.
    fn on_gradient(&self, parameter: ParamId, gradient: TensorData);

    /// Returns the groups of gradients that arrive together, or `None` if each gradient arrives
    /// separately. The owner of the groups takes incomplete groups at the end of a pass.
    fn joined(&self) -> Option<&JoinedGradients> {
        None
    }

    /// Takes all gradients of a group, as [`on_gradient`](GradientHook::on_gradient) takes one.
    /// Called only if [`joined`](GradientHook::joined) returns groups.
    ///
    /// # Panics
    /// If the hook returns groups but does not implement this method.
    fn on_gradients(&self, gradients: Joined) {
        panic!(
            "{} gradients came together, expected the hook that joins them to take them so",
            gradients.parameters.len()
        );
    }
}

/// Returns a hook that calls a function.
pub fn gradient_hook(
    take: impl Fn(ParamId, TensorData) + Send + Sync + 'static,
) -> Arc<dyn GradientHook> {
    struct Function<F>(F);
    impl<F> Debug for Function<F> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a function")
        }
    }
    impl<F: Fn(ParamId, TensorData) + Send + Sync> GradientHook for Function<F> {
        fn on_gradient(&self, parameter: ParamId, gradient: TensorData) {
            self.0(parameter, gradient);
        }
    }
    Arc::new(Function(take))
}

/// Targets of a layer's gradients; `None`: the tape, for example behind a gate.
#[derive(Clone, Debug)]
pub(crate) struct HookedParameters {
    /// Hook that takes the gradients.
    pub hook: Arc<dyn GradientHook>,
    /// The convolution's weight.
    pub weight: Option<ParamId>,
    /// The normalisation's scale.
    pub gamma: Option<ParamId>,
    /// The normalisation's shift.
    pub beta: Option<ParamId>,
}

/// Hands one gradient over, contiguous and in f32, or the whole group that it completes.
///
/// # Panics
/// When the device fails: a backward pass has no error to return.
pub(super) fn call_hook<B: Backend>(
    hook: &dyn GradientHook,
    parameter: ParamId,
    gradient: FloatTensor<B>,
) {
    let gradient = round::<B>(gradient, FloatDType::F32);
    match hook.joined() {
        Some(joined) => {
            if let Some(whole) = joined.add::<B>(parameter, gradient) {
                hook.on_gradients(whole);
            }
        }
        None => hook.on_gradient(parameter, to_data::<B>(gradient)),
    }
}
