//! What shards promise, on tar files made here.

mod told;

use super::kept_open::MAX_OPEN;
use super::*;
use crate::image_folder;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use tar::{Builder, EntryType, Header};
use tempfile::TempDir;

/// A PNG of one colour.
fn png(value: u8) -> Vec<u8> {
    let mut bytes = std::io::Cursor::new(Vec::new());
    image::RgbImage::from_pixel(9, 7, image::Rgb([value; 3])).write_to(&mut bytes, image::ImageFormat::Png).unwrap();
    bytes.into_inner()
}

/// A tar file of these members.
fn tar(members: &[(&str, &[u8])]) -> Vec<u8> {
    builder(members).into_inner().unwrap()
}

/// A tar file that begins with these members.
fn builder(members: &[(&str, &[u8])]) -> Builder<Vec<u8>> {
    let mut archive = Builder::new(Vec::new());
    for (name, bytes) in members {
        let mut header = Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        // Names of more than 100 bytes become GNU's long ones.
        archive.append_data(&mut header, name, *bytes).unwrap();
    }
    archive
}

fn config(on_bad_image: OnBadImage) -> TarShardsConfig {
    let sizing = Sizing { size: 4, shorter_side: Some(5) };
    TarShardsConfig { sizing, on_bad_image, num_threads: 2, cache_dir: None }
}

/// A folder with this first shard of training, a second one and one to test with, both good.
fn folder(train: &[u8]) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    let good = tar(&[("x.png", &png(70)), ("x.cls", b"1"), ("y.json", b"{\"label\": 0}"), ("y.png", &png(71))]);
    for (name, bytes) in [("train-0.tar", train), ("train-1.tar", &good), ("val-0.tar", &good)] {
        fs::write(root.path().join(name), bytes).unwrap();
    }
    root
}

/// (label, grey value) of each sample.
fn samples(dataset: &dyn ImageDataset) -> Vec<(usize, u8)> {
    let sample = |index| {
        let mut pixels = [0; 48];
        dataset.read_image(index, &mut pixels).unwrap();
        (dataset.label(index), pixels[0])
    };
    (0..dataset.len()).map(sample).collect()
}

fn opened(root: &Path) -> Vec<(usize, u8)> {
    samples(&*open(root, &config(OnBadImage::Fail)).unwrap().train)
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
    let splits = open(root.path(), &config(OnBadImage::Fail)).unwrap();
    assert_eq!((splits.train.name(), splits.evaluated().unwrap().name()), ("shards train", "shards val"));
    assert_eq!(splits.evaluated().unwrap().class_names(), ["0", "1", "2"]);
    fs::write(root.path().join(CLASSES), "cat\ndog\n").unwrap();
    let text = open(root.path(), &config(OnBadImage::Fail)).unwrap_err().to_string();
    assert!(text.ends_with("classes.txt: expected 3 class names, got 2"), "{text}");
}

#[test]
fn the_index_is_read_again_when_a_shard_changes_and_made_in_the_cache_where_it_must() {
    let root = folder(&tar(&[("1.png", &png(10)), ("1.cls", b"1")]));
    assert_eq!(opened(root.path())[0], (1, 10));
    fs::write(root.path().join("train-0.tar"), tar(&[("1.png", &png(20)), ("1.cls", b"0")])).unwrap();
    assert_eq!(opened(root.path())[0], (0, 20));
    // Damaged, it is made anew.
    fs::write(root.path().join(INDEX), "lockstep shards 1\n").unwrap();
    assert_eq!(opened(root.path())[0], (0, 20));
    // A folder in its place cannot be written.
    fs::remove_file(root.path().join(INDEX)).unwrap();
    fs::create_dir(root.path().join(INDEX)).unwrap();
    let cache = tempfile::tempdir().unwrap();
    let config = TarShardsConfig { cache_dir: Some(cache.path().join("new")), ..config(OnBadImage::Fail) };
    for _ in 0..2 {
        assert_eq!(samples(&*open(root.path(), &config).unwrap().train)[0], (0, 20));
        assert_eq!(fs::read_dir(cache.path().join("new")).unwrap().count(), 1);
    }
}

