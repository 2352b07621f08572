//! Moments of a convolution's output per channel, for batch normalisation. Each piece is summed
//! while it is in the cache.
//!
//! In: finished pieces of the output, as stored.
//! Out: `[sum, centred sum of squares][C]` in f64.
//! Invariant: a piece is at most a band of one image. In a piece, f32 sums of at most 64 terms add
//! differences from a value near the mean of the piece. Pieces are merged in f64 in index order. So
//! the variance is precise even if the mean is far from zero, and the result does not depend on
//! threads.
//! Source: Chan, Golub, LeVeque 1983, "Algorithms for Computing the Sample Variance".

use crate::Element;
use crate::pieces::{SharedMut, whole_lines};
use crate::simd::{GenericWork, Isa, Kernel, Simd};

/// Pixels whose sum is kept in one register.
const RUN_PIXELS: usize = 64;
/// Pixels, spread over the piece, whose mean is the shift.
const SAMPLES: usize = 8;
/// Sums of differences, sums of their squares, and the shift.
const PARTS: usize = 3;

/// Target of the partial sums: `[piece][part][C]`, then the number of pixels of each piece.
pub(crate) struct Statistics {
    isa: Isa,
    partials: SharedMut,
    channels: usize,
    counts: usize,
}

/// Returns the number of elements of the partial sums of `num_pieces`, in whole cache lines.
pub(crate) fn partials_len(num_pieces: usize, channels: usize) -> usize {
    whole_lines(num_pieces * (PARTS * channels + 1))
}

impl Statistics {
    pub(crate) fn new(isa: Isa, partials: &mut [f32], num_pieces: usize, channels: usize) -> Self {
        assert_eq!(
            partials.len(),
            partials_len(num_pieces, channels),
            "statistics: length of the partial sums"
        );
        Self {
            isa,
            partials: SharedMut::new(partials),
            channels,
            counts: num_pieces * PARTS * channels,
        }
    }

    /// Takes the sums over the pixels of one finished piece.
    pub(crate) fn of_piece<E: Element>(&self, piece: usize, pixels: &[E]) {
        let len = PARTS * self.channels;
        // SAFETY: each piece has its own partial sums and count, and the slice outlives the pass.
        let sums = unsafe {
            *self.partials.at(self.counts + piece, 1) = (pixels.len() / self.channels) as f32;
            core::slice::from_raw_parts_mut(self.partials.at(piece * len, len), len)
        };
        self.isa.run(PieceSums {
            pixels,
            channels: self.channels,
            sums,
        });
    }
}

/// Merges the partial sums of all pieces in their order.
pub(crate) fn reduce_partials(partials: &[f32], num_pieces: usize, moments: &mut [f64]) {
    let channels = moments.len() / 2;
    moments.fill(0.0);
    let (pieces, counts) = partials.split_at(num_pieces * PARTS * channels);
    let mut total_count = 0.0;
    for (piece, &count) in pieces.chunks_exact(PARTS * channels).zip(counts) {
        let count = f64::from(count);
        for channel in 0..channels {
            let [sum, square, shift] =
                [0, 1, 2].map(|part| f64::from(piece[part * channels + channel]));
            let own = [sum + count * shift, (square - sum * sum / count).max(0.0)];
            let before = [moments[channel], moments[channels + channel]];
            [moments[channel], moments[channels + channel]] =
                merged(before, total_count, own, count);
        }
        total_count += count;
    }
}

/// Returns the moments, sum and centred sum of squares, of `count` and `other_count` values
/// together.
fn merged(moments: [f64; 2], count: f64, other: [f64; 2], other_count: f64) -> [f64; 2] {
    if count == 0.0 {
        return other;
    }
    if other_count == 0.0 {
        return moments;
    }
    let [sum, square] = moments;
    let [other_sum, other_square] = other;
    let weight = count * other_count / (count + other_count);
    let per_value = 1.0 / count;
    let per_other_value = 1.0 / other_count;
    let delta = sum * per_value - other_sum * per_other_value;
    [
        sum + other_sum,
        square + (other_square + weight * delta * delta),
    ]
}

struct PieceSums<'a, E> {
    pixels: &'a [E],
    channels: usize,
    sums: &'a mut [f32],
}

impl<E: Element> GenericWork for PieceSums<'_, E> {
    type Output = ();
    fn run<S: Simd>(self) {
        debug_assert!(
            self.pixels.len().is_multiple_of(self.channels)
                && self.sums.len() == PARTS * self.channels
        );
        // SAFETY: features asserted by `Isa::run`; the kernel stays inside the slices.
        unsafe { S::vectorize(self) }
    }
}

impl<E: Element, S: Simd> Kernel<S> for PieceSums<'_, E> {
    #[inline(always)]
    unsafe fn run(self) {
        let num_pixels = self.pixels.len() / self.channels;
        // SAFETY: vectors start below `channels` and are masked there; pixels are counted from the
        // slice.
        unsafe {
            let mut channel = 0;
            while channel < self.channels {
                let mask = S::mask(self.channels - channel);
                let pixel = |index: usize| {
                    E::load_masked::<S>(
                        self.pixels.as_ptr().add(index * self.channels + channel),
                        mask,
                    )
                };
                let mut shift = S::zero();
                for sample in 0..SAMPLES {
                    // Odd sixteenths: not in the first column, where padding changes the mean, for
                    // any usual width.
                    shift = S::add(shift, pixel((2 * sample + 1) * num_pixels / (2 * SAMPLES)));
                }
                let shift = S::mul(shift, S::splat(1.0 / SAMPLES as f32));
                let mut total = S::zero();
                let mut total_squares = S::zero();
                let mut first = 0;
                while first < num_pixels {
                    let end = (first + RUN_PIXELS).min(num_pixels);
                    // Two chains each, so that an addition need not wait for the one before.
                    let mut sums = [S::zero(); 2];
                    let mut squares = [S::zero(); 2];
                    // Both in one round: a chain named by a variable would live in memory.
                    let pairs = (end - first) / 2;
                    for pair in 0..pairs {
                        let value = S::sub(pixel(first + 2 * pair), shift);
                        sums[0] = S::add(sums[0], value);
                        squares[0] = S::fma(value, value, squares[0]);
                        let value = S::sub(pixel(first + 2 * pair + 1), shift);
                        sums[1] = S::add(sums[1], value);
                        squares[1] = S::fma(value, value, squares[1]);
                    }
                    if first + 2 * pairs < end {
                        let value = S::sub(pixel(end - 1), shift);
                        sums[0] = S::add(sums[0], value);
                        squares[0] = S::fma(value, value, squares[0]);
                    }
                    total = S::add(total, S::add(sums[0], sums[1]));
                    total_squares = S::add(total_squares, S::add(squares[0], squares[1]));
                    first = end;
                }
                let sums = self.sums.as_mut_ptr().add(channel);
                S::store_masked(sums, mask, total);
                S::store_masked(sums.add(self.channels), mask, total_squares);
                S::store_masked(sums.add(2 * self.channels), mask, shift);
                channel += S::LANES;
            }
        }
    }
}
