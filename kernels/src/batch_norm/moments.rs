//! Statistics of a table that no Lockstep convolution wrote.
//!
//! In: `[rows, C]`.
//! Out: `[2, C]` in f64: sums and centred sums of squares, as [`crate::conv2d::Conv2d::forward`]
//! returns them.
//! Invariant: pieces depend only on the shape, and are merged in order.

use super::{assert_len, num_rows};
use crate::Element;
use crate::conv2d::statistics::{Statistics, partials_len, reduce_partials};
use crate::pieces::for_each_piece;
use crate::simd::Isa;

/// Rows of a piece, whose sums are taken in f32.
const PIECE_ROWS: usize = 1024;

/// Returns the workspace length of [`moments`] for `rows` of `channels`, in f32 values.
pub fn moments_workspace_len(rows: usize, channels: usize) -> usize {
    partials_len(rows.div_ceil(PIECE_ROWS), channels)
}

/// Computes the sum and the centred sum of squares of each channel.
///
/// # Shapes
/// `x`: `[rows, C]`. `moments`: `[2, C]`. `workspace`: [`moments_workspace_len`] values.
///
/// # Panics
/// If a length differs, or the processor lacks `isa`.
#[inline(never)]
pub fn moments<E: Element>(isa: Isa, x: &[E], moments: &mut [f64], workspace: &mut [f32]) {
    let channels = moments.len() / 2;
    let rows = num_rows(x.len(), channels);
    assert_len(
        "workspace",
        workspace.len(),
        moments_workspace_len(rows, channels),
    );
    let num_pieces = rows.div_ceil(PIECE_ROWS);
    let statistics = Statistics::new(isa, workspace, num_pieces, channels);
    for_each_piece(num_pieces, &mut [], 0, &|piece, _| {
        let end = rows.min((piece + 1) * PIECE_ROWS);
        statistics.of_piece(piece, &x[piece * PIECE_ROWS * channels..end * channels]);
    });
    reduce_partials(workspace, num_pieces, moments);
}
