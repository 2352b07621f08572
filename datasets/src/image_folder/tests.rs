//! What opening a folder of images promises.

use std::fs;
use std::path::PathBuf;

use image::{Rgb, RgbImage};
use tempfile::TempDir;

use super::*;
use crate::limited::Subset;

/// Writes a PNG of one grey value, 2x2, into a new place below `root`.
fn write_image(root: &TempDir, name: &str, value: u8) -> PathBuf {
    let path = root.path().join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    RgbImage::from_pixel(2, 2, Rgb([value; 3])).save(&path).unwrap();
    path
}

/// Two classes; the training images are 10, 11, 12 (cat), 20, 21 (dog), the test images 30 and 40.
fn folder() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for (name, value) in [
        ("train/dog/b.png", 21),
        ("train/dog/a.PNG", 20),
        ("train/cat/2.png", 12),
        ("train/cat/0.png", 10),
        ("train/cat/1.png", 11),
        ("test/cat/x.png", 30),
        ("test/dog/x.png", 40),
    ] {
        write_image(&root, name, value);
    }
    root
}

fn config() -> ImageFolderConfig {
    ImageFolderConfig { num_threads: 2, ..ImageFolderConfig::new(Sizing::square(2)) }
}

fn on_demand() -> ImageFolderConfig {
    ImageFolderConfig { memory_limit_bytes: 0, ..config() }
}

fn skipping(config: ImageFolderConfig) -> ImageFolderConfig {
    ImageFolderConfig { on_bad_image: OnBadImage::Skip, ..config }
}

/// (label, grey value) of each sample.
fn samples(dataset: &dyn ImageDataset) -> Vec<(usize, u8)> {
    (0..dataset.len())
        .map(|index| {
            let mut pixels = [0; 12];
            dataset.read_image(index, &mut pixels).unwrap();
            assert_eq!(pixels, [pixels[0]; 12]);
            (dataset.label(index), pixels[0])
        })
        .collect()
}

fn message(root: &TempDir, config: &ImageFolderConfig) -> String {
    open(root.path(), config).unwrap_err().to_string()
}

#[test]
fn samples_are_sorted_by_class_and_name_in_memory_and_on_demand() {
    let root = folder();
    for config in [config(), on_demand(), skipping(config()), skipping(on_demand())] {
        let splits = open(root.path(), &config).unwrap();
        assert_eq!(splits.train.class_names(), ["cat", "dog"]);
        assert_eq!(samples(&*splits.train), [(0, 10), (0, 11), (0, 12), (1, 20), (1, 21)]);
        assert_eq!(samples(&*splits.test), [(0, 30), (1, 40)]);
    }
}

#[test]
fn the_notes_say_whether_images_are_kept_in_memory() {
    let root = folder();
    let notes = |config| open(root.path(), &config).unwrap().train.notes().to_vec();
    assert_eq!(notes(config()), ["5 image files, kept in memory (0.0 MiB for both splits)"]);
    assert_eq!(
        notes(on_demand()),
        ["5 image files, decoded on demand (both splits would need 0.0 MiB, the limit is 0.0 MiB)"]
    );
}

#[test]
fn the_memory_limit_counts_both_splits() {
    let root = folder();
    for (memory_limit_bytes, kept) in [(7 * 12, true), (7 * 12 - 1, false)] {
        let config = ImageFolderConfig { memory_limit_bytes, ..config() };
        let splits = open(root.path(), &config).unwrap();
        assert_eq!(splits.test.notes()[0].contains("kept in memory"), kept);
    }
}

#[test]
fn the_checksum_depends_on_content_names_and_size_alone() {
    let root = folder();
    let checksum = |config: &ImageFolderConfig| open(root.path(), config).unwrap().train.checksum();
    let first = checksum(&config());
    assert_eq!(checksum(&on_demand()), first);
    assert_eq!(checksum(&skipping(on_demand())), first);
    assert_ne!(checksum(&ImageFolderConfig { sizing: Sizing::square(3), ..config() }), first);
    fs::rename(root.path().join("train/cat/2.png"), root.path().join("train/cat/3.png")).unwrap();
    let renamed = checksum(&config());
    assert_ne!(renamed, first);
    write_image(&root, "train/cat/3.png", 99);
    assert_ne!(checksum(&config()), renamed);
}

#[test]
fn a_checksum_found_by_another_process_is_taken_over_without_reading_a_file() {
    let root = folder();
    for subset in [false, true] {
        let opened = || -> Arc<dyn ImageDataset> {
            let train = open(root.path(), &on_demand()).unwrap().train;
            if subset { Arc::new(Subset::first(train, 3).unwrap()) } else { train }
        };
        let (found, theirs) = (opened(), opened());
        assert!(found.checksum_reads_files() && theirs.checksum_reads_files());
        theirs.adopt_checksum(&found.checksum());
        assert!(!found.checksum_reads_files() && !theirs.checksum_reads_files());
        let expected = found.checksum();
        // What it would read now differs.
        write_image(&root, "train/cat/2.png", if subset { 14 } else { 13 });
        assert_eq!(theirs.checksum(), expected);
        assert_ne!(opened().checksum(), expected);
        found.adopt_checksum("other");
        assert_eq!(found.checksum(), expected, "what is known stays");
    }
    assert!(!open(root.path(), &config()).unwrap().train.checksum_reads_files(), "decoded at opening");
}

