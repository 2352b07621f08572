//! `cargo xtask tidy`: the rules of this workspace that no compiler checks.
//!
//! In: every `.rs` file, every manifest, every page. Out: `file:line: message` for each broken rule.
//! Invariant: a rule reads text only, so that this runs in milliseconds and also within `cargo test`.

mod imports;
mod links;
mod places;
mod shape;
mod source;

use std::fmt;
use std::fs;
use std::path::Path;

use crate::at::at;
use crate::cargo;
use jobs::failure::{Failure, Outcome};
use jobs::process;
use links::Page;
use source::Source;

/// What `--help` adds.
pub(crate) const DETAILS: &str = "\
Headers, length of files, names, where printing, environment variables and unsafe may stand, who may import whom.
Links in pages lead to files that git keeps and headings that are there; every page of docs/ is a chapter of docs/SUMMARY.md.
A file of more than 800 lines needs a line `// tidy: long file because …` near its top; the reason is printed.
A function of more than 120 lines needs `// tidy: long function because …` before it.";

/// A crate's `Cargo.toml`.
struct Manifest {
    path: String,
    text: String,
}

/// A rule broken at a place.
#[derive(Debug, PartialEq)]
struct Finding {
    /// Counted from 1.
    line: usize,
    message: String,
}

/// The rules for one source file, each a function of the file alone.
const RULES: [fn(&Source) -> Vec<Finding>; 9] = [
    shape::starts_with_a_header,
    shape::is_short_or_says_why,
    shape::functions_are_short_or_say_why,
    shape::names_say_something,
    places::prints_only_where_printing_is_the_job,
    places::reads_the_environment_in_one_place,
    places::unsafe_stays_where_it_belongs,
    places::ignores_no_test,
    places::names_a_crate_only_in_its_file,
];

/// Checks the workspace.
pub(crate) fn run() -> Outcome {
    let files = files(cargo::root())?;
    for source in &files.sources {
        if let Some(reason) = shape::reason_for_length(source) {
            println!(
                "{}: {} lines, because {reason}",
                source.path,
                source.lines.len()
            );
        }
    }
    let findings = broken(&files);
    if findings.is_empty() {
        println!("tidy: {} files", files.sources.len());
        return Ok(());
    }
    Err(Failure::Failed(format!(
        "{} rules broken:\n{}",
        findings.len(),
        findings.join("\n")
    )))
}

/// What the rules look at.
#[derive(Default)]
struct Files {
    sources: Vec<Source>,
    manifests: Vec<Manifest>,
    pages: Vec<Page>,
}

fn broken(
    Files {
        sources,
        manifests,
        pages,
    }: &Files,
) -> Vec<String> {
    let mut findings = Vec::new();
    for source in sources {
        for finding in RULES.iter().flat_map(|rule| rule(source)) {
            findings.push(format!("{}:{finding}", source.path));
        }
    }
    for Manifest { path, text } in manifests {
        for finding in imports::manifest_follows_the_map(path, text) {
            findings.push(format!("{path}:{finding}"));
        }
    }
    let tracked = tracked();
    let is_kept = |path: &Path| match &tracked {
        Some(paths) => paths.iter().any(|kept| Path::new(kept).starts_with(path)),
        None => cargo::root().join(path).exists(),
    };
    for page in pages {
        for finding in links::broken_links(page, pages, is_kept) {
            findings.push(format!("{}:{finding}", page.path));
        }
    }
    for (path, finding) in links::pages_outside_the_book(pages) {
        findings.push(format!("{path}:{finding}"));
    }
    findings
}

/// The files that git keeps and that are there; none where this is no repository of git.
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

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.line, self.message)
    }
}

/// All sources, manifests and pages below a folder, in a fixed order.
fn files(root: &Path) -> Outcome<Files> {
    let mut files = Files::default();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).map_err(at(&folder))? {
            let path = entry.map_err(at(&folder))?.path();
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            if path.is_dir() {
                // Build results, runs and hidden folders hold no sources of ours.
                let is_root = folder == root || folder.ends_with("trainer/fuzz");
                let is_output = is_root && ["target", "runs", "book"].contains(&name.as_str());
                if !is_output && !name.starts_with('.') {
                    folders.push(path);
                }
                continue;
            }
            let (is_source, is_page) = (name.ends_with(".rs"), name.ends_with(".md"));
            if is_source || is_page || name == "Cargo.toml" {
                let text = fs::read_to_string(&path).map_err(at(&path))?;
                let path = path
                    .strip_prefix(root)
                    .unwrap_or(&path)
                    .display()
                    .to_string();
                if is_source {
                    files.sources.push(Source::new(&path, &text));
                } else if is_page {
                    files.pages.push(Page { path, text });
                } else {
                    files.manifests.push(Manifest { path, text });
                }
            }
        }
    }
    files.sources.sort_by(|a, b| a.path.cmp(&b.path));
    files.manifests.sort_by(|a, b| a.path.cmp(&b.path));
    files.pages.sort_by(|a, b| a.path.cmp(&b.path));
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
