//! Modules in burn's place: the same parameters, paths, values, gradients and running statistics as
//! burn's own modules give.

use burn::module::{Initializer, Module, ModuleVisitor, Param};
use burn::nn;
use burn::nn::PaddingConfig2d;
use burn::nn::conv::Conv2dConfig;
use burn::tensor::{Device, FloatDType, Gradients, Tensor, TensorData};
use layers::backend::{Activations, Computation, Kernels};
use layers::{BatchNorm, Conv2d, Features, MaxPool2dConfig, PassContext, relu};

use crate::differences::{relative_difference, values};
use crate::every_layer::patterned;

/// Difference of f32 arithmetic in two orders, relative to the largest value.
const TOLERANCE: f64 = 2e-5;
const SHAPE: [usize; 4] = [3, 9, 8, 8];

/// Three pairs of burn's own modules, and the same in ours.
#[derive(Module, Debug)]
struct Stock {
    conv: Vec<nn::conv::Conv2d>,
    norm: Vec<nn::BatchNorm>,
}

#[derive(Module, Debug)]
struct Ours {
    conv: Vec<Conv2d>,
    norm: Vec<BatchNorm>,
}

/// Every tensor's path and, of those with a gradient, the gradient.
pub(crate) fn tensors(
    module: &impl Module,
    gradients: Option<&Gradients>,
) -> Vec<(String, Vec<f32>)> {
    struct Visitor<'a>(Vec<String>, Vec<(String, Vec<f32>)>, Option<&'a Gradients>);
    impl ModuleVisitor for Visitor<'_> {
        fn enter_module(&mut self, name: &str, _container_type: &str) {
            self.0.push(name.to_owned());
        }
        fn exit_module(&mut self, _name: &str, _container_type: &str) {
            self.0.pop();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            match self.2 {
                None => self.1.push((self.0.join("."), values(param.val().inner()))),
                Some(gradients) => {
                    if let Some(gradient) = param.val().grad(gradients) {
                        self.1.push((self.0.join("."), values(gradient)));
                    }
                }
            }
        }
    }
    let mut visitor = Visitor(Vec::new(), Vec::new(), gradients);
    module.visit(&mut visitor);
    visitor.1
}

fn assert_same(found: &[(String, Vec<f32>)], expected: &[(String, Vec<f32>)], what: &str) {
    assert_eq!(
        found.iter().map(|(name, _)| name).collect::<Vec<_>>(),
        expected.iter().map(|(name, _)| name).collect::<Vec<_>>(),
        "{what}"
    );
    // Relative to all of them: the gradient of a bias before a norm is zero but for rounding.
    let flat = |all: &[(String, Vec<f32>)]| {
        all.iter()
            .flat_map(|(_, values)| values.clone())
            .collect::<Vec<f32>>()
    };
    let off = relative_difference(&flat(found), &flat(expected));
    assert!(off <= TOLERANCE, "{what}: {off:.2e}");
}

type Network<M, T> = fn(&M, T) -> T;

/// A network of both kinds: the same but for its permutations.
struct Case {
    name: &'static str,
    configs: [fn() -> Conv2dConfig; 3],
    ours: Network<Ours, Features>,
    stock: Network<Stock, Tensor<4>>,
}

/// A case of one text, read once with our functions and once with burn's.
macro_rules! case {
    ($name:literal, $configs:expr, |$m:ident, $x:ident| $body:expr) => {
        Case {
            name: $name,
            configs: $configs,
            ours: {
                #[allow(unused_imports)]
                use of_ours::{gelu, mean_of_columns, relu, relu6};
                |$m, $x| $body
            },
            stock: {
                #[allow(unused_imports)]
                use of_burn::{gelu, mean_of_columns, relu, relu6};
                |$m, $x| $body
            },
        }
    };
}

mod of_ours {
    use super::{Features, Tensor};
    pub(super) use layers::{relu, relu6};

    /// Burn's own operation.
    pub(super) fn gelu(x: Features) -> Features {
        super::of_burn::gelu(Tensor::from(x)).into()
    }

