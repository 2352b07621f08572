//! The fused operation on autodiff tensors: one node with five parents.
//!
//! Invariant: it counts as compute-bound, so that checkpointing never runs its forward (and the reducer's sum) a second time.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, AutodiffBackend, TensorMetadata};

use super::{FusedOptions, FusedOutput, FusedSaved, Residual};
use crate::choices::Recompute;
use crate::ops::LayerOps;
use crate::ops::gradient_hook::call_hook;

#[derive(Debug)]
struct FusedTrainBackward;

impl<B: LayerOps> Backward<B, 5> for FusedTrainBackward {
    type State = (FusedSaved<B>, FusedOptions);

    fn backward(
        self,
        ops: Ops<Self::State, 5>,
        gradients: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let output_gradient = gradients.consume::<B>(&ops.node);
        let (mut saved, options) = ops.state;
        let links = [&options.input, &options.residual_from, &options.output].map(Clone::clone);
        let [input_link, residual_link, output_link] = links.each_ref().map(Option::as_deref);
        output_link.map(|link| link.hold_gradient(false));
        let has_residual = options.residual != Residual::None;
        let [input, weight, gamma, beta, residual] = ops.parents;
        saved.needs_input = input.is_some();
        // The tape would add the gradients of several readers in passes of their own.
        if let Some(node) = &input
            && input_link.is_some_and(|link| link.hold_gradient(true))
        {
            (saved.addend, saved.has_addend) = (gradients.consume::<B>(node), true);
        }
        let hooked = options.hooked.clone();
        let computed = <B as LayerOps>::fused_train_backward(saved, output_gradient, options);
        let parameters = [
            (weight, computed.weight),
            (gamma, computed.gamma),
            (beta, computed.beta),
        ];
        let ids = hooked
            .as_ref()
            .map_or([None; 3], |to| [to.weight, to.gamma, to.beta]);
        for ((node, gradient), id) in parameters.into_iter().zip(ids) {
            match (node, &hooked, id) {
                (Some(_), Some(to), Some(id)) => call_hook::<B>(&*to.hook, id, gradient),
                (Some(node), ..) => gradients.register::<B>(node.id, gradient),
                (None, ..) => {}
            }
        }
        if let Some(node) = residual.filter(|_| has_residual) {
            residual_link.map(|link| link.hold_gradient(true));
            gradients.register::<B>(node.id, computed.residual);
        }
        if let Some(node) = input {
            gradients.register::<B>(node.id, computed.input);
        }
    }
}

pub(in crate::ops) fn forward<B: LayerOps, C: CheckpointStrategy>(
    input: FloatTensor<Autodiff<B, C>>,
    weight: FloatTensor<Autodiff<B, C>>,
    gamma: FloatTensor<Autodiff<B, C>>,
    beta: FloatTensor<Autodiff<B, C>>,
    residual: FloatTensor<Autodiff<B, C>>,
    options: FusedOptions,
) -> FusedOutput<Autodiff<B, C>> {
    let guards = [
        input.node(),
        weight.node(),
        gamma.node(),
        beta.node(),
        residual.node(),
    ];
    let prepared = FusedTrainBackward
        .prepare::<C>(guards)
        .compute_bound()
        .stateful();
    let residual_shape = residual.shape().dims();
    let [input, weight, gamma, beta, residual] =
        [input, weight, gamma, beta, residual].map(|tensor| tensor.into_primitive());
    let run = |input, weight, gamma, beta, options| {
        <B as LayerOps>::fused_train(input, weight, gamma, beta, residual, options)
    };
    match prepared {
        OpsKind::Tracked(prepared) => {
            let fused = run(
                input.clone(),
                weight.clone(),
                gamma.clone(),
                beta.clone(),
                options.clone(),
            );
            let saved = FusedSaved {
                input,
                weight,
                gamma,
                beta,
                output: fused.output.clone(),
                convolved: fused.convolved.clone(),
                mean: fused.mean.clone(),
                variance: fused.variance.clone(),
                num_values: fused.num_values,
                residual_shape,
                addend: fused.mean.clone(),
                has_addend: false,
                needs_input: true,
            };
            let saved = <B as LayerOps>::fused_train_kept(saved, options.clone());
            lift(fused, |output| prepared.finish((saved, options), output))
        }
        OpsKind::UnTracked(prepared) => {
            let options = FusedOptions {
                recompute: Recompute::None,
                ..options
            };
            lift(run(input, weight, gamma, beta, options), |output| {
                prepared.finish(output)
            })
        }
    }
}

/// Wraps the inner results: the output as `finish` tracks it, the rest untracked.
fn lift<B: LayerOps, C: CheckpointStrategy>(
    fused: FusedOutput<B>,
    finish: impl FnOnce(FloatTensor<B>) -> FloatTensor<Autodiff<B, C>>,
) -> FusedOutput<Autodiff<B, C>> {
    let untracked = <Autodiff<B, C> as AutodiffBackend>::from_inner;
    FusedOutput {
        output: finish(fused.output),
        convolved: untracked(fused.convolved),
        mean: untracked(fused.mean),
        variance: untracked(fused.variance),
        num_values: fused.num_values,
    }
}
