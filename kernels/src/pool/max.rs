//! Max pooling with stride 2, of 3x3 windows with padding 1 or of 2x2 windows.
//!
//! In: `[N, H, W, C]`.
//! Out: `[N, H_out, W_out, C]` and the tap (row by row) of each maximum.
//! Invariant: as in PyTorch, the first of equal values is chosen, and NaN before all others.

use rayon::prelude::*;

use super::assert_len;
use crate::Element;
use crate::pieces::elements;
use crate::simd::{Isa, Task, vectorized};

/// Channels whose sums stay in registers.
const BLOCK: usize = 16;

/// Shape of the input `[N, H, W, C]`, and the windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxPoolShape {
    /// Images.
    pub num_images: usize,
    /// Height of the input.
    pub height: usize,
    /// Width of the input.
    pub width: usize,
    /// Channels.
    pub channels: usize,
    /// Side of a window: 3 with padding 1, or 2 without padding.
    pub window: usize,
}

impl MaxPoolShape {
    /// Returns the height of the output.
    pub fn height_out(&self) -> usize {
        self.extent_out(self.height)
    }

    /// Returns the width of the output.
    pub fn width_out(&self) -> usize {
        self.extent_out(self.width)
    }

    fn extent_out(&self, extent: usize) -> usize {
        (extent + self.window - 2) / 2
    }

    fn check(&self) {
        assert!(
            matches!(self.window, 2 | 3),
            "pool: window: expected 2 or 3, got {}",
            self.window
        );
    }

    /// Returns the number of values of the input.
    ///
    /// # Panics
    /// If the number exceeds the largest slice.
    pub fn input_len(&self) -> usize {
        elements(
            "pool: input",
            &[self.num_images, self.height, self.width, self.channels],
        )
    }

    /// Returns the number of values of the output.
    ///
    /// # Panics
    /// If the number exceeds the largest slice.
    pub fn output_len(&self) -> usize {
        elements(
            "pool: output",
            &[
                self.num_images,
                self.height_out(),
                self.width_out(),
                self.channels,
            ],
        )
    }
}

/// Computes the maxima, and the tap window·row + column of each for the backward pass.
///
/// # Shapes
/// `x`: `[N, H, W, C]`. `y`, `taps`: `[N, H_out, W_out, C]`.
///
/// # Panics
/// If a length differs, the window has another side, or the processor lacks `isa`.
#[inline(never)]
pub fn max_pool<E: Element>(isa: Isa, shape: MaxPoolShape, x: &[E], y: &mut [E], taps: &mut [u8]) {
    shape.check();
    assert_len("x", x.len(), shape.input_len());
    assert_len("y", y.len(), shape.output_len());
    assert_len("taps", taps.len(), shape.output_len());
    if y.is_empty() {
        return;
    }
    let row = shape.width_out() * shape.channels;
    let rows = y
        .par_chunks_exact_mut(row)
        .zip(taps.par_chunks_exact_mut(row))
        .enumerate();
    rows.for_each(|(index, (y, taps))| {
        let image = index / shape.height_out();
        let row = index % shape.height_out();
        let image_len = shape.height * shape.width * shape.channels;
        let x = &x[image * image_len..][..image_len];
        vectorized(
            isa,
            OutputRow {
                shape,
                x,
                row,
                y,
                taps,
            },
        );
    });
}

/// Computes the gradient of the input: the gradient of a window goes to its maximum.
///
/// # Shapes
/// `dy`, `taps`: `[N, H_out, W_out, C]`. `dx`: `[N, H, W, C]`, every value written.
///
/// # Panics
/// If a length differs, the window has another side, or the processor lacks `isa`.
#[inline(never)]
pub fn max_pool_backward<E: Element>(
    isa: Isa,
    shape: MaxPoolShape,
    dy: &[E],
    taps: &[u8],
    dx: &mut [E],
) {
    shape.check();
    assert_len("dx", dx.len(), shape.input_len());
    assert_len("dy", dy.len(), shape.output_len());
    assert_len("taps", taps.len(), shape.output_len());
    if dx.is_empty() {
        return;
    }
    dx.par_chunks_exact_mut(shape.width * shape.channels)
        .enumerate()
        .for_each(|(index, dx)| {
            let image = index / shape.height;
            let row = index % shape.height;
            let image_len = shape.height_out() * shape.width_out() * shape.channels;
            let image = image * image_len..(image + 1) * image_len;
            vectorized(
                isa,
                InputRow {
                    shape,
                    dy: &dy[image.clone()],
                    taps: &taps[image],
                    row,
                    dx,
                },
            );
        });
}

/// One row of the output, and the image it is made of.
struct OutputRow<'a, E> {
    shape: MaxPoolShape,
    x: &'a [E],
    row: usize,
    y: &'a mut [E],
    taps: &'a mut [u8],
}

