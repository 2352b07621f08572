//! Gates: the gradient of a parameter of burn's own layers goes to a hook as soon as the layer's
//! backward pass ran.
//!
//! In: a parameter and the layer's input. Out: the parameter for this use.
//! Invariant: a gate changes no value.

use std::sync::Arc;

use burn::backend::Dispatch;
use burn::module::{Param, ParamId};
use burn::tensor::Tensor;

use super::{GradientHook, LayerOps};

/// Target of a gated parameter's gradient.
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    pub hook: Arc<dyn GradientHook>,
    pub parameter: ParamId,
}

/// Returns `parameter` for one use together with `input`, its gradient going to `hook`.
///
/// Without a hook, or for a frozen parameter, it is the parameter itself.
pub(crate) fn gated<const D: usize, const E: usize>(
    parameter: &Param<Tensor<D>>,
    input: &Tensor<E>,
    hook: Option<&Arc<dyn GradientHook>>,
) -> Tensor<D> {
    let tensor = parameter.val();
    match hook {
        Some(hook) if tensor.is_require_grad() => {
            let gate = Gate {
                hook: Arc::clone(hook),
                parameter: parameter.id,
            };
            Tensor::from_dispatch(<Dispatch as LayerOps>::gate(
                tensor.into_dispatch(),
                input.clone().into_dispatch(),
                gate,
            ))
        }
        _ => tensor,
    }
}
