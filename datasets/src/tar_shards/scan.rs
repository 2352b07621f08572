//! The contents of a shard, from the headers of its members.
//!
//! In: a tar file. Out: a [`ShardIndex`]: positions of images, labels, and problems of other
//! samples.
//! Invariant: a sample is completely inside the file, and has one image, one label and a unique
//! key. Memory is in proportion to the file. Long names in the formats of GNU and pax are
//! supported.
//! Source: WebDataset's naming. Members `KEY.EXTENSION` with the same KEY, up to the first dot of
//! the name, are one sample.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;
use tar::{Archive, Entry};

use super::index::{Identity, IndexedImage, ShardIndex};
use crate::decode::{EXTENSIONS, MAX_ALLOC_BYTES};
use crate::error::DatasetError;
use crate::progress;

/// Maximum bytes of a label: a number, or an object with a number.
const MAX_LABEL_BYTES: u64 = 1 << 20;

/// Unit of lengths in an archive.
const BLOCK_BYTES: u64 = 512;

/// JSON object of a sample. Other keys are ignored.
#[derive(Deserialize)]
struct Facts {
    /// Label. It may be the name of a class if a `.cls` member has the number.
    label: Option<Value>,
}

/// Known members of a sample.
#[derive(Default)]
struct Sample {
    key: String,
    /// Extension, offset and length of the image.
    image: Option<(u64, u64)>,
    label: Option<u16>,
    /// Text of a negative label, as in test splits without labels.
    no_label: Option<String>,
    problem: Option<String>,
    /// Problem that counts only if the image or the label is missing.
    stand_in: Option<String>,
}

/// Reads the headers of the shard at `path`.
///
/// # Errors
/// Returns an error if the file cannot be opened or its length is unknown. The index contains
/// problems inside the file.
pub(super) fn scan(path: &Path) -> Result<ShardIndex, DatasetError> {
    let file = File::open(path).map_err(DatasetError::io("read", path))?;
    let identity = Identity::of(path)?;
    let mut samples = Samples::default();
    let (note, fault) = match samples.read(&file, identity.len_bytes) {
        Ok(note) => (note, None),
        Err(fault) => (None, Some(fault)),
    };
    let mut images = Vec::new();
    let mut problems = Vec::new();
    let mut num_unlabelled = 0;
    for sample in samples.all {
        let key = sample.key;
        let is_incomplete = sample.image.is_none() || sample.label.is_none();
        let stand_in = if is_incomplete { sample.stand_in } else { None };
        if let Some(problem) = sample.problem.or(stand_in) {
            problems.push(format!("{key}: {problem}"));
            continue;
        }
        match (sample.image, sample.label) {
            (Some((offset, len_bytes)), Some(label)) => images.push(IndexedImage {
                offset,
                len_bytes: len_bytes as u32,
                label,
                key,
            }),
            (Some(_), None) => {
                num_unlabelled += 1;
                let got = sample.no_label.as_deref().unwrap_or("none");
                problems.push(format!(
                    "{key}: expected a label, in {key}.cls or a number under label in {key}.json, got {got}"
                ));
            }
            // A label or a caption without an image is not a sample.
            (None, Some(_)) => problems.push(format!(
                "{key}: expected an image, {key}.jpg or {key}.png, got none"
            )),
            (None, None) => {}
        }
    }
    Ok(ShardIndex {
        identity,
        images,
        problems,
        num_unlabelled,
        note,
        fault,
    })
}

/// Samples of a shard in the order of their first members.
#[derive(Default)]
struct Samples {
    all: Vec<Sample>,
    by_key: HashMap<String, usize>,
}

