//! Winograd's F(4x4, 3x3) for the forward pass and the data gradient of 3x3 convolutions with
//! stride 1.
//!
//! In: pixels, and weights as `[position][panel][channel][16]`.
//! Out: the output; every element is written once. The algorithm needs a quarter of the
//! multiplications of direct convolution. Blocks of tiles are transformed to 36 positions,
//! multiplied by the transformed weights, and transformed back, while the block is in L1 and L2.
//! Invariant: a piece is a band of tile rows of one image, or a few whole images. It writes only
//! its rows.

pub(super) mod pack;
pub(super) mod plan;
mod tiles;
mod transform;
pub(super) mod weight;

use super::direct::row_kernel::{PixelBlock, max_pixels, select};
use super::pass::{AfterPiece, Operands};
use crate::Element;
use crate::pieces::{SharedMut, for_each_piece};
use crate::simd::{GenericWork, PANEL, Simd};
use plan::{TileBlock, WinogradPlan};
use tiles::{InputTile, OutputTile};
use transform::{OUT_TILE, POSITIONS};

const LINE_BYTES: usize = 64;
/// Most tiles of a register block of two vectors: with 16 lanes fewer than fit, so that the stores
/// of one block overlap with the products of the next. Of one vector it has as many as fit: each
/// has half as many products to hide its beginning and end.
const REGISTER_TILES: usize = 8;

/// The whole correlation; `after_piece(piece, first element, elements)` is called on each finished
/// piece of the output.
pub(super) struct Winograd<'a, E> {
    pub(super) plan: &'a WinogradPlan,
    pub(super) operands: Operands<'a, E>,
    pub(super) after_piece: AfterPiece<'a, E>,
}

impl<E: Element> GenericWork for Winograd<'_, E> {
    type Output = ();

    fn run<S: Simd>(self) {
        let Self {
            plan, after_piece, ..
        } = self;
        let Operands {
            input,
            packed,
            output,
            workspace,
        } = self.operands;
        let output = SharedMut::new(output);
        for_each_piece(
            plan.num_pieces(),
            workspace,
            plan.slot_len(),
            &|piece, slot| {
                for block in plan.blocks(piece) {
                    run_block::<S, E>(plan, &block, input, packed, output, slot);
                }
                let (start, len) = plan.output_range(piece);
                // SAFETY: the rows of this piece, which no other touches.
                let rows = unsafe { core::slice::from_raw_parts_mut(output.at(start, len), len) };
                after_piece(piece, start, rows);
            },
        );
    }
}

fn run_block<S: Simd, E: Element>(
    plan: &WinogradPlan,
    block: &TileBlock,
    x: &[E],
    packed: &[f32],
    y: SharedMut<E>,
    slot: &mut [f32],
) {
    let [in_stride, out_stride] = plan.position_strides();
    let in_lanes = plan.input.channels.next_multiple_of(PANEL);
    let out_lanes = plan.output.channels.next_multiple_of(PANEL);
    let (v, m) = slot.split_at_mut(POSITIONS * in_stride);
    assert!(m.len() >= POSITIONS * out_stride, "winograd: workspace");
    // SAFETY: tiles lie inside the image or are masked; a block's tiles fit into the slot by its
    // plan; the output's rows belong to this piece; features asserted by `Isa::run`.
    unsafe {
        for index in 0..block.tiles {
            S::vectorize(InputTile {
                x,
                grid: plan.input.grid(plan.padding),
                tile: block.tile(plan, index, plan.input.image_len()),
                out: v.as_mut_ptr().add(index * in_lanes),
                position_stride: in_stride,
            });
        }
        multiply::<S, E>(
            plan,
            block.tiles,
            v,
            packed,
            m,
            &mut OutputRows::new(plan, block, y.at(0, 0)),
        );
        for index in 0..block.tiles {
            let tile = block.tile(plan, index, plan.output.image_len());
            S::vectorize(OutputTile {
                m: m.as_ptr().add(index * out_lanes),
                position_stride: out_stride,
                y: y.at(tile.image, plan.output.image_len()),
                grid: plan.output.grid(0),
                tile,
            });
        }
    }
}

/// The rows of a block's output tiles, to be asked for before they are written. A tile at an edge
/// of the image may name pixels that it does not write.
struct OutputRows<'a, E> {
    plan: &'a WinogradPlan,
    block: &'a TileBlock,
    y: *const E,
    /// Rows asked for.
    rows: usize,
    /// The last of them.
    row: *const E,
}

