//! Every layer by our kernels against PyTorch in f64 (`golden/every_layer.py`), and its gradients
//! against differences of the output and as a hook gets them.

use std::sync::{Arc, Mutex};

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::nn::PaddingConfig2d::Explicit;
use burn::nn::conv::Conv2dConfig;
use burn::nn::{BatchNormConfig, LinearConfig};
use burn::tensor::{Device, FloatDType, Gradients, Tensor, TensorData};
use layers::backend::{Activations, Computation, GradientHook, gradient_hook};
use layers::{
    AvgPool2dConfig, BatchNorm, Conv2d, Features, LayerNorm, LayerNormConfig, Linear,
    MaxPool2dConfig, PassContext, attention, gelu, global_avg_pool, relu, relu6, silu,
};

use crate::differences::values;

/// Channels of the input.
const C: usize = 8;
const IMAGES: [usize; 4] = [2, 6, 5, C];

/// Inputs of a case, in the order of its parameters.
#[derive(Module, Debug, Default)]
struct Parts {
    first: Option<BatchNorm>,
    conv: Option<Conv2d>,
    norm: Option<BatchNorm>,
    linear: Option<Linear>,
    layer_norm: Option<LayerNorm>,
}

/// A name, the parts, and what is made of an input of so many values, flat.
type Case = (
    &'static str,
    Parts,
    usize,
    fn(&Parts, Tensor<1>) -> Tensor<1>,
);

fn conv([c_out, kernel, stride, groups]: [usize; 4], bias: bool) -> Option<Conv2d> {
    let p = kernel / 2;
    let config = Conv2dConfig::new([C, c_out], [kernel; 2])
        .with_stride([stride; 2])
        .with_groups(groups);
    Some(
        config
            .with_padding(Explicit(p, p, p, p))
            .with_bias(bias)
            .init(&device())
            .into(),
    )
}

fn norm(channels: usize) -> Option<BatchNorm> {
    Some(BatchNormConfig::new(channels).init(&device()).into())
}

fn device() -> Device {
    Device::flex().autodiff()
}

impl Parts {
    fn conv(&self, x: impl Into<Features>) -> Features {
        self.conv.as_ref().expect("a part of the case").forward(x)
    }

    fn norm(&self, x: impl Into<Features>) -> Features {
        self.norm.as_ref().expect("a part of the case").forward(x)
    }
}

fn images(x: Tensor<1>) -> Tensor<4> {
    x.reshape(IMAGES)
}

fn flat(features: impl Into<Tensor<4>>) -> Tensor<1> {
    features.into().reshape([-1])
}

