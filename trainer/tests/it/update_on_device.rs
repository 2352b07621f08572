//! Training with updates on the device equals training with updates on the host and loses no
//! result.

use std::sync::Arc;

use crate::fixture::{Run, TINY, flags, run};
use crate::stepper_under_test::{
    SGD, StepperUnderTest, one_shard, resnet8, step_config, with_bad_pixel,
};
use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor, TensorData};
use burn_resnet::{Activations, Computation, ResNetConfig};
use datasets::{Augment, LoadedStep, ShardConfig, Targets};
use distributed::communicator::SingleCommunicator;
use distributed::gradients::CompressionKind;
use distributed::replica::{ParameterLayout, read};
use distributed::{Communicator, run_ranks};
use trainer::config::cli::TrainArgs;
use trainer::config::{
    AdamConfig, Compression, LossScaling, OptimizerChoice, RateFactor, ReductionChoice, SgdConfig,
    SyncMethod, SyncSection, UpdateKind,
};
use trainer::model::ImageClassifier;
use trainer::model::loss::{CrossEntropy, Loss};
use trainer::step::OptimizerState;
use trainer::step::{Clip, StepConfig, StepOutcome, StepResults};

const NUM_STEPS: usize = 5;

/// Largest difference of parameters, velocities and losses, relative to the largest value. Only
/// rounding may differ.
const TOLERANCE: f64 = 2e-5;

pub(crate) const DECAYING: SgdConfig = SgdConfig {
    weight_decay: 1e-2,
    ..SGD
};

/// An epsilon far above rounding errors. A rounding error would otherwise determine a step's sign.
pub(crate) const ADAM: AdamConfig = AdamConfig {
    beta1: 0.9,
    beta2: 0.99,
    epsilon: 1e-3,
    weight_decay: 0.01,
    decay_norm_and_bias: Some(true),
};

pub(crate) const LARS: OptimizerChoice = OptimizerChoice::Lars {
    sgd: SgdConfig {
        decay_norm_and_bias: Some(false),
        ..DECAYING
    },
    trust_coefficient: 0.1,
};

/// Five steps of eight images in micro-batches of three.
fn steps() -> Vec<LoadedStep> {
    crate::stepper_under_test::steps(one_shard(8 * NUM_STEPS, 8), 3, Augment::None)
}

pub(crate) fn config(update: UpdateKind) -> StepConfig {
    let base = step_config();
    StepConfig {
        optimizer: OptimizerChoice::Sgd(DECAYING),
        sync: SyncSection {
            update,
            ..base.sync
        },
        ..base
    }
}

fn stepper(config: StepConfig, device: &Device) -> StepperUnderTest {
    stepper_of(CrossEntropy::default(), config, device)
}

fn stepper_of(loss: CrossEntropy, config: StepConfig, device: &Device) -> StepperUnderTest {
    StepperUnderTest::with_loss(
        Arc::new(loss),
        resnet8(device),
        config,
        Arc::new(SingleCommunicator::new()),
        device,
    )
}

/// Parameters, first and second moments, norm statistics and the loss of each step.
fn course(
    loss: CrossEntropy,
    config: StepConfig,
    device: &Device,
    num_steps: usize,
) -> [Vec<f32>; 5] {
    let mut stepper = stepper_of(loss, config, device);
    let losses = steps()
        .into_iter()
        .take(num_steps)
        .enumerate()
        .map(|(index, loaded)| {
            let sums = stepper.complete(index, loaded).unwrap().scores.unwrap();
            assert_eq!(sums.num_samples, 8);
            sums.loss_mean() as f32
        });
    let losses = losses.collect();
    let in_model = read(stepper.model(), &ParameterLayout::new(stepper.model()));
    assert_eq!(
        in_model,
        *stepper.parameters(),
        "the model has the optimizer's parameters"
    );
    let OptimizerState {
        mut moments,
        num_updates,
        ..
    } = stepper.optimizer_state();
    let second = moments.split_off(in_model.len());
    assert_eq!(
        num_updates,
        (!second.is_empty()).then_some(num_steps as u64)
    );
    [in_model, moments, second, stepper.norm_statistics(), losses]
}

pub(crate) fn assert_close(what: &str, values: [&[f32]; 2]) {
    assert_close_by(TOLERANCE, what, values);
}

