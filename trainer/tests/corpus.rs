//! Runs the fuzz targets' bodies on every input in the corpus, including all inputs that once
//! failed.

#![cfg(all(feature = "flex", feature = "download"))]
#![allow(clippy::unwrap_used)] // A failed unwrap here is a failed test.

#[path = "../fuzz/bodies.rs"]
mod bodies;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use burn::nn::LinearConfig;
use burn::tensor::Device;
use burn_resnet::{Head, Loaded, load_weights_with};
use trainer::measure::process_memory::peak_memory_bytes;
use trainer::run::checkpoint;

/// Time after which a reader counts as hanging. The test then names the input and aborts. A fuzzer
/// allows ten seconds.
const NEVER: Duration = Duration::from_secs(300);

/// Peak memory of the whole test program. The inputs are small, and so is the memory for reading
/// them.
const MAX_PEAK_BYTES: u64 = 1 << 30;

const MAX_INPUT_BYTES: u64 = 4096;

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus")
}

/// Returns the inputs of a target, sorted by name.
fn inputs(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let entries = fs::read_dir(corpus().join(target)).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "{target} has no inputs");
    paths
        .into_iter()
        .map(|path| (path.clone(), fs::read(path).unwrap()))
        .collect()
}

#[test]
fn every_input_of_the_corpus_is_read_or_refused_in_little_memory() {
    let corpus = corpus();
    let num_left_out = usize::from(cfg!(not(feature = "parquet")));
    assert_eq!(
        fs::read_dir(&corpus).unwrap().count(),
        bodies::TARGETS.len() + num_left_out,
        "folders are targets"
    );
    for (name, body) in bodies::TARGETS {
        for (path, bytes) in inputs(name) {
            assert!(
                bytes.len() as u64 <= MAX_INPUT_BYTES,
                "{}: {} bytes",
                path.display(),
                bytes.len()
            );
            println!("{}", path.display());
            ending(&path, || body(&bytes));
        }
    }
    let peak = peak_memory_bytes();
    assert!(peak < MAX_PEAK_BYTES, "the peak of memory was {peak} bytes");
}

/// Returns the result of `body`. If `body` hangs, prints the name of the input and aborts the
/// process.
fn ending<T>(input: &Path, body: impl FnOnce() -> T) -> T {
    let (done, ended) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if ended.recv_timeout(NEVER) == Err(RecvTimeoutError::Timeout) {
                let text = format!("{}: not read or refused in {NEVER:?}\n", input.display());
                let _ = std::io::stderr().write_all(text.as_bytes());
                std::process::abort();
            }
        });
        let outcome = body();
        drop(done);
        outcome
    })
}

/// Changes per input, unless the environment sets another number.
const NUM_CHANGES: u64 = 20;

#[test]
fn inputs_near_those_of_the_corpus_are_read_or_refused_too() {
    let num_changes = std::env::var("LOCKSTEP_FUZZ_CHANGES")
        .map_or(NUM_CHANGES, |number| number.parse().unwrap());
    for (name, body) in bodies::TARGETS {
        let inputs = inputs(name);
        let mut random = Random(1);
        for round in 0..num_changes {
            for (path, bytes) in &inputs {
                let changed = changed(bytes, &inputs, &mut random);
                let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-failed"));
                fs::write(&kept, &changed).unwrap();
                let outcome = std::panic::catch_unwind(|| ending(&kept, || body(&changed)));
                assert!(
                    outcome.is_ok(),
                    "{}, changed in round {round}, fails; it is {}",
                    path.display(),
                    kept.display()
                );
                fs::remove_file(&kept).unwrap();
            }
        }
    }
}

/// Xorshift64. The quality of the random numbers does not matter.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % limit.max(1)
    }
}

