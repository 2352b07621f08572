//! What this machine has: a C compiler, an MPI to build with, an mpirun to start with, libclang.
//!
//! In: PATH and the variables that the build scripts of the crate mpi read too. Out: [`Found`].
//! Invariant: nothing is changed. What the build would find is found here by the same rules, or by running it.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cluster::mpirun::Mpirun;
use cluster::probe;
use cluster::process;

/// What was looked for; `None` is missing.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) c_compiler: Option<PathBuf>,
    /// How an MPI program is compiled, said in words.
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
}

/// The MPI that the crate mpi would find: a pkg-config file named by the user, or the compiler wrapper.
fn mpi() -> Option<String> {
    for variable in ["MPI_PKG_CONFIG", "CRAY_MPICH_DIR"] {
        if let Some(value) = env::var_os(variable) {
            return Some(format!("{variable}={}", value.display()));
        }
    }
    let wrapper = probe::program(env::var_os("MPICC").unwrap_or_else(|| "mpicc".into()))?;
    // The wrapper alone does not mean that the header is there.
    let status = Command::new(&wrapper)
        .args(["-E", "-include", "mpi.h", "-x", "c", "/dev/null"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    status
        .is_ok_and(|status| status.success())
        .then(|| wrapper.display().to_string())
}

/// A libclang that can also find the compiler's own headers; without them the bindings fail at stddef.h.
fn libclang() -> Option<PathBuf> {
    if let Some(path) = env::var_os("LIBCLANG_PATH") {
        return Some(PathBuf::from(path));
    }
    let mut folders = Vec::new();
    for pattern in [
        "/usr/lib",
        "/usr/lib64",
        "/usr/local/lib",
        "/opt/homebrew/opt/llvm/lib",
    ] {
        folders.push(PathBuf::from(pattern));
    }
    // Debian: /usr/lib/llvm-14/lib; Fedora: /usr/lib64/llvm18/lib.
    for parent in ["/usr/lib", "/usr/lib64"] {
        folders.extend(entries(parent, "llvm").map(|folder| folder.join("lib")));
    }
    folders.extend(
        process::answer("llvm-config", &["--libdir"]).map(|line| PathBuf::from(line.trim())),
    );
    folders.extend(env::split_paths(
        &env::var_os("LD_LIBRARY_PATH").unwrap_or_default(),
    ));
    let library = folders
        .iter()
        .find_map(|folder| entries(folder, "libclang").find(|file| is_libclang(file)))?;
    has_headers(&folders).then_some(library)
}

fn is_libclang(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let names_the_library = name.starts_with("libclang.") || name.starts_with("libclang-");
    names_the_library
        && !name.starts_with("libclang-cpp")
        && (name.contains(".so") || name.ends_with(".dylib"))
}

fn has_headers(folders: &[PathBuf]) -> bool {
    let beside = |folder: &PathBuf| {
        entries(folder.join("clang"), "").any(|v| v.join("include/stddef.h").is_file())
    };
    probe::program("clang").is_some() || folders.iter().any(beside)
}

/// The entries of a folder whose names start so, in a fixed order; none if it cannot be read.
fn entries(folder: impl AsRef<Path>, start: &str) -> impl Iterator<Item = PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .filter_map(Result::ok)
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
    fn libclang_is_told_from_its_cpp_sister_and_from_static_archives() {
        assert!(is_libclang(Path::new(
            "/usr/lib/llvm-14/lib/libclang-14.so.1"
        )));
        assert!(is_libclang(Path::new("/usr/lib64/libclang.so")));
        assert!(!is_libclang(Path::new("/usr/lib/libclang-cpp.so.14")));
        assert!(!is_libclang(Path::new("/usr/lib/libclangAST.a")));
    }
}