pub(crate) fn assert_close_by(tolerance: f64, what: &str, [host, device]: [&[f32]; 2]) {
    assert_eq!(host.len(), device.len());
    let largest = host
        .iter()
        .fold(0.0f32, |largest, value| largest.max(value.abs()));
    let off = host
        .iter()
        .zip(device)
        .fold(0.0f32, |off, (host, device)| off.max((host - device).abs()));
    assert!(
        largest > 0.0 && f64::from(off / largest) < tolerance,
        "{what}: {off:e} of {largest:e}"
    );
}

fn assert_updates_agree(
    what: &str,
    device: &Device,
    loss: CrossEntropy,
    change: impl Fn(&mut StepConfig),
) {
    // Other backends take seconds per step.
    let num_steps = if *device == Device::flex() {
        NUM_STEPS
    } else {
        2
    };
    let [host, on_device] = [UpdateKind::Host, UpdateKind::Device].map(|update| {
        let mut config = config(update);
        change(&mut config);
        course(loss, config, device, num_steps)
    });
    for (index, name) in [
        "parameters",
        "moments",
        "second moments",
        "norm statistics",
        "losses",
    ]
    .into_iter()
    .enumerate()
    {
        // SGD has no second moments on either side.
        if name != "second moments" || !(host[index].is_empty() && on_device[index].is_empty()) {
            assert_close(
                &format!("{what}: {name}"),
                [&host[index], &on_device[index]],
            );
        }
    }
}

#[test]
fn five_steps_equal_those_of_the_host_with_any_optimizer_and_limit() {
    type Change = fn(&mut StepConfig);
    let cases: [(&str, Change); 10] = [
        ("momentum and decay", |_| {}),
        ("nesterov, decay of weights", |config| {
            config.optimizer = OptimizerChoice::Sgd(SgdConfig {
                nesterov: true,
                decay_norm_and_bias: Some(false),
                ..DECAYING
            });
        }),
        ("no momentum, no decay", |config| {
            config.optimizer = OptimizerChoice::Sgd(SgdConfig {
                momentum: 0.0,
                weight_decay: 0.0,
                ..SGD
            });
        }),
        ("adamw", |config| {
            config.optimizer = OptimizerChoice::Adamw(ADAM)
        }),
        ("adamw, decay of weights", |config| {
            config.optimizer = OptimizerChoice::Adamw(AdamConfig {
                weight_decay: 0.1,
                decay_norm_and_bias: Some(false),
                ..ADAM
            });
        }),
        ("adam", |config| {
            config.optimizer = OptimizerChoice::Adamw(AdamConfig {
                weight_decay: 0.0,
                ..ADAM
            });
        }),
        ("clipped", |config| config.clip = Some(Clip::Norm(0.5))),
        ("clipped by value", |config| {
            config.clip = Some(Clip::Value(0.003))
        }),
        ("not clipped", |config| config.clip = Some(Clip::Norm(1e6))),
        ("scaled", |config| {
            config.loss_scale = LossScaling::Fixed(4096)
        }),
    ];
    for (what, change) in cases {
        assert_updates_agree(what, &Device::flex(), CrossEntropy::default(), change);
    }
    let smoothed = CrossEntropy {
        label_smoothing: 0.1,
    };
    let what = "smoothed, steps may be skipped";
    assert_updates_agree(what, &Device::flex(), smoothed, |config| {
        config.skips_non_finite = true;
    });
}

#[test]
fn results_come_a_step_late_in_order_and_none_is_lost() {
    let mut stepper = stepper(config(UpdateKind::Device), &Device::flex());
    let mut results = Vec::new();
    for (index, loaded) in steps().into_iter().enumerate() {
        results.push(stepper.step(index, loaded).unwrap().results);
    }
    results.push(stepper.wait().unwrap());
    assert!(results[0].is_none() && stepper.wait().unwrap().is_none());
    let results: Vec<StepResults> = results.into_iter().flatten().collect();
    let steps: Vec<u64> = results.iter().map(|results| results.step).collect();
    assert_eq!(steps, [0, 1, 2, 3, 4]);
    let scores = results.into_iter().map(|results| results.scores.unwrap());
    let losses: Vec<f32> = scores.map(|sums| sums.loss_mean() as f32).collect();
    let config = config(UpdateKind::Device);
    assert_eq!(
        losses,
        course(CrossEntropy::default(), config, &Device::flex(), NUM_STEPS)[4]
    );
}

