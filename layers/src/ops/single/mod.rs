//! Operations of our kernels that are no part of a fused layer, as one extension operation.
//!
//! In: a tensor on Flex, of f32 or 16 bits, and up to two parameters of f32 or narrower. Out: a tensor of the input's format. Invariant: the same function
//! as burn's own operations, which the callers take where [`computes`] says no: on other devices, in other number formats.

mod autodiff;
#[cfg(feature = "flex")]
mod flex;

use burn::backend::tensor::FloatTensor;
use burn::backend::{
    Backend, Dispatch, DispatchDevice, DispatchTensor, ExtensionType, backend_extension,
};
use burn::tensor::{DType, Tensor};
use kernels::activation::Function;
use kernels::loss::Loss;
use kernels::simd::Isa;

use super::clock::Kernel;
use super::composed::widen;
use crate::choices::{Computation, Convolution, Kernels};

/// What is computed of x and two parameters.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation {
    /// x `[N, H, W, C_in]`, weight `[C_out, C_in / groups, K, K]`, bias `[C_out]`.
    Convolution {
        /// Rows and columns from window to window.
        stride: usize,
        /// Zeros around the image on each side.
        padding: usize,
        /// Which algorithm.
        algorithm: Convolution,
    },
    /// x `[.., C_in]`, weight `[C_in, C_out]` as burn has it, bias `[C_out]`.
    Linear,
    /// x `[.., C]`, gamma and beta `[C]`.
    LayerNorm {
        /// Added to the variance.
        epsilon: f32,
    },
    /// x of any shape.
    Activation(Function),
    /// Queries, keys and values `[N, tokens, 3 * heads * width]`, in this order, to `[N, tokens, heads * width]`.
    Attention {
        /// Independent problems an image.
        heads: usize,
    },
    /// x `[N, H, W, C]`: 3x3, stride 2, padding 1.
    MaxPool,
    /// Logits `[N, K]` in f32 and targets `[N, K]`, which get no gradient, to `[1, 1]`.
    Loss(Loss),
}

impl Operation {
    fn kernel(&self) -> Kernel {
        match self {
            Self::Convolution { .. } => Kernel::PlainConvolution,
            Self::Linear => Kernel::Linear,
            Self::LayerNorm { .. } => Kernel::LayerNorm,
            Self::Activation(_) => Kernel::Activation,
            Self::Attention { .. } => Kernel::Attention,
            Self::MaxPool => Kernel::MaxPool,
            Self::Loss(_) => Kernel::Loss,
        }
    }
}

/// An operation beside its tensors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SingleOptions {
    /// Which.
    pub operation: Operation,
    /// The instruction set.
    pub isa: Isa,
    /// Whether there are a weight and a bias.
    pub has: [bool; 2],
}

/// What the backward pass needs of the forward pass.
#[derive(ExtensionType, Clone, Debug)]
pub(crate) struct SingleSaved<B: Backend> {
    /// x; of a max pool only its shape.
    pub input: FloatTensor<B>,
    /// The first parameter, or one element; of a max pool where each maximum was, a byte each.
    pub weight: FloatTensor<B>,
}

/// What the operation gave, and what its backward pass needs.
#[derive(ExtensionType)]
pub(crate) struct SingleOutput<B: Backend> {
    /// y.
    pub output: FloatTensor<B>,
    /// As in [`SingleSaved`].
    pub input: FloatTensor<B>,
    /// As in [`SingleSaved`].
    pub weight: FloatTensor<B>,
}

/// Which gradients somebody wants: of x, of the weight, of the bias.
pub(crate) type Wanted = [bool; 3];

/// Gradients of x and the parameters; of no meaning where nobody wants them.
#[derive(ExtensionType)]
pub(crate) struct SingleGradients<B: Backend> {
    /// Of x.
    pub input: FloatTensor<B>,
    /// Of the weight.
    pub weight: FloatTensor<B>,
    /// Of the bias.
    pub bias: FloatTensor<B>,
}

/// The backend extension.
#[backend_extension(Flex: cfg(feature = "flex"), Autodiff)]
pub(crate) trait SingleOps: Backend {
    /// The operation; an absent parameter is any tensor.
    fn single(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        options: SingleOptions,
    ) -> SingleOutput<Self>;

    /// The gradients of [`SingleOps::single`].
    fn single_backward(
        #[extension_type] saved: SingleSaved<Self>,
        output_gradient: FloatTensor<Self>,
        options: SingleOptions,
        wanted: Wanted,
    ) -> SingleGradients<Self>;
}

/// Whether our kernels compute operations of such an input.
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

/// The operation, differentiable on autodiff tensors.
///
/// # Panics
/// Unless [`computes`] says yes, and shapes are those of [`Operation`].
pub(crate) fn single<const D: usize>(
    input: Tensor<D>,
    parameters: [Option<DispatchTensor>; 2],
    operation: Operation,
    isa: Isa,
) -> Tensor<D> {
    let has = parameters.each_ref().map(Option::is_some);
    let device = input.device();
    // The extension's operations take no optional tensors.
    let [weight, bias] = parameters.map(|tensor| match tensor {
        Some(parameter) => widen::<Dispatch>(parameter),
        None => Tensor::<1>::zeros([1], &device).into_dispatch(),
    });
    let options = SingleOptions {
        operation,
        isa,
        has,
    };
    Tensor::from_dispatch(
        <Dispatch as SingleOps>::single(input.into_dispatch(), weight, bias, options).output,
    )
}
