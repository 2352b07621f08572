//! The facts of each option of `train` besides its flag: one row an option.
//!
//! In: nothing. Out: [`OPTIONS`]; a refusal of options without effect.
//! Invariant: the rows are the flags of `trainer train` that a TOML file may hold, in the order of
//! `--help` (tested), with those of residual networks.

use super::checks::no_effect;
use super::error::ConfigError;
use super::family::ModelOption;
use super::file;
use serde::Serialize;
use toml::{Table, Value};

/// The facts of an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OptionFacts {
    /// `section.key` as in the TOML file; the key is the flag.
    pub key: &'static str,
    /// The ranks that must agree on it.
    pub scope: Scope,
    /// Permission to change when a run is resumed.
    pub on_resume: OnResume,
    /// Choices that give it its meaning: a flag that changes one of them drops the file's value.
    pub belongs_to: &'static [&'static str],
    /// The option of a model family that it is, if not all families support it.
    pub model_option: Option<ModelOption>,
    /// Options without which it has no effect.
    needs: &'static str,
    /// A value that needs no effect, because it asks for nothing.
    unless: &'static str,
}

/// The ranks that must agree on an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// All ranks.
    World,
    /// None: each machine has its own disk, CPUs and GPUs.
    Rank,
}

/// Permission of an option to change when a run is resumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnResume {
    /// No: it changes the course of the parameters.
    Fixed,
    /// Yes: it does not move the parameters, or only in the order of roundings, or a warning
    /// reports that it does. A longer schedule is checked separately.
    Free,
}

