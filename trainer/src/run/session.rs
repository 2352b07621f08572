//! What every part of a run is handed: configuration, data, ranks, device, and where root speaks and writes.

use std::sync::Arc;

use burn::tensor::Device;
use datasets::DatasetSplits;
use distributed::{Communicator, watchdog::RankStatus};
use records::Manifest;

use crate::config::TrainConfig;
use crate::measure::report::Reporter;
use crate::model::loss::Loss;
use crate::model::metric::Metric;
use crate::run::best::BestRule;
use crate::run::resumption::Resumption;
use crate::run::run_files::RunFiles;
use crate::step::optimizer::CustomOptimizer;
use crate::world::stop::StopFlag;

/// Everything a run needs beside its model.
#[derive(Debug)]
pub struct Session<'a> {
    /// The resolved configuration, equal on all ranks.
    pub config: &'a TrainConfig,
    /// What updates the parameters in place of the optimizers of the configuration.
    pub custom_optimizer: Option<CustomOptimizer>,
    pub loss: Arc<dyn Loss>,
    /// Weights of the classes in the training loss; empty without them.
    pub class_weights: Vec<f64>,
    /// By which evaluation the best model is chosen, and when a run without a better one ends.
    pub best_rule: BestRule,
    /// What is reported of an evaluation beside loss and right answers.
    pub metrics: Vec<Arc<dyn Metric>>,
    /// Of the average of the parameters, if one is kept: 0 up to but not 1.
    pub ema_decay: Option<f64>,
    /// The splits.
    pub data: &'a DatasetSplits,
    /// The ranks that train.
    pub communicator: Arc<dyn Communicator>,
    /// Joins them with those that only serve parameters, where there are such.
    pub server_link: Option<Arc<dyn Communicator>>,
    /// What this rank is doing, for the others' sake.
    pub rank_status: Arc<RankStatus>,
    /// Where tensors live, without autodiff.
    pub device: &'a Device,
    /// Raised when somebody wants the run to stop.
    pub stop: &'a StopFlag,
    /// The checkpoint that the run goes on from, on root, where there is one.
    pub resumption: Option<Resumption>,
    /// This launch.
    pub manifest: &'a Manifest,
    pub reporter: &'a Reporter,
    /// Where root writes.
    pub files: &'a RunFiles,
}

impl Session<'_> {
    /// The split that is evaluated in the epochs.
    pub fn evaluated_split(&self) -> &'static str {
        if self.data.val.is_some() {
            "val"
        } else {
            "test"
        }
    }
}
