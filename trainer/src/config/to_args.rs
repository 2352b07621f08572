//! The way back from a resolved configuration to flags.
//!
//! In: [`TrainConfig`]. Out: [`TrainArgs`]. Invariant: exactly the options with an effect are there, so that the
//! result resolves to the same configuration.

use super::TrainConfig;
use super::own_model::{ModelChoice, ModelOption};
use super::parts::{
    BatchConfig, ComputeConfig, Course, DataConfig, DataSource, OnNonFinite, OptimizerConfig, RunConfig, ScheduleConfig,
};
use crate::cli::{
    BatchArgs, ComputeArgs, DataArgs, ModelArgs, OptimizerArgs, RunArgs, ScheduleArgs, TrainArgs, TrainSplitArgs,
};

/// The configuration as flags.
pub(super) fn to_args(config: &TrainConfig) -> TrainArgs {
    let takes = |option| config.model.takes(option);
    TrainArgs {
        config: None,
        resume: config.run.resume,
        allow_changed_data: false,
        model: config.model.to_args(),
        data: config.data.to_args(),
        train_split: train_split_args(config),
        batch: config.batch.to_args(config.sync.method.virtual_shards().is_some()),
        sync: config.sync.to_args(),
        optimizer: config.optimizer.to_args(),
        schedule: config.schedule.to_args(),
        run: RunArgs {
            zero_gamma: takes(ModelOption::ZeroGamma).then_some(config.run.zero_gamma),
            ..config.run.to_args()
        },
        compute: ComputeArgs {
            kernels: takes(ModelOption::Kernels).then_some(config.compute.kernels),
            dtype: takes(ModelOption::Dtype).then_some(config.compute.dtype),
            convolution: takes(ModelOption::Convolution).then_some(config.compute.convolution),
            cpu: takes(ModelOption::Cpu).then_some(config.compute.cpu),
            ..config.compute.to_args()
        },
    }
}

fn train_split_args(config: &TrainConfig) -> TrainSplitArgs {
    let split = &config.train_split;
    let mut args = TrainSplitArgs {
        limit_train: split.limit_train,
        augment: Some(split.augment),
        drop_last: Some(split.drop_last),
        ..Default::default()
    };
    match config.data.source {
        DataSource::Shapes { num_train, .. } => args.shapes_train = Some(num_train),
        DataSource::Synthetic { num_train, .. } => args.synthetic_train = Some(num_train),
        _ => {}
    }
    args
}

impl ModelChoice {
    pub(super) fn to_args(&self) -> ModelArgs {
        let shortcut = match self {
            Self::Resnet(config) => Some(config.shortcut),
            Self::Own(_) => None,
        };
        ModelArgs { model: Some(self.name()), depth: None, shortcut }
    }
}

impl DataConfig {
    pub(super) fn to_args(&self) -> DataArgs {
        let mut args = DataArgs {
            dataset: Some(self.source.kind()),
            normalize_mean: self.normalization.as_ref().map(|own| own.mean.to_vec()),
            normalize_std: self.normalization.as_ref().map(|own| own.std.to_vec()),
            limit_test: self.limit_test,
            loader_threads: Some(self.loader_threads),
            ..Default::default()
        };
        match &self.source {
            DataSource::Shapes { num_test, seed, .. } => {
                args.shapes_test = Some(*num_test);
                args.shapes_seed = Some(*seed);
            }
            DataSource::Cifar10 { dir, download } | DataSource::Cifar100 { dir, download } => {
                args.data_dir = Some(dir.clone());
                args.download = Some(*download);
            }
            DataSource::ImageFolder { dir, image_size, on_bad_image } => {
                args.data_dir = Some(dir.clone());
                args.image_size = Some(*image_size);
                args.on_bad_image = Some(*on_bad_image);
            }
            DataSource::Synthetic { num_test, num_classes, image_size, .. } => {
                args.synthetic_test = Some(*num_test);
                args.synthetic_classes = Some(*num_classes);
                args.image_size = Some(*image_size);
            }
        }
        args
    }
}

impl ComputeConfig {
    pub(super) fn to_args(self) -> ComputeArgs {
        ComputeArgs {
            device: Some(self.device),
            input: Some(self.input),
            kernels: Some(self.kernels),
            dtype: Some(self.dtype),
            convolution: Some(self.convolution),
            cpu: Some(self.cpu),
            threads: self.threads,
        }
    }
}

impl BatchConfig {
    fn to_args(&self, has_virtual_shards: bool) -> BatchArgs {
        BatchArgs {
            global_batch_size: Some(self.global_batch_size),
            batch_size_per_rank: None,
            grad_accum_steps: (!has_virtual_shards).then_some(self.grad_accum_steps),
            batch_norm: Some(self.batch_norm),
        }
    }
}

impl OptimizerConfig {
    fn to_args(&self) -> OptimizerArgs {
        OptimizerArgs {
            learning_rate: Some(self.learning_rate),
            scale_learning_rate: Some(self.reference_batch_size.is_some()),
            reference_batch_size: self.reference_batch_size,
            momentum: Some(self.momentum),
            nesterov: Some(self.nesterov),
            weight_decay: Some(self.weight_decay),
            decay_norm_and_bias: (self.weight_decay > 0.0).then_some(self.decay_norm_and_bias),
            label_smoothing: Some(self.label_smoothing),
            clip_grad_norm: self.clip_grad_norm,
            loss_scale: Some(self.loss_scale),
        }
    }
}

impl ScheduleConfig {
    fn to_args(&self) -> ScheduleArgs {
        let (milestones, gamma) = match &self.course {
            Course::Multistep { milestones, gamma } => (Some(milestones.clone()), Some(*gamma)),
            _ => (None, None),
        };
        ScheduleArgs {
            epochs: Some(self.epochs),
            schedule_epochs: self.schedule_epochs,
            schedule: Some(self.course.kind()),
            warmup_epochs: Some(self.warmup_epochs),
            warmup_start_factor: (self.warmup_epochs > 0.0).then_some(self.warmup_start_factor),
            milestones,
            gamma,
        }
    }
}

impl RunConfig {
    fn to_args(&self) -> RunArgs {
        RunArgs {
            seed: Some(self.seed),
            zero_gamma: Some(self.zero_gamma),
            weights: self.weights.clone(),
            output_dir: self.output_dir.clone(),
            on_non_finite: Some(self.on_non_finite.kind()),
            max_skipped_steps: match self.on_non_finite {
                OnNonFinite::Stop => None,
                OnNonFinite::Skip { limit } => Some(limit),
            },
            eval_every_epochs: Some(self.eval_every_epochs),
            checkpoint_every_epochs: Some(self.checkpoint_every_epochs),
            checkpoint_every_steps: self.checkpoint_every_steps,
            keep_checkpoints: Some(self.keep_checkpoints),
            log_every_steps: Some(self.log_every_steps),
            warmup_steps: Some(self.warmup_steps),
        }
    }
}
