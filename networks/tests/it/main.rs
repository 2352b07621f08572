//! Tests of the networks: PyTorch's numbers in f64 (golden/networks.py printed them), bad input.

#![allow(clippy::unwrap_used)] // A failed unwrap here is a failed test.

#[path = "../../../burn-resnet/tests/it/support/ten_losses.rs"]
mod ten_losses;

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::activation::log_softmax;
use burn::tensor::{Device, Distribution, FloatDType, Tensor, TensorData};
use layers::PassContext;
use layers::backend::Kernels;
use networks::{Activations, Computation, ConvNeXt, MobileNetV2, VisionTransformer, WideResNet};
use ten_losses::ten_losses;

/// Tolerance for losses. Rounding errors accumulate over the ten steps of SGD.
const TOLERANCE: f32 = 1e-5;

/// A trainable parameter of a network.
struct Parameter {
    path: String,
    shape: Vec<usize>,
    values: Vec<f32>,
}

/// Returns the trainable parameters, in module order.
fn parameters<M: Module>(model: &M) -> Vec<Parameter> {
    #[derive(Default)]
    struct Lister {
        path: Vec<String>,
        found: Vec<Parameter>,
    }
    impl ModuleVisitor for Lister {
        fn enter_module(&mut self, name: &str, _container_type: &str) {
            self.path.push(name.to_owned());
        }

        fn exit_module(&mut self, _name: &str, _container_type: &str) {
            self.path.pop();
        }

        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if !param.is_require_grad() {
                return;
            }
            self.found.push(Parameter {
                path: self.path.join("."),
                shape: param.shape().to_vec(),
                values: param.val().into_data().try_into_vec().unwrap(),
            });
        }
    }
    let mut lister = Lister::default();
    model.visit(&mut lister);
    lister.found
}

fn count<M: Module>(model: &M) -> usize {
    let parameters = parameters(model);
    parameters.iter().map(|found| found.values.len()).sum()
}

fn check<M: Module>(
    name: &str,
    model: M,
    num_parameters: usize,
    learning_rate: f64,
    expected: [f32; 10],
    forward: impl Fn(&M, Tensor<4>) -> Tensor<2>,
) {
    assert_eq!(count(&model), num_parameters, "{name}");
    compare(
        name,
        &ten_losses(
            model,
            16,
            learning_rate,
            FloatDType::F32,
            &Device::flex().autodiff(),
            forward,
        ),
        expected,
        TOLERANCE,
    );
}

fn compare(name: &str, losses: &[f32], expected: [f32; 10], tolerance: f32) {
    let off = losses
        .iter()
        .zip(expected)
        .map(|(found, expected)| (found - expected).abs() / expected);
    let off = off.fold(0.0, f32::max);
    assert!(off <= tolerance, "{name}: losses {losses:?}: {off:.2e}");
}

#[test]
fn a_wide_resnet_has_pytorchs_parameters_and_ten_losses() {
    let device = Device::flex().autodiff();
    let expected = [
        2.310998, 2.301896, 2.284718, 2.260512, 2.230216, 2.194761, 2.155116, 2.111872, 2.065813,
        2.017602,
    ];
    let model = WideResNet::new(28, 10, 3, 10, &device);
    check(
        "wide-resnet-28-10",
        model,
        36_479_194,
        0.00002,
        expected,
        WideResNet::forward,
    );
}

#[test]
fn mobilenet_v2_has_pytorchs_parameters_and_ten_losses() {
    let device = Device::flex().autodiff();
    let expected = [
        3.106751, 3.091028, 3.063266, 3.029122, 2.989592, 2.953824, 2.911638, 2.871531, 2.830287,
        2.78638,
    ];
    let model = MobileNetV2::new(3, 10, &device);
    assert_eq!(count(&model), 2_236_682);
    let ten_losses = |model: MobileNetV2, dtype, kernels| {
        let context = PassContext::from(Computation {
            kernels,
            ..Computation::default()
        });
        context.scope(|| ten_losses(model, 16, 0.0000001, dtype, &device, MobileNetV2::forward))
    };
    // Norms over the few values of depthwise layers lose digits. In f32, even PyTorch's gradients
    // have a relative error of a hundredth. In f64, burn's operations compute these norms.
    let losses = ten_losses(model.clone(), FloatDType::F64, Kernels::Stock);
    compare("mobilenet-v2 in f64", &losses, expected, TOLERANCE);
    compare(
        "mobilenet-v2",
        &ten_losses(model, FloatDType::F32, Kernels::Fused),
        expected,
        1e-3,
    );
}

