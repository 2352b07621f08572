//! A few samples of a larger data set, for quick runs.
//!
//! In: a data set and a number of samples. Out: an [`ImageDataset`] of that many.
//! Invariant: the choice is fixed (no seed to forget), grows by adding samples only, and holds all classes in proportion.

use std::cmp::Ordering;
use std::sync::{Arc, OnceLock};

use sha2::{Digest, Sha256};

use crate::dataset::{ImageDataset, ImageShape};
use crate::error::DatasetError;
use crate::memory::to_hex;
use crate::random::{Purpose, Stream};
use crate::resize::CropBox;

/// The first samples of a fixed permutation that spreads the classes evenly.
pub struct Subset {
    inner: Arc<dyn ImageDataset>,
    name: String,
    indices: Vec<usize>,
    notes: Vec<String>,
    checksum: OnceLock<String>,
}

impl Subset {
    /// Takes `num_samples` of a data set.
    ///
    /// They are not the first by index, since many data sets are sorted by class: samples come in a fixed random order in
    /// which every class appears in proportion to its size and, from as many samples as there are classes, at least once.
    /// The chosen samples keep the order of the data set.
    ///
    /// # Errors
    /// If `num_samples` is 0 or more than the data set has.
    pub fn first(inner: Arc<dyn ImageDataset>, num_samples: usize) -> Result<Self, DatasetError> {
        if num_samples == 0 || num_samples > inner.len() {
            let expected = format!("1 to {} samples of {}", inner.len(), inner.name());
            return Err(DatasetError::config("limit", expected, num_samples));
        }
        let mut indices = even_order(&*inner);
        indices.truncate(num_samples);
        indices.sort_unstable();
        let note = format!("{num_samples} of {} samples are used", inner.len());
        Ok(Self {
            name: format!("{} ({num_samples} of {})", inner.name(), inner.len()),
            notes: inner.notes().iter().cloned().chain([note]).collect(),
            indices,
            inner,
            checksum: OnceLock::new(),
        })
    }
}

/// A random order in which the j-th sample of a class of n comes at about j / n of the whole.
fn even_order(dataset: &dyn ImageDataset) -> Vec<usize> {
    let order = Stream::new(0, 0, 0, Purpose::Subset).permutation(dataset.len());
    let mut class_sizes = vec![0u64; dataset.class_names().len()];
    let mut places: Vec<(u64, usize)> = order
        .into_iter()
        .map(|index| {
            let seen = &mut class_sizes[dataset.label(index)];
            *seen += 1;
            (*seen - 1, index)
        })
        .collect();
    // Fractions are compared crosswise, so that no rounding decides; the sort is stable, so ties stay in random order.
    places.sort_by(|(place_a, a), (place_b, b)| -> Ordering {
        let size = |index| class_sizes[dataset.label(index)];
        (place_a * size(*b)).cmp(&(place_b * size(*a)))
    });
    places.into_iter().map(|(_, index)| index).collect()
}

impl ImageDataset for Subset {
    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> usize {
        self.indices.len()
    }

    fn image_shape(&self) -> ImageShape {
        self.inner.image_shape()
    }

    fn class_names(&self) -> &[String] {
        self.inner.class_names()
    }

    fn label(&self, index: usize) -> usize {
        self.inner.label(self.indices[index])
    }

    fn read_image(&self, index: usize, pixels: &mut [u8]) -> Result<(), DatasetError> {
        self.inner.read_image(self.indices[index], pixels)
    }

    fn read_crop(
        &self,
        index: usize,
        choose: &dyn Fn([u32; 2]) -> CropBox,
        shape: ImageShape,
        pixels: &mut [u8],
    ) -> Result<(), DatasetError> {
        self.inner.read_crop(self.indices[index], choose, shape, pixels)
    }

    /// The whole data set's checksum with the chosen indices.
    fn checksum(&self) -> String {
        let compute = || {
            let mut digest = Sha256::new();
            digest.update(self.inner.checksum());
            for index in &self.indices {
                digest.update((*index as u64).to_le_bytes());
            }
            to_hex(&digest.finalize())
        };
        self.checksum.get_or_init(compute).clone()
    }

    fn checksum_reads_files(&self) -> bool {
        self.checksum.get().is_none() && self.inner.checksum_reads_files()
    }

    fn adopt_checksum(&self, checksum: &str) {
        self.checksum.get_or_init(|| checksum.to_owned());
    }

    fn notes(&self) -> &[String] {
        &self.notes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryDataset;

    /// Class 0 has 60 samples, class 1 has 30, class 2 has 10, sorted by class; the pixel is the index.
    fn sorted_by_class() -> Arc<dyn ImageDataset> {
        Arc::new(MemoryDataset {
            name: "sorted".into(),
            shape: ImageShape { height: 1, width: 1, channels: 1 },
            pixels: (0..100).collect(),
            labels: [vec![0; 60], vec![1; 30], vec![2; 10]].concat(),
            class_names: vec!["a".into(), "b".into(), "c".into()],
            notes: vec!["inner note".into()],
            checksum: Default::default(),
        })
    }

    fn pixels(subset: &Subset) -> Vec<u8> {
        (0..subset.len())
            .map(|index| {
                let mut pixel = [0];
                subset.read_image(index, &mut pixel).unwrap();
                pixel[0]
            })
            .collect()
    }

    #[test]
    fn every_class_is_held_in_proportion() {
        for num_samples in 3..=100 {
            let subset = Subset::first(sorted_by_class(), num_samples).unwrap();
            let mut counts = [0usize; 3];
            for index in 0..num_samples {
                counts[subset.label(index)] += 1;
            }
            for (count, size) in counts.iter().zip([60, 30, 10]) {
                assert!(*count >= 1);
                let exact = num_samples as f64 * size as f64 / 100.0;
                assert!((*count as f64 - exact).abs() <= 2.0, "{num_samples} samples: {counts:?}");
            }
        }
    }

    #[test]
    fn a_larger_subset_contains_a_smaller_one() {
        let small = pixels(&Subset::first(sorted_by_class(), 20).unwrap());
        let large = pixels(&Subset::first(sorted_by_class(), 50).unwrap());
        assert!(small.iter().all(|pixel| large.contains(pixel)));
        assert!(small.is_sorted() && large.is_sorted());
    }

    #[test]
    fn labels_and_pixels_belong_together() {
        let subset = Subset::first(sorted_by_class(), 40).unwrap();
        for (index, pixel) in pixels(&subset).into_iter().enumerate() {
            let label = match pixel {
                0..60 => 0,
                60..90 => 1,
                _ => 2,
            };
            assert_eq!(subset.label(index), label);
        }
    }

    #[test]
    fn name_notes_and_checksum_tell_the_limit() {
        let inner = sorted_by_class();
        let subset = Subset::first(inner.clone(), 5).unwrap();
        assert_eq!(subset.name(), "sorted (5 of 100)");
        assert_eq!(subset.notes(), ["inner note", "5 of 100 samples are used"]);
        let other = Subset::first(inner.clone(), 6).unwrap();
        assert_ne!(subset.checksum(), inner.checksum());
        assert_ne!(subset.checksum(), other.checksum());
    }

    #[test]
    fn no_samples_and_too_many_are_refused() {
        for num_samples in [0, 101] {
            let error = Subset::first(sorted_by_class(), num_samples).err().unwrap();
            assert_eq!(error.to_string(), format!("limit: expected 1 to 100 samples of sorted, got {num_samples}"));
        }
    }
}
