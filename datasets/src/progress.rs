//! How much this process has done for its data sets, for whoever watches it.
//!
//! In: bytes as they are fetched, read and unpacked, images as they are drawn, steps as they are handed over. Out: their number. Invariant: it only grows, while
//! anything is done.

use std::io::{self, Read};
use std::sync::atomic::{AtomicU64, Ordering};

static NUM_DONE: AtomicU64 = AtomicU64::new(0);

/// Bytes that this process has downloaded, read, unpacked and made, images that it has drawn, steps that it has loaded, over all data sets together. While it
/// stands still the process does nothing for its data.
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
