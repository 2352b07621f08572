//! A data set of images in tar files, as WebDataset names them.
//!
//! In: `DIR/train-*.tar` and the same of other splits, or as [`Split`] says, of members `KEY.jpg` and `KEY.cls` (a number) or `KEY.json` (with "label");
//! `DIR/classes.txt` with a name a line, where there is one. Out: [`DatasetSplits`].
//! Invariant: shards are sorted by name and samples stand as in their shard, so that indices are the same on every machine; any sample is
//! read by its place, so that order and resumption are those of a folder; no sample is dropped without a note that names it.

mod classes;
mod index;
mod kept_open;
mod manifest;
mod scan;
mod write;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::classes::{empty_classes, map_labels};
use crate::dataset::{DatasetSplits, ImageDataset, Normalization, if_labelled};
use crate::decode::Sizing;
use crate::encoded::{Contents, EncodedDataset, OnBadImage, Reading, Source};
use crate::error::{DatasetError, list};
use crate::memory::to_hex;
use crate::progress;
use crate::split::{FoundFiles, Split, SplitFiles};
use crate::threads::in_parts;
use classes::class_names;
use index::{Identity, IndexedImage, ShardIndex};
use kept_open::Shard;
use manifest::{Manifest, expect_digest};
pub use write::{ShardWriting, write};

/// The names of the classes, a line each.
const CLASSES: &str = "classes.txt";

/// What names of shards end with.
const ENDING: &str = ".tar";

/// The sha256 of each shard, as `sha256sum` writes and checks it.
const MANIFEST: &str = "MANIFEST";

/// The index, beside the shards.
const INDEX: &str = ".lockstep-index";

/// The most bytes of names and of digests.
const MAX_TEXT_BYTES: u64 = 64 << 20;

/// How shards are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TarShardsConfig {
    /// How all images are brought to one height and width.
    pub sizing: Sizing,
    /// What happens with a sample that is damaged or incomplete.
    pub on_bad_image: OnBadImage,
    /// The number of threads that read headers, and with [`OnBadImage::Skip`] decode every image, when shards are opened.
    pub num_threads: usize,
    /// Where the index is kept if it cannot be written beside the shards.
    pub cache_dir: Option<PathBuf>,
}

/// Opens the splits of a folder of shards.
///
/// Headers are read once, and kept in `DIR/.lockstep-index` or in the cache. A split none of whose images has a label is not opened; a
/// note says so.
///
/// # Errors
/// If there are no shards of the training split, a file cannot be read, a label has no name or, with [`OnBadImage::Fail`], a shard is
/// damaged or a sample incomplete; with [`OnBadImage::Skip`] also if no sample of a class is left.
///
/// # Differs from PyTorch
/// WebDataset reads shards from end to end and shuffles within a buffer; here any sample is read by its place.
pub fn open(
    dir: impl AsRef<Path>,
    config: &TarShardsConfig,
) -> Result<DatasetSplits, DatasetError> {
    let dir = dir.as_ref();
    config.sizing.check()?;
    let files = SplitFiles::list(dir, ENDING)?;
    let (mut notes, mut splits) = (files.unused(), Vec::new());
    for (split, read) in read(dir, find(&files, None)?, config)? {
        match (split, read.expect_labels()) {
            (Split::Train, Err(unlabelled)) => return Err(unlabelled),
            (_, labelled) => {
                splits.extend(if_labelled(labelled, &mut notes)?.map(|()| (split, read)))
            }
        }
    }
    let (class_names, repeated) = class_names(
        dir,
        splits
            .iter()
            .map(|(_, read)| read.num_labels())
            .max()
            .unwrap_or(0),
    )?;
    notes.extend(repeated);
    let mut opened = [None, None, None];
    for (split, mut read) in splits {
        let without_images = empty_classes(&read.source.labels(), &class_names);
        read.notes.extend(without_images);
        opened[split as usize] = Some(read.open(class_names.clone(), config)?);
    }
    let [train, val, test] = opened;
    let train = train.expect("a folder without this split is refused");
    Ok(DatasetSplits {
        train,
        val,
        test,
        normalization: Normalization::imagenet(),
        notes,
    })
}

