//! Which crates are inside a program.
//!
//! In: cargo's tree for the program's features, its metadata, `Cargo.lock`. Out: the crates, by name and version.
//! Invariant: neither macros nor what only builds or tests; our own crates too.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::TARGET;
use crate::at::at;
use crate::cargo::{self, Mpi};
use cluster::failure::{Failure, Outcome};
use cluster::process;

/// The program's own crate.
pub(super) const PROGRAM: &str = "trainer";

/// A crate inside the program.
#[derive(Debug, Clone, Default)]
pub(super) struct Dependency {
    pub(super) name: String,
    pub(super) version: String,
    /// As SPDX writes it; empty where the crate does not say.
    pub(super) licence: String,
    pub(super) authors: Vec<String>,
    pub(super) repository: Option<String>,
    /// Of the published archive, SHA-256; a crate of this workspace has none.
    pub(super) checksum: Option<String>,
    pub(super) folder: PathBuf,
    /// Names and versions of the crates of the program that this one needs.
    pub(super) needs: Vec<(String, String)>,
}

/// The crates inside the trainer built so, the trainer too.
pub(super) fn of_trainer(mpi: Mpi) -> Outcome<Vec<Dependency>> {
    let mut tree = cargo::command(&["tree", "--locked", "--package", PROGRAM, "--target", TARGET]);
    tree.args(["--edges", "normal,no-proc-macro", "--prefix", "none"])
        .args(mpi.features());
    let inside = inside(&answer(tree)?);
    let metadata = cargo::command(&[
        "metadata",
        "--locked",
        "--format-version",
        "1",
        "--filter-platform",
        TARGET,
    ]);
    let metadata = serde_json::from_str(&answer(metadata)?)
        .map_err(|error| Failure::Failed(format!("cargo metadata: {error}")))?;
    let path = cargo::root().join("Cargo.lock");
    let lock = fs::read_to_string(&path).map_err(at(&path))?;
    let dependencies = joined(&inside, &metadata, &checksums(&lock)?);
    match dependencies.len() == inside.len() {
        true => Ok(dependencies),
        false => Err(Failure::Failed(format!(
            "crates of the program: expected {} as in cargo tree, found {} of them in cargo metadata",
            inside.len(),
            dependencies.len()
        ))),
    }
}

/// What a command of cargo writes; what it has to say else is passed on.
fn answer(mut command: Command) -> Outcome<String> {
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| process::cannot_start(&command, &error))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(Failure::Failed(format!(
            "`{}` failed: {}",
            process::shown(&command),
            output.status
        ))),
    }
}

/// Names and versions out of lines such as `burn v0.22.1 (*)`.
fn inside(tree: &str) -> BTreeSet<(String, String)> {
    let of_line = |line: &str| {
        let (name, rest) = line.split_once(' ')?;
        Some((
            name.to_owned(),
            rest.split(' ').next()?.strip_prefix('v')?.to_owned(),
        ))
    };
    tree.lines().filter_map(of_line).collect()
}

fn checksums(lock: &str) -> Outcome<BTreeMap<(String, String), String>> {
    let lock: toml::Table = lock
        .parse()
        .map_err(|error| Failure::Failed(format!("Cargo.lock: {error}")))?;
    let packages = lock
        .get("package")
        .and_then(toml::Value::as_array)
        .into_iter()
        .flatten();
    let of_package = |package: &toml::Value| {
        let text = |key| Some(package.get(key)?.as_str()?.to_owned());
        Some(((text("name")?, text("version")?), text("checksum")?))
    };
    Ok(packages.filter_map(of_package).collect())
}

fn joined(
    inside: &BTreeSet<(String, String)>,
    metadata: &Value,
    checksums: &BTreeMap<(String, String), String>,
) -> Vec<Dependency> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let array = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let key = |package: &Value| Some((text(&package["name"])?, text(&package["version"])?));
    let packages = array(&metadata["packages"]);
    let keys: BTreeMap<String, (String, String)> = packages
        .iter()
        .filter_map(|package| Some((text(&package["id"])?, key(package)?)))
        .collect();
    let nodes = array(&metadata["resolve"]["nodes"]);
    let needs: BTreeMap<_, _> = nodes
        .iter()
        .filter_map(|node| Some((text(&node["id"])?, array(&node["deps"]))))
        .collect();
    let mut dependencies: Vec<Dependency> = packages
        .iter()
        .filter_map(|package| {
            let (name, version) = key(package).filter(|key| inside.contains(key))?;
            let manifest = PathBuf::from(text(&package["manifest_path"])?);
            let needs = needs.get(package["id"].as_str()?).into_iter().flatten();
            // Neither what builds or tests it, nor itself, as its tests may name it.
            let is_inside = |need: &&Value| {
                array(&need["dep_kinds"])
                    .iter()
                    .any(|kind| kind["kind"].is_null())
            };
            let needs = needs
                .filter(is_inside)
                .filter(|need| need["pkg"] != package["id"]);
            let needs = needs
                .filter_map(|need| keys.get(need["pkg"].as_str()?))
                .filter(|key| inside.contains(*key))
                .cloned();
            Some(Dependency {
                licence: or(&text(&package["license"]).unwrap_or_default()),
                authors: array(&package["authors"]).iter().filter_map(text).collect(),
                repository: text(&package["repository"]),
                checksum: checksums.get(&(name.clone(), version.clone())).cloned(),
                folder: manifest.parent()?.to_owned(),
                needs: needs.collect(),
                name,
                version,
            })
        })
        .collect();
    dependencies.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
    dependencies
}

/// Before SPDX had expressions, manifests had a stroke for "or".
fn or(licence: &str) -> String {
    licence
        .split('/')
        .map(str::trim)
        .collect::<Vec<_>>()
        .join(" OR ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_crates_inside_are_read_from_the_tree_and_told_of_by_the_metadata() {
        let inside = inside("trainer v0.1.0 (/w/trainer)\nhalf v2.7.1\nhalf v2.7.1 (*)\n\n");
        let metadata = serde_json::json!({
            "packages": [
                { "id": "a", "name": "trainer", "version": "0.1.0", "license": "MIT OR Apache-2.0", "manifest_path": "/w/trainer/Cargo.toml" },
                { "id": "b", "name": "half", "version": "2.7.1", "license": "MIT / Apache-2.0", "manifest_path": "/r/half/Cargo.toml", "authors": ["A"] },
                { "id": "c", "name": "proptest", "version": "1.0.0", "manifest_path": "/r/proptest/Cargo.toml" },
            ],
            "resolve": { "nodes": [
                { "id": "a", "deps": [
                    { "pkg": "b", "dep_kinds": [{ "kind": "build" }, { "kind": null }] },
                    { "pkg": "c", "dep_kinds": [{ "kind": null }] },
                    { "pkg": "a", "dep_kinds": [{ "kind": null }] },
                ] },
                { "id": "b", "deps": [{ "pkg": "a", "dep_kinds": [{ "kind": "dev" }] }] },
            ] },
        });
        let checksums =
            checksums("[[package]]\nname = \"half\"\nversion = \"2.7.1\"\nchecksum = \"ab\"\n")
                .unwrap();
        let [half, trainer] = joined(&inside, &metadata, &checksums).try_into().unwrap();
        assert_eq!(
            (half.licence.as_str(), half.checksum.as_deref()),
            ("MIT OR Apache-2.0", Some("ab"))
        );
        assert!(half.needs.is_empty());
        assert_eq!(
            (trainer.needs, trainer.checksum),
            (vec![("half".to_owned(), "2.7.1".to_owned())], None)
        );
    }
}
