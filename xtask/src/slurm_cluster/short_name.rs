//! A short name for a folder deep in the file system, for the sockets in it.
//!
//! In: a folder. Out: a path of at most 60 bytes, the same in every run. Source: unix(7), the length of `sun_path`.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// A socket's path has at most 107 bytes; what Slurm adds for a step's needs about 45.
const MOST_BYTES: usize = 60;
/// The folder itself, or a link to it, which the cluster's end removes.
pub(super) fn short_name(folder: &Path) -> Result<PathBuf, String> {
    if folder.as_os_str().len() <= MOST_BYTES {
        return Ok(folder.to_owned());
    }
    let link = std::env::temp_dir().join(format!("lockstep-{:016x}", hash(folder)));
    match symlink(folder, &link) {
        // The link of an interrupted run; one that leads elsewhere is somebody else's.
        Err(_) if fs::read_link(&link).is_ok_and(|target| target == folder) => Ok(link),
        Err(error) => Err(format!(
            "{}: {error}: remove it, or choose a shorter CARGO_TARGET_DIR",
            link.display()
        )),
        Ok(()) => Ok(link),
    }
}

/// The same for the same folder in every run of this program.
fn hash(folder: &Path) -> u64 {
    let mut hasher = DefaultHasher::new();
    folder.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_with_a_long_path_gets_a_short_name_and_keeps_it() {
        let deep = std::env::temp_dir().join(format!(
            "lockstep-{}-{}",
            std::process::id(),
            "d".repeat(MOST_BYTES)
        ));
        fs::create_dir_all(&deep).unwrap();
        let short = short_name(&deep).unwrap();
        assert!(short.as_os_str().len() <= MOST_BYTES, "{}", short.display());
        assert_eq!(short.canonicalize().unwrap(), deep.canonicalize().unwrap());
        assert_eq!(short_name(&deep).unwrap(), short);
        fs::remove_file(short).unwrap();
        fs::remove_dir(deep).unwrap();
    }

    #[test]
    fn a_short_path_is_its_own_name() {
        assert_eq!(short_name(Path::new("/a")).unwrap(), Path::new("/a"));
    }
}
