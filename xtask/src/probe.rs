//! Tools of this machine: a C compiler, an MPI to build with, an mpirun to start with, libclang.
//!
//! In: PATH and the variables that the build scripts of the crate mpi read. Out: [`Found`].
//! Invariant: nothing changes. The search follows the rules of the build scripts, or runs the
//! compiler.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use cluster::mpirun::Mpirun;
use cluster::probe;
use cluster::process;

use crate::packages::succeeds;

/// Tools that were found; `None` is missing.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) c_compiler: Option<PathBuf>,
    /// Compiler wrapper or variable by which MPI programs are compiled.
    pub(crate) mpi: Option<String>,
    pub(crate) mpirun: Option<Mpirun>,
    /// Generates the bindings of the crate mpi.
    pub(crate) libclang: Option<PathBuf>,
}

impl Found {
    pub(crate) fn look() -> Self {
        Found {
            c_compiler: ["cc", "gcc", "clang"].into_iter().find_map(probe::program),
            mpi: mpi(),
            mpirun: Mpirun::find(),
            libclang: libclang(),
        }
    }

    pub(crate) fn can_build_mpi(&self) -> bool {
        self.mpi.is_some() && self.libclang.is_some()
    }

    /// Returns mpirun if the programs can be built with an MPI.
    pub(crate) fn launcher(&self) -> Option<&Mpirun> {
        self.mpirun.as_ref().filter(|_| self.can_build_mpi())
    }
}

fn mpi() -> Option<String> {
    for variable in ["MPI_PKG_CONFIG", "CRAY_MPICH_DIR"] {
        if let Some(value) = env::var_os(variable) {
            return Some(format!("{variable}={}", value.display()));
        }
    }
    let wrapper = probe::program(env::var_os("MPICC").unwrap_or_else(|| "mpicc".into()))?;
    // A wrapper may exist without the header.
    let mut command = Command::new(&wrapper);
    command.args(["-E", "-include", "mpi.h", "-x", "c", "/dev/null"]);
    succeeds(&mut command).then(|| wrapper.display().to_string())
}

/// Finds a libclang whose compiler has its own headers; without them the bindings fail at stddef.h.
fn libclang() -> Option<PathBuf> {
    if let Some(path) = env::var_os("LIBCLANG_PATH") {
        return Some(PathBuf::from(path));
    }
    const FOLDERS: [&str; 4] = [
        "/usr/lib",
        "/usr/lib64",
        "/usr/local/lib",
        "/opt/homebrew/opt/llvm/lib",
    ];
    let mut folders: Vec<PathBuf> = FOLDERS.map(PathBuf::from).into();
    // Debian: /usr/lib/llvm-14/lib; Fedora: /usr/lib64/llvm18/lib.
    for parent in &FOLDERS[..2] {
        folders.extend(entries(parent, "llvm").map(|folder| folder.join("lib")));
    }
    let of_llvm = process::answer("llvm-config", &["--libdir"]);
    folders.extend(of_llvm.map(|line| PathBuf::from(line.trim())));
    let variable = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    folders.extend(env::split_paths(&variable));
    let find = |folder: &PathBuf| entries(folder, "libclang").find(|file| is_libclang(file));
    let library = folders.iter().find_map(find)?;
    let has_headers = |folder: &PathBuf| {
        let mut versions = entries(folder.join("clang"), "");
        versions.any(|version| version.join("include/stddef.h").is_file())
    };
    let is_complete = probe::program("clang").is_some() || folders.iter().any(has_headers);
    is_complete.then_some(library)
}

fn is_libclang(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let is_shared = name.contains(".so") || name.ends_with(".dylib");
    let is_named = name.starts_with("libclang.") || name.starts_with("libclang-");
    is_shared && is_named && !name.starts_with("libclang-cpp")
}

/// Lists the entries of a folder with this start of their names, in order.
fn entries(folder: impl AsRef<Path>, start: &str) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(start))
        .map(|entry| entry.path())
        .collect();
    found.sort();
    found.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libclang_is_neither_its_cpp_sister_nor_a_static_archive() {
        let is = |name: &str| is_libclang(&Path::new("/usr/lib").join(name));
        assert!(is("libclang-14.so.1") && is("libclang.so"));
        assert!(!is("libclang-cpp.so.14") && !is("libclangAST.a"));
    }
}
