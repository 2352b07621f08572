//! Memory side of Winograd's transforms: tiles of an image to transformed positions, and back.
//!
//! In: pixels, channels-last, read and written in place. Pixels outside the image are zero and are
//! not written.
//! Out: `[position][tile][channel]`; a padded stride keeps positions out of one cache set.

use super::transform::{OUT_TILE, TILE, gradient_1d, input_1d, input_half, output_1d};
use crate::Element;
use crate::simd::{Kernel, Simd, opaque};

/// The extents of an image.
#[derive(Clone, Copy)]
pub(crate) struct Grid {
    pub(crate) height: usize,
    pub(crate) width: usize,
    /// Channels to transform, and elements from one pixel to the next.
    pub(crate) channels: usize,
    pub(crate) pixel_stride: usize,
    /// Zeros above and left of the image: tile (0, 0) starts there.
    pub(crate) padding: usize,
}

/// Place of a tile.
#[derive(Clone, Copy)]
pub(crate) struct Tile {
    /// Elements before the image's first pixel and channel in the whole slice.
    pub(crate) image: usize,
    /// In units of output pixels.
    pub(crate) row: usize,
    pub(crate) column: usize,
}

/// `B^T d B` of one tile, all channels.
pub(crate) struct InputTile<'a, E> {
    pub(crate) x: &'a [E],
    pub(crate) grid: Grid,
    pub(crate) tile: Tile,
    /// The tile's first element in position 0.
    pub(crate) out: *mut f32,
    pub(crate) position_stride: usize,
}

impl<E: Element, S: Simd> Kernel<S> for InputTile<'_, E> {
    #[inline(always)]
    unsafe fn run(self) {
        let g = self.grid;
        let row = self.tile.row as isize - g.padding as isize;
        let column = self.tile.column as isize - g.padding as isize;
        let inside = |first: isize, extent: usize| first >= 0 && first as usize + TILE <= extent;
        let first =
            self.tile.image as isize + (row * g.width as isize + column) * g.pixel_stride as isize;
        let last = first + ((TILE - 1) * (g.width + 1) * g.pixel_stride + g.channels) as isize;
        let start = self.x.as_ptr().wrapping_offset(first);
        // SAFETY: passed on.
        unsafe {
            if inside(row, g.height) && inside(column, g.width) {
                transform_input::<S, E, INSIDE>(&self, start, [row, column]);
            } else if first >= 0 && last <= self.x.len() as isize {
                transform_input::<S, E, EDGE>(&self, start, [row, column]);
            } else {
                transform_input::<S, E, END>(&self, start, [row, column]);
            }
        }
    }
}

/// Place of a tile in its image: all of it inside; some pixels outside, which are zero; and these
/// at an end of the slice.
const INSIDE: u8 = 0;
const EDGE: u8 = 1;
const END: u8 = 2;

#[inline(always)]
unsafe fn transform_input<S: Simd, E: Element, const PLACE: u8>(
    t: &InputTile<'_, E>,
    mut start: *const E,
    place: [isize; 2],
) {
    // SAFETY: passed on; vectors start below the channels.
    unsafe {
        let mut channel = 0;
        while channel < t.grid.channels {
            transform_input_half::<S, E, PLACE, false>(t, start, place, channel);
            transform_input_half::<S, E, PLACE, true>(t, start, place, channel);
            prefetch_tile::<S, E>(start, [TILE, 1], t.grid);
            start = start.wrapping_add(S::LANES);
            channel += S::LANES;
        }
    }
}

/// Prefetches 4x4 pixels of the tile below, which comes thousands of cycles later: rows of a tile
/// are too short for the processor's own prefetcher. They begin so many rows and columns from
/// `start`.
#[inline(always)]
unsafe fn prefetch_tile<S: Simd, E>(start: *const E, [row, column]: [usize; 2], g: Grid) {
    let [row_stride, pixel_stride] = [g.width * g.pixel_stride, g.pixel_stride].map(opaque);
    let mut pixels = start.wrapping_add(row * row_stride + column * pixel_stride);
    for _ in 0..OUT_TILE {
        for i in 0..OUT_TILE {
            // SAFETY: a prefetch may name any address.
            unsafe { S::prefetch(pixels.wrapping_add(i * row_stride).cast()) };
        }
        pixels = pixels.wrapping_add(pixel_stride);
    }
}