const fn option(key: &'static str) -> OptionFacts {
    OptionFacts {
        key,
        scope: Scope::World,
        on_resume: OnResume::Fixed,
        belongs_to: &[],
        model_option: None,
        needs: "",
        unless: "",
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

    const fn of_family(self, option: ModelOption) -> Self {
        Self {
            model_option: Some(option),
            ..self
        }
    }

    const fn needs(self, needs: &'static str) -> Self {
        Self { needs, ..self }
    }

    const fn unless(self, unless: &'static str) -> Self {
        Self { unless, ..self }
    }
}

const FILES: &str = "--dataset image-folder, shards or parquet";
const FILES_OR_CIFAR: &str = "--dataset cifar10, cifar100, image-folder, shards or parquet";
const SHAPES: &str = "--dataset shapes";
const SYNTHETIC: &str = "--dataset synthetic";
const ALLREDUCE: &str = "--sync allreduce";
const SERVERS: &str = "--sync parameter-server or async-parameter-server";
const BUILT_IN: &str = "--optimizer sgd, adamw, lars or lamb";
const MOMENTUM: &str = "--optimizer sgd or lars";
const MOMENTS: &str = "--optimizer adamw or lamb";

/// All options.
#[rustfmt::skip]
pub(crate) const OPTIONS: &[OptionFacts] = &[
    option("model.model").belongs_to(&["model.depth"]),
    option("model.depth").belongs_to(&["model.model"]),
    option("model.shortcut"),
    option("data.dataset"),
    option("data.data-dir").of_rank().belongs_to(&["data.dataset"]).needs(FILES_OR_CIFAR),
    option("data.download").of_rank().belongs_to(&["data.dataset"]).needs("--dataset cifar10 or cifar100").unless("false"),
    option("data.image-size").belongs_to(&["data.dataset", "data.resolution"]).needs("--dataset image-folder, shards, parquet or synthetic"),
    option("data.resolution").belongs_to(&["data.dataset", "data.image-size"]).needs(FILES),
    option("data.eval-resize").belongs_to(&["data.dataset", "data.image-size", "data.resolution"]).needs("--resolution"),
    // The images that are left are compared as other data are.
    option("data.on-bad-image").free().belongs_to(&["data.dataset"]).needs(FILES),
    option("data.normalize-mean").belongs_to(&["data.dataset"]),
    option("data.normalize-std").belongs_to(&["data.dataset"]),
    option("data.shapes-test").belongs_to(&["data.dataset"]).needs(SHAPES),
    option("data.shapes-seed").belongs_to(&["data.dataset"]).needs(SHAPES),
    option("data.synthetic-test").belongs_to(&["data.dataset"]).needs(SYNTHETIC),
    option("data.synthetic-classes").belongs_to(&["data.dataset"]).needs(SYNTHETIC),
    option("data.limit-test"),
    option("data.eval-split").belongs_to(&["data.dataset"]).needs(FILES),
    option("data.loader-threads").of_rank(),
    option("train-split.shapes-train").belongs_to(&["data.dataset"]).needs(SHAPES),
    option("train-split.synthetic-train").belongs_to(&["data.dataset"]).needs(SYNTHETIC),
    option("train-split.limit-train"),
    option("train-split.val-fraction"),
    option("train-split.sampler"),
    option("train-split.augment").belongs_to(&["data.dataset"]),
    option("train-split.crop-scale").belongs_to(&["data.dataset", "train-split.augment"]).needs("--augment resized-crop"),
    option("train-split.rand-augment").belongs_to(&["data.dataset", "train-split.augment"]).needs("--augment resized-crop"),
    option("train-split.mixup"),
    option("train-split.cutmix"),
    option("train-split.drop-last"),
    option("batch.global-batch-size").belongs_to(&["batch.batch-size-per-rank"]),
    option("batch.batch-size-per-rank").belongs_to(&["batch.global-batch-size"]),
    option("batch.grad-accum-steps").free(),
    option("batch.batch-norm"),
    option("sync.sync"),
    option("sync.reduction").belongs_to(&["sync.sync", "sync.compress"]).needs(ALLREDUCE),
    option("sync.virtual-shards").belongs_to(&["sync.sync", "sync.reduction", "sync.compress"]).needs("--reduction exact"),
    option("sync.overlap").free(),
    option("sync.bucket-mib").free(),
    option("sync.update").of_rank().belongs_to(&["compute.device"]),
    option("sync.compress").belongs_to(&["sync.sync", "sync.reduction"]).needs(ALLREDUCE).unless("none"),
    option("sync.compress-warmup-steps").belongs_to(&["sync.sync", "sync.reduction", "sync.compress"]).needs("--compress powersgd or topk"),
    option("sync.servers").belongs_to(&["sync.sync"]).free().needs(SERVERS),
    option("sync.server-placement").belongs_to(&["sync.sync"]).free().needs(SERVERS),
    option("sync.staleness").belongs_to(&["sync.sync"]).needs("--sync async-parameter-server"),
    option("sync.every").belongs_to(&["sync.sync"]).needs("--sync local-sgd"),
    option("sync.from-step").belongs_to(&["sync.sync"]).needs("--sync post-local-sgd"),
    option("sync.timeout").free(),
    option("sync.trace").of_rank(),
    option("optimizer.optimizer"),
    option("optimizer.learning-rate").belongs_to(&["optimizer.optimizer"]),
    option("optimizer.scale-learning-rate"),
    option("optimizer.reference-batch-size").belongs_to(&["optimizer.scale-learning-rate"]).needs("--scale-learning-rate"),
    option("optimizer.momentum").belongs_to(&["optimizer.optimizer"]).needs(MOMENTUM),
    option("optimizer.nesterov").belongs_to(&["optimizer.optimizer"]).needs(MOMENTUM),
    option("optimizer.beta1").belongs_to(&["optimizer.optimizer"]).needs(MOMENTS),
    option("optimizer.beta2").belongs_to(&["optimizer.optimizer"]).needs(MOMENTS),
    option("optimizer.epsilon").belongs_to(&["optimizer.optimizer"]).needs(MOMENTS),
    option("optimizer.trust-coefficient").belongs_to(&["optimizer.optimizer"]).needs("--optimizer lars"),
    option("optimizer.weight-decay").belongs_to(&["optimizer.optimizer"]).needs(BUILT_IN),
    option("optimizer.decay-norm-and-bias").belongs_to(&["optimizer.optimizer"]).needs("a --weight-decay above 0").unless("true"),
    option("optimizer.loss"),
    option("optimizer.label-smoothing").belongs_to(&["optimizer.loss"]).needs("--loss cross-entropy"),
    option("optimizer.class-weights").belongs_to(&["optimizer.loss"]).needs("--loss cross-entropy"),
    option("optimizer.clip-grad-norm"),
    option("optimizer.freeze"),
    option("optimizer.learning-rate-factors").needs(BUILT_IN),
    option("optimizer.clip-grad-value"),
    option("optimizer.ema-decay"),
    option("optimizer.loss-scale").belongs_to(&["compute.dtype"]),
    option("schedule.epochs").free(),
    option("schedule.schedule-epochs").free().belongs_to(&["schedule.schedule"]).needs("--schedule cosine or one-cycle, or a --resolution that changes"),
    option("schedule.schedule"),
    option("schedule.warmup-epochs"),
    option("schedule.warmup-start-factor").needs("warmup (--warmup-epochs above 0)"),
    option("schedule.milestones").belongs_to(&["schedule.schedule"]).needs("--schedule multistep"),
    option("schedule.gamma").belongs_to(&["schedule.schedule"]).needs("--schedule multistep"),
    option("run.on-non-finite").free(),
    option("run.max-skipped-steps").free().belongs_to(&["run.on-non-finite"]).needs("--on-non-finite skip"),
    option("run.seed"),
    option("run.zero-gamma").free().of_family(ModelOption::ZeroGamma),
    option("run.weights").of_rank(),
    option("run.new-head").free().belongs_to(&["run.weights"]).needs("--weights").unless("false"),
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
    option("run.tensorboard-every").of_rank().needs("--tensorboard"),
    option("run.warmup-steps").free(),
    option("run.gradient-noise").free(),
    option("compute.device").of_rank(),
    option("compute.input").of_rank().belongs_to(&["compute.device"]),
    option("compute.kernels").free().of_family(ModelOption::Kernels),
    option("compute.dtype").of_family(ModelOption::Dtype),
    option("compute.convolution").free().belongs_to(&["compute.device", "compute.kernels", "compute.dtype"]).of_family(ModelOption::Convolution),
    option("compute.recompute").of_rank().belongs_to(&["compute.device", "compute.kernels", "compute.dtype"]).of_family(ModelOption::Recompute),
    option("compute.cpu").of_rank().of_family(ModelOption::Cpu),
    option("compute.threads").of_rank(),
];

/// Returns true if the row of this key `says` so. Flags of custom models have no row: they are for
/// all ranks and the whole run. Other keys without a row are not part of a run.
pub(super) fn is(key: &str, says: impl Fn(&OptionFacts) -> bool) -> bool {
    let row = OPTIONS.iter().find(|option| option.key == key).copied();
    row.or_else(|| key.starts_with("model.").then_some(option("model")))
        .is_some_and(|row| says(&row))
}

/// Refuses the first option that was `typed` and is absent from what was `decided`, since it has no
/// effect. Options of model families are left to them.
pub(super) fn expect_effect(
    typed: &impl Serialize,
    decided: &impl Serialize,
) -> Result<(), ConfigError> {
    let typed = file::table(typed)?;
    let decided = file::table(decided)?;
    let mut vain = OPTIONS.iter().filter(|option| !option.needs.is_empty());
    match vain.find(|option| option.is_in_vain(&typed, &decided)) {
        None => Ok(()),
        Some(OptionFacts { key, needs, .. }) => Err(no_effect(
            flag(key),
            format!("without {needs}"),
            format!("set {needs}, or remove {}", flag(key)),
        )),
    }
}

impl OptionFacts {
    /// Returns true if `typed` has a value that asks for something, and `decided` has none.
    pub(super) fn is_in_vain(&self, typed: &Table, decided: &Table) -> bool {
        let asks = |value: &Value| value.to_string().trim_matches('"') != self.unless;
        file::get(typed, self.key).is_some_and(asks) && file::get(decided, self.key).is_none()
    }
}

/// Returns the flag of a key.
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
