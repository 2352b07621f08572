//! The cells of a study file: every matrix multiplied out.
//!
//! In: a [`StudyFile`]. Out: cells in the order of their runs.
//! Invariant: pure; ids are unique; every entry of `skip` and `overrides` applies to at least one
//! point.

mod comparison;
mod point;
mod words;

use std::collections::{BTreeMap, BTreeSet};

use toml::{Table, Value};

use crate::cell::{Cell, Place};
use crate::file::{Kind, Matrix, Override, StudyFile, shown};
use cluster::failure::{Outcome, usage};

use point::Point;

/// Limit that finds mistakes in lists.
const MOST_CELLS: usize = 10_000;

/// Returns all cells; those that measure networks for predictions come last.
pub(crate) fn cells(file: &StudyFile) -> Outcome<Vec<Cell>> {
    let mut cells = Vec::new();
    for matrix in &file.matrices {
        cells.extend(cells_of(file, matrix)?);
    }
    if file.predict.is_some() {
        let networks = measured_networks(file, &cells)?;
        cells.extend(networks);
    }
    let mut ids = BTreeSet::new();
    for cell in &cells {
        if !ids.insert(&cell.id) {
            return Err(usage!(
                "{}: two cells are `{}` (expected different ranks, sizes, methods or other keys). Skip one of them.",
                file.path,
                cell.id
            ));
        }
    }
    Ok(cells)
}

fn cells_of(file: &StudyFile, matrix: &Matrix) -> Outcome<Vec<Cell>> {
    let mut points = points(file, matrix)?;
    let unmet = |what: &str, table: &Table| {
        usage!(
            "{}: {what}: no point has {}. Correct or remove the entry.",
            matrix.place,
            shown(&Value::Table(table.clone()))
        )
    };
    // Overrides apply in their order.
    for Override { when, set } in &matrix.overrides {
        let mut is_met = false;
        for point in points.iter_mut().filter(|point| point.has(when)) {
            is_met = true;
            point.values.extend(set.clone());
            point.name(set.keys());
        }
        if !is_met {
            return Err(unmet("overrides", when));
        }
    }
    for skip in &matrix.skip {
        if !points.iter().any(|point| point.has(skip)) {
            return Err(unmet("skip", skip));
        }
    }
    points.retain(|point| !matrix.skip.iter().any(|skip| point.has(skip)));
    if points.is_empty() {
        return Err(usage!(
            "{}: every point is skipped: expected at least one cell",
            matrix.place
        ));
    }
    points.into_iter().map(Point::cell).collect()
}

/// Returns every combination of the lists' values, with the flags of all cells.
fn points<'m>(file: &StudyFile, matrix: &'m Matrix) -> Outcome<Vec<Point<'m>>> {
    let refused = |key: &str, text: String| usage!("{}: {key}: {text}", matrix.place);
    let mut shared = file.flags(matrix.kind);
    // The batch of a matrix replaces the batch of all cells.
    let batches = ["global_batch_size", "batch_size_per_rank"];
    if batches.iter().any(|key| matrix.axes.contains_key(*key)) {
        shared.retain(|key, _| !batches.contains(&key));
    }
    let mut points = vec![Point {
        matrix,
        values: shared,
        named: Vec::new(),
        repetitions: matrix.repetitions.unwrap_or(file.repetitions),
    }];
    let mut set_by: BTreeMap<String, &str> = BTreeMap::new();
    for (axis, value) in &matrix.axes {
        let values = value
            .as_array()
            .map_or(std::slice::from_ref(value), Vec::as_slice);
        if values.is_empty() {
            let text = "expected at least one value, got an empty list: fill it or remove it";
            return Err(refused(axis, text.to_owned()));
        }
        let num_points = points.len() * values.len();
        if num_points > MOST_CELLS {
            let text =
                format!("expected at most {MOST_CELLS} cells, got {num_points}: shorten a list");
            return Err(refused(axis, text));
        }
        let mut next = Vec::new();
        for value in values {
            // A table has several keys that change together.
            let set = match value {
                Value::Table(together) => together.clone(),
                value => Table::from_iter([(axis.clone(), value.clone())]),
            };
            for key in set.keys() {
                if let Some(other) = set_by.insert(key.clone(), axis).filter(|by| by != axis) {
                    let text = format!(
                        "expected in one list, got it in {other} and in {axis}: keep one; `skip` leaves points out"
                    );
                    return Err(refused(key, text));
                }
            }
            next.push((set, value.is_table()));
        }
        let combined = points.iter().flat_map(|point| {
            next.iter().map(|(set, is_together)| {
                let mut point = point.clone();
                point.values.extend(set.clone());
                if *is_together || value.is_array() {
                    point.name(set.keys());
                }
                point
            })
        });
        points = combined.collect();
    }
    Ok(points)
}

/// Returns a measurement of each network that a predicted cell uses and the file does not measure.
fn measured_networks(file: &StudyFile, cells: &[Cell]) -> Outcome<Vec<Cell>> {
    let mut found: Vec<Cell> = Vec::new();
    for cell in cells.iter().filter(|cell| is_predicted(cell)) {
        let mut measuring = cells.iter().chain(&found);
        if measuring.any(|other| measures_network_of(other, cell)) {
            continue;
        }
        let network = match &cell.place {
            Place::Machine => "machine".to_owned(),
            Place::Hosts { rate, .. } => format!("hosts:{rate}"),
            Place::Slurm { .. } => "slurm".to_owned(),
        };
        let on_machine = cells.iter().filter(|cell| cell.place == Place::Machine);
        let ranks = match cell.place {
            Place::Machine => on_machine.map(|cell| cell.ranks).max().unwrap_or(2),
            _ => cell.place.hosts(),
        };
        let matrix = Matrix {
            place: format!("{}: [predict]", file.path),
            kind: Kind::Netbench,
            repetitions: Some(1),
            axes: Table::from_iter([
                ("network".to_owned(), Value::from(network)),
                (
                    "hosts".to_owned(),
                    Value::Integer(cell.place.hosts() as i64),
                ),
                ("ranks".to_owned(), Value::Integer(ranks as i64)),
            ]),
            ..Matrix::default()
        };
        found.extend(cells_of(file, &matrix)?);
    }
    Ok(found)
}

/// Returns whether a cell can be predicted: the profile of one step stands for all ranks.
pub(crate) fn is_predicted(cell: &Cell) -> bool {
    cell.kind == Kind::Bench && cell.ranks > 1 && cell.framework.is_none()
}

/// Returns whether one cell measures the network of the other.
pub(crate) fn measures_network_of(measuring: &Cell, cell: &Cell) -> bool {
    measuring.kind == Kind::Netbench && measuring.place == cell.place && measuring.ranks > 1
}

#[cfg(test)]
pub(crate) mod tests;
