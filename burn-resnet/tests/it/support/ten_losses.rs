//! Ten SGD steps from weights and images that a formula makes. golden/ten_losses.py uses the same
//! formula, so no file of 45 MB is kept.

use burn::module::{Module, ModuleMapper, Param};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{Device, FloatDType, Int, Tensor, TensorData};

/// Returns numbers without a pattern, different for each `salt`, in -1..1.
pub(crate) fn numbers(len: usize, salt: u32) -> Vec<f32> {
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

/// A mapper that gives every parameter its numbers. The salt counts the parameters in PyTorch's
/// order.
struct Numbered {
    dtype: FloatDType,
    salt: u32,
    field: String,
}

impl ModuleMapper for Numbered {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.field = name.to_owned();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if self.field.starts_with("running_") {
            return param.map(|running| running.cast(self.dtype));
        }
        self.salt += 1;
        let shape = param.shape();
        let device = param.device();
        let numbers = numbers(shape.num_elements(), self.salt);
        param.map(|old| {
            let dims: [usize; D] = shape.dims();
            let data = |values: Vec<f32>, shape: &[usize]| TensorData::new(values, shape.to_vec());
            let tensor: Tensor<D> = match self.field.as_str() {
                // burn keeps a linear weight as `[in, out]`, PyTorch keeps it as `[out, in]`.
                "weight" if D == 2 => {
                    let scale = (6.0 / dims[0] as f64).sqrt() as f32;
                    let rows = data(
                        numbers.iter().map(|v| v * scale).collect(),
                        &[dims[1], dims[0]],
                    );
                    Tensor::from_data(
                        Tensor::<2>::from_data(rows, &device)
                            .transpose()
                            .into_data(),
                        &device,
                    )
                }
                "weight" => {
                    let scale = (6.0 / dims[1..].iter().product::<usize>() as f64).sqrt() as f32;
                    Tensor::from_data(
                        data(numbers.iter().map(|v| v * scale).collect(), &dims),
                        &device,
                    )
                }
                "gamma" => Tensor::from_data(
                    data(numbers.iter().map(|v| 1.0 + v / 2.0).collect(), &dims),
                    &device,
                ),
                _ => Tensor::from_data(data(numbers, &dims), &device),
            };
            let tensor = tensor.cast(self.dtype);
            if old.is_require_grad() {
                tensor.require_grad()
            } else {
                tensor
            }
        })
    }
}

/// Returns the model with the numbers of the formula as its parameters, in this format.
pub(crate) fn numbered<M: Module>(model: M, dtype: FloatDType) -> M {
    model.map(&mut Numbered {
        dtype,
        salt: 0,
        field: String::new(),
    })
}

/// Returns the losses of `model` over four images of `size` x `size`, computed by `forward`. Its
/// weights are the numbers of the formula, in this format.
pub(crate) fn ten_losses<M: Module>(
    model: M,
    size: usize,
    learning_rate: f64,
    dtype: FloatDType,
    device: &Device,
    forward: impl Fn(&M, Tensor<4>) -> Tensor<2>,
) -> Vec<f32> {
    let mut model = numbered(model, dtype);
    let images = Tensor::<4>::from_data(
        TensorData::new(numbers(4 * size * size * 3, 0), [4, size, size, 3]),
        device,
    )
    .cast(dtype);
    let labels = Tensor::<1, Int>::from_ints([3, 8, 0, 5], device);
    // burn's default dampening is 0.1, PyTorch's is 0.
    let momentum = MomentumConfig::new().with_momentum(0.9).with_dampening(0.0);
    let mut optimizer = SgdConfig::new()
        .with_momentum(Some(momentum))
        .with_weight_decay(Some(WeightDecayConfig::new(1e-4)))
        .init();
    (0..10)
        .map(|_| {
            let cross_entropy = CrossEntropyLossConfig::new().init(device);
            let loss = cross_entropy.forward(forward(&model, images.clone()), labels.clone());
            let gradients = GradientsParams::from_grads(loss.backward(), &model);
            model = optimizer.step(learning_rate, model.clone(), gradients);
            loss.into_scalar::<f32>()
        })
        .collect()
}
