//! Crates in the program: their licences, and a bill of materials.
//!
//! In: `cargo tree` for the program's features, `cargo metadata`, `Cargo.lock`. Out: the texts of
//! all licences, each once; CycloneDX 1.5 as JSON. Invariant: neither macros nor crates of builds
//! and tests; no date and no serial number. Source: <https://cyclonedx.org/docs/1.5/json/>,
//! <https://github.com/package-url/purl-spec>.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use cluster::failure::{Failure, Outcome};
use serde_json::{Value, json};

use crate::at;
use crate::cargo::{self, Mpi};

/// Starts of the names of files with a licence, in small letters.
const NAMES: [&str; 6] = [
    "license",
    "licence",
    "copying",
    "copyright",
    "notice",
    "unlicense",
];
const NO_TEXT: &str = "These crates contain no text of the licence named above; LICENSE-APACHE has that \
    of Apache-2.0. Their authors:";
const LINE: &str =
    "================================================================================";

/// A crate in the program.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Crate {
    name: String,
    version: String,
    /// SPDX expression; empty if the manifest has none.
    licence: String,
    authors: Vec<String>,
    repository: Option<String>,
    /// SHA-256 of the published archive; none for a crate of this workspace.
    checksum: Option<String>,
    folder: PathBuf,
}

/// Lists the crates in the trainer, including the trainer.
pub(super) fn crates_of_trainer(mpi: Mpi) -> Outcome<Vec<Crate>> {
    const TARGET: &str = "x86_64-unknown-linux-gnu";
    let tree = [
        "tree",
        "--locked",
        "--package",
        "trainer",
        "--target",
        TARGET,
    ];
    let mut tree = cargo::command(&tree);
    tree.args(["--edges", "normal,no-proc-macro", "--prefix", "none"]);
    tree.args(["--format", "{p}"]).args(mpi.features());
    let tree = cargo::output(tree)?;
    let words = ["metadata", "--locked", "--format-version", "1"];
    let metadata = cargo::json(cargo::command(&words))?;
    let path = cargo::root().join("Cargo.lock");
    let lock = fs::read_to_string(&path).map_err(at(&path))?;
    let lock = lock
        .parse()
        .map_err(|error| Failure::Failed(format!("Cargo.lock: {error}")))?;
    let inside = inside(&tree);
    let crates = joined(&inside, &metadata, &lock);
    if crates.len() == inside.len() {
        return Ok(crates);
    }
    Err(Failure::Failed(format!(
        "crates of the program: expected {} as in cargo tree, found {} in cargo metadata",
        inside.len(),
        crates.len()
    )))
}

/// Reads names and versions from lines such as `burn v0.22.1 (*)`.
fn inside(tree: &str) -> BTreeSet<(String, String)> {
    let of_line = |line: &str| {
        let mut words = line.split(' ');
        let name = words.next()?.to_owned();
        Some((name, words.next()?.strip_prefix('v')?.to_owned()))
    };
    tree.lines().filter_map(of_line).collect()
}

fn joined(inside: &BTreeSet<(String, String)>, metadata: &Value, lock: &toml::Table) -> Vec<Crate> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let locked = lock.get("package").and_then(toml::Value::as_array);
    let checksum = |name: &str, version: &str| {
        let has = |package: &&toml::Value, key: &str, value: &str| {
            package.get(key).and_then(toml::Value::as_str) == Some(value)
        };
        let mut packages = locked.into_iter().flatten();
        let package =
            packages.find(|package| has(package, "name", name) && has(package, "version", version));
        Some(package?.get("checksum")?.as_str()?.to_owned())
    };
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let mut crates = Vec::new();
    for package in packages {
        let name = text(&package["name"]);
        let version = text(&package["version"]);
        if !inside.contains(&(name.clone(), version.clone())) {
            continue;
        }
        let authors = package["authors"].as_array().into_iter().flatten();
        let mut folder = PathBuf::from(text(&package["manifest_path"]));
        folder.pop();
        crates.push(Crate {
            checksum: checksum(&name, &version),
            name,
            version,
            // Old manifests separate alternatives by a slash.
            licence: text(&package["license"])
                .replace(" / ", "/")
                .replace('/', " OR "),
            authors: authors.map(text).collect(),
            repository: package["repository"].as_str().map(str::to_owned),
            folder,
        });
    }
    crates.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
    crates
}

/// Returns the texts of the licences of all external crates; rejects a crate without a licence.
pub(super) fn notices(crates: &[Crate]) -> Outcome<String> {
    let mut names_by_text: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in crates.iter().filter(|package| package.checksum.is_some()) {
        let Crate {
            name,
            version,
            licence,
            authors,
            folder,
            ..
        } = package;
        if licence.is_empty() {
            let text = format!("{name} {version}: no licence in its manifest. Use another crate");
            return Err(Failure::Failed(text));
        }
        let mut texts = texts(folder)?;
        if texts.is_empty() {
            println!("{name} contains no text of its licence, and is named with its authors");
            texts.push(format!("{NO_TEXT}\n\n{}", authors.join("\n")));
        }
        for text in texts {
            let names = names_by_text.entry(text).or_default();
            names.push(format!("{name} {version} ({licence})"));
        }
    }
    if names_by_text.is_empty() {
        let text = "licences: expected external crates with a checksum in Cargo.lock, got none";
        return Err(Failure::Failed(text.to_owned()));
    }
    let mut sections: Vec<String> = names_by_text
        .iter()
        .map(|(text, names)| format!("{LINE}\n{}\n{LINE}\n\n{text}\n", names.join("\n")))
        .collect();
    sections.sort();
    let sections = sections.join("\n");
    Ok(format!(
        "The program contains the crates named here, under the licences that follow.\n\n{sections}"
    ))
}

