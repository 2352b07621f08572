//! A short training on the embedded images reaches its accuracy.
//!
//! In: a device. Out: the accuracy after the last epoch, of a run by the path of `trainer train`.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use burn_resnet::ResNet;
use distributed::communicator::SingleCommunicator;
use records::EpochRecord;

use super::Subject;
use super::comparison::{Comparison, Finding};
use crate::config::ScheduleKind;
use crate::config::cli::{ModelSection, TrainArgs, TrainSplitArgs};
use crate::measure::report::Reporter;
use crate::run::train::Outcome;
use crate::world::ranks::World;

pub(super) const EXPECTATION: &str =
    "the embedded images are learned to 95 % test accuracy (--quick: 16 of them overfitted)";

/// Five epochs over 10,000 images give 98.9 %.
const LEAST: f64 = 0.95;

/// How much is trained.
pub(super) struct Amount {
    pub(super) model: &'static str,
    pub(super) num_train: usize,
    pub(super) num_test: usize,
    pub(super) batch_size: usize,
    pub(super) epochs: u64,
    /// At one rate, without decay: to overfit one batch.
    pub(super) is_by_heart: bool,
}

pub(super) fn check(subject: &Subject<'_>) -> Result<Finding> {
    let scratch = tempfile::tempdir().context("a temporary folder")?;
    let trained = |amount: &Amount| -> Result<EpochRecord> {
        trained(subject, amount, scratch.path())?
            .progress
            .last_record
            .context("learning: no epoch ended")
    };
    // A few seconds of training understand nothing yet.
    if subject.config.quick {
        let amount = Amount {
            model: "resnet8",
            num_train: 16,
            num_test: 10,
            batch_size: 16,
            epochs: 60,
            is_by_heart: true,
        };
        let accuracy = trained(&amount)?
            .train_top1
            .context("learning: no step counted")?;
        return Ok(Finding::Compared(vec![Comparison::at_least(
            "accuracy on 16 training images",
            LEAST,
            accuracy,
        )]));
    }
    let amount = Amount {
        model: "resnet20",
        num_train: 10_000,
        num_test: 2_000,
        batch_size: 64,
        epochs: 5,
        is_by_heart: false,
    };
    let accuracy = trained(&amount)?
        .evaluated_top1()
        .context("learning: nothing was tested")?;
    Ok(Finding::Compared(vec![Comparison::at_least(
        "test accuracy",
        LEAST,
        accuracy,
    )]))
}

/// A silent run on the verified device, with its checkpoints in `directory`.
pub(super) fn trained(
    subject: &Subject<'_>,
    amount: &Amount,
    directory: &Path,
) -> Result<Outcome<ResNet>> {
    let mut args = TrainArgs {
        compute: (*subject.compute()).into(),
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
    if amount.is_by_heart {
        args.optimizer.learning_rate = Some(0.05);
        args.optimizer.weight_decay = Some(0.0);
        args.schedule.schedule = Some(ScheduleKind::Constant);
    }
    args.run.eval_every_epochs = Some(amount.epochs);
    args.run.checkpoint_every_epochs = Some(amount.epochs);
    args.run.output_dir = Some(directory.to_owned());
    let (communicator, stop) = (
        Arc::new(SingleCommunicator::new()),
        subject.world.stop.clone(),
    );
    let silent = World::reporting(communicator, stop, Reporter::new(false));
    (subject.train)(&args, &silent)
}
