//! A data set of images in tar files, as WebDataset names them.
//!
//! In: `DIR/train-*.tar` and `DIR/val-*.tar` (or `test-*.tar`) of members `KEY.jpg` and `KEY.cls` (a number) or `KEY.json` (with "label");
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
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use sha2::{Digest, Sha256};

use crate::dataset::{DatasetSplits, ImageDataset, Normalization};
use crate::decode::Sizing;
use crate::encoded::{Contents, EncodedDataset, OnBadImage, Reading, Source, empty_classes};
use crate::error::{DatasetError, list};
use crate::memory::to_hex;
use crate::progress;
use classes::class_names;
use index::{Identity, IndexedImage, ShardIndex};
use kept_open::Shard;
use manifest::{Manifest, expect_digest};
pub use write::{ShardWriting, write};

/// The names of the classes, a line each.
const CLASSES: &str = "classes.txt";

/// The names of the split to train on, and those that the one to test with may have.
const TRAIN: [&str; 1] = ["train"];
const TEST: [&str; 2] = ["test", "val"];

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

/// Opens a folder of shards.
///
/// Headers are read once, and kept in `DIR/.lockstep-index` or in the cache. If there is `test` as well as `val`, `test` is used and
/// a note says so.
///
/// # Errors
/// If there are no shards of a split, a file cannot be read, a label has no name or, with [`OnBadImage::Fail`], a shard is damaged or a
/// sample incomplete; with [`OnBadImage::Skip`] also if no sample of a class is left.
///
/// # Differs from PyTorch
/// WebDataset reads shards from end to end and shuffles within a buffer; here any sample is read by its place.
pub fn open(dir: impl AsRef<Path>, config: &TarShardsConfig) -> Result<DatasetSplits, DatasetError> {
    let dir = dir.as_ref();
    config.sizing.check()?;
    let mut splits = read(dir, vec![find(dir, &TRAIN)?, find(dir, &TEST)?], config)?;
    let (class_names, repeated) = class_names(dir, splits.iter().map(Split::num_labels).max().unwrap_or(0))?;
    let [test, mut train] = [splits.pop(), splits.pop()].map(|split| split.expect("two splits"));
    train.notes.extend(repeated);
    train.notes.extend(empty_classes(&train.source.labels(), &class_names));
    let (train, test) = (train.open(class_names.clone(), config)?, test.open(class_names, config)?);
    Ok(DatasetSplits { train, test, normalization: Normalization::imagenet() })
}

/// As [`open`], of the shards to test with alone; those to train on need not be there.
///
/// Without `classes.txt` there are at least `num_classes`; if that is 0, at least those of the shards to train on, where these can be read.
///
/// # Errors
/// As [`open`].
pub fn open_test(
    dir: impl AsRef<Path>,
    config: &TarShardsConfig,
    num_classes: usize,
) -> Result<Arc<dyn ImageDataset>, DatasetError> {
    let dir = dir.as_ref();
    config.sizing.check()?;
    let mut test = read(dir, vec![find(dir, &TEST)?], config)?.swap_remove(0);
    let of_train = || read(dir, vec![find(dir, &TRAIN)?], config).map(|splits| splits[0].num_labels());
    let num_others = match dir.join(CLASSES).exists() {
        true => 0,
        false if num_classes == 0 => of_train().unwrap_or(0),
        false => num_classes,
    };
    let (class_names, repeated) = class_names(dir, test.num_labels().max(num_others))?;
    test.notes.extend(repeated);
    test.open(class_names, config)
}

/// What the headers of these splits say.
fn read(dir: &Path, found: Vec<Found>, config: &TarShardsConfig) -> Result<Vec<Split>, DatasetError> {
    let manifest = Manifest::read(dir)?;
    let names: Vec<String> = found.iter().flat_map(|found| found.names.clone()).collect();
    let mut indices = indexed(dir, &names, manifest.as_ref(), config)?;
    let split = |Found { names, notes }| {
        let of_split = names.iter().map(|name| {
            let place = indices.iter().position(|(indexed, _)| indexed == name).expect("each shard was indexed");
            indices.swap_remove(place)
        });
        Split::new(dir, manifest.as_ref(), of_split.collect(), notes)
    };
    found.into_iter().map(split).collect()
}