// tidy: long function because it is one table of cases
fn cases() -> Vec<Case> {
    let count = IMAGES.iter().product();
    let of_conv: fn(&Parts, Tensor<1>) -> Tensor<1> = |m, x| flat(m.conv(images(x)));
    let of_both: fn(&Parts, Tensor<1>) -> Tensor<1> = |m, x| flat(m.norm(m.conv(images(x))));
    let parts = |conv, norm| Parts {
        conv,
        norm,
        ..Parts::default()
    };
    let none = Parts::default;
    let linear = Parts {
        linear: Some(LinearConfig::new(C, 12).init(&device()).into()),
        ..none()
    };
    let layer_norm = Parts {
        layer_norm: Some(LayerNormConfig::new(C).init(&device())),
        ..none()
    };
    let before = Parts {
        first: norm(C),
        conv: conv([C, 1, 1, 1], false),
        ..none()
    };
    vec![
        (
            "convolution",
            parts(conv([12, 3, 1, 1], true), None),
            count,
            of_conv,
        ),
        (
            "convolution 1x1, stride 2",
            parts(conv([12, 1, 2, 1], false), None),
            count,
            of_conv,
        ),
        (
            "depthwise 5x5, stride 2",
            parts(conv([C, 5, 2, C], true), None),
            count,
            of_conv,
        ),
        (
            "depthwise 7x7",
            parts(conv([C, 7, 1, C], false), None),
            count,
            of_conv,
        ),
        (
            "depthwise 3x3, stride 2",
            parts(conv([C, 3, 2, C], false), None),
            count,
            of_conv,
        ),
        (
            "depthwise 5x5",
            parts(conv([C, 5, 1, C], true), None),
            count,
            of_conv,
        ),
        (
            "depthwise 7x7, stride 2",
            parts(conv([C, 7, 2, C], true), None),
            count,
            of_conv,
        ),
        ("batch norm", parts(None, norm(C)), count, |m, x| {
            flat(m.norm(images(x)))
        }),
        (
            "convolution, norm",
            parts(conv([12, 3, 1, 1], false), norm(12)),
            count,
            of_both,
        ),
        (
            "convolution, norm, residual, ReLU",
            parts(conv([C, 3, 1, 1], false), norm(C)),
            count,
            |m, x| {
                let x = Features::from(images(x));
                flat(relu(m.norm(m.conv(x.clone())) + x))
            },
        ),
        (
            "convolution, norm, shortcut A, ReLU",
            parts(conv([C + 4, 3, 2, 1], false), norm(C + 4)),
            count,
            |m, x| {
                let x = Features::from(images(x));
                flat(relu(m.norm(m.conv(x.clone())) + x.subsample_and_pad(C + 4)))
            },
        ),
        (
            "depthwise 3x3, norm, ReLU6",
            parts(conv([C, 3, 1, C], false), norm(C)),
            count,
            |m, x| flat(relu6(m.norm(m.conv(images(x))))),
        ),
        ("norm, ReLU, convolution", before, count, |m, x| {
            flat(
                m.conv(relu(
                    m.first
                        .as_ref()
                        .expect("a part of the case")
                        .forward(images(x)),
                )),
            )
        }),
        ("linear layer", linear, count, |m, x| {
            flat(m.linear.as_ref().expect("a part").forward(images(x)))
        }),
        ("layer norm", layer_norm, count, |m, x| {
            flat(m.layer_norm.as_ref().expect("a part").forward(images(x)))
        }),
        ("GELU", none(), count, |_, x| gelu(x)),
        ("SiLU", none(), count, |_, x| silu(x)),
        ("ReLU", none(), count, |_, x| flat(relu(images(x)))),
        ("ReLU6", none(), count, |_, x| relu6(x * 8.0)),
        ("attention", none(), 2 * 7 * 48, |_, x| {
            attention(x.reshape([2, 7, 48]), 2).reshape([-1])
        }),
        ("max pool", none(), count, |_, x| {
            let pool = MaxPool2dConfig::new([3, 3])
                .with_strides([2, 2])
                .with_padding(Explicit(1, 1, 1, 1));
            flat(pool.init().forward(images(x)))
        }),
        ("average pool", none(), count, |_, x| {
            flat(AvgPool2dConfig::new([2, 2]).init().forward(images(x)))
        }),
        ("global average pool", none(), count, |_, x| {
            global_avg_pool(images(x)).reshape([-1])
        }),
    ]
}