/// Opens one split as [`open`] does: `train`, `val` or `test` by any of its names, or other shards by a word of their names. Shards of
/// other splits need not be there.
///
/// Labels are mapped by the names in `classes.txt` to positions in `classes`; where it is not there they are these positions. Without
/// `classes`, the classes are those of `classes.txt`, else as many as the training split has, if it is there.
///
/// # Errors
/// As [`open`], and if the split is not there or has no labels.
pub fn open_split(
    dir: impl AsRef<Path>,
    name: &str,
    classes: Option<&[String]>,
    config: &TarShardsConfig,
) -> Result<Arc<dyn ImageDataset>, DatasetError> {
    let dir = dir.as_ref();
    config.sizing.check()?;
    let files = SplitFiles::list(dir, ENDING)?;
    let (_, mut split) = read(dir, find(&files, Some(name))?, config)?.swap_remove(0);
    split.expect_labels()?;
    let is_named = dir.join(CLASSES).exists();
    let of_train = || {
        read(dir, find(&files, Some(Split::Train.names()[0]))?, config)
            .map(|read| read[0].1.num_labels())
    };
    let num_others = if is_named || classes.is_some() {
        0
    } else {
        of_train().unwrap_or(0)
    };
    let (mut class_names, repeated) = class_names(dir, split.num_labels().max(num_others))?;
    split.notes.extend(repeated);
    if let Some(classes) = classes {
        let mut labels = split.source.labels();
        let own = is_named.then_some(&class_names[..]);
        split.notes.extend(map_labels(
            &format!("shards {}", split.source.split),
            &mut labels,
            own,
            classes,
        )?);
        split
            .source
            .images
            .iter_mut()
            .zip(labels)
            .for_each(|((_, image), label)| image.label = label);
        class_names = classes.to_vec();
    }
    split.open(class_names, config)
}

/// What the headers of these splits say.
fn read(
    dir: &Path,
    found: Vec<(Split, FoundFiles)>,
    config: &TarShardsConfig,
) -> Result<Vec<(Split, Shards)>, DatasetError> {
    let manifest = Manifest::read(dir)?;
    let names: Vec<String> = found
        .iter()
        .flat_map(|(_, found)| found.names.clone())
        .collect();
    let mut indices = indexed(dir, &names, manifest.as_ref(), config)?;
    let read = |(
        split,
        FoundFiles {
            split: name,
            names,
            notes,
        },
    )| {
        let of_split = names.iter().map(|name| {
            let place = indices
                .iter()
                .position(|(indexed, _)| indexed == name)
                .expect("each shard was indexed");
            indices.swap_remove(place)
        });
        Ok((
            split,
            Shards::new(dir, name, manifest.as_ref(), of_split.collect(), notes)?,
        ))
    };
    found.into_iter().map(read).collect()
}

/// Reads the headers that no index has yet, and keeps what they say: [`open`] does it, too, and of the split `name` alone [`open_split`].
///
/// # Errors
/// If there are no shards of a split or one cannot be read.
pub fn index(
    dir: impl AsRef<Path>,
    config: &TarShardsConfig,
    name: Option<&str>,
) -> Result<(), DatasetError> {
    let dir = dir.as_ref();
    let names: Vec<String> = find(&SplitFiles::list(dir, ENDING)?, name)?
        .into_iter()
        .flat_map(|(_, found)| found.names)
        .collect();
    indexed(dir, &names, Manifest::read(dir)?.as_ref(), config).map(drop)
}

/// The shards of all splits, of which the training split must be there, or of the one of that `name`.
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
        "give the folder that holds train-*.tar; `trainer shard` makes them of a folder of images",
    )
}

