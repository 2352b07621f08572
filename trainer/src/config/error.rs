//! Why a configuration was refused. Every variant says what to do instead; all of them are usage
//! errors (exit code 2).

use std::borrow::Cow;
use std::path::PathBuf;
use thiserror::Error;

/// A configuration that cannot be run as asked.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file of `--config` cannot be read.
    #[error("cannot read the configuration file {}: {reason}", path.display())]
    Read {
        path: PathBuf,
        // Not a `source`, which a chain of causes would say again.
        reason: std::io::Error,
    },
    /// The file of `--config` is no TOML, or has unknown keys or values.
    #[error(
        "{origin}: {}\n`trainer config` prints every key in its section",
        problem.trim_end()
    )]
    Syntax { origin: String, problem: String },
    /// There is no such network.
    #[error("--model or --depth: {reason}")]
    Model {
        // Not a `source`, which a chain of causes would say again.
        reason: burn_resnet::ModelError,
    },
    /// An option has a value outside its range.
    #[error("{option}: expected {expected}, got {got}")]
    Invalid {
        option: &'static str,
        expected: String,
        got: String,
    },
    /// An option is needed and absent.
    #[error("{option} is missing: {because}; {remedy}")]
    Missing {
        option: &'static str,
        because: String,
        remedy: String,
    },
    /// An option was given that would change nothing.
    #[error("{option} has no effect {because}: {remedy}")]
    NoEffect {
        option: Cow<'static, str>,
        /// With, or without, what.
        because: String,
        remedy: String,
    },
    /// Two options contradict each other.
    #[error("{option} contradicts {other}: {remedy}")]
    Conflict {
        option: Cow<'static, str>,
        other: String,
        remedy: String,
    },
    /// The global batch cannot be divided exactly.
    #[error(
        "--global-batch-size {global_batch_size} does not divide among {among}: take {}{nearest_above} or {remedy}",
        nearest_below.map_or(String::new(), |below| format!("{below}, ")),
    )]
    IndivisibleBatch {
        global_batch_size: usize,
        /// The parts that take equal numbers of samples.
        among: String,
        remedy: &'static str,
        nearest_below: Option<usize>,
        nearest_above: usize,
    },
    /// The device is not part of this program.
    #[error(
        "--device {device}: this program was built without it (built in: {}); rebuild with --features {backend}",
        built_in.join(", ")
    )]
    DeviceNotBuilt {
        device: String,
        backend: &'static str,
        built_in: Vec<&'static str>,
    },
    /// Another run is writing to the output directory.
    #[error(
        "output directory {} is in use by {}: wait until that run has ended, or give another --output-dir",
        path.display(), if holder.is_empty() { "another process" } else { holder }
    )]
    OutputDirectoryBusy {
        path: PathBuf,
        /// The process, and since when.
        holder: String,
    },
    /// The output directory is no longer at its path.
    #[error(
        "output directory {} was moved or removed while the run wrote to it: put it back and give --resume, or start again",
        path.display()
    )]
    OutputDirectoryMoved { path: PathBuf },
    /// The directory of `--output-dir` belongs to another run.
    #[error("output directory {} is not empty: give --resume to continue its run, or another --output-dir", path.display())]
    OutputDirectoryInUse { path: PathBuf },
}

impl From<burn_resnet::ModelError> for ConfigError {
    fn from(reason: burn_resnet::ModelError) -> Self {
        Self::Model { reason }
    }
}