/// Computes the first or the last three rows of positions, for one vector of channels, whose pixels
/// begin at `start`.
#[inline(always)]
unsafe fn transform_input_half<S: Simd, E: Element, const PLACE: u8, const LAST: bool>(
    t: &InputTile<'_, E>,
    start: *const E,
    [row, column]: [isize; 2],
    channel: usize,
) {
    let g = t.grid;
    let [row_stride, pixel_stride, position_stride] =
        [g.width * g.pixel_stride, g.pixel_stride, t.position_stride].map(opaque);
    let exists = |i: isize, extent: usize| i >= 0 && (i as usize) < extent;
    // SAFETY: pixels outside the image are not read, lanes beyond the channels are masked.
    unsafe {
        let full = channel + S::LANES <= g.channels;
        let mut masks = [S::mask(g.channels - channel); TILE];
        if PLACE != INSIDE {
            for (i, mask) in masks.iter_mut().enumerate() {
                *mask = if exists(row + i as isize, g.height) {
                    *mask
                } else {
                    S::mask(0)
                };
            }
        }
        let mut columns = [[S::zero(); 3]; TILE];
        let mut pixels = start;
        for (j, transformed) in columns.iter_mut().enumerate() {
            if PLACE == INSIDE || exists(column + j as isize, g.width) {
                let mut d = [S::zero(); TILE];
                for (i, d) in d.iter_mut().enumerate() {
                    let mut p = pixels.wrapping_add(i * row_stride);
                    // No lane is read, but a load where there is no memory takes hundreds of
                    // cycles.
                    if PLACE == END && !exists(row + i as isize, g.height) {
                        p = E::ZEROS.as_ptr();
                    }
                    *d = if PLACE != INSIDE || !full {
                        E::load_masked::<S>(p, masks[i])
                    } else {
                        E::load::<S>(p)
                    };
                }
                *transformed = input_half::<S, LAST>(d);
            }
            pixels = pixels.wrapping_add(pixel_stride);
        }
        let mut out = t
            .out
            .wrapping_add(channel + 3 * TILE * usize::from(LAST) * position_stride);
        for i in 0..3 {
            let c = &columns;
            let row = input_1d::<S>([c[0][i], c[1][i], c[2][i], c[3][i], c[4][i], c[5][i]]);
            for (j, value) in row.into_iter().enumerate() {
                S::store(out.wrapping_add(j * position_stride), value);
            }
            out = out.wrapping_add(TILE * position_stride);
        }
    }
}

/// `A^T m A` of one tile, all channels, into the pixels that exist.
pub(crate) struct OutputTile<E> {
    /// The tile's first element in position 0.
    pub(crate) m: *const f32,
    pub(crate) position_stride: usize,
    /// The image's first pixel.
    pub(crate) y: *mut E,
    pub(crate) grid: Grid,
    pub(crate) tile: Tile,
}

impl<E: Element, S: Simd> Kernel<S> for OutputTile<E> {
    #[inline(always)]
    unsafe fn run(self) {
        let g = self.grid;
        let rows = g.height - self.tile.row;
        let columns = g.width - self.tile.column;
        // SAFETY: only pixels of the image are stored, lanes beyond the channels are masked.
        unsafe {
            if rows >= OUT_TILE && columns >= OUT_TILE && g.channels.is_multiple_of(S::LANES) {
                transform_output::<S, E, false>(&self, OUT_TILE, OUT_TILE);
            } else {
                transform_output::<S, E, true>(&self, rows.min(OUT_TILE), columns.min(OUT_TILE));
            }
        }
    }
}

