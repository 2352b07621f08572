//! Direct convolution by products of tiles: 16 or 32 pixels times 16 or 32 output channels in tile
//! registers.
//!
//! In: a padded band of bf16, weights in tiles of pairs.
//! Out: the pixels of the class. In channels-last order the taps of one kernel row and their
//! channels are one run, so a left factor is a strided load: 16 pixels of 32 values. The last
//! factor of a run overlaps the one before and ends with the run; the overlap meets weights of
//! zero. The last tile of pixels also overlaps the one before, so no load leaves the band.
//! Invariant: a pixel's sum does not depend on its tile.
//! Source: Intel, 64 and IA-32 Architectures Optimization Reference Manual, chapter on AMX, for 2 x
//! 2 tiles of sums.

use core::marker::PhantomData;
use half::bf16;

use crate::Element;
use crate::conv2d::direct::{ClassBand, Products};
use crate::conv2d::dot::pack::TILES;
use crate::simd::{Kernel, PANEL, Simd, TILE_ROWS, TILE_VALUES, Tiles};

/// Floats of a row of sums: two panels.
const SUM_STRIDE: usize = 2 * PANEL;
/// Tiles of positions at a time.
const MOST_TILES: usize = 4;
/// Floats of a tile of weights.
const WEIGHT_TILE: usize = TILE_ROWS * PANEL;

/// Products by one implementation of tiles.
pub(crate) struct TileProducts<T>(PhantomData<T>);

/// Pixels as positions: one for each place of a window's start in a row, `pitch` to a row.
#[derive(Clone, Copy)]
struct Strips {
    /// Runs of positions: the rows, or all rows in one with the positions between their last
    /// windows and the next row.
    count: usize,
    positions: usize,
    pitch: usize,
    /// Positions of a tile.
    tile: usize,
}

impl Strips {
    fn new(band: &ClassBand<'_, bf16>) -> Self {
        let pitch = band.row_stride / band.plan.in_c;
        let out_w = band.class.out_w;
        let joined = (band.rows - 1) * pitch + out_w;
        let joins = joined.div_ceil(TILE_ROWS) < band.rows * out_w.div_ceil(TILE_ROWS);
        let (count, positions) = if joins {
            (1, joined)
        } else {
            (band.rows, out_w)
        };
        Self {
            count,
            positions,
            pitch,
            tile: positions.min(TILE_ROWS),
        }
    }

    fn num_tiles(&self) -> usize {
        self.positions.div_ceil(self.tile)
    }

    /// Returns the first position of a tile.
    fn first(&self, strip: usize, tile: usize) -> usize {
        strip * self.pitch + (tile * self.tile).min(self.positions - self.tile)
    }
}

impl<T: Tiles> Products for TileProducts<T> {
    type X = bf16;

    fn vectors(run: usize) -> usize {
        (TILES.vectors)(run)
    }

