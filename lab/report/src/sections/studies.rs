//! Overview of all inputs, warnings, and the raw records of studies.
//!
//! In: everything. Out: tables of studies, runs, comparisons and predictions; every attempt, the
//! study file.
//! Invariant: the warnings name everything that was left out. Disturbed and failed attempts are
//! listed and marked.

use super::Facts;
use crate::document::{Cell, Content, NamedRow, Section, mebibytes, number, percent, row};
use crate::sources::{Predictions, Run, StudyFolder};
use records::{AttemptRecord, Comparison, EpochRecord, OtherCores, Status};

/// Reason for attempts whose disturbance is unknown.
const WHY_NOT_JUDGED: &str = "the quiet check was off (--no-quiet-check), or the attempt ran where the machine was not watched, as on Slurm nodes";

pub(super) fn summary(facts: &Facts<'_>, section: &mut Section) {
    let sources = facts.sources;
    for study in &sources.studies {
        let plan = &study.plan;
        let title = match plan.title.as_str() {
            "" => &plan.name,
            title => title,
        };
        section.text(format!("{title}. {}", plan.about).trim());
    }
    for remark in &sources.remarks {
        section.warn(remark);
    }
    for run in &sources.runs {
        for remark in &run.remarks {
            section.warn(format!("{}: {remark}", run.label));
        }
    }
    for study in &sources.studies {
        warn(facts, study, section);
    }
    let studies = sources.studies.iter().enumerate();
    section.table(
        "studies",
        "Studies",
        studies.map(|(index, study)| of_study(facts, index + 1, study)),
    );
    section.table("runs", "Training runs", sources.runs.iter().map(of_run));
    let comparisons = sources.comparisons.iter();
    section.table("comparisons", "Comparisons", comparisons.map(of_comparison));
    section.folded_table(
        "prediction-files",
        format!("Files of predictions: {}", sources.predictions.len()),
        sources.predictions.iter().map(of_predictions),
    );
}

/// Returns true if the use of the CPUs by others was compared with a limit, or the attempt failed.
fn is_judged(attempt: &AttemptRecord) -> bool {
    let quiet = attempt.quiet.unwrap_or_default();
    attempt.status != Status::Ok || quiet.limit_cores.is_some() && quiet.during.is_some()
}