impl<'a, E> OutputRows<'a, E> {
    fn new(plan: &'a WinogradPlan, block: &'a TileBlock, y: *const E) -> Self {
        Self {
            plan,
            block,
            y,
            rows: 0,
            row: y,
        }
    }

    fn count(&self) -> usize {
        self.block.tiles * OUT_TILE
    }

    /// Prefetches the next row, if there is one.
    #[inline(always)]
    fn ask<S: Simd>(&mut self) {
        if self.rows == self.count() {
            return;
        }
        let grid = &self.plan.output;
        if self.rows.is_multiple_of(OUT_TILE) {
            let tile = self
                .block
                .tile(self.plan, self.rows / OUT_TILE, grid.image_len());
            let first = tile.image + (tile.row * grid.width + tile.column) * grid.pixel_stride;
            self.row = self.y.wrapping_add(first);
        } else {
            self.row = self.row.wrapping_add(grid.width * grid.pixel_stride);
        }
        self.rows += 1;
        for byte in (0..OUT_TILE * grid.pixel_stride * size_of::<E>()).step_by(LINE_BYTES) {
            // SAFETY: features asserted by `Isa::run`; a prefetch may name any address.
            unsafe { S::prefetch_write(self.row.wrapping_byte_add(byte).cast()) };
        }
    }
}

/// Computes `m[position] = v[position] * weights[position]`: tiles x in channels by in channels x
/// out channels, 36 times. Meanwhile it asks for the lines that the output tiles are written to:
/// stores that miss the cache would take longer than all else of the transform.
fn multiply<S: Simd, E>(
    plan: &WinogradPlan,
    tiles: usize,
    v: &[f32],
    packed: &[f32],
    m: &mut [f32],
    output: &mut OutputRows<'_, E>,
) {
    let channels = plan.output.channels;
    let rows_of_position = output
        .count()
        .div_ceil(POSITIONS * channels.div_ceil(2 * S::LANES));
    let mut ahead = || (0..rows_of_position).for_each(|_| output.ask::<S>());
    let mut channel = 0;
    while channel < channels {
        if channels - channel > S::LANES {
            multiply_channels::<S, 2>(plan, tiles, v, packed, (m, channel), &mut ahead);
        } else {
            multiply_channels::<S, 1>(plan, tiles, v, packed, (m, channel), &mut ahead);
        }
        channel += 2 * S::LANES;
    }
}

fn multiply_channels<S: Simd, const NV: usize>(
    plan: &WinogradPlan,
    tiles: usize,
    v: &[f32],
    packed: &[f32],
    (m, channel): (&mut [f32], usize),
    ahead: &mut impl FnMut(),
) {
    let [in_stride, out_stride] = plan.position_strides();
    let in_c = plan.input.channels;
    let out_c = plan.output.channels;
    let in_lanes = in_c.next_multiple_of(PANEL);
    let out_lanes = out_c.next_multiple_of(PANEL);
    let panel_stride = in_c * PANEL;
    let position_len = packed.len() / POSITIONS;
    let fitting = max_pixels::<S>(NV);
    let num_blocks = tiles.div_ceil(if NV == 1 {
        fitting
    } else {
        fitting.min(REGISTER_TILES)
    });
    let pixels = tiles / num_blocks;
    let longer = tiles % num_blocks;
    let kernels = [
        select::<S, f32, f32, NV, false>(pixels),
        select::<S, f32, f32, NV, false>(pixels + usize::from(longer > 0)),
    ];
    for position in 0..POSITIONS {
        ahead();
        let mut tile = 0;
        for index in 0..num_blocks {
            let is_longer = usize::from(index < longer);
            // SAFETY: `tiles` tiles of each position lie in `v` and `m`, and the panels of
            // `channel` in `packed`, by the plan whose lengths the entry asserted. Whole vectors
            // are stored: `out_lanes` leaves room for them.
            unsafe {
                let block = PixelBlock {
                    x: v.as_ptr().add(position * in_stride + tile * in_lanes),
                    x_pixel_stride: in_lanes,
                    x_row_stride: 0,
                    rows: 1,
                    run: in_c,
                    weights: packed.as_ptr().add(
                        position * position_len + channel / PANEL * panel_stride + channel % PANEL,
                    ),
                    panel_stride,
                    y: m.as_mut_ptr()
                        .add(position * out_stride + tile * out_lanes + channel),
                    y_pixel_stride: out_lanes,
                    channels: NV * S::LANES,
                };
                kernels[is_longer](&block);
            }
            tile += pixels + is_longer;
        }
    }
}