#[test]
fn a_loss_that_is_not_finite_ends_the_run_at_the_next_step_and_names_its_own() {
    let mut stepper = stepper(config(UpdateKind::Device), &Device::flex());
    let mut steps = steps().into_iter();
    stepper
        .step(0, with_bad_pixel(steps.next().unwrap(), f32::NAN))
        .unwrap();
    let error = format!("{:#}", stepper.step(1, steps.next().unwrap()).unwrap_err());
    assert!(
        error.contains("step 1: non-finite loss") && error.contains("on rank 0"),
        "{error}"
    );
}

/// A thousand times the cross entropy. Its gradients overflow f16 at the largest loss scale.
#[derive(Debug)]
struct Steep;

impl Loss for Steep {
    fn sum(&self, logits: Tensor<2>, targets: Targets) -> Tensor<1> {
        CrossEntropy::default()
            .sum(logits, targets)
            .mul_scalar(1000)
    }
}

#[test]
fn a_gradient_that_overflows_is_named_before_anything_is_saved() {
    let config = StepConfig {
        loss_scale: LossScaling::Fixed(1 << 24),
        ..config(UpdateKind::Device)
    };
    let f16 = Computation {
        activations: Activations::F16,
        ..Computation::default()
    };
    let network = ResNetConfig::cifar(8).unwrap().with_computation(f16);
    let model = network.init(3, &Device::flex().autodiff());
    let mut stepper = StepperUnderTest::with_loss(
        Arc::new(Steep),
        model,
        config,
        Arc::new(SingleCommunicator::new()),
        &Device::flex(),
    );
    stepper.step(0, steps().swap_remove(0)).unwrap();
    let error = format!("{:#}", stepper.wait().unwrap_err());
    for part in [
        "step 1",
        "largest gradient, in",
        "fixed loss scale of 16777216",
        "--loss-scale dynamic",
    ] {
        assert!(error.contains(part), "{part} is not in: {error}");
    }
}

#[test]
fn a_skipped_step_leaves_no_trace() {
    let optimizers = [OptimizerChoice::Sgd(DECAYING), OptimizerChoice::Adamw(ADAM)];
    for (bad, optimizer) in [f32::NAN, f32::INFINITY]
        .into_iter()
        .flat_map(|bad| optimizers.map(|rule| (bad, rule)))
    {
        let config = StepConfig {
            skips_non_finite: true,
            optimizer,
            ..config(UpdateKind::Device)
        };
        let mut stepper = stepper(config, &Device::flex());
        let mut steps = steps().into_iter();
        let first = stepper.complete(0, steps.next().unwrap()).unwrap();
        let before = stepper.state();
        let second = stepper
            .complete(1, with_bad_pixel(steps.next().unwrap(), bad))
            .unwrap();
        assert!(
            matches!(&second.outcome, StepOutcome::Skipped(reason) if reason.contains("step 2")),
            "{second:?}"
        );
        assert_eq!(
            (stepper.state() == before, second.scores),
            (true, None),
            "{bad}"
        );
        let third = stepper.complete(2, steps.next().unwrap()).unwrap();
        assert_ne!(stepper.state(), before);
        let num_samples = [first, third].map(|results| results.scores.unwrap().num_samples);
        assert_eq!(num_samples, [8, 8]);
    }
}

/// Two epochs of three steps.
fn tiny(further: &str) -> TrainArgs {
    flags(&[
        TINY,
        "--shapes-train 24 --shapes-test 10 --global-batch-size 8",
        further,
    ])
}

