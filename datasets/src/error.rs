//! What can go wrong between a data set's bytes and a batch.
//!
//! Out: [`DatasetError`], whose text says what failed, what was expected, what was found and what to do.

use std::path::{Path, PathBuf};

/// Everything this crate reports; each variant holds the values that its text shows.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(
    missing_docs,
    reason = "the message of each variant says what its fields are"
)]
pub enum DatasetError {
    /// The operating system refused a file or folder.
    #[error("cannot {action} {}: {reason}", path.display())]
    Io {
        /// What was tried, as a verb: "read", "create", "rename".
        action: &'static str,
        path: PathBuf,
        /// The operating system's answer; not a `source`, which a chain of causes would say again.
        reason: std::io::Error,
    },

    /// A file is no file, so that reading it could wait or go on for ever.
    #[error("{}: expected a regular file, got {got}; put the file itself there", path.display())]
    NotAFile {
        path: PathBuf,
        /// What is there: "a folder", "a named pipe".
        got: &'static str,
    },

    /// A file is larger than any of its kind.
    #[error("{}: expected at most {max_bytes} bytes, got {got_bytes} or more; check that it is the right file", path.display())]
    FileTooLarge {
        path: PathBuf,
        max_bytes: u64,
        /// The bytes found, or as many as were read.
        got_bytes: u64,
    },

    /// A file or folder of a data set is not where it should be.
    #[error("{what} not found in {}: expected {expected}; {remedy}", path.display())]
    Missing {
        what: String,
        path: PathBuf,
        /// The names that would have been accepted.
        expected: String,
        remedy: &'static str,
    },

    /// A file of fixed-size records ends inside a record.
    #[error(
        "{}: expected a whole number of records of {record_bytes} bytes, got {len_bytes} bytes \
         ({} records and {} bytes); the file is truncated or of another format, fetch it again",
        path.display(), len_bytes / record_bytes, len_bytes % record_bytes
    )]
    PartialRecord {
        path: PathBuf,
        len_bytes: usize,
        record_bytes: usize,
    },

    /// A record names a class that the data set does not have.
    #[error("{}: record {record}: expected a label below {num_classes}, got {label}", path.display())]
    LabelOutOfRange {
        path: PathBuf,
        /// The record's index in the file, from 0.
        record: usize,
        label: usize,
        num_classes: usize,
    },

    /// A file of class names does not fit its data set.
    #[error("{}: expected {expected} class names, got {got}", path.display())]
    ClassNames {
        path: PathBuf,
        /// The number of classes of the data set.
        expected: usize,
        /// The number of names in the file.
        got: usize,
    },

    /// A line of class names has none.
    #[error("{}: line {line}: expected the name of a class, got none; give each class a line and a name", path.display())]
    ClassName {
        path: PathBuf,
        /// From 1.
        line: usize,
    },

    /// A file of text is none.
    #[error("{}: expected text in UTF-8, got other bytes; save it as UTF-8", path.display())]
    NotText { path: PathBuf },

    /// An image file could not be decoded.
    #[error("cannot decode the image {}: {reason}", path.display())]
    BadImage { path: PathBuf, reason: String },

    /// A class has no image, or none that decodes.
    #[error(
        "class {}: expected at least one image ({extensions}), got none{}; add images or leave the class out",
        path.display(),
        if found.is_empty() { String::new() } else { format!(" ({found})") }
    )]
    EmptyClass {
        path: PathBuf,
        /// The file name extensions that count as images.
        extensions: String,
        /// What it has instead, if anything.
        found: String,
    },

    /// There is a single class, of which there is nothing to learn.
    #[error(
        "{}: expected at least 2 class folders, got 1 ({class_name}): a classifier of one class is always right; \
         put the images of each class into a folder of its own",
        path.display()
    )]
    OneClass { path: PathBuf, class_name: String },

    /// The name of a class folder is no text, as checkpoints and tables need it.
    #[error("class folder {}: expected a name in UTF-8, got other bytes; rename the folder", path.display())]
    ClassFolderName { path: PathBuf },

    /// A split has images of classes that are not those of the training.
    #[error(
        "{split}: expected the classes of the training ({expected}), got images of others: {unknown}; rename or remove these"
    )]
    UnknownClasses {
        split: String,
        /// The first of them.
        unknown: String,
        /// The first of them.
        expected: String,
    },

    /// The images of a split have no labels, so that nothing can be measured on them.
    #[error("{}: {found}, so its images have no labels: it is not measured; `trainer predict` classifies them", path.display())]
    Unlabelled {
        path: PathBuf,
        /// What is there in place of labels.
        found: String,
    },

    /// A folder holds files of several data sets for one split.
    #[error("{}: the files of the split {split} are of several data sets; give the folder of one of them: {files}", path.display())]
    SeveralSets {
        path: PathBuf,
        split: String,
        files: String,
    },

    /// A setting cannot be used.
    #[error("{field}: expected {expected}, got {got}")]
    Config {
        field: &'static str,
        expected: String,
        got: String,
    },

    /// A loader thread panicked.
    #[error("a loader thread panicked at step_in_epoch {step_in_epoch}: {reason}")]
    LoaderPanicked {
        /// The step that was waited for.
        step_in_epoch: usize,
        reason: String,
    },

    /// A download failed.
    #[error("cannot download {url}: {reason}; {remedy}")]
    Download {
        url: String,
        reason: String,
        remedy: String,
    },

    /// A downloaded file is not the one that was published.
    #[error("{}: expected sha256 {expected}, got {got}; the file was removed, download it again", path.display())]
    Checksum {
        path: PathBuf,
        expected: String,
        /// The digest of the bytes that arrived.
        got: String,
    },

    /// A shard is not the one that MANIFEST lists.
    #[error(
        "{}: expected sha256 {expected}, as MANIFEST says, got {got}; fetch the shard again, or make MANIFEST anew (sha256sum *.tar)",
        path.display()
    )]
    ChangedShard {
        path: PathBuf,
        expected: String,
        /// The digest of the shard as it is.
        got: String,
    },

    /// Shards hold samples that cannot be taken, or none that can.
    #[error("{}: {problems}; make or fetch the files again{}", path.display(), if *or_skip { ", or skip what is bad" } else { "" })]
    BadShards {
        path: PathBuf,
        /// Each with its shard and key.
        problems: String,
        /// Whether something is left without what is bad.
        or_skip: bool,
    },

    /// Writing was stopped by a wish.
    #[error("{}: stopped before all was written; nothing of it is kept, start again", path.display())]
    Stopped { path: PathBuf },

    /// A folder to write to has something in it.
    #[error("{}: expected a new or empty folder, got one with {found}; choose another", path.display())]
    NotEmpty {
        path: PathBuf,
        /// The name of what is in it.
        found: String,
    },

    /// An archive holds something that its data set does not have.
    #[error("{}: {reason}", path.display())]
    Archive { path: PathBuf, reason: String },
}

impl DatasetError {
    /// A closure for `map_err` that adds the action and the path to an I/O error.
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

    /// A setting that cannot be used.
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

/// The first ten items and how many more there are.
pub(crate) fn list(items: impl ExactSizeIterator<Item: ToString>) -> String {
    const MAX_SHOWN: usize = 10;
    let num_more = items.len().saturating_sub(MAX_SHOWN);
    let mut shown: Vec<String> = items.take(MAX_SHOWN).map(|item| item.to_string()).collect();
    if num_more > 0 {
        shown.push(format!("and {num_more} more"));
    }
    shown.join("; ")
}
