//! Images of different sizes, decoded when they are read: random parts for training, the middle for
//! testing.

use std::path::Path;
use std::sync::Arc;

use datasets::{
    Augment, CropBox, ImageDataset, ImageSamples, ImageShape, Loader, LoaderConfig, MicroBatch,
    Normalization, OnBadImage, ReadConfig, ResizedCrop, ShardConfig, ShardPlan, SideOfEpoch,
    Sizing, Subset, image_folder,
};
use image::{Rgb, RgbImage};
use tempfile::TempDir;

const SIZE: usize = 24;
const AUGMENT: Augment = Augment::ResizedCrop(ResizedCrop {
    min_scale: 0.08,
    max_scale: 1.0,
});

/// Returns two classes of drawn photographs, all of different sizes, in three formats.
fn photographs() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for (number, class) in (0..20).map(|number| (number, ["cat", "dog"][number as usize % 2])) {
        let split = if number < 14 { "train" } else { "test" };
        let path = root.path().join(split).join(class);
        std::fs::create_dir_all(&path).unwrap();
        let width = 30 + 7 * number;
        let height = 90 - 3 * number;
        let pixel = |x: u32, y: u32| {
            Rgb([
                (x * 3 + number * 9) as u8,
                (y * 5) as u8,
                ((x * y) >> 3) as u8,
            ])
        };
        let name = format!(
            "{number}.{}",
            ["jpg", "png", "jpg", "bmp"][number as usize % 4]
        );
        RgbImage::from_fn(width, height, pixel)
            .save(path.join(name))
            .unwrap();
    }
    root
}

fn config() -> ReadConfig {
    config_of(SIZE, 28)
}

fn config_of(size: usize, shorter_side: usize) -> ReadConfig {
    ReadConfig {
        num_threads: 2,
        ..ReadConfig::new(Sizing {
            size,
            shorter_side: Some(shorter_side),
        })
    }
}

fn train(root: &Path) -> Arc<dyn ImageDataset> {
    train_of(root, &config())
}

fn train_of(root: &Path, config: &ReadConfig) -> Arc<dyn ImageDataset> {
    image_folder::open(root, config).unwrap().train
}

/// Returns the box of the whole image.
fn whole([width, height]: [u32; 2]) -> CropBox {
    CropBox {
        left: 0,
        top: 0,
        width,
        height,
    }
}

/// Returns the bits of every image of an epoch, in the order of samples.
fn epoch(
    dataset: &Arc<dyn ImageDataset>,
    epoch: u64,
    num_shards: usize,
    num_threads: usize,
) -> Vec<Vec<u32>> {
    epoch_in(dataset, None, epoch, num_shards, num_threads)
}

/// As [`epoch`], for images of this shape.
fn epoch_in(
    dataset: &Arc<dyn ImageDataset>,
    image_shape: Option<ImageShape>,
    epoch: u64,
    num_shards: usize,
    num_threads: usize,
) -> Vec<Vec<u32>> {
    let num_values = image_shape.unwrap_or(dataset.image_shape()).num_values();
    let mut images = vec![Vec::new(); dataset.len()];
    for shard_index in 0..num_shards {
        let plan = ShardPlan::new(ShardConfig {
            seed: 1,
            epoch,
            shuffle: true,
            shard_index,
            num_shards,
            ..ShardConfig::new(dataset.len(), 8)
        });
        let loading = LoaderConfig {
            seed: 1,
            epoch,
            num_threads,
            ..LoaderConfig::new(2)
        };
        let images_of_epoch = ImageSamples {
            augment: AUGMENT,
            side: image_shape.map(|shape| SideOfEpoch(Arc::new(move |_| shape.height))),
            ..ImageSamples::new(Arc::clone(dataset), imagenet())
        };
        for step in Loader::start(Arc::new(images_of_epoch), plan.unwrap(), loading) {
            for MicroBatch { batch, .. } in step.unwrap().micro_batches {
                let pixels = batch.normalised_pixels();
                for (index, image) in batch.indices.iter().zip(pixels.chunks_exact(num_values)) {
                    images[*index] = image.iter().map(|value| value.to_bits()).collect();
                }
            }
        }
    }
    images
}

fn imagenet() -> Normalization {
    Normalization::imagenet()
}