#[test]
fn what_is_wrong_is_named_and_refused_or_skipped_with_a_note() {
    let (image, good) = (png(10), tar(&[("1.png", &png(10)), ("1.cls", b"1"), ("2.png", &png(12)), ("2.cls", b"0")]));
    let after = |members: &[(&str, &[u8])]| tar(&[&[("1.png", &image[..]), ("1.cls", b"1")], members].concat());
    let cases: [(Vec<u8>, &str); 9] = [
        (after(&[("2.png", &image)]), "2: expected a label, in 2.cls or a number under label in 2.json, got none"),
        (after(&[("2.png", &image), ("2.json", b"{}")]), "2: expected a label"),
        (after(&[("2.cls", b"0")]), "2: expected an image"),
        (
            after(&[("2.png", &image), ("2.png", &image), ("2.cls", b"0")]),
            "2: expected one image of this key, got several",
        ),
        (
            after(&[("2.png", &image), ("2.cls", b"0"), ("2.json", b"{\"label\":1}")]),
            "2: expected one label, got 0 and 1",
        ),
        (after(&[("2.png", &image), ("2.cls", b"cat")]), "2: expected a label from 0 to 65535, got cat"),
        (after(&[("2.png", &image), ("2.cls", b"65536")]), "2: expected a label from 0 to 65535, got 65536"),
        (good[..512 * 5 + 30].to_vec(), "2.png: expected"),
        ([&good[..2048], &[7; 4096]].concat(), "expected the header of a member, got other bytes"),
    ];
    for (train, expected) in cases {
        let root = folder(&train);
        for _ in 0..2 {
            let text = open(root.path(), &config(OnBadImage::Fail)).unwrap_err().to_string();
            assert!(text.contains("train-0.tar: ") && text.contains(expected), "{expected}: {text}");
        }
        let splits = open(root.path(), &config(OnBadImage::Skip)).unwrap();
        let kept = samples(&*splits.train);
        assert!(kept.starts_with(&[(1, 10)]) && kept.ends_with(&[(1, 70), (0, 71)]), "{expected}: {kept:?}");
        assert!(splits.train.notes().iter().any(|note| note.contains(expected)), "{expected}");
    }
}

#[test]
fn a_link_in_place_of_a_file_is_refused_or_skipped_with_a_note() {
    for (name, is_of_sample) in [("2.png", true), ("2.cls", true), ("2.json", true), ("2.txt", false)] {
        for kind in [EntryType::Link, EntryType::Symlink] {
            let mut train = builder(&[("1.png", &png(10)), ("1.cls", b"1")]);
            let mut header = Header::new_gnu();
            header.set_entry_type(kind);
            header.set_size(0);
            train.append_link(&mut header, name, "1.png").unwrap();
            let root = folder(&train.into_inner().unwrap());
            let expected = format!("train-0.tar: 2: expected a file in {}, got a link", &name[1..]);
            let train = open(root.path(), &config(OnBadImage::Skip)).unwrap().train;
            assert_eq!(samples(&*train), [(1, 10), (1, 70), (0, 71)]);
            assert_eq!(train.notes().iter().any(|note| note.contains(&expected)), is_of_sample, "{name} {kind:?}");
            let error = open(root.path(), &config(OnBadImage::Fail)).err().map(|error| error.to_string());
            assert_eq!(error.is_some_and(|text| text.contains(&expected)), is_of_sample, "{name} {kind:?}");
        }
    }
}

#[test]
fn an_image_above_the_limit_of_a_file_is_refused_by_its_header() {
    for (len_bytes, is_refused) in [(512 << 20, false), ((512 << 20) + 1, true)] {
        let mut train = tar(&[("1.cls", b"1"), ("1.png", b"")]);
        // The last header; the bytes that it tells of are a hole of the file.
        let place = train.len() - 1024 - 512;
        let mut header = Header::from_byte_slice(&train[place..place + 512]).clone();
        header.set_size(len_bytes);
        header.set_cksum();
        train[place..place + 512].copy_from_slice(header.as_bytes());
        let root = folder(&train);
        let shard = File::options().write(true).open(root.path().join("train-0.tar")).unwrap();
        shard.set_len((place as u64 + 512 + len_bytes).next_multiple_of(512) + 1024).unwrap();
        let error = open(root.path(), &config(OnBadImage::Fail)).err().map(|error| error.to_string());
        let expected = "train-0.tar: 1: expected an image of at most 536870912 bytes, got 536870913";
        assert_eq!(error.as_ref().is_some_and(|text| text.contains(expected)), is_refused, "{error:?}");
    }
}

