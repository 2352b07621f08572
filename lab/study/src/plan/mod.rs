//! The cells of a study file: every matrix multiplied out.
//!
//! In: a [`StudyFile`]. Out: cells in the order of their runs.
//! Invariant: pure; ids are unique; every entry of `skip` and `overrides` applies to at least one
//! point.

mod comparison;
mod point;
mod words;

use std::collections::BTreeMap;

use toml::{Table, Value};

use crate::cell::{Cell, Place};
use crate::file::{Kind, Matrix, Override, StudyFile, shown};
use cluster::failure::{Failure, Outcome};

use point::Point;
use words::OWN_KEYS;

/// Keys in every id.
const IN_EVERY_ID: [&str; 10] = [
    "framework",
    "model",
    "dtype",
    "batch_size_per_rank",
    "global_batch_size",
    "ranks",
    "threads",
    "sync",
    "compress",
    "network",
];

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
    for (index, cell) in cells.iter().enumerate() {
        if cells[..index].iter().any(|other| other.id == cell.id) {
            return Err(Failure::Usage(format!(
                "{}: two cells are `{}` (expected different ranks, sizes, methods or other keys). Skip one of them.",
                file.path, cell.id
            )));
        }
    }
    Ok(cells)
}

fn cells_of(file: &StudyFile, matrix: &Matrix) -> Outcome<Vec<Cell>> {
    let mut points = points(file, matrix)?;
    let unmet = |what: &str, table: &Table| {
        let text = format!(
            "{}: {what}: no point has {}",
            matrix.place,
            shown(&Value::Table(table.clone()))
        );
        Err(Failure::Usage(format!(
            "{text}: expected one or several, correct it or remove it"
        )))
    };
    for Override { when, set } in &matrix.overrides {
        // Overrides apply in their order.
        if !points.iter().any(|(values, _)| holds(when, values)) {
            return unmet("overrides", when);
        }
        for (values, named) in points.iter_mut().filter(|(values, _)| holds(when, values)) {
            values.extend(set.clone());
            name(named, set.keys());
        }
    }
    for skip in &matrix.skip {
        if !points.iter().any(|(values, _)| holds(skip, values)) {
            return unmet("skip", skip);
        }
    }
    points.retain(|(values, _)| !matrix.skip.iter().any(|skip| holds(skip, values)));
    if points.is_empty() {
        return Err(Failure::Usage(format!(
            "{}: every point is skipped: expected at least one cell",
            matrix.place
        )));
    }
    let repetitions = matrix.repetitions.unwrap_or(file.repetitions);
    let cell = |(values, named): (Table, Vec<String>)| {
        Point {
            matrix,
            values,
            named,
            repetitions,
        }
        .cell()
    };
    points.into_iter().map(cell).collect()
}

/// Returns whether the point has all these values; a list means any of them.
fn holds(when: &Table, values: &Table) -> bool {
    when.iter()
        .all(|(key, expected)| match (expected, values.get(key)) {
            (Value::Array(any), Some(value)) => any.contains(value),
            (expected, Some(value)) => expected == value,
            (_, None) => false,
        })
}

fn name<'k>(named: &mut Vec<String>, keys: impl Iterator<Item = &'k String>) {
    for key in keys {
        if !IN_EVERY_ID.contains(&key.as_str()) && !named.contains(key) {
            named.push(key.clone());
        }
    }
}

/// Refuses a key in two lists: one of its values would be lost.
fn check_apart(matrix: &Matrix) -> Outcome {
    let mut set_by: BTreeMap<&str, &str> = BTreeMap::new();
    for (axis, value) in &matrix.axes {
        let values = value
            .as_array()
            .map_or(std::slice::from_ref(value), Vec::as_slice);
        let keys = values.iter().flat_map(|value| match value {
            Value::Table(together) => together.keys().map(String::as_str).collect(),
            _ => vec![axis.as_str()],
        });
        for key in keys {
            if let Some(other) = set_by.insert(key, axis).filter(|other| other != axis) {
                let text = format!(
                    "{}: {key}: expected in one list, got it in {other} and in {axis}",
                    matrix.place
                );
                return Err(Failure::Usage(format!(
                    "{text}: keep one; `skip` leaves points out"
                )));
            }
        }
    }
    Ok(())
}

