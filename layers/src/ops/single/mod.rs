//! Operations of Lockstep's kernels that are not part of a layer, as one method of the extension.
//!
//! In: a tensor of f32 or 16 bits, and up to two parameters of f32 or narrower.
//! Out: a tensor of the input's format; means and losses are f32.
//! Invariant: the same function as burn's own operations. Except for means, callers use burn's
//! operations if [`computes`] is false: on other devices, in other number formats.

pub(super) mod composed;
#[cfg(feature = "flex")]
pub(super) mod flex;

use std::sync::Arc;

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, DispatchDevice, DispatchTensor, ExtensionType};
use burn::tensor::{DType, FloatDType, Tensor};
use kernels::activation::Function;
use kernels::loss::Loss;
use kernels::pool::Interpolation;
use kernels::simd::Isa;

use super::clock::Kernel;
use super::composed::widen;
use super::{ConvolutionOptions, LayerOps, NormLink};
use crate::choices::{Computation, Kernels};
use crate::features::Values;

/// An operation on x and two parameters.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation {
    /// x `[N, H, W, C_in]`, weight `[C_out, C_in / groups, K_h, K_w]`, bias `[C_out]`.
    Convolution(ConvolutionOptions),
    /// x `[.., C_in]`, weight `[C_in, C_out]` as in burn, bias `[C_out]`.
    Linear,
    /// x `[.., C]`, gamma and beta `[C]`.
    LayerNorm {
        /// Added to the variance.
        epsilon: f32,
    },
    /// x `[N, H, W, C]`, gamma and beta `[C]`.
    GroupNorm {
        groups: usize,
        /// Added to the variance.
        epsilon: f32,
    },
    /// x of any shape.
    Activation(Function),
    /// x `[.., C]`: of the last axis.
    Softmax {
        /// True for the logarithm.
        is_log: bool,
    },
    /// Queries, keys and values `[N, tokens, 3 * heads * width]`, in this order, to
    /// `[N, tokens, heads * width]`. Added scores `[N, tokens, tokens]` are the weight, which gets
    /// no gradient.
    Attention { heads: usize, mask: MaskKind },
    /// x `[N, H, W, C]`: stride 2; 3x3 with padding 1, or 2x2.
    MaxPool { window: usize },
    /// x `[N, H, W, C]`: mean of 2x2 windows, stride 2.
    AveragePool,
    /// x `[N, H, W, C]` to `[N, 2 H, 2 W, C]`: the nearest pixel.
    Upsample,
    /// x `[N, H, W, C]` to `[N, .. size, C]`.
    Interpolate {
        way: Interpolation,
        size: [usize; 2],
        align_corners: bool,
    },
    /// x of any shape.
    Dropout { probability: f64, seed: u64 },
    /// x `[a, b, c, run]` to `[a, c, b, run]`.
    SwapAxes,
    /// x `[.., C]` to `[.., C * times]`: each value side by side with its copies.
    Repeat { times: usize },
    /// x `[N, H, W, C]` and the weight `[N, H, W, D]` of the same format, f32 or bf16, to
    /// `[N, H, W, C + D]`.
    Cat,
    /// Mean over all pixels: x of this shape and format to `[N, C]` in f32.
    GlobalAverage {
        shape: [usize; 4],
        dtype: FloatDType,
    },
    /// x plus the weight, of the same shape and format: f32 or bf16.
    Add,
    /// x `[N, H, W, C]` times the weight `[N, C]`.
    Scale,
    /// Logits `[N, K]` in f32 or bf16 and targets `[N, K]`, which get no gradient, to `[1, 1]`.
    Loss(Loss),
}

/// Mask of an attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MaskKind {
    None,
    Causal,
    /// Added to the scores.
    Added,
}

impl Operation {
    pub(super) fn kernel(&self) -> Kernel {
        match self {
            Self::Convolution(_) => Kernel::PlainConvolution,
            Self::Linear => Kernel::Linear,
            Self::LayerNorm { .. } => Kernel::LayerNorm,
            Self::GroupNorm { .. } => Kernel::GroupNorm,
            Self::Activation(_) | Self::Add => Kernel::Activation,
            Self::Softmax { .. } => Kernel::Softmax,
            Self::Attention { .. } => Kernel::Attention,
            Self::MaxPool { .. } => Kernel::MaxPool,
            Self::AveragePool | Self::Upsample | Self::Interpolate { .. } => Kernel::Resampling,
            Self::Dropout { .. } => Kernel::Dropout,
            Self::SwapAxes | Self::Repeat { .. } | Self::Cat => Kernel::Copies,
            Self::GlobalAverage { .. } => Kernel::Average,
            Self::Scale => Kernel::Scale,
            Self::Loss(_) => Kernel::Loss,
        }
    }
}

/// An operation without its tensors.
#[derive(Clone, Debug)]
pub(crate) struct SingleOptions {
    pub operation: Operation,
    /// Instruction set of Lockstep's kernels.
    pub isa: Isa,
    /// True for each parameter that exists: weight, bias.
    pub has: [bool; 2],
    /// Links to the layers of the input and of the weight, if these are features.
    pub inputs: [Option<Arc<NormLink>>; 2],
    /// Link to the readers of features.
    pub output: Option<Arc<NormLink>>,
    /// True if a mean adds [`SingleSaved::input`] to its gradient.
    pub has_addend: bool,
    /// True if both sides of a sum or of [`Operation::Cat`] are one tensor, so the gradient of the
    /// input is the sum of both gradients.
    pub is_doubled: bool,
}