    pub(super) fn mean_of_columns(x: Features) -> Features {
        Tensor::from(x).mean_dim(2).into()
    }
}

mod of_burn {
    use super::Tensor;
    pub(super) use burn::tensor::activation::{gelu, relu};

    pub(super) fn relu6(x: Tensor<4>) -> Tensor<4> {
        x.clamp(0.0, 6.0)
    }

    pub(super) fn mean_of_columns(x: Tensor<4>) -> Tensor<4> {
        x.mean_dim(3)
    }
}

fn same() -> Conv2dConfig {
    Conv2dConfig::new([8, 8], [3, 3])
        .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
        .with_bias(false)
}

fn pointwise() -> Conv2dConfig {
    Conv2dConfig::new([8, 8], [1, 1]).with_bias(false)
}

fn depthwise() -> Conv2dConfig {
    same().with_groups(8)
}

const CASES: [Case; 10] = [
    case!(
        "two blocks, one with a projection",
        [same, same, pointwise],
        |m, x| {
            let y = relu(m.norm[0].forward(m.conv[0].forward(x.clone())));
            let x = relu(m.norm[1].forward(m.conv[1].forward(y)) + x);
            let shortcut = m.norm[2].forward(m.conv[2].forward(x.clone()));
            let y = relu(m.norm[0].forward(m.conv[0].forward(x)));
            relu(shortcut + m.norm[1].forward(m.conv[1].forward(y)))
        }
    ),
    case!(
        "features that layers, a residual and burn's own operation read",
        [same, same, pointwise],
        |m, x| {
            let x = relu(m.norm[0].forward(m.conv[0].forward(x)));
            let a = m.norm[1].forward(m.conv[1].forward(x.clone()));
            let b = m.norm[2].forward(m.conv[2].forward(x.clone()));
            let c = gelu(x.clone());
            relu(a + x) + relu(b) + c
        }
    ),
    case!(
        "no norm after a convolution, none before a ReLU, two of them, a ReLU twice",
        [same, same, pointwise],
        |m, x| {
            let x = m.norm[0].forward(relu(m.conv[0].forward(x)));
            let x = relu(relu(
                m.norm[1].forward(m.norm[2].forward(m.conv[1].forward(x))),
            ));
            m.conv[2].forward(x)
        }
    ),
    case!(
        "one convolution under two norms, one of which also reads a sum of two layers",
        [same, same, pointwise],
        |m, x| {
            let y = m.conv[0].forward(x.clone());
            let a = m.norm[0].forward(y.clone());
            let b = m.norm[1].forward(m.conv[1].forward(x)) + m.norm[2].forward(y);
            m.norm[1].forward(a + b)
        }
    ),
    case!(
        "a layer that adds its own input, which is read again",
        [same, same, pointwise],
        |m, x| {
            let x = relu(m.norm[0].forward(m.conv[0].forward(x)));
            let y = relu(m.norm[1].forward(m.conv[1].forward(x.clone())) + x.clone());
            m.norm[2].forward(m.conv[2].forward(x)) + y
        }
    ),
    case!(
        "sums of features of other shapes, which broadcast",
        [same, same, pointwise],
        |m, x| {
            let x = relu(m.norm[0].forward(m.conv[0].forward(x)));
            let row = mean_of_columns(x.clone());
            let y = m.norm[1].forward(m.conv[1].forward(x)) + row.clone();
            row + m.norm[2].forward(m.conv[2].forward(y))
        }
    ),
    case!(
        "layers in groups, of rows and of columns",
        [
            || same().with_groups(4),
            || Conv2dConfig::new([8, 8], [1, 5])
                .with_padding(PaddingConfig2d::Explicit(0, 2, 0, 2))
                .with_bias(false),
            || Conv2dConfig::new([8, 8], [3, 1])
                .with_padding(PaddingConfig2d::Explicit(1, 0, 1, 0))
                .with_groups(2)
                .with_bias(false),
        ],
        |m, x| {
            let y = relu(m.norm[0].forward(m.conv[0].forward(x)));
            let z = relu(m.norm[1].forward(m.conv[1].forward(y.clone())));
            relu(m.norm[2].forward(m.conv[2].forward(z)) + y)
        }
    ),
    case!(
        "convolutions that are no layer: with a bias, in groups, dilated and with two strides",
        [
            || same().with_bias(true),
            || same().with_groups(4),
            || same()
                .with_dilation([2, 2])
                .with_stride([3, 1])
                .with_padding(PaddingConfig2d::Explicit(2, 1, 2, 1)),
        ],
        |m, x| m
            .conv
            .iter()
            .zip(&m.norm)
            .fold(x, |x, (conv, norm)| relu(norm.forward(conv.forward(x))))
    ),
    case!(
        "inverted residuals with ReLU6, and norms before a convolution without a ReLU",
        [pointwise, depthwise, pointwise],
        |m, x| {
            let y = relu6(m.norm[0].forward(m.conv[0].forward(x.clone())));
            let y = relu6(m.norm[1].forward(m.conv[1].forward(y)));
            let x = m.norm[2].forward(m.conv[2].forward(y)) + x;
            let y = m.norm[2].forward(m.conv[2].forward(x.clone()));
            let y = relu6(m.norm[0].forward(m.conv[0].forward(y)));
            relu6(m.norm[1].forward(m.conv[2].forward(y)) + x)
        }
    ),
    case!(
        "separate norms: read twice, by another norm, by a convolution without a ReLU, with a residual",
        [same, || same().with_bias(true), pointwise],
        |m, x| {
            let x = relu(m.norm[0].forward(m.conv[1].forward(x)));
            let a = m.norm[2].forward(m.conv[2].forward(x.clone()));
            let b = m.norm[1].forward(m.norm[0].forward(m.conv[1].forward(x.clone())));
            let b = m.norm[2].forward(m.conv[0].forward(b));
            relu(m.norm[1].forward(m.conv[1].forward(a)) + x) + b
        }
    ),
];

