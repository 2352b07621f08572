//! Activations of 16 bits against f32, with the same network, weights and images.

use burn::tensor::{DType, Device};
use burn_resnet::{Activations, Computation, Isa, Kernels, ResNet, ResNetConfig, Shortcut};

use crate::support::{
    Named, assert_same_on_threads, cross_entropy, gradients, images, tensors, values,
};

/// The tolerance of docs/numerics.md for bf16: relative L2 distance of logits, and of the running
/// statistics after one step, from those of f32.
const FORWARD_TOLERANCE: f64 = 0.02;
/// The same for all gradients as one vector.
const GRADIENT_TOLERANCE: f64 = 0.2;
/// The tolerance of docs/numerics.md for f16: logits and running statistics.
const F16_FORWARD_TOLERANCE: f64 = 0.002;
/// The same for f16's gradients.
const F16_GRADIENT_TOLERANCE: f64 = 0.08;
/// The factor of the loss of a step in f16.
const LOSS_SCALE: f32 = 1024.0;

fn computed(computation: Computation) -> ResNetConfig {
    ResNetConfig::cifar(8)
        .unwrap()
        .with_computation(computation)
}

fn bf16_on(isa: Isa) -> ResNetConfig {
    computed(Computation {
        activations: Activations::Bf16,
        isa,
        ..Computation::default()
    })
}

fn config(activations: Activations) -> ResNetConfig {
    computed(Computation {
        activations,
        ..Computation::default()
    })
}

#[derive(PartialEq)]
struct Step {
    logits: Vec<f32>,
    gradients: Named,
    statistics: Vec<f32>,
}

fn step(config: &ResNetConfig) -> Step {
    let device = Device::flex().autodiff();
    let model: ResNet = config.init(11, &device);
    let logits = model.forward(images([6, 16, 16, 3], &device));
    assert_eq!(logits.dtype(), DType::F32);
    let loss = cross_entropy(logits.clone(), &[1, 4, 7, 0, 3, 6]);
    let mut gradients = gradients(&model, &loss.mul_scalar(LOSS_SCALE).backward());
    gradients
        .values_mut()
        .flatten()
        .for_each(|gradient| *gradient /= LOSS_SCALE);
    let running = tensors(&model)
        .into_iter()
        .filter(|(name, _)| name.contains("running_"));
    Step {
        logits: values(logits),
        gradients,
        statistics: running.flat_map(|(_, values)| values).collect(),
    }
}

/// Returns the L2 distance over the L2 norm of the expected values.
fn distance<'a>(
    found: impl IntoIterator<Item = &'a f32>,
    expected: impl IntoIterator<Item = &'a f32>,
) -> f64 {
    let mut difference = 0.0;
    let mut norm = 0.0;
    for (found, expected) in found.into_iter().zip(expected) {
        difference += (f64::from(*found) - f64::from(*expected)).powi(2);
        norm += f64::from(*expected).powi(2);
    }
    (difference / norm).sqrt()
}

#[test]
fn a_step_in_16_bits_stays_near_the_step_in_f32() {
    let bf16 = (Activations::Bf16, FORWARD_TOLERANCE, GRADIENT_TOLERANCE);
    let f16 = (
        Activations::F16,
        F16_FORWARD_TOLERANCE,
        F16_GRADIENT_TOLERANCE,
    );
    for (shortcut, half) in [
        (Shortcut::A, bf16),
        (Shortcut::B, bf16),
        (Shortcut::A, f16),
        (Shortcut::B, f16),
    ] {
        let (activations, forward_tolerance, gradient_tolerance) = half;
        let expected = step(&config(Activations::F32).with_shortcut(shortcut));
        let found = step(&config(activations).with_shortcut(shortcut));
        let logits = distance(&found.logits, &expected.logits);
        let statistics = distance(&found.statistics, &expected.statistics);
        let gradients = distance(
            found.gradients.values().flatten(),
            expected.gradients.values().flatten(),
        );
        println!(
            "{activations:?} {shortcut:?}: logits {logits:.4}, running statistics {statistics:.4}, gradients {gradients:.4}"
        );
        // Equal logits would mean activations that are not rounded.
        assert!(logits > 1e-5 && logits < forward_tolerance);
        assert!(statistics < forward_tolerance && gradients < gradient_tolerance);
    }
}

#[test]
fn the_number_of_threads_changes_no_bit_of_a_bf16_step() {
    let compute = || step(&config(Activations::Bf16));
    assert_same_on_threads(compute);
}

#[test]
fn every_instruction_set_makes_the_same_bf16_step_within_bf16s_precision() {
    let expected = step(&bf16_on(Isa::Portable));
    for isa in Isa::available() {
        let found = step(&bf16_on(isa));
        assert!(
            distance(&found.logits, &expected.logits) < FORWARD_TOLERANCE,
            "{isa:?}"
        );
    }
}

#[test]
#[should_panic(expected = "expected Kernels::Fused, got Kernels::Stock")]
fn burns_own_operations_refuse_activations_of_16_bits() {
    computed(Computation {
        activations: Activations::Bf16,
        kernels: Kernels::Stock,
        ..Computation::default()
    })
    .init(0, &Device::flex());
}
