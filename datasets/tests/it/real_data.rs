//! The readers on real images, if these are available.
//!
//! In: the archives in the folder that `LOCKSTEP_DATA` names, or in `../shared/data` next to the
//! repository. If the latter has none, the tests print that they skip, and pass.

use std::io::Write;
use std::path::PathBuf;
use std::process::Command;

use datasets::{Cifar, ReadConfig, Sizing, cifar, image_folder, tar_shards};
use tempfile::TempDir;

/// Unpacks an archive of the shared data, or prints that there is none.
fn unpack(archive: &str) -> Option<TempDir> {
    let named = std::env::var_os("LOCKSTEP_DATA").map(PathBuf::from);
    let is_named = named.is_some();
    let folder =
        named.unwrap_or_else(|| concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data").into());
    let path = folder.join(archive);
    if !path.is_file() {
        assert!(!is_named, "LOCKSTEP_DATA: expected {}", path.display());
        // Written directly, because the test harness captures what is printed.
        let skipped = format!(
            "SKIPPED: {} is not there; LOCKSTEP_DATA=DIR names another folder\n",
            path.display()
        );
        std::io::stderr().write_all(skipped.as_bytes()).unwrap();
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let status = Command::new("tar")
        .arg("-xzf")
        .arg(&path)
        .arg("-C")
        .arg(folder.path())
        .status()
        .expect("tar is installed");
    assert!(status.success(), "tar: {status}");
    Some(folder)
}

/// Returns the mean of each channel, in 0..1.
fn mean(dataset: &dyn datasets::ImageDataset) -> [f64; 3] {
    let mut pixels = vec![0; dataset.image_shape().num_values()];
    let mut sums = [0u64; 3];
    for index in 0..dataset.len() {
        dataset.read_image(index, &mut pixels).unwrap();
        for pixel in pixels.chunks(3) {
            for (sum, value) in sums.iter_mut().zip(pixel) {
                *sum += u64::from(*value);
            }
        }
    }
    let num_pixels = (dataset.len() * pixels.len() / 3) as f64;
    sums.map(|sum| sum as f64 / num_pixels / 255.0)
}

#[test]
fn the_original_records_are_read() {
    let Some(folder) = unpack("cifar10-lossless-subset.tar.gz") else {
        return;
    };
    let dir = folder.path().join("cifar-10-lossless-subset");
    let splits = cifar::open(dir, Cifar::Ten).unwrap();
    assert_eq!(
        (splits.train.len(), splits.evaluated().unwrap().len()),
        (5 * 1017, 1017)
    );
    assert_eq!(
        splits.evaluated().unwrap().notes(),
        ["test_batch.bin: 1017 records, the official file has 10000"]
    );
    // The first labels of the release: frog, truck, truck, deer; cat, ship, ship, airplane.
    let labels = |dataset: &dyn datasets::ImageDataset| [0, 1, 2, 3].map(|i| dataset.label(i));
    assert_eq!(labels(&*splits.train), [6, 9, 9, 4]);
    assert_eq!(labels(&**splits.evaluated().unwrap()), [3, 8, 8, 0]);
    // The first training image of the release starts with these RGB pixels.
    let mut pixels = vec![0; 3072];
    splits.train.read_image(0, &mut pixels).unwrap();
    assert_eq!(pixels[..6], [59, 62, 63, 43, 46, 45]);
    for (measured, published) in mean(&*splits.train).iter().zip(splits.normalization.mean) {
        assert!((measured - f64::from(published)).abs() < 0.01, "{measured}");
    }
}

#[test]
fn the_jpeg_files_are_decoded() {
    let Some(folder) = unpack("cifar10-jpeg.tar.gz") else {
        return;
    };
    let splits = image_folder::open(folder.path(), &ReadConfig::new(Sizing::square(32))).unwrap();
    assert_eq!(
        (splits.train.len(), splits.evaluated().unwrap().len()),
        (50_000, 10_000)
    );
    assert_eq!(
        splits.train.notes(),
        ["50,000 image files, kept in memory (175.8 MiB for all splits)"]
    );
    let names = splits.train.class_names();
    assert_eq!(
        (names.len(), &names[0][..], &names[9][..]),
        (10, "airplane", "truck")
    );
    assert_eq!((splits.train.label(0), splits.train.label(49_999)), (0, 9));
    // The recompression keeps the mean colour of CIFAR-10.
    let published = Cifar::Ten.normalization().mean;
    for (measured, published) in mean(&*splits.train).iter().zip(published) {
        assert!(
            (measured - f64::from(published)).abs() < 0.005,
            "{measured}"
        );
    }
}

#[test]
fn real_images_enlarged_are_the_same_from_files_and_from_shards() {
    let Some(all) = unpack("cifar10-jpeg.tar.gz") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let shards = tempfile::tempdir().unwrap();
    for (split, class) in [
        ("train", "cat"),
        ("train", "dog"),
        ("test", "cat"),
        ("test", "dog"),
    ] {
        let [from, to] = [all.path(), folder.path()].map(|root| root.join(split).join(class));
        std::fs::create_dir_all(&to).unwrap();
        for number in 0..20 {
            let name = format!("{number:04}.jpg");
            std::fs::copy(from.join(&name), to.join(&name)).unwrap();
        }
    }
    let sizing = Sizing {
        size: 224,
        shorter_side: Some(256),
    };
    let expected = image_folder::open(folder.path(), &ReadConfig::new(sizing))
        .unwrap()
        .train;
    for images_per_shard in [40, 20, 10] {
        let to = shards.path().join(images_per_shard.to_string());
        tar_shards::write(folder.path(), &to, images_per_shard, &mut |_| true).unwrap();
        let how = ReadConfig {
            num_threads: 2,
            ..ReadConfig::new(sizing)
        };
        let train = tar_shards::open(&to, &how).unwrap().train;
        assert_eq!(
            (train.len(), train.class_names()),
            (40, expected.class_names())
        );
        let [mut image, mut other] = [(); 2].map(|()| vec![0; 224 * 224 * 3]);
        for index in 0..train.len() {
            train.read_image(index, &mut image).unwrap();
            expected.read_image(index, &mut other).unwrap();
            assert!(
                image == other && train.label(index) == expected.label(index),
                "{index}"
            );
        }
    }
}