#[test]
fn all_splits_together_keep_no_more_shards_open_than_a_process_may() {
    let (root, shard) = (tempfile::tempdir().unwrap(), tar(&[("1.png", b"an image"), ("1.cls", b"1")]));
    let splits = ["train", "val"].map(|split| {
        let names: Vec<_> = (0..=MAX_OPEN / 2).map(|number| format!("{split}-{number}.tar")).collect();
        names.iter().for_each(|name| fs::write(root.path().join(name), &shard).unwrap());
        let indices = indexed(root.path(), &names, None, &config(OnBadImage::Fail)).unwrap();
        Shards::new(root.path(), split.to_owned(), None, indices, Vec::new()).unwrap().source
    });
    for split in &splits {
        (0..split.images.len()).for_each(|image| assert_eq!(split.read(image).unwrap(), b"an image"));
    }
    let num_open = splits.iter().flat_map(|split| &split.shards).filter(|shard| shard.is_open()).count();
    assert!((1..=MAX_OPEN).contains(&num_open), "{num_open}");
}

#[test]
fn an_image_that_does_not_decode_is_named_by_shard_and_key() {
    let root = folder(&tar(&[("1.png", b"no image"), ("1.cls", b"1"), ("2.png", &png(9)), ("2.cls", b"1")]));
    let train = open(root.path(), &config(OnBadImage::Fail)).unwrap().train;
    let text = train.read_image(0, &mut [0; 48]).unwrap_err().to_string();
    assert!(text.contains("train-0.tar/1"), "{text}");
    let train = open(root.path(), &config(OnBadImage::Skip)).unwrap().train;
    assert_eq!(samples(&*train), [(1, 9), (1, 70), (0, 71)]);
    assert!(train.notes().last().unwrap().starts_with("1 of 4 image files were skipped"));
}

#[test]
fn missing_shards_are_told_with_a_remedy() {
    let root = tempfile::tempdir().unwrap();
    let text = open(root.path(), &config(OnBadImage::Fail)).unwrap_err().to_string();
    assert!(text.contains("files of the split train not found") && text.contains("trainer shard"), "{text}");
}

/// A folder of images of two classes, 7 to train on and 3 to test with.
fn images() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for number in 0..10u8 {
        let split = if number < 7 { "train" } else { "val" };
        let dir = root.path().join(split).join(["cat", "dog"][usize::from(number % 2)]);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(format!("photo.of.{number}.png")), png(10 * number)).unwrap();
    }
    root
}

#[test]
fn shards_of_a_folder_hold_its_samples_in_its_order_whatever_their_number() {
    let (from, target) = (images(), tempfile::tempdir().unwrap());
    let sizing = config(OnBadImage::Fail).sizing;
    let expected = image_folder::open(from.path(), &crate::ImageFolderConfig::new(sizing)).unwrap();
    for (images_per_shard, num_shards) in [(7, 2), (4, 3), (2, 6)] {
        let to = target.path().join(format!("{images_per_shard}"));
        let mut told = Vec::new();
        let written = write(from.path(), &to, images_per_shard, &mut |name| {
            told.push(name.to_owned());
            true
        })
        .unwrap();
        assert_eq!(written, ShardWriting { num_shards, num_images: 10, notes: vec![] });
        assert_eq!((told.len(), &told[0][..]), (num_shards, "train-000000.tar"));
        let splits = open(&to, &config(OnBadImage::Fail)).unwrap();
        assert_eq!(samples(&*splits.train), samples(&*expected.train));
        assert_eq!(samples(&**splits.evaluated().unwrap()), samples(&**expected.evaluated().unwrap()));
        assert_eq!(splits.train.class_names(), ["cat", "dog"]);
        assert!(!splits.train.checksum_reads_files());
        // The digests are those of the files.
        for line in fs::read_to_string(to.join(MANIFEST)).unwrap().lines() {
            let (digest, name) = line.split_once("  ").unwrap();
            assert_eq!(digest, to_hex(&Sha256::digest(fs::read(to.join(name)).unwrap())));
        }
        // Without them the checksum is another one, over the images.
        fs::remove_file(to.join(MANIFEST)).unwrap();
        let without = open(&to, &config(OnBadImage::Fail)).unwrap();
        assert!(without.train.checksum_reads_files());
        assert_ne!(without.train.checksum(), splits.train.checksum());
    }
    assert_eq!(fs::read_dir(target.path()).unwrap().count(), 3, "no parts are left");
}

