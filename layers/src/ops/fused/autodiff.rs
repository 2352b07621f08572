//! The fused operation on autodiff tensors: one node with five parents.
//!
//! Invariant: it counts as compute-bound, so that checkpointing never runs its forward (and the reducer's sum) a second time.

use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, AutodiffBackend, Backend, TensorMetadata};

use super::{Branch, FusedOptions, FusedOutput, FusedSaved, Residual};
use crate::ops::LayerOps;
use crate::ops::gradient_hook::call_hook;

#[derive(Debug)]
struct FusedTrainBackward;

/// [`Branch`] on the tape: the tensor under whose identifier the residual's gradient waits.
#[derive(Clone, Debug)]
enum BranchEnd<B: Backend> {
    None,
    Near(FloatTensor<Autodiff<B>>),
    Far(NodeId),
}

impl<B: LayerOps> Backward<B, 5> for FusedTrainBackward {
    type State = (FusedSaved<B>, FusedOptions, BranchEnd<B>);

    fn backward(self, ops: Ops<Self::State, 5>, gradients: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let output_gradient = gradients.consume::<B>(&ops.node);
        let (mut saved, options, branch) = ops.state;
        let has_residual = options.residual != Residual::None;
        let [input, weight, gamma, beta, residual] = ops.parents;
        saved.needs_input = input.is_some();
        if let BranchEnd::Near(tensor) = &branch
            && let Some(gradient) = gradients.remove::<B>(tensor)
        {
            (saved.addend, saved.has_addend) = (gradient, true);
        }
        let hooked = options.hooked.clone();
        let computed = <B as LayerOps>::fused_train_backward(saved, output_gradient, options);
        let residual = match branch {
            BranchEnd::Far(id) => Some(id),
            _ => residual.filter(|_| has_residual).map(|node| node.id),
        };
        let parameters = [(weight, computed.weight), (gamma, computed.gamma), (beta, computed.beta)];
        match hooked {
            Some(to) => {
                for ((node, gradient), parameter) in parameters.into_iter().zip([to.weight, to.gamma, to.beta]) {
                    if node.is_some() {
                        call_hook::<B>(&*to.hook, parameter, gradient);
                    }
                }
            }
            None => {
                for (node, gradient) in parameters {
                    register::<B>(gradients, node.map(|node| node.id), gradient);
                }
            }
        }
        register::<B>(gradients, residual, computed.residual);
        register::<B>(gradients, input.map(|node| node.id), computed.input);
    }
}

fn register<B: Backend>(gradients: &mut Gradients, node: Option<NodeId>, gradient: FloatTensor<B>) {
    if let Some(node) = node {
        gradients.register::<B>(node, gradient);
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
    let guards = [input.node(), weight.node(), gamma.node(), beta.node(), residual.node()];
    let prepared = FusedTrainBackward.prepare::<C>(guards).compute_bound().stateful();
    let residual_shape = residual.shape().dims();
    let branch = match options.branch {
        Branch::None => BranchEnd::None,
        Branch::Opens => BranchEnd::Near(residual.clone()),
        Branch::Ends => BranchEnd::Far(residual.id()),
    };
    let [input, weight, gamma, beta, residual] =
        [input, weight, gamma, beta, residual].map(|tensor| tensor.into_primitive());
    let run = |input, weight, gamma, beta, options| {
        <B as LayerOps>::fused_train(input, weight, gamma, beta, residual, options)
    };
    match prepared {
        OpsKind::Tracked(prepared) => {
            let fused = run(input.clone(), weight.clone(), gamma.clone(), beta.clone(), options.clone());
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
            lift(fused, |output| prepared.finish((saved, options, branch), output))
        }
        OpsKind::UnTracked(prepared) => {
            lift(run(input, weight, gamma, beta, options), |output| prepared.finish(output))
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