/// The index of each shard: as it was kept, or read now and then kept.
fn indexed(
    dir: &Path,
    names: &[String],
    manifest: Option<&Manifest>,
    config: &TarShardsConfig,
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
            // What the manifest says of a shard that came later than it, or is another than before, is looked at once.
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
    // Those of the other split, which may not have been asked for.
    let others = kept
        .into_iter()
        .filter(|(name, _)| !names.contains(name) && dir.join(name).exists());
    let mut all: Vec<_> = found.iter().cloned().chain(others).collect();
    all.sort_by(|(a, _), (b, _)| a.cmp(b));
    all.dedup_by(|(a, _), (b, _)| a == b);
    // Where it can be written nowhere, each start reads the headers, and shards that the manifest may not know.
    let _ = places.iter().any(|place| {
        let made = place
            .parent()
            .is_some_and(|folder| folder == dir || fs::create_dir_all(folder).is_ok());
        made && index::write(place, &all).is_ok()
    });
    fault.map_or(Ok(found), Err)
}

/// Where the index of a folder may be.
fn index_places(dir: &Path, cache_dir: Option<&Path>) -> Vec<PathBuf> {
    let mut places = vec![dir.join(INDEX)];
    if let (Some(cache_dir), Ok(absolute)) = (cache_dir, dir.canonicalize()) {
        let digest = to_hex(&Sha256::digest(absolute.as_os_str().as_encoded_bytes()));
        places.push(cache_dir.join(format!("shards-{}", &digest[..16])));
    }
    places
}

/// The shards of a split before their images are looked at.
struct Shards {
    source: TarSource,
    /// Of samples that are left out.
    problems: Vec<String>,
    /// How many of these lack nothing but a label.
    num_unlabelled: usize,
    /// Why the rest of a shard is.
    lost: Vec<String>,
    notes: Vec<String>,
}

impl Shards {
    /// The shards of the split that their names call `split`, and what is to be said of them beside these notes.
    fn new(
        dir: &Path,
        split: String,
        manifest: Option<&Manifest>,
        indices: Vec<(String, ShardIndex)>,
        mut notes: Vec<String>,
    ) -> Result<Self, DatasetError> {
        let digest = manifest.map_or(Ok(None), |manifest| {
            manifest.digest_of_split(dir, &split, &indices)
        })?;
        let (mut shards, mut images, mut keys) = (Vec::new(), Vec::new(), Vec::new());
        let (mut problems, mut lost, mut num_unlabelled) = (Vec::new(), Vec::new(), 0);
        for (number, (name, index)) in (0..).zip(indices) {
            images.extend(index.images.into_iter().map(|image| (number, image)));
            keys.extend(index.keys);
            problems.extend(
                index
                    .problems
                    .into_iter()
                    .map(|problem| format!("{name}: {problem}")),
            );
            num_unlabelled += index.num_unlabelled;
            lost.extend(index.fault.map(|fault| format!("{name}: {fault}")));
            notes.extend(index.note.map(|note| format!("{name}: {note}")));
            shards.push(Shard::new(dir.join(name)));
        }
        let source = TarSource {
            dir: dir.to_path_buf(),
            split,
            shards,
            images,
            keys,
            digest,
        };
        Ok(Self {
            source,
            problems,
            num_unlabelled,
            lost,
            notes,
        })
    }

    fn num_labels(&self) -> usize {
        self.source
            .labels()
            .iter()
            .max()
            .map_or(0, |label| usize::from(*label) + 1)
    }

    /// Refuses a split whose images all lack a label.
    fn expect_labels(&self) -> Result<(), DatasetError> {
        if self.num_unlabelled == 0 || !self.source.images.is_empty() {
            return Ok(());
        }
        let found = format!(
            "shards {}: none of {} images has a label from 0 up",
            self.source.split, self.num_unlabelled
        );
        Err(DatasetError::Unlabelled {
            path: self.source.dir.clone(),
            found,
        })
    }

