//! Writes shards of a folder of images.
//!
//! In: `FROM/train/<class>/*` and folders of other splits. Out: `TO/train-000000.tar` and so on,
//! `classes.txt`, and `MANIFEST`, with comments on skipped files.
//! Invariant: samples have the order of the folder, and files are unchanged. The same folder gives
//! the same bytes. Files are first written next to `TO`, or to a hidden folder of an existing `TO`,
//! which may be a mount. They are renamed when all are complete. A hidden folder is locked while
//! files are written, so that the remains of a killed process are recognised.
//! Source: flock(2).

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

use super::{CLASSES, MANIFEST};
use crate::decode::read_image_file;
use crate::encoded::{FoundSplit, FoundSplits};
use crate::error::DatasetError;
use crate::image_folder::{FolderSource, scan_all};
use crate::memory::to_hex;
use crate::progress;

/// Suffix of an incomplete folder's name, before the process id.
const PART: &str = ".part-";

/// Result of writing shards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShardWriting {
    /// Number of shards over all splits.
    pub num_shards: usize,
    /// Number of images over all splits.
    pub num_images: usize,
    /// Notes on skipped files, one sentence each. `MANIFEST` has the same notes.
    pub notes: Vec<String>,
}

/// Writes the images of the folder `from` to shards of `images_per_shard` images in the folder
/// `to`, which is new or empty.
///
/// An image becomes `NUMBER.EXTENSION` and `NUMBER.cls` in `train-*.tar`, `val-*.tar` or
/// `test-*.tar`. A split without labels is skipped. `proceed` receives the name of each written
/// shard. If it returns false, writing stops.
///
/// # Errors
/// Returns an error if `from` is not such a folder, if `to` is not empty, if a file cannot be read
/// or written, or if `proceed` returns false. `to` is then unchanged.
///
/// # Panics
/// Panics if `images_per_shard` is 0.
pub fn write(
    from: &Path,
    to: &Path,
    images_per_shard: usize,
    proceed: &mut dyn FnMut(&str) -> bool,
) -> Result<ShardWriting, DatasetError> {
    assert!(
        images_per_shard > 0,
        "images_per_shard: expected at least 1, got 0"
    );
    let mut notes = Vec::new();
    let splits = scan_all(from, &mut notes)?;
    for (split, scanned) in &splits {
        notes.extend(scanned.notes.iter().map(|note| format!("{split}: {note}")));
    }
    let class_names = splits[0].1.class_names.clone().unwrap_or_default();
    if let Some(name) = class_names.iter().find(|name| name.contains(['\n', '\r'])) {
        return Err(DatasetError::Config {
            field: "class folder",
            expected: format!("a name on one line, as {CLASSES} has a line for each"),
            got: format!("{name:?}"),
        });
    }
    let is_there = to.exists();
    if !is_there && to.is_symlink() {
        return Err(DatasetError::Missing {
            what: "what the link leads to".to_owned(),
            path: to.to_path_buf(),
            expected: "a folder".to_owned(),
            remedy: "Make that folder or mount it, or remove the link",
        });
    }
    if is_there {
        expect_empty(to)?;
    }
    // The path must not end with a slash or dots.
    let to: PathBuf = to.components().collect();
    let ending = format!("{PART}{}", std::process::id());
    let mut part = to.clone();
    match is_there {
        true => part.push(ending),
        false => part.as_mut_os_string().push(ending),
    }
    fs::create_dir_all(&part).map_err(DatasetError::io("create", &part))?;
    // On a file system without locks, remains of a killed process are rejected instead of removed.
    let _held = hold(&part);
    let written = write_all(&splits, notes, &part, images_per_shard, proceed).and_then(|written| {
        if is_there {
            move_out(&part, &to)
        } else {
            rename(&part, &to)
        }
        .map(|()| written)
    });
    if written.is_err() {
        // The first error is the reported one.
        let _ = fs::remove_dir_all(&part);
    }
    written
}

/// Locks a folder for writing.
fn hold(part: &Path) -> io::Result<File> {
    let folder = File::open(part)?;
    folder.try_lock()?;
    Ok(folder)
}

/// Rejects a folder with any content, except entries of the file system. Removes the remains of
/// killed processes.
fn expect_empty(to: &Path) -> Result<(), DatasetError> {
    let mut left = Vec::new();
    for entry in fs::read_dir(to).map_err(DatasetError::io("read", to))? {
        let entry = entry.map_err(DatasetError::io("read", to))?;
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_part = name
            .strip_prefix(PART)
            .is_some_and(|process| process.parse::<u32>().is_ok())
            && entry.file_type().is_ok_and(|kind| kind.is_dir());
        match is_part.then(|| hold(&path)) {
            Some(Ok(held)) => left.push((path, held)),
            _ if name == "lost+found" => {}
            _ => {
                let problem =
                    format!("expected a new or empty folder, got one with {name}. Choose another");
                return Err(DatasetError::invalid(to, problem));
            }
        }
    }
    left.iter().try_for_each(|(part, _held)| {
        fs::remove_dir_all(part).map_err(DatasetError::io("remove", part))
    })
}

