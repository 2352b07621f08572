//! Operations outside fused layers: the kernels give the values and gradients of burn's operations
//! and of formulas in f64, for odd sizes, special values and empty batches, on any number of
//! threads.

use burn::module::Param;
use burn::nn::PaddingConfig2d::{Explicit, Same, Valid};
use burn::nn::conv::Conv2dConfig;
use burn::tensor::{Bool, FloatDType, Tensor, TensorData};
use layers::{
    AttentionMask, AvgPool2dConfig, Conv2d, ConvTranspose2dConfig, DropoutConfig, Features,
    GroupNormConfig, Interpolate2dConfig, InterpolateMode, MaxPool2dConfig, PassContext,
    fallback_ops, global_avg_pool, hard_swish, leaky_relu, log_softmax, masked_attention, sigmoid,
    softmax, tanh,
};

use crate::differences::values;
use crate::single::{STOCK, assert_equal, check, device, fused, random, run};

/// Asserts that burn computed no operation whose name contains `word`.
fn assert_no_fallback(word: &str) {
    let names = fallback_ops();
    assert!(!names.iter().any(|name| name.contains(word)), "{names:?}");
}

fn tensor(name: &str, pass: impl Fn(Tensor<4>) -> Features, shape: [usize; 4]) {
    check(name, random(shape, &device()), |x| pass(x).into());
}

/// Asserts that the gradients of parameters equal burn's.
fn check_parameters(
    name: &str,
    parameters: &[Tensor<1>],
    x: &Tensor<4>,
    pass: impl Fn(Tensor<4>) -> Features,
) {
    let gradients = |computation| {
        let context = PassContext::from(computation);
        let y = context.scope(|| Tensor::<4>::from(pass(x.clone())));
        let gradients = y.powi_scalar(3).sum().backward();
        let of = |parameter: &Tensor<1>| values(parameter.grad(&gradients).expect("a gradient"));
        parameters.iter().map(of).collect::<Vec<_>>()
    };
    assert_equal(name, &gradients(fused()), &gradients(STOCK), 5e-5);
}

