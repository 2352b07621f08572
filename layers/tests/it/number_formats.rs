//! Number formats that meet: features of two of them, shortcuts and parameters of 16 bits.

use burn::module::{Module, Param, RunningState};
use burn::nn;
use burn::nn::conv::{Conv2d as StockConv2d, Conv2dConfig};
use burn::tensor::{DType, Device, Distribution, FloatDType, Tensor, activation};
use layers::backend::{Activations, Computation};
use layers::{
    BatchNorm, BatchNormConfig, Conv2d, Features, LayerNorm, LayerNormConfig, Linear, LinearConfig,
    PassContext, gelu, global_avg_pool, in_f32, relu,
};

use crate::differences::{relative_difference, values};

const SHAPE: [usize; 4] = [3, 7, 6, 8];

fn random<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    device.seed(7);
    Tensor::random(shape, Distribution::Normal(0.3, 1.0), device)
}

#[test]
fn features_of_two_number_formats_are_added_in_that_of_the_pass() {
    let device = Device::flex().autodiff();
    let conv = Conv2d::from(Conv2dConfig::new([8, 8], [1, 1]).init(&device));
    for (activations, dtype) in [
        (Activations::Bf16, DType::BF16),
        (Activations::F32, DType::F32),
    ] {
        let of = |activations| {
            PassContext::from(Computation {
                activations,
                ..Computation::default()
            })
        };
        let x = random(SHAPE, &device).require_grad();
        let narrow: Features = of(Activations::Bf16)
            .scope(|| Tensor::from(conv.forward(x.clone())))
            .into();
        let y = of(activations).scope(|| Tensor::from(narrow.clone() + Features::from(x.clone())));
        assert_eq!(y.dtype(), dtype);
        let expected = Tensor::from(narrow).cast(FloatDType::F32) + x.clone();
        let y = y.cast(FloatDType::F32);
        let off = relative_difference(&values(y.clone().inner()), &values(expected.inner()));
        assert!(off < 5e-3, "{off:.2e}");
        assert_eq!(
            x.grad(&y.sum().backward())
                .expect("x has a gradient")
                .dims(),
            SHAPE
        );
    }
}

/// A squeeze-and-excitation block with a norm and a scale of burn's operations.
fn excited(norm: &nn::GroupNorm, [squeeze, expand]: &[Linear; 2], x: Features) -> Features {
    let [n, .., channels] = x.dims();
    let gate = activation::sigmoid(expand.forward(activation::relu(
        squeeze.forward(global_avg_pool(x.clone())),
    )));
    let gate = gate.reshape([n, 1, 1, channels]);
    let channel = |values: Tensor<1>| values.reshape([1, 1, 1, channels]);
    let own = norm.gamma.as_ref().expect("it has a scale").val();
    let y = (x * gate.clone() - Features::from(channel(own.clone()))) / (gate + 1.0);
    let y = y * channel(own);
    in_f32(y.into(), |y| {
        norm.forward(y.permute([0, 3, 1, 2])).permute([0, 2, 3, 1])
    })
    .into()
}

#[test]
fn factors_of_channels_and_norms_of_burns_take_features_of_16_bits() {
    let device = Device::flex().autodiff();
    device.seed(3);
    let norm = nn::GroupNormConfig::new(2, 8).init(&device);
    let linears = [
        LinearConfig::new(8, 4).init(&device),
        LinearConfig::new(4, 8).init(&device),
    ];
    let conv = Conv2d::from(Conv2dConfig::new([8, 8], [1, 1]).init(&device));
    let x = random(SHAPE, &device).require_grad();
    let run = |activations| {
        let computation = Computation {
            activations,
            ..Computation::default()
        };
        let y = PassContext::from(computation).scope(|| {
            Tensor::from(conv.forward(excited(&norm, &linears, conv.forward(x.clone()))))
        });
        let dtype = y.dtype();
        let y = y.cast(FloatDType::F32);
        let gradients = y.clone().powi_scalar(2).sum().backward();
        let gradient = linears[0].weight.val().grad(&gradients).expect("weight");
        (dtype, values(y.inner()), values(gradient))
    };
    let (_, expected, expected_gradient) = run(Activations::F32);
    for (activations, expected_dtype, tolerance) in [
        (Activations::Bf16, DType::BF16, 3e-2),
        (Activations::F16, DType::F16, 4e-3),
    ] {
        let (dtype, found, gradient) = run(activations);
        assert_eq!(dtype, expected_dtype);
        for (found, expected) in [(&found, &expected), (&gradient, &expected_gradient)] {
            let off = relative_difference(found, expected);
            assert!(off < tolerance, "{activations:?}: {off:.2e}");
        }
    }
}

