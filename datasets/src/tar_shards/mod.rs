//! A data set of images in tar files, with WebDataset's names.
//!
//! In: `DIR/train-*.tar` and shards of other splits, with the names in [`Split`]. Members are
//! `KEY.jpg` and either `KEY.cls` (a number) or `KEY.json` (with "label"). `DIR/classes.txt` is
//! optional and has one name per line. Out: [`DatasetSplits`].
//! Invariant: shards are sorted by name, and samples have the order of their shard, so that indices
//! are the same on every machine. Any sample is read by its position, so that order and resume
//! equal those of a folder. A note names every skipped sample.

mod index;
mod kept_open;
mod manifest;
mod scan;
mod write;

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::classes::numbers;
use crate::dataset::{DatasetSplits, ImageDataset};
use crate::encoded::{
    FoundSplit, FoundSplits, OnBadImage, ReadConfig, Source, add_labelled, open_splits,
};
use crate::error::{DatasetError, counted, list};
use crate::file::read_text;
use crate::memory::to_hex;
use crate::progress;
use crate::split::{FoundFiles, Split, SplitFiles};
use crate::threads::in_parts;
use index::{Identity, IndexedImage, ShardIndex};
use kept_open::Shard;
use manifest::{Manifest, expect_digest};
pub use write::{ShardWriting, write};

/// Names of the classes, one per line.
const CLASSES: &str = "classes.txt";

/// Suffix of shard names.
const ENDING: &str = ".tar";

/// Digests (sha256) of the shards, in the format of `sha256sum`.
const MANIFEST: &str = "MANIFEST";

/// Name of the index in the folder of the shards.
const INDEX: &str = ".lockstep-index";

/// Maximum bytes of the files of names and of digests.
const MAX_TEXT_BYTES: u64 = 64 << 20;

/// Opens the splits of a folder of shards.
///
/// Headers are read once, and their index is stored in `DIR/.lockstep-index` or in the cache. A
/// split without any label is not opened, and a note says so.
///
/// # Errors
/// Returns an error if there are no shards of the training split, if a file cannot be read, or if a
/// label has no name. With [`OnBadImage::Fail`], returns an error if a shard is damaged or a sample
/// is incomplete. With [`OnBadImage::Skip`], returns an error if no sample of a class remains.
///
/// # Differs from PyTorch
/// WebDataset reads shards sequentially and shuffles within a buffer. Here any sample is read by
/// its position.
pub fn open(dir: impl AsRef<Path>, config: &ReadConfig) -> Result<DatasetSplits, DatasetError> {
    config.check()?;
    let dir = dir.as_ref();
    let files = SplitFiles::list(dir, ENDING)?;
    let mut notes = files.unused();
    let mut splits = FoundSplits::new();
    for (split, found) in read(dir, find(&files, None)?, config)? {
        add_labelled(&mut splits, split, found, &mut notes)?;
    }
    let num_labels = splits.iter().map(|(_, found)| found.num_labels()).max();
    let (class_names, repeated) = class_names(dir, num_labels.unwrap_or(0))?;
    notes.extend(repeated);
    for (_, found) in &mut splits {
        found.class_names = Some(class_names.clone());
        found.map_to(&class_names)?;
    }
    open_splits(splits, notes, false, config)
}

