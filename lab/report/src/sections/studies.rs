//! Overview of all inputs, warnings, and the raw records of studies.
//!
//! In: everything. Out: tables of studies, runs, comparisons and predictions; every attempt, the study file.
//! Invariant: the warnings name everything that was left out; disturbed and failed attempts are listed and marked.

use super::{Facts, suffix};
use crate::document::{Cell, Content, NamedRow, Table, mebibytes, number, percent, row};
use crate::sources::{Predictions, Run, StudyFolder, is_judged};
use records::{AttemptRecord, Comparison, EpochRecord, OtherCores, Status, StudyCell};

/// Reason for attempts whose disturbance is unknown.
const WHY_NOT_JUDGED: &str = "the quiet check was off (--no-quiet-check), or the attempt ran where the machine was not watched, as on Slurm nodes";

pub(super) fn summary(facts: &Facts<'_>) -> Vec<Content> {
    let sources = facts.sources;
    let mut contents = Vec::new();
    for study in &sources.studies {
        let plan = &study.plan;
        let title = if plan.title.is_empty() {
            &plan.name
        } else {
            &plan.title
        };
        contents.push(Content::Paragraph(
            format!("{title}. {}", plan.about).trim().to_owned(),
        ));
    }
    let mut remarks = sources.remarks.clone();
    for run in &sources.runs {
        remarks.extend(
            run.remarks
                .iter()
                .map(|remark| format!("{}: {remark}", run.label)),
        );
    }
    remarks.extend(sources.studies.iter().flat_map(warnings));
    remarks.extend(facts.ignored_targets.clone());
    contents.extend(remarks.into_iter().map(Content::Warning));
    let studies = sources.studies.iter().enumerate();
    let files = format!("Files of predictions: {}", sources.predictions.len());
    let tables = [
        Table::new(
            "studies",
            "Studies",
            studies.map(|(index, study)| of_study(facts, index, study)),
        ),
        Table::new("runs", "Training runs", sources.runs.iter().map(of_run)),
        Table::new(
            "comparisons",
            "Comparisons",
            sources.comparisons.iter().map(of_comparison),
        ),
        Table::new(
            "prediction-files",
            "Predictions",
            sources.predictions.iter().map(of_predictions),
        )
        .folded(files),
    ];
    contents.extend(tables.into_iter().filter_map(Content::table));
    contents
}

fn has_status(status: Status) -> impl Fn(&&AttemptRecord) -> bool {
    move |record| record.status == status
}

fn warnings(study: &StudyFolder) -> Vec<String> {
    let counted = study.counted();
    let records = || counted.iter().map(|(_, record)| *record);
    let disturbed = records().filter(has_status(Status::Disturbed)).count();
    let unjudged = records().filter(|record| !is_judged(record)).count();
    let is_missing = |cell: &&StudyCell| !counted.iter().any(|(other, _)| other.id == cell.id);
    let missing = study
        .plan
        .cells
        .iter()
        .filter(is_missing)
        .map(|cell| cell.id.as_str());
    let missing: Vec<&str> = missing.collect();
    let name = &study.plan.name;
    let all = counted.len();
    let mut warnings = Vec::new();
    if disturbed > 0 {
        warnings.push(format!("{name}: {disturbed} of {all} measurements count although the machine was not quiet; they are marked"));
    }
    if unjudged > 0 {
        warnings.push(format!(
            "{name}: {unjudged} of {all} measurements were not judged: {WHY_NOT_JUDGED}"
        ));
    }
    if !missing.is_empty() {
        let cells = study.plan.cells.len();
        warnings.push(format!(
            "{name}: {} of {cells} cells have no measurement: {}",
            missing.len(),
            missing.join(", ")
        ));
    }
    warnings
}

fn of_study(facts: &Facts<'_>, index: usize, study: &StudyFolder) -> NamedRow {
    let of_study = facts
        .measurements
        .iter()
        .filter(|one| one.is_of_study(index + 1));
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
        "number" => facts.has_several_studies().then_some(index + 1),
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
        .map(|(_, scores)| scores.top1);
    let test = tested.map(|test| test.scores.top1).or(last_test);
    let manifest = run.manifest();
    let batch = run
        .setting("batch.global-batch-size")
        .and_then(|batch| batch.parse::<u64>().ok());
    let seconds = run
        .progress()
        .last()
        .copied()
        .flatten()
        .map(|(_, seconds)| seconds);
    let sessions_on = run.by_session(|manifest| manifest.launch.ranks.to_string());
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
        "global batch" => batch,
        "epochs" => run.epochs.len(),
        "images/s" => number(run.images_per_second(), 1),
        "evaluated on" => evaluated.map(|(split, _)| split),
        "last accuracy, %" => percent(evaluated.map(|(_, scores)| scores.top1), 2),
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
    let file = &predictions.file;
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

pub(super) fn attempts(facts: &Facts<'_>) -> Vec<Content> {
    let studies = &facts.sources.studies;
    let suffixed = studies
        .iter()
        .enumerate()
        .map(|(index, study)| (study, suffix(index, studies.len())));
    suffixed
        .flat_map(|(study, suffix)| attempts_of(study, &suffix))
        .collect()
}

fn attempts_of(study: &StudyFolder, suffix: &str) -> Vec<Content> {
    let counted = study.counted();
    let counts = |record| {
        counted
            .iter()
            .any(|(_, other)| std::ptr::eq(*other, record))
    };
    let rows = study
        .attempts
        .iter()
        .map(|record| of_attempt(record, counts(record)));
    let plan = &study.plan;
    let title = format!("Every attempt of {}", plan.name);
    let attempts = Table::new(format!("records{suffix}"), &title, rows).folded(&title);
    let title = format!("Cells of {}", plan.name);
    let cell = |cell: &StudyCell| {
        row![
            "cell" => &cell.id,
            "kind" => &cell.kind,
            "repetitions" => cell.repetitions,
            "arguments" => cell.arguments.join(" "),
        ]
    };
    let cells = Table::new(
        format!("cells{suffix}"),
        &title,
        plan.cells.iter().map(cell),
    )
    .folded(&title);
    let count = |status| study.attempts.iter().filter(has_status(status)).count();
    let mut words = format!(
        "{}: {} attempts for {} cells; {} disturbed, {} failed. An attempt is disturbed when other programs, or other machines on the same host, used more CPUs than the limit during it.",
        plan.name,
        study.attempts.len(),
        plan.cells.len(),
        count(Status::Disturbed),
        count(Status::Failed)
    );
    let unjudged = study
        .attempts
        .iter()
        .filter(|record| !is_judged(record))
        .count();
    if unjudged > 0 {
        words.push_str(&format!(" {unjudged} were not judged: {WHY_NOT_JUDGED}."));
    }
    let mut contents = vec![Content::Paragraph(words)];
    contents.extend([attempts, cells].into_iter().filter_map(Content::table));
    if !plan.toml.is_empty() {
        contents.push(Content::FoldedText(
            format!("Study file of {}", plan.name),
            plan.toml.clone(),
        ));
    }
    contents
}

fn of_attempt(record: &AttemptRecord, counts: bool) -> NamedRow {
    let quiet = record.quiet.unwrap_or_default();
    let others = |cores: Option<OtherCores>| number(cores.and_then(|cores| cores.other_cores), 2);
    row![
        "cell" => &record.cell,
        "repetition" => record.repetition,
        "attempt" => record.attempt,
        "status" => record.status.name(),
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
