//! Names of folders and files of a data set's splits.
//!
//! In: names of folders and files. Out: a [`Split`], the folder or the files of a split, and notes
//! on unused entries.
//! Invariant: only this file maps names to splits, for folders of images, tar shards and Parquet
//! files.
//!
//! | Split | Names, in any case; the first that exists is used |
//! |---|---|
//! | [`Split::Train`] | `train`, `training` |
//! | [`Split::Val`] | `val`, `valid`, `validation` |
//! | [`Split::Test`] | `test`, `testing` |
//!
//! A folder of images has exactly such a name. For a file, the first such word in its name counts
//! (`imagenet1k-train-0000.tar`, `validation-00000-of-00014.parquet`, `val2017.tar`). Without such
//! a word, the nearest folder with such a name counts (`train/0000.parquet`).

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{DatasetError, counted, list};

/// Maximum depth below a data set's folder for the search for files.
const MAX_DEPTH: usize = 3;

/// Reason why a compressed file is not read.
const COMPRESSED: &str = "compressed files cannot be read at any place";

/// Part of a data set by its purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    feature = "cli",
    derive(clap::ValueEnum, serde::Serialize, serde::Deserialize),
    serde(rename_all = "kebab-case")
)]
pub enum Split {
    /// Samples for training.
    Train,
    /// Samples for the comparison of epochs and settings.
    Val,
    /// Samples for the final measurement.
    Test,
}

impl Split {
    /// All splits.
    pub const ALL: [Self; 3] = [Self::Train, Self::Val, Self::Test];

    /// Returns the accepted names of a folder or file of the split, in lower case. The first name
    /// is the split's own.
    #[must_use]
    pub fn names(self) -> &'static [&'static str] {
        match self {
            Self::Train => &["train", "training"],
            Self::Val => &["val", "valid", "validation"],
            Self::Test => &["test", "testing"],
        }
    }

    /// Returns the split with this name, in upper or lower case.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|split| {
            split
                .names()
                .iter()
                .any(|known| known.eq_ignore_ascii_case(name))
        })
    }
}

impl fmt::Display for Split {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.names()[0])
    }
}

/// Returns the names to search for: `name`, then other names of the same split, if there are any.
fn wanted(name: &str) -> Vec<String> {
    let others = Split::of_name(name).map_or(&[][..], Split::names);
    let others = others
        .iter()
        .filter(|other| **other != name)
        .map(|other| (*other).to_owned());
    std::iter::once(name.to_owned()).chain(others).collect()
}

/// Returns the folder of the split `name` in `dir`, if there is one, and a note on other folders of
/// the same split.
pub(crate) fn folder(
    dir: &Path,
    name: &str,
) -> Result<Option<(PathBuf, Option<String>)>, DatasetError> {
    let names = folder_names(dir)?;
    let mut found: Vec<&String> = names.iter().filter(|found| *found == name).collect();
    // The exact name has priority over names in another case or form.
    for wanted in wanted(name) {
        let is_new =
            |other: &&String| other.eq_ignore_ascii_case(&wanted) && !found.contains(other);
        found.extend(names.iter().filter(is_new).collect::<Vec<_>>());
    }
    let Some((used, others)) = found.split_first() else {
        return Ok(None);
    };
    let unused = || format!("{used} is used, {} is not", list(others.iter()));
    Ok(Some((dir.join(used), (!others.is_empty()).then(unused))))
}

/// Returns notes on entries of `dir` that have the name of a split but are not folders, such as
/// links to a disk that is not mounted.
pub(crate) fn not_folders(dir: &Path) -> Vec<String> {
    let names = Split::ALL
        .into_iter()
        .flat_map(|split| split.names())
        .map(|name| (name, dir.join(name)));
    let others = names.filter(|(_, path)| path.symlink_metadata().is_ok() && !path.is_dir());
    others
        .map(|(name, _)| {
            format!("{name} is not read: it is no folder, or a link to one that is missing")
        })
        .collect()
}

