//! Tests of shards on tar files that the tests write.

mod told;
mod written;

use super::kept_open::MAX_OPEN;
use super::*;
use crate::decode::Sizing;
use std::fs::File;
use std::path::Path;
use tar::{Builder, EntryType, Header};
use tempfile::TempDir;

/// Returns a PNG of one colour.
fn png(value: u8) -> Vec<u8> {
    let mut bytes = std::io::Cursor::new(Vec::new());
    image::RgbImage::from_pixel(9, 7, image::Rgb([value; 3]))
        .write_to(&mut bytes, image::ImageFormat::Png)
        .unwrap();
    bytes.into_inner()
}

/// Returns a tar file with these members.
fn tar(members: &[(&str, &[u8])]) -> Vec<u8> {
    builder(members).into_inner().unwrap()
}

/// Returns a tar file that starts with these members.
fn builder(members: &[(&str, &[u8])]) -> Builder<Vec<u8>> {
    let mut archive = Builder::new(Vec::new());
    for (name, bytes) in members {
        let mut header = Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        // Names of more than 100 bytes become GNU's long names.
        archive.append_data(&mut header, name, *bytes).unwrap();
    }
    archive
}

fn config(on_bad_image: OnBadImage) -> ReadConfig {
    let sizing = Sizing {
        size: 4,
        shorter_side: Some(5),
    };
    ReadConfig {
        on_bad_image,
        num_threads: 2,
        ..ReadConfig::new(sizing)
    }
}

/// Returns a folder with this first training shard, a valid second training shard and a valid test
/// shard.
fn folder(train: &[u8]) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    let good = tar(&[
        ("x.png", &png(70)),
        ("x.cls", b"1"),
        ("y.json", b"{\"label\": 0}"),
        ("y.png", &png(71)),
    ]);
    for (name, bytes) in [
        ("train-0.tar", train),
        ("train-1.tar", &good),
        ("val-0.tar", &good),
    ] {
        fs::write(root.path().join(name), bytes).unwrap();
    }
    root
}

/// Returns the label and the grey value of each sample.
fn samples(dataset: &dyn ImageDataset) -> Vec<(usize, u8)> {
    let sample = |index| {
        let mut pixels = [0; 48];
        dataset.read_image(index, &mut pixels).unwrap();
        (dataset.label(index), pixels[0])
    };
    (0..dataset.len()).map(sample).collect()
}

/// Opens a folder without bad samples.
fn strict(root: &Path) -> DatasetSplits {
    open(root, &config(OnBadImage::Fail)).unwrap()
}

fn refusal(root: &Path, on_bad_image: OnBadImage) -> String {
    open(root, &config(on_bad_image)).unwrap_err().to_string()
}

fn opened(root: &Path) -> Vec<(usize, u8)> {
    samples(&*strict(root).train)
}

#[test]
fn samples_stand_in_the_order_of_their_shards() {
    let long = format!("{}/a.b.png", "folder/".repeat(30));
    let train = tar(&[
        ("d/1.cls", b" 2\n"),
        ("d/1.json", b"{\"label\": \"a dog, in words\"}"),
        ("d/1.PNG", &png(10)),
        (&long.replace("a.b.png", "a.png"), &png(11)),
        (&long.replace("a.b.png", "a.cls"), b"0"),
        ("note.txt", b"nothing"),
        ("2.jpeg", &png(12)),
        ("2.cls", b"1"),
        ("2.json", b"{\"label\": 1, \"caption\": \"a cat\"}"),
    ]);
    let root = folder(&train);
    let expected = [(2, 10), (0, 11), (1, 12), (1, 70), (0, 71)];
    for _ in 0..2 {
        assert_eq!(opened(root.path()), expected);
        assert!(root.path().join(INDEX).exists());
    }
    let splits = strict(root.path());
    assert_eq!(
        (splits.train.name(), splits.evaluated().unwrap().name()),
        ("shards train", "shards val")
    );
    assert_eq!(splits.evaluated().unwrap().class_names(), ["0", "1", "2"]);
    fs::write(root.path().join(CLASSES), "cat\ndog\n").unwrap();
    let text = refusal(root.path(), OnBadImage::Fail);
    assert!(
        text.ends_with("classes.txt: expected 3 class names, got 2"),
        "{text}"
    );
}