/// With a scale that takes values above 6.
fn norm(device: &Device) -> nn::BatchNorm {
    let gamma = Initializer::Constant { value: 3.0 }.init([8], device);
    nn::BatchNorm {
        gamma,
        ..nn::BatchNormConfig::new(8).init(device)
    }
}

fn images(device: &Device) -> Tensor<4> {
    let len = SHAPE.iter().product::<usize>();
    let values: Vec<f32> = (0..len)
        .map(|i| ((i * i % 89) as f32 * 0.37).sin() + (i % 7) as f32 * 0.1)
        .collect();
    Tensor::from_data(TensorData::new(values, SHAPE), device)
}

/// A loss whose gradient differs from value to value.
fn loss(output: Tensor<4>) -> Tensor<1> {
    let dims = output.dims();
    let len = dims.iter().product::<usize>();
    let weights: Vec<f32> = (0..len)
        .map(|i| ((i * 31 % 97) as f32 * 0.71).cos())
        .collect();
    (output.clone() * Tensor::from_data(TensorData::new(weights, dims), &output.device())).sum()
}

#[test]
fn networks_compute_what_burns_own_modules_do() {
    let device = Device::flex().autodiff();
    for kernels in [Kernels::Fused, Kernels::Stock] {
        for case in CASES {
            device.seed(7);
            let conv = || case.configs.iter().map(|config| config().init(&device));
            let norm = || (0..3).map(|_| norm(&device));
            let stock = Stock {
                conv: conv().collect(),
                norm: norm().collect(),
            };
            let ours = Ours {
                conv: conv().map(Conv2d::from).collect(),
                norm: norm().map(BatchNorm::from).collect(),
            };
            let ours = ours.load_record(stock.clone().into_record());
            assert_same(&tensors(&ours, None), &tensors(&stock, None), case.name);
            let context = || {
                PassContext::from(Computation {
                    kernels,
                    ..Computation::default()
                })
            };
            // Two steps: the second reads what the first left behind.
            for _ in 0..2 {
                let x = images(&device).require_grad();
                let planes = images(&device).require_grad();
                let found = context().scope(|| Tensor::from((case.ours)(&ours, x.clone().into())));
                let expected = (case.stock)(&stock, planes.clone().permute([0, 3, 1, 2]))
                    .permute([0, 2, 3, 1]);
                let off = relative_difference(
                    &values(found.clone().inner()),
                    &values(expected.clone().inner()),
                );
                assert!(off <= TOLERANCE, "{}: {off:.2e}", case.name);
                let found = loss(found).backward();
                let expected = loss(expected).backward();
                let gradient = |x: Tensor<4>, of: &Gradients| values(x.grad(of).unwrap());
                let off = relative_difference(&gradient(x, &found), &gradient(planes, &expected));
                assert!(off <= TOLERANCE, "{}, images: {off:.2e}", case.name);
                assert_same(
                    &tensors(&ours, Some(&found)),
                    &tensors(&stock, Some(&expected)),
                    case.name,
                );
            }
            let ours = ours.valid();
            let stock = stock.valid();
            let of = |module: &[(String, Vec<f32>)], ending: &str| {
                module
                    .iter()
                    .filter(|(name, _)| name.ends_with(ending))
                    .cloned()
                    .collect::<Vec<_>>()
            };
            let found = tensors(&ours, None);
            let expected = tensors(&stock, None);
            assert_same(
                &of(&found, "running_mean"),
                &of(&expected, "running_mean"),
                case.name,
            );
            // Ours is the unbiased one, as PyTorch's, of 216 values or less.
            let variances = |all| {
                of(all, "running_var")
                    .into_iter()
                    .flat_map(|(_, values)| values)
                    .collect::<Vec<_>>()
            };
            let off = relative_difference(&variances(&found), &variances(&expected));
            assert!(
                (1e-4..0.02).contains(&off),
                "{}, variances: {off:.2e}",
                case.name
            );
            let stock = stock.load_record(ours.clone().into_record());
            let x = images(&Device::flex());
            let found = context().scope(|| Tensor::from((case.ours)(&ours, x.clone().into())));
            let expected = (case.stock)(&stock, x.permute([0, 3, 1, 2])).permute([0, 2, 3, 1]);
            let off = relative_difference(&values(found), &values(expected));
            assert!(off <= TOLERANCE, "{}, evaluated: {off:.2e}", case.name);
        }
    }
}