#[test]
fn shortcut_a_stays_in_16_bits_where_no_layer_takes_it() {
    let x = random(SHAPE, &Device::flex());
    let wide = Tensor::from(Features::from(x.clone()).subsample_and_pad(12));
    for dtype in [FloatDType::BF16, FloatDType::F16] {
        let narrow = Tensor::from(Features::from(x.clone().cast(dtype)).subsample_and_pad(12));
        assert_eq!(
            values(narrow.cast(FloatDType::F32)),
            values(wide.clone().cast(dtype).cast(FloatDType::F32))
        );
    }
}

#[test]
fn parameters_of_16_bits_count_as_their_values_in_f32_and_get_gradients_of_their_own_format() {
    let device = Device::flex().autodiff();
    let x = random([3, 7, 6, 8], &device);
    fn narrow<const D: usize>(parameter: &Param<Tensor<D>>) -> Param<Tensor<D>> {
        Param::from_tensor(parameter.val().cast(FloatDType::BF16).detach())
    }
    fn widened<const D: usize>(parameter: &Param<Tensor<D>>) -> Param<Tensor<D>> {
        Param::from_tensor(parameter.val().cast(FloatDType::F32).detach())
    }
    let conv = Conv2dConfig::new([8, 8], [3, 3])
        .with_bias(false)
        .init(&device);
    let norm = BatchNormConfig::new(8).init(&device);
    let linear = nn::LinearConfig::new(8, 5).init(&device);
    let layer_norm = LayerNormConfig::new(8).init(&device);
    let weights = [narrow(&conv.weight), narrow(&conv.weight)];
    let gamma = narrow(&layer_norm.gamma);
    let linear_weight = narrow(&linear.weight);
    let of_norm = |gamma, beta, running: &dyn Fn(Tensor<1>) -> Tensor<1>| {
        let [running_mean, running_var] = [&norm.running_mean, &norm.running_var]
            .map(|state| RunningState::new(running(state.value_sync())));
        BatchNorm::from(nn::BatchNorm {
            gamma,
            beta,
            running_mean,
            running_var,
            ..(*norm).clone()
        })
    };
    let narrow_norm = of_norm(narrow(&norm.gamma), narrow(&norm.beta), &|state| {
        state.cast(FloatDType::BF16).detach()
    });
    let wide_norm = of_norm(norm.gamma.clone(), norm.beta.clone(), &|state| state);
    type Weights = [Param<Tensor<4>>; 2];
    let forward =
        |weights: Weights, gamma: Param<Tensor<1>>, weight: Param<Tensor<2>>, norm: &BatchNorm| {
            let [first, second] = weights.map(|weight| {
                Conv2d::from(StockConv2d {
                    weight,
                    ..conv.clone()
                })
            });
            let y = second.forward(gelu(relu(norm.forward(first.forward(x.clone())))));
            let y = norm.forward(gelu(norm.forward(y)));
            let y = LayerNorm {
                gamma,
                ..layer_norm.clone()
            }
            .forward(Tensor::<4>::from(y));
            Linear::from(nn::Linear {
                weight,
                ..linear.clone()
            })
            .forward(y)
        };
    let y = forward(
        weights.clone(),
        gamma.clone(),
        linear_weight.clone(),
        &narrow_norm,
    );
    let expected = forward(
        weights.each_ref().map(widened),
        widened(&gamma),
        widened(&linear_weight),
        &wide_norm,
    );
    assert_eq!(values(y.clone().inner()), values(expected.inner()));
    let gradients = y.powi_scalar(2).sum().backward();
    for weight in &weights {
        let gradient = weight.val().grad(&gradients).expect("weight");
        assert_eq!(gradient.dtype(), DType::BF16);
    }
    assert_eq!(
        gamma.val().grad(&gradients).expect("gamma").dtype(),
        DType::BF16
    );
    assert_eq!(
        linear_weight
            .val()
            .grad(&gradients)
            .expect("weight")
            .dtype(),
        DType::BF16
    );
    assert_eq!(
        narrow_norm
            .gamma
            .val()
            .grad(&gradients)
            .expect("gamma")
            .dtype(),
        DType::BF16
    );
    let means =
        [&narrow_norm, &wide_norm].map(|norm| norm.running_mean.value_sync().cast(FloatDType::F32));
    let [narrow_mean, wide_mean] = means.map(|mean| values(mean.inner()));
    let off = relative_difference(&narrow_mean, &wide_mean);
    assert!(off < 1e-2, "{off:.2e}");
    let evaluated = Tensor::<4>::from(narrow_norm.valid().forward(x.inner()));
    assert!(values(evaluated).iter().all(|value| value.is_finite()));
}
