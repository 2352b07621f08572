//! What a study says of the machine and of the time.
//!
//! Out: the object `machine` of study.json; the time in RFC 3339. Invariant: what is not known is null.

use std::fs;

use serde_json::{Value, json};

use crate::cargo;
use crate::mpirun::Mpirun;
use crate::process;

/// Processor, memory, system, MPI.
pub(crate) fn machine(mpirun: Option<&Mpirun>) -> Value {
    let read = |path: &str| fs::read_to_string(path).ok();
    let cpu_model = read("/proc/cpuinfo").and_then(|text| field(&text, "model name"));
    let memory_kib = read("/proc/meminfo").and_then(|text| {
        field(&text, "MemTotal")?.split_whitespace().next().and_then(|number| number.parse::<u64>().ok())
    });
    json!({
        "cpu_model": cpu_model,
        "cpu_count": std::thread::available_parallelism().ok().map(std::num::NonZero::get),
        "memory_bytes": memory_kib.map(|kib| kib * 1024),
        "platform": format!("{}-{}", std::env::consts::OS, std::env::consts::ARCH),
        "kernel": read("/proc/sys/kernel/osrelease").map(|text| text.trim().to_owned()),
        "mpi": mpirun.map(ToString::to_string),
    })
}

/// The value of the first line `name: value`.
fn field(text: &str, name: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
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
    fn fields_of_the_kernels_files_are_read() {
        let text = "model\t\t: 143\nmodel name\t: Some CPU @ 2.0: x\n";
        assert_eq!(field(text, "model name").as_deref(), Some("Some CPU @ 2.0: x"));
        assert_eq!(field(text, "flags"), None);
    }

    #[test]
    fn the_time_is_in_one_zone_and_one_form() {
        let now = now().unwrap();
        assert!(now.len() == 20 && now.ends_with('Z') && now.as_bytes()[10] == b'T', "{now}");
        assert!(machine(None)["platform"].as_str().is_some_and(|text| text.contains('-')));
    }
}
