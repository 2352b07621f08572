//! Why a configuration was refused. Every variant says what to do instead; all of them are usage errors (exit code 2).

use std::borrow::Cow;
use std::path::PathBuf;
use thiserror::Error;

/// A configuration that cannot be run as asked.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file of `--config` cannot be read.
    #[error("cannot read the configuration file {}: {reason}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said; not a `source`, which a chain of causes would say again.
        reason: std::io::Error,
    },
    /// The file of `--config` is no TOML, or has unknown keys or values.
    #[error(
        "{origin}: {}\n`trainer config` prints every key in its section",
        problem.trim_end()
    )]
    Syntax {
        /// The file or text.
        origin: String,
        /// Line, column and what is wrong there.
        problem: String,
    },
    /// There is no such network.
    #[error("--model or --depth: {reason}")]
    Model {
        /// Why; not a `source`, which a chain of causes would say again.
        reason: burn_resnet::ModelError,
    },
    /// An option has a value outside its range.
    #[error("{option}: expected {expected}, got {got}")]
    Invalid {
        /// The flag.
        option: &'static str,
        /// What it takes.
        expected: String,
        /// What it was given.
        got: String,
    },
    /// An option is needed and absent.
    #[error("{option} is missing: {because}; {remedy}")]
    Missing {
        /// The flag.
        option: &'static str,
        /// What needs it.
        because: String,
        /// What to type.
        remedy: String,
    },
    /// An option was given that would change nothing.
    #[error("{option} has no effect {because}: {remedy}")]
    NoEffect {
        /// The flag.
        option: Cow<'static, str>,
        /// With, or without, what.
        because: String,
        /// What to type.
        remedy: String,
    },
    /// Two options contradict each other.
    #[error("{option} contradicts {other}: {remedy}")]
    Conflict {
        /// The flag.
        option: &'static str,
        /// The other flag.
        other: String,
        /// What to type.
        remedy: String,
    },
    /// The global batch cannot be divided exactly.
    #[error(
        "--global-batch-size {global_batch_size} does not divide among {among}: take {}{nearest_above} or {remedy}",
        nearest_below.map_or(String::new(), |below| format!("{below}, ")),
    )]
    IndivisibleBatch {
        /// Samples of one step.
        global_batch_size: usize,
        /// Those of which each takes as many samples.
        among: String,
        /// What to type instead of a nearest size.
        remedy: &'static str,
        /// The nearest smaller size that divides, if there is one.
        nearest_below: Option<usize>,
        /// The nearest larger size that divides.
        nearest_above: usize,
    },
    /// The device is not part of this program.
    #[error(
        "--device {device}: this program was built without it (built in: {}); rebuild with --features {backend}",
        built_in.join(", ")
    )]
    DeviceNotBuilt {
        /// The device.
        device: String,
        /// The cargo feature that has it.
        backend: &'static str,
        /// The devices there are.
        built_in: Vec<&'static str>,
    },
    /// Another run is writing to the output directory.
    #[error(
        "output directory {} is in use by {}: wait until that run has ended, or give another --output-dir",
        path.display(), if holder.is_empty() { "another process" } else { holder }
    )]
    OutputDirectoryBusy {
        /// The directory.
        path: PathBuf,
        /// Who, since when.
        holder: String,
    },
    /// The output directory is no longer at its path.
    #[error(
        "output directory {} was moved or removed while the run wrote to it: put it back and go on with --resume, or begin anew",
        path.display()
    )]
    OutputDirectoryMoved {
        /// Where it was.
        path: PathBuf,
    },
    /// The directory of `--output-dir` belongs to another run.
    #[error("output directory {} is not empty: give --resume to continue its run, or another --output-dir", path.display())]
    OutputDirectoryInUse {
        /// The directory.
        path: PathBuf,
    },
}

impl From<burn_resnet::ModelError> for ConfigError {
    fn from(reason: burn_resnet::ModelError) -> Self {
        Self::Model { reason }
    }
}
