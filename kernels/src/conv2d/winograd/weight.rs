//! Weight gradient of 3x3 convolutions with stride 1 by Winograd's F(4x4, 3x3).
//!
//! In: x and dy.
//! Out: dw = G^T [ sum over tiles of (B^T x B) * (A dy A^T) ] G. Each of 36 positions needs one
//! product of C_in x tiles by tiles x C_out; one inverse transform of the sums follows. A task is a
//! piece of the tiles and a block of C_in x C_out, so its 36 sums stay in L2.
//! Invariant: pieces and the order of sums in a piece depend only on the shape.

use super::plan::{TileBlock, WinogradPlan};
use super::tiles::{GradientTile, Grid, InputTile};
use super::transform::{POSITIONS, TILE, kernel_gradient_1d};
use crate::Element;
use crate::conv2d::Conv2dShape;
use crate::conv2d::direct::unit::Cut;
use crate::conv2d::direct::weight_kernel::{WeightBlocks, max_run, select};
use crate::conv2d::gradient_pieces::{Method, Pieces, Task, WeightPlan};
use crate::conv2d::plan::PixelRows;
use crate::conv2d::transpose::Rows;
use crate::simd::{Kernel, PANEL, Simd};

/// Channels of a task on either side: 36 sums of 64 x 64 are 590 kB.
const TASK_CHANNELS: usize = 64;
/// A piece has at least so many tiles, else the inverse transforms would cost too much.
const PIECE_TILES: usize = 128;

/// Cut of the tiles: a piece is a run of the tile plan's units.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WinogradWeightPlan {
    rows: PixelRows,
    tiles: WinogradPlan,
    pieces: Pieces,
}

impl WinogradWeightPlan {
    pub(crate) fn new(s: &Conv2dShape) -> Self {
        let tiles = WinogradPlan::weight_gradient(s, TASK_CHANNELS);
        let pieces = Pieces::new(
            s.weight_len(),
            tiles.num_pieces(),
            tiles.num_tiles() / PIECE_TILES,
        );
        Self {
            rows: PixelRows::of(s),
            tiles,
            pieces,
        }
    }

    /// Returns the number of sums of one task: `[position][panel][channel][16]`.
    fn sums_len(&self) -> usize {
        POSITIONS * self.tiles.input.channels * self.tiles.output.channels.next_multiple_of(PANEL)
    }
}

impl WeightPlan for WinogradWeightPlan {
    fn rows(&self) -> &PixelRows {
        &self.rows
    }

    fn pieces(&self) -> &Pieces {
        &self.pieces
    }

    fn blocks(&self) -> [usize; 2] {
        [TASK_CHANNELS; 2]
    }

    fn lens(&self) -> [usize; 2] {
        [self.sums_len(), self.tiles.slot_len()]
    }
}

impl<E: Element> Method<E> for WinogradWeightPlan {
    type Plan = Self;

    fn plan(&self) -> &Self {
        self
    }

    fn add_unit<S: Simd>(
        &self,
        task: &Task<'_, E>,
        unit: usize,
        sums: &mut [f32],
        accumulate: bool,
        scratch: &mut [f32],
    ) {
        for (index, block) in self.tiles.blocks(unit).enumerate() {
            run_block::<S, E>(
                &self.tiles,
                &block,
                task,
                sums,
                accumulate || index > 0,
                scratch,
            );
        }
    }

    fn finish<S: Simd>(&self, task: &Task<'_, E>, sums: &[f32], dw: *mut f32) {
        // SAFETY: the sums of this task were all written; `dw` holds `out_count` filters from
        // `out_c` on.
        unsafe {
            S::vectorize(Finish {
                sums: sums.as_ptr(),
                in_count: task.in_count,
                out_count: task.out_count,
                dw: dw.add(9 * (task.out_c * self.rows.shape.in_channels + task.in_c)),
                filter_len: self.rows.shape.in_channels * 9,
            });
        }
    }
}