/// Opens one split like [`open`]: `train`, `val` or `test` under any of its names, or other shards
/// by a word of their names. Shards of other splits may be missing.
///
/// Labels are mapped by the names in `classes.txt` to positions in `classes`. Without
/// `classes.txt`, labels are positions in `classes`. Without `classes`, the classes are those of
/// `classes.txt`, or as many as the training split has, if it exists.
///
/// # Errors
/// Returns an error in the cases of [`open`], and if the split is missing or has no labels.
pub fn open_split(
    dir: impl AsRef<Path>,
    name: &str,
    classes: Option<&[String]>,
    config: &ReadConfig,
) -> Result<Arc<dyn ImageDataset>, DatasetError> {
    config.check()?;
    let dir = dir.as_ref();
    let files = SplitFiles::list(dir, ENDING)?;
    let (_, found) = read(dir, find(&files, Some(name))?, config)?.swap_remove(0);
    let mut found = found?;
    let is_named = dir.join(CLASSES).exists();
    let mut num_labels = found.num_labels();
    if !is_named
        && classes.is_none()
        && let Ok(train) = find(&files, Some(Split::Train.names()[0]))
        && let Ok(train) = read(dir, train, config)?.swap_remove(0).1
    {
        num_labels = num_labels.max(train.num_labels());
    }
    let (own, repeated) = class_names(dir, num_labels)?;
    found.notes.extend(repeated);
    found.class_names = is_named.then(|| own.clone());
    found.map_to(classes.unwrap_or(&own))?;
    let split = Split::of_name(&found.source.split);
    found.open(split, false, config)
}

/// Returns the names of the classes, from `classes.txt` or as numbers, and a note on repeated
/// names.
fn class_names(
    dir: &Path,
    num_labels: usize,
) -> Result<(Vec<String>, Option<String>), DatasetError> {
    let path = dir.join(CLASSES);
    if !path.exists() {
        return Ok((numbers(num_labels), None));
    }
    let text = read_text(&path, MAX_TEXT_BYTES)?;
    let mut names: Vec<String> = text.lines().map(str::to_owned).collect();
    while names.pop_if(|name| name.trim().is_empty()).is_some() {}
    let expected = num_labels.max(2);
    if names.len() < expected || names.len() > 1 << 16 {
        return Err(DatasetError::class_names(path, expected, names.len()));
    }
    if let Some(index) = names.iter().position(|name| name.trim().is_empty()) {
        let line = index + 1;
        let problem = format!(
            "line {line}: expected the name of a class, got none. Give each class a line and a name"
        );
        return Err(DatasetError::invalid(path, problem));
    }
    let mut before = HashSet::new();
    let again: Vec<&String> = names.iter().filter(|name| !before.insert(*name)).collect();
    let note = (!again.is_empty()).then(|| {
        let names = list(again.iter());
        let names_again = counted(again.len(), "name");
        format!("{CLASSES} repeats {names_again}: {names}")
    });
    Ok((names, note))
}

/// Reads the headers of these splits.
#[expect(
    clippy::type_complexity,
    reason = "a split without labels is found, too"
)]
fn read(
    dir: &Path,
    found: Vec<(Split, FoundFiles)>,
    config: &ReadConfig,
) -> Result<Vec<(Split, Result<FoundSplit<TarSource>, DatasetError>)>, DatasetError> {
    let manifest = Manifest::read(dir)?;
    let names: Vec<String> = found
        .iter()
        .flat_map(|(_, found)| found.names.clone())
        .collect();
    let mut indices = indexed(dir, &names, manifest.as_ref(), config)?;
    let mut splits = Vec::new();
    for (split, files) in found {
        let mut of_split = Vec::new();
        for name in &files.names {
            let place = indices.iter().position(|(indexed, _)| indexed == name);
            of_split.push(indices.swap_remove(place.expect("each shard was indexed")));
        }
        let found = found_split(dir, files, manifest.as_ref(), of_split, config.on_bad_image);
        splits.push((split, found));
    }
    Ok(splits)
}

/// Reads the headers that are not yet in an index, and stores their content. [`open`] does the
/// same, and [`open_split`] does so for only the split `name`.
///
/// # Errors
/// Returns an error if a split has no shards, or if a shard cannot be read.
pub fn index(
    dir: impl AsRef<Path>,
    config: &ReadConfig,
    name: Option<&str>,
) -> Result<(), DatasetError> {
    let dir = dir.as_ref();
    let names: Vec<String> = find(&SplitFiles::list(dir, ENDING)?, name)?
        .into_iter()
        .flat_map(|(_, found)| found.names)
        .collect();
    indexed(dir, &names, Manifest::read(dir)?.as_ref(), config).map(drop)
}

