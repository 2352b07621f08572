//! Which files a folder of images holds; no file is opened.
//!
//! In: the folder of a split. Out: classes, files in order, notes on what is left out.
//! Invariant: the files of a class are those that torchvision's `ImageFolder` finds, in its order: those of the class folder and of all
//! folders below it, links followed. Nothing is left out without a note that names it, but for hidden files that are no images.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, FileType};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::classes::{by_name, empty_classes, map_labels};
use crate::decode::EXTENSIONS;
use crate::error::{DatasetError, list};
use crate::split::folder_names;

/// The files of a split before any is opened.
#[derive(Debug, Default)]
pub(crate) struct ScannedSplit {
    /// The folder of the split.
    pub(crate) dir: PathBuf,
    pub(crate) class_names: Vec<String>,
    /// Sorted by class, then by folder, then by name.
    pub(crate) files: Vec<PathBuf>,
    /// Of each file.
    pub(crate) labels: Vec<u16>,
    pub(crate) notes: Vec<String>,
    left_out: BTreeMap<LeftOut, Vec<PathBuf>>,
}

/// Why an entry of a folder is no sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum LeftOut {
    Misplaced,
    Missing,
    Unreadable,
    Loop,
    OtherFormat,
    NotAFile,
    Hidden,
}

impl LeftOut {
    fn in_words(self) -> &'static str {
        match self {
            Self::Misplaced => "images lie beside the class folders, so that they have no label",
            Self::Missing => "links lead to missing files",
            Self::Unreadable => "folders or links cannot be read",
            Self::Loop => "links lead back to a folder that they lie in",
            Self::OtherFormat => "files are of other formats",
            Self::NotAFile => "entries are pipes, sockets or devices",
            Self::Hidden => "images or folders are hidden (their names begin with a dot)",
        }
    }
}

/// What an entry of a folder is, links followed.
enum Kind {
    Folder,
    File,
}

/// A file system's own folder, which only root can read.
const LOST_AND_FOUND: &str = "lost+found";

/// The extensions of files that may list the classes of images.
const LISTS: [&str; 3] = ["txt", "csv", "json"];

/// Linux's error of a link that leads to itself.
const ELOOP: i32 = 40;

/// A folder by its place on the disk.
type Place = (u64, u64);

/// Scans the folder of a split.
pub(super) fn scan(dir: &Path) -> Result<ScannedSplit, DatasetError> {
    let mut split = ScannedSplit {
        dir: dir.to_path_buf(),
        ..ScannedSplit::default()
    };
    let place = place_of(dir).map_err(DatasetError::io("read", dir))?;
    for (name, kind) in sorted_entries(dir).map_err(DatasetError::io("read", dir))? {
        let path = dir.join(&name);
        match split.kind(&path, kind) {
            Some(Kind::Folder) if name == LOST_AND_FOUND => {}
            Some(Kind::Folder) => split.add_class(&path, place)?,
            Some(Kind::File) if has_image_extension(&path) => {
                split.leave_out(LeftOut::Misplaced, path)
            }
            Some(Kind::File) => split.leave_out(LeftOut::OtherFormat, path),
            None => {}
        }
    }
    Ok(split)
}

/// The names of the class folders in the folder of a split, whatever these hold.
pub(super) fn class_names(dir: &Path) -> Result<Vec<String>, DatasetError> {
    let mut names = folder_names(dir)?;
    names.retain(|name| name != LOST_AND_FOUND);
    Ok(names)
}

impl ScannedSplit {
    /// Adds a class and its images.
    fn add_class(&mut self, dir: &Path, of_split: Place) -> Result<(), DatasetError> {
        if place_of(dir).is_ok_and(|place| place == of_split) {
            self.leave_out(LeftOut::Loop, dir.to_path_buf());
            return Ok(());
        }
        let name = dir.file_name().and_then(OsStr::to_str).map(str::to_owned);
        let name = name.ok_or_else(|| DatasetError::ClassFolderName {
            path: dir.to_path_buf(),
        })?;
        let mut folders = Vec::new();
        self.collect(dir, &mut vec![of_split], &mut folders);
        // As torchvision sorts what os.walk finds: whole paths as text.
        folders.sort_by(|(a, _), (b, _)| a.as_os_str().cmp(b.as_os_str()));
        let label = u16::try_from(self.class_names.len());
        let label = label.map_err(|_| {
            DatasetError::config("number of class folders", "at most 65536", "more")
        })?;
        for (folder, names) in folders {
            self.labels.extend(names.iter().map(|_| label));
            self.files
                .extend(names.iter().map(|name| folder.join(name)));
        }
        self.class_names.push(name);
        Ok(())
    }

