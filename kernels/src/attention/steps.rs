//! Steps of attention: matrices in and out of tensors, products, softmax.
//!
//! In and out: f32 matrices, padded with zeros to whole blocks.
//! Invariant: only products differ between instruction sets, by rounding.

use std::ops::Range;

use super::Mask;
use crate::Element;
use crate::simd::{GenericWork, Kernel, PANEL, Simd, Task, exp, halved};

/// Rows of a register block.
const ROWS: usize = 8;
/// Columns of a register block; tokens and widths are filled up with zeros to whole blocks.
pub(super) const COLUMNS: usize = 16;

/// A matrix out of a tensor, times a factor, and zeros around it.
pub(super) struct Gather<'a, E> {
    pub(super) from: &'a [E],
    pub(super) stride: usize,
    pub(super) first: usize,
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) to: &'a mut [f32],
    pub(super) to_stride: usize,
    pub(super) factor: f32,
}

impl<E: Element> Task for Gather<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (index, to) in self.to.chunks_exact_mut(self.to_stride).enumerate() {
            if index >= self.rows {
                to.fill(0.0);
                continue;
            }
            let (inside, outside) = to.split_at_mut(self.columns);
            outside.fill(0.0);
            for (to, from) in inside
                .iter_mut()
                .zip(&self.from[index * self.stride + self.first..][..self.columns])
            {
                *to = from.to_f32() * self.factor;
            }
        }
    }
}

/// The other way round.
pub(super) struct Scatter<'a, E> {
    pub(super) from: &'a [f32],
    pub(super) from_stride: usize,
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) to: &'a mut [E],
    pub(super) stride: usize,
    pub(super) first: usize,
    pub(super) factor: f32,
}

impl<E: Element> Task for Scatter<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (index, from) in self
            .from
            .chunks_exact(self.from_stride)
            .take(self.rows)
            .enumerate()
        {
            let to = &mut self.to[index * self.stride + self.first..][..self.columns];
            for (to, from) in to.iter_mut().zip(from) {
                *to = E::from_f32(from * self.factor);
            }
        }
    }
}

/// Transposition of a matrix of whole blocks.
pub(super) struct Transpose<'a> {
    pub(super) from: &'a [f32],
    pub(super) from_stride: usize,
    pub(super) to: &'a mut [f32],
    pub(super) to_stride: usize,
}

impl GenericWork for Transpose<'_> {
    type Output = ();

    fn run<S: Simd>(self) {
        let len = self.from_stride * self.to_stride;
        let are_whole =
            [self.from_stride, self.to_stride].map(|stride| stride.is_multiple_of(COLUMNS));
        assert!(are_whole == [true; 2] && len <= self.from.len() && len <= self.to.len());
        // SAFETY: features asserted by `Isa::run`; the kernel stays inside the slices, as just
        // asserted.
        unsafe { S::vectorize(self) }
    }
}

impl<S: Simd> Kernel<S> for Transpose<'_> {
    #[inline(always)]
    unsafe fn run(self) {
        let Self {
            from_stride,
            to_stride,
            ..
        } = self;
        for row in (0..to_stride).step_by(S::LANES) {
            for column in (0..from_stride).step_by(S::LANES) {
                let from = self.from[row * from_stride + column..].as_ptr();
                let to = self.to[column * to_stride + row..].as_mut_ptr();
                // SAFETY: rows and columns are whole blocks, which lie inside the slices.
                unsafe {
                    let mut square = [S::zero(); PANEL];
                    for (row, vector) in square.iter_mut().enumerate().take(S::LANES) {
                        *vector = S::load(from.add(row * from_stride));
                    }
                    S::transpose(&mut square);
                    for (column, vector) in square.into_iter().enumerate().take(S::LANES) {
                        S::store(to.add(column * to_stride), vector);
                    }
                }
            }
        }
    }
}

/// The part of a product that is computed, if the scores above the diagonal are zeros.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Triangle {
    Whole,
    /// Columns of c up to the row's number, in whole blocks.
    Columns,
    /// Terms up to the row's number, in whole blocks.
    DepthTo,
    /// Terms from the row's number on, in whole blocks.
    DepthFrom,
}

