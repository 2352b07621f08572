//! Progress of this process on its data sets, for a watchdog.
//!
//! In: downloaded, read and unpacked bytes, drawn images, and delivered steps. Out: their count.
//! Invariant: the count never decreases, and increases while work is done.

use std::io::{self, Read};
use std::sync::atomic::{AtomicU64, Ordering};

static NUM_DONE: AtomicU64 = AtomicU64::new(0);

/// Returns a count of the work that this process has done for its data sets.
///
/// The count is the sum of bytes downloaded, read, unpacked and generated, images drawn, and steps
/// loaded. While the count is constant, the process does no work on its data.
pub fn progress() -> u64 {
    NUM_DONE.load(Ordering::Relaxed)
}

/// Counts `num` bytes, images or steps.
pub(crate) fn advance(num: usize) {
    NUM_DONE.fetch_add(num as u64, Ordering::Relaxed);
}

/// A reader whose bytes count as [`progress`] of this process.
#[derive(Debug)]
pub struct Counted<R>(pub R);

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.0.read(buffer)?;
        advance(len);
        Ok(len)
    }
}
