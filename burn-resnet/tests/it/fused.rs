//! Fused layers against burn's own operations, with the same network, weights and images.

use burn::module::Module;
use burn::tensor::{Device, FloatDType, Tensor};
use burn_resnet::{Computation, Kernels, ResNet, ResNetConfig, Shortcut};

use crate::support::ten_losses::ten_losses;
use crate::support::{
    Named, assert_close, assert_same_on_threads, cross_entropy, gradients, images,
    relative_difference, tensors, values,
};

/// The tolerance of docs/numerics.md for logits, gradients and running statistics of one step,
/// relative to the largest value.
const STEP_TOLERANCE: f64 = 1e-5;
/// The relative tolerance of docs/numerics.md for the loss of each of ten steps.
const TEN_LOSSES_TOLERANCE: f64 = 1e-4;

const SIZES: [[usize; 4]; 3] = [[4, 16, 16, 3], [3, 9, 14, 3], [2, 7, 8, 1]];

fn model(kernels: Kernels, shortcut: Shortcut, channels: usize, device: &Device) -> ResNet {
    let config = ResNetConfig::cifar(8)
        .unwrap()
        .with_shortcut(shortcut)
        .with_in_channels(channels);
    config
        .with_computation(Computation {
            kernels,
            ..Computation::default()
        })
        .init(11, device)
}

fn loss(model: &ResNet, images: Tensor<4>) -> (Tensor<2>, Tensor<1>) {
    let [n, ..] = images.dims();
    let labels: Vec<i32> = (0..n as i32).map(|i| (3 * i + 1) % 10).collect();
    let logits = model.forward(images);
    (logits.clone(), cross_entropy(logits, &labels))
}

#[derive(PartialEq)]
struct Step {
    logits: Vec<f32>,
    gradients: Named,
    image_gradient: Vec<f32>,
    after: Named,
    evaluated: Vec<f32>,
}

fn step(kernels: Kernels, shortcut: Shortcut, shape: [usize; 4], device: &Device) -> Step {
    let device = device.clone().autodiff();
    let model = model(kernels, shortcut, shape[3], &device);
    let images = images(shape, &device).require_grad();
    let (logits, loss) = loss(&model, images.clone());
    let backward = loss.backward();
    let evaluated = model.valid().forward(images.clone().inner());
    Step {
        logits: values(logits),
        gradients: gradients(&model, &backward),
        image_gradient: values(images.grad(&backward).unwrap()),
        after: tensors(&model),
        evaluated: values(evaluated),
    }
}

fn assert_same_step(found: &Step, expected: &Step) {
    for (found, expected) in [
        (&found.logits, &expected.logits),
        (&found.image_gradient, &expected.image_gradient),
        (&found.evaluated, &expected.evaluated),
    ] {
        let off = relative_difference(found, expected);
        assert!(off <= STEP_TOLERANCE, "{off:.2e}");
    }
    assert_close(&found.gradients, &expected.gradients, STEP_TOLERANCE);
    assert_close(&found.after, &expected.after, STEP_TOLERANCE);
}

fn assert_same_steps(device: &Device) {
    for shortcut in [Shortcut::A, Shortcut::B] {
        for shape in SIZES {
            let stock = step(Kernels::Stock, shortcut, shape, device);
            assert_same_step(&step(Kernels::Fused, shortcut, shape, device), &stock);
        }
    }
}

#[test]
fn our_kernels_compute_what_burns_operations_do() {
    assert_same_steps(&Device::flex());
}

#[test]
fn ten_steps_lose_as_with_burns_operations() {
    let losses = |kernels| {
        let device = Device::flex().autodiff();
        let model = model(kernels, Shortcut::A, 3, &device);
        ten_losses(model, 16, 2e-3, FloatDType::F32, &device, ResNet::forward)
    };
    let fused = losses(Kernels::Fused);
    let stock = losses(Kernels::Stock);
    assert!(stock[9] < 0.9 * stock[0], "the losses fall: {stock:?}");
    for (fused, stock) in fused.iter().zip(&stock) {
        let off = f64::from((fused - stock).abs() / stock);
        assert!(off <= TEN_LOSSES_TOLERANCE, "{fused} against {stock}");
    }
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    let compute = || step(Kernels::Fused, Shortcut::A, [5, 16, 16, 3], &Device::flex());
    assert_same_on_threads(compute);
}

#[cfg(feature = "ndarray")]
#[allow(deprecated, reason = "burn calls its NdArray so")]
mod second_opinion {
    use super::*;

    #[test]
    fn the_composed_body_computes_what_burns_operations_do() {
        assert_same_steps(&Device::ndarray());
    }
}
