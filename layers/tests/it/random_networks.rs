//! Networks drawn at random, whose features are read once, several times or never, by layers, sums,
//! and burn's own operations, with parts that are frozen: by our kernels, with gradients on the
//! tape or given to a hook, what burn's operations compute in f64.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use burn::module::{Param, ParamId, RunningState};
use burn::nn;
use burn::nn::PaddingConfig2d::Explicit;
use burn::nn::conv::Conv2dConfig;
#[cfg(feature = "wgpu")]
use burn::tensor::DeviceKind;
use burn::tensor::{Device, FloatDType, Gradients, Tensor, TensorData};
use layers::backend::{Computation, Kernels, Recompute, gradient_hook};
use layers::{BatchNorm, Conv2d, Features, PassContext, gelu, relu, relu6};

use crate::differences::{relative_difference, values};

const C: usize = 8;
const NETWORKS: u64 = 150;
/// Difference relative to the largest of a tensor's values, of parameters' gradients together; one
/// ReLU that rounding turns moves them by a hundredth.
const TOLERANCE: f64 = 1e-2;

/// Numbers that decide what a network is.
struct Choices(u64);

impl Choices {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }

    fn is_one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    /// A parameter of uniform values. burn's own draws share one state with the tests next to this
    /// one.
    fn drawn<const D: usize>(
        &mut self,
        shape: [usize; D],
        [mean, deviation]: [f64; 2],
        dtype: FloatDType,
        is_frozen: bool,
        device: &Device,
    ) -> Param<Tensor<D>> {
        let mut value = || {
            (mean
                + deviation
                    * 12.0_f64.sqrt()
                    * (self.below(1 << 24) as f64 / f64::from(1 << 24) - 0.5)) as f32
        };
        let values = (0..shape.iter().product())
            .map(|_| value())
            .collect::<Vec<f32>>();
        let tensor = Tensor::<D>::from_data(TensorData::new(values, shape), device)
            .cast(dtype)
            .detach();
        Param::from_tensor(tensor).set_require_grad(!is_frozen)
    }
}

/// Parts that a network uses as often as it likes.
struct Parts {
    convs: Vec<Conv2d>,
    norms: Vec<BatchNorm>,
}

impl Parts {
    fn new(choices: &mut Choices, dtype: FloatDType, device: &Device) -> Self {
        let convs = [(3, 1, false), (1, 1, false), (3, C, false), (3, 1, true)].map(
            |(side, groups, has_bias)| {
                let pad = side / 2;
                let inputs = C / groups * side * side;
                let config = Conv2dConfig::new([C, C], [side; 2])
                    .with_groups(groups)
                    .with_bias(false);
                let stock = config
                    .with_padding(Explicit(pad, pad, pad, pad))
                    .init(device);
                let deviation = [0.0, (1.4 / inputs as f64).sqrt()];
                let is_frozen = choices.is_one_in(5);
                let weight = choices.drawn(
                    [C, C / groups, side, side],
                    deviation,
                    dtype,
                    is_frozen,
                    device,
                );
                let bias = has_bias.then(|| choices.drawn([C], [0.0, 0.2], dtype, false, device));
                nn::conv::Conv2d {
                    weight,
                    bias,
                    ..stock
                }
                .into()
            },
        );
        let norms = [(); 4].map(|()| {
            let running = |tensor: Tensor<1>| RunningState::new(tensor.cast(dtype).detach());
            let [is_gamma_frozen, is_beta_frozen] = [(); 2].map(|()| choices.is_one_in(6));
            let stock = nn::BatchNorm {
                gamma: choices.drawn([C], [1.5, 0.4], dtype, is_gamma_frozen, device),
                beta: choices.drawn([C], [0.4, 0.4], dtype, is_beta_frozen, device),
                training: Param::from_bool(!choices.is_one_in(5)),
                running_mean: running(Tensor::zeros([C], device)),
                running_var: running(Tensor::ones([C], device)),
                ..nn::BatchNormConfig::new(C).init(device)
            };
            stock.into()
        });
        Self {
            convs: convs.into(),
            norms: norms.into(),
        }
    }

