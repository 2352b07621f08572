//! Compares the networks of examples/networks with PyTorch. golden/networks.py printed the expected
//! numbers in f64.

// The other parts of these files are unused here.
#[allow(dead_code)]
#[path = "../../examples/networks/convnext.rs"]
mod convnext;
#[allow(dead_code)]
#[path = "../../examples/networks/mobilenet_v2.rs"]
mod mobilenet_v2;
#[path = "../../../burn-resnet/tests/it/support/ten_losses.rs"]
mod ten_losses;
#[allow(dead_code)]
#[path = "../../examples/networks/vit.rs"]
mod vit;
#[allow(dead_code)]
#[path = "../../examples/networks/wide_resnet.rs"]
mod wide_resnet;

use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::activation::log_softmax;
use burn::tensor::{Device, Distribution, FloatDType, Tensor, TensorData};
use convnext::ConvNeXt;
use distributed::replica::{ParameterLayout, read};
use layers::PassContext;
use layers::backend::{Activations, Computation, Kernels};
use mobilenet_v2::MobileNetV2;
use ten_losses::ten_losses;
use vit::VisionTransformer;
use wide_resnet::WideResNet;

/// Tolerance for losses. Rounding errors accumulate over the ten steps of SGD.
const TOLERANCE: f32 = 1e-5;

fn check<M: Module>(
    name: &str,
    model: M,
    num_parameters: usize,
    learning_rate: f64,
    expected: [f32; 10],
    forward: impl Fn(&M, Tensor<4>) -> Tensor<2>,
) {
    assert_eq!(
        ParameterLayout::new(&model).num_elements(),
        num_parameters,
        "{name}"
    );
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
    assert_eq!(ParameterLayout::new(&model).num_elements(), 2_236_682);
    let ten_losses = |model, dtype, kernels| {
        let computation = Computation {
            kernels,
            ..Computation::default()
        };
        let context = PassContext {
            computation,
            ..PassContext::default()
        };
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
        [32, 16].map(|size| VisionTransformer::new(size, 3, 10, 0.0, &device));
    assert_eq!(
        ParameterLayout::new(&of_32_pixels).num_elements(),
        5_362_762
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
fn the_transformers_own_optimizer_turns_matrices_of_blocks_and_steps_all_else_by_the_rate() {
    const RATE: f64 = 1e-3;
    let device = Device::flex().autodiff();
    device.seed(3);
    let model = VisionTransformer::new(16, 3, 10, 0.0, &device);
    let layout = ParameterLayout::new(&model);
    let before = read(&model, &layout);
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
    let after = read(&model, &layout);
    let mut matrices = 0;
    let mut others = 0;
    for entry in layout.entries() {
        let moved: Vec<f64> = entry
            .range()
            .map(|place| f64::from(after[place] - before[place]))
            .collect();
        if entry.path.contains("blocks") && entry.path.ends_with(".weight") {
            // Muon's five iterations bring singular values to 0.7 to 1.2. A gradient of two images
            // is rank-deficient, and most missing singular values stay near zero. The step is
            // scaled by 0.2 sqrt(longer side).
            let longer = entry.shape.iter().copied().fold(0, usize::max) as f64;
            let shorter = entry.shape.iter().copied().fold(usize::MAX, usize::min) as f64;
            let norm = moved.iter().map(|value| value * value).sum::<f64>().sqrt()
                / (RATE * 0.2 * longer.sqrt());
            assert!(
                norm > 0.5 && norm < 1.3 * shorter.sqrt(),
                "{}: {norm}",
                entry.path
            );
            matrices += 1;
        } else {
            // Adam's first step equals the rate wherever the gradient is far larger than the
            // epsilon of 1e-5.
            let largest = moved
                .iter()
                .fold(0.0_f64, |largest, value| largest.max(value.abs()));
            assert!(
                (largest / RATE - 1.0).abs() < 0.02,
                "{}: {largest}",
                entry.path
            );
            others += 1;
        }
    }
    assert_eq!(
        (matrices, matrices + others),
        (12 * 4, layout.entries().len())
    );
}

type Forward = Box<dyn Fn(Tensor<4>) -> Tensor<2>>;

#[test]
fn every_network_in_bf16_has_the_first_loss_of_f32_to_the_precision_of_bf16() {
    let device = Device::flex().autodiff();
    let first = |dtype: FloatDType, forward: &dyn Fn(Tensor<4>) -> Tensor<2>| {
        let activations = if dtype == FloatDType::BF16 {
            Activations::Bf16
        } else {
            Activations::F32
        };
        let computation = Computation {
            activations,
            ..Computation::default()
        };
        let images: Vec<f32> = (0..2 * 16 * 16 * 3)
            .map(|i| ((i * 31 % 101) as f32 * 0.37).sin())
            .collect();
        let images =
            Tensor::<4>::from_data(TensorData::new(images, [2, 16, 16, 3]), &device).cast(dtype);
        let logits = PassContext {
            computation,
            ..PassContext::default()
        }
        .scope(|| forward(images));
        let loss = log_softmax(logits.cast(FloatDType::F32), 1)
            .slice([0..2, 3..4])
            .sum();
        drop(loss.clone().backward());
        loss.into_scalar::<f32>()
    };
    let networks: [(&str, Forward); 4] = [
        ("wide-resnet", {
            let model = WideResNet::new(10, 1, 3, 10, &device);
            Box::new(move |images| model.forward(images))
        }),
        ("mobilenet-v2", {
            let model = MobileNetV2::new(3, 10, &device);
            Box::new(move |images| model.forward(images))
        }),
        ("convnext-tiny", {
            let model = ConvNeXt::new(3, 10, 0.0, &device);
            Box::new(move |images| model.forward(images))
        }),
        ("vit-tiny", {
            let model = VisionTransformer::new(16, 3, 10, 0.0, &device);
            Box::new(move |images| model.forward(images))
        }),
    ];
    for (name, forward) in networks {
        let expected = first(FloatDType::F32, &forward);
        let found = first(FloatDType::BF16, &forward);
        let off = (found - expected).abs() / expected.abs();
        assert!(off > 0.0 && off < 0.1, "{name}: {found} against {expected}");
    }
}
