//! Tests of opening a folder of images.

use std::fs;
use std::path::PathBuf;

use image::{Rgb, RgbImage};
use tempfile::TempDir;

use super::*;
use crate::decode::Sizing;
use crate::encoded::OnBadImage;
use crate::limited::Subset;

/// Writes a PNG of 2x2 pixels of one grey value to a new path below `root`.
fn write_image(root: &TempDir, name: &str, value: u8) -> PathBuf {
    let path = root.path().join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    RgbImage::from_pixel(2, 2, Rgb([value; 3]))
        .save(&path)
        .unwrap();
    path
}

/// Writes a folder of two classes. The training images are 10, 11, 12 (cat) and 20, 21 (dog). The
/// test images are 30 and 40.
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

fn config() -> ReadConfig {
    ReadConfig {
        num_threads: 2,
        ..ReadConfig::new(Sizing::square(2))
    }
}

fn on_demand() -> ReadConfig {
    ReadConfig {
        memory_limit_bytes: 0,
        ..config()
    }
}

fn skipping(config: ReadConfig) -> ReadConfig {
    ReadConfig {
        on_bad_image: OnBadImage::Skip,
        ..config
    }
}

/// Returns the label and the grey value of each sample.
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

fn message(root: &TempDir, config: &ReadConfig) -> String {
    open(root.path(), config).unwrap_err().to_string()
}

#[test]
fn samples_are_sorted_by_class_and_name_in_memory_and_on_demand() {
    let root = folder();
    for config in [
        config(),
        on_demand(),
        skipping(config()),
        skipping(on_demand()),
    ] {
        let splits = open(root.path(), &config).unwrap();
        assert_eq!(splits.train.class_names(), ["cat", "dog"]);
        assert_eq!(
            samples(&*splits.train),
            [(0, 10), (0, 11), (0, 12), (1, 20), (1, 21)]
        );
        assert_eq!(samples(&**splits.evaluated().unwrap()), [(0, 30), (1, 40)]);
    }
}

#[test]
fn the_notes_say_whether_images_are_kept_in_memory() {
    let root = folder();
    let notes = |config| open(root.path(), &config).unwrap().train.notes().to_vec();
    assert_eq!(
        notes(config()),
        ["5 image files, kept in memory (0.0 MiB for all splits)"]
    );
    assert_eq!(
        notes(on_demand()),
        ["5 image files, decoded on demand (all splits would need 0.0 MiB, the limit is 0.0 MiB)"]
    );
}

#[test]
fn the_memory_limit_counts_all_splits() {
    let root = folder();
    for (memory_limit_bytes, kept) in [(7 * 12, true), (7 * 12 - 1, false)] {
        let config = ReadConfig {
            memory_limit_bytes,
            ..config()
        };
        let splits = open(root.path(), &config).unwrap();
        assert_eq!(
            splits.evaluated().unwrap().notes()[0].contains("kept in memory"),
            kept
        );
    }
}

#[test]
fn the_checksum_depends_on_content_names_and_size_alone() {
    let root = folder();
    let checksum = |config: &ReadConfig| open(root.path(), config).unwrap().train.checksum();
    let first = checksum(&config());
    assert_eq!(checksum(&on_demand()), first);
    assert_eq!(checksum(&skipping(on_demand())), first);
    assert_ne!(
        checksum(&ReadConfig {
            sizing: Sizing::square(3),
            ..config()
        }),
        first
    );
    fs::rename(
        root.path().join("train/cat/2.png"),
        root.path().join("train/cat/3.png"),
    )
    .unwrap();
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
            if subset {
                Arc::new(Subset::first(train, 3).unwrap())
            } else {
                train
            }
        };
        let found = opened();
        let theirs = opened();
        assert!(found.checksum_reads_files() && theirs.checksum_reads_files());
        theirs.adopt_checksum(&found.checksum());
        assert!(!found.checksum_reads_files() && !theirs.checksum_reads_files());
        let expected = found.checksum();
        // The next read would find another pixel value.
        write_image(&root, "train/cat/2.png", if subset { 14 } else { 13 });
        assert_eq!(theirs.checksum(), expected);
        assert_ne!(opened().checksum(), expected);
        found.adopt_checksum("other");
        assert_eq!(found.checksum(), expected, "what is known stays");
    }
    assert!(
        !open(root.path(), &config())
            .unwrap()
            .train
            .checksum_reads_files(),
        "decoded at opening"
    );
}

#[test]
fn a_bad_file_fails_by_default_and_is_named() {
    let root = folder();
    let path = write_image(&root, "train/dog/broken.png", 0);
    fs::write(&path, b"not an image").unwrap();
    let text = message(&root, &config());
    assert!(text.contains("broken.png"), "{text}");
    let splits = open(root.path(), &on_demand()).unwrap();
    let text = splits
        .train
        .read_image(5, &mut [0; 12])
        .unwrap_err()
        .to_string();
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
        assert_eq!(
            samples(&*splits.train),
            [(0, 10), (0, 11), (0, 12), (1, 20), (1, 21)]
        );
        let note = splits.train.notes().last().unwrap().clone();
        assert!(note.starts_with("skipped 2 of 7 image files"), "{note}");
        assert!(note.contains("00.png") && note.contains("11.png"), "{note}");
    }
}

