//! Products and orthogonalisation of tall, narrow matrices, in loops that the compiler vectorises.
//!
//! In: matrices as flat slices, row by row. Out: results whose bits depend only on the input. Equal
//! input gives equal output on every rank of this program.
//! Invariant: non-finite input is never dropped. Results that depend on it are non-finite.
//! Source: Vogels et al. 2019, PowerSGD (1905.13727), algorithm 1; Giraud et al. 2005 for "twice is
//! enough" in Gram-Schmidt.
//!
//! The factors are stored transposed, as `rank` rows of `length` elements, so that every inner loop
//! reads consecutive memory.

/// Number of partial sums of a dot product. They fill the vector units and have a fixed order of
/// addition.
const LANES: usize = 16;

/// Columns of one block of a product. A block of a row and of a few factor rows fits the L1 cache.
const BLOCK: usize = 1024;

/// Threshold for dependent rows, relative to the row's length before the projection. A shorter
/// remainder is rounding noise and becomes zero.
const DEPENDENT: f64 = 1e-6;

/// Computes `out[c][i] = Σ_j matrix[i][j] factor[c][j]`: the product `M Q`, transposed.
///
/// `matrix` is `[rows, columns]`, `factor` `[rank, columns]`, `out` `[rank, rows]`.
pub(super) fn times_factor(matrix: &[f32], columns: usize, factor: &[f32], out: &mut [f32]) {
    let rows = matrix.len() / columns;
    out.fill(0.0);
    for start in (0..columns).step_by(BLOCK) {
        let block = start..columns.min(start + BLOCK);
        for (i, row) in matrix.chunks_exact(columns).enumerate() {
            let row = &row[block.clone()];
            for (factor, out) in factor.chunks_exact(columns).zip(out.chunks_exact_mut(rows)) {
                out[i] += dot(row, &factor[block.clone()]);
            }
        }
    }
}

/// Computes `out[c][j] = Σ_i factor[c][i] matrix[i][j]`: the product `Mᵀ P`, transposed.
///
/// `matrix` is `[rows, columns]`, `factor` `[rank, rows]`, `out` `[rank, columns]`.
pub(super) fn transposed_times_factor(
    matrix: &[f32],
    columns: usize,
    factor: &[f32],
    out: &mut [f32],
) {
    let rows = matrix.len() / columns;
    out.fill(0.0);
    for start in (0..columns).step_by(BLOCK) {
        let block = start..columns.min(start + BLOCK);
        for (i, row) in matrix.chunks_exact(columns).enumerate() {
            let row = &row[block.clone()];
            for (factor, out) in factor.chunks_exact(rows).zip(out.chunks_exact_mut(columns)) {
                add_scaled(&mut out[block.clone()], factor[i], row);
            }
        }
    }
}

/// Computes `out[i][j] += scale Σ_c left[c][i] right[c][j]`: the product `P Qᵀ`, scaled.
///
/// `left` is `[rank, rows]`, `right` `[rank, columns]`, `out` `[rows, columns]`.
pub(super) fn add_product(
    left: &[f32],
    right: &[f32],
    columns: usize,
    scale: f32,
    out: &mut [f32],
) {
    let rows = out.len() / columns;
    for start in (0..columns).step_by(BLOCK) {
        let block = start..columns.min(start + BLOCK);
        for (i, row) in out.chunks_exact_mut(columns).enumerate() {
            let row = &mut row[block.clone()];
            for (left, right) in left.chunks_exact(rows).zip(right.chunks_exact(columns)) {
                add_scaled(row, scale * left[i], &right[block.clone()]);
            }
        }
    }
}

/// Makes the rows of `matrix` orthonormal by modified Gram-Schmidt, from the first to the last.
/// Each row has `length` elements.
///
/// A row that depends on earlier rows becomes zero. Each row is projected twice. After one
/// projection, a nearly dependent row can be far from orthogonal, and its common part with other
/// rows would count twice.
pub(super) fn orthogonalise(matrix: &mut [f32], length: usize) {
    for index in 0..matrix.len() / length {
        let (before, rest) = matrix.split_at_mut(index * length);
        let row = &mut rest[..length];
        let norm_before = norm_squared(row).sqrt();
        for _ in 0..2 {
            for basis in before.chunks_exact(length) {
                let overlap = dot_f64(row, basis);
                for (value, &basis) in row.iter_mut().zip(basis) {
                    *value = (f64::from(*value) - overlap * f64::from(basis)) as f32;
                }
            }
        }
        let norm = norm_squared(row).sqrt();
        // An infinite or NaN norm makes the row NaN.
        if norm.is_finite() && norm <= DEPENDENT * norm_before {
            row.fill(0.0);
        } else {
            row.iter_mut()
                .for_each(|value| *value = (f64::from(*value) / norm) as f32);
        }
    }
}

