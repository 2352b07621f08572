//! What something was measured on and with, and when.
//!
//! Out: the object `machine` of studies and comparisons, the commit, the time. Invariant: what cannot be learned is null, never a failure.

use std::fs;
use std::num::NonZero;
use std::thread;

use serde_json::{Value, json};

use crate::cargo;
use crate::mpirun::Mpirun;
use crate::process;

/// What studies and comparisons call images/s.
pub(crate) const IMAGES_PER_SECOND_MEANS: &str =
    "global samples of all ranks / the slowest rank's wall time over the measured steps, warm-up left out";

/// Processor, memory, system and MPI.
pub(crate) fn machine() -> Value {
    let of = |file: &str, key: &str| value_of(&fs::read_to_string(file).unwrap_or_default(), key);
    let memory = of("/proc/meminfo", "MemTotal").and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
    json!({
        "cpu_model": of("/proc/cpuinfo", "model name"),
        "cpu_count": thread::available_parallelism().map_or(1, NonZero::get),
        "memory_bytes": memory.map(|kib| kib * 1024),
        "platform": format!("{}-{}", std::env::consts::OS, std::env::consts::ARCH),
        "kernel": fs::read_to_string("/proc/sys/kernel/osrelease").ok().map(|text| text.trim().to_owned()),
        "mpi": Mpirun::find().map(|mpirun| mpi_name(mpirun.version())),
    })
}

/// `Open MPI 4.1.4` of `mpirun (Open MPI) 4.1.4`; other makes name themselves otherwise.
fn mpi_name(line: &str) -> String {
    line.replace("mpirun ", "").replace(['(', ')'], "").trim().to_owned()
}

/// The value of a line `key: value`.
fn value_of(text: &str, key: &str) -> Option<String> {
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    lines.filter(|(name, _)| name.trim() == key).map(|(_, value)| value.trim().to_owned()).next()
}

/// The commit of this workspace, with `-dirty` where files differ from it.
pub(crate) fn commit() -> Option<String> {
    let root = cargo::root().display().to_string();
    let answer = process::answer("git", &["-C", &root, "describe", "--always", "--dirty", "--abbrev=9", "--exclude=*"]);
    answer.map(|text| text.trim().to_owned())
}

/// Now, such as `2026-01-31T12:00:00Z`.
pub(crate) fn now() -> Option<String> {
    let answer = process::answer("date", &["-u", "+%Y-%m-%dT%H:%M:%SZ"]);
    answer.map(|text| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_system_are_read_by_their_key() {
        let text = "processor\t: 0\nmodel name\t: A: 3 GHz\nmodel name\t: B\n";
        assert_eq!(value_of(text, "model name").as_deref(), Some("A: 3 GHz"));
        assert_eq!(value_of(text, "model"), None);
    }

    #[test]
    fn an_mpi_is_told_by_its_name_and_version() {
        assert_eq!(mpi_name("mpirun (Open MPI) 4.1.4"), "Open MPI 4.1.4");
    }

    #[test]
    fn the_machine_has_processors_and_a_name() {
        let machine = machine();
        assert!(machine["cpu_count"].as_u64().is_some_and(|count| count > 0), "{machine}");
        assert!(machine["platform"].as_str().is_some_and(|text| text.contains('-')), "{machine}");
    }

    #[test]
    fn a_time_has_date_and_zone() {
        let now = now().unwrap();
        assert!(now.len() == 20 && now.ends_with('Z') && now.contains('T'), "{now}");
    }
}
