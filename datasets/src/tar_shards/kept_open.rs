//! A shard with random access to its bytes.
//!
//! In: the path of a file. Out: bytes of the file.
//! Invariant: a shard stays open after its first read. The process has at most [`MAX_OPEN`] open
//! shards.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Maximum number of shards that the process keeps open. It is half of the usual limit of 1,024
/// files, which MPI and other code share.
pub(super) const MAX_OPEN: usize = 512;

/// Number of shards that are open now.
static NUM_OPEN: AtomicUsize = AtomicUsize::new(0);

/// A shard that is opened at its first read.
#[derive(Debug)]
pub(super) struct Shard {
    pub(super) path: PathBuf,
    file: OnceLock<KeptOpen>,
}

impl Shard {
    pub(super) fn new(path: PathBuf) -> Self {
        Self {
            path,
            file: OnceLock::new(),
        }
    }

    /// Reads at an offset of the shard. The shard stays open unless too many shards are open.
    pub(super) fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        if let Some(KeptOpen(file)) = self.file.get() {
            return file.read_exact_at(bytes, offset);
        }
        let file = File::open(&self.path)?;
        file.read_exact_at(bytes, offset)?;
        if let Some(file) = KeptOpen::new(file) {
            // A file that another thread has opened is equally usable.
            let _ = self.file.set(file);
        }
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn is_open(&self) -> bool {
        self.file.get().is_some()
    }
}

/// An open file that is counted until it is closed.
#[derive(Debug)]
struct KeptOpen(File);

impl KeptOpen {
    /// Returns `None` if the maximum number of files is open.
    fn new(file: File) -> Option<Self> {
        let more = |open| (open < MAX_OPEN).then_some(open + 1);
        NUM_OPEN
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .ok()
            .map(|_| Self(file))
    }
}

impl Drop for KeptOpen {
    fn drop(&mut self) {
        NUM_OPEN.fetch_sub(1, Ordering::Relaxed);
    }
}
