//! A single operation on autodiff tensors: one node with three parents.
//!
//! Invariant: it counts as compute-bound, so that checkpointing never runs it a second time.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, AutodiffBackend};

use super::{SingleGradients, SingleOps, SingleOptions, SingleOutput, SingleSaved, Wanted};

#[derive(Debug)]
struct SingleBackward;

impl<B: SingleOps> Backward<B, 3> for SingleBackward {
    type State = (SingleSaved<B>, SingleOptions);

    fn backward(
        self,
        ops: Ops<Self::State, 3>,
        gradients: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let output_gradient = gradients.consume::<B>(&ops.node);
        let (saved, options) = ops.state;
        let wanted = ops.parents.each_ref().map(Option::is_some);
        let computed = <B as SingleOps>::single_backward(saved, output_gradient, options, wanted);
        let computed = [computed.input, computed.weight, computed.bias];
        for (node, gradient) in ops.parents.into_iter().zip(computed) {
            if let Some(node) = node {
                gradients.register::<B>(node.id, gradient);
            }
        }
    }
}

impl<B: SingleOps, C: CheckpointStrategy> SingleOps for Autodiff<B, C> {
    fn single(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        options: SingleOptions,
    ) -> SingleOutput<Self> {
        let nodes = [input.node(), weight.node(), bias.node()];
        let prepared = SingleBackward
            .prepare::<C>(nodes)
            .compute_bound()
            .stateful();
        let [input, weight, bias] = [input, weight, bias].map(|tensor| tensor.into_primitive());
        let SingleOutput {
            output,
            input,
            weight,
        } = <B as SingleOps>::single(input, weight, bias, options);
        let untracked = <Self as AutodiffBackend>::from_inner;
        SingleOutput {
            input: untracked(input.clone()),
            weight: untracked(weight.clone()),
            output: match prepared {
                OpsKind::Tracked(prepared) => {
                    prepared.finish((SingleSaved { input, weight }, options), output)
                }
                OpsKind::UnTracked(prepared) => prepared.finish(output),
            },
        }
    }

    fn single_backward(
        _saved: SingleSaved<Self>,
        _output_gradient: FloatTensor<Self>,
        _options: SingleOptions,
        _wanted: Wanted,
    ) -> SingleGradients<Self> {
        panic!("single_backward: its own derivative is not implemented");
    }
}