/// Reads the headers that no index has yet, and keeps what they say: [`open`] does it, too, and of `test_alone` [`open_test`].
///
/// # Errors
/// If there are no shards of a split or one cannot be read.
pub fn index(dir: impl AsRef<Path>, config: &TarShardsConfig, test_alone: bool) -> Result<(), DatasetError> {
    let dir = dir.as_ref();
    let mut names = find(dir, &TEST)?.names;
    if !test_alone {
        names.extend(find(dir, &TRAIN)?.names);
    }
    indexed(dir, &names, Manifest::read(dir)?.as_ref(), config).map(drop)
}

/// The shards of a split by name.
struct Found {
    names: Vec<String>,
    /// What else looks like shards of it.
    notes: Vec<String>,
}

/// The shards of the first of `splits` that has any, sorted.
fn find(dir: &Path, splits: &[&str]) -> Result<Found, DatasetError> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(dir).map_err(DatasetError::io("read", dir))? {
        entries.extend(entry.map_err(DatasetError::io("read", dir))?.file_name().into_string());
    }
    entries.sort();
    let is_of = |name: &str, split: &str| name.strip_prefix(split).is_some_and(|rest| rest.starts_with('-'));
    entries.retain(|name: &String| splits.iter().any(|split| is_of(name, split)));
    let (shards, others): (Vec<_>, Vec<_>) = entries.into_iter().partition(|name| name.ends_with(".tar"));
    let of = |split: &str| -> Vec<String> { shards.iter().filter(|name| is_of(name, split)).cloned().collect() };
    let mut found = splits.iter().map(|split| (*split, of(split))).filter(|(_, names)| !names.is_empty());
    let Some((split, names)) = found.next() else {
        return Err(DatasetError::Missing {
            what: format!("shards of {}", splits.join(" or ")),
            path: dir.to_path_buf(),
            expected: format!("{}-*.tar", splits[0]),
            remedy: "give the folder that holds train-*.tar and val-*.tar; `trainer shard` makes them of a folder of images",
        });
    };
    let mut notes: Vec<String> =
        found.map(|(other, _)| format!("{split}-*.tar is used, {other}-*.tar is not")).collect();
    if !others.is_empty() {
        let (num, others, shards) = (others.len(), list(others.iter()), splits.join("-*.tar or "));
        notes.push(format!("{num} files that are no shards ({shards}-*.tar, not compressed) are ignored: {others}"));
    }
    Ok(Found { names, notes })
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
            None => missing.push((name, manifest.and_then(|manifest| manifest.doubted(name, identity, was_known)))),
        }
    }
    if missing.is_empty() {
        return Ok(found);
    }
    let next = AtomicUsize::new(0);
    let scanned = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..config.num_threads.clamp(1, missing.len()) {
            scope.spawn(|| {
                while let Some((name, doubted)) = missing.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let path = dir.join(name);
                    let checked = doubted.map_or(Ok(()), |digest| expect_digest(&path, digest));
                    let result = checked.and_then(|()| scan::scan(&path)).map(|index| ((*name).clone(), index));
                    scanned.lock().expect("no thread panics with it").push(result);
                }
            });
        }
    });
    let mut fault = None;
    for result in scanned.into_inner().expect("no thread panicked") {
        match result {
            Ok(index) => found.push(index),
            Err(error) => fault = Some(error),
        }
    }
    // Those of the other split, which may not have been asked for.
    let others = kept.into_iter().filter(|(name, _)| !names.contains(name) && dir.join(name).exists());
    let mut all: Vec<_> = found.iter().cloned().chain(others).collect();
    all.sort_by(|(a, _), (b, _)| a.cmp(b));
    all.dedup_by(|(a, _), (b, _)| a == b);
    // Where it can be written nowhere, each start reads the headers, and shards that the manifest may not know.
    let _ = places.iter().any(|place| {
        let made = place.parent().is_some_and(|folder| folder == dir || fs::create_dir_all(folder).is_ok());
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

/// A split before its images are looked at.
struct Split {
    source: TarSource,
    /// Of samples that are left out.
    problems: Vec<String>,
    /// Why the rest of a shard is.
    lost: Vec<String>,
    notes: Vec<String>,
}

impl Split {
    /// The shards of a split, and what is to be said of them beside these notes.
    fn new(
        dir: &Path,
        manifest: Option<&Manifest>,
        indices: Vec<(String, ShardIndex)>,
        notes: Vec<String>,
    ) -> Result<Self, DatasetError> {
        let split = indices[0].0.split('-').next().unwrap_or_default().to_owned();
        let digest = manifest.map_or(Ok(None), |manifest| manifest.digest_of_split(dir, &split, &indices))?;
        let (mut shards, mut images, mut keys) = (Vec::new(), Vec::new(), Vec::new());
        let (mut problems, mut lost) = (Vec::new(), Vec::new());
        for (number, (name, index)) in (0..).zip(indices) {
            images.extend(index.images.into_iter().map(|image| (number, image)));
            keys.extend(index.keys);
            problems.extend(index.problems.into_iter().map(|problem| format!("{name}: {problem}")));
            lost.extend(index.fault.map(|fault| format!("{name}: {fault}")));
            shards.push(Shard::new(dir.join(name)));
        }
        let source = TarSource { dir: dir.to_path_buf(), split, shards, images, keys, digest };
        Ok(Self { source, problems, lost, notes })
    }

    fn num_labels(&self) -> usize {
        self.source.labels().iter().max().map_or(0, |label| usize::from(*label) + 1)
    }

    fn open(
        mut self,
        class_names: Vec<String>,
        config: &TarShardsConfig,
    ) -> Result<Arc<dyn ImageDataset>, DatasetError> {
        self.tell(config.on_bad_image)?;
        let Self { source, notes, .. } = self;
        let contents =
            Contents { name: format!("shards {}", source.split), class_names, labels: source.labels(), notes };
        let TarShardsConfig { sizing, on_bad_image, num_threads, .. } = *config;
        let whole = TRAIN.contains(&&*source.split);
        let reading = Reading { sizing, keep: false, on_bad_image, whole, num_threads };
        Ok(Arc::new(EncodedDataset::open(source, contents, reading)?))
    }

    /// Notes what is left out, or refuses it.
    fn tell(&mut self, on_bad_image: OnBadImage) -> Result<(), DatasetError> {
        let Self { source, problems, lost, notes } = self;
        let (num_images, num_shards) = (source.images.len(), source.shards.len());
        let told: Vec<&String> = lost.iter().chain(&*problems).collect();
        let refused = |problems, or_skip| DatasetError::BadShards { path: source.dir.clone(), problems, or_skip };
        if num_images == 0 {
            let found = if told.is_empty() { String::new() } else { format!(" ({})", list(told.iter())) };
            let problem = format!("shards {}: expected an image with a label, got none{found}", source.split);
            return Err(refused(problem, false));
        }
        if on_bad_image == OnBadImage::Fail && !told.is_empty() {
            return Err(refused(list(told.iter()), true));
        }
        notes.push(format!("{num_images} images in {num_shards} shards, decoded on demand"));
        if !lost.is_empty() {
            notes.push(format!("the rest of {} of {num_shards} shards is lost: {}", lost.len(), list(lost.iter())));
        }
        if !problems.is_empty() {
            notes.push(format!("{} samples were skipped: {}", problems.len(), list(problems.iter())));
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
    /// "train", "test" or "val".
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
        let (shard, IndexedImage { offset, len_bytes, .. }) = self.images[image];
        let mut bytes = vec![0; len_bytes as usize];
        let result = self.shards[shard as usize].read_at(&mut bytes, offset);
        result.map_err(DatasetError::io("read", self.path(image)))?;
        progress::advance(bytes.len());
        Ok(bytes)
    }

    fn path(&self, image: usize) -> PathBuf {
        self.shards[self.images[image].0 as usize].path.join(&self.keys[image])
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
