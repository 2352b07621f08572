//! Random pixels with random labels, for measurements of speed.
//!
//! In: shape, classes, counts, seed. Out: [`DatasetSplits`], generated once and kept in memory.

use std::sync::Arc;

use crate::dataset::{DatasetSplits, ImageDataset, ImageShape, Normalization};
use crate::error::DatasetError;
use crate::memory::{MemoryDataset, PART_BYTES, black_images};
use crate::progress;
use crate::random::{Purpose, Stream};

/// Settings of the generated data set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyntheticConfig {
    /// Shape of every image.
    pub shape: ImageShape,
    /// Number of classes, up to 65,536.
    pub num_classes: usize,
    /// Number of training samples.
    pub num_train: usize,
    /// Number of test samples.
    pub num_test: usize,
    /// Seed of pixels and labels.
    pub seed: u64,
}

/// Generates the data set in memory: N * H * W * C bytes.
///
/// # Errors
/// Returns an error if a count or a side of the image is 0, if there are more than 65,536 classes,
/// or if the system cannot allocate the memory.
pub fn open(config: &SyntheticConfig) -> Result<DatasetSplits, DatasetError> {
    if config.shape.num_values() == 0 {
        return Err(DatasetError::config(
            "synthetic image shape",
            "no side of 0",
            config.shape,
        ));
    }
    if config.num_classes == 0 || config.num_classes > 1 << 16 {
        return Err(DatasetError::config(
            "num_classes",
            "1 to 65536",
            config.num_classes,
        ));
    }
    let train = make_split(config, "train", 0, config.num_train)?;
    let test = make_split(config, "test", 1, config.num_test)?;
    Ok(DatasetSplits::of_two(
        train,
        test,
        Normalization::uniform(config.shape.channels),
    ))
}

fn make_split(
    config: &SyntheticConfig,
    split: &str,
    split_index: u64,
    num_samples: usize,
) -> Result<Arc<dyn ImageDataset>, DatasetError> {
    if num_samples == 0 {
        return Err(DatasetError::config(
            "synthetic num_samples",
            "at least 1",
            0,
        ));
    }
    let mut labels = Stream::new(config.seed, split_index, 0, Purpose::Synthetic);
    let mut pixels = black_images("synthetic num_samples", num_samples, config.shape)?;
    let mut stream = Stream::new(config.seed, split_index, 1, Purpose::Synthetic);
    for part in pixels.chunks_mut(PART_BYTES) {
        stream.fill(part);
        progress::advance(part.len());
    }
    Ok(Arc::new(MemoryDataset {
        name: format!("synthetic {split}"),
        shape: config.shape,
        pixels,
        labels: (0..num_samples)
            .map(|_| labels.below(config.num_classes) as u16)
            .collect(),
        class_names: (0..config.num_classes)
            .map(|class| format!("class {class}"))
            .collect(),
        notes: vec!["pixels and labels are random: for measurements, not for learning".into()],
        checksum: Default::default(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> SyntheticConfig {
        SyntheticConfig {
            shape: ImageShape {
                height: 5,
                width: 7,
                channels: 2,
            },
            num_classes: 3,
            num_train: 300,
            num_test: 20,
            seed: 4,
        }
    }

    #[test]
    fn splits_have_the_shape_and_classes_asked_for() {
        let splits = open(&config()).unwrap();
        assert_eq!(
            (splits.train.len(), splits.evaluated().unwrap().len()),
            (300, 20)
        );
        assert_eq!(splits.train.image_shape(), config().shape);
        assert_eq!(splits.train.class_names().len(), 3);
        assert_eq!(splits.normalization.mean.len(), 2);
        for class in 0..3 {
            assert!((0..300).any(|index| splits.train.label(index) == class));
        }
        let mut pixels = vec![0; 70];
        splits.train.read_image(299, &mut pixels).unwrap();
        assert!(pixels.iter().any(|pixel| *pixel != pixels[0]));
    }

    #[test]
    fn the_same_seed_gives_the_same_data() {
        let checksum = |seed| {
            let splits = open(&SyntheticConfig { seed, ..config() }).unwrap();
            (
                splits.train.checksum(),
                splits.evaluated().unwrap().checksum(),
            )
        };
        assert_eq!(checksum(1), checksum(1));
        assert_ne!(checksum(1), checksum(2));
        assert_ne!(checksum(1).0, checksum(1).1);
    }

    #[test]
    fn nothing_to_make_is_refused() {
        let without_test = SyntheticConfig {
            num_test: 0,
            ..config()
        };
        assert!(open(&without_test).is_err());
        let without_classes = SyntheticConfig {
            num_classes: 0,
            ..config()
        };
        assert!(open(&without_classes).is_err());
    }

    #[test]
    fn more_images_than_memory_holds_are_refused() {
        for num_train in [usize::MAX, usize::MAX / 70, isize::MAX as usize / 70] {
            let error = open(&SyntheticConfig {
                num_train,
                ..config()
            })
            .err()
            .unwrap()
            .to_string();
            assert!(error.contains("fit into memory"), "{error}");
        }
    }
}
