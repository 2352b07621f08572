//! burn's training loop on any number of ranks. The model and training are those of burn's guide,
//! plus one line.
//!
//!     cargo run --release -p lockstep-burn-train --features burn-train,mpi \
//!         --example burn_loop -- FOLDER
//!     mpirun -n 2 target/release/examples/burn_loop FOLDER

#![allow(clippy::print_stdout, reason = "an example that says what it did")]

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use burn::data::dataloader::DataLoaderBuilder;
use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::InMemDataset;
use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::pool::{AdaptiveAvgPool2d, AdaptiveAvgPool2dConfig};
use burn::nn::{Linear, LinearConfig, Relu};
use burn::optim::SgdConfig;
use burn::optim::momentum::MomentumConfig;
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_train::metric::{AccuracyMetric, LossMetric};
use burn_train::{
    ClassificationOutput, InferenceStep, Learner, SupervisedTraining, TrainOutput, TrainStep,
};
use datasets::{ImageDataset, ShapesDataset};
use distributed::replica::check_fingerprint;
use distributed::{Communicator, ROOT, launch};
use layers::with_gradient_hook;
use lockstep_burn_train::data_parallel;

#[derive(Module, Debug)]
struct Model {
    conv1: Conv2d,
    conv2: Conv2d,
    pool: AdaptiveAvgPool2d,
    linear1: Linear,
    linear2: Linear,
    activation: Relu,
}

impl Model {
    fn new(num_classes: usize, device: &Device) -> Self {
        Self {
            conv1: Conv2dConfig::new([3, 8], [3, 3]).init(device),
            conv2: Conv2dConfig::new([8, 16], [3, 3]).init(device),
            pool: AdaptiveAvgPool2dConfig::new([8, 8]).init(),
            linear1: LinearConfig::new(16 * 8 * 8, 128).init(device),
            linear2: LinearConfig::new(128, num_classes).init(device),
            activation: Relu::new(),
        }
    }

    /// Computes logits `[N, K]` from images `[N, 3, H, W]`. Layers with a gradient hook send their
    /// gradients during the backward pass.
    fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let x = self.activation.forward(self.conv1.forward(images));
        let x = with_gradient_hook(&self.conv2, &x).forward(x);
        let x = self.pool.forward(self.activation.forward(x)).flatten(1, 3);
        let x = self
            .activation
            .forward(with_gradient_hook(&self.linear1, &x).forward(x));
        with_gradient_hook(&self.linear2, &x).forward(x)
    }

    fn classify(&self, batch: Batch) -> ClassificationOutput {
        let output = self.forward(batch.images);
        let loss = CrossEntropyLossConfig::new()
            .init(&output.device())
            .forward(output.clone(), batch.targets.clone());
        ClassificationOutput::new(loss, output, batch.targets)
    }
}

impl TrainStep for Model {
    type Input = Batch;
    type Output = ClassificationOutput;

    fn step(&self, batch: Batch) -> TrainOutput<ClassificationOutput> {
        let item = self.classify(batch);
        TrainOutput::new(self, item.loss.backward(), item)
    }
}

impl InferenceStep for Model {
    type Input = Batch;
    type Output = ClassificationOutput;

    fn step(&self, batch: Batch) -> ClassificationOutput {
        self.classify(batch)
    }
}

#[derive(Clone, Debug)]
struct Batch {
    images: Tensor<4>,
    targets: Tensor<1, Int>,
}

/// Pixels `[H, W, C]` and the class.
type Sample = (Vec<u8>, usize);

struct ShapesBatcher;

impl Batcher<Sample, Batch> for ShapesBatcher {
    fn batch(&self, items: Vec<Sample>, device: &Device) -> Batch {
        let pixels = items
            .iter()
            .flat_map(|(pixels, _)| pixels)
            .map(|&pixel| f32::from(pixel) / 63.75 - 2.0);
        let images = TensorData::new(pixels.collect::<Vec<f32>>(), [items.len(), 32, 32, 3]);
        let targets: Vec<i64> = items.iter().map(|&(_, label)| label as i64).collect();
        Batch {
            images: Tensor::<4>::from_data(images, device).permute([0, 3, 1, 2]),
            targets: Tensor::from_data(TensorData::new(targets, [items.len()]), device),
        }
    }
}

fn read(dataset: &dyn ImageDataset) -> Result<InMemDataset<Sample>> {
    let sample = |index| {
        let mut pixels = vec![0; dataset.image_shape().num_values()];
        dataset.read_image(index, &mut pixels)?;
        Ok((pixels, dataset.label(index)))
    };
    Ok(InMemDataset::new(
        (0..dataset.len()).map(sample).collect::<Result<_>>()?,
    ))
}

fn main() -> ExitCode {
    launch(train)
}

fn train(communicator: &Arc<dyn Communicator>) -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments
        .next()
        .ok_or_else(|| anyhow!("usage: burn_loop FOLDER [SAMPLES [GLOBAL_BATCH [EPOCHS]]]"))?;
    let mut number = |default| {
        arguments
            .next()
            .map_or(Ok(default), |text| text.parse::<usize>())
    };
    let num_train = number(2400)?;
    let global_batch = number(48)?;
    let num_epochs = number(3)?;

    let device = Device::flex();
    let splits = ShapesDataset::new(num_train, 200, 0)?;
    let batch_size = global_batch.div_ceil(communicator.world_size());
    let loader = || {
        DataLoaderBuilder::new(ShapesBatcher)
            .batch_size(batch_size)
            .num_workers(1)
    };
    let valid = loader().build(read(
        &**splits.test.as_ref().context("a split to test with")?,
    )?);
    let training = SupervisedTraining::new(
        &folder,
        loader().shuffle(42).build(read(&*splits.train)?),
        valid.clone(),
    )
    .metrics((AccuracyMetric::new(), LossMetric::new()))
    .with_default_checkpointers()
    .num_epochs(num_epochs)
    .summary();
    let training = data_parallel(training, communicator, &device); // the added line

    device.seed(0);
    let optimizer = SgdConfig::new()
        .with_momentum(Some(MomentumConfig::new()))
        .init();
    let model = Model::new(splits.train.class_names().len(), &device.clone().autodiff());
    let result = training.launch(Learner::new(model, optimizer, 0.02));
    if let Some(error) = result.error {
        bail!("{error}");
    }
    // All ranks have the same bits.
    let parameters = check_fingerprint(&result.model, &**communicator, num_epochs as u64)?;
    if communicator.rank() == ROOT {
        let mut loss = 0.0;
        for batch in valid.iter() {
            let batch = batch?;
            let share = batch.targets.dims()[0] as f64 / valid.num_items() as f64;
            loss += share * f64::from(result.model.classify(batch).loss.into_scalar::<f32>());
        }
        println!("loss {loss:.9}, parameters {parameters}");
    }
    Ok(())
}