/// Returns the shards of all splits, of which the training split must exist. With `name`, returns
/// only the shards of this split.
fn find(files: &SplitFiles, name: Option<&str>) -> Result<Vec<(Split, FoundFiles)>, DatasetError> {
    if let Some(name) = name {
        let found = files.of(name)?.ok_or_else(|| missing(files, name))?;
        return Ok(vec![(Split::of_name(name).unwrap_or(Split::Test), found)]);
    }
    let mut all = Vec::new();
    for split in Split::ALL {
        all.extend(files.of(split.names()[0])?.map(|found| (split, found)));
    }
    match all.first() {
        Some((Split::Train, _)) => Ok(all),
        _ => Err(missing(files, Split::Train.names()[0])),
    }
}

fn missing(files: &SplitFiles, name: &str) -> DatasetError {
    files.missing(
        name,
        "Give the folder that holds train-*.tar (`trainer shard` makes them from a folder of images)",
    )
}

/// Returns the index of each shard, from the stored index or from the headers. Stores new indices.
fn indexed(
    dir: &Path,
    names: &[String],
    manifest: Option<&Manifest>,
    config: &ReadConfig,
) -> Result<Vec<(String, ShardIndex)>, DatasetError> {
    let places = index_places(dir, config.cache_dir.as_deref());
    let kept: Vec<_> = places.iter().flat_map(|place| index::read(place)).collect();
    let mut found = Vec::with_capacity(names.len());
    let mut missing = Vec::new();
    for name in names {
        let identity = Identity::of(&dir.join(name))?;
        let mut of_name = kept.iter().filter(|(of, _)| of == name).peekable();
        let was_known = of_name.peek().is_some();
        match of_name.find(|(_, index)| index.identity == identity) {
            Some(index) => found.push(index.clone()),
            // The manifest may be wrong about a shard that is newer than the manifest, or that has
            // changed. Such a shard is hashed once.
            None => missing.push((
                name,
                manifest.and_then(|manifest| manifest.doubted(name, identity, was_known)),
            )),
        }
    }
    if missing.is_empty() {
        return Ok(found);
    }
    let scanned = in_parts(config.num_threads, missing, |(name, doubted)| {
        let path = dir.join(name);
        let checked = doubted.map_or(Ok(()), |digest| expect_digest(&path, digest));
        checked
            .and_then(|()| scan::scan(&path))
            .map(|index| (name.clone(), index))
    });
    let mut fault = None;
    for result in scanned {
        match result {
            Ok(index) => found.push(index),
            Err(error) => fault = Some(error),
        }
    }
    // The entries of other splits, which may not be requested now, are kept.
    let others = kept
        .into_iter()
        .filter(|(name, _)| !names.contains(name) && dir.join(name).exists());
    let mut all: Vec<_> = found.iter().cloned().chain(others).collect();
    all.sort_by(|(a, _), (b, _)| a.cmp(b));
    all.dedup_by(|(a, _), (b, _)| a == b);
    // If no place is writable, each start reads the headers, and the shards that the manifest may
    // not cover.
    let _ = places.iter().any(|place| {
        let made = place
            .parent()
            .is_some_and(|folder| folder == dir || fs::create_dir_all(folder).is_ok());
        made && index::write(place, &all).is_ok()
    });
    fault.map_or(Ok(found), Err)
}

/// Returns the possible paths of a folder's index.
fn index_places(dir: &Path, cache_dir: Option<&Path>) -> Vec<PathBuf> {
    let mut places = vec![dir.join(INDEX)];
    if let (Some(cache_dir), Ok(absolute)) = (cache_dir, dir.canonicalize()) {
        let digest = to_hex(&Sha256::digest(absolute.as_os_str().as_encoded_bytes()));
        places.push(cache_dir.join(format!("shards-{}", &digest[..16])));
    }
    places
}