#[test]
fn every_split_is_written_and_what_is_left_out_is_told_and_recorded() {
    let (from, target) = (images(), tempfile::tempdir().unwrap());
    for (name, value) in [("test/dog/deep/er/a.png", 1), ("train/cat/again/b.png", 2), ("train/loose.png", 3)] {
        let path = from.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, png(value)).unwrap();
    }
    fs::write(from.path().join("train/cat/scan.psd"), "").unwrap();
    let to = target.path().join("to");
    let written = write(from.path(), &to, 100, &mut |_| true).unwrap();
    assert_eq!((written.num_shards, written.num_images, written.notes.len()), (3, 12, 3), "{:?}", written.notes);
    let manifest = fs::read_to_string(to.join(MANIFEST)).unwrap();
    for (note, what) in written.notes.iter().zip(["loose.png", "scan.psd", "test: 1 of 2 classes have no image: cat"]) {
        assert!(note.contains(what) && manifest.contains(&format!("# {note}\n")), "{note}");
    }
    let splits = open(&to, &config(OnBadImage::Fail)).unwrap();
    assert_eq!([splits.train.len(), splits.val.unwrap().len(), splits.test.unwrap().len()], [8, 3, 1]);
    assert!(!splits.train.checksum_reads_files());
    let checked = std::process::Command::new("sha256sum")
        .args(["--check", "--strict", "--status", MANIFEST])
        .current_dir(&to)
        .status();
    assert!(checked.is_ok_and(|status| status.success()));
}

