//! The raw facts of studies: every attempt, how quiet the machine was, the study file.
//!
//! In: studies. Out: folded tables and texts. Invariant: attempts that were disturbed or failed are there and marked.

use super::Facts;
use crate::document::{Block, Cell, Table};
use crate::sources::{StudyFolder, is_judged};
use records::{AttemptRecord, OtherCores, Status};

/// Why nobody can say whether others disturbed an attempt.
pub(super) const WHY_NOT_JUDGED: &str = "the quiet check was off (--no-quiet-check), or the attempt ran where nobody watched the machine, as on nodes of Slurm";

pub(super) fn blocks(facts: &Facts<'_>) -> Vec<Block> {
    let studies = &facts.sources.studies;
    studies.iter().enumerate().flat_map(|(index, study)| of_study(study, index, studies.len())).collect()
}

/// What is said of an attempt.
const COLUMNS: [&str; 16] = [
    "cell",
    "repetition",
    "attempt",
    "status",
    "counts",
    "why",
    "started",
    "seconds",
    "images/s",
    "others' cores before",
    "others' cores during",
    "stolen cores",
    "limit, cores",
    "least MHz",
    "most MHz",
    "command",
];

fn of_study(study: &StudyFolder, index: usize, num_studies: usize) -> Vec<Block> {
    let suffix = if num_studies > 1 { format!("-{}", index + 1) } else { String::new() };
    let mut table = Table::new(format!("records{suffix}"), format!("Every attempt of {}", study.plan.name), &COLUMNS);
    let counted = study.counted();
    for record in &study.attempts {
        let counts = counted.iter().any(|(_, other)| std::ptr::eq(*other, record));
        table.push(row(record, counts));
    }
    let mut cells = Table::new(
        format!("cells{suffix}"),
        format!("Cells of {}", study.plan.name),
        &["cell", "kind", "repetitions", "arguments"],
    );
    for cell in &study.plan.cells {
        cells.push(vec![
            Cell::text(cell.id.clone()),
            Cell::text(cell.kind.clone()),
            Cell::count(cell.repetitions),
            Cell::text(cell.arguments.join(" ")),
        ]);
    }
    let disturbed = study.attempts.iter().filter(|record| record.status == Status::Disturbed).count();
    let failed = study.attempts.iter().filter(|record| record.status == Status::Failed).count();
    let mut words = format!(
        "{}: {} attempts at {} cells, {disturbed} of them disturbed, {failed} failed. An attempt is disturbed when other programs or other machines on the same host took more processors than the limit meanwhile.",
        study.plan.name,
        study.attempts.len(),
        study.plan.cells.len()
    );
    let unjudged = study.attempts.iter().filter(|record| !is_judged(record)).count();
    if unjudged > 0 {
        words.push_str(&format!(" {unjudged} were not judged: {WHY_NOT_JUDGED}."));
    }
    let mut blocks = vec![Block::Paragraph(words)];
    if !table.rows.is_empty() {
        blocks.push(Block::FoldedTable(format!("Every attempt of {}", study.plan.name), table));
    }
    blocks.push(Block::FoldedTable(format!("Cells of {}", study.plan.name), cells));
    if !study.plan.toml.is_empty() {
        blocks.push(Block::FoldedText(format!("Study file of {}", study.plan.name), study.plan.toml.clone()));
    }
    blocks
}

fn row(record: &AttemptRecord, counts: bool) -> Vec<Cell> {
    let quiet = record.quiet.unwrap_or_default();
    let others = |cores: Option<OtherCores>| Cell::number(cores.and_then(|cores| cores.other_cores), 2);
    vec![
        Cell::text(record.cell.clone()),
        Cell::count(record.repetition),
        Cell::count(record.attempt),
        Cell::text(record.status.name()),
        Cell::text(if counts { "yes" } else { "no" }),
        record.why.as_deref().map_or(Cell::Missing, Cell::text),
        Cell::text(record.started.clone().unwrap_or_default()),
        Cell::number(record.seconds, 1),
        Cell::number(record.images_per_second(), 1),
        others(quiet.before),
        others(quiet.during),
        Cell::number(quiet.during.and_then(|cores| cores.steal_cores), 2),
        Cell::number(quiet.limit_cores, 2),
        Cell::number(quiet.mhz_min, 0),
        Cell::number(quiet.mhz_max, 0),
        Cell::text(record.command.clone()),
    ]
}