/// By PyTorch: the checksum of the output, of the input's gradient and of each parameter's.
const EXPECTED: [(&str, &[f64]); 23] = [
    (
        "convolution",
        &[
            -12.92813491821289,
            1.995931625366211,
            14.800662994384766,
            0.1124267578125,
        ],
    ),
    (
        "convolution 1x1, stride 2",
        &[-0.7277202606201172, -1.5081977844238281, 3.659099578857422],
    ),
    (
        "depthwise 5x5, stride 2",
        &[
            3.11959171295166,
            -1.7919502258300781,
            1.7885675430297852,
            0.7989501953125,
        ],
    ),
    (
        "depthwise 7x7",
        &[7.313961029052734, 2.8186235427856445, -0.551727294921875],
    ),
    (
        "depthwise 3x3, stride 2",
        &[0.8846549987792969, 0.1950855255126953, -2.18707275390625],
    ),
    (
        "depthwise 5x5",
        &[
            -3.908823013305664,
            3.798325538635254,
            0.26700592041015625,
            1.028076171875,
        ],
    ),
    (
        "depthwise 7x7, stride 2",
        &[
            -2.145893096923828,
            3.2669687271118164,
            -1.8470382690429688,
            0.7989501953125,
        ],
    ),
    (
        "batch norm",
        &[
            -3.8253987346169804,
            4.386801738369517,
            9.860641210169856,
            1.028076171875,
        ],
    ),
    (
        "convolution, norm",
        &[
            -2.4464652503389006,
            -2.682469934615253,
            4.747075120708423,
            -3.0053633548194076,
            0.1124267578125,
        ],
    ),
    (
        "convolution, norm, residual, ReLU",
        &[
            -20.723272136724727,
            24.083817887558965,
            -6.130846504251591,
            -15.550247013485182,
            -2.08905029296875,
        ],
    ),
    (
        "convolution, norm, shortcut A, ReLU",
        &[
            6.112644548871794,
            -1.0485945518327346,
            -2.1866247661578013,
            -5.936651188050129,
            -1.17840576171875,
        ],
    ),
    (
        "depthwise 3x3, norm, ReLU6",
        &[
            -0.48292781955602115,
            -7.042373563339557,
            6.6354421536156,
            -2.365328499226864,
            1.400146484375,
        ],
    ),
    (
        "norm, ReLU, convolution",
        &[
            0.04470814448123983,
            -6.948752550695112,
            -4.860549992443128,
            -0.44417762756347656,
            -4.3453334129476335,
        ],
    ),
    (
        "linear layer",
        &[
            -2.657602310180664,
            -4.454919815063477,
            0.05811500549316406,
            0.1124267578125,
        ],
    ),
    (
        "layer norm",
        &[
            -3.310325272068915,
            4.800893674290012,
            9.826851603231269,
            1.028076171875,
        ],
    ),
    ("GELU", &[-27.111764371666993, 26.346576623829222]),
    ("SiLU", &[-25.98600510964839, 26.040758379314425]),
    ("ReLU", &[-31.3013916015625, 25.8306884765625]),
    ("ReLU6", &[-250.279296875, 206.9140625]),
    ("attention", &[-0.44602754268341877, 0.44041690759849994]),
    ("max pool", &[-0.3280029296875, 0.667236328125]),
    ("average pool", &[-0.31646728515625, 1.842620849609375]),
    (
        "global average pool",
        &[-0.07691650390625, 0.045023600260416664],
    ),
];

/// As in `every_layer.py`.
fn pattern(count: usize, seed: usize) -> Vec<f32> {
    (0..count)
        .map(|index| (((index * 37 + seed * 11) % 101) as f32 - 50.5) / 64.0)
        .collect()
}

/// Gives each parameter the pattern of its number. Initial values would depend on other tests,
/// which draw from the same generator.
pub(super) fn patterned<M: Module>(module: M) -> M {
    let of_pattern = |seed, values: Vec<f32>| pattern(values.len(), seed);
    module.map(&mut Change(0, String::new(), of_pattern))
}

fn checksum(values: &[f32], seed: usize) -> f64 {
    let with = pattern(values.len(), seed);
    values
        .iter()
        .zip(with)
        .map(|(value, with)| f64::from(*value) * f64::from(with))
        .sum()
}

/// Changes each parameter to what is made of its number and values.
struct Change<F>(usize, String, F);

impl<F: FnMut(usize, Vec<f32>) -> Vec<f32>> ModuleMapper for Change<F> {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        name.clone_into(&mut self.1);
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if self.1.starts_with("running_") {
            return param;
        }
        self.0 += 1;
        param.map(|old| {
            let dims = old.dims();
            let device = old.device();
            let changed = (self.2)(self.0, values(old.inner()));
            Tensor::from_data(TensorData::new(changed, dims), &device).require_grad()
        })
    }
}

/// Each parameter's gradient.
struct Collected<'a>(&'a Gradients, Vec<Vec<f32>>);

impl ModuleVisitor for Collected<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.1.extend(param.val().grad(self.0).map(values));
    }
}

fn scope<T>(hook: Option<Arc<dyn GradientHook>>, pass: impl FnOnce() -> T) -> T {
    let computation = Computation {
        activations: Activations::F32,
        ..Computation::default()
    };
    PassContext {
        computation,
        hook,
        ..PassContext::default()
    }
    .scope(pass)
}

/// The output's checksum.
fn loss((_, _, _, forward): &Case, parts: &Parts, x: &[f32]) -> f64 {
    let x = Tensor::from_data(TensorData::new(x.to_vec(), [x.len()]), &device());
    checksum(&values(scope(None, || forward(parts, x)).inner()), 50)
}

