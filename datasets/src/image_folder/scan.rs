//! Lists the files of a folder of images without opening them.
//!
//! In: the folder of a split. Out: classes, files in order, and notes on skipped files.
//! Invariant: the files of a class and their order are those of torchvision's `ImageFolder`: the
//! files of the class folder and of all its subfolders, including links. Notes name all skipped
//! entries, except hidden files that are not images.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, FileType};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::FolderSource;
use crate::classes::{by_name, empty_class};
use crate::decode::EXTENSIONS;
use crate::encoded::FoundSplit;
use crate::error::{DatasetError, counted, list};
use crate::split::folder_names;

/// Reason why an entry of a folder is not a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LeftOut {
    Misplaced,
    Missing,
    Unreadable,
    Loop,
    OtherFormat,
    NotAFile,
    Hidden,
}

impl LeftOut {
    fn in_words(self, num: usize) -> String {
        let (noun, which) = match self {
            Self::Misplaced => ("image", "outside the class folders, without a label"),
            Self::Missing => ("link", "to a missing file"),
            Self::Unreadable => ("path", "that cannot be read"),
            Self::Loop => ("link", "back to a folder above"),
            Self::OtherFormat => ("file", "of other formats"),
            Self::NotAFile => ("special file", "such as a pipe or a device"),
            Self::Hidden => ("hidden path", "with a dot first"),
        };
        format!("{} {which}", counted(num, noun))
    }
}

/// Kind of a folder's entry. Links have the kind of their target.
enum Kind {
    Folder,
    File,
}

/// Folder of the file system that only root can read.
const LOST_AND_FOUND: &str = "lost+found";

/// Extensions of files that may list the classes of images.
const LISTS: [&str; 3] = ["txt", "csv", "json"];

/// Linux's error for a link that leads to itself.
const ELOOP: i32 = 40;

/// Identity of a folder on the disk.
type Place = (u64, u64);

/// Finds the images in the folder of a split.
pub(super) fn scan(dir: &Path) -> Result<FoundSplit<FolderSource>, DatasetError> {
    let folder = dir.file_name().unwrap_or_default().to_string_lossy();
    let mut split = FoundSplit {
        name: format!("image-folder {folder}"),
        source: FolderSource {
            dir: dir.to_path_buf(),
            ..FolderSource::default()
        },
        labels: Vec::new(),
        class_names: Some(Vec::new()),
        notes: Vec::new(),
    };
    let place = place_of(dir).map_err(DatasetError::io("read", dir))?;
    for (name, kind) in sorted_entries(dir).map_err(DatasetError::io("read", dir))? {
        let path = dir.join(&name);
        match split.source.kind(&path, kind) {
            Some(Kind::Folder) if name == LOST_AND_FOUND => {}
            Some(Kind::Folder) => split.add_class(&path, place)?,
            Some(Kind::File) if has_image_extension(&path) => {
                split.source.leave_out(LeftOut::Misplaced, path)
            }
            Some(Kind::File) => split.source.leave_out(LeftOut::OtherFormat, path),
            None => {}
        }
    }
    Ok(split)
}

/// Returns the names of the class folders in the folder of a split, with or without images.
pub(super) fn class_names(dir: &Path) -> Result<Vec<String>, DatasetError> {
    let mut names = folder_names(dir)?;
    names.retain(|name| name != LOST_AND_FOUND);
    Ok(names)
}

