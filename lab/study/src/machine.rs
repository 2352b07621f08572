//! The machine, program and time of a measurement.
//!
//! Out: the object `machine` of studies, the commit, the time. Invariant: an unknown fact is null,
//! never a failure.

use std::fs::{self, File};
use std::num::NonZero;
use std::path::Path;
use std::process::Command;
use std::thread;

use records::Machine;

use cluster::mpirun::Mpirun;
use cluster::process;

/// Definition of images/s in studies.
pub(crate) const IMAGES_PER_SECOND_MEANS: &str = "global samples of all ranks / the slowest rank's wall time over the measured steps, warm-up left out";

/// Returns CPU, memory, system and MPI.
pub(crate) fn machine() -> Machine {
    let of = |file: &str, key: &str| value_of(&fs::read_to_string(file).unwrap_or_default(), key);
    let memory = of("/proc/meminfo", "MemTotal")
        .and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
    Machine {
        cpu_model: of("/proc/cpuinfo", "model name"),
        cpu_count: thread::available_parallelism().map_or(1, NonZero::get) as u64,
        memory_bytes: memory.map(|kib| kib * 1024),
        platform: format!("{}-{}", std::env::consts::OS, std::env::consts::ARCH),
        kernel: fs::read_to_string("/proc/sys/kernel/osrelease")
            .ok()
            .map(|text| text.trim().to_owned()),
        mpi: Mpirun::find().map(|mpirun| mpi_name(mpirun.version())),
    }
}

/// Returns `Open MPI 4.1.4` from `mpirun (Open MPI) 4.1.4`; other makes have other formats.
fn mpi_name(line: &str) -> String {
    line.replace("mpirun ", "")
        .replace(['(', ')'], "")
        .trim()
        .to_owned()
}

/// Returns the value of a line `key: value`.
fn value_of(text: &str, key: &str) -> Option<String> {
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    lines
        .filter(|(name, _)| name.trim() == key)
        .map(|(_, value)| value.trim().to_owned())
        .next()
}

/// Identity of a trainer; a commit does not include changes that were not committed.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Program {
    /// Commit of its build, if known.
    pub(crate) commit: Option<String>,
    /// SHA-256 of its file in hexadecimal.
    pub(crate) sha256: Option<String>,
}

/// Returns the identity of a trainer.
pub(crate) fn program(trainer: &Path) -> Program {
    Program {
        commit: commit(trainer),
        sha256: sha256(trainer),
    }
}

/// Returns the checksum from the system's program.
fn sha256(path: &Path) -> Option<String> {
    let output = Command::new("sha256sum")
        .stdin(File::open(path).ok()?)
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout)
        .ok()
        .filter(|_| output.status.success())?;
    text.split_whitespace().next().map(str::to_owned)
}

/// Returns the commit in the trainer's answer to `--version`.
fn commit(trainer: &Path) -> Option<String> {
    commit_in(&process::answer(trainer, &["--version"])?)
}

/// Returns the begin of the commit, short enough for tables.
fn commit_in(version: &str) -> Option<String> {
    let commit = version.split_once("(commit ")?.1.split(')').next()?;
    (commit != "unknown").then(|| commit.chars().take(9).collect())
}

/// Returns the time, such as `2026-01-31T12:00:00Z`.
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
    fn a_trainer_tells_its_commit_if_it_knows() {
        let version = |commit: &str| format!("trainer 0.1.0 (commit {commit})\n");
        assert_eq!(
            commit_in(&version("36ff61616e0c1c149afb")).as_deref(),
            Some("36ff61616")
        );
        assert_eq!(commit_in(&version("unknown")), None);
        assert_eq!(commit_in("another program"), None);
    }

    #[test]
    fn a_program_is_told_by_the_sum_of_its_file() {
        let path = std::env::temp_dir().join(format!("lockstep-jobs-{}-sum", std::process::id()));
        fs::write(&path, "abc").unwrap();
        let found = sha256(&path);
        fs::remove_file(&path).unwrap();
        // Source: FIPS 180-2, appendix B.1.
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!((found.as_deref(), sha256(&path)), (Some(expected), None));
    }

    #[test]
    fn the_machine_has_processors_and_a_name() {
        let machine = machine();
        assert!(
            machine.cpu_count > 0 && machine.platform.contains('-'),
            "{machine:?}"
        );
    }

    #[test]
    fn a_time_has_date_and_zone() {
        let now = now().unwrap();
        assert!(
            now.len() == 20 && now.ends_with('Z') && now.contains('T'),
            "{now}"
        );
    }
}
