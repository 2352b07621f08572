//! The mean over all pixels as one operation.
//!
//! In: `[N, H, W, C]`. Out: `[N, C]`, and the gradient back. Invariant: no copy into planes, unlike burn's own mean.
//! Source: Lin, Chen, Yan 2013, arXiv 1312.4400.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, TensorMetadata};
use burn::tensor::{FloatDType, Shape, Tensor};

use super::LayerOps;

/// The mean over all pixels of each image and channel, on tensors of any device, differentiable on autodiff ones.
///
/// # Shapes
/// `[N, H, W, C]` to `[N, C]`, the latter in f32 whatever the input is.
pub(crate) fn global_average(input: Tensor<4>) -> Tensor<2> {
    Tensor::from_dispatch(<Dispatch as LayerOps>::global_average(
        input.into_dispatch(),
    ))
}

pub(super) fn composed<B: Backend>(input: FloatTensor<B>) -> FloatTensor<B> {
    let [n, h, w, channels] = input.shape().dims();
    // Reshaped first: a cast in front of a view would write all of it.
    let pixels = B::float_cast(
        B::float_reshape(input, Shape::new([n, h * w, channels])),
        FloatDType::F32,
    );
    B::float_reshape(B::float_mean_dim(pixels, 1), Shape::new([n, channels]))
}

pub(super) fn composed_backward<B: Backend>(
    gradient: FloatTensor<B>,
    shape: [usize; 4],
    dtype: FloatDType,
) -> FloatTensor<B> {
    let [n, h, w, channels] = shape;
    let spread = B::float_cast(
        B::float_div_scalar(gradient, ((h * w) as f64).into()),
        dtype,
    );
    B::float_expand(
        B::float_reshape(spread, Shape::new([n, 1, 1, channels])),
        Shape::new(shape),
    )
}

#[derive(Debug)]
struct GlobalAverageBackward;

impl<B: LayerOps> Backward<B, 1> for GlobalAverageBackward {
    type State = ([usize; 4], FloatDType);

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        gradients: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let gradient = gradients.consume::<B>(&ops.node);
        let ([input], (shape, dtype)) = (ops.parents, ops.state);
        if let Some(node) = input {
            gradients.register::<B>(
                node.id,
                <B as LayerOps>::global_average_backward(gradient, shape, dtype),
            );
        }
    }
}

pub(super) fn tracked<B: LayerOps, C: CheckpointStrategy>(
    input: FloatTensor<Autodiff<B, C>>,
) -> FloatTensor<Autodiff<B, C>> {
    let state = (input.shape().dims(), FloatDType::from(input.dtype()));
    let prepared = GlobalAverageBackward
        .prepare::<C>([input.node()])
        .compute_bound()
        .stateful();
    let output = <B as LayerOps>::global_average(input.into_primitive());
    match prepared {
        OpsKind::Tracked(prepared) => prepared.finish(state, output),
        OpsKind::UnTracked(prepared) => prepared.finish(output),
    }
}
