//! Transposed convolution of channels-last features.
//!
//! In: [`Features`] `[N, H, W, C_in]`. Out: features with more pixels.
//! Invariant: the module contains burn's module.
//! Source: Zeiler et al. 2010, "Deconvolutional Networks".

use burn::module::{Initializer, Param};
use burn::nn::conv;
use burn::tensor::{Device, Tensor};

use crate::context::PassContext;
use crate::features::{Features, in_f32, widened};
use crate::modules::{around, config_around};
use crate::ops::single::{Operation, computes, single};
use crate::ops::{count_multiply_adds, gated};
use crate::pooling::by_burn;
use crate::rewrite::swap_axes;

around!(
    ConvTranspose2d,
    conv::ConvTranspose2d,
    "A transposed convolution of channels-last features."
);

config_around!(ConvTranspose2dConfig, conv::ConvTranspose2dConfig, ConvTranspose2d, [
    with_stride: [usize; 2], with_dilation: [usize; 2], with_groups: usize, with_padding: [usize; 2],
    with_padding_out: [usize; 2], with_bias: bool, with_initializer: Initializer
], device);

impl ConvTranspose2dConfig {
    /// Returns the configuration for `[C_in, C_out]` channels and a kernel of `kernel_size`.
    pub fn new(channels: [usize; 2], kernel_size: [usize; 2]) -> Self {
        Self(conv::ConvTranspose2dConfig::new(channels, kernel_size))
    }
}

impl ConvTranspose2d {
    /// Computes the gradient of a convolution's input. If kernel and stride are equal and there are
    /// no padding, groups or dilation, it is Lockstep's linear layer and a permutation. burn's
    /// operation computes all others, in f32.
    ///
    /// # Shapes
    /// `[N, H, W, C_in]` to `[N, H_out, W_out, C_out]`.
    ///
    /// # Panics
    /// If the features have other channels.
    pub fn forward(&self, features: impl Into<Features>) -> Features {
        let x = Tensor::from(features.into());
        let [n, height, width, channels] = x.dims();
        let [expected, out_channels, rows, columns] = self.weight.dims();
        assert!(
            channels == expected,
            "transposed convolution: expected [N, H, W, {expected}], got {:?}",
            x.dims()
        );
        count_multiply_adds(self.weight.shape().num_elements(), n * height * width);
        let PassContext {
            computation, hook, ..
        } = PassContext::current();
        let weight = widened(gated(&self.weight, &x, hook.as_ref()));
        let bias = self.bias.as_ref();
        let bias = bias.map(|bias| (bias.id, widened(gated(bias, &x, hook.as_ref()))));
        let is_ours = self.stride == self.kernel_size
            && [self.padding, self.padding_out] == [[0; 2]; 2]
            && self.dilation == [1, 1]
            && self.groups == 1
            && n > 0;
        if is_ours && computes(&x, &computation) {
            let weight = weight
                .permute([0, 2, 3, 1])
                .reshape([channels, rows * columns * out_channels]);
            let bias = bias.map(|(_, bias)| bias.repeat(&[rows * columns]).into_dispatch());
            let parameters = [Some(weight.into_dispatch()), bias];
            let y = single(x, parameters, Operation::Linear, computation.isa);
            let y = y.reshape([n * height, width, rows, columns * out_channels]);
            return swap_axes(y, &computation)
                .reshape([n, height * rows, width * columns, out_channels])
                .into();
        }
        let conv = conv::ConvTranspose2d {
            weight: Param::initialized(self.weight.id, weight),
            bias: bias.map(|(id, bias)| Param::initialized(id, bias)),
            ..self.0.clone()
        };
        let name = || {
            format!(
                "transposed convolution {rows}x{columns}, stride {:?}",
                self.stride
            )
        };
        in_f32(x, |x| {
            by_burn(x, name, |planes| conv.forward(planes)).into()
        })
        .into()
    }
}
