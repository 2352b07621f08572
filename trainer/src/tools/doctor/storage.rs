//! Write test of a run's output directory.
//!
//! In: the directory of `--output-dir`, or the nearest existing one above it. Out: [`OutputFacts`].
//! Invariant: the test creates no directory and leaves no file, even after an error.

use std::fs::{self, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tempfile::{Builder, NamedTempFile, TempPath};

use super::machine::free_bytes;

/// Size of the test file, bytes.
const WRITTEN: usize = 1 << 20;

/// Interval between checks for root's file.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Root's facts of the output directory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct OutputFacts {
    /// Directory as given.
    pub(super) directory: String,
    /// The directory, or the nearest existing one above it; absolute.
    pub(super) examined: String,
    pub(super) free_bytes: Result<u64, String>,
    /// Speed of writing, synchronising, renaming and reading back a file, bytes/s.
    pub(super) write_bytes_per_s: Result<f64, String>,
    /// Success if a second lock of a file is refused.
    pub(super) locks: Result<(), String>,
}

/// Creates a file that is removed on drop.
fn create(directory: &Path, what: &str) -> io::Result<NamedTempFile> {
    let prefix = format!(".doctor-{what}-");
    Builder::new().prefix(&prefix).tempfile_in(directory)
}

/// Examines the directory. Other nodes look for the returned file.
pub(super) fn examine(directory: &Path) -> (OutputFacts, Option<NamedTempFile>) {
    let mut facts = OutputFacts {
        directory: directory.display().to_string(),
        examined: directory.display().to_string(),
        free_bytes: Err(String::new()),
        write_bytes_per_s: Err(String::new()),
        locks: Err(String::new()),
    };
    let examined = match nearest_directory(directory) {
        Ok(examined) => examined,
        Err(error) => {
            facts.write_bytes_per_s = Err(error);
            return (facts, None);
        }
    };
    facts.examined = examined.display().to_string();
    facts.free_bytes = free_bytes(&examined);
    facts.write_bytes_per_s =
        write(&examined).map_err(|error| format!("{}: {error}", examined.display()));
    facts.locks = lock_twice(&examined);
    (facts, create(&examined, "token").ok())
}

/// Returns the directory or the nearest existing one above it, as an absolute path.
fn nearest_directory(directory: &Path) -> Result<PathBuf, String> {
    let absolute = std::path::absolute(directory)
        .map_err(|error| format!("{}: {error}", directory.display()))?;
    for above in absolute.ancestors() {
        match fs::metadata(above) {
            Ok(found) if found.is_dir() => return Ok(above.to_owned()),
            Ok(_) => {
                return Err(format!(
                    "{} is a file, expected a directory",
                    above.display()
                ));
            }
            // If a file is in the way further up, a later iteration finds it.
            Err(_) => {}
        }
    }
    Err(format!("{}: no directory above it", absolute.display()))
}

/// Writes a file like a checkpoint, reads it back, and returns bytes/s.
fn write(directory: &Path) -> io::Result<f64> {
    let bytes: Vec<u8> = (0..WRITTEN).map(|index| (index % 251) as u8).collect();
    let start = Instant::now();
    let mut partial = create(directory, "partial")?;
    partial.write_all(&bytes)?;
    partial.as_file().sync_all()?;
    let whole = TempPath::try_from_path(partial.path().with_extension("whole"))?;
    fs::rename(partial.path(), &whole)?;
    let seconds = start.elapsed().as_secs_f64();
    if fs::read(&whole)? != bytes {
        return Err(io::Error::other(
            "the file that was read back differs from the written one",
        ));
    }
    Ok(WRITTEN as f64 / seconds)
}

fn lock_twice(directory: &Path) -> Result<(), String> {
    let first = create(directory, "lock").map_err(|error| error.to_string())?;
    let locked = first.as_file().try_lock();
    locked.map_err(|error| error.to_string())?;
    let second = first.reopen().map_err(|error| error.to_string())?;
    match second.try_lock() {
        Err(TryLockError::WouldBlock) => Ok(()),
        Err(TryLockError::Error(error)) => Err(error.to_string()),
        Ok(()) => Err("a lock was given to two owners".to_owned()),
    }
}

/// Waits up to `limit` until root's file is visible on this node.
///
/// Some file systems show new files late on other nodes.
pub(super) fn sees(path: &Path, limit: Duration) -> bool {
    let start = Instant::now();
    loop {
        // Listing the directory makes NFS ask its server.
        let listed = path.parent().map(fs::read_dir);
        if path.exists() && listed.is_some_and(|listed| listed.is_ok()) {
            return true;
        }
        if start.elapsed() > limit {
            return false;
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absent_directory_is_examined_above_and_nothing_is_left() {
        let directory = tempfile::tempdir().unwrap();
        let (facts, token) = examine(&directory.path().join("not/yet"));
        assert!(
            facts
                .write_bytes_per_s
                .clone()
                .is_ok_and(|speed| speed > 0.0),
            "{facts:?}"
        );
        assert!(facts.free_bytes.clone().is_ok_and(|bytes| bytes > 0));
        assert_eq!(facts.locks, Ok(()));
        assert_eq!(Path::new(&facts.examined), directory.path());
        let token = token.unwrap();
        assert!(sees(token.path(), Duration::ZERO));
        let path = token.path().to_owned();
        drop(token);
        assert!(!sees(&path, Duration::ZERO));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_path_below_a_file_cannot_be_written_to() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        fs::write(&file, "precious").unwrap();
        let (facts, token) = examine(&file.join("runs"));
        assert!(token.is_none());
        let error = facts.write_bytes_per_s.unwrap_err();
        assert!(error.contains("is a file, expected a directory"), "{error}");
        assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
    }
}