/// Returns the bytes after one to four changes. A change flips a bit, sets a byte to a limit,
/// changes an eight-byte number, or removes, repeats or inserts a piece.
fn changed(bytes: &[u8], inputs: &[(PathBuf, Vec<u8>)], random: &mut Random) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len());
        let end = (at + random.below(64)).min(bytes.len());
        match random.below(6) {
            _ if bytes.is_empty() => bytes.push(random.below(256) as u8),
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = [0, 1, 0x7F, 0x80, 0xFF, b'0', b'9', b'-'][random.below(8)],
            2 => {
                let number = [
                    0,
                    1,
                    i64::MAX as u64,
                    u64::MAX,
                    1 << 32,
                    u64::from(u32::MAX),
                ][random.below(6)];
                bytes
                    .iter_mut()
                    .skip(at)
                    .zip(number.to_le_bytes())
                    .for_each(|(byte, new)| *byte = new);
            }
            3 => drop(bytes.drain(at..end)),
            4 => {
                let piece = bytes[at..end].to_vec();
                bytes.splice(at..at, piece);
            }
            _ => {
                let other = &inputs[random.below(inputs.len())].1;
                let from = random.below(other.len());
                let piece = other[from..(from + random.below(64)).min(other.len())].to_vec();
                bytes.splice(at..end, piece);
            }
        }
    }
    bytes
}

/// Loads an input of the corpus as weights under this name and returns the error.
fn refused_weights(input: &str, name: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    fs::copy(corpus().join(input), &path).unwrap();
    let layer = LinearConfig::new(2, 2).init(&Device::flex());
    let text = burn_resnet::load_weights(layer, &path)
        .unwrap_err()
        .to_string();
    assert!(text.contains(name), "{text}");
    text
}

#[test]
fn weights_that_claim_more_than_their_file_holds_are_refused_with_the_claim() {
    for (input, name, expected) in [
        (
            "pytorch/stride_0_of_10_gb",
            "a.pth",
            "got [50000, 50000] of 10000000000 bytes; save it again with `contiguous()`",
        ),
        (
            "pytorch/pickle_expands",
            "a.pth",
            "got one that unpacks to 3000",
        ),
        (
            "pytorch/sparse.tar",
            "a.pt",
            "got the tar archive of PyTorch before 0.1.10; load it and save it again",
        ),
        (
            "pytorch/shape_beyond_storage",
            "a.th",
            "not readable as a PyTorch checkpoint: ",
        ),
        (
            "safetensors/header_of_10_gb",
            "a.safetensors",
            "not readable as safetensors: ",
        ),
        (
            "safetensors/overlapping",
            "a.safetensors",
            "not readable as safetensors: ",
        ),
        (
            "safetensors/huge_offsets",
            "a.safetensors",
            "not readable as safetensors: ",
        ),
        (
            "safetensors/huge_shape",
            "a.safetensors",
            "not readable as safetensors: ",
        ),
    ] {
        let text = refused_weights(input, name);
        assert!(text.contains(expected), "{input}: {text}");
    }
}

#[test]
fn weights_in_a_dictionary_of_a_pytorch_checkpoint_are_found() {
    let folder = tempfile::tempdir().unwrap();
    for (input, expected) in [
        ("good", None),
        ("state_dict", Some("state_dict")),
        ("net", Some("net")),
        ("data_parallel", Some("weights")),
        ("other_keys", Some("ours")),
        ("legacy", None),
    ] {
        let path = folder.path().join(format!("{input}.pth"));
        fs::copy(corpus().join("pytorch").join(input), &path).unwrap();
        let layer = LinearConfig::new(2, 2).init(&Device::flex());
        let (layer, Loaded { key, .. }) = load_weights_with(layer, &path, Head::OfFile).unwrap();
        assert_eq!(key.as_deref(), expected, "{input}");
        let bias = layer
            .bias
            .unwrap()
            .val()
            .into_data()
            .try_to_vec::<f32>()
            .unwrap();
        assert_eq!(bias, [5.0, 6.0], "{input}");
    }
}

#[test]
fn a_pytorch_file_without_tensors_is_refused() {
    let text = refused_weights("pytorch/plain_pickle", "a.pth");
    assert!(
        text.contains("expected tensors by name, got none; save the network's `state_dict()`"),
        "{text}"
    );
}

