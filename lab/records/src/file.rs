//! Opens, reads, replaces and locks regular files.
//!
//! In: a path, bytes. Out: the file, its bytes or its text; a new file in its place; a lock.
//! Invariant: a reader never sees half of a replaced file. No function waits for the writer of a
//! named pipe or reads a device without end. An error of a function that writes names the path.

use std::fs::{self, File, Metadata, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde::Serialize;

/// Opens a regular file.
///
/// # Errors
/// If the path is not a regular file; I/O errors.
pub fn open(path: &Path) -> io::Result<File> {
    // Checked before opening, since opening a named pipe already waits.
    if !fs::metadata(path)?.is_file() {
        let problem =
            "expected a regular file, got a folder, pipe or device; write its contents to a file";
        return Err(io::Error::new(ErrorKind::InvalidInput, problem));
    }
    File::open(path)
}

/// Returns the bytes of a regular file.
///
/// # Errors
/// As [`open`].
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Returns the text of a regular file.
///
/// # Errors
/// As [`open`]; if the file is not UTF-8.
pub fn read_to_string(path: &Path) -> io::Result<String> {
    io::read_to_string(open(path)?)
}

/// Replaces a file as a whole, and waits until the new content is on disk.
///
/// # Errors
/// If `path` leads to something other than a regular file, such as a folder or a device; I/O
/// errors.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_and_rename(path, bytes, File::sync_all)?;
    sync_parent(path)
}

/// Replaces a file as [`replace`] does, but does not wait for the disk. For files that are
/// rewritten often.
///
/// # Errors
/// As [`replace`].
pub fn replace_unsynced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_and_rename(path, bytes, |_| Ok(()))
}

/// Replaces a file by `value` as indented JSON, as [`replace`] does.
///
/// # Errors
/// As [`replace`].
pub fn replace_json(path: &Path, value: &impl Serialize) -> io::Result<()> {
    let mut text = serde_json::to_vec_pretty(value).map_err(|error| at(path, error.into()))?;
    text.push(b'\n');
    replace(path, &text)
}

/// Tests whether [`replace`] could write a file, and leaves the file unchanged.
///
/// # Errors
/// As [`replace`].
pub fn check_replaceable(path: &Path) -> io::Result<()> {
    let partial = partial_path(path)?;
    File::create(&partial)
        .and_then(|_| fs::remove_file(&partial))
        .map_err(|error| at(path, error))
}

fn write_and_rename(
    path: &Path,
    bytes: &[u8],
    sync: impl FnOnce(&File) -> io::Result<()>,
) -> io::Result<()> {
    let partial = partial_path(path)?;
    let write = || {
        let mut file = File::create(&partial)?;
        file.write_all(bytes)?;
        sync(&file)?;
        fs::rename(&partial, path)
    };
    write()
        .inspect_err(|_| drop(fs::remove_file(&partial)))
        .map_err(|error| at(path, error))
}

/// Returns the path under which a file is written before it is renamed to `path`.
fn partial_path(path: &Path) -> io::Result<PathBuf> {
    let name = path
        .file_name()
        .filter(|_| path.is_file() || !path.exists());
    let Some(name) = name else {
        let got = if path.is_dir() {
            "a folder"
        } else {
            "a device, pipe or socket"
        };
        let problem = format!("expected a new or a regular file, got {got}");
        return Err(at(path, io::Error::new(ErrorKind::InvalidInput, problem)));
    };
    Ok(path.with_file_name(format!(".{}.partial", name.to_string_lossy())))
}

fn at(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(
        error.kind(),
        format!("cannot write {}: {error}", path.display()),
    )
}

/// Creates a folder and those above it.
///
/// # Errors
/// If the path leads through something that is not a folder; I/O errors.
pub fn create_folder(path: &Path) -> io::Result<()> {
    fs::create_dir_all(path).map_err(|error| {
        let reason = obstacle(path).unwrap_or_else(|| error.to_string());
        io::Error::new(
            error.kind(),
            format!("cannot create {}: {reason}", path.display()),
        )
    })
}