#[test]
fn random_parts_are_the_same_on_any_number_of_shards_and_threads_and_others_in_each_epoch() {
    let root = photographs();
    let dataset = train(root.path());
    let expected = epoch(&dataset, 0, 1, 0);
    assert!(expected.iter().all(|image| image.len() == SIZE * SIZE * 3));
    for (num_shards, num_threads) in [(1, 3), (2, 1), (4, 2)] {
        assert!(
            epoch(&dataset, 0, num_shards, num_threads) == expected,
            "{num_shards} {num_threads}"
        );
    }
    let later = epoch(&dataset, 1, 1, 1);
    assert!(
        expected
            .iter()
            .zip(&later)
            .all(|(image, later)| image != later)
    );
}

#[test]
fn parts_of_another_size_than_the_data_sets_are_those_of_a_data_set_of_that_size() {
    let root = photographs();
    let small = train_of(root.path(), &config_of(16, 19));
    assert_ne!(small.image_shape(), train(root.path()).image_shape());
    let of_large = epoch_in(&train(root.path()), Some(small.image_shape()), 0, 1, 1);
    assert!(of_large == epoch(&small, 0, 1, 1));
}

#[test]
fn a_part_is_cut_out_of_the_image_as_it_is_stored() {
    let root = photographs();
    let dataset = train(root.path());
    // Another decoder, whose pixels may differ in their last bits.
    let stored = image::open(root.path().join("train/cat/0.jpg"))
        .unwrap()
        .into_rgb8();
    let mut all = vec![0; 30 * 90 * 3];
    let shape = ImageShape {
        height: 90,
        width: 30,
        channels: 3,
    };
    dataset.read_crop(0, &whole, shape, &mut all).unwrap();
    let mut pairs = all.iter().zip(stored.as_raw());
    assert!(pairs.all(|(value, stored)| value.abs_diff(*stored) <= 3));
    let mut pixels = vec![0; SIZE * SIZE * 3];
    let choose = |[width, height]: [u32; 2]| {
        assert_eq!([width, height], [30, 90]);
        CropBox {
            left: 3,
            top: 41,
            width: 24,
            height: 24,
        }
    };
    dataset
        .read_crop(0, &choose, dataset.image_shape(), &mut pixels)
        .unwrap();
    let all = RgbImage::from_raw(30, 90, all).unwrap();
    let expected = image::imageops::crop_imm(&all, 3, 41, 24, 24).to_image();
    assert_eq!(pixels, *expected.as_raw());
    // A sample of a subset has another index in the whole data set. The random part depends on the
    // latter.
    let subset = Subset::first(Arc::clone(&dataset), dataset.len()).unwrap();
    let mut of_subset = vec![0; pixels.len()];
    subset
        .read_crop(0, &choose, dataset.image_shape(), &mut of_subset)
        .unwrap();
    assert_eq!(of_subset, pixels);
}

#[test]
fn the_notes_and_the_checksum_tell_the_sizes() {
    let root = photographs();
    let dataset = train(root.path());
    assert_eq!(
        dataset.notes(),
        ["14 image files, decoded on demand, each at its own size"]
    );
    let other = train_of(root.path(), &config_of(SIZE, 30));
    assert_ne!(other.checksum(), dataset.checksum());
    assert_eq!(train(root.path()).checksum(), dataset.checksum());
}

#[test]
fn a_bad_photograph_is_named_when_it_is_read_or_left_out_when_asked_for() {
    let root = photographs();
    std::fs::write(
        root.path().join("train/cat/0.jpg"),
        b"\xFF\xD8\xFF no image",
    )
    .unwrap();
    let dataset = train(root.path());
    let read = |dataset: &Arc<dyn ImageDataset>| {
        dataset.read_crop(0, &whole, dataset.image_shape(), &mut [0; SIZE * SIZE * 3])
    };
    let text = read(&dataset).unwrap_err().to_string();
    assert!(text.contains("0.jpg"), "{text}");
    let skipping = ReadConfig {
        on_bad_image: OnBadImage::Skip,
        ..config()
    };
    let dataset = train_of(root.path(), &skipping);
    assert_eq!(dataset.len(), 13);
    read(&dataset).unwrap();
}
