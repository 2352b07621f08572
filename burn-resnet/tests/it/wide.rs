//! ResNet-18 and -34 for small images compute what PyTorch computes: golden/ten_losses.py printed the numbers, in f64.

use burn::module::{Module, ModuleMapper, Param};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_resnet::{ResNet, ResNetConfig};

use crate::support::{relative_difference, values};

/// Each of ten steps of SGD starts from the rounding of the ones before.
const TEN_LOSSES_TOLERANCE: f64 = 1e-5;

const LOSSES_OF_18: [f32; 10] =
    [4.293534, 3.445392, 2.202212, 1.1129, 0.4590794, 0.1837258, 0.08268682, 0.04301867, 0.02541624, 0.01642179];
const LOSSES_OF_34: [f32; 10] =
    [2.880631, 1.046585, 0.2973053, 0.08923869, 0.04313043, 0.02742853, 0.0201672, 0.01563837, 0.01261875, 0.01044724];

/// Numbers without a pattern, different for each `salt`, in -1..1.
fn numbers(len: usize, salt: u32) -> Vec<f32> {
    (0..len as u32)
        .map(|i| (i + 1).wrapping_mul(2_654_435_761).wrapping_add(salt.wrapping_mul(40_503_001)))
        .map(|bits| (bits ^ (bits >> 15)).wrapping_mul(2_246_822_519))
        .map(|bits| (bits >> 8) as f32 / (1 << 23) as f32 - 1.0)
        .collect()
}

/// Gives every parameter its numbers; the salt counts them in PyTorch's order.
#[derive(Default)]
struct Numbered {
    salt: u32,
    field: String,
}

impl ModuleMapper for Numbered {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.field = name.to_owned();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if self.field.starts_with("running_") {
            return param;
        }
        self.salt += 1;
        let (shape, device) = (param.shape(), param.device());
        let numbers = numbers(shape.num_elements(), self.salt);
        param.map(|old| {
            let dims: [usize; D] = shape.dims();
            let data = |values: Vec<f32>, shape: &[usize]| TensorData::new(values, shape.to_vec());
            let tensor = match self.field.as_str() {
                // burn keeps a linear weight as `[in, out]`, PyTorch as `[out, in]`.
                "weight" if D == 2 => {
                    let scale = (6.0 / dims[0] as f64).sqrt() as f32;
                    let rows = data(numbers.iter().map(|v| v * scale).collect(), &[dims[1], dims[0]]);
                    Tensor::from_data(Tensor::<2>::from_data(rows, &device).transpose().into_data(), &device)
                }
                "weight" => {
                    let scale = (6.0 / dims[1..].iter().product::<usize>() as f64).sqrt() as f32;
                    Tensor::from_data(data(numbers.iter().map(|v| v * scale).collect(), &dims), &device)
                }
                "gamma" => Tensor::from_data(data(numbers.iter().map(|v| 1.0 + v / 2.0).collect(), &dims), &device),
                _ => Tensor::from_data(data(numbers, &dims), &device),
            };
            if old.is_require_grad() { tensor.require_grad() } else { tensor }
        })
    }
}

fn ten_losses(mut model: ResNet, device: &Device) -> Vec<f32> {
    let images = Tensor::<4>::from_data(TensorData::new(numbers(4 * 16 * 16 * 3, 0), [4, 16, 16, 3]), device);
    let labels = Tensor::<1, Int>::from_ints([3, 8, 0, 5], device);
    // burn's default dampening is 0.1, PyTorch's is 0.
    let momentum = MomentumConfig::new().with_momentum(0.9).with_dampening(0.0);
    let mut optimizer =
        SgdConfig::new().with_momentum(Some(momentum)).with_weight_decay(Some(WeightDecayConfig::new(1e-4))).init();
    (0..10)
        .map(|_| {
            let cross_entropy = CrossEntropyLossConfig::new().init(device);
            let loss = cross_entropy.forward(model.forward(images.clone()), labels.clone());
            let gradients = GradientsParams::from_grads(loss.backward(), &model);
            model = optimizer.step(0.0002, model.clone(), gradients);
            values(loss)[0]
        })
        .collect()
}

#[test]
fn resnet18_and_resnet34_have_pytorchs_parameters_and_ten_losses() {
    let device = Device::flex().autodiff();
    for (name, num_parameters, expected) in
        [("resnet18", 11_173_962, LOSSES_OF_18), ("resnet34", 21_282_122, LOSSES_OF_34)]
    {
        let config = ResNetConfig::from_name(name).unwrap();
        let model = config.init(0, &device).map(&mut Numbered::default());
        assert_eq!(model.num_trainable(), num_parameters, "{name}");
        let losses = ten_losses(model, &device);
        let off = relative_difference(&losses, &expected);
        assert!(off <= TEN_LOSSES_TOLERANCE, "{name}: losses {losses:?}: {off:.2e}");
    }
}
