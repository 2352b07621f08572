//! Tests of writing a folder as shards and of the manifest.

use std::os::unix::fs::MetadataExt;

use super::*;
use crate::image_folder;

/// Returns a folder with images of two classes, 7 for training and 3 for testing.
fn images() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for number in 0..10u8 {
        let split = if number < 7 { "train" } else { "val" };
        let dir = root
            .path()
            .join(split)
            .join(["cat", "dog"][usize::from(number % 2)]);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(format!("photo.of.{number}.png")), png(10 * number)).unwrap();
    }
    root
}

/// Returns a folder of images, a folder, and a path in it that does not exist.
fn folders() -> (TempDir, TempDir, PathBuf) {
    let target = tempfile::tempdir().unwrap();
    let to = target.path().join("to");
    (images(), target, to)
}

fn write_refusal(from: &TempDir, to: &Path, proceed: &mut dyn FnMut(&str) -> bool) -> String {
    write(from.path(), to, 4, proceed).unwrap_err().to_string()
}

fn set_modified(path: &Path, time: std::time::SystemTime) {
    let file = File::options().append(true).open(path).unwrap();
    file.set_modified(time).unwrap();
}

#[test]
fn shards_of_a_folder_hold_its_samples_in_its_order_whatever_their_number() {
    let from = images();
    let target = tempfile::tempdir().unwrap();
    let sizing = config(OnBadImage::Fail).sizing;
    let expected = image_folder::open(from.path(), &crate::ReadConfig::new(sizing)).unwrap();
    for (images_per_shard, num_shards) in [(7, 2), (4, 3), (2, 6)] {
        let to = target.path().join(format!("{images_per_shard}"));
        let mut told = Vec::new();
        let written = write(from.path(), &to, images_per_shard, &mut |name| {
            told.push(name.to_owned());
            true
        })
        .unwrap();
        assert_eq!(
            written,
            ShardWriting {
                num_shards,
                num_images: 10,
                notes: vec![]
            }
        );
        assert_eq!((told.len(), &told[0][..]), (num_shards, "train-000000.tar"));
        let splits = strict(&to);
        assert_eq!(samples(&*splits.train), samples(&*expected.train));
        assert_eq!(
            samples(&**splits.evaluated().unwrap()),
            samples(&**expected.evaluated().unwrap())
        );
        assert_eq!(splits.train.class_names(), ["cat", "dog"]);
        assert!(!splits.train.checksum_reads_files());
        // The digests are those of the files.
        for line in fs::read_to_string(to.join(MANIFEST)).unwrap().lines() {
            let (digest, name) = line.split_once("  ").unwrap();
            assert_eq!(
                digest,
                to_hex(&Sha256::digest(fs::read(to.join(name)).unwrap()))
            );
        }
        // Without digests the checksum is different, because it covers the images.
        fs::remove_file(to.join(MANIFEST)).unwrap();
        let without = strict(&to);
        assert!(without.train.checksum_reads_files());
        assert_ne!(without.train.checksum(), splits.train.checksum());
    }
    assert_eq!(
        fs::read_dir(target.path()).unwrap().count(),
        3,
        "no parts are left"
    );
}

#[test]
fn every_split_is_written_and_what_is_left_out_is_told_and_recorded() {
    let from = images();
    let target = tempfile::tempdir().unwrap();
    for (name, value) in [
        ("test/dog/deep/er/a.png", 1),
        ("train/cat/again/b.png", 2),
        ("train/loose.png", 3),
    ] {
        let path = from.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, png(value)).unwrap();
    }
    fs::write(from.path().join("train/cat/scan.psd"), "").unwrap();
    let to = target.path().join("to");
    let written = write(from.path(), &to, 100, &mut |_| true).unwrap();
    assert_eq!(
        (written.num_shards, written.num_images, written.notes.len()),
        (3, 12, 3),
        "{:?}",
        written.notes
    );
    let manifest = fs::read_to_string(to.join(MANIFEST)).unwrap();
    for (note, what) in written.notes.iter().zip([
        "loose.png",
        "scan.psd",
        "test: 1 of 2 classes without an image: cat",
    ]) {
        assert!(
            note.contains(what) && manifest.contains(&format!("# {note}\n")),
            "{note}"
        );
    }
    let splits = strict(&to);
    assert_eq!(
        [
            splits.train.len(),
            splits.val.unwrap().len(),
            splits.test.unwrap().len()
        ],
        [8, 3, 1]
    );
    assert!(!splits.train.checksum_reads_files());
    let checked = std::process::Command::new("sha256sum")
        .args(["--check", "--strict", "--status", MANIFEST])
        .current_dir(&to)
        .status();
    assert!(checked.is_ok_and(|status| status.success()));
}

