//! Steps of the example tasks: losses of PyTorch, and gradients of ranks with unequal weights.
//! golden/tasks.py printed the expected losses in f64.

// The programs of these files are unused here.
#[allow(dead_code)]
#[path = "../../examples/char_gpt.rs"]
pub(crate) mod char_gpt;
#[allow(dead_code)]
#[path = "../../examples/several_heads.rs"]
pub(crate) mod several_heads;
#[allow(dead_code)]
#[path = "../../../burn-resnet/tests/it/support/ten_losses.rs"]
mod ten_losses;
#[allow(dead_code)]
#[path = "../../examples/unet.rs"]
pub(crate) mod unet;

use std::sync::Arc;

use burn::tensor::{Device, FloatDType, TensorData};
use datasets::{
    DatasetError, Draws, LoadedStep, Loader, LoaderConfig, Samples, ShardConfig, ShardPlan, Upload,
};
use distributed::communicator::SingleCommunicator;
use distributed::replica::ParameterLayout;
use distributed::{Communicator, run_ranks};
use trainer::config::cli::TrainArgs;
use trainer::config::{Family, SyncMethod, SyncSection, TrainConfig};
use trainer::measure::report::Reporter;
use trainer::measure::timer::Timer;
use trainer::step::{StepConfig, StepContext, Stepper};
use trainer::task::{ModelRequest, Opening, Purpose, Splits, Task};

use crate::fixture::relative_l2;
use crate::stepper_under_test::step_config;
use char_gpt::CharGpt;
use several_heads::SeveralHeads;
use ten_losses::{numbered, numbers};
use unet::Segmentation;

/// Relative tolerance for losses. Rounding errors accumulate over the ten steps of SGD.
const LOSS_TOLERANCE: f64 = 1e-5;
/// Relative L2 distance of the mean gradients (docs/numerics.md).
const GRADIENT_TOLERANCE: f64 = 1e-5;

type BatchInMemory<T> = <<T as Task>::Samples as Samples>::Batch;

/// Samples whose arrays are known.
#[derive(Debug)]
struct Known {
    /// Values, and the shape of a sample.
    arrays: Vec<(Vec<f32>, Vec<usize>)>,
    len: usize,
    weight: f64,
}

impl Samples for Known {
    type Batch = Vec<TensorData>;

    fn name(&self) -> &'static str {
        "known"
    }

    fn len(&self) -> usize {
        self.len
    }

    fn checksum(&self) -> String {
        String::new()
    }

    fn batch(&self, draws: &Draws<'_>) -> Result<Vec<TensorData>, DatasetError> {
        let arrays = self.arrays.iter().map(|(values, shape)| {
            let size: usize = shape.iter().product();
            let rows = draws.iter().map(|draw| draw.index * size);
            let values: Vec<f32> = rows.flat_map(|at| values[at..at + size].to_vec()).collect();
            TensorData::new(values, [&[draws.len()], &shape[..]].concat())
        });
        Ok(arrays.collect())
    }

    fn weight(&self, _draw: datasets::Draw) -> f64 {
        self.weight
    }
}

/// Returns the configuration of a program without flags.
fn config<T: Task>() -> TrainConfig {
    TrainConfig::resolve_for(&Family::of::<T>(), &TrainArgs::default(), 1).unwrap()
}

/// Returns the data of a task.
fn data<T: Task>() -> Splits<T::Samples> {
    let config = config::<T>();
    let opening = Opening {
        purpose: Purpose::Train(&config),
        communicator: &SingleCommunicator::new(),
        reporter: &Reporter::new(false),
    };
    T::open(&T::Args::default(), &opening).unwrap()
}

/// Returns the model of a task with the numbers of the formula as its parameters.
fn model<T: Task>() -> T::Model {
    let config = config::<T>();
    let device = Device::flex().autodiff();
    let request = ModelRequest::new(0, &config.compute, &device);
    let model = T::default().build(&T::Args::default(), &request).unwrap();
    numbered(model, FloatDType::F32)
}

