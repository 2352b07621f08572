//! Files that are whole or not there, whenever the program or the machine stops.
//!
//! In: a path, bytes. Out: the file. Invariant: a reader never sees half of it; what has returned, no crash undoes.

use anyhow::{Context, Error, Result, ensure};
use serde::Serialize;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

/// Tries whether [`write_atomically`] could write a file, which stays as it is.
///
/// # Errors
/// If `path` is no place for a file, such as a folder or a device; I/O errors.
pub fn check_writable(path: &Path) -> Result<()> {
    expect_place(path)?;
    let partial = partial_beside(path);
    let attempt = File::create(&partial).and_then(|_| fs::remove_file(&partial));
    attempt.with_context(|| format!("cannot write {}", path.display()))
}

/// Writes `value` as indented JSON, at once or not at all.
pub fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    let mut text = serde_json::to_vec_pretty(value)
        .with_context(|| format!("cannot write {}", path.display()))?;
    text.push(b'\n');
    write_atomically(path, &text)
}

/// Writes a file at once or not at all: beside it, synchronised, then renamed. When it returns, a crash does not undo it.
///
/// # Errors
/// As [`check_writable`].
pub fn write_atomically(path: &Path, bytes: &[u8]) -> Result<()> {
    write_beside(path, bytes, File::sync_all).and_then(|()| sync_parent(path))
}

/// As [`write_atomically`], but a crash of the machine may undo or tear it: for what is soon written anew.
///
/// # Errors
/// As [`check_writable`].
pub fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    write_beside(path, bytes, |_| Ok(()))
}

/// Writes a file beside the one of `path`, does `then` to it, and puts it in its place.
fn write_beside(
    path: &Path,
    bytes: &[u8],
    then: impl FnOnce(&File) -> std::io::Result<()>,
) -> Result<()> {
    expect_place(path)?;
    let partial = partial_beside(path);
    let write = || -> std::io::Result<()> {
        let mut file = File::create(&partial)?;
        file.write_all(bytes)?;
        then(&file)?;
        fs::rename(&partial, path)
    };
    let written = write().inspect_err(|_| drop(fs::remove_file(&partial)));
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// That nothing, a regular file, or a link to one is at `path`, whose place a file may take.
fn expect_place(path: &Path) -> Result<()> {
    ensure!(
        path.file_name().is_some() && (path.is_file() || !path.exists()),
        "cannot write {}: expected a new or a regular file, got a {}",
        path.display(),
        if path.is_dir() {
            "folder"
        } else {
            "device, pipe or socket"
        }
    );
    Ok(())
}

/// Makes a folder and those above it.
///
/// # Errors
/// When something else has a name of its path; I/O errors.
pub fn make_folder(path: &Path) -> Result<()> {
    let made =
        fs::create_dir_all(path).map_err(|error| obstacle(path).map_or(error.into(), Error::msg));
    made.with_context(|| format!("cannot make {}", path.display()))
}

/// What is in the way of a folder, in words.
fn obstacle(path: &Path) -> Option<String> {
    let there = path
        .ancestors()
        .find(|path| fs::symlink_metadata(path).is_ok())?;
    let name = there.display();
    match (fs::metadata(there), fs::read_link(there)) {
        (Ok(facts), _) if facts.is_dir() => None,
        (Ok(_), _) => Some(format!(
            "{name} is a file, expected a folder; choose another place"
        )),
        (Err(error), Ok(to)) => Some(format!(
            "{name} is a link to {}, which leads to no folder ({error}); remove the link",
            to.display()
        )),
        (Err(_), Err(_)) => None,
    }
}

/// Waits until the names in a directory are on disk, where its file system can and this user may read it.
pub fn sync_directory(path: &Path) -> Result<()> {
    let path = if path.as_os_str().is_empty() {
        Path::new(".")
    } else {
        path
    };
    use ErrorKind::{InvalidInput, PermissionDenied, Unsupported};
    match File::open(path).and_then(|directory| directory.sync_all()) {
        Err(error) if matches!(error.kind(), InvalidInput | Unsupported | PermissionDenied) => {
            Ok(())
        }
        result => result.with_context(|| format!("cannot sync {}", path.display())),
    }
}

/// Waits until a file or directory that was just made is there after a crash.
pub fn sync_parent(path: &Path) -> Result<()> {
    path.parent().map_or(Ok(()), sync_directory)
}

fn partial_beside(path: &Path) -> PathBuf {
    let name = path
        .file_name()
        .expect("the path of a file ends in its name")
        .to_string_lossy();
    path.with_file_name(format!(".{name}.partial"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn what_is_in_the_way_of_a_folder_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let [file, dangling, ring] =
            ["file", "dangling", "ring"].map(|name| folder.path().join(name));
        fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink("/nonexistent/scratch", &dangling).unwrap();
        std::os::unix::fs::symlink(&ring, &ring).unwrap();
        for (path, expected) in [
            (&file, "file is a file, expected a folder"),
            (
                &dangling,
                "dangling is a link to /nonexistent/scratch, which leads to no folder (No such file",
            ),
            (
                &ring,
                "which leads to no folder (Too many levels of symbolic links",
            ),
        ] {
            for path in [path, &path.join("below")] {
                let error = format!("{:#}", make_folder(path).unwrap_err());
                assert!(
                    error.starts_with("cannot make /") && error.contains(expected),
                    "{error}"
                );
            }
        }
        make_folder(&folder.path().join("new/below")).unwrap();
    }

    #[test]
    fn a_file_takes_the_place_of_a_file_or_a_link_to_one_and_of_no_pipe_or_folder() {
        let folder = tempfile::tempdir().unwrap();
        let [file, pipe, to_file, to_pipe] =
            ["file", "pipe", "to_file", "to_pipe"].map(|name| folder.path().join(name));
        fs::write(&file, "before").unwrap();
        assert!(
            Command::new("mkfifo")
                .arg(&pipe)
                .status()
                .unwrap()
                .success()
        );
        for (link, to) in [(&to_file, &file), (&to_pipe, &pipe)] {
            std::os::unix::fs::symlink(to, link).unwrap();
        }
        for path in [
            &pipe,
            &to_pipe,
            &folder.path().to_owned(),
            &folder.path().join(".."),
        ] {
            for refused in [
                check_writable(path),
                write_atomically(path, b"new"),
                replace(path, b"new"),
            ] {
                let error = refused.unwrap_err().to_string();
                assert!(
                    error.contains(": expected a new or a regular file, got a "),
                    "{error}"
                );
            }
        }
        assert!(fs::metadata(&to_pipe).is_ok_and(|facts| !facts.is_file()));
        check_writable(&to_file).unwrap();
        write_atomically(&to_file, b"new").unwrap();
        assert_eq!(fs::read(&to_file).unwrap(), b"new");
        assert!(
            !to_file.is_symlink() && fs::read(&file).unwrap() != b"new",
            "what a link leads to is another's"
        );
        assert_eq!(
            fs::read_dir(folder.path()).unwrap().count(),
            4,
            "an unfinished file was left"
        );
    }
}