    fn run<S: Simd, E: Element>(band: &ClassBand<'_, bf16>, out: &mut [E]) {
        let ClassBand { plan, class, .. } = *band;
        assert!(
            class.taps_h * band.run() == 0 || band.run() >= TILE_VALUES,
            "tiles: runs of {} values",
            band.run()
        );
        let strips = Strips::new(band);
        let mut sums = [0.0f32; MOST_TILES * TILE_ROWS * SUM_STRIDE];
        let num_panels = plan.out_c.div_ceil(PANEL);
        // SAFETY: `T` exists, as the plan for it says. `ClassBand::check` asserted that the windows
        // of all positions up to the last pixel's, and the weights, exist; sums have room for four
        // tiles of two panels. Only pixels of the class are stored, which the check included;
        // features asserted by `Isa::run`.
        unsafe {
            let mut tiles = T::configure(strips.tile);
            for panel in (0..num_panels).step_by(2) {
                let is_pair = panel + 1 < num_panels;
                // Four sums either way: a product waits for the one before in the same sum.
                let most = if is_pair { 2 } else { MOST_TILES };
                for (image, strip, tile) in (0..band.images).flat_map(|image| {
                    let tiles = move |strip| {
                        (0..strips.num_tiles())
                            .step_by(most)
                            .map(move |tile| (image, strip, tile))
                    };
                    (0..strips.count).flat_map(tiles)
                }) {
                    let some = most.min(strips.num_tiles() - tile);
                    let mut positions = [strips.first(strip, tile); MOST_TILES];
                    for (index, position) in positions.iter_mut().enumerate().take(some) {
                        *position = strips.first(strip, tile + index);
                    }
                    let x = band.x.as_ptr().add(image * band.image_stride);
                    let block = TileBlock {
                        band,
                        x,
                        positions,
                        panel,
                    };
                    match (some, is_pair) {
                        (1, true) => block.multiply::<T, 1, 2>(&mut tiles, &mut sums),
                        (_, true) => block.multiply::<T, 2, 2>(&mut tiles, &mut sums),
                        (1, false) => block.multiply::<T, 1, 1>(&mut tiles, &mut sums),
                        (2, false) => block.multiply::<T, 2, 1>(&mut tiles, &mut sums),
                        (3, false) => block.multiply::<T, 3, 1>(&mut tiles, &mut sums),
                        (_, false) => block.multiply::<T, 4, 1>(&mut tiles, &mut sums),
                    }
                    for (index, position) in positions.into_iter().enumerate().take(some) {
                        S::vectorize(StoreTile {
                            sums: sums[index * TILE_ROWS * SUM_STRIDE..].as_ptr(),
                            y: out
                                .as_mut_ptr()
                                .add(image * plan.out_image_len + class.out_offset + panel * PANEL),
                            strides: [plan.out_row_stride, plan.out_pixel_stride],
                            start: [position / strips.pitch, position % strips.pitch],
                            positions: strips.tile,
                            pitch: strips.pitch,
                            out_w: class.out_w,
                            channels: SUM_STRIDE.min(plan.out_c - panel * PANEL),
                        });
                    }
                }
            }
        }
    }
}

/// Up to two tiles of positions and two panels, or four and one.
struct TileBlock<'a> {
    band: &'a ClassBand<'a, bf16>,
    /// The image's band.
    x: *const bf16,
    positions: [usize; MOST_TILES],
    panel: usize,
}