#[test]
fn a_whole_run_has_the_records_of_the_host_and_goes_on_from_its_checkpoints_to_the_same_bits() {
    for options in [
        "",
        "--dtype f16",
        "--compress bf16",
        "--optimizer adamw --learning-rate 0.003",
    ] {
        let with = |more: &str| tiny(&format!("{options} {more}"));
        let device = run(
            1,
            &with("--update device --checkpoint-every-steps 2 --keep-checkpoints 99"),
        );
        let resumed = device
            .with_checkpoint_alone(2)
            .go(1, &with("--update device --resume"));
        assert_eq!(
            resumed.parameter_hash(),
            device.parameter_hash(),
            "{options}"
        );
        let (whole, resumed) = (device.last_record(), resumed.last_record());
        assert_eq!(
            (whole.train_loss, &whole.test),
            (resumed.train_loss, &resumed.test)
        );

        let host = run(1, &with("--update host")).last_record();
        let losses = [&whole, &host].map(|record| record.train_loss.unwrap());
        assert!((losses[0] / losses[1] - 1.0).abs() < 1e-2, "{losses:?}");
        assert_eq!((whole.step, whole.loss_scale), (host.step, host.loss_scale));
        // A resumed run may update elsewhere.
        device
            .with_checkpoint_alone(4)
            .go(1, &with("--update host --resume"));
    }
}

/// A network without kinks: at the kink of a rectifier a rounding error changes whole gradients.
#[derive(Module, Debug)]
pub(crate) struct Smooth {
    first: Param<Tensor<2>>,
    bias: Param<Tensor<1>>,
    second: Param<Tensor<2>>,
}

impl Smooth {
    pub(crate) fn new(device: &Device) -> Self {
        let device = device.clone().autodiff();
        let waves = |len: usize| {
            let values = (0..len).map(|index| 0.05 * (index as f32 * 0.7).sin());
            Tensor::<1>::from_data(TensorData::new(values.collect(), [len]), &device)
        };
        Self {
            first: Param::from_tensor(waves(3072 * 8).reshape([3072, 8])),
            bias: Param::from_tensor(waves(8)),
            second: Param::from_tensor(waves(80).reshape([8, 10])),
        }
    }
}

impl ImageClassifier for Smooth {
    fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let hidden = images.flatten::<2>(1, 3).matmul(self.first.val());
        (hidden + self.bias.val().unsqueeze())
            .tanh()
            .matmul(self.second.val())
    }
}

/// Four steps of four images per rank in two passes, a short step of three images, and two full
/// ones. Of four ranks one has no sample in the short step.
pub(crate) fn steps_of_rank(rank: usize, world_size: usize) -> Vec<LoadedStep> {
    let shard = ShardConfig {
        shard_index: rank,
        num_shards: world_size,
        ..one_shard(4 * 4 * world_size + 3, 4 * world_size)
    };
    let steps = crate::stepper_under_test::steps(shard, 2, Augment::None);
    [&steps[..], &steps[..2]].concat()
}

/// Trains on ranks that are threads. Asserts that all ranks have equal bits after every step.
/// Returns parameters and moments.
fn course_of_ranks(config: &StepConfig, device: &Device, world_size: usize) -> [Vec<f32>; 2] {
    let of_ranks = run_ranks(world_size, |communicator| {
        let communicator: Arc<dyn Communicator> = Arc::new(communicator);
        let rank = communicator.rank();
        let model = Smooth::new(device);
        let mut stepper = StepperUnderTest::new(model, config.clone(), communicator, device);
        let mut states = Vec::new();
        for (index, loaded) in steps_of_rank(rank, world_size).into_iter().enumerate() {
            stepper.step(index, loaded).unwrap();
            states.push(stepper.state());
        }
        stepper.wait().unwrap();
        let moments = stepper.optimizer_state().moments;
        (states, [stepper.parameters().to_vec(), moments])
    });
    let mut of_ranks = of_ranks.into_iter();
    let (states, values) = of_ranks.next().unwrap();
    assert!(of_ranks.all(|(other, _)| other == states), "ranks differ");
    values
}

