//! From a study file to its cells: every matrix multiplied out.
//!
//! In: a [`StudyFile`]. Out: cells in the order in which they are run.
//! Invariant: pure; ids are unique; every entry of `skip` and `overrides` meets at least one point.

use std::collections::BTreeMap;

use toml::{Table, Value};

use super::cell::{Cell, OWN_KEYS, Place, Point};
use super::file::{Kind, Matrix, Scaling, StudyFile};
use super::keys::shown;
use cluster::failure::{Failure, Outcome};

/// Keys that every id has, so that they need no part of their own.
const IN_EVERY_ID: [&str; 9] = [
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

/// More are a mistake in a list.
const MOST_CELLS: usize = 10_000;

/// All cells, those of the measured networks for the predictions last.
pub(super) fn cells(file: &StudyFile) -> Outcome<Vec<Cell>> {
    let mut cells = Vec::new();
    for matrix in &file.matrices {
        cells.extend(cells_of(file, matrix)?);
    }
    if file.profile.is_some() {
        let networks = measured_networks(file, &cells)?;
        cells.extend(networks);
    }
    for (index, cell) in cells.iter().enumerate() {
        if cells[..index].iter().any(|other| other.id == cell.id) {
            return Err(Failure::Usage(format!(
                "{}: two cells are `{}`: expected that ranks, sizes, methods or other lists tell them apart; skip one of them",
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
    for (when, set) in &matrix.overrides {
        // Those before it have been applied.
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

/// Whether the point has all these values; a list means any of them.
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

/// Refuses a key that two lists set, one of them in a table: one of the two would be lost.
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

/// Every combination of the lists' values, over the flags of all cells.
fn points(file: &StudyFile, matrix: &Matrix) -> Outcome<Vec<(Table, Vec<String>)>> {
    let shared = file.flags.get(&matrix.kind).cloned().unwrap_or_default();
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
                let (mut point, mut named) = (point.clone(), named.clone());
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
            // What a matrix says of the batch replaces what all cells have.
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

/// A measurement of each network that a predicted cell uses and that the file does not measure itself.
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
            scaling: Scaling::None,
            repetitions: Some(1),
            axes,
            skip: Vec::new(),
            overrides: Vec::new(),
        };
        found.extend(cells_of(file, &matrix)?);
    }
    Ok(found)
}

/// Whether a prediction can be made: one step's profile stands for all ranks.
pub(super) fn is_predicted(cell: &Cell) -> bool {
    cell.kind == Kind::Bench && cell.ranks > 1
}

/// Whether one cell measures the network that the other runs over.
pub(super) fn measures_network_of(measuring: &Cell, cell: &Cell) -> bool {
    measuring.kind == Kind::Netbench && measuring.place == cell.place && measuring.ranks > 1
}

/// The flags of a cell that are the trainer's to know, with their dashes.
pub(super) fn flags_of(cell: &Cell) -> impl Iterator<Item = &str> {
    debug_assert!(
        OWN_KEYS
            .iter()
            .all(|key| !cell.arguments.contains(&format!("--{key}")))
    );
    let flags = cell.arguments.iter().filter(|word| word.starts_with("--"));
    flags.map(|word| word.split_once('=').map_or(word.as_str(), |(flag, _)| flag))
}

#[cfg(test)]
pub(super) mod tests;