/// Returns every combination of the lists' values, with the flags of all cells.
fn points(file: &StudyFile, matrix: &Matrix) -> Outcome<Vec<(Table, Vec<String>)>> {
    let shared = file.flags(matrix.kind);
    let mut points = vec![(shared, Vec::new())];
    check_apart(matrix)?;
    for (key, value) in &matrix.axes {
        let (values, is_list) = match value {
            Value::Array(values) => (values.clone(), true),
            value => (vec![value.clone()], false),
        };
        if values.is_empty() {
            let text = format!(
                "{}: {key}: expected at least one value, got an empty list",
                matrix.place
            );
            return Err(Failure::Usage(format!("{text}: fill it or remove it")));
        }
        if points.len() * values.len() > MOST_CELLS {
            let text = format!(
                "{}: {key}: expected at most {MOST_CELLS} cells",
                matrix.place
            );
            return Err(Failure::Usage(format!(
                "{text}, got {}: shorten a list",
                points.len() * values.len()
            )));
        }
        let mut next = Vec::with_capacity(points.len() * values.len());
        for (point, named) in &points {
            for value in &values {
                let mut point = point.clone();
                let mut named = named.clone();
                match value {
                    // Several keys that change together.
                    Value::Table(together) => {
                        point.extend(together.clone());
                        name(&mut named, together.keys());
                    }
                    value => drop(point.insert(key.clone(), value.clone())),
                }
                if is_list {
                    name(&mut named, std::iter::once(key));
                }
                next.push((point, named));
            }
        }
        points = next;
    }
    for (point, _) in &mut points {
        for kind_only in ["global_batch_size", "batch_size_per_rank"] {
            // The batch of a matrix replaces the batch of all cells.
            let other = if kind_only == "global_batch_size" {
                "batch_size_per_rank"
            } else {
                "global_batch_size"
            };
            if matrix.axes.contains_key(kind_only) && !matrix.axes.contains_key(other) {
                point.remove(other);
            }
        }
    }
    Ok(points)
}

/// Returns a measurement of each network that a predicted cell uses and the file does not measure.
fn measured_networks(file: &StudyFile, cells: &[Cell]) -> Outcome<Vec<Cell>> {
    let mut found: Vec<Cell> = Vec::new();
    for cell in cells.iter().filter(|cell| is_predicted(cell)) {
        if cells
            .iter()
            .chain(&found)
            .any(|other| measures_network_of(other, cell))
        {
            continue;
        }
        let mut axes = Table::new();
        let network = match &cell.place {
            Place::Machine => "machine".to_owned(),
            Place::Hosts { rate, .. } => format!("hosts:{rate}"),
            Place::Slurm { .. } => "slurm".to_owned(),
        };
        axes.insert("network".to_owned(), Value::String(network));
        let ranks = match cell.place {
            Place::Machine => cells
                .iter()
                .filter(|cell| cell.place == Place::Machine)
                .map(|cell| cell.ranks)
                .max(),
            Place::Hosts { hosts, .. } | Place::Slurm { hosts } => {
                axes.insert(
                    "hosts".to_owned(),
                    Value::Integer(i64::try_from(hosts).unwrap_or(i64::MAX)),
                );
                Some(hosts)
            }
        };
        axes.insert(
            "ranks".to_owned(),
            Value::Integer(
                ranks
                    .and_then(|count| i64::try_from(count).ok())
                    .unwrap_or(2),
            ),
        );
        let matrix = Matrix {
            place: format!("{}: [predict]", file.path),
            kind: Kind::Netbench,
            repetitions: Some(1),
            axes,
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

/// Returns the flags of the trainer, with their dashes.
pub(crate) fn flags_of(cell: &Cell) -> impl Iterator<Item = &str> {
    debug_assert!(
        OWN_KEYS
            .iter()
            .all(|key| !cell.arguments.contains(&format!("--{key}")))
    );
    let flags = cell.arguments.iter().filter(|word| word.starts_with("--"));
    flags.map(|word| word.split_once('=').map_or(word.as_str(), |(flag, _)| flag))
}

#[cfg(test)]
pub(crate) mod tests;