    fn forward(&self, choices: &mut Choices, x: Tensor<4>) -> Tensor<4> {
        let mut made = vec![Features::from(x)];
        for _ in 0..4 + choices.below(12) {
            // Mostly the last; its own if it is the only reader.
            let last = made.len() - 1;
            let index = if choices.is_one_in(3) {
                choices.below(made.len())
            } else {
                last
            };
            let is_kept = last == 0 || choices.is_one_in(3);
            let x = if is_kept {
                made[index].clone()
            } else {
                made.remove(index)
            };
            let conv = &self.convs[choices.below(4)];
            let norm = &self.norms[choices.below(4)];
            made.push(match choices.below(12) {
                0..=2 => norm.forward(conv.forward(x)),
                3 => relu(norm.forward(conv.forward(x))),
                4 => relu6(norm.forward(conv.forward(x))),
                5 => norm.forward(x),
                6 => conv.forward(x),
                7 => relu(x),
                8 => relu6(x),
                9 => x + made[choices.below(made.len())].clone(),
                10 => gelu(Tensor::<4>::from(x)).into(),
                _ => relu(norm.forward(conv.forward(x.clone())) + x),
            });
        }
        let last = made.pop().expect("the last one made");
        made.into_iter()
            .fold(
                last,
                |sum, x| if choices.is_one_in(3) { sum } else { sum + x },
            )
            .into()
    }

    /// The parameters' gradients, from the hook or the tape.
    fn gradients(&self, gradients: &Gradients, given: &BTreeMap<ParamId, Vec<f32>>) -> Vec<f32> {
        fn of<const D: usize>(
            parameter: &Param<Tensor<D>>,
            gradients: &Gradients,
            given: &BTreeMap<ParamId, Vec<f32>>,
        ) -> Vec<f32> {
            let on_tape = parameter
                .val()
                .grad(gradients)
                .map(|gradient| values(gradient.cast(FloatDType::F32)));
            assert!(
                on_tape.is_none() || !given.contains_key(&parameter.id),
                "a gradient on the tape and in the hook"
            );
            let zeros = || vec![0.0; parameter.dims().iter().product()];
            on_tape
                .or_else(|| given.get(&parameter.id).cloned())
                .unwrap_or_else(zeros)
        }
        let convs = self.convs.iter().flat_map(|conv| {
            let bias = conv.bias.iter().flat_map(|bias| of(bias, gradients, given));
            of(&conv.weight, gradients, given)
                .into_iter()
                .chain(bias)
                .collect::<Vec<_>>()
        });
        let norms = self.norms.iter().flat_map(|norm| [&norm.gamma, &norm.beta]);
        convs
            .chain(norms.flat_map(|parameter| of(parameter, gradients, given)))
            .collect()
    }
}

/// The output, the gradient of the images, those of the parameters.
fn computed(
    seed: u64,
    device: &Device,
    computation: Computation,
    dtype: FloatDType,
    is_hooked: bool,
) -> [Vec<f32>; 3] {
    let device = device.clone().autodiff();
    let mut choices = Choices(seed);
    let parts = Parts::new(&mut choices, dtype, &device);
    let shape = [[2, 5, 4, C], [3, 6, 6, C], [4, 3, 3, C]][choices.below(3)];
    let x = choices
        .drawn(shape, [0.0, 0.6], dtype, false, &device)
        .val();
    let given: Arc<Mutex<BTreeMap<ParamId, Vec<f32>>>> = Arc::default();
    let taken = Arc::clone(&given);
    let hook = gradient_hook(move |id, gradient| {
        let gradient = gradient.convert::<f32>().try_to_vec::<f32>().unwrap();
        let mut all = taken.lock().unwrap();
        // A parameter that is used twice comes twice.
        let sum = all.entry(id).or_insert_with(|| vec![0.0; gradient.len()]);
        sum.iter_mut()
            .zip(gradient)
            .for_each(|(sum, value)| *sum += value);
    });
    let context = PassContext {
        computation,
        hook: is_hooked.then_some(hook),
        ..PassContext::default()
    };
    let y = context.scope(|| parts.forward(&mut choices, x.clone()));
    let weights = choices
        .drawn(y.dims(), [0.0, 0.6], dtype, true, &device)
        .val();
    let gradients = (y.clone() * weights).sum().backward();
    let of_x = x
        .grad(&gradients)
        .expect("the images are trained")
        .cast(FloatDType::F32);
    let of_parts = parts.gradients(&gradients, &given.lock().unwrap());
    [
        values(y.inner().cast(FloatDType::F32)),
        values(of_x),
        of_parts,
    ]
}

