//! Helpers of several tests: tensors by their PyTorch names, and differences between lists.

pub(crate) mod ten_losses;

use std::collections::BTreeMap;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::activation::log_softmax;
use burn::tensor::{Device, Gradients, Int, Tensor, TensorData};
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

/// Returns the mean cross entropy of the logits.
pub(crate) fn cross_entropy(logits: Tensor<2>, labels: &[i32]) -> Tensor<1> {
    let device = logits.device();
    let labels = Tensor::<1, Int>::from_data(TensorData::from(labels), &device);
    log_softmax(logits, 1)
        .gather(1, labels.unsqueeze_dim(1))
        .mean()
        .neg()
}

/// Asserts that `compute` gives the same result on 1, 2 and 3 threads.
pub(crate) fn assert_same_on_threads<T: PartialEq + Send>(compute: impl Fn() -> T + Sync) {
    let [one, two, three] = [1, 2, 3].map(|num_threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(num_threads);
        pool.build().unwrap().install(&compute)
    });
    assert!(one == two && one == three);
}

#[derive(Default)]
struct Collect<'a> {
    /// Collects the gradients if there are any, otherwise the values.
    gradients: Option<&'a Gradients>,
    path: Vec<String>,
    named: Named,
    names: Vec<(ParamId, String)>,
}

impl ModuleVisitor for Collect<'_> {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let name = self.path.join(".");
        let name = name.replace("gamma", "weight").replace("beta", "bias");
        self.names.push((param.id, name.clone()));
        let taken = match self.gradients {
            None => Some(values(param.val())),
            Some(gradients) => param.val().grad(gradients).map(values),
        };
        if let Some(values) = taken {
            self.named.insert(name, values);
        }
    }
}

/// Returns all parameters and running statistics.
pub(crate) fn tensors(model: &impl Module) -> Named {
    let mut collect = Collect::default();
    model.visit(&mut collect);
    collect.named
}

/// Returns the PyTorch names of all parameters and running statistics, in module order.
pub(crate) fn names(model: &impl Module) -> Vec<(ParamId, String)> {
    let mut collect = Collect::default();
    model.visit(&mut collect);
    collect.names
}

/// Returns the gradient of every parameter that has one.
pub(crate) fn gradients(model: &ResNet, gradients: &Gradients) -> Named {
    let mut collect = Collect {
        gradients: Some(gradients),
        ..Collect::default()
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
