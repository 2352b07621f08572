//! Interpolation to another height and width, PyTorch's `Upsample`.
//!
//! In: [`Features`] `[N, H, W, C]`. Out: features with other extents.
//! Invariant: the function of burn's module.

use burn::nn::interpolate;
pub use burn::nn::interpolate::InterpolateMode;
use burn::tensor::Tensor;
use kernels::pool::Interpolation;

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
    /// Interpolates. Lockstep's kernels compute the modes "nearest", "linear" and "cubic". burn's
    /// operation computes the others in f32.
    ///
    /// With `align_corners`, burn's default, the centres of the corner pixels of input and output
    /// are at the same place. Without, PyTorch's default, their outer corners are.
    ///
    /// # Differs from PyTorch
    /// With a scale factor whose result is not whole, the positions are those of the output's
    /// extent, as in PyTorch with `recompute_scale_factor=True`.
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
        let size = match (self.output_size, self.scale_factor) {
            (Some(size), None) => Some(size),
            (None, Some([down, right])) => Some(
                [(height, down), (width, right)]
                    .map(|(extent, factor)| (extent as f64 * f64::from(factor)) as usize),
            ),
            _ => None,
        };
        let way = match self.mode {
            InterpolateMode::Nearest => Some(Interpolation::Nearest),
            InterpolateMode::Linear => Some(Interpolation::Linear),
            InterpolateMode::Cubic => Some(Interpolation::Cubic),
            InterpolateMode::NearestExact | InterpolateMode::Lanczos => None,
        };
        if let (Some(way), Some(size)) = (way, size)
            && height * width > 0
            && computes(&x, &computation)
        {
            let operation = if way == Interpolation::Nearest && size == [2 * height, 2 * width] {
                Operation::Upsample
            } else {
                Operation::Interpolate {
                    way,
                    size,
                    align_corners: self.align_corners,
                }
            };
            return single(x, [None, None], operation, computation.isa).into();
        }
        let name = || format!("interpolation by the mode {:?}", self.mode);
        in_f32(x, |x| {
            by_burn(x, name, |planes| self.0.forward(planes)).into()
        })
        .into()
    }
}