    /// Collects the images in `dir` and below, folder by folder; `within` are the folders that it lies in.
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

    /// What an entry is, links followed, unless it is left out. Only links and what is rare are asked for: a network takes its time.
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

    /// The split with labels that are positions in `expected`, the classes of the training.
    ///
    /// # Errors
    /// If it has images of other classes, or nothing tells the class of any.
    pub(super) fn with_classes(mut self, expected: &[String]) -> Result<Self, DatasetError> {
        self.expect_labels(expected)?;
        let name = format!("{}", self.dir.display());
        let notes = map_labels(&name, &mut self.labels, Some(&self.class_names), expected)?;
        self.notes.extend(notes);
        self.class_names = expected.to_vec();
        Ok(self)
    }

    /// Refuses a split in which no image lies in the folder of a class of the training.
    fn expect_labels(&self, expected: &[String]) -> Result<(), DatasetError> {
        let mut with_images = self.labels.clone();
        with_images.dedup();
        let folders: Vec<String> = with_images
            .iter()
            .map(|&class| self.class_names[usize::from(class)].clone())
            .collect();
        let mut found = match self.left_out.get(&LeftOut::Misplaced) {
            _ if by_name(&folders, expected).iter().any(Option::is_some) => return Ok(()),
            _ if !folders.is_empty() => format!(
                "all {} images lie in folders that are no classes of the training ({})",
                self.files.len(),
                list(folders.iter())
            ),
            None => "there are no images in class folders".to_owned(),
            Some(images) => format!("{} images lie in no class folder", images.len()),
        };
        let others = self
            .left_out
            .get(&LeftOut::OtherFormat)
            .into_iter()
            .flatten();
        let is_list = |path: &&PathBuf| {
            path.extension()
                .is_some_and(|kind| LISTS.iter().any(|list| kind == *list))
        };
        let lists: Vec<String> = others
            .filter(|path| path.parent() == Some(&self.dir))
            .filter(is_list)
            .filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
            .collect();
        if !lists.is_empty() {
            let lists = list(lists.iter());
            found.push_str(&format!(
                " (if {lists} lists the classes, move each image into a folder of its class)"
            ));
        }
        Err(DatasetError::Unlabelled {
            path: self.dir.clone(),
            found,
        })
    }

    /// Adds notes on what is left out.
    pub(super) fn note_left_out(&mut self) {
        for (why, paths) in &self.left_out {
            let formats = match why {
                LeftOut::OtherFormat => {
                    format!(" ({}; expected {})", formats(paths), EXTENSIONS.join(", "))
                }
                _ => String::new(),
            };
            let (num, why) = (paths.len(), why.in_words());
            self.notes.push(format!(
                "left out: {num} {why}{formats}: {}",
                list(paths.iter().map(|path| path.display()))
            ));
        }
    }

    /// Refuses a class without images in a split to train on.
    pub(super) fn expect_images(&self) -> Result<(), DatasetError> {
        if empty_classes(&self.labels, &self.class_names).is_none() {
            return Ok(());
        }
        let empty = (0..self.class_names.len())
            .find(|class| self.labels.binary_search(&(*class as u16)).is_err());
        let path = self
            .dir
            .join(empty.map_or("", |class| &self.class_names[class]));
        let found = self.left_out.iter().filter_map(|(why, paths)| {
            let num = paths
                .iter()
                .filter(|left_out| left_out.starts_with(&path))
                .count();
            (num > 0).then(|| format!("{num} {}", why.in_words()))
        });
        let found = found.collect::<Vec<_>>().join("; ");
        Err(DatasetError::EmptyClass {
            path,
            extensions: EXTENSIONS.join(", "),
            found,
        })
    }
}

/// The extensions of files and how many have each, the commonest first.
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

/// The entries of a folder, sorted by the bytes of their names, and what each is, links not followed.
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