/// The gradients of the checksum of the output: of the input, then of each parameter whose gradient
/// no hook takes.
fn gradients(
    (_, parts, _, forward): &Case,
    x: &[f32],
    hook: Option<Arc<dyn GradientHook>>,
) -> Vec<Vec<f32>> {
    let x =
        Tensor::<1>::from_data(TensorData::new(x.to_vec(), [x.len()]), &device()).require_grad();
    let y = scope(hook, || forward(parts, x.clone())).cast(FloatDType::F32);
    let weights = TensorData::new(pattern(y.dims()[0], 50), y.dims());
    let gradients = (y.clone() * Tensor::from_data(weights, &y.device()))
        .sum()
        .backward();
    let mut collected = Collected(
        &gradients,
        vec![values(x.grad(&gradients).expect("x has a gradient"))],
    );
    parts.visit(&mut collected);
    collected.1
}

fn with_patterns((name, parts, count, forward): Case) -> Case {
    (name, patterned(parts), count, forward)
}

#[test]
fn every_layer_and_its_gradients_are_pytorchs() {
    for (case, (name, expected)) in cases().into_iter().map(with_patterns).zip(EXPECTED) {
        assert_eq!(case.0, name);
        let x = pattern(case.2, 0);
        let found: Vec<f64> = std::iter::once(loss(&case, &case.1, &x))
            .chain(
                gradients(&case, &x, None)
                    .iter()
                    .map(|gradient| checksum(gradient, 60)),
            )
            .collect();
        assert_eq!(found.len(), expected.len(), "{name}");
        for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
            assert!(
                (found - expected).abs() <= 1e-4 * expected.abs().max(1.0),
                "{name}: {index}: {found}, {expected}"
            );
        }
    }
}

#[test]
fn every_layers_gradients_are_those_of_differences_of_its_output() {
    // Short, and of an input without a value so near a corner: what crosses one on the way has two
    // slopes.
    const STEP: f32 = 1.0 / 1024.0;
    let moved = |values: &[f32], sign: f32| {
        values
            .iter()
            .zip(pattern(values.len(), 70))
            .map(|(value, by)| value + sign * STEP * by)
            .collect::<Vec<f32>>()
    };
    for case in cases().into_iter().map(with_patterns) {
        let (name, parts, count, _) = &case;
        let x = pattern(*count, 3);
        for (index, gradient) in gradients(&case, &x, None).iter().enumerate() {
            let loss_at = |sign| {
                if index == 0 {
                    return loss(&case, parts, &moved(&x, sign));
                }
                let mut change = Change(0, String::new(), |number, old: Vec<f32>| {
                    if number == index {
                        moved(&old, sign)
                    } else {
                        old
                    }
                });
                loss(&case, &parts.clone().map(&mut change), &x)
            };
            let difference = (loss_at(1.0) - loss_at(-1.0)) / (2.0 * f64::from(STEP));
            let expected = checksum(gradient, 70);
            let off = (difference - expected).abs() / expected.abs().max(1.0);
            assert!(
                off <= 0.02,
                "{name}: gradient {index}: {expected} along a direction, {difference} by differences"
            );
        }
    }
}

#[test]
fn every_layers_gradients_go_to_a_hook_bit_for_bit_and_are_not_on_the_tape() {
    for case in cases().into_iter().map(with_patterns) {
        let x = pattern(case.2, 0);
        let mut expected = gradients(&case, &x, None);
        let given: Arc<Mutex<Vec<Vec<f32>>>> = Arc::default();
        let taken = Arc::clone(&given);
        let hook = gradient_hook(move |_, gradient| {
            taken.lock().unwrap().push(gradient.try_to_vec().unwrap())
        });
        let left = gradients(&case, &x, Some(hook));
        let mut given = given.lock().unwrap().clone();
        let of_parameters = expected.split_off(1);
        assert_eq!(left, expected, "{}: only of the input", case.0);
        // In any order: the deepest first.
        for gradient in &of_parameters {
            let place = given.iter().position(|given| given == gradient);
            given.swap_remove(
                place.unwrap_or_else(|| panic!("{}: {gradient:?} is not among {given:?}", case.0)),
            );
        }
        assert!(given.is_empty(), "{}: {given:?}", case.0);
    }
}
