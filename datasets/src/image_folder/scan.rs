//! Which files a folder of images holds; no file is opened.
//!
//! In: the root folder and the names a split may have. Out: classes, files in order, notes on what is ignored.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use crate::decode::EXTENSIONS;
use crate::error::{DatasetError, list};

/// The files of a split before any is opened.
#[derive(Debug, Default)]
pub(crate) struct ScannedSplit {
    /// The folder of the split.
    pub(crate) dir: PathBuf,
    pub(crate) class_names: Vec<String>,
    /// Sorted by class, then by name.
    pub(crate) files: Vec<PathBuf>,
    /// Of each file.
    pub(crate) labels: Vec<u16>,
    pub(crate) notes: Vec<String>,
}

/// Scans the first folder of `root` that has one of the `names`.
pub(super) fn scan_split(root: &Path, names: &[&str]) -> Result<ScannedSplit, DatasetError> {
    let dirs: Vec<PathBuf> = names.iter().map(|name| root.join(name)).filter(|dir| dir.is_dir()).collect();
    let Some(dir) = dirs.first() else {
        return Err(DatasetError::Missing {
            what: format!("the folder {}", names.join(" or ")),
            path: root.to_path_buf(),
            expected: format!("{}/<class>/<image>", names[0]),
            remedy: "give the folder that holds train and test",
        });
    };
    let mut ignored = Vec::new();
    let (class_dirs, stray) = class_dirs(dir)?;
    ignored.extend(stray);
    if class_dirs.is_empty() {
        return Err(DatasetError::Missing {
            what: "class folders".into(),
            path: dir.clone(),
            expected: "<class>/<image>".into(),
            remedy: "put the images of each class into a folder of its own",
        });
    }
    if class_dirs.len() > 1 << 16 {
        return Err(DatasetError::config("number of class folders", "at most 65536", class_dirs.len()));
    }
    let mut split = ScannedSplit { dir: dir.clone(), ..ScannedSplit::default() };
    for (label, class_dir) in class_dirs.iter().enumerate() {
        let (images, others): (Vec<PathBuf>, Vec<PathBuf>) =
            visible_entries(class_dir)?.into_iter().partition(|path| has_image_extension(path) && path.is_file());
        ignored.extend(others);
        if images.is_empty() {
            return Err(DatasetError::EmptyClass {
                path: class_dir.clone(),
                extensions: EXTENSIONS.join(", "),
                num_skipped: 0,
            });
        }
        let label = label as u16;
        split.class_names.push(class_name(class_dir)?);
        split.labels.extend(images.iter().map(|_| label));
        split.files.extend(images);
    }
    if !ignored.is_empty() {
        split.notes.push(format!(
            "{} entries that are no image files ({}) are ignored: {}",
            ignored.len(),
            EXTENSIONS.join(", "),
            list(ignored.iter().map(|path| path.display()))
        ));
    }
    if let [used, other, ..] = &dirs[..] {
        split.notes.push(format!("{} is used, {} is not", used.display(), other.display()));
    }
    Ok(split)
}

/// The names of the classes of a split's folder, whatever these hold.
pub(super) fn class_names(dir: &Path) -> Result<Vec<String>, DatasetError> {
    class_dirs(dir)?.0.iter().map(|class_dir| class_name(class_dir)).collect()
}

/// The class folders of a split's folder, and what else is there.
fn class_dirs(dir: &Path) -> Result<(Vec<PathBuf>, Vec<PathBuf>), DatasetError> {
    Ok(visible_entries(dir)?.into_iter().partition(|path| path.is_dir()))
}

fn class_name(class_dir: &Path) -> Result<String, DatasetError> {
    let name = class_dir.file_name().and_then(OsStr::to_str);
    name.map(str::to_owned).ok_or_else(|| DatasetError::ClassFolderName { path: class_dir.to_path_buf() })
}

/// A folder's entries sorted by name; hidden ones are none of ours.
fn visible_entries(dir: &Path) -> Result<Vec<PathBuf>, DatasetError> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(dir).map_err(DatasetError::io("read", dir))? {
        let path = entry.map_err(DatasetError::io("read", dir))?.path();
        if !name_of(&path).starts_with('.') {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

fn name_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

fn has_image_extension(path: &Path) -> bool {
    let extension = path.extension().and_then(OsStr::to_str);
    extension.is_some_and(|extension| EXTENSIONS.contains(&extension.to_ascii_lowercase().as_str()))
}
