//! One split of encoded images, which are decoded at the start or on demand.
//!
//! In: a [`Source`] of encoded images, and their labels. Out: an [`ImageDataset`].
//! Invariant: order, notes and checksum do not depend on the number of threads. The checksum does
//! not depend on which images are in memory.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::thread;

use sha2::{Digest, Sha256};

use crate::classes::{empty_class, map_labels};
use crate::dataset::{DatasetSplits, ImageDataset, ImageShape, Normalization, crop_of_whole};
use crate::decode::{Sizing, decode_crop, decode_into};
use crate::error::{DatasetError, counted, list};
use crate::memory::{digest_shape, to_hex};
use crate::resize::CropBox;
use crate::split::Split;
use crate::threads::in_parts;

/// Handling of an image file that cannot be decoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "cli",
    derive(clap::ValueEnum, serde::Serialize, serde::Deserialize),
    serde(rename_all = "kebab-case")
)]
pub enum OnBadImage {
    /// Opening fails and names the file. With decoding on demand, reading fails.
    #[default]
    Fail,
    /// The file is skipped. The notes have the number and the paths of skipped files.
    Skip,
}

/// Settings for reading encoded images.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadConfig {
    /// Size of all samples.
    pub sizing: Sizing,
    /// Handling of images that cannot be decoded, and of samples without a label.
    pub on_bad_image: OnBadImage,
    /// Number of threads that read headers and decode when a data set is opened.
    pub num_threads: usize,
    /// Maximum memory for decoded images of a folder, over all splits. A larger folder is decoded
    /// on demand, as are images that [keep their own size](Sizing::shorter_side).
    pub memory_limit_bytes: u64,
    /// Folder for the index of tar shards if the folder of the shards is read-only.
    pub cache_dir: Option<PathBuf>,
}

impl ReadConfig {
    /// Returns settings that fail on bad images, decode on all CPUs, keep up to 4 GiB of decoded
    /// images, and have no cache.
    pub fn new(sizing: Sizing) -> Self {
        Self {
            sizing,
            on_bad_image: OnBadImage::Fail,
            num_threads: thread::available_parallelism().map_or(1, usize::from),
            memory_limit_bytes: 4 << 30,
            cache_dir: None,
        }
    }

    pub(crate) fn check(&self) -> Result<(), DatasetError> {
        self.sizing.check()?;
        if self.num_threads == 0 {
            return Err(DatasetError::config("num_threads", "at least 1", 0));
        }
        Ok(())
    }
}

/// The sha256 of an encoded image.
type ImageDigest = [u8; 32];

/// The encoded images of a split.
pub(crate) trait Source: Send + Sync {
    /// Returns the bytes of an image.
    fn read(&self, image: usize) -> Result<Vec<u8>, DatasetError>;

    /// Returns the path of an image in errors.
    fn path(&self, image: usize) -> PathBuf;

    /// Returns the name of an image within the split, the same on every machine.
    fn key(&self, image: usize) -> String;

    /// Returns the path of the split in errors.
    fn dir(&self) -> PathBuf;

    /// Returns a digest of all images if it is known without reading them. The checksum then
    /// differs.
    fn known_digest(&self) -> Option<String> {
        None
    }
}

/// A split whose images are found but not yet read.
#[derive(Debug)]
pub(crate) struct FoundSplit<S> {
    /// Name of the data set and the split.
    pub(crate) name: String,
    pub(crate) source: S,
    /// Label of each image of the source, a position in `class_names`.
    pub(crate) labels: Vec<u16>,
    /// `None` if the data name no classes.
    pub(crate) class_names: Option<Vec<String>>,
    pub(crate) notes: Vec<String>,
}