/// Reads the licence texts in a crate's folder, without differences in line ends.
fn texts(folder: &Path) -> Outcome<Vec<String>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(at(folder))?.flatten() {
        let name = entry.file_name().to_string_lossy().to_lowercase();
        let is_meant = NAMES.iter().any(|start| name.starts_with(start));
        if is_meant && !name.ends_with(".rs") && entry.path().is_file() {
            files.push(entry.path());
        }
    }
    files.sort();
    let read = |path: &PathBuf| {
        let bytes = fs::read(path).map_err(at(path))?;
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        Ok(lines.join("\n").trim().to_owned())
    };
    files.iter().map(read).collect()
}

/// Returns the crates as CycloneDX.
pub(super) fn bill_of_materials(crates: &[Crate]) -> Value {
    let is_program = |package: &&Crate| package.name == "trainer";
    let libraries = crates.iter().filter(|package| !is_program(package));
    json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": crates.iter().find(is_program).map(|package| component(package, "application"))
        },
        "components": libraries.map(|package| component(package, "library")).collect::<Vec<_>>(),
    })
}

fn component(package: &Crate, kind: &str) -> Value {
    let Crate { name, version, .. } = package;
    // A plus would be read as a space.
    let reference = format!("pkg:cargo/{name}@{}", version.replace('+', "%2B"));
    let checksums = package.checksum.iter();
    let repositories = package.repository.iter();
    json!({
        "type": kind,
        "bom-ref": reference,
        "name": name,
        "version": version,
        "purl": reference,
        "licenses": [{ "expression": package.licence }],
        "hashes": checksums
            .map(|sum| json!({ "alg": "SHA-256", "content": sum }))
            .collect::<Vec<_>>(),
        "externalReferences": repositories
            .map(|url| json!({ "type": "vcs", "url": url }))
            .collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_crates_of_the_tree_are_described_by_metadata_and_lock() {
        let inside = inside("trainer v0.1.0 (/w/trainer)\nhalf v2.7.1\nhalf v2.7.1 (*)\n\n");
        let metadata = json!({ "packages": [
            { "name": "trainer", "version": "0.1.0", "license": "MIT OR Apache-2.0", "manifest_path": "/w/trainer/Cargo.toml" },
            { "name": "half", "version": "2.7.1", "license": "MIT / Apache-2.0", "manifest_path": "/r/half/Cargo.toml", "authors": ["A"] },
            { "name": "proptest", "version": "1.0.0", "manifest_path": "/r/proptest/Cargo.toml" },
        ] });
        let lock = "[[package]]\nname = \"half\"\nversion = \"2.7.1\"\nchecksum = \"ab\"\n";
        let crates = joined(&inside, &metadata, &lock.parse().unwrap());
        let half = Crate {
            name: "half".to_owned(),
            version: "2.7.1".to_owned(),
            licence: "MIT OR Apache-2.0".to_owned(),
            authors: vec!["A".to_owned()],
            repository: None,
            checksum: Some("ab".to_owned()),
            folder: "/r/half".into(),
        };
        assert_eq!(crates[0], half);
        assert_eq!((crates.len(), &crates[1].checksum), (2, &None));
        let bill = bill_of_materials(&crates);
        assert_eq!(
            bill["metadata"]["component"]["purl"],
            "pkg:cargo/trainer@0.1.0"
        );
        assert_eq!(bill["components"][0]["hashes"][0]["content"], "ab");
    }

    #[test]
    fn a_text_stands_once_under_all_its_crates_and_one_without_text_is_named() {
        let folder =
            std::env::temp_dir().join(format!("lockstep-xtask-{}-licences", std::process::id()));
        let package = |name: &str, text: Option<&str>| {
            let folder = folder.join(name);
            fs::create_dir_all(&folder).unwrap();
            if let Some(text) = text {
                fs::write(folder.join("LICENSE-MIT"), text).unwrap();
            }
            Crate {
                name: name.to_owned(),
                version: "1.0.0".to_owned(),
                licence: "MIT".to_owned(),
                authors: vec!["Ada".to_owned()],
                checksum: Some("ab".to_owned()),
                folder,
                ..Crate::default()
            }
        };
        let crates = [
            package("a", Some("Permission\r\n")),
            package("b", Some("Permission  \n")),
            package("c", None),
        ];
        let notices = notices(&crates).unwrap();
        assert!(
            notices.contains("a 1.0.0 (MIT)\nb 1.0.0 (MIT)\n"),
            "{notices}"
        );
        assert!(notices.contains("authors:\n\nAda"), "{notices}");
        assert_eq!(notices.matches("Permission").count(), 1);
        let internal = Crate {
            checksum: None,
            ..crates[0].clone()
        };
        let error = super::notices(&[internal]).unwrap_err().to_string();
        assert!(error.contains("got none"), "{error}");
        fs::remove_dir_all(folder).unwrap();
    }
}
