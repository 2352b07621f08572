//! The ranges and dependencies of the options of `train`.
//!
//! In: the name of a flag, which is also its key in a TOML file. Out: its range, the options on
//! which it depends, and errors.
//! Invariant: every name here is a flag (tested).

use super::error::{ConfigError, invalid, no_effect};
use super::file;
use super::{MAX_CLASSES, MAX_IMAGE_SIDE};
use datasets::rand_augment::MAX_MAGNITUDE;
use serde::Serialize;
use std::ops::RangeInclusive;
use toml::{Table, Value};

/// Options that may differ between ranks, because each machine has its own disk, CPUs and GPUs.
#[rustfmt::skip]
const OF_RANK: &[&str] = &[
    "data-dir", "download", "loader-threads", "trace", "weights", "name", "output-dir", "tensorboard",
    "tensorboard-every", "device", "input", "recompute", "cpu", "threads",
];

/// Other options that may change when a run is resumed. They change no parameters, or only the
/// order of roundings, or a warning reports the change. A longer schedule is checked separately.
#[rustfmt::skip]
const FREE: &[&str] = &[
    // The comparison of data covers the images that remain.
    "on-bad-image",
    "grad-accum-steps", "overlap", "bucket-mib", "update", "servers", "server-placement", "timeout", "epochs", "schedule-epochs",
    "on-non-finite", "max-skipped-steps", "zero-gamma", "new-head", "eval-every-epochs", "patience", "monitor",
    "checkpoint-every-epochs", "checkpoint-every-steps", "keep-checkpoints", "log-every-steps", "log-every-seconds",
    "log-steps", "verbose", "warmup-steps", "gradient-noise", "kernels", "convolution",
];

/// Options of labelled images and of their losses, which other tasks do not have.
#[rustfmt::skip]
pub(super) const OF_IMAGES: &[&str] = &[
    "dataset", "data-dir", "download", "image-size", "resolution", "eval-resize", "on-bad-image", "normalize-mean",
    "normalize-std", "shapes-test", "shapes-seed", "synthetic-test", "synthetic-classes", "limit-test", "eval-split",
    "shapes-train", "synthetic-train", "limit-train", "val-fraction", "sampler", "augment", "crop-scale", "rand-augment",
    "color-jitter", "rotation", "random-erasing", "mixup", "cutmix", "loss", "label-smoothing", "class-weights", "new-head", "num-classes",
];

/// Options whose meaning depends on other options.
pub(super) struct Dependent {
    pub(super) names: &'static [&'static str],
    /// Options on which `names` depend: a flag that changes one drops the file's values of `names`.
    pub(super) on: &'static [&'static str],
    /// Options without which `names` have no effect; empty if `names` always have one.
    needs: &'static str,
}

const fn dependent(
    names: &'static [&'static str],
    on: &'static [&'static str],
    needs: &'static str,
) -> Dependent {
    Dependent { names, on, needs }
}

const FILES: &str = "--dataset image-folder, shards or parquet";

