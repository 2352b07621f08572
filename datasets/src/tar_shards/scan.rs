//! What a shard holds, by the headers of its members.
//!
//! In: a tar file. Out: a [`ShardIndex`]: where each image lies, its label, and what is wrong with other samples.
//! Invariant: nothing of a sample is taken that does not lie whole within the file; each sample has one image, one label and a key of
//! its own; memory in proportion to the file. GNU's long names and those of pax are read.
//! Source: the naming of WebDataset: members `KEY.EXTENSION` with one KEY, up to the first dot of the name, are one sample.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;
use tar::{Archive, Entry};

use super::index::{Identity, IndexedImage, ShardIndex};
use crate::decode::{EXTENSIONS, MAX_ALLOC_BYTES};
use crate::error::DatasetError;
use crate::progress;

/// The longest label, in bytes: a number, or an object with one.
const MAX_LABEL_BYTES: u64 = 1 << 20;

/// What an object says of its sample; other keys are not ours, nor looked into.
#[derive(Deserialize)]
struct Facts {
    /// None if it is no whole number: a class may be told in words there, and by number in a `.cls`.
    label: Option<Value>,
}

/// What is known of a sample so far.
#[derive(Default)]
struct Sample {
    key: String,
    /// Extension, offset and length.
    image: Option<(u64, u64)>,
    label: Option<u16>,
    problem: Option<String>,
    /// What stands in place of an image or a label that is not there otherwise.
    stand_in: Option<String>,
}

/// Reads the headers of the shard at `path`.
///
/// # Errors
/// If the file cannot be opened or asked for its length; what is wrong inside is told by the index.
pub(super) fn scan(path: &Path) -> Result<ShardIndex, DatasetError> {
    let file = File::open(path).map_err(DatasetError::io("read", path))?;
    let identity = Identity::of(path)?;
    let mut samples = Samples::default();
    let fault = samples.read(&file, identity.len_bytes).err();
    let (mut images, mut keys, mut problems) = (Vec::new(), Vec::new(), Vec::new());
    for Sample { key, image, label, problem, stand_in } in samples.all {
        match (problem.or(stand_in.filter(|_| image.is_none() || label.is_none())), image, label) {
            (Some(problem), _, _) => problems.push(format!("{key}: {problem}")),
            (None, Some((offset, len_bytes)), Some(label)) => {
                images.push(IndexedImage { offset, len_bytes: len_bytes as u32, label });
                keys.push(key);
            }
            (None, Some(_), None) => problems
                .push(format!("{key}: expected a label, in {key}.cls or a number under label in {key}.json, got none")),
            // A label or a caption without an image is of no sample.
            (None, None, Some(_)) => {
                problems.push(format!("{key}: expected an image, {key}.jpg or {key}.png, got none"))
            }
            (None, None, None) => {}
        }
    }
    Ok(ShardIndex { identity, images, keys, problems, fault })
}

/// The samples of a shard in the order of their first members.
#[derive(Default)]
struct Samples {
    all: Vec<Sample>,
    by_key: HashMap<String, usize>,
}

impl Samples {
    /// Reads all members; an error is why the rest of the file has none.
    fn read(&mut self, file: &File, file_bytes: u64) -> Result<(), String> {
        let mut archive = Archive::new(file);
        let mut end = 0;
        for entry in archive.entries_with_seek().map_err(|error| error.to_string())? {
            let mut entry = entry.map_err(|error| format!("after byte {end}: expected the header of a member, got other bytes ({error}); the file is damaged or no tar file"))?;
            if entry.header().entry_type().is_gnu_sparse() {
                let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
                return Err(format!(
                    "{name}: expected whole files, got a sparse one (tar without -S packs whole files)"
                ));
            }
            let (offset, len_bytes) = (entry.raw_file_position(), entry.size());
            end = offset.saturating_add(len_bytes);
            if end > file_bytes {
                let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
                return Err(format!(
                    "{name}: expected {len_bytes} bytes from byte {offset} on, got {}; the file is truncated",
                    file_bytes.saturating_sub(offset)
                ));
            }
            progress::advance(1);
            if !entry.header().entry_type().is_dir() {
                self.add(&mut entry, offset, len_bytes);
            }
        }
        // Two blocks of zeros end an archive, of which one is enough.
        match end.next_multiple_of(512).checked_add(512) {
            Some(with_end) if with_end <= file_bytes => Ok(()),
            _ => Err(format!(
                "expected the end of the archive after byte {end}, got the end of the file; the file is truncated"
            )),
        }
    }

