//! The bodies of the fuzz targets. The test of the corpus also runs them.
//!
//! In: any bytes. Out: nothing.
//! Invariant: a body panics only if the program has a bug. For all inputs, a reader returns quickly
//! and uses memory in proportion to the input. It returns valid values, or an error that names the
//! file.

#![allow(dead_code, unreachable_pub, reason = "each target uses one of these")]

use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use burn::nn::LinearConfig;
use burn::tensor::Device;
use datasets::cifar::{self, Cifar};
#[cfg(feature = "parquet")]
use datasets::parquet_files;
use datasets::{
    CropBox, OnBadImage, ReadConfig, Sizing, download, image_folder, load_image, tar_shards,
};
use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use trainer::config::TrainConfig;
use trainer::run::{checkpoint, step_hashes};
use trainer::tools::check::Verdict;
use trainer::tools::verify_run::{Recording, compare};

/// The name of a target's corpus folder, and the function that runs an input.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: &[Target] = &[
    ("cifar", cifar),
    ("image", image),
    ("archive", archive),
    ("shards", shards),
    #[cfg(feature = "parquet")]
    ("parquet", parquet),
    ("records", records),
    ("checkpoint", checkpoint),
    ("config", config),
    ("pytorch", pytorch),
    ("safetensors", safetensors),
];

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder for temporary files")
}

fn write(path: &Path, bytes: &[u8]) {
    fs::write(path, bytes).expect("a file in a folder of our own");
}

fn names(error: &str, path: &Path) {
    assert!(
        error.contains(&path.display().to_string()),
        "the error does not name {}: {error}",
        path.display()
    );
}

/// Fuzzes the reader of CIFAR's binary release. The first byte selects the data set, and whether 64
/// bytes of class names follow.
pub fn cifar(bytes: &[u8]) {
    let Some((flags, bytes)) = bytes.split_first() else {
        return;
    };
    let kind = if flags & 1 == 0 {
        Cifar::Ten
    } else {
        Cifar::Hundred
    };
    let folder = folder();
    let bytes = match bytes.split_at_checked(64) {
        Some((class_names, bytes)) if flags & 2 != 0 => {
            write(&folder.path().join(kind.names_file()), class_names);
            bytes
        }
        _ => bytes,
    };
    for name in kind.train_files().iter().chain([&kind.test_file()]) {
        write(&folder.path().join(name), bytes);
    }
    match cifar::open(folder.path(), kind) {
        Err(error) => names(&error.to_string(), folder.path()),
        Ok(splits) => {
            let mut pixels = vec![0; splits.train.image_shape().num_values()];
            for index in 0..splits.train.len() {
                assert!(splits.train.label(index) < splits.train.class_names().len());
                splits
                    .train
                    .read_image(index, &mut pixels)
                    .expect("a sample in memory");
            }
            let test = splits.test.expect("a split that this data set has");
            assert_eq!(splits.train.len(), test.len() * kind.train_files().len());
        }
    }
}

/// Fuzzes the decoder of images.
pub fn image(bytes: &[u8]) {
    let folder = folder();
    let path = folder.path().join("image");
    write(&path, bytes);
    let channels = if bytes.len().is_multiple_of(2) { 3 } else { 1 };
    for shorter_side in [None, Some(9)] {
        match load_image(
            &path,
            Sizing {
                size: 8,
                shorter_side,
            },
            channels,
        ) {
            Err(error) => names(&error.to_string(), &path),
            Ok(pixels) => assert_eq!(pixels.len(), 64 * channels),
        }
    }
    crop(bytes);
}

/// Fuzzes the decoder of a part of an image.
fn crop(bytes: &[u8]) {
    let folder = folder();
    for class in ["train/a", "train/b", "test/a", "test/b"] {
        let dir = folder.path().join(class);
        fs::create_dir_all(&dir).expect("a folder in a folder of our own");
        write(&dir.join("image.jpg"), bytes);
    }
    let config = ReadConfig::new(Sizing {
        size: 8,
        shorter_side: Some(9),
    });
    let train = image_folder::open(folder.path(), &config)
        .expect("files that were not opened")
        .train;
    let upper_half = |[width, height]: [u32; 2]| CropBox {
        left: 0,
        top: 0,
        width,
        height: height.div_ceil(2),
    };
    if let Err(error) = train.read_crop(0, &upper_half, train.image_shape(), &mut [0; 192]) {
        names(&error.to_string(), folder.path());
    }
}

