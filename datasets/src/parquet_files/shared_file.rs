//! A file for concurrent reads by the Parquet library.
//!
//! In: an open file. Out: its bytes at any offset.
//! Invariant: a read does not move the position of another read.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::reader::{ChunkReader, Length};

/// A file for concurrent reads by several threads. Each read has an offset. Reads of a plain `File`
/// would move each other's position.
pub(super) struct SharedFile(pub(super) Arc<File>);

/// Bytes of a file from a position on.
pub(super) struct FileFrom {
    file: Arc<File>,
    position: u64,
}

impl Read for FileFrom {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.file.read_at(buffer, self.position)?;
        self.position += len as u64;
        Ok(len)
    }
}

impl Length for SharedFile {
    fn len(&self) -> u64 {
        self.0.metadata().map_or(0, |facts| facts.len())
    }
}

impl ChunkReader for SharedFile {
    type T = BufReader<FileFrom>;

    fn get_read(&self, start: u64) -> ParquetResult<Self::T> {
        Ok(BufReader::new(FileFrom {
            file: Arc::clone(&self.0),
            position: start,
        }))
    }

    fn get_bytes(&self, start: u64, length: usize) -> ParquetResult<Bytes> {
        let mut bytes = Vec::new();
        FileFrom {
            file: Arc::clone(&self.0),
            position: start,
        }
        .take(length as u64)
        .read_to_end(&mut bytes)?;
        match bytes.len() {
            len if len == length => Ok(bytes.into()),
            len => Err(ParquetError::EOF(format!(
                "expected {length} bytes from byte {start} on, got {len}"
            ))),
        }
    }
}