#[test]
fn convnext_has_pytorchs_parameters_and_ten_losses() {
    let device = Device::flex().autodiff();
    let expected = [
        2.841134, 2.652444, 2.357922, 2.04496, 1.775002, 1.581221, 1.493268, 1.539318, 1.610718,
        1.553383,
    ];
    check(
        "convnext-tiny",
        ConvNeXt::new(3, 10, 0.0, &device),
        27_824_362,
        0.0002,
        expected,
        ConvNeXt::forward,
    );
}

#[test]
fn a_vision_transformer_has_pytorchs_parameters_and_ten_losses() {
    let device = Device::flex().autodiff();
    let expected = [
        2.944258, 2.876257, 2.751145, 2.582798, 2.388026, 2.186065, 1.996593, 1.835799, 1.711955,
        1.623741,
    ];
    let [of_32_pixels, model] =
        [32, 16].map(|side| VisionTransformer::new([side, side], 3, 10, 0.0, &device));
    assert_eq!(count(&of_32_pixels), 5_362_762);
    assert_eq!(
        VisionTransformer::num_values([32, 32], 3, 10),
        5_362_762,
        "all values are parameters"
    );
    check(
        "vit-tiny",
        model,
        5_353_546,
        0.0002,
        expected,
        VisionTransformer::forward,
    );
}

#[test]
fn the_transformers_optimizer_turns_matrices_of_blocks_and_steps_all_else_by_the_rate() {
    const RATE: f64 = 1e-3;
    let device = Device::flex().autodiff();
    device.seed(3);
    let model = VisionTransformer::new([16, 16], 3, 10, 0.0, &device);
    let before = parameters(&model);
    let images = Tensor::<4>::random([2, 16, 16, 3], Distribution::Default, &device);
    let loss_of = |model: &VisionTransformer| {
        log_softmax(model.forward(images.clone()), 1)
            .slice([0..2, 3..4])
            .sum()
            .neg()
    };
    let loss = loss_of(&model);
    let gradients = GradientsParams::from_grads(loss.backward(), &model);
    let model = VisionTransformer::optimizer().step(RATE, model, gradients);
    assert!(loss_of(&model).into_scalar::<f32>() < loss.into_scalar::<f32>());
    let after = parameters(&model);
    let mut matrices = 0;
    let mut others = 0;
    for (before, after) in before.iter().zip(&after) {
        let Parameter { path, shape, .. } = before;
        let pairs = before.values.iter().zip(&after.values);
        let moved: Vec<f64> = pairs
            .map(|(before, after)| f64::from(after - before))
            .collect();
        if path.contains("blocks") && path.ends_with(".weight") {
            // Muon's five iterations bring singular values to 0.7 to 1.2. A gradient of two images
            // is rank-deficient, and most missing singular values stay near zero. The step is
            // scaled by 0.2 sqrt(longer side).
            let longer = shape.iter().copied().fold(0, usize::max) as f64;
            let shorter = shape.iter().copied().fold(usize::MAX, usize::min) as f64;
            let norm = moved.iter().map(|value| value * value).sum::<f64>().sqrt()
                / (RATE * 0.2 * longer.sqrt());
            assert!(norm > 0.5 && norm < 1.3 * shorter.sqrt(), "{path}: {norm}");
            matrices += 1;
        } else {
            // Adam's first step equals the rate wherever the gradient is far larger than the
            // epsilon of 1e-5.
            let largest = moved
                .iter()
                .fold(0.0_f64, |largest, value| largest.max(value.abs()));
            assert!((largest / RATE - 1.0).abs() < 0.02, "{path}: {largest}");
            others += 1;
        }
    }
    assert_eq!((matrices, matrices + others), (12 * 4, after.len()));
}