    fn open(
        mut self,
        class_names: Vec<String>,
        config: &TarShardsConfig,
    ) -> Result<Arc<dyn ImageDataset>, DatasetError> {
        self.tell(config.on_bad_image)?;
        let Self { source, notes, .. } = self;
        let contents = Contents {
            name: format!("shards {}", source.split),
            class_names,
            labels: source.labels(),
            notes,
        };
        let TarShardsConfig {
            sizing,
            on_bad_image,
            num_threads,
            ..
        } = *config;
        let whole = Split::of_name(&source.split) == Some(Split::Train);
        let reading = Reading {
            sizing,
            keep: false,
            on_bad_image,
            whole,
            num_threads,
        };
        Ok(Arc::new(EncodedDataset::open(source, contents, reading)?))
    }

    /// Notes what is left out, or refuses it.
    fn tell(&mut self, on_bad_image: OnBadImage) -> Result<(), DatasetError> {
        let Self {
            source,
            problems,
            lost,
            notes,
            ..
        } = self;
        let (num_images, num_shards) = (source.images.len(), source.shards.len());
        let told: Vec<&String> = lost.iter().chain(&*problems).collect();
        let refused = |problems, or_skip| DatasetError::BadShards {
            path: source.dir.clone(),
            problems,
            or_skip,
        };
        if num_images == 0 {
            let found = if told.is_empty() {
                String::new()
            } else {
                format!(" ({})", list(told.iter()))
            };
            let problem = format!(
                "shards {}: expected an image with a label, got none{found}",
                source.split
            );
            return Err(refused(problem, false));
        }
        if on_bad_image == OnBadImage::Fail && !told.is_empty() {
            return Err(refused(list(told.iter()), true));
        }
        notes.push(format!(
            "{num_images} images in {num_shards} shards, decoded on demand"
        ));
        if !lost.is_empty() {
            notes.push(format!(
                "the rest of {} of {num_shards} shards is lost: {}",
                lost.len(),
                list(lost.iter())
            ));
        }
        if !problems.is_empty() {
            notes.push(format!(
                "{} samples were skipped: {}",
                problems.len(),
                list(problems.iter())
            ));
        }
        if source.digest.is_none() && source.dir.join(MANIFEST).exists() {
            let remedy = "make it anew (sha256sum *.tar > MANIFEST)";
            notes.push(format!(
                "{MANIFEST} does not list all shards of this split, so these are hashed for its checksum; {remedy}"
            ));
        }
        Ok(())
    }
}

/// The shards of a split.
struct TarSource {
    dir: PathBuf,
    /// By the name that the shards have: "validation".
    split: String,
    shards: Vec<Shard>,
    /// The shard of each image, and where it lies there.
    images: Vec<(u32, IndexedImage)>,
    keys: Vec<String>,
    /// Over the digests of all shards, where a manifest has them.
    digest: Option<String>,
}

impl TarSource {
    /// Of each image.
    fn labels(&self) -> Vec<u16> {
        self.images.iter().map(|(_, image)| image.label).collect()
    }
}

impl Source for TarSource {
    fn read(&self, image: usize) -> Result<Vec<u8>, DatasetError> {
        let (
            shard,
            IndexedImage {
                offset, len_bytes, ..
            },
        ) = self.images[image];
        let mut bytes = vec![0; len_bytes as usize];
        let result = self.shards[shard as usize].read_at(&mut bytes, offset);
        result.map_err(DatasetError::io("read", self.path(image)))?;
        progress::advance(bytes.len());
        Ok(bytes)
    }

    fn path(&self, image: usize) -> PathBuf {
        self.shards[self.images[image].0 as usize]
            .path
            .join(&self.keys[image])
    }

    fn key(&self, image: usize) -> String {
        self.keys[image].clone()
    }

    fn class_path(&self, class_name: &str) -> PathBuf {
        self.dir.join(&self.split).join(class_name)
    }

    fn known_digest(&self) -> Option<String> {
        self.digest.clone()
    }
}

#[cfg(test)]
mod tests;
