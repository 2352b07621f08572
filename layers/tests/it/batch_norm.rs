//! Batch normalisation in training against a plain f64 calculation, on every CPU body.

use burn::module::Param;
use burn::nn;
use burn::tensor::{Device, Tensor, TensorData};
use layers::backend::{Computation, Kernels};
use layers::{BatchNorm, PassContext};

use crate::differences::{relative_difference, values};

/// For values and gradients of f32 arithmetic against f64.
const TOLERANCE: f64 = 2e-6;
const EPSILON: f64 = 1e-5;
const SHAPE: [usize; 4] = [3, 5, 3, 4];

/// Numbers without a pattern, different for each `salt`, in -1..1.
fn numbers(len: usize, salt: u32) -> Vec<f32> {
    (0..len as u32)
        .map(|i| {
            (i + 1)
                .wrapping_mul(2_654_435_761)
                .wrapping_add(salt.wrapping_mul(40_503_001))
        })
        .map(|bits| (bits ^ (bits >> 15)).wrapping_mul(2_246_822_519))
        .map(|bits| (bits >> 8) as f32 / (1 << 23) as f32 - 1.0)
        .collect()
}

struct Problem {
    x: Vec<f32>,
    gamma: Vec<f32>,
    beta: Vec<f32>,
    /// The loss is the sum of `weight * y`, so this is the output's gradient.
    weight: Vec<f32>,
}

impl Problem {
    fn new(offset: f32) -> Self {
        let len = SHAPE.iter().product();
        let x = numbers(len, 1).into_iter().map(|v| v + offset).collect();
        let gamma = numbers(SHAPE[3], 2).into_iter().map(|v| 1.5 + v).collect();
        Self {
            x,
            gamma,
            beta: numbers(SHAPE[3], 3),
            weight: numbers(len, 4),
        }
    }
}

#[derive(Debug)]
struct Answer {
    output: Vec<f32>,
    mean: Vec<f32>,
    variance: Vec<f32>,
    gradients: [Vec<f32>; 3],
}

/// A body of the normalisation on Flex.
#[derive(Clone, Copy)]
enum Body {
    /// Our kernels.
    Kernels,
    /// Loops over planes `[N, C, H, W]`, next to burn's own convolutions.
    Planes,
}

fn on_device(problem: &Problem, device: &Device, body: Body) -> Answer {
    let tensor = |values: &Vec<f32>| TensorData::new(values.clone(), SHAPE);
    let parameter = |values: &Vec<f32>| {
        let data = TensorData::new(values.clone(), [SHAPE[3]]);
        Param::from_tensor(Tensor::<1>::from_data(data, device))
    };
    let norm = BatchNorm::from(nn::BatchNorm {
        gamma: parameter(&problem.gamma),
        beta: parameter(&problem.beta),
        // The running statistics are those of the batch.
        momentum: 1.0,
        ..nn::BatchNormConfig::new(SHAPE[3])
            .with_epsilon(EPSILON)
            .init(device)
    });
    let x = Tensor::<4>::from_data(tensor(&problem.x), device).require_grad();
    let (kernels, input) = match body {
        Body::Kernels => (Kernels::Fused, x.clone()),
        // Adding zero writes the permuted order into memory.
        Body::Planes => (
            Kernels::Stock,
            (x.clone().permute([0, 3, 1, 2]) + 0.0).permute([0, 2, 3, 1]),
        ),
    };
    let context = PassContext::from(Computation {
        kernels,
        ..Computation::default()
    });
    let output: Tensor<4> = context.scope(|| norm.forward(input).into());
    let rows = (SHAPE[0] * SHAPE[1] * SHAPE[2]) as f64;
    let biased = (rows - 1.0) / rows;
    let loss = (output.clone() * Tensor::from_data(tensor(&problem.weight), device)).sum();
    let gradients = loss.backward();
    Answer {
        output: values(output),
        mean: values(norm.running_mean.value_sync()),
        variance: values(norm.running_var.value_sync() * biased),
        gradients: [
            values(x.grad(&gradients).unwrap()),
            values(norm.gamma.val().grad(&gradients).unwrap()),
            values(norm.beta.val().grad(&gradients).unwrap()),
        ],
    }
}

/// Output, mean and biased variance in f64.
fn reference(x: &[f64], gamma: &[f64], beta: &[f64]) -> [Vec<f64>; 3] {
    let channels = gamma.len();
    let rows = (x.len() / channels) as f64;
    let mut mean = vec![0.0; channels];
    let mut variance = vec![0.0; channels];
    for (i, v) in x.iter().enumerate() {
        mean[i % channels] += v / rows;
    }
    for (i, v) in x.iter().enumerate() {
        variance[i % channels] += (v - mean[i % channels]).powi(2) / rows;
    }
    let normalised = x.iter().enumerate().map(|(i, v)| {
        let c = i % channels;
        gamma[c] * (v - mean[c]) / (variance[c] + EPSILON).sqrt() + beta[c]
    });
    [normalised.collect(), mean, variance]
}

