//! The machine, program and time of a study's attempts.
//!
//! In: study.json of an earlier session, this program, this machine. Out: the new study.json.
//! Invariant: facts about earlier attempts are kept; records of another CPU, or of another number
//! of CPUs, are refused. An unknown fact is null, never a failure.

use std::fs::{self, File};
use std::num::NonZero;
use std::path::Path;
use std::process::Command;
use std::thread;

use records::{Machine, Study, StudyStart};

use cluster::failure::{Outcome, failed};
use cluster::mpirun::Mpirun;
use cluster::output::say;
use cluster::process;

/// Returns this start of a study.
pub(crate) fn own(trainer: &Path) -> StudyStart {
    let version = process::answer(trainer, &["--version"]);
    StudyStart {
        since: Some(records::now()),
        commit: version.and_then(|version| commit_in(&version)),
        program_sha256: sha256(trainer),
        machine: machine(),
    }
}

/// Returns study.json with this start. A study with records keeps its first start and lists later
/// ones that differ from the start before them.
///
/// # Errors
/// Records of another CPU; for comparisons also records of another program.
pub(crate) fn resumed(
    mut study: Study,
    own: StudyStart,
    has_records: bool,
    is_comparison: bool,
) -> Outcome<Study> {
    if !has_records {
        study.created = own.since;
        study.commit = own.commit;
        study.program_sha256 = own.program_sha256;
        study.machine = own.machine;
        study.later_starts = Vec::new();
        return Ok(study);
    }
    check_machine(&study.machine, &own.machine)?;
    let last = match study.later_starts.last() {
        Some(last) => last.clone(),
        None => StudyStart {
            since: study.created.clone(),
            commit: study.commit.clone(),
            program_sha256: study.program_sha256.clone(),
            machine: study.machine.clone(),
        },
    };
    let is_same = (&last.commit, &last.program_sha256) == (&own.commit, &own.program_sha256);
    if !is_same && is_comparison {
        return Err(failed!(
            "records of another program (expected {}, got {}). Choose another --output, or measure \
             again with --again.",
            named(&own),
            named(&last)
        ));
    }
    if !is_same {
        say!(
            "note: earlier records are of another program, {}. study.json lists both, and this one: {}",
            named(&last),
            named(&own)
        );
    }
    if !is_same || last.machine != own.machine {
        study.later_starts.push(own);
    }
    Ok(study)
}

fn named(start: &StudyStart) -> String {
    format!(
        "commit {}, SHA-256 {}",
        start.commit.as_deref().unwrap_or("unknown"),
        start.program_sha256.as_deref().unwrap_or("unknown")
    )
}

/// Refuses another CPU, or another number of CPUs; an unknown fact is accepted.
fn check_machine(earlier: &Machine, own: &Machine) -> Outcome {
    let counts = [earlier.cpu_count, own.cpu_count];
    let cpus = |count: u64| Some(count).filter(|count| *count > 0);
    let [earlier_count, own_count] = counts.map(|count| Some(format!("{} CPUs", cpus(count)?)));
    for (earlier, own) in [
        (&earlier.cpu_model, &own.cpu_model),
        (&earlier_count, &own_count),
    ] {
        if let (Some(earlier), Some(own)) = (earlier, own)
            && earlier != own
        {
            return Err(failed!(
                "records of another machine (expected `{own}`, got `{earlier}`). Choose another --output."
            ));
        }
    }
    Ok(())
}

/// Returns CPU, memory, system and MPI.
fn machine() -> Machine {
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
        mpi: Mpirun::find().map(|mpirun| mpi_name(&mpirun.version)),
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
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = lines.find(|(name, _)| name.trim() == key)?;
    Some(value.trim().to_owned())
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

/// Returns the begin of the commit in the answer to `--version`, short enough for tables.
fn commit_in(version: &str) -> Option<String> {
    let commit = version.split_once("(commit ")?.1.split(')').next()?;
    (commit != "unknown").then(|| commit.chars().take(9).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(since: &str, sum: &str, kernel: &str) -> StudyStart {
        let own = |text: &str| Some(text.to_owned());
        StudyStart {
            since: own(since),
            commit: own("c"),
            program_sha256: own(sum),
            machine: Machine {
                kernel: own(kernel),
                ..Machine::default()
            },
        }
    }

    #[test]
    fn records_of_another_cpu_or_number_of_cpus_are_refused() {
        let of = |name: Option<&str>, cpu_count| Machine {
            cpu_model: name.map(str::to_owned),
            cpu_count,
            ..Machine::default()
        };
        for (machine, expected) in [
            (of(Some("A"), 4), None),
            (of(None, 0), None),
            (of(Some("B"), 4), Some("expected `B`, got `A`")),
            (of(Some("A"), 2), Some("expected `2 CPUs`, got `4 CPUs`")),
        ] {
            let study = Study {
                machine: of(Some("A"), 4),
                ..Study::default()
            };
            let own = StudyStart {
                machine,
                ..StudyStart::default()
            };
            let refusal = resumed(study, own, true, false).err();
            let refusal = refusal.map(|failure| failure.to_string());
            assert_eq!(refusal.is_some(), expected.is_some(), "{refusal:?}");
            assert!(refusal.unwrap_or_default().contains(expected.unwrap_or("")));
        }
    }

    #[test]
    fn earlier_records_keep_the_program_and_machine_that_made_them() {
        let mut study = resumed(Study::default(), start("1", "a", "k"), false, false).unwrap();
        // The same program, then another build of the commit, the same again, another kernel.
        for own in [
            start("2", "a", "k"),
            start("3", "b", "k"),
            start("4", "b", "k"),
            start("5", "b", "l"),
        ] {
            study = resumed(study, own, true, false).unwrap();
        }
        let since: Vec<&str> = study
            .later_starts
            .iter()
            .filter_map(|start| start.since.as_deref())
            .collect();
        assert_eq!(
            (study.created.as_deref(), &since[..]),
            (Some("1"), &["3", "5"][..])
        );
        let compared = resumed(study, start("6", "c", "l"), true, true);
        let text = compared.unwrap_err().to_string();
        assert!(
            text.contains("another program") && text.contains("--again"),
            "{text}"
        );
    }

    #[test]
    fn facts_of_system_and_programs_are_read_from_their_text() {
        let text = "processor\t: 0\nmodel name\t: A: 3 GHz\nmodel name\t: B\n";
        assert_eq!(value_of(text, "model name").as_deref(), Some("A: 3 GHz"));
        assert_eq!(value_of(text, "model"), None);
        assert_eq!(mpi_name("mpirun (Open MPI) 4.1.4"), "Open MPI 4.1.4");
        let version = |commit: &str| commit_in(&format!("trainer 0.1.0 (commit {commit})\n"));
        assert_eq!(
            version("36ff61616e0c1c149afb").as_deref(),
            Some("36ff61616")
        );
        assert_eq!(
            (version("unknown"), commit_in("another program")),
            (None, None)
        );
        let machine = machine();
        assert!(
            machine.cpu_count > 0 && machine.platform.contains('-'),
            "{machine:?}"
        );
        let now = records::now();
        assert!(
            now.len() == 20 && now.ends_with('Z') && now.contains('T'),
            "{now}"
        );
    }

    #[test]
    fn a_program_is_identified_by_the_checksum_of_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        fs::write(&path, "abc").unwrap();
        // Source: FIPS 180-2, appendix B.1.
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sha256(&path).as_deref(), Some(expected));
        assert_eq!(sha256(&folder.path().join("absent")), None);
    }
}
