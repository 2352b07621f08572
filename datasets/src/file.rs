//! Reads or hashes a whole regular file of limited size.
//!
//! In: a path and the maximum plausible size. Out: the bytes, or their sha256.
//! Invariant: the functions never wait for the writer of a named pipe, and never read a device
//! endlessly.

use std::fs::{self, File, FileType};
use std::io::{self, Read};
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::error::DatasetError;
use crate::memory::to_hex;
use crate::progress::Counted;

/// Returns the bytes of the file at `path`, up to `max_bytes`.
pub(crate) fn read_whole(path: &Path, max_bytes: u64) -> Result<Vec<u8>, DatasetError> {
    // The check precedes the open, because opening a named pipe already blocks.
    let metadata = fs::metadata(path).map_err(DatasetError::io("read", path))?;
    if !metadata.is_file() {
        return Err(not_a_file(path, kind(metadata.file_type())));
    }
    let too_large = |got_bytes| DatasetError::FileTooLarge {
        path: path.to_path_buf(),
        max_bytes,
        got_bytes,
    };
    if metadata.len() > max_bytes {
        return Err(too_large(metadata.len()));
    }
    let mut bytes = Vec::with_capacity(metadata.len() as usize + 1);
    let file = File::open(path).map_err(DatasetError::io("read", path))?;
    // The file may grow during the read, and some system files have no length.
    Counted(file.take(max_bytes + 1))
        .read_to_end(&mut bytes)
        .map_err(DatasetError::io("read", path))?;
    if bytes.len() as u64 > max_bytes {
        return Err(too_large(bytes.len() as u64));
    }
    Ok(bytes)
}

/// Reads a text file of up to `max_bytes`, without the byte order mark that some editors write.
pub(crate) fn read_text(path: &Path, max_bytes: u64) -> Result<String, DatasetError> {
    let text = String::from_utf8(read_whole(path, max_bytes)?).map_err(|_| {
        DatasetError::invalid(
            path,
            "expected text in UTF-8, got other bytes. Save it as UTF-8",
        )
    })?;
    Ok(text.trim_start_matches('\u{feff}').to_owned())
}

/// Returns the error of a path that is not a regular file. Reading it could block or never end.
pub(crate) fn not_a_file(path: &Path, got: &str) -> DatasetError {
    DatasetError::invalid(
        path,
        format!("expected a regular file, got {got}. Put the file itself there"),
    )
}

/// Returns the sha256 of a file, in hex.
pub(crate) fn sha256_of(path: &Path) -> Result<String, DatasetError> {
    let mut file = Counted(File::open(path).map_err(DatasetError::io("read", path))?);
    let mut digest = Sha256::new();
    io::copy(&mut file, &mut digest).map_err(DatasetError::io("read", path))?;
    Ok(to_hex(&digest.finalize()))
}

fn kind(file_type: FileType) -> &'static str {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        if file_type.is_fifo() {
            return "a named pipe";
        }
        if file_type.is_socket() {
            return "a socket";
        }
        if file_type.is_block_device() || file_type.is_char_device() {
            return "a device";
        }
    }
    if file_type.is_dir() {
        "a folder"
    } else {
        "another kind of entry"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(path: &Path, max_bytes: u64) -> String {
        read_whole(path, max_bytes).unwrap_err().to_string()
    }

    #[test]
    fn a_file_up_to_the_limit_is_read_and_a_larger_one_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, [7; 100]).unwrap();
        assert_eq!(read_whole(&path, 100).unwrap(), [7; 100]);
        let text = message(&path, 99);
        assert!(
            text.contains("file: expected at most 99 bytes, got 100"),
            "{text}"
        );
    }

    #[test]
    fn what_is_read_is_counted_as_progress() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, [7; 1000]).unwrap();
        let before = crate::progress();
        read_whole(&path, 1000).unwrap();
        assert!(crate::progress() >= before + 1000);
    }

    #[test]
    fn what_is_no_file_is_named_and_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let text = message(folder.path(), 100);
        assert!(
            text.contains("expected a regular file, got a folder"),
            "{text}"
        );
        if cfg!(unix) {
            let text = message(Path::new("/dev/zero"), 100);
            assert!(
                text.contains("/dev/zero: expected a regular file, got a device"),
                "{text}"
            );
            let pipe = folder.path().join("pipe");
            assert!(
                std::process::Command::new("mkfifo")
                    .arg(&pipe)
                    .status()
                    .unwrap()
                    .success()
            );
            assert!(message(&pipe, 100).contains("got a named pipe"));
        }
    }
}