#[test]
fn shards_are_not_written_over_anything_nor_left_half_done() {
    let (from, target) = (images(), tempfile::tempdir().unwrap());
    let to = target.path().join("to");
    fs::create_dir(&to).unwrap();
    write(from.path(), &to, 100, &mut |_| true).unwrap();
    let text = write(from.path(), &to, 100, &mut |_| true).unwrap_err().to_string();
    assert!(text.contains("to: expected a new or empty folder"), "{text}");
    let other = target.path().join("other");
    let text = write(from.path(), &other, 100, &mut |_| false).unwrap_err().to_string();
    assert!(text.contains("stopped before all was written"), "{text}");
    for split in ["train", "val"] {
        fs::rename(from.path().join(split).join("cat"), from.path().join(split).join("c\nat")).unwrap();
    }
    let text = write(from.path(), &other, 100, &mut |_| true).unwrap_err().to_string();
    assert!(text.contains("expected a name on one line") && text.contains(r#"got "c\nat""#), "{text}");
    assert_eq!(fs::read_dir(target.path()).unwrap().count(), 1, "only what is whole");
}

#[test]
fn a_folder_that_is_there_stays_the_one_it_was_and_a_link_to_nothing_is_refused_before_the_work() {
    let (from, target) = (images(), tempfile::tempdir().unwrap());
    let to = target.path().join("to");
    fs::create_dir(&to).unwrap();
    let inode = || fs::metadata(&to).unwrap().ino();
    let before = inode();
    let mut beside = Vec::new();
    write(from.path(), &to, 4, &mut |_| {
        beside.push(fs::read_dir(target.path()).unwrap().count());
        beside.len() < 2
    })
    .unwrap_err();
    assert_eq!((beside, fs::read_dir(&to).unwrap().count()), (vec![1; 2], 0), "as it was");
    write(from.path(), &to, 4, &mut |_| true).unwrap();
    assert_eq!((inode(), fs::read_dir(&to).unwrap().count()), (before, 5));
    let text = write(from.path(), &to, 4, &mut |_| true).unwrap_err().to_string();
    assert!(text.contains("to: expected a new or empty folder, got one with "), "{text}");
    let link = target.path().join("link");
    std::os::unix::fs::symlink(target.path().join("nothing"), &link).unwrap();
    let text = write(from.path(), &link, 4, &mut |_| panic!("no work")).unwrap_err().to_string();
    assert!(text.contains("link: expected a folder") && link.is_symlink(), "{text}");
}

#[test]
fn what_a_killed_process_left_is_removed_unless_the_folder_holds_more_or_another_writes_to_it() {
    let (from, target) = (images(), tempfile::tempdir().unwrap());
    let to = target.path();
    for folder in ["lost+found", ".part-1", ".part-2"] {
        fs::create_dir(to.join(folder)).unwrap();
        fs::write(to.join(folder).join("train-000000.tar"), "half of it").unwrap();
    }
    let refusal = || write(from.path(), to, 4, &mut |_| panic!("no work")).unwrap_err().to_string();
    let other = File::open(to.join(".part-2")).unwrap();
    other.lock().unwrap();
    assert!(refusal().contains("expected a new or empty folder, got one with .part-2"));
    drop(other);
    fs::write(to.join("mine"), "").unwrap();
    assert!(refusal().contains("got one with mine"));
    assert!(to.join(".part-1").exists());
    fs::remove_file(to.join("mine")).unwrap();
    let mut held = false;
    write(from.path(), to, 4, &mut |_| {
        let part = to.join(format!(".part-{}", std::process::id()));
        held = File::open(part).unwrap().try_lock().is_err();
        true
    })
    .unwrap();
    assert!(held);
    assert_eq!(fs::read_dir(to).unwrap().count(), 6, "shards, names, digests and what was there");
}

#[test]
fn a_shard_that_is_newer_than_the_manifest_or_was_another_before_must_be_the_one_it_lists() {
    let (from, target) = (images(), tempfile::tempdir().unwrap());
    let to = target.path().join("to");
    write(from.path(), &to, 3, &mut |_| true).unwrap();
    let listed = samples(&*open(&to, &config(OnBadImage::Fail)).unwrap().train);
    let path = to.join("train-000001.tar");
    let bytes = fs::read(&path).unwrap();
    // The same once more: other times, the same bytes.
    fs::write(&path, &bytes).unwrap();
    assert_eq!(samples(&*open(&to, &config(OnBadImage::Fail)).unwrap().train), listed);
    // Another of the same length, as old as the manifest: the index knew one that was not it.
    let mut other = bytes.clone();
    let place = other.iter().rposition(|byte| *byte != 0).unwrap();
    other[place] ^= 1;
    fs::write(&path, &other).unwrap();
    let old = fs::metadata(to.join(MANIFEST)).unwrap().modified().unwrap();
    File::options().append(true).open(&path).unwrap().set_modified(old).unwrap();
    let text = open(&to, &config(OnBadImage::Skip)).unwrap_err().to_string();
    assert!(text.contains("train-000001.tar: expected sha256") && text.contains("as MANIFEST says"), "{text}");
    // No index, and newer than the manifest.
    fs::remove_file(to.join(INDEX)).unwrap();
    File::options().append(true).open(&path).unwrap().set_modified(old + std::time::Duration::from_secs(1)).unwrap();
    open(&to, &config(OnBadImage::Fail)).unwrap_err();
}

#[test]
fn a_manifest_that_does_not_list_all_shards_is_spoken_of() {
    let (from, target) = (images(), tempfile::tempdir().unwrap());
    let to = target.path().join("to");
    write(from.path(), &to, 3, &mut |_| true).unwrap();
    let speaks = || {
        let splits = open(&to, &config(OnBadImage::Fail)).unwrap();
        [&splits.train, splits.evaluated().unwrap()]
            .map(|split| split.notes().iter().any(|note| note.starts_with("MANIFEST")))
    };
    assert_eq!(speaks(), [false; 2]);
    let manifest = fs::read_to_string(to.join(MANIFEST)).unwrap();
    let without_first: String = manifest.split_inclusive('\n').filter(|line| !line.contains("train-000000")).collect();
    fs::write(to.join(MANIFEST), without_first).unwrap();
    assert_eq!(speaks(), [true, false]);
}

#[test]
fn a_shard_that_the_manifest_lists_must_be_there() {
    let (from, target) = (images(), tempfile::tempdir().unwrap());
    let to = target.path().join("to");
    write(from.path(), &to, 3, &mut |_| true).unwrap();
    fs::remove_file(to.join("train-000001.tar")).unwrap();
    let text = open(&to, &config(OnBadImage::Fail)).unwrap_err().to_string();
    assert!(text.contains("train-000001.tar not found"), "{text}");
}