#[rustfmt::skip]
pub(super) const DEPENDENT: &[Dependent] = &[
    dependent(&["model"], &["depth"], ""),
    dependent(&["depth"], &["model"], ""),
    dependent(&["stochastic-depth"], &["model", "depth"], ""),
    dependent(&["data-dir"], &["dataset"], "--dataset cifar10, cifar100, image-folder, shards or parquet"),
    dependent(&["download"], &["dataset"], "--dataset cifar10 or cifar100"),
    dependent(&["image-size"], &["dataset", "resolution"], "--dataset image-folder, shards, parquet or synthetic"),
    dependent(&["resolution"], &["dataset", "image-size"], FILES),
    dependent(&["eval-resize"], &["dataset", "image-size", "resolution"], "--resolution"),
    dependent(&["on-bad-image", "eval-split"], &["dataset"], FILES),
    dependent(&["shapes-test", "shapes-seed", "shapes-train"], &["dataset"], "--dataset shapes"),
    dependent(&["synthetic-test", "synthetic-classes", "synthetic-train"], &["dataset"], "--dataset synthetic"),
    dependent(&["normalize-mean", "normalize-std", "augment"], &["dataset"], ""),
    dependent(&["crop-scale", "rand-augment"], &["dataset", "augment"], "--augment resized-crop"),
    dependent(&["global-batch-size"], &["batch-size-per-rank"], ""),
    dependent(&["batch-size-per-rank"], &["global-batch-size"], ""),
    dependent(&["reduction"], &["sync", "compress"], "--sync allreduce"),
    dependent(&["virtual-shards"], &["sync", "reduction", "compress"], "--reduction exact"),
    dependent(&["compress"], &["sync", "reduction"], "--sync allreduce"),
    dependent(&["compress-warmup-steps"], &["sync", "reduction", "compress"], "--compress powersgd or topk"),
    dependent(&["servers", "server-placement"], &["sync"], "--sync parameter-server or async-parameter-server"),
    dependent(&["staleness"], &["sync"], "--sync async-parameter-server"),
    dependent(&["every"], &["sync"], "--sync local-sgd"),
    dependent(&["from-step"], &["sync"], "--sync post-local-sgd"),
    dependent(&["learning-rate"], &["optimizer"], ""),
    dependent(&["reference-batch-size"], &["scale-learning-rate"], "--scale-learning-rate"),
    dependent(&["momentum", "nesterov"], &["optimizer"], "--optimizer sgd or lars"),
    dependent(&["beta1", "beta2", "epsilon"], &["optimizer"], "--optimizer adamw or lamb"),
    dependent(&["trust-coefficient"], &["optimizer"], "--optimizer lars"),
    dependent(&["weight-decay"], &["optimizer"], "--optimizer sgd, adamw, lars or lamb"),
    dependent(&["decay-norm-and-bias"], &["optimizer"], "a --weight-decay above 0"),
    dependent(&["learning-rate-factors"], &[], "--optimizer sgd, adamw, lars or lamb"),
    dependent(&["label-smoothing", "class-weights"], &["loss"], "--loss cross-entropy"),
    dependent(&["loss-scale"], &["dtype"], ""),
    dependent(&["schedule-epochs"], &["schedule"], "--schedule cosine, one-cycle or polynomial, or a --resolution that changes"),
    dependent(&["warmup-start-factor"], &[], "warmup (--warmup-epochs above 0)"),
    dependent(&["milestones"], &["schedule"], "--schedule multistep"),
    dependent(&["gamma"], &["schedule"], "--schedule multistep or plateau"),
    dependent(&["restart-epochs", "restart-factor"], &["schedule"], "--schedule cosine-restarts"),
    dependent(&["power"], &["schedule"], "--schedule polynomial"),
    dependent(&["plateau-patience", "plateau-threshold"], &["schedule"], "--schedule plateau"),
    dependent(&["max-skipped-steps"], &["on-non-finite"], "--on-non-finite skip"),
    dependent(&["new-head"], &["weights"], "--weights"),
    dependent(&["tensorboard-every"], &[], "--tensorboard"),
    dependent(&["update", "input"], &["device"], ""),
    dependent(&["convolution", "recompute"], &["device", "kernels", "dtype"], ""),
];

/// Values that are accepted without effect, because they request nothing.
const ASKS_NOTHING: [(&str, &str); 4] = [
    ("download", "false"),
    ("compress", "none"),
    ("decay-norm-and-bias", "true"),
    ("new-head", "false"),
];