/// Returns the names of the folders in `dir`, sorted, except hidden names and names that are not
/// UTF-8.
pub(crate) fn folder_names(dir: &Path) -> Result<Vec<String>, DatasetError> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).map_err(DatasetError::io("read", dir))? {
        let entry = entry.map_err(DatasetError::io("read", dir))?;
        if let Ok(name) = entry.file_name().into_string()
            && !name.starts_with('.')
            && entry.path().is_dir()
        {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Files of a data set with its suffix.
#[derive(Debug)]
pub(crate) struct SplitFiles {
    /// Folder of the data set.
    dir: PathBuf,
    /// Paths below `dir` with slashes, sorted.
    names: Vec<String>,
    /// Compressed files: paths below `dir` with another suffix after `ending`.
    others: Vec<String>,
    /// Suffix of file names: ".tar".
    ending: &'static str,
}

/// Files of one split.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FoundFiles {
    /// Name of the split in the files' names: "validation".
    pub(crate) split: String,
    /// Paths below the data set's folder, sorted. Never empty.
    pub(crate) names: Vec<String>,
    /// Notes on unused files.
    pub(crate) notes: Vec<String>,
}

impl SplitFiles {
    /// Lists the files in `dir` whose names end with `ending`. If there are none, lists those in
    /// the folders of `dir`, and so on.
    pub(crate) fn list(dir: &Path, ending: &'static str) -> Result<Self, DatasetError> {
        let mut files = Self {
            dir: dir.to_path_buf(),
            names: Vec::new(),
            others: Vec::new(),
            ending,
        };
        let mut folders = vec![String::new()];
        for _ in 0..=MAX_DEPTH {
            let mut below = Vec::new();
            for folder in std::mem::take(&mut folders) {
                files.read_folder(&folder, &mut below)?;
            }
            if !files.names.is_empty() {
                break;
            }
            folders = below;
        }
        files.names.sort();
        files.others.sort();
        Ok(files)
    }

    fn read_folder(&mut self, folder: &str, below: &mut Vec<String>) -> Result<(), DatasetError> {
        let path = self.dir.join(folder);
        for entry in fs::read_dir(&path).map_err(DatasetError::io("read", &path))? {
            let entry = entry.map_err(DatasetError::io("read", &path))?;
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            if name.starts_with('.') {
                continue;
            }
            let relative = if folder.is_empty() {
                name.clone()
            } else {
                format!("{folder}/{name}")
            };
            let is_folder = entry
                .file_type()
                .is_ok_and(|kind| kind.is_dir() || (kind.is_symlink() && entry.path().is_dir()));
            if is_folder {
                below.push(relative);
            } else if name.ends_with(self.ending) {
                self.names.push(relative);
            } else if name.contains(&format!("{}.", self.ending)) || name.ends_with(".tgz") {
                self.others.push(relative);
            }
        }
        Ok(())
    }

    /// Returns the files of the split `name`, or `None` if there are none.
    ///
    /// # Errors
    /// Returns an error if the split's files belong to several data sets.
    pub(crate) fn of(&self, name: &str) -> Result<Option<FoundFiles>, DatasetError> {
        let wanted = wanted(name);
        let mut by_name: BTreeMap<usize, BTreeMap<String, Vec<String>>> = BTreeMap::new();
        for file in &self.names {
            let Some((split, group)) = split_of(file, name) else {
                continue;
            };
            let Some(rank) = wanted.iter().position(|wanted| *wanted == split) else {
                continue;
            };
            by_name
                .entry(rank)
                .or_default()
                .entry(group)
                .or_default()
                .push(file.clone());
        }
        let Some((rank, mut groups)) = by_name.pop_first() else {
            return Ok(None);
        };
        let split = &wanted[rank];
        // Files whose names start with the split's name belong to the data set itself.
        let own = match groups.len() {
            1 => groups.pop_first().map(|(_, own)| own),
            _ => groups.remove(""),
        };
        let unused = groups
            .into_values()
            .chain(by_name.into_values().flat_map(BTreeMap::into_values));
        let unused: Vec<String> = unused.flatten().collect();
        let Some(names) = own else {
            let files = list(unused.iter());
            let problem = format!(
                "the files of the split {split} are of several data sets. Give the folder of one of them: {files}"
            );
            return Err(DatasetError::invalid(&self.dir, problem));
        };
        let mut notes = Vec::new();
        if !unused.is_empty() {
            notes.push(format!(
                "{} is used, other files of the split are not: {}",
                names[0],
                list(unused.iter())
            ));
        }
        let others: Vec<&String> = self
            .others
            .iter()
            .filter(|other| is_of(other, name, &wanted))
            .collect();
        if !others.is_empty() {
            notes.push(format!(
                "ignored {}: {COMPRESSED}, unpack them: {}",
                counted(others.len(), "file"),
                list(others.iter())
            ));
        }
        Ok(Some(FoundFiles {
            split: split.clone(),
            names,
            notes,
        }))
    }

    /// Returns notes on files without a split, and on a split with only compressed files.
    pub(crate) fn unused(&self) -> Vec<String> {
        let mut notes = Vec::new();
        for split in Split::ALL {
            let name = split.names()[0];
            let names = wanted(split.names()[0]);
            let is_there = self.names.iter().any(|file| is_of(file, name, &names));
            let others: Vec<&String> = self
                .others
                .iter()
                .filter(|other| is_of(other, name, &names))
                .collect();
            if !is_there && !others.is_empty() {
                notes.push(format!(
                    "the split {name} is not read: {COMPRESSED}, unpack them: {}",
                    list(others.iter())
                ));
            }
        }
        let of_none: Vec<&String> = self
            .names
            .iter()
            .filter(|file| split_of(file, "").is_none())
            .collect();
        if !of_none.is_empty() {
            let names = Split::ALL.map(|split| split.names()[0]).join(", ");
            notes.push(format!(
                "ignored {}, whose names say no split ({names}): {}",
                counted(of_none.len(), "file"),
                list(of_none.iter())
            ));
        }
        notes
    }

    /// Returns the error of missing files of the split `name`, with the files that exist.
    pub(crate) fn missing(&self, name: &str, remedy: &'static str) -> DatasetError {
        let wanted = wanted(name);
        let compressed: Vec<&String> = self
            .others
            .iter()
            .filter(|other| is_of(other, name, &wanted))
            .collect();
        let found = match (&compressed[..], &self.names[..]) {
            ([_, ..], _) => {
                format!(
                    "files that are compressed, unpack them (gunzip, zstd -d, xz -d): {}",
                    list(compressed.iter())
                )
            }
            (_, []) => format!(
                "no *{} in this folder or up to {MAX_DEPTH} below it",
                self.ending
            ),
            (_, names) => format!("others: {}", list(names.iter())),
        };
        DatasetError::Missing {
            what: format!("files of the split {name}"),
            path: self.dir.clone(),
            expected: format!("{name}-*{}, got {found}", self.ending),
            remedy,
        }
    }
}

/// Returns true if the file `path` belongs to the split `name`, whose names are `wanted`.
fn is_of(path: &str, name: &str, wanted: &[String]) -> bool {
    split_of(path, name).is_some_and(|(split, _)| wanted.contains(&split))
}

/// Returns the name of a file's split and its data set. The data set is the text before the split's
/// name, without digits.
///
/// The known names are those of all splits, and `name`.
pub(crate) fn split_of(path: &str, name: &str) -> Option<(String, String)> {
    let known = || {
        Split::ALL
            .into_iter()
            .flat_map(|split| split.names())
            .copied()
            .chain([name].into_iter().filter(|name| !name.is_empty()))
    };
    let (folders, file) = path.rsplit_once('/').unwrap_or(("", path));
    // The first word in the file's name counts. If two words start there, the longer one counts.
    let first = known().filter_map(|known| Some((word(file, known)?, known)));
    let first = first.min_by_key(|(place, known)| (*place, usize::MAX - known.len()));
    if let Some((place, known)) = first {
        let before = if folders.is_empty() {
            file[..place].to_owned()
        } else {
            format!("{folders}/{}", &file[..place])
        };
        return Some((
            known.to_owned(),
            before
                .chars()
                .filter(|letter| !letter.is_ascii_digit())
                .collect(),
        ));
    }
    let parts: Vec<&str> = folders.split('/').collect();
    (0..parts.len()).rev().find_map(|depth| {
        let known = known().find(|known| known.eq_ignore_ascii_case(parts[depth]))?;
        Some((known.to_owned(), parts[..depth].join("/")))
    })
}

/// Returns the position of `word` in `text`, in upper or lower case, without a letter before or
/// after the word.
fn word(text: &str, word: &str) -> Option<usize> {
    let text = text.to_ascii_lowercase();
    let word = word.to_ascii_lowercase();
    let is_letter = |letter: Option<char>| letter.is_some_and(char::is_alphabetic);
    let mut places = text.match_indices(&word).map(|(place, _)| place);
    places.find(|&place| {
        !is_letter(text[..place].chars().next_back())
            && !is_letter(text[place + word.len()..].chars().next())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of train, val and test files among `names`, each with its first used
    /// file, and the notes.
    fn found(names: &[&str]) -> (Vec<String>, Vec<String>) {
        let root = tempfile::tempdir().unwrap();
        for name in names {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let files = SplitFiles::list(root.path(), ".tar").unwrap();
        let mut notes = files.unused();
        let of_splits = Split::ALL.map(|split| match files.of(split.names()[0]) {
            Ok(Some(found)) => {
                notes.extend(found.notes);
                format!("{}: {}", found.split, found.names.join(" "))
            }
            Ok(None) => String::new(),
            Err(error) => error.to_string(),
        });
        (of_splits.to_vec(), notes)
    }

    #[test]
    fn files_are_of_the_split_that_their_name_says_else_their_folder() {
        for (names, expected) in [
            (
                ["train-0.tar", "val-0.tar", "test-0.tar"],
                ["train: train-0.tar", "val: val-0.tar", "test: test-0.tar"],
            ),
            (
                [
                    "imagenet1k-train-0000.tar",
                    "imagenet1k-train-0001.tar",
                    "imagenet1k-validation-00.tar",
                ],
                [
                    "train: imagenet1k-train-0000.tar imagenet1k-train-0001.tar",
                    "validation: imagenet1k-validation-00.tar",
                    "",
                ],
            ),
            (
                [
                    "default/train/0.tar",
                    "default/train/1.tar",
                    "default/validation/0.tar",
                ],
                [
                    "train: default/train/0.tar default/train/1.tar",
                    "validation: default/validation/0.tar",
                    "",
                ],
            ),
            (
                ["data/train-0.tar", "data/valid-0.tar", "notes/readme.txt"],
                ["train: data/train-0.tar", "valid: data/valid-0.tar", ""],
            ),
            (
                ["train2017.tar", "val2017_1.tar", "TEST.tar"],
                [
                    "train: train2017.tar",
                    "val: val2017_1.tar",
                    "test: TEST.tar",
                ],
            ),
            (
                [
                    "part-0-of-2-train.tar",
                    "part-1-of-2-train.tar",
                    "retest-val-0.tar",
                ],
                [
                    "train: part-0-of-2-train.tar part-1-of-2-train.tar",
                    "val: retest-val-0.tar",
                    "",
                ],
            ),
        ] {
            let (found, notes) = found(&names);
            assert_eq!(
                (found, notes),
                (expected.map(str::to_owned).to_vec(), vec![]),
                "{names:?}"
            );
        }
    }

    #[test]
    fn no_file_is_passed_over_in_silence() {
        for (names, noted) in [
            (&["train-0.tar", "0001.tar"][..], "0001.tar"),
            (&["train-0.tar", "train-1.tar.gz"], "train-1.tar.gz"),
            (&["train-0.tar", "val-0.tgz"], "the split val is not read"),
            (
                &["train-0.tar", "val-0.tar", "valid-0.tar"],
                "val-0.tar is used, other files of the split are not: valid-0.tar",
            ),
            (&["train-0.tar", "other-train-0.tar"], "other-train-0.tar"),
        ] {
            let (found, notes) = found(names);
            assert!(
                found[0] == "train: train-0.tar" && notes.len() == 1 && notes[0].contains(noted),
                "{found:?} {notes:?}"
            );
        }
        let several = &found(&["a/train-0.tar", "b/train-0.tar"]).0[0];
        assert!(
            several.contains("several data sets")
                && several.contains("a/train-0.tar; b/train-0.tar"),
            "{several}"
        );
    }

    #[test]
    fn a_split_by_any_name_opens_by_that_name_first() {
        let root = tempfile::tempdir().unwrap();
        for name in [
            "val-0.tar",
            "validation-0.tar",
            "test-v2-0.tar",
            "test-0.tar",
        ] {
            fs::write(root.path().join(name), "").unwrap();
        }
        let files = SplitFiles::list(root.path(), ".tar").unwrap();
        for name in ["val", "validation", "test-v2"] {
            assert_eq!(
                files.of(name).unwrap().unwrap().names,
                [format!("{name}-0.tar")]
            );
        }
        assert_eq!(files.of("valid").unwrap().unwrap().names, ["val-0.tar"]);
        assert!(
            files
                .missing("train", "give it")
                .to_string()
                .contains("got others: test-0.tar; ")
        );
    }
}
