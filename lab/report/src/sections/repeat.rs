//! What runs differ in, and how each is repeated.
//!
//! In: options and manifests. Out: a table of the options that differ, a table of manifests, command and options of every run.
//! Invariant: an option on which all runs agree is not among the differences.

use super::Facts;
use crate::document::{Block, Cell, Table};
use crate::sources::Run;
use records::Manifest;
use std::collections::{BTreeMap, BTreeSet};

/// Options of no interest to a comparison: where a run was written to.
const PLACES: [&str; 2] = ["run.output-dir", "sync.trace"];

/// Most columns of runs before the table is turned over.
const MOST_COLUMNS: usize = 6;

pub(super) fn differences(facts: &Facts<'_>) -> Vec<Block> {
    let runs: Vec<(String, BTreeMap<String, String>)> = facts
        .sources
        .runs
        .iter()
        .map(|run| (run.label.clone(), options(run)))
        .filter(|(_, options)| !options.is_empty())
        .collect();
    let keys = differing(&runs);
    if runs.len() < 2 || keys.is_empty() {
        return Vec::new();
    }
    let value = |options: &BTreeMap<String, String>, key: &str| {
        options.get(key).map_or(Cell::Missing, Cell::text)
    };
    let title = "Options and launches that differ";
    let mut table = if runs.len() <= MOST_COLUMNS {
        let mut columns = vec!["option"];
        columns.extend(runs.iter().map(|(label, _)| label.as_str()));
        Table::new("differences", title, &columns)
    } else {
        let mut columns = vec!["run"];
        columns.extend(keys.iter().map(String::as_str));
        Table::new("differences", title, &columns)
    };
    if runs.len() <= MOST_COLUMNS {
        for key in &keys {
            table.push(
                [Cell::text(key.clone())]
                    .into_iter()
                    .chain(runs.iter().map(|(_, options)| value(options, key)))
                    .collect(),
            );
        }
    } else {
        for (label, options) in &runs {
            table.push(
                [Cell::text(label.clone())]
                    .into_iter()
                    .chain(keys.iter().map(|key| value(options, key)))
                    .collect(),
            );
        }
    }
    let mut words =
        "All other options are equal. Where a run was written to is left out.".to_owned();
    if facts.sources.runs.iter().any(|run| run.manifests.len() > 1) {
        words.push_str(" Of a resumed run the values of all its sessions are compared.");
    }
    vec![Block::Paragraph(words), Block::Table(table)]
}

/// Options, and the facts of all launches that count as such.
fn options(run: &Run) -> BTreeMap<String, String> {
    let mut options = run.settings_by_session();
    options.retain(|key, _| !PLACES.contains(&key.as_str()));
    type Fact = fn(&Manifest) -> String;
    let facts: [(&str, Fact); 5] = [
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
        runs.windows(2)
            .any(|pair| pair[0].1.get(*key) != pair[1].1.get(*key))
    };
    keys.into_iter().filter(differs).cloned().collect()
}

