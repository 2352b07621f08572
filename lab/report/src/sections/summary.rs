//! What was run, on what, and what came out, in one table each; and what a reader should know first.
//!
//! In: everything. Out: tables of studies, runs, comparisons and predictions, warnings.
//! Invariant: whatever was left out of the report is named here.

use super::Facts;
use super::records::WHY_NOT_JUDGED;
use crate::document::{Block, Cell, Table};
use crate::sources::{Predictions, Run, StudyFolder, is_judged};
use records::{Best, Comparison, EpochRecord, Status};

pub(super) fn blocks(facts: &Facts<'_>) -> Vec<Block> {
    let sources = facts.sources;
    let mut blocks = Vec::new();
    for study in &sources.studies {
        let title = if study.plan.title.is_empty() {
            &study.plan.name
        } else {
            &study.plan.title
        };
        blocks.push(Block::Paragraph(
            format!("{title}. {}", study.plan.about).trim().to_owned(),
        ));
    }
    let mut remarks: Vec<String> = sources.remarks.clone();
    for run in &sources.runs {
        remarks.extend(
            run.remarks
                .iter()
                .map(|remark| format!("{}: {remark}", run.label)),
        );
    }
    for study in &sources.studies {
        remarks.extend(disturbances(study));
    }
    remarks.extend(facts.ignored_targets.clone());
    blocks.extend(remarks.into_iter().map(Block::Warning));
    let tables = [studies(facts), runs(facts), comparisons(facts)];
    blocks.extend(
        tables
            .into_iter()
            .filter(|table| !table.rows.is_empty())
            .map(Block::Table),
    );
    let predictions = predictions(facts);
    if !predictions.rows.is_empty() {
        // A study has one for each of its cells.
        blocks.push(Block::FoldedTable(
            format!("Files of predictions: {}", predictions.rows.len()),
            predictions,
        ));
    }
    blocks
}

fn disturbances(study: &StudyFolder) -> Vec<String> {
    let counted = study.counted();
    let disturbed = counted
        .iter()
        .filter(|(_, record)| record.status == Status::Disturbed)
        .count();
    let missing: Vec<&str> = study
        .plan
        .cells
        .iter()
        .filter(|cell| !counted.iter().any(|(other, _)| other.id == cell.id))
        .map(|cell| cell.id.as_str())
        .collect();
    let mut remarks = Vec::new();
    if disturbed > 0 {
        remarks.push(format!(
            "{}: {disturbed} of {} measurements count although the machine was not quiet; they are marked",
            study.plan.name,
            counted.len()
        ));
    }
    let unjudged = counted
        .iter()
        .filter(|(_, record)| !is_judged(record))
        .count();
    if unjudged > 0 {
        remarks.push(format!(
            "{}: {unjudged} of {} measurements were not judged: {WHY_NOT_JUDGED}",
            study.plan.name,
            counted.len()
        ));
    }
    if !missing.is_empty() {
        remarks.push(format!(
            "{}: {} of {} cells have no measurement: {}",
            study.plan.name,
            missing.len(),
            study.plan.cells.len(),
            missing.join(", ")
        ));
    }
    remarks
}

fn studies(facts: &Facts<'_>) -> Table {
    let row = |(index, study): (usize, &StudyFolder)| {
        let of_study = facts
            .measurements
            .iter()
            .filter(|one| one.is_of_study(index + 1));
        let fastest = of_study
            .filter_map(|one| Some((one.speed()?, &one.id)))
            .max_by(|a, b| a.0.total_cmp(&b.0));
        let mut row = vec![
            ("study", Cell::text(study.plan.name.clone())),
            (
                "made",
                Cell::text(study.plan.created.clone().unwrap_or_default()),
            ),
            (
                "commit",
                Cell::text(short(study.plan.commit.as_deref().unwrap_or_default())),
            ),
            (
                "processor",
                Cell::text(study.plan.machine.cpu_model.clone().unwrap_or_default()),
            ),
            ("processors", Cell::count(study.plan.machine.cpu_count)),
            (
                "memory, MiB",
                Cell::mebibytes(
                    study
                        .plan
                        .machine
                        .memory_bytes
                        .filter(|bytes| *bytes > 0)
                        .map(|bytes| bytes as f64),
                ),
            ),
            (
                "platform",
                Cell::text(
                    format!(
                        "{} {}",
                        study.plan.machine.platform,
                        study.plan.machine.kernel.as_deref().unwrap_or_default()
                    )
                    .trim()
                    .to_owned(),
                ),
            ),
            (
                "MPI",
                Cell::text(study.plan.machine.mpi.clone().unwrap_or_default()),
            ),
            ("cells", Cell::count(study.plan.cells.len() as u64)),
            ("attempts", Cell::count(study.attempts.len() as u64)),
            (
                "fastest, images/s",
                Cell::number(fastest.map(|fastest| fastest.0), 1),
            ),
            (
                "its cell",
                fastest.map_or(Cell::Missing, |fastest| Cell::text(fastest.1.clone())),
            ),
        ];
        row.extend(
            facts
                .has_several_studies()
                .then(|| ("number", Cell::count(index as u64 + 1))),
        );
        row
    };
    Table::of(
        "studies",
        "Studies",
        facts.sources.studies.iter().enumerate().map(row),
    )
}

