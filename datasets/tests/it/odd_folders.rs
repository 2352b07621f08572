//! Folders of images with odd entries: each is used, ignored with a note, or rejected with its
//! path. Opening never waits.

use std::fs;
use std::path::{Path, PathBuf};

use datasets::image_folder::open;
use datasets::{DatasetSplits, OnBadImage, ReadConfig, Sizing, load_image};
use image::{Rgb, RgbImage};
use tempfile::TempDir;

fn write_image(path: PathBuf) -> PathBuf {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let bytes = encoded();
    fs::write(&path, bytes).unwrap();
    path
}

/// Returns a PNG of 2x2 pixels, whatever name its file gets.
fn encoded() -> Vec<u8> {
    let mut bytes = std::io::Cursor::new(Vec::new());
    RgbImage::from_pixel(2, 2, Rgb([9; 3]))
        .write_to(&mut bytes, image::ImageFormat::Png)
        .unwrap();
    bytes.into_inner()
}

/// Returns two classes with one image each for training and for testing.
fn folder() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for class in ["train/cat", "train/dog", "test/cat", "test/dog"] {
        write_image(root.path().join(class).join("a.png"));
    }
    root
}

/// Opens the folder with images in memory and with images decoded on demand. Both must see the
/// same.
fn opened(root: &TempDir) -> DatasetSplits {
    let config = ReadConfig {
        num_threads: 2,
        ..ReadConfig::new(Sizing::square(2))
    };
    let on_demand = open(
        root.path(),
        &ReadConfig {
            memory_limit_bytes: 0,
            ..config.clone()
        },
    )
    .unwrap();
    let splits = open(root.path(), &config).unwrap();
    assert_eq!(on_demand.train.checksum(), splits.train.checksum());
    for index in 0..splits.train.len() {
        on_demand.train.read_image(index, &mut [0; 12]).unwrap();
    }
    splits
}

fn message(root: &TempDir) -> String {
    refusal(root, OnBadImage::Fail)
}

fn refusal(root: &TempDir, on_bad_image: OnBadImage) -> String {
    let config = ReadConfig {
        on_bad_image,
        ..ReadConfig::new(Sizing::square(2))
    };
    open(root.path(), &config).unwrap_err().to_string()
}

#[test]
fn an_empty_file_is_refused_or_skipped_as_any_that_does_not_decode() {
    let root = folder();
    fs::write(root.path().join("train/cat/b.png"), "").unwrap();
    assert!(message(&root).contains("b.png: the file is empty"));
    fs::write(
        root.path().join("train/cat/b.png"),
        "../.git/annex/objects/b.png\n",
    )
    .unwrap();
    assert!(message(&root).contains("b.png: the file is a few words of text"));
    fs::write(root.path().join("train/cat/b.png"), "").unwrap();
    let config = ReadConfig {
        on_bad_image: OnBadImage::Skip,
        ..ReadConfig::new(Sizing::square(2))
    };
    let splits = open(root.path(), &config).unwrap();
    assert_eq!(splits.train.len(), 2);
    assert!(
        splits
            .train
            .notes()
            .last()
            .unwrap()
            .starts_with("skipped 1 of 3 image files")
    );
}

#[test]
fn a_file_larger_than_any_image_is_refused_without_reading_it() {
    let root = folder();
    let path = root.path().join("train/cat/b.png");
    fs::File::create(&path).unwrap().set_len(10 << 30).unwrap();
    let text = message(&root);
    assert!(
        text.contains("b.png: expected at most 536870912 bytes, got 10737418240"),
        "{text}"
    );
}

#[test]
fn a_single_class_is_refused_since_there_is_nothing_to_learn() {
    let root = folder();
    fs::remove_dir_all(root.path().join("train/dog")).unwrap();
    fs::remove_dir_all(root.path().join("test/dog")).unwrap();
    let text = message(&root);
    assert!(
        text.contains("expected at least 2 class folders, got 1 (cat)"),
        "{text}"
    );
}

#[test]
fn folders_without_any_image_are_refused_and_named() {
    let root = folder();
    for class in ["train/cat", "train/dog"] {
        fs::remove_file(root.path().join(class).join("a.png")).unwrap();
    }
    let text = message(&root);
    assert!(
        text.contains("train/cat: expected at least one image"),
        "{text}"
    );
    fs::write(root.path().join("train/cat/a.heic"), "").unwrap();
    let text = message(&root);
    assert!(
        text.contains("got none (1 file of other formats)"),
        "{text}"
    );
}

