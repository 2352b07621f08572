//! Training with updates on the device equals training with updates on the host and loses no
//! result.

use std::sync::Arc;

use crate::fixture::{TINY, flags, run};
use crate::stepper_under_test::{
    SGD, StepperUnderTest, one_shard, resnet8, step_config, with_bad_pixel,
};
use burn::tensor::{Device, Tensor};
use burn_resnet::{Activations, Computation, ResNetConfig};
use datasets::{Augment, LoadedStep, Targets};
use distributed::communicator::SingleCommunicator;
use distributed::replica::{ParameterLayout, read};
use trainer::config::cli::TrainArgs;
use trainer::config::{
    AdamConfig, LossScaling, OptimizerChoice, SgdConfig, SyncSection, UpdateKind,
};
use trainer::model::loss::{CrossEntropy, Loss};
use trainer::step::OptimizerState;
use trainer::step::{Clip, StepConfig, StepOutcome};

const NUM_STEPS: usize = 5;

/// Largest difference of parameters, velocities and losses, relative to the largest value. Only
/// rounding may differ.
const TOLERANCE: f64 = 2e-5;

const DECAYING: SgdConfig = SgdConfig {
    weight_decay: 1e-2,
    ..SGD
};

/// An epsilon far above rounding errors. A rounding error would otherwise determine a step's sign.
const ADAM: AdamConfig = AdamConfig {
    beta1: 0.9,
    beta2: 0.99,
    epsilon: 1e-3,
    weight_decay: 0.01,
    decay_norm_and_bias: Some(true),
};

/// Five steps of eight images in micro-batches of three.
fn steps() -> Vec<LoadedStep> {
    crate::stepper_under_test::steps(one_shard(8 * NUM_STEPS, 8), 3, Augment::None)
}

fn config(update: UpdateKind) -> StepConfig {
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
            let end = stepper.step(index, loaded).unwrap();
            let sums = stepper.wait().unwrap().xor(end.scores).unwrap();
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

fn assert_close(what: &str, [host, device]: [&[f32]; 2]) {
    assert_eq!(host.len(), device.len());
    let largest = host
        .iter()
        .fold(0.0f32, |largest, value| largest.max(value.abs()));
    let off = host
        .iter()
        .zip(device)
        .fold(0.0f32, |off, (host, device)| off.max((host - device).abs()));
    assert!(
        largest > 0.0 && f64::from(off / largest) < TOLERANCE,
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
    let what = "smoothed, checked before the update";
    assert_updates_agree(what, &Device::flex(), smoothed, |config| {
        config.skips_non_finite = true;
    });
}

#[test]
fn results_come_a_step_late_in_order_and_none_is_lost() {
    let mut stepper = stepper(config(UpdateKind::Device), &Device::flex());
    let mut sums = Vec::new();
    for (index, loaded) in steps().into_iter().enumerate() {
        sums.push(stepper.step(index, loaded).unwrap().scores);
    }
    sums.push(stepper.wait().unwrap());
    assert_eq!((&sums[0], stepper.wait().unwrap()), (&None, None));
    let losses: Vec<f32> = sums[1..]
        .iter()
        .map(|sums| sums.as_ref().unwrap().loss_mean() as f32)
        .collect();
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
        let first = stepper.step(0, steps.next().unwrap()).unwrap();
        let before = stepper.state();
        let end = stepper
            .step(1, with_bad_pixel(steps.next().unwrap(), bad))
            .unwrap();
        assert!(
            matches!(&end.outcome, StepOutcome::Skipped(reason) if reason.contains("step 2")),
            "{end:?}"
        );
        assert_eq!(
            (stepper.state() == before, end.scores),
            (true, None),
            "{bad}"
        );
        let third = stepper.step(2, steps.next().unwrap()).unwrap();
        assert_ne!(stepper.state(), before);
        let num_samples = [first, third].map(|end| end.scores.unwrap().num_samples);
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
    for options in ["", "--dtype f16", "--optimizer adamw --learning-rate 0.003"] {
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

#[test]
fn ranks_that_meet_others_do_so_in_main_memory() {
    let hash = |world_size, options: &str| run(world_size, &tiny(options)).parameter_hash();
    for (world_size, options) in [
        (2, ""),
        (1, "--reduction exact"),
        (1, "--compress bf16"),
        (1, "--sync local-sgd"),
    ] {
        let on_device = format!("{options} --update device");
        assert_eq!(
            hash(world_size, options),
            hash(world_size, &on_device),
            "{world_size} ranks {options}"
        );
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

/// Tests for a separate process (the filter `captured`), because whole runs enable captures.
#[cfg(feature = "wgpu")]
mod captured {
    use super::*;
    use burn::tensor::DeviceKind;

    /// Parameters, moments, norm statistics and losses.
    fn course(optimizer: OptimizerChoice, device: &Device, records: bool) -> [Vec<f32>; 4] {
        layers::backend::Switches {
            no_capture: !records,
            ..Default::default()
        }
        .apply();
        let config = StepConfig {
            optimizer,
            ..config(UpdateKind::Device)
        };
        let mut stepper = stepper(config, device);
        let of = |num_samples, batch| {
            crate::stepper_under_test::steps(one_shard(num_samples, batch), batch, Augment::None)
        };
        // The batches are five full ones and a short one, twice, then batches of another size.
        let steps = [of(5 * 8 + 3, 8), of(5 * 8 + 3, 8), of(5 * 4, 4)].concat();
        let mut losses = Vec::new();
        for (index, loaded) in steps.into_iter().enumerate() {
            let end = stepper
                .step_at([0.002, 0.004, 0.001][index % 3], index, loaded)
                .unwrap();
            let waited = if index % 4 == 1 {
                stepper.wait().unwrap()
            } else {
                None
            };
            losses.extend(
                [end.scores, waited]
                    .into_iter()
                    .flatten()
                    .map(|sums| sums.loss_sum as f32),
            );
        }
        assert_eq!(stepper.gradient_route().contains("recording"), records);
        losses.extend(stepper.wait().unwrap().map(|sums| sums.loss_sum as f32));
        [
            stepper.parameters().to_vec(),
            stepper.optimizer_state().moments,
            stepper.norm_statistics(),
            losses,
        ]
    }

    #[test]
    fn a_recorded_step_is_that_step_at_any_rate_with_others_and_other_sizes_between() {
        if burn_cubecl::CubeDevice::enumerate_all().is_empty() {
            eprintln!(
                "NOT CHECKED: recorded steps, for want of an adapter; Debian's mesa-vulkan-drivers brings a software Vulkan"
            );
            return;
        }
        let device = Device::wgpu(DeviceKind::DefaultDevice);
        for optimizer in [OptimizerChoice::Sgd(DECAYING), OptimizerChoice::Adamw(ADAM)] {
            let [plain, recorded] =
                [false, true].map(|records| course(optimizer, &device, records));
            for (index, name) in ["parameters", "moments", "norm statistics", "losses"]
                .into_iter()
                .enumerate()
            {
                assert_close(
                    &format!("{optimizer:?}: {name}"),
                    [&plain[index], &recorded[index]],
                );
            }
        }
    }
}
