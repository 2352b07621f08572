//! What is to be known of each option of `train` beside its flag: one row an option.
//!
//! In: nothing. Out: [`OPTIONS`]. Invariant: the rows are the flags of `trainer train` that a TOML file may hold, in the order of
//! `--help` (a test says so), those of residual networks among them.

use super::family::ModelOption;

/// What is to be known of an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OptionFacts {
    /// `section.key` as in the TOML file; the key is the flag.
    pub key: &'static str,
    /// Who must agree on it.
    pub scope: Scope,
    /// Whether it may change when a run goes on.
    pub on_resume: OnResume,
    /// The choices that it only has a meaning with: another value of one of them drops the file's value of this.
    pub belongs_to: &'static [&'static str],
    /// Where only some model families heed it: as what.
    pub heeded_as: Option<ModelOption>,
}

/// Who must agree on an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// All ranks.
    World,
    /// Each machine has its own disk, processors and GPUs.
    Rank,
}

/// Whether an option may change when a run goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnResume {
    /// It changes the course of the parameters.
    Fixed,
    /// It does not move the parameters, or, as kernels, only in the order of roundings, or a warning says that it does. A longer
    /// schedule is looked at apart.
    Free,
}

const fn option(key: &'static str) -> OptionFacts {
    OptionFacts {
        key,
        scope: Scope::World,
        on_resume: OnResume::Fixed,
        belongs_to: &[],
        heeded_as: None,
    }
}

impl OptionFacts {
    const fn of_rank(self) -> Self {
        Self {
            scope: Scope::Rank,
            on_resume: OnResume::Free,
            ..self
        }
    }

    const fn free(self) -> Self {
        Self {
            on_resume: OnResume::Free,
            ..self
        }
    }

    const fn belongs_to(self, belongs_to: &'static [&'static str]) -> Self {
        Self { belongs_to, ..self }
    }

    const fn heeded_as(self, option: ModelOption) -> Self {
        Self {
            heeded_as: Some(option),
            ..self
        }
    }
}

