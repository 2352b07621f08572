//! Sums of 2x2 windows with stride 2, and the transpose, which doubles rows and columns.
//!
//! In: `[N, H, W, C]`, or half the rows and columns. Out: the other.
//! Invariant: with factor 1/4 [`halve`] is average pooling and [`double`] its gradient. With factor
//! 1 [`double`] is nearest upsampling and [`halve`] its gradient.

use rayon::prelude::*;

use super::assert_len;
use crate::Element;
use crate::pieces::elements;
use crate::simd::{Isa, Task, vectorized};

/// Computes y = factor times the sum of each 2x2 window, (a + b) + (c + d) by rows. A last odd row
/// or column is not read.
///
/// # Shapes
/// `x`: `[N, H, W, C]`, `large` is this shape. `y`: `[N, H / 2, W / 2, C]`.
///
/// # Panics
/// If a length differs, or the processor lacks `isa`.
#[inline(never)]
pub fn halve<E: Element>(isa: Isa, large: [usize; 4], factor: f32, x: &[E], y: &mut [E]) {
    let [_, height, width, channels] = large;
    check(large, x.len(), y.len());
    if y.is_empty() {
        return;
    }
    let row = width * channels;
    y.par_chunks_exact_mut(width / 2 * channels)
        .enumerate()
        .for_each(|(index, y)| {
            let first = index / (height / 2) * height + index % (height / 2) * 2;
            let (above, below) = x[first * row..][..2 * row].split_at(row);
            vectorized(
                isa,
                Sums {
                    channels,
                    factor,
                    above,
                    below,
                    y,
                },
            );
        });
}

/// Computes y = factor times the pixel x at half the row and column; 0 in a last odd row or column.
///
/// # Shapes
/// `x`: `[N, H / 2, W / 2, C]`. `y`: `[N, H, W, C]`, `large` is this shape.
///
/// # Panics
/// If a length differs, or the processor lacks `isa`.
#[inline(never)]
pub fn double<E: Element>(isa: Isa, large: [usize; 4], factor: f32, x: &[E], y: &mut [E]) {
    let [_, height, width, channels] = large;
    check(large, y.len(), x.len());
    if y.is_empty() {
        return;
    }
    let row = width / 2 * channels;
    y.par_chunks_exact_mut(width * channels)
        .enumerate()
        .for_each(|(index, y)| {
            let (image, of_image) = (index / height, index % height / 2);
            if of_image >= height / 2 {
                y.fill(E::default());
                return;
            }
            let x = &x[(image * (height / 2) + of_image) * row..][..row];
            vectorized(
                isa,
                Copies {
                    channels,
                    factor,
                    x,
                    y,
                },
            );
        });
}

fn check(large: [usize; 4], num_large: usize, num_small: usize) {
    let [images, height, width, channels] = large;
    assert_len("all pixels", num_large, elements("pool: pixels", &large));
    assert_len(
        "windows",
        num_small,
        elements("pool: windows", &[images, height / 2, width / 2, channels]),
    );
}

struct Sums<'a, E> {
    channels: usize,
    factor: f32,
    above: &'a [E],
    below: &'a [E],
    y: &'a mut [E],
}

impl<E: Element> Task for Sums<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let pairs = self
            .above
            .chunks_exact(2 * self.channels)
            .zip(self.below.chunks_exact(2 * self.channels));
        for (y, (above, below)) in self.y.chunks_exact_mut(self.channels).zip(pairs) {
            let [(a, b), (c, d)] = [above, below].map(|pair| pair.split_at(self.channels));
            for ((y, (a, b)), (c, d)) in y.iter_mut().zip(a.iter().zip(b)).zip(c.iter().zip(d)) {
                let sum = (a.to_f32() + b.to_f32()) + (c.to_f32() + d.to_f32());
                *y = E::from_f32(self.factor * sum);
            }
        }
    }
}

struct Copies<'a, E> {
    channels: usize,
    factor: f32,
    x: &'a [E],
    y: &'a mut [E],
}

impl<E: Element> Task for Copies<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let mut pairs = self.y.chunks_exact_mut(2 * self.channels);
        for (y, x) in pairs.by_ref().zip(self.x.chunks_exact(self.channels)) {
            let (left, right) = y.split_at_mut(self.channels);
            for ((left, right), x) in left.iter_mut().zip(right).zip(x) {
                let value = E::from_f32(self.factor * x.to_f32());
                (*left, *right) = (value, value);
            }
        }
        pairs.into_remainder().fill(E::default());
    }
}
