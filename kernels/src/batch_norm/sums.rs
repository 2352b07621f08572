//! First backward pass: two sums over all rows for each channel.
//!
//! In: `[rows, C]` in pieces.
//! Out: `[2, C]` in f64.
//! Invariant: at most 32 values of a lane are added in f32, the rest in f64; pieces are added in
//! index order. So the bits do not depend on the number of threads.

use rayon::prelude::*;

use super::{Gate, Saved, assert_len};
use crate::Element;
use crate::scratch::LINE_DOUBLES;
use crate::simd::{Isa, Task, vectorized};
use crate::tiles::{Columns, PerChannel, TILE_MAX, summed_piece_rows, walk};

/// Returns the workspace length of [`backward_sums`] for `rows` of `channels`, in f64 values.
pub fn workspace_len(rows: usize, channels: usize) -> usize {
    rows.div_ceil(summed_piece_rows(rows, channels)) * piece_len(channels)
}

/// Returns the distance between the sums of two pieces, in elements: whole cache lines.
fn piece_len(channels: usize) -> usize {
    (2 * channels).next_multiple_of(LINE_DOUBLES)
}

/// Runs the first backward pass: S1 = Σ g and S2 = Σ g · x̂ for each channel, with g = dy if the
/// gate is open, otherwise 0.
///
/// On one rank S1 is the gradient of beta and S2 that of gamma.
///
/// # Shapes
/// `dy`: `[rows, C]`. `sums`: `[2, C]`, S1 then S2. `workspace`: [`workspace_len`] values.
///
/// # Panics
/// If a length differs, or the processor lacks `isa`.
#[inline(never)]
pub fn backward_sums<E: Element>(
    isa: Isa,
    saved: &Saved<'_, E>,
    dy: &[E],
    sums: &mut [f64],
    workspace: &mut [f64],
) {
    let (rows, channels) = saved.check();
    assert_len("dy", dy.len(), saved.x.len());
    let y = saved.gate_values();
    sum_pieces(rows, channels, sums, workspace, |range, sums| {
        let part = GateSums {
            x: &saved.x[range.clone()],
            y: y.map_or(&[], |y| &y[range.clone()]),
            dy: &dy[range],
            saved,
            mean: [0.0; TILE_MAX],
            scale: [0.0; TILE_MAX],
            beta: [0.0; TILE_MAX],
        };
        match saved.gate {
            Gate::Open => vectorized(
                isa,
                Summed::<E, OPEN> {
                    part,
                    channels,
                    sums,
                },
            ),
            Gate::Output(_) => vectorized(
                isa,
                Summed::<E, OUTPUT> {
                    part,
                    channels,
                    sums,
                },
            ),
            Gate::Recomputed => vectorized(
                isa,
                Summed::<E, RECOMPUTED> {
                    part,
                    channels,
                    sums,
                },
            ),
            Gate::Recomputed6 => vectorized(
                isa,
                Summed::<E, RECOMPUTED_6> {
                    part,
                    channels,
                    sums,
                },
            ),
        }
    });
    // The kernel summed g · (x - mean).
    for (sum, invstd) in sums[channels..].iter_mut().zip(saved.affine.invstd) {
        *sum *= f64::from(*invstd);
    }
}

/// [`Gate`] as a constant.
pub(super) const OPEN: u8 = 0;
pub(super) const OUTPUT: u8 = 1;
pub(super) const RECOMPUTED: u8 = 2;
pub(super) const RECOMPUTED_6: u8 = 3;

struct GateSums<'a, E> {
    saved: &'a Saved<'a, E>,
    x: &'a [E],
    y: &'a [E],
    dy: &'a [E],
    mean: [f32; TILE_MAX],
    scale: [f32; TILE_MAX],
    beta: [f32; TILE_MAX],
}

impl<E: Element> GateSums<'_, E> {
    #[inline(always)]
    fn enter<const GATE: u8>(&mut self, columns: Columns) {
        let affine = self.saved.affine;
        columns.fill(&mut self.mean, affine.mean);
        if GATE == RECOMPUTED || GATE == RECOMPUTED_6 {
            fill_scale(columns, &mut self.scale, affine.gamma, affine.invstd);
            columns.fill(&mut self.beta, affine.beta);
        }
    }

    /// Adds what belongs to `T` runs of values from `at` on, `stride` apart, to the accumulators,
    /// one for each lane.
    #[inline(always)]
    fn tiles<const GATE: u8, const T: usize>(
        &self,
        at: usize,
        stride: usize,
        first: &mut [f32],
        second: &mut [f32],
    ) {
        let width = first.len();
        let x: [&[E]; T] = tiles(self.x, at, stride, width);
        let dy: [&[E]; T] = tiles(self.dy, at, stride, width);
        let y: [&[E]; T] = if GATE == OUTPUT {
            tiles(self.y, at, stride, width)
        } else {
            [&[]; T]
        };
        let mean = &self.mean[..width];
        let scale = &self.scale[..width];
        let beta = &self.beta[..width];
        let second = &mut second[..width];
        for i in 0..width {
            let mut first_sum = 0.0;
            let mut second_sum = 0.0;
            for t in 0..T {
                let centred = x[t][i].to_f32() - mean[i];
                let open = match GATE {
                    OPEN => true,
                    OUTPUT => y[t][i].to_f32() > 0.0,
                    RECOMPUTED => centred * scale[i] + beta[i] > 0.0,
                    _ => {
                        let value = centred * scale[i] + beta[i];
                        (value > 0.0) & (value < 6.0)
                    }
                };
                // Loaded whatever the gate says, or the compiler makes a jump of it.
                let dy = dy[t][i].to_f32();
                let gradient = if open { dy } else { 0.0 };
                first_sum += gradient;
                second_sum += gradient * centred;
            }
            first[i] += first_sum;
            second[i] += second_sum;
        }
    }
}