fn runs(facts: &Facts<'_>) -> Table {
    let row = |run: &Run| {
        let text = |text: Option<&str>| text.map_or(Cell::Missing, Cell::text);
        let evaluated = run.epochs.iter().rev().find_map(EpochRecord::evaluation);
        let best = run
            .summary
            .as_ref()
            .and_then(|summary| summary.best.as_ref());
        let is_accuracy = |best: &Best| best.monitor.ends_with("top1");
        let value = |best: &Best| {
            if is_accuracy(best) {
                100.0 * best.value
            } else {
                best.value
            }
        };
        let last_test = || {
            evaluated
                .filter(|(split, _)| *split == "test")
                .map(|(_, scores)| scores.top1)
        };
        let test = run
            .summary
            .as_ref()
            .and_then(|summary| summary.test.as_ref())
            .map(|test| test.scores.top1);
        let manifest = run.manifest();
        vec![
            ("run", Cell::text(run.label.clone())),
            (
                "model",
                text(run.setting("model.model").or(run.setting("model.family"))),
            ),
            ("format", text(run.setting("compute.dtype"))),
            (
                "data",
                text(manifest.map(|manifest| manifest.dataset.name.as_str())),
            ),
            ("ranks", ranks(run)),
            ("sessions", Cell::count(run.manifests.len() as u64)),
            (
                "global batch",
                Cell::number(
                    run.setting("batch.global-batch-size")
                        .and_then(|batch| batch.parse::<f64>().ok()),
                    0,
                ),
            ),
            ("epochs", Cell::count(run.epochs.len() as u64)),
            ("images/s", Cell::number(run.images_per_second(), 1)),
            ("evaluated on", text(evaluated.map(|(split, _)| split))),
            (
                "last accuracy, %",
                Cell::number(evaluated.map(|(_, scores)| 100.0 * scores.top1), 2),
            ),
            ("best by", text(best.map(|best| best.monitor.as_str()))),
            ("best (top-1 in %)", Cell::number(best.map(value), 2)),
            (
                "test accuracy, %",
                Cell::number(test.or_else(last_test).map(|top1| 100.0 * top1), 2),
            ),
            (
                "last training loss",
                Cell::number(run.epochs.last().and_then(|epoch| epoch.train_loss), 4),
            ),
            (
                "seconds",
                Cell::number(
                    run.progress()
                        .last()
                        .and_then(|progress| Some((*progress)?.1)),
                    1,
                ),
            ),
            (
                "processor",
                text(manifest.map(|manifest| manifest.cpu_model.as_str())),
            ),
            (
                "commit",
                manifest.map_or(Cell::Missing, |manifest| {
                    Cell::text(short(&manifest.commit))
                }),
            ),
        ]
    };
    Table::of("runs", "Training runs", facts.sources.runs.iter().map(row))
}

/// The ranks that trained; of sessions on different numbers of ranks, each number.
fn ranks(run: &Run) -> Cell {
    let of_sessions = run.by_session(|manifest| manifest.launch.ranks.to_string());
    if of_sessions.contains(',') {
        return Cell::text(of_sessions);
    }
    Cell::count(run.ranks().map(|ranks| ranks as u64))
}

fn comparisons(facts: &Facts<'_>) -> Table {
    let row = |comparison: &Comparison| {
        let mut frameworks: Vec<&str> = comparison
            .rows
            .iter()
            .map(|row| row.framework.as_str())
            .collect();
        frameworks.sort_unstable();
        frameworks.dedup();
        vec![
            ("comparison made", Cell::text(comparison.created.clone())),
            ("commit", Cell::text(short(&comparison.commit))),
            (
                "processor",
                Cell::text(comparison.machine.cpu_model.clone().unwrap_or_default()),
            ),
            ("frameworks", Cell::text(frameworks.join(", "))),
            ("rows", Cell::count(comparison.rows.len() as u64)),
            (
                "rows without a number",
                Cell::count(
                    comparison
                        .rows
                        .iter()
                        .filter(|row| row.speed().is_none())
                        .count() as u64,
                ),
            ),
        ]
    };
    Table::of(
        "comparisons",
        "Comparisons",
        facts.sources.comparisons.iter().map(row),
    )
}

fn predictions(facts: &Facts<'_>) -> Table {
    let row = |Predictions { label, file, .. }: &Predictions| {
        vec![
            ("prediction", Cell::text(label.clone())),
            ("made", Cell::text(file.created.clone())),
            ("commit", Cell::text(short(&file.commit))),
            ("model", Cell::text(file.model.clone())),
            ("format", Cell::text(file.dtype.clone())),
            ("network", Cell::text(file.network.name.clone())),
            ("its source", Cell::text(file.network.source.clone())),
            ("latency, us", Cell::number(file.network.alpha_s * 1e6, 2)),
            (
                "bandwidth, MB/s",
                Cell::number(file.network.bytes_per_second / 1e6, 1),
            ),
            ("predictions", Cell::count(file.predictions.len() as u64)),
        ]
    };
    Table::of(
        "prediction-files",
        "Predictions",
        facts.sources.predictions.iter().map(row),
    )
}

/// A commit as people quote it.
fn short(commit: &str) -> String {
    let is_hash = commit.len() > 12 && commit.chars().take(40).all(|c| c.is_ascii_hexdigit());
    if is_hash {
        commit.chars().take(12).collect()
    } else {
        commit.to_owned()
    }
}
