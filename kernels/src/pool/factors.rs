//! Products with a factor of each image and channel, and their gradients.
//!
//! In: `[N, pixels, C]` and factors `[N, C]`. Out: `[N, pixels, C]`, and both gradients.
//! Invariant: one thread computes an image. The products of a factor's gradient are added in f32,
//! at most 64 at a time, in the order of the pixels; then these sums are added.
//! Source: Hu et al. 2017, arXiv 1709.01507 (excitation).

use rayon::prelude::*;

use super::assert_len;
use super::average::{BLOCK, COLUMNS, check};
use crate::Element;
use crate::simd::{Isa, Task, vectorized};

/// Computes y = x · factor for every pixel.
///
/// # Shapes
/// `x`, `y`: `[N, pixels, channels]`. `factors`: `[N, channels]`.
///
/// # Panics
/// If a length differs, `pixels` or `channels` is 0, or the processor lacks `isa`.
#[inline(never)]
pub fn scale<E: Element>(
    isa: Isa,
    [pixels, channels]: [usize; 2],
    x: &[E],
    factors: &[f32],
    y: &mut [E],
) {
    check(x.len(), pixels, channels, factors.len());
    assert_len("products", y.len(), x.len());
    let images = y
        .par_chunks_exact_mut(pixels * channels)
        .zip(x.par_chunks_exact(pixels * channels))
        .zip(factors.par_chunks_exact(channels));
    images.for_each(|((y, x), factors)| vectorized(isa, Products { x, factors, y }));
}

/// Computes the gradients of [`scale`]: dx = dy · factor, and the sum of dy · x over all pixels.
///
/// # Shapes
/// `x`, `dy`, `dx`: `[N, pixels, channels]`. `factors`, `sums`: `[N, channels]`.
///
/// # Panics
/// As [`scale`].
#[inline(never)]
pub fn scale_backward<E: Element>(
    isa: Isa,
    [pixels, channels]: [usize; 2],
    [x, dy]: [&[E]; 2],
    factors: &[f32],
    dx: &mut [E],
    sums: &mut [f32],
) {
    check(x.len(), pixels, channels, factors.len());
    assert_len("gradients", dy.len(), x.len());
    assert_len("gradients of x", dx.len(), x.len());
    assert_len("gradients of factors", sums.len(), factors.len());
    let image = pixels * channels;
    let gradients = dx
        .par_chunks_exact_mut(image)
        .zip(sums.par_chunks_exact_mut(channels));
    let images = x.par_chunks_exact(image).zip(dy.par_chunks_exact(image));
    gradients
        .zip(images)
        .zip(factors.par_chunks_exact(channels))
        .for_each(|(((dx, sums), (x, dy)), factors)| {
            let work = Gradients {
                x,
                dy,
                factors,
                dx,
                sums,
            };
            vectorized(isa, work);
        });
}

struct Products<'a, E> {
    x: &'a [E],
    factors: &'a [f32],
    y: &'a mut [E],
}

impl<E: Element> Task for Products<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let channels = self.factors.len();
        let pixels = self.y.chunks_exact_mut(channels);
        for (y, x) in pixels.zip(self.x.chunks_exact(channels)) {
            for ((y, x), factor) in y.iter_mut().zip(x).zip(self.factors) {
                *y = E::from_f32(x.to_f32() * factor);
            }
        }
    }
}

struct Gradients<'a, E> {
    x: &'a [E],
    dy: &'a [E],
    factors: &'a [f32],
    dx: &'a mut [E],
    sums: &'a mut [f32],
}

impl<E: Element> Task for Gradients<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let channels = self.factors.len();
        let block = BLOCK * channels;
        self.sums.fill(0.0);
        let blocks = self.dx.chunks_mut(block).zip(self.x.chunks(block));
        for ((dx, x), dy) in blocks.zip(self.dy.chunks(block)) {
            for first in (0..channels).step_by(COLUMNS) {
                let columns = first..channels.min(first + COLUMNS);
                let factors = &self.factors[columns.clone()];
                let mut sums = [0.0; COLUMNS];
                let sums = &mut sums[..factors.len()];
                let rows = x.chunks_exact(channels).zip(dy.chunks_exact(channels));
                for (dx, (x, dy)) in dx.chunks_exact_mut(channels).zip(rows) {
                    let [x, dy] = [x, dy].map(|row| &row[columns.clone()]);
                    let values = x.iter().zip(dy).zip(factors);
                    let written = dx[columns.clone()].iter_mut().zip(&mut *sums);
                    for ((dx, sum), ((x, dy), factor)) in written.zip(values) {
                        let dy = dy.to_f32();
                        *dx = E::from_f32(dy * factor);
                        *sum += dy * x.to_f32();
                    }
                }
                for (total, sum) in self.sums[columns].iter_mut().zip(sums) {
                    *total += *sum;
                }
            }
        }
    }
}
