//! What a weights file claims to hold, against what a file of its length can hold.
//!
//! In: a path, or a tensor that a reader found. Out: nothing, or the claim that the file cannot keep.
//! Invariant: past these checks the memory for reading is bounded by a small multiple of the file's length.

use std::fs::File;
use std::io;
use std::path::Path;

use burn::store::burn_pack::Tensor;

use crate::WeightsError;

/// What a small file may claim beyond its length: it costs nothing, and headers are not counted so closely.
pub(super) const SLACK_BYTES: u64 = 1 << 20;

/// Opens the file at `path`, with its length. A pipe is refused, as opening it would wait.
pub(super) fn open(path: &Path) -> Result<(File, u64), WeightsError> {
    let failed = |reason| WeightsError::Io {
        path: path.into(),
        reason,
    };
    let metadata = path.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(failed(io::Error::other(
            "expected a regular file, got a folder, pipe or device",
        )));
    }
    Ok((File::open(path).map_err(failed)?, metadata.len()))
}

/// Why a tensor should not be read: a stride of 0 repeats one element any number of times.
pub(super) fn refusal_of_tensor(tensor: &Tensor, file_len: u64) -> Option<String> {
    let len = tensor.byte_len() as u64;
    (len > file_len + SLACK_BYTES).then(|| {
        format!(
            "{}: expected a tensor no larger than the file of {file_len} bytes, got {:?} of {len} bytes; save it again with \
             `contiguous()`",
            tensor.name,
            tensor.shape.as_slice()
        )
    })
}
