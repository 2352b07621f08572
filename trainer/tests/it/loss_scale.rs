//! Training with a loss scale, in f32 and f16, on thread-ranks.

use std::sync::Arc;

use crate::fixture::{Run, TINY, flags, run};
use crate::stepper_under_test::{StepperUnderTest, one_shard, step_config, with_bad_pixel};
use burn::tensor::Device;
use burn_resnet::{Activations, Computation, ResNetConfig};
use datasets::{Augment, LoadedStep, ShardConfig};
use distributed::{Communicator, run_ranks};
use trainer::config::cli::TrainArgs;
use trainer::config::{LossScaling, SyncSection, UpdateKind};
use trainer::run::checkpoint::Checkpoint;
use trainer::step::loss_scale::LossScale;
use trainer::step::{StepConfig, StepOutcome};

/// Two epochs of three steps.
fn tiny(further: &str) -> TrainArgs {
    flags(&[
        TINY,
        "--shapes-train 24 --shapes-test 10 --global-batch-size 8",
        further,
    ])
}

#[test]
fn a_fixed_scale_in_f32_changes_no_bit_of_the_parameters() {
    for with in [
        "",
        "--clip-grad-norm 0.5",
        "--reduction exact",
        "--compress topk:10",
    ] {
        let hash = |scale| run(2, &tiny(&format!("{with} --loss-scale {scale}"))).parameter_hash();
        assert_eq!(hash("4096"), hash("none"), "{with}");
    }
}

#[test]
fn a_network_in_f16_learns_a_batch_by_heart() {
    let one_batch = "--shapes-train 16 --shapes-test 16 --global-batch-size 16 --epochs 25 --eval-every-epochs 25";
    let plain = "--learning-rate 0.05 --schedule constant --warmup-epochs 0 --checkpoint-every-epochs 25 --dtype f16";
    let record = run(1, &flags(&[TINY, one_batch, plain])).last_record();
    assert!(record.train_loss.unwrap() < 0.2, "{:?}", record.train_loss);
    assert!(
        record.loss_scale.is_some_and(|scale| scale > 1),
        "{:?}",
        record.loss_scale
    );
}

#[test]
fn a_resumed_run_in_f16_ends_with_the_bits_and_the_scale_of_an_undisturbed_one() {
    let whole = run(
        2,
        &tiny("--dtype f16 --checkpoint-every-steps 2 --keep-checkpoints 99"),
    );
    let copy = whole.with_checkpoint_alone(2);
    let saved = Checkpoint::open(&copy.directory().join("checkpoints/step-00000002"))
        .unwrap()
        .state
        .loss_scale;
    assert!(saved.is_dynamic());
    assert_ne!(
        saved,
        LossScale::new(LossScaling::Dynamic),
        "it has counted"
    );
    let resumed = copy.go(2, &tiny("--dtype f16 --resume"));
    assert_eq!(resumed.parameter_hash(), whole.parameter_hash());
    let (resumed, whole) = (resumed.last_record(), whole.last_record());
    assert_eq!(
        (resumed.loss_scale, resumed.overflowed_steps),
        (whole.loss_scale, whole.overflowed_steps)
    );
    assert_eq!(resumed.test, whole.test);
}

/// A scale at which every gradient overflows f16, so that every step is skipped.
const OVERFLOWS: &str =
    "--shapes-train 24 --global-batch-size 2 --dtype f16 --loss-scale 16777216 --epochs 1";

#[test]
fn steps_that_are_left_out_leave_the_error_of_a_compression_a_number_and_a_stop_ends_them() {
    for compress in [
        "bf16",
        "f16",
        "powersgd:2 --compress-warmup-steps 0",
        "topk:5 --compress-warmup-steps 0",
    ] {
        let skip = format!("--on-non-finite skip --max-skipped-steps 1000 --compress {compress}");
        let left_out = run(2, &flags(&[TINY, OVERFLOWS, &skip]));
        let record = left_out.last_record();
        assert!(
            record.skipped_steps > 0 && record.compression_error.is_finite(),
            "{compress}: {record:?}"
        );
        let stopped = Run::in_new_directory()
            .stopping_on(1, 3)
            .go(2, &flags(&[TINY, OVERFLOWS, &skip]));
        let outcomes = stopped.outcomes();
        assert!(
            outcomes
                .iter()
                .all(|outcome| outcome.stopped_early && outcome.progress.step < 6),
            "{compress}"
        );
    }
}

#[test]
fn no_checkpoint_has_parameters_that_asynchronous_servers_made_of_gradients_that_are_not_finite() {
    let run = Run::in_new_directory();
    let asynchronous = "--sync async-parameter-server --checkpoint-every-steps 1";
    let error = run
        .again()
        .try_go(2, &flags(&[TINY, OVERFLOWS, asynchronous]))
        .unwrap_err();
    assert!(
        format!("{error:#}").contains("expected finite parameters on the servers"),
        "{error:#}"
    );
    let checkpoints = std::fs::read_dir(run.directory().join("checkpoints"));
    assert!(checkpoints.map_or(0, Iterator::count) == 0);
}

