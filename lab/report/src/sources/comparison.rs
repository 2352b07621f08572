//! A comparison with other frameworks.
//!
//! In: `comparison.json`. Out: [`Comparison`], and names for its parts. Invariant: a row without a number says why.

use super::{check_schema, parsed, read_json};
use anyhow::Result;
use records::{COMPARISON_SCHEMA, Comparison, ComparisonRow, Course};
use serde_json::Value;
use std::path::Path;

/// Reads a comparison.
///
/// # Errors
/// When it cannot be read or is not a comparison's.
pub(super) fn read(path: &Path, remarks: &mut Vec<String>) -> Result<Comparison> {
    let value: Value = read_json(path)?;
    check_schema(path, &value, COMPARISON_SCHEMA, remarks)?;
    parsed(path, value)
}

/// Framework with its way, for a reader.
pub(crate) fn row_name(row: &ComparisonRow) -> String {
    let name = in_words([&row.framework, &row.version, &row.variant]);
    if row.setting.is_empty() {
        name
    } else {
        format!("{name} ({})", setting(row))
    }
}

/// What was set other than the framework's defaults, for a reader.
pub(crate) fn setting(row: &ComparisonRow) -> String {
    row.setting
        .iter()
        .map(|(name, option)| format!("{name} {option}"))
        .collect::<Vec<_>>()
        .join(", ")
}

/// Framework with what it trained, for a reader; also for how long and on what, where that is not the same for all.
pub(crate) fn course_name(course: &Course, all: &[Course]) -> String {
    let mut name = in_words([&course.framework, &course.model, &course.dtype]);
    if all
        .iter()
        .any(|other| other.num_epochs != course.num_epochs)
    {
        name.push_str(&format!(", epochs {}", course.num_epochs));
    }
    if all.iter().any(|other| other.data_dir != course.data_dir) {
        name.push_str(&format!(", {}", course.data_dir));
    }
    name
}

fn in_words(parts: [&str; 3]) -> String {
    let known: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    known.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use records::Machine;
    use serde_json::json;
    use std::fs;

    #[test]
    fn a_row_that_was_never_measured_and_a_machine_without_mpi_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("comparison.json");
        let row = json!({ "framework": "MXNet", "command": null, "quiet": null, "images_per_second": [], "gap": "not installed",
            "blocks": [] });
        let machine = json!({ "cpu_model": null, "cpu_count": 2, "memory_bytes": null, "kernel": null, "mpi": null });
        let value = json!({ "schema": COMPARISON_SCHEMA, "created": null, "commit": null, "machine": machine, "rows": [row] });
        fs::write(&path, value.to_string()).unwrap();
        let comparison = read(&path, &mut Vec::new()).unwrap();
        let row = &comparison.rows[0];
        assert_eq!(
            (row.command.as_deref(), row.gap.as_deref()),
            (None, Some("not installed"))
        );
        assert_eq!(
            comparison.machine,
            Machine {
                cpu_count: 2,
                ..Machine::default()
            }
        );
    }

    #[test]
    fn trainings_on_other_images_or_for_other_epochs_are_called_otherwise() {
        let course = |data_dir: &str, num_epochs: u64| Course {
            framework: "JAX".to_owned(),
            dtype: "f32".to_owned(),
            data_dir: data_dir.to_owned(),
            num_epochs,
            ..Course::default()
        };
        let names = |all: &[Course]| {
            all.iter()
                .map(|course| course_name(course, all))
                .collect::<Vec<_>>()
        };
        assert_eq!(names(&[course("/dA", 2), course("/dA", 2)]), ["JAX f32"; 2]);
        assert_eq!(
            names(&[course("/dA", 2), course("/dB", 2)]),
            ["JAX f32, /dA", "JAX f32, /dB"]
        );
        assert_eq!(
            names(&[course("/dA", 2), course("/dA", 3)]),
            ["JAX f32, epochs 2", "JAX f32, epochs 3"]
        );
    }
}
