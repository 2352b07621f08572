//! A custom loop on any number of ranks, with evaluation, checkpoints, stop and records.
//!
//!     mpirun -n 2 target/release/examples/own_loop --output-dir runs/own --resume
//!     target/release/trainer report runs/own

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::AdamWConfig;
use burn::tensor::{Device, Tensor};
use burn_resnet::{ResNet, ResNetConfig};
use clap::Parser;
use datasets::{HostBatch, ImageSamples, Loader, LoaderConfig};
use datasets::{ShapesDataset, ShardConfig, ShardPlan};
use distributed::Communicator;
use trainer::own_loop::{EpochRecord, OwnLoop, OwnLoopConfig, ScoreSums, World, launch};

fn main() -> ExitCode {
    let config = OwnLoopConfig::parse();
    launch(|world, device| train(&config, world, device)) // joins the ranks
}

pub(crate) fn train(config: &OwnLoopConfig, world: &World, device: &Device) -> Result<()> {
    let ranks = &*world.communicator;
    let data = ImageSamples::splits(ShapesDataset::new(1000, 200, config.seed)?, false);
    let test = data.test.context("no test split")?;
    let autodiff = device.clone().autodiff();
    let model = ResNetConfig::cifar(8)?.init(config.seed, &autodiff);
    // Copies root's parameters to all ranks; opens, or resumes, the directory of the run.
    let mut training = OwnLoop::new(model, AdamWConfig::new().init(), config, world)?;
    while training.is_running() {
        let place = (training.epoch(), training.step_in_epoch()); // behind a checkpoint's steps
        for batch in batches(&data.train, Some(place), ranks)? {
            training.step(1e-3, |model| {
                let sums = batch?.map(|batch| sums(model, batch, &autodiff));
                Ok(sums.map(|(loss_sum, _, num_samples)| (loss_sum, num_samples)))
            })?;
            if training.should_stop() {
                return training.finish().map(drop); // saves
            }
        }
        let scores = training.evaluate(|model| {
            let mut scores = ScoreSums::default();
            for batch in batches(&test, None, ranks)? {
                if let Some(batch) = batch? {
                    let (loss_sum, num_right, num_samples) = sums(model, batch, device);
                    scores.add_losses(loss_sum.into_scalar::<f32>().into(), num_samples);
                    scores.add("top1_correct", num_right.into_scalar::<f32>().into());
                }
            }
            Ok(scores)
        })?;
        // Writes the record for `trainer report` and `trainer watch`, and saves.
        training.end_epoch(EpochRecord {
            test: Some(scores),
            ..EpochRecord::default()
        })?;
    }
    training.finish().map(drop)
}

/// Returns this rank's batches, in the order of an epoch from a (epoch, step) on or by index. A
/// rank may have no samples of the last batch.
fn batches(
    samples: &Arc<ImageSamples>,
    place: Option<(u64, u64)>,
    ranks: &dyn Communicator,
) -> Result<impl Iterator<Item = Result<Option<HostBatch>>>> {
    let (epoch, first_step) = place.unwrap_or_default();
    let plan = ShardPlan::new(ShardConfig {
        epoch,
        shuffle: place.is_some(),
        shard_index: ranks.rank(),
        num_shards: ranks.world_size(),
        ..ShardConfig::new(samples.dataset.len(), 48)
    })?;
    let mut config = LoaderConfig::new(48);
    config.first_step = first_step as usize;
    let loader = Loader::start(Arc::clone(samples), plan, config);
    Ok(loader.map(|step| {
        let own = step?.micro_batches.pop().filter(|own| own.num_samples > 0);
        Ok(own.map(|own| own.batch))
    }))
}

/// Returns the summed loss, the number of right answers and the number of samples.
fn sums(model: &ResNet, batch: HostBatch, device: &Device) -> (Tensor<1>, Tensor<1>, usize) {
    let num_samples = batch.num_samples();
    let batch = batch.to_device(device);
    let (logits, labels) = (model.forward(batch.images), batch.targets.labels);
    let answers = logits.clone().argmax(1).squeeze_dim(1);
    let num_right = answers.equal(labels.clone()).float().sum();
    let loss = CrossEntropyLossConfig::new()
        .init(device)
        .forward(logits, labels);
    (loss * num_samples as f32, num_right, num_samples)
}
