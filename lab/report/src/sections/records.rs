//! The raw facts of studies: every attempt, how quiet the machine was, the study file.
//!
//! In: studies. Out: folded tables and texts. Invariant: attempts that were disturbed or failed are there and marked.

use super::Facts;
use crate::document::{Block, Cell, Table};
use crate::sources::{StudyFolder, is_judged};
use records::{AttemptRecord, OtherCores, Status, StudyCell};

/// Why nobody can say whether others disturbed an attempt.
pub(super) const WHY_NOT_JUDGED: &str = "the quiet check was off (--no-quiet-check), or the attempt ran where nobody watched the machine, as on nodes of Slurm";

pub(super) fn blocks(facts: &Facts<'_>) -> Vec<Block> {
    let studies = &facts.sources.studies;
    studies
        .iter()
        .enumerate()
        .flat_map(|(index, study)| of_study(study, index, studies.len()))
        .collect()
}

fn of_study(study: &StudyFolder, index: usize, num_studies: usize) -> Vec<Block> {
    let suffix = if num_studies > 1 {
        format!("-{}", index + 1)
    } else {
        String::new()
    };
    let counted = study.counted();
    let counts = |record| {
        counted
            .iter()
            .any(|(_, other)| std::ptr::eq(*other, record))
    };
    let attempts = study
        .attempts
        .iter()
        .map(|record| row(record, counts(record)));
    let attempts_of = format!("Every attempt of {}", study.plan.name);
    let table = Table::of(format!("records{suffix}"), &attempts_of, attempts);
    let cell = |cell: &StudyCell| {
        vec![
            ("cell", Cell::text(cell.id.clone())),
            ("kind", Cell::text(cell.kind.clone())),
            ("repetitions", Cell::count(cell.repetitions)),
            ("arguments", Cell::text(cell.arguments.join(" "))),
        ]
    };
    let cells_of = format!("Cells of {}", study.plan.name);
    let cells = Table::of(
        format!("cells{suffix}"),
        &cells_of,
        study.plan.cells.iter().map(cell),
    );
    let disturbed = study
        .attempts
        .iter()
        .filter(|record| record.status == Status::Disturbed)
        .count();
    let failed = study
        .attempts
        .iter()
        .filter(|record| record.status == Status::Failed)
        .count();
    let mut words = format!(
        "{}: {} attempts at {} cells, {disturbed} of them disturbed, {failed} failed. An attempt is disturbed when other programs or other machines on the same host took more processors than the limit meanwhile.",
        study.plan.name,
        study.attempts.len(),
        study.plan.cells.len()
    );
    let unjudged = study
        .attempts
        .iter()
        .filter(|record| !is_judged(record))
        .count();
    if unjudged > 0 {
        words.push_str(&format!(" {unjudged} were not judged: {WHY_NOT_JUDGED}."));
    }
    let mut blocks = vec![Block::Paragraph(words)];
    if !table.rows.is_empty() {
        blocks.push(Block::FoldedTable(attempts_of, table));
    }
    if !cells.rows.is_empty() {
        blocks.push(Block::FoldedTable(cells_of, cells));
    }
    if !study.plan.toml.is_empty() {
        blocks.push(Block::FoldedText(
            format!("Study file of {}", study.plan.name),
            study.plan.toml.clone(),
        ));
    }
    blocks
}

fn row(record: &AttemptRecord, counts: bool) -> Vec<(&'static str, Cell)> {
    let quiet = record.quiet.unwrap_or_default();
    let others =
        |cores: Option<OtherCores>| Cell::number(cores.and_then(|cores| cores.other_cores), 2);
    vec![
        ("cell", Cell::text(record.cell.clone())),
        ("repetition", Cell::count(record.repetition)),
        ("attempt", Cell::count(record.attempt)),
        ("status", Cell::text(record.status.name())),
        ("counts", Cell::text(if counts { "yes" } else { "no" })),
        (
            "why",
            record.why.as_deref().map_or(Cell::Missing, Cell::text),
        ),
        (
            "started",
            Cell::text(record.started.clone().unwrap_or_default()),
        ),
        ("seconds", Cell::number(record.seconds, 1)),
        ("images/s", Cell::number(record.images_per_second(), 1)),
        ("others' cores before", others(quiet.before)),
        ("others' cores during", others(quiet.during)),
        (
            "stolen cores",
            Cell::number(quiet.during.and_then(|cores| cores.steal_cores), 2),
        ),
        ("limit, cores", Cell::number(quiet.limit_cores, 2)),
        ("least MHz", Cell::number(quiet.mhz_min, 0)),
        ("most MHz", Cell::number(quiet.mhz_max, 0)),
        ("command", Cell::text(record.command.clone())),
    ]
}