impl<S: Source + 'static> FoundSplit<S> {
    /// Returns the number of classes according to the labels.
    pub(crate) fn num_labels(&self) -> usize {
        let largest = self.labels.iter().max();
        largest.map_or(0, |label| usize::from(*label) + 1)
    }

    /// Rejects unusable samples or adds notes on them. Of these, `num_unlabelled` lack only a
    /// label.
    pub(crate) fn note_problems(
        &mut self,
        problems: &[String],
        num_unlabelled: usize,
        on_bad_image: OnBadImage,
    ) -> Result<(), DatasetError> {
        let Self { name, source, .. } = self;
        if self.labels.is_empty() && num_unlabelled > 0 {
            return Err(DatasetError::unlabelled(
                source.dir(),
                format!("none of {num_unlabelled} images has a label from 0 up"),
            ));
        }
        let listed = list(problems.iter());
        if self.labels.is_empty() {
            let mut problem = format!("{name}: expected an image with a label, got none");
            if !listed.is_empty() {
                problem += &format!(" ({listed})");
            }
            return Err(DatasetError::bad_files(source.dir(), &problem, false));
        }
        if problems.is_empty() {
            return Ok(());
        }
        if on_bad_image == OnBadImage::Fail {
            return Err(DatasetError::bad_files(source.dir(), &listed, true));
        }
        self.notes.push(format!(
            "skipped {}: {listed}",
            counted(problems.len(), "sample")
        ));
        Ok(())
    }

    /// Maps the labels to positions in `classes`, by name, and notes differences.
    pub(crate) fn map_to(&mut self, classes: &[String]) -> Result<(), DatasetError> {
        let own = self.class_names.as_deref();
        let notes = map_labels(&self.name, &mut self.labels, own, classes)?;
        self.notes.extend(notes);
        self.class_names = Some(classes.to_vec());
        Ok(())
    }

    /// Opens the split. With `keep` or [`OnBadImage::Skip`] every image is decoded once.
    pub(crate) fn open(
        self,
        split: Option<Split>,
        keep: bool,
        config: &ReadConfig,
    ) -> Result<Arc<dyn ImageDataset>, DatasetError> {
        let size = config.sizing.size;
        let mut dataset = EncodedDataset {
            images: (0..self.labels.len() as u32).collect(),
            class_names: self.class_names.unwrap_or_default(),
            name: self.name,
            labels: self.labels,
            notes: self.notes,
            source: self.source,
            shape: ImageShape {
                height: size,
                width: size,
                channels: 3,
            },
            // A random crop of a training image may be any part of it.
            decodes_whole: split == Some(Split::Train) && config.on_bad_image == OnBadImage::Skip,
            config: config.clone(),
            pixels: None,
            checksum: OnceLock::new(),
        };
        if keep || config.on_bad_image == OnBadImage::Skip {
            dataset.decode_all(keep)?;
        }
        Ok(Arc::new(dataset))
    }
}

/// The splits that exist.
pub(crate) type FoundSplits<S> = Vec<(Split, FoundSplit<S>)>;

/// Adds a split to the found splits. A training split without labels is an error. For other splits
/// without labels a note is added.
pub(crate) fn add_labelled<S>(
    splits: &mut FoundSplits<S>,
    split: Split,
    found: Result<FoundSplit<S>, DatasetError>,
    notes: &mut Vec<String>,
) -> Result<(), DatasetError> {
    match found {
        Err(DatasetError::Unlabelled { path, problem }) if split != Split::Train => {
            notes.push(format!("{}: {problem}", path.display()));
        }
        found => splits.push((split, found?)),
    }
    Ok(())
}

/// Opens the splits of a data set. The first one is the training split.
pub(crate) fn open_splits<S: Source + 'static>(
    splits: FoundSplits<S>,
    notes: Vec<String>,
    keep: bool,
    config: &ReadConfig,
) -> Result<DatasetSplits, DatasetError> {
    let mut opened = [None, None, None];
    for (split, found) in splits {
        opened[split as usize] = Some(found.open(Some(split), keep, config)?);
    }
    let [train, val, test] = opened;
    Ok(DatasetSplits {
        train: train.expect("a data set without a training split is an error"),
        val,
        test,
        normalization: Normalization::imagenet(),
        notes,
    })
}

/// A split of encoded images.
struct EncodedDataset<S> {
    name: String,
    source: S,
    /// Label of each image of the source.
    labels: Vec<u16>,
    class_names: Vec<String>,
    notes: Vec<String>,
    /// Indices of the source's images that are samples.
    images: Vec<u32>,
    shape: ImageShape,
    config: ReadConfig,
    /// True if all pixels are decoded in the search for bad images.
    decodes_whole: bool,
    /// All samples `[N, H, W, C]`, unless they are decoded on demand.
    pixels: Option<Vec<u8>>,
    checksum: OnceLock<String>,
}

