//! The licences of all that is inside the program, as they ask to be passed on.
//!
//! In: the crates with their folders. Out: each text once, under the names of the crates that it is of.
//! Invariant: a crate without a text gets its terms and authors by name; only one that says no licence at all is refused.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::dependencies::Dependency;
use crate::at::at;
use cluster::failure::{Failure, Outcome};

/// How the names of such files begin, in small letters.
const NAMES: [&str; 6] = [
    "license",
    "licence",
    "copying",
    "copyright",
    "notice",
    "unlicense",
];
const NO_TEXT: &str = "These bring no text of the licence named beside them; that of Apache-2.0 is LICENSE-APACHE beside this file. Their authors:";
const LINE: &str =
    "================================================================================";

/// The notices of all crates that are not ours, which a registry has.
pub(super) fn notices(dependencies: &[Dependency]) -> Outcome<String> {
    let mut of_text: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut without = Vec::new();
    for dependency in dependencies
        .iter()
        .filter(|dependency| dependency.checksum.is_some())
    {
        if dependency.licence.is_empty() {
            return Err(Failure::Failed(format!(
                "{} {}: expected a licence in its manifest, got none: take another crate",
                dependency.name, dependency.version
            )));
        }
        let mut texts = texts(&dependency.folder)?;
        if texts.is_empty() {
            texts.push(format!("{NO_TEXT}\n\n{}", dependency.authors.join("\n")));
            without.push(dependency.name.as_str());
        }
        for text in texts {
            let crate_ = format!(
                "{} {} ({})",
                dependency.name, dependency.version, dependency.licence
            );
            of_text.entry(text).or_default().push(crate_);
        }
    }
    if of_text.is_empty() {
        return Err(Failure::Failed(format!(
            "licences of {} crates: expected crates of others with a checksum in Cargo.lock, got none",
            dependencies.len()
        )));
    }
    println!(
        "crates that bring no text of their licence, and are named with their authors: {}",
        without.join(", ")
    );
    let mut entries: Vec<_> = of_text.into_iter().collect();
    entries.sort_by(|(_, a), (_, b)| a.cmp(b));
    let sections = entries
        .into_iter()
        .map(|(text, crates)| format!("{LINE}\n{}\n{LINE}\n\n{text}\n", crates.join("\n")));
    Ok(format!(
        "The program contains the crates named here, under the licences that follow.\n\n{}",
        sections.collect::<Vec<_>>().join("\n")
    ))
}

/// The texts in a crate's folder, in the order of their names.
fn texts(folder: &Path) -> Outcome<Vec<String>> {
    let entries = fs::read_dir(folder).map_err(at(folder))?;
    let mut files: Vec<_> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .to_lowercase();
            path.is_file()
                && NAMES.iter().any(|start| name.starts_with(start))
                && !name.ends_with(".rs")
        })
        .collect();
    files.sort();
    // The same words with other ends of lines are one text.
    let read = |path: &Path| {
        let bytes = fs::read(path).map_err(at(path))?;
        let lines = String::from_utf8_lossy(&bytes)
            .lines()
            .map(|line| line.trim_end().to_owned())
            .collect::<Vec<_>>();
        Ok(lines.join("\n").trim().to_owned())
    };
    files.iter().map(|path| read(path)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_stands_once_under_all_its_crates_and_one_without_text_is_named() {
        let folder =
            std::env::temp_dir().join(format!("lockstep-xtask-{}-licences", std::process::id()));
        let crate_ = |name: &str, text: Option<&str>| {
            let folder = folder.join(name);
            fs::create_dir_all(&folder).unwrap();
            if let Some(text) = text {
                fs::write(folder.join("LICENSE-MIT"), text).unwrap();
            }
            Dependency {
                name: name.to_owned(),
                version: "1.0.0".to_owned(),
                licence: "MIT".to_owned(),
                authors: vec!["Ada".to_owned()],
                checksum: Some("ab".to_owned()),
                folder,
                ..Dependency::default()
            }
        };
        let crates = [
            crate_("a", Some("Permission\r\n")),
            crate_("b", Some("Permission  \n")),
            crate_("c", None),
        ];
        let ours = Dependency {
            checksum: None,
            ..crates[0].clone()
        };
        assert!(
            super::notices(&[ours])
                .unwrap_err()
                .to_string()
                .contains("got none")
        );
        let notices = notices(&crates).unwrap();
        assert!(
            notices.contains("a 1.0.0 (MIT)\nb 1.0.0 (MIT)\n")
                && notices.contains("Their authors:\n\nAda"),
            "{notices}"
        );
        assert_eq!(notices.matches("Permission").count(), 1);
        fs::remove_dir_all(folder).unwrap();
    }
}