#[test]
fn an_image_size_out_of_range_is_refused() {
    let root = folder();
    for size in [0, 16_385, usize::MAX] {
        let text = open(root.path(), &ReadConfig::new(Sizing::square(size)))
            .unwrap_err()
            .to_string();
        assert_eq!(
            text,
            format!("image size: expected 1 to 16384 pixels, got {size}")
        );
        let of_file =
            load_image(root.path().join("train/cat/a.png"), Sizing::square(size), 3).unwrap_err();
        assert_eq!(of_file.to_string(), text);
    }
}

#[cfg(unix)]
mod unix {
    use super::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::process::Command;

    fn make_pipe(path: &Path) {
        assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    }

    #[test]
    fn a_named_pipe_called_as_an_image_is_ignored_and_not_waited_for() {
        let root = folder();
        let pipe = root.path().join("train/cat/x.png");
        make_pipe(&pipe);
        let splits = opened(&root);
        assert_eq!(splits.train.len(), 2);
        let note = &splits.train.notes()[0];
        assert!(
            note.starts_with("left out: 1 special file") && note.ends_with("x.png"),
            "{note}"
        );
    }

    #[test]
    fn a_pipe_that_takes_the_place_of_an_image_later_is_refused_when_read() {
        let root = folder();
        let config = ReadConfig {
            memory_limit_bytes: 0,
            ..ReadConfig::new(Sizing::square(2))
        };
        let splits = open(root.path(), &config).unwrap();
        let path = root.path().join("train/cat/a.png");
        fs::remove_file(&path).unwrap();
        make_pipe(&path);
        let text = splits
            .train
            .read_image(0, &mut [0; 12])
            .unwrap_err()
            .to_string();
        assert!(
            text.contains("a.png: expected a regular file, got a named pipe"),
            "{text}"
        );
        assert!(!splits.train.checksum().is_empty());
    }

    #[test]
    fn loops_of_links_end() {
        let root = folder();
        let class = root.path().join("train/cat");
        // A loop is not entered, wherever it is.
        symlink(&class, class.join("again")).unwrap();
        symlink(class.join("self.png"), class.join("self.png")).unwrap();
        symlink(root.path().join("train"), root.path().join("train/loop")).unwrap();
        let splits = opened(&root);
        assert_eq!(
            (splits.train.len(), splits.train.class_names().len()),
            (2, 2)
        );
        let note = &splits.train.notes()[0];
        let names = ["again", "self.png", "train/loop"];
        assert!(
            note.starts_with("left out: 3 links back")
                && names.iter().all(|name| note.contains(name)),
            "{note}"
        );
    }

    #[test]
    fn a_link_to_an_image_is_an_image_and_a_folder_named_as_an_image_is_a_folder() {
        let root = folder();
        let class = root.path().join("train/cat");
        symlink(root.path().join("test/cat/a.png"), class.join("b.png")).unwrap();
        write_image(class.join("x.jpg/b.png"));
        assert_eq!(opened(&root).train.len(), 4);
    }

    #[test]
    fn an_unreadable_file_is_refused_and_named_even_where_bad_images_are_skipped() {
        let root = folder();
        let path = write_image(root.path().join("train/cat/b.png"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
        if fs::read(&path).is_ok() {
            // Root can read every file except the memory at address 0.
            if !Path::new("/proc/self/mem").exists() {
                println!("skipped: this user reads every file");
                return;
            }
            fs::remove_file(&path).unwrap();
            symlink("/proc/self/mem", &path).unwrap();
        }
        for on_bad_image in [OnBadImage::Fail, OnBadImage::Skip] {
            let text = refusal(&root, on_bad_image);
            assert!(
                text.starts_with("cannot read ") && text.contains("b.png: "),
                "{text}"
            );
        }
    }

    #[test]
    fn a_file_name_that_is_not_utf_8_is_as_good_as_any() {
        let root = folder();
        let name = OsStr::from_bytes(b"caf\xE9.png");
        write_image(root.path().join("train/cat").join(name));
        assert_eq!(opened(&root).train.len(), 3);
        fs::write(root.path().join("train/cat").join(name), "no image").unwrap();
        assert!(message(&root).contains("caf\u{FFFD}.png"));
    }

    #[test]
    fn a_class_name_that_is_not_utf_8_is_refused() {
        let root = folder();
        for split in ["train", "test"] {
            let class = root.path().join(split).join(OsStr::from_bytes(b"caf\xE9"));
            write_image(class.join("a.png"));
        }
        let text = message(&root);
        assert!(
            text.contains("caf\u{FFFD}: expected a class folder with a name in UTF-8"),
            "{text}"
        );
    }
}
