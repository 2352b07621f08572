//! How well each class is answered, and which classes are taken for others.
//!
//! In: `evaluation.json` of runs that are of no study. Out: a table of classes and one of confusions for each run; the matrix of few
//! classes. Invariant: the split and the epoch of the counts are named.

use super::Facts;
use crate::document::{Block, Cell, Table};
use crate::sources::Run;
use records::EvaluationByClass;

/// Rows of a table, and the most classes of a matrix that is shown.
const MOST_ROWS: usize = 20;

pub(super) fn blocks(facts: &Facts<'_>) -> Vec<Block> {
    let runs = facts.sources.runs.iter().filter(|run| run.group.is_none());
    let evaluated: Vec<(&Run, &EvaluationByClass)> = runs
        .filter_map(|run| {
            Some((
                run,
                run.by_class
                    .as_ref()
                    .filter(|by_class| !by_class.classes.is_empty())?,
            ))
        })
        .collect();
    let mut blocks = Vec::new();
    for (number, (run, by_class)) in evaluated.iter().enumerate() {
        let suffix = if evaluated.len() > 1 {
            format!("-{}", number + 1)
        } else {
            String::new()
        };
        let model = by_class.epoch.map_or(String::new(), |epoch| {
            format!(", model of epoch {}", epoch + 1)
        });
        blocks.push(Block::Paragraph(format!(
            "{}: {} split{model}.",
            run.label, by_class.split
        )));
        blocks.extend(
            [classes(by_class, &suffix), confusions(by_class, &suffix)]
                .into_iter()
                .flatten(),
        );
        blocks.extend(matrix(by_class, &suffix).map(Block::Table));
    }
    blocks
}

fn classes(by_class: &EvaluationByClass, suffix: &str) -> Option<Block> {
    let worst = by_class.worst_first();
    let title = match worst.len() {
        0..=MOST_ROWS => "Classes, lowest accuracy first".to_owned(),
        all => format!("The {MOST_ROWS} of {all} classes with the lowest accuracy"),
    };
    let row = |class: &&records::ClassScore| {
        let confused = class.confused_with.first();
        vec![
            ("class", Cell::text(class.name.clone())),
            ("samples", Cell::count(class.num_samples)),
            ("right", Cell::count(class.correct)),
            (
                "accuracy, %",
                Cell::number(class.accuracy().map(|share| 100.0 * share), 2),
            ),
            (
                "most often taken for",
                confused.map_or(Cell::Missing, |confused| Cell::text(confused.name.clone())),
            ),
            (
                "times",
                Cell::count(confused.map(|confused| confused.count)),
            ),
        ]
    };
    let rows = worst.iter().take(MOST_ROWS).map(row);
    (!worst.is_empty()).then(|| Block::Table(Table::of(format!("classes{suffix}"), title, rows)))
}

fn confusions(by_class: &EvaluationByClass, suffix: &str) -> Option<Block> {
    let all = by_class.confusions();
    let row = |(class, answer, count): &(&str, &str, u64)| {
        vec![
            ("class", Cell::text(*class)),
            ("taken for", Cell::text(*answer)),
            ("samples", Cell::count(*count)),
        ]
    };
    let table = Table::of(
        format!("confusions{suffix}"),
        "Most frequent confusions",
        all.iter().take(MOST_ROWS).map(row),
    );
    (!all.is_empty()).then_some(Block::Table(table))
}

fn matrix(by_class: &EvaluationByClass, suffix: &str) -> Option<Table> {
    let matrix = by_class
        .confusion_matrix
        .as_ref()
        .filter(|matrix| matrix.len() <= MOST_ROWS)?;
    let num_answers = matrix.first()?.len();
    if num_answers > MOST_ROWS {
        return None;
    }
    let name = |class: usize| {
        by_class
            .classes
            .get(class)
            .map_or_else(|| class.to_string(), |class| class.name.clone())
    };
    let names: Vec<String> = std::iter::once("class \\ answer".to_owned())
        .chain((0..num_answers).map(name))
        .collect();
    let columns: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut table = Table::new(
        format!("confusion-matrix{suffix}"),
        "Confusion matrix, samples",
        &columns,
    );
    for (class, row) in matrix.iter().enumerate() {
        let counts = row.iter().map(|count| Cell::count(*count));
        let row: Vec<Cell> = std::iter::once(Cell::text(name(class)))
            .chain(counts)
            .collect();
        // A file of another program may have rows of other lengths.
        if row.len() == columns.len() {
            table.push(row);
        }
    }
    Some(table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::Sources;
    use std::collections::BTreeMap;

    fn told(num_classes: u32) -> Vec<(String, Vec<Vec<String>>)> {
        let names: Vec<String> = (0..num_classes).map(|class| format!("c{class}")).collect();
        let counts: BTreeMap<(u32, u32), u64> = (0..num_classes)
            .flat_map(|class| [((class, class), 10), ((class, 0), 10 + u64::from(class))])
            .collect();
        let by_class = EvaluationByClass {
            split: "test".to_owned(),
            epoch: Some(3),
            ..EvaluationByClass::default()
        };
        let by_class = Some(by_class.with_counts(&names, &counts));
        let runs = vec![Run {
            label: "r".to_owned(),
            by_class,
            ..Run::default()
        }];
        let sources = Sources {
            runs,
            ..Sources::default()
        };
        let blocks = blocks(&Facts::new(&sources, None));
        let Block::Paragraph(words) = &blocks[0] else {
            panic!("{blocks:?}")
        };
        assert_eq!(words, "r: test split, model of epoch 4.");
        let raw = |table: &Table| {
            table
                .rows
                .iter()
                .map(|row| row.iter().map(Cell::raw).collect())
                .collect()
        };
        let tables = blocks.iter().filter_map(|block| {
            if let Block::Table(table) = block {
                Some(table)
            } else {
                None
            }
        });
        tables.map(|table| (table.id.clone(), raw(table))).collect()
    }

    #[test]
    fn few_classes_have_a_matrix_and_of_many_the_worst_are_shown() {
        let few = told(3);
        assert_eq!(
            few.iter().map(|(id, _)| id.as_str()).collect::<Vec<_>>(),
            ["classes", "confusions", "confusion-matrix"]
        );
        assert_eq!(
            few[0].1[0],
            ["c2", "22", "10", "45.45454545454545", "c0", "12"]
        );
        assert_eq!(few[1].1[0], ["c2", "c0", "12"]);
        assert_eq!(few[2].1[2], ["c2", "12", "0", "10"]);
        let many = told(1000);
        assert_eq!(
            many.iter()
                .map(|(id, rows)| (id.as_str(), rows.len()))
                .collect::<Vec<_>>(),
            [("classes", 20), ("confusions", 20)]
        );
        assert_eq!(many[0].1[0][0], "c999");
    }
}
