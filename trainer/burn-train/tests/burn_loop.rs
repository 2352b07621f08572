//! burn's own training loop on ranks that are threads.

#![allow(clippy::unwrap_used, reason = "a failed unwrap here is a failed test")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataloader::{DataLoader, DataLoaderBuilder};
use burn::data::dataset::{Dataset, DatasetError};
use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::activation::relu;
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_train::metric::LossMetric;
use burn_train::{
    ClassificationOutput, InferenceStep, Learner, SupervisedTraining, TrainOutput, TrainStep,
};
use distributed::replica::{ParameterLayout, read};
use distributed::{Communicator, run_ranks};
use layers::with_gradient_hook;
use lockstep_burn_train::data_parallel;

#[derive(Module, Debug)]
struct Net {
    first: Linear,
    head: Linear,
}

impl Net {
    fn new(device: &Device) -> Self {
        Self {
            first: LinearConfig::new(4, 8).init(device),
            head: LinearConfig::new(8, 3).init(device),
        }
    }

    fn classify(&self, (x, targets): Batch) -> ClassificationOutput {
        let x = relu(self.first.forward(x));
        let output = with_gradient_hook(&self.head, &x).forward(x);
        let loss = CrossEntropyLossConfig::new()
            .init(&output.device())
            .forward(output.clone(), targets.clone());
        ClassificationOutput::new(loss, output, targets)
    }
}

type Batch = (Tensor<2>, Tensor<1, Int>);

impl TrainStep for Net {
    type Input = Batch;
    type Output = ClassificationOutput;

    fn step(&self, batch: Batch) -> TrainOutput<ClassificationOutput> {
        let item = self.classify(batch);
        TrainOutput::new(self, item.loss.backward(), item)
    }
}

impl InferenceStep for Net {
    type Input = Batch;
    type Output = ClassificationOutput;

    fn step(&self, batch: Batch) -> ClassificationOutput {
        self.classify(batch)
    }
}

/// A sample is its index.
struct Waves;

impl Batcher<usize, Batch> for Waves {
    fn batch(&self, items: Vec<usize>, device: &Device) -> Batch {
        let values: Vec<f32> = items
            .iter()
            .flat_map(|item| (0..4).map(move |index| ((item * 4 + index) as f32 * 0.7).sin()))
            .collect();
        let targets: Vec<i64> = items.iter().map(|item| (item % 3) as i64).collect();
        let num_items = items.len();
        let x = Tensor::from_data(TensorData::new(values, [num_items, 4]), device);
        (
            x,
            Tensor::from_data(TensorData::new(targets, [num_items]), device),
        )
    }
}

struct Samples {
    len: usize,
    broken: Option<usize>,
}

impl Dataset<usize> for Samples {
    fn get(&self, index: usize) -> Result<usize, DatasetError> {
        if self.broken == Some(index) {
            Err(DatasetError::new(std::io::Error::other("a broken sample")))
        } else {
            Ok(index)
        }
    }

    fn len(&self) -> usize {
        self.len
    }
}

struct Run {
    num_items: usize,
    batch_size: usize,
    accumulation: Option<usize>,
    /// Index of a sample that can't be read.
    broken: Option<usize>,
    /// A rank that is interrupted before its first step.
    interrupted: Option<usize>,
}

const PLAIN: Run = Run {
    num_items: 13,
    batch_size: 13,
    accumulation: None,
    broken: None,
    interrupted: None,
};

struct Ended {
    parameters: Vec<f32>,
    interrupted: Option<String>,
    error: Option<String>,
}

impl Run {
    fn loader(&self) -> Arc<dyn DataLoader<Batch>> {
        let samples = Samples {
            len: self.num_items,
            broken: self.broken,
        };
        DataLoaderBuilder::new(Waves)
            .batch_size(self.batch_size)
            .shuffle(3)
            .build(samples)
    }

    fn training(&self, folder: &Path) -> SupervisedTraining<Net> {
        let valid = DataLoaderBuilder::new(Waves).batch_size(4).build(Samples {
            len: 6,
            broken: None,
        });
        let training = SupervisedTraining::new(folder, self.loader(), valid)
            .metrics((LossMetric::new(),))
            .with_default_checkpointers()
            .with_application_logger(None)
            .num_epochs(6)
            .summary();
        match self.accumulation {
            Some(steps) => training.grads_accumulation(steps),
            None => training,
        }
    }

    /// Each rank has its own folder, which shows what it writes.
    fn on_ranks(&self, world_size: usize, folder: &Path) -> Vec<Ended> {
        run_ranks(world_size, |communicator| {
            let communicator: Arc<dyn Communicator> = Arc::new(communicator);
            let rank = communicator.rank();
            let training = self.training(&folder.join(rank.to_string()));
            if self.interrupted == Some(rank) {
                training.interrupter().stop(Some("enough"));
            }
            let device = Device::flex();
            let ended = launched(
                data_parallel(training, &communicator, &device),
                rank,
                &device,
            );
            communicator.finish().unwrap();
            ended
        })
    }
}

fn launched(training: SupervisedTraining<Net>, rank: usize, device: &Device) -> Ended {
    let result = training.launch(Learner::new(
        start(rank, device),
        SgdConfig::new().init(),
        0.3,
    ));
    Ended {
        parameters: parameters(&result.model),
        interrupted: result
            .interrupted
            .and_then(|interruption| interruption.reason),
        error: result.error.map(|error| error.to_string()),
    }
}