#[inline(always)]
unsafe fn transform_output<S: Simd, E: Element, const EDGE: bool>(
    t: &OutputTile<E>,
    num_rows: usize,
    num_columns: usize,
) {
    let g = t.grid;
    // SAFETY: passed on; vectors start below the channels.
    unsafe {
        let mut channel = 0;
        while channel < g.channels {
            let [row_stride, pixel_stride, position_stride] =
                [g.width * g.pixel_stride, g.pixel_stride, t.position_stride].map(opaque);
            let mask = S::mask(g.channels - channel);
            let mut columns = [[S::zero(); OUT_TILE]; TILE];
            let mut m = t.m.wrapping_add(channel);
            for column in &mut columns {
                let at = |i: usize| S::load(m.wrapping_add(i * TILE * position_stride));
                *column = output_1d::<S>([at(0), at(1), at(2), at(3), at(4), at(5)]);
                m = m.wrapping_add(position_stride);
            }
            let mut y =
                t.y.wrapping_add(t.tile.row * row_stride + t.tile.column * pixel_stride + channel);
            for i in 0..OUT_TILE {
                let c = &columns;
                let row = output_1d::<S>([c[0][i], c[1][i], c[2][i], c[3][i], c[4][i], c[5][i]]);
                for (j, value) in row.into_iter().enumerate() {
                    let y = y.wrapping_add(j * pixel_stride);
                    if !EDGE {
                        E::store::<S>(y, value);
                    } else if i < num_rows && j < num_columns {
                        E::store_masked::<S>(y, mask, value);
                    }
                }
                y = y.wrapping_add(row_stride);
            }
            channel += S::LANES;
        }
    }
}

/// `A dy A^T` of one tile of the output's gradient, all channels; pixels outside the image are
/// zero.
pub(crate) struct GradientTile<'a, E> {
    pub(crate) dy: &'a [E],
    pub(crate) grid: Grid,
    pub(crate) tile: Tile,
    /// The tile's first element in position 0.
    pub(crate) out: *mut f32,
    pub(crate) position_stride: usize,
}

impl<E: Element, S: Simd> Kernel<S> for GradientTile<'_, E> {
    #[inline(always)]
    unsafe fn run(self) {
        let g = self.grid;
        // SAFETY: passed on.
        unsafe {
            if self.tile.row + OUT_TILE <= g.height && self.tile.column + OUT_TILE <= g.width {
                transform_gradient::<S, E, false>(&self);
            } else {
                transform_gradient::<S, E, true>(&self);
            }
        }
    }
}

#[inline(always)]
unsafe fn transform_gradient<S: Simd, E: Element, const EDGE: bool>(t: &GradientTile<'_, E>) {
    let g = t.grid;
    let first =
        t.dy.as_ptr()
            .wrapping_add(t.tile.image + (t.tile.row * g.width + t.tile.column) * g.pixel_stride);
    // SAFETY: pixels outside the image are not read, lanes beyond the channels are masked.
    unsafe {
        let mut channel = 0;
        while channel < g.channels {
            let [row_stride, pixel_stride, position_stride] =
                [g.width * g.pixel_stride, g.pixel_stride, t.position_stride].map(opaque);
            let full = channel + S::LANES <= g.channels;
            let mask = S::mask(g.channels - channel);
            let mut rows = [[S::zero(); TILE]; OUT_TILE];
            let mut pixels = first.wrapping_add(channel);
            for (i, transformed) in rows.iter_mut().enumerate() {
                if !EDGE || t.tile.row + i < g.height {
                    let mut d = [S::zero(); OUT_TILE];
                    for (j, d) in d.iter_mut().enumerate() {
                        let p = pixels.wrapping_add(j * pixel_stride);
                        if !EDGE || t.tile.column + j < g.width {
                            *d = if full {
                                E::load::<S>(p)
                            } else {
                                E::load_masked::<S>(p, mask)
                            };
                        }
                    }
                    *transformed = gradient_1d::<S>(d);
                }
                pixels = pixels.wrapping_add(row_stride);
            }
            let mut out = t.out.wrapping_add(channel);
            for j in 0..TILE {
                let r = &rows;
                let column = gradient_1d::<S>([r[0][j], r[1][j], r[2][j], r[3][j]]);
                for (i, value) in column.into_iter().enumerate() {
                    S::store(out.wrapping_add(i * TILE * position_stride), value);
                }
                out = out.wrapping_add(position_stride);
            }
            prefetch_tile::<S, E>(first.wrapping_add(channel), [OUT_TILE, 0], g);
            channel += S::LANES;
        }
    }
}
