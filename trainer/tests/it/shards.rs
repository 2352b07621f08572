//! Runs on tar shards and Parquet files have the bits of runs on a folder of the same images. The
//! bits are also equal after a kill and a resume.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::fixture::{ended_with, flags, run, succeed, trainer};

/// Returns a folder of JPEG files of two classes and several sizes, from the tests of `datasets`.
pub(crate) fn photographs() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    let images = Path::new(env!("CARGO_MANIFEST_DIR")).join("../datasets/tests/images");
    let names = [
        "resize/rows_420.jpg",
        "turned.jpg",
        "resize/rows_444.jpg",
        "cmyk.jpg",
        "resize/rows_restarts.jpg",
        "grey.jpg",
    ];
    for (split, num_each) in [("train", 4), ("val", 1)] {
        for (number, name) in names
            .iter()
            .cycle()
            .take(num_each * names.len())
            .enumerate()
        {
            let class = root.path().join(split).join(["cat", "dog"][number % 2]);
            fs::create_dir_all(&class).unwrap();
            fs::copy(images.join(name), class.join(format!("{number:02}.jpg"))).unwrap();
        }
    }
    root
}

/// Writes shards of these photographs with the program.
pub(crate) fn sharded(from: &Path, images_per_shard: usize) -> TempDir {
    let to = tempfile::tempdir().unwrap();
    let words = format!("shard --images-per-shard {images_per_shard} --from");
    let mut shard = trainer(&words, &[from]);
    shard.arg("--to").arg(to.path());
    succeed(shard);
    to
}

fn words(dataset: &str, dir: &Path) -> String {
    let dir = dir.display();
    format!(
        "--model resnet8 --dataset {dataset} --data-dir {dir} --resolution 16 --global-batch-size 4 --epochs 2 --warmup-epochs 0"
    )
}

#[test]
fn files_that_a_shard_or_a_run_leaves_out_are_reported() {
    let photographs = photographs();
    fs::write(photographs.path().join("train/cat/scan.psd"), "").unwrap();
    fs::write(photographs.path().join("train/loose.jpg"), "").unwrap();
    let test = photographs.path().join("test");
    fs::create_dir(&test).unwrap();
    fs::write(test.join("1.jpg"), "").unwrap();
    let to = tempfile::tempdir().unwrap();
    let mut shard = trainer("shard --from", &[photographs.path()]);
    shard.arg("--to").arg(to.path());
    let text = ended_with(0, shard);
    let manifest = fs::read_to_string(
        run(1, &flags(&[&words("image-folder", photographs.path())]))
            .directory()
            .join("manifest.json"),
    );
    for part in ["scan.psd", "loose.jpg", "test: 1 image in no class folder"] {
        assert!(
            text.contains(part) && manifest.as_ref().unwrap().contains(part),
            "{part}: {text} {manifest:?}"
        );
    }
}

#[test]
fn shards_train_to_the_bits_of_their_folder_whatever_their_number() {
    let photographs = photographs();
    for world_size in [1, 2, 4] {
        let trained =
            |dataset, dir: &Path| run(world_size, &flags(&[&words(dataset, dir)])).parameter_hash();
        let expected = trained("image-folder", photographs.path());
        for (images_per_shard, num_shards) in [(24, 1), (12, 2), (6, 4)] {
            let shards = sharded(photographs.path(), images_per_shard);
            assert!(
                shards
                    .path()
                    .join(format!("train-{:06}.tar", num_shards - 1))
                    .exists()
            );
            assert!(
                !shards
                    .path()
                    .join(format!("train-{num_shards:06}.tar"))
                    .exists()
            );
            assert_eq!(
                trained("shards", shards.path()),
                expected,
                "{num_shards} shards, {world_size} ranks"
            );
        }
    }
}

#[test]
fn the_size_of_images_changes_with_the_epoch_on_any_number_of_ranks_and_after_a_restart() {
    let photographs = photographs();
    let of = |resolution: &str, further: &str| {
        let words = words("image-folder", photographs.path());
        flags(&[
            &words,
            "--epochs 4 --reduction exact --virtual-shards 2",
            &format!("--resolution {resolution} {further}"),
        ])
    };
    let whole = run(1, &of("16:24@0.5:32@eval", ""));
    assert_eq!(
        run(2, &of("16:24@0.5:32@eval", "")).parameter_hash(),
        whole.parameter_hash()
    );
    assert_ne!(
        run(1, &of("16", "")).parameter_hash(),
        whole.parameter_hash()
    );
    let half = "--epochs 2 --schedule-epochs 4";
    let first = run(1, &of("16:24@0.5:32@eval", half));
    assert_eq!(
        run(1, &of("16", half)).parameter_hash(),
        first.parameter_hash()
    );
    let resumed = first
        .again()
        .go(1, &of("16:24@0.5:32@eval", "--resume --schedule-epochs 4"));
    assert_eq!(resumed.parameter_hash(), whole.parameter_hash());
}

