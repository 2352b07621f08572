//! What a weights file claims to hold, against what a file of its length can hold.
//!
//! In: a path, or the tensors a reader found. Out: nothing, or the claim that the file cannot keep.
//! Invariant: past these checks the memory for reading is bounded by a small multiple of the file's length, and reading ends.
//! burn's readers check every length against the file, but for three cases: the archive's pickle may unpack to 100 MiB (and its
//! objects to many times that), a sparse entry of a tar file to any number of zeros, and a tensor of stride 0 repeats one
//! element up to 10 GiB.

use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::path::Path;

use burn::store::burn_pack::Tensor;
use zip::ZipArchive;

use crate::WeightsError;

/// What a small file may claim beyond its length: it costs nothing, and headers are not counted so closely.
const SLACK_BYTES: u64 = 1 << 20;

/// Where a tar header has its magic.
const TAR_MAGIC: std::ops::Range<usize> = 257..262;

/// The length of the file at `path`, which is a file: opening a named pipe would wait.
pub(super) fn file_len(path: &Path) -> Result<u64, WeightsError> {
    let failed = |reason| WeightsError::Io { path: path.into(), reason };
    let metadata = fs::metadata(path).map_err(failed)?;
    if !metadata.is_file() {
        return Err(failed(io::Error::other("expected a regular file, got a folder, pipe or device")));
    }
    File::open(path).map_err(failed)?;
    Ok(metadata.len())
}

/// Why a PyTorch file should not be given to its reader.
pub(super) fn refusal_of_container(path: &Path, file_len: u64) -> io::Result<Option<String>> {
    let mut header = Vec::new();
    File::open(path)?.take(TAR_MAGIC.end as u64).read_to_end(&mut header)?;
    if !header.starts_with(b"PK") {
        let is_tar = header.get(TAR_MAGIC) == Some(b"ustar");
        return Ok(is_tar.then(|| {
            "expected a zip archive or a pickle, got the tar archive of PyTorch before 0.1.10; load it and save it again \
             with a newer PyTorch"
                .to_owned()
        }));
    }
    // Of an archive that cannot be opened the reader will tell.
    let Ok(mut archive) = ZipArchive::new(BufReader::new(File::open(path)?)) else { return Ok(None) };
    for index in 0..archive.len() {
        let Ok(entry) = archive.by_index_raw(index) else { continue };
        // PyTorch does not compress, so that the pickle is shorter than the file it is in.
        if entry.name().is_ok_and(|name| name.ends_with("data.pkl")) && entry.size() > file_len + SLACK_BYTES {
            let len = entry.size();
            return Ok(Some(format!(
                "expected a pickle shorter than the file of {file_len} bytes, got one that unpacks to {len}; save it again \
                 with torch.save, which does not compress"
            )));
        }
    }
    Ok(None)
}

/// Why a tensor should not be read.
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