/// Returns the last step of an epoch in the order of the samples.
fn last_step<S: Samples>(
    samples: &Arc<S>,
    shard: ShardConfig,
    micro_batch_size: usize,
) -> LoadedStep<S::Batch> {
    let plan = ShardPlan::new(shard).unwrap();
    let how = LoaderConfig {
        first_step: plan.num_steps() - 1,
        ..LoaderConfig::new(micro_batch_size)
    };
    let mut loader = Loader::start(Arc::clone(samples), plan, how);
    loader.next().unwrap().unwrap()
}

fn expect_losses_of_pytorch<T: Task>(
    num_parameters: usize,
    learning_rate: f64,
    loaded: &LoadedStep<BatchInMemory<T>>,
    expected: [f64; 10],
) {
    let model = model::<T>();
    assert_eq!(ParameterLayout::new(&model).num_elements(), num_parameters);
    let communicator = Arc::new(SingleCommunicator::new());
    let task = Arc::new(T::default());
    let mut stepper =
        Stepper::new(&task, model, step_config(), communicator, &Device::flex()).unwrap();
    let losses = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9].map(|step| {
        let context = StepContext {
            step,
            learning_rate,
            ..StepContext::default()
        };
        let loaded = loaded.clone().map(|batch| batch.upload(stepper.device()));
        let timer = Timer::default();
        let end = stepper.step(&task, context, loaded, &timer).unwrap();
        end.scores().unwrap().loss_mean()
    });
    let off = losses.iter().zip(expected);
    let off = off.map(|(found, expected)| (found - expected).abs() / expected);
    let off = off.fold(0.0, f64::max);
    assert!(off <= LOSS_TOLERANCE, "losses {losses:?}: {off:.2e}");
}

#[test]
fn a_gpt_has_pytorchs_ten_losses_also_over_micro_batches_of_unequal_weights() {
    let text = data::<CharGpt>().train;
    // 495 pieces: the last step has two of 64 predictions, and in another micro-batch one of 9.
    let loaded = last_step(&text, ShardConfig::new(text.len(), 4), 2);
    let weights = loaded.micro_batches.iter().map(|micro| micro.weight);
    assert_eq!(weights.collect::<Vec<f64>>(), [128.0, 9.0]);
    let expected = [
        13.14684, 12.43804, 11.46642, 10.63595, 9.920608, 9.219396, 8.562984, 7.988116, 7.488917,
        7.060012,
    ];
    expect_losses_of_pytorch::<CharGpt>(112_384, 0.001, &loaded, expected);
}

#[test]
fn a_unet_has_pytorchs_ten_losses() {
    let shape = vec![32, 32, 1];
    let mask = numbers(4 * 32 * 32, 1000);
    let mask = mask.iter().map(|value| f32::from(*value > 0.0)).collect();
    let known = Arc::new(Known {
        arrays: vec![(numbers(4 * 32 * 32, 0), shape.clone()), (mask, shape)],
        len: 4,
        weight: 32.0 * 32.0,
    });
    let loaded = last_step(&known, ShardConfig::new(4, 4), 4);
    let expected = [
        0.8173913, 0.8133569, 0.8059962, 0.7961833, 0.7848394, 0.7728558, 0.7610338, 0.7500182,
        0.7402419, 0.731977,
    ];
    expect_losses_of_pytorch::<Segmentation>(11_809, 0.02, &loaded, expected);
}