#[test]
fn a_run_on_shards_that_was_killed_in_an_epoch_resumes_to_the_same_bits() {
    let photographs = photographs();
    let runs = tempfile::tempdir().unwrap();
    let shards = sharded(photographs.path(), 5);
    let train = |directory: &PathBuf| {
        let words = words("shards", shards.path()).replace("--epochs 2", "--epochs 20");
        let further =
            "--threads 1 --eval-every-epochs 20 --checkpoint-every-steps 1 --log-every-steps 1";
        let words = format!("train {words} {further} --resume --output-dir");
        let mut train = trainer(&words, &[directory]);
        train.stdout(Stdio::null()).stderr(Stdio::null());
        train
    };
    let hash = |directory: &Path| {
        let text = fs::read_to_string(directory.join("summary.json")).unwrap();
        serde_json::from_str::<serde_json::Value>(&text).unwrap()["parameter_hash"].clone()
    };
    let [whole, killed] = ["whole", "killed"].map(|name| runs.path().join(name));
    fs::create_dir(&whole).unwrap();
    fs::create_dir(&killed).unwrap();
    assert!(train(&whole).status().unwrap().success());
    let mut child = train(&killed).spawn().unwrap();
    let start = Instant::now();
    let is_under_way = || {
        let saved = fs::read_dir(killed.join("checkpoints"))
            .into_iter()
            .flatten();
        saved
            .flatten()
            .any(|entry| *entry.file_name() >= *"step-00000009")
    };
    while !is_under_way() && start.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(
        Command::new("kill")
            .args(["-KILL", &child.id().to_string()])
            .status()
            .unwrap()
            .success()
    );
    assert!(!child.wait().unwrap().success() && !killed.join("summary.json").exists());
    assert!(train(&killed).status().unwrap().success());
    assert_eq!(hash(&killed), hash(&whole));
}

#[test]
fn a_resume_on_shards_names_a_removed_manifest_as_a_change_of_the_images() {
    let photographs = photographs();
    let shards = sharded(photographs.path(), 5);
    let words = words("shards", shards.path());
    let run = run(1, &flags(&[&words]));
    fs::remove_file(shards.path().join("MANIFEST")).unwrap();
    let refused = run.again().try_go(1, &flags(&[&words, "--resume"]));
    let text = format!("{:#}", refused.unwrap_err());
    assert!(
        text.contains("split has changed") && text.contains("a new or removed MANIFEST"),
        "{text}"
    );
}

#[cfg(feature = "parquet")]
#[test]
fn parquet_files_train_to_the_bits_of_a_folder_of_the_same_images() {
    let images = Path::new(env!("CARGO_MANIFEST_DIR")).join("../datasets/tests/images");
    let names = ["cmyk", "grey", "progressive", "turned"]
        .map(str::to_owned)
        .into_iter();
    let names =
        names.chain(["420", "444", "grey", "restarts"].map(|name| format!("resize/rows_{name}")));
    let folder = tempfile::tempdir().unwrap();
    for (number, name) in names.enumerate() {
        let splits = [("train", true), ("val", (3..5).contains(&number))];
        for (split, _) in splits.into_iter().filter(|(_, is_in)| *is_in) {
            let class = folder.path().join(split).join(["cat", "dog"][number / 4]);
            fs::create_dir_all(&class).unwrap();
            fs::copy(
                images.join(format!("{name}.jpg")),
                class.join(format!("{number}.jpg")),
            )
            .unwrap();
        }
    }
    for world_size in [1, 2, 4] {
        let trained =
            |dataset, dir: &Path| run(world_size, &flags(&[&words(dataset, dir)])).parameter_hash();
        let expected = trained("image-folder", folder.path());
        assert_eq!(
            trained("parquet", &images.join("parquet")),
            expected,
            "{world_size} ranks"
        );
    }
}
