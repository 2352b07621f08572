//! Programs in PATH.
//!
//! In: a name or a path. Out: the program's path. Invariant: nothing is changed or started.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

/// Finds a program as a shell would.
pub fn program(name: impl AsRef<OsStr>) -> Option<PathBuf> {
    program_in(&env::var_os("PATH").unwrap_or_default(), name.as_ref())
}

fn program_in(path: &OsStr, name: &OsStr) -> Option<PathBuf> {
    if Path::new(name).components().count() > 1 {
        return is_program(Path::new(name)).then(|| PathBuf::from(name));
    }
    env::split_paths(path)
        .map(|folder| folder.join(name))
        .find(|file| is_program(file))
}

fn is_program(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    fs::metadata(file).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_in_the_first_folder_that_has_it() {
        assert_eq!(
            program_in("/nowhere:/bin:/usr/bin".as_ref(), "sh".as_ref()),
            Some(PathBuf::from("/bin/sh"))
        );
        assert_eq!(program_in("/nowhere".as_ref(), "sh".as_ref()), None);
    }

    #[test]
    fn a_path_is_taken_as_it_stands() {
        assert_eq!(
            program_in("".as_ref(), "/bin/sh".as_ref()),
            Some(PathBuf::from("/bin/sh"))
        );
        assert_eq!(program_in("/bin".as_ref(), "/nowhere/sh".as_ref()), None);
    }

    #[test]
    fn a_folder_or_a_plain_file_is_not_a_program() {
        assert!(!is_program(Path::new("/bin")));
        assert!(!is_program(Path::new("/etc/passwd")));
    }
}
