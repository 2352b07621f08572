//! `trainer eval`: loss and accuracy of saved weights on a test split.

use anyhow::{Context, Result};
use burn_resnet::load_weights;
use serde::Serialize;

use crate::checkpoint;
use crate::cli::EvalArgs;
use crate::config::{EvalConfig, TrainConfig, WeightSource};
use crate::data;
use crate::evaluate::{EvaluateConfig, evaluate};
use crate::network::{ModelRequest, resnet};
use crate::ranks::World;

/// What `--json` prints.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EvalResult {
    /// Test images.
    pub num_samples: u64,
    /// Answered right.
    pub top1_correct: u64,
    /// Label among the first five.
    pub top5_correct: u64,
    /// Mean cross entropy, nats.
    pub loss: f64,
    /// Data set, with its split.
    pub dataset: String,
    /// SHA-256 of the test split.
    pub dataset_checksum: String,
}

/// Evaluates a weights file or a checkpoint.
///
/// # Errors
/// When flags contradict each other, or weights or data cannot be read.
///
/// # Collective
/// Must be called by all ranks.
pub fn eval(args: &EvalArgs, world: &World) -> Result<EvalResult> {
    let found = args.checkpoint.as_deref().map(checkpoint::find).transpose()?;
    let trained: Option<TrainConfig> =
        found.as_ref().map(|found| serde_json::from_value(found.state.config.clone())).transpose()?;
    let config = EvalConfig::resolve(args, trained.as_ref())?;
    let communicator = &*world.communicator;
    let (device, _) = world.prepare_compute(&config.compute)?;
    let data = data::open(&config.data, None, communicator, &world.reporter)?;
    let request = ModelRequest {
        num_classes: data.test.class_names().len(),
        in_channels: data.test.image_shape().channels,
        seed: 0,
        compute: &config.compute,
        device: &device,
    };
    let path = match (&config.weights, &found) {
        (WeightSource::File(path), _) => path.clone(),
        (WeightSource::Checkpoint(_), Some(found)) => found.model_path(),
        (WeightSource::Checkpoint(path), None) => checkpoint::find(path)?.model_path(),
    };
    let model = load_weights(resnet(&config.model, false, &request)?, &path)?;
    let how = EvaluateConfig {
        micro_batch_size: config.batch_size_per_rank,
        loader_threads: config.data.loader_threads,
        input: config.compute.input,
    };
    let evaluation = evaluate(&model, &data.test, &data.normalization, &how, communicator, &device, &world.stop)?;
    let sums = evaluation.scores.context("eval: stopped by a signal before all images were measured")?;
    let result = EvalResult {
        num_samples: sums.num_samples,
        top1_correct: sums.top1_correct,
        top5_correct: sums.top5_correct,
        loss: sums.loss_mean(),
        dataset: data.test.name().to_owned(),
        dataset_checksum: data.test.checksum(),
    };
    world.reporter.evaluation(&format!("{} on {}", path.display(), data.test.name()), &sums);
    if config.json {
        world.reporter.json(&result);
    }
    Ok(result)
}
