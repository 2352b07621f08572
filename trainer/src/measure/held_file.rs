//! A file to which lines are added while it may be replaced or removed by others.
//!
//! In: a path, text. Out: the text at the end of the file. Invariant: after [`follow`](HeldFile::follow) what is written to is the file at
//! the path.

use anyhow::{Context, Result};
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A regular file that is open to be added to.
#[derive(Debug)]
pub struct HeldFile {
    file: File,
    path: PathBuf,
}

impl HeldFile {
    /// Opens the file, or makes it.
    ///
    /// # Errors
    /// When it is no regular file; I/O errors.
    pub fn open(path: &Path) -> Result<Self> {
        let expect_file = || {
            if path.exists() {
                records::file::open(path).map(drop)
            } else {
                Ok(())
            }
        };
        let file =
            expect_file().and_then(|()| OpenOptions::new().create(true).append(true).open(path));
        let file = file.with_context(|| format!("cannot open {}", path.display()))?;
        Ok(Self {
            file,
            path: path.to_owned(),
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Goes over to the file that is at the path now, where it is another or none; whether it was.
    pub fn follow(&mut self) -> Result<bool> {
        let is_other = is_elsewhere(&self.file, &self.path);
        if is_other {
            *self = Self::open(&self.path)?;
        }
        Ok(is_other)
    }

    pub fn num_bytes(&self) -> std::io::Result<u64> {
        self.file.metadata().map(|facts| facts.len())
    }

    /// Adds text in one piece; where not all of it can be written, none of it stays.
    pub fn add(&mut self, text: &str) -> std::io::Result<()> {
        let before = self.num_bytes()?;
        self.file
            .write_all(text.as_bytes())
            .inspect_err(|_| drop(self.file.set_len(before)))
    }

    /// Waits until what was added is on disk.
    pub fn sync(&self) -> std::io::Result<()> {
        self.file.sync_data()
    }
}

/// Whether what is open is no longer what its path leads to. What else is wrong there is told by who writes.
pub fn is_elsewhere(open: &File, path: &Path) -> bool {
    let identity = |facts: Metadata| (facts.dev(), facts.ino());
    match (fs::metadata(path), open.metadata()) {
        (Ok(there), Ok(own)) => identity(there) != identity(own),
        (Err(error), _) => error.kind() == ErrorKind::NotFound,
        (Ok(_), Err(_)) => false,
    }
}