impl SingleOptions {
    /// Returns an operation without links.
    pub(super) fn new(operation: Operation, isa: Isa, has: [bool; 2]) -> Self {
        Self {
            operation,
            isa,
            has,
            inputs: [None, None],
            output: None,
            has_addend: false,
            is_doubled: false,
        }
    }
}

/// Inputs of the backward pass.
#[derive(ExtensionType, Clone, Debug)]
pub(crate) struct SingleSaved<B: Backend> {
    /// The input `x`, or the result if the backward pass reads it (softmax, some activations). A
    /// pool uses only its shape. For a mean: the gradient of another reader if `has_addend`,
    /// otherwise any tensor.
    pub input: FloatTensor<B>,
    /// First parameter, of [`Operation::Cat`] only the shape; [`Operation::Add`] does not use it.
    /// For a max pool, the place of each maximum in one byte. Other operations do not use it.
    pub weight: FloatTensor<B>,
}

/// Results of the operation.
#[derive(ExtensionType)]
pub(crate) struct SingleOutput<B: Backend> {
    pub output: FloatTensor<B>,
    /// As in [`SingleSaved`].
    pub input: FloatTensor<B>,
    /// As in [`SingleSaved`].
    pub weight: FloatTensor<B>,
}

/// Gradients that are needed: of x, of the weight, of the bias.
pub(crate) type Wanted = [bool; 3];

/// Gradients of x and the parameters; any tensor if a gradient is not needed.
#[derive(ExtensionType)]
pub(crate) struct SingleGradients<B: Backend> {
    pub input: FloatTensor<B>,
    pub weight: FloatTensor<B>,
    pub bias: FloatTensor<B>,
}

/// Returns whether Lockstep's kernels compute operations on such an input.
pub(crate) fn computes<const D: usize>(input: &Tensor<D>, computation: &Computation) -> bool {
    computation.kernels == Kernels::Fused
        && matches!(input.dtype(), DType::F32 | DType::BF16 | DType::F16)
        && is_flex(input.device().inner().as_dispatch())
}

#[allow(
    unused_variables,
    unreachable_patterns,
    reason = "a program may have only Flex, or not have it"
)]
fn is_flex(device: &DispatchDevice) -> bool {
    match device {
        #[cfg(feature = "flex")]
        DispatchDevice::Flex(_) => true,
        _ => false,
    }
}

/// Runs an operation whose result has the rank of the input, differentiable on autodiff tensors.
///
/// # Panics
/// Unless [`computes`] is true and the shapes are those of [`Operation`].
pub(crate) fn single<const D: usize>(
    input: Tensor<D>,
    parameters: [Option<DispatchTensor>; 2],
    operation: Operation,
    isa: Isa,
) -> Tensor<D> {
    let links = [None, None];
    Tensor::from_dispatch(run(input, parameters, operation, isa, (links, None)))
}

/// Runs an operation on features, whose gradients a kernel adds if there are several readers.
///
/// # Panics
/// As [`single`].
pub(crate) fn on_features(
    input: Values,
    parameters: [Option<DispatchTensor>; 2],
    operation: Operation,
    isa: Isa,
) -> Values {
    with_links(input.tensor, parameters, operation, isa, [input.link, None])
}

/// Runs an operation on two features: [`Operation::Add`] or [`Operation::Cat`].
///
/// # Panics
/// As [`single`].
pub(crate) fn on_both(left: Values, right: Values, operation: Operation, isa: Isa) -> Values {
    let links = [left.link, right.link];
    let right = Some(right.tensor.into_dispatch());
    with_links(left.tensor, [right, None], operation, isa, links)
}

fn with_links(
    input: Tensor<4>,
    parameters: [Option<DispatchTensor>; 2],
    operation: Operation,
    isa: Isa,
    inputs: [Option<Arc<NormLink>>; 2],
) -> Values {
    let link = Arc::new(NormLink::new(false));
    let links = (inputs, Some(Arc::clone(&link)));
    Values {
        tensor: Tensor::from_dispatch(run(input, parameters, operation, isa, links)),
        link: Some(link),
    }
}

/// Returns the mean over all pixels of each image and channel, on any device, differentiable on
/// autodiff tensors.
///
/// # Shapes
/// `[N, H, W, C]` to `[N, C]`, in f32 for any format of the input.
pub(crate) fn global_average(input: Values, isa: Isa) -> Tensor<2> {
    let Values { tensor, link } = input;
    let operation = Operation::GlobalAverage {
        shape: tensor.dims(),
        dtype: FloatDType::from(tensor.dtype()),
    };
    let links = ([link, None], None);
    Tensor::from_dispatch(run(tensor, [None, None], operation, isa, links))
}

fn run<const D: usize>(
    input: Tensor<D>,
    parameters: [Option<DispatchTensor>; 2],
    operation: Operation,
    isa: Isa,
    (inputs, output): ([Option<Arc<NormLink>>; 2], Option<Arc<NormLink>>),
) -> DispatchTensor {
    let has = parameters.each_ref().map(Option::is_some);
    let device = input.device();
    // The extension takes no optional tensors.
    let [weight, bias] = parameters.map(|tensor| match tensor {
        Some(activations) if matches!(operation, Operation::Cat) => activations,
        Some(parameter) => widen::<Dispatch>(parameter),
        None => Tensor::<1>::zeros([1], &device).into_dispatch(),
    });
    let options = SingleOptions {
        inputs,
        output,
        ..SingleOptions::new(operation, isa, has)
    };
    <Dispatch as LayerOps>::single(input.into_dispatch(), weight, bias, options).output
}