#[test]
fn every_network_in_bf16_has_the_first_loss_of_f32_to_the_precision_of_bf16() {
    let device = Device::flex().autodiff();
    let values: Vec<f32> = (0..2 * 16 * 16 * 3)
        .map(|i| ((i * 31 % 101) as f32 * 0.37).sin())
        .collect();
    let images = Tensor::<4>::from_data(TensorData::new(values, [2, 16, 16, 3]), &device);
    let wide = WideResNet::new(10, 1, 3, 10, &device);
    let mobile = MobileNetV2::new(3, 10, &device);
    let convnext = ConvNeXt::new(3, 10, 0.0, &device);
    let vit = VisionTransformer::new([16, 16], 3, 10, 0.0, &device);
    let losses = |activations| {
        let computation = Computation {
            activations,
            ..Computation::default()
        };
        let images = || images.clone();
        let logits = PassContext::from(computation).scope(|| {
            [
                wide.forward(images()),
                mobile.forward(images()),
                convnext.forward(images()),
                vit.forward(images()),
            ]
        });
        logits.map(|logits| {
            let loss = log_softmax(logits.cast(FloatDType::F32), 1)
                .slice([0..2, 3..4])
                .sum();
            drop(loss.clone().backward());
            loss.into_scalar::<f32>()
        })
    };
    let expected = losses(Activations::F32);
    let found = losses(Activations::Bf16);
    for (expected, found) in expected.iter().zip(found) {
        let off = (found - expected).abs() / expected.abs();
        assert!(
            off > 0.0 && off < 0.1,
            "expected {expected:?}, got {found:?}"
        );
    }
}

#[test]
fn a_transformer_reads_images_that_are_not_square_and_another_size_is_refused_by_name() {
    let device = Device::flex();
    let model = VisionTransformer::new([8, 16], 3, 10, 0.0, &device);
    let images = Tensor::<4>::ones([2, 8, 16, 3], &device);
    assert_eq!(model.forward(images).dims(), [2, 10]);
    let refusal = |size| {
        VisionTransformer::expect_image_size(size)
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        refusal([32, 30]),
        "image size: expected multiples of 4 pixels for ViT-Ti/4, got 32 x 30 pixels"
    );
    assert!(refusal([0, 4]).contains("got 0 x 4"));
}

#[test]
fn convnext_reads_images_from_16_pixels_on_and_a_smaller_size_is_refused_by_name() {
    let device = Device::flex();
    let model = ConvNeXt::new(3, 10, 0.0, &device);
    let images = Tensor::<4>::ones([1, 16, 17, 3], &device);
    assert_eq!(model.forward(images).dims(), [1, 10]);
    assert_eq!(
        ConvNeXt::expect_image_size([16, 15])
            .unwrap_err()
            .to_string(),
        "image size: expected at least 16 x 16 pixels for ConvNeXt-T, got 16 x 15 pixels"
    );
}

#[test]
fn only_a_network_with_stochastic_depth_draws_and_only_in_training() {
    let device = Device::flex().autodiff();
    for drop in [0.0, 0.9] {
        let model = VisionTransformer::new([16, 16], 3, 10, drop, &device);
        assert_eq!(
            (model.draws(), ConvNeXt::new(3, 10, drop, &device).draws()),
            (drop > 0.0, drop > 0.0)
        );
        let forward = |model: &VisionTransformer, device: &Device| {
            let images = Tensor::<4>::ones([2, 16, 16, 3], device);
            model.forward(images).into_data()
        };
        let is_repeated = forward(&model, &device) == forward(&model, &device);
        assert_eq!(is_repeated, drop == 0.0);
        let valid = model.valid();
        let device = Device::flex();
        assert_eq!(forward(&valid, &device), forward(&valid, &device));
    }
}
