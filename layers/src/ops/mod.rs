//! The operations burn lacks, as one backend extension, and burn's own on channels-last tensors.
//!
//! In: `[N, H, W, C]` tensors. Out: the same. Invariant: each extension operation has a body
//! composed of burn's operations, which every backend may replace by a faster one that agrees with
//! it, and one handwritten backward for all.

// burn calls its NdArray backend so; it is the second opinion in our tests.
#![cfg_attr(feature = "ndarray", allow(deprecated))]

mod alone;
mod autodiff;
mod average;
#[cfg(feature = "flex")]
mod channels_last;
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

use std::sync::Arc;

use burn::backend::ops::ConvOptions;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, ExtensionType, backend_extension};
use burn::tensor::{FloatDType, Tensor};
use kernels::batch_norm::Rectifier;
use kernels::simd::Isa;

pub use alone::{KernelAlone, KernelCalls};
pub(crate) use average::global_average;
pub use clock::{KernelTime, kernel_times};
pub(crate) use fused::{
    FusedGradients, FusedOptions, FusedOutput, FusedSaved, NormLink, Residual, fused_inference,
    fused_train,
};
pub(crate) use gate::{Gate, gated};
pub(crate) use gradient_hook::HookedParameters;
pub use gradient_hook::{GradientHook, gradient_hook};
pub use joined_gradients::{Joined, JoinedGradients};
pub use statistics::StatisticsReducer;

/// What a batch normalisation needs beside its tensors.
#[derive(Clone, Debug)]
pub(crate) struct BatchNormOptions {
    /// Added to the variance before the square root.
    pub epsilon: f64,
    /// Sums the statistics over all who compute the batch together; `None`: this batch alone.
    pub reducer: Option<Arc<dyn StatisticsReducer>>,
    /// What follows it in the same operation, where it stands alone.
    pub rectifier: Rectifier,
    /// To the layers that will read the output, where it stands alone.
    pub output: Option<Arc<NormLink>>,
    /// The instruction set of our own kernels.
    pub isa: Isa,
}

impl BatchNormOptions {
    /// Of this batch alone, with nothing after it, on the best instruction set there is.
    pub(crate) fn new(epsilon: f64) -> Self {
        Self {
            epsilon,
            reducer: None,
            rectifier: Rectifier::None,
            output: None,
            isa: Isa::detect(),
        }
    }
}

/// Results of [`LayerOps::batch_norm_train`] on a backend.
#[derive(ExtensionType)]
pub(crate) struct BatchNormOutput<B: Backend> {
    /// `[N, H, W, C]`; where the link to the next layer says so, the input, of which the gradient is nevertheless that of what the next
    /// layer makes of it.
    pub output: FloatTensor<B>,
    /// `[C]`, over all values of the channel; not tracked.
    pub mean: FloatTensor<B>,
    /// `[C]`, biased; not tracked.
    pub variance: FloatTensor<B>,
    /// How many values of each channel the statistics were taken over.
    pub num_values: f64,
}

/// What [`LayerOps::batch_norm_train_backward`] needs of the forward pass.
#[derive(ExtensionType, Clone, Debug)]
#[extension_type(fusion: cfg(any(feature = "cuda", feature = "wgpu")))]
pub(crate) struct BatchNormSaved<B: Backend> {
    /// `[N, H, W, C]`; as a table `[groups, rows, C]`.
    pub input: FloatTensor<B>,
    /// `[C]`.
    pub gamma: FloatTensor<B>,
    /// `[C]`.
    pub beta: FloatTensor<B>,
    /// `[C]`.
    pub mean: FloatTensor<B>,
    /// `[C]`, biased.
    pub variance: FloatTensor<B>,
    /// Over all who computed the batch together.
    pub num_values: f64,
}

/// What belongs to a normalisation's table beside its tensors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct NormEnd {
    /// Added to the variance before the square root.
    pub epsilon: f64,
    /// Whether something is added to what was normalised.
    pub has_residual: bool,
    /// What follows.
    pub rectifier: Rectifier,
}

/// Results of [`LayerOps::batch_norm_train_backward`].
#[derive(ExtensionType)]
pub(crate) struct BatchNormGradients<B: Backend> {
    /// `[N, H, W, C]`.
    pub input: FloatTensor<B>,
    /// `[C]`, summed over this batch only.
    pub gamma: FloatTensor<B>,
    /// `[C]`, summed over this batch only.
    pub beta: FloatTensor<B>,
}

