//! Files that are whole or not there, whenever the program or the machine stops.
//!
//! In: a path, bytes. Out: the file. Invariant: a reader never sees half of it; what has returned, no crash undoes.

use anyhow::{Context, Result, anyhow};
use serde::Serialize;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

/// Tries whether [`write_atomically`] could write a file, which stays as it is.
///
/// # Errors
/// If `path` is a folder or names no file; I/O errors.
pub fn check_writable(path: &Path) -> Result<()> {
    let context = || format!("cannot write {}", path.display());
    if path.file_name().is_none() || path.is_dir() {
        return Err(anyhow!("expected the path of a file, got a folder")).with_context(context);
    }
    let partial = partial_beside(path);
    let attempt = File::create(&partial).and_then(|_| fs::remove_file(&partial));
    attempt.with_context(context)
}

/// Writes `value` as indented JSON, at once or not at all.
///
/// # Errors
/// I/O errors.
pub fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    let mut text = serde_json::to_vec_pretty(value).with_context(|| format!("cannot write {}", path.display()))?;
    text.push(b'\n');
    write_atomically(path, &text)
}

/// Writes a file at once or not at all: beside it, synchronised, then renamed. When it returns, a crash does not undo it.
///
/// # Errors
/// I/O errors.
///
/// # Panics
/// If `path` names no file.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> Result<()> {
    write_beside(path, bytes, File::sync_all)?;
    sync_parent(path)
}

/// As [`write_atomically`], but a crash of the machine may undo or tear it: for what is soon written anew.
///
/// # Errors
/// I/O errors.
///
/// # Panics
/// If `path` names no file.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    write_beside(path, bytes, |_| Ok(()))
}

/// Writes a file beside the one of `path`, does `then` to it, and puts it in its place.
fn write_beside(path: &Path, bytes: &[u8], then: impl FnOnce(&File) -> std::io::Result<()>) -> Result<()> {
    let partial = partial_beside(path);
    let write = || -> std::io::Result<()> {
        let mut file = File::create(&partial)?;
        file.write_all(bytes)?;
        then(&file)?;
        fs::rename(&partial, path)
    };
    write().inspect_err(|_| drop(fs::remove_file(&partial))).with_context(|| format!("cannot write {}", path.display()))
}

/// Waits until the names in a directory are on disk, where its file system can and this user may read it.
///
/// # Errors
/// I/O errors.
pub fn sync_directory(path: &Path) -> Result<()> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    use ErrorKind::{InvalidInput, PermissionDenied, Unsupported};
    match File::open(path).and_then(|directory| directory.sync_all()) {
        Err(error) if matches!(error.kind(), InvalidInput | Unsupported | PermissionDenied) => Ok(()),
        result => result.with_context(|| format!("cannot sync {}", path.display())),
    }
}

/// Waits until a file or directory that was just made is there after a crash.
///
/// # Errors
/// I/O errors.
pub fn sync_parent(path: &Path) -> Result<()> {
    path.parent().map_or(Ok(()), sync_directory)
}

fn partial_beside(path: &Path) -> PathBuf {
    let name = path.file_name().expect("the path of a file ends in its name").to_string_lossy();
    path.with_file_name(format!(".{name}.partial"))
}