pub(super) fn blocks(facts: &Facts<'_>) -> Vec<Block> {
    let row = |run: &Run, age: usize| {
        let manifest = &run.manifests[age];
        let (launch, data) = (&manifest.launch, &manifest.dataset);
        let hash = run
            .summary
            .as_ref()
            .filter(|_| age == 0)
            .map(|summary| summary.parameter_hash.clone());
        vec![
            ("run", Cell::text(run.label.clone())),
            ("session", Cell::count((run.manifests.len() - age) as u64)),
            ("started", Cell::text(manifest.started.clone())),
            ("version", Cell::text(manifest.version.clone())),
            ("commit", Cell::text(manifest.commit.clone())),
            ("configuration", Cell::text(manifest.config_hash.clone())),
            ("ranks", Cell::count(launch.ranks as u64)),
            ("threads", Cell::count(launch.threads_per_rank as u64)),
            ("nodes", Cell::text(launch.nodes.join(" "))),
            (
                "processor",
                Cell::text(format!(
                    "{} ({} to use)",
                    manifest.cpu_model, manifest.cpu_count
                )),
            ),
            ("platform", Cell::text(manifest.platform.clone())),
            ("communication", Cell::text(launch.mpi_library.clone())),
            ("device", Cell::text(launch.device.clone())),
            (
                "data",
                Cell::text(format!(
                    "{}, {} train, {} val, {} test",
                    data.name, data.num_train, data.num_val, data.num_test
                )),
            ),
            ("train checksum", Cell::text(data.train_checksum.clone())),
            (
                "val checksum",
                data.val_checksum.clone().map_or(Cell::Missing, Cell::Text),
            ),
            ("test checksum", Cell::text(data.test_checksum.clone())),
            ("parameters", hash.map_or(Cell::Missing, Cell::Text)),
        ]
    };
    let sessions = facts
        .sources
        .runs
        .iter()
        .flat_map(|run| (0..run.manifests.len()).map(move |age| (run, age)));
    let table = Table::of(
        "manifests",
        "Manifests",
        sessions.map(|(run, age)| row(run, age)),
    );
    let mut blocks = Vec::new();
    if !table.rows.is_empty() {
        blocks.push(Block::Paragraph(
            "With the commit checked out and the data of the same checksum, the command gives the run again; so does `trainer train --config run.toml --output-dir NEW` on as many ranks.".to_owned(),
        ));
        blocks.push(Block::Table(table));
    }
    blocks.extend(facts.sources.runs.iter().filter_map(recipe));
    blocks
}

/// Commands of all sessions and the options as resolved.
fn recipe(run: &Run) -> Option<Block> {
    let mut text = String::new();
    for manifest in run.manifests.iter().rev() {
        let ranks = manifest.launch.ranks;
        text.push_str(&format!(
            "# commit {}, {}, {}\n",
            manifest.commit,
            records::counted(ranks, "rank"),
            manifest.started
        ));
        let words: Vec<String> = manifest.command_line.iter().map(records::quoted).collect();
        let launcher = if ranks > 1 {
            format!("mpirun -n {ranks} ")
        } else {
            String::new()
        };
        text.push_str(&format!("{launcher}{}\n\n", words.join(" ")));
    }
    if !run.toml.is_empty() {
        text.push_str(&format!("# run.toml\n{}", run.toml));
    }
    (!text.is_empty())
        .then(|| Block::FoldedText(format!("{}: command and options", run.label), text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_options_that_differ_are_told() {
        let options = |pairs: &[(&str, &str)]| {
            pairs
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect()
        };
        let runs = [
            ("a".to_owned(), options(&[("x", "1"), ("y", "2")])),
            (
                "b".to_owned(),
                options(&[("x", "1"), ("y", "3"), ("z", "4")]),
            ),
        ];
        assert_eq!(differing(&runs), ["y", "z"]);
    }

    #[test]
    fn runs_differ_in_the_ranks_of_any_of_their_sessions() {
        let run = |ranks: &[usize]| {
            // The newest session comes first.
            let launch = |ranks: &usize| records::LaunchFacts {
                ranks: *ranks,
                ..records::LaunchFacts::default()
            };
            let manifest = |ranks| Manifest {
                launch: launch(ranks),
                ..Manifest::default()
            };
            Run {
                manifests: ranks.iter().rev().map(manifest).collect(),
                ..Run::default()
            }
        };
        let of = |ranks: &[usize]| options(&run(ranks))["launch.ranks"].clone();
        assert_eq!(
            [of(&[1]), of(&[2, 2]), of(&[2, 2, 1, 2])],
            ["1", "2", "2, then 1, then 2"]
        );
        let runs = [&[1][..], &[2, 1]].map(|ranks| ("run".to_owned(), options(&run(ranks))));
        assert_eq!(differing(&runs), ["launch.ranks"]);
    }
}
