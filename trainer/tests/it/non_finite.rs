//! Steps whose loss or gradient is not finite. All ranks skip such steps.

use std::sync::Arc;

use crate::fixture::flags;
use crate::stepper_under_test::{
    OTHER_OPTIMIZERS, State, StepperUnderTest, one_shard, resnet8, step_config, steps,
    with_bad_pixel,
};
use burn::tensor::Device;
use datasets::{Augment, ShardConfig};
use distributed::{Communicator, run_ranks};
use trainer::config::{OptimizerChoice, SyncSection, TrainConfig};
use trainer::step::{Clip, StepConfig, StepOutcome};

const NUM_STEPS: usize = 4;

/// Returns the synchronisation settings of two ranks with these flags.
fn sync(options: &str) -> SyncSection {
    TrainConfig::resolve(&flags(&["--model resnet8 --bucket-mib 0.02", options]), 2)
        .unwrap()
        .sync
        .clone()
}

/// Runs the steps and returns the state of both ranks. Step `broken` has a bad pixel on rank 1, and
/// step `left_out` is omitted.
fn train(sync: &SyncSection, broken: Option<(usize, f32)>, left_out: Option<usize>) -> Vec<State> {
    train_by(
        &StepConfig {
            sync: sync.clone(),
            ..step_config()
        },
        broken,
        left_out,
    )
}

/// Runs like [`train`], with other step settings.
fn train_by(how: &StepConfig, broken: Option<(usize, f32)>, left_out: Option<usize>) -> Vec<State> {
    let num_shards = how.sync.method.virtual_shards().unwrap_or(2);
    run_ranks(2, |communicator| {
        let communicator: Arc<dyn Communicator> = Arc::new(communicator);
        let rank = communicator.rank();
        let config = StepConfig {
            skips_non_finite: true,
            ..how.clone()
        };
        let mut stepper = StepperUnderTest::new(
            resnet8(&Device::flex()),
            config,
            communicator,
            &Device::flex(),
        );
        let num_own_shards = num_shards / 2;
        let shard = ShardConfig {
            shard_index: rank * num_own_shards,
            num_shards,
            num_own_shards,
            ..one_shard(8 * NUM_STEPS, 8)
        };
        for (step, mut loaded) in steps(shard, 8 / num_shards, Augment::None)
            .into_iter()
            .enumerate()
        {
            if left_out == Some(step) {
                continue;
            }
            let breaks = broken.filter(|(broken, _)| *broken == step);
            if let (Some((_, value)), 1) = (breaks, rank) {
                loaded = with_bad_pixel(loaded, value);
            }
            let results = stepper.complete(step, loaded).unwrap();
            match results.outcome {
                StepOutcome::Skipped(reason) if breaks.is_some() => {
                    assert!(
                        reason.contains(&format!("step {}", step + 1))
                            && reason.contains("on rank 1"),
                        "{reason}"
                    );
                    assert_eq!(results.scores, None, "a step that is not made has no score");
                }
                outcome => assert_eq!((outcome, breaks), (StepOutcome::Updated, None)),
            }
        }
        stepper.state()
    })
}

#[test]
fn a_skipped_step_leaves_no_trace_on_any_rank() {
    for options in [
        "",
        "--overlap off",
        "--reduction ring",
        "--reduction exact --virtual-shards 4 --global-batch-size 8",
        "--compress bf16",
        "--compress f16",
        "--compress powersgd:2 --compress-warmup-steps 0",
        "--compress topk:5 --compress-warmup-steps 0",
    ] {
        let sync = sync(options);
        let expected = train(&sync, None, Some(1));
        assert_ne!(expected, train(&sync, None, None), "the step matters");
        for bad in [f32::NAN, f32::INFINITY] {
            assert_eq!(
                train(&sync, Some((1, bad)), None),
                expected,
                "{options:?} {bad}"
            );
        }
    }
}

#[test]
fn a_skipped_step_leaves_no_trace_in_any_optimizer_and_does_not_count_as_an_update() {
    for optimizer in OTHER_OPTIMIZERS {
        for clip in [None, Some(Clip::Norm(0.5)), Some(Clip::Value(0.01))] {
            let how = StepConfig {
                optimizer,
                clip,
                ..step_config()
            };
            let expected = train_by(&how, None, Some(1));
            assert_ne!(expected, train_by(&how, None, None), "the step matters");
            assert_eq!(
                train_by(&how, Some((1, f32::NAN)), None),
                expected,
                "{optimizer:?}"
            );
            let counts = !matches!(optimizer, OptimizerChoice::Lars { .. });
            assert_eq!(expected[0].1, counts.then_some(NUM_STEPS as u64 - 1));
        }
    }
}

#[test]
fn a_first_and_a_last_step_can_be_skipped_too() {
    let sync = sync("");
    for step in [0, NUM_STEPS - 1] {
        assert_eq!(
            train(&sync, Some((step, f32::NAN)), None),
            train(&sync, None, Some(step)),
            "step {step}"
        );
    }
}
