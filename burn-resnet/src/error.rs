//! Errors of configurations and of weights files.

use std::path::PathBuf;

/// The configuration of a network that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(
    missing_docs,
    reason = "the message of each variant says what its fields are"
)]
pub enum ModelError {
    /// There is no network of this depth.
    #[error("depth: expected {expected}, got {depth}. The nearest are {lower} and {upper}.")]
    Depth {
        expected: &'static str,
        depth: usize,
        /// The valid depth below, or the smallest one.
        lower: usize,
        upper: usize,
    },
    /// The name is not `resnet` and a depth.
    #[error("model `{name}`: expected `resnet` and a depth, such as resnet20 or resnet110")]
    Name { name: String },
}

/// A weights file that cannot be read, does not fit the network, or cannot be written.
#[derive(Debug, thiserror::Error)]
#[allow(
    missing_docs,
    reason = "the message of each variant says what its fields are"
)]
pub enum WeightsError {
    /// The file could not be opened or written.
    #[error("{}: {reason}", path.display())]
    Io {
        path: PathBuf,
        // Not a `source`: a chain of causes would print it twice.
        reason: std::io::Error,
    },
    /// The file has another format, or is damaged.
    #[error("{}: not readable as {format}: {reason}", path.display())]
    Format {
        path: PathBuf,
        /// "safetensors" or "a PyTorch checkpoint".
        format: &'static str,
        reason: String,
    },
    /// The tensors of the file do not fit the network.
    #[error(
        "{}: the tensors do not fit the network: missing [{}]; unexpected [{}]; misshaped [{}]. \
         Check that the file is of the same network, with as many classes.",
        path.display(), some(missing), some(unexpected), some(misshaped)
    )]
    Mismatch {
        path: PathBuf,
        missing: Vec<String>,
        unexpected: Vec<String>,
        /// The name, expected shape and found shape (or type) of each tensor that does not fit.
        misshaped: Vec<String>,
    },
    /// Only the last layer of the file does not fit the network.
    #[error(
        "{}: the last layer does not fit the network: missing [{}]; misshaped [{}]",
        path.display(), some(missing), some(misshaped)
    )]
    Head {
        path: PathBuf,
        missing: Vec<String>,
        /// As in [`WeightsError::Mismatch`].
        misshaped: Vec<String>,
    },
    /// The weights could not be written.
    #[error("{}: writing the weights failed: {reason}", path.display())]
    Write { path: PathBuf, reason: String },
}

/// The most names of one kind in an error.
const MAX_NAMES: usize = 10;

/// Returns the first names and the number of the others.
pub(crate) fn some(names: &[String]) -> String {
    let shown = names.len().min(MAX_NAMES);
    let mut text = names[..shown].join(", ");
    if names.len() > shown {
        text.push_str(&format!(" and {} more", names.len() - shown));
    }
    text
}
