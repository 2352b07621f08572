//! Paths of gradients between GPUs.
//!
//! In: NCCL as this program loads it, the loader's directories, the description of MPI. Out: [`GradientFacts`].
//! Invariant: only examined where a GPU computes; an unknown fact is `None` or empty, never an error.

use std::path::Path;
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

/// Names of NCCL's library: the loaded one, and the one of packages without headers.
const NAMES: [&str; 2] = ["libnccl.so", "libnccl.so.2"];

/// Switches of MPICH and its derivatives for pointers to GPU memory.
const SWITCHES: [&str; 4] = [
    "MV2_USE_CUDA",
    "MVP_USE_CUDA",
    "MPICH_GPU_SUPPORT_ENABLED",
    "MPIR_CVAR_ENABLE_GPU",
];

/// NCCL and MPI of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct GradientFacts {
    /// Version of the loaded NCCL.
    pub(super) nccl_version: Option<String>,
    /// Files of NCCL in the loader's directories.
    pub(super) nccl_files: Vec<String>,
    /// True if MPI accepts GPU memory.
    pub(super) is_cuda_aware: Option<bool>,
}

/// Examines this node; `library` is the description of MPI, `variable` reads the environment.
pub(super) fn examine(library: &str, variable: impl Fn(&str) -> Option<String>) -> GradientFacts {
    #[cfg(feature = "nccl")]
    let nccl_version = distributed::gradients::library_version();
    #[cfg(not(feature = "nccl"))]
    let nccl_version = None;
    let cache = output("/sbin/ldconfig", &["-p"]).unwrap_or_default();
    let nccl_files = files(
        &variable("LD_LIBRARY_PATH").unwrap_or_default(),
        &cache,
        Path::exists,
    );
    let is_cuda_aware = match library.starts_with("Open MPI") {
        true => output("ompi_info", &["--parsable", "--all"])
            .and_then(|info| is_open_mpi_cuda_aware(&info, library)),
        false => is_switched_on(variable),
    };
    GradientFacts {
        nccl_version,
        nccl_files,
        is_cuda_aware,
    }
}

/// Returns the output of a program, if it can be run.
fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .ok()?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns NCCL's files in the directories of LD_LIBRARY_PATH and in the output of `ldconfig -p`.
fn files(folders: &str, cache: &str, exists: impl Fn(&Path) -> bool) -> Vec<String> {
    let in_folders = folders.split(':').filter(|folder| !folder.is_empty());
    let in_folders = in_folders.flat_map(|folder| NAMES.map(|name| Path::new(folder).join(name)));
    let in_folders = in_folders
        .filter(|path| exists(path))
        .map(|path| path.display().to_string());
    let in_cache = cache.lines().filter_map(|line| {
        let (name, path) = line.split_once(" => ")?;
        NAMES
            .contains(&name.split_whitespace().next()?)
            .then(|| path.trim().to_owned())
    });
    in_folders.chain(in_cache).collect()
}

/// Reads the output of `ompi_info --parsable --all`, if it is of the Open MPI described by `library`.
fn is_open_mpi_cuda_aware(info: &str, library: &str) -> Option<bool> {
    let version = info
        .lines()
        .find_map(|line| line.strip_prefix("ompi:version:full:"))?;
    let own = library
        .strip_prefix("Open MPI v")?
        .split([',', ' '])
        .next()?;
    if version.trim() != own {
        return None;
    }
    let value = info
        .lines()
        .find_map(|line| line.split_once("mpi_built_with_cuda_support:value:"));
    value.map(|(_, value)| value.trim() == "true")
}

/// Reads the switches of MPI; `None` if none is set, as defaults differ.
fn is_switched_on(variable: impl Fn(&str) -> Option<String>) -> Option<bool> {
    SWITCHES
        .iter()
        .find_map(|switch| variable(switch))
        .map(|value| value.trim() == "1")
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: &str = "package:Open MPI root@host Distribution\nompi:version:full:4.1.4\nmpi-api:version:full:3.1.0\n\
        mca:opal:base:param:opal_built_with_cuda_support:synonym:name:mpi_built_with_cuda_support\n\
        mca:mpi:base:param:mpi_built_with_cuda_support:value:true\n\
        mca:mpi:base:param:mpi_built_with_cuda_support:source:default\n";

    #[test]
    fn open_mpi_reports_whether_it_was_built_with_cuda() {
        let library = "Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4";
        assert_eq!(is_open_mpi_cuda_aware(INFO, library), Some(true));
        assert_eq!(
            is_open_mpi_cuda_aware(&INFO.replace("value:true", "value:false"), library),
            Some(false)
        );
    }

    #[test]
    fn another_open_mpi_than_the_linked_one_is_ignored() {
        assert_eq!(
            is_open_mpi_cuda_aware(INFO, "Open MPI v5.0.3, package: x"),
            None
        );
        assert_eq!(is_open_mpi_cuda_aware(INFO, "Open MPI v4.1.40"), None);
        assert_eq!(is_open_mpi_cuda_aware("", "Open MPI v4.1.4"), None);
        assert_eq!(
            is_open_mpi_cuda_aware("ompi:version:full:4.1.4\n", "Open MPI v4.1.4"),
            None
        );
    }

    #[test]
    fn mpich_and_its_derivatives_are_judged_by_their_switches() {
        let set = |name: &'static str, value: &'static str| {
            is_switched_on(move |variable| (variable == name).then(|| value.to_owned()))
        };
        assert_eq!(set("MV2_USE_CUDA", "1"), Some(true));
        assert_eq!(set("MPICH_GPU_SUPPORT_ENABLED", "0"), Some(false));
        assert_eq!(set("PATH", "1"), None);
    }

    #[test]
    fn nccl_is_found_in_the_loaders_folders_and_cache() {
        let cache = "1 libs found in cache `/etc/ld.so.cache'\n\tlibnccl.so.2 (libc6,x86-64) => /usr/lib/libnccl.so.2\n\
            \tlibnccl-net.so (libc6,x86-64) => /usr/lib/libnccl-net.so\n";
        let exists = |path: &Path| path == Path::new("/opt/nccl/libnccl.so");
        assert_eq!(
            files("/opt/a::/opt/nccl", cache, exists),
            ["/opt/nccl/libnccl.so", "/usr/lib/libnccl.so.2"]
        );
        assert!(files("", "", |_| true).is_empty());
    }
}