/// Fuzzes the readers of a shard's headers and of its samples.
pub fn shards(bytes: &[u8]) {
    let folder = folder();
    for name in ["train-0.tar", "val-0.tar"] {
        write(&folder.path().join(name), bytes);
    }
    let sizing = Sizing {
        size: 8,
        shorter_side: Some(9),
    };
    for on_bad_image in [OnBadImage::Fail, OnBadImage::Skip, OnBadImage::Fail] {
        let config = ReadConfig {
            on_bad_image,
            num_threads: 1,
            ..ReadConfig::new(sizing)
        };
        match tar_shards::open(folder.path(), &config) {
            Err(error) => names(&error.to_string(), folder.path()),
            Ok(splits) => {
                for index in 0..splits.train.len() {
                    assert!(splits.train.label(index) < splits.train.class_names().len());
                    if let Err(error) = splits.train.read_image(index, &mut [0; 192]) {
                        names(&error.to_string(), folder.path());
                    }
                }
            }
        }
    }
}

/// Fuzzes the readers of a Parquet file's footer, labels and images.
#[cfg(feature = "parquet")]
pub fn parquet(bytes: &[u8]) {
    let folder = folder();
    for name in ["train-0.parquet", "val-0.parquet"] {
        write(&folder.path().join(name), bytes);
    }
    let sizing = Sizing {
        size: 8,
        shorter_side: Some(9),
    };
    for on_bad_image in [OnBadImage::Fail, OnBadImage::Skip] {
        match parquet_files::open(
            folder.path(),
            &ReadConfig {
                on_bad_image,
                num_threads: 1,
                ..ReadConfig::new(sizing)
            },
        ) {
            Err(error) => names(&error.to_string(), folder.path()),
            Ok(splits) => {
                for index in 0..splits.train.len() {
                    assert!(splits.train.label(index) < splits.train.class_names().len());
                    if let Err(error) = splits.train.read_image(index, &mut [0; 192]) {
                        names(&error.to_string(), folder.path());
                    }
                }
            }
        }
    }
}

/// Files that `trainer watch`, `report` and `verify-run` read. The first line of each part of an
/// input names one of these files.
const RECORDS: [&str; 19] = [
    "run.toml",
    "manifest.json",
    "manifest-1.json",
    "metrics.jsonl",
    "summary.json",
    "evaluation.json",
    "progress.json",
    "hashes.jsonl",
    "train.log",
    "slurm-1.out",
    ".lock",
    "study.json",
    "records.jsonl",
    "predictions/a.json",
    "a/run/metrics.jsonl",
    "a/network.json",
    "prediction.json",
    "network.json",
    "trace.json",
];

/// Fuzzes the readers of recorded files: the page of a watched run, the report of a directory, the
/// report of each file, and the hashes of a run's first steps.
pub fn records(bytes: &[u8]) {
    let folder = folder();
    let directory = folder.path().join("run");
    fs::create_dir(&directory).expect("a folder in a folder of our own");
    let mut inputs = vec![directory.clone()];
    let mut rest = bytes;
    while !rest.is_empty() {
        let (part, after) = split(rest);
        rest = after;
        let end = part
            .iter()
            .position(|byte| *byte == b'\n')
            .unwrap_or(part.len());
        let Some(name) = RECORDS
            .into_iter()
            .find(|name| name.as_bytes() == &part[..end])
        else {
            continue;
        };
        let path = directory.join(name);
        fs::create_dir_all(path.parent().unwrap_or(&directory))
            .expect("a folder in a folder of our own");
        write(&path, part.get(end + 1..).unwrap_or_default());
        if name.ends_with(".json") && !inputs.contains(&path) {
            inputs.push(path);
        }
    }
    if let Err(error) = report::live::snapshot(&directory, Duration::ZERO) {
        names(&format!("{error:#}"), folder.path());
    }
    for input in inputs {
        let request = report::Request {
            inputs: vec![input],
            output: folder.path().join("report"),
            ..Default::default()
        };
        if let Err(error) = report::write(&request) {
            names(&format!("{error:#}"), folder.path());
        }
    }
    match step_hashes::read(&directory.join("hashes.jsonl")) {
        Err(error) => names(&format!("{error:#}"), folder.path()),
        Ok(hashes) => {
            let run = Recording {
                hashes,
                ..Recording::default()
            };
            let repetition = Recording {
                hashes: run.hashes.iter().rev().cloned().collect(),
                ..Recording::default()
            };
            let same = compare(&run, &run, run.hashes.len());
            assert_eq!(same.verdict, Verdict::Ok);
            compare(&run, &repetition, usize::MAX);
        }
    }
}

