//! `cargo xtask tidy`: the rules of this workspace that no compiler checks.
//!
//! In: sources, manifests, pages, scripts. Out: `file:line: message` for each broken rule.
//! Invariant: a rule only reads text, so that tidy is fast enough for `cargo test`.

mod figures;
mod imports;
mod language;
mod links;
mod places;
mod route;
mod shape;
mod text;

use std::fs;
use std::path::Path;

use crate::cargo;
use clap::Args;
use cluster::failure::{Outcome, failed, usage};
use cluster::process;
use text::File;

const DETAILS: &str = "\
Checks headers, length of files and functions, names, imports between crates, and the places where
environment variables and unsafe may stand. Links in pages lead to files in git and to existing
headings; every page of docs/ is a chapter of docs/SUMMARY.md, and has no measured figure outside of
blocks made from docs/results. Prose follows \"Language\" in
CONTRIBUTING.md, and the routes in ARCHITECTURE.md lead to functions.

A file of more than 800 lines needs a line `// tidy: long file because …` near its top; tidy prints
the reason. A function of more than 120 lines needs `// tidy: long function because …` before it.

With paths, tidy prints the findings below these only.";

/// Flags of `cargo xtask tidy`.
#[derive(Debug, Args)]
#[command(after_help = DETAILS)]
pub(crate) struct TidyArgs {
    /// Files or folders to check; default: the workspace
    paths: Vec<String>,
}

/// A broken rule at a place.
#[derive(Debug, PartialEq)]
struct Finding {
    /// Number of the line, from 1.
    line: usize,
    message: String,
}

impl Finding {
    /// Makes a finding from the index of a line, counted from 0.
    fn at(index: usize, message: impl Into<String>) -> Self {
        Finding {
            line: index + 1,
            message: message.into(),
        }
    }
}

type Rule = fn(&File, &[File]) -> Vec<Finding>;

/// Rules about a file among all files.
const RULES: [Rule; 10] = [
    |file, _| shape::has_a_header_and_a_length(file),
    |file, _| shape::functions_are_short_or_have_a_reason(file),
    |file, _| shape::names_have_a_meaning(file),
    |file, _| places::items_are_in_their_places(file),
    |file, _| places::unsafe_has_a_reason(file),
    |file, _| figures::come_from_results(file),
    |file, _| imports::manifest_follows_the_map(file),
    links::broken_links,
    links::is_in_the_book,
    route::leads_to_functions,
];

impl TidyArgs {
    pub(crate) fn run(&self) -> Outcome {
        run(&self.paths)
    }
}

/// Checks the files below `places`; without places, the workspace.
pub(crate) fn run(places: &[String]) -> Outcome {
    let files = files();
    let has_no_file = |place: &&String| !files.iter().any(|file| is_in(&file.path, place));
    if let Some(unknown) = places.iter().find(has_no_file) {
        return Err(usage!(
            "tidy: no file of the repository below {unknown}. Give a path from its root."
        ));
    }
    for file in &files {
        if let Some(reason) = shape::reason_for_length(file) {
            println!("{}: long, because {reason}", file.path);
        }
    }
    let findings = findings(&files, places);
    if findings.is_empty() {
        println!("tidy: {} files", files.len());
        return Ok(());
    }
    Err(failed!(
        "{} rules broken:\n{}",
        findings.len(),
        findings.join("\n")
    ))
}

fn is_in(path: &str, place: &str) -> bool {
    Path::new(path).starts_with(place.trim_start_matches("./"))
}

/// Returns all findings below `places`; without places, of all files and of commits.
fn findings(files: &[File], places: &[String]) -> Vec<String> {
    let mut findings = Vec::new();
    let is_meant =
        |file: &&File| places.is_empty() || places.iter().any(|place| is_in(&file.path, place));
    for file in files.iter().filter(is_meant) {
        let found = RULES.iter().flat_map(|rule| rule(file, files));
        let found = found.chain(language::is_plain(file));
        let path = &file.path;
        findings.extend(found.map(|Finding { line, message }| format!("{path}:{line}: {message}")));
    }
    if places.is_empty() {
        findings.extend(language::long_subjects(&subjects()));
    }
    findings
}

/// Returns the last 30 commits since the rule for subjects; empty without a repository of git.
fn subjects() -> String {
    let root = cargo::root().to_string_lossy();
    let words = ["-C", &root, "log", "--no-merges", "-n30", "--format=%h %s"];
    let words = [&words[..], &["--since=2026-11-28T07:10:00Z"]].concat();
    process::answer("git", &words).unwrap_or_default()
}

/// Reads the files that git does not ignore; without a repository, all files outside of `target`.
fn files() -> Vec<File> {
    let root = cargo::root().to_string_lossy();
    let listed = ["-C", &root, "ls-files", "-co", "--exclude-standard"];
    let find = [&root, "-type", "f", "-not", "-path", "*/target/*"];
    let paths = process::answer("git", &listed).or_else(|| process::answer("find", &find));
    let paths = paths.unwrap_or_default();
    let mut paths: Vec<&str> = paths.lines().collect();
    paths.sort_unstable();
    let read = |path: &str| {
        let absolute = cargo::root().join(path);
        // Other files, such as images and archives, have an empty text.
        let text = String::from_utf8(fs::read(&absolute).ok()?).unwrap_or_default();
        let path = absolute.strip_prefix(cargo::root()).ok()?;
        Some(File::new(&path.to_string_lossy(), &text))
    };
    paths.into_iter().filter_map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the lines of the findings of one of the [`RULES`] or of the language rules.
    pub(super) fn lines(
        rule: impl Fn(&File) -> Vec<Finding>,
        path: &str,
        text: &str,
    ) -> Vec<usize> {
        let findings = rule(&File::new(path, text));
        findings.iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn the_workspace_is_tidy() {
        let files = files();
        let has_this = |file: &File| file.path == "xtask/src/tidy/mod.rs";
        assert!(files.iter().any(has_this));
        let findings = findings(&files, &[]);
        let text = findings.join("\n");
        assert!(
            findings.is_empty(),
            "{} rules broken:\n{text}",
            findings.len()
        );
    }

    #[test]
    fn a_finding_reads_as_editors_expect() {
        let files = [File::new("datasets/src/decode.rs", "fn decode() {}\n")];
        let findings = findings(&files, &["./datasets".to_owned()]);
        assert_eq!(findings.len(), 1);
        let start = "datasets/src/decode.rs:1: ";
        assert!(findings[0].starts_with(start), "{}", findings[0]);
    }

    #[test]
    fn a_place_without_a_file_is_refused() {
        let refusal = run(&["datasetz".to_owned()]).unwrap_err();
        assert!(refusal.to_string().contains("below datasetz"), "{refusal}");
    }
}