#[test]
fn a_class_whose_images_are_all_bad_is_an_error() {
    let root = folder();
    fs::write(root.path().join("test/dog/x.png"), b"not an image").unwrap();
    let text = message(&root, &skipping(config()));
    assert!(
        text.contains("dog") && text.contains("(1 could not be decoded)"),
        "{text}"
    );
}

#[test]
fn classes_are_mapped_by_name_and_unknown_ones_are_an_error() {
    let root = folder();
    write_image(&root, "train/ape/a.png", 1);
    // A class without images may have any name.
    fs::create_dir(root.path().join("test/emu")).unwrap();
    let named = |notes: &[String], what: &str| notes.iter().any(|note| note == what);
    for opened in [
        open(root.path(), &config()).unwrap().test.unwrap(),
        open_split(root.path(), "test", None, &config()).unwrap(),
    ] {
        assert_eq!(
            (opened.class_names().join(" "), samples(&*opened)),
            ("ape cat dog".to_owned(), vec![(1, 30), (2, 40)])
        );
        assert!(
            named(opened.notes(), "1 of 3 classes without an image: ape"),
            "{:?}",
            opened.notes()
        );
    }
    // The model has a class that the folder does not have.
    let of_model = ["dog", "cat", "yak"].map(str::to_owned);
    let opened = open_split(root.path(), "test", Some(&of_model), &config()).unwrap();
    assert_eq!(samples(&*opened), [(1, 30), (0, 40)]);
    write_image(&root, "test/fox/a.png", 1);
    let text = message(&root, &config());
    assert!(text.contains("got images of others: fox"), "{text}");
    assert_eq!(
        open_split(root.path(), "test", None, &config())
            .unwrap_err()
            .to_string(),
        text
    );
    // The training split may be missing.
    fs::remove_dir_all(root.path().join("train")).unwrap();
    let alone = || open_split(root.path(), "test", None, &config()).unwrap();
    assert_eq!(alone().class_names(), ["cat", "dog", "emu", "fox"]);
    fs::create_dir(root.path().join("train")).unwrap();
    assert_eq!(alone().len(), 3);
}

#[test]
fn a_class_name_in_another_unicode_form_is_the_same_class() {
    let root = folder();
    for (name, value) in [("train/caf\u{e9}/a.png", 1), ("test/cafe\u{301}/a.png", 2)] {
        write_image(&root, name, value);
    }
    let test = open(root.path(), &config()).unwrap().test.unwrap();
    assert_eq!(samples(&*test), [(0, 2), (1, 30), (2, 40)]);
    assert!(test.notes()[0].contains("Unicode"), "{:?}", test.notes());
    // Both forms in one split are two classes, as for torchvision.
    write_image(&root, "train/cafe\u{301}/a.png", 3);
    let splits = open(root.path(), &config()).unwrap();
    assert_eq!(
        samples(&**splits.test.as_ref().unwrap()),
        [(0, 2), (2, 30), (3, 40)]
    );
    assert!(
        splits.train.notes()[0].contains("Unicode"),
        "{:?}",
        splits.train.notes()
    );
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
    assert!(text.contains("expected at least 2 class folders"), "{text}");
}

#[test]
fn each_split_is_found_by_any_of_its_names_and_alone() {
    let names = |splits: &DatasetSplits| {
        let name = |split: Option<&Arc<dyn ImageDataset>>| {
            split.map_or("none".to_owned(), |split| {
                split.name().replace("image-folder ", "")
            })
        };
        [Split::Train, Split::Val, Split::Test]
            .map(|split| name(splits.get(split)))
            .join(" ")
    };
    for (train, val, test) in [
        ("train", "val", "test"),
        ("train", "valid", "test"),
        ("train", "validation", "none"),
        ("Training", "Val", "Testing"),
        ("train", "none", "none"),
    ] {
        let root = folder();
        let rename = |from: &str, to: &str| {
            fs::rename(root.path().join(from), root.path().join(to)).unwrap()
        };
        rename("test", "held-out");
        rename("train", "moved");
        rename("moved", train);
        for (name, value) in [(val, 50), (test, 60)]
            .into_iter()
            .filter(|(name, _)| *name != "none")
        {
            write_image(&root, &format!("{name}/cat/a.png"), value);
        }
        let splits = open(root.path(), &config()).unwrap();
        assert_eq!(names(&splits), [train, val, test].join(" "));
        // A folder with any other name opens by this name.
        let alone = open_split(root.path(), "held-out", None, &config()).unwrap();
        assert_eq!(samples(&*alone), [(0, 30), (1, 40)]);
        assert!(
            open_split(root.path(), "train", None, &config())
                .unwrap()
                .len()
                == 5
        );
        let text = open_split(root.path(), "absent", None, &config())
            .unwrap_err()
            .to_string();
        assert!(
            text.contains("absent not found") && text.contains("held-out"),
            "{text}"
        );
    }
}