#[test]
fn a_bad_file_fails_by_default_and_is_named() {
    let root = folder();
    let path = write_image(&root, "train/dog/broken.png", 0);
    fs::write(&path, b"not an image").unwrap();
    let text = message(&root, &config());
    assert!(text.contains("broken.png"), "{text}");
    let splits = open(root.path(), &on_demand()).unwrap();
    let text = splits.train.read_image(5, &mut [0; 12]).unwrap_err().to_string();
    assert!(text.contains("broken.png"), "{text}");
}

#[test]
fn bad_files_are_skipped_when_asked_for_and_noted() {
    let root = folder();
    for name in ["train/cat/00.png", "train/cat/11.png"] {
        let path = write_image(&root, name, 0);
        fs::write(&path, b"not an image").unwrap();
    }
    for config in [skipping(config()), skipping(on_demand())] {
        let splits = open(root.path(), &config).unwrap();
        assert_eq!(samples(&*splits.train), [(0, 10), (0, 11), (0, 12), (1, 20), (1, 21)]);
        let note = splits.train.notes().last().unwrap().clone();
        assert!(note.starts_with("2 of 7 image files were skipped"), "{note}");
        assert!(note.contains("00.png") && note.contains("11.png"), "{note}");
    }
}

#[test]
fn a_class_whose_images_are_all_bad_is_an_error() {
    let root = folder();
    fs::write(root.path().join("test/dog/x.png"), b"not an image").unwrap();
    let text = message(&root, &skipping(config()));
    assert!(text.contains("dog") && text.contains("(1 could not be decoded)"), "{text}");
}

#[test]
fn different_classes_in_train_and_test_are_an_error() {
    let root = folder();
    write_image(&root, "train/emu/a.png", 1);
    write_image(&root, "test/fox/a.png", 1);
    let text = message(&root, &config());
    assert!(text.contains("only in training: [emu]; only in testing: [fox]"), "{text}");
    let of_test = || open_test(root.path(), &config());
    assert_eq!(of_test().unwrap_err().to_string(), text);
    // There may be none to train on.
    fs::remove_dir_all(root.path().join("train")).unwrap();
    assert_eq!(of_test().unwrap().class_names(), ["cat", "dog", "fox"]);
    fs::create_dir(root.path().join("train")).unwrap();
    assert_eq!(of_test().unwrap().len(), 3);
}

#[test]
fn a_missing_folder_is_an_error_with_a_remedy() {
    let root = tempfile::tempdir().unwrap();
    let text = message(&root, &config());
    assert!(text.contains("the folder train not found"), "{text}");
    fs::create_dir_all(root.path().join("train")).unwrap();
    let text = message(&root, &config());
    assert!(text.contains("class folders not found"), "{text}");
    write_image(&root, "train/cat/a.png", 1);
    let text = message(&root, &config());
    assert!(text.contains("the folder test or val not found"), "{text}");
}

#[test]
fn val_serves_where_there_is_no_test_and_test_goes_first() {
    let root = folder();
    write_image(&root, "val/cat/a.png", 50);
    write_image(&root, "val/dog/a.png", 60);
    let splits = open(root.path(), &config()).unwrap();
    assert_eq!(samples(&*splits.test), [(0, 30), (1, 40)]);
    assert!(splits.test.notes().iter().any(|note| note.ends_with("val is not")));
    fs::remove_dir_all(root.path().join("test")).unwrap();
    let splits = open(root.path(), &config()).unwrap();
    assert_eq!(splits.test.name(), "image-folder val");
    assert_eq!(samples(&*splits.test), [(0, 50), (1, 60)]);
}

#[test]
fn entries_that_are_no_images_are_ignored_and_noted() {
    let root = folder();
    fs::write(root.path().join("train/readme.txt"), "").unwrap();
    fs::write(root.path().join("train/cat/thumbs.db"), "").unwrap();
    fs::write(root.path().join("train/cat/.hidden.png"), "").unwrap();
    let splits = open(root.path(), &config()).unwrap();
    assert_eq!(splits.train.len(), 5);
    let note = &splits.train.notes()[0];
    assert!(note.starts_with("2 entries that are no image files"), "{note}");
    assert!(note.contains("readme.txt") && note.contains("thumbs.db"), "{note}");
}

#[test]
fn the_number_of_threads_changes_nothing() {
    let root = folder();
    let all = |num_threads| {
        let splits = open(root.path(), &ImageFolderConfig { num_threads, ..config() }).unwrap();
        (samples(&*splits.train), splits.train.checksum())
    };
    let expected = all(1);
    for num_threads in 2..9 {
        assert_eq!(all(num_threads), expected);
    }
}
