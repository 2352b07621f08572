//! The updates against PyTorch's, timm's and the papers' formulas.

use burn::tensor::{Device, Tensor, TensorData};
use distributed::communicator::SingleCommunicator;
use layers::backend::{GradientHook, Joined};

use super::optimizer::HostOptimizer;
use super::*;
use crate::config::{AdamConfig, OptimizerChoice, SgdConfig};
use burn::module::Param;

/// Largest absolute or relative difference of a parameter (docs/numerics.md).
const UPDATE_TOLERANCE: f32 = 1e-6;

#[derive(Module, Debug)]
struct WeightAndBias {
    weight: Param<Tensor<2>>,
    bias: Param<Tensor<1>>,
}

#[derive(Module, Debug)]
struct TwoLayers {
    first: Param<Tensor<2>>,
    bias: Param<Tensor<1>>,
    second: Param<Tensor<2>>,
}

fn module() -> WeightAndBias {
    let device = Device::flex();
    WeightAndBias {
        weight: Param::from_tensor(Tensor::from_floats([[0.5, -1.25]], &device)),
        bias: Param::from_tensor(Tensor::from_floats([2.0], &device)),
    }
}

fn optimizer(config: OptimizerChoice) -> HostOptimizer {
    let layout = ParameterLayout::new(&module());
    HostOptimizer::new(config, &[], &layout, vec![0.5, -1.25, 2.0])
}

fn sgd_config(nesterov: bool, decay_norm_and_bias: bool) -> SgdConfig {
    SgdConfig {
        momentum: 0.9,
        nesterov,
        weight_decay: 0.01,
        decay_norm_and_bias: Some(decay_norm_and_bias),
    }
}

fn adam_config(epsilon: f64, decay_norm_and_bias: bool) -> AdamConfig {
    AdamConfig {
        beta1: 0.9,
        beta2: 0.999,
        epsilon,
        weight_decay: 0.01,
        decay_norm_and_bias: Some(decay_norm_and_bias),
    }
}

/// One of each rule.
fn all() -> [OptimizerChoice; 4] {
    [
        OptimizerChoice::Sgd(sgd_config(true, true)),
        OptimizerChoice::Lars {
            sgd: sgd_config(false, false),
            trust_coefficient: 0.5,
        },
        OptimizerChoice::Adamw(adam_config(1e-8, true)),
        OptimizerChoice::Lamb(adam_config(1e-6, false)),
    ]
}

/// One step in two buckets, the last parameter first and on the calling thread, as on a server.
fn update(optimizer: &mut HostOptimizer, learning_rate: f64, gradients: &[f32]) {
    optimizer.update_elements(learning_rate, 2..3, &gradients[2..]);
    optimizer.update(learning_rate, [(0..2, &gradients[..2])]);
}

fn after_three_steps(config: OptimizerChoice) -> Vec<f32> {
    let mut optimizer = optimizer(config);
    for gradients in [[1.0, -2.0, 0.5], [0.25, 0.5, -1.5], [-3.0, 1.0, 0.125]] {
        update(&mut optimizer, 0.1, &gradients);
    }
    optimizer.parameters().to_vec()
}

fn assert_close(got: &[f32], expected: &[f32]) {
    assert!(
        got.iter()
            .zip(expected)
            .all(|(a, b)| (a - b).abs() < UPDATE_TOLERANCE),
        "{got:?} against {expected:?}"
    );
}

/// Expected values by PyTorch 2.15 in double precision: `w = tensor([[0.5, -1.25]]); b =
/// tensor([2.]); SGD([w, b], lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=…)`, then three
/// steps with these gradients.
#[test]
fn three_steps_of_sgd_equal_pytorchs() {
    let sgd = |nesterov| after_three_steps(OptimizerChoice::Sgd(sgd_config(nesterov, true)));
    assert_close(&sgd(false), &[0.479_102_3, -0.896_703_3, 2.125_829_5]);
    assert_close(&sgd(true), &[0.655_451_8, -0.879_533_9, 2.194_702_9]);
}

/// As above, by `AdamW([w, b], lr=0.1, betas=(0.9, 0.999), eps=…, weight_decay=0.01)`; without
/// decay of `b` in the second line.
#[test]
fn three_steps_of_adamw_equal_pytorchs() {
    let adamw =
        |epsilon, decays| after_three_steps(OptimizerChoice::Adamw(adam_config(epsilon, decays)));
    assert_close(
        &adamw(1e-8, true),
        &[0.355_300_4, -1.094_810_4, 1.976_620_2],
    );
    assert_close(
        &adamw(1e-8, false),
        &[0.355_300_4, -1.094_810_4, 1.982_463_7],
    );
    assert_close(&adamw(0.1, true), &[0.372_337_6, -1.102_907_7, 1.985_947_6]);
}

/// As golden/optimizers.py makes them: the rates differ, the second weight begins at zeros, and in
/// the third step the first has no gradient.
fn after_five_steps(config: OptimizerChoice) -> Vec<f32> {
    let device = Device::flex();
    let module = TwoLayers {
        first: Param::from_tensor(Tensor::zeros([2, 2], &device)),
        bias: Param::from_tensor(Tensor::zeros([2], &device)),
        second: Param::from_tensor(Tensor::zeros([2, 1], &device)),
    };
    let parameters = vec![0.5, -1.25, 2.0, 0.75, 1.5, -0.5, 0.0, 0.0];
    let mut optimizer = HostOptimizer::new(config, &[], &ParameterLayout::new(&module), parameters);
    for (step, learning_rate) in [0.1, 0.1, 0.05, 0.02, 0.2].into_iter().enumerate() {
        let gradient = |index: usize| ((5 * index + 9 * step) % 11) as f32 / 8.0 - 0.625;
        let mut gradients: Vec<f32> = (0..8).map(gradient).collect();
        if step == 2 {
            gradients[..4].fill(0.0);
        }
        optimizer.update_elements(learning_rate, 6..8, &gradients[6..]);
        optimizer.update(learning_rate, [(0..6, &gradients[..6])]);
    }
    optimizer.parameters().to_vec()
}