/// The backend extension. On burn's GPU backend the methods `norm_*` are kernels of ours, which burn's fusion queues and runs in their
/// turn; the others are composed of them and of operations that burn fuses.
#[backend_extension(
    Flex: cfg(feature = "flex"),
    NdArray: cfg(feature = "ndarray"),
    Cube: cfg(any(feature = "cuda", feature = "wgpu")),
    Fusion: cfg(any(feature = "cuda", feature = "wgpu")),
    Autodiff,
)]
pub(crate) trait LayerOps: Backend {
    /// Normalises each channel by the mean and biased variance over `N * H * W`, scales by
    /// `gamma`, shifts by `beta` (Ioffe and Szegedy 2015, arXiv 1502.03167, algorithm 1), rectifies.
    ///
    /// # Collective
    /// With a reducer: one sum of `1 + 2C` values.
    #[fusion(default)]
    fn batch_norm_train(
        input: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        options: BatchNormOptions,
    ) -> BatchNormOutput<Self> {
        composed::forward::<Self>(input, gamma, beta, &options)
    }

    /// The gradients of [`LayerOps::batch_norm_train`], given its input and statistics; with `dy` behind the rectifier
    /// `dx = gamma / std * (dy - sum(dy) / n - xhat * sum(dy * xhat) / n)`.
    ///
    /// # Collective
    /// With a reducer: one sum of `2C` values.
    #[fusion(default)]
    fn batch_norm_train_backward(
        #[extension_type] saved: BatchNormSaved<Self>,
        output_gradient: FloatTensor<Self>,
        options: BatchNormOptions,
    ) -> BatchNormGradients<Self> {
        composed::backward::<Self>(saved, output_gradient, &options)
    }

    /// Convolution without bias, normalisation as [`LayerOps::batch_norm_train`], residual, ReLU.
    ///
    /// # Collective
    /// With a reducer: one sum of `1 + 2C` values.
    #[fusion(default)]
    fn fused_train(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        residual: FloatTensor<Self>,
        options: FusedOptions,
    ) -> FusedOutput<Self> {
        fused::composed::forward::<Self>(input, weight, gamma, beta, residual, options)
    }

    /// Convolution without bias, scale and shift per channel, residual, ReLU.
    #[fusion(default)]
    fn fused_inference(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        shift: FloatTensor<Self>,
        residual: FloatTensor<Self>,
        options: FusedOptions,
    ) -> FloatTensor<Self> {
        fused::composed::inference::<Self>(input, weight, scale, shift, residual, &options)
    }

    /// What of all this is held until the backward pass: a body may make some of it again ([`crate::Recompute`]).
    #[fusion(default)]
    fn fused_train_kept(
        #[extension_type] saved: FusedSaved<Self>,
        _options: FusedOptions,
    ) -> FusedSaved<Self> {
        saved
    }

    /// The gradients of [`LayerOps::fused_train`], given what [`LayerOps::fused_train_kept`] kept.
    ///
    /// # Collective
    /// With a reducer: one sum of `2C` values.
    #[fusion(default)]
    fn fused_train_backward(
        #[extension_type] saved: FusedSaved<Self>,
        output_gradient: FloatTensor<Self>,
        options: FusedOptions,
    ) -> FusedGradients<Self> {
        fused::composed::backward::<Self>(saved, output_gradient, options)
    }

    /// The parameter, unchanged; on autodiff tensors its gradient goes through the gate, and none to the tape.
    #[fusion(default)]
    fn gate(
        parameter: FloatTensor<Self>,
        _input: FloatTensor<Self>,
        _gate: Gate,
    ) -> FloatTensor<Self> {
        parameter
    }

    /// The mean over all pixels in f32: `[N, H, W, C]` to `[N, C]`.
    #[fusion(default)]
    fn global_average(input: FloatTensor<Self>) -> FloatTensor<Self> {
        average::composed::<Self>(input)
    }

    /// The gradient of [`LayerOps::global_average`] for an input of `shape` and `dtype`.
    #[fusion(default)]
    fn global_average_backward(
        output_gradient: FloatTensor<Self>,
        shape: [usize; 4],
        dtype: FloatDType,
    ) -> FloatTensor<Self> {
        average::composed_backward::<Self>(output_gradient, shape, dtype)
    }

    /// The mean and the biased variance of each channel of a table `[groups, rows, C]`: two tensors `[1, 1, C]` in f32.
    #[fusion(meta = |table| (cube::row(table), cube::row(table)))]
    fn norm_moments(table: FloatTensor<Self>) -> (FloatTensor<Self>, FloatTensor<Self>) {
        composed::moments::<Self>(table)
    }

    /// What a layer makes of a table: `rectified(gamma * (x - mean) / std + beta + residual)`, in its shape and number format.
    /// `residual`: a table of the same shape, or any tensor where the end has none.
    #[fusion(meta = |saved, _residual, _end| saved.input.clone())]
    fn norm_apply(
        #[extension_type] saved: BatchNormSaved<Self>,
        residual: FloatTensor<Self>,
        end: NormEnd,
    ) -> FloatTensor<Self> {
        composed::apply::<Self>(&saved, residual, end)
    }