#[test]
fn activations_equal_burns_and_their_formulas_in_f64() {
    let device = device();
    type Function = (&'static str, fn(Tensor<1>) -> Tensor<1>, fn(f64) -> f64);
    let functions: [Function; 4] = [
        ("sigmoid", sigmoid, |x| 1.0 / (1.0 + (-x).exp())),
        ("tanh", tanh, f64::tanh),
        (
            "leaky relu",
            |x| leaky_relu(x, 0.25),
            |x| {
                if x > 0.0 { x } else { 0.25 * x }
            },
        ),
        ("hard swish", hard_swish, |x| {
            if x < -3.0 {
                0.0
            } else {
                x * (x + 3.0).min(6.0) / 6.0
            }
        }),
    ];
    let limits = [f32::NEG_INFINITY, -1e30, -100.0, 100.0, 1e30, f32::INFINITY];
    let inputs: Vec<f32> = (-900..900)
        .map(|step| step as f32 / 10.0 + 0.013)
        .chain(limits)
        .collect();
    for (name, function, formula) in functions {
        check(name, random([353], &device).mul_scalar(3.0), function);
        let x = Tensor::<1>::from_data(TensorData::from(&inputs[..]), &device);
        let [y, dx] = run(fused(), &x, function);
        for (&x, y) in inputs.iter().zip(y) {
            let expected = formula(f64::from(x));
            let is_near = (f64::from(y) - expected).abs() <= 5e-7 * expected.abs() + 2e-38;
            assert!(is_near || f64::from(y) == expected, "{name}({x}): {y}");
        }
        assert!(dx.iter().all(|dx| dx.is_finite()), "{name}");
        let nan = Tensor::<1>::from_floats([f32::NAN], &device);
        assert!(values(function(nan).inner())[0].is_nan(), "{name}");
        let empty = Tensor::<1>::zeros([0], &device).require_grad();
        assert_eq!(function(empty).dims(), [0]);
    }
    tensor(
        "tanh of features",
        |x| tanh(Features::from(x)),
        [2, 3, 3, 7],
    );
}

#[test]
fn softmax_and_its_logarithm_equal_burns_over_any_axis() {
    let device = device();
    for shape in [[7, 1], [33, 10], [5, 1000]] {
        let name = format!("{shape:?}");
        check(&name, random(shape, &device).mul_scalar(4.0), |x| {
            softmax(x, 1)
        });
        check(&name, random(shape, &device), |x| log_softmax(x, 1));
    }
    assert_no_fallback("softmax over axis 1");
    check("first axis", random([9, 5], &device), |x| softmax(x, 0));
    let empty = Tensor::<2>::zeros([0, 5], &device).require_grad();
    let y = softmax(empty.clone(), 1);
    assert_eq!(y.dims(), [0, 5]);
    let gradients = y.sum().backward();
    assert_eq!(empty.grad(&gradients).expect("of x").dims(), [0, 5]);
    assert_eq!(
        log_softmax(Tensor::<2>::zeros([3, 0], &device), 1).dims(),
        [3, 0]
    );
}

#[test]
fn masked_attention_equals_burns_and_a_query_without_keys_has_the_result_0() {
    let device = device();
    let wide = |y: Tensor<3>| Tensor::cat(vec![y.clone(), y.clone(), y], 2);
    for tokens in [1, 17, 40] {
        let x = random([2, tokens, 3 * 2 * 10], &device);
        check(&format!("causal, {tokens}"), x.clone(), |x| {
            wide(masked_attention(x, 2, AttentionMask::Causal))
        });
        let hidden: Vec<bool> = (0..2 * tokens * tokens)
            .map(|at| at / tokens == 3 || at % 7 == 2)
            .collect();
        let hidden = TensorData::new(hidden, [2, tokens, tokens]);
        let hidden = Tensor::<3, Bool>::from_data(hidden, &device);
        let pass = |x| masked_attention(x, 2, AttentionMask::Hidden(hidden.clone()));
        check(&format!("hidden, {tokens}"), x.clone(), |x| wide(pass(x)));
        if tokens > 3 {
            let y = pass(x).narrow(0, 0, 1).narrow(1, 3, 1);
            assert_eq!(values(y.flatten::<1>(0, 2).inner()), [0.0; 20]);
        }
    }
}

#[test]
#[should_panic(expected = "attention: mask: expected [N, tokens, tokens]")]
fn a_mask_of_another_shape_is_refused() {
    let device = device();
    let hidden = Tensor::<3, Bool>::from_data(TensorData::new(vec![false; 3], [1, 1, 3]), &device);
    masked_attention(random([1, 3, 6], &device), 1, AttentionMask::Hidden(hidden));
}

#[test]
fn group_norm_equals_burns_with_and_without_parameters() {
    let device = device();
    for (groups, channels, shape) in [
        (2, 6, [3, 5, 4, 6]),
        (1, 7, [2, 1, 3, 7]),
        (16, 80, [2, 9, 8, 80]),
    ] {
        let config = GroupNormConfig::new(groups, channels).with_epsilon(1e-4);
        let mut norm = config.init(&device);
        let name = format!("{groups} groups");
        tensor(&name, |x| norm.forward(x), shape);
        let [gamma, beta] = [(); 2].map(|()| random([channels], &device));
        norm = burn::nn::GroupNorm {
            gamma: Some(Param::from_tensor(gamma)),
            beta: Some(Param::from_tensor(beta)),
            ..(*norm).clone()
        }
        .into();
        tensor(&name, |x| norm.forward(x), shape);
        let parameters = [&norm.gamma, &norm.beta].map(|p| p.as_ref().expect("affine").val());
        let x = random(shape, &device);
        check_parameters(&name, &parameters, &x, |x| norm.forward(x));
        let plain = config.with_affine(false).init(&device);
        tensor(&name, |x| plain.forward(x), shape);
    }
    let norm = GroupNormConfig::new(2, 4).init(&device);
    let empty = Tensor::<4>::zeros([0, 3, 3, 4], &device);
    assert_eq!(norm.forward(empty).dims(), [0, 3, 3, 4]);
}

#[test]
#[should_panic(expected = "group norm: expected [N, H, W, 4], got [2, 3, 3, 8]")]
fn channels_that_are_not_a_group_norms_are_refused() {
    let norm = GroupNormConfig::new(2, 4).init(&device());
    norm.forward(random([2, 3, 3, 8], &device()));
}

#[test]
fn pools_of_2x2_windows_upsampling_and_cat_equal_burns() {
    let max = MaxPool2dConfig::new([2, 2]).with_strides([2, 2]);
    let average = AvgPool2dConfig::new([2, 2]).with_strides([2, 2]);
    let nearest = Interpolate2dConfig::new().with_scale_factor(Some([2.0; 2]));
    let sized = Interpolate2dConfig::new().with_output_size(Some([10, 6]));
    let [max, padded] = [Valid, Explicit(0, 0, 0, 0)].map(|p| max.clone().with_padding(p).init());
    let average = average.init();
    for shape in [[2, 8, 6, 5], [1, 7, 9, 33], [3, 2, 3, 16], [2, 5, 3, 1]] {
        tensor("max pool", |x| max.forward(x), shape);
        tensor("max pool", |x| padded.forward(x), shape);
        tensor("average pool", |x| average.forward(x), shape);
        tensor("nearest", |x| nearest.clone().init().forward(x), shape);
        let cat = |x: Tensor<4>| Features::cat(vec![x.clone().into(), tanh(x.into())]);
        tensor("cat", cat, shape);
    }
    tensor("sized", |x| sized.init().forward(x), [2, 5, 3, 4]);
    for word in ["pool 2x2, stride [2", "Nearest"] {
        assert_no_fallback(word);
    }
    let empty = || Tensor::<4>::zeros([0, 4, 4, 3], &device());
    assert_eq!(max.forward(empty()).dims(), [0, 2, 2, 3]);
    assert_eq!(average.forward(empty()).dims(), [0, 2, 2, 3]);
}

#[test]
fn features_with_several_readers_get_the_sum_of_their_gradients() {
    let pass = |x: Tensor<4>| {
        let y = tanh(Features::from(x));
        let gate = sigmoid(global_avg_pool(y.clone())).unsqueeze_dims::<4>(&[1, 2]);
        let sum = y.clone() * gate + y.clone();
        let doubled = sum.clone() + sum.clone();
        let pair = Features::cat(vec![y.clone(), y]);
        Features::cat(vec![doubled, sum, pair])
    };
    for shape in [[2, 3, 5, 7], [1, 1, 1, 16]] {
        tensor("several readers", pass, shape);
    }
}

#[test]
fn interpolations_equal_burns() {
    for mode in [
        InterpolateMode::Nearest,
        InterpolateMode::Linear,
        InterpolateMode::Cubic,
    ] {
        for (size, is_aligned) in [
            ([10, 6], true),
            ([10, 6], false),
            ([3, 7], false),
            ([1, 4], true),
        ] {
            let config = Interpolate2dConfig::new()
                .with_output_size(Some(size))
                .with_mode(mode.clone())
                .with_align_corners(is_aligned);
            let name = format!("{mode:?} to {size:?}, {is_aligned}");
            tensor(&name, |x| config.clone().init().forward(x), [2, 5, 3, 4]);
        }
        let scaled = Interpolate2dConfig::new()
            .with_scale_factor(Some([1.7, 0.5]))
            .with_mode(mode.clone())
            .with_align_corners(false);
        let name = format!("{mode:?}, scaled");
        tensor(&name, |x| scaled.clone().init().forward(x), [1, 7, 6, 33]);
    }
    for mode in ["Nearest", "Linear", "Cubic"] {
        assert_no_fallback(mode);
    }
}

#[test]
fn dropout_scales_the_values_it_keeps_and_its_gradient_has_the_mask() {
    let dropout = DropoutConfig::new(0.25).init();
    let device = device();
    let x = Tensor::<3>::ones([20, 50, 3], &device).require_grad();
    let [first, second] = [dropout.forward(x.clone()), dropout.forward(x.clone())];
    let gradient = x.grad(&first.clone().backward()).expect("x has a gradient");
    let [first, second, gradient] = [first.inner(), second.inner(), gradient].map(values);
    assert_eq!(first, gradient);
    assert_ne!(first, second);
    let kept = first.iter().filter(|y| **y != 0.0).count();
    assert!(kept.abs_diff(2250) < 150, "{kept}");
    assert!(first.iter().all(|y| *y == 0.0 || *y == 4.0 / 3.0));
    let outside = Tensor::<3>::ones([20, 50, 3], &device.clone().inner());
    assert_eq!(values(dropout.forward(outside)), vec![1.0; 3000]);
    let features = Features::from(Tensor::<4>::ones([2, 2, 2, 2], &device));
    assert_eq!(dropout.forward(features).dims(), [2, 2, 2, 2]);
}

#[test]
fn cat_has_the_format_of_its_first_features() {
    let [left, right] = [2, 3].map(|channels| random([1, 2, 2, channels], &device()));
    let left = left.cast(FloatDType::BF16);
    let y = Tensor::<4>::from(Features::cat(vec![left.into(), right.into()]));
    assert_eq!(y.dims(), [1, 2, 2, 5]);
    assert_eq!(FloatDType::from(y.dtype()), FloatDType::BF16);
}

#[test]
fn convolutions_with_groups_dilation_or_apart_windows_equal_burns() {
    let device = device();
    let pad = |p| Explicit(p, p, p, p);
    for (config, padding) in [
        (Conv2dConfig::new([8, 12], [3, 3]).with_groups(4), pad(1)),
        (Conv2dConfig::new([8, 4], [3, 3]).with_groups(2), Same),
        (
            Conv2dConfig::new([6, 9], [5, 5])
                .with_groups(3)
                .with_stride([2, 2]),
            pad(2),
        ),
        (Conv2dConfig::new([6, 12], [3, 3]).with_groups(6), pad(1)),
        (
            Conv2dConfig::new([5, 15], [3, 3])
                .with_groups(5)
                .with_stride([2, 2]),
            Valid,
        ),
        (Conv2dConfig::new([6, 4], [1, 7]), Explicit(0, 3, 0, 3)),
        (Conv2dConfig::new([6, 6], [7, 1]).with_groups(3), Same),
        (
            Conv2dConfig::new([5, 4], [3, 5]).with_stride([3, 3]),
            Explicit(1, 2, 1, 2),
        ),
        (
            Conv2dConfig::new([6, 4], [3, 3]).with_dilation([2, 2]),
            pad(2),
        ),
        (
            Conv2dConfig::new([6, 6], [3, 3])
                .with_dilation([3, 3])
                .with_groups(6),
            pad(3),
        ),
        (
            Conv2dConfig::new([3, 5], [3, 3]).with_dilation([2, 2]),
            Valid,
        ),
        (Conv2dConfig::new([4, 6], [3, 3]).with_stride([3, 3]), Valid),
        (
            Conv2dConfig::new([4, 6], [1, 4]).with_stride([1, 4]),
            pad(0),
        ),
    ] {
        for has_bias in [false, true] {
            let config = config.clone().with_padding(padding.clone());
            let conv = Conv2d::from(config.with_bias(has_bias).init(&device));
            let name = format!("{conv}");
            let forward = |x: Tensor<4>| conv.forward(x);
            let shape = [2, 9, 8, conv.weight.dims()[1] * conv.groups];
            tensor(&name, forward, shape);
            let weight = conv.weight.val();
            let bias = conv.bias.as_ref().map(Param::val);
            let x = random(shape, &device);
            let gradients = |computation| {
                let context = PassContext::from(computation);
                let y = context.scope(|| Tensor::<4>::from(forward(x.clone())));
                let gradients = y.powi_scalar(2).sum().backward();
                let mut of = vec![values(weight.grad(&gradients).expect("weight"))];
                of.extend(
                    bias.iter()
                        .map(|b| values(b.grad(&gradients).expect("bias"))),
                );
                of
            };
            assert_equal(&name, &gradients(fused()), &gradients(STOCK), 2e-5);
        }
    }
    for word in [
        "groups 4",
        "groups 5",
        "dilation [3",
        "stride [3, 3], dilation [1",
        "convolution 1x7",
        "convolution 7x1",
        "convolution 3x5 of 5",
    ] {
        assert_no_fallback(word);
    }
}

#[test]
fn transposed_convolutions_equal_burns() {
    let device = device();
    for (kernel, stride, bias) in [
        ([2, 2], [2, 2], true),
        ([3, 2], [3, 2], false),
        ([3, 3], [2, 2], true),
    ] {
        let config = ConvTranspose2dConfig::new([6, 5], kernel).with_stride(stride);
        let conv = config.with_bias(bias).init(&device);
        let name = format!("{kernel:?}, {stride:?}");
        tensor(&name, |x| conv.forward(x), [2, 5, 4, 6]);
        let x = random([2, 5, 4, 6], &device);
        let weight = conv.weight.val();
        let gradients = |computation| {
            let context = PassContext::from(computation);
            let y = context.scope(|| Tensor::<4>::from(conv.forward(x.clone())));
            let gradients = y.powi_scalar(2).sum().backward();
            let bias = conv.bias.as_ref().map(|bias| bias.val());
            let mut of = vec![values(weight.grad(&gradients).expect("weight"))];
            of.extend(
                bias.iter()
                    .map(|b| values(b.grad(&gradients).expect("bias"))),
            );
            of
        };
        assert_equal(&name, &gradients(fused()), &gradients(STOCK), 2e-5);
    }
}

#[test]
fn the_bits_of_all_operations_are_the_same_on_one_and_two_threads() {
    let device = device();
    let norm = GroupNormConfig::new(4, 24).init(&device);
    let max = MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init();
    let average = AvgPool2dConfig::new([2, 2]).with_strides([2, 2]).init();
    let conv = Conv2dConfig::new([24, 24], [3, 3]).with_groups(4);
    let conv = Conv2d::from(conv.init(&device));
    let x = random([6, 14, 14, 24], &device);
    let pass = || {
        let x = x.clone().detach().require_grad();
        let y = Tensor::<4>::from(norm.forward(tanh(x.clone())));
        let [n, height, width, channels] = y.dims();
        let rows = softmax(y.reshape([n, height * width, channels]), 2);
        let y = masked_attention(rows, 2, AttentionMask::Causal);
        let y = hard_swish(sigmoid(y)).reshape([n, height, width, channels / 3]);
        let y = Features::cat(vec![
            y.clone().into(),
            y.clone().into(),
            leaky_relu(y, 0.1).into(),
        ]);
        let y = average.forward(max.forward(conv.forward(y)));
        let y = log_softmax(Tensor::<4>::from(y), 3);
        let gradients = y.clone().powi_scalar(2).sum().backward();
        let dx = x.grad(&gradients).expect("x has a gradient");
        [values(y.inner()), values(dx)]
    };
    let [one, two] = [1, 2].map(|threads| {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .unwrap();
        pool.install(pass)
    });
    assert!(one == two && one[0].iter().all(|value| value.is_finite()));
}