impl<S: Source> EncodedDataset<S> {
    /// Decodes every image and keeps the pixels if `keep` is true. Skips or rejects bad images.
    fn decode_all(&mut self, keep: bool) -> Result<(), DatasetError> {
        let len = self.shape.num_values();
        let mut pixels = vec![0; if keep { self.images.len() * len } else { 0 }];
        let results = self.decode_images(&mut pixels);
        let mut digests = Vec::with_capacity(self.images.len());
        let mut good = Vec::new();
        let mut bad = Vec::new();
        for (image, result) in (0..).zip(results) {
            match result {
                Ok(digest) => {
                    if keep && image as usize > good.len() {
                        let position = image as usize * len;
                        pixels.copy_within(position..position + len, good.len() * len);
                    }
                    good.push(image);
                    digests.push(digest);
                }
                Err(
                    error @ (DatasetError::BadImage { .. } | DatasetError::FileTooLarge { .. }),
                ) if self.config.on_bad_image == OnBadImage::Skip => {
                    bad.push((self.labels[image as usize], error.to_string()));
                }
                Err(error) => return Err(error),
            }
        }
        self.images = good;
        self.note_skipped(&bad)?;
        if keep {
            pixels.truncate(self.images.len() * len);
            self.pixels = Some(pixels);
        }
        self.checksum = OnceLock::from(self.combine(&digests));
        Ok(())
    }

    /// Adds notes on bad images, each with a label and an error. Fails if a class has no other
    /// images.
    fn note_skipped(&mut self, bad: &[(u16, String)]) -> Result<(), DatasetError> {
        if bad.is_empty() {
            return Ok(());
        }
        let mut num_bad = vec![0; self.class_names.len()];
        bad.iter()
            .for_each(|(label, _)| num_bad[usize::from(*label)] += 1);
        for (label, class_name) in self.class_names.iter().enumerate() {
            if num_bad[label] > 0 && !(0..self.len()).any(|index| self.label(index) == label) {
                return Err(empty_class(
                    self.source.dir().join(class_name),
                    &format!("{} could not be decoded", num_bad[label]),
                ));
            }
        }
        self.notes.push(format!(
            "skipped {} of {}: {}",
            bad.len(),
            counted(self.labels.len(), "image file"),
            list(bad.iter().map(|(_, error)| error))
        ));
        Ok(())
    }

    /// Returns one digest of shape, labels, keys and contents, in the order of samples. `digests`
    /// may be empty if a digest of all images is known.
    fn combine(&self, digests: &[ImageDigest]) -> String {
        let mut total = Sha256::new();
        digest_shape(&mut total, self.shape, self.images.len());
        if let Some(side) = self.config.sizing.shorter_side {
            total.update((side as u64).to_le_bytes());
        }
        let known = self.source.known_digest();
        for (index, image) in self.images.iter().enumerate() {
            total.update((self.label(index) as u64).to_le_bytes());
            total.update(self.source.key(*image as usize));
            total.update([0]);
            if known.is_none() {
                total.update(digests[index]);
            }
        }
        total.update(known.unwrap_or_default());
        to_hex(&total.finalize())
    }

    /// Decodes all images on several threads. `pixels` is empty or has room for all images.
    ///
    /// Results are in order. With `Fail` a thread stops at its first bad image, so the results may
    /// end there.
    fn decode_images(&self, pixels: &mut [u8]) -> Vec<Result<ImageDigest, DatasetError>> {
        let len = self.shape.num_values();
        let num_threads = self.config.num_threads;
        let per_thread = self.images.len().div_ceil(num_threads).max(1);
        let mut outputs = pixels.chunks_mut(per_thread * len);
        let parts = self
            .images
            .chunks(per_thread)
            .map(|images| (images, outputs.next().unwrap_or_default()));
        let decode = |(images, output): (&[u32], &mut [u8])| self.decode_part(images, output);
        in_parts(num_threads, parts, decode)
            .into_iter()
            .flatten()
            .collect()
    }