#[test]
fn a_network_with_several_heads_has_pytorchs_ten_losses() {
    let labels = numbers(6 * 3, 1000);
    let labels = labels.iter().map(|value| f32::from(*value > 0.0)).collect();
    let known = Arc::new(Known {
        arrays: vec![
            (numbers(6 * 16 * 16, 0), vec![16, 16, 1]),
            (labels, vec![3]),
            (numbers(6, 1001), vec![1]),
        ],
        len: 6,
        weight: 1.0,
    });
    let loaded = last_step(&known, ShardConfig::new(6, 6), 6);
    let expected = [
        2.13596, 2.107859, 2.057393, 1.991161, 1.916126, 1.837678, 1.761776, 1.690839, 1.627835,
        1.573434,
    ];
    expect_losses_of_pytorch::<SeveralHeads>(4980, 0.01, &loaded, expected);
}

/// Returns the mean gradient of the last step, in which the ranks differ in the number of samples
/// and in their weights.
fn gradient<T: Task>(
    samples: &Arc<T::Samples>,
    global_batch_size: usize,
    num_ranks: usize,
    method: &SyncMethod,
) -> Vec<f32> {
    let num_shards = method.virtual_shards().unwrap_or(num_ranks);
    let num_own_shards = num_shards / num_ranks;
    let mut of_ranks = run_ranks(num_ranks, |communicator| {
        let communicator: Arc<dyn Communicator> = Arc::new(communicator);
        let shard = ShardConfig {
            shard_index: communicator.rank() * num_own_shards,
            num_shards,
            num_own_shards,
            ..ShardConfig::new(samples.len(), global_batch_size)
        };
        let sync = SyncSection {
            method: method.clone(),
            bucket_mib: Some(1.0 / 64.0),
            ..SyncSection::default()
        };
        let config = StepConfig {
            sync_batch_norm: T::NAME != CharGpt::NAME,
            sync,
            ..step_config()
        };
        let task = Arc::new(T::default());
        let mut stepper =
            Stepper::new(&task, model::<T>(), config, communicator, &Device::flex()).unwrap();
        let context = StepContext {
            keeps_gradients: true,
            ..StepContext::default()
        };
        let loaded = last_step(samples, shard, global_batch_size);
        let loaded = loaded.map(|batch| batch.upload(stepper.device()));
        let timer = Timer::default();
        stepper.step(&task, context, loaded, &timer).unwrap();
        stepper.gradients().unwrap()
    });
    let of_root = of_ranks.swap_remove(0);
    assert!(of_ranks.iter().all(|of_rank| *of_rank == of_root));
    assert!(of_root.iter().any(|value| *value != 0.0));
    of_root
}

#[test]
fn ranks_with_unequal_weights_or_without_samples_have_the_mean_gradient_of_one_rank() {
    fn check<T: Task>(global_batch_size: usize, world_sizes: &[usize]) {
        let samples = data::<T>().train;
        let method = SyncSection::default().method;
        let of = |num_ranks| gradient::<T>(&samples, global_batch_size, num_ranks, &method);
        let one = of(1);
        for &num_ranks in world_sizes {
            let off = relative_l2(&of(num_ranks), &one);
            assert!(
                off <= GRADIENT_TOLERANCE,
                "{}, {num_ranks} ranks: relative L2 distance {off:e}",
                T::NAME
            );
        }
    }
    // The last step has 3 pieces, of 64, 64 and 9 predictions.
    check::<CharGpt>(12, &[2, 3, 4]);
    // 8 images.
    check::<Segmentation>(12, &[3]);
    // 2 images.
    check::<SeveralHeads>(9, &[3]);
}

#[test]
fn exact_gradients_of_unequal_weights_have_the_same_bits_on_any_number_of_ranks() {
    let text = data::<CharGpt>().train;
    // With 6 shards, rank 1 of 2 and rank 2 of 3 have no samples.
    let method = SyncMethod::Exact { virtual_shards: 6 };
    let [one, two, three] = [1, 2, 3].map(|ranks| gradient::<CharGpt>(&text, 12, ranks, &method));
    assert_eq!(two, one);
    assert_eq!(three, one);
    let plain = gradient::<CharGpt>(&text, 12, 1, &SyncSection::default().method);
    assert!(relative_l2(&one, &plain) <= GRADIENT_TOLERANCE);
}