fn assert_is_burns(seed: u64, device: &Device) {
    let stock = Computation {
        kernels: Kernels::Stock,
        ..Computation::default()
    };
    let expected = computed(seed, &Device::flex(), stock, FloatDType::F64, false);
    for is_hooked in [false, true] {
        let found = computed(
            seed,
            device,
            Computation::default(),
            FloatDType::F32,
            is_hooked,
        );
        for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let off = relative_difference(found, expected);
            assert!(
                off <= TOLERANCE,
                "network {seed}, hooked: {is_hooked}, result {index}: {off:.2e}"
            );
        }
    }
}

#[test]
fn whatever_reads_features_gets_the_values_and_gradients_of_burns_operations() {
    (0..NETWORKS).for_each(|seed| assert_is_burns(seed, &Device::flex()));
}

#[test]
fn what_the_backward_pass_computes_again_changes_no_bit() {
    for seed in 0..NETWORKS {
        let by = |recompute| {
            let computation = Computation {
                recompute,
                ..Computation::default()
            };
            computed(
                seed,
                &Device::flex(),
                computation,
                FloatDType::F32,
                seed % 2 == 1,
            )
        };
        let expected = by(Recompute::None);
        for recompute in [Recompute::Norms, Recompute::Convolutions] {
            assert_eq!(by(recompute), expected, "network {seed}, {recompute:?}");
        }
    }
}

#[test]
fn layers_that_differ_in_what_they_compute_again_agree_to_the_bit() {
    const WAYS: [Recompute; 3] = [Recompute::None, Recompute::Norms, Recompute::Convolutions];
    let device = Device::flex().autodiff();
    let by = |ways: [Recompute; 3]| {
        let mut choices = Choices(5);
        let mut drawn = |shape| choices.drawn(shape, [0.0, 0.6], FloatDType::F32, false, &device);
        let x = drawn([3, 6, 6, C]).val();
        let layers = ways.map(|recompute| {
            let config = Conv2dConfig::new([C, C], [3, 3])
                .with_padding(Explicit(1, 1, 1, 1))
                .with_bias(false);
            let conv = nn::conv::Conv2d {
                weight: drawn([C, C, 3, 3]),
                ..config.init(&device)
            };
            let computation = Computation {
                recompute,
                ..Computation::default()
            };
            let context = PassContext::from(computation);
            (
                context,
                Conv2d::from(conv),
                BatchNorm::from(nn::BatchNormConfig::new(C).init(&device)),
            )
        });
        let y = layers
            .iter()
            .fold(Features::from(x.clone()), |y, (context, conv, norm)| {
                context
                    .clone()
                    .scope(|| relu(norm.forward(conv.forward(y.clone())) + y))
            });
        let gradients = Tensor::from(y).powi_scalar(2).sum().backward();
        let of_weights = layers
            .iter()
            .map(|(_, conv, _)| values(conv.weight.val().grad(&gradients).unwrap()));
        (
            values(x.grad(&gradients).unwrap()),
            of_weights.collect::<Vec<_>>(),
        )
    };
    let expected = by([Recompute::None; 3]);
    for ways in WAYS
        .into_iter()
        .flat_map(|a| WAYS.into_iter().flat_map(move |b| WAYS.map(|c| [a, b, c])))
    {
        assert_eq!(by(ways), expected, "{ways:?}");
    }
}

#[cfg(feature = "wgpu")]
#[test]
#[allow(clippy::print_stderr)]
fn networks_on_burns_gpu_backend_get_them_too() {
    if burn_cubecl::CubeDevice::enumerate_all().is_empty() {
        eprintln!("NOT CHECKED: networks on burn's GPU backend, for want of an adapter");
        return;
    }
    // A tenth: a software Vulkan compiles kernels for each.
    (0..NETWORKS / 10)
        .for_each(|seed| assert_is_burns(seed, &Device::wgpu(DeviceKind::DefaultDevice)));
}
