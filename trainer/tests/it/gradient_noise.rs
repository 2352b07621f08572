//! `--gradient-noise` on thread-ranks: estimates from buckets equal estimates from whole gradients.

use std::fs;
use std::sync::Arc;

use burn::tensor::Device;
use datasets::{Augment, LoadedStep, ShardConfig};
use distributed::communicator::SingleCommunicator;
use distributed::{Communicator, run_ranks};
use trainer::config::{OptimizerChoice, SgdConfig};
use trainer::step::StepConfig;
use trainer::step::gradient_noise::NoiseBatches;

use crate::fixture::{TINY, flags, run, runs_of};
use crate::stepper_under_test::{SGD, StepperUnderTest, one_shard, resnet8, step_config, steps};

const BATCHES: NoiseBatches = NoiseBatches {
    small: 6,
    large: 24,
};

/// Relative error of an f64 sum of a hundred thousand squares of f32 gradients.
const TOLERANCE: f64 = 1e-5;

/// Returns a stepper whose velocities after one step equal the gradient.
fn stepper(communicator: Arc<dyn Communicator>) -> StepperUnderTest {
    let optimizer = OptimizerChoice::Sgd(SgdConfig {
        weight_decay: 0.0,
        ..SGD
    });
    let config = StepConfig {
        optimizer,
        gradient_noise: Some(BATCHES),
        ..step_config()
    };
    StepperUnderTest::new(
        resnet8(&Device::flex()),
        config,
        communicator,
        &Device::flex(),
    )
}

/// Returns a step of a whole batch and a step of a partial batch. Each of the two ranks has two
/// micro-batches in the first step.
fn steps_of(rank: usize) -> Vec<LoadedStep> {
    let shard = ShardConfig {
        shard_index: rank,
        num_shards: 2,
        ..one_shard(30, BATCHES.large)
    };
    steps(shard, BATCHES.small, Augment::None)
}

fn gradient_of(loaded: LoadedStep) -> Vec<f32> {
    let mut stepper = stepper(Arc::new(SingleCommunicator::new()));
    stepper.step(0, loaded).unwrap();
    stepper.optimizer_state().moments
}

fn squared_norm(gradient: &[f32]) -> f64 {
    gradient.iter().map(|value| f64::from(*value).powi(2)).sum()
}

fn assert_near(got: f64, expected: f64) {
    assert!(
        (got / expected - 1.0).abs() < TOLERANCE,
        "{got}, expected {expected}"
    );
}

#[test]
fn the_norms_of_a_step_are_those_of_each_micro_batch_alone_and_of_their_mean() {
    let of_ranks = run_ranks(2, |communicator| {
        let rank = communicator.rank();
        let mut stepper = stepper(Arc::new(communicator));
        let mut noise = Vec::new();
        for (index, loaded) in steps_of(rank).into_iter().enumerate() {
            stepper.step(index, loaded).unwrap();
            noise.push(stepper.take_noise());
        }
        // The partial batch has another size and does not count.
        assert_eq!(noise[1].num_large, 0);
        noise[0]
    });
    let mut mean = Vec::new();
    for (rank, noise) in of_ranks.iter().enumerate() {
        let mut small = 0.0;
        for batch in steps_of(rank).swap_remove(0).micro_batches {
            let step = LoadedStep {
                step_in_epoch: 0,
                global_num_samples: BATCHES.small,
                global_weight: batch.weight,
                micro_batches: vec![batch],
            };
            let gradient = gradient_of(step);
            small += squared_norm(&gradient);
            mean.resize(gradient.len(), 0.0);
            for (mean, value) in mean.iter_mut().zip(gradient) {
                *mean += value / 4.0;
            }
        }
        assert_near(noise.small, small);
        assert_eq!((noise.num_small, noise.num_large), (2.0, 1));
    }
    assert_near(of_ranks[0].large, squared_norm(&mean));
    assert_eq!(of_ranks[0].large, of_ranks[1].large);
}

#[test]
fn every_epoch_reports_the_noise_without_changing_a_bit_alike_on_ranks_and_passes() {
    let plain = "--reduction exact --virtual-shards 4";
    let measured = run(2, &flags(&[TINY, plain, "--gradient-noise"]));
    assert_eq!(
        measured.parameter_hash(),
        run(2, &flags(&[TINY, plain])).parameter_hash()
    );
    let noise = measured.last_record().gradient_noise.unwrap();
    assert_eq!(noise.num_steps, 4, "the fifth step has 8 samples");
    let alone = run(1, &flags(&[TINY, plain, "--gradient-noise"]))
        .last_record()
        .gradient_noise
        .unwrap();
    assert_near(alone.covariance_trace, noise.covariance_trace);
    let lines = fs::read_to_string(measured.directory().join("metrics.jsonl")).unwrap();
    assert!(
        lines
            .lines()
            .all(|line| line.contains("\"covariance_trace\":")),
        "{lines}"
    );
    assert!(
        run(1, &flags(&[TINY, "--grad-accum-steps 2 --gradient-noise"]))
            .last_record()
            .gradient_noise
            .is_some()
    );
}

#[test]
fn a_method_without_gradients_of_single_passes_is_refused_in_one_sentence() {
    for (world_size, further, words) in [
        (1, "", "one pass a step"),
        (2, "--batch-norm sync", "--batch-norm sync"),
        (2, "--compress powersgd:2", "--compress powersgd:2"),
        (2, "--sync local-sgd", "--sync local-sgd"),
        (2, "--sync parameter-server", "--sync parameter-server"),
    ] {
        for refused in runs_of(world_size, &flags(&[TINY, "--gradient-noise", further])) {
            let error = refused.unwrap_err().to_string();
            assert!(
                error.starts_with("--gradient-noise") && error.contains(words),
                "{error}"
            );
        }
    }
}
