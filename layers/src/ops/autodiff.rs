//! The extension on autodiff tensors: the inner backend's operation and its handwritten backward
//! pass.
//!
//! In: tracked or untracked tensors. Out: a tracked output, untracked statistics.
//! Invariant: each operation counts as compute-bound. So gradient checkpointing never runs a
//! forward pass, and the reducer's sum in it, a second time.

use std::mem;

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, AutodiffBackend, Backend, TensorMetadata};

use super::gradient_hook::call_hook;
use super::single::{Operation, SingleGradients, SingleOptions, SingleOutput, SingleSaved, Wanted};
use super::{
    Gate, LayerGradients, LayerOps, LayerOptions, LayerOutput, LayerSaved, ResidualKind, fused,
};
use crate::choices::Recompute;
use kernels::simd::Isa;

#[derive(Debug)]
struct LayerBackward;

impl<B: LayerOps> Backward<B, 5> for LayerBackward {
    type State = (LayerSaved<B>, LayerOptions);

    fn backward(
        self,
        ops: Ops<Self::State, 5>,
        gradients: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let output_gradient = gradients.consume::<B>(&ops.node);
        let (mut saved, options) = ops.state;
        let has_convolution = options.convolution.is_some();
        let has_residual = options.residual != ResidualKind::None;
        let hooked = options.hooked.clone();
        let input_link = options.input.clone();
        let residual_link = options.residual_from.clone();
        if let Some(link) = &options.output {
            link.hold_gradient(false);
        }
        let [input, weight, gamma, beta, residual] = ops.parents;
        saved.needs_input = input.is_some();
        // The tape would add the gradients of several readers in separate passes.
        if let Some(node) = &input
            && input_link.is_some_and(|link| link.hold_gradient(true))
        {
            saved.addend = gradients.consume::<B>(node);
            saved.has_addend = true;
        }
        let computed = B::layer_backward(saved, output_gradient, options);
        let ids = hooked
            .as_ref()
            .map_or([None; 3], |to| [to.weight, to.gamma, to.beta]);
        let weight = if has_convolution { weight } else { None };
        let parameters = [
            (weight, computed.weight),
            (gamma, computed.gamma),
            (beta, computed.beta),
        ];
        for ((node, gradient), id) in parameters.into_iter().zip(ids) {
            match (node, &hooked, id) {
                (Some(_), Some(to), Some(id)) => call_hook::<B>(&*to.hook, id, gradient),
                (Some(node), ..) => gradients.register::<B>(node.id, gradient),
                (None, ..) => {}
            }
        }
        if has_residual && let Some(node) = residual {
            if let Some(link) = residual_link {
                link.hold_gradient(true);
            }
            gradients.register::<B>(node.id, computed.residual);
        }
        if let Some(node) = input {
            gradients.register::<B>(node.id, computed.input);
        }
    }
}

/// Adds a gradient by a kernel. burn's addition would first copy a tensor of the arena.
fn plus<B: LayerOps>(
    gradient: FloatTensor<B>,
    addend: Option<FloatTensor<B>>,
    isa: Isa,
) -> FloatTensor<B> {
    match addend {
        Some(addend) => {
            let options = SingleOptions::new(Operation::Add, isa, [true, false]);
            B::single(gradient.clone(), addend, gradient, options).output
        }
        None => gradient,
    }
}

#[derive(Debug)]
struct SingleBackward;

impl<B: LayerOps> Backward<B, 3> for SingleBackward {
    type State = (SingleSaved<B>, SingleOptions);

