//! Walks a run of values vector by vector, the last one masked.

use super::Stored;
use crate::simd::Simd;

/// One vector of a run: where it starts, and its mask if it is not whole.
#[derive(Clone, Copy)]
pub(crate) struct Lanes<S: Simd> {
    first: usize,
    mask: Option<S::Mask>,
}

impl<S: Simd> Lanes<S> {
    /// # Safety
    /// As [`Simd::load`], `run` being the address of the whole run's first value.
    #[inline(always)]
    pub(crate) unsafe fn load<E: Stored>(self, run: *const E) -> S::V {
        // SAFETY: passed on.
        unsafe {
            match self.mask {
                None => E::load::<S>(run.add(self.first)),
                Some(mask) => E::load_masked::<S>(run.add(self.first), mask),
            }
        }
    }

    /// # Safety
    /// As [`Simd::store`], `run` being the address of the whole run's first value.
    #[inline(always)]
    pub(crate) unsafe fn store<E: Stored>(self, run: *mut E, v: S::V) {
        // SAFETY: passed on.
        unsafe {
            match self.mask {
                None => E::store::<S>(run.add(self.first), v),
                Some(mask) => E::store_masked::<S>(run.add(self.first), mask, v),
            }
        }
    }

    /// Prefetches the line [`AHEAD`] of this vector, to read it or to write it; it need not exist.
    ///
    /// # Safety
    /// The processor has the features of `S`.
    #[inline(always)]
    pub(crate) unsafe fn ask_ahead<E, const WRITE: bool>(self, run: *const E) {
        let line = run.wrapping_add(self.first).wrapping_byte_add(AHEAD).cast();
        // SAFETY: passed on; a prefetch may name any address.
        unsafe {
            if WRITE {
                S::prefetch_write(line)
            } else {
                S::prefetch(line)
            }
        }
    }
}

/// Bytes from a vector to what is asked for: a page, at whose end the processor's own prefetcher
/// stops.
const AHEAD: usize = 4096;

/// Work on each vector. A closure would not be compiled with the features of `S`.
pub(crate) trait PerVector<S: Simd> {
    /// Implementations mark it as `#[inline(always)]`.
    ///
    /// # Safety
    /// The processor has the features of `S`, and the addresses of the implementation are valid.
    unsafe fn vector(&self, lanes: Lanes<S>);
}

/// Calls `work` for each vector of a run of `len` values.
///
/// # Safety
/// That of [`PerVector::vector`] for all vectors that start below `len`, masked there.
#[inline(always)]
pub(crate) unsafe fn each_vector<S: Simd>(len: usize, work: &impl PerVector<S>) {
    let whole = len - len % S::LANES;
    let mut first = 0;
    // SAFETY: passed on.
    unsafe {
        while first < whole {
            work.vector(Lanes { first, mask: None });
            first += S::LANES;
        }
        if whole < len {
            work.vector(Lanes {
                first,
                mask: Some(S::mask(len - whole)),
            });
        }
    }
}