#[test]
fn of_two_folders_of_one_split_the_first_name_is_used_and_the_other_named() {
    let root = folder();
    for (name, value) in [("val/cat/a.png", 50), ("valid/cat/a.png", 60)] {
        write_image(&root, name, value);
    }
    let val = open(root.path(), &config()).unwrap().val.unwrap();
    assert_eq!((val.name(), val.len()), ("image-folder val", 1));
    assert!(
        val.notes()[0].contains("val is used, valid is not"),
        "{:?}",
        val.notes()
    );
    assert_eq!(
        open_split(root.path(), "valid", None, &config())
            .unwrap()
            .name(),
        "image-folder valid"
    );
}

#[test]
fn a_split_without_labels_is_left_out_with_a_note_and_blocks_no_other() {
    for (place, found) in [
        ("test/", "3 images in no class folder"),
        (
            "test/unknown/",
            "3 images only in folders that are no classes of the training (unknown)",
        ),
        (
            "test/images/again/",
            "3 images only in folders that are no classes of the training (images)",
        ),
        (
            "test/.hidden/",
            "expected images in class folders, got none",
        ),
    ] {
        let root = folder();
        fs::rename(root.path().join("test"), root.path().join("val")).unwrap();
        for number in 0..3 {
            write_image(&root, &format!("{place}{number}.png"), number);
        }
        fs::write(root.path().join("test/val_annotations.txt"), "").unwrap();
        let splits = open(root.path(), &config()).unwrap();
        assert!(splits.test.is_none() && splits.val.is_some());
        let note = splits.notes.join(" ");
        assert!(
            note.contains(found)
                // Without images there is nothing to predict.
                && (place == "test/.hidden/")
                    != (note.contains("trainer predict") && note.contains("val_annotations.txt")),
            "{note}"
        );
        assert_eq!(
            open_split(root.path(), "test", None, &config())
                .unwrap_err()
                .to_string(),
            note
        );
    }
}

#[test]
fn a_split_that_is_a_link_to_a_missing_folder_is_named() {
    let root = folder();
    std::os::unix::fs::symlink("/nowhere", root.path().join("val")).unwrap();
    let splits = open(root.path(), &config()).unwrap();
    assert!(
        splits.val.is_none() && splits.notes[0].starts_with("val is not read"),
        "{:?}",
        splits.notes
    );
}

#[test]
fn what_is_left_out_is_counted_by_its_reason_and_named() {
    let root = folder();
    write_image(&root, "train/loose.png", 1);
    for name in [
        "train/readme.txt",
        "train/cat/scan.tga",
        "train/cat/thumbs.db",
        "train/cat/.hidden.png",
        "train/cat/.DS_Store",
    ] {
        fs::write(root.path().join(name), "").unwrap();
    }
    let link = |to: &str, name: &str| {
        std::os::unix::fs::symlink(root.path().join(to), root.path().join(name)).unwrap()
    };
    link("nowhere.png", "train/dog/gone.png");
    link("train/dog", "train/dog/again");
    let splits = open(root.path(), &config()).unwrap();
    assert_eq!(splits.train.len(), 5);
    let notes = splits.train.notes();
    for (what, name) in [
        (
            "1 image outside the class folders, without a label",
            "loose.png",
        ),
        ("1 link to a missing file", "gone.png"),
        ("1 link back to a folder above", "dog/again"),
        (
            "3 files of other formats (1 .db; 1 .tga; 1 .txt; expected ",
            "scan.tga",
        ),
        ("1 hidden path", ".hidden.png"),
    ] {
        let is_told =
            |note: &String| note.starts_with(&format!("left out: {what}")) && note.contains(name);
        assert!(notes.iter().any(is_told), "{what}: {notes:?}");
    }
    assert!(
        !notes.iter().any(|note| note.contains("DS_Store")),
        "{notes:?}"
    );
}

#[test]
fn folders_below_a_class_are_read_as_torchvision_reads_them() {
    let root = folder();
    for (name, value) in [
        ("train/cat/b/z.png", 5),
        ("train/cat/b-c/y.png", 6),
        ("train/cat/b/a/x.JPEG.png", 7),
    ] {
        write_image(&root, name, value);
    }
    std::os::unix::fs::symlink(
        root.path().join("test/dog"),
        root.path().join("train/dog/linked"),
    )
    .unwrap();
    let train = open(root.path(), &config()).unwrap().train;
    // As in sorted(os.walk(...)), folders are sorted as text, so b-c comes before b/a.
    let expected = [
        (0, 10),
        (0, 11),
        (0, 12),
        (0, 5),
        (0, 6),
        (0, 7),
        (1, 20),
        (1, 21),
        (1, 40),
    ];
    assert_eq!(samples(&*train), expected);
    assert_eq!(train.notes().len(), 1, "{:?}", train.notes());
}

#[test]
fn the_number_of_threads_changes_nothing() {
    let root = folder();
    let all = |num_threads| {
        let splits = open(
            root.path(),
            &ReadConfig {
                num_threads,
                ..config()
            },
        )
        .unwrap();
        (samples(&*splits.train), splits.train.checksum())
    };
    let expected = all(1);
    for num_threads in 2..9 {
        assert_eq!(all(num_threads), expected);
    }
}
