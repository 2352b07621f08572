//! One split of encoded images, decoded now or when they are read.
//!
//! In: a [`Source`] of encoded images, their labels. Out: an [`ImageDataset`].
//! Invariant: order, notes and checksum do not depend on the number of threads, nor the checksum on what is kept in memory.

use std::path::PathBuf;
use std::sync::OnceLock;
use std::thread;

use sha2::{Digest, Sha256};

use crate::dataset::{ImageDataset, ImageShape, crop_of_whole};
use crate::decode::{EXTENSIONS, Sizing, decode_crop, decode_into};
use crate::error::{DatasetError, list};
use crate::memory::{digest_shape, to_hex};
use crate::resize::CropBox;
use crate::threads::in_parts;

/// What happens with an image file that cannot be decoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "cli",
    derive(clap::ValueEnum, serde::Serialize, serde::Deserialize),
    serde(rename_all = "kebab-case")
)]
pub enum OnBadImage {
    /// Opening (or, if decoded on demand, reading) fails and names the file.
    #[default]
    Fail,
    /// The file is left out; the notes give the count and the paths.
    Skip,
}

/// The sha256 of an encoded image.
type ImageDigest = [u8; 32];

/// Where the encoded images of a split are.
pub(crate) trait Source: Send + Sync {
    /// The bytes of an image.
    fn read(&self, image: usize) -> Result<Vec<u8>, DatasetError>;

    /// The file of an image, as errors call it.
    fn path(&self, image: usize) -> PathBuf;

    /// The name of an image within the split, the same on every machine.
    fn key(&self, image: usize) -> String;

    /// The path that errors call a class by.
    fn class_path(&self, class_name: &str) -> PathBuf;

    /// A digest of all images, where it is known without reading them; the checksum is another one then.
    fn known_digest(&self) -> Option<String> {
        None
    }
}

/// How the images of a split are read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    pub(crate) sizing: Sizing,
    /// Whether all are decoded now and kept.
    pub(crate) keep: bool,
    pub(crate) on_bad_image: OnBadImage,
    /// Whether what is skipped is looked for in whole images: of one to train on a random part may be any.
    pub(crate) whole: bool,
    /// Of the threads that decode when a split is opened.
    pub(crate) num_threads: usize,
}

/// What is known of a split before an image is read.
#[derive(Debug)]
pub(crate) struct Contents {
    pub(crate) name: String,
    pub(crate) class_names: Vec<String>,
    /// Of each image of the source.
    pub(crate) labels: Vec<u16>,
    pub(crate) notes: Vec<String>,
}

/// A split of encoded images.
pub(crate) struct EncodedDataset<S> {
    contents: Contents,
    source: S,
    /// The images of the source that are samples.
    images: Vec<u32>,
    shape: ImageShape,
    sizing: Sizing,
    /// All samples `[N, H, W, C]`, unless they are decoded when they are read.
    pixels: Option<Vec<u8>>,
    checksum: OnceLock<String>,
}

impl<S: Source> EncodedDataset<S> {
    /// Opens a split; with `keep` or [`OnBadImage::Skip`] every image is decoded once.
    pub(crate) fn open(
        source: S,
        contents: Contents,
        reading: Reading,
    ) -> Result<Self, DatasetError> {
        let size = reading.sizing.size;
        let mut dataset = Self {
            images: (0..contents.labels.len() as u32).collect(),
            contents,
            source,
            shape: ImageShape {
                height: size,
                width: size,
                channels: 3,
            },
            sizing: reading.sizing,
            pixels: None,
            checksum: OnceLock::new(),
        };
        if reading.keep || reading.on_bad_image == OnBadImage::Skip {
            dataset.decode_all(reading)?;
        }
        Ok(dataset)
    }

