//! Tests of the binary reader on files that the tests write.

use std::fs;

use super::*;
use tempfile::TempDir;

/// Returns a record whose pixel of channel c at position p is c * 50 + p modulo 50.
fn record(labels: &[u8]) -> Vec<u8> {
    let planes = (0..3).flat_map(|channel| (0..PLANE).map(move |p| (channel * 50 + p % 50) as u8));
    labels.iter().copied().chain(planes).collect()
}

/// Writes a CIFAR-10 with one record per file. The labels are 0..=5.
fn cifar_10() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let files = Cifar::Ten.train_files().iter().chain(&["test_batch.bin"]);
    for (label, file) in files.enumerate() {
        fs::write(dir.path().join(file), record(&[label as u8])).unwrap();
    }
    dir
}

fn message(dir: &TempDir, cifar: Cifar) -> String {
    open(dir.path(), cifar).unwrap_err().to_string()
}

#[test]
fn planes_become_channels_last_pixels() {
    let splits = open(cifar_10().path(), Cifar::Ten).unwrap();
    let mut pixels = vec![0; SHAPE.num_values()];
    splits.train.read_image(3, &mut pixels).unwrap();
    for (position, pixel) in pixels.chunks(3).enumerate() {
        let value = (position % 50) as u8;
        assert_eq!(pixel, [value, 50 + value, 100 + value]);
    }
}

#[test]
fn training_files_come_in_order() {
    let splits = open(cifar_10().path(), Cifar::Ten).unwrap();
    let labels: Vec<usize> = (0..5).map(|index| splits.train.label(index)).collect();
    assert_eq!(labels, [0, 1, 2, 3, 4]);
    assert_eq!(
        (
            splits.evaluated().unwrap().len(),
            splits.evaluated().unwrap().label(0)
        ),
        (1, 5)
    );
    assert_eq!(splits.train.class_names()[9], "truck");
    assert_eq!(splits.train.name(), "cifar-10 train");
}

#[test]
fn another_number_of_records_is_a_note_that_names_both() {
    let splits = open(cifar_10().path(), Cifar::Ten).unwrap();
    assert_eq!(splits.train.notes().len(), 5);
    assert_eq!(
        splits.train.notes()[1],
        "data_batch_2.bin: 1 records, the official file has 10000"
    );
}

#[test]
fn files_that_only_look_like_the_official_ones_are_named_in_one_note() {
    let dir = cifar_10();
    for file in ["data_batch_2.bin", "data_batch_4.bin"] {
        fs::write(dir.path().join(file), record(&[3]).repeat(10_000)).unwrap();
    }
    let splits = open(dir.path(), Cifar::Ten).unwrap();
    let notes: Vec<&String> = splits
        .train
        .notes()
        .iter()
        .filter(|note| note.contains("other content"))
        .collect();
    assert_eq!(notes.len(), 1);
    assert!(
        notes[0].starts_with("data_batch_2.bin, data_batch_4.bin: as many records as the official"),
        "{}",
        notes[0]
    );
    assert_eq!(
        splits.train.notes().len(),
        1 + 3,
        "the others have one record"
    );
    assert!(
        !splits
            .evaluated()
            .unwrap()
            .notes()
            .iter()
            .any(|note| note.contains("other content"))
    );
}

#[test]
fn every_file_of_the_releases_has_a_digest() {
    for cifar in [Cifar::Ten, Cifar::Hundred] {
        for file in cifar.train_files().iter().chain([&cifar.test_file()]) {
            assert_eq!(cifar.official_md5(file).len(), 32, "{file}");
        }
    }
    assert_eq!(
        to_hex(&Md5::digest(b"abc")),
        "900150983cd24fb0d6963f7d28e17f72"
    );
}

#[test]
fn the_fine_label_of_cifar_100_counts() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join(Cifar::Hundred.folder());
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("train.bin"), record(&[1, 70]).repeat(2)).unwrap();
    fs::write(folder.join("test.bin"), record(&[19, 99])).unwrap();
    let splits = open(dir.path(), Cifar::Hundred).unwrap();
    assert_eq!(
        (splits.train.label(1), splits.evaluated().unwrap().label(0)),
        (70, 99)
    );
    assert_eq!(splits.train.class_names()[70], "rose");
    assert_eq!(
        splits.train.notes(),
        ["train.bin: 2 records, the official file has 50000"]
    );
    assert_eq!(
        splits.evaluated().unwrap().notes(),
        ["test.bin: 1 records, the official file has 10000"]
    );
}

#[test]
fn the_official_names_are_sorted_and_different() {
    for cifar in [Cifar::Ten, Cifar::Hundred] {
        assert!(
            cifar
                .official_names()
                .split_whitespace()
                .is_sorted_by(|a, b| a < b)
        );
        assert_eq!(
            cifar.official_names().split_whitespace().count(),
            cifar.num_classes()
        );
    }
}

