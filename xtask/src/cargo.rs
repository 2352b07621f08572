//! Cargo commands: features, folders, built programs.
//!
//! In: whether the machine has an MPI. Out: prepared commands, paths of built programs. Invariant:
//! every command over the workspace uses the same features, so that burn is compiled once.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cluster::failure::{Outcome, failed};
use cluster::process;
use serde_json::Value;

use crate::at;
use crate::setup::Found;

/// Presence of MPI in a build.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Mpi {
    With,
    Without,
}

impl Mpi {
    pub(crate) fn of(found: &Found) -> Self {
        match found.can_build_mpi() {
            true => Mpi::With,
            false => Mpi::Without,
        }
    }

    /// Returns the flags of every build.
    pub(crate) fn features(self) -> &'static [&'static str] {
        match self {
            Mpi::With => &[],
            Mpi::Without => &["--no-default-features", "--features", "flex,download"],
        }
    }
}

/// Returns the workspace's folder.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the crate lies inside the workspace")
}

/// Returns the folder for results of builds.
pub(crate) fn target_folder() -> PathBuf {
    root().join(env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

/// Returns a cargo command in the workspace's folder, without the variables that describe xtask.
///
/// Build scripts that watch these variables would run again, and their dependents compile again, at
/// every change from `cargo xtask` to `cargo`.
pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments);
    in_workspace(&mut command);
    command
}

fn in_workspace(command: &mut Command) {
    command.current_dir(root());
    forget_this_package(command);
}

/// Removes the variables that describe xtask, so that cargo compiles nothing again for them.
pub(crate) fn forget_this_package(command: &mut Command) {
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(describes_this_package) {
            command.env_remove(name);
        }
    }
}

fn describes_this_package(name: &str) -> bool {
    const NAMES: [&str; 5] = [
        "CARGO",
        "CARGO_BIN_NAME",
        "CARGO_CRATE_NAME",
        "CARGO_PRIMARY_PACKAGE",
        "OUT_DIR",
    ];
    NAMES.contains(&name) || name.starts_with("CARGO_MANIFEST_") || name.starts_with("CARGO_PKG_")
}

/// Builds the trainer in the dev profile, which is nearly as fast as others and shares its results
/// with the tests.
pub(crate) fn trainer(mpi: Mpi) -> Outcome<PathBuf> {
    let mut build = command(&["build", "--package", "trainer"]);
    build.args(mpi.features());
    executable(build, "trainer", false)
}

/// Examples of tasks other than image classification.
pub(crate) const TASKS: [&str; 3] = ["char_gpt", "unet", "several_heads"];

/// Builds the trainer and the example tasks, and copies them to a folder where no other build
/// replaces them. Returns the trainer's path.
pub(crate) fn kept_trainer(mpi: Mpi) -> Outcome<PathBuf> {
    let mut build = command(&["build", "--package", "trainer", "--bins"]);
    build.args(TASKS.iter().flat_map(|task| ["--example", task]));
    build.args(mpi.features());
    let names = [&["trainer"], &TASKS[..]].concat();
    let built = executables(build, &names, false)?;
    let folder = target_folder().join("programs");
    fs::create_dir_all(&folder).map_err(at(&folder))?;
    for (name, built) in names.iter().zip(&built) {
        let kept = folder.join(name);
        let fresh = folder.join(format!("{name}.new"));
        fs::copy(built, &fresh)
            .and_then(|_| fs::rename(&fresh, &kept))
            .map_err(at(&kept))?;
    }
    Ok(folder.join("trainer"))
}

/// Returns a command for a script in `xtask/src`.
pub(crate) fn script(name: &str) -> Command {
    let mut command = Command::new(root().join("xtask/src").join(name));
    in_workspace(&mut command);
    command
}

