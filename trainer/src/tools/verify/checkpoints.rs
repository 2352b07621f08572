//! A checkpoint moves between devices without losing a bit.
//!
//! In: a short run on the verified device. Out: whether its checkpoint holds the same bits there, on the reference, and back again;
//! how far the two evaluations of it are apart.

use std::sync::Arc;

use anyhow::{Context, Result};
use burn::tensor::Device;
use burn_resnet::{ResNet, load_weights, save_safetensors};
use datasets::{ShapesConfig, shapes};
use distributed::{
    Communicator,
    communicator::SingleCommunicator,
    replica::{ParameterLayout, read},
};

use super::Subject;
use super::comparison::{Comparison, Finding};
use super::learning::{Amount, trained};
use super::reference::{ABSENT, reference};
use crate::config::ComputeSection;
use crate::config::cli::ModelArgs;
use crate::measure::metrics::ScoreSums;
use crate::model::data;
use crate::model::family::ModelRequest;
use crate::model::loss::CrossEntropy;
use crate::model::network::resnet;
use crate::run::checkpoint;
use crate::run::evaluate::{EvaluateConfig, evaluate};

pub(super) const EXPECTATION: &str =
    "a checkpoint keeps its bits from the device to Flex and back, and evaluates alike";

const DEPTH: usize = 8;
const NUM_CLASSES: usize = 10;
const NUM_TEST: usize = 50;

pub(super) fn check(subject: &Subject<'_>) -> Result<Finding> {
    let Some((device, compute)) = reference(subject.compute()) else {
        return Ok(Finding::Skipped(ABSENT.to_owned()));
    };
    let scratch = tempfile::tempdir().context("a temporary folder")?;
    let amount = Amount {
        model: "resnet8",
        num_train: 32,
        num_test: NUM_TEST,
        batch_size: 16,
        epochs: 1,
        is_by_heart: false,
    };
    let outcome = trained(subject, &amount, &scratch.path().join("run"))?;
    let saved = checkpoint::find(&scratch.path().join("run"))?
        .0
        .model_path();
    let there = load_weights(network(&compute, &device)?, &saved)?;
    let path = scratch.path().join("back.safetensors");
    save_safetensors(&there, &path)?;
    let back = load_weights(network(subject.compute(), &subject.device)?, &path)?;

    let trained = all_values(&outcome.model);
    let expected = evaluated(subject, &there, &device)?;
    let got = evaluated(subject, &back, &subject.device)?;
    let off = (got.loss_mean() / expected.loss_mean() - 1.0).abs();
    let precision = subject.precision;
    Ok(Finding::Compared(vec![
        Comparison::same_bits(
            "parameters and norm statistics on Flex",
            &trained,
            &all_values(&there),
        ),
        Comparison::same_bits("the same, back on the device", &trained, &all_values(&back)),
        Comparison::difference(
            "mean loss of 50 test images, relative",
            off,
            precision.evaluation(),
        ),
    ]))
}

fn network(compute: &ComputeSection, device: &Device) -> Result<ResNet> {
    let config = ModelArgs::resnet(DEPTH);
    // Other weights than any that are loaded.
    resnet(
        &config,
        &ModelRequest {
            seed: 99,
            ..ModelRequest::new(NUM_CLASSES, compute, device)
        },
    )
}

fn all_values(model: &ResNet) -> Vec<f32> {
    [
        read(model, &ParameterLayout::new(model)),
        read(model, &ParameterLayout::state(model)),
    ]
    .concat()
}

fn evaluated(subject: &Subject<'_>, model: &ResNet, device: &Device) -> Result<ScoreSums> {
    let data = shapes::open(&ShapesConfig {
        num_train: 1,
        num_test: NUM_TEST,
        seed: 0,
    })?;
    let how = EvaluateConfig {
        micro_batch_size: 50,
        loader_threads: 0,
        input: subject.compute().input,
        loss: Arc::new(CrossEntropy::default()),
        metrics: Vec::new(),
        reporter: subject.world.reporter.clone(),
    };
    let alone: &dyn Communicator = &SingleCommunicator::new();
    let stop = &subject.world.stop;
    let evaluation = evaluate(
        model,
        data::evaluated(&data)?,
        &data.normalization,
        &how,
        alone,
        device,
        stop,
    )?;
    evaluation.sums.context("checkpoints: stopped by a signal")
}