const NUM_STEPS: usize = 12;

/// Returns steps with one sample for each of two ranks.
fn steps(rank: usize) -> Vec<LoadedStep> {
    let shard = ShardConfig {
        shard_index: rank,
        num_shards: 2,
        ..one_shard(2 * NUM_STEPS, 2)
    };
    crate::stepper_under_test::steps(shard, 1, Augment::None)
}

fn stepper(
    communicator: Arc<dyn Communicator>,
    loss_scale: LossScaling,
    update: UpdateKind,
) -> StepperUnderTest {
    let f16 = Computation {
        activations: Activations::F16,
        ..Computation::default()
    };
    let network = ResNetConfig::cifar(8).unwrap().with_computation(f16);
    let model = network.init(3, &Device::flex().autodiff());
    StepperUnderTest::new(
        model,
        StepConfig {
            loss_scale,
            sync: SyncSection {
                update,
                ..SyncSection::default()
            },
            ..step_config()
        },
        communicator,
        &Device::flex(),
    )
}

#[test]
fn an_overflow_is_left_out_on_all_ranks_the_scale_halves_and_training_goes_on() {
    let [host, device] = [UpdateKind::Host, UpdateKind::Device].map(overflows_from_the_largest);
    assert_eq!(host, device);
}

/// Trains two ranks. Returns the steps that overflowed and the last scale.
fn overflows_from_the_largest(update: UpdateKind) -> (Vec<bool>, LossScale) {
    let mut ranks = run_ranks(2, |communicator| {
        let communicator: Arc<dyn Communicator> = Arc::new(communicator);
        let rank = communicator.rank();
        let mut stepper = stepper(communicator, LossScaling::Dynamic, update);
        // The largest possible scale, at which every gradient overflows f16.
        let largest =
            r#"{"is_dynamic":true,"factor":16777216,"num_good_steps":0,"num_overflows":0}"#;
        let (model, state) = (stepper.model().clone(), stepper.optimizer_state());
        stepper
            .restore(model, &state, Some(serde_json::from_str(largest).unwrap()))
            .unwrap();
        let mut overflows = Vec::new();
        for (index, loaded) in steps(rank).into_iter().enumerate() {
            let (before, scale) = (stepper.state(), stepper.loss_scale().factor());
            let results = stepper.complete(index, loaded).unwrap();
            let overflowed = results.outcome == StepOutcome::Overflowed(stepper.loss_scale());
            assert!(
                overflowed || results.outcome == StepOutcome::Updated,
                "{results:?}"
            );
            let scores = results.scores.unwrap();
            assert_eq!(scores.num_samples, 1, "the loss of every step counts");
            assert!(scores.loss_sum.is_finite());
            assert_eq!(stepper.state() == before, overflowed, "step {index}");
            assert_eq!(
                stepper.loss_scale().factor(),
                if overflowed { scale / 2 } else { scale }
            );
            overflows.push(overflowed);
        }
        let parameters: Vec<u32> = stepper
            .parameters()
            .iter()
            .map(|value| value.to_bits())
            .collect();
        (overflows, stepper.loss_scale(), parameters)
    });
    assert_eq!(ranks[0], ranks[1]);
    let (overflows, scale, _) = ranks.swap_remove(0);
    assert!(overflows[0] && !overflows[NUM_STEPS - 1], "{overflows:?}");
    assert_eq!(
        scale.num_overflows(),
        overflows.iter().filter(|overflowed| **overflowed).count() as u64
    );
    (overflows, scale)
}

#[test]
fn an_overflow_at_a_fixed_scale_and_a_loss_that_is_not_finite_end_the_run() {
    let fixed = (
        LossScaling::Fixed(1 << 24),
        0.5,
        &[
            "step 1",
            "largest gradient, in",
            "fixed loss scale of 16777216",
            "--loss-scale dynamic",
        ][..],
    );
    let dynamic = (
        LossScaling::Dynamic,
        f32::NAN,
        &["step 1", "loss is NaN there"][..],
    );
    let cases = [fixed, dynamic].into_iter();
    let updates = [UpdateKind::Host, UpdateKind::Device];
    for ((scaling, pixel, parts), update) in cases.flat_map(|case| updates.map(|at| (case, at))) {
        let errors = run_ranks(2, |communicator| {
            let communicator: Arc<dyn Communicator> = Arc::new(communicator);
            let loaded = with_bad_pixel(steps(communicator.rank()).swap_remove(0), pixel);
            let mut stepper = stepper(communicator, scaling, update);
            let error = stepper.complete(0, loaded).unwrap_err();
            assert_eq!(stepper.loss_scale(), LossScale::new(scaling));
            format!("{error:#}")
        });
        for error in errors {
            for part in parts {
                assert!(error.contains(part), "{part} is not in: {error}");
            }
        }
    }
}
