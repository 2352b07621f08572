//! Layers without a fused partner: the kernels give the values and gradients of burn's operations,
//! in f32 and, within its rounding, in 16 bits.

use burn::module::{Initializer, Module, Param};
use burn::nn;
use burn::nn::PaddingConfig2d::{Explicit, Same, Valid};
use burn::nn::conv::Conv2dConfig;
use burn::nn::{LinearConfig, PaddingConfig2d};
use burn::tensor::{Device, Distribution, FloatDType, Tensor, TensorData};
use layers::backend::{Activations, Computation, Kernels};
use layers::{
    BatchNorm, BatchNormConfig, Conv2d, Features, LayerNormConfig, Linear, MaxPool2dConfig,
    PassContext, attention, gelu, linear, relu, relu6, silu,
};

use crate::differences::{relative_difference, values};

pub(crate) const STOCK: Computation = Computation {
    kernels: Kernels::Stock,
    ..AUTO
};
const AUTO: Computation = Computation {
    kernels: Kernels::Fused,
    convolution: layers::backend::Convolution::Auto,
    isa: layers::backend::Isa::Portable,
    activations: Activations::F32,
    recompute: layers::backend::Recompute::None,
};

pub(crate) fn fused() -> Computation {
    Computation {
        isa: layers::backend::Isa::detect(),
        ..AUTO
    }
}

pub(crate) fn device() -> Device {
    let device = Device::flex().autodiff();
    device.seed(7);
    device
}

pub(crate) fn random<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::random(shape, Distribution::Normal(0.3, 1.0), device)
}

/// Returns the result of `layer` for x, and the gradient of x for a gradient without a pattern,
/// flat.
pub(crate) fn run<const D: usize>(
    computation: Computation,
    x: &Tensor<D>,
    layer: impl Fn(Tensor<D>) -> Tensor<D>,
) -> [Vec<f32>; 2] {
    let x = x.clone().detach().require_grad();
    let context = PassContext::from(computation);
    let y = context.scope(|| layer(x.clone()));
    let count = y.shape().num_elements();
    let weights: Vec<f32> = (0..count)
        .map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0)
        .collect();
    let weights = Tensor::<1>::from_data(TensorData::new(weights, [count]), &x.device());
    let flat = y.cast(FloatDType::F32).reshape([-1]);
    let gradients = (flat.clone() * weights).sum().backward();
    let of_x = x
        .grad(&gradients)
        .expect("x has a gradient")
        .cast(FloatDType::F32);
    [values(flat.inner()), values(of_x)]
}

pub(crate) fn assert_equal(name: &str, found: &[Vec<f32>], expected: &[Vec<f32>], tolerance: f64) {
    assert_eq!(found.len(), expected.len());
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let off = relative_difference(found, expected);
        assert!(off <= tolerance, "{name}: result {index}: {off:.2e}");
    }
}

/// Both ways in f32, then ours in 16 bits against f32.
pub(crate) fn check<const D: usize>(
    name: &str,
    x: Tensor<D>,
    layer: impl Fn(Tensor<D>) -> Tensor<D>,
) {
    // Rounded before, or a value next to a corner has another slope.
    let x = x.cast(FloatDType::BF16).cast(FloatDType::F32);
    let expected = run(STOCK, &x, &layer);
    assert_equal(name, &run(fused(), &x, &layer), &expected, 2e-5);
    let rounded = run(fused(), &x.clone().cast(FloatDType::BF16), &layer);
    assert_equal(&format!("{name} in bf16"), &rounded, &expected, 3e-2);
    let rounded = run(fused(), &x.cast(FloatDType::F16), &layer);
    assert_equal(&format!("{name} in f16"), &rounded, &expected, 4e-3);
}

fn conv(
    channels: [usize; 2],
    kernel: usize,
    stride: usize,
    padding: PaddingConfig2d,
    groups: usize,
) -> Conv2d {
    let config = Conv2dConfig::new(channels, [kernel; 2])
        .with_stride([stride; 2])
        .with_padding(padding);
    config.with_groups(groups).init(&device()).into()
}