fn assert_equals_timms(config: OptimizerChoice, expected: [f32; 8]) {
    let got = after_five_steps(config);
    let is_close = got
        .iter()
        .zip(expected)
        .all(|(a, b)| (a - b).abs() <= UPDATE_TOLERANCE * b.abs());
    assert!(is_close, "{config:?}: {got:?} against {expected:?}");
}

/// Expected values by timm 1.0.31 in double precision: trainer/tests/golden/optimizers.py. Its
/// `Lars` is ours with `eps=0`, of what it adds to the norms, and `always_adapt=True` for what is
/// not spared, without which there is no ratio where there is no decay.
#[test]
fn five_steps_of_lars_equal_timms() {
    let lars = |nesterov, decays, trust_coefficient, weight_decay| {
        let sgd = SgdConfig {
            weight_decay,
            ..sgd_config(nesterov, decays)
        };
        OptimizerChoice::Lars {
            sgd,
            trust_coefficient,
        }
    };
    let cases = [
        (
            lars(false, false, 0.5, 0.01),
            [
                0.6615677,
                -1.4136326,
                1.6293072,
                0.7518954,
                1.3851,
                -0.496175,
                -0.116647616,
                0.13074115,
            ],
        ),
        (
            lars(true, true, 0.5, 0.01),
            [
                0.7359511,
                -1.4877815,
                1.6407883,
                0.7260473,
                1.3447405,
                -0.42367107,
                -0.11733022,
                0.1548274,
            ],
        ),
        (
            lars(false, false, 0.001, 0.01),
            [
                0.49918303,
                -1.2475027,
                1.9946826,
                0.7482515,
                1.3851,
                -0.496175,
                -0.14106372,
                0.14109236,
            ],
        ),
        (
            lars(true, false, 0.5, 0.0),
            [
                0.75748473, -1.5275131, 1.6756637, 0.74367887, 1.42659, -0.4853075, -0.1173363,
                0.15493186,
            ],
        ),
    ];
    for (config, expected) in cases {
        assert_equals_timms(config, expected);
    }
}

/// As above. timm's `Lamb` is ours with `max_grad_norm=None`, of its clipping, and
/// `always_adapt=True`.
#[test]
fn five_steps_of_lamb_equal_timms() {
    let lamb = |decays, weight_decay| {
        OptimizerChoice::Lamb(AdamConfig {
            weight_decay,
            ..adam_config(1e-6, decays)
        })
    };
    let cases = [
        (
            lamb(false, 0.01),
            [
                0.79309905,
                -1.4700375,
                1.4752904,
                0.89811057,
                1.2943882,
                -0.35873538,
                -0.08082646,
                0.118599504,
            ],
        ),
        (
            lamb(true, 0.01),
            [
                0.79309905,
                -1.4700375,
                1.4752904,
                0.89811057,
                1.3166709,
                -0.5162909,
                -0.08082646,
                0.118599504,
            ],
        ),
        (
            lamb(false, 0.0),
            [
                0.80133116,
                -1.4823527,
                1.4921439,
                0.91292006,
                1.2943882,
                -0.35873538,
                -0.08083915,
                0.11872503,
            ],
        ),
    ];
    for (config, expected) in cases {
        assert_equals_timms(config, expected);
    }
}

#[test]
fn a_bias_is_spared_decay_if_asked_and_a_weight_is_not() {
    let [all, spared] = [true, false]
        .map(|decays| after_three_steps(OptimizerChoice::Sgd(sgd_config(false, decays))));
    assert_eq!(all[..2], spared[..2]);
    assert!(spared[2] > all[2]);
}

#[test]
fn a_restored_optimizer_makes_the_same_next_update() {
    for config in all() {
        let mut one = optimizer(config);
        update(&mut one, 0.1, &[1.0, 2.0, 3.0]);
        let mut other = optimizer(config);
        other.restore(&one.place(module()), &one.state());
        for optimizer in [&mut one, &mut other] {
            update(optimizer, 0.05, &[-1.0, 0.5, 2.0]);
        }
        assert_eq!(one.parameters(), other.parameters(), "{config:?}");
        assert_eq!(one.state(), other.state(), "{config:?}");
    }
}

#[test]
fn gradients_that_are_read_in_the_background_are_those_that_are_read_at_once() {
    let module = module();
    let of = |in_background| {
        let communicator = Arc::new(SingleCommunicator::new());
        let how = ReducerConfig::default();
        let mut reducer = GradientReducer::new(&module, communicator, &how).unwrap();
        let hook = BucketHook::new(reducer.collector(), in_background);
        reducer.begin_step(BucketContext::default());
        reducer.begin_micro_step(MicroStepConfig::default());
        hook.on_gradient(module.weight.id, TensorData::from([[1.0_f32, 2.0]]));
        hook.on_gradients(Joined {
            parameters: vec![(module.bias.id, 1)],
            values: TensorData::from([3.0_f32]),
        });
        hook.wait();
        reducer.finish_local().to_flat()
    };
    assert_eq!([of(false), of(true)], [[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]]);
}