impl TileBlock<'_> {
    /// L tiles of positions times R panels: four sums at most.
    ///
    /// # Safety
    /// The instructions of `T` exist, as do the windows and weights; `tiles` was configured last.
    #[inline(always)]
    // tidy: long function because the tiles stay loaded from its first line to its last
    unsafe fn multiply<T: Tiles, const L: usize, const R: usize>(
        &self,
        tiles: &mut T,
        sums: &mut [f32],
    ) {
        let band = self.band;
        let run = band.run();
        let panel_stride = band.panel_stride();
        let stride = band.pixel_stride() * size_of::<bf16>();
        let row_bytes = TILE_VALUES * size_of::<bf16>();
        let out = sums.as_mut_ptr();
        // SAFETY: passed on to the caller.
        unsafe {
            tiles.zero::<0>();
            tiles.zero::<1>();
            tiles.zero::<2>();
            tiles.zero::<3>();
            let x = self
                .positions
                .map(|position| self.x.wrapping_add(position * band.pixel_stride()));
            let mut weights = band
                .weights
                .as_ptr()
                .wrapping_add(self.panel * panel_stride);
            for row in 0..band.class.taps_h {
                for first in (0..run).step_by(TILE_VALUES) {
                    let at = row * band.row_stride + first.min(run - TILE_VALUES);
                    tiles.load::<6>(weights.cast(), row_bytes);
                    tiles.load::<4>(x[0].add(at).cast(), stride);
                    tiles.multiply::<0, 4, 6>();
                    if R == 2 {
                        tiles.load::<7>(weights.add(panel_stride).cast(), row_bytes);
                        tiles.multiply::<1, 4, 7>();
                        if L > 1 {
                            tiles.load::<5>(x[1].add(at).cast(), stride);
                            tiles.multiply::<2, 5, 6>();
                            tiles.multiply::<3, 5, 7>();
                        }
                    } else {
                        if L > 1 {
                            tiles.load::<5>(x[1].add(at).cast(), stride);
                            tiles.multiply::<1, 5, 6>();
                        }
                        if L > 2 {
                            tiles.load::<4>(x[2].add(at).cast(), stride);
                            tiles.multiply::<2, 4, 6>();
                        }
                        if L > 3 {
                            tiles.load::<5>(x[3].add(at).cast(), stride);
                            tiles.multiply::<3, 5, 6>();
                        }
                    }
                    weights = weights.add(WEIGHT_TILE);
                }
            }
            let tile = TILE_ROWS * SUM_STRIDE;
            let stride = SUM_STRIDE * size_of::<f32>();
            tiles.store::<0>(out.cast(), stride);
            if R == 2 {
                tiles.store::<1>(out.add(PANEL).cast(), stride);
                if L > 1 {
                    tiles.store::<2>(out.add(tile).cast(), stride);
                    tiles.store::<3>(out.add(tile + PANEL).cast(), stride);
                }
            } else {
                if L > 1 {
                    tiles.store::<1>(out.add(tile).cast(), stride);
                }
                if L > 2 {
                    tiles.store::<2>(out.add(2 * tile).cast(), stride);
                }
                if L > 3 {
                    tiles.store::<3>(out.add(3 * tile).cast(), stride);
                }
            }
        }
    }
}

/// Rounds a tile's sums to the class's pixels among its positions.
struct StoreTile<E> {
    sums: *const f32,
    y: *mut E,
    /// From one row of pixels to the next, and from one pixel.
    strides: [usize; 2],
    /// Row and column of the first position.
    start: [usize; 2],
    positions: usize,
    pitch: usize,
    out_w: usize,
    channels: usize,
}

impl<S: Simd, E: Element> Kernel<S> for StoreTile<E> {
    #[inline(always)]
    unsafe fn run(self) {
        // SAFETY: passed on.
        unsafe {
            match self.channels {
                SUM_STRIDE => self.store::<S, SUM_STRIDE>(),
                PANEL => self.store::<S, PANEL>(),
                _ => self.store::<S, 0>(),
            }
        }
    }
}

impl<E: Element> StoreTile<E> {
    /// Stores a tile of sums. `WHOLE` is the number of channels if it is known at compile time;
    /// then no store is masked.
    ///
    /// # Safety
    /// As [`Kernel::run`].
    #[inline(always)]
    unsafe fn store<S: Simd, const WHOLE: usize>(&self) {
        let [mut row, mut column] = self.start;
        // SAFETY: the driver's positions with a column below `out_w` are pixels of `y`; vectors are
        // masked at `channels`, and sums have a whole number of them.
        unsafe {
            for position in 0..self.positions {
                if column < self.out_w {
                    let y = self.y.add(row * self.strides[0] + column * self.strides[1]);
                    let sums = self.sums.add(position * SUM_STRIDE);
                    for lane in (0..WHOLE).step_by(S::LANES) {
                        E::store::<S>(y.add(lane), S::load(sums.add(lane)));
                    }
                    if WHOLE == 0 {
                        for lane in (0..self.channels).step_by(S::LANES) {
                            E::store_masked::<S>(
                                y.add(lane),
                                S::mask(self.channels - lane),
                                S::load(sums.add(lane)),
                            );
                        }
                    }
                }
                column += 1;
                if column == self.pitch {
                    (row, column) = (row + 1, 0);
                }
            }
        }
    }
}
