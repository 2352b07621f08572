//! The operations burn lacks, as one backend extension, and burn's own operations on channels-last
//! tensors.
//!
//! In: `[N, H, W, C]` tensors. Out: the same.
//! Invariant: each operation has a body composed of burn's operations, or exists only on Flex. A
//! backend may replace the body by a faster one that agrees with it. All bodies of an operation
//! share one handwritten backward pass.

// burn calls its NdArray backend deprecated; it is the second opinion in our tests.
#![cfg_attr(feature = "ndarray", allow(deprecated))]

mod alone;
mod autodiff;
mod clock;
mod composed;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
mod cube;
#[cfg(feature = "flex")]
mod flex;
mod fused;
mod gate;
mod gradient_hook;
mod joined_gradients;
#[cfg(feature = "flex")]
mod memory;
pub(crate) mod single;
mod statistics;
pub(crate) mod stock;
mod tables;
#[cfg(all(test, feature = "flex"))]
mod tests;

use burn::backend::ops::ConvOptions;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, ExtensionType, backend_extension};
use burn::tensor::Tensor;
use kernels::batch_norm::Rectifier;

use crate::choices::Convolution;
use single::{SingleGradients, SingleOptions, SingleOutput, SingleSaved, Wanted};

pub use alone::{KernelAlone, KernelCalls};
pub(crate) use clock::count_multiply_adds;
pub use clock::{KernelTime, kernel_times, multiply_adds};
pub(crate) use fused::{
    LayerGradients, LayerOptions, LayerOutput, LayerSaved, NormLink, ResidualKind, layer_inference,
    layer_train,
};
pub(crate) use gate::{Gate, gated};
pub(crate) use gradient_hook::HookedParameters;
pub use gradient_hook::{GradientHook, gradient_hook};
pub use joined_gradients::{Joined, JoinedGradients};
pub use statistics::StatisticsReducer;

/// A convolution without dilation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConvolutionOptions {
    /// Step of the kernel in both directions.
    pub stride: usize,
    /// Zeros above and below the image, and to its left and right.
    pub padding: [usize; 2],
    /// Algorithm of Lockstep's kernels; in other bodies burn chooses.
    pub algorithm: Convolution,
}

/// A table with the normalisation of its channels.
#[derive(ExtensionType, Clone, Debug)]
#[extension_type(fusion: cfg(any(feature = "cuda", feature = "wgpu")))]
pub(crate) struct NormTable<B: Backend> {
    /// `[groups, rows, C]`.
    pub input: FloatTensor<B>,
    /// `[C]`.
    pub gamma: FloatTensor<B>,
    /// `[C]`.
    pub beta: FloatTensor<B>,
    /// `[1, 1, C]`, or `[C]`.
    pub mean: FloatTensor<B>,
    /// As `mean`; biased.
    pub variance: FloatTensor<B>,
    /// Values per channel behind the statistics, over all ranks that computed the batch.
    pub num_values: f64,
}

/// The end of a normalisation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct NormEnd {
    /// Added to the variance before the square root.
    pub epsilon: f64,
    /// True if a residual is added to the normalised values.
    pub has_residual: bool,
    /// Function after the sum.
    pub rectifier: Rectifier,
}

/// The backend extension.
///
/// On burn's GPU backend the methods `norm_*` and the convolutions are Lockstep's kernels, which
/// burn's fusion queues and runs in their turn. The other methods are composed of them and of
/// operations that burn fuses.
#[backend_extension(
    Flex: cfg(feature = "flex"),
    NdArray: cfg(feature = "ndarray"),
    Cube: cfg(any(feature = "cuda", feature = "wgpu")),
    Fusion: cfg(any(feature = "cuda", feature = "wgpu")),
    Autodiff,
)]
pub(crate) trait LayerOps: Backend {
    /// Computes a layer in training: a convolution without bias if the options have one,
    /// normalisation, residual, rectifier.
    ///
    /// The normalisation takes the mean and the biased variance over `N * H * W`, scales by
    /// `gamma` and shifts by `beta` (Ioffe and Szegedy 2015, arXiv 1502.03167, algorithm 1).
    /// An absent weight or residual is any tensor.
    ///
    /// # Collective
    /// With a reducer: one sum of `1 + 2C` values.
    #[fusion(default)]
    fn layer(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        residual: FloatTensor<Self>,
        options: LayerOptions,
    ) -> LayerOutput<Self> {
        fused::composed::forward::<Self>(input, weight, gamma, beta, residual, options)
    }

    /// Returns the gradients of [`LayerOps::layer`], given the tensors that it kept.
    ///
    /// With `dy` behind the rectifier, the gradient before the normalisation is
    /// `gamma / std * (dy - sum(dy) / n - xhat * sum(dy * xhat) / n)`.
    ///
    /// # Collective
    /// With a reducer: one sum of `2C` values.
    #[fusion(default)]
    fn layer_backward(
        #[extension_type] saved: LayerSaved<Self>,
        output_gradient: FloatTensor<Self>,
        options: LayerOptions,
    ) -> LayerGradients<Self> {
        fused::composed::backward::<Self>(saved, output_gradient, options)
    }

    /// Computes a layer outside training: convolution, scale and shift per channel, residual,
    /// rectifier.
    #[fusion(default)]
    fn layer_inference(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        shift: FloatTensor<Self>,
        residual: FloatTensor<Self>,
        options: LayerOptions,
    ) -> FloatTensor<Self> {
        fused::composed::inference::<Self>(input, weight, scale, shift, residual, &options)
    }

