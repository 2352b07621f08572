//! Sets the commit that the program is built from, for `env!("LOCKSTEP_COMMIT")`.
//!
//! In: `.git` of the repository, if there is one. Out: `LOCKSTEP_COMMIT`, unless the environment
//! already sets it.
//! Invariant: the build script never fails and starts no program. The commit is "unknown" without
//! git.

use std::fs;
use std::path::{Path, PathBuf};

fn main() {
    println!("cargo:rerun-if-env-changed=LOCKSTEP_COMMIT");
    println!("cargo:rerun-if-changed=build.rs");
    warn_of_waiting_tasks();
    if std::env::var_os("LOCKSTEP_COMMIT").is_none() {
        println!(
            "cargo:rustc-env=LOCKSTEP_COMMIT={}",
            commit().unwrap_or_else(|| "unknown".to_owned())
        );
    }
}

/// Warns about ranks that `cargo run` starts: one rank builds, and the others wait for minutes.
fn warn_of_waiting_tasks() {
    for variable in ["SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"] {
        let tasks = std::env::var(variable)
            .ok()
            .and_then(|number| number.parse::<usize>().ok());
        if let Some(tasks) = tasks.filter(|&tasks| tasks > 1) {
            println!(
                "cargo:warning=building inside a job of {tasks} tasks ({variable}): one builds, and the others wait. Build before the job with `cargo build --release -p trainer`"
            );
            return;
        }
    }
}

fn commit() -> Option<String> {
    let git = git_directory(Path::new("../.git"))?;
    let head = watched(&git.join("HEAD"))?;
    let Some(reference) = head.strip_prefix("ref: ") else {
        return Some(head);
    };
    // A linked work tree keeps its branches in the directory that `commondir` names.
    let shared =
        fs::read_to_string(git.join("commondir")).map_or(git.clone(), |path| git.join(path.trim()));
    watched(&shared.join(reference)).or_else(|| {
        let packed = watched(&shared.join("packed-refs"))?;
        let line = packed.lines().find(|line| line.ends_with(reference))?;
        line.split_whitespace().next().map(str::to_owned)
    })
}

/// Returns `.git`, or the directory that the `.git` file of a linked work tree names.
fn git_directory(path: &Path) -> Option<PathBuf> {
    if path.is_dir() {
        return Some(path.to_owned());
    }
    let text = fs::read_to_string(path).ok()?;
    Some(path.parent()?.join(text.strip_prefix("gitdir: ")?.trim()))
}

/// Returns the text of a file and makes cargo rebuild when the file changes. An absent file is not
/// watched, because it would cause a rebuild every time.
fn watched(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    println!("cargo:rerun-if-changed={}", path.display());
    Some(text.trim().to_owned())
}
