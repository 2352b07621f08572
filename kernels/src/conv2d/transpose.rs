//! Transposes between PyTorch's order of weights, with one filter per run of memory, and vectors
//! with one channel per lane.
//!
//! In: rows with a stride, contiguous columns.
//! Out: one vector per column with the rows in its lanes, and the reverse.
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
                let mask = S::mask(self.columns - first);
                let mut square = [S::zero(); PANEL];
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
