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

use crate::at::at;
use crate::cargo;
use clap::Args;
use cluster::failure::{Failure, Outcome};
use cluster::process;
use links::Page;
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

/// A crate's `Cargo.toml`.
struct Manifest {
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
        let files = files(cargo::root())?;
        let findings = if self.paths.is_empty() {
            for source in &files.sources {
                if let Some(reason) = shape::reason_for_length(source) {
                    let num_lines = source.lines.len();
                    println!("{}: {num_lines} lines, because {reason}", source.path);
                }
            }
            broken(&files)
        } else {
            findings_below(&files, &self.paths)
        };
        if findings.is_empty() {
            println!("tidy: {} files", files.prose.len());
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

/// Files to check.
#[derive(Default)]
struct Files {
    sources: Vec<Source>,
    manifests: Vec<Manifest>,
    pages: Vec<Page>,
    prose: Vec<Prose>,
}

/// Returns all findings except in prose that is not yet rewritten.
fn broken(files: &Files) -> Vec<String> {
    let mut findings = findings(files);
    let prose = files.prose.iter();
    findings.extend(language_findings(
        prose.filter(|prose| !language::is_not_yet(&prose.path)),
    ));
    let mut findings: Vec<String> = findings
        .iter()
        .map(|(path, finding)| format!("{path}:{finding}"))
        .collect();
    findings.extend(language::long_subjects(&subjects()));
    findings
}

fn findings_below(files: &Files, places: &[String]) -> Vec<String> {
    let mut findings = findings(files);
    findings.extend(language_findings(files.prose.iter()));
    findings
        .sort_by(|(path, finding), (other, later)| (path, finding.line).cmp(&(other, later.line)));
    let is_below = |path: &str| {
        let path = Path::new(path);
        places
            .iter()
            .any(|place| path.starts_with(place.trim_start_matches("./")))
    };
    findings
        .iter()
        .filter(|(path, _)| is_below(path))
        .map(|(path, finding)| format!("{path}:{finding}"))
        .collect()
}

fn language_findings<'a>(prose: impl Iterator<Item = &'a Prose>) -> Vec<(String, Finding)> {
    prose
        .flat_map(|prose| {
            let findings = language::is_plain(prose).into_iter();
            findings.map(|finding| (prose.path.clone(), finding))
        })
        .collect()
}

fn findings(files: &Files) -> Vec<(String, Finding)> {
    let mut findings = Vec::new();
    let mut add = |path: &str, found: Vec<Finding>| {
        findings.extend(found.into_iter().map(|finding| (path.to_owned(), finding)));
    };
    for source in &files.sources {
        for rule in RULES {
            add(&source.path, rule(source));
        }
    }
    for Manifest { path, text } in &files.manifests {
        add(path, imports::manifest_follows_the_map(path, text));
    }
    let tracked = tracked();
    let is_kept = |path: &Path| match &tracked {
        Some(paths) => paths.iter().any(|kept| Path::new(kept).starts_with(path)),
        None => cargo::root().join(path).exists(),
    };
    for page in &files.pages {
        add(&page.path, links::broken_links(page, &files.pages, is_kept));
        add(&page.path, route::leads_to_functions(page, &files.sources));
    }
    for path in links::pages_outside_the_book(&files.pages) {
        let message = "no chapter of docs/SUMMARY.md: add it there";
        add(path, vec![Finding::at(0, message.to_owned())]);
    }
    findings
}

/// The last 30 commits since the rule for subjects; empty without a repository of git.
fn subjects() -> String {
    let root = cargo::root().to_string_lossy();
    let since = "--since=2026-11-28T07:10:00Z";
    let log = [
        "-C",
        &root,
        "log",
        "--no-merges",
        "-n30",
        "--format=%h %s",
        since,
    ];
    process::answer("git", &log).unwrap_or_default()
}

/// Lists the files in git; none without a repository.
fn tracked() -> Option<Vec<String>> {
    let listed = process::answer("git", &["-C", &cargo::root().to_string_lossy(), "ls-files"])?;
    Some(
        listed
            .lines()
            .filter(|path| cargo::root().join(path).exists())
            .map(str::to_owned)
            .collect(),
    )
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

/// Hidden folders with files that people read.
const HIDDEN: [&str; 3] = [".cargo", ".ci", ".github"];

/// Reads all files to check below a folder, in a fixed order.
fn files(root: &Path) -> Outcome<Files> {
    let mut paths = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).map_err(at(&folder))? {
            let path = entry.map_err(at(&folder))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if !path.is_dir() {
                paths.push(path);
                continue;
            }
            // Build results and runs hold no sources.
            let is_root = folder == root || folder.ends_with("trainer/fuzz");
            let is_output = is_root && ["target", "runs", "book"].contains(&name.as_ref());
            if !is_output && (!name.starts_with('.') || HIDDEN.contains(&name.as_ref())) {
                folders.push(path);
            }
        }
    }
    paths.sort();
    let mut files = Files::default();
    for absolute in paths {
        let relative = absolute.strip_prefix(root).unwrap_or(&absolute);
        let path = relative.display().to_string();
        // Images, archives and other files of bytes have no prose.
        let Ok(text) = fs::read_to_string(&absolute) else {
            continue;
        };
        files.prose.extend(Prose::new(&path, &text));
        if path.ends_with(".rs") {
            files.sources.push(Source::new(&path, &text));
        } else if path.ends_with(".md") {
            files.pages.push(Page { path, text });
        } else if relative.ends_with("Cargo.toml") {
            files.manifests.push(Manifest { path, text });
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workspace_is_tidy() {
        let files = files(cargo::root()).unwrap();
        assert!(
            files
                .sources
                .iter()
                .any(|source| source.path == "xtask/src/tidy/mod.rs"),
            "the walk finds this file"
        );
        let findings = broken(&files);
        assert!(
            findings.is_empty(),
            "{} rules broken:\n{}",
            findings.len(),
            findings.join("\n")
        );
    }

    #[test]
    fn a_finding_reads_as_editors_expect() {
        let source = Source::new("datasets/src/decode.rs", "fn decode() {}\n");
        let findings = broken(&Files {
            sources: vec![source],
            ..Files::default()
        });
        assert_eq!(findings.len(), 1);
        assert!(
            findings[0].starts_with("datasets/src/decode.rs:1: "),
            "{}",
            findings[0]
        );
    }
}
