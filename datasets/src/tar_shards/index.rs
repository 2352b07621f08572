//! Index of a folder's shards, so that headers are read only once.
//!
//! In: the contents of each shard. Out: a text file, and the contents read from it.
//! Invariant: the file is complete or absent, and ends with the sha256 of the preceding text. An
//! entry is ignored if its shard has another length, time or inode.

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::DatasetError;
use crate::file::{not_a_file, read_text};
use crate::memory::to_hex;

/// First line of the file.
const TITLE: &str = "lockstep shards 6";

/// Maximum size of an index: 40 million images.
const MAX_INDEX_BYTES: u64 = 4 << 30;

/// Properties of a shard that change when the shard is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Identity {
    pub(super) len_bytes: u64,
    /// Modification time in nanoseconds since 1970.
    modified_ns: i64,
    inode: u64,
}

/// Position of an image in its shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct IndexedImage {
    pub(super) offset: u64,
    pub(super) len_bytes: u32,
    pub(super) label: u16,
    /// Name of the sample.
    pub(super) key: String,
}

/// Contents of a shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ShardIndex {
    pub(super) identity: Identity,
    pub(super) images: Vec<IndexedImage>,
    /// Descriptions of skipped samples.
    pub(super) problems: Vec<String>,
    /// Number of `problems` that lack only a label.
    pub(super) num_unlabelled: usize,
    /// Note on an irregularity of the shard that affects no sample.
    pub(super) note: Option<String>,
    /// Reason why the rest of the shard could not be read.
    pub(super) fault: Option<String>,
}

impl Identity {
    pub(super) fn of(path: &Path) -> Result<Self, DatasetError> {
        let metadata = fs::metadata(path).map_err(DatasetError::io("read", path))?;
        if !metadata.is_file() {
            return Err(not_a_file(path, "another kind of entry"));
        }
        let seconds = metadata.mtime().saturating_mul(1_000_000_000);
        let modified_ns = seconds.saturating_add(metadata.mtime_nsec());
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

/// Returns the text of an index.
fn written(shards: &[(String, ShardIndex)]) -> String {
    let shards = serde_json::to_string(shards).expect("numbers and texts are JSON");
    let digest = to_hex(&Sha256::digest(&shards));
    format!("{TITLE} {digest}\n{shards}\n")
}

/// Returns the contents of an index, or `None` if it is damaged or has another version.
fn parsed(text: &str) -> Option<Vec<(String, ShardIndex)>> {
    let (title, shards) = text.strip_suffix('\n')?.split_once('\n')?;
    let digest = to_hex(&Sha256::digest(shards));
    if title != format!("{TITLE} {digest}") {
        return None;
    }
    serde_json::from_str(shards).ok()
}

/// Reads an index. The result is empty without a usable index.
pub(super) fn read(path: &Path) -> Vec<(String, ShardIndex)> {
    let text = read_text(path, MAX_INDEX_BYTES).ok();
    text.and_then(|text| parsed(&text)).unwrap_or_default()
}

/// Writes an index under a temporary name, and renames it.
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
        // A partial file is useless. If it cannot be removed, it was not created.
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
                key: "a folder/a".to_owned(),
            },
            IndexedImage {
                offset: 1 << 40,
                len_bytes: u32::MAX,
                label: 0,
                key: "b".to_owned(),
            },
        ];
        let problems = vec!["c's \\d \"e\"\n: no label".to_owned()];
        let full = ShardIndex {
            identity,
            images,
            problems,
            num_unlabelled: 1,
            note: Some("odd".to_owned()),
            fault: Some("no \"end\"".to_owned()),
        };
        let empty = ShardIndex {
            images: vec![],
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
