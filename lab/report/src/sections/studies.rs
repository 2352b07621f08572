//! Studies and their raw records.
//!
//! In: studies. Out: rows of studies, warnings, every attempt, the
//! study file.
//! Invariant: disturbed and failed attempts are listed and marked.

use super::{Facts, short};
use crate::document::{NamedRow, Section, mebibytes, number, row};
use crate::sources::StudyFolder;
use records::{AttemptRecord, OtherCores, Status};

/// Reason for attempts whose disturbance is unknown.
const WHY_NOT_JUDGED: &str = "the quiet check was off (--no-quiet-check), or the attempt ran where the machine was not watched, as on Slurm nodes";

/// Returns true if the use of the CPUs by others was compared with a limit, or the attempt failed.
fn is_judged(attempt: &AttemptRecord) -> bool {
    let quiet = attempt.quiet.unwrap_or_default();
    attempt.status != Status::Ok || quiet.limit_cores.is_some() && quiet.during.is_some()
}

/// Returns what the reader must know about the measurements of a study.
pub(super) fn warnings(facts: &Facts<'_>, study: &StudyFolder) -> Vec<String> {
    let plan = &study.plan;
    let name = &plan.name;
    let counted = plan.counted(&study.attempts);
    let all = counted.len();
    let attempts = counted.iter().map(|(_, attempt)| attempt);
    let is_disturbed = |one: &&&AttemptRecord| one.status == Status::Disturbed;
    let disturbed = attempts.clone().filter(is_disturbed).count();
    let mut warnings = Vec::new();
    if disturbed > 0 {
        warnings.push(format!("{name}: {disturbed} of {all} measurements count although the machine was not quiet; they are marked"));
    }
    let unjudged = attempts.filter(|one| !is_judged(one)).count();
    if unjudged > 0 {
        warnings.push(format!(
            "{name}: {unjudged} of {all} measurements were not judged: {WHY_NOT_JUDGED}"
        ));
    }
    let mut missing: Vec<&str> = plan.cells.iter().map(|cell| cell.id.as_str()).collect();
    missing.retain(|id| !counted.iter().any(|(cell, _)| cell.id == *id));
    if !missing.is_empty() {
        warnings.push(format!(
            "{name}: {} of {} cells have no measurement: {}",
            missing.len(),
            plan.cells.len(),
            missing.join(", ")
        ));
    }
    if let (Some(used), Some(own), false) = (
        facts.target_accuracy,
        plan.target_accuracy,
        facts.is_target_given,
    ) && used != own
    {
        warnings.push(format!(
            "{name}: runs are compared with the target accuracy {used}, not with {own}; choose one with --target-accuracy, or write one report per target"
        ));
    }
    warnings
}

pub(super) fn of_study(facts: &Facts<'_>, number: usize, study: &StudyFolder) -> NamedRow {
    let plan = &study.plan;
    let machine = &plan.machine;
    let kernel = machine.kernel.as_deref().unwrap_or_default();
    row![
        "study" => &plan.name,
        "started" => plan.created.as_ref(),
        "commit" => plan.commit.as_deref().map(short),
        "CPU" => machine.cpu_model.as_ref(),
        "CPUs" => machine.cpu_count,
        "memory, MiB" => mebibytes(machine.memory_bytes.filter(|bytes| *bytes > 0)),
        "platform" => format!("{} {kernel}", machine.platform).trim(),
        "MPI" => machine.mpi.as_ref(),
        "cells" => plan.cells.len(),
        "attempts" => study.attempts.len(),
        "number" => facts.has_several_studies().then_some(number),
    ]
}

pub(super) fn attempts(facts: &Facts<'_>, section: &mut Section) {
    for study in &facts.sources.studies {
        let attempts = &study.attempts;
        let plan = &study.plan;
        let name = &plan.name;
        let count = |status| attempts.iter().filter(|one| one.status == status).count();
        let unjudged = attempts.iter().filter(|one| !is_judged(one)).count();
        let unjudged = match unjudged {
            0 => String::new(),
            count => format!(" {count} were not judged: {WHY_NOT_JUDGED}."),
        };
        section.text(format!(
            "{name}: {} for {}; {} disturbed, {} failed. An attempt is disturbed when other programs, or other machines on the same host, used more CPUs than the limit during it.{unjudged}",
            records::counted(attempts.len(), "attempt"),
            records::counted(plan.cells.len(), "cell"),
            count(Status::Disturbed),
            count(Status::Failed)
        ));
        let counted = plan.counted(attempts);
        let counts = |one| counted.iter().any(|(_, other)| std::ptr::eq(*other, one));
        let rows = attempts.iter().map(|one| of_attempt(one, counts(one)));
        section.folded_table("records", format!("Every attempt of {name}"), rows);
        if !plan.toml.is_empty() {
            section.fold(format!("Study file of {name}"), plan.toml.clone());
        }
    }
}

fn of_attempt(record: &AttemptRecord, counts: bool) -> NamedRow {
    let quiet = record.quiet.unwrap_or_default();
    let others = |cores: Option<OtherCores>| number(cores.and_then(|cores| cores.other_cores), 2);
    row![
        "cell" => &record.cell,
        "repetition" => record.repetition,
        "attempt" => record.attempt,
        "status" => records::name(record.status),
        "counts" => counts,
        "reason" => record.why.as_ref(),
        "started" => record.started.as_ref(),
        "seconds" => number(record.seconds, 1),
        "images/s" => number(record.images_per_second(), 1),
        "others' CPUs before" => others(quiet.before),
        "others' CPUs during" => others(quiet.during),
        "stolen CPUs" => number(quiet.during.and_then(|cores| cores.steal_cores), 2),
        "limit, CPUs" => number(quiet.limit_cores, 2),
        "least MHz" => number(quiet.mhz_min, 0),
        "most MHz" => number(quiet.mhz_max, 0),
        "command" => &record.command,
    ]
}