/// Returns the images of a split, from the indices of its shards.
fn found_split(
    dir: &Path,
    FoundFiles { split, notes, .. }: FoundFiles,
    manifest: Option<&Manifest>,
    indices: Vec<(String, ShardIndex)>,
    on_bad_image: OnBadImage,
) -> Result<FoundSplit<TarSource>, DatasetError> {
    let digest = match manifest {
        Some(manifest) => manifest.digest_of_split(dir, &split, &indices)?,
        None => None,
    };
    let mut found = FoundSplit {
        name: format!("shards {split}"),
        source: TarSource {
            dir: dir.to_path_buf(),
            split,
            shards: Vec::new(),
            images: Vec::new(),
            digest,
        },
        labels: Vec::new(),
        class_names: None,
        notes,
    };
    let mut problems = Vec::new();
    let mut lost = Vec::new();
    let mut num_unlabelled = 0;
    for (number, (name, index)) in (0..).zip(indices) {
        let of_shard = |text: String| format!("{name}: {text}");
        found
            .labels
            .extend(index.images.iter().map(|image| image.label));
        let images = index.images.into_iter().map(|image| (number, image));
        found.source.images.extend(images);
        problems.extend(index.problems.into_iter().map(of_shard));
        num_unlabelled += index.num_unlabelled;
        lost.extend(index.fault.map(of_shard));
        found.notes.extend(index.note.map(of_shard));
        found.source.shards.push(Shard::new(dir.join(&name)));
    }
    let num_images = found.labels.len();
    let num_shards = found.source.shards.len();
    found.notes.push(format!(
        "{} in {}, decoded on demand",
        counted(num_images, "image"),
        counted(num_shards, "shard")
    ));
    if on_bad_image == OnBadImage::Fail || num_images == 0 {
        problems.splice(0..0, lost);
    } else if !lost.is_empty() {
        found.notes.push(format!(
            "the rest of {} of {num_shards} shards is lost: {}",
            lost.len(),
            list(lost.iter())
        ));
    }
    found.note_problems(&problems, num_unlabelled, on_bad_image)?;
    if found.source.digest.is_none() && manifest.is_some() {
        found.notes.push(format!(
            "{MANIFEST} does not list all shards of this split, so these are hashed for its checksum. \
             Make it again (sha256sum *.tar > MANIFEST)"
        ));
    }
    Ok(found)
}

/// Shards of a split.
#[derive(Debug)]
struct TarSource {
    dir: PathBuf,
    /// Name of the split in the names of its shards: "validation".
    split: String,
    shards: Vec<Shard>,
    /// Shard of each image, and the image's position in it.
    images: Vec<(u32, IndexedImage)>,
    /// Digest of the digests of all shards, if a manifest lists all.
    digest: Option<String>,
}

impl Source for TarSource {
    fn read(&self, image: usize) -> Result<Vec<u8>, DatasetError> {
        let (shard, image_in_shard) = &self.images[image];
        let mut bytes = vec![0; image_in_shard.len_bytes as usize];
        self.shards[*shard as usize]
            .read_at(&mut bytes, image_in_shard.offset)
            .map_err(DatasetError::io("read", self.path(image)))?;
        progress::advance(bytes.len());
        Ok(bytes)
    }

    fn path(&self, image: usize) -> PathBuf {
        let (shard, image) = &self.images[image];
        self.shards[*shard as usize].path.join(&image.key)
    }

    fn key(&self, image: usize) -> String {
        self.images[image].1.key.clone()
    }

    fn dir(&self) -> PathBuf {
        self.dir.join(&self.split)
    }

    fn known_digest(&self) -> Option<String> {
        self.digest.clone()
    }
}

#[cfg(test)]
mod tests;