    /// Computes an operation that is not part of a layer. An absent parameter is any tensor.
    #[fusion(default)]
    fn single(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        _bias: FloatTensor<Self>,
        options: SingleOptions,
    ) -> SingleOutput<Self> {
        single::composed::forward::<Self>(input, weight, &options)
    }

    /// Returns the gradients of [`LayerOps::single`].
    #[fusion(default)]
    fn single_backward(
        #[extension_type] saved: SingleSaved<Self>,
        output_gradient: FloatTensor<Self>,
        options: SingleOptions,
        _wanted: Wanted,
    ) -> SingleGradients<Self> {
        single::composed::backward::<Self>(saved, output_gradient, &options)
    }

    /// Returns the parameter; on autodiff tensors its gradient goes through the gate, not to the
    /// tape.
    #[fusion(default)]
    fn gate(
        parameter: FloatTensor<Self>,
        _input: FloatTensor<Self>,
        _gate: Gate,
    ) -> FloatTensor<Self> {
        parameter
    }

    /// Returns the mean and the biased variance of each channel of a table `[groups, rows, C]`:
    /// two tensors `[1, 1, C]` in f32.
    #[fusion(meta = |table| (cube::row(table), cube::row(table)))]
    fn norm_moments(table: FloatTensor<Self>) -> (FloatTensor<Self>, FloatTensor<Self>) {
        composed::moments::<Self>(table)
    }

    /// Returns `rectified(gamma * (x - mean) / std + beta + residual)` in the shape and number
    /// format of the table.
    ///
    /// `residual`: a table of the same shape, or any tensor if the end has none.
    #[fusion(meta = |saved, _residual, _end| saved.input.clone())]
    fn norm_apply(
        #[extension_type] saved: NormTable<Self>,
        residual: FloatTensor<Self>,
        end: NormEnd,
    ) -> FloatTensor<Self> {
        composed::apply::<Self>(&saved, residual, end)
    }

    /// Returns the gradient behind the rectifier, whose output is `output`, and two sums.
    ///
    /// The gradient has the shape and number format of the table. The sums over the rows are of
    /// the gradient, and of the gradient times the normalised input: `[1, 1, C]` in f32.
    #[fusion(meta = |saved, _output, _dy, _end| (saved.input.clone(), cube::row(&saved.input), cube::row(&saved.input)))]
    fn norm_gradient_sums(
        #[extension_type] saved: NormTable<Self>,
        output: FloatTensor<Self>,
        dy: FloatTensor<Self>,
        end: NormEnd,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        composed::gradient_sums::<Self>(&saved, output, dy, end)
    }

    /// Returns the gradient of the table in its number format, given the gradient behind the
    /// rectifier and the two sums `[1, 1, C]` over all ranks that computed the batch.
    #[fusion(meta = |saved, _plain, _with_normalised, _dy, _end| saved.input.clone())]
    fn norm_gradient_input(
        #[extension_type] saved: NormTable<Self>,
        plain: FloatTensor<Self>,
        with_normalised: FloatTensor<Self>,
        dy: FloatTensor<Self>,
        end: NormEnd,
    ) -> FloatTensor<Self> {
        composed::gradient_input::<Self>(saved, [plain, with_normalised], dy, end)
    }

    /// Convolves without bias: `[N, H, W, C_in]` by `[C_out, C_in, k, l]` to
    /// `[N, H_out, W_out, C_out]`, in the input's number format.
    #[fusion(meta = |input, weight, options| cube::convolved(input, weight, options))]
    fn convolution(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        options: ConvOptions<2>,
    ) -> FloatTensor<Self> {
        fused::convolution_by_burn::<Self>(input, weight, options)
    }

    /// Returns the gradient of a convolution's input `[N, H, W, C_in]`.
    ///
    /// Only the shape of `input` is used; weight `[C_out, C_in, k, k]`, the output's gradient
    /// `[N, H_out, W_out, C_out]`.
    #[fusion(meta = |input, _weight, _dy, _options| input.clone())]
    fn input_gradient(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        dy: FloatTensor<Self>,
        options: ConvOptions<2>,
    ) -> FloatTensor<Self> {
        fused::input_gradient_by_burn::<Self>(input, weight, dy, options)
    }

    /// Returns the gradient of a convolution's weight `[C_out, C_in, k, k]` in f32.
    ///
    /// Only the shape of `weight` is used; `input` `[N, H, W, C_in]`, the output's gradient
    /// `[N, H_out, W_out, C_out]`. If burn computes it in 16 bits, it is rounded to them.
    #[fusion(meta = |_input, weight, _dy, _options| cube::in_f32(weight))]
    fn weight_gradient(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        dy: FloatTensor<Self>,
        options: ConvOptions<2>,
    ) -> FloatTensor<Self> {
        fused::weight_gradient_by_burn::<Self>(input, weight, dy, options)
    }

    /// Returns the values of `source`, on a GPU in the memory of `target`.
    #[fusion(meta = |target, _source| target.clone())]
    fn overwrite(_target: FloatTensor<Self>, source: FloatTensor<Self>) -> FloatTensor<Self> {
        source
    }
}

#[cfg(feature = "ndarray")]
impl LayerOps for burn::backend::NdArray {}

/// Returns the values of `source`; on a GPU it writes them to the memory of `target`.
///
/// On a GPU every holder of `target` then has the new values, even if the result is dropped. Keep
/// the result until the device got the work.
///
/// # Shapes
/// Both `[len]`, in f32. Only a flat tensor has no gaps.
pub fn overwrite(target: &Tensor<1>, source: Tensor<1>) -> Tensor<1> {
    let target = target.clone().into_dispatch();
    Tensor::from_dispatch(<Dispatch as LayerOps>::overwrite(
        target,
        source.into_dispatch(),
    ))
}