#[test]
fn the_index_is_read_again_when_a_shard_changes_and_made_in_the_cache_where_it_must() {
    let root = folder(&tar(&[("1.png", &png(10)), ("1.cls", b"1")]));
    assert_eq!(opened(root.path())[0], (1, 10));
    fs::write(
        root.path().join("train-0.tar"),
        tar(&[("1.png", &png(20)), ("1.cls", b"0")]),
    )
    .unwrap();
    assert_eq!(opened(root.path())[0], (0, 20));
    // A damaged index is written again.
    fs::write(root.path().join(INDEX), "lockstep shards 1\n").unwrap();
    assert_eq!(opened(root.path())[0], (0, 20));
    // If there is a folder in its place, the index cannot be written.
    fs::remove_file(root.path().join(INDEX)).unwrap();
    fs::create_dir(root.path().join(INDEX)).unwrap();
    let cache = tempfile::tempdir().unwrap();
    let config = ReadConfig {
        cache_dir: Some(cache.path().join("new")),
        ..config(OnBadImage::Fail)
    };
    for _ in 0..2 {
        assert_eq!(
            samples(&*open(root.path(), &config).unwrap().train)[0],
            (0, 20)
        );
        assert_eq!(fs::read_dir(cache.path().join("new")).unwrap().count(), 1);
    }
}

#[test]
fn what_is_wrong_is_named_and_refused_or_skipped_with_a_note() {
    let image = png(10);
    let good = tar(&[
        ("1.png", &png(10)),
        ("1.cls", b"1"),
        ("2.png", &png(12)),
        ("2.cls", b"0"),
    ]);
    let after = |members: &[(&str, &[u8])]| {
        tar(&[&[("1.png", &image[..]), ("1.cls", b"1")], members].concat())
    };
    let cases: [(Vec<u8>, &str); 9] = [
        (
            after(&[("2.png", &image)]),
            "2: expected a label, in 2.cls or a number under label in 2.json, got none",
        ),
        (
            after(&[("2.png", &image), ("2.json", b"{}")]),
            "2: expected a label",
        ),
        (after(&[("2.cls", b"0")]), "2: expected an image"),
        (
            after(&[("2.png", &image), ("2.png", &image), ("2.cls", b"0")]),
            "2: expected one image of this key, got several",
        ),
        (
            after(&[
                ("2.png", &image),
                ("2.cls", b"0"),
                ("2.json", b"{\"label\":1}"),
            ]),
            "2: expected one label, got 0 and 1",
        ),
        (
            after(&[("2.png", &image), ("2.cls", b"cat")]),
            "2: expected a label from 0 to 65535, got cat",
        ),
        (
            after(&[("2.png", &image), ("2.cls", b"65536")]),
            "2: expected a label from 0 to 65535, got 65536",
        ),
        (good[..512 * 5 + 30].to_vec(), "2.png: expected"),
        (
            [&good[..2048], &[7; 4096]].concat(),
            "expected the header of a member, got other bytes",
        ),
    ];
    for (train, expected) in cases {
        let root = folder(&train);
        for _ in 0..2 {
            let text = refusal(root.path(), OnBadImage::Fail);
            assert!(
                text.contains("train-0.tar: ") && text.contains(expected),
                "{expected}: {text}"
            );
        }
        let splits = open(root.path(), &config(OnBadImage::Skip)).unwrap();
        let kept = samples(&*splits.train);
        assert!(
            kept.starts_with(&[(1, 10)]) && kept.ends_with(&[(1, 70), (0, 71)]),
            "{expected}: {kept:?}"
        );
        assert!(
            splits
                .train
                .notes()
                .iter()
                .any(|note| note.contains(expected)),
            "{expected}"
        );
    }
}

