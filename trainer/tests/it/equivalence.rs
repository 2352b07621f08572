//! k ranks with N samples each give the result of one rank with k N samples. This holds for models
//! without batch statistics and with synchronised batch statistics.

use std::sync::Arc;

use crate::fixture::relative_l2;
use crate::stepper_under_test::{
    OTHER_OPTIMIZERS, SGD, StepperUnderTest, one_shard, resnet8, step_config, steps,
};
use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{Linear, LinearConfig, PaddingConfig2d};
use burn::tensor::activation::gelu;
use burn::tensor::{Device, Tensor};
use datasets::{Augment, LoadedStep, ShardConfig};
use distributed::{Communicator, run_ranks};
use trainer::config::{OptimizerChoice, SgdConfig, SyncSection};
use trainer::model::ImageClassifier;
use trainer::model::loss::CrossEntropy;
use trainer::step::StepConfig;

/// Relative L2 distance of the mean gradients (docs/numerics.md).
const GRADIENT_TOLERANCE: f64 = 1e-5;
/// Relative L2 distance of the parameters after two steps (docs/numerics.md). Adam's first steps
/// are signs, even of gradients that are only rounding errors.
const STEP_TOLERANCE: f64 = 1e-3;
const GLOBAL_BATCH_SIZE: usize = 24;
/// One full batch and 5 more samples. 3 ranks get 2, 2 and 1 of them. 4 ranks get 2, 1, 1 and 1.
const NUM_SAMPLES: usize = 29;
/// One full batch and 2 more samples. With 3 or 4 ranks, some ranks get none.
const FEW_LEFT: usize = 26;

/// A network without normalisation.
#[derive(Module, Debug)]
struct Plain {
    convolution: Conv2d,
    linear: Linear,
}

impl ImageClassifier for Plain {
    fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let features = gelu(self.convolution.forward(images.permute([0, 3, 1, 2])));
        self.linear
            .forward(features.mean_dim(3).mean_dim(2).flatten(1, 3))
    }
}

fn plain(device: &Device) -> Plain {
    Plain {
        convolution: Conv2dConfig::new([3, 8], [3, 3])
            .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
            .init(device),
        linear: LinearConfig::new(8, 10).init(device),
    }
}

/// Returns the mean gradient of every step from the same parameters. With momentum and without
/// decay, the first velocity is the gradient.
fn gradients<M: ImageClassifier + Sync>(
    model: &M,
    world_size: usize,
    num_samples: usize,
    micro_batch_size: usize,
    sync_batch_norm: bool,
) -> Vec<Vec<f32>> {
    let record = model.clone();
    let mut of_ranks = run_ranks(world_size, |communicator| {
        let communicator: Arc<dyn Communicator> = Arc::new(communicator);
        let of_all = one_shard(num_samples, GLOBAL_BATCH_SIZE);
        let shard = ShardConfig {
            epoch: 2,
            shard_index: communicator.rank(),
            num_shards: world_size,
            ..of_all
        };
        let steps = steps(shard, micro_batch_size, Augment::CropFlip { pad: 4 }).into_iter();
        steps
            .map(|loaded| first_velocity(&record, loaded, &communicator, sync_batch_norm))
            .collect::<Vec<_>>()
    });
    let of_root = of_ranks.swap_remove(0);
    assert!(
        of_ranks.iter().all(|of_rank| *of_rank == of_root),
        "ranks differ in the mean gradient"
    );
    of_root
}

fn first_velocity<M: ImageClassifier>(
    model: &M,
    loaded: LoadedStep,
    communicator: &Arc<dyn Communicator>,
    sync_batch_norm: bool,
) -> Vec<f32> {
    let base = step_config();
    let config = StepConfig {
        optimizer: OptimizerChoice::Sgd(SgdConfig {
            weight_decay: 0.0,
            ..SGD
        }),
        sync_batch_norm,
        sync: SyncSection {
            bucket_mib: Some(1.0 / 64.0),
            ..base.sync
        },
        ..base
    };
    // Each rank needs a separate model: a clone would share norm statistics with the other ranks.
    let model = model.valid().train();
    let loss = Arc::new(CrossEntropy {
        label_smoothing: 0.1,
    });
    let mut stepper = StepperUnderTest::with_loss(
        loss,
        model,
        config,
        Arc::clone(communicator),
        &Device::flex(),
    );
    stepper.step(0, loaded).unwrap();
    stepper.optimizer_state().moments
}

