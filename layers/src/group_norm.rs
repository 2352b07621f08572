//! Group normalisation of channels-last features.
//!
//! In: [`Features`] `[N, H, W, C]`. Out: the same shape.
//! Invariant: the module contains burn's module.
//! Source: Wu and He 2018, arXiv 1803.08494.

use burn::module::Param;
use burn::nn;
use burn::tensor::{Device, Tensor};

use crate::context::PassContext;
use crate::features::{Features, in_f32, widened};
use crate::modules::{around, config_around};
use crate::ops::single::{Operation, computes, single};
use crate::ops::{gated, stock};

around!(
    GroupNorm,
    nn::GroupNorm,
    "Group normalisation of channels-last features."
);

config_around!(GroupNormConfig, nn::GroupNormConfig, GroupNorm, [with_epsilon: f64, with_affine: bool], device);

impl GroupNormConfig {
    /// Returns the configuration for `num_channels` channels in `num_groups` groups.
    pub fn new(num_groups: usize, num_channels: usize) -> Self {
        Self(nn::GroupNormConfig::new(num_groups, num_channels))
    }
}

impl GroupNorm {
    /// Normalises each group of consecutive channels of an image: subtracts its mean, divides by
    /// its standard deviation, multiplies by gamma and adds beta. 16 bits are computed in f32.
    ///
    /// # Shapes
    /// `[N, H, W, C]` to the same.
    ///
    /// # Panics
    /// If the features have other channels.
    pub fn forward(&self, features: impl Into<Features>) -> Features {
        let x = Tensor::from(features.into());
        let channels = self.num_channels;
        assert!(
            x.dims()[3] == channels,
            "group norm: expected [N, H, W, {channels}], got {:?}",
            x.dims()
        );
        let PassContext {
            computation, hook, ..
        } = PassContext::current();
        let [gamma, beta] = [&self.gamma, &self.beta].map(|parameter| {
            parameter
                .as_ref()
                .map(|parameter| gated(parameter, &x, hook.as_ref()))
        });
        if computes(&x, &computation) {
            // The kernel always scales and shifts.
            let device = x.device();
            let gamma = gamma.unwrap_or_else(|| Tensor::ones([channels], &device));
            let beta = beta.unwrap_or_else(|| Tensor::zeros([channels], &device));
            let parameters = [gamma, beta].map(|parameter| Some(parameter.into_dispatch()));
            let operation = Operation::GroupNorm {
                groups: self.num_groups,
                epsilon: self.epsilon as f32,
            };
            return single(x, parameters, operation, computation.isa).into();
        }
        let id = |parameter: &Option<Param<Tensor<1>>>| parameter.as_ref().map(|p| p.id);
        let with = |id: Option<_>, values: Option<Tensor<1>>| {
            id.zip(values)
                .map(|(id, values)| Param::initialized(id, widened(values)))
        };
        let norm = nn::GroupNorm {
            gamma: with(id(&self.gamma), gamma),
            beta: with(id(&self.beta), beta),
            ..self.0.clone()
        };
        in_f32(x, |x| stock::in_planes(x, |planes| norm.forward(planes))).into()
    }
}
