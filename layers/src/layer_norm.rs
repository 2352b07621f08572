//! Layer normalisation of the last axis.
//!
//! In: a tensor `[.., C]`.
//! Out: the same shape.
//! Invariant: parameters have the paths of burn's module in records and weights files.
//! Source: Ba et al. 2016, arXiv 1607.06450.

use burn::module::{Initializer, Module, Param};
use burn::tensor::module::layer_norm;
use burn::tensor::{Device, Tensor};

use crate::context::PassContext;
use crate::features::{in_f32, widened};
use crate::ops::gated;
use crate::ops::single::{Operation, computes, single};

/// Configuration of a [`LayerNorm`], as burn's.
#[derive(Clone, Debug)]
pub struct LayerNormConfig {
    d_model: usize,
    epsilon: f64,
    has_bias: bool,
}

impl LayerNormConfig {
    /// Returns the configuration for the given number of channels.
    pub fn new(d_model: usize) -> Self {
        Self {
            d_model,
            epsilon: 1e-5,
            has_bias: true,
        }
    }

    /// Sets the number added to the variance before the square root; default: 1e-5.
    pub fn with_epsilon(self, epsilon: f64) -> Self {
        Self { epsilon, ..self }
    }

    /// Enables or disables the shift; default: enabled.
    pub fn with_bias(self, has_bias: bool) -> Self {
        Self { has_bias, ..self }
    }

    /// Returns the module with a scale of 1 and a shift of 0.
    pub fn init(&self, device: &Device) -> LayerNorm {
        LayerNorm {
            gamma: Initializer::Ones.init([self.d_model], device),
            beta: self
                .has_bias
                .then(|| Initializer::Zeros.init([self.d_model], device)),
            epsilon: self.epsilon,
        }
    }
}

/// Layer normalisation of a tensor's last axis.
///
/// # Differs from burn
/// It does not contain burn's module, which keeps its epsilon private. The names of the parameters
/// are the same.
#[derive(Module, Debug)]
pub struct LayerNorm {
    /// Scale, `[C]`.
    pub gamma: Param<Tensor<1>>,
    /// Shift, `[C]`.
    pub beta: Option<Param<Tensor<1>>>,
    /// Added to the variance.
    pub epsilon: f64,
}

impl LayerNorm {
    /// Normalises each row: subtracts its mean, divides by its standard deviation, multiplies by
    /// gamma and adds beta.
    ///
    /// # Shapes
    /// `[.., C]` to the same.
    ///
    /// # Panics
    /// If the last axis has another length.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let [channels] = self.gamma.dims();
        assert_eq!(
            x.dims().last(),
            Some(&channels),
            "layer norm: expected [.., {channels}], got {:?}",
            x.dims()
        );
        let PassContext {
            computation, hook, ..
        } = PassContext::current();
        let gamma = gated(&self.gamma, &x, hook.as_ref());
        let beta = self
            .beta
            .as_ref()
            .map(|beta| gated(beta, &x, hook.as_ref()));
        if computes(&x, &computation) {
            // The kernel always shifts; by zeros costs nothing.
            let beta = beta.unwrap_or_else(|| Tensor::zeros([channels], &gamma.device()));
            let parameters = [gamma, beta].map(|parameter| Some(parameter.into_dispatch()));
            return single(
                x,
                parameters,
                Operation::LayerNorm {
                    epsilon: self.epsilon as f32,
                },
                computation.isa,
            );
        }
        in_f32(x, |x| {
            layer_norm(x, widened(gamma), beta.map(widened), self.epsilon)
        })
    }
}