#[test]
fn shards_are_not_written_over_anything_nor_left_half_done() {
    let (from, target, to) = folders();
    fs::create_dir(&to).unwrap();
    write(from.path(), &to, 100, &mut |_| true).unwrap();
    let text = write_refusal(&from, &to, &mut |_| true);
    assert!(
        text.contains("to: expected a new or empty folder"),
        "{text}"
    );
    let other = target.path().join("other");
    let text = write_refusal(&from, &other, &mut |_| false);
    assert!(text.contains("stopped before all was written"), "{text}");
    for split in ["train", "val"] {
        fs::rename(
            from.path().join(split).join("cat"),
            from.path().join(split).join("c\nat"),
        )
        .unwrap();
    }
    let text = write_refusal(&from, &other, &mut |_| true);
    assert!(
        text.contains("expected a name on one line") && text.contains(r#"got "c\nat""#),
        "{text}"
    );
    assert_eq!(
        fs::read_dir(target.path()).unwrap().count(),
        1,
        "only what is whole"
    );
}

#[test]
fn a_folder_that_is_there_stays_the_one_it_was_and_a_link_to_nothing_is_refused_before_the_work() {
    let (from, target, to) = folders();
    fs::create_dir(&to).unwrap();
    let inode = || fs::metadata(&to).unwrap().ino();
    let before = inode();
    let mut counts = Vec::new();
    write(from.path(), &to, 4, &mut |_| {
        counts.push(fs::read_dir(target.path()).unwrap().count());
        counts.len() < 2
    })
    .unwrap_err();
    assert_eq!(
        (counts, fs::read_dir(&to).unwrap().count()),
        (vec![1; 2], 0),
        "nothing is left"
    );
    write(from.path(), &to, 4, &mut |_| true).unwrap();
    assert_eq!((inode(), fs::read_dir(&to).unwrap().count()), (before, 5));
    let text = write_refusal(&from, &to, &mut |_| true);
    assert!(
        text.contains("to: expected a new or empty folder, got one with "),
        "{text}"
    );
    let link = target.path().join("link");
    std::os::unix::fs::symlink(target.path().join("nothing"), &link).unwrap();
    let text = write_refusal(&from, &link, &mut |_| panic!("no work"));
    assert!(
        text.contains("link: expected a folder") && link.is_symlink(),
        "{text}"
    );
}

#[test]
fn what_a_killed_process_left_is_removed_unless_the_folder_holds_more_or_another_writes_to_it() {
    let from = images();
    let target = tempfile::tempdir().unwrap();
    let to = target.path();
    for folder in ["lost+found", ".part-1", ".part-2"] {
        fs::create_dir(to.join(folder)).unwrap();
        fs::write(to.join(folder).join("train-000000.tar"), "half of it").unwrap();
    }
    let refusal = || write_refusal(&from, to, &mut |_| panic!("no work"));
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
    assert_eq!(
        fs::read_dir(to).unwrap().count(),
        6,
        "shards, names, digests and what was there"
    );
}

#[test]
fn a_shard_that_is_newer_than_the_manifest_or_was_another_before_must_be_the_one_it_lists() {
    let (from, _target, to) = folders();
    write(from.path(), &to, 3, &mut |_| true).unwrap();
    let listed = opened(&to);
    let path = to.join("train-000001.tar");
    let bytes = fs::read(&path).unwrap();
    // The same bytes are written again, so only the times change.
    fs::write(&path, &bytes).unwrap();
    assert_eq!(opened(&to), listed);
    // The other file has the shard's length and the manifest's time. The index has the old file.
    let mut other = bytes.clone();
    let place = other.iter().rposition(|byte| *byte != 0).unwrap();
    other[place] ^= 1;
    fs::write(&path, &other).unwrap();
    let old = fs::metadata(to.join(MANIFEST)).unwrap().modified().unwrap();
    set_modified(&path, old);
    let text = refusal(&to, OnBadImage::Skip);
    assert!(
        text.contains("train-000001.tar: expected sha256") && text.contains("as MANIFEST says"),
        "{text}"
    );
    // There is no index, and the shard is newer than the manifest.
    fs::remove_file(to.join(INDEX)).unwrap();
    set_modified(&path, old + std::time::Duration::from_secs(1));
    open(&to, &config(OnBadImage::Fail)).unwrap_err();
}

#[test]
fn a_manifest_that_does_not_list_all_shards_is_noted_and_a_shard_that_it_lists_must_exist() {
    let (from, _target, to) = folders();
    write(from.path(), &to, 3, &mut |_| true).unwrap();
    let is_noted = || {
        let splits = strict(&to);
        [&splits.train, splits.evaluated().unwrap()].map(|split| {
            split
                .notes()
                .iter()
                .any(|note| note.starts_with("MANIFEST"))
        })
    };
    assert_eq!(is_noted(), [false; 2]);
    let manifest = fs::read_to_string(to.join(MANIFEST)).unwrap();
    let without_first: String = manifest
        .split_inclusive('\n')
        .filter(|line| !line.contains("train-000000"))
        .collect();
    fs::write(to.join(MANIFEST), without_first).unwrap();
    assert_eq!(is_noted(), [true, false]);
    fs::remove_file(to.join("train-000001.tar")).unwrap();
    let text = refusal(&to, OnBadImage::Fail);
    assert!(text.contains("train-000001.tar not found"), "{text}");
}
