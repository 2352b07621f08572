//! Checks by whole training runs: accuracy on the embedded images, checkpoints between devices.
//!
//! In: a device. Out:
//!
//! - the accuracy after the last epoch
//! - the bits of a checkpoint that moves from the device to the reference and back
//! - the difference between the evaluations of the two devices

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use burn::module::Module;
use burn::tensor::Device;
use burn_resnet::{load_weights, save_safetensors};
use datasets::{ImageSamples, ShapesDataset};
use distributed::Communicator;
use distributed::communicator::SingleCommunicator;
use distributed::replica::{ParameterLayout, read};

use super::{Subject, reference};
use crate::config::cli::{ModelArgs, ModelSection, TrainArgs, TrainSplitArgs};
use crate::config::{ComputeSection, InputKind, ScheduleKind};
use crate::measure::metrics::ScoreSums;
use crate::measure::report::Reporter;
use crate::model::data;
use crate::model::family::ModelRequest;
use crate::model::loss::CrossEntropy;
use crate::model::network::{Network, NetworkFamily, resnet};
use crate::run::checkpoint;
use crate::run::evaluate::{EvaluateConfig, evaluate};
use crate::run::train::Outcome;
use crate::task::Classification;
use crate::tools::check::{Compared, Finding};
use crate::world::ranks::World;

/// Minimum accuracy. Five epochs over 10,000 images give 98.9 %.
const LEAST: f64 = 0.95;

/// Size of a training run.
struct Amount {
    model: &'static str,
    num_train: usize,
    num_test: usize,
    batch_size: usize,
    epochs: u64,
    /// True for a constant rate without decay, to overfit one batch.
    is_overfitted: bool,
}

pub(super) fn learning(subject: &Subject<'_>) -> Result<Finding> {
    let is_overfitted = subject.args.quick;
    // A few seconds of training do not generalise, so a quick check overfits one batch.
    let amount = match is_overfitted {
        true => Amount {
            model: "resnet8",
            num_train: 16,
            num_test: 10,
            batch_size: 16,
            epochs: 60,
            is_overfitted,
        },
        false => Amount {
            model: "resnet20",
            num_train: 10_000,
            num_test: 2_000,
            batch_size: 64,
            epochs: 5,
            is_overfitted,
        },
    };
    let scratch = tempfile::tempdir().context("a temporary folder")?;
    let outcome = trained(subject, &amount, scratch.path())?;
    let record = outcome.progress.last_record;
    let record = record.context("learning: no epoch ended")?;
    let (what, accuracy) = match is_overfitted {
        true => ("accuracy on 16 training images", record.train_top1),
        false => ("test accuracy", record.evaluated_top1()),
    };
    let accuracy = accuracy.context("learning: nothing was scored")?;
    Ok(Finding::compared(vec![Compared::at_least(
        what, LEAST, accuracy,
    )]))
}

/// Trains without output on the verified device, with checkpoints in `directory`.
fn trained(subject: &Subject<'_>, amount: &Amount, directory: &Path) -> Result<Outcome<Network>> {
    let mut args = TrainArgs {
        compute: subject.args.compute,
        ..TrainArgs::default()
    };
    args.model = ModelSection::from_iter([("model", amount.model)]);
    args.train_split = TrainSplitArgs {
        shapes_train: Some(amount.num_train),
        ..TrainSplitArgs::default()
    };
    args.data.shapes_test = Some(amount.num_test);
    args.batch.global_batch_size = Some(amount.batch_size);
    args.schedule.epochs = Some(amount.epochs);
    if amount.is_overfitted {
        args.optimizer.learning_rate = Some(0.05);
        args.optimizer.weight_decay = Some(0.0);
        args.schedule.schedule = Some(ScheduleKind::Constant);
    }
    args.run.eval_every_epochs = Some(amount.epochs);
    args.run.checkpoint_every_epochs = Some(amount.epochs);
    args.run.output_dir = Some(directory.to_owned());
    let communicator = Arc::new(SingleCommunicator::new());
    let stop = subject.world.stop.clone();
    let silent = World::reporting(communicator, stop, Reporter::new(false));
    (subject.train)(&args, &silent)
}

const DEPTH: usize = 8;
const NUM_CLASSES: usize = 10;
const NUM_TEST: usize = 50;

pub(super) fn checkpoints(subject: &Subject<'_>) -> Result<Finding> {
    let (device, compute) = reference(&subject.compute)?;
    let scratch = tempfile::tempdir().context("a temporary folder")?;
    let amount = Amount {
        model: "resnet8",
        num_train: 32,
        num_test: NUM_TEST,
        batch_size: 16,
        epochs: 1,
        is_overfitted: false,
    };
    let outcome = trained(subject, &amount, &scratch.path().join("run"))?;
    let saved = checkpoint::find(&scratch.path().join("run"))?
        .0
        .model_path();
    let there = load_weights(network(&compute, &device)?, &saved)?;
    let path = scratch.path().join("back.safetensors");
    save_safetensors(&there, &path)?;
    let back = load_weights(network(&subject.compute, &subject.device)?, &path)?;

    let trained = all_values(&outcome.model);
    let expected = evaluated(subject, &there, &device)?;
    let got = evaluated(subject, &back, &subject.device)?;
    let off = (got.loss_mean() / expected.loss_mean() - 1.0).abs();
    let precision = subject.precision;
    Ok(Finding::compared(vec![
        Compared::same_bits(
            "parameters and norm statistics on Flex",
            &trained,
            &all_values(&there),
        ),
        Compared::same_bits("the same, back on the device", &trained, &all_values(&back)),
        Compared::difference(
            "mean loss of 50 test images, relative",
            off,
            precision.evaluation,
        ),
    ]))
}

fn network(compute: &ComputeSection, device: &Device) -> Result<Network> {
    let config = ModelArgs::resnet(DEPTH);
    // The initial weights differ from all weights that are loaded.
    let request = ModelRequest {
        seed: 99,
        ..ModelRequest::new(NUM_CLASSES, compute, device)
    };
    Ok(Network::ResNet(resnet(&config, &request)?))
}

fn all_values(model: &impl Module) -> Vec<f32> {
    [
        read(model, &ParameterLayout::new(model)),
        read(model, &ParameterLayout::state(model)),
    ]
    .concat()
}

fn evaluated(subject: &Subject<'_>, model: &Network, device: &Device) -> Result<ScoreSums> {
    let data = ShapesDataset::new(1, NUM_TEST, 0)?;
    let how = EvaluateConfig {
        micro_batch_size: 50,
        loader_threads: 0,
        input: subject.compute.input,
        computation: subject.compute.computation()?,
        reporter: subject.world.reporter.clone(),
    };
    let alone: &dyn Communicator = &SingleCommunicator::new();
    let stop = &subject.world.stop;
    let test = Arc::clone(data::evaluated(&data)?);
    let samples = Arc::new(ImageSamples {
        raw: subject.compute.input == InputKind::Device,
        ..ImageSamples::new(test, data.normalization)
    });
    let loss = Arc::new(CrossEntropy::default());
    let task = Classification::<NetworkFamily>::with(loss, Vec::new());
    let evaluation = evaluate(&Arc::new(task), model, &samples, &how, alone, device, stop)?;
    evaluation.sums.context("checkpoints: stopped by a signal")
}