/// Another model on every rank, of which root's counts.
fn start(rank: usize, device: &Device) -> Net {
    let net = Net::new(&device.clone().autodiff());
    let layout = ParameterLayout::new(&net);
    let values: Vec<f32> = (0..layout.num_elements())
        .map(|i| ((i + 50 * rank) as f32 * 0.9).sin() * 0.5)
        .collect();
    distributed::replica::write(net, &layout, &values)
}

fn parameters(net: &Net) -> Vec<f32> {
    read(net, &ParameterLayout::new(net))
}

fn assert_equal_bits(ended: &[Ended]) {
    for other in ended {
        assert_eq!(other.parameters, ended[0].parameters);
    }
}

fn distance(a: &[f32], b: &[f32]) -> f32 {
    a.iter()
        .zip(b)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max)
}

/// The files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return Vec::new();
    };
    let paths = entries.map(|entry| entry.unwrap().path());
    paths
        .flat_map(|path| {
            if path.is_dir() {
                files(&path)
            } else {
                vec![path]
            }
        })
        .collect()
}

#[test]
fn on_one_rank_it_is_burns_own_loop_bit_for_bit() {
    let folder = tempfile::tempdir().unwrap();
    for accumulation in [None, Some(2)] {
        let run = Run {
            batch_size: 4,
            accumulation,
            ..PLAIN
        };
        let expected = launched(
            run.training(&folder.path().join("burn")),
            0,
            &Device::flex(),
        );
        assert_eq!(
            run.on_ranks(1, folder.path())[0].parameters,
            expected.parameters
        );
    }
}

#[test]
fn ranks_train_the_model_that_one_trains_on_the_same_global_batches_and_only_root_writes() {
    let folder = tempfile::tempdir().unwrap();
    let alone = PLAIN.on_ranks(1, &folder.path().join("alone")).remove(0);
    let begin = parameters(&start(0, &Device::flex()));
    assert!(distance(&alone.parameters, &begin) > 0.05);
    for world_size in [2, 3] {
        let folder = folder.path().join(world_size.to_string());
        // Slices of different sizes, each in one batch.
        let ranks = PLAIN.on_ranks(world_size, &folder);
        assert_equal_bits(&ranks);
        let off = distance(&ranks[0].parameters, &alone.parameters);
        assert!(off <= 1e-5, "{world_size} ranks: {off:.2e}");
        let of_root: Vec<String> = files(&folder.join("0"))
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        assert!(
            of_root.iter().any(|path| path.ends_with("model-6.bpk")),
            "{of_root:?}"
        );
        assert!(
            of_root.iter().any(|path| path.contains("epoch-6")),
            "{of_root:?}"
        );
        for rank in 1..world_size {
            assert_eq!(files(&folder.join(rank.to_string())), Vec::<PathBuf>::new());
        }
    }
}

#[test]
fn ranks_with_fewer_batches_take_part_to_the_end_also_where_gradients_are_accumulated() {
    let folder = tempfile::tempdir().unwrap();
    for (index, accumulation) in [None, Some(2), Some(7)].into_iter().enumerate() {
        // Slices of 2, 2 and 3 samples: one batch, one, and two.
        let run = Run {
            num_items: 7,
            batch_size: 2,
            accumulation,
            ..PLAIN
        };
        let ranks = run.on_ranks(3, &folder.path().join(index.to_string()));
        assert_equal_bits(&ranks);
        assert!(
            distance(
                &ranks[0].parameters,
                &parameters(&start(0, &Device::flex()))
            ) > 0.05
        );
    }
}

#[test]
fn an_interrupt_of_one_rank_stops_all_before_the_next_step() {
    let folder = tempfile::tempdir().unwrap();
    let ranks = Run {
        interrupted: Some(1),
        ..PLAIN
    }
    .on_ranks(2, folder.path());
    assert_equal_bits(&ranks);
    assert_eq!(ranks[0].parameters, parameters(&start(0, &Device::flex())));
    assert_eq!(
        ranks[0].interrupted.as_deref(),
        Some("rank 1 was interrupted, or failed")
    );
    assert_eq!(ranks[1].interrupted.as_deref(), Some("enough"));
}

#[test]
fn an_error_of_one_ranks_loader_stops_all_and_is_that_ranks_error() {
    let folder = tempfile::tempdir().unwrap();
    let ranks = Run {
        broken: Some(12),
        ..PLAIN
    }
    .on_ranks(2, folder.path());
    assert_equal_bits(&ranks);
    assert_eq!(ranks[0].error, None);
    assert_eq!(
        ranks[0].interrupted.as_deref(),
        Some("rank 1 was interrupted, or failed")
    );
    assert!(
        ranks[1]
            .error
            .as_deref()
            .unwrap()
            .contains("a broken sample")
    );
}

#[test]
fn different_trainings_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let refused = std::panic::catch_unwind(|| {
        run_ranks(2, |communicator| {
            let communicator: Arc<dyn Communicator> = Arc::new(communicator);
            let run = Run {
                num_items: 13 + communicator.rank(),
                ..PLAIN
            };
            let training = SupervisedTraining::new(folder.path(), run.loader(), run.loader())
                .with_application_logger(None);
            let device = Device::flex();
            data_parallel(training, &communicator, &device).launch(Learner::new(
                Net::new(&device.clone().autodiff()),
                SgdConfig::new().init(),
                0.1,
            ));
        })
    });
    let text = refused.unwrap_err().downcast::<String>().unwrap();
    assert!(
        text.contains("expected 13 items") && text.contains("got 14 items"),
        "{text}"
    );
}
