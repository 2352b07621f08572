//! Elementwise functions: ReLU, leaky ReLU, ReLU6, GELU, SiLU, hard swish, sigmoid, tanh.
//!
//! In: features, or a tensor of any shape.
//! Out: the same kind.
//! Invariant: each function equals the function of that name in burn and PyTorch.

use burn::nn;
use burn::tensor::{Distribution, Tensor, activation};
use kernels::activation::Function;
use kernels::batch_norm::Rectifier;

use crate::context::PassContext;
use crate::features::Features;
use crate::ops::single::{Operation, computes, on_features, single};
use crate::ops::stock;

/// Arguments and results of these functions: [`Features`], or a tensor.
pub trait Elementwise: Sized {
    /// Applies the function to each value.
    #[doc(hidden)]
    fn apply(self, function: Function) -> Self;

    /// On an autodiff device, sets values to zero with the probability and scales the others.
    #[doc(hidden)]
    fn dropped(self, probability: f64) -> Self;
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
            Function::Sigmoid => activation::sigmoid(self),
            Function::Tanh => activation::tanh(self),
            Function::LeakyRelu { slope } => activation::leaky_relu(self, f64::from(slope)),
            // burn's own has another derivative at its corners.
            Function::HardSwish => {
                let gate = self.clone().add_scalar(3.0).apply(Function::Relu6);
                self * gate.div_scalar(6.0)
            }
        }
    }

    fn dropped(self, probability: f64) -> Self {
        let device = self.device();
        if !device.is_autodiff() {
            return self;
        }
        let computation = PassContext::current().computation;
        if !computes(&self, &computation) {
            return nn::DropoutConfig::new(probability).init().forward(self);
        }
        // An f32 below 1 has 24 random bits.
        let draws = Tensor::<1>::random([3], Distribution::Default, &device.inner());
        let seed = draws.into_data().iter::<f64>().fold(0_u64, |seed, draw| {
            seed << 24 ^ (draw * f64::from(1 << 24)) as u64
        });
        let operation = Operation::Dropout { probability, seed };
        single(self, [None, None], operation, computation.isa)
    }
}

impl Elementwise for Features {
    fn apply(self, function: Function) -> Self {
        let features = match function {
            Function::Relu => self.rectified(Rectifier::Relu),
            Function::Relu6 => self.rectified(Rectifier::Relu6),
            _ => Err(self),
        };
        let values = match features {
            Ok(rectified) => return rectified,
            Err(features) => features.into_values(),
        };
        let computation = PassContext::current().computation;
        if computes(&values.tensor, &computation) {
            let operation = Operation::Activation(function);
            return on_features(values, [None, None], operation, computation.isa).into();
        }
        stock::in_planes(values.tensor, |planes| planes.apply(function)).into()
    }

    fn dropped(self, probability: f64) -> Self {
        Tensor::from(self).dropped(probability).into()
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

/// Returns `1 / (1 + exp(-x))`.
///
/// On Flex it is within 4 units in the last place, and 0 below -87.
pub fn sigmoid<T: Elementwise>(x: T) -> T {
    x.apply(Function::Sigmoid)
}

/// Returns the hyperbolic tangent, on Flex within 4 units in the last place.
pub fn tanh<T: Elementwise>(x: T) -> T {
    x.apply(Function::Tanh)
}

/// Returns x where it is above 0, else `negative_slope * x` (Maas et al. 2013, "Rectifier
/// Nonlinearities Improve Neural Network Acoustic Models").
pub fn leaky_relu<T: Elementwise>(x: T, negative_slope: f64) -> T {
    x.apply(Function::LeakyRelu {
        slope: negative_slope as f32,
    })
}

/// Returns `x * min(max(x + 3, 0), 6) / 6` (Howard et al. 2019, arXiv 1905.02244), on Flex within 3
/// units in the last place.
///
/// # Differs from PyTorch
/// On Flex minus infinity gives 0. PyTorch has NaN.
pub fn hard_swish<T: Elementwise>(x: T) -> T {
    x.apply(Function::HardSwish)
}
