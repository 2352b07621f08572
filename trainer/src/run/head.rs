//! The head of a run's log after its options.
//!
//! In: the manifest, the splits, the rule of the best model. Out: named facts. Invariant: pure.

use records::{Manifest, grouped};

use crate::run::best::BestRule;
use crate::run::directory::RunDirectory;

/// Returns the facts of a launch, by name.
pub fn facts(
    manifest: &Manifest,
    directory: Option<&RunDirectory>,
    best_rule: &BestRule,
) -> Vec<(&'static str, String)> {
    let data = &manifest.dataset;
    let launch = &manifest.launch;
    let mut samples = format!("{} train", grouped(data.num_train as u64));
    for (split, number) in [("val", data.num_val), ("test", data.num_test)] {
        if number > 0 {
            samples.push_str(&format!(", {} {split}", grouped(number as u64)));
        }
    }
    let monitor = &best_rule.monitor;
    let best = match (data.num_val > 0, data.num_test > 0) {
        (true, true) => format!(
            "by {monitor}; the test split is measured once, at the end, with the best model"
        ),
        (true, false) => format!("by {monitor}; there is no test split"),
        _ => format!("by {monitor}; the run has no val split, so the test split chooses the best"),
    };
    let mut ranks = format!(
        "{} on {}, {} threads each",
        launch.ranks,
        launch.nodes.join(", "),
        launch.threads_per_rank
    );
    if launch.ranks > 1 {
        ranks.push_str(&format!(", {}", launch.mpi_library));
    }
    let mut facts = vec![
        (
            "version",
            format!("{} ({})", manifest.version, manifest.commit),
        ),
        ("data", format!("{samples} samples")),
        ("best", best),
        ("ranks", ranks),
    ];
    if let Some(directory) = directory {
        facts.push(("output", directory.path().display().to_string()));
    }
    facts
}
