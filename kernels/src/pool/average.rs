//! Global average pooling.
//!
//! In: `[N, pixels, C]`. Out: `[N, C]` in f32, and the gradient of the input.
//! Invariant: pixels are added in order, in f32, at most 64 at a time (a whole 7x7 or 8x8 map);
//! then these sums are added.

use rayon::prelude::*;

use super::assert_len;
use crate::Element;
use crate::pieces::elements;
use crate::simd::{Isa, Task, vectorized};

/// Pixels added before their sum is added to the others.
pub(super) const BLOCK: usize = 64;
/// Channels whose sums stay in registers or the first-level cache.
pub(super) const COLUMNS: usize = 64;

/// Computes the mean over all pixels for each image and channel.
///
/// # Shapes
/// `x`: `[N, pixels, channels]`. `y`: `[N, channels]`.
///
/// # Panics
/// If a length differs, `pixels` or `channels` is 0, or the processor lacks `isa`.
#[inline(never)]
pub fn global_average<E: Element>(
    isa: Isa,
    x: &[E],
    pixels: usize,
    channels: usize,
    y: &mut [f32],
) {
    check(x.len(), pixels, channels, y.len());
    let images = y
        .par_chunks_exact_mut(channels)
        .zip(x.par_chunks_exact(pixels * channels));
    images.for_each(|(y, x)| vectorized(isa, Mean { x, y }));
}

/// Computes dx = dy / pixels for every pixel, plus the addend.
///
/// # Shapes
/// `dy`: `[N, channels]`. `addend`, `dx`: `[N, pixels, channels]`.
///
/// # Panics
/// If a length differs, `pixels` or `channels` is 0, or the processor lacks `isa`.
#[inline(never)]
pub fn global_average_backward<E: Element>(
    isa: Isa,
    dy: &[f32],
    pixels: usize,
    channels: usize,
    addend: Option<&[E]>,
    dx: &mut [E],
) {
    check(dx.len(), pixels, channels, dy.len());
    let (len, image) = (dx.len(), pixels * channels);
    let images = dx
        .par_chunks_exact_mut(image)
        .zip(dy.par_chunks_exact(channels));
    match addend {
        Some(addend) => {
            assert_len("addend", addend.len(), len);
            images
                .zip(addend.par_chunks_exact(image))
                .for_each(|((dx, dy), addend)| vectorized(isa, Added { dy, addend, dx }));
        }
        None => images.for_each(|(dx, dy)| vectorized(isa, Spread { dy, dx })),
    }
}

pub(super) fn check(all: usize, pixels: usize, channels: usize, means: usize) {
    assert!(
        pixels > 0 && channels > 0,
        "pool: average over {pixels} pixels of {channels} channels"
    );
    assert!(
        means.is_multiple_of(channels),
        "pool: {means} means are no whole rows of {channels} channels"
    );
    assert_len("pixels", all, elements("pool: average", &[means, pixels]));
}

struct Mean<'a, E> {
    x: &'a [E],
    y: &'a mut [f32],
}

impl<E: Element> Task for Mean<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let channels = self.y.len();
        let pixels = self.x.len() / channels;
        for (index, y) in self.y.chunks_mut(COLUMNS).enumerate() {
            let first = index * COLUMNS;
            y.fill(0.0);
            for block in self.x.chunks(BLOCK * channels) {
                let mut sums = [0.0; COLUMNS];
                let sums = &mut sums[..y.len()];
                for pixel in block.chunks_exact(channels) {
                    for (sum, x) in sums.iter_mut().zip(&pixel[first..first + y.len()]) {
                        *sum += x.to_f32();
                    }
                }
                for (y, sum) in y.iter_mut().zip(sums) {
                    *y += *sum;
                }
            }
            for y in y {
                *y /= pixels as f32;
            }
        }
    }
}

struct Added<'a, E> {
    dy: &'a [f32],
    addend: &'a [E],
    dx: &'a mut [E],
}

impl<E: Element> Task for Added<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let channels = self.dy.len();
        let pixels = (self.dx.len() / channels) as f32;
        let addends = self.addend.chunks_exact(channels);
        for (dx, addend) in self.dx.chunks_exact_mut(channels).zip(addends) {
            for ((dx, addend), dy) in dx.iter_mut().zip(addend).zip(self.dy) {
                *dx = E::from_f32(addend.to_f32() + dy / pixels);
            }
        }
    }
}

struct Spread<'a, E> {
    dy: &'a [f32],
    dx: &'a mut [E],
}

impl<E: Element> Task for Spread<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let pixels = self.dx.len() / self.dy.len();
        let (first, rest) = self.dx.split_at_mut(self.dy.len());
        for (dx, dy) in first.iter_mut().zip(self.dy) {
            *dx = E::from_f32(dy / pixels as f32);
        }
        for pixel in rest.chunks_exact_mut(self.dy.len()) {
            pixel.copy_from_slice(first);
        }
    }
}