#[test]
fn convolutions_alone_equal_burns_with_bias_depthwise_and_where_our_kernels_lack_the_shape() {
    let pad = |p| Explicit(p, p, p, p);
    for (channels, kernel, stride, padding, groups) in [
        ([3, 20], 3, 1, pad(1), 1),
        ([16, 24], 3, 2, pad(1), 1),
        ([16, 8], 1, 1, Valid, 1),
        ([8, 16], 2, 2, Valid, 1),
        ([20, 20], 3, 1, pad(1), 20),
        ([16, 16], 3, 2, pad(1), 16),
        ([17, 17], 7, 1, pad(3), 17),
        ([8, 8], 5, 1, Same, 8),
        // burn's own: a kernel of 2 for each channel, a side without padding.
        ([6, 6], 2, 1, Valid, 6),
        ([4, 4], 3, 1, Explicit(0, 1, 0, 1), 1),
    ] {
        let name = format!("{channels:?}, kernel {kernel}, stride {stride}, {groups} groups");
        let conv = conv(channels, kernel, stride, padding, groups);
        let x = random([3, 9, 8, channels[0]], &device());
        let forward = |x: Tensor<4>| Tensor::from(conv.forward(x));
        check(&name, x.clone(), forward);
        let bias = conv.bias.as_ref().expect("burn's default").val();
        let weight = conv.weight.val();
        let gradients = |computation| {
            let context = PassContext::from(computation);
            let gradients = context.scope(|| forward(x.clone()).powi_scalar(2).sum().backward());
            [
                values(weight.grad(&gradients).expect("weight")),
                values(bias.grad(&gradients).expect("bias")),
            ]
        };
        assert_equal(&name, &gradients(fused()), &gradients(STOCK), 2e-5);
    }
}

#[test]
fn linear_layers_of_any_rank_equal_burns_and_a_scale_of_their_outputs_is_put_into_the_weights() {
    let device = device();
    let linear: Linear = LinearConfig::new(24, 10).init(&device).into();
    let scale = Param::from_tensor(random([10], &device));
    let weight = linear.weight.val();
    let bias = linear.bias.as_ref().expect("burn's default").val();
    check("rank 2", random([7, 24], &device), |x| linear.forward(x));
    check("rank 4", random([2, 3, 5, 24], &device), |x| {
        linear.forward(x)
    });
    let x = random([3, 65, 24], &device);
    let gradients = |computation, scaled: bool| {
        let context = PassContext::from(computation);
        let y = context.scope(|| {
            if scaled {
                linear.forward_scaled(x.clone(), &scale)
            } else {
                linear.forward(x.clone()) * scale.val().reshape([1, 1, 10])
            }
        });
        let gradients = y.clone().powi_scalar(2).sum().backward();
        let of = [
            weight.grad(&gradients).map(values),
            bias.grad(&gradients).map(values),
            scale.val().grad(&gradients).map(values),
        ];
        let mut all: Vec<Vec<f32>> = of
            .into_iter()
            .map(|gradient| gradient.expect("a gradient"))
            .collect();
        all.push(values(y.inner()));
        all
    };
    assert_equal(
        "scaled",
        &gradients(fused(), true),
        &gradients(STOCK, false),
        2e-5,
    );
    assert_equal(
        "scaled, by burn's operations",
        &gradients(STOCK, true),
        &gradients(STOCK, false),
        2e-5,
    );
}

#[test]
fn a_linear_layer_equals_burns_if_axes_of_its_input_and_of_its_weight_are_exchanged() {
    let table = random([19, 40], &device()).require_grad();
    let x = random([3, 40, 17], &device());
    let layer = |x: Tensor<3>| linear(x.swap_dims(1, 2), table.clone().transpose(), None);
    check("exchanged axes", x.clone(), layer);
    let gradient = |computation| {
        let context = PassContext::from(computation);
        let loss = context.scope(|| layer(x.clone()).powi_scalar(2).sum());
        let gradient = table.grad(&loss.backward());
        [values(gradient.expect("of the table"))]
    };
    assert_equal("table", &gradient(fused()), &gradient(STOCK), 2e-5);
}

#[test]
fn layer_norm_activations_and_attention_equal_burns() {
    let device = device();
    let norm = LayerNormConfig::new(40).init(&device);
    check("layer norm", random([4, 9, 40], &device), |x| {
        norm.forward(x)
    });
    let x = random([400, 40], &device);
    let gradients = |computation| {
        let context = PassContext::from(computation);
        let gradients = context
            .scope(|| norm.forward(x.clone()))
            .powi_scalar(3)
            .sum()
            .backward();
        [norm.gamma.val(), norm.beta.as_ref().expect("a shift").val()]
            .map(|parameter| values(parameter.grad(&gradients).expect("a gradient")))
    };
    assert_equal(
        "layer norm's parameters",
        &gradients(fused()),
        &gradients(STOCK),
        2e-5,
    );
    check("gelu", random([3, 50], &device), gelu);
    check("silu", random([3, 50], &device), silu);
    check("relu6", random([3, 50], &device).mul_scalar(5.0), relu6);
    check("relu of features", random([2, 3, 3, 7], &device), |x| {
        relu(x).into()
    });
    check("gelu of features", random([2, 3, 3, 7], &device), |x| {
        gelu(Features::from(x)).into()
    });
    // The result is a third as wide: filled up, so that the check's gradient fits.
    check("attention", random([2, 17, 3 * 2 * 16], &device), |x| {
        let y = attention(x, 2);
        Tensor::cat(vec![y.clone(), y.clone(), y], 2)
    });
}

