//! The crates that can be published, packaged as they would be.
//!
//! In: the manifests. Out: `target/package/*.crate`, and what is in each. Invariant: nothing is uploaded.

use serde_json::Value;

use crate::at::at;
use crate::cargo;
use cluster::failure::{Failure, Outcome};
use cluster::process;

/// A published archive may have ten million bytes.
const LARGEST: u64 = 10_000_000;

/// Packages them together, so that each finds the others, which no registry has yet.
pub(super) fn package(verify: bool) -> Outcome {
    let metadata = process::answer(
        cargo::program(),
        &[
            "metadata",
            "--no-deps",
            "--format-version",
            "1",
            "--manifest-path",
            &cargo::root().join("Cargo.toml").to_string_lossy(),
        ],
    );
    let crates = metadata.as_deref().map(publishable).unwrap_or_default();
    if crates.is_empty() {
        return Err(Failure::Failed(
            "dist --crates: expected members with `publish = true`, got none".to_owned(),
        ));
    }
    for (name, _) in &crates {
        process::run(cargo::command(&[
            "package",
            "--list",
            "--allow-dirty",
            "--package",
            name,
        ]))?;
    }
    let mut command = cargo::command(&["package", "--allow-dirty"]);
    command.args(crates.iter().flat_map(|(name, _)| ["--package", name]));
    if !verify {
        command.arg("--no-verify");
    }
    process::run(command)?;
    for (name, version) in &crates {
        let path = cargo::target_folder().join(format!("package/{name}-{version}.crate"));
        let bytes = std::fs::metadata(&path).map_err(at(&path))?.len();
        println!("{}: {:.2} MB", path.display(), bytes as f64 / 1e6);
        if bytes > LARGEST {
            return Err(Failure::Failed(format!(
                "{name}: expected at most {LARGEST} bytes, got {bytes}: leave files out by `exclude` in its manifest"
            )));
        }
    }
    Ok(())
}

/// Names and versions of the members that may be published.
fn publishable(metadata: &str) -> Vec<(String, String)> {
    let metadata: Value = serde_json::from_str(metadata).unwrap_or_default();
    let packages = metadata["packages"].as_array().into_iter().flatten();
    // No list of registries is any; an empty list is none.
    let published = packages.filter(|package| package["publish"].is_null());
    let text = |value: &Value| value.as_str().map(str::to_owned);
    published
        .filter_map(|package| Some((text(&package["name"])?, text(&package["version"])?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_members_that_say_so_are_published() {
        let metadata = r#"{"packages":[{"name":"a","version":"1.0.0","publish":null},{"name":"b","version":"1.0.0","publish":[]}]}"#;
        assert_eq!(
            publishable(metadata),
            [("a".to_owned(), "1.0.0".to_owned())]
        );
    }
}
