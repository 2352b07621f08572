//! Decides each section of a run separately, then checks the sections against each other.
//!
//! In: typed flags, the world size. Out: [`Sections`].
//! Invariant: opens no file. Only [`Sections::expect_offered`] depends on the machine. So all ranks
//! decide the same, and every machine can read a saved configuration.

use super::batch::BatchSection;
use super::compute::ComputeSection;
use super::data::{DataSection, TrainSplitSection};
use super::error::{ConfigError, conflict, invalid, no_effect};
use super::optimizer::OptimizerSection;
use super::options::expect_ranges;
use super::run::{OnNonFinite, RunSection};
use super::schedule::ScheduleSection;
use super::sync::{SyncMethod, SyncSection};
use crate::config::choices::{
    BatchNormKind, InputKind, ModelOption, OptimizerKind, Resolution, SyncKind,
};
use crate::config::cli::{ModelSection, TrainArgs};
use serde::Serialize;

/// The sections of a run as in `run.toml`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Sections {
    pub model: ModelSection,
    pub data: DataSection,
    pub train_split: TrainSplitSection,
    pub batch: BatchSection,
    pub sync: SyncSection,
    pub optimizer: OptimizerSection,
    pub schedule: ScheduleSection,
    pub run: RunSection,
    pub compute: ComputeSection,
}

impl Sections {
    /// Decides all sections except the model's, which its family has decided. `supported`: options
    /// of that family.
    pub(super) fn decide(
        args: TrainArgs,
        supported: &[ModelOption],
        world_size: usize,
    ) -> Result<Self, ConfigError> {
        expect_ranges(&args)?;
        let data = args.data.decide()?;
        let dataset = data.dataset.kind();
        let update = args.sync.update;
        let compute = args.compute.decide(supported)?;
        let sync = args.sync.decide(world_size, compute.device)?;
        let num_workers = sync.method.num_workers(world_size);
        let has_planned_sizes = data.resolution().is_some_and(Resolution::depends_on_epochs);
        let mut sections = Self {
            model: args.model,
            train_split: args.train_split.decide(&data)?,
            batch: args.batch.decide(dataset, &sync.method, num_workers)?,
            optimizer: args.optimizer.decide(compute.dtype())?,
            schedule: args.schedule.decide(dataset, has_planned_sizes)?,
            run: args.run.decide(supported)?,
            data,
            sync,
            compute,
        };
        let needs_main_memory = sections.needs_main_memory(world_size);
        sections.sync.decide_update(update, needs_main_memory)?;
        sections.expect_compatible(world_size)?;
        Ok(sections)
    }

    /// Returns the option that needs gradients in main memory, if there is one.
    pub(super) fn needs_main_memory(&self, world_size: usize) -> Option<String> {
        let syncs_norm = self.batch.batch_norm == BatchNormKind::Sync && world_size > 1;
        let is_custom = self.optimizer.optimizer.kind() == OptimizerKind::Custom;
        let of_sync = self.sync.needs_main_memory(syncs_norm);
        of_sync
            .or_else(|| is_custom.then(|| "--optimizer custom".to_owned()))
            .or_else(|| (self.run.gradient_noise).then(|| "--gradient-noise".to_owned()))
    }

    /// Rejects options of different sections that contradict each other.
    fn expect_compatible(&self, world_size: usize) -> Result<(), ConfigError> {
        let Self {
            batch,
            optimizer,
            train_split,
            ..
        } = self;
        let method = &self.sync.method;
        let kind = method.kind();
        let sums = kind == SyncKind::Allreduce;
        let waits = sums || kind == SyncKind::ParameterServer;
        let serves = matches!(method, SyncMethod::ParameterServer { .. });
        let makes_images = self.compute.input == InputKind::Device;
        let syncs_norm = batch.batch_norm == BatchNormKind::Sync;
        let noise = self.run.gradient_noise;
        let compression = method.compression();
        let algorithm = optimizer.optimizer.kind();

        let sync: &str = &format!("--sync {kind}");
        let compress: &str = &format!("--compress {compression}");
        let algorithm_flag: &str = &format!("--optimizer {algorithm}");
        self.sync
            .expect_compatible(batch.batch_norm, optimizer.loss_scale)?;
        let input = "--input device, the default of --device cuda";
        let mixing = "images are mixed in main memory; give --input host";
        let erasing = "rectangles are erased in main memory; give --input host";
        let clipping = "only --sync allreduce has the whole mean gradient before the update";
        #[rustfmt::skip]
        let contradictions = [
            (!sums && algorithm != OptimizerKind::Sgd, algorithm_flag, sync,
             "parameter servers and local SGD support only --optimizer sgd; use --sync allreduce"),
            (serves && optimizer.learning_rate_factors.is_some(), "--learning-rate-factors", sync,
             "servers update all parameters alike; use --sync allreduce or local-sgd"),
            (!waits && optimizer.ema_decay.is_some(), "--ema-decay", sync,
             "parameters differ between its ranks after a step; use --sync allreduce or parameter-server"),
            (!sums && optimizer.clip_grad_norm.is_some(), "--clip-grad-norm", sync, clipping),
            (!sums && optimizer.clip_grad_value.is_some(), "--clip-grad-value", sync, clipping),
            (!sums && self.run.on_non_finite != OnNonFinite::Stop, "--on-non-finite skip", sync,
             "only with --sync allreduce can all ranks skip a step before it is made"),
            (makes_images && train_split.mixup.is_some(), "--mixup", input, mixing),
            (makes_images && train_split.cutmix.is_some(), "--cutmix", input, mixing),
            (makes_images && train_split.random_erasing.is_some(), "--random-erasing", input, erasing),
            (noise && syncs_norm && world_size > 1, "--gradient-noise", "--batch-norm sync",
             "the gradient of a rank is not that of a small batch there; measure with --batch-norm local"),
            (noise && compression.is_some(), "--gradient-noise", compress,
             "a compressed sum is not the sum of the ranks' gradients; remove one of them"),
            (noise && !sums, "--gradient-noise", sync,
             "no rank has the sum of all gradients; use --sync allreduce"),
        ];
        for (is_so, option, other, remedy) in contradictions {
            if is_so {
                return Err(conflict(option, other, remedy));
            }
        }
        if noise && batch.parts(method, method.num_workers(world_size)) < 2 {
            return Err(no_effect(
                "--gradient-noise",
                "with one pass a step, whose gradient is the sum",
                "train on several ranks, or give --grad-accum-steps 2 or more",
            ));
        }
        Ok(())
    }

    /// Rejects features that this program lacks, empty paths, and paths that the files of a
    /// run cannot hold.
    pub(super) fn expect_offered(&self) -> Result<(), ConfigError> {
        let run = &self.run;
        let paths = [
            ("--data-dir", self.data.folder(), true),
            ("--trace", self.sync.trace.as_deref(), false),
            ("--weights", run.weights.as_deref(), true),
            ("--output-dir", run.output_dir.as_deref(), false),
            ("--tensorboard", run.tensorboard.as_deref(), true),
        ];
        for (option, path, is_saved) in paths {
            let Some(path) = path else { continue };
            if path.as_os_str().is_empty() {
                let expected = "a path, `.` for the current folder";
                return Err(invalid(option, expected, "an empty one"));
            }
            let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
            if is_saved && whole.to_str().is_none() {
                let expected = "a path in UTF-8, also of the folders above";
                return Err(invalid(option, expected, whole.display()));
            }
        }
        self.data.expect_offered()?;
        self.compute.expect_offered()?;
        self.sync.expect_offered(self.compute.device)
    }
}