impl FoundSplit<FolderSource> {
    /// Adds a class and its images.
    fn add_class(&mut self, dir: &Path, of_split: Place) -> Result<(), DatasetError> {
        if place_of(dir).is_ok_and(|place| place == of_split) {
            self.source.leave_out(LeftOut::Loop, dir.to_path_buf());
            return Ok(());
        }
        let name = dir.file_name().and_then(OsStr::to_str).map(str::to_owned);
        let name = name.ok_or_else(|| {
            DatasetError::invalid(
                dir,
                "expected a class folder with a name in UTF-8, got other bytes. Rename the folder",
            )
        })?;
        let mut folders = Vec::new();
        self.source.collect(dir, &mut vec![of_split], &mut folders);
        // torchvision sorts the results of os.walk in the same way: whole paths as text.
        folders.sort_by(|(a, _), (b, _)| a.as_os_str().cmp(b.as_os_str()));
        let class_names = self.class_names.get_or_insert_default();
        let label = u16::try_from(class_names.len()).map_err(|_| {
            DatasetError::config("number of class folders", "at most 65536", "more")
        })?;
        class_names.push(name);
        for (folder, names) in folders {
            self.labels.extend(names.iter().map(|_| label));
            let files = names.iter().map(|name| folder.join(name));
            self.source.files.extend(files);
        }
        Ok(())
    }

    /// Maps the labels to positions in `expected`, the classes of the training split.
    ///
    /// # Errors
    /// Returns an error if the split has images of other classes, or no image has a label.
    pub(super) fn with_classes(&mut self, expected: &[String]) -> Result<(), DatasetError> {
        self.expect_labels(expected)?;
        self.map_to(expected)
    }

    /// Rejects a split without any image in a class folder of the training split.
    fn expect_labels(&self, expected: &[String]) -> Result<(), DatasetError> {
        let class_names = self.class_names.as_deref().unwrap_or_default();
        let source = &self.source;
        let mut with_images = self.labels.clone();
        with_images.dedup();
        let folders: Vec<String> = with_images
            .iter()
            .map(|&class| class_names[usize::from(class)].clone())
            .collect();
        if by_name(&folders, expected).iter().any(Option::is_some) {
            return Ok(());
        }
        let mut found = match source.left_out.get(&LeftOut::Misplaced) {
            None if folders.is_empty() => {
                return Err(DatasetError::Unlabelled {
                    path: source.dir.clone(),
                    problem: "expected images in class folders, got none, so the split is not \
                              measured. Add images or remove the folder"
                        .to_owned(),
                });
            }
            Some(images) if folders.is_empty() => {
                format!("{} in no class folder", counted(images.len(), "image"))
            }
            _ => format!(
                "{} only in folders that are no classes of the training ({})",
                counted(source.files.len(), "image"),
                list(folders.iter())
            ),
        };
        let lists: Vec<String> = source
            .left_out
            .get(&LeftOut::OtherFormat)
            .into_iter()
            .flatten()
            .filter(|path| path.parent() == Some(&source.dir))
            .filter(|path| {
                path.extension()
                    .is_some_and(|kind| LISTS.iter().any(|list| kind == *list))
            })
            .filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
            .collect();
        if !lists.is_empty() {
            let lists = list(lists.iter());
            found.push_str(&format!(
                " (if {lists} lists the classes, move each image into a folder of its class)"
            ));
        }
        Err(DatasetError::unlabelled(&source.dir, found))
    }

    /// Adds notes on skipped entries.
    pub(super) fn note_left_out(&mut self) {
        for (why, paths) in &self.source.left_out {
            let formats = match why {
                LeftOut::OtherFormat => {
                    format!(" ({}; expected {})", formats(paths), EXTENSIONS.join(", "))
                }
                _ => String::new(),
            };
            self.notes.push(format!(
                "left out: {}{formats}: {}",
                why.in_words(paths.len()),
                list(paths.iter().map(|path| path.display()))
            ));
        }
    }

    /// Rejects a class without images in a training split.
    pub(super) fn expect_images(&self) -> Result<(), DatasetError> {
        let class_names = self.class_names.iter().flatten();
        let empty = class_names
            .enumerate()
            .find(|(class, _)| self.labels.binary_search(&(*class as u16)).is_err());
        let Some((_, name)) = empty else {
            return Ok(());
        };
        let path = self.source.dir.join(name);
        let mut found = Vec::new();
        for (why, paths) in &self.source.left_out {
            let num = paths
                .iter()
                .filter(|other| other.starts_with(&path))
                .count();
            if num > 0 {
                found.push(why.in_words(num));
            }
        }
        Err(empty_class(path, &found.join("; ")))
    }
}

