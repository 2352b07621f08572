//! What the head of a run's log says beside its options.
//!
//! In: the manifest, the splits, the rule of the best model. Out: named facts. Invariant: pure.

use anyhow::{Error, Result};
use datasets::{DatasetSplits, class_sizes};
use records::{DatasetFacts, Manifest};

use crate::config::{LossChoice, TrainConfig};
use crate::run::best::BestRule;
use crate::run::run_files::RunFiles;

/// One weight a class, where classes have weights.
pub fn class_weights(config: &TrainConfig, data: &DatasetSplits) -> Result<Option<Vec<f64>>> {
    match &config.optimizer.loss {
        LossChoice::CrossEntropy {
            class_weights: Some(weights),
            ..
        } => weights
            .of(&class_sizes(&*data.train))
            .map(Some)
            .map_err(Error::msg),
        _ => Ok(None),
    }
}

/// The manifest's lines for the head of the log.
pub fn facts(
    manifest: &Manifest,
    files: &RunFiles,
    best_rule: &BestRule,
    class_weights: Option<&[f64]>,
) -> Vec<(&'static str, String)> {
    let DatasetFacts {
        num_train,
        num_val,
        num_test,
        ..
    } = manifest.dataset;
    let [with_val, with_test] = [num_val > 0, num_test > 0];
    let mut data = format!("{num_train} train");
    if with_val {
        data.push_str(&format!(", {num_val} val"));
    }
    if with_test {
        data.push_str(&format!(", {num_test} test"));
    }
    let monitor = &best_rule.monitor;
    let best = match (with_val, with_test) {
        (true, true) => format!(
            "by {monitor}; the test split is measured once, at the end, with the best model"
        ),
        (true, false) => format!("by {monitor}; there is no test split"),
        _ => format!(
            "by {monitor}; this run uses no val split, so the test split chooses the best model"
        ),
    };
    let weights = class_weights.map(|weights| {
        let shown: Vec<String> = weights
            .iter()
            .take(10)
            .map(|weight| format!("{weight:.4}"))
            .collect();
        let more = weights.len() - shown.len();
        shown.join(" ")
            + &if more > 0 {
                format!(" and {more} more")
            } else {
                String::new()
            }
    });
    let output = files
        .directory()
        .map(|directory| directory.path().display().to_string());
    let mut facts = vec![
        (
            "version",
            format!("{} ({})", manifest.version, manifest.commit),
        ),
        ("data", format!("{data} images")),
        ("best", best),
        ("checksum", manifest.dataset.train_checksum.clone()),
        (
            "ranks",
            format!(
                "{} on {}",
                manifest.launch.ranks,
                manifest.launch.nodes.join(", ")
            ),
        ),
        (
            "threads per rank",
            manifest.launch.threads_per_rank.to_string(),
        ),
        ("communication", manifest.launch.mpi_library.clone()),
        ("processor", manifest.cpu_model.clone()),
        ("output", output.unwrap_or_default()),
    ];
    facts.extend(weights.map(|weights| ("class weights", weights)));
    facts
}