#[test]
fn ranks_on_devices_have_equal_bits_after_each_step_and_train_as_in_main_memory() {
    type Change = fn(&mut StepConfig);
    let cases: [(&str, Change); 9] = [
        ("sgd", |_| {}),
        ("adamw, clipped", |config| {
            config.optimizer = OptimizerChoice::Adamw(ADAM);
            config.clip = Some(Clip::Norm(0.5));
        }),
        ("lars, decay of weights", |config| config.optimizer = LARS),
        ("lars with nesterov, no decay", |config| {
            config.optimizer = OptimizerChoice::Lars {
                sgd: SgdConfig {
                    nesterov: true,
                    weight_decay: 0.0,
                    ..DECAYING
                },
                trust_coefficient: 0.1,
            };
        }),
        ("lamb", |config| {
            config.optimizer = OptimizerChoice::Lamb(ADAM)
        }),
        ("lamb, decay of weights", |config| {
            config.optimizer = OptimizerChoice::Lamb(AdamConfig {
                decay_norm_and_bias: Some(false),
                ..ADAM
            });
        }),
        ("rates of parts", |config| {
            let factor = |part: &str, factor| RateFactor {
                part: part.to_owned(),
                factor,
            };
            config.rate_factors = vec![factor("first", 0.5), factor("second", 3.0)];
        }),
        ("scaled, clipped by value", |config| {
            config.loss_scale = LossScaling::Fixed(4096);
            config.clip = Some(Clip::Value(0.003));
        }),
        ("steps may be skipped", |config| {
            config.skips_non_finite = true;
        }),
    ];
    for (what, change) in cases {
        for world_size in [1, 2, 4] {
            let [host, on_device] = [UpdateKind::Host, UpdateKind::Device].map(|update| {
                let mut config = config(update);
                change(&mut config);
                course_of_ranks(&config, &Device::flex(), world_size)
            });
            for (index, name) in ["parameters", "moments"].into_iter().enumerate() {
                let what = format!("{what}, {world_size} ranks: {name}");
                assert_close(&what, [&host[index], &on_device[index]]);
            }
        }
    }
}

/// Largest difference of parameters and moments after sums in bf16, relative to the largest value:
/// a unit of bf16, 2^-8. In main memory a rank adds its own part unrounded.
const HALF_TOLERANCE: f64 = 4e-3;

/// A configuration with sums in bf16.
fn in_bf16(update: UpdateKind) -> StepConfig {
    let mut config = config(update);
    config.sync.method = SyncMethod::Allreduce {
        reduction: Some(ReductionChoice::Hierarchical),
        compression: Compression(CompressionKind::Bf16),
        compress_warmup_steps: 0,
    };
    config
}

#[test]
fn sums_in_bf16_have_equal_bits_on_all_ranks_and_train_as_in_main_memory() {
    for world_size in [1, 2, 4] {
        let course = |config| course_of_ranks(&config, &Device::flex(), world_size);
        let [host, on_device] = [UpdateKind::Host, UpdateKind::Device]
            .map(in_bf16)
            .map(course);
        // One rank rounds each value once in both places.
        let tolerance = if world_size == 1 {
            TOLERANCE
        } else {
            HALF_TOLERANCE
        };
        for (index, name) in ["parameters", "moments"].into_iter().enumerate() {
            let what = format!("bf16, {world_size} ranks: {name}");
            assert_close_by(tolerance, &what, [&host[index], &on_device[index]]);
        }
        assert_ne!(on_device, course(config(UpdateKind::Device)));
    }
    let traffic = on_two_ranks(&in_bf16(UpdateKind::Device), |_, stepper, steps| {
        for (index, loaded) in steps.into_iter().enumerate() {
            stepper.step(index, loaded).unwrap();
        }
        stepper.wait().unwrap();
        stepper.take_traffic().total
    });
    for traffic in traffic {
        let ratio = traffic.uncompressed_bytes as f64 / traffic.bytes_sent as f64;
        assert!((ratio - 2.0).abs() < 0.01, "{traffic:?}");
        let error = traffic.relative_error();
        assert!(error > 1e-4 && error < 4e-3, "{traffic:?}");
    }
}

/// Calls `act` with the stepper of each of two ranks that update on the device.
fn on_two_ranks<T: Send>(
    config: &StepConfig,
    act: impl Fn(usize, &mut StepperUnderTest, Vec<LoadedStep>) -> T + Send + Sync,
) -> Vec<T> {
    run_ranks(2, |communicator| {
        let communicator: Arc<dyn Communicator> = Arc::new(communicator);
        let rank = communicator.rank();
        let device = Device::flex();
        let mut stepper =
            StepperUnderTest::new(resnet8(&device), config.clone(), communicator, &device);
        act(rank, &mut stepper, steps_of_rank(rank, 2))
    })
}

