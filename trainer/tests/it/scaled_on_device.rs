//! A dynamic loss scale on devices equals that in main memory, on thread-ranks.

use std::ops::Range;
use std::sync::Arc;

use crate::stepper_under_test::{StepperUnderTest, with_bad_pixel};
use crate::update_on_device::{ADAM, DECAYING, Smooth, assert_close, config, steps_of_rank};
use burn::tensor::{Device, Tensor};
use datasets::Targets;
use distributed::{Communicator, run_ranks};
use trainer::config::{LossScaling, OptimizerChoice, UpdateKind};
use trainer::model::loss::{CrossEntropy, Loss};
use trainer::step::loss_scale::LossScale;
use trainer::step::{OptimizerState, StepConfig, StepOutcome};

/// The cross entropy with the range of a narrow format: its gradient overflows if the loss scale
/// divided by the samples of a step is 2^18 or more. Below, every bit is that of the cross entropy.
#[derive(Debug)]
pub(crate) struct Narrow;

impl Loss for Narrow {
    fn sum(&self, logits: Tensor<2>, targets: Targets) -> Tensor<1> {
        let power = 2.0_f64.powi(110);
        let loss = CrossEntropy::default().sum(logits, targets);
        loss.mul_scalar(1.0 / power).mul_scalar(power)
    }

    fn is_recordable(&self) -> bool {
        true
    }
}

/// Returns a dynamic scale as a checkpoint has it.
pub(crate) fn dynamic_scale(factor: u32, num_good_steps: u32) -> LossScale {
    let text = format!(
        r#"{{"is_dynamic":true,"factor":{factor},"num_good_steps":{num_good_steps},"num_overflows":0}}"#
    );
    serde_json::from_str(&text).unwrap()
}

/// Outcomes of the steps without their reasons, the last scale, then the state of a course.
type Scaled = (
    Vec<Option<LossScale>>,
    LossScale,
    [Vec<f32>; 2],
    Option<u64>,
);

/// Trains on ranks that are threads, from the largest scale. One step's loss is not finite. In the
/// middle, training continues in other steppers, a few steps before the scale doubles.
fn scaled_course(optimizer: OptimizerChoice, update: UpdateKind, world_size: usize) -> Scaled {
    let config = StepConfig {
        optimizer,
        loss_scale: LossScaling::Dynamic,
        skips_non_finite: true,
        ..config(update)
    };
    let of_ranks = run_ranks(world_size, |communicator| {
        let communicator: Arc<dyn Communicator> = Arc::new(communicator);
        let rank = communicator.rank();
        let device = Device::flex();
        let make = || {
            let (config, communicator) = (config.clone(), Arc::clone(&communicator));
            let model = Smooth::new(&device);
            StepperUnderTest::with_loss(Arc::new(Narrow), model, config, communicator, &device)
        };
        let restored = |model: Smooth, state: &OptimizerState, scale: LossScale| {
            let mut stepper = make();
            stepper.restore(model, state, Some(scale)).unwrap();
            stepper
        };
        let first = make();
        let (model, state) = (first.model().clone(), first.optimizer_state());
        let mut stepper = restored(model, &state, dynamic_scale(1 << 24, 0));
        let steps = [(); 2].map(|()| steps_of_rank(rank, world_size)).concat();
        let mut results = Vec::new();
        for (index, mut loaded) in steps.into_iter().enumerate() {
            if index == 6 && rank == world_size - 1 {
                loaded = with_bad_pixel(loaded, f32::NAN);
            }
            if index == 8 {
                results.extend(stepper.wait().unwrap());
                let scale = dynamic_scale(stepper.loss_scale().factor(), 1998);
                let (model, state) = (stepper.model().clone(), stepper.optimizer_state());
                stepper = restored(model, &state, scale);
            }
            results.extend(stepper.step(index, loaded).unwrap().results);
        }
        results.extend(stepper.wait().unwrap());
        let steps: Vec<u64> = results.iter().map(|results| results.step).collect();
        assert_eq!(steps, (0..14).collect::<Vec<u64>>());
        let outcomes = results.into_iter().map(|results| match results.outcome {
            StepOutcome::Updated => None,
            StepOutcome::Skipped(reason) => {
                assert!(reason.contains("step 7: non-finite loss"), "{reason}");
                Some(LossScale::default())
            }
            StepOutcome::Overflowed(scale) => Some(scale),
        });
        let OptimizerState {
            moments,
            num_updates,
            ..
        } = stepper.optimizer_state();
        let values = [stepper.parameters().to_vec(), moments];
        let scale = stepper.loss_scale();
        (outcomes.collect(), scale, values, num_updates)
    });
    let mut of_ranks: Vec<Scaled> = of_ranks;
    let first = of_ranks.swap_remove(0);
    assert!(of_ranks.iter().all(|other| *other == first), "ranks differ");
    first
}

#[test]
fn a_dynamic_scale_on_devices_skips_the_steps_and_has_the_factors_of_main_memory() {
    for optimizer in [OptimizerChoice::Sgd(DECAYING), OptimizerChoice::Adamw(ADAM)] {
        for world_size in [1, 2, 4] {
            let [host, device] = [UpdateKind::Host, UpdateKind::Device]
                .map(|update| scaled_course(optimizer, update, world_size));
            let what = format!("{optimizer:?}, {world_size} ranks");
            assert_eq!(
                (&host.0, host.1, host.3),
                (&device.0, device.1, device.3),
                "{what}"
            );
            for values in [0, 1] {
                assert_close(&what, [&host.2[values], &device.2[values]]);
            }
            // At the start, where a step is short, and where the scale has doubled.
            let overflowed = |steps: Range<usize>| {
                let scales = host.0[steps].iter().flatten();
                scales.filter(|scale| scale.is_dynamic()).count()
            };
            assert!(overflowed(0..5) > 2 && host.0[7].is_none(), "{what}");
            assert_eq!(host.0[6], Some(LossScale::default()), "{what}");
            assert!(overflowed(8..14) > 0, "{what}: {:?}", host.0);
        }
    }
}