    fn backward(
        self,
        ops: Ops<Self::State, 3>,
        gradients: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let output_gradient = gradients.consume::<B>(&ops.node);
        let (mut saved, mut options) = ops.state;
        if let Some(link) = &options.output {
            link.hold_gradient(false);
        }
        let [input, weight, bias] = ops.parents;
        let mut parents = [
            input,
            weight.filter(|_| options.has[0]),
            bias.filter(|_| options.has[1]),
        ];
        let wanted = parents.each_ref().map(Option::is_some);
        let operation = options.operation;
        if matches!(operation, Operation::Add | Operation::Cat)
            && let [Some(left), Some(right), _] = &parents
            && left.id == right.id
        {
            options.is_doubled = true;
            parents[1] = None;
        }
        let isa = options.isa;
        let links = mem::take(&mut options.inputs);
        let mut addends = [0, 1].map(|side| {
            let (node, link) = (parents[side].as_ref()?, links[side].as_ref()?);
            link.hold_gradient(true)
                .then(|| gradients.consume::<B>(node))
        });
        if matches!(operation, Operation::GlobalAverage { .. })
            && let Some(addend) = addends[0].take()
        {
            saved.input = addend;
            options.has_addend = true;
        }
        let computed = B::single_backward(saved, output_gradient, options, wanted);
        let computed = [computed.input, computed.weight, computed.bias];
        let [of_input, of_weight] = addends;
        let addends = [of_input, of_weight, None];
        for ((node, gradient), addend) in parents.into_iter().zip(computed).zip(addends) {
            if let Some(node) = node {
                gradients.register::<B>(node.id, plus::<B>(gradient, addend, isa));
            }
        }
    }
}

/// The layer's input is a parent only to fix the time: burn runs backward by depth, and a node with
/// the parameter as its only parent would come last.
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

impl<B: LayerOps, C: CheckpointStrategy> LayerOps for Autodiff<B, C> {
    fn layer(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        residual: FloatTensor<Self>,
        mut options: LayerOptions,
    ) -> LayerOutput<Self> {
        let parents = [
            input.node(),
            weight.node(),
            gamma.node(),
            beta.node(),
            residual.node(),
        ];
        let prepared = LayerBackward
            .prepare::<C>(parents)
            .compute_bound()
            .stateful();
        if matches!(prepared, OpsKind::UnTracked(_)) {
            options.recompute = Recompute::None;
        }
        let residual_shape = match options.residual {
            ResidualKind::None => [0; 4],
            _ => residual.shape().dims(),
        };
        let [input, weight, gamma, beta, residual] =
            [input, weight, gamma, beta, residual].map(|tensor| tensor.into_primitive());
        let layer = B::layer(
            input,
            weight.clone(),
            gamma.clone(),
            beta.clone(),
            residual,
            options.clone(),
        );
        let untracked = <Self as AutodiffBackend>::from_inner;
        LayerOutput {
            kept_input: untracked(layer.kept_input.clone()),
            kept_output: untracked(layer.kept_output.clone()),
            kept_convolved: untracked(layer.kept_convolved.clone()),
            mean: untracked(layer.mean.clone()),
            variance: untracked(layer.variance.clone()),
            num_values: layer.num_values,
            output: match prepared {
                OpsKind::Tracked(prepared) => {
                    let saved = LayerSaved {
                        input: layer.kept_input,
                        weight,
                        gamma,
                        beta,
                        output: layer.kept_output,
                        convolved: layer.kept_convolved,
                        addend: layer.mean.clone(),
                        mean: layer.mean,
                        variance: layer.variance,
                        num_values: layer.num_values,
                        residual_shape,
                        has_addend: false,
                        needs_input: true,
                    };
                    prepared.finish((saved, options), layer.output)
                }
                OpsKind::UnTracked(prepared) => prepared.finish(layer.output),
            },
        }
    }

    fn layer_backward(
        _saved: LayerSaved<Self>,
        _output_gradient: FloatTensor<Self>,
        _options: LayerOptions,
    ) -> LayerGradients<Self> {
        panic!("layer_backward: a second derivative is not implemented");
    }

    fn layer_inference(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        shift: FloatTensor<Self>,
        residual: FloatTensor<Self>,
        options: LayerOptions,
    ) -> FloatTensor<Self> {
        // A frozen layer on a training device: burn's own operations carry the gradient.
        fused::composed::inference::<Self>(input, weight, scale, shift, residual, &options)
    }

    fn single(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        options: SingleOptions,
    ) -> SingleOutput<Self> {
        let parents = [input.node(), weight.node(), bias.node()];
        let prepared = SingleBackward
            .prepare::<C>(parents)
            .compute_bound()
            .stateful();
        let [input, weight, bias] = [input, weight, bias].map(|tensor| tensor.into_primitive());
        let SingleOutput {
            output,
            input,
            weight,
        } = B::single(input, weight, bias, options.clone());
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
        panic!("single_backward: a second derivative is not implemented");
    }

    fn gate(
        parameter: FloatTensor<Self>,
        input: FloatTensor<Self>,
        gate: Gate,
    ) -> FloatTensor<Self> {
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
}