/// c = a b: a by strides of row and column, of which the rows are filled up to whole blocks;
/// `columns` are whole blocks, and the rows of b and c are as long.
pub(super) struct Product<'a> {
    pub(super) a: &'a [f32],
    pub(super) strides: [usize; 2],
    pub(super) b: &'a [f32],
    pub(super) c: &'a mut [f32],
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) depth: usize,
    pub(super) triangle: Triangle,
}

impl GenericWork for Product<'_> {
    type Output = ();

    fn run<S: Simd>(self) {
        let all_rows = self.rows.next_multiple_of(ROWS);
        let last = (all_rows - 1) * self.strides[0] + (self.depth - 1) * self.strides[1];
        assert!(self.columns.is_multiple_of(COLUMNS) && last < self.a.len());
        assert!(
            self.depth * self.columns <= self.b.len() && all_rows * self.columns <= self.c.len()
        );
        // SAFETY: features asserted by `Isa::run`; the kernel stays inside the slices, as just
        // asserted.
        unsafe { S::vectorize(self) }
    }
}

impl<S: Simd> Kernel<S> for Product<'_> {
    #[inline(always)]
    unsafe fn run(mut self) {
        // SAFETY: the caller's contract.
        unsafe {
            // Two vectors of b for each broadcast of a, and as many rows as there are registers
            // for.
            match S::ACCUMULATORS / 2 {
                ROWS.. => self.blocks::<S, ROWS>(),
                6.. => self.blocks::<S, 6>(),
                _ => self.blocks::<S, 4>(),
            }
        }
    }
}

impl Product<'_> {
    /// Computes the product in blocks of `R` rows, at most [`ROWS`], and two vectors; the last rows
    /// may be computed twice.
    ///
    /// # Safety
    /// The processor has the features of `S`; the slices hold what the entry asserts.
    #[inline(always)]
    unsafe fn blocks<S: Simd, const R: usize>(&mut self) {
        let all_rows = self.rows.next_multiple_of(ROWS);
        for row in (0..self.rows).step_by(R) {
            let row = row.min(all_rows - R);
            let mut column = 0;
            let end = row + R;
            let mut columns = self.columns;
            let mut terms = 0..self.depth;
            match self.triangle {
                Triangle::Whole => {}
                Triangle::Columns => columns = columns.min(end.next_multiple_of(COLUMNS)),
                Triangle::DepthTo => terms.end = terms.end.min(end),
                Triangle::DepthFrom => terms.start = terms.end.min(row),
            }
            while column < columns {
                // SAFETY: rows and columns are whole blocks, and all of them lie inside the slices.
                unsafe {
                    if column + 2 * S::LANES <= columns {
                        self.block::<S, R, 2>(row, column, terms.clone());
                    } else {
                        self.block::<S, R, 1>(row, column, terms.clone());
                    }
                }
                column += 2 * S::LANES;
            }
        }
    }

    /// Computes `R` rows and `NV` vectors of columns.
    ///
    /// # Safety
    /// As [`blocks`](Self::blocks).
    #[inline(always)]
    unsafe fn block<S: Simd, const R: usize, const NV: usize>(
        &mut self,
        row: usize,
        column: usize,
        terms: Range<usize>,
    ) {
        let [row_stride, column_stride] = self.strides;
        // SAFETY: the caller's contract.
        unsafe {
            let mut sums = [[S::zero(); NV]; R];
            let mut a = self
                .a
                .as_ptr()
                .wrapping_add(row * row_stride + terms.start * column_stride);
            let mut b = self
                .b
                .as_ptr()
                .wrapping_add(column + terms.start * self.columns);
            for _ in terms {
                let mut values = [S::zero(); NV];
                for (v, value) in values.iter_mut().enumerate() {
                    *value = S::load(b.add(v * S::LANES));
                }
                for (r, sums) in sums.iter_mut().enumerate() {
                    let factor = S::splat(*a.add(r * row_stride));
                    for (sum, value) in sums.iter_mut().zip(values) {
                        *sum = S::fma(factor, value, *sum);
                    }
                }
                a = a.wrapping_add(column_stride);
                b = b.wrapping_add(self.columns);
            }
            for (r, sums) in sums.into_iter().enumerate() {
                let c = self.c.as_mut_ptr().add((row + r) * self.columns + column);
                for (v, sum) in sums.into_iter().enumerate() {
                    S::store(c.add(v * S::LANES), sum);
                }
            }
        }
    }
}

