//! A short training on the embedded images reaches its accuracy.
//!
//! In: a device. Out: the test accuracy after the last epoch, of a run by the path of `trainer train`.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use burn_resnet::ResNet;
use distributed::SingleCommunicator;

use super::Subject;
use super::comparison::{Comparison, Finding};
use crate::cli::{TrainArgs, TrainSplitArgs};
use crate::ranks::World;
use crate::report::Reporter;
use crate::train::Outcome;

pub(super) const EXPECTATION: &str = "the embedded images are learned to 95 % test accuracy (--quick: to 60 %)";

/// Five epochs over 10,000 images; a quick run sees 4,800, of a smaller network.
const LEAST: f64 = 0.95;
const LEAST_QUICK: f64 = 0.6;

/// How much is trained.
pub(super) struct Amount {
    pub(super) model: &'static str,
    pub(super) num_train: usize,
    pub(super) num_test: usize,
    pub(super) batch_size: usize,
    pub(super) epochs: u64,
}

pub(super) fn check(subject: &Subject<'_>) -> Result<Finding> {
    let (amount, least) = match subject.config.quick {
        true => (Amount { model: "resnet8", num_train: 800, num_test: 400, batch_size: 16, epochs: 6 }, LEAST_QUICK),
        false => (Amount { model: "resnet20", num_train: 10_000, num_test: 2_000, batch_size: 64, epochs: 5 }, LEAST),
    };
    let scratch = tempfile::tempdir().context("a temporary folder")?;
    let outcome = trained(subject, &amount, scratch.path())?;
    let record = outcome.progress.last_record.context("learning: no epoch ended")?;
    let accuracy = record.test_top1.context("learning: nothing was tested")?;
    Ok(Finding::Compared(vec![Comparison::at_least("test accuracy", least, accuracy)]))
}

/// A silent run on the verified device, with its checkpoints in `directory`.
pub(super) fn trained(subject: &Subject<'_>, amount: &Amount, directory: &Path) -> Result<Outcome<ResNet>> {
    let mut args = TrainArgs { compute: subject.compute_args(), ..TrainArgs::default() };
    args.model.model = Some(amount.model.to_owned());
    args.train_split = TrainSplitArgs { shapes_train: Some(amount.num_train), ..TrainSplitArgs::default() };
    args.data.shapes_test = Some(amount.num_test);
    args.batch.global_batch_size = Some(amount.batch_size);
    args.schedule.epochs = Some(amount.epochs);
    args.run.eval_every_epochs = Some(amount.epochs);
    args.run.checkpoint_every_epochs = Some(amount.epochs);
    args.run.output_dir = Some(directory.to_owned());
    let (communicator, stop) = (Arc::new(SingleCommunicator::new()), subject.world.stop.clone());
    let silent = World::reporting(communicator, stop, Reporter::new(false, None));
    (subject.train)(&args, &World { is_only_rank: subject.world.is_only_rank, ..silent })
}
