//! A data set of images in tar files, as WebDataset names them.
//!
//! In: `DIR/train-*.tar` and `DIR/val-*.tar` (or `test-*.tar`) of members `KEY.jpg` and `KEY.cls` (a number) or `KEY.json` (with "label");
//! `DIR/classes.txt` with a name a line, where there is one. Out: [`DatasetSplits`].
//! Invariant: shards are sorted by name and samples stand as in their shard, so that indices are the same on every machine; any sample is
//! read by its place, so that order and resumption are those of a folder; no sample is dropped without a note that names it.

mod index;
mod kept_open;
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
use crate::encoded::{Contents, EncodedDataset, OnBadImage, Reading, Source};
use crate::error::{DatasetError, list};
use crate::file::{read_whole, sha256_of};
use crate::memory::to_hex;
use crate::progress;
use index::{Identity, IndexedImage, ShardIndex};
use kept_open::Shard;
pub use write::{ShardWriting, write};

/// The names of the classes, a line each.
const CLASSES: &str = "classes.txt";

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
/// Headers are read once, and kept in `DIR/.lockstep-index` or in the cache. If there is `test` as well as `val`, `test` is used.
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
    let names = shard_names(dir)?;
    let manifest = Manifest::read(dir)?;
    let mut indices = indexed(dir, &names.concat(), manifest.as_ref(), config)?;
    let mut splits = Vec::new();
    for names in &names {
        let of_split = names.iter().map(|name| {
            let place = indices.iter().position(|(indexed, _)| indexed == name).expect("each shard was indexed");
            indices.swap_remove(place)
        });
        splits.push(TarSource::new(dir, manifest.as_ref(), of_split.collect())?);
    }
    let class_names = class_names(dir, &splits)?;
    let [test, train] = [splits.pop(), splits.pop()].map(|split| split.expect("two splits"));
    let open_split = |(source, problems): (TarSource, Vec<String>)| -> Result<Arc<dyn ImageDataset>, DatasetError> {
        let contents = contents(&source, &problems, class_names.clone(), config.on_bad_image)?;
        let TarShardsConfig { sizing, on_bad_image, num_threads, .. } = *config;
        Ok(Arc::new(EncodedDataset::open(
            source,
            contents,
            Reading { sizing, keep: false, on_bad_image, num_threads },
        )?))
    };
    Ok(DatasetSplits { train: open_split(train)?, test: open_split(test)?, normalization: Normalization::imagenet() })
}

/// Reads the headers that no index has yet, and keeps what they say: [`open`] does it, too.
///
/// # Errors
/// If there are no shards of a split or one cannot be read.
pub fn index(dir: impl AsRef<Path>, config: &TarShardsConfig) -> Result<(), DatasetError> {
    let dir = dir.as_ref();
    indexed(dir, &shard_names(dir)?.concat(), Manifest::read(dir)?.as_ref(), config).map(drop)
}

fn shard_names(dir: &Path) -> Result<[Vec<String>; 2], DatasetError> {
    Ok([find(dir, &["train"])?, find(dir, &["test", "val"])?])
}

