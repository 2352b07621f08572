//! Cargo commands: features, folders, built programs.
//!
//! In: whether the machine has an MPI. Out: prepared commands, paths of built programs. Invariant:
//! every command over the workspace uses the same features, so that burn is compiled once.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cluster::failure::{Failure, Outcome};
use cluster::process;
use serde_json::Value;

use crate::at;
use crate::probe::Found;

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

pub(crate) fn in_workspace(command: &mut Command) {
    command.current_dir(root());
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

/// Returns the standard output of a command; its errors pass through.
pub(crate) fn output(mut command: Command) -> Outcome<String> {
    command.stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = command
        .output()
        .map_err(|error| process::cannot_start(&command, &error))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let line = process::shown(&command);
    let status = output.status;
    Err(Failure::Failed(format!("`{line}` failed: {status}")))
}

pub(crate) fn json(command: Command) -> Outcome<Value> {
    let line = process::shown(&command);
    serde_json::from_str(&output(command)?)
        .map_err(|error| Failure::Failed(format!("`{line}`: {error}")))
}

/// Builds the trainer. The dev profile is nearly as fast as others, and the tests share its
/// results.
pub(crate) fn trainer(mpi: Mpi, profile: &str) -> Outcome<PathBuf> {
    executable(trainer_build(mpi, profile), "trainer", false)
}

fn trainer_build(mpi: Mpi, profile: &str) -> Command {
    let mut build = command(&["build", "--package", "trainer", "--profile", profile]);
    build.args(mpi.features());
    build
}

/// Builds the trainer for other machines; rejects a program with paths of this one.
pub(crate) fn trainer_without_paths(mpi: Mpi) -> Outcome<PathBuf> {
    let cargo_home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = env::home_dir().map(|home| home.join(".cargo"));
    let cargo_home = cargo_home
        .or(home)
        .ok_or_else(|| Failure::Failed("no home directory: set HOME or CARGO_HOME".to_owned()))?;
    let paths = [
        (cargo_home.display().to_string(), "/cargo"),
        (root().display().to_string(), "/lockstep"),
    ];
    let remap = |(path, name): &(String, &str)| format!("--remap-path-prefix={path}={name}");
    let mut build = trainer_build(mpi, "dist");
    // RUSTFLAGS would replace the flags of configuration files; this adds to them.
    let flags = format!("build.rustflags={:?}", paths.each_ref().map(remap));
    build.arg("--config").arg(flags);
    let program = executable(build, "trainer", false)?;
    let bytes = fs::read(&program).map_err(at(&program))?;
    for (path, _) in paths {
        if contains(&bytes, path.as_bytes()) {
            return Err(Failure::Failed(format!(
                "{}: contains the path {path} of this machine. Unset RUSTFLAGS, or search it by `strings`",
                program.display()
            )));
        }
    }
    Ok(program)
}

fn contains(bytes: &[u8], words: &[u8]) -> bool {
    bytes.windows(words.len()).any(|window| window == words)
}

/// Builds the trainer in the dev profile, and copies it to a place where no other build replaces
/// it.
pub(crate) fn kept_trainer(mpi: Mpi) -> Outcome<PathBuf> {
    let built = trainer(mpi, "dev")?;
    let folder = target_folder().join("programs");
    let kept = folder.join("trainer");
    let fresh = folder.join("trainer.new");
    fs::create_dir_all(&folder)
        .and_then(|()| fs::copy(&built, &fresh))
        .and_then(|_| fs::rename(&fresh, &kept))
        .map_err(at(&kept))?;
    Ok(kept)
}

/// Returns a command for a function of the script with the stages that only run tools.
pub(crate) fn script(function: &str) -> Command {
    let mut command = Command::new(root().join("xtask/src/stages/checks.sh"));
    command.arg(function);
    in_workspace(&mut command);
    command
}

/// Runs a build and returns the executable of a target: the program, or with `is_test` its tests.
pub(crate) fn executable(mut command: Command, name: &str, is_test: bool) -> Outcome<PathBuf> {
    command.arg("--message-format=json-render-diagnostics");
    println!("$ {}", process::shown(&command));
    let messages = output(command)?;
    let mut executables = messages
        .lines()
        .map(|line| executable_of(line, name, is_test));
    let missing = || Failure::Failed(format!("cargo built no executable `{name}`"));
    executables.find_map(|path| path).ok_or_else(missing)
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
    fn a_path_is_found_in_a_program() {
        assert!(
            contains(b"\0/w/src/a.rs\0", b"/w/src") && !contains(b"/lockstep/src/a.rs", b"/w/src")
        );
    }

    #[test]
    fn the_root_holds_the_workspace_manifest() {
        let manifest = std::fs::read_to_string(root().join("Cargo.toml")).unwrap();
        assert!(manifest.contains("[workspace]"));
    }
}