/// Describes what on the path is not a folder.
fn obstacle(path: &Path) -> Option<String> {
    let existing = path
        .ancestors()
        .find(|path| fs::symlink_metadata(path).is_ok())?;
    let name = existing.display();
    match fs::metadata(existing) {
        Ok(metadata) if metadata.is_dir() => None,
        Ok(_) => Some(format!(
            "{name} is a file, expected a folder; choose another place"
        )),
        Err(error) => {
            let target = fs::read_link(existing).ok()?;
            Some(format!(
                "{name} is a link to {}, which is not a folder ({error}); remove the link",
                target.display()
            ))
        }
    }
}

/// Waits until the names in a folder are on disk. Does nothing if the file system does not support
/// that, or this user may not read the folder.
///
/// # Errors
/// I/O errors.
pub fn sync_folder(path: &Path) -> io::Result<()> {
    use ErrorKind::{InvalidInput, PermissionDenied, Unsupported};

    let path = if path.as_os_str().is_empty() {
        Path::new(".")
    } else {
        path
    };
    match File::open(path).and_then(|folder| folder.sync_all()) {
        Err(error) if matches!(error.kind(), InvalidInput | Unsupported | PermissionDenied) => {
            Ok(())
        }
        Err(error) => Err(io::Error::new(
            error.kind(),
            format!("cannot sync {}: {error}", path.display()),
        )),
        Ok(()) => Ok(()),
    }
}

/// Waits until the name of a file or folder that was just created is on disk.
///
/// # Errors
/// As [`sync_folder`].
pub fn sync_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), sync_folder)
}

/// Returns true if `path` no longer leads to the open file or folder.
pub fn is_replaced(open: &File, path: &Path) -> bool {
    let identity = |metadata: Metadata| (metadata.dev(), metadata.ino());
    match (fs::metadata(path), open.metadata()) {
        (Ok(there), Ok(own)) => identity(there) != identity(own),
        (Err(error), _) => error.kind() == ErrorKind::NotFound,
        (Ok(_), Err(_)) => false,
    }
}

/// Result of [`lock`].
#[derive(Debug)]
pub enum Lock {
    /// This process has the lock until it closes the file or ends.
    Taken(File),
    /// Another process has the lock. Contains the text of the file.
    Busy(String),
    /// The file system has no working locks.
    Unsupported(File),
}

/// Locks a file with flock(2), and creates it if it does not exist. On NFS the server keeps the
/// lock for all machines. Waits up to `patience` for a process that has the lock.
///
/// # Errors
/// If the file cannot be opened.
pub fn lock(path: &Path, patience: Duration) -> io::Result<Lock> {
    lock_by(path, patience, File::try_lock)
}