impl Samples {
    /// Reads all members, including those of archives that follow the first. Returns an error if
    /// the rest of the file is unreadable. Otherwise there may be a note.
    fn read(&mut self, file: &File, file_bytes: u64) -> Result<Option<String>, String> {
        let mut archive = Archive::new(file);
        archive.set_ignore_zeros(true);
        let mut end = 0_u64;
        let mut num_archives = 1;
        for entry in archive
            .entries_with_seek()
            .map_err(|error| error.to_string())?
        {
            let mut entry = match entry {
                Ok(entry) => entry,
                Err(error) => return self.after_the_last(file, end, &error.to_string()),
            };
            if entry.header().entry_type().is_gnu_sparse() {
                let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
                return Err(format!(
                    "{name}: expected whole files, got a sparse one (tar without -S packs whole files)"
                ));
            }
            // Bytes before the next header are the end of an archive or a long name.
            let next = end.next_multiple_of(BLOCK_BYTES);
            if end > 0 && entry.raw_header_position() != next && is_zeros(file, next) {
                num_archives += 1;
                // Keys of another archive belong to other samples.
                self.by_key.clear();
            }
            let offset = entry.raw_file_position();
            let len_bytes = entry.size();
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
        if file_bytes < BLOCK_BYTES {
            return Err(format!(
                "expected a tar file, got {file_bytes} bytes; the file is truncated"
            ));
        }
        // Two blocks of zeros end an archive. One block is enough. A complete member may also be
        // the last without any block.
        let without_end = end
            .next_multiple_of(BLOCK_BYTES)
            .saturating_add(BLOCK_BYTES)
            > file_bytes;
        Ok(match (without_end, num_archives) {
            (true, _) => Some(
                "the archive has no end: its last member is whole, but if the file was cut, members behind it are missing"
                    .to_owned(),
            ),
            (false, 1) => None,
            (false, _) => Some(format!("the file is {num_archives} archives, one after the other; all are read")),
        })
    }

    /// Returns a note if other bytes follow the end of an archive.
    ///
    /// Otherwise returns an error with the reason why the rest of the file is lost.
    fn after_the_last(&self, file: &File, end: u64, error: &str) -> Result<Option<String>, String> {
        let after = end.next_multiple_of(BLOCK_BYTES);
        if end > 0 && is_zeros(file, after) {
            return Ok(Some(format!(
                "bytes after the end of the archive (byte {after}) are no members, and are ignored"
            )));
        }
        let mut first = [0; 6];
        let is_read = file.read_at(&mut first, 0).is_ok();
        Err(match compression(&first) {
            Some((name, remedy)) if end == 0 && is_read => {
                format!("expected a tar file, got one compressed with {name}. Unpack it ({remedy})")
            }
            _ => format!(
                "after byte {end}: expected the header of a member, got other bytes ({error}); the file is damaged or no tar file"
            ),
        })
    }

    /// Adds a member that is completely inside the file.
    fn add(&mut self, entry: &mut Entry<'_, &File>, offset: u64, len_bytes: u64) {
        let name = entry.path_bytes();
        let Ok(name) = std::str::from_utf8(&name) else {
            return self.refuse(
                &String::from_utf8_lossy(&name),
                "expected a name in UTF-8, got other bytes",
            );
        };
        let (folder, file_name) = name.rsplit_once('/').unwrap_or(("", name));
        let Some((stem, extension)) = file_name.split_once('.') else {
            return;
        };
        let key = if folder.is_empty() {
            stem.to_owned()
        } else {
            format!("{folder}/{stem}")
        };
        let extension = extension.to_ascii_lowercase();
        if key.contains(char::is_control) {
            return self.refuse(
                &key.escape_debug().to_string(),
                "expected a name without control characters",
            );
        }
        let is_image = EXTENSIONS.contains(&extension.as_str());
        if !entry.header().entry_type().is_file()
            && (is_image || ["cls", "json"].contains(&extension.as_str()))
        {
            let reason = format!(
                "expected a file in .{extension}, got a link or another kind of member (tar -h --hard-dereference packs files)"
            );
            self.of(&key).stand_in.get_or_insert(reason);
            return;
        }
        match extension.as_str() {
            "cls" | "json" => match label(entry, &extension, len_bytes) {
                Ok(Label::None) => {}
                Ok(Label::Negative(got)) => {
                    self.of(&key).no_label.get_or_insert(got);
                }
                Ok(Label::Class(label)) => self.of(&key).add_label(label),
                // A number in another member suffices.
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
                    sample.refuse(format!(
                        "expected an image of at most {MAX_ALLOC_BYTES} bytes, got {len_bytes}"
                    ));
                }
            }
            // This is another image of a complete sample, or an image whose key has dots. A hidden
            // file is neither.
            further
                if !stem.is_empty()
                    && further
                        .rsplit('.')
                        .next()
                        .is_some_and(|last| EXTENSIONS.contains(&last)) =>
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
            self.all.push(Sample {
                key: key.to_owned(),
                ..Sample::default()
            });
        }
        &mut self.all[place]
    }

    fn refuse(&mut self, key: &str, problem: &str) {
        self.of(key).refuse(problem.to_owned());
    }
}

