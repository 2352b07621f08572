//! The names of the classes of shards.
//!
//! In: `classes.txt`, if there is one. Out: a name for each label. Invariant: none is empty; one that several classes have is noted.

use std::collections::HashSet;
use std::path::Path;

use super::{CLASSES, MAX_TEXT_BYTES};
use crate::error::{DatasetError, list};
use crate::file::read_whole;

/// The names of the classes, those of `classes.txt`, else their numbers, and a note on those that stand there again.
pub(super) fn class_names(
    dir: &Path,
    num_labels: usize,
) -> Result<(Vec<String>, Option<String>), DatasetError> {
    let path = dir.join(CLASSES);
    if !path.exists() {
        return Ok((
            (0..num_labels.max(2))
                .map(|label| label.to_string())
                .collect(),
            None,
        ));
    }
    let text = String::from_utf8(read_whole(&path, MAX_TEXT_BYTES)?);
    let text = text.map_err(|_| DatasetError::NotText { path: path.clone() })?;
    let mut names: Vec<String> = text
        .trim_start_matches('\u{feff}')
        .lines()
        .map(str::to_owned)
        .collect();
    while names.pop_if(|name| name.trim().is_empty()).is_some() {}
    if names.len() < num_labels.max(2) || names.len() > 1 << 16 {
        return Err(DatasetError::ClassNames {
            path,
            expected: num_labels.max(2),
            got: names.len(),
        });
    }
    if let Some(line) = names.iter().position(|name| name.trim().is_empty()) {
        return Err(DatasetError::ClassName {
            path,
            line: line + 1,
        });
    }
    let mut before = HashSet::new();
    let again: Vec<&String> = names.iter().filter(|name| !before.insert(*name)).collect();
    let said = || {
        format!(
            "{} lines of {CLASSES} have the name of a line before: {}",
            again.len(),
            list(again.iter())
        )
    };
    let note = (!again.is_empty()).then(said);
    Ok((names, note))
}