fn lock_by(
    path: &Path,
    patience: Duration,
    try_lock: fn(&File) -> Result<(), TryLockError>,
) -> io::Result<Lock> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("cannot lock {}: {error}", path.display()),
            )
        })?;
    let start = Instant::now();
    loop {
        match try_lock(&file) {
            Ok(()) => return Ok(Lock::Taken(file)),
            Err(TryLockError::WouldBlock) if start.elapsed() < patience => {
                sleep(Duration::from_millis(50));
            }
            Err(TryLockError::WouldBlock) => {
                return Ok(Lock::Busy(io::read_to_string(file).unwrap_or_default()));
            }
            // The file is open for writing, so the error is about locks: file systems without them
            // answer ENOLCK, ENOSYS, EOPNOTSUPP, EINVAL, EIO or 524 (Linux's internal ENOTSUPP).
            Err(TryLockError::Error(_)) => return Ok(Lock::Unsupported(file)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::process::Command;

    fn make_pipe(path: &Path) {
        let status = Command::new("mkfifo").arg(path).status().unwrap();
        assert!(status.success());
    }

    #[test]
    fn a_file_is_read_and_what_is_none_is_refused_and_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let [file, pipe] = ["file", "pipe"].map(|name| folder.path().join(name));
        fs::write(&file, "text").unwrap();
        assert_eq!(
            (read(&file).unwrap(), read_to_string(&file).unwrap()),
            (b"text".to_vec(), "text".to_owned())
        );
        let missing = read(&folder.path().join("none")).unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
        make_pipe(&pipe);
        for other in [folder.path().to_owned(), pipe, "/dev/zero".into()] {
            let error = read_to_string(&other).unwrap_err().to_string();
            assert!(
                error.starts_with("expected a regular file, got"),
                "{}: {error}",
                other.display()
            );
        }
    }

    #[test]
    fn an_obstacle_to_a_folder_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let [file, dangling, ring] =
            ["file", "dangling", "ring"].map(|name| folder.path().join(name));
        fs::write(&file, "").unwrap();
        symlink("/nonexistent/scratch", &dangling).unwrap();
        symlink(&ring, &ring).unwrap();
        for (path, expected) in [
            (&file, "file is a file, expected a folder"),
            (
                &dangling,
                "dangling is a link to /nonexistent/scratch, which is not a folder (No such file",
            ),
            (
                &ring,
                "which is not a folder (Too many levels of symbolic links",
            ),
        ] {
            for path in [path, &path.join("below")] {
                let error = create_folder(path).unwrap_err().to_string();
                assert!(
                    error.starts_with("cannot create /") && error.contains(expected),
                    "{error}"
                );
            }
        }
        create_folder(&folder.path().join("new/below")).unwrap();
    }

    #[test]
    fn a_file_replaces_a_file_or_a_link_to_one_and_no_pipe_or_folder() {
        let folder = tempfile::tempdir().unwrap();
        let [file, pipe, to_file, to_pipe] =
            ["file", "pipe", "to_file", "to_pipe"].map(|name| folder.path().join(name));
        fs::write(&file, "before").unwrap();
        make_pipe(&pipe);
        symlink(&file, &to_file).unwrap();
        symlink(&pipe, &to_pipe).unwrap();
        let folders = [folder.path().to_owned(), folder.path().join("..")];
        for path in [&pipe, &to_pipe, &folders[0], &folders[1]] {
            for refused in [
                check_replaceable(path),
                replace(path, b"new"),
                replace_unsynced(path, b"new"),
            ] {
                let error = refused.unwrap_err().to_string();
                assert!(
                    error.contains(": expected a new or a regular file, got a "),
                    "{error}"
                );
            }
        }
        check_replaceable(&to_file).unwrap();
        let mut reader = File::open(&to_file).unwrap();
        replace(&to_file, b"new").unwrap();
        assert_eq!(read(&to_file).unwrap(), b"new");
        assert_eq!(io::read_to_string(&mut reader).unwrap(), "before");
        assert!(
            !to_file.is_symlink() && read(&file).unwrap() == b"before",
            "the target of a link stays"
        );
        let num_files = fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(num_files, 4, "a partial file is left");
    }

    #[test]
    fn a_second_process_gets_the_text_of_a_locked_file_until_the_first_closes_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let Lock::Taken(mut first) = lock(&path, Duration::ZERO).unwrap() else {
            panic!("expected the lock");
        };
        first.write_all(b"process 7").unwrap();
        let second = lock(&path, Duration::ZERO).unwrap();
        assert!(matches!(second, Lock::Busy(text) if text == "process 7"));
        drop(first);
        assert!(matches!(
            lock(&path, Duration::ZERO).unwrap(),
            Lock::Taken(_)
        ));
        let error = lock(Path::new("/no/such/lock"), Duration::ZERO).unwrap_err();
        assert!(error.to_string().starts_with("cannot lock /no/such/lock: "));
    }

    #[test]
    fn a_file_system_without_working_locks_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        type LockCall = fn(&File) -> Result<(), TryLockError>;
        let errors: [LockCall; 4] = [
            |_| Err(TryLockError::Error(io::Error::from_raw_os_error(524))),
            |_| Err(TryLockError::Error(io::Error::from_raw_os_error(22))),
            |_| Err(TryLockError::Error(io::Error::from_raw_os_error(5))),
            |_| Err(TryLockError::Error(io::Error::from_raw_os_error(37))),
        ];
        for try_lock in errors {
            let result = lock_by(&path, Duration::ZERO, try_lock).unwrap();
            assert!(matches!(result, Lock::Unsupported(_)));
        }
    }
}