/// All options.
#[rustfmt::skip]
pub(crate) const OPTIONS: &[OptionFacts] = &[
    option("model.model").belongs_to(&["model.depth"]),
    option("model.depth").belongs_to(&["model.model"]),
    option("model.shortcut"),
    option("data.dataset"),
    option("data.data-dir").of_rank().belongs_to(&["data.dataset"]),
    option("data.download").of_rank().belongs_to(&["data.dataset"]),
    option("data.image-size").belongs_to(&["data.dataset", "data.resolution"]),
    option("data.resolution").belongs_to(&["data.dataset", "data.image-size"]),
    option("data.eval-resize").belongs_to(&["data.dataset", "data.image-size", "data.resolution"]),
    // Which images that leaves is compared as other data are.
    option("data.on-bad-image").free().belongs_to(&["data.dataset"]),
    option("data.normalize-mean").belongs_to(&["data.dataset"]),
    option("data.normalize-std").belongs_to(&["data.dataset"]),
    option("data.shapes-test").belongs_to(&["data.dataset"]),
    option("data.shapes-seed").belongs_to(&["data.dataset"]),
    option("data.synthetic-test").belongs_to(&["data.dataset"]),
    option("data.synthetic-classes").belongs_to(&["data.dataset"]),
    option("data.limit-test"),
    option("data.eval-split").belongs_to(&["data.dataset"]),
    option("data.loader-threads").of_rank(),
    option("train-split.shapes-train").belongs_to(&["data.dataset"]),
    option("train-split.synthetic-train").belongs_to(&["data.dataset"]),
    option("train-split.limit-train"),
    option("train-split.val-fraction"),
    option("train-split.sampler"),
    option("train-split.augment").belongs_to(&["data.dataset"]),
    option("train-split.crop-scale").belongs_to(&["data.dataset", "train-split.augment"]),
    option("train-split.rand-augment").belongs_to(&["data.dataset", "train-split.augment"]),
    option("train-split.mixup"),
    option("train-split.cutmix"),
    option("train-split.drop-last"),
    option("batch.global-batch-size").belongs_to(&["batch.batch-size-per-rank"]),
    option("batch.batch-size-per-rank").belongs_to(&["batch.global-batch-size"]),
    option("batch.grad-accum-steps").free(),
    option("batch.batch-norm"),
    option("sync.sync"),
    option("sync.reduction").belongs_to(&["sync.sync", "sync.compress"]),
    option("sync.virtual-shards").belongs_to(&["sync.sync", "sync.reduction", "sync.compress"]),
    option("sync.overlap").free(),
    option("sync.bucket-mib").free(),
    option("sync.update").of_rank().belongs_to(&["compute.device"]),
    option("sync.compress").belongs_to(&["sync.sync", "sync.reduction"]),
    option("sync.compress-warmup-steps").belongs_to(&["sync.sync", "sync.reduction", "sync.compress"]),
    option("sync.servers").belongs_to(&["sync.sync"]).free(),
    option("sync.server-placement").belongs_to(&["sync.sync"]).free(),
    option("sync.staleness").belongs_to(&["sync.sync"]),
    option("sync.every").belongs_to(&["sync.sync"]),
    option("sync.from-step").belongs_to(&["sync.sync"]),
    option("sync.timeout").free(),
    option("sync.trace").of_rank(),
    option("optimizer.optimizer"),
    option("optimizer.learning-rate").belongs_to(&["optimizer.optimizer"]),
    option("optimizer.scale-learning-rate"),
    option("optimizer.reference-batch-size").belongs_to(&["optimizer.scale-learning-rate"]),
    option("optimizer.momentum").belongs_to(&["optimizer.optimizer"]),
    option("optimizer.nesterov").belongs_to(&["optimizer.optimizer"]),
    option("optimizer.beta1").belongs_to(&["optimizer.optimizer"]),
    option("optimizer.beta2").belongs_to(&["optimizer.optimizer"]),
    option("optimizer.epsilon").belongs_to(&["optimizer.optimizer"]),
    option("optimizer.trust-coefficient").belongs_to(&["optimizer.optimizer"]),
    option("optimizer.weight-decay").belongs_to(&["optimizer.optimizer"]),
    option("optimizer.decay-norm-and-bias").belongs_to(&["optimizer.optimizer"]),
    option("optimizer.loss"),
    option("optimizer.label-smoothing").belongs_to(&["optimizer.loss"]),
    option("optimizer.class-weights").belongs_to(&["optimizer.loss"]),
    option("optimizer.clip-grad-norm"),
    option("optimizer.freeze"),
    option("optimizer.learning-rate-factors"),
    option("optimizer.clip-grad-value"),
    option("optimizer.ema-decay"),
    option("optimizer.loss-scale").belongs_to(&["compute.dtype"]),
    option("schedule.epochs").free(),
    option("schedule.schedule-epochs").free().belongs_to(&["schedule.schedule"]),
    option("schedule.schedule"),
    option("schedule.warmup-epochs"),
    option("schedule.warmup-start-factor"),
    option("schedule.milestones").belongs_to(&["schedule.schedule"]),
    option("schedule.gamma").belongs_to(&["schedule.schedule"]),
    option("run.on-non-finite").free(),
    option("run.max-skipped-steps").free().belongs_to(&["run.on-non-finite"]),
    option("run.seed"),
    option("run.zero-gamma").free().heeded_as(ModelOption::ZeroGamma),
    option("run.weights").of_rank(),
    option("run.new-head").free().belongs_to(&["run.weights"]),
    option("run.name").of_rank(),
    option("run.output-dir").of_rank(),
    option("run.eval-every-epochs").free(),
    option("run.patience").free(),
    option("run.monitor").free(),
    option("run.checkpoint-every-epochs").free(),
    option("run.checkpoint-every-steps").free(),
    option("run.keep-checkpoints").free(),
    option("run.log-every-steps").free(),
    option("run.tensorboard").of_rank(),
    option("run.tensorboard-every").of_rank(),
    option("run.warmup-steps").free(),
    option("run.gradient-noise").free(),
    option("compute.device").of_rank(),
    option("compute.input").of_rank().belongs_to(&["compute.device"]),
    option("compute.kernels").free().heeded_as(ModelOption::Kernels),
    option("compute.dtype").heeded_as(ModelOption::Dtype),
    option("compute.convolution").free().belongs_to(&["compute.device", "compute.kernels", "compute.dtype"]).heeded_as(ModelOption::Convolution),
    option("compute.recompute").of_rank().belongs_to(&["compute.device", "compute.kernels", "compute.dtype"]).heeded_as(ModelOption::Recompute),
    option("compute.cpu").of_rank().heeded_as(ModelOption::Cpu),
    option("compute.threads").of_rank(),
];

/// Whether the row of this key says so. The flags of an own model have none: they are for all ranks and the whole run. Another key
/// without a row is none of a run's.
pub(super) fn is(key: &str, says: impl Fn(&OptionFacts) -> bool) -> bool {
    let row = OPTIONS.iter().find(|option| option.key == key).copied();
    row.or_else(|| key.starts_with("model.").then_some(option("model")))
        .is_some_and(|row| says(&row))
}

/// The flag of a key.
pub(super) fn flag(key: &str) -> String {
    format!("--{}", key.rsplit('.').next().unwrap_or(key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::cli::Cli;
    use clap::CommandFactory;

    /// The heading of `--help` over the flags of a section.
    fn heading(section: &str) -> &str {
        match section {
            "train-split" => "Train split",
            "sync" => "Synchronisation",
            _ => section,
        }
    }

    #[test]
    fn the_rows_are_the_flags_of_train_that_a_file_may_hold() {
        let cli = Cli::command();
        let train = cli.find_subcommand("train").unwrap();
        let flag = |argument: &clap::Arg| {
            Some((
                argument.get_help_heading()?.to_lowercase(),
                argument.get_long()?.to_owned(),
            ))
        };
        let flags: Vec<_> = train.get_arguments().filter_map(flag).collect();
        let row = |option: &OptionFacts| {
            let (section, key) = option.key.split_once('.').unwrap();
            (heading(section).to_lowercase(), key.to_owned())
        };
        assert_eq!(OPTIONS.iter().map(row).collect::<Vec<_>>(), flags);
    }

    #[test]
    fn what_an_option_belongs_to_is_an_option() {
        for choice in OPTIONS.iter().flat_map(|option| option.belongs_to) {
            assert!(is(choice, |_| true), "{choice}");
        }
    }
}
