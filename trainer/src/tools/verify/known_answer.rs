//! A published ResNet-20 classifies real images as it does elsewhere.
//!
//! In: the published weights and CIFAR-10's test file. Out: how many of its first 1,017 images are answered right.
//! Source: an independent forward pass of the weights of github.com/akamaster/pytorch_resnet_cifar10, over images scaled to 0..1
//! and normalised with ImageNet's mean and deviation.

use std::path::Path;

use anyhow::Result;
use burn_resnet::load_weights;
use datasets::{Cifar, Loader, LoaderConfig, Normalization, ShardConfig, ShardPlan, cifar};

use super::Subject;
use super::comparison::{Comparison, Finding};
use super::files;
use crate::config::cli::ModelArgs;
use crate::measure::metrics::ScoreSums;
use crate::model::family::ModelRequest;
use crate::model::loss::{CrossEntropy, Loss as _};
use crate::model::network::resnet;
use crate::model::score;

pub(super) const EXPECTATION: &str =
    "a published ResNet-20 gets 932 of 1,017 CIFAR-10 images right";

const WEIGHTS: &str = "resnet20-12fca82f.th";
const NUM_IMAGES: u64 = 1017;
const NUM_CORRECT: u64 = 932;
/// Divides the number of images, so that all batches are whole.
const BATCH_SIZE: usize = 113;

pub(super) fn check(subject: &Subject<'_>) -> Result<Finding> {
    let folder = subject.config.data_dir.as_deref();
    let found = files::find(folder, WEIGHTS, "published weights").and_then(|weights| {
        Ok((
            weights,
            files::find(folder, Cifar::Ten.test_file(), "CIFAR-10's test images")?,
        ))
    });
    let (weights, images) = match found {
        Ok(paths) => paths,
        Err(reason) => return Ok(Finding::Skipped(reason)),
    };
    let model = resnet(
        &ModelArgs::resnet(20),
        &ModelRequest::new(Cifar::Ten.num_classes(), subject.compute(), &subject.device),
    )?;
    let model = load_weights(model, weights)?;
    let dataset = cifar::open_split(
        images.parent().unwrap_or(Path::new(".")),
        Cifar::Ten,
        "test",
    )?;
    if (dataset.len() as u64) < NUM_IMAGES {
        return Ok(Finding::Skipped(format!(
            "{}: {} images, expected {NUM_IMAGES}",
            images.display(),
            dataset.len()
        )));
    }
    let plan = ShardPlan::new(ShardConfig::new(dataset.len(), BATCH_SIZE))?;
    let normalization = Normalization {
        mean: vec![0.485, 0.456, 0.406],
        std: vec![0.229, 0.224, 0.225],
    };
    let how = LoaderConfig {
        num_threads: 0,
        ..LoaderConfig::new(BATCH_SIZE, normalization)
    };
    let mut sums = ScoreSums::default();
    for loaded in Loader::start(dataset, plan, how).take(NUM_IMAGES as usize / BATCH_SIZE) {
        for batch in loaded?.micro_batches {
            let labels = batch.labels.clone();
            let batch = batch.to_device(&subject.device);
            let logits = model.forward(batch.images);
            sums += score(
                logits.clone(),
                CrossEntropy::default().sum(logits, batch.targets),
                &labels,
            )?;
        }
    }
    Ok(Finding::Compared(vec![
        Comparison::count("images", NUM_IMAGES, sums.num_samples, 0),
        Comparison::count(
            "answered right",
            NUM_CORRECT,
            sums.top1_correct,
            subject.precision.images(),
        ),
    ]))
}