/// The names of the shards of a split, sorted: the first of `splits` that has any.
fn find(dir: &Path, splits: &[&str]) -> Result<Vec<String>, DatasetError> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).map_err(DatasetError::io("read", dir))? {
        let name = entry.map_err(DatasetError::io("read", dir))?.file_name();
        found.extend(name.into_string().ok().filter(|name| name.ends_with(".tar")));
    }
    found.sort();
    let of = |split: &&str| -> Vec<String> {
        found
            .iter()
            .filter(|name| name.strip_prefix(*split).is_some_and(|rest| rest.starts_with('-')))
            .cloned()
            .collect()
    };
    splits.iter().map(of).find(|names| !names.is_empty()).ok_or_else(|| DatasetError::Missing {
        what: format!("shards of {}", splits.join(" or ")),
        path: dir.to_path_buf(),
        expected: format!("{}-*.tar", splits[0]),
        remedy: "give the folder that holds train-*.tar and val-*.tar; `trainer shard` makes them of a folder of images",
    })
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
    found.sort_by(|(a, _), (b, _)| a.cmp(b));
    // Where it can be written nowhere, each start reads the headers, and shards that the manifest may not know.
    let _ = places.iter().any(|place| {
        let made = place.parent().is_some_and(|folder| folder == dir || fs::create_dir_all(folder).is_ok());
        made && index::write(place, &found).is_ok()
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

/// The names of the classes of all splits: those of `classes.txt`, else their numbers.
fn class_names(dir: &Path, splits: &[(TarSource, Vec<String>)]) -> Result<Vec<String>, DatasetError> {
    let labels = || splits.iter().flat_map(|(source, _)| source.images.iter().map(|(_, image)| image.label));
    let num_labels = labels().max().map_or(0, |label| usize::from(label) + 1);
    let path = dir.join(CLASSES);
    if !path.exists() {
        return Ok((0..num_labels.max(2)).map(|label| label.to_string()).collect());
    }
    let text = String::from_utf8(read_whole(&path, MAX_TEXT_BYTES)?);
    let text = text.map_err(|_| DatasetError::NotText { path: path.clone() })?;
    let names: Vec<String> = text.lines().map(str::to_owned).collect();
    if names.len() < num_labels.max(2) || names.len() > 1 << 16 {
        return Err(DatasetError::ClassNames { path, expected: num_labels.max(2), got: names.len() });
    }
    Ok(names)
}

/// What is known of a split, or why it is refused.
fn contents(
    source: &TarSource,
    problems: &[String],
    class_names: Vec<String>,
    on_bad_image: OnBadImage,
) -> Result<Contents, DatasetError> {
    let num_images = source.images.len();
    if on_bad_image == OnBadImage::Fail && !problems.is_empty() {
        return Err(DatasetError::BadShards { path: source.dir.clone(), problems: list(problems.iter()) });
    }
    if num_images == 0 {
        let problems = format!("shards {}: expected an image with a label, got none", source.split);
        return Err(DatasetError::BadShards { path: source.dir.clone(), problems });
    }
    let mut notes = vec![format!("{num_images} images in {} shards, decoded on demand", source.shards.len())];
    if !problems.is_empty() {
        notes.push(format!("{} samples were skipped: {}", problems.len(), list(problems.iter())));
    }
    if source.digest.is_none() && source.dir.join(MANIFEST).exists() {
        let remedy = "make it anew (sha256sum *.tar > MANIFEST)";
        notes.push(format!(
            "{MANIFEST} does not list all shards of this split, so these are hashed for its checksum; {remedy}"
        ));
    }
    let labels = source.images.iter().map(|(_, image)| image.label).collect();
    Ok(Contents { name: format!("shards {}", source.split), class_names, labels, notes })
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
    /// The shards of a split, and what is wrong with them.
    fn new(
        dir: &Path,
        manifest: Option<&Manifest>,
        indices: Vec<(String, ShardIndex)>,
    ) -> Result<(Self, Vec<String>), DatasetError> {
        let split = indices[0].0.split('-').next().unwrap_or_default().to_owned();
        let digest = manifest.map_or(Ok(None), |manifest| manifest.digest_of_split(dir, &split, &indices))?;
        let (mut shards, mut images, mut keys, mut problems) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (number, (name, index)) in (0..).zip(indices) {
            images.extend(index.images.into_iter().map(|image| (number, image)));
            keys.extend(index.keys);
            problems.extend(index.problems.into_iter().map(|problem| format!("{name}: {problem}")));
            shards.push(Shard::new(dir.join(name)));
        }
        let dir = dir.to_path_buf();
        Ok((Self { dir, split, shards, images, keys, digest }, problems))
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

/// The digests of all shards, by name.
struct Manifest {
    text: String,
    identity: Identity,
}

impl Manifest {
    /// That of a folder, if it has one.
    fn read(dir: &Path) -> Result<Option<Self>, DatasetError> {
        let path = dir.join(MANIFEST);
        if !path.exists() {
            return Ok(None);
        }
        let identity = Identity::of(&path)?;
        let text = String::from_utf8(read_whole(&path, MAX_TEXT_BYTES)?).map_err(|_| DatasetError::NotText { path })?;
        Ok(Some(Self { text, identity }))
    }

    /// Digests and names.
    fn lines(&self) -> impl Iterator<Item = (&str, &str)> {
        self.text.lines().filter_map(|line| line.split_once("  "))
    }

    fn digest(&self, name: &str) -> Option<&str> {
        self.lines().find(|(_, listed)| *listed == name).map(|(digest, _)| digest)
    }

    /// What it says of a shard, if that may be another by now.
    fn doubted(&self, name: &str, shard: Identity, was_known: bool) -> Option<&str> {
        if was_known || shard.is_newer_than(&self.identity) { self.digest(name) } else { None }
    }

    /// One digest of those of a split's shards; none where it misses one.
    fn digest_of_split(
        &self,
        dir: &Path,
        split: &str,
        indices: &[(String, ShardIndex)],
    ) -> Result<Option<String>, DatasetError> {
        let is_there = |name: &str| indices.iter().any(|(indexed, _)| indexed == name);
        let of_split = |name: &str| name.strip_prefix(split).is_some_and(|rest| rest.starts_with('-'));
        if let Some((_, name)) = self.lines().find(|(_, name)| of_split(name) && !is_there(name)) {
            return Err(DatasetError::Missing {
                what: name.to_owned(),
                path: dir.to_path_buf(),
                expected: "every shard that MANIFEST lists".to_owned(),
                remedy: "fetch it again, or remove MANIFEST to do without it",
            });
        }
        let mut digest = Sha256::new();
        for (name, _) in indices {
            let Some(of_shard) = self.digest(name) else { return Ok(None) };
            digest.update(of_shard);
        }
        Ok(Some(to_hex(&digest.finalize())))
    }
}

/// Refuses a shard that is not what the manifest lists.
fn expect_digest(path: &Path, expected: &str) -> Result<(), DatasetError> {
    let got = sha256_of(path)?;
    if got.eq_ignore_ascii_case(expected) {
        return Ok(());
    }
    Err(DatasetError::ChangedShard { path: path.to_path_buf(), expected: expected.to_owned(), got })
}

#[cfg(test)]
mod tests;
