//! The index of the shards of a folder, kept so that their headers are read once.
//!
//! In: what was found in each shard. Out: a file of text, and the same again.
//! Invariant: a file is whole or not there, and ends with the sha256 of all before; what does not fit a shard as it is now (its length,
//! its time, its place on the disk) is not used.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::str::Lines;

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::error::DatasetError;
use crate::file::read_whole;
use crate::memory::to_hex;

/// The first line.
const TITLE: &str = "lockstep shards 5";

/// The largest index: 40 million images.
const MAX_INDEX_BYTES: u64 = 4 << 30;

/// What tells that a shard is still the one that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) len_bytes: u64,
    /// Since 1970.
    modified_ns: i128,
    inode: u64,
}

/// Where an image lies in its shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IndexedImage {
    pub(super) offset: u64,
    pub(super) len_bytes: u32,
    pub(super) label: u16,
}

/// What a shard holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ShardIndex {
    pub(super) identity: Identity,
    pub(super) images: Vec<IndexedImage>,
    /// Of each image.
    pub(super) keys: Vec<String>,
    /// Of samples that are left out.
    pub(super) problems: Vec<String>,
    /// How many of these lack nothing but a label.
    pub(super) num_unlabelled: usize,
    /// What is odd about the shard, and harms no sample.
    pub(super) note: Option<String>,
    /// Why the rest of the shard could not be read, whatever it holds.
    pub(super) fault: Option<String>,
}

impl Identity {
    pub(super) fn of(path: &Path) -> Result<Self, DatasetError> {
        let metadata = fs::metadata(path).map_err(DatasetError::io("read", path))?;
        if !metadata.is_file() {
            return Err(DatasetError::NotAFile {
                path: path.to_path_buf(),
                got: "something else",
            });
        }
        let modified_ns =
            i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec());
        Ok(Self {
            len_bytes: metadata.len(),
            modified_ns,
            inode: metadata.ino(),
        })
    }

    pub(super) fn is_newer_than(&self, other: &Self) -> bool {
        self.modified_ns > other.modified_ns
    }
}

/// The file's text.
fn written(shards: &[(String, ShardIndex)]) -> String {
    let mut text = format!("{TITLE}\n");
    for (
        name,
        ShardIndex {
            identity,
            images,
            keys,
            problems,
            num_unlabelled,
            note,
            fault,
        },
    ) in shards
    {
        let Identity {
            len_bytes,
            modified_ns,
            inode,
        } = identity;
        let (num_images, num_problems) = (images.len(), problems.len());
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "{len_bytes} {modified_ns} {inode} {num_images} {num_problems} {num_unlabelled} {name}"
        );
        for (
            IndexedImage {
                offset,
                len_bytes,
                label,
            },
            key,
        ) in images.iter().zip(keys)
        {
            let _ = writeln!(text, "{offset} {len_bytes} {label} {key}");
        }
        for problem in problems {
            let _ = writeln!(text, "{}", Value::from(problem.as_str()));
        }
        for text_or_none in [note, fault] {
            let _ = writeln!(text, "{}", Value::from(text_or_none.as_deref()));
        }
    }
    let digest = to_hex(&Sha256::digest(&text));
    text + &digest + "\n"
}

/// What an index holds; `None` where it is damaged, of another version or not ours.
fn parsed(text: &str) -> Option<Vec<(String, ShardIndex)>> {
    let (body, digest) = text.strip_suffix('\n')?.rsplit_once('\n')?;
    let body = &text[..body.len() + 1];
    if to_hex(&Sha256::digest(body)) != digest {
        return None;
    }
    let mut lines = body.lines();
    if lines.next()? != TITLE {
        return None;
    }
    let mut shards = Vec::new();
    while let Some(line) = lines.next() {
        let [
            len_bytes,
            modified_ns,
            inode,
            num_images,
            num_problems,
            num_unlabelled,
            name,
        ] = fields(line)?;
        let identity = Identity {
            len_bytes: len_bytes.parse().ok()?,
            modified_ns: modified_ns.parse().ok()?,
            inode: inode.parse().ok()?,
        };
        let (images, keys) = images(&mut lines, num_images.parse().ok()?)?;
        let problems = (0..num_problems.parse::<usize>().ok()?)
            .map(|_| serde_json::from_str(lines.next()?).ok());
        let problems = problems.collect::<Option<_>>()?;
        let num_unlabelled = num_unlabelled.parse().ok()?;
        let note = serde_json::from_str(lines.next()?).ok()?;
        let fault = serde_json::from_str(lines.next()?).ok()?;
        shards.push((
            name.to_owned(),
            ShardIndex {
                identity,
                images,
                keys,
                problems,
                num_unlabelled,
                note,
                fault,
            },
        ));
    }
    Some(shards)
}