#[test]
fn operations_for_which_burns_own_one_stands_in_are_told_and_others_are_not() {
    let device = Device::flex();
    let computed = |config: Conv2dConfig| {
        Tensor::from(Conv2d::from(config.init(&device)).forward(images(&device)))
    };
    computed(Conv2dConfig::new([8, 6], [3, 5]).with_dilation([2, 1]));
    computed(Conv2dConfig::new([8, 5], [3, 3]));
    let of_burn = MaxPool2dConfig::new([2, 2]).with_strides([1, 2]);
    let ours = MaxPool2dConfig::new([3, 3])
        .with_strides([2, 2])
        .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1));
    for pool in [of_burn, ours] {
        drop(Tensor::from(pool.init().forward(images(&device))));
    }
    let told = layers::fallback_ops();
    assert!(
        told.contains(&"max pool 2x2, stride [1, 2]".to_owned()),
        "{told:?}"
    );
    assert!(
        !told.iter().any(|pool| pool.starts_with("max pool 3x3")),
        "{told:?}"
    );
    assert!(
        told.iter()
            .any(|conv| conv.starts_with("convolution 3x5 of 8 to 6 channels, groups 1,")),
        "{told:?}"
    );
    assert!(
        !told
            .iter()
            .any(|conv| conv.starts_with("convolution 3x3 of 8 to 5 channels")),
        "{told:?}"
    );
}

