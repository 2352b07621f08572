//! Mean and variance of each channel.
//!
//! In: `[rows, C]`. Out: sum and centred sum of squares Σ (x - mean)² in f64, which several ranks or the pieces of a
//! convolution merge. Invariant: pieces are merged in index order; the same bits for any number of threads.
//! Source: arXiv 1502.03167, algorithm 1; merging: Chan, Golub and LeVeque 1983, The American Statistician 37(3).

use rayon::prelude::*;

use super::sums::{PairOfSums, Summed, check_sums, piece_len, tiles};
use super::{assert_len, num_rows};
use crate::Element;
use crate::simd::{Isa, vectorized};
use crate::tiles::{Columns, TILE_MAX, summed_piece_rows};

/// Rows whose mean shifts the values of a piece before they are squared.
const SHIFT_ROWS: usize = 4;

/// Sum and centred sum of squares of every channel, in one pass over memory.
///
/// Each piece is shifted by the mean of its first 4 rows before squares are taken, so a mean that is large against the
/// standard deviation costs no digits.
///
/// # Shapes
/// `x`: `[rows, channels]`. `moments`: `[2, C]`, sums then centred sums of squares. `workspace`:
/// [`super::workspace_len`] values.
///
/// # Panics
/// If a length differs, or the processor lacks `isa`.
pub fn statistics<E: Element>(isa: Isa, x: &[E], channels: usize, moments: &mut [f64], workspace: &mut [f64]) {
    let rows = num_rows(x.len(), channels);
    let workspace = check_sums(rows, channels, moments, workspace);
    let piece_rows = summed_piece_rows(rows, channels);
    let pieces = workspace.par_chunks_mut(piece_len(channels)).zip(x.par_chunks(piece_rows * channels));
    pieces.for_each(|(moments, x)| {
        let of = Shifted { x, channels, shift: [0.0; TILE_MAX] };
        vectorized(isa, Summed { of, channels, sums: &mut moments[..2 * channels] });
    });
    moments.fill(0.0);
    for (index, piece) in workspace.chunks_exact(piece_len(channels)).enumerate() {
        let before = index * piece_rows;
        merge_moments(moments, before as f64, &piece[..2 * channels], piece_rows.min(rows - before) as f64);
    }
}

/// Merges the moments of `other_count` rows into those of `count` rows.
///
/// # Shapes
/// Both `[2, C]`: sums, then centred sums of squares.
///
/// # Panics
/// If the lengths differ.
pub fn merge_moments(moments: &mut [f64], count: f64, other: &[f64], other_count: f64) {
    assert_len("moments", other.len(), moments.len());
    if count == 0.0 {
        moments.copy_from_slice(other);
    } else if other_count > 0.0 {
        let weight = count * other_count / (count + other_count);
        let (per_row, per_other_row) = (1.0 / count, 1.0 / other_count);
        let channels = moments.len() / 2;
        let (sums, squares) = moments.split_at_mut(channels);
        let other = other[..channels].iter().zip(&other[channels..]);
        for ((sum, square), (other_sum, other_square)) in sums.iter_mut().zip(squares).zip(other) {
            let delta = *sum * per_row - other_sum * per_other_row;
            *square += other_square + weight * delta * delta;
            *sum += other_sum;
        }
    }
}

/// Mean and 1 / sqrt(variance + epsilon) of every channel, the variance being the biased one.
///
/// # Shapes
/// `moments`: `[2, C]`. `mean`, `invstd`: `[C]`.
///
/// # Panics
/// If a length differs or `count` is not above 0.
pub fn finish(moments: &[f64], count: f64, epsilon: f64, mean: &mut [f32], invstd: &mut [f32]) {
    assert!(count > 0.0, "batch_norm: statistics of {count} rows");
    assert_len("moments", moments.len(), 2 * mean.len());
    assert_len("invstd", invstd.len(), mean.len());
    let (sums, squares) = moments.split_at(mean.len());
    for ((mean, invstd), (sum, square)) in mean.iter_mut().zip(invstd).zip(sums.iter().zip(squares)) {
        *mean = (sum / count) as f32;
        *invstd = (1.0 / (square / count + epsilon).sqrt()) as f32;
    }
}

/// Moves running statistics: running = (1 - momentum) · running + momentum · batch, with the unbiased variance.
///
/// # Shapes
/// `moments`: `[2, C]`. `mean`, `variance`: `[C]`.
///
/// # Panics
/// If a length differs or `count` is not above 0.
///
/// # Differs from PyTorch
/// A single row has variance 0 here, and none (an error) there.
pub fn update_running(moments: &[f64], count: f64, momentum: f64, mean: &mut [f32], variance: &mut [f32]) {
    assert!(count > 0.0, "batch_norm: statistics of {count} rows");
    assert_len("moments", moments.len(), 2 * mean.len());
    assert_len("variance", variance.len(), mean.len());
    let (sums, squares) = moments.split_at(mean.len());
    let towards = |running: &mut f32, batch: f64| {
        *running = ((1.0 - momentum) * f64::from(*running) + momentum * batch) as f32;
    };
    for ((mean, variance), (sum, square)) in mean.iter_mut().zip(variance).zip(sums.iter().zip(squares)) {
        towards(mean, sum / count);
        towards(variance, square / (count - 1.0).max(1.0));
    }
}

/// Sums of x - shift and its square, shift being about the mean of the piece.
struct Shifted<'a, E> {
    x: &'a [E],
    channels: usize,
    shift: [f32; TILE_MAX],
}

impl<E: Element> PairOfSums for Shifted<'_, E> {
    #[inline(always)]
    fn len(&self) -> usize {
        self.x.len()
    }

    #[inline(always)]
    fn enter(&mut self, columns: Columns) {
        let Columns { first, period, width } = columns;
        let shift = &mut self.shift[..width];
        shift[..period].fill(0.0);
        let mut rows = 0;
        for row in self.x.chunks_exact(self.channels).take(SHIFT_ROWS) {
            for (shift, x) in shift[..period].iter_mut().zip(&row[first..first + period]) {
                *shift += x.to_f32();
            }
            rows += 1;
        }
        for shift in &mut shift[..period] {
            *shift /= rows as f32;
        }
        let (shift, repeats) = shift.split_at_mut(period);
        for repeat in repeats.chunks_mut(period) {
            repeat.copy_from_slice(&shift[..repeat.len()]);
        }
    }

    #[inline(always)]
    fn tiles<const T: usize>(&self, at: usize, stride: usize, sums: &mut [f32], squares: &mut [f32]) {
        let width = sums.len();
        let x: [&[E]; T] = tiles(self.x, at, stride, width);
        let (shift, squares) = (&self.shift[..width], &mut squares[..width]);
        for i in 0..width {
            let (mut sum, mut square) = (0.0, 0.0);
            for x in x {
                let shifted = x[i].to_f32() - shift[i];
                sum += shifted;
                square += shifted * shifted;
            }
            sums[i] += sum;
            squares[i] += square;
        }
    }

    #[inline(always)]
    fn leave(&self, columns: Columns, sums: &mut [f64], squares: &mut [f64]) {
        let count = (self.x.len() / self.channels) as f64;
        let channels = columns.first..columns.first + columns.period;
        let sums = sums[channels.clone()].iter_mut().zip(&mut squares[channels]);
        for ((sum, square), shift) in sums.zip(&self.shift) {
            *square = (*square - *sum * *sum / count).max(0.0);
            *sum += count * f64::from(*shift);
        }
    }
}
