//! Pixels of x or dy as positions of a plane, packed for products of tiles that sum over positions.
//!
//! In: bf16 activations, channels-last.
//! Out: pairs of positions, either a vector of channels for each pair (a right factor) or a run of
//! pairs for each channel (a left factor). Positions without a pixel are zero.
//! Invariant: a tap of a window is a shift of positions for every stride. With stride 2 there is a
//! plane for each parity of row and column. The distance between rows is the same in the planes of
//! x and of dy.

use half::bf16;

use crate::element::Stored;
use crate::simd::{Kernel, PANEL, Simd, TILE_VALUES};

/// Pairs of positions of one step of a product.
pub(crate) const STEP_PAIRS: usize = TILE_VALUES / 2;

/// Pixels at the positions of a plane: rows of `pitch` positions, `image_rows` to an image.
#[derive(Clone, Copy)]
pub(crate) struct Grid {
    pub(crate) images: usize,
    pub(crate) image_rows: usize,
    pub(crate) pitch: usize,
    /// The rows and columns of an image's positions that are pixels.
    pub(crate) rows: [usize; 2],
    pub(crate) columns: [usize; 2],
    /// Elements from one image, row, position to the next, and to the first position, which need
    /// not be a pixel.
    pub(crate) strides: [usize; 3],
    pub(crate) origin: isize,
}

impl Grid {
    /// Returns the positions `p` for which `offset + stride * p` lies in `0..extent`.
    pub(crate) fn inside(offset: isize, stride: usize, extent: usize) -> [usize; 2] {
        let first = |bound: isize| bound.max(0).unsigned_abs().div_ceil(stride);
        let start = first(-offset);
        [start, first(extent as isize - offset).max(start)]
    }

    /// Asserts that `channels` of every pixel lie in `len` elements.
    fn check(&self, channels: usize, len: usize) {
        let [row, row_end] = self.rows;
        let [column, column_end] = self.columns;
        if self.images == 0 || row == row_end || column == column_end {
            return;
        }
        let at = |image: usize, row: usize, column: usize| {
            self.origin
                + (image * self.strides[0] + row * self.strides[1] + column * self.strides[2])
                    as isize
        };
        let end = at(self.images - 1, row_end - 1, column_end - 1) + channels as isize;
        assert!(
            at(0, row, column) >= 0 && end <= len as isize,
            "weight gradient: pixels of a unit"
        );
    }
}

/// Packs steps of 32 positions each.
pub(crate) struct PackSteps<'a, const LEFT: bool> {
    pub(crate) source: &'a [bf16],
    pub(crate) grid: Grid,
    pub(crate) channels: usize,
    pub(crate) steps: usize,
    pub(crate) out: &'a mut [f32],
    /// From one channel's pairs to the next one's, or from one panel's.
    pub(crate) stride: usize,
}

/// A position's pixel, of which `channels & mask` may be reached.
#[derive(Clone, Copy)]
struct Pixel {
    first: *const bf16,
    mask: usize,
}

impl<S: Simd, const LEFT: bool> Kernel<S> for PackSteps<'_, LEFT> {
    #[inline(always)]
    // tidy: long function because one pass over the pixels keeps its place in registers
    unsafe fn run(self) {
        let Self {
            source,
            grid,
            channels,
            steps,
            out,
            stride,
        } = self;
        grid.check(channels, source.len());
        let lanes = channels.next_multiple_of(PANEL);
        let pairs = steps * STEP_PAIRS;
        let vector = if LEFT { 1 } else { PANEL };
        let lines = if LEFT { lanes } else { lanes / PANEL };
        assert!(
            (lines - 1) * stride + pairs * vector <= out.len(),
            "weight gradient: packed pixels"
        );
        let nothing = Pixel {
            first: bf16::ZEROS.as_ptr(),
            mask: 0,
        };
        let mut image = 0;
        let mut row = 0;
        let mut column = 0;
        for step in 0..steps {
            let mut pixels = [nothing; TILE_VALUES];
            let mut filled = 0;
            while filled < TILE_VALUES && image < grid.images {
                let some = (grid.pitch - column).min(TILE_VALUES - filled);
                if (grid.rows[0]..grid.rows[1]).contains(&row) {
                    let first = grid
                        .origin
                        .wrapping_add((image * grid.strides[0] + row * grid.strides[1]) as isize);
                    let first = source.as_ptr().wrapping_offset(first);
                    let columns = column.max(grid.columns[0])..(column + some).min(grid.columns[1]);
                    for pixel in columns {
                        let first = first.wrapping_add(pixel * grid.strides[2]);
                        pixels[filled + pixel - column] = Pixel {
                            first,
                            mask: usize::MAX,
                        };
                    }
                }
                (filled, column) = (filled + some, column + some);
                if column == grid.pitch {
                    (row, column) = (row + 1, 0);
                }
                if row == grid.image_rows {
                    (image, row) = (image + 1, 0);
                }
            }
            let out = out.as_mut_ptr().wrapping_add(step * STEP_PAIRS * vector);
            // SAFETY: pixels and their channels lie in `source` by the grid's check, the zeros are
            // a panel; what is written lies in `out` as asserted: whole vectors up to the last
            // panel's end; features by contract.
            unsafe {
                for channel in (0..lanes).step_by(S::LANES) {
                    let mask = S::mask(channels.saturating_sub(channel));
                    for first in (0..STEP_PAIRS).step_by(S::LANES) {
                        let mut square = [S::zero(); PANEL];
                        for (pair, vector) in square.iter_mut().enumerate().take(S::LANES) {
                            let [low, high] =
                                [pixels[2 * (first + pair)], pixels[2 * (first + pair) + 1]];
                            // Not in a closure: one that is not inlined lacks the features of `S`.
                            let low = bf16::load_masked::<S>(
                                low.first.wrapping_add(channel & low.mask),
                                mask,
                            );
                            let high = bf16::load_masked::<S>(
                                high.first.wrapping_add(channel & high.mask),
                                mask,
                            );
                            *vector = S::pair_bf16(low, high);
                        }
                        if LEFT {
                            S::transpose(&mut square);
                        }
                        for (index, vector) in square.into_iter().enumerate().take(S::LANES) {
                            let at = if LEFT {
                                (channel + index) * stride + first
                            } else {
                                channel / PANEL * stride + (first + index) * PANEL + channel % PANEL
                            };
                            S::store(out.add(at), vector);
                        }
                    }
                }
            }
        }
    }
}
