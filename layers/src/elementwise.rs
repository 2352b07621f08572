//! Elementwise functions: ReLU, ReLU6, GELU, SiLU.
//!
//! In: features, or a tensor of any shape.
//! Out: the same kind.
//! Invariant: each function equals the function of that name in burn and PyTorch.

use burn::tensor::{Tensor, activation};
use kernels::activation::Function;
use kernels::batch_norm::Rectifier;

use crate::context::PassContext;
use crate::features::Features;
use crate::ops::single::{Operation, computes, single};
use crate::ops::stock;

/// Arguments and results of these functions: [`Features`], or a tensor.
pub trait Elementwise: Sized {
    /// Applies the function to each value.
    #[doc(hidden)]
    fn apply(self, function: Function) -> Self;
}

impl<const D: usize> Elementwise for Tensor<D> {
    fn apply(self, function: Function) -> Self {
        let computation = PassContext::current().computation;
        if computes(&self, &computation) {
            return single(
                self,
                [None, None],
                Operation::Activation(function),
                computation.isa,
            );
        }
        match function {
            Function::Relu => activation::relu(self),
            // The derivative is 0 at both corners, as PyTorch's, and what lies between them keeps
            // its digits.
            Function::Relu6 => {
                let low = self.clone().lower_equal_elem(0.0);
                let high = self.clone().greater_equal_elem(6.0);
                self.mask_fill(low, 0.0).mask_fill(high, 6.0)
            }
            Function::Gelu => activation::gelu(self),
            Function::Silu => activation::silu(self),
        }
    }
}

impl Elementwise for Features {
    fn apply(self, function: Function) -> Self {
        let features = match function {
            Function::Relu => self.rectified(Rectifier::Relu),
            Function::Relu6 => self.rectified(Rectifier::Relu6),
            _ => Err(self),
        };
        let tensor = match features {
            Ok(rectified) => return rectified,
            Err(features) => Tensor::from(features),
        };
        if computes(&tensor, &PassContext::current().computation) {
            return tensor.apply(function).into();
        }
        stock::in_planes(tensor, |planes| planes.apply(function)).into()
    }
}

/// Returns `min(max(x, 0), 6)`.
pub fn relu6<T: Elementwise>(x: T) -> T {
    x.apply(Function::Relu6)
}

/// Returns `x Φ(x)`, where Φ is the normal distribution's, computed with the error function. This
/// is PyTorch's default (Hendrycks and Gimpel 2016, arXiv 1606.08415).
pub fn gelu<T: Elementwise>(x: T) -> T {
    x.apply(Function::Gelu)
}

/// Returns `x / (1 + exp(-x))`, also named swish (Elfwing et al. 2017, arXiv 1702.03118).
pub fn silu<T: Elementwise>(x: T) -> T {
    x.apply(Function::Silu)
}