/// The f64 answer, its gradients by central differences: no formula of the code under test.
fn by_differences(problem: &Problem) -> Answer {
    let wide = |values: &[f32]| values.iter().map(|&v| f64::from(v)).collect::<Vec<_>>();
    let narrow = |values: &[f64]| values.iter().map(|&v| v as f32).collect::<Vec<_>>();
    let inputs = [wide(&problem.x), wide(&problem.gamma), wide(&problem.beta)];
    let weight = wide(&problem.weight);
    let loss = |[x, gamma, beta]: &[Vec<f64>; 3]| -> f64 {
        reference(x, gamma, beta)[0]
            .iter()
            .zip(&weight)
            .map(|(y, w)| y * w)
            .sum()
    };
    let gradients = [0, 1, 2].map(|which| {
        let step = 1e-5;
        let slope = |i: usize| {
            let [below, above] = [-step, step].map(|change| {
                let mut moved = inputs.clone();
                moved[which][i] += change;
                loss(&moved)
            });
            (above - below) / (2.0 * step)
        };
        narrow(&(0..inputs[which].len()).map(slope).collect::<Vec<_>>())
    });
    let [output, mean, variance] = reference(&inputs[0], &inputs[1], &inputs[2]);
    Answer {
        output: narrow(&output),
        mean: narrow(&mean),
        variance: narrow(&variance),
        gradients,
    }
}

fn assert_agree(found: &Answer, expected: &Answer, tolerance: f64) {
    let parts = |answer: &Answer| {
        let [x, gamma, beta] = answer.gradients.clone();
        let Answer {
            output,
            mean,
            variance,
            ..
        } = answer;
        [
            output.clone(),
            mean.clone(),
            variance.clone(),
            x,
            gamma,
            beta,
        ]
    };
    let names = ["output", "mean", "variance", "dx", "dgamma", "dbeta"];
    for ((name, found), expected) in names.iter().zip(parts(found)).zip(parts(expected)) {
        let difference = relative_difference(&found, &expected);
        assert!(
            difference <= tolerance,
            "{name}: {difference:.2e} > {tolerance:.0e}"
        );
    }
}

#[test]
fn forward_and_backward_equal_f64_and_its_differences() {
    let problem = Problem::new(0.3);
    let expected = by_differences(&problem);
    for body in [Body::Kernels, Body::Planes] {
        assert_agree(
            &on_device(&problem, &Device::flex().autodiff(), body),
            &expected,
            TOLERANCE,
        );
    }
}

fn assert_a_large_mean_does_not_cost_the_variance(device: &Device) {
    // In f32, E[x^2] - E[x]^2 would leave no digit of a variance of 1/3 next to a mean of 4,096.
    let problem = Problem::new(4096.0);
    let expected = by_differences(&problem);
    let found = on_device(&problem, device, Body::Planes);
    let difference = relative_difference(&found.variance, &expected.variance);
    assert!(difference < 1e-4, "{difference:.2e}");
}

#[test]
fn a_large_mean_does_not_cost_the_variance() {
    assert_a_large_mean_does_not_cost_the_variance(&Device::flex().autodiff());
}

#[test]
fn one_value_a_channel_is_normalised_to_beta() {
    let device = Device::flex().autodiff();
    let stock = nn::BatchNormConfig::new(2).init(&device);
    let norm = BatchNorm::from(nn::BatchNorm {
        beta: Param::from_tensor(Tensor::from_floats([0.5, 0.25], &device)),
        momentum: 1.0,
        ..stock
    });
    let x = Tensor::<4>::from_floats([[[[3.0, -2.0]]]], &device);
    assert_eq!(values(Tensor::<4>::from(norm.forward(x))), [0.5, 0.25]);
    assert_eq!(values(norm.running_var.value_sync()), [0.0, 0.0]);
}

#[cfg(feature = "ndarray")]
#[allow(deprecated, reason = "burn calls its NdArray so")]
mod second_opinion {
    use super::*;

    #[test]
    fn the_composed_body_agrees_with_the_flex_body() {
        let problem = Problem::new(0.3);
        let flex = on_device(&problem, &Device::flex().autodiff(), Body::Planes);
        let composed = on_device(&problem, &Device::ndarray().autodiff(), Body::Planes);
        assert_agree(&composed, &flex, TOLERANCE);
    }

    #[test]
    fn a_large_mean_does_not_cost_the_variance_of_the_composed_body() {
        assert_a_large_mean_does_not_cost_the_variance(&Device::ndarray().autodiff());
    }
}
