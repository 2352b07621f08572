//! Convolution, normalisation, residual and ReLU, by the fused operation or by burn's own one after the other.
//!
//! In: `[N, H, W, C_in]`. Out: `[N, H_out, W_out, C_out]`; in training the running statistics are updated.
//! Invariant: both ways compute the same function.

use std::sync::Arc;

use burn::nn::conv::Conv2d;
use burn::nn::{BatchNorm, PaddingConfig2d};
use burn::tensor::Tensor;

use crate::config::Kernels;
use crate::norm::{self, batch_norm};
use crate::ops::{FusedOptions, Residual, StatisticsReducer, fused_inference, fused_train, stock};

/// What is added before the ReLU.
pub(crate) enum Skip {
    None,
    Identity(Tensor<4>),
    /// Subsampled and padded with channels of zeros.
    A(Tensor<4>),
}

/// How a network computes its layers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Computation {
    pub(crate) kernels: Kernels,
    pub(crate) reducer: Option<Arc<dyn StatisticsReducer>>,
}

impl Computation {
    pub(crate) fn forward(
        &self,
        (conv, norm): (&Conv2d, &BatchNorm),
        input: Tensor<4>,
        skip: Skip,
        relu: bool,
    ) -> Tensor<4> {
        match self.kernels {
            Kernels::Stock => self.stock(conv, norm, input, skip, relu),
            Kernels::Fused => self.fused(conv, norm, input, skip, relu),
        }
    }

    fn stock(&self, conv: &Conv2d, norm: &BatchNorm, input: Tensor<4>, skip: Skip, relu: bool) -> Tensor<4> {
        let normalised = batch_norm(norm, stock::conv(conv, input), self.reducer.as_ref());
        let [.., channels] = normalised.dims();
        match (skip, relu) {
            (Skip::None, false) => normalised,
            (Skip::None, true) => stock::relu(normalised),
            (Skip::Identity(residual), _) => stock::add_relu(normalised, residual),
            (Skip::A(residual), _) => {
                let zero_channels = (channels - residual.dims()[3]) / 2;
                stock::add_relu(normalised, stock::subsample_and_pad(residual, zero_channels))
            }
        }
    }

    fn fused(&self, conv: &Conv2d, norm: &BatchNorm, input: Tensor<4>, skip: Skip, relu: bool) -> Tensor<4> {
        let (residual, tensor) = match skip {
            Skip::None => (Residual::None, None),
            Skip::Identity(tensor) => (Residual::Identity, Some(tensor)),
            Skip::A(tensor) => (Residual::ShortcutA, Some(tensor)),
        };
        let padding = match conv.padding {
            PaddingConfig2d::Explicit(top, ..) => top,
            _ => 0,
        };
        let options = FusedOptions {
            stride: conv.stride[0],
            padding,
            residual,
            relu,
            norm: norm::options(norm, self.reducer.as_ref()),
        };
        let weight = conv.weight.val();
        if norm::takes_batch_statistics(norm, &input) {
            let batch = fused_train(input, weight, norm.gamma.val(), norm.beta.val(), tensor, options);
            return norm::update_running(norm, batch);
        }
        let (scale, shift) = norm::folded(norm);
        fused_inference(input, weight, scale, shift, tensor, options)
    }
}