/// Runs a build and returns the executable of a target: the program, or with `is_test` its tests.
pub(crate) fn executable(command: Command, name: &str, is_test: bool) -> Outcome<PathBuf> {
    Ok(executables(command, &[name], is_test)?.swap_remove(0))
}

/// Runs a build and returns the executables of these targets, as [`executable`].
fn executables(mut command: Command, names: &[&str], is_test: bool) -> Outcome<Vec<PathBuf>> {
    command.arg("--message-format=json-render-diagnostics");
    command.stdin(Stdio::null()).stderr(Stdio::inherit());
    let line = process::shown(&command);
    println!("$ {line}");
    let output = command
        .output()
        .map_err(|error| process::cannot_start(&command, &error))?;
    if !output.status.success() {
        let status = output.status;
        return Err(failed!("`{line}` failed: {status}"));
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    let find = |name: &&str| {
        let mut lines = messages.lines();
        let missing = || failed!("cargo built no executable `{name}`");
        lines
            .find_map(|line| executable_of(line, name, is_test))
            .ok_or_else(missing)
    };
    names.iter().map(find).collect()
}

fn executable_of(message: &str, name: &str, is_test: bool) -> Option<PathBuf> {
    let message: Value = serde_json::from_str(message).ok()?;
    // The target states whether it may be tested, the profile whether this one is a test.
    if message["target"]["name"] != name || message["profile"]["test"] != is_test {
        return None;
    }
    message["executable"].as_str().map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARTIFACT: &str = r#"{"reason":"compiler-artifact","package_id":"path+file:///w/trainer#0.1.0","target":{"kind":["bin"],"crate_types":["bin"],"name":"trainer","src_path":"/w/trainer/src/main.rs","edition":"2024","doc":true,"doctest":false,"test":true},"profile":{"opt_level":"1","debuginfo":1,"debug_assertions":true,"overflow_checks":true,"test":false},"features":["flex"],"filenames":["/w/target/debug/trainer"],"executable":"/w/target/debug/trainer","fresh":true}"#;

    #[test]
    fn the_program_differs_from_its_test_harness() {
        assert_eq!(
            executable_of(ARTIFACT, "trainer", false),
            Some(PathBuf::from("/w/target/debug/trainer"))
        );
        let harness = ARTIFACT.replace(
            "\"overflow_checks\":true,\"test\":false",
            "\"overflow_checks\":true,\"test\":true",
        );
        assert_eq!(
            executable_of(&harness, "trainer", true),
            Some(PathBuf::from("/w/target/debug/trainer"))
        );
        assert_eq!(executable_of(ARTIFACT, "trainer", true), None);
        assert_eq!(executable_of(&harness, "trainer", false), None);
    }

    #[test]
    fn a_library_and_another_name_are_skipped() {
        assert_eq!(executable_of(ARTIFACT, "xtask", false), None);
        let library = ARTIFACT.replace(
            "\"executable\":\"/w/target/debug/trainer\"",
            "\"executable\":null",
        );
        assert_eq!(executable_of(&library, "trainer", false), None);
        assert_eq!(
            executable_of(
                r#"{"reason":"build-finished","success":true}"#,
                "trainer",
                false
            ),
            None
        );
    }

    #[test]
    fn cargo_starts_without_the_variables_that_describe_this_package() {
        assert!(env::var_os("CARGO_MANIFEST_DIR").is_some());
        let command = command(&["build"]);
        let removed = |name: &str| {
            command
                .get_envs()
                .any(|(key, value)| key == name && value.is_none())
        };
        assert!(removed("CARGO_MANIFEST_DIR") && removed("CARGO_PKG_NAME"));
        assert!(!removed("CARGO_TARGET_DIR") && !removed("CARGO_INCREMENTAL") && !removed("PATH"));
    }

    #[test]
    fn the_root_holds_the_workspace_manifest() {
        let manifest = std::fs::read_to_string(root().join("Cargo.toml")).unwrap();
        assert!(manifest.contains("[workspace]"));
    }
}