/// Returns `Σ values²` in double precision.
pub(super) fn norm_squared(values: &[f32]) -> f64 {
    dot_f64(values, values)
}

/// Returns `Σ left right` in double precision.
fn dot_f64(left: &[f32], right: &[f32]) -> f64 {
    let mut sums = [0.0_f64; LANES];
    let lefts = left.chunks_exact(LANES);
    let rights = right.chunks_exact(LANES);
    for (lane, (&left, &right)) in lefts.remainder().iter().zip(rights.remainder()).enumerate() {
        sums[lane] = f64::from(left) * f64::from(right);
    }
    for (left, right) in lefts.zip(rights) {
        for lane in 0..LANES {
            sums[lane] += f64::from(left[lane]) * f64::from(right[lane]);
        }
    }
    sums.iter().sum()
}

/// Returns `Σ left right` in `LANES` partial sums.
fn dot(left: &[f32], right: &[f32]) -> f32 {
    let mut sums = [0.0_f32; LANES];
    let lefts = left.chunks_exact(LANES);
    let rights = right.chunks_exact(LANES);
    for (lane, (left, right)) in lefts.remainder().iter().zip(rights.remainder()).enumerate() {
        sums[lane] = left * right;
    }
    for (left, right) in lefts.zip(rights) {
        for lane in 0..LANES {
            sums[lane] += left[lane] * right[lane];
        }
    }
    sums.iter().sum()
}

/// Computes `out += scale values`.
fn add_scaled(out: &mut [f32], scale: f32, values: &[f32]) {
    for (out, value) in out.iter_mut().zip(values) {
        *out += scale * value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ramp(length: usize) -> Vec<f32> {
        (0..length)
            .map(|index| ((index * 37) % 101) as f32 / 50.0 - 1.0)
            .collect()
    }

    #[test]
    fn products_agree_with_their_definition() {
        for (rows, columns, rank) in [(1, 1, 1), (3, 5, 2), (7, 33, 3), (2, 2500, 4)] {
            let matrix = ramp(rows * columns);
            let p = ramp(rank * rows);
            let q = ramp(rank * columns);
            let mut mq = vec![1.0; rank * rows];
            let mut mtp = vec![1.0; rank * columns];
            let mut pq = vec![1.0; rows * columns];
            times_factor(&matrix, columns, &q, &mut mq);
            transposed_times_factor(&matrix, columns, &p, &mut mtp);
            pq.fill(0.0);
            add_product(&p, &q, columns, -0.5, &mut pq);
            let close = |got: f32, expected: f64| {
                assert!((f64::from(got) - expected).abs() < 1e-3, "{got} {expected}")
            };
            let times = |left: f32, right: f32| f64::from(left) * f64::from(right);
            for c in 0..rank {
                for i in 0..rows {
                    close(
                        mq[c * rows + i],
                        (0..columns)
                            .map(|j| times(matrix[i * columns + j], q[c * columns + j]))
                            .sum(),
                    );
                }
                for j in 0..columns {
                    close(
                        mtp[c * columns + j],
                        (0..rows)
                            .map(|i| times(matrix[i * columns + j], p[c * rows + i]))
                            .sum(),
                    );
                }
            }
            for i in 0..rows {
                for j in 0..columns {
                    let sum: f64 = (0..rank)
                        .map(|c| times(p[c * rows + i], q[c * columns + j]))
                        .sum();
                    close(pq[i * columns + j], -0.5 * sum);
                }
            }
        }
    }

    #[test]
    fn orthogonal_rows_have_length_one_also_when_they_nearly_depend() {
        let length = 50;
        let mut matrix = ramp(4 * length);
        for j in 0..length {
            matrix[length + j] = matrix[j] + 1e-4 * matrix[length + j];
        }
        matrix.iter_mut().for_each(|value| *value *= 1e-20);
        orthogonalise(&mut matrix, length);
        for (a, left) in matrix.chunks_exact(length).enumerate() {
            for (b, right) in matrix.chunks_exact(length).enumerate() {
                let expected = if a == b { 1.0 } else { 0.0 };
                assert!(
                    (dot_f64(left, right) - expected).abs() < 1e-6,
                    "{a} {b}: {}",
                    dot_f64(left, right)
                );
            }
        }
    }

    #[test]
    fn a_dependent_row_becomes_zero() {
        let mut matrix = [1.0, 2.0, 2.0, 2.0, 4.0, 4.0, 0.0, 0.0, 0.0];
        orthogonalise(&mut matrix, 3);
        assert_eq!(matrix[3..], [0.0; 6]);
    }

    #[test]
    fn orthogonalisation_keeps_non_finite_values() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut matrix = [1.0, bad, 2.0, 1.0, 0.0, 0.0];
            orthogonalise(&mut matrix, 3);
            assert!(
                matrix[1].is_nan() && matrix[3..].iter().all(|value| value.is_nan()),
                "{bad}: {matrix:?}"
            );
        }
    }
}
