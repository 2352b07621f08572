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
    unsafe fn run(mut self) {
        let mut channel = 0;
        while channel < self.channels {
            // SAFETY: passed on; the vectors start below `channels`, and two are whole.
            channel += unsafe {
                if channel + 2 * S::LANES <= self.channels {
                    self.sum::<S, 2>(channel)
                } else {
                    self.sum::<S, 1>(channel)
                }
            };
        }
    }
}

impl<E: Element> PieceSums<'_, E> {
    /// Sums NV vectors of channels, which make whole cache lines if they are two. Returns the
    /// number of channels.
    ///
    /// # Safety
    /// As the methods of [`Simd`]; one vector starts below the number of channels, more lie below.
    #[inline(always)]
    unsafe fn sum<S: Simd, const NV: usize>(&mut self, channel: usize) -> usize {
        let num_pixels = self.pixels.len() / self.channels;
        let first_pixel = self.pixels.as_ptr().wrapping_add(channel);
        // SAFETY: a single vector is masked; pixels are counted from the slice.
        unsafe {
            let mask = S::mask(self.channels - channel);
            let pixel = |index: usize, vector: usize| {
                let values = first_pixel.add(index * self.channels + vector * S::LANES);
                if NV == 1 {
                    E::load_masked::<S>(values, mask)
                } else {
                    E::load::<S>(values)
                }
            };
            let mut shift = [S::zero(); NV];
            for sample in 0..SAMPLES {
                // Odd sixteenths: not in the first column, where padding changes the mean, for
                // any usual width.
                let index = (2 * sample + 1) * num_pixels / (2 * SAMPLES);
                for (vector, shift) in shift.iter_mut().enumerate() {
                    *shift = S::add(*shift, pixel(index, vector));
                }
            }
            let shift = shift.map(|shift| S::mul(shift, S::splat(1.0 / SAMPLES as f32)));
            let mut total = [S::zero(); NV];
            let mut total_squares = [S::zero(); NV];
            let mut first = 0;
            while first < num_pixels {
                let end = (first + RUN_PIXELS).min(num_pixels);
                // Two chains each, so that an addition need not wait for the one before.
                let mut sums = [[S::zero(); NV]; 2];
                let mut squares = [[S::zero(); NV]; 2];
                // Both in one round: a chain named by a variable would live in memory.
                let pairs = (end - first) / 2;
                for pair in 0..pairs {
                    for vector in 0..NV {
                        let value = S::sub(pixel(first + 2 * pair, vector), shift[vector]);
                        sums[0][vector] = S::add(sums[0][vector], value);
                        squares[0][vector] = S::fma(value, value, squares[0][vector]);
                    }
                    for vector in 0..NV {
                        let value = S::sub(pixel(first + 2 * pair + 1, vector), shift[vector]);
                        sums[1][vector] = S::add(sums[1][vector], value);
                        squares[1][vector] = S::fma(value, value, squares[1][vector]);
                    }
                }
                for vector in 0..NV {
                    if first + 2 * pairs < end {
                        let value = S::sub(pixel(end - 1, vector), shift[vector]);
                        sums[0][vector] = S::add(sums[0][vector], value);
                        squares[0][vector] = S::fma(value, value, squares[0][vector]);
                    }
                    let of_run = S::add(sums[0][vector], sums[1][vector]);
                    total[vector] = S::add(total[vector], of_run);
                    let of_run = S::add(squares[0][vector], squares[1][vector]);
                    total_squares[vector] = S::add(total_squares[vector], of_run);
                }
                first = end;
            }
            for vector in 0..NV {
                let sums = self.sums.as_mut_ptr().add(channel + vector * S::LANES);
                S::store_masked(sums, mask, total[vector]);
                S::store_masked(sums.add(self.channels), mask, total_squares[vector]);
                S::store_masked(sums.add(2 * self.channels), mask, shift[vector]);
            }
        }
        NV * S::LANES
    }
}