    /// The gradient behind the rectifier, which let `output` through, in the table's shape and number format; its sum over the rows, and
    /// that of it times the normalised input, `[1, 1, C]` in f32.
    #[fusion(meta = |saved, _output, _dy, _end| (saved.input.clone(), cube::row(&saved.input), cube::row(&saved.input)))]
    fn norm_gradient_sums(
        #[extension_type] saved: BatchNormSaved<Self>,
        output: FloatTensor<Self>,
        dy: FloatTensor<Self>,
        end: NormEnd,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        composed::gradient_sums::<Self>(&saved, output, dy, end)
    }

    /// The gradient of the table in its number format, given that behind the rectifier and the two sums `[1, 1, C]` of all who computed
    /// the batch together.
    #[fusion(meta = |saved, _plain, _with_normalised, _dy, _end| saved.input.clone())]
    fn norm_gradient_input(
        #[extension_type] saved: BatchNormSaved<Self>,
        plain: FloatTensor<Self>,
        with_normalised: FloatTensor<Self>,
        dy: FloatTensor<Self>,
        end: NormEnd,
    ) -> FloatTensor<Self> {
        composed::gradient_input::<Self>(saved, [plain, with_normalised], dy, end)
    }

    /// A convolution without bias: `[N, H, W, C_in]` by `[C_out, C_in, k, k]` to `[N, H_out, W_out, C_out]`, in the input's number format.
    #[fusion(meta = |input, weight, options| cube::convolved(input, weight, options))]
    fn convolution(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        options: ConvOptions<2>,
    ) -> FloatTensor<Self> {
        fused::convolution_by_burn::<Self>(input, weight, options)
    }

    /// The gradient of a convolution's input `[N, H, W, C_in]`, of which only the shape counts: weight `[C_out, C_in, k, k]`, the output's
    /// gradient `[N, H_out, W_out, C_out]`.
    #[fusion(meta = |input, _weight, _dy, _options| input.clone())]
    fn input_gradient(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        dy: FloatTensor<Self>,
        options: ConvOptions<2>,
    ) -> FloatTensor<Self> {
        fused::input_gradient_by_burn::<Self>(input, weight, dy, options)
    }

    /// The gradient of a convolution's weight `[C_out, C_in, k, k]`, of which only the shape counts, in f32: `input` `[N, H, W, C_in]`, the
    /// output's gradient `[N, H_out, W_out, C_out]`. Where burn computes it in 16 bits, it is rounded to them.
    #[fusion(meta = |_input, weight, _dy, _options| cube::in_f32(weight))]
    fn weight_gradient(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        dy: FloatTensor<Self>,
        options: ConvOptions<2>,
    ) -> FloatTensor<Self> {
        fused::weight_gradient_by_burn::<Self>(input, weight, dy, options)
    }

    /// The values of `source`, on a GPU in the memory of `target`.
    #[fusion(meta = |target, _source| target.clone())]
    fn overwrite(_target: FloatTensor<Self>, source: FloatTensor<Self>) -> FloatTensor<Self> {
        source
    }
}

#[cfg(feature = "ndarray")]
impl LayerOps for burn::backend::NdArray {}

/// Returns the values of `source`; on a GPU it writes them to the memory of `target`.
///
/// There every holder of `target` has the new values, even if the result is dropped. Keep the result until the device got the work.
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

/// Results of [`batch_norm_train`].
#[derive(Debug)]
pub(crate) struct BatchNormTrain {
    /// `[N, H, W, C]`.
    pub output: Tensor<4>,
    /// `[C]`, over all values of the channel; no gradient flows through it.
    pub mean: Tensor<1>,
    /// `[C]`, biased; no gradient flows through it.
    pub variance: Tensor<1>,
    /// How many values of each channel the statistics were taken over.
    pub num_values: f64,
}

/// [`LayerOps::batch_norm_train`] on tensors of any device, differentiable on autodiff ones.
///
/// # Shapes
/// `input`: `[N, H, W, C]`; `gamma` and `beta`: `[C]`.
///
/// # Collective
/// With a reducer: one sum in the forward and one in the backward pass.
pub(crate) fn batch_norm_train(
    input: Tensor<4>,
    gamma: Tensor<1>,
    beta: Tensor<1>,
    options: BatchNormOptions,
) -> BatchNormTrain {
    let batch = <Dispatch as LayerOps>::batch_norm_train(
        input.into_dispatch(),
        composed::widen::<Dispatch>(gamma.into_dispatch()),
        composed::widen::<Dispatch>(beta.into_dispatch()),
        options,
    );
    BatchNormTrain {
        output: Tensor::from_dispatch(batch.output),
        mean: Tensor::from_dispatch(batch.mean),
        variance: Tensor::from_dispatch(batch.variance),
        num_values: batch.num_values,
    }
}
