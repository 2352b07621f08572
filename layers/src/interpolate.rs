//! Interpolation to another height and width, PyTorch's `Upsample`.
//!
//! In: [`Features`] `[N, H, W, C]`. Out: features with other extents.
//! Invariant: the function of burn's module.

use burn::nn::interpolate;
pub use burn::nn::interpolate::InterpolateMode;
use burn::tensor::Tensor;

use crate::context::PassContext;
use crate::features::{Features, in_f32};
use crate::modules::{around, config_around};
use crate::ops::single::{Operation, computes, single};
use crate::pooling::by_burn;

around!(
    Interpolate2d,
    interpolate::Interpolate2d,
    "Interpolation of channels-last features."
);

config_around!(Interpolate2dConfig, interpolate::Interpolate2dConfig, Interpolate2d, [
    with_output_size: Option<[usize; 2]>, with_scale_factor: Option<[f32; 2]>, with_mode: InterpolateMode, with_align_corners: bool
]);

impl Interpolate2dConfig {
    /// Returns the configuration of the mode "nearest". It needs an output size or a scale factor.
    pub fn new() -> Self {
        Self(interpolate::Interpolate2dConfig::new())
    }
}

impl Default for Interpolate2dConfig {
    fn default() -> Self {
        Self::new()
    }
}

impl Interpolate2d {
    /// Interpolates. Lockstep's kernel doubles height and width in the mode "nearest"; burn's
    /// operation computes all others, in f32.
    ///
    /// # Shapes
    /// `[N, H, W, C]` to `[N, H_out, W_out, C]`.
    ///
    /// # Panics
    /// Unless exactly one of output size and scale factor is set.
    pub fn forward(&self, features: impl Into<Features>) -> Features {
        let x = Tensor::from(features.into());
        let computation = PassContext::current().computation;
        let [_, height, width, _] = x.dims();
        let doubles = match (self.output_size, self.scale_factor) {
            (Some(size), None) => size == [2 * height, 2 * width],
            (None, Some(factor)) => factor == [2.0, 2.0],
            _ => false,
        };
        let is_ours = doubles && matches!(self.mode, InterpolateMode::Nearest);
        if is_ours && computes(&x, &computation) {
            return single(x, [None, None], Operation::Upsample, computation.isa).into();
        }
        let name = || format!("interpolation by the mode {:?}", self.mode);
        in_f32(x, |x| {
            by_burn(x, name, |planes| self.0.forward(planes)).into()
        })
        .into()
    }
}
