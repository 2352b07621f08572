//! A shard with random access to its bytes.
//!
//! In: the path of a file. Out: bytes of the file.
//! Invariant: a shard stays open after its first read. At most [`MAX_OPEN`] shards of the process
//! are open.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Limit of the shards that the process keeps open: half of the usual limit of 1,024 files, which
/// MPI and others share.
pub(super) const MAX_OPEN: usize = 512;

/// Those that it keeps open now.
static NUM_OPEN: AtomicUsize = AtomicUsize::new(0);

/// A shard, which is opened when it is first read.
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

    /// Reads at a place of the shard, which stays open unless too many are.
    pub(super) fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        if let Some(KeptOpen(file)) = self.file.get() {
            return file.read_exact_at(bytes, offset);
        }
        let file = File::open(&self.path)?;
        file.read_exact_at(bytes, offset)?;
        if let Some(file) = KeptOpen::new(file) {
            // Another thread's is as good.
            let _ = self.file.set(file);
        }
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn is_open(&self) -> bool {
        self.file.get().is_some()
    }
}

/// A file that counts as open until it is closed.
#[derive(Debug)]
struct KeptOpen(File);

impl KeptOpen {
    /// Returns `None` if the most files that may be open are open.
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