/// Options with whole numbers, and their range.
#[rustfmt::skip]
const WHOLE: [(&[&str], RangeInclusive<i64>); 7] = [
    (&["shapes-test", "shapes-train", "synthetic-test", "synthetic-train"], 1..=1 << 24),
    (&["synthetic-classes", "num-classes"], 2..=MAX_CLASSES as i64),
    (&["image-size"], 8..=MAX_IMAGE_SIDE as i64),
    (&["loader-threads"], 0..=1 << 10),
    (&["threads"], 1..=1 << 10),
    (&["plateau-patience"], 0..=i64::MAX),
    (&[
        "limit-test", "limit-train", "global-batch-size", "batch-size-per-rank", "grad-accum-steps", "servers",
        "every", "from-step", "timeout", "reference-batch-size", "epochs", "schedule-epochs", "eval-every-epochs",
        "patience", "checkpoint-every-epochs", "checkpoint-every-steps", "keep-checkpoints", "log-every-steps",
        "tensorboard-every", "steps", "restart-epochs", "restart-factor",
        "log-every-seconds",
    ], 1..=i64::MAX),
];

/// Options with numbers of a range, a description of the range, and its test.
type Fractions = (&'static [&'static str], &'static str, fn(f64) -> bool);

#[rustfmt::skip]
const FRACTIONS: [Fractions; 12] = [
    (&["learning-rate", "trust-coefficient", "clip-grad-norm", "clip-grad-value", "gamma"], "above 0", |x| x > 0.0),
    (&["momentum", "beta1", "beta2", "label-smoothing", "ema-decay", "plateau-threshold"], "from 0, below 1",
     |x| (0.0..1.0).contains(&x)),
    // A smaller value rounds to 0 in f32.
    (&["epsilon"], "above 1e-38", |x| x > 1e-38),
    (&["weight-decay"], "from 0", |x| x >= 0.0),
    (&["warmup-start-factor"], "from 0 to 1", |x| (0.0..=1.0).contains(&x)),
    (&["val-fraction"], "above 0 and below 1", |x| x > 0.0 && x < 1.0),
    (&["rand-augment"], "from 0 to 10", |x| (0.0..=MAX_MAGNITUDE).contains(&x)),
    (&["power"], "above 0 and at most 10", |x| x > 0.0 && x <= 10.0),
    (&["rotation"], "above 0 and at most 180 degrees", |x| x > 0.0 && x <= 180.0),
    (&["random-erasing"], "above 0 and at most 1", |x| x > 0.0 && x <= 1.0),
    (&["mixup", "cutmix"], "above 0 and at most 100", |x| x > 0.0 && x <= 100.0),
    (&["bucket-mib"], "from 0.001 to 4096 MiB", |x| (0.001..=4096.0).contains(&x)),
];

/// Returns the name of the flag of `section.key`, or of `--key`.
fn name(key: &str) -> &str {
    key.trim_start_matches("--")
        .rsplit('.')
        .next()
        .unwrap_or(key)
}

/// Returns true if ranks may differ in this option.
pub(super) fn is_of_rank(key: &str) -> bool {
    OF_RANK.contains(&name(key))
}

/// Returns true if a resumed run must keep this option.
pub(super) fn is_fixed(key: &str) -> bool {
    !is_of_rank(key) && !FREE.contains(&name(key))
}

/// Returns the flags of a command by name, including flags in sections.
pub(super) fn flags(table: &Table) -> impl Iterator<Item = (&str, &Value)> {
    let of_sections = table.values().filter_map(Value::as_table).flatten();
    let of_none = table.iter().filter(|(_, value)| !value.is_table());
    let all = of_none.chain(of_sections);
    all.map(|(name, value)| (name.as_str(), value))
}

/// Returns the value of a flag, in any section.
pub(super) fn get<'a>(table: &'a Table, name: &str) -> Option<&'a Value> {
    flags(table).find_map(|(flag, value)| (flag == name).then_some(value))
}

fn whole(flag: &str) -> Option<&'static RangeInclusive<i64>> {
    let row = WHOLE.iter().find(|(names, _)| names.contains(&flag));
    row.map(|(_, range)| range)
}

fn fraction(flag: &str) -> Option<&'static Fractions> {
    FRACTIONS.iter().find(|(names, ..)| names.contains(&flag))
}

