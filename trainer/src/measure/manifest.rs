//! Program, data, machine and launch of a run, which make its numbers comparable later.
//!
//! In: facts of the launch. Out: [`Manifest`], the content of `manifest.json`.
//! Invariant: an unknown fact is "unknown" and not an error.

use std::fs;
use std::time::SystemTime;

use anyhow::Result;
use burn::tensor::Device;
use distributed::Communicator;
use records::{DatasetFacts, LaunchFacts, Manifest};

/// Returns the manifest of this process; `config_hash` is [`crate::config::TrainConfig::hash`].
pub fn of_this_launch(config_hash: String, launch: LaunchFacts, dataset: DatasetFacts) -> Manifest {
    Manifest {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        commit: env!("LOCKSTEP_COMMIT").to_owned(),
        config_hash,
        started: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        command_line: std::env::args_os()
            .map(|word| word.to_string_lossy().into_owned())
            .collect(),
        cpu_model: cpu_model(),
        cpu_count: std::thread::available_parallelism().map_or(1, usize::from),
        platform: format!("{}-{}", std::env::consts::OS, std::env::consts::ARCH),
        launch,
        dataset,
    }
}

/// Returns the ranks and machines of this launch.
/// Collective: gathers the machines of the ranks.
pub fn launch_facts(
    communicator: &dyn Communicator,
    threads_per_rank: usize,
    device: &Device,
) -> Result<LaunchFacts> {
    let mut nodes: Vec<String> = Vec::new();
    for node in communicator.all_gather(communicator.topology().node.as_bytes())? {
        let node = String::from_utf8_lossy(&node).into_owned();
        if !nodes.contains(&node) {
            nodes.push(node);
        }
    }
    Ok(LaunchFacts {
        ranks: communicator.world_size(),
        threads_per_rank,
        nodes,
        mpi_library: communicator.library(),
        device: format!("{device:?}"),
    })
}

/// Returns the facts of a launch that affect the bits of its results, as (name, value).
///
/// The options of the launch are not included.
pub fn bearing_on_bits(manifest: &Manifest) -> [(&'static str, String); 10] {
    let launch = &manifest.launch;
    let dataset = &manifest.dataset;
    [
        ("version", manifest.version.clone()),
        ("commit", manifest.commit.clone()),
        ("processor", manifest.cpu_model.clone()),
        ("platform", manifest.platform.clone()),
        ("ranks", launch.ranks.to_string()),
        ("threads of a rank", launch.threads_per_rank.to_string()),
        ("communication", launch.mpi_library.clone()),
        ("device", launch.device.clone()),
        (
            "data set",
            format!("{} of {} images", dataset.name, dataset.num_train),
        ),
        (
            "checksum of the train split",
            dataset.train_checksum.clone(),
        ),
    ]
}

/// Returns the name of the CPU on Linux, or "unknown".
pub fn cpu_model() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    text.lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
        .map_or("unknown".to_owned(), |(_, name)| name.trim().to_owned())
}
