//! A hook gets the gradients during the backward pass: the same numbers, in backward order, each
//! once.

use std::sync::{Arc, Mutex};

use burn::module::{Module, ParamId};
use burn::tensor::{Device, Tensor, TensorData};
use burn_resnet::{Computation, Kernels, ResNet, ResNetConfig};
use layers::PassContext;
use layers::backend::GradientHook;

use crate::support::{Named, gradients, names};

#[derive(Debug, Default)]
struct Collector(Mutex<Vec<(ParamId, Vec<f32>)>>);

impl GradientHook for Collector {
    fn on_gradient(&self, parameter: ParamId, gradient: TensorData) {
        self.0
            .lock()
            .unwrap()
            .push((parameter, gradient.try_into_vec().unwrap()));
    }
}

fn model(kernels: Kernels, device: &Device) -> ResNet {
    ResNetConfig::cifar(8)
        .unwrap()
        .with_computation(Computation {
            kernels,
            ..Computation::default()
        })
        .init(5, device)
}

fn with_hook(hook: &Arc<Collector>) -> PassContext {
    PassContext {
        hook: Some(hook.clone()),
        ..PassContext::default()
    }
}

/// Returns the gradients that the tape keeps, and those that the hook received, in its order.
fn backward(model: ResNet, device: &Device) -> (Named, Vec<(String, Vec<f32>)>) {
    let hook = Arc::new(Collector::default());
    let images = Tensor::<4>::ones([2, 8, 8, 3], device) * 0.5;
    let logits = with_hook(&hook).scope(|| model.forward(images));
    let on_tape = gradients(&model, &logits.powf_scalar(2.0).sum().backward());
    let names = names(&model);
    let name = |id: ParamId| {
        let known = names.iter().find(|(known, _)| *known == id);
        known.unwrap().1.clone()
    };
    let mut taken = hook.0.lock().unwrap();
    let taken = taken.drain(..);
    (
        on_tape,
        taken.map(|(id, gradient)| (name(id), gradient)).collect(),
    )
}

#[test]
fn a_hook_gets_each_parameters_gradient_once_in_backward_order_and_the_tape_keeps_none() {
    let device = Device::flex().autodiff();
    let expected_order = [
        "linear.weight",
        "layer3.0.conv2.weight",
        "layer3.0.conv1.weight",
        "layer2.0.conv2.weight",
        "layer2.0.conv1.weight",
        "layer1.0.conv2.weight",
        "layer1.0.conv1.weight",
        "conv1.weight",
    ];
    for kernels in [Kernels::Fused, Kernels::Stock] {
        let images = Tensor::<4>::ones([2, 8, 8, 3], &device) * 0.5;
        let plain = model(kernels, &device);
        let loss = plain.forward(images).powf_scalar(2.0).sum();
        let expected = gradients(&plain, &loss.backward());
        let (on_tape, taken) = backward(model(kernels, &device), &device);
        assert_eq!(on_tape, Named::new());
        let is_matrix = |name: &&str| name.contains("conv") || *name == "linear.weight";
        let names = taken.iter().map(|(name, _)| name.as_str());
        assert_eq!(names.filter(is_matrix).collect::<Vec<_>>(), expected_order);
        assert_eq!(taken.len(), expected.len(), "each comes once");
        assert_eq!(Named::from_iter(taken), expected);
    }
}

#[test]
fn a_frozen_model_hands_nothing_over() {
    let device = Device::flex().autodiff();
    let frozen = model(Kernels::Fused, &device).no_grad();
    let hook = Arc::new(Collector::default());
    let images = Tensor::<4>::ones([2, 8, 8, 3], &device).require_grad();
    let gradients = with_hook(&hook)
        .scope(|| frozen.forward(images.clone()))
        .sum()
        .backward();
    assert!(images.grad(&gradients).is_some());
    assert!(hook.0.lock().unwrap().is_empty());
}
