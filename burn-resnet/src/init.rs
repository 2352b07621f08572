//! The first weights: one stream of normal numbers, drawn in module order.
//!
//! In: a seed. Out: layers on a device. Invariant: the bits depend only on the seed and the order
//! of the calls, never on the backend, the thread or burn's global random numbers.
//! Source: He et al. 2015, "Delving Deep into Rectifiers", arXiv 1502.01852, equation 10 (`std =
//! sqrt(2 / fan_in)`). The published CIFAR networks apply it to convolutions and to the linear
//! layer alike (`kaiming_normal_`). The linear bias is 0, as in equation 10; the published code
//! leaves it at PyTorch's uniform default.

use burn::module::{Initializer, Param};
use burn::nn::conv::Conv2dConfig;
use burn::nn::{BatchNormConfig, LinearConfig, PaddingConfig2d};
use burn::tensor::{Device, Tensor, TensorData};
use layers::{BatchNorm, Conv2d, Linear};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// Rule for drawing weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Variance from the number of inputs, as in the published CIFAR networks.
    FanIn,
    /// Variance of convolutions from the number of outputs, as in torchvision. Weights and bias of
    /// the linear layer are uniform in ±1/√inputs.
    FanOut,
}

/// A maker of layers that draws their weights from one stream.
pub(crate) struct WeightInit<'a> {
    stream: ChaCha8Rng,
    rule: Rule,
    device: &'a Device,
}

impl<'a> WeightInit<'a> {
    pub(crate) fn new(seed: u64, rule: Rule, device: &'a Device) -> Self {
        Self {
            stream: ChaCha8Rng::seed_from_u64(seed),
            rule,
            device,
        }
    }

    /// Returns a convolution without bias, padded so that stride 1 keeps the size (odd kernels).
    pub(crate) fn conv(&mut self, channels: [usize; 2], kernel: usize, stride: usize) -> Conv2d {
        let pad = kernel / 2;
        let mut conv = Conv2dConfig::new(channels, [kernel, kernel])
            .with_stride([stride, stride])
            .with_padding(PaddingConfig2d::Explicit(pad, pad, pad, pad))
            .with_bias(false)
            .with_initializer(Initializer::Zeros)
            .init(self.device);
        let [c_in, c_out] = channels;
        let fan = if self.rule == Rule::FanIn {
            c_in
        } else {
            c_out
        } * kernel
            * kernel;
        conv.weight = self.kaiming_normal([c_out, c_in, kernel, kernel], fan);
        conv.into()
    }

    /// Returns a normalisation with `gamma` 1 or 0, `beta` 0, running mean 0 and running variance
    /// 1.
    pub(crate) fn norm(&mut self, channels: usize, zero_gamma: bool) -> BatchNorm {
        let mut norm = BatchNormConfig::new(channels).init(self.device);
        if zero_gamma {
            norm.gamma = Initializer::Zeros.init([channels], self.device);
        }
        norm.into()
    }

    pub(crate) fn linear(&mut self, num_inputs: usize, num_outputs: usize) -> Linear {
        let mut linear = LinearConfig::new(num_inputs, num_outputs)
            .with_initializer(Initializer::Zeros)
            .init(self.device);
        match self.rule {
            Rule::FanIn => {
                linear.weight = self.kaiming_normal([num_inputs, num_outputs], num_inputs)
            }
            Rule::FanOut => {
                let bound = 1.0 / (num_inputs as f64).sqrt();
                linear.weight = self.uniform_within(bound, [num_inputs, num_outputs]);
                linear.bias = Some(self.uniform_within(bound, [num_outputs]));
            }
        }
        linear.into()
    }

    fn kaiming_normal<const D: usize>(
        &mut self,
        shape: [usize; D],
        fan_in: usize,
    ) -> Param<Tensor<D>> {
        let std = (2.0 / fan_in as f64).sqrt();
        let num_elements = shape.iter().product();
        let mut values = Vec::with_capacity(num_elements + 1);
        while values.len() < num_elements {
            values.extend(self.normal_pair().map(|z| (std * z) as f32));
        }
        values.truncate(num_elements);
        Param::from_tensor(Tensor::from_data(
            TensorData::new(values, shape),
            self.device,
        ))
    }

    fn uniform_within<const D: usize>(
        &mut self,
        bound: f64,
        shape: [usize; D],
    ) -> Param<Tensor<D>> {
        let values =
            (0..shape.iter().product()).map(|_| (bound * (2.0 * self.uniform() - 1.0)) as f32);
        Param::from_tensor(Tensor::from_data(
            TensorData::new(values.collect::<Vec<_>>(), shape),
            self.device,
        ))
    }

    /// Returns two independent standard normal numbers (Box and Muller 1958).
    fn normal_pair(&mut self) -> [f64; 2] {
        let radius = (-2.0 * libm::log(self.uniform())).sqrt();
        let (sin, cos) = libm::sincos(std::f64::consts::TAU * self.uniform());
        [radius * cos, radius * sin]
    }

    /// Returns a multiple of 2^-53 in (0, 1]. Zero is left out because its logarithm is infinite.
    fn uniform(&mut self) -> f64 {
        ((self.stream.next_u64() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn convolution_weights_have_mean_zero_and_variance_two_over_fan_in() {
        let device = Device::flex();
        let conv = WeightInit::new(1, Rule::FanIn, &device).conv([64, 64], 3, 1);
        let values = conv.weight.val().into_data().try_to_vec::<f32>().unwrap();
        let n = values.len() as f64;
        let mean = values.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
        let variance = values
            .iter()
            .map(|&v| (f64::from(v) - mean).powi(2))
            .sum::<f64>()
            / n;
        let expected = 2.0 / (64.0 * 9.0);
        assert!(mean.abs() < 4.0 * (expected / n).sqrt(), "mean {mean}");
        assert!(
            (variance / expected - 1.0).abs() < 0.03,
            "variance {variance}"
        );
    }

    #[test]
    fn an_odd_number_of_weights_is_filled() {
        let device = Device::flex();
        let conv = WeightInit::new(1, Rule::FanIn, &device).conv([1, 1], 3, 1);
        assert_eq!(conv.weight.shape().num_elements(), 9);
    }
}
