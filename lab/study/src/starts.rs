//! The programs and machines of a study's attempts.
//!
//! In: earlier starts in study.json, this program, this machine. Out: the list of different starts.
//! Invariant: facts about earlier attempts are kept; records of another CPU, or of another number
//! of CPUs, are refused.

use std::path::Path;

use records::{Study, StudyStart};

use crate::machine;
use cluster::failure::{Failure, Outcome};
use cluster::output::say;

/// Starts of a study, each different from the one before it.
#[derive(Debug, PartialEq)]
pub(crate) struct Starts {
    pub(crate) first: StudyStart,
    pub(crate) later: Vec<StudyStart>,
}

/// Returns this start.
pub(crate) fn own(trainer: &Path) -> StudyStart {
    let program = machine::program(trainer);
    StudyStart {
        since: machine::now(),
        commit: program.commit,
        program_sha256: program.sha256,
        machine: machine::machine(),
    }
}

impl Starts {
    /// Returns the starts of a study without records.
    pub(crate) fn new(own: StudyStart) -> Self {
        Starts {
            first: own,
            later: Vec::new(),
        }
    }

    /// Returns the starts of a study with records; refuses another CPU, and for comparisons another
    /// program.
    pub(crate) fn with(
        study: &Study,
        own: StudyStart,
        directory: &Path,
        is_comparison: bool,
    ) -> Outcome<Self> {
        check_machine(study, &own, directory)?;
        let first = StudyStart {
            since: study.created.clone(),
            commit: study.commit.clone(),
            program_sha256: study.program_sha256.clone(),
            machine: study.machine.clone(),
        };
        let mut later = study.later_starts.clone();
        let last = later.last().unwrap_or(&first);
        if program(last) != program(&own) && is_comparison {
            return Err(Failure::Failed(format!(
                "{}: records of another program (expected {}, got {}). Choose another --output, or measure again \
                 with --again.",
                directory.display(),
                named(&own),
                named(last)
            )));
        }
        if program(last) != program(&own) {
            say!(
                "note: earlier records are of another program, {}; this is {}: study.json keeps both and since when",
                named(last),
                named(&own)
            );
        }
        if program(last) != program(&own) || last.machine != own.machine {
            later.push(own);
        }
        Ok(Starts { first, later })
    }
}

fn program(start: &StudyStart) -> (&Option<String>, &Option<String>) {
    (&start.commit, &start.program_sha256)
}

fn named(start: &StudyStart) -> String {
    let or = |known: &Option<String>| known.clone().unwrap_or_else(|| "unknown".to_owned());
    format!(
        "commit {}, SHA-256 {}",
        or(&start.commit),
        or(&start.program_sha256)
    )
}

/// Refuses another CPU, or another number of them; an unknown fact is accepted.
fn check_machine(study: &Study, own: &StudyStart, directory: &Path) -> Outcome {
    let theirs = &study.machine;
    let own = &own.machine;
    let refused = |theirs: String, own: String| {
        let text =
            format!("records are of `{theirs}`, this machine is `{own}`: choose another --output");
        Err(Failure::Failed(format!("{}: {text}", directory.display())))
    };
    match (&theirs.cpu_model, &own.cpu_model) {
        (Some(theirs), Some(own)) if theirs != own => refused(theirs.clone(), own.clone()),
        _ if theirs.cpu_count > 0 && own.cpu_count > 0 && theirs.cpu_count != own.cpu_count => {
            refused(
                format!("{} processors", theirs.cpu_count),
                format!("{} processors", own.cpu_count),
            )
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use records::Machine;

    fn start(since: &str, sum: &str, kernel: &str) -> StudyStart {
        let machine = Machine {
            kernel: Some(kernel.to_owned()),
            ..Machine::default()
        };
        let own = |text: &str| Some(text.to_owned());
        StudyStart {
            since: own(since),
            commit: own("c"),
            program_sha256: own(sum),
            machine,
        }
    }

    #[test]
    fn records_of_another_processor_or_number_of_them_are_not_gone_on_with() {
        let of = |name: Option<&str>, cpu_count| Machine {
            cpu_model: name.map(str::to_owned),
            cpu_count,
            ..Machine::default()
        };
        let study = Study {
            machine: of(Some("A"), 4),
            ..Study::default()
        };
        let check = |machine: Machine| {
            Starts::with(
                &study,
                StudyStart {
                    machine,
                    ..StudyStart::default()
                },
                Path::new("d"),
                false,
            )
            .map(drop)
        };
        check(of(Some("A"), 4)).unwrap();
        check(of(None, 0)).unwrap();
        let text = check(of(Some("B"), 4)).unwrap_err().to_string();
        assert_eq!(
            text,
            "d: records are of `A`, this machine is `B`: choose another --output"
        );
        let text = check(of(Some("A"), 2)).unwrap_err().to_string();
        assert_eq!(
            text,
            "d: records are of `4 processors`, this machine is `2 processors`: choose another --output"
        );
    }

    #[test]
    fn earlier_records_stay_those_of_the_program_and_machine_that_made_them() {
        let first = start("1", "a", "k");
        let mut study = Study {
            created: first.since.clone(),
            commit: first.commit.clone(),
            program_sha256: first.program_sha256.clone(),
            machine: first.machine.clone(),
            ..Study::default()
        };
        // The same commit, built of changed files; then again; then on another kernel.
        for (own, num_later) in [
            (start("2", "a", "k"), 0),
            (start("3", "b", "k"), 1),
            (start("4", "b", "k"), 1),
            (start("5", "b", "l"), 2),
        ] {
            let starts = Starts::with(&study, own.clone(), Path::new("d"), false).unwrap();
            assert_eq!(
                (&starts.first, starts.later.len()),
                (&first, num_later),
                "{own:?}"
            );
            study.later_starts = starts.later;
        }
        let since: Vec<&str> = study
            .later_starts
            .iter()
            .filter_map(|start| start.since.as_deref())
            .collect();
        assert_eq!(since, ["3", "5"]);
        let compared = Starts::with(&study, start("6", "c", "l"), Path::new("d"), true);
        let text = compared.unwrap_err().to_string();
        assert!(
            text.contains("another program") && text.contains("--again"),
            "{text}"
        );
    }
}
