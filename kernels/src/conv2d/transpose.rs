//! Transposes between PyTorch's order of weights, with one filter per run of memory, and vectors
//! with one channel per lane.
//!
//! In: rows with a stride, contiguous columns.
//! Out: one vector per column with the rows in its lanes, and the reverse. [`Weights`] transposes
//! the weights of a convolution block by block.
//! Invariant: squares of `LANES` x `LANES` are transposed in registers. Memory accesses are whole
//! or masked vectors that stay inside the given rows and columns.

use crate::simd::{PANEL, Simd};

/// A matrix in memory with the elements of a row side by side.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    pub(super) first: *mut f32,
    pub(super) stride: usize,
    /// At most a vector's lanes.
    pub(super) rows: usize,
    pub(super) columns: usize,
}

impl Rows {
    /// Calls `take(column, vector)` for each column in order; lanes beyond the rows are zero.
    ///
    /// # Safety
    /// As the methods of [`Simd`]; the matrix can be read.
    #[inline(always)]
    pub(super) unsafe fn each_column<S: Simd>(self, mut take: impl FnMut(usize, S::V)) {
        // SAFETY: lanes beyond the columns are masked, rows beyond the last are not read.
        unsafe {
            for first in (0..self.columns).step_by(S::LANES) {
                let mut square = [S::zero(); PANEL];
                if self.rows == S::LANES && first + S::LANES <= self.columns {
                    for (row, vector) in square.iter_mut().enumerate().take(S::LANES) {
                        *vector = S::load(self.first.add(row * self.stride + first));
                    }
                    S::transpose(&mut square);
                    for (column, vector) in square.into_iter().enumerate().take(S::LANES) {
                        take(first + column, vector);
                    }
                    continue;
                }
                let mask = S::mask(self.columns - first);
                for (row, vector) in square.iter_mut().enumerate().take(S::LANES) {
                    if row < self.rows {
                        *vector = S::load_masked(self.first.add(row * self.stride + first), mask);
                    }
                }
                S::transpose(&mut square);
                for (column, vector) in square.into_iter().enumerate().take(S::LANES) {
                    if first + column < self.columns {
                        take(first + column, vector);
                    }
                }
            }
        }
    }

    /// Writes the matrix from `give(column)`, called for each column in order.
    ///
    /// # Safety
    /// As the methods of [`Simd`]; the matrix can be written.
    #[inline(always)]
    pub(super) unsafe fn fill_columns<S: Simd>(self, mut give: impl FnMut(usize) -> S::V) {
        // SAFETY: lanes beyond the columns are masked, rows beyond the last are not written.
        unsafe {
            for first in (0..self.columns).step_by(S::LANES) {
                let mask = S::mask(self.columns - first);
                let mut square = [S::zero(); PANEL];
                for (column, vector) in square.iter_mut().enumerate().take(S::LANES) {
                    if first + column < self.columns {
                        *vector = give(first + column);
                    }
                }
                S::transpose(&mut square);
                for (row, vector) in square.into_iter().enumerate().take(S::LANES) {
                    if row < self.rows {
                        S::store_masked(self.first.add(row * self.stride + first), mask, vector);
                    }
                }
            }
        }
    }
}

/// Most channels of a block: the number of pages that are read in turn.
const BLOCK_CHANNELS: usize = 32;
/// Vectors of a block: they fit L1 together with the weights that they come from.
const BLOCK_VECTORS: usize = 9 * 16;

/// The weights of a convolution. Tap `t` of output channel `o` and input channel `i` lies at `o *
/// out_stride + i * in_stride + t`.
pub(super) struct Weights<'a> {
    pub(super) values: &'a [f32],
    pub(super) taps: usize,
    pub(super) in_channels: usize,
    pub(super) out_channels: usize,
    pub(super) in_stride: usize,
    pub(super) out_stride: usize,
}

/// Some taps of some input channels and the 16 output channels of a panel.
pub(super) struct Block<'a> {
    pub(super) panel: usize,
    pub(super) channel: usize,
    pub(super) tap: usize,
    /// More than one only if the block has one channel or all taps.
    pub(super) taps: usize,
    /// `[channel][tap][16]`. Lanes beyond the last output channel are zero.
    pub(super) vectors: &'a [[f32; PANEL]],
}