    /// Decodes every image, keeps the pixels if asked to, and drops or refuses the bad ones.
    fn decode_all(&mut self, reading: Reading) -> Result<(), DatasetError> {
        let (len, keep) = (self.shape.num_values(), reading.keep);
        let mut pixels = vec![0; if keep { self.images.len() * len } else { 0 }];
        let results = self.decode_images(&mut pixels, reading);
        let (mut digests, mut good, mut bad) = (
            Vec::with_capacity(self.images.len()),
            Vec::new(),
            Vec::new(),
        );
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
                ) if reading.on_bad_image == OnBadImage::Skip => {
                    bad.push((self.contents.labels[image as usize], error.to_string()));
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

    /// Notes the bad images, given as label and error, or fails if they leave a class empty.
    fn note_skipped(&mut self, bad: &[(u16, String)]) -> Result<(), DatasetError> {
        if bad.is_empty() {
            return Ok(());
        }
        let mut num_bad = vec![0; self.contents.class_names.len()];
        bad.iter()
            .for_each(|(label, _)| num_bad[usize::from(*label)] += 1);
        for (label, class_name) in self.contents.class_names.iter().enumerate() {
            if num_bad[label] > 0 && !(0..self.len()).any(|index| self.label(index) == label) {
                return Err(DatasetError::EmptyClass {
                    path: self.source.class_path(class_name),
                    extensions: EXTENSIONS.join(", "),
                    found: format!("{} could not be decoded", num_bad[label]),
                });
            }
        }
        self.contents.notes.push(format!(
            "{} of {} image files were skipped: {}",
            bad.len(),
            self.contents.labels.len(),
            list(bad.iter().map(|(_, error)| error))
        ));
        Ok(())
    }

    /// One digest over shape, labels, keys and contents, in the order of samples; `digests` may be empty where one of all is known.
    fn combine(&self, digests: &[ImageDigest]) -> String {
        let mut total = Sha256::new();
        digest_shape(&mut total, self.shape, self.images.len());
        if let Some(side) = self.sizing.shorter_side {
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

    /// Decodes all images on several threads; `pixels` is either empty or has room for each.
    ///
    /// Results come in order. With `Fail` a thread stops at its first bad image, so the results may end there.
    fn decode_images(
        &self,
        pixels: &mut [u8],
        reading: Reading,
    ) -> Vec<Result<ImageDigest, DatasetError>> {
        let len = self.shape.num_values();
        let per_thread = self.images.len().div_ceil(reading.num_threads).max(1);
        let mut outputs = pixels.chunks_mut(per_thread * len);
        let parts = self
            .images
            .chunks(per_thread)
            .map(|images| (images, outputs.next().unwrap_or_default()));
        let decode =
            |(images, output): (&[u32], &mut [u8])| self.decode_part(images, output, reading);
        in_parts(reading.num_threads, parts, decode)
            .into_iter()
            .flatten()
            .collect()
    }

    fn decode_part(
        &self,
        images: &[u32],
        output: &mut [u8],
        Reading {
            on_bad_image,
            whole,
            ..
        }: Reading,
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
                match on_bad_image {
                    OnBadImage::Skip if whole => {
                        self.decode_whole(&bytes, *image as usize, pixels)?
                    }
                    OnBadImage::Skip | OnBadImage::Fail => {
                        self.decode(&bytes, *image as usize, pixels)?
                    }
                }
                Ok(digest)
            });
            let failed = result.is_err();
            results.push(result);
            if failed && on_bad_image == OnBadImage::Fail {
                break;
            }
        }
        results
    }

    fn decode(&self, bytes: &[u8], image: usize, pixels: &mut [u8]) -> Result<(), DatasetError> {
        let decoded = decode_into(
            bytes,
            &|| self.source.path(image),
            self.shape,
            self.sizing,
            pixels,
        );
        decoded.map_err(|error| explained(error, bytes))
    }

    /// As [`decode`](Self::decode), and refuses what is damaged anywhere; of images that keep their own size the pixels are other ones.
    fn decode_whole(
        &self,
        bytes: &[u8],
        image: usize,
        pixels: &mut [u8],
    ) -> Result<(), DatasetError> {
        if self.sizing.shorter_side.is_none() {
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
        .map_err(|error| explained(error, bytes))
    }

    /// The digests of all samples, on all processors. An image that cannot be read counts as empty: reading it will tell.
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

/// The longest text that stands in place of a file, in bytes: a path, or the pointer of a store of large files.
const MAX_POINTER_BYTES: usize = 1024;

/// The error of an image that is none, with what it is instead.
fn explained(error: DatasetError, bytes: &[u8]) -> DatasetError {
    let is_text = bytes.len() <= MAX_POINTER_BYTES
        && std::str::from_utf8(bytes)
            .is_ok_and(|text| !text.chars().any(|c| c.is_control() && !c.is_whitespace()));
    match error {
        DatasetError::BadImage { path, .. } if bytes.is_empty() => {
            DatasetError::BadImage { path, reason: "the file is empty".to_owned() }
        }
        DatasetError::BadImage { path, .. } if is_text => DatasetError::BadImage {
            path,
            reason:
                "the file is a few words of text, such as the pointer of Git LFS or git-annex; fetch the file itself \
                     (git lfs pull, git annex get)"
                    .to_owned(),
        },
        error => error,
    }
}

impl<S: Source> ImageDataset for EncodedDataset<S> {
    fn name(&self) -> &str {
        &self.contents.name
    }

    fn len(&self) -> usize {
        self.images.len()
    }

    fn image_shape(&self) -> ImageShape {
        self.shape
    }

    fn class_names(&self) -> &[String] {
        &self.contents.class_names
    }

    fn label(&self, index: usize) -> usize {
        usize::from(self.contents.labels[self.images[index] as usize])
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
        if self.sizing.shorter_side.is_none() {
            return crop_of_whole(self, index, choose, shape, pixels);
        }
        let image = self.images[index] as usize;
        let bytes = self.source.read(image)?;
        decode_crop(&bytes, &|| self.source.path(image), shape, choose, pixels)
            .map_err(|error| explained(error, &bytes))
    }

    /// Over keys and bytes of the images, whether or not their pixels are in memory.
    ///
    /// Reads all of them, on all processors, if they were not decoded at opening and no digest of all is known.
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
        &self.contents.notes
    }
}
