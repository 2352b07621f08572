//! One run at a time in an output directory.
//!
//! In: the directory. Out: a lock that the system takes back when this process ends, however it ends.
//! Invariant: a run that was killed leaves nothing that keeps the next one out.
//! Source: flock(2); over NFS the server keeps it for all machines.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};

use crate::config::ConfigError;
use crate::measure::held_file::is_elsewhere;

/// The file that is locked; it stays, and says who had it last, and on which machine: `trainer watch` tries the lock.
pub const LOCK_FILE: &str = ".lock";

/// How long a start waits for the one before it, which may have been killed and be leaving yet.
const PATIENCE: Duration = Duration::from_secs(3);

/// A directory that no other process writes to while this lives.
#[derive(Debug)]
pub struct DirectoryLock {
    path: PathBuf,
    /// The directory itself.
    directory: File,
    /// What is locked.
    _file: File,
}

impl DirectoryLock {
    /// Locks the directory; `holder` is shown to competing processes. `None` where the file system has no working locks.
    ///
    /// # Errors
    /// [`ConfigError::OutputDirectoryBusy`] when another process has the lock; I/O errors.
    pub fn take(directory: &Path, holder: &str) -> Result<Option<Self>> {
        Self::take_by(directory, holder, File::try_lock)
    }

    fn take_by(
        directory: &Path,
        holder: &str,
        try_lock: fn(&File) -> Result<(), TryLockError>,
    ) -> Result<Option<Self>> {
        let path = directory.join(LOCK_FILE);
        let context = || format!("cannot lock {}", path.display());
        let mut options = OpenOptions::new();
        let mut file = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .with_context(context)?;
        let start = Instant::now();
        loop {
            match try_lock(&file) {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if start.elapsed() < PATIENCE => {
                    sleep(Duration::from_millis(50))
                }
                Err(TryLockError::WouldBlock) => {
                    let text = io::read_to_string(&file).unwrap_or_default();
                    let holder = text.lines().next().unwrap_or_default().to_owned();
                    return Err(ConfigError::OutputDirectoryBusy {
                        path: directory.to_owned(),
                        holder,
                    }
                    .into());
                }
                // The file is open for writing, so the error is about locks: file systems without them answer ENOLCK, ENOSYS, EOPNOTSUPP,
                // EINVAL, EIO or 524 (Linux's internal ENOTSUPP).
                Err(TryLockError::Error(_)) => return Ok(None),
            }
        }
        let since = humantime::format_rfc3339_seconds(SystemTime::now());
        let boot = records::boot_id().map_or_else(String::new, |id| format!("\nboot {id}"));
        file.set_len(0)
            .and_then(|()| write!(file, "{holder} since {since}{boot}"))
            .with_context(context)?;
        let own = File::open(directory).with_context(context)?;
        Ok(Some(Self {
            path: directory.to_owned(),
            directory: own,
            _file: file,
        }))
    }

    /// Whether the directory is still at its path: one in its place would be no run's, and have no lock.
    ///
    /// # Errors
    /// [`ConfigError::OutputDirectoryMoved`] when it is not.
    pub fn expect_in_place(&self) -> Result<(), ConfigError> {
        let is_moved = is_elsewhere(&self.directory, &self.path);
        if is_moved {
            Err(ConfigError::OutputDirectoryMoved {
                path: self.path.clone(),
            })
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_taker_is_refused_and_told_of_the_first_until_it_leaves() {
        let directory = tempfile::tempdir().unwrap();
        let first = DirectoryLock::take(directory.path(), "process 7 on n1").unwrap();
        assert!(first.is_some());
        let error = DirectoryLock::take(directory.path(), "process 8 on n2").unwrap_err();
        assert!(error.is::<ConfigError>());
        assert!(
            error
                .to_string()
                .contains("in use by process 7 on n1 since "),
            "{error}"
        );
        assert!(!error.to_string().contains("boot"), "{error}");
        drop(first);
        DirectoryLock::take(directory.path(), "process 8 on n2").unwrap();
        let text = std::fs::read_to_string(directory.path().join(LOCK_FILE)).unwrap();
        assert!(
            text.starts_with("process 8 on n2 since ") && text.matches("since").count() == 1,
            "{text}"
        );
    }

    #[test]
    fn a_file_system_whose_locks_do_not_work_has_none() {
        let directory = tempfile::tempdir().unwrap();
        type TryLock = fn(&File) -> Result<(), TryLockError>;
        let errors: [TryLock; 4] = [
            |_| Err(TryLockError::Error(io::Error::from_raw_os_error(524))),
            |_| Err(TryLockError::Error(io::Error::from_raw_os_error(22))),
            |_| Err(TryLockError::Error(io::Error::from_raw_os_error(5))),
            |_| Err(TryLockError::Error(io::Error::from_raw_os_error(37))),
        ];
        for try_lock in errors {
            assert!(
                DirectoryLock::take_by(directory.path(), "process 7", try_lock)
                    .unwrap()
                    .is_none()
            );
        }
    }

    #[test]
    fn a_directory_that_is_not_there_is_named() {
        let error = format!(
            "{:#}",
            DirectoryLock::take(Path::new("/no/such"), "nobody").unwrap_err()
        );
        assert!(error.starts_with("cannot lock /no/such/.lock: "), "{error}");
    }
}
