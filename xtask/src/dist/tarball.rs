//! A tarball of one program.
//!
//! In: whether the program speaks MPI. Out: its file's name. Invariant: all in one folder of the tarball's name; owners and dates are
//! those of nobody and of the commit, so that they say nothing of the machine that packed it.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::dependencies::{Dependency, PROGRAM, of_trainer};
use super::{bill, licences};
use crate::at::at;
use crate::cargo::{self, Mpi};
use crate::needs;
use cluster::failure::{Failure, Outcome};
use cluster::process;

/// Files of the root that go along.
const DOCUMENTS: [&str; 4] = ["README.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE"];
/// A shell, and where its completions lie in the tarball.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "trainer.bash"),
    ("zsh", "_trainer"),
    ("fish", "trainer.fish"),
];

/// Builds and packs one into the folder.
pub(super) fn make(folder: &Path, mpi: Mpi, profile: &str) -> Outcome<String> {
    let dependencies = of_trainer(mpi)?;
    let version = dependencies
        .iter()
        .find(|crate_| crate_.name == PROGRAM)
        .map_or("", |crate_| &crate_.version);
    let name = format!(
        "lockstep-{version}-x86_64-linux{}",
        if mpi == Mpi::With { "-mpi" } else { "" }
    );
    let built = if profile == "dist" {
        cargo::trainer_without_paths(mpi)
    } else {
        cargo::trainer(mpi, profile)
    }?;
    let packed = folder.join(&name);
    fill(&packed, &built, &dependencies)?;
    let date = process::answer(
        "git",
        &[
            "-C",
            &cargo::root().to_string_lossy(),
            "log",
            "-1",
            "--format=@%ct",
        ],
    );
    let mut tar = Command::new("tar");
    tar.args([
        "--sort=name",
        "--owner=0",
        "--group=0",
        "--numeric-owner",
        "--use-compress-program=gzip -9n",
    ])
    .arg(format!(
        "--mtime={}",
        date.as_deref().unwrap_or("@0").trim()
    ))
    .arg("--directory")
    .arg(folder)
    .args(["--create", "--file"])
    .arg(folder.join(format!("{name}.tar.gz")))
    .arg(&name);
    process::run(tar)?;
    fs::remove_dir_all(&packed).map_err(at(&packed))?;
    Ok(format!("{name}.tar.gz"))
}

/// Puts everything where it belongs.
fn fill(folder: &Path, built: &Path, dependencies: &[Dependency]) -> Outcome {
    let completions = folder.join("completions");
    fs::create_dir_all(&completions).map_err(at(&completions))?;
    let program = folder.join(PROGRAM);
    fs::copy(built, &program).map_err(at(built))?;
    for document in DOCUMENTS {
        fs::copy(cargo::root().join(document), folder.join(document))
            .map_err(at(document.as_ref()))?;
    }
    let needs = needs(&program)?;
    let bytes = fs::metadata(&program).map_err(at(&program))?.len();
    println!(
        "{PROGRAM}: {:.1} MB, {} crates; {}",
        bytes as f64 / 1e6,
        dependencies.len(),
        needs.trim()
    );
    write(&folder.join("NEEDS"), &needs)?;
    write(
        &folder.join("LICENSES-THIRD-PARTY"),
        &licences::notices(dependencies)?,
    )?;
    write(
        &folder.join("bill-of-materials.cdx.json"),
        &format!("{:#}\n", bill::of(dependencies)),
    )?;
    for (shell, file) in COMPLETIONS {
        let script = process::answer(&program, &["completions", shell]).ok_or_else(|| {
            Failure::Failed(format!(
                "`{PROGRAM} completions {shell}` failed in {}",
                folder.display()
            ))
        })?;
        write(&completions.join(file), &script)?;
    }
    let mut man = Command::new(&program);
    man.arg("man").arg(folder.join("man/man1"));
    process::run(man)
}

/// What the program needs, in words.
fn needs(program: &Path) -> Outcome<String> {
    let libraries = needs::libraries(program)?;
    let others = if libraries.is_empty() {
        "no other library".to_owned()
    } else {
        libraries.join(", ")
    };
    Ok(format!(
        "x86-64 Linux with glibc {} or newer, and {others}.\n",
        needs::glibc(program)?
    ))
}

fn write(path: &Path, text: &str) -> Outcome {
    fs::write(path, text).map_err(at(path))
}
