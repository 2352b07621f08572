//! What Parquet files promise, on those that `make.py` wrote, as Hugging Face writes them.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use datasets::image_folder;
use datasets::parquet_files::{ParquetConfig, open};
use datasets::tar_shards;
use datasets::{DatasetError, DatasetSplits, ImageDataset, ImageFolderConfig, OnBadImage, Sizing, TarShardsConfig};

const SIZING: Sizing = Sizing { size: 12, shorter_side: Some(14) };

fn images() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/images")
}

fn opened(dir: &Path) -> Result<DatasetSplits, DatasetError> {
    open(dir, &ParquetConfig { sizing: SIZING, on_bad_image: OnBadImage::Fail, num_threads: 1 })
}

/// (label, pixels) of each sample.
fn samples(dataset: &dyn ImageDataset) -> Vec<(usize, Vec<u8>)> {
    let sample = |index| {
        let mut pixels = vec![0; 12 * 12 * 3];
        dataset.read_image(index, &mut pixels).unwrap();
        (dataset.label(index), pixels)
    };
    (0..dataset.len()).map(sample).collect()
}

#[test]
fn samples_of_all_files_and_row_groups_are_those_of_a_folder_and_of_its_shards() {
    let splits = opened(&images().join("parquet")).unwrap();
    assert_eq!((splits.train.len(), splits.test.len()), (8, 2));
    assert_eq!((splits.train.name(), splits.test.name()), ("parquet train", "parquet validation"));
    assert_eq!(splits.train.class_names(), ["cat", "dog"]);
    let labels: Vec<usize> = (0..8).map(|index| splits.train.label(index)).collect();
    assert_eq!(labels, [0, 0, 0, 0, 1, 1, 1, 1]);

    let names = [
        "cmyk",
        "grey",
        "progressive",
        "turned",
        "resize/rows_420",
        "resize/rows_444",
        "resize/rows_grey",
        "resize/rows_restarts",
    ];
    let (folder, shards) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for (number, name) in names.iter().enumerate() {
        for split in ["train", "val"] {
            let class = folder.path().join(split).join(["cat", "dog"][number / 4]);
            fs::create_dir_all(&class).unwrap();
            fs::copy(images().join(format!("{name}.jpg")), class.join(format!("{number}.jpg"))).unwrap();
        }
    }
    let expected = samples(&*splits.train);
    let of_folder = image_folder::open(folder.path(), &ImageFolderConfig::new(SIZING)).unwrap().train;
    assert_eq!(samples(&*of_folder), expected);
    tar_shards::write(folder.path(), shards.path(), 3, &mut |_| true).unwrap();
    let how = TarShardsConfig { sizing: SIZING, on_bad_image: OnBadImage::Fail, num_threads: 1, cache_dir: None };
    assert_eq!(samples(&*tar_shards::open(shards.path(), &how).unwrap().train), expected);
}

#[test]
fn samples_are_read_in_any_order() {
    let train = opened(&images().join("parquet")).unwrap().train;
    let expected = samples(&*train);
    for index in [7, 0, 3, 3, 6, 1] {
        let mut pixels = vec![0; 12 * 12 * 3];
        train.read_image(index, &mut pixels).unwrap();
        assert_eq!(pixels, expected[index].1, "{index}");
    }
}

#[test]
fn threads_that_read_one_file_at_once_get_their_own_samples() {
    let train = opened(&images().join("parquet")).unwrap().train;
    let expected = samples(&*train);
    thread::scope(|scope| {
        for first in 0..8 {
            let (train, expected) = (&train, &expected);
            scope.spawn(move || {
                let mut pixels = vec![0; 12 * 12 * 3];
                for index in (0..400).map(|step| (first + 3 * step) % 8) {
                    train.read_image(index, &mut pixels).unwrap();
                    assert_eq!(pixels, expected[index].1, "{index}");
                }
            });
        }
    });
}

#[test]
fn damaged_and_missing_files_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let text = opened(folder.path()).unwrap_err().to_string();
    assert!(text.contains("Parquet files of train not found"), "{text}");
    for name in ["train-00000-of-00002", "train-00001-of-00002", "validation-00000-of-00001"] {
        let name = format!("{name}.parquet");
        fs::copy(images().join("parquet").join(&name), folder.path().join(&name)).unwrap();
    }
    let path = folder.path().join("train-00001-of-00002.parquet");
    let bytes = fs::read(&path).unwrap();
    for len in [0, 3, 100, bytes.len() / 2, bytes.len() - 1] {
        fs::write(&path, &bytes[..len]).unwrap();
        let text = opened(folder.path()).unwrap_err().to_string();
        assert!(text.contains("train-00001"), "{len}: {text}");
    }
    // Bytes of an image are not of the footer: they are found when it is read.
    let mut changed = bytes.clone();
    changed[200..4000].fill(7);
    fs::write(&path, changed).unwrap();
    let train = opened(folder.path()).unwrap().train;
    let text = train.read_image(5, &mut [0; 12 * 12 * 3]).unwrap_err().to_string();
    assert!(text.contains("train-00001") && text.contains("row group 0 row 0"), "{text}");
}