impl<E: Element> Task for OutputRow<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self {
            shape:
                MaxPoolShape {
                    height,
                    width,
                    channels,
                    window: side,
                    ..
                },
            x,
            row,
            y,
            taps,
        } = self;
        let padding = side - 2;
        let pixels = y
            .chunks_exact_mut(channels)
            .zip(taps.chunks_exact_mut(channels))
            .enumerate();
        for (column, (y, taps)) in pixels {
            let mut window: [(&[E], u8); 9] = [(&[], 0); 9];
            let mut count = 0;
            for tap in 0..side * side {
                let source_row = 2 * row + tap / side;
                let source_column = 2 * column + tap % side;
                let inside = |at, extent| (padding..extent + padding).contains(&at);
                if inside(source_row, height) && inside(source_column, width) {
                    let at = ((source_row - padding) * width + source_column - padding) * channels;
                    window[count] = (&x[at..at + channels], tap as u8);
                    count += 1;
                }
            }
            let window = &window[..count];
            let (y, tail_y) = y.as_chunks_mut::<BLOCK>();
            let (taps, tail_taps) = taps.as_chunks_mut::<BLOCK>();
            let first_of_tail = y.len() * BLOCK;
            for (index, (y, taps)) in y.iter_mut().zip(taps).enumerate() {
                choose(window, index * BLOCK, y, taps);
            }
            let tail = tail_y
                .as_chunks_mut::<1>()
                .0
                .iter_mut()
                .zip(tail_taps.as_chunks_mut::<1>().0);
            for (index, (y, tap)) in tail.enumerate() {
                choose(window, first_of_tail + index, y, tap);
            }
        }
    }
}

/// Computes the largest value of a window, and its tap, for `N` channels from `first` on.
#[inline(always)]
fn choose<E: Element, const N: usize>(
    window: &[(&[E], u8)],
    first: usize,
    y: &mut [E; N],
    taps: &mut [u8; N],
) {
    // The first stands until something larger comes. Taps are as wide as values, so that one mask
    // serves both.
    let mut largest = [f32::NEG_INFINITY; N];
    let mut chosen = [u32::from(window[0].1); N];
    for (x, tap) in window {
        let x = &x[first..first + N];
        let tap = u32::from(*tap);
        for i in 0..N {
            let x = x[i].to_f32();
            // All bits or none: of a condition the compiler makes a jump for each value.
            let larger = (u32::from(x > largest[i]) | u32::from(x.is_nan())).wrapping_neg();
            largest[i] = f32::from_bits(x.to_bits() & larger | largest[i].to_bits() & !larger);
            chosen[i] = tap & larger | chosen[i] & !larger;
        }
    }
    for i in 0..N {
        (y[i], taps[i]) = (E::from_f32(largest[i]), chosen[i] as u8);
    }
}

/// One row of the input's gradient, and its image's windows.
struct InputRow<'a, E> {
    shape: MaxPoolShape,
    dy: &'a [E],
    taps: &'a [u8],
    row: usize,
    dx: &'a mut [E],
}

impl<E: Element> Task for InputRow<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let channels = self.shape.channels;
        let side = self.shape.window;
        let windows = |position, count| match side {
            2 => [
                (position / 2 < count).then_some((position / 2, position % 2)),
                None,
            ],
            _ => windows(position, count),
        };
        for (column, dx) in self.dx.chunks_exact_mut(channels).enumerate() {
            let mut chosen: [Window<'_, E>; 4] = [(&[], &[], 0); 4];
            let mut count = 0;
            for (window_row, tap_row) in windows(self.row, self.shape.height_out())
                .into_iter()
                .flatten()
            {
                for (window_column, tap_column) in windows(column, self.shape.width_out())
                    .into_iter()
                    .flatten()
                {
                    let at = (window_row * self.shape.width_out() + window_column) * channels;
                    let range = at..at + channels;
                    chosen[count] = (
                        &self.dy[range.clone()],
                        &self.taps[range],
                        (side * tap_row + tap_column) as u8,
                    );
                    count += 1;
                }
            }
            let windows = &chosen[..count];
            let (blocks, tail) = dx.as_chunks_mut::<BLOCK>();
            let first_of_tail = blocks.len() * BLOCK;
            for (index, dx) in blocks.iter_mut().enumerate() {
                gather(windows, index * BLOCK, dx);
            }
            for (index, dx) in tail.as_chunks_mut::<1>().0.iter_mut().enumerate() {
                gather(windows, first_of_tail + index, dx);
            }
        }
    }
}

/// A window's gradients and taps, and the tap at which it has the pixel in question.
type Window<'a, E> = (&'a [E], &'a [u8], u8);

/// Adds, for `N` channels from `first` on, the gradients of the windows that chose the pixel.
#[inline(always)]
fn gather<E: Element, const N: usize>(windows: &[Window<'_, E>], first: usize, dx: &mut [E; N]) {
    let mut sums = [0.0; N];
    for (dy, taps, tap) in windows {
        let dy = &dy[first..first + N];
        let taps = &taps[first..first + N];
        for i in 0..N {
            // Loaded whatever the tap says, or the compiler makes a jump of it.
            let dy = dy[i].to_f32();
            sums[i] += if taps[i] == *tap { dy } else { 0.0 };
        }
    }
    for i in 0..N {
        dx[i] = E::from_f32(sums[i]);
    }
}

/// Returns the 3x3 windows that contain `position`, each with the tap at which it does.
#[inline(always)]
fn windows(position: usize, count: usize) -> [Option<(usize, usize)>; 2] {
    let window = position / 2;
    if position.is_multiple_of(2) {
        [Some((window, 1)), None]
    } else {
        [
            Some((window, 2)),
            (window + 1 < count).then_some((window + 1, 0)),
        ]
    }
}
