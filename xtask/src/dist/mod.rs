//! `cargo xtask dist`: files of a release. It uploads nothing.
//!
//! In: the workspace, an MPI to build with. Out: in `target/dist` a tarball of the program without
//! MPI, one with MPI, and their checksums; with `--crates` the packages of the published crates.
//! Invariant: the same commit and compiler give the same lists and file dates; the owners and dates
//! in a tarball do not depend on this machine.

mod licences;

use std::fs;
use std::path::Path;
use std::process::Command;

use clap::Args;
use cluster::failure::{Failure, Outcome};
use cluster::options::Installing;
use cluster::process;
use serde_json::Value;

use crate::at;
use crate::cargo::{self, Mpi};
use crate::program;
use crate::setup;

const DETAILS: &str = "\
Builds the trainer in the profile dist (15 to 20 minutes on 2 cores if nothing is compiled yet), once
without MPI and once with the MPI of mpicc, and packs each as
target/dist/lockstep-VERSION-x86_64-linux[-mpi].tar.gz: the program, completions for shells, man pages,
the licences of all crates in it, and a bill of materials (CycloneDX 1.5). SHA256SUMS has the
checksums. NEEDS names the glibc and the libraries that a program needs: build on an old system.";

/// A published archive may have ten million bytes.
const LARGEST_CRATE: u64 = 10_000_000;
const DOCUMENTS: [&str; 4] = ["README.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE"];
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "trainer.bash"),
    ("zsh", "_trainer"),
    ("fish", "trainer.fish"),
];

/// Flags of `cargo xtask dist`.
#[derive(Debug, Args)]
#[command(after_help = DETAILS)]
pub(crate) struct DistArgs {
    /// Make only the tarball without MPI
    #[arg(long)]
    without_mpi: bool,
    /// Profile of the program; dev is for tests of the packing
    #[arg(long, value_name = "NAME", default_value = "dist", value_parser = ["dist", "dev"])]
    profile: String,
    /// Package the published crates instead
    #[arg(long, conflicts_with = "without_mpi")]
    crates: bool,
    /// Build each package as it would be published; compiles burn again
    #[arg(long, requires = "crates")]
    verify: bool,
    #[command(flatten)]
    installing: Installing,
}

impl DistArgs {
    pub(crate) fn run(&self) -> Outcome {
        if self.crates {
            return package_crates(self.verify);
        }
        if !cfg!(all(target_arch = "x86_64", target_env = "gnu")) {
            let text = "dist: programs are packed on x86-64 Linux with glibc only";
            return Err(Failure::Usage(text.to_owned()));
        }
        let found = setup::run(self.installing)?;
        if !self.without_mpi && Mpi::of(&found) == Mpi::Without {
            let text = "dist: no MPI to build with (expected mpicc and libclang). Run `cargo xtask setup`, \
                        or add --without-mpi";
            return Err(Failure::Failed(text.to_owned()));
        }
        let folder = cargo::target_folder().join("dist");
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).map_err(at(&folder))?;
        let mut tarballs = vec![self.tarball(&folder, Mpi::Without)?];
        if !self.without_mpi {
            tarballs.push(self.tarball(&folder, Mpi::With)?);
        }
        let mut sums = Command::new("sha256sum");
        sums.args(tarballs).current_dir(&folder);
        let sums = cargo::output(sums)?;
        print!("{sums}");
        write(&folder.join("SHA256SUMS"), &sums)
    }

    /// Builds and packs a program; returns the name of the tarball.
    fn tarball(&self, folder: &Path, mpi: Mpi) -> Outcome<String> {
        let built = match self.profile.as_str() {
            "dist" => cargo::trainer_without_paths(mpi),
            profile => cargo::trainer(mpi, profile),
        }?;
        let version = env!("CARGO_PKG_VERSION");
        let suffix = if mpi == Mpi::With { "-mpi" } else { "" };
        let name = format!("lockstep-{version}-x86_64-linux{suffix}");
        let packed = folder.join(&name);
        fill(&packed, &built, mpi)?;
        let root = cargo::root().to_string_lossy();
        let date = process::answer("git", &["-C", &root, "log", "-1", "--format=@%ct"]);
        let date = date.as_deref().unwrap_or("@0").trim();
        let mut tar = Command::new("tar");
        tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner"]);
        tar.arg("--use-compress-program=gzip -9n");
        tar.arg(format!("--mtime={date}"));
        tar.args(["--create", "--file"])
            .arg(format!("{name}.tar.gz"));
        tar.arg(&name).current_dir(folder);
        process::run(tar)?;
        fs::remove_dir_all(&packed).map_err(at(&packed))?;
        Ok(format!("{name}.tar.gz"))
    }
}