/// Each of the first `tokens` rows becomes e^x over the sum of them; zeros beyond and where the
/// mask hides a key, but in a row that has a NaN.
pub(super) struct Softmax<'a> {
    pub(super) p: &'a mut [f32],
    /// Mask of the image.
    pub(super) mask: Mask<'a>,
    pub(super) tokens: usize,
    pub(super) stride: usize,
}

impl Task for Softmax<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (index, row) in self.p.chunks_exact_mut(self.stride).enumerate() {
            if index >= self.tokens {
                row.fill(0.0);
                continue;
            }
            let count = seen(self.mask == Mask::Causal, index, self.tokens);
            // In whole blocks: the padding counts as nothing compared with the largest value, whose
            // e^0 is 1.
            let (row, hidden) = row.split_at_mut(count.next_multiple_of(COLUMNS));
            hidden.fill(0.0);
            row[count..].fill(f32::NEG_INFINITY);
            if let Mask::Added(mask) = self.mask {
                for (value, mask) in row.iter_mut().zip(&mask[index * count..][..count]) {
                    *value += mask;
                }
            }
            let largest = largest(row);
            let is_added = matches!(self.mask, Mask::Added(_));
            let largest = if is_added && largest == f32::NEG_INFINITY {
                0.0
            } else {
                largest
            };
            let mut sums = [0.0; COLUMNS];
            for block in row.as_chunks_mut::<COLUMNS>().0 {
                for (sum, value) in sums.iter_mut().zip(block) {
                    let below = *value - largest;
                    let power = exp(below);
                    *value = if is_added && below < -87.0 {
                        0.0
                    } else {
                        power
                    };
                    *sum += *value;
                }
            }
            let sum = halved(sums, |a, b| a + b);
            let factor = 1.0 / if is_added && sum == 0.0 { 1.0 } else { sum };
            // Before they become subnormal, which takes long.
            row[count..].fill(0.0);
            for value in row.iter_mut() {
                *value *= factor;
            }
        }
    }
}

/// ds = p (ds - sum of p ds) of each row; zeros beyond.
pub(super) struct SoftmaxGradient<'a> {
    pub(super) p: &'a [f32],
    pub(super) ds: &'a mut [f32],
    pub(super) is_causal: bool,
    pub(super) tokens: usize,
    pub(super) stride: usize,
}

impl Task for SoftmaxGradient<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let rows = self
            .p
            .chunks_exact(self.stride)
            .zip(self.ds.chunks_exact_mut(self.stride));
        for (index, (p, ds)) in rows.enumerate() {
            if index >= self.tokens {
                ds.fill(0.0);
                continue;
            }
            let count = seen(self.is_causal, index, self.tokens).next_multiple_of(COLUMNS);
            let (ds, hidden) = ds.split_at_mut(count);
            hidden.fill(0.0);
            let p = &p[..count];
            let mut sums = [0.0; COLUMNS];
            for (p, ds) in p.chunks_exact(COLUMNS).zip(ds.chunks_exact(COLUMNS)) {
                for lane in 0..COLUMNS {
                    sums[lane] += p[lane] * ds[lane];
                }
            }
            let mean = halved(sums, |a, b| a + b);
            for (p, ds) in p.iter().zip(ds) {
                *ds = p * (*ds - mean);
            }
        }
    }
}

/// Returns the number of keys that a query sees, or may see.
#[inline(always)]
fn seen(is_causal: bool, query: usize, tokens: usize) -> usize {
    if is_causal { query + 1 } else { tokens }
}

/// Returns the largest value of a row of whole blocks; ignores NaN.
#[inline(always)]
fn largest(row: &[f32]) -> f32 {
    let larger = |a, b| if b > a { b } else { a };
    let mut lanes = [f32::NEG_INFINITY; COLUMNS];
    for block in row.as_chunks::<COLUMNS>().0 {
        for (lane, value) in lanes.iter_mut().zip(block) {
            *lane = larger(*lane, *value);
        }
    }
    halved(lanes, larger)
}
