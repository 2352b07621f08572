//! Two products of small matrices: rows times rows, and sums of rows.
//!
//! In: two matrices. Out: a third, each of its rows by one thread. Invariant: terms are added in an order that depends on
//! the shapes only: blocks of 64 terms in f32, then the blocks.

use rayon::prelude::*;

use crate::simd::{Isa, Task, vectorized};

/// Terms added before their sum is added to the others.
const BLOCK: usize = 64;
/// Columns whose sums stay in the first-level cache.
const COLUMNS: usize = 256;
/// Partial sums of a dot product.
const LANES: usize = 16;

/// A matrix read value by value: element (row, term) is `values[row · row_stride + term · stride]`.
#[derive(Clone, Copy)]
pub(super) struct Factor<'a> {
    pub(super) values: &'a [f32],
    pub(super) row_stride: usize,
    pub(super) stride: usize,
}

/// out[row, :] = bias + Σ over terms of factor(row, term) · b[term, :].
pub(super) fn row_sums(
    isa: Isa,
    factor: Factor<'_>,
    terms: usize,
    b: &[f32],
    bias: Option<&[f32]>,
    out: &mut [f32],
    columns: usize,
) {
    out.par_chunks_mut(columns.max(1)).enumerate().for_each(|(row, out)| {
        let factor = Factor { values: &factor.values[(row * factor.row_stride).min(factor.values.len())..], ..factor };
        vectorized(isa, RowSums { factor, terms, b, bias, out });
    });
}

struct RowSums<'a> {
    factor: Factor<'a>,
    terms: usize,
    b: &'a [f32],
    bias: Option<&'a [f32]>,
    out: &'a mut [f32],
}

impl Task for RowSums<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { factor, terms, b, bias, out } = self;
        let columns = out.len();
        match bias {
            Some(bias) => out.copy_from_slice(bias),
            None => out.fill(0.0),
        }
        for (index, out) in out.chunks_mut(COLUMNS).enumerate() {
            let first = index * COLUMNS;
            let width = out.len();
            for block in (0..terms).step_by(BLOCK) {
                let mut sums = [0.0; COLUMNS];
                let sums = &mut sums[..width];
                for term in block..terms.min(block + BLOCK) {
                    let scale = factor.values[term * factor.stride];
                    let b = &b[term * columns + first..][..width];
                    for i in 0..width {
                        sums[i] += scale * b[i];
                    }
                }
                for (out, sum) in out.iter_mut().zip(sums) {
                    *out += *sum;
                }
            }
        }
    }
}

/// out[row, column] = bias[column] + a[row, :] · b[column, :].
pub(super) fn dots(
    isa: Isa,
    terms: usize,
    a: &[f32],
    b: &[f32],
    bias: Option<&[f32]>,
    out: &mut [f32],
    columns: usize,
) {
    out.par_chunks_mut(columns.max(1)).enumerate().for_each(|(row, out)| {
        vectorized(isa, Dots { a: &a[row * terms..][..terms], b, bias, out });
    });
}

struct Dots<'a> {
    a: &'a [f32],
    b: &'a [f32],
    bias: Option<&'a [f32]>,
    out: &'a mut [f32],
}

impl Task for Dots<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { a, b, bias, out } = self;
        for (column, out) in out.iter_mut().enumerate() {
            let b = &b[column * a.len()..][..a.len()];
            *out = bias.map_or(0.0, |bias| bias[column]) + dot(a, b);
        }
    }
}

#[inline(always)]
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let ((a, a_tail), (b, b_tail)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let mut sums = [0.0; LANES];
    for (a, b) in a.iter().zip(b) {
        for i in 0..LANES {
            sums[i] += a[i] * b[i];
        }
    }
    for (sum, (a, b)) in sums.iter_mut().zip(a_tail.iter().zip(b_tail)) {
        *sum += a * b;
    }
    // By halves: the order in which registers are folded.
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            sums[i] += sums[i + width];
        }
        width /= 2;
    }
    sums[0]
}
