//! The two recipes of `xtask/containers` describe one image.
//!
//! In: `Dockerfile`, `lockstep.def`, the workspace's manifest. Invariant: both build with the Rust
//! of `rust-version` and install the same packages in both stages.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

#[allow(clippy::unwrap_used, reason = "a test stops at a missing file")]
fn text(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    fs::read_to_string(root.join(path)).unwrap()
}

fn dockerfile() -> String {
    text("xtask/containers/Dockerfile")
}

fn definition() -> String {
    text("xtask/containers/lockstep.def")
}

/// Returns the arguments of `apt-get install` in each stage.
fn packages(recipe: &str) -> Vec<Vec<&str>> {
    let installs = recipe.split("--no-install-recommends").skip(1);
    installs
        .map(|install| {
            // A backslash at the end of a line continues the list; `&&` begins another command.
            let mut packages = Vec::new();
            for line in install.lines() {
                let (words, continues) = line
                    .trim_end()
                    .strip_suffix('\\')
                    .map_or((line, false), |words| (words, true));
                let (words, ends) = words
                    .split_once("&&")
                    .map_or((words, false), |(words, _)| (words, true));
                packages.extend(words.split_whitespace());
                if ends || !continues {
                    break;
                }
            }
            packages
        })
        .collect()
}

/// Returns the text between `before` and the next `after`.
fn between<'a>(text: &'a str, before: &str, after: char) -> &'a str {
    let rest = text
        .split_once(before)
        .unwrap_or_else(|| panic!("expected `{before}`"))
        .1;
    rest.split_once(after)
        .unwrap_or_else(|| panic!("expected `{after}` after `{before}`"))
        .0
}

#[test]
fn both_recipes_build_with_the_rust_of_the_manifest() {
    let manifest = text("Cargo.toml");
    let wanted = between(&manifest, "rust-version = \"", '"');
    let (docker, apptainer) = (dockerfile(), definition());
    let versions = [
        between(&docker, "RUST_IMAGE=rust:", '-'),
        between(&apptainer, "From: rust:", '-'),
    ];
    assert_eq!(versions[0], versions[1]);
    assert!(
        versions[0].starts_with(&format!("{wanted}.")),
        "expected Rust {wanted}, got {}",
        versions[0]
    );
}

#[test]
fn both_recipes_start_from_the_same_images() {
    let (docker, apptainer) = (dockerfile(), definition());
    let docker: Vec<&str> = docker
        .lines()
        .filter_map(|line| line.strip_prefix("ARG ")?.split_once("_IMAGE="))
        .map(|(_, image)| image)
        .collect();
    let apptainer: Vec<&str> = apptainer
        .lines()
        .filter_map(|line| line.strip_prefix("From: "))
        .collect();
    assert_eq!(docker.len(), 2);
    assert_eq!(docker, apptainer);
}

#[test]
fn both_recipes_install_the_same_packages() {
    let (docker, apptainer) = (dockerfile(), definition());
    let stages = packages(&docker);
    assert_eq!(stages, packages(&apptainer));
    assert_eq!(stages.len(), 2);
    assert!(
        stages[1]
            .iter()
            .any(|package| package.starts_with("libpmix2=")),
        "{stages:?}"
    );
}

#[test]
fn both_recipes_copy_every_member_of_the_workspace() {
    let manifest = text("Cargo.toml");
    let members: BTreeSet<&str> = between(&manifest, "members = [", ']')
        .split(", ")
        .filter_map(|name| name.trim_matches('"').split('/').next())
        .collect();
    let ignored = text("xtask/containers/Dockerfile.dockerignore");
    let kept: BTreeSet<&str> = ignored
        .lines()
        .filter_map(|line| line.strip_prefix('!'))
        .collect();
    let apptainer = definition();
    let copied: BTreeSet<&str> = apptainer
        .lines()
        .filter_map(|line| line.trim().split_once(" /build/"))
        .map(|(name, _)| name)
        .collect();
    for name in members.into_iter().chain(["Cargo.toml", "Cargo.lock"]) {
        assert!(
            kept.contains(name),
            "Dockerfile.dockerignore leaves out {name}"
        );
        assert!(copied.contains(name), "lockstep.def leaves out {name}");
    }
}

#[test]
fn both_images_carry_the_version_of_the_workspace() {
    let manifest = text("Cargo.toml");
    let version = between(&manifest, "\nversion = \"", '"');
    assert!(
        dockerfile().contains(&format!("image.version=\"{version}\"")),
        "Dockerfile: expected {version}"
    );
    assert!(
        definition().contains(&format!("image.version {version}\n")),
        "lockstep.def: expected {version}"
    );
}

#[test]
fn a_list_ends_where_the_command_ends() {
    let docker =
        "RUN apt-get install --no-install-recommends \\\n    a=1-* \\\n    b \\\n    && rm c\n";
    assert_eq!(packages(docker), [["a=1-*", "b"]]);
    assert_eq!(
        packages("apt-get install --no-install-recommends a \\\n    b\ncd /build\n"),
        [["a", "b"]]
    );
}
