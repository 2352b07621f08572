//! Captured steps equal the same steps launch by launch. The tests need a separate process (the
//! filter `captured`), because whole runs enable captures.

use std::sync::{Arc, Mutex};

use crate::scaled_on_device::{Narrow, dynamic_scale};
use crate::stepper_under_test::{State, StepperUnderTest, one_shard, with_bad_pixel};
use crate::update_on_device::{ADAM, DECAYING, LARS, assert_close_by, config};
use burn::tensor::{Device, DeviceKind};
use burn_resnet::{Activations, Computation, ResNetConfig};
use datasets::{Augment, ShardConfig};
use distributed::communicator::SingleCommunicator;
use distributed::{Communicator, run_ranks};
use trainer::config::{LossScaling, OptimizerChoice, UpdateKind};
use trainer::model::loss::{CrossEntropy, Loss};
use trainer::step::loss_scale::LossScale;
use trainer::step::{Clip, StepConfig, StepOutcome};

/// Largest difference of parameters, velocities and losses, relative to the largest value. Only
/// rounding may differ.
const TOLERANCE: f64 = 2e-5;

/// Held by a test, since the switches belong to the process.
static TURN: Mutex<()> = Mutex::new(());

fn captures(records: bool) {
    layers::backend::Switches {
        no_capture: !records,
        ..Default::default()
    }
    .apply();
}

/// Returns a software Vulkan or a GPU, if there is one.
fn device() -> Option<Device> {
    if burn_cubecl::CubeDevice::enumerate_all().is_empty() {
        eprintln!(
            "NOT CHECKED: recorded steps, for want of an adapter; Debian's mesa-vulkan-drivers brings a software Vulkan"
        );
        return None;
    }
    Some(Device::wgpu(DeviceKind::DefaultDevice))
}

/// A dynamic scale from the largest factor.
fn scaled(optimizer: OptimizerChoice) -> StepConfig {
    StepConfig {
        optimizer,
        loss_scale: LossScaling::Dynamic,
        skips_non_finite: true,
        ..config(UpdateKind::Device)
    }
}

/// Returns a stepper with a narrow loss if the scale is dynamic.
fn stepper(
    config: &StepConfig,
    activations: Activations,
    communicator: Arc<dyn Communicator>,
    device: &Device,
) -> StepperUnderTest {
    let is_scaled = config.loss_scale == LossScaling::Dynamic;
    let loss: Arc<dyn Loss> = match is_scaled {
        true => Arc::new(Narrow),
        false => Arc::new(CrossEntropy::default()),
    };
    let computation = Computation {
        activations,
        ..Computation::default()
    };
    let network = ResNetConfig::cifar(8)
        .unwrap()
        .with_computation(computation);
    let model = network.init(3, &device.clone().autodiff());
    let mut stepper =
        StepperUnderTest::with_loss(loss, model, config.clone(), communicator, device);
    if is_scaled {
        let (model, state) = (stepper.model().clone(), stepper.optimizer_state());
        let largest = Some(dynamic_scale(1 << 24, 0));
        stepper.restore(model, &state, largest).unwrap();
    }
    stepper
}

/// Parameters, moments, norm statistics and losses, then scale and skipped steps.
type Course = ([Vec<f32>; 4], LossScale, Vec<u64>);

fn course(config: &StepConfig, activations: Activations, device: &Device, records: bool) -> Course {
    captures(records);
    let one = Arc::new(SingleCommunicator::new());
    let mut stepper = stepper(config, activations, one, device);
    let of = |num_samples, batch| {
        crate::stepper_under_test::steps(one_shard(num_samples, batch), batch, Augment::None)
    };
    // The batches are five full ones and a short one, twice, then batches of another size. They are
    // small, as a CPU runs the kernels.
    let steps = [of(5 * 4 + 3, 4), of(5 * 4 + 3, 4), of(5 * 2, 2)].concat();
    let mut results = Vec::new();
    for (index, mut loaded) in steps.into_iter().enumerate() {
        if index == 9 && config.skips_non_finite {
            loaded = with_bad_pixel(loaded, f32::NAN);
        }
        let end = stepper
            .step_at([0.002, 0.004, 0.001][index % 3], index, loaded)
            .unwrap();
        results.extend(end.results);
        if index % 4 == 1 {
            results.extend(stepper.wait().unwrap());
        }
    }
    assert_eq!(stepper.gradient_route().contains("recording"), records);
    results.extend(stepper.wait().unwrap());
    let skipped = results.iter();
    let skipped = skipped.filter(|results| results.outcome != StepOutcome::Updated);
    let skipped = skipped.map(|results| results.step).collect();
    let scores = results.iter().filter_map(|results| results.scores.as_ref());
    let losses = scores.map(|sums| sums.loss_sum as f32).collect();
    let values = [
        stepper.parameters().to_vec(),
        stepper.optimizer_state().moments,
        stepper.norm_statistics(),
        losses,
    ];
    (values, stepper.loss_scale(), skipped)
}