#[test]
fn a_link_in_place_of_a_file_is_refused_or_skipped_with_a_note() {
    for (name, is_of_sample) in [
        ("2.png", true),
        ("2.cls", true),
        ("2.json", true),
        ("2.txt", false),
    ] {
        for kind in [EntryType::Link, EntryType::Symlink] {
            let mut train = builder(&[("1.png", &png(10)), ("1.cls", b"1")]);
            let mut header = Header::new_gnu();
            header.set_entry_type(kind);
            header.set_size(0);
            train.append_link(&mut header, name, "1.png").unwrap();
            let root = folder(&train.into_inner().unwrap());
            let expected = format!(
                "train-0.tar: 2: expected a file in {}, got a link",
                &name[1..]
            );
            let train = open(root.path(), &config(OnBadImage::Skip)).unwrap().train;
            assert_eq!(samples(&*train), [(1, 10), (1, 70), (0, 71)]);
            assert_eq!(
                train.notes().iter().any(|note| note.contains(&expected)),
                is_of_sample,
                "{name} {kind:?}"
            );
            let error = open(root.path(), &config(OnBadImage::Fail))
                .err()
                .map(|error| error.to_string());
            assert_eq!(
                error.is_some_and(|text| text.contains(&expected)),
                is_of_sample,
                "{name} {kind:?}"
            );
        }
    }
}

#[test]
fn an_image_above_the_limit_of_a_file_is_refused_by_its_header() {
    for (len_bytes, is_refused) in [(512 << 20, false), ((512 << 20) + 1, true)] {
        let mut train = tar(&[("1.cls", b"1"), ("1.png", b"")]);
        // This is the last header. The file has a hole in place of the declared bytes.
        let place = train.len() - 1024 - 512;
        let mut header = Header::from_byte_slice(&train[place..place + 512]).clone();
        header.set_size(len_bytes);
        header.set_cksum();
        train[place..place + 512].copy_from_slice(header.as_bytes());
        let root = folder(&train);
        let shard = File::options()
            .write(true)
            .open(root.path().join("train-0.tar"))
            .unwrap();
        shard
            .set_len((place as u64 + 512 + len_bytes).next_multiple_of(512) + 1024)
            .unwrap();
        let error = open(root.path(), &config(OnBadImage::Fail))
            .err()
            .map(|error| error.to_string());
        let expected =
            "train-0.tar: 1: expected an image of at most 536870912 bytes, got 536870913";
        assert_eq!(
            error.as_ref().is_some_and(|text| text.contains(expected)),
            is_refused,
            "{error:?}"
        );
    }
}

#[test]
fn all_splits_together_keep_no_more_shards_open_than_a_process_may() {
    let root = tempfile::tempdir().unwrap();
    let shard = tar(&[("1.png", b"an image"), ("1.cls", b"1")]);
    let splits = ["train", "val"].map(|split| {
        let names: Vec<_> = (0..=MAX_OPEN / 2)
            .map(|number| format!("{split}-{number}.tar"))
            .collect();
        names
            .iter()
            .for_each(|name| fs::write(root.path().join(name), &shard).unwrap());
        let indices = indexed(root.path(), &names, None, &config(OnBadImage::Fail)).unwrap();
        let files = FoundFiles {
            split: split.to_owned(),
            names,
            notes: Vec::new(),
        };
        found_split(root.path(), files, None, indices, OnBadImage::Fail)
            .unwrap()
            .source
    });
    for split in &splits {
        (0..split.images.len())
            .for_each(|image| assert_eq!(split.read(image).unwrap(), b"an image"));
    }
    let num_open = splits
        .iter()
        .flat_map(|split| &split.shards)
        .filter(|shard| shard.is_open())
        .count();
    assert!((1..=MAX_OPEN).contains(&num_open), "{num_open}");
}

#[test]
fn an_image_that_does_not_decode_is_named_by_shard_and_key() {
    let root = folder(&tar(&[
        ("1.png", b"no image"),
        ("1.cls", b"1"),
        ("2.png", &png(9)),
        ("2.cls", b"1"),
    ]));
    let train = strict(root.path()).train;
    let text = train.read_image(0, &mut [0; 48]).unwrap_err().to_string();
    assert!(text.contains("train-0.tar/1"), "{text}");
    let train = open(root.path(), &config(OnBadImage::Skip)).unwrap().train;
    assert_eq!(samples(&*train), [(1, 9), (1, 70), (0, 71)]);
    assert!(
        train
            .notes()
            .last()
            .unwrap()
            .starts_with("skipped 1 of 4 image files")
    );
}

#[test]
fn missing_shards_are_told_with_a_remedy() {
    let root = tempfile::tempdir().unwrap();
    let text = refusal(root.path(), OnBadImage::Fail);
    assert!(
        text.contains("files of the split train not found") && text.contains("trainer shard"),
        "{text}"
    );
}