/// Transforms a block's tiles of x and dy and adds their products to the sums.
fn run_block<S: Simd, E: Element>(
    plan: &WinogradPlan,
    block: &TileBlock,
    task: &Task<'_, E>,
    sums: &mut [f32],
    accumulate: bool,
    slot: &mut [f32],
) {
    let [in_stride, out_stride] = plan.position_strides();
    let in_lanes = plan.input.channels.next_multiple_of(PANEL);
    let out_lanes = plan.output.channels.next_multiple_of(PANEL);
    let (v, d) = slot.split_at_mut(POSITIONS * in_stride);
    assert!(d.len() >= POSITIONS * out_stride, "winograd: workspace");
    let in_grid = Grid {
        channels: task.in_count,
        ..plan.input.grid(plan.padding)
    };
    let out_grid = Grid {
        channels: task.out_count,
        ..plan.output.grid(0)
    };
    // SAFETY: tiles lie inside the image or are masked; a block's tiles fit into the slot by its
    // plan; features asserted by `Isa::run`.
    unsafe {
        for index in 0..block.tiles {
            let mut tile = block.tile(plan, index, plan.input.image_len());
            tile.image += task.in_c;
            let out = v.as_mut_ptr().add(index * in_lanes);
            S::vectorize(InputTile {
                x: task.x,
                grid: in_grid,
                tile,
                out,
                position_stride: in_stride,
            });
            let mut tile = block.tile(plan, index, plan.output.image_len());
            tile.image += task.out_c;
            let out = d.as_mut_ptr().add(index * out_lanes);
            S::vectorize(GradientTile {
                dy: task.dy,
                grid: out_grid,
                tile,
                out,
                position_stride: out_stride,
            });
        }
    }
    let position_len = task.in_count * task.out_count.next_multiple_of(PANEL);
    for position in 0..POSITIONS {
        let product = Product {
            v: &v[position * in_stride..],
            d: &d[position * out_stride..],
            lanes: [in_lanes, out_lanes],
            tiles: block.tiles,
            in_count: task.in_count,
            accumulate,
        };
        let sums = &mut sums[position * position_len..][..position_len];
        let mut channel = 0;
        while channel < task.out_count {
            if task.out_count - channel > S::LANES {
                multiply::<S, 2>(&product, sums, channel);
            } else {
                multiply::<S, 1>(&product, sums, channel);
            }
            channel += 2 * S::LANES;
        }
    }
}

/// One position's factors: `[tile][lane]` each.
struct Product<'a> {
    v: &'a [f32],
    d: &'a [f32],
    lanes: [usize; 2],
    tiles: usize,
    in_count: usize,
    accumulate: bool,
}

/// Adds one position's product over the block's tiles, for NV vectors of output channels.
fn multiply<S: Simd, const NV: usize>(product: &Product<'_>, sums: &mut [f32], channel: usize) {
    let in_count = product.in_count;
    let panel_stride = in_count * PANEL;
    for blocks in Cut::evenly(in_count, max_run::<S>(NV)).widths() {
        // SAFETY: `tiles` tiles of the position lie in `v` and `d`, and its panels in `sums`, by
        // the plan whose lengths the entry asserted. Whole vectors of `d` are read: the padded
        // lanes leave room for them.
        unsafe {
            select::<S, NV, false>(blocks.width)(&mut WeightBlocks {
                num: blocks.num,
                x: product.v.as_ptr().add(blocks.first),
                x_strides: [0, 0, product.lanes[0]],
                x_stride: blocks.width,
                dy: product.d.as_ptr().add(channel),
                dy_strides: [0, 0, product.lanes[1]],
                extents: [1, 1, product.tiles],
                channels: NV * S::LANES,
                dw: sums
                    .as_mut_ptr()
                    .add(channel / PANEL * panel_stride + channel % PANEL + blocks.first * PANEL),
                panel_stride,
                accumulate: product.accumulate,
                next: [None; 2],
            });
        }
    }
}

/// `G^T m G` of a task's sums, scattered to PyTorch's order.
struct Finish {
    sums: *const f32,
    in_count: usize,
    out_count: usize,
    /// The task's first channel of its first filter.
    dw: *mut f32,
    filter_len: usize,
}

impl<S: Simd> Kernel<S> for Finish {
    #[inline(always)]
    unsafe fn run(self) {
        let position_len = self.in_count * self.out_count.next_multiple_of(PANEL);
        // SAFETY: the caller's addresses hold the task's sums and filters.
        unsafe {
            for first in (0..self.out_count).step_by(S::LANES) {
                let filters = Rows {
                    first: self.dw.add(first * self.filter_len),
                    stride: self.filter_len,
                    rows: S::LANES.min(self.out_count - first),
                    columns: self.in_count * 9,
                };
                let mut sums = self
                    .sums
                    .add(first / PANEL * self.in_count * PANEL + first % PANEL);
                let mut taps = [[S::zero(); 3]; 3];
                let mut tap = 0;
                filters.fill_columns::<S>(|_| {
                    if tap == 0 {
                        let mut columns = [[S::zero(); 3]; TILE];
                        for (j, column) in columns.iter_mut().enumerate() {
                            let at = |i: usize| S::load(sums.add((i * TILE + j) * position_len));
                            *column =
                                kernel_gradient_1d::<S>([at(0), at(1), at(2), at(3), at(4), at(5)]);
                        }
                        for (i, row) in taps.iter_mut().enumerate() {
                            let c = &columns;
                            *row = kernel_gradient_1d::<S>([
                                c[0][i], c[1][i], c[2][i], c[3][i], c[4][i], c[5][i],
                            ]);
                        }
                        sums = sums.wrapping_add(PANEL);
                    }
                    let vector = taps[tap / 3][tap % 3];
                    tap = (tap + 1) % 9;
                    vector
                });
            }
        }
    }
}
