//! A subset of a data set, for quick runs or for validation.
//!
//! In: a data set and a number of samples, or a share and a seed. Out: [`ImageDataset`]s of the
//! selected samples.
//! Invariant: the selection keeps the proportions of the classes. [`Subset::first`] has no seed,
//! and a larger number only adds samples.

use std::cmp::Ordering;
use std::sync::{Arc, OnceLock};

use sha2::{Digest, Sha256};

use crate::dataset::{ImageDataset, ImageShape};
use crate::error::{DatasetError, counted};
use crate::memory::to_hex;
use crate::random::{Purpose, Stream};
use crate::resize::CropBox;

/// First samples of a fixed permutation that distributes the classes evenly.
pub struct Subset {
    inner: Arc<dyn ImageDataset>,
    name: String,
    indices: Vec<usize>,
    notes: Vec<String>,
    checksum: OnceLock<String>,
}

impl Subset {
    /// Selects `num_samples` of a data set.
    ///
    /// The samples are not the first by index, because many data sets are sorted by class. They are
    /// the first in a fixed random order, in which every class appears in proportion to its size.
    /// If there are at least as many samples as classes, every class appears. The selected samples
    /// keep the order of the data set.
    ///
    /// # Errors
    /// Returns an error if `num_samples` is 0 or more than the data set has.
    pub fn first(inner: Arc<dyn ImageDataset>, num_samples: usize) -> Result<Self, DatasetError> {
        if num_samples == 0 || num_samples > inner.len() {
            let expected = format!("1 to {} samples of {}", inner.len(), inner.name());
            return Err(DatasetError::config(
                "number of samples",
                expected,
                num_samples,
            ));
        }
        let mut indices = even_order(&*inner);
        indices.truncate(num_samples);
        indices.sort_unstable();
        let note = format!("used {num_samples} of {}", counted(inner.len(), "sample"));
        let notes = inner.notes().iter().cloned().chain([note]).collect();
        let name = format!("{} ({num_samples} of {})", inner.name(), inner.len());
        Ok(Self::of(inner, name, indices, notes))
    }

    /// Splits a data set into a training part and a validation part with `share` of the samples.
    ///
    /// The parts have no sample in common. The validation part has `share` of each class, to within
    /// one sample, so that its size is close to `share` of all samples. Each class keeps at least
    /// one training sample. The choice depends on the labels, `share` and `seed`. Both parts keep
    /// the order of the data set.
    ///
    /// # Errors
    /// Returns an error if `share` is not above 0 and below 1, or leaves one of the parts without
    /// samples.
    pub fn train_and_validation(
        inner: Arc<dyn ImageDataset>,
        share: f64,
        seed: u64,
    ) -> Result<(Self, Self), DatasetError> {
        if !(share > 0.0 && share < 1.0) {
            return Err(DatasetError::config("share", "above 0 and below 1", share));
        }
        let order = Stream::new(seed, 0, 0, Purpose::Validation).permutation(inner.len());
        let mut left = validation_sizes(&class_sizes(&*inner), share, inner.len());
        let mut validation = Vec::new();
        let mut train = Vec::new();
        for index in order {
            match &mut left[inner.label(index)] {
                0 => train.push(index),
                left => {
                    *left -= 1;
                    validation.push(index);
                }
            }
        }
        if validation.is_empty() {
            let expected = format!(
                "a share that takes at least 1 of the {} samples of {}",
                inner.len(),
                inner.name()
            );
            return Err(DatasetError::config("share", expected, share));
        }
        let part = |mut indices: Vec<usize>, what: &str, notes: Vec<String>| {
            indices.sort_unstable();
            let name = format!(
                "{} ({what} {} of {})",
                inner.name(),
                indices.len(),
                inner.len()
            );
            Self::of(Arc::clone(&inner), name, indices, notes)
        };
        let validation = part(validation, "validation part,", Vec::new());
        let without = class_sizes(&validation)
            .iter()
            .filter(|size| **size == 0)
            .count();
        let note = (without > 0).then(|| {
            let num_classes = inner.class_names().len();
            format!("{without} of {num_classes} classes without a validation sample: too few samples for that share")
        });
        let notes = note.into_iter().collect();
        Ok((
            part(train, "train part,", inner.notes().to_vec()),
            Self {
                notes,
                ..validation
            },
        ))
    }

    fn of(
        inner: Arc<dyn ImageDataset>,
        name: String,
        indices: Vec<usize>,
        notes: Vec<String>,
    ) -> Self {
        Self {
            inner,
            name,
            indices,
            notes,
            checksum: OnceLock::new(),
        }
    }
}

/// Returns the number of samples of each class.
pub fn class_sizes(dataset: &dyn ImageDataset) -> Vec<usize> {
    let mut sizes = vec![0; dataset.class_names().len()];
    for index in 0..dataset.len() {
        sizes[dataset.label(index)] += 1;
    }
    sizes
}

