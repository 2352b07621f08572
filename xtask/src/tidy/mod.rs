//! `cargo xtask tidy`: the rules of this workspace that no compiler checks.
//!
//! In: sources, manifests, pages, scripts. Out: `file:line: message` for each broken rule.
//! Invariant: a rule only reads text, so that tidy is fast enough for `cargo test`.

mod imports;
mod language;
mod links;
mod places;
mod prose;
mod route;
mod shape;
mod source;

use std::fmt;
use std::fs;
use std::path::Path;

use crate::cargo;
use clap::Args;
use cluster::failure::{Failure, Outcome};
use cluster::process;
use prose::Prose;
use source::Source;

/// Details for `--help`.
pub(crate) const DETAILS: &str = "\
Checks headers, length of files and functions, names, imports between crates, and the places where
printing, environment variables and unsafe may stand. Links in pages lead to files in git and to
existing headings; every page of docs/ is a chapter of docs/SUMMARY.md. Prose follows \"Language\" in
CONTRIBUTING.md, and the routes in ARCHITECTURE.md lead to functions.

A file of more than 800 lines needs a line `// tidy: long file because …` near its top; tidy prints
the reason. A function of more than 120 lines needs `// tidy: long function because …` before it.

With paths, tidy prints the findings below these only, also in folders whose prose is not yet
rewritten (`NOT_YET` in xtask/src/tidy/language.rs).";

/// Flags of `cargo xtask tidy`.
#[derive(Debug, Args)]
#[command(after_help = DETAILS)]
pub(crate) struct TidyArgs {
    /// Files or folders to check; default: the workspace
    paths: Vec<String>,
}

/// A text file, with its path below the root.
struct File {
    path: String,
    text: String,
}

/// A broken rule at a place.
#[derive(Debug, PartialEq)]
struct Finding {
    /// Number of the line, from 1.
    line: usize,
    message: String,
}

/// Rules about one source file.
const RULES: [fn(&Source) -> Vec<Finding>; 6] = [
    shape::starts_with_a_header,
    shape::is_short_or_has_a_reason,
    shape::functions_are_short_or_have_a_reason,
    shape::names_have_a_meaning,
    places::items_are_in_their_places,
    places::unsafe_has_a_reason,
];

impl TidyArgs {
    pub(crate) fn run(&self) -> Outcome {
        let files = files();
        if let Some(unknown) = unknown_place(&files, &self.paths) {
            return Err(Failure::Usage(format!(
                "tidy: no file of the repository below {unknown}. Give a path from its root."
            )));
        }
        let findings = findings(&files, &self.paths);
        if findings.is_empty() {
            println!("tidy: {} files", files.len());
            return Ok(());
        }
        Err(Failure::Failed(format!(
            "{} rules broken:\n{}",
            findings.len(),
            findings.join("\n")
        )))
    }
}

/// Checks the workspace.
pub(crate) fn run() -> Outcome {
    TidyArgs { paths: Vec::new() }.run()
}

/// Returns the first place without a file.
fn unknown_place<'a>(files: &[File], places: &'a [String]) -> Option<&'a String> {
    let has_no_file = |place: &&String| !files.iter().any(|file| is_in(&file.path, place));
    places.iter().find(has_no_file)
}

fn is_in(path: &str, place: &str) -> bool {
    Path::new(path).starts_with(place.trim_start_matches("./"))
}

/// Returns all findings below `places`; without places, except in prose that is not yet rewritten.
fn findings(files: &[File], places: &[String]) -> Vec<String> {
    let is_below = |path: &str| places.iter().any(|place| is_in(path, place));
    let sources = files.iter().filter(|file| file.path.ends_with(".rs"));
    let sources: Vec<Source> = sources
        .map(|file| Source::new(&file.path, &file.text))
        .collect();
    let mut findings = Vec::new();
    let mut add = |path: &str, found: Vec<Finding>| {
        if places.is_empty() || is_below(path) {
            findings.extend(found.into_iter().map(|finding| format!("{path}:{finding}")));
        }
    };
    for source in &sources {
        add(
            &source.path,
            RULES.iter().flat_map(|rule| rule(source)).collect(),
        );
        if let Some(reason) = shape::reason_for_length(source) {
            println!("{}: long, because {reason}", source.path);
        }
    }
    for file in files {
        add(&file.path, imports::manifest_follows_the_map(file));
        add(&file.path, links::broken_links(file, files));
        add(&file.path, route::leads_to_functions(file, &sources));
        if !places.is_empty() || !language::is_not_yet(&file.path) {
            let prose = Prose::new(&file.path, &file.text);
            add(
                &file.path,
                prose.map_or(Vec::new(), |prose| language::is_plain(&prose)),
            );
        }
    }
    for path in links::pages_outside_the_book(files) {
        let message = "no chapter of docs/SUMMARY.md: add it there";
        add(path, vec![Finding::at(0, message.to_owned())]);
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
    let mut paths: Vec<String> = paths
        .unwrap_or_default()
        .lines()
        .map(str::to_owned)
        .collect();
    paths.sort();
    let read = |path: String| {
        let absolute = cargo::root().join(&path);
        let path = absolute
            .strip_prefix(cargo::root())
            .ok()?
            .display()
            .to_string();
        // Other files, such as images and archives, have an empty text.
        let text = fs::read(&absolute).ok()?;
        let text = String::from_utf8(text).unwrap_or_default();
        Some(File { path, text })
    };
    paths.into_iter().filter_map(read).collect()
}

impl Finding {
    /// Makes a finding from the index of a line, counted from 0.
    fn at(index: usize, message: String) -> Self {
        let line = index + 1;
        Finding { line, message }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.line, self.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workspace_is_tidy() {
        let files = files();
        assert!(
            files
                .iter()
                .any(|file| file.path == "xtask/src/tidy/mod.rs")
        );
        let findings = findings(&files, &[]);
        let num = findings.len();
        assert!(
            findings.is_empty(),
            "{num} rules broken:\n{}",
            findings.join("\n")
        );
    }

    #[test]
    fn a_finding_reads_as_editors_expect() {
        let files = [File {
            path: "datasets/src/decode.rs".to_owned(),
            text: "fn decode() {}\n".to_owned(),
        }];
        let places = ["./datasets", "datasetz"].map(str::to_owned);
        assert_eq!(unknown_place(&files, &places), Some(&places[1]));
        let findings = findings(&files, &places[..1]);
        assert_eq!(findings.len(), 1);
        let start = "datasets/src/decode.rs:1: ";
        assert!(findings[0].starts_with(start), "{}", findings[0]);
    }
}
