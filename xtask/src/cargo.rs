//! Cargo, called from here: which features, where the results lie.
//!
//! In: whether MPI can be had. Out: prepared commands, paths of what they built.
//! Invariant: every command over the workspace uses the same features, so that the tensor library is compiled once.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::at::at;
use crate::probe::Found;
use cluster::failure::{Failure, Outcome};
use cluster::process;

/// Whether this build speaks MPI.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Mpi {
    With,
    Without,
}

impl Mpi {
    pub(crate) fn of(found: &Found) -> Self {
        if found.can_build_mpi() {
            Mpi::With
        } else {
            Mpi::Without
        }
    }

    /// The features of everything that is built: the same for all, so that the tensor library is compiled once.
    pub(crate) fn features(self) -> &'static [&'static str] {
        match self {
            Mpi::With => &[],
            Mpi::Without => &["--no-default-features", "--features", "flex,download"],
        }
    }
}

/// The workspace's folder.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the crate lies inside the workspace")
}

/// The folder that cargo builds into.
pub(crate) fn target_folder() -> PathBuf {
    root().join(env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

/// The cargo of the same toolchain that runs us.
pub(crate) fn program() -> OsString {
    env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// A cargo command in the workspace's folder, without the variables by which cargo described this program to itself: build
/// scripts that watch them would run again, and their dependents compile again, at every change from `cargo xtask` to `cargo`.
pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(program());
    command.args(arguments).current_dir(root());
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(describes_this_package) {
            command.env_remove(name);
        }
    }
    command
}

/// Whether cargo sets the variable for a program that it runs, to tell about that program's package.
fn describes_this_package(name: &str) -> bool {
    ["CARGO_MANIFEST_", "CARGO_PKG_"]
        .iter()
        .any(|prefix| name.starts_with(prefix))
        || [
            "CARGO",
            "CARGO_BIN_NAME",
            "CARGO_CRATE_NAME",
            "CARGO_PRIMARY_PACKAGE",
            "OUT_DIR",
        ]
        .contains(&name)
}

/// Builds the trainer in this profile. The dev profile's is nearly as fast, and the tests share what is compiled for it.
pub(crate) fn trainer(mpi: Mpi, profile: &str) -> Outcome<PathBuf> {
    executable(trainer_build(mpi, profile), "trainer", false)
}

fn trainer_build(mpi: Mpi, profile: &str) -> Command {
    let mut build = command(&["build", "--package", "trainer", "--profile", profile]);
    build.args(mpi.features());
    build
}

/// The trainer for other machines: its messages name no path of this one, and one that has them all the same is refused.
pub(crate) fn trainer_without_paths(mpi: Mpi) -> Outcome<PathBuf> {
    let paths = [(home()?, "/cargo"), (root().to_owned(), "/lockstep")];
    let remaps = paths
        .iter()
        .map(|(path, name)| format!("--remap-path-prefix={}={name}", path.display()));
    let mut build = trainer_build(mpi, "dist");
    // The variables would take the place of what configuration files say; this comes on top of it.
    build
        .arg("--config")
        .arg(format!("build.rustflags={:?}", remaps.collect::<Vec<_>>()));
    let program = executable(build, "trainer", false)?;
    let bytes = fs::read(&program).map_err(at(&program))?;
    match paths
        .iter()
        .find(|(path, _)| contains(&bytes, path.as_os_str().as_encoded_bytes()))
    {
        None => Ok(program),
        Some((path, _)) => Err(Failure::Failed(format!(
            "{}: expected no path of this machine in it, got {}: unset RUSTFLAGS, or find by `strings` whose it is",
            program.display(),
            path.display()
        ))),
    }
}

fn contains(bytes: &[u8], words: &[u8]) -> bool {
    bytes.windows(words.len()).any(|window| window == words)
}

/// Where cargo keeps the crates of others.
fn home() -> Outcome<PathBuf> {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    home.or_else(|| Some(env::home_dir()?.join(".cargo")))
        .ok_or_else(|| Failure::Failed("no home directory, expected it or CARGO_HOME".to_owned()))
}

/// The same in the dev profile, copied to where no other build, as one with another feature, puts its own in its place.
pub(crate) fn kept_trainer(mpi: Mpi) -> Outcome<PathBuf> {
    let built = trainer(mpi, "dev")?;
    let folder = target_folder().join("programs");
    let (kept, fresh) = (folder.join("trainer"), folder.join("trainer.new"));
    let copied = fs::create_dir_all(&folder)
        .and_then(|()| fs::copy(&built, &fresh))
        .and_then(|_| fs::rename(&fresh, &kept));
    copied.map_err(at(&kept))?;
    Ok(kept)
}

/// Makes a folder for cargo to build into that begins with what is compiled in the usual one; there `adapt` removes what cannot
/// serve. A folder that exists is left as it is.
///
/// Libraries and metadata, nearly all of it, are shared by hard links, since a copy would take gigabytes for each folder: rustc renames
/// a new file to its name and so never writes into one of another folder.
pub(crate) fn begin_folder(folder: &Path, adapt: impl FnOnce(&Path) -> Outcome) -> Outcome {
    const COPY: &str =
        "mkdir -p \"$2/debug/deps\" && cp -a \"$1/debug/.fingerprint\" \"$1/debug/build\" \"$2/debug\" &&
        find \"$1/debug/deps\" -maxdepth 1 -type f '(' -name '*.rlib' -o -name '*.rmeta' ')' -exec cp -al -t \"$2/debug/deps\" {} + &&
        find \"$1/debug/deps\" -maxdepth 1 -type f '(' -name '*.so' -o -name '*.d' ')' -exec cp -a -t \"$2/debug/deps\" {} +";
    let compiled = target_folder();
    if folder.exists() || !compiled.join("debug/.fingerprint").exists() {
        return Ok(());
    }
    // Under another name until it is complete.
    let unfinished = folder.with_extension("unfinished");
    let _ = fs::remove_dir_all(&unfinished);
    let mut copy = Command::new("sh");
    copy.args(["-c", COPY, "sh"]).args([&compiled, &unfinished]);
    process::run(copy)?;
    adapt(&unfinished)?;
    fs::rename(&unfinished, folder).map_err(at(folder))
}

/// Runs a building command and finds the executable that it made for a target of this name.
///
/// With `is_test` the target's test harness is meant, else the program itself.
pub(crate) fn executable(mut command: Command, name: &str, is_test: bool) -> Outcome<PathBuf> {
    command.arg("--message-format=json-render-diagnostics");
    println!("$ {}", process::shown(&command));
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| process::cannot_start(&command, &error))?;
    if !output.status.success() {
        return Err(Failure::Failed(format!(
            "the build of `{name}` failed: {}",
            output.status
        )));
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    messages.lines().find_map(|line| executable_of(line, name, is_test)).ok_or_else(|| {
        Failure::Failed(format!("cargo built no executable `{name}`: expected a target of that name in the workspace"))
    })
}

fn executable_of(message: &str, name: &str, is_test: bool) -> Option<PathBuf> {
    let message: Value = serde_json::from_str(message).ok()?;
    // A target also says whether it may be tested; whether this one was built as a test stands in its profile.
    let is_meant = message["target"]["name"] == name && message["profile"]["test"] == is_test;
    message["executable"]
        .as_str()
        .filter(|_| is_meant)
        .map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARTIFACT: &str = r#"{"reason":"compiler-artifact","package_id":"path+file:///w/trainer#0.1.0","target":{"kind":["bin"],"crate_types":["bin"],"name":"trainer","src_path":"/w/trainer/src/main.rs","edition":"2024","doc":true,"doctest":false,"test":true},"profile":{"opt_level":"1","debuginfo":1,"debug_assertions":true,"overflow_checks":true,"test":false},"features":["flex"],"filenames":["/w/target/debug/trainer"],"executable":"/w/target/debug/trainer","fresh":true}"#;

    #[test]
    fn the_program_is_told_from_its_test_harness() {
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
    fn a_library_and_another_name_are_passed_over() {
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
    fn cargo_is_started_without_what_it_told_about_this_package() {
        assert!(
            env::var_os("CARGO_MANIFEST_DIR").is_some(),
            "cargo sets it for its tests, too"
        );
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