impl Weights<'_> {
    /// Calls `take` for each block. The blocks follow each other in the order of memory, so that
    /// each cache line is read once.
    ///
    /// # Safety
    /// As the methods of [`Simd`].
    #[inline(always)]
    pub(super) unsafe fn each_block<S: Simd>(&self, mut take: impl FnMut(Block<'_>)) {
        let last = |channels: usize, stride: usize| channels.saturating_sub(1) * stride;
        assert!(
            last(self.out_channels, self.out_stride)
                + last(self.in_channels, self.in_stride)
                + self.taps
                <= self.values.len(),
            "convolution: length of the weights"
        );
        let channels_of_block = (BLOCK_VECTORS / self.taps).clamp(1, BLOCK_CHANNELS);
        let panels = self.out_channels.div_ceil(PANEL);
        let runs = self.in_channels.div_ceil(channels_of_block);
        let mut vectors = [[0.0; PANEL]; BLOCK_VECTORS];
        for index in 0..panels * runs {
            let (panel, run) = if self.out_stride > self.in_stride {
                (index / runs, index % runs)
            } else {
                (index % panels, index / panels)
            };
            let channel = run * channels_of_block;
            let channels = channels_of_block.min(self.in_channels - channel);
            for tap in (0..self.taps).step_by(BLOCK_VECTORS) {
                let taps = BLOCK_VECTORS.min(self.taps - tap);
                let vectors = &mut vectors[..channels * taps];
                // SAFETY: passed on; the channels and taps exist.
                unsafe { self.fill::<S>(panel * PANEL, channel, tap, taps, vectors) };
                take(Block {
                    panel,
                    channel,
                    tap,
                    taps,
                    vectors,
                });
            }
        }
    }

    /// Fills `vectors` with `taps` taps of as many channels as fit.
    ///
    /// # Safety
    /// As the methods of [`Simd`]; the channels and taps exist.
    #[inline(always)]
    unsafe fn fill<S: Simd>(
        &self,
        panel: usize,
        channel: usize,
        tap: usize,
        taps: usize,
        vectors: &mut [[f32; PANEL]],
    ) {
        for lane in (0..PANEL).step_by(S::LANES) {
            let rows = S::LANES.min(self.out_channels.saturating_sub(panel + lane));
            let first = (panel + lane) * self.out_stride + channel * self.in_stride + tap;
            let first = self.values.as_ptr().cast_mut().wrapping_add(first);
            // SAFETY: the rows and columns are weights; the vectors have room for a panel.
            unsafe {
                if self.out_stride == 1 {
                    let mask = S::mask(rows);
                    for (index, vector) in vectors.iter_mut().enumerate() {
                        let from = first.wrapping_add(index * self.in_stride);
                        S::store(vector.as_mut_ptr().add(lane), S::load_masked(from, mask));
                    }
                    continue;
                }
                // Channels of one filter that follow each other are one run of memory.
                let columns = if self.in_stride == taps {
                    vectors.len()
                } else {
                    taps
                };
                for (index, vectors) in vectors.chunks_exact_mut(columns).enumerate() {
                    let filters = Rows {
                        first: first.wrapping_add(index * self.in_stride),
                        stride: self.out_stride,
                        rows,
                        columns,
                    };
                    filters.each_column::<S>(|column, vector| {
                        S::store(vectors[column].as_mut_ptr().add(lane), vector);
                    });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{GenericWork, Isa, Kernel};
    use crate::tests::values;

    /// A matrix to vectors and back into `copy`; checks the vectors on the way.
    struct RoundTrip<'a> {
        matrix: &'a mut [f32],
        copy: &'a mut [f32],
        rows: usize,
        columns: usize,
    }

    struct Lanes;

    impl GenericWork for Lanes {
        type Output = usize;
        fn run<S: Simd>(self) -> usize {
            S::LANES
        }
    }

    impl GenericWork for RoundTrip<'_> {
        type Output = ();
        fn run<S: Simd>(self) {
            // SAFETY: features asserted by `Isa::run`; the slices hold the matrices.
            unsafe { S::vectorize(self) }
        }
    }

    impl<S: Simd> Kernel<S> for RoundTrip<'_> {
        #[inline(always)]
        unsafe fn run(self) {
            let rows = self.rows;
            let columns = self.columns;
            let mut vectors = vec![[0.0; PANEL]; columns];
            let matrix = Rows {
                first: self.matrix.as_mut_ptr(),
                stride: columns + 1,
                rows,
                columns,
            };
            // SAFETY: the slices hold `PANEL` rows, `columns + 1` apart.
            unsafe {
                matrix.each_column::<S>(|column, vector| {
                    S::store(vectors[column].as_mut_ptr(), vector)
                });
                let copy = Rows {
                    first: self.copy.as_mut_ptr(),
                    ..matrix
                };
                copy.fill_columns::<S>(|column| S::load(vectors[column].as_ptr()));
            }
            for (column, vector) in vectors.iter().enumerate() {
                for (row, value) in vector.iter().enumerate().take(S::LANES) {
                    let expected = if row < rows {
                        self.matrix[row * (columns + 1) + column]
                    } else {
                        0.0
                    };
                    assert_eq!(*value, expected, "row {row}, column {column}");
                }
            }
        }
    }

    #[test]
    fn a_matrix_goes_each_column_and_back_on_every_instruction_set() {
        for isa in Isa::available() {
            for (rows, columns) in [
                (16, 16),
                (16, 9),
                (16, 144),
                (8, 1),
                (5, 23),
                (1, 17),
                (3, 8),
            ] {
                let mut matrix = values(PANEL * (columns + 1), 3);
                let mut copy = vec![0.5; matrix.len()];
                let rows = isa.run(Lanes).min(rows);
                isa.run(RoundTrip {
                    matrix: &mut matrix,
                    copy: &mut copy,
                    rows,
                    columns,
                });
                for (index, (got, value)) in copy.iter().zip(&matrix).enumerate() {
                    let row = index / (columns + 1);
                    let column = index % (columns + 1);
                    assert!(
                        *got == *value || row >= rows || column == columns,
                        "{isa:?}: {rows} x {columns} at {index}"
                    );
                    assert!(
                        *got == 0.5 || (row < rows && column < columns),
                        "{isa:?}: wrote outside at {index}"
                    );
                }
            }
        }
    }
}