fn assert_equivalent(one: &[Vec<f32>], many: &[Vec<f32>], what: &str) {
    assert_eq!(one.len(), many.len());
    for (step, (one, many)) in one.iter().zip(many).enumerate() {
        let relative = relative_l2(many, one);
        assert!(
            one.iter().any(|value| *value != 0.0),
            "{what}: step {step} has no gradient"
        );
        assert!(
            relative <= GRADIENT_TOLERANCE,
            "{what}: step {step}: relative L2 distance {relative:e}"
        );
    }
}

/// Compares the gradients of one rank and of several ranks, for one size of micro-batches.
fn assert_ranks_equal_one<M: ImageClassifier + Sync>(
    model: &M,
    sync_batch_norm: bool,
    num_samples: usize,
    cases: &[(usize, usize)],
) {
    let one = gradients(model, 1, num_samples, GLOBAL_BATCH_SIZE, sync_batch_norm);
    assert_eq!(one.len(), 2);
    for &(world_size, micro_batch_size) in cases {
        let many = gradients(
            model,
            world_size,
            num_samples,
            micro_batch_size,
            sync_batch_norm,
        );
        let what = format!(
            "{world_size} ranks, {num_samples} samples, micro-batches of {micro_batch_size}"
        );
        assert_equivalent(&one, &many, &what);
    }
}

#[test]
fn ranks_and_micro_batches_without_or_with_synchronised_norm_give_the_gradient_of_one_rank() {
    let ranks = [2, 3, 4].map(|world_size| (world_size, GLOBAL_BATCH_SIZE));
    let device = Device::flex();
    let plain = plain(&device.clone().autodiff());
    for num_samples in [NUM_SAMPLES, FEW_LEFT] {
        assert_ranks_equal_one(&plain, false, num_samples, &ranks);
        assert_ranks_equal_one(&resnet8(&device), true, num_samples, &ranks);
    }
    assert_ranks_equal_one(&plain, false, NUM_SAMPLES, &[(1, 7), (2, 5), (3, 1)]);
}

/// Returns the parameters after two steps.
fn after_two_steps<M: ImageClassifier + Sync>(
    model: &M,
    optimizer: OptimizerChoice,
    world_size: usize,
) -> Vec<f32> {
    let record = model.clone();
    let mut of_ranks = run_ranks(world_size, |communicator| {
        let communicator: Arc<dyn Communicator> = Arc::new(communicator);
        let of_all = one_shard(2 * GLOBAL_BATCH_SIZE, GLOBAL_BATCH_SIZE);
        let shard = ShardConfig {
            shard_index: communicator.rank(),
            num_shards: world_size,
            ..of_all
        };
        let base = step_config();
        let sync = SyncSection {
            bucket_mib: Some(1.0 / 64.0),
            ..base.sync
        };
        let config = StepConfig {
            optimizer,
            sync_batch_norm: true,
            sync,
            ..base
        };
        let model = record.valid().train();
        let mut stepper = StepperUnderTest::new(model, config, communicator, &Device::flex());
        for (index, loaded) in steps(shard, GLOBAL_BATCH_SIZE, Augment::None)
            .into_iter()
            .enumerate()
        {
            stepper.step(index, loaded).unwrap();
        }
        stepper.parameters().into_owned()
    });
    let of_root = of_ranks.swap_remove(0);
    assert!(
        of_ranks.iter().all(|of_rank| *of_rank == of_root),
        "ranks differ in the parameters"
    );
    of_root
}

#[test]
fn every_optimizer_on_many_ranks_takes_the_steps_of_one_rank() {
    let model = resnet8(&Device::flex());
    for optimizer in OTHER_OPTIMIZERS {
        let one = after_two_steps(&model, optimizer, 1);
        for world_size in [2, 3] {
            let many = after_two_steps(&model, optimizer, world_size);
            let error = relative_l2(&many, &one);
            assert!(
                error <= STEP_TOLERANCE,
                "{optimizer:?}, {world_size} ranks: relative L2 distance {error:e}"
            );
        }
    }
}

#[test]
fn local_norm_on_two_ranks_is_another_function_so_the_comparison_can_fail() {
    let model = resnet8(&Device::flex());
    let one = gradients(&model, 1, NUM_SAMPLES, GLOBAL_BATCH_SIZE, false);
    let two = gradients(&model, 2, NUM_SAMPLES, GLOBAL_BATCH_SIZE, false);
    assert!(std::panic::catch_unwind(|| assert_equivalent(&one, &two, "local")).is_err());
}