/// Fuzzes the unpacking of a release's archive. Uncompressed bytes are compressed first, so that a
/// fuzzer can change them.
pub fn archive(bytes: &[u8]) {
    let folder = folder();
    let (path, dir) = (
        folder.path().join("archive.tar.gz"),
        folder.path().join("data"),
    );
    fs::create_dir(&dir).expect("a folder in a folder of our own");
    if bytes.starts_with(&[0x1F, 0x8B]) {
        write(&path, bytes);
    } else {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::none());
        encoder.write_all(bytes).expect("memory");
        write(&path, &encoder.finish().expect("memory"));
    }
    let result = download::unpack(Cifar::Hundred, &path, &dir);
    let found = |dir: &Path| fs::read_dir(dir).expect("a folder of our own").count();
    assert_eq!(
        found(folder.path()),
        2,
        "something was written outside the folder"
    );
    match result {
        Err(error) => {
            names(&error.to_string(), folder.path());
            assert_eq!(found(&dir), 0, "a refused archive left something");
        }
        Ok(release) => {
            assert_eq!(found(&dir), 1);
            if let Err(error) = cifar::open(&release, Cifar::Hundred) {
                names(&error.to_string(), &release);
            }
        }
    }
}

/// Separator between the files of a checkpoint in one input.
const SEPARATOR: &[u8] = b"\n====\n";

/// Fuzzes the reader of checkpoints. The input holds the state, the model and the training tensors.
/// `@MODEL@` and `@TRAINING@` in the state stand for the other files' checksums, which a fuzzer
/// cannot guess.
pub fn checkpoint(bytes: &[u8]) {
    let folder = folder();
    write_checkpoint(bytes, folder.path());
    match checkpoint::find(folder.path()) {
        Err(error) => names(&format!("{error:#}"), folder.path()),
        Ok((found, _)) => match found.training_tensors() {
            Err(error) => names(&format!("{error:#}"), folder.path()),
            Ok(tensors) => assert_eq!(tensors.norm_statistics.len(), found.state.world_size),
        },
    }
}

/// Writes the files of a checkpoint into a folder, including the state's checksum.
pub fn write_checkpoint(bytes: &[u8], folder: &Path) {
    let (state, rest) = split(bytes);
    let (model, training) = split(rest);
    let sha256 = |bytes: &[u8]| -> String {
        Sha256::digest(bytes)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    };
    let state = match std::str::from_utf8(state) {
        Err(_) => state.to_vec(),
        Ok(text) => text
            .replace("@MODEL@", &sha256(model))
            .replace("@TRAINING@", &sha256(training))
            .into_bytes(),
    };
    write(&folder.join("state.json"), &state);
    write(
        &folder.join("state.sha256"),
        format!("{}  state.json\n", sha256(&state)).as_bytes(),
    );
    write(&folder.join("model.safetensors"), model);
    write(&folder.join("training.safetensors"), training);
}

/// Returns the bytes before and after the first separator. Without a separator the second part is
/// empty.
fn split(bytes: &[u8]) -> (&[u8], &[u8]) {
    match bytes
        .windows(SEPARATOR.len())
        .position(|window| window == SEPARATOR)
    {
        Some(at) => (&bytes[..at], &bytes[at + SEPARATOR.len()..]),
        None => (bytes, &[]),
    }
}

/// Fuzzes the configuration: a printed configuration must resolve to the same configuration.
pub fn config(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    for world_size in [1, 4] {
        let Ok(config) = TrainConfig::from_toml(text, world_size) else {
            continue;
        };
        let printed = config.to_toml();
        let again = TrainConfig::from_toml(&printed, world_size);
        let again =
            again.unwrap_or_else(|error| panic!("what was printed is refused: {error}\n{printed}"));
        assert_eq!(again, config, "{printed}");
        assert_eq!(again.hash(), config.hash());
    }
}

/// Fuzzes the reader of PyTorch's files: zip archives and pickles.
pub fn pytorch(bytes: &[u8]) {
    load_weights("weights.pth", bytes);
}

/// Fuzzes the reader of safetensors.
pub fn safetensors(bytes: &[u8]) {
    load_weights("weights.safetensors", bytes);
}

/// Loads the bytes into a layer with 2 x 2 weights and 2 biases.
fn load_weights(name: &str, bytes: &[u8]) {
    let folder = folder();
    let path = folder.path().join(name);
    write(&path, bytes);
    let layer = LinearConfig::new(2, 2).init(&Device::flex());
    match burn_resnet::load_weights(layer, &path) {
        Err(error) => names(&error.to_string(), &path),
        Ok(layer) => assert_eq!(layer.weight.val().into_data().shape().as_slice(), [2, 2]),
    }
}
