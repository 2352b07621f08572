//! What a run was: program, data, machine and launch, so that its numbers can be compared later.
//!
//! In: facts of the launch. Out: [`Manifest`], written once as `manifest.json`.
//! Invariant: what cannot be found out says "unknown" and never stops a run.

use serde::{Deserialize, Serialize};
use std::fs;
use std::time::SystemTime;

/// The data a run read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetFacts {
    /// Name of the data set.
    pub name: String,
    /// Training images.
    pub num_train: usize,
    /// Test images.
    pub num_test: usize,
    /// Identity of the train split, SHA-256 in hexadecimal.
    pub train_checksum: String,
    /// Identity of the test split, SHA-256 in hexadecimal.
    pub test_checksum: String,
}

/// How a run was launched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchFacts {
    /// Number of ranks.
    pub ranks: usize,
    /// Compute threads of each rank.
    pub threads_per_rank: usize,
    /// Names of the machines, each once.
    pub nodes: Vec<String>,
    /// The communication library, its first line about itself.
    pub mpi_library: String,
    /// Backend and device.
    pub device: String,
}

/// One launch of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of the program.
    pub version: String,
    /// Commit the program was built from, or "unknown".
    pub commit: String,
    /// [`crate::config::TrainConfig::hash`].
    pub config_hash: String,
    /// Start in UTC, RFC 3339.
    pub started: String,
    /// Program and flags as typed.
    pub command_line: Vec<String>,
    /// Processor of the root's machine.
    pub cpu_model: String,
    /// Processors the root may use.
    pub cpu_count: usize,
    /// Operating system and architecture.
    pub platform: String,
    /// The launch.
    pub launch: LaunchFacts,
    /// The data.
    pub dataset: DatasetFacts,
}

impl Manifest {
    /// Collects what this process knows about itself, as of now.
    pub fn new(config_hash: String, launch: LaunchFacts, dataset: DatasetFacts) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            commit: env!("LOCKSTEP_COMMIT").to_owned(),
            config_hash,
            started: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            command_line: std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect(),
            cpu_model: cpu_model(),
            cpu_count: std::thread::available_parallelism().map_or(1, usize::from),
            platform: format!("{}-{}", std::env::consts::OS, std::env::consts::ARCH),
            launch,
            dataset,
        }
    }
}

/// Name of the processor as Linux tells it, or "unknown".
pub fn cpu_model() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    text.lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
        .map_or("unknown".to_owned(), |(_, name)| name.trim().to_owned())
}
