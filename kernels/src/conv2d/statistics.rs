//! Per-channel sums of a convolution's output for batch normalisation, taken band by band while it is in the cache.
//!
//! Sums of 64 pixels in f32, their sums in f32 within a piece (at most a band of one image), pieces in f64 in index order.
//! Source: Ioffe and Szegedy 2015, arXiv 1502.03167, for what they are used for.

use crate::Element;
use crate::pieces::SharedMut;
use crate::simd::{GenericWork, Isa, Kernel, Simd};

/// Pixels whose sum is kept in one register.
const RUN_PIXELS: usize = 64;

/// Where the partial sums go: `[piece][sum, square][C]`.
pub(super) struct Statistics<'a> {
    isa: Isa,
    partials: SharedMut,
    channels: usize,
    shift: Option<&'a [f32]>,
}

impl<'a> Statistics<'a> {
    pub(super) fn new(isa: Isa, partials: &mut [f32], channels: usize, shift: Option<&'a [f32]>) -> Self {
        Self { isa, partials: SharedMut::new(partials), channels, shift }
    }

    /// Sums over the pixels of one finished piece.
    pub(super) fn of_piece<E: Element>(&self, piece: usize, pixels: &[E]) {
        let len = 2 * self.channels;
        // SAFETY: each piece has its own partial sums, and the slice outlives the pass.
        let sums = unsafe { core::slice::from_raw_parts_mut(self.partials.at(piece * len, len), len) };
        self.isa.run(PieceSums { pixels, shift: self.shift, channels: self.channels, sums });
    }
}

/// Adds the partial sums of all pieces in their order.
pub(super) fn reduce_partials(partials: &[f32], sum: &mut [f64], sum_of_squares: &mut [f64]) {
    let channels = sum.len();
    sum.fill(0.0);
    sum_of_squares.fill(0.0);
    for piece in partials.chunks_exact(2 * channels) {
        let (sums, squares) = piece.split_at(channels);
        for (total, &part) in sum.iter_mut().zip(sums) {
            *total += f64::from(part);
        }
        for (total, &part) in sum_of_squares.iter_mut().zip(squares) {
            *total += f64::from(part);
        }
    }
}

struct PieceSums<'a, E> {
    pixels: &'a [E],
    shift: Option<&'a [f32]>,
    channels: usize,
    sums: &'a mut [f32],
}

impl<E: Element> GenericWork for PieceSums<'_, E> {
    type Output = ();
    fn run<S: Simd>(self) {
        debug_assert!(self.pixels.len().is_multiple_of(self.channels) && self.sums.len() == 2 * self.channels);
        // SAFETY: features asserted by `Isa::run`; the kernel stays inside the slices.
        unsafe { S::vectorize(self) }
    }
}

impl<E: Element, S: Simd> Kernel<S> for PieceSums<'_, E> {
    #[inline(always)]
    unsafe fn run(self) {
        let num_pixels = self.pixels.len() / self.channels;
        // SAFETY: vectors start below `channels` and are masked there; pixels are counted from the slice.
        unsafe {
            let mut channel = 0;
            while channel < self.channels {
                let mask = S::mask(self.channels - channel);
                let shift = match self.shift {
                    Some(shift) => S::load_masked(shift.as_ptr().add(channel), mask),
                    None => S::zero(),
                };
                let (mut total, mut total_squares) = (S::zero(), S::zero());
                let mut first = 0;
                while first < num_pixels {
                    let end = (first + RUN_PIXELS).min(num_pixels);
                    // Two chains each, so that an addition need not wait for the one before.
                    let mut sums = [S::zero(); 2];
                    let mut squares = [S::zero(); 2];
                    let mut p = self.pixels.as_ptr().add(first * self.channels + channel);
                    for pixel in first..end {
                        let value = S::sub(E::load_masked::<S>(p, mask), shift);
                        let chain = (pixel - first) % 2;
                        if chain == 0 {
                            sums[0] = S::add(sums[0], value);
                            squares[0] = S::fma(value, value, squares[0]);
                        } else {
                            sums[1] = S::add(sums[1], value);
                            squares[1] = S::fma(value, value, squares[1]);
                        }
                        p = p.wrapping_add(self.channels);
                    }
                    total = S::add(total, S::add(sums[0], sums[1]));
                    total_squares = S::add(total_squares, S::add(squares[0], squares[1]));
                    first = end;
                }
                S::store_masked(self.sums.as_mut_ptr().add(channel), mask, total);
                S::store_masked(self.sums.as_mut_ptr().add(self.channels + channel), mask, total_squares);
                channel += S::LANES;
            }
        }
    }
}