/// Returns the number of validation samples of each class.
///
/// The number is `share` of each class, rounded down. Classes with the largest remainders get one
/// more until the sum is `share` of all samples. A class keeps at least one training sample.
fn validation_sizes(class_sizes: &[usize], share: f64, num_samples: usize) -> Vec<usize> {
    let exact = |class: usize| class_sizes[class] as f64 * share;
    let at_most = |class: usize| class_sizes[class].saturating_sub(1);
    let mut sizes: Vec<usize> = (0..class_sizes.len())
        .map(|class| at_most(class).min(exact(class) as usize))
        .collect();
    let mut by_remainder: Vec<usize> = (0..class_sizes.len()).collect();
    // The sort is stable, so the lower class of equal remainders comes first.
    by_remainder.sort_by(|a, b| exact(*b).fract().total_cmp(&exact(*a).fract()));
    let total = (num_samples as f64 * share).round() as usize;
    let missing = total.saturating_sub(sizes.iter().sum());
    by_remainder.retain(|class| exact(*class).fract() > 0.0 && sizes[*class] < at_most(*class));
    by_remainder
        .into_iter()
        .take(missing)
        .for_each(|class| sizes[class] += 1);
    sizes
}

/// Returns a random order in which the j-th of a class's n samples is at about j / n of the order.
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
    // Fractions are compared by cross multiplication, without rounding. The sort is stable, so ties
    // stay in random order.
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
        self.inner
            .read_crop(self.indices[index], choose, shape, pixels)
    }

    /// Returns the checksum of the whole data set and the selected indices.
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

    /// Returns 60 samples of class 0, 30 of class 1 and 10 of class 2, sorted by class. The pixel
    /// value is the index.
    fn sorted_by_class() -> Arc<dyn ImageDataset> {
        Arc::new(MemoryDataset {
            name: "sorted".into(),
            shape: ImageShape {
                height: 1,
                width: 1,
                channels: 1,
            },
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
            for (index, pixel) in pixels(&subset).into_iter().enumerate() {
                let label = match pixel {
                    0..60 => 0,
                    60..90 => 1,
                    _ => 2,
                };
                assert_eq!(subset.label(index), label);
                counts[label] += 1;
            }
            for (count, size) in counts.iter().zip([60, 30, 10]) {
                assert!(*count >= 1);
                let exact = num_samples as f64 * size as f64 / 100.0;
                assert!(
                    (*count as f64 - exact).abs() <= 2.0,
                    "{num_samples} samples: {counts:?}"
                );
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
    fn name_notes_and_checksum_tell_the_limit() {
        let inner = sorted_by_class();
        let subset = Subset::first(inner.clone(), 5).unwrap();
        assert_eq!(subset.name(), "sorted (5 of 100)");
        assert_eq!(subset.notes(), ["inner note", "used 5 of 100 samples"]);
        let other = Subset::first(inner.clone(), 6).unwrap();
        assert_ne!(subset.checksum(), inner.checksum());
        assert_ne!(subset.checksum(), other.checksum());
    }

    #[test]
    fn a_validation_part_has_its_share_of_every_class_and_no_sample_of_the_train_part() {
        for (share, expected) in [
            (0.1, [6, 3, 1]),
            (0.25, [15, 8, 2]),
            (0.5, [30, 15, 5]),
            (0.999, [59, 29, 9]),
        ] {
            let split =
                |seed| Subset::train_and_validation(sorted_by_class(), share, seed).unwrap();
            let (train, validation) = split(7);
            assert_eq!(class_sizes(&validation), expected, "{share}");
            let mut all = [pixels(&train), pixels(&validation)].concat();
            all.sort_unstable();
            assert_eq!(all, (0..100).collect::<Vec<u8>>());
            let again = split(7).1;
            let other = split(8).1;
            assert_eq!(validation.checksum(), again.checksum());
            assert_ne!(
                validation.checksum(),
                other.checksum(),
                "another seed, another choice"
            );
            assert_eq!(class_sizes(&other), expected);
        }
    }

    #[test]
    fn a_class_keeps_a_sample_to_train_on_and_one_without_validation_samples_is_noted() {
        let inner: Arc<dyn ImageDataset> = Arc::new(MemoryDataset {
            name: "few".into(),
            shape: ImageShape {
                height: 1,
                width: 1,
                channels: 1,
            },
            pixels: (0..7).collect(),
            labels: vec![0, 1, 1, 2, 2, 2, 2],
            class_names: vec!["a".into(), "b".into(), "c".into()],
            notes: vec![],
            checksum: Default::default(),
        });
        let (train, validation) = Subset::train_and_validation(Arc::clone(&inner), 0.5, 0).unwrap();
        assert_eq!(
            (class_sizes(&train), class_sizes(&validation)),
            (vec![1, 1, 2], vec![0, 1, 2])
        );
        assert_eq!(
            validation.notes(),
            ["1 of 3 classes without a validation sample: too few samples for that share"]
        );
        assert_eq!(validation.name(), "few (validation part, 3 of 7)");
        for share in [0.0, 1.0, 0.01, f64::NAN] {
            assert!(
                Subset::train_and_validation(Arc::clone(&inner), share, 0).is_err(),
                "{share}"
            );
        }
    }

    #[test]
    fn no_samples_and_too_many_are_refused() {
        for num_samples in [0, 101] {
            let error = Subset::first(sorted_by_class(), num_samples).err().unwrap();
            assert_eq!(
                error.to_string(),
                format!(
                    "number of samples: expected 1 to 100 samples of sorted, got {num_samples}"
                )
            );
        }
    }
}