fn in_words(range: &RangeInclusive<i64>) -> String {
    match (range.start(), range.end()) {
        (least, &i64::MAX) => format!("a whole number from {least}"),
        (least, most) => format!("a whole number from {least} to {most}"),
    }
}

/// Returns the range of a flag in words, if the flag has one.
pub(super) fn range_in_words(flag: &str) -> Option<String> {
    let of_fraction = || Some(format!("a number {}", fraction(flag)?.1));
    whole(flag).map(in_words).or_else(of_fraction)
}

/// Rejects numbers outside their ranges.
pub(super) fn expect_ranges(typed: &impl Serialize) -> Result<(), ConfigError> {
    let typed = file::table(typed)?;
    for (flag, value) in flags(&typed) {
        match value {
            Value::Integer(number) => {
                if let Some(range) = whole(flag).filter(|range| !range.contains(number)) {
                    return Err(invalid(format!("--{flag}"), in_words(range), number));
                }
            }
            Value::Float(number) => {
                if let Some((_, expected, accepts)) = fraction(flag) {
                    in_range(flag, *number, expected, accepts)?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Returns `value` if it is finite and `accepts` it.
pub(super) fn in_range(
    flag: &str,
    value: f64,
    expected: &str,
    accepts: impl Fn(f64) -> bool,
) -> Result<f64, ConfigError> {
    if accepts(value) && value.is_finite() {
        return Ok(value);
    }
    let finite = if accepts(value) { "finite " } else { "" };
    let expected = format!("a {finite}number {expected}");
    let got = match value.abs() {
        1e16.. => format!("{value:e}"),
        _ => value.to_string(),
    };
    Err(invalid(format!("--{flag}"), expected, got))
}

/// Rejects the first option that was `typed` and is absent from `decided`, because it has no
/// effect. Model families check their own options.
pub(super) fn expect_effect(
    typed: &impl Serialize,
    decided: &impl Serialize,
) -> Result<(), ConfigError> {
    let typed = file::table(typed)?;
    let decided = file::table(decided)?;
    for Dependent { names, needs, .. } in DEPENDENT.iter().filter(|row| !row.needs.is_empty()) {
        if let Some(name) = names.iter().find(|name| is_in_vain(name, &typed, &decided)) {
            return Err(no_effect(
                format!("--{name}"),
                format!("without {needs}"),
                format!("set {needs}, or remove --{name}"),
            ));
        }
    }
    Ok(())
}

/// Returns the first option of images that was `typed` with another value than in `plain`, the
/// decided options of a command without flags.
pub(super) fn image_option(typed: &Table, plain: &Table) -> Option<&'static str> {
    let mut options = OF_IMAGES.iter().copied();
    options.find(|name| get(typed, name).is_some_and(|value| Some(value) != get(plain, name)))
}

/// Returns true if `typed` has a value that requests something, and `decided` has none.
pub(super) fn is_in_vain(name: &str, typed: &Table, decided: &Table) -> bool {
    let asks = |value: &Value| {
        let value = value.to_string();
        !ASKS_NOTHING.contains(&(name, value.trim_matches('"')))
    };
    get(typed, name).is_some_and(asks) && get(decided, name).is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::cli::Cli;
    use clap::CommandFactory;

    #[test]
    fn every_name_in_the_tables_is_a_flag() {
        let cli = Cli::command();
        let flags: Vec<&str> = cli
            .get_subcommands()
            .flat_map(|command| command.get_arguments())
            .filter_map(|argument| argument.get_long())
            .collect();
        let dependent = DEPENDENT
            .iter()
            .flat_map(|row| row.names.iter().chain(row.on));
        let whole = WHOLE.iter().flat_map(|(names, _)| *names);
        let fractions = FRACTIONS.iter().flat_map(|(names, ..)| *names);
        let names = OF_RANK
            .iter()
            .chain(FREE)
            .chain(OF_IMAGES)
            .chain(dependent)
            .chain(whole)
            .chain(fractions);
        for name in names {
            assert!(flags.contains(name), "{name}");
        }
    }
}
