//! The files of a split of a folder of images.
//!
//! In: the scanned files. Out: a [`Source`].

use std::path::{Path, PathBuf};

use crate::decode::read_image_file;
use crate::encoded::Source;
use crate::error::DatasetError;

/// A split of a folder of images.
pub(super) struct FolderSource {
    /// The folder of the split.
    pub(super) dir: PathBuf,
    pub(super) files: Vec<PathBuf>,
}

impl Source for FolderSource {
    fn read(&self, image: usize) -> Result<Vec<u8>, DatasetError> {
        read_image_file(&self.files[image])
    }

    fn path(&self, image: usize) -> PathBuf {
        self.files[image].clone()
    }

    /// The path below the split's folder with slashes, the same on every system.
    fn key(&self, image: usize) -> String {
        let path: &Path = &self.files[image];
        let relative = path.strip_prefix(&self.dir).unwrap_or(path);
        let names: Vec<_> = relative.iter().map(|name| name.to_string_lossy()).collect();
        names.join("/")
    }

    fn class_path(&self, class_name: &str) -> PathBuf {
        self.dir.join(class_name)
    }
}
