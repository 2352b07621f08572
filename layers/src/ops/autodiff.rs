//! The extension on autodiff tensors: the inner backend's operation and its handwritten backward.
//!
//! In: tracked or untracked tensors. Out: a tracked output, untracked statistics. Invariant: the
//! operation counts as compute-bound, so gradient checkpointing never runs its forward (and the
//! reducer's sum in it) a second time.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, AutodiffBackend};
use burn::tensor::FloatDType;

use super::{
    BatchNormGradients, BatchNormOptions, BatchNormOutput, BatchNormSaved, FusedGradients,
    FusedOptions, FusedOutput, FusedSaved, Gate, LayerOps, average, fused, gate,
};

#[derive(Debug)]
struct BatchNormTrainBackward;

impl<B: LayerOps> Backward<B, 3> for BatchNormTrainBackward {
    type State = (BatchNormSaved<B>, BatchNormOptions);

    fn backward(
        self,
        ops: Ops<Self::State, 3>,
        gradients: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let output_gradient = gradients.consume::<B>(&ops.node);
        let (saved, options) = ops.state;
        let computed = <B as LayerOps>::batch_norm_train_backward(saved, output_gradient, options);
        let computed = [computed.input, computed.gamma, computed.beta];
        for (parent, gradient) in ops.parents.into_iter().zip(computed) {
            if let Some(node) = parent {
                gradients.register::<B>(node.id, gradient);
            }
        }
    }
}

impl<B: LayerOps, C: CheckpointStrategy> LayerOps for Autodiff<B, C> {
    fn batch_norm_train(
        input: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        options: BatchNormOptions,
    ) -> BatchNormOutput<Self> {
        let guards = [input.node(), gamma.node(), beta.node()];
        let prepared = BatchNormTrainBackward
            .prepare::<C>(guards)
            .compute_bound()
            .stateful();
        let [input, gamma, beta] = [input, gamma, beta].map(|tensor| tensor.into_primitive());
        match prepared {
            OpsKind::Tracked(prepared) => {
                let batch = <B as LayerOps>::batch_norm_train(
                    input.clone(),
                    gamma.clone(),
                    beta.clone(),
                    options.clone(),
                );
                let (mean, variance) = (batch.mean.clone(), batch.variance.clone());
                let saved = BatchNormSaved {
                    input,
                    gamma,
                    beta,
                    mean,
                    variance,
                    num_values: batch.num_values,
                };
                lift(batch, |output| prepared.finish((saved, options), output))
            }
            OpsKind::UnTracked(prepared) => lift(
                <B as LayerOps>::batch_norm_train(input, gamma, beta, options),
                |output| prepared.finish(output),
            ),
        }
    }

    fn batch_norm_train_backward(
        _saved: BatchNormSaved<Self>,
        _output_gradient: FloatTensor<Self>,
        _options: BatchNormOptions,
    ) -> BatchNormGradients<Self> {
        panic!("batch_norm_train_backward: its own derivative is not implemented");
    }

    fn fused_train(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        residual: FloatTensor<Self>,
        options: FusedOptions,
    ) -> FusedOutput<Self> {
        fused::autodiff::forward(input, weight, gamma, beta, residual, options)
    }

    fn fused_inference(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        shift: FloatTensor<Self>,
        residual: FloatTensor<Self>,
        options: FusedOptions,
    ) -> FloatTensor<Self> {
        // A frozen layer on a training device: burn's own operations carry the gradient.
        fused::composed::inference::<Self>(input, weight, scale, shift, residual, &options)
    }

    fn fused_train_backward(
        _saved: FusedSaved<Self>,
        _output_gradient: FloatTensor<Self>,
        _options: FusedOptions,
    ) -> FusedGradients<Self> {
        panic!("fused_train_backward: its own derivative is not implemented");
    }

    fn gate(
        parameter: FloatTensor<Self>,
        input: FloatTensor<Self>,
        gate: Gate,
    ) -> FloatTensor<Self> {
        gate::tracked::<B, C>(parameter, input, gate)
    }

    fn global_average(input: FloatTensor<Self>) -> FloatTensor<Self> {
        average::tracked::<B, C>(input)
    }

    fn global_average_backward(
        _output_gradient: FloatTensor<Self>,
        _shape: [usize; 4],
        _dtype: FloatDType,
    ) -> FloatTensor<Self> {
        panic!("global_average_backward: its own derivative is not implemented");
    }
}

/// Wraps the inner results: the output as `finish` tracks it, the statistics untracked.
fn lift<B: LayerOps, C: CheckpointStrategy>(
    batch: BatchNormOutput<B>,
    finish: impl FnOnce(FloatTensor<B>) -> FloatTensor<Autodiff<B, C>>,
) -> BatchNormOutput<Autodiff<B, C>> {
    BatchNormOutput {
        output: finish(batch.output),
        mean: <Autodiff<B, C> as AutodiffBackend>::from_inner(batch.mean),
        variance: <Autodiff<B, C> as AutodiffBackend>::from_inner(batch.variance),
        num_values: batch.num_values,
    }
}