fn rename(from: &Path, to: &Path) -> Result<(), DatasetError> {
    fs::rename(from, to).map_err(DatasetError::io("rename to", to))
}

/// Moves all files to the parent folder, the manifest last.
fn move_out(part: &Path, to: &Path) -> Result<(), DatasetError> {
    let entries = fs::read_dir(part)
        .and_then(|entries| entries.map(|entry| Ok(entry?.file_name())).collect());
    let mut names: Vec<OsString> = entries.map_err(DatasetError::io("read", part))?;
    names.sort_by_key(|name| name == MANIFEST);
    let mut moves = names
        .iter()
        .map(|name| rename(&part.join(name), &to.join(name)));
    if let Some(error) = moves.find_map(Result::err) {
        // The folder was empty, so this function has moved all its files.
        names
            .iter()
            .for_each(|name| drop(fs::remove_file(to.join(name))));
        return Err(error);
    }
    fs::remove_dir(part).map_err(DatasetError::io("remove", part))
}

fn write_all(
    splits: &FoundSplits<FolderSource>,
    notes: Vec<String>,
    folder: &Path,
    images_per_shard: usize,
    proceed: &mut dyn FnMut(&str) -> bool,
) -> Result<ShardWriting, DatasetError> {
    // Programs that check digests skip comments.
    let mut manifest: String = notes
        .iter()
        .map(|note| format!("# {}\n", note.replace(['\n', '\r'], " ")))
        .collect();
    let mut written = ShardWriting {
        notes,
        ..ShardWriting::default()
    };
    for (name, split) in splits {
        // All numbers have the width of the last one, because shards are read in the order of their
        // names.
        let width = split
            .labels
            .len()
            .div_ceil(images_per_shard)
            .to_string()
            .len()
            .max(6);
        for (number, first) in (0..split.labels.len())
            .step_by(images_per_shard)
            .enumerate()
        {
            let name = format!("{name}-{number:0width$}.tar");
            let images = first..(first + images_per_shard).min(split.labels.len());
            written.num_images += images.len();
            let digest = write_shard(&folder.join(&name), split, images)?;
            manifest += &format!("{digest}  {name}\n");
            written.num_shards += 1;
            if !proceed(&name) {
                let problem = "stopped before all was written, so nothing is kept. Start again";
                return Err(DatasetError::invalid(folder, problem));
            }
        }
    }
    let class_names = splits[0].1.class_names.iter().flatten();
    let classes = class_names
        .map(|name| format!("{name}\n"))
        .collect::<String>();
    let whole = |name: &str, text: &str| {
        let path = folder.join(name);
        let file = File::create(&path).and_then(|mut file| {
            file.write_all(text.as_bytes())
                .and_then(|()| file.sync_all())
        });
        file.map_err(DatasetError::io("write", path))
    };
    whole(CLASSES, &classes)?;
    whole(MANIFEST, &manifest)?;
    Ok(written)
}

/// Writes one shard and returns its sha256.
fn write_shard(
    path: &Path,
    split: &FoundSplit<FolderSource>,
    images: std::ops::Range<usize>,
) -> Result<String, DatasetError> {
    let file = File::create(path).map_err(DatasetError::io("create", path))?;
    let mut archive = Builder::new(Digested {
        file: BufWriter::with_capacity(1 << 20, file),
        digest: Sha256::new(),
    });
    for image in images {
        let file = &split.source.files[image];
        let label = split.labels[image];
        let bytes = read_image_file(file)?;
        let extension = file
            .extension()
            .unwrap_or_default()
            .to_string_lossy()
            .to_ascii_lowercase();
        let appended =
            append(&mut archive, &format!("{image:09}.{extension}"), &bytes).and_then(|()| {
                append(
                    &mut archive,
                    &format!("{image:09}.cls"),
                    label.to_string().as_bytes(),
                )
            });
        appended.map_err(DatasetError::io("write", path))?;
        progress::advance(bytes.len());
    }
    let end = || {
        let Digested { file, digest } = archive.into_inner()?;
        file.into_inner()
            .map_err(io::IntoInnerError::into_error)?
            .sync_all()?;
        Ok(to_hex(&digest.finalize()))
    };
    end().map_err(DatasetError::io("write", path))
}

/// Appends a member without a user and a time.
fn append<W: Write>(archive: &mut Builder<W>, name: &str, bytes: &[u8]) -> io::Result<()> {
    let mut header = Header::new_ustar();
    header.set_entry_type(EntryType::Regular);
    header.set_mode(0o644);
    header.set_mtime(0);
    header.set_size(bytes.len() as u64);
    archive.append_data(&mut header, name, bytes)
}

/// A file that computes the digest of its bytes.
struct Digested {
    file: BufWriter<File>,
    digest: Sha256,
}

impl Write for Digested {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let len = self.file.write(bytes)?;
        self.digest.update(&bytes[..len]);
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
