//! One split of a folder of images, decoded now or on demand.
//!
//! In: the scanned files. Out: an [`ImageDataset`].
//! Invariant: order, notes and checksum do not depend on the number of threads, nor the checksum on what is kept in memory.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::thread;

use sha2::{Digest, Sha256};

use super::scan::{ImageFile, ScannedSplit, empty_class, list};
use super::{ImageFolderConfig, OnBadImage};
use crate::dataset::{ImageDataset, ImageShape};
use crate::decode::{decode_into, read_image_file};
use crate::error::DatasetError;
use crate::memory::{digest_shape, to_hex};

/// A file's sha256.
type FileDigest = [u8; 32];

/// A split of a folder of images.
pub(super) struct FolderDataset {
    name: String,
    dir: PathBuf,
    shape: ImageShape,
    class_names: Vec<String>,
    files: Vec<ImageFile>,
    /// All images `[N, H, W, C]`, unless they are decoded on demand.
    pixels: Option<Vec<u8>>,
    notes: Vec<String>,
    checksum: OnceLock<String>,
}

impl FolderDataset {
    pub(super) fn open(
        split: ScannedSplit,
        shape: ImageShape,
        keep: bool,
        config: &ImageFolderConfig,
    ) -> Result<Self, DatasetError> {
        let mut dataset = Self {
            name: format!("image-folder {}", split.dir.file_name().unwrap_or_default().to_string_lossy()),
            dir: split.dir,
            shape,
            class_names: split.class_names,
            files: split.files,
            pixels: None,
            notes: split.notes,
            checksum: OnceLock::new(),
        };
        if keep || config.on_bad_image == OnBadImage::Skip {
            dataset.decode_all(keep, config)?;
        }
        Ok(dataset)
    }

    /// Decodes every file, keeps the pixels if `keep`, and drops or refuses the bad ones.
    fn decode_all(&mut self, keep: bool, config: &ImageFolderConfig) -> Result<(), DatasetError> {
        let len = self.shape.num_values();
        let mut pixels = vec![0; if keep { self.files.len() * len } else { 0 }];
        let results = decode_files(&self.files, self.shape, &mut pixels, config);
        let mut digests = Vec::with_capacity(self.files.len());
        let mut good = Vec::with_capacity(self.files.len());
        let mut bad = Vec::new();
        for (index, result) in results.into_iter().enumerate() {
            match result {
                Ok(digest) => {
                    if keep && index > good.len() {
                        pixels.copy_within(index * len..(index + 1) * len, good.len() * len);
                    }
                    good.push(self.files[index].clone());
                    digests.push(digest);
                }
                Err(error @ (DatasetError::BadImage { .. } | DatasetError::FileTooLarge { .. }))
                    if config.on_bad_image == OnBadImage::Skip =>
                {
                    bad.push((self.files[index].label, error.to_string()));
                }
                Err(error) => return Err(error),
            }
        }
        self.note_skipped(&good, &bad)?;
        self.files = good;
        if keep {
            pixels.truncate(self.files.len() * len);
            self.pixels = Some(pixels);
        }
        self.checksum = OnceLock::from(self.combine(&digests));
        Ok(())
    }

    /// Notes the bad files, given as label and error, or fails if they leave a class empty.
    fn note_skipped(&mut self, good: &[ImageFile], bad: &[(u16, String)]) -> Result<(), DatasetError> {
        if bad.is_empty() {
            return Ok(());
        }
        for (label, class_name) in self.class_names.iter().enumerate() {
            if !good.iter().any(|file| usize::from(file.label) == label) {
                let of_class = |(bad_label, _): &&(u16, String)| usize::from(*bad_label) == label;
                let num_skipped = bad.iter().filter(of_class).count();
                return Err(empty_class(&self.dir.join(class_name), num_skipped));
            }
        }
        self.notes.push(format!(
            "{} of {} image files were skipped: {}",
            bad.len(),
            good.len() + bad.len(),
            list(bad.iter().map(|(_, error)| error))
        ));
        Ok(())
    }

    /// One digest over labels, names below the split's folder and contents, in index order.
    fn combine(&self, digests: &[FileDigest]) -> String {
        let mut total = Sha256::new();
        digest_shape(&mut total, self.shape, self.files.len());
        for (file, digest) in self.files.iter().zip(digests) {
            total.update(u64::from(file.label).to_le_bytes());
            total.update(relative_name(&self.dir, &file.path));
            total.update([0]);
            total.update(digest);
        }
        to_hex(&total.finalize())
    }
}

