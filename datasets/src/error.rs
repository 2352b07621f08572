//! Errors of reading, decoding and loading data.
//!
//! Out: [`DatasetError`], whose text contains the place, the expected and found values, and a
//! remedy.

use std::fmt::Display;
use std::path::{Path, PathBuf};

/// All errors of this crate. Each variant holds the values in its text.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(
    missing_docs,
    reason = "the message of each variant says what its fields are"
)]
pub enum DatasetError {
    /// The operating system rejected an operation on a file or folder.
    #[error("cannot {action} {}: {reason}", path.display())]
    Io {
        /// Failed action as a verb: "read", "create", "rename".
        action: &'static str,
        path: PathBuf,
        /// Error of the operating system. It is not a `source`, because a chain of causes would
        /// repeat it.
        reason: std::io::Error,
    },

    /// A file is larger than any valid file of its kind.
    #[error("{}: expected at most {max_bytes} bytes, got {got_bytes} or more. Check that it is the right file.", path.display())]
    FileTooLarge {
        path: PathBuf,
        max_bytes: u64,
        /// Number of bytes found or read.
        got_bytes: u64,
    },

    /// A file or folder of a data set is missing.
    #[error("{what} not found in {}: expected {expected}. {remedy}.", path.display())]
    Missing {
        what: String,
        path: PathBuf,
        /// Accepted names.
        expected: String,
        remedy: &'static str,
    },

    /// An image file could not be decoded.
    #[error("cannot decode the image {}: {reason}", path.display())]
    BadImage { path: PathBuf, reason: String },

    /// A split has images of classes that the training split does not have.
    #[error(
        "{split}: expected the classes of the training ({expected}), got images of others: {unknown}. Rename or remove these."
    )]
    UnknownClasses {
        split: String,
        /// First unknown classes.
        unknown: String,
        /// First expected classes.
        expected: String,
    },

    /// No image of a split has a label, so the split cannot be evaluated.
    #[error("{}: {problem}", path.display())]
    Unlabelled { path: PathBuf, problem: String },

    /// The content of a file or folder is invalid.
    #[error("{}: {problem}", path.display())]
    Invalid { path: PathBuf, problem: String },

    /// A setting is invalid.
    #[error("{field}: expected {expected}, got {got}")]
    Config {
        field: &'static str,
        expected: String,
        got: String,
    },

    /// A loader thread panicked.
    #[error("a loader thread panicked at step_in_epoch {step_in_epoch}: {reason}")]
    LoaderPanicked {
        /// Step that the caller waited for.
        step_in_epoch: usize,
        reason: String,
    },

    /// A download failed.
    #[error("cannot download {url}: {reason}. {remedy}.")]
    Download {
        url: String,
        reason: String,
        remedy: String,
    },
}

impl DatasetError {
    /// Returns a closure for `map_err` that adds the action and the path to an I/O error.
    pub(crate) fn io(
        action: &'static str,
        path: impl AsRef<Path>,
    ) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.as_ref().to_path_buf();
        move |reason| Self::Io {
            action,
            path,
            reason,
        }
    }

    /// Returns the error of a file or folder with invalid content.
    pub(crate) fn invalid(path: impl AsRef<Path>, problem: impl Into<String>) -> Self {
        Self::Invalid {
            path: path.as_ref().to_path_buf(),
            problem: problem.into(),
        }
    }

    /// Returns the error of a split of images without labels.
    pub(crate) fn unlabelled(path: impl AsRef<Path>, found: impl Display) -> Self {
        Self::Unlabelled {
            path: path.as_ref().to_path_buf(),
            problem: format!(
                "{found}, so the split is not measured. `trainer predict` classifies its images"
            ),
        }
    }

    /// Returns the error of files with unusable samples. `or_skip` adds the option to skip them.
    pub(crate) fn bad_files(path: impl AsRef<Path>, problems: &str, or_skip: bool) -> Self {
        let or_skip = if or_skip { ", or skip bad samples" } else { "" };
        Self::invalid(
            path,
            format!("{problems}. Make or fetch the files again{or_skip}"),
        )
    }

    /// Returns the error of a wrong number of class names.
    pub(crate) fn class_names(path: impl AsRef<Path>, expected: usize, got: usize) -> Self {
        Self::invalid(path, format!("expected {expected} class names, got {got}"))
    }

    /// Replaces the name of the invalid setting by the command's option.
    #[must_use]
    pub fn for_option(mut self, option: &'static str) -> Self {
        if let Self::Config { field, .. } = &mut self {
            *field = option;
        }
        self
    }

    /// Returns the error of an invalid setting.
    pub(crate) fn config(
        field: &'static str,
        expected: impl Into<String>,
        got: impl ToString,
    ) -> Self {
        Self::Config {
            field,
            expected: expected.into(),
            got: got.to_string(),
        }
    }
}

/// Formats a number of things: `1 file`, `1,610 files`.
pub(crate) fn counted(number: usize, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {noun}{plural}", grouped(number))
}

fn grouped(number: usize) -> String {
    match number {
        0..1000 => number.to_string(),
        _ => format!("{},{:03}", grouped(number / 1000), number % 1000),
    }
}

/// Returns the first ten items and the number of further items.
pub(crate) fn list(items: impl ExactSizeIterator<Item: ToString>) -> String {
    const MAX_SHOWN: usize = 10;
    let num_more = items.len().saturating_sub(MAX_SHOWN);
    let mut shown: Vec<String> = items.take(MAX_SHOWN).map(|item| item.to_string()).collect();
    if num_more > 0 {
        shown.push(format!("and {num_more} more"));
    }
    shown.join("; ")
}
