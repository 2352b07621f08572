//! Restrictions of this machine for Open MPI's `mpirun`, and the options that work around them.
//!
//! In: the environment, PATH, the folder for temporary files. Out: options and variables for
//! mpirun.
//! Invariant: without a restriction nothing is added. The user's `OMPI_MCA_*` variables are kept.
//! Source: Open MPI 4.1.4, `plm_rsh_component.c` (ends mpirun without ssh and rsh), `session_dir.c`
//! (makes a folder in TMPDIR, TEMP, TMP or `/tmp`); PMIx 4.2.2, `pmix_home_directory` (reads
//! `pw_dir` of a user that may have no entry).

use std::env;
use std::fs::File;
use std::path::{Path, PathBuf};

use crate::probe;
use crate::process;

/// Folders for temporary files if the usual one is not writable.
const FALLBACK_FOLDERS: [&str; 2] = ["/dev/shm", "/var/tmp"];

/// Variables by which a user or Grid Engine configures remote starts.
const CHOICES_OF_A_SHELL: [&str; 3] = ["OMPI_MCA_plm", "OMPI_MCA_plm_rsh_agent", "PE_HOSTFILE"];

/// Properties of this machine that matter to mpirun.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Surroundings {
    pub(crate) is_root: bool,
    /// True if a program, or a choice of the user, starts processes on other hosts.
    pub(crate) has_remote_shell: bool,
    /// True if the user has a home directory; a user without an entry in the password file may have
    /// none.
    pub(crate) has_home: bool,
    /// Folder for temporary files, if the usual one is not writable.
    pub(crate) temporary: Option<PathBuf>,
}

impl Surroundings {
    pub(crate) fn found() -> Self {
        let usual = ["TMPDIR", "TEMP", "TMP"]
            .into_iter()
            .find_map(env::var_os)
            .map_or("/tmp".into(), PathBuf::from);
        Self {
            is_root: process::is_root(),
            has_remote_shell: ["ssh", "rsh"]
                .iter()
                .any(|name| probe::program(name).is_some())
                || CHOICES_OF_A_SHELL
                    .iter()
                    .any(|name| env::var_os(name).is_some()),
            has_home: env::home_dir().is_some(),
            temporary: fallback(&usual, &FALLBACK_FOLDERS.map(Path::new)),
        }
    }

    /// Returns the options and variables that Open MPI needs to start ranks here; other hosts need
    /// a remote shell.
    pub(crate) fn for_open_mpi(
        &self,
        has_hosts: bool,
    ) -> (Vec<&'static str>, Vec<(&'static str, PathBuf)>) {
        let mut variables = Vec::new();
        if self.is_root {
            // Open MPI refuses root unless both variables are set; in containers root is the only
            // user.
            variables.extend(
                ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"]
                    .map(|name| (name, "1".into())),
            );
        }
        if !self.has_home {
            variables.push(("HOME", "/".into()));
        }
        variables.extend(
            self.temporary
                .iter()
                .map(|folder| ("TMPDIR", folder.clone())),
        );
        let options = if has_hosts || self.has_remote_shell {
            Vec::new()
        } else {
            vec!["--mca", "plm", "^rsh"]
        };
        (options, variables)
    }
}

/// Returns the first writable folder, if the usual one is not writable.
fn fallback(usual: &Path, folders: &[&Path]) -> Option<PathBuf> {
    if can_be_written(usual) {
        return None;
    }
    folders
        .iter()
        .find(|folder| can_be_written(folder))
        .map(|folder| folder.to_path_buf())
}

fn can_be_written(folder: &Path) -> bool {
    let probe = folder.join(format!(".lockstep-launch-{}", std::process::id()));
    let is_made = File::create_new(&probe).is_ok();
    is_made && std::fs::remove_file(&probe).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_denied_is_worked_around_and_hosts_need_a_remote_shell() {
        let usual = Surroundings {
            is_root: false,
            has_remote_shell: true,
            has_home: true,
            temporary: None,
        };
        assert_eq!(usual.for_open_mpi(false), (Vec::new(), Vec::new()));
        let bare = Surroundings {
            is_root: false,
            has_remote_shell: false,
            has_home: false,
            temporary: Some("/dev/shm".into()),
        };
        let variables = vec![("HOME", "/".into()), ("TMPDIR", "/dev/shm".into())];
        assert_eq!(
            bare.for_open_mpi(false),
            (vec!["--mca", "plm", "^rsh"], variables.clone())
        );
        assert_eq!(bare.for_open_mpi(true), (Vec::new(), variables));
    }

    #[test]
    fn a_folder_that_cannot_be_written_has_the_first_fallback_that_can() {
        let folder = tempfile::tempdir().unwrap();
        let denied = Path::new("/proc");
        let also_denied = Path::new("/no/such");
        assert_eq!(fallback(folder.path(), &[denied]), None);
        assert_eq!(
            fallback(denied, &[also_denied, folder.path()]),
            Some(folder.path().to_owned())
        );
        assert_eq!(fallback(denied, &[also_denied]), None);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
