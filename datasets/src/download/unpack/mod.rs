//! Unpacks the archive of a release.
//!
//! In: a `.tar.gz` file, and a folder for the release's folder. Out: the release's files in it.
//! Invariant: the release's folder appears complete or not at all, even after a crash of the
//! machine. No file is written outside it, independent of the names in the archive. An archive
//! cannot unpack to more bytes than a release.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::{Component, Path, PathBuf};

use flate2::read::GzDecoder;
use tar::{Archive, Entry};

use crate::cifar::Cifar;
use crate::error::DatasetError;
use crate::progress::Counted;

/// Maximum bytes of an unpacked archive, including headers. Each release has 185 MB.
const MAX_UNPACKED_BYTES: u64 = 200_000_000;

/// Maximum number of files in an archive. The larger release has 8.
const MAX_FILES: usize = 32;

/// Unpacks an archive of the original release into `dir` and returns the release's folder.
///
/// # Errors
/// - If the archive cannot be read or is damaged.
/// - If it holds anything except plain files in the release's folder, more bytes than the release,
///   or not all of its files.
/// - If `dir` cannot be written.
///
/// After an error the release's folder does not exist.
pub fn unpack(
    cifar: Cifar,
    archive: impl AsRef<Path>,
    dir: impl AsRef<Path>,
) -> Result<PathBuf, DatasetError> {
    let archive = archive.as_ref();
    let dir = dir.as_ref();
    let folder = dir.join(cifar.folder());
    // The files are written to a temporary folder, which is then renamed. An interrupted attempt
    // may have left files in it.
    let unfinished = dir.join(format!("{}.unpacking", cifar.folder()));
    if unfinished.exists() {
        fs::remove_dir_all(&unfinished).map_err(DatasetError::io("remove", &unfinished))?;
    }
    fs::create_dir(&unfinished).map_err(DatasetError::io("create", &unfinished))?;
    let result = unpack_files(cifar, archive, &unfinished)
        .and_then(|()| sync_directory(&unfinished))
        .and_then(|()| {
            fs::rename(&unfinished, &folder).map_err(DatasetError::io("create", &folder))
        });
    if let Err(error) = result {
        // The first error is reported. The next attempt removes a remaining folder.
        let _ = fs::remove_dir_all(&unfinished);
        return Err(error);
    }
    sync_directory(dir)?;
    Ok(folder)
}

/// Waits until the names in a folder are on disk. File systems without support, and unreadable
/// folders, are ignored.
fn sync_directory(path: &Path) -> Result<(), DatasetError> {
    let path = if path.as_os_str().is_empty() {
        Path::new(".")
    } else {
        path
    };
    use ErrorKind::{InvalidInput, PermissionDenied, Unsupported};
    match File::open(path).and_then(|folder| folder.sync_all()) {
        Err(error) if !matches!(error.kind(), InvalidInput | Unsupported | PermissionDenied) => {
            Err(DatasetError::io("write", path)(error))
        }
        _ => Ok(()),
    }
}

/// Writes the archive's files into `folder`. Rejects all entries except plain files directly in the
/// release's folder.
fn unpack_files(cifar: Cifar, archive: &Path, folder: &Path) -> Result<(), DatasetError> {
    let refuse = |reason: String| DatasetError::invalid(archive, reason);
    let unreadable = |error: io::Error| refuse(format!("cannot be unpacked: {error}"));
    let file = File::open(archive).map_err(DatasetError::io("read", archive))?;
    let mut entries = Archive::new(Bounded {
        inner: Counted(GzDecoder::new(file)),
        num_left: MAX_UNPACKED_BYTES,
    });
    let mut names = BTreeSet::new();
    for entry in entries.entries().map_err(unreadable)? {
        let mut entry = entry.map_err(unreadable)?;
        if entry.header().entry_type().is_dir() {
            continue;
        }
        let name = plain_name(cifar, &entry)
            .map_err(unreadable)?
            .map_err(refuse)?;
        let target = folder.join(&name);
        if !names.insert(name) {
            return Err(refuse(format!(
                "expected each file once, got {} twice",
                target.display()
            )));
        }
        if names.len() > MAX_FILES {
            return Err(refuse(format!(
                "expected at most {MAX_FILES} files, got more"
            )));
        }
        let mut file = File::create_new(&target).map_err(DatasetError::io("create", &target))?;
        let len = io::copy(&mut entry, &mut file).map_err(unreadable)?;
        if len != entry.size() {
            return Err(refuse(format!(
                "expected {} bytes of {}, got {len}",
                entry.size(),
                target.display()
            )));
        }
        // The content of the folder must be on disk before its name.
        file.sync_all()
            .map_err(DatasetError::io("write", &target))?;
    }
    for name in cifar.train_files().iter().chain([&cifar.test_file()]) {
        if !folder.join(name).is_file() {
            return Err(refuse(format!(
                "expected {name} in {}, got none",
                cifar.folder()
            )));
        }
    }
    Ok(())
}

/// Returns the entry's name in the release's folder if the entry is a plain file directly in it.
/// Otherwise returns the problem.
fn plain_name<R: Read>(cifar: Cifar, entry: &Entry<'_, R>) -> io::Result<Result<PathBuf, String>> {
    let path = entry.path()?;
    let mut parts = path.components().filter(|part| *part != Component::CurDir);
    Ok(match (parts.next(), parts.next(), parts.next()) {
        (Some(Component::Normal(first)), Some(Component::Normal(name)), None)
            if first == cifar.folder() && entry.header().entry_type().is_file() =>
        {
            Ok(PathBuf::from(name))
        }
        _ => Err(format!(
            "expected plain files in {}, got {}",
            cifar.folder(),
            path.display()
        )),
    })
}

/// A reader that fails after a maximum number of bytes.
struct Bounded<R> {
    inner: R,
    num_left: u64,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.inner.read(buffer)?;
        let too_long = || {
            io::Error::other(format!(
                "expected at most {MAX_UNPACKED_BYTES} bytes, got more"
            ))
        };
        self.num_left = self.num_left.checked_sub(len as u64).ok_or_else(too_long)?;
        Ok(len)
    }
}

#[cfg(test)]
pub(super) mod tests;
