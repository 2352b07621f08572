//! What can go wrong between a data set's bytes and a batch.
//!
//! Out: [`DatasetError`], whose text says what failed, what was expected, what was found and what to do.

use std::path::{Path, PathBuf};

/// Everything this crate reports; each variant holds the values that its text shows.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DatasetError {
    /// The operating system refused a file or folder.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried, as a verb: "read", "create", "rename".
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The operating system's answer.
        source: std::io::Error,
    },

    /// A file or folder of a data set is not where it should be.
    #[error("{what} not found in {}: expected {expected}; {remedy}", path.display())]
    Missing {
        /// What was looked for.
        what: String,
        /// The folder that was searched.
        path: PathBuf,
        /// The names that would have been accepted.
        expected: String,
        /// What to do.
        remedy: &'static str,
    },

    /// A file of fixed-size records ends inside a record.
    #[error(
        "{}: expected a whole number of records of {record_bytes} bytes, got {len_bytes} bytes \
         ({} records and {} bytes); the file is truncated or of another format, fetch it again",
        path.display(), len_bytes / record_bytes, len_bytes % record_bytes
    )]
    PartialRecord {
        /// The file.
        path: PathBuf,
        /// The file's length.
        len_bytes: usize,
        /// The length of one record.
        record_bytes: usize,
    },

    /// A record names a class that the data set does not have.
    #[error("{}: record {record}: expected a label below {num_classes}, got {label}", path.display())]
    LabelOutOfRange {
        /// The file.
        path: PathBuf,
        /// The record's index in the file, from 0.
        record: usize,
        /// The label found.
        label: usize,
        /// The number of classes.
        num_classes: usize,
    },

    /// A file of class names does not fit its data set.
    #[error("{}: expected {expected} class names, got {got}", path.display())]
    ClassNames {
        /// The file.
        path: PathBuf,
        /// The number of classes of the data set.
        expected: usize,
        /// The number of names in the file.
        got: usize,
    },

    /// An image file could not be decoded.
    #[error("cannot decode the image {}: {reason}", path.display())]
    BadImage {
        /// The file.
        path: PathBuf,
        /// What the decoder says.
        reason: String,
    },

    /// A class folder holds no image, or none that decodes.
    #[error(
        "class folder {}: expected at least one image ({extensions}), got none{}; add images or remove the folder",
        path.display(),
        if *num_skipped > 0 { format!(" ({num_skipped} could not be decoded)") } else { String::new() }
    )]
    EmptyClass {
        /// The class folder.
        path: PathBuf,
        /// The file name extensions that count as images.
        extensions: String,
        /// How many of its files were skipped because they do not decode.
        num_skipped: usize,
    },

    /// Train and test folders hold different classes.
    #[error(
        "{}: expected the same class folders for training and testing; only in training: [{}]; only in testing: [{}]",
        path.display(), only_train.join(", "), only_test.join(", ")
    )]
    ClassMismatch {
        /// The data set's root folder.
        path: PathBuf,
        /// Classes without test images.
        only_train: Vec<String>,
        /// Classes without training images.
        only_test: Vec<String>,
    },

    /// A setting cannot be used.
    #[error("{field}: expected {expected}, got {got}")]
    Config {
        /// The setting's name.
        field: &'static str,
        /// What would be accepted.
        expected: String,
        /// What was given.
        got: String,
    },

    /// A loader thread panicked.
    #[error("a loader thread panicked at step_in_epoch {step_in_epoch}: {reason}")]
    LoaderPanicked {
        /// The step that was waited for.
        step_in_epoch: usize,
        /// The panic's message.
        reason: String,
    },

    /// A download failed.
    #[error("cannot download {url}: {reason}; {remedy}")]
    Download {
        /// The address.
        url: String,
        /// What happened.
        reason: String,
        /// What to do.
        remedy: String,
    },

    /// A downloaded file is not the one that was published.
    #[error("{}: expected sha256 {expected}, got {got}; the file was removed, download it again", path.display())]
    Checksum {
        /// The file, by now removed.
        path: PathBuf,
        /// The published digest.
        expected: String,
        /// The digest of the bytes that arrived.
        got: String,
    },

    /// An archive holds something that its data set does not have.
    #[error("{}: {reason}", path.display())]
    Archive {
        /// The archive.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

impl DatasetError {
    /// A closure for `map_err` that adds the action and the path to an I/O error.
    pub(crate) fn io(action: &'static str, path: impl AsRef<Path>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.as_ref().to_path_buf();
        move |source| Self::Io { action, path, source }
    }

    /// A setting that cannot be used.
    pub(crate) fn config(field: &'static str, expected: impl Into<String>, got: impl ToString) -> Self {
        Self::Config { field, expected: expected.into(), got: got.to_string() }
    }
}