    fn decode_part(
        &self,
        images: &[u32],
        output: &mut [u8],
    ) -> Vec<Result<ImageDigest, DatasetError>> {
        let len = self.shape.num_values();
        let mut scratch = vec![0; len];
        let mut results = Vec::with_capacity(images.len());
        for (position, image) in images.iter().enumerate() {
            let pixels = output
                .get_mut(position * len..(position + 1) * len)
                .unwrap_or(&mut scratch);
            let result = self.source.read(*image as usize).and_then(|bytes| {
                let digest = Sha256::digest(&bytes).into();
                if self.decodes_whole {
                    self.decode_whole(&bytes, *image as usize, pixels)?;
                } else {
                    self.decode(&bytes, *image as usize, pixels)?;
                }
                Ok(digest)
            });
            let failed = result.is_err();
            results.push(result);
            if failed && self.config.on_bad_image == OnBadImage::Fail {
                break;
            }
        }
        results
    }

    fn decode(&self, bytes: &[u8], image: usize, pixels: &mut [u8]) -> Result<(), DatasetError> {
        decode_into(
            bytes,
            &|| self.source.path(image),
            self.shape,
            self.config.sizing,
            pixels,
        )
    }

    /// Decodes like [`decode`](Self::decode), and rejects an image with damage in any part. If
    /// images keep their own size, the resulting pixels differ from those of a read.
    fn decode_whole(
        &self,
        bytes: &[u8],
        image: usize,
        pixels: &mut [u8],
    ) -> Result<(), DatasetError> {
        if self.config.sizing.shorter_side.is_none() {
            return self.decode(bytes, image, pixels);
        }
        let whole = |[width, height]: [u32; 2]| CropBox {
            left: 0,
            top: 0,
            width,
            height,
        };
        decode_crop(
            bytes,
            &|| self.source.path(image),
            self.shape,
            &whole,
            pixels,
        )
    }

    /// Computes the digests of all samples on all CPUs. An unreadable image counts as empty,
    /// because reading it returns the error.
    fn digest_images(&self) -> Vec<ImageDigest> {
        let num_threads = thread::available_parallelism().map_or(1, usize::from);
        let per_thread = self.images.len().div_ceil(num_threads).max(1);
        let digest = |image: &u32| -> ImageDigest {
            Sha256::digest(self.source.read(*image as usize).unwrap_or_default()).into()
        };
        let digests = |images: &[u32]| images.iter().map(digest).collect::<Vec<_>>();
        in_parts(num_threads, self.images.chunks(per_thread), digests).concat()
    }
}

impl<S: Source> ImageDataset for EncodedDataset<S> {
    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> usize {
        self.images.len()
    }

    fn image_shape(&self) -> ImageShape {
        self.shape
    }

    fn class_names(&self) -> &[String] {
        &self.class_names
    }

    fn label(&self, index: usize) -> usize {
        usize::from(self.labels[self.images[index] as usize])
    }

    fn read_image(&self, index: usize, pixels: &mut [u8]) -> Result<(), DatasetError> {
        let len = self.shape.num_values();
        assert_eq!(pixels.len(), len, "values of the image");
        if let Some(all) = &self.pixels {
            pixels.copy_from_slice(&all[index * len..(index + 1) * len]);
            return Ok(());
        }
        let image = self.images[index] as usize;
        self.decode(&self.source.read(image)?, image, pixels)
    }

    fn read_crop(
        &self,
        index: usize,
        choose: &dyn Fn([u32; 2]) -> CropBox,
        shape: ImageShape,
        pixels: &mut [u8],
    ) -> Result<(), DatasetError> {
        if self.config.sizing.shorter_side.is_none() {
            return crop_of_whole(self, index, choose, shape, pixels);
        }
        let image = self.images[index] as usize;
        let bytes = self.source.read(image)?;
        decode_crop(&bytes, &|| self.source.path(image), shape, choose, pixels)
    }

    /// Returns a digest of keys and bytes of the images, independent of which pixels are in memory.
    ///
    /// Reads all images, on all CPUs, unless they were decoded at opening or a digest of all is
    /// known.
    /// all is known.
    fn checksum(&self) -> String {
        let compute = || match self.source.known_digest() {
            Some(_) => self.combine(&[]),
            None => self.combine(&self.digest_images()),
        };
        self.checksum.get_or_init(compute).clone()
    }

    fn checksum_reads_files(&self) -> bool {
        self.checksum.get().is_none() && self.source.known_digest().is_none()
    }

    fn adopt_checksum(&self, checksum: &str) {
        self.checksum.get_or_init(|| checksum.to_owned());
    }

    fn notes(&self) -> &[String] {
        &self.notes
    }
}
