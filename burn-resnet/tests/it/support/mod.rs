//! Helpers of several tests: tensors by their PyTorch names, and differences between lists.

pub(crate) mod ten_losses;

use std::collections::BTreeMap;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Gradients, Tensor, TensorData};
use burn_resnet::ResNet;

/// Values by PyTorch's name, row-major in burn's shape.
pub(crate) type Named = BTreeMap<String, Vec<f32>>;

/// Returns the values of a tensor in logical order.
pub(crate) fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_to_vec::<f32>().expect("f32 tensor")
}

/// Returns smooth images without symmetry, so that a mirrored or shifted result differs.
pub(crate) fn images(shape: [usize; 4], device: &Device) -> Tensor<4> {
    let len = shape.iter().product::<usize>();
    let values: Vec<f32> = (0..len)
        .map(|i| ((i * i % 89) as f32 * 0.37).sin() + (i % 7) as f32 * 0.1)
        .collect();
    Tensor::from_data(TensorData::new(values, shape), device)
}

/// The part of each tensor to collect.
enum Part<'a> {
    Value,
    Gradient(&'a Gradients),
}

struct Collect<'a> {
    part: Part<'a>,
    path: Vec<String>,
    named: Named,
}

impl ModuleVisitor for Collect<'_> {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let name = self
            .path
            .join(".")
            .replace("gamma", "weight")
            .replace("beta", "bias");
        let taken = match self.part {
            Part::Value => Some(values(param.val())),
            Part::Gradient(gradients) => param.val().grad(gradients).map(values),
        };
        if let Some(values) = taken {
            self.named.insert(name, values);
        }
    }
}

/// Returns all parameters and running statistics.
pub(crate) fn tensors(model: &impl Module) -> Named {
    let mut collect = Collect {
        part: Part::Value,
        path: vec![],
        named: Named::new(),
    };
    model.visit(&mut collect);
    collect.named
}

/// Returns the gradient of every parameter that has one.
pub(crate) fn gradients(model: &ResNet, gradients: &Gradients) -> Named {
    let part = Part::Gradient(gradients);
    let mut collect = Collect {
        part,
        path: vec![],
        named: Named::new(),
    };
    model.visit(&mut collect);
    collect.named
}

/// Returns the largest absolute difference over the largest absolute expected value.
pub(crate) fn relative_difference(found: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let largest = |values: &mut dyn Iterator<Item = f64>| {
        values.fold(0.0, |all: f64, v| {
            if v.is_nan() {
                f64::INFINITY
            } else {
                all.max(v.abs())
            }
        })
    };
    let pairs = found.iter().zip(expected);
    let difference = largest(&mut pairs.map(|(&a, &b)| f64::from(a) - f64::from(b)));
    let scale = largest(&mut expected.iter().map(|&v| f64::from(v)));
    difference / scale.max(f64::MIN_POSITIVE)
}

/// Asserts equal names, and values within `tolerance` of [`relative_difference`].
pub(crate) fn assert_close(found: &Named, expected: &Named, tolerance: f64) {
    let names = |named: &Named| named.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(found), names(expected));
    for (name, expected) in expected {
        let difference = relative_difference(&found[name], expected);
        assert!(
            difference <= tolerance,
            "{name}: {difference:.2e} > {tolerance:.0e}"
        );
    }
}
