//! A split whose pixels are all in memory.
//!
//! In: u8 pixels `[N, H, W, C]` and labels `[N]`. Out: an [`ImageDataset`].

use std::sync::OnceLock;

use sha2::{Digest, Sha256};

use crate::dataset::{ImageDataset, ImageShape};
use crate::error::DatasetError;
use crate::progress;

/// Bytes that are generated or hashed between two signs of progress. A multiple of a random
/// stream's word.
pub(crate) const PART_BYTES: usize = 1 << 20;

/// Returns black images of one shape.
///
/// # Errors
/// Returns an error if the system cannot allocate the memory.
pub(crate) fn black_images(
    field: &'static str,
    num_samples: usize,
    shape: ImageShape,
) -> Result<Vec<u8>, DatasetError> {
    let is_granted = |&len: &usize| {
        let mut probe = Vec::<u8>::new();
        let is_granted = probe.try_reserve_exact(len).is_ok();
        // The compiler might remove an unused allocation and assume its success.
        std::hint::black_box(&probe);
        is_granted
    };
    match num_samples
        .checked_mul(shape.num_values())
        .filter(is_granted)
    {
        // The drawing thread is the first to write these pages.
        Some(len) => Ok(vec![0; len]),
        None => {
            let got = format!("{num_samples} images of {shape}. Ask for fewer");
            Err(DatasetError::config(
                field,
                "images that fit into memory",
                got,
            ))
        }
    }
}

/// A data set of images and labels in memory.
pub(crate) struct MemoryDataset {
    pub(crate) name: String,
    pub(crate) shape: ImageShape,
    pub(crate) pixels: Vec<u8>,
    pub(crate) labels: Vec<u16>,
    pub(crate) class_names: Vec<String>,
    pub(crate) notes: Vec<String>,
    pub(crate) checksum: OnceLock<String>,
}

impl ImageDataset for MemoryDataset {
    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> usize {
        self.labels.len()
    }

    fn image_shape(&self) -> ImageShape {
        self.shape
    }

    fn class_names(&self) -> &[String] {
        &self.class_names
    }

    fn label(&self, index: usize) -> usize {
        usize::from(self.labels[index])
    }

    fn read_image(&self, index: usize, pixels: &mut [u8]) -> Result<(), DatasetError> {
        let len = self.shape.num_values();
        pixels.copy_from_slice(&self.pixels[index * len..(index + 1) * len]);
        Ok(())
    }

    fn checksum(&self) -> String {
        self.checksum
            .get_or_init(|| {
                let mut digest = Sha256::new();
                digest_shape(&mut digest, self.shape, self.labels.len());
                for label in &self.labels {
                    digest.update(u64::from(*label).to_le_bytes());
                }
                for part in self.pixels.chunks(PART_BYTES) {
                    digest.update(part);
                    progress::advance(part.len());
                }
                to_hex(&digest.finalize())
            })
            .clone()
    }

    fn notes(&self) -> &[String] {
        &self.notes
    }
}

/// Adds height, width, channels and the number of samples to a digest. The same bytes in another
/// shape are different data.
pub(crate) fn digest_shape(digest: &mut Sha256, shape: ImageShape, num_samples: usize) {
    for number in [shape.height, shape.width, shape.channels, num_samples] {
        digest.update((number as u64).to_le_bytes());
    }
}

/// Returns lower-case hexadecimal digits.
pub(crate) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
