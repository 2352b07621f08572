//! The files that are not part of the program: weights, images, fixtures.
//!
//! In: `--data-dir`. Out: a path, or why a check must be skipped.

use std::path::{Path, PathBuf};

/// The file in the folder, or the words of a skipped check.
pub(super) fn find(folder: Option<&Path>, name: &str, what: &str) -> Result<PathBuf, String> {
    let Some(folder) = folder else {
        return Err(format!(
            "{what} stay outside the program: give --data-dir with {name} in it"
        ));
    };
    let path = folder.join(name);
    if path.is_file() {
        Ok(path)
    } else {
        Err(format!("{what}: no {name} in {}", folder.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named_with_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        assert!(
            find(None, "a.th", "weights")
                .unwrap_err()
                .contains("--data-dir with a.th")
        );
        let words = find(Some(folder.path()), "a.th", "weights").unwrap_err();
        assert!(
            words.contains("weights: no a.th in ")
                && words.contains(&folder.path().display().to_string())
        );
        std::fs::write(folder.path().join("a.th"), "").unwrap();
        assert_eq!(
            find(Some(folder.path()), "a.th", "weights"),
            Ok(folder.path().join("a.th"))
        );
    }
}
