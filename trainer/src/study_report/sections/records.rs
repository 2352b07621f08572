//! The raw facts of studies: every attempt, how quiet the machine was, the study file.
//!
//! In: studies. Out: folded tables and texts. Invariant: attempts that were disturbed or failed are there and marked.

use super::Facts;
use crate::study_report::document::{Block, Cell, Table};
use crate::study_report::sources::{Record, Study};
use serde_json::Value;

pub(super) fn blocks(facts: &Facts<'_>) -> Vec<Block> {
    let studies = &facts.sources.studies;
    studies.iter().enumerate().flat_map(|(index, study)| of_study(study, index, studies.len())).collect()
}

fn of_study(study: &Study, index: usize, num_studies: usize) -> Vec<Block> {
    let suffix = if num_studies > 1 { format!("-{}", index + 1) } else { String::new() };
    let columns = [
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
    let mut table = Table::new(format!("records{suffix}"), format!("Every attempt of {}", study.name), &columns);
    let counted = study.counted();
    for record in &study.records {
        let counts = counted.iter().any(|(_, other)| std::ptr::eq(*other, record));
        table.push(row(record, counts));
    }
    let mut cells = Table::new(
        format!("cells{suffix}"),
        format!("Cells of {}", study.name),
        &["cell", "kind", "repetitions", "arguments"],
    );
    for cell in &study.cells {
        cells.push(vec![
            Cell::text(cell.id.clone()),
            Cell::text(cell.kind.clone()),
            Cell::count(cell.repetitions),
            Cell::text(cell.arguments.join(" ")),
        ]);
    }
    let disturbed = study.records.iter().filter(|record| record.status == "disturbed").count();
    let failed = study.records.iter().filter(|record| record.status == "failed").count();
    let mut blocks = vec![Block::Paragraph(format!(
        "{}: {} attempts at {} cells, {disturbed} of them disturbed, {failed} failed. An attempt is disturbed when other programs or other machines on the same host took more processors than the limit, beforehand or meanwhile.",
        study.name,
        study.records.len(),
        study.cells.len()
    ))];
    if !table.rows.is_empty() {
        blocks.push(Block::FoldedTable(format!("Every attempt of {}", study.name), table));
    }
    blocks.push(Block::FoldedTable(format!("Cells of {}", study.name), cells));
    if !study.toml.is_empty() {
        blocks.push(Block::FoldedText(format!("Study file of {}", study.name), study.toml.clone()));
    }
    blocks
}

fn row(record: &Record, counts: bool) -> Vec<Cell> {
    let quiet = |path: &str, decimals| Cell::number(record.quiet.pointer(path).and_then(Value::as_f64), decimals);
    let speed = &record.result["images_per_second"];
    vec![
        Cell::text(record.cell.clone()),
        Cell::count(record.repetition),
        Cell::count(record.attempt),
        Cell::text(record.status.clone()),
        Cell::text(if counts { "yes" } else { "no" }),
        record.why.as_deref().map_or(Cell::Missing, Cell::text),
        Cell::text(record.started.clone()),
        Cell::number(record.seconds, 1),
        Cell::number(speed.as_f64().or_else(|| speed["mean"].as_f64()), 1),
        quiet("/before/other_cores", 2),
        quiet("/during/other_cores", 2),
        quiet("/during/steal_cores", 2),
        quiet("/limit_cores", 2),
        quiet("/mhz_min", 0),
        quiet("/mhz_max", 0),
        Cell::text(record.command.clone()),
    ]
}