#[test]
fn a_recorded_step_is_that_step_at_any_rate_with_others_and_other_sizes_between() {
    let _turn = TURN.lock();
    let Some(device) = device() else { return };
    let [sgd, adamw] = [OptimizerChoice::Sgd(DECAYING), OptimizerChoice::Adamw(ADAM)];
    let plain = |optimizer| StepConfig {
        optimizer,
        ..config(UpdateKind::Device)
    };
    for (config, activations) in [
        (plain(sgd), Activations::F32),
        (plain(adamw), Activations::F32),
        (scaled(adamw), Activations::F32),
        (scaled(sgd), Activations::F16),
    ] {
        let optimizer = config.optimizer;
        let [
            (plain, scale, skipped),
            (recorded, other_scale, others_skipped),
        ] = [false, true].map(|records| course(&config, activations, &device, records));
        assert_eq!((scale, &skipped), (other_scale, &others_skipped));
        // Launch by launch, in a replay, and in a replay with a loss that is not finite.
        let expected = [0, 3, 9].map(|step| config.skips_non_finite.then_some(step));
        let expected: Vec<u64> = expected.into_iter().flatten().collect();
        assert!(
            expected.iter().all(|step| skipped.contains(step)) && skipped.len() < 9,
            "{optimizer:?}: {skipped:?}"
        );
        for (index, name) in ["parameters", "moments", "norm statistics", "losses"]
            .into_iter()
            .enumerate()
        {
            assert_close_by(
                TOLERANCE,
                &format!("{optimizer:?}: {name}"),
                [&plain[index], &recorded[index]],
            );
        }
    }
}

/// Returns the bits of two ranks that train on one device, after each step.
fn course_of_two(config: &StepConfig, device: &Device, records: bool) -> Vec<Vec<State>> {
    captures(records);
    run_ranks(2, |communicator| {
        let communicator: Arc<dyn Communicator> = Arc::new(communicator);
        let rank = communicator.rank();
        let mut stepper = stepper(config, Activations::F32, communicator, device);
        // In the short last step of an epoch rank 0 has no sample.
        let shard = ShardConfig {
            shard_index: rank,
            num_shards: 2,
            ..one_shard(6 * 4 + 1, 4)
        };
        let epoch = crate::stepper_under_test::steps(shard, 2, Augment::None);
        let steps = [epoch.clone(), epoch].concat();
        let states = steps.into_iter().enumerate().map(|(index, loaded)| {
            stepper.step(index, loaded).unwrap();
            stepper.wait().unwrap();
            stepper.state()
        });
        let states: Vec<State> = states.collect();
        assert_eq!(stepper.gradient_route().contains("recordings"), records);
        states
    })
}

#[test]
fn recorded_steps_of_two_ranks_are_those_steps_and_have_equal_bits_on_both() {
    let _turn = TURN.lock();
    let Some(device) = device() else { return };
    let sgd = OptimizerChoice::Sgd(DECAYING);
    let clipped = StepConfig {
        optimizer: LARS,
        clip: Some(Clip::Norm(0.5)),
        ..config(UpdateKind::Device)
    };
    for config in [
        StepConfig {
            optimizer: sgd,
            ..config(UpdateKind::Device)
        },
        clipped,
        scaled(sgd),
    ] {
        let optimizer = config.optimizer;
        let [plain, recorded] =
            [false, true].map(|records| course_of_two(&config, &device, records));
        for of_ranks in [&plain, &recorded] {
            for (step, (one, other)) in of_ranks[0].iter().zip(&of_ranks[1]).enumerate() {
                // Norm statistics are those of each rank.
                assert_eq!(one.0[..2], other.0[..2], "step {step}");
            }
        }
        let floats = |states: &[State], place: usize| -> Vec<f32> {
            let bits = states.last().unwrap().0[place].iter();
            bits.map(|bits| f32::from_bits(*bits)).collect()
        };
        for (place, name) in ["parameters", "moments", "norm statistics"]
            .into_iter()
            .enumerate()
        {
            let of = |course: &[Vec<State>]| floats(&course[1], place);
            assert_close_by(
                TOLERANCE,
                &format!("{optimizer:?}: {name}"),
                [&of(&plain), &of(&recorded)],
            );
        }
    }
}