    /// Adds a member, which lies whole in the file.
    fn add(&mut self, entry: &mut Entry<'_, &File>, offset: u64, len_bytes: u64) {
        let name = entry.path_bytes();
        let Ok(name) = std::str::from_utf8(&name) else {
            return self.refuse(&String::from_utf8_lossy(&name), "expected a name in UTF-8, got other bytes");
        };
        let (folder, file_name) = name.rsplit_once('/').map_or(("", name), |(folder, file_name)| (folder, file_name));
        let Some((stem, extension)) = file_name.split_once('.') else {
            return;
        };
        let key = if folder.is_empty() { stem.to_owned() } else { format!("{folder}/{stem}") };
        let extension = extension.to_ascii_lowercase();
        if key.contains(char::is_control) {
            return self.refuse(&key.escape_debug().to_string(), "expected a name without control characters");
        }
        let is_image = EXTENSIONS.contains(&extension.as_str());
        if !entry.header().entry_type().is_file() && (is_image || ["cls", "json"].contains(&extension.as_str())) {
            let reason = format!(
                "expected a file in .{extension}, got a link or another kind of member (tar -h --hard-dereference packs files)"
            );
            self.of(&key).stand_in.get_or_insert(reason);
            return;
        }
        match extension.as_str() {
            "cls" | "json" => match label(entry, &extension, len_bytes) {
                Ok(None) => {}
                Ok(Some(label)) => self.of(&key).add_label(label),
                // A number beside it is all that is needed.
                Err(reason) if extension == "json" => {
                    self.of(&key).stand_in.get_or_insert(reason);
                }
                Err(reason) => self.refuse(&key, &reason),
            },
            _ if is_image => {
                let sample = self.of(&key);
                if sample.image.replace((offset, len_bytes)).is_some() {
                    sample.refuse("expected one image of this key, got several".to_owned());
                } else if len_bytes > MAX_ALLOC_BYTES {
                    sample.refuse(format!("expected an image of at most {MAX_ALLOC_BYTES} bytes, got {len_bytes}"));
                }
            }
            // Another image of a sample that is whole, or one of a key with dots; a hidden file is neither.
            further
                if !stem.is_empty() && further.rsplit('.').next().is_some_and(|last| EXTENSIONS.contains(&last)) =>
            {
                let reason = format!(
                    "expected an image and a label, got {}: a key ends at the first dot, so rename what has dots in its key",
                    file_name.escape_debug()
                );
                self.of(&key).stand_in.get_or_insert(reason);
            }
            _ => {}
        }
    }

    fn of(&mut self, key: &str) -> &mut Sample {
        let next = self.all.len();
        let place = *self.by_key.entry(key.to_owned()).or_insert(next);
        if place == next {
            self.all.push(Sample { key: key.to_owned(), ..Sample::default() });
        }
        &mut self.all[place]
    }

    fn refuse(&mut self, key: &str, problem: &str) {
        self.of(key).refuse(problem.to_owned());
    }
}

impl Sample {
    /// A number and an object may both tell it, if they agree.
    fn add_label(&mut self, label: u16) {
        let before = *self.label.get_or_insert(label);
        if before != label {
            self.refuse(format!("expected one label, got {before} and {label}"));
        }
    }

    /// The first problem counts.
    fn refuse(&mut self, problem: String) {
        self.problem.get_or_insert(problem);
    }
}

/// The label that a member tells; an object may tell none.
fn label(entry: &mut Entry<'_, &File>, extension: &str, len_bytes: u64) -> Result<Option<u16>, String> {
    let mut text = String::new();
    if len_bytes > MAX_LABEL_BYTES || entry.read_to_string(&mut text).is_err() {
        return Err(format!("expected a label as text in .{extension}, got {len_bytes} bytes that are none"));
    }
    let number = match extension {
        "cls" => Some(text.trim().parse().map_err(|_| wrong_label(&text))?),
        // A list would be read as a struct, too.
        _ if !text.trim_start().starts_with('{') => {
            return Err("in .json: expected an object, got another value".to_owned());
        }
        _ => serde_json::from_str::<Facts>(&text)
            .map_err(|error| format!("in .json: {error}"))?
            .label
            .and_then(|label| label.as_i64()),
    };
    number.map(|number: i64| u16::try_from(number).map_err(|_| wrong_label(&number.to_string()))).transpose()
}

fn wrong_label(got: &str) -> String {
    let shown: String = got.trim().chars().take(40).collect();
    format!("expected a label from 0 to {}, got {}", u16::MAX, shown.escape_debug())
}