impl FolderSource {
    /// Collects the images in `dir` and its subfolders, folder by folder. `within` contains the
    /// parent folders.
    fn collect(
        &mut self,
        dir: &Path,
        within: &mut Vec<Place>,
        folders: &mut Vec<(PathBuf, Vec<OsString>)>,
    ) {
        let read = place_of(dir).and_then(|place| Ok((place, sorted_entries(dir)?)));
        let Ok((place, entries)) = read else {
            return self.leave_out(LeftOut::Unreadable, dir.to_path_buf());
        };
        if within.contains(&place) {
            return self.leave_out(LeftOut::Loop, dir.to_path_buf());
        }
        within.push(place);
        let mut images = Vec::new();
        for (name, kind) in entries {
            let path = dir.join(&name);
            match self.kind(&path, kind) {
                Some(Kind::Folder) => self.collect(&path, within, folders),
                Some(Kind::File) if has_image_extension(&path) => images.push(name),
                Some(Kind::File) => self.leave_out(LeftOut::OtherFormat, path),
                None => {}
            }
        }
        within.pop();
        folders.push((dir.to_path_buf(), images));
    }

    /// Returns the kind of an entry, with the target's kind for a link, or `None` if the entry is
    /// skipped. Only links and rare kinds need a system call, which is slow on a network file
    /// system.
    fn kind(&mut self, path: &Path, kind: Option<FileType>) -> Option<Kind> {
        let kind = match kind {
            Some(kind) if kind.is_file() || kind.is_dir() => Ok(kind),
            _ => fs::metadata(path).map(|facts| facts.file_type()),
        };
        let why = match kind {
            Ok(kind) if is_hidden(path) => {
                if !kind.is_dir() && !has_image_extension(path) {
                    return None;
                }
                LeftOut::Hidden
            }
            Ok(kind) if kind.is_dir() => return Some(Kind::Folder),
            Ok(kind) if kind.is_file() => return Some(Kind::File),
            Ok(_) => LeftOut::NotAFile,
            Err(error) if error.kind() == io::ErrorKind::NotFound => LeftOut::Missing,
            Err(error) if error.raw_os_error() == Some(ELOOP) => LeftOut::Loop,
            Err(_) => LeftOut::Unreadable,
        };
        self.leave_out(why, path.to_path_buf());
        None
    }

    fn leave_out(&mut self, why: LeftOut, path: PathBuf) {
        self.left_out.entry(why).or_default().push(path);
    }
}

/// Returns the extensions of files with the number of files for each, most frequent first.
fn formats(paths: &[PathBuf]) -> String {
    let mut counts = BTreeMap::<String, usize>::new();
    for path in paths {
        let extension = path
            .extension()
            .map_or("no extension".to_owned(), |extension| {
                format!(".{}", extension.to_string_lossy())
            });
        *counts.entry(extension).or_default() += 1;
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| usize::MAX - count);
    list(
        counts
            .iter()
            .map(|(extension, count)| format!("{count} {extension}")),
    )
}

fn place_of(dir: &Path) -> io::Result<Place> {
    fs::metadata(dir).map(|facts| (facts.dev(), facts.ino()))
}

/// Returns the entries of a folder, sorted by the bytes of their names, with their kinds. Links
/// keep the kind of a link.
fn sorted_entries(dir: &Path) -> io::Result<Vec<(OsString, Option<FileType>)>> {
    let entries = fs::read_dir(dir)?
        .map(|entry| entry.map(|entry| (entry.file_name(), entry.file_type().ok())));
    let mut entries = entries.collect::<io::Result<Vec<_>>>()?;
    entries.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(entries)
}

fn is_hidden(path: &Path) -> bool {
    path.file_name()
        .is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
}

fn has_image_extension(path: &Path) -> bool {
    let extension = path.extension().and_then(OsStr::to_str);
    extension.is_some_and(|extension| EXTENSIONS.contains(&extension.to_ascii_lowercase().as_str()))
}
