//! Differences between runs, and how to repeat each run.
//!
//! In: options and manifests. Out: a table of the differing options, a table of manifests, command
//! and options of every run.
//! Invariant: an option with the same value in all runs is not among the differences.

use super::Facts;
use crate::document::{Cell, NamedRow, Section, row};
use crate::sources::Run;
use records::Manifest;
use std::collections::{BTreeMap, BTreeSet};

/// Options that only name files to write.
const PLACES: [&str; 2] = ["run.output-dir", "sync.trace"];

type Fact = fn(&Manifest) -> String;

/// Facts of the launch that are compared like options.
const FACTS: [(&str, Fact); 5] = [
    ("launch.ranks", |manifest| manifest.launch.ranks.to_string()),
    ("launch.threads-per-rank", |manifest| {
        manifest.launch.threads_per_rank.to_string()
    }),
    ("launch.nodes", |manifest| manifest.launch.nodes.join(" ")),
    ("program.commit", |manifest| manifest.commit.clone()),
    ("data.train-checksum", |manifest| {
        manifest.dataset.train_checksum.clone()
    }),
];

pub(super) fn differences(facts: &Facts<'_>, section: &mut Section) {
    let runs = facts.sources.runs.iter();
    let runs = runs.map(|run| (&run.label, options(run)));
    let runs: Vec<(&String, BTreeMap<String, String>)> =
        runs.filter(|(_, options)| !options.is_empty()).collect();
    let keys: BTreeSet<&String> = runs
        .iter()
        .flat_map(|(_, options)| options.keys())
        .collect();
    let differs = |key: &&String| {
        let mut values = runs.iter().map(|(_, options)| options.get(*key));
        values.any(|value| value != runs[0].1.get(*key))
    };
    let rows = keys.into_iter().filter(differs).map(|key| {
        let mut row = row!["option" => key];
        let runs = runs.iter();
        row.extend(runs.map(|(label, options)| ((*label).clone(), Cell::from(options.get(key)))));
        row
    });
    let rows: Vec<NamedRow> = rows.collect();
    if rows.is_empty() {
        return;
    }
    section.text(
        "All other options are equal. Output directories are not compared. The values of all sessions of a resumed run are compared.",
    );
    section.table("differences", "Options and launches that differ", rows);
}

/// Returns the options and facts of all sessions.
pub(super) fn options(run: &Run) -> BTreeMap<String, String> {
    let mut options = run.settings_by_session();
    options.retain(|key, _| !PLACES.contains(&key.as_str()));
    if !run.manifests.is_empty() {
        options.extend(FACTS.map(|(name, fact)| (name.to_owned(), run.by_session(fact))));
    }
    options
}

pub(super) fn manifests(facts: &Facts<'_>, section: &mut Section) {
    let runs = &facts.sources.runs;
    if runs.iter().any(|run| !run.manifests.is_empty()) {
        section.text("With this commit checked out and data of the same checksum, the command repeats a run that was not resumed. So does trainer train --config run.toml --output-dir NEW on the same number of ranks.");
    }
    let sessions = runs
        .iter()
        .flat_map(|run| (0..run.manifests.len()).map(|age| of_session(run, age)));
    section.table("sessions", "Sessions", sessions);
    for run in runs {
        let text = recipe(run);
        if !text.is_empty() {
            section.fold(format!("{}: command and options", run.label), text);
        }
    }
}

/// Returns the manifest of a session; the newest has age 0.
fn of_session(run: &Run, age: usize) -> NamedRow {
    let manifest = &run.manifests[age];
    let launch = &manifest.launch;
    let data = &manifest.dataset;
    let counts =
        [data.num_train, data.num_val, data.num_test].map(|count| records::grouped(count as u64));
    let summary = run.summary.as_ref().filter(|_| age == 0);
    row![
        "run" => &run.label,
        "session" => run.manifests.len() - age,
        "started" => &manifest.started,
        "ranks" => launch.ranks,
        "threads" => launch.threads_per_rank,
        "nodes" => launch.nodes.join(" "),
        "version" => &manifest.version,
        "commit" => &manifest.commit,
        "configuration" => &manifest.config_hash,
        "CPU" => format!("{} ({} usable)", manifest.cpu_model, manifest.cpu_count),
        "platform" => &manifest.platform,
        "communication" => &launch.mpi_library,
        "device" => &launch.device,
        "data" => format!("{}, {} train, {} val, {} test", data.name, counts[0], counts[1], counts[2]),
        "train checksum" => &data.train_checksum,
        "val checksum" => data.val_checksum.as_ref(),
        "test checksum" => &data.test_checksum,
        "parameters" => summary.map(|summary| &summary.parameter_hash),
    ]
}

/// Returns the commands of all sessions and the resolved options.
fn recipe(run: &Run) -> String {
    let mut text = String::new();
    for manifest in run.manifests.iter().rev() {
        let ranks = manifest.launch.ranks;
        let launcher = match ranks > 1 {
            true => format!("mpirun -n {ranks} "),
            false => String::new(),
        };
        text.push_str(&format!(
            "# commit {}, {}, {}\n{launcher}{}\n\n",
            manifest.commit,
            records::counted(ranks, "rank"),
            manifest.started,
            records::quoted_line(&manifest.command_line)
        ));
    }
    if !run.toml.is_empty() {
        text.push_str(&format!("# run.toml\n{}", run.toml));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::Content;
    use crate::sources::Sources;

    #[test]
    fn only_options_that_differ_in_any_session_are_listed() {
        // The newest session comes first.
        let run = |label: &str, ranks: &[usize], seed: &str| {
            let manifest = |ranks: &usize| {
                let mut manifest = Manifest::default();
                manifest.launch.ranks = *ranks;
                manifest
            };
            let options = [("run.seed", seed), ("run.epochs", "2"), (PLACES[0], label)];
            let options = options.map(|(key, value)| (key.to_owned(), value.to_owned()));
            Run {
                label: label.to_owned(),
                manifests: ranks.iter().rev().map(manifest).collect(),
                settings: vec![options.into()],
                ..Run::default()
            }
        };
        let sources = Sources {
            runs: vec![run("a", &[1], "0"), run("b", &[2, 2, 1, 2], "1")],
            ..Sources::default()
        };
        let mut section = Section::new("", "");
        differences(&Facts::new(&sources, None), &mut section);
        let [_, Content::Table(table)] = &section.contents[..] else {
            panic!("{section:?}")
        };
        let expected = "option,a,b\nlaunch.ranks,1,\"2, then 1, then 2\"\nrun.seed,0,1\n";
        assert_eq!(table.to_csv(), expected);
    }
}