#[test]
fn a_partial_record_is_an_error_with_both_numbers() {
    for (len_bytes, detail) in [
        (0, "got 0 bytes"),
        (3074, "got 3074 bytes (1 records and 1 bytes)"),
    ] {
        let dir = cifar_10();
        fs::write(dir.path().join("data_batch_3.bin"), vec![0; len_bytes]).unwrap();
        let text = message(&dir, Cifar::Ten);
        assert!(text.contains("data_batch_3.bin"), "{text}");
        assert!(text.contains("records of 3073 bytes"), "{text}");
        assert!(text.contains(detail), "{text}");
    }
}

#[test]
fn a_label_out_of_range_is_an_error_that_names_the_record() {
    let dir = cifar_10();
    let content = [record(&[9]), record(&[10])].concat();
    fs::write(dir.path().join("test_batch.bin"), content).unwrap();
    let text = message(&dir, Cifar::Ten);
    assert!(
        text.ends_with("test_batch.bin: record 1: expected a label below 10, got 10"),
        "{text}"
    );
}

#[test]
fn missing_files_are_named() {
    let dir = cifar_10();
    fs::remove_file(dir.path().join("data_batch_5.bin")).unwrap();
    let text = message(&dir, Cifar::Ten);
    assert!(
        text.contains("cannot read") && text.contains("data_batch_5.bin"),
        "{text}"
    );
    let text = message(&dir, Cifar::Hundred);
    assert!(text.starts_with("cifar-100 not found in "), "{text}");
    assert!(text.contains("test.bin there or in "), "{text}");
}

#[test]
fn class_names_are_read_from_the_folder() {
    let dir = cifar_10();
    let path = dir.path().join("batches.meta.txt");
    fs::write(&path, "a\nb\nc\nd\ne\r\nf\ng\nh\ni\nj\n\n").unwrap();
    let splits = open(dir.path(), Cifar::Ten).unwrap();
    assert_eq!(splits.train.class_names().concat(), "abcdefghij");
    fs::write(&path, "a\nb\n").unwrap();
    let text = message(&dir, Cifar::Ten);
    assert!(
        text.ends_with("batches.meta.txt: expected 10 class names, got 2"),
        "{text}"
    );
}

#[test]
fn the_checksum_depends_on_labels_and_pixels() {
    let dir = cifar_10();
    let checksum = || {
        open_split(dir.path(), Cifar::Ten, "test")
            .unwrap()
            .checksum()
    };
    let first = checksum();
    assert_eq!(checksum(), first);
    let path = dir.path().join("test_batch.bin");
    let mut bytes = fs::read(&path).unwrap();
    bytes[0] += 1;
    fs::write(&path, &bytes).unwrap();
    let other_label = checksum();
    bytes[3000] += 1;
    fs::write(&path, &bytes).unwrap();
    let other_pixel = checksum();
    assert_ne!(other_label, first);
    assert_ne!(other_pixel, other_label);
}

#[test]
fn a_byte_order_mark_and_other_line_ends_are_no_part_of_class_names() {
    let dir = cifar_10();
    let path = dir.path().join("batches.meta.txt");
    fs::write(
        &path,
        "\u{feff}a\r\nb\r\nc\r\nd\r\ne\r\nf\r\ng\r\nh\r\ni\r\nj\r\n\r\n",
    )
    .unwrap();
    let splits = open(dir.path(), Cifar::Ten).unwrap();
    assert_eq!(
        splits.train.class_names(),
        ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"]
    );
}

#[test]
fn class_names_that_are_no_text_are_refused() {
    let dir = cifar_10();
    let path = dir.path().join("batches.meta.txt");
    // Some editors save UTF-16.
    fs::write(&path, b"\xFF\xFEa\0\n\0").unwrap();
    assert!(
        message(&dir, Cifar::Ten)
            .ends_with("expected text in UTF-8, got other bytes. Save it as UTF-8")
    );
    fs::File::create(&path).unwrap().set_len(1 << 40).unwrap();
    let text = message(&dir, Cifar::Ten);
    assert!(
        text.contains("batches.meta.txt: expected at most 1048576 bytes"),
        "{text}"
    );
}

#[test]
fn a_folder_or_pipe_in_place_of_records_is_refused_and_not_waited_for() {
    let dir = cifar_10();
    let path = dir.path().join("data_batch_2.bin");
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    let text = message(&dir, Cifar::Ten);
    assert!(
        text.contains("data_batch_2.bin: expected a regular file, got a folder"),
        "{text}"
    );
    fs::remove_dir(&path).unwrap();
    if cfg!(unix) {
        assert!(
            std::process::Command::new("mkfifo")
                .arg(&path)
                .status()
                .unwrap()
                .success()
        );
        let text = message(&dir, Cifar::Ten);
        assert!(
            text.contains("data_batch_2.bin: expected a regular file, got a named pipe"),
            "{text}"
        );
    }
}
