//! What a run was: program, data, machine and launch, so that its numbers can be compared later.
//!
//! In: facts of the launch. Out: [`Manifest`], written once as `manifest.json`.
//! Invariant: what cannot be found out says "unknown" and never stops a run.

use std::fs;
use std::time::SystemTime;

use records::{DatasetFacts, LaunchFacts, Manifest};

/// What this process knows about itself, as of now; `config_hash` is [`crate::config::TrainConfig::hash`].
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

/// What of a launch bears on the bits that it computes, beside its options, as (what, value).
pub fn bearing_on_bits(manifest: &Manifest) -> [(&'static str, String); 10] {
    let Manifest {
        version,
        commit,
        cpu_model,
        platform,
        launch,
        dataset,
        ..
    } = manifest;
    [
        ("version", version.clone()),
        ("commit", commit.clone()),
        ("processor", cpu_model.clone()),
        ("platform", platform.clone()),
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

/// Name of the processor as Linux tells it, or "unknown".
pub fn cpu_model() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    text.lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
        .map_or("unknown".to_owned(), |(_, name)| name.trim().to_owned())
}