fn images(lines: &mut Lines<'_>, num_images: usize) -> Option<(Vec<IndexedImage>, Vec<String>)> {
    let (mut images, mut keys) = (Vec::new(), Vec::new());
    for _ in 0..num_images {
        let [offset, len_bytes, label, key] = fields(lines.next()?)?;
        let (offset, len_bytes) = (offset.parse().ok()?, len_bytes.parse().ok()?);
        images.push(IndexedImage {
            offset,
            len_bytes,
            label: label.parse().ok()?,
        });
        keys.push(key.to_owned());
    }
    Some((images, keys))
}

/// The words of a line, of which the last may have spaces.
fn fields<const N: usize>(line: &str) -> Option<[&str; N]> {
    line.splitn(N, ' ').collect::<Vec<_>>().try_into().ok()
}

/// Reads an index; nothing where there is none that can be used.
pub(super) fn read(path: &Path) -> Vec<(String, ShardIndex)> {
    let bytes = read_whole(path, MAX_INDEX_BYTES).ok();
    let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
    text.and_then(|text| parsed(&text)).unwrap_or_default()
}

/// Writes an index under another name, and renames it.
pub(super) fn write(path: &Path, shards: &[(String, ShardIndex)]) -> Result<(), DatasetError> {
    let mut part = path.as_os_str().to_owned();
    part.push(format!(".{}", std::process::id()));
    let part = Path::new(&part);
    let result = fs::File::create(part)
        .and_then(|mut file| {
            file.write_all(written(shards).as_bytes())
                .and_then(|()| file.sync_all())
        })
        .and_then(|()| fs::rename(part, path));
    if result.is_err() {
        // What is left of it would only lie about; where it cannot be removed, it was not made.
        let _ = fs::remove_file(part);
    }
    result.map_err(DatasetError::io("write", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shards() -> Vec<(String, ShardIndex)> {
        let identity = Identity {
            len_bytes: 10_240,
            modified_ns: -7,
            inode: 3,
        };
        let images = vec![
            IndexedImage {
                offset: 512,
                len_bytes: 9,
                label: 65_535,
            },
            IndexedImage {
                offset: 1 << 40,
                len_bytes: u32::MAX,
                label: 0,
            },
        ];
        let keys = vec!["a folder/a".to_owned(), "b".to_owned()];
        let problems = vec!["c's \\d \"e\"\n: no label".to_owned()];
        let (note, fault) = (Some("odd".to_owned()), Some("no \"end\"".to_owned()));
        let full = ShardIndex {
            identity,
            images,
            keys,
            problems,
            num_unlabelled: 1,
            note,
            fault,
        };
        let empty = ShardIndex {
            images: vec![],
            keys: vec![],
            problems: vec![],
            note: None,
            fault: None,
            ..full.clone()
        };
        vec![
            ("train 0.tar".to_owned(), full),
            ("train-1.tar".to_owned(), empty),
        ]
    }

    #[test]
    fn an_index_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("index");
        write(&path, &shards()).unwrap();
        assert_eq!(read(&path), shards());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn an_index_that_was_cut_or_changed_anywhere_is_not_used() {
        let text = written(&shards());
        for place in 0..text.len() {
            assert_eq!(parsed(&text[..place]), None);
            let mut changed = text.clone().into_bytes();
            changed[place] ^= 1;
            assert_eq!(
                String::from_utf8(changed)
                    .ok()
                    .and_then(|changed| parsed(&changed)),
                None,
                "{place}"
            );
        }
        assert_eq!(parsed(&text), Some(shards()));
    }
}