fn warn(facts: &Facts<'_>, study: &StudyFolder, section: &mut Section) {
    let plan = &study.plan;
    let name = &plan.name;
    let counted = plan.counted(&study.attempts);
    let all = counted.len();
    let attempts = counted.iter().map(|(_, attempt)| attempt);
    let disturbed = attempts
        .clone()
        .filter(|one| one.status == Status::Disturbed)
        .count();
    if disturbed > 0 {
        section.warn(format!("{name}: {disturbed} of {all} measurements count although the machine was not quiet; they are marked"));
    }
    let unjudged = attempts.filter(|one| !is_judged(one)).count();
    if unjudged > 0 {
        section.warn(format!(
            "{name}: {unjudged} of {all} measurements were not judged: {WHY_NOT_JUDGED}"
        ));
    }
    let mut missing: Vec<&str> = plan.cells.iter().map(|cell| cell.id.as_str()).collect();
    missing.retain(|id| !counted.iter().any(|(cell, _)| cell.id == *id));
    if !missing.is_empty() {
        section.warn(format!(
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
        section.warn(format!(
            "{name}: runs are compared with the target accuracy {used}, not with {own}; choose one with --target-accuracy, or write one report per target"
        ));
    }
}

fn of_study(facts: &Facts<'_>, number_of_study: usize, study: &StudyFolder) -> NamedRow {
    let name = number_of_study.to_string();
    let of_study = facts
        .measurements
        .iter()
        .filter(|one| one.setting("study") == name);
    let fastest = of_study
        .filter_map(|one| Some((one.speed()?.median, &one.id)))
        .max_by(|a, b| a.0.total_cmp(&b.0));
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
        "fastest, images/s" => number(fastest.map(|(speed, _)| speed), 1),
        "its cell" => fastest.map(|(_, cell)| cell),
        "number" => facts.has_several_studies().then_some(number_of_study),
    ]
}

fn of_run(run: &Run) -> NamedRow {
    let evaluated = run.epochs.iter().rev().find_map(EpochRecord::evaluation);
    let summary = run.summary.as_ref();
    let best = summary.and_then(|summary| summary.best.as_ref());
    let best_value = best.map(|best| match best.monitor.ends_with("top1") {
        true => percent(best.value, 2),
        false => number(best.value, 2),
    });
    let tested = summary.and_then(|summary| summary.test.as_ref());
    let last_test = evaluated
        .filter(|(split, _)| *split == "test")
        .and_then(|(_, scores)| scores.top1);
    let test = tested.and_then(|test| test.scores.top1).or(last_test);
    let manifest = run.manifest();
    let seconds = run
        .progress()
        .last()
        .copied()
        .flatten()
        .map(|(_, seconds)| seconds);
    let sessions_on = run.ranks_by_session();
    let ranks = match sessions_on.contains(',') {
        true => Cell::from(sessions_on),
        false => Cell::from(run.ranks()),
    };
    row![
        "run" => &run.label,
        "model" => run.setting("model.model").or(run.setting("model.family")),
        "format" => run.setting("compute.dtype"),
        "data" => manifest.map(|manifest| &manifest.dataset.name),
        "ranks" => ranks,
        "sessions" => run.manifests.len(),
        "global batch" => run.global_batch_size(),
        "epochs" => run.epochs.len(),
        "images/s" => number(run.images_per_second(), 1),
        "evaluated on" => evaluated.map(|(split, _)| split),
        "last accuracy, %" => percent(evaluated.and_then(|(_, scores)| scores.top1), 2),
        "best by" => best.map(|best| &best.monitor),
        "best (top-1 in %)" => best_value,
        "test accuracy, %" => percent(test, 2),
        "last training loss" => number(run.epochs.last().and_then(|epoch| epoch.train_loss), 4),
        "seconds" => number(seconds, 1),
        "CPU" => manifest.map(|manifest| &manifest.cpu_model),
        "commit" => manifest.map(|manifest| short(&manifest.commit)),
    ]
}

fn of_comparison(comparison: &Comparison) -> NamedRow {
    let frameworks = comparison.rows.iter().map(|row| row.framework.as_str());
    let mut frameworks: Vec<&str> = frameworks.collect();
    frameworks.sort_unstable();
    frameworks.dedup();
    let missing = comparison.rows.iter().filter(|row| row.speed().is_none());
    row![
        "comparison of" => &comparison.created,
        "commit" => short(&comparison.commit),
        "CPU" => comparison.machine.cpu_model.as_ref(),
        "frameworks" => frameworks.join(", "),
        "rows" => comparison.rows.len(),
        "rows without a speed" => missing.count(),
    ]
}

fn of_predictions(predictions: &Predictions) -> NamedRow {
    let file = predictions.file();
    row![
        "prediction" => &predictions.label,
        "created" => &file.created,
        "commit" => short(&file.commit),
        "model" => &file.model,
        "format" => &file.dtype,
        "network" => &file.network.name,
        "its source" => &file.network.source,
        "latency, us" => number(file.network.alpha_s * 1e6, 2),
        "bandwidth, MB/s" => number(file.network.bytes_per_second / 1e6, 1),
        "predictions" => file.predictions.len(),
    ]
}

/// Returns the usual short form of a commit.
fn short(commit: &str) -> &str {
    let is_hash = commit.len() > 12 && commit.chars().take(40).all(|c| c.is_ascii_hexdigit());
    if is_hash { &commit[..12] } else { commit }
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
            "{name}: {} attempts for {} cells; {} disturbed, {} failed. An attempt is disturbed when other programs, or other machines on the same host, used more CPUs than the limit during it.{unjudged}",
            attempts.len(),
            plan.cells.len(),
            count(Status::Disturbed),
            count(Status::Failed)
        ));
        let counted = plan.counted(attempts);
        let counts = |one| counted.iter().any(|(_, other)| std::ptr::eq(*other, one));
        let rows = attempts.iter().map(|one| of_attempt(one, counts(one)));
        section.folded_table("records", format!("Every attempt of {name}"), rows);
        let cells = plan.cells.iter().map(|cell| {
            row![
                "cell" => &cell.id,
                "kind" => &cell.kind,
                "repetitions" => cell.repetitions,
                "arguments" => cell.arguments.join(" "),
            ]
        });
        section.folded_table("cells", format!("Cells of {name}"), cells);
        if !plan.toml.is_empty() {
            let summary = format!("Study file of {name}");
            let text = Content::FoldedText(summary, plan.toml.clone());
            section.contents.push(text);
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