/// The path below the split's folder with slashes, the same on every system.
fn relative_name(dir: &Path, path: &Path) -> String {
    let relative = path.strip_prefix(dir).unwrap_or(path);
    let names: Vec<_> = relative.iter().map(|name| name.to_string_lossy()).collect();
    names.join("/")
}

/// Decodes files on several threads; `pixels` is either empty or holds an image for each file.
///
/// Results come in file order. With `Fail` a thread stops at its first bad file, so the results may end there.
fn decode_files(
    files: &[ImageFile],
    shape: ImageShape,
    pixels: &mut [u8],
    config: &ImageFolderConfig,
) -> Vec<Result<FileDigest, DatasetError>> {
    let len = shape.num_values();
    let per_thread = files.len().div_ceil(config.num_threads).max(1);
    let mut outputs = pixels.chunks_mut(per_thread * len);
    thread::scope(|scope| {
        let parts: Vec<_> = files
            .chunks(per_thread)
            .map(|files| {
                let output = outputs.next().unwrap_or_default();
                scope.spawn(move || decode_part(files, shape, output, config.on_bad_image))
            })
            .collect();
        parts
            .into_iter()
            .flat_map(|part| part.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

fn decode_part(
    files: &[ImageFile],
    shape: ImageShape,
    output: &mut [u8],
    on_bad_image: OnBadImage,
) -> Vec<Result<FileDigest, DatasetError>> {
    let len = shape.num_values();
    let mut scratch = vec![0; len];
    let mut results = Vec::with_capacity(files.len());
    for (position, file) in files.iter().enumerate() {
        let pixels = output.get_mut(position * len..(position + 1) * len).unwrap_or(&mut scratch);
        let result = read_image_file(&file.path).and_then(|bytes| {
            decode_into(&bytes, &file.path, shape, pixels)?;
            Ok(Sha256::digest(&bytes).into())
        });
        let failed = result.is_err();
        results.push(result);
        if failed && on_bad_image == OnBadImage::Fail {
            break;
        }
    }
    results
}

impl ImageDataset for FolderDataset {
    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> usize {
        self.files.len()
    }

    fn image_shape(&self) -> ImageShape {
        self.shape
    }

    fn class_names(&self) -> &[String] {
        &self.class_names
    }

    fn label(&self, index: usize) -> usize {
        usize::from(self.files[index].label)
    }

    fn read_image(&self, index: usize, pixels: &mut [u8]) -> Result<(), DatasetError> {
        let len = self.shape.num_values();
        assert_eq!(pixels.len(), len, "values of the image");
        let file = &self.files[index];
        if let Some(all) = &self.pixels {
            pixels.copy_from_slice(&all[index * len..(index + 1) * len]);
            return Ok(());
        }
        let bytes = read_image_file(&file.path)?;
        decode_into(&bytes, &file.path, self.shape, pixels)
    }

    /// Over names and bytes of the files, whether or not their pixels are in memory.
    ///
    /// Reads all files, on all processors, if they were not decoded at opening. A file that cannot be read counts as empty:
    /// reading it will tell.
    fn checksum(&self) -> String {
        self.checksum
            .get_or_init(|| {
                let num_threads = thread::available_parallelism().map_or(1, usize::from);
                let per_thread = self.files.len().div_ceil(num_threads).max(1);
                let digest_file = |file: &ImageFile| -> FileDigest {
                    Sha256::digest(read_image_file(&file.path).unwrap_or_default()).into()
                };
                let digests: Vec<FileDigest> = thread::scope(|scope| {
                    let parts: Vec<_> = self
                        .files
                        .chunks(per_thread)
                        .map(|files| scope.spawn(move || files.iter().map(digest_file).collect::<Vec<_>>()))
                        .collect();
                    parts
                        .into_iter()
                        .flat_map(|part| part.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                        .collect()
                });
                self.combine(&digests)
            })
            .clone()
    }

    fn checksum_reads_files(&self) -> bool {
        self.checksum.get().is_none()
    }

    fn adopt_checksum(&self, checksum: &str) {
        self.checksum.get_or_init(|| checksum.to_owned());
    }

    fn notes(&self) -> &[String] {
        &self.notes
    }
}
