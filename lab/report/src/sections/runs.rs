//! Differences between runs, and how to repeat each run.
//!
//! In: options and manifests. Out: a table of the differing options, a table of manifests, command and options of every
//! run. Invariant: an option with the same value in all runs is not among the differences.

use super::Facts;
use crate::document::{Cell, Content, NamedRow, Table, row};
use crate::sources::Run;
use records::Manifest;
use std::collections::{BTreeMap, BTreeSet};

/// Options that only name files to write.
const PLACES: [&str; 2] = ["run.output-dir", "sync.trace"];

/// Most runs with a column each; more runs have a row each.
const MOST_COLUMNS: usize = 6;

pub(super) fn differences(facts: &Facts<'_>) -> Vec<Content> {
    let runs = facts
        .sources
        .runs
        .iter()
        .map(|run| (run.label.clone(), options(run)));
    let runs: Vec<(String, BTreeMap<String, String>)> =
        runs.filter(|(_, options)| !options.is_empty()).collect();
    let keys = differing(&runs);
    if runs.len() < 2 || keys.is_empty() {
        return Vec::new();
    }
    let value = |options: &BTreeMap<String, String>, key: &str| Cell::from(options.get(key));
    let labels = runs.iter().map(|(label, _)| label.clone());
    let has_column_per_run = runs.len() <= MOST_COLUMNS;
    let mut columns = vec![if has_column_per_run { "option" } else { "run" }.to_owned()];
    if has_column_per_run {
        columns.extend(labels);
    } else {
        columns.extend(keys.iter().cloned());
    }
    let mut table = Table::with_columns("differences", "Options and launches that differ", columns);
    if has_column_per_run {
        for key in &keys {
            let values = runs.iter().map(|(_, options)| value(options, key));
            table.push(std::iter::once(Cell::from(key)).chain(values).collect());
        }
    } else {
        for (label, options) in &runs {
            let values = keys.iter().map(|key| value(options, key));
            table.push(std::iter::once(Cell::from(label)).chain(values).collect());
        }
    }
    let mut words = "All other options are equal. Output directories are not compared.".to_owned();
    if facts.sources.runs.iter().any(|run| run.manifests.len() > 1) {
        words.push_str(" The values of all sessions of a resumed run are compared.");
    }
    vec![Content::Paragraph(words), Content::Table(table)]
}

/// Returns the options of all sessions, and the facts of the launch that are compared like options.
fn options(run: &Run) -> BTreeMap<String, String> {
    let mut options = run.settings_by_session();
    options.retain(|key, _| !PLACES.contains(&key.as_str()));
    type Fact = (&'static str, fn(&Manifest) -> String);
    let facts: [Fact; 5] = [
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
    if !run.manifests.is_empty() {
        options.extend(facts.map(|(name, value)| (name.to_owned(), run.by_session(value))));
    }
    options
}

fn differing(runs: &[(String, BTreeMap<String, String>)]) -> Vec<String> {
    let keys: BTreeSet<&String> = runs
        .iter()
        .flat_map(|(_, options)| options.keys())
        .collect();
    let differs = |key: &&String| {
        runs.iter()
            .any(|(_, options)| options.get(*key) != runs[0].1.get(*key))
    };
    keys.into_iter().filter(differs).cloned().collect()
}

pub(super) fn manifests(facts: &Facts<'_>) -> Vec<Content> {
    let runs = &facts.sources.runs;
    let sessions = runs
        .iter()
        .flat_map(|run| (0..run.manifests.len()).map(|age| of_session(run, age)));
    let table = Table::new("manifests", "Manifests", sessions);
    let mut contents = Vec::new();
    if !table.rows.is_empty() {
        contents.push(Content::Paragraph(
            "With this commit checked out and data of the same checksum, the command repeats the run; so does `trainer train --config run.toml --output-dir NEW` on the same number of ranks.".to_owned(),
        ));
    }
    contents.extend(Content::table(table));
    contents.extend(runs.iter().filter_map(recipe));
    contents
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
        "version" => &manifest.version,
        "commit" => &manifest.commit,
        "configuration" => &manifest.config_hash,
        "ranks" => launch.ranks,
        "threads" => launch.threads_per_rank,
        "nodes" => launch.nodes.join(" "),
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
fn recipe(run: &Run) -> Option<Content> {
    let mut text = String::new();
    for manifest in run.manifests.iter().rev() {
        let ranks = manifest.launch.ranks;
        let words: Vec<String> = manifest.command_line.iter().map(records::quoted).collect();
        let launcher = if ranks > 1 {
            format!("mpirun -n {ranks} ")
        } else {
            String::new()
        };
        text.push_str(&format!(
            "# commit {}, {}, {}\n{launcher}{}\n\n",
            manifest.commit,
            records::counted(ranks, "rank"),
            manifest.started,
            words.join(" ")
        ));
    }
    if !run.toml.is_empty() {
        text.push_str(&format!("# run.toml\n{}", run.toml));
    }
    let summary = format!("{}: command and options", run.label);
    (!text.is_empty()).then_some(Content::FoldedText(summary, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_options_that_differ_are_listed() {
        let run = |pairs: &[(&str, &str)]| {
            let options = pairs
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
            ("run".to_owned(), options.collect())
        };
        let runs = [
            run(&[("x", "1"), ("y", "2")]),
            run(&[("x", "1"), ("y", "3"), ("z", "4")]),
        ];
        assert_eq!(differing(&runs), ["y", "z"]);
    }

    #[test]
    fn runs_differ_in_the_ranks_of_any_of_their_sessions() {
        // The newest session comes first.
        let of_ranks = |ranks: &[usize]| {
            let mut run = Run::default();
            for ranks in ranks.iter().rev() {
                run.manifests.push(Manifest::default());
                if let Some(manifest) = run.manifests.last_mut() {
                    manifest.launch.ranks = *ranks;
                }
            }
            options(&run)
        };
        for (ranks, expected) in [
            (&[1][..], "1"),
            (&[2, 2], "2"),
            (&[2, 2, 1, 2], "2, then 1, then 2"),
        ] {
            assert_eq!(of_ranks(ranks)["launch.ranks"], expected);
        }
        let runs = [&[1][..], &[2, 1]].map(|ranks| ("run".to_owned(), of_ranks(ranks)));
        assert_eq!(differing(&runs), ["launch.ranks"]);
    }
}
