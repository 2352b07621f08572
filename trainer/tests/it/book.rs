//! Compares the book's reference with the program: flags, and the files and keys of a real run.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::fixture::{TINY, succeed, trainer};

fn page(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../docs/reference")
        .join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn the_page_of_flags_is_what_the_program_writes() {
    let directory = tempfile::tempdir().unwrap();
    succeed(trainer("man --markdown", &[directory.path()]));
    let written = fs::read_to_string(directory.path().join("flags.md")).unwrap();
    assert!(
        written == page("flags.md"),
        "docs/reference/flags.md is of other flags: run `cargo xtask book`"
    );
}

/// Returns all files below a folder, by their paths in the folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| {
            if path.is_dir() {
                files(&path)
            } else {
                vec![path]
            }
        })
        .collect()
}

/// Returns the keys of a value, except keys of options and keys that are file names.
fn keys(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(members) => members.iter().for_each(|(key, member)| {
            found.insert(key.clone());
            if !["config", "files"].contains(&key.as_str()) {
                keys(member, found);
            }
        }),
        Value::Array(values) => values.iter().for_each(|value| keys(value, found)),
        _ => {}
    }
}

#[test]
fn every_file_and_every_key_of_a_run_is_explained() {
    let directory = tempfile::tempdir().unwrap();
    let run = directory.path().join("run");
    let words =
        format!("train {TINY} --threads 1 --output-dir").replace("--epochs 2", "--epochs 1");
    succeed(trainer(&words, &[&run]));
    let told_files = page("files.md");
    let told_keys = page("keys.md");
    let mut found = BTreeSet::new();
    for path in files(&run) {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        assert!(
            told_files.contains(&format!("`{name}`")),
            "{name} is written, and absent from docs/reference/files.md"
        );
        if name.ends_with(".json") || name.ends_with(".jsonl") {
            let text = fs::read_to_string(&path).unwrap();
            let values = serde_json::Deserializer::from_str(&text).into_iter::<Value>();
            values.for_each(|value| keys(&value.unwrap(), &mut found));
        }
    }
    assert!(
        [
            "train_loss",
            "parameter_hash",
            "config_hash",
            "step_in_epoch"
        ]
        .iter()
        .all(|key| found.contains(*key))
    );
    let untold: Vec<_> = found
        .iter()
        .filter(|key| !told_keys.contains(&format!("| `{key}` |")))
        .collect();
    assert!(
        untold.is_empty(),
        "written, and absent from docs/reference/keys.md: {untold:?}; see `cargo xtask book`"
    );
}
