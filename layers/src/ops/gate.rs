//! A parameter's way into a layer of burn's own, which hands its gradient over as soon as that layer's backward ran.
//!
//! In: a parameter and the layer's input. Out: the parameter as the layer is to use it. Invariant: the layer's input is a parent
//! on the tape only to set the time: burn runs backward by depth, and a node over the parameter alone would come last of all.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch};
use burn::module::{Param, ParamId};
use burn::tensor::Tensor;

use super::gradient_hook::call_hook;
use super::{GradientHook, LayerOps};
use std::sync::Arc;

/// Where a gated parameter's gradient goes.
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    /// Who takes it.
    pub hook: Arc<dyn GradientHook>,
    /// Whose it is.
    pub parameter: ParamId,
}

/// `parameter` for one use together with `input`, its gradient going to `hook`. Without a hook, or for a frozen parameter, it is
/// the parameter itself.
///
/// With it every layer made of burn's own operations can stream its gradients: gate each parameter where it is used.
///
/// # Shapes
/// Any; returns the parameter's.
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
            let input = input.clone().into_dispatch();
            Tensor::from_dispatch(<Dispatch as LayerOps>::gate(
                tensor.into_dispatch(),
                input,
                gate,
            ))
        }
        _ => tensor,
    }
}

#[derive(Debug)]
struct GateBackward;

impl<B: Backend> Backward<B, 2> for GateBackward {
    type State = Gate;

    fn backward(
        self,
        ops: Ops<Self::State, 2>,
        gradients: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let gradient = gradients.consume::<B>(&ops.node);
        call_hook::<B>(&*ops.state.hook, ops.state.parameter, gradient);
    }
}

pub(super) fn tracked<B: LayerOps, C: CheckpointStrategy>(
    parameter: FloatTensor<Autodiff<B, C>>,
    input: FloatTensor<Autodiff<B, C>>,
    gate: Gate,
) -> FloatTensor<Autodiff<B, C>> {
    let prepared = GateBackward
        .prepare::<C>([parameter.node(), input.node()])
        .compute_bound()
        .stateful();
    let output = parameter.into_primitive();
    match prepared {
        OpsKind::Tracked(prepared) => prepared.finish(gate, output),
        OpsKind::UnTracked(prepared) => prepared.finish(output),
    }
}