/// Returns `T` runs of `width` values, each `stride` after the one before.
#[inline(always)]
fn tiles<E, const T: usize>(values: &[E], at: usize, stride: usize, width: usize) -> [&[E]; T] {
    let mut tiles: [&[E]; T] = [&[]; T];
    let mut t = 0;
    while t < T {
        tiles[t] = &values[at + t * stride..][..width];
        t += 1;
    }
    tiles
}

/// Computes gamma · invstd of each lane; one expression for all passes, so that a recomputed gate
/// is the forward's.
#[inline(always)]
pub(super) fn fill_scale(
    columns: Columns,
    tile: &mut [f32; TILE_MAX],
    gamma: &[f32],
    invstd: &[f32],
) {
    columns.fill(tile, gamma);
    let invstd = &invstd[columns.first..columns.first + columns.period];
    for lanes in tile[..columns.width].chunks_mut(columns.period) {
        for (lane, invstd) in lanes.iter_mut().zip(invstd) {
            *lane *= invstd;
        }
    }
}

/// Sets `sums` (`[2, C]`) to the sums of one piece.
struct Summed<'a, E, const GATE: u8> {
    part: GateSums<'a, E>,
    channels: usize,
    sums: &'a mut [f64],
}

impl<E: Element, const GATE: u8> Task for Summed<'_, E, GATE> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        self.sums.fill(0.0);
        let rows = self.part.x.len() / self.channels;
        let (first_sums, second_sums) = self.sums.split_at_mut(self.channels);
        let first = [0.0; TILE_MAX];
        let second = [0.0; TILE_MAX];
        let mut kernel = Accumulators::<E, GATE> {
            part: self.part,
            first,
            second,
            first_sums,
            second_sums,
        };
        walk(&mut kernel, rows, self.channels);
    }
}

struct Accumulators<'a, E, const GATE: u8> {
    part: GateSums<'a, E>,
    first: [f32; TILE_MAX],
    second: [f32; TILE_MAX],
    first_sums: &'a mut [f64],
    second_sums: &'a mut [f64],
}

impl<E: Element, const GATE: u8> PerChannel for Accumulators<'_, E, GATE> {
    #[inline(always)]
    fn enter(&mut self, columns: Columns) {
        self.part.enter::<GATE>(columns);
    }

    #[inline(always)]
    fn tile(&mut self, at: usize, width: usize) {
        self.part
            .tiles::<GATE, 1>(at, 0, &mut self.first[..width], &mut self.second[..width]);
    }

    #[inline(always)]
    fn four_tiles(&mut self, at: usize, stride: usize, width: usize) {
        self.part.tiles::<GATE, 4>(
            at,
            stride,
            &mut self.first[..width],
            &mut self.second[..width],
        );
    }

    #[inline(always)]
    fn flush(&mut self, columns: Columns) {
        columns.drain(&mut self.first, self.first_sums);
        columns.drain(&mut self.second, self.second_sums);
    }
}

/// Calls `sum` for each piece with its range of values and its `[2, C]`, then adds these up in
/// index order.
fn sum_pieces(
    rows: usize,
    channels: usize,
    sums: &mut [f64],
    workspace: &mut [f64],
    sum: impl Fn(std::ops::Range<usize>, &mut [f64]) + Sync,
) {
    let workspace = check_sums(rows, channels, sums, workspace);
    let len = rows * channels;
    let piece = summed_piece_rows(rows, channels) * channels;
    workspace
        .par_chunks_mut(piece_len(channels))
        .enumerate()
        .for_each(|(index, sums)| {
            sum(
                index * piece..len.min((index + 1) * piece),
                &mut sums[..2 * channels],
            );
        });
    sums.fill(0.0);
    for piece in workspace.chunks_exact(piece_len(channels)) {
        for (total, part) in sums.iter_mut().zip(piece) {
            *total += part;
        }
    }
}

/// Checks both lengths and returns the part of the workspace in use.
fn check_sums<'a>(
    rows: usize,
    channels: usize,
    sums: &[f64],
    workspace: &'a mut [f64],
) -> &'a mut [f64] {
    assert_len("sums", sums.len(), 2 * channels);
    let needed = workspace_len(rows, channels);
    let got = workspace.len();
    assert!(
        got >= needed,
        "batch_norm: workspace: expected at least {needed} values, got {got}"
    );
    &mut workspace[..needed]
}