#[test]
fn weights_in_a_folder_or_pipe_are_refused_and_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a.pth", "a.safetensors"] {
        let path = folder.path().join(name);
        let refused = || {
            let layer = LinearConfig::new(2, 2).init(&Device::flex());
            burn_resnet::load_weights(layer, &path)
                .unwrap_err()
                .to_string()
        };
        fs::create_dir(&path).unwrap();
        assert!(refused().ends_with("expected a regular file, got a folder, pipe or device"));
        fs::remove_dir(&path).unwrap();
        if cfg!(unix) {
            assert!(
                std::process::Command::new("mkfifo")
                    .arg(&path)
                    .status()
                    .unwrap()
                    .success()
            );
            assert!(refused().ends_with("expected a regular file, got a folder, pipe or device"));
        }
    }
}

/// Writes an input of the corpus as the folder of a checkpoint.
fn checkpoint_folder(input: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    bodies::write_checkpoint(
        &fs::read(corpus().join("checkpoint").join(input)).unwrap(),
        folder.path(),
    );
    folder
}

#[test]
fn a_state_that_no_run_could_have_written_is_refused_with_the_field() {
    let folder = checkpoint_folder("good");
    let (found, _) = checkpoint::find(folder.path()).unwrap();
    assert_eq!(
        found.training_tensors().unwrap().norm_statistics,
        [[3.0, 4.0], [5.0, 6.0]]
    );
    for (input, expected) in [
        ("no_ranks", "world_size: expected 1 to 1048576, got 0"),
        (
            "many_ranks_without_norms",
            "world_size: expected 1 to 1048576, got 4611686018427387904",
        ),
        (
            "huge_image",
            "expected sides of 1 to 4096 pixels, got 4611686018427387904",
        ),
        ("other_format", "expected format 3, got 99"),
        ("nested", "recursion limit exceeded"),
        ("wrong_checksum", "expected sha256 0, got "),
    ] {
        let folder = checkpoint_folder(input);
        let text = format!("{:#}", checkpoint::find(folder.path()).unwrap_err());
        assert!(text.contains(expected), "{input}: {text}");
    }
}

#[test]
fn two_moments_are_read_with_their_one_number_of_updates() {
    let tensors = |input| {
        let folder = checkpoint_folder(input);
        checkpoint::find(folder.path())
            .unwrap()
            .0
            .training_tensors()
    };
    let optimizer = tensors("moments").unwrap().optimizer;
    assert_eq!(optimizer.moments, [3.0, 4.0]);
    assert_eq!(
        optimizer.num_updates.map(u64::to_le_bytes),
        Some([0, 0, 128, 63, 0, 0, 0, 64])
    );
    let text = format!("{:#}", tensors("many_numbers_of_updates").unwrap_err());
    assert!(text.contains("num_updates: expected one u64"), "{text}");
}

#[test]
fn a_state_of_gigabytes_is_refused_without_reading_it() {
    let folder = checkpoint_folder("good");
    let state = folder.path().join("state.json");
    fs::File::options()
        .write(true)
        .open(&state)
        .unwrap()
        .set_len(4 << 30)
        .unwrap();
    let text = format!("{:#}", checkpoint::find(folder.path()).unwrap_err());
    assert!(
        text.contains("state.json: expected at most 33554432 bytes, got more"),
        "{text}"
    );
    let peak = peak_memory_bytes();
    assert!(peak < MAX_PEAK_BYTES, "the peak of memory was {peak} bytes");
}

#[test]
fn a_checkpoint_with_a_folder_or_pipe_for_a_file_is_refused_and_not_waited_for() {
    for name in ["state.json", "model.safetensors", "training.safetensors"] {
        let folder = checkpoint_folder("good");
        let path = folder.path().join(name);
        let refused = || format!("{:#}", checkpoint::find(folder.path()).unwrap_err());
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(
            refused().contains("expected a regular file"),
            "{}",
            refused()
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
            assert!(
                refused().contains("expected a regular file"),
                "{}",
                refused()
            );
        }
    }
}
