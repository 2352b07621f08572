//! One start of a run: configuration, data, ranks, device, and the directory of root.

use std::sync::Arc;

use burn::tensor::Device;
use datasets::Splits;
use distributed::Communicator;
use distributed::watchdog::RankStatus;
use records::Manifest;

use crate::config::TrainConfig;
use crate::measure::report::Reporter;
use crate::run::best::BestRule;
use crate::run::directory::RunDirectory;
use crate::run::resumption::Resumption;
use crate::step::CustomOptimizer;
use crate::task::Task;
use crate::world::stop::StopFlag;

/// One start of a run, without its model.
#[derive(Debug)]
pub struct Session<'a, T: Task> {
    /// The resolved configuration, equal on all ranks.
    pub config: &'a TrainConfig,
    /// Custom optimizer, which replaces that of the configuration.
    pub custom_optimizer: Option<CustomOptimizer>,
    pub task: Arc<T>,
    pub best_rule: BestRule,
    /// Decay of the averaged parameters, if they are kept: 0 up to but not 1.
    pub ema_decay: Option<f64>,
    pub data: &'a Splits<T::Samples>,
    /// The ranks that train.
    pub communicator: Arc<dyn Communicator>,
    /// Ranks that train and ranks that only serve parameters, if there are such.
    pub server_link: Option<Arc<dyn Communicator>>,
    pub rank_status: Arc<RankStatus>,
    /// Device of the tensors, without autodiff.
    pub device: &'a Device,
    pub stop: &'a StopFlag,
    /// The checkpoint that the run continues from, on root.
    pub resumption: Option<Resumption>,
    pub manifest: &'a Manifest,
    pub reporter: &'a Reporter,
    /// Directory of the run, on root.
    pub directory: Option<&'a RunDirectory>,
}

impl<T: Task> Session<'_, T> {
    /// Returns the split that is evaluated in the epochs.
    pub fn evaluated_split(&self) -> &'static str {
        if self.data.val.is_some() {
            "val"
        } else {
            "test"
        }
    }
}