impl Sample {
    /// Sets the label. A number and an object may both have a label if the labels are equal.
    fn add_label(&mut self, label: u16) {
        let before = *self.label.get_or_insert(label);
        if before != label {
            self.refuse(format!("expected one label, got {before} and {label}"));
        }
    }

    /// Keeps the first problem.
    fn refuse(&mut self, problem: String) {
        self.problem.get_or_insert(problem);
    }
}

/// Label in a member.
enum Label {
    Class(u16),
    /// A number below 0, which stands for no label.
    Negative(String),
    None,
}

/// Returns the label in a member. An object may have no label.
fn label(entry: &mut Entry<'_, &File>, extension: &str, len_bytes: u64) -> Result<Label, String> {
    let mut text = String::new();
    if len_bytes > MAX_LABEL_BYTES || entry.read_to_string(&mut text).is_err() {
        return Err(format!(
            "expected a label as text in .{extension}, got {len_bytes} bytes that are none"
        ));
    }
    let text = text.trim_start_matches('\u{feff}');
    if extension == "cls" {
        return number(text);
    }
    // A list would also parse as a struct.
    if !text.trim_start().starts_with('{') {
        return Err("in .json: expected an object, got another value".to_owned());
    }
    let facts = serde_json::from_str::<Facts>(text).or_else(|error| {
        let without = without_special_numbers(text).ok_or(error)?;
        serde_json::from_str(&without)
    });
    match facts.map_err(|error| format!("in .json: {error}"))?.label {
        None | Some(Value::Null) => Ok(Label::None),
        Some(Value::String(text)) => number(&text).map_err(|error| format!("in .json: {error}")),
        Some(other) => number(&other.to_string()).map_err(|error| format!("in .json: {error}")),
    }
}

/// Parses a label: a whole number, which may have the form 3.0.
fn number(text: &str) -> Result<Label, String> {
    let shown = || {
        text.trim()
            .chars()
            .take(40)
            .collect::<String>()
            .escape_debug()
            .to_string()
    };
    let whole = text.trim().parse::<i64>().ok();
    let float = || {
        text.trim()
            .parse::<f64>()
            .ok()
            .filter(|number| number.fract() == 0.0 && number.abs() < 1e9)
    };
    match whole.or_else(|| float().map(|number| number as i64)) {
        Some(..0) => Ok(Label::Negative(shown())),
        Some(number) if u16::try_from(number).is_ok() => Ok(Label::Class(number as u16)),
        _ => Err(format!(
            "expected a label from 0 to {}, got {}",
            u16::MAX,
            shown()
        )),
    }
}

/// Returns the text of an object with `null` in place of `NaN` and `Infinity`, which Python writes
/// but JSON does not allow. Returns `None` if the text has neither.
fn without_special_numbers(text: &str) -> Option<String> {
    let mut result = String::new();
    let mut rest = text;
    let mut in_string = false;
    while let Some(letter) = rest.chars().next() {
        let special = ["NaN", "-Infinity", "Infinity"]
            .into_iter()
            .find(|name| !in_string && rest.starts_with(name));
        let (written, read) = match (special, letter) {
            (Some(name), _) => ("null", name.len()),
            // A quote after a backslash does not end a string.
            (None, '\\') => {
                let read = 1 + rest[1..].chars().next().map_or(0, char::len_utf8);
                (&rest[..read], read)
            }
            (None, _) => (&rest[..letter.len_utf8()], letter.len_utf8()),
        };
        in_string ^= letter == '"';
        result += written;
        rest = &rest[read..];
    }
    (result != text).then_some(result)
}

/// Returns true if the block at `offset` contains only zeros, which end an archive.
fn is_zeros(file: &File, offset: u64) -> bool {
    let mut block = [1; BLOCK_BYTES as usize];
    file.read_exact_at(&mut block, offset).is_ok() && block.iter().all(|byte| *byte == 0)
}

/// Returns the program that compressed a file with these first bytes, and the command that unpacks
/// it.
fn compression(first: &[u8]) -> Option<(&'static str, &'static str)> {
    match first {
        [0x1f, 0x8b, ..] => Some(("gzip", "gzip -dc FILE > NAME.tar")),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(("zstd", "zstd -d")),
        [0xfd, b'7', b'z', b'X', b'Z', ..] => Some(("xz", "xz -d")),
        [b'B', b'Z', b'h', ..] => Some(("bzip2", "bzip2 -d")),
        _ => None,
    }
}