#[test]
fn a_value_that_is_not_finite_on_one_rank_ends_all_ranks_at_the_same_step_and_names_the_rank() {
    let texts = on_two_ranks(&config(UpdateKind::Device), |rank, stepper, steps| {
        let mut steps = steps.into_iter();
        let mut first = steps.next().unwrap();
        if rank == 1 {
            first = with_bad_pixel(first, f32::NAN);
        }
        stepper.step(0, first).unwrap();
        format!("{:#}", stepper.step(1, steps.next().unwrap()).unwrap_err())
    });
    assert_eq!(texts[0], texts[1]);
    assert!(
        texts[0].contains("step 1: non-finite loss") && texts[0].contains("on rank 1"),
        "{}",
        texts[0]
    );
}

#[test]
fn a_step_that_is_not_finite_on_one_rank_is_skipped_on_all_without_a_trace() {
    for config in [config, in_bf16].map(|config| config(UpdateKind::Device)) {
        let skipping = StepConfig {
            skips_non_finite: true,
            ..config
        };
        skip_on_two_ranks(&skipping);
    }
}

fn skip_on_two_ranks(skipping: &StepConfig) {
    on_two_ranks(skipping, |rank, stepper, steps| {
        let mut steps = steps.into_iter();
        stepper.complete(0, steps.next().unwrap()).unwrap();
        let state = |stepper: &StepperUnderTest| (stepper.state(), stepper.reduction_state());
        let before = state(stepper);
        let mut second = steps.next().unwrap();
        if rank == 1 {
            second = with_bad_pixel(second, f32::INFINITY);
        }
        let second = stepper.complete(1, second).unwrap();
        assert!(
            matches!(&second.outcome, StepOutcome::Skipped(reason) if reason.contains("on rank 1")),
            "{second:?}"
        );
        assert_eq!((state(stepper) == before, second.scores), (true, None));
        let third = stepper.complete(2, steps.next().unwrap()).unwrap();
        assert_eq!(third.outcome, StepOutcome::Updated);
    });
}

#[test]
fn ranks_that_took_different_steps_end_together() {
    let texts = on_two_ranks(&config(UpdateKind::Device), |rank, stepper, mut steps| {
        // This step has three samples.
        let own = if rank == 1 { 4 } else { 0 };
        stepper.step(0, steps.swap_remove(own)).unwrap();
        stepper.wait().unwrap_err().to_string()
    });
    assert!(
        texts.iter().all(|text| text.contains("ranks diverged")),
        "{texts:?}"
    );
}

#[test]
fn ranks_on_devices_stop_together_and_resume_on_any_number_of_ranks_and_in_main_memory() {
    let on =
        |update: &str, more: &str| tiny(&format!("--learning-rate 0.01 --update {update} {more}"));
    let on_device = |more: &str| on("device", more);
    let whole = run(2, &on_device(""));
    let stopped = Run::in_new_directory()
        .stopping_on(1, 1)
        .go(2, &on_device(""));
    let steps = stopped.outcomes().iter();
    let steps: Vec<u64> = steps.map(|outcome| outcome.progress.step).collect();
    assert_eq!(steps, [2, 2], "a request comes a step late");
    let saved = stopped.with_checkpoint_alone(2);
    let resumed = stopped.again().go(2, &on_device("--resume"));
    assert_eq!(resumed.parameter_hash(), whole.parameter_hash());
    let loss = |run: &Run| run.last_record().test.unwrap().loss;
    let in_memory = saved
        .with_checkpoint_alone(2)
        .go(2, &on("host", "--resume"));
    let losses = [loss(&in_memory), loss(&whole)];
    assert!((losses[0] / losses[1] - 1.0).abs() < 1e-2, "{losses:?}");
    for world_size in [1, 4] {
        let copy = saved.with_checkpoint_alone(2);
        let resumed = copy.go(world_size, &on_device("--resume"));
        assert_eq!(resumed.last_record().step, 6);
    }
}

#[cfg(feature = "ndarray")]
#[allow(deprecated, reason = "burn calls its NdArray so")]
mod second_opinion {
    use super::*;

    #[test]
    fn steps_of_another_backend_agree_too() {
        let loss = CrossEntropy::default();
        assert_updates_agree("ndarray", &Device::ndarray(), loss, |_| {});
        assert!(trainer::config::DeviceChoice::built_in().contains(&"ndarray"));
    }
}
