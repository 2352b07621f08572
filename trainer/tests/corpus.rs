//! Every input in the corpus of the fuzz targets, among them each that once failed, passes through its target's body.

#![cfg(all(feature = "flex", feature = "download"))]
#![allow(clippy::unwrap_used)] // A failed unwrap here is a failed test.

#[path = "../fuzz/bodies.rs"]
mod bodies;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// An input that needs longer is a reader that does not end soon; a fuzzer allows it ten seconds.
const MAX_TIME: Duration = Duration::from_secs(10);

/// The inputs are small, and so is the memory for reading them: this is most of all the program itself.
const MAX_PEAK_KIB: u64 = 1 << 20;

const MAX_INPUT_BYTES: u64 = 4096;

#[test]
fn every_input_of_the_corpus_is_read_or_refused_in_time_and_in_little_memory() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    assert_eq!(fs::read_dir(&corpus).unwrap().count(), bodies::TARGETS.len(), "folders are targets");
    for (name, body) in bodies::TARGETS {
        let mut paths: Vec<_> = fs::read_dir(corpus.join(name)).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        assert!(!paths.is_empty(), "{name} has no inputs");
        for path in paths {
            let bytes = fs::read(&path).unwrap();
            assert!(bytes.len() as u64 <= MAX_INPUT_BYTES, "{}: {} bytes", path.display(), bytes.len());
            println!("{}", path.display());
            let start = Instant::now();
            body(&bytes);
            assert!(start.elapsed() < MAX_TIME, "{}: {:?}", path.display(), start.elapsed());
        }
    }
    if let Some(peak_kib) = peak_kib() {
        assert!(peak_kib < MAX_PEAK_KIB, "the peak of memory was {peak_kib} KiB");
    }
}

/// The largest memory of this process so far, where the system tells it.
fn peak_kib() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}