#[test]
fn pooling_and_sums_of_features_equal_burns() {
    let device = device();
    let ours = MaxPool2dConfig::new([3, 3])
        .with_strides([2, 2])
        .with_padding(Explicit(1, 1, 1, 1))
        .init();
    let burns = MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init();
    for pool in [ours, burns] {
        check("max pool", random([2, 8, 6, 5], &device), |x| {
            pool.forward(x).into()
        });
    }
    check("a sum", random([2, 8, 6, 5], &device), |x| {
        (Features::from(x.clone()) + Features::from(x)).into()
    });
}

#[test]
fn a_norm_that_follows_no_convolution_of_ours_equals_burns_in_training() {
    let device = device();
    let norm: BatchNorm = BatchNormConfig::new(12).init(&device);
    let x = random([5, 6, 7, 12], &device);
    check("norm", x.clone(), |x| norm.forward(x).into());
    let gradients = |computation| {
        let context = PassContext::from(computation);
        let y = context.scope(|| Tensor::from(norm.forward(x.clone())));
        let gradients = y.powi_scalar(3).sum().backward();
        [norm.gamma.val(), norm.beta.val()]
            .map(|parameter| values(parameter.grad(&gradients).expect("a gradient")))
    };
    assert_equal(
        "norm's parameters",
        &gradients(fused()),
        &gradients(STOCK),
        5e-5,
    );
}

#[test]
fn passes_that_share_the_threads_of_a_pool_interrupt_each_other_without_harm() {
    let device = device();
    let conv: Conv2d = Conv2dConfig::new([16, 16], [3, 3])
        .with_bias(false)
        .init(&device)
        .into();
    let norm: BatchNorm = BatchNormConfig::new(16).init(&device);
    let x = random([32, 18, 18, 16], &device);
    let pass = || {
        let conv = conv.clone();
        let norm = norm.clone();
        let x = x.clone().detach().require_grad();
        let y = Tensor::from(relu(norm.forward(conv.forward(x.clone()))));
        values(
            x.grad(&y.powi_scalar(2).sum().backward())
                .expect("x has a gradient"),
        )
    };
    let expected = pass();
    // A worker that waits for a piece of its pass takes a whole pass of another thread in the
    // meantime.
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(2)
        .build()
        .unwrap();
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| (0..100).for_each(|_| assert_eq!(pool.install(pass), expected)));
        }
    });
}

#[test]
fn relu6_keeps_small_values_and_their_gradients_in_16_bits_and_has_none_at_its_corners() {
    for dtype in [FloatDType::F32, FloatDType::F16, FloatDType::BF16] {
        for computation in [STOCK, fused()] {
            let x = Tensor::<1>::from_floats(
                [-1.0, 0.0, 0.01, 0.1, 5.5, 6.0, 7.0, 60_000.0],
                &device(),
            )
            .cast(dtype);
            let [y, dx] = run(computation, &x, relu6);
            let x = values(x.cast(FloatDType::F32).inner());
            assert_eq!(
                y,
                x.iter().map(|x| x.clamp(0.0, 6.0)).collect::<Vec<_>>(),
                "{dtype:?}"
            );
            let open: Vec<bool> = dx.iter().map(|dx| *dx != 0.0).collect();
            assert_eq!(
                open,
                [false, false, true, true, true, false, false, false],
                "{dtype:?}"
            );
        }
    }
}