/// Puts all files of a tarball into a folder.
fn fill(folder: &Path, built: &Path, mpi: Mpi) -> Outcome {
    let completions = folder.join("completions");
    fs::create_dir_all(&completions).map_err(at(&completions))?;
    let program = folder.join("trainer");
    fs::copy(built, &program).map_err(at(built))?;
    for document in DOCUMENTS {
        let original = cargo::root().join(document);
        fs::copy(&original, folder.join(document)).map_err(at(&original))?;
    }
    let needs = program::needs(&program)?;
    println!("{needs}");
    write(&folder.join("NEEDS"), &needs)?;
    let crates = licences::crates_of_trainer(mpi)?;
    let notices = licences::notices(&crates)?;
    write(&folder.join("LICENSES-THIRD-PARTY"), &notices)?;
    let bill = format!("{:#}\n", licences::bill_of_materials(&crates));
    write(&folder.join("bill-of-materials.cdx.json"), &bill)?;
    for (shell, file) in COMPLETIONS {
        let mut command = Command::new(&program);
        command.args(["completions", shell]);
        write(&completions.join(file), &cargo::output(command)?)?;
    }
    let mut man = Command::new(&program);
    man.arg("man").arg(folder.join("man/man1"));
    process::run(man)
}

fn write(path: &Path, text: &str) -> Outcome {
    fs::write(path, text).map_err(at(path))
}

/// Packages the published crates in one command, as no registry has them yet.
fn package_crates(verify: bool) -> Outcome {
    let words = ["metadata", "--no-deps", "--format-version", "1"];
    let metadata = cargo::json(cargo::command(&words))?;
    let crates = published(&metadata);
    if crates.is_empty() {
        let text = "dist --crates: expected members with `publish = true`, got none";
        return Err(Failure::Failed(text.to_owned()));
    }
    let mut command = cargo::command(&["package", "--allow-dirty"]);
    command.args(crates.iter().flat_map(|(name, _)| ["--package", name]));
    if !verify {
        command.arg("--no-verify");
    }
    process::run(command)?;
    for (name, version) in &crates {
        let path = cargo::target_folder().join(format!("package/{name}-{version}.crate"));
        let mut list = Command::new("tar");
        list.arg("-tzf").arg(&path);
        process::run(list)?;
        let bytes = fs::metadata(&path).map_err(at(&path))?.len();
        println!("{}: {:.2} MB", path.display(), bytes as f64 / 1e6);
        if bytes > LARGEST_CRATE {
            return Err(Failure::Failed(format!(
                "{name}: expected at most {LARGEST_CRATE} bytes, got {bytes}. Exclude files in its manifest"
            )));
        }
    }
    Ok(())
}

/// Returns names and versions of the published members.
fn published(metadata: &Value) -> Vec<(&str, &str)> {
    let packages = metadata["packages"].as_array().into_iter().flatten();
    // Without a list, any registry is allowed; an empty list allows none.
    let published = packages.filter(|package| package["publish"].is_null());
    published
        .filter_map(|package| Some((package["name"].as_str()?, package["version"].as_str()?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_members_without_a_list_of_registries_are_published() {
        let metadata = serde_json::json!({"packages": [
            {"name": "a", "version": "1.0.0", "publish": null},
            {"name": "b", "version": "1.0.0", "publish": []},
        ]});
        assert_eq!(published(&metadata), [("a", "1.0.0")]);
    }
}
