//! Tiles of an image into transformed positions and back: the memory side of Winograd's transforms.
//!
//! In: pixels channels-last, read and written in place; what lies outside the image is zero and not stored.
//! Out: `[position][tile][channel]`, positions a padded stride apart so that they do not fall into one cache set.

use super::transform::{OUT_TILE, TILE, gradient_1d, input_1d, input_half, output_1d};
use crate::Element;
use crate::simd::{Kernel, Simd};

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

/// Where a tile lies.
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
        let (row, column) =
            (self.tile.row as isize - g.padding as isize, self.tile.column as isize - g.padding as isize);
        let inside = |first: isize, extent: usize| first >= 0 && first as usize + TILE <= extent;
        // SAFETY: passed on.
        unsafe {
            if inside(row, g.height) && inside(column, g.width) {
                transform_input::<S, E, false>(&self, row, column);
            } else {
                transform_input::<S, E, true>(&self, row, column);
            }
        }
    }
}

/// `EDGE`: some pixels lie outside and are zero.
#[inline(always)]
unsafe fn transform_input<S: Simd, E: Element, const EDGE: bool>(t: &InputTile<'_, E>, row: isize, column: isize) {
    // SAFETY: passed on; vectors start below the channels.
    unsafe {
        let mut channel = 0;
        while channel < t.grid.channels {
            transform_input_half::<S, E, EDGE, false>(t, row, column, channel);
            transform_input_half::<S, E, EDGE, true>(t, row, column, channel);
            let below = (row + TILE as isize) * t.grid.width as isize + column + 1;
            let image = t.x.as_ptr().wrapping_add(t.tile.image + channel);
            prefetch_tile::<S, E>(image.wrapping_offset(below * t.grid.pixel_stride as isize), t.grid);
            channel += S::LANES;
        }
    }
}

/// Asks for 4x4 pixels of the tile below, which comes thousands of cycles later: rows of a tile are too short for the
/// processor's own prefetcher.
#[inline(always)]
unsafe fn prefetch_tile<S: Simd, E>(first: *const E, g: Grid) {
    for pixel in 0..OUT_TILE * OUT_TILE {
        let (i, j) = (pixel / OUT_TILE, pixel % OUT_TILE);
        // SAFETY: a prefetch may name any address.
        unsafe { S::prefetch(first.wrapping_add((i * g.width + j) * g.pixel_stride).cast()) };
    }
}

/// The first or the last three rows of positions, for one vector of channels.
#[inline(always)]
unsafe fn transform_input_half<S: Simd, E: Element, const EDGE: bool, const LAST: bool>(
    t: &InputTile<'_, E>,
    row: isize,
    column: isize,
    channel: usize,
) {
    let g = t.grid;
    let row_stride = g.width * g.pixel_stride;
    let start = t.x.as_ptr().wrapping_add(t.tile.image);
    let start = start.wrapping_offset((row * g.width as isize + column) * g.pixel_stride as isize);
    let exists = |i: isize, extent: usize| i >= 0 && (i as usize) < extent;
    // SAFETY: pixels outside the image are replaced by zeros, lanes beyond the channels are masked.
    unsafe {
        let full = channel + S::LANES <= g.channels;
        let mask = S::mask(g.channels - channel);
        let mut columns = [[S::zero(); 3]; TILE];
        for (j, transformed) in columns.iter_mut().enumerate() {
            let mut d = [S::zero(); TILE];
            for (i, d) in d.iter_mut().enumerate() {
                let mut p = start.wrapping_add(i * row_stride + j * g.pixel_stride + channel);
                if EDGE && !(exists(row + i as isize, g.height) && exists(column + j as isize, g.width)) {
                    p = E::ZEROS.as_ptr();
                }
                *d = if EDGE || !full { E::load_masked::<S>(p, mask) } else { E::load::<S>(p) };
            }
            *transformed = input_half::<S, LAST>(d);
        }
        for i in 0..3 {
            let c = &columns;
            let row = input_1d::<S>([c[0][i], c[1][i], c[2][i], c[3][i], c[4][i], c[5][i]]);
            let first = (i + 3 * usize::from(LAST)) * TILE;
            for (j, value) in row.into_iter().enumerate() {
                S::store(t.out.wrapping_add((first + j) * t.position_stride + channel), value);
            }
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
        let (rows, columns) = (g.height - self.tile.row, g.width - self.tile.column);
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
            let first = t.y.wrapping_add((t.tile.row * g.width + t.tile.column) * g.pixel_stride + channel);
            let mask = S::mask(g.channels - channel);
            let mut columns = [[S::zero(); OUT_TILE]; TILE];
            for (j, column) in columns.iter_mut().enumerate() {
                let at = |i: usize| S::load(t.m.wrapping_add((i * TILE + j) * t.position_stride + channel));
                *column = output_1d::<S>([at(0), at(1), at(2), at(3), at(4), at(5)]);
            }
            for i in 0..OUT_TILE {
                let c = &columns;
                let row = output_1d::<S>([c[0][i], c[1][i], c[2][i], c[3][i], c[4][i], c[5][i]]);
                for (j, value) in row.into_iter().enumerate() {
                    let y = first.wrapping_add((i * g.width + j) * g.pixel_stride);
                    if !EDGE {
                        E::store::<S>(y, value);
                    } else if i < num_rows && j < num_columns {
                        E::store_masked::<S>(y, mask, value);
                    }
                }
            }
            channel += S::LANES;
        }
    }
}

/// `A dy A^T` of one tile of the output's gradient, all channels; pixels outside the image are zero.
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
    let first = t.dy.as_ptr().wrapping_add(t.tile.image + (t.tile.row * g.width + t.tile.column) * g.pixel_stride);
    // SAFETY: pixels outside the image are replaced by zeros, lanes beyond the channels are masked.
    unsafe {
        let mut channel = 0;
        while channel < g.channels {
            let full = channel + S::LANES <= g.channels;
            let mask = S::mask(g.channels - channel);
            let mut rows = [[S::zero(); TILE]; OUT_TILE];
            for (i, transformed) in rows.iter_mut().enumerate() {
                let mut d = [S::zero(); OUT_TILE];
                for (j, d) in d.iter_mut().enumerate() {
                    let mut p = first.wrapping_add((i * g.width + j) * g.pixel_stride + channel);
                    if EDGE && !(t.tile.row + i < g.height && t.tile.column + j < g.width) {
                        p = E::ZEROS.as_ptr();
                    }
                    *d = if full { E::load::<S>(p) } else { E::load_masked::<S>(p, mask) };
                }
                *transformed = gradient_1d::<S>(d);
            }
            for j in 0..TILE {
                let r = &rows;
                let column = gradient_1d::<S>([r[0][j], r[1][j], r[2][j], r[3][j]]);
                for (i, value) in column.into_iter().enumerate() {
                    S::store(t.out.wrapping_add((i * TILE + j) * t.position_stride + channel), value);
                }
            }
            prefetch_tile::<S, E>(first.wrapping_add(OUT_TILE * g.width * g.pixel_stride + channel), g);
            channel += S::LANES;
        }
    }
}