#[test]
fn a_relu6_behind_a_norm_has_no_gradient_at_its_corners_whether_the_norm_is_trained_or_frozen() {
    let device = Device::flex().autodiff();
    let x = random([2, 5, 5, 8], &device);
    for (is_trained, corner) in [(true, 0.0), (true, 6.0), (false, 0.0), (false, 6.0)] {
        for kernels in [Kernels::Fused, Kernels::Stock] {
            let [gamma, beta] =
                [0.0, corner].map(|value| Initializer::Constant { value }.init([8], &device));
            let norm = BatchNormConfig::new(8).init(&device);
            let training = Param::from_bool(is_trained);
            let norm = BatchNorm::from(nn::BatchNorm {
                gamma,
                beta,
                training,
                ..(*norm).clone()
            });
            let context = PassContext::from(Computation {
                kernels,
                ..Computation::default()
            });
            let conv = conv([8, 8], 3, 1, Same, 1);
            let y =
                context.scope(|| Tensor::<4>::from(relu6(norm.forward(conv.forward(x.clone())))));
            assert!(
                values(y.clone().inner())
                    .iter()
                    .all(|&y| f64::from(y) == corner)
            );
            let gradient = norm
                .beta
                .val()
                .grad(&y.sum().backward())
                .expect("beta has a gradient");
            assert_eq!(
                values(gradient),
                [0.0; 8],
                "trained: {is_trained}, {corner}, {kernels:?}"
            );
        }
    }
}

#[test]
fn an_empty_batch_has_an_empty_result_and_gradients_of_zero() {
    let (device, tape) = (Device::flex(), device());
    let (conv, linear): (Conv2d, Linear) = (
        conv([4, 6], 3, 1, Explicit(1, 1, 1, 1), 1),
        LinearConfig::new(6, 5).init(&tape).into(),
    );
    let norm: BatchNorm = BatchNormConfig::new(6).init(&tape);
    let x = Tensor::<4>::zeros([0, 3, 3, 4], &tape).require_grad();
    let y = linear.forward(Tensor::<4>::from(relu(conv.forward(x.clone()))));
    assert_eq!(y.dims(), [0, 3, 3, 5]);
    let gradients = y.sum().backward();
    assert_eq!(
        x.grad(&gradients).expect("x has a gradient").dims(),
        [0, 3, 3, 4]
    );
    assert_eq!(
        values(conv.weight.val().grad(&gradients).expect("weight")),
        [0.0; 6 * 4 * 9]
    );
    assert_eq!(
        values(
            linear
                .bias
                .as_ref()
                .unwrap()
                .val()
                .grad(&gradients)
                .expect("bias")
        ),
        [0.0; 5]
    );
    let plain = Conv2dConfig::new([4, 6], [1, 1])
        .with_bias(false)
        .init(&device);
    let norm = norm.valid();
    let y: Tensor<4> =
        relu(norm.forward(Conv2d::from(plain).forward(Tensor::zeros([0, 3, 3, 4], &device))))
            .into();
    assert_eq!(y.dims(), [0, 3, 3, 6]);
}

#[test]
fn channels_that_are_not_a_layers_own_are_refused() {
    let device = device();
    let x = || Features::from(Tensor::<4>::ones([2, 4, 4, 8], &device));
    let conv = |bias| {
        Conv2d::from(
            Conv2dConfig::new([1, 8], [3, 3])
                .with_bias(bias)
                .init(&device),
        )
    };
    let norm = |channels| BatchNormConfig::new(channels).init(&device);
    type Pass<'a> = Box<dyn Fn() -> Features + 'a>;
    // One channel, or it would count as depthwise.
    let passes: [(Pass<'_>, &str); 4] = [
        (
            Box::new(|| conv(true).forward(x())),
            "convolution: expected [N, H, W, 1], got [2, 4, 4, 8]",
        ),
        (
            Box::new(|| norm(8).forward(conv(false).forward(x()))),
            "convolution: expected [N, H, W, 1], got [2, 4, 4, 8]",
        ),
        (
            Box::new(|| norm(4).forward(x())),
            "batch norm: expected [N, H, W, 4], got [2, 4, 4, 8]",
        ),
        (
            Box::new(|| {
                norm(4).forward(conv(false).forward(Tensor::<4>::ones([2, 4, 4, 1], &device)))
            }),
            "batch norm: expected [N, H, W, 4], got [2, 2, 2, 8]",
        ),
    ];
    for (pass, expected) in passes {
        let pass = || values(Tensor::<4>::from(pass()).inner());
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(pass)).unwrap_err();
        let text = panic.downcast_ref::<String>().unwrap();
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
#[should_panic(expected = "linear layer: expected [.., 12], got [2, 24]")]
fn a_last_axis_that_is_a_multiple_of_the_layers_is_refused() {
    let linear: Linear = LinearConfig::new(12, 3).init(&Device::flex()).into();
    linear.forward(Tensor::<2>::zeros([2, 24], &Device::flex()));
}