#[test]
fn a_part_in_bf16_between_parts_in_f32_is_the_network_to_the_precision_of_bf16() {
    let device = Device::flex().autodiff();
    let ours = patterned(Ours {
        conv: [same, same, pointwise]
            .map(|config| Conv2d::from(config().init(&device)))
            .into(),
        norm: (0..3)
            .map(|_| BatchNorm::from(nn::BatchNormConfig::new(8).init(&device)))
            .collect(),
    });
    let run = |activations| {
        let context = || {
            PassContext::from(Computation {
                activations,
                ..Computation::default()
            })
        };
        let x = images(&device).require_grad();
        // One reader in another format, then two of them, and a residual in the other one.
        let y = relu(ours.norm[0].forward(ours.conv[0].forward(x.clone())));
        let y = context().scope(|| relu(ours.norm[1].forward(ours.conv[1].forward(y))));
        let a = ours.norm[2].forward(ours.conv[2].forward(y.clone()));
        let b = ours.norm[0].forward(ours.conv[0].forward(y.clone()));
        let output =
            relu(context().scope(|| ours.norm[1].forward(ours.conv[1].forward(a)) + y) + b);
        let output = Tensor::from(output).cast(FloatDType::F32);
        let gradients = loss(output.clone()).backward();
        (
            values(output.inner()),
            values(x.grad(&gradients).unwrap()),
            tensors(&ours, Some(&gradients)),
        )
    };
    let expected = run(Activations::F32);
    let found = run(Activations::Bf16);
    // Compared as a whole, since a ReLU that rounding turns moves a single gradient far.
    let off = |found: &[f32], expected: &[f32]| {
        let squares = |values: &mut dyn Iterator<Item = f32>| {
            values.map(|v| f64::from(v).powi(2)).sum::<f64>()
        };
        let difference = squares(&mut found.iter().zip(expected).map(|(a, b)| a - b));
        (difference / squares(&mut expected.iter().copied())).sqrt()
    };
    let all = |named: &[(String, Vec<f32>)]| {
        named
            .iter()
            .flat_map(|(_, values)| values.clone())
            .collect::<Vec<f32>>()
    };
    let found = [found.0, found.1, all(&found.2)];
    let expected = [expected.0, expected.1, all(&expected.2)];
    for (found, expected) in found.iter().zip(&expected) {
        let off = off(found, expected);
        assert!((1e-4..0.1).contains(&off), "{off:.2e}");
    }
}

#[test]
fn what_nobody_reads_is_not_computed_and_what_two_read_is_computed_once() {
    let device = Device::flex().autodiff();
    let norm = BatchNorm::from(nn::BatchNormConfig::new(8).init(&device));
    let conv = Conv2d::from(same().init(&device));
    let mean = || values(norm.running_mean.value_sync().inner());
    let layer = relu(norm.forward(conv.forward(images(&device))));
    drop(layer.clone());
    drop(layer);
    assert_eq!(mean(), [0.0; 8]);
    let layer = relu(norm.forward(conv.forward(images(&device))));
    let first = Tensor::from(layer.clone());
    let once = mean();
    assert_ne!(once, [0.0; 8]);
    assert_eq!(values(Tensor::from(layer).inner()), values(first.inner()));
    assert_eq!(mean(), once);
}

#[test]
fn shortcut_a_is_every_second_pixel_between_channels_of_zeros() {
    let device = Device::flex();
    let x = images(&device);
    let shortcut: Tensor<4> = Features::from(x.clone()).subsample_and_pad(12).into();
    assert_eq!(shortcut.dims(), [3, 5, 4, 12]);
    let kept = shortcut.clone().slice([0..3, 2..3, 1..2, 2..10]);
    assert_eq!(values(kept), values(x.slice([0..3, 4..5, 2..3, 0..8])));
    assert!(
        values(shortcut.slice([0..3, 0..5, 0..4, 10..12]))
            .iter()
            .all(|&value| value == 0.0)
    );
    let odd =
        std::panic::catch_unwind(|| Features::from(images(&Device::flex())).subsample_and_pad(9))
            .unwrap_err();
    assert!(
        odd.downcast_ref::<String>()
            .unwrap()
            .contains("expected 8 channels and an even number more, got 9")
    );
}
