//! Copies of values: in another format, two axes exchanged, rows of two tables joined and parted,
//! values repeated.
//!
//! In and out: contiguous tables.
//! Invariant: no value changes, except in a narrower format and in the sums of repeated values.

use rayon::prelude::*;

use crate::Element;
use crate::pieces::elements;
use crate::simd::{Isa, Task, vectorized};

/// Rows of a piece.
const PIECE_ROWS: usize = 64;
/// Rows and columns of a part of a matrix that is transposed at once.
const SQUARE: usize = 16;
/// Values of a piece that are repeated.
const PIECE_VALUES: usize = 4096;

/// Exchanges the two middle axes of `[a, b, c, run]`.
///
/// # Shapes
/// `x`: `extents`. `y`: `[a, c, b, run]`.
///
/// # Panics
/// If a length differs.
#[inline(never)]
pub fn swap_axes<E: Element>(extents: [usize; 4], x: &[E], y: &mut [E]) {
    let len = elements("copies: values", &extents);
    same("x", x.len(), len);
    same("y", y.len(), len);
    if len == 0 {
        return;
    }
    let [_, b, c, run] = extents;
    if run == 1 {
        // Each piece has columns of one matrix.
        y.par_chunks_exact_mut(b * c)
            .zip(x.par_chunks_exact(b * c))
            .for_each(|(y, x)| {
                y.par_chunks_mut(SQUARE * b)
                    .enumerate()
                    .for_each(|(index, y)| transpose([b, c], SQUARE * index, x, y));
            });
        return;
    }
    y.par_chunks_exact_mut(b * run)
        .enumerate()
        .for_each(|(index, y)| {
            let x = &x[(index / c * b * c + index % c) * run..];
            for (y, x) in y.chunks_exact_mut(run).zip(x.chunks(c * run)) {
                y.copy_from_slice(&x[..run]);
            }
        });
}

/// Writes columns of the matrix `x` from column `first` on as rows of `b` values, square by square:
/// so a cache line is read and written once.
fn transpose<E: Element>([b, c]: [usize; 2], first: usize, x: &[E], y: &mut [E]) {
    let width = y.len() / b;
    let mut square = [[E::default(); SQUARE]; SQUARE];
    for (rows, x) in (0..b).step_by(SQUARE).zip(x.chunks(SQUARE * c)) {
        for (row, x) in square.iter_mut().zip(x.chunks_exact(c)) {
            if width == SQUARE {
                row.copy_from_slice(&x[first..first + SQUARE]);
            } else {
                row[..width].copy_from_slice(&x[first..]);
            }
        }
        for (column, y) in y.chunks_exact_mut(b).enumerate() {
            let y = &mut y[rows..];
            if let Some(y) = y.first_chunk_mut::<SQUARE>() {
                *y = std::array::from_fn(|row| square[row][column]);
            } else {
                for (y, row) in y.iter_mut().zip(&square) {
                    *y = row[column];
                }
            }
        }
    }
}

/// Copies rows of `widths` values side by side.
///
/// # Shapes
/// `left`: `[rows, widths[0]]`. `right`: `[rows, widths[1]]`. `y`: `[rows, widths[0] + widths[1]]`.
///
/// # Panics
/// If a length differs, or a width is 0.
#[inline(never)]
pub fn join<E: Element>(widths: [usize; 2], [left, right]: [&[E]; 2], y: &mut [E]) {
    let [first, second] = check(widths, y.len(), [left.len(), right.len()]);
    y.par_chunks_mut(PIECE_ROWS * (first + second))
        .zip(left.par_chunks(PIECE_ROWS * first))
        .zip(right.par_chunks(PIECE_ROWS * second))
        .for_each(|((y, left), right)| {
            let rows = left.chunks_exact(first).zip(right.chunks_exact(second));
            for (y, (left, right)) in y.chunks_exact_mut(first + second).zip(rows) {
                y[..first].copy_from_slice(left);
                y[first..].copy_from_slice(right);
            }
        });
}

/// Copies the parts of rows that [`join`] put side by side.
///
/// # Shapes
/// As [`join`].
///
/// # Panics
/// As [`join`].
#[inline(never)]
pub fn part<E: Element>(widths: [usize; 2], y: &[E], [left, right]: [&mut [E]; 2]) {
    let [first, second] = check(widths, y.len(), [left.len(), right.len()]);
    y.par_chunks(PIECE_ROWS * (first + second))
        .zip(left.par_chunks_mut(PIECE_ROWS * first))
        .zip(right.par_chunks_mut(PIECE_ROWS * second))
        .for_each(|((y, left), right)| {
            let rows = left
                .chunks_exact_mut(first)
                .zip(right.chunks_exact_mut(second));
            for (y, (left, right)) in y.chunks_exact(first + second).zip(rows) {
                left.copy_from_slice(&y[..first]);
                right.copy_from_slice(&y[first..]);
            }
        });
}

/// Computes the sums of the two parts of rows that [`join`] put side by side.
///
/// # Shapes
/// `y`: `[rows, 2 * width]`. `x`: `[rows, width]`.
///
/// # Panics
/// If a length differs, `width` is 0, or the processor lacks `isa`.
#[inline(never)]
pub fn sum_parts<E: Element>(isa: Isa, width: usize, y: &[E], x: &mut [E]) {
    check([width; 2], y.len(), [x.len(); 2]);
    x.par_chunks_mut(PIECE_ROWS * width)
        .zip(y.par_chunks(PIECE_ROWS * 2 * width))
        .for_each(|(x, y)| vectorized(isa, SumsOfParts { width, y, x }));
}

/// Writes values in another format, rounded if it is narrower.
///
/// # Panics
/// If the lengths differ, or the processor lacks `isa`.
#[inline(never)]
pub fn convert<A: Element, B: Element>(isa: Isa, x: &[A], y: &mut [B]) {
    same("converted values", y.len(), x.len());
    y.par_chunks_mut(PIECE_VALUES)
        .zip(x.par_chunks(PIECE_VALUES))
        .for_each(|(y, x)| vectorized(isa, Converted { x, y }));
}

/// Copies each value `times` times.
///
/// # Shapes
/// `x`: `[len]`. `y`: `[len, times]`.
///
/// # Panics
/// If a length differs, or `times` is 0.
#[inline(never)]
pub fn repeat<E: Element>(times: usize, x: &[E], y: &mut [E]) {
    check_repeated(times, x.len(), y.len());
    y.par_chunks_mut(PIECE_VALUES * times)
        .zip(x.par_chunks(PIECE_VALUES))
        .for_each(|(y, x)| {
            if times == 2 {
                for (y, x) in y.as_chunks_mut::<2>().0.iter_mut().zip(x) {
                    *y = [*x; 2];
                }
            } else {
                for (y, x) in y.chunks_exact_mut(times).zip(x) {
                    y.fill(*x);
                }
            }
        });
}

/// Computes the sums of values that [`repeat`] put side by side: its gradient.
///
/// # Shapes
/// `y`: `[len, times]`. `x`: `[len]`.
///
/// # Panics
/// If a length differs, `times` is 0, or the processor lacks `isa`.
#[inline(never)]
pub fn sum_repeated<E: Element>(isa: Isa, times: usize, y: &[E], x: &mut [E]) {
    check_repeated(times, x.len(), y.len());
    x.par_chunks_mut(PIECE_VALUES)
        .zip(y.par_chunks(PIECE_VALUES * times))
        .for_each(|(x, y)| vectorized(isa, Sums { times, y, x }));
}

struct Converted<'a, A, B> {
    x: &'a [A],
    y: &'a mut [B],
}

impl<A: Element, B: Element> Task for Converted<'_, A, B> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (y, x) in self.y.iter_mut().zip(self.x) {
            *y = B::from_f32(x.to_f32());
        }
    }
}

struct SumsOfParts<'a, E> {
    width: usize,
    y: &'a [E],
    x: &'a mut [E],
}

impl<E: Element> Task for SumsOfParts<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let rows = self.y.chunks_exact(2 * self.width);
        for (x, y) in self.x.chunks_exact_mut(self.width).zip(rows) {
            let (left, right) = y.split_at(self.width);
            for (x, (left, right)) in x.iter_mut().zip(left.iter().zip(right)) {
                *x = E::from_f32(left.to_f32() + right.to_f32());
            }
        }
    }
}

struct Sums<'a, E> {
    times: usize,
    y: &'a [E],
    x: &'a mut [E],
}

impl<E: Element> Task for Sums<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        if self.times == 2 {
            for (x, [left, right]) in self.x.iter_mut().zip(self.y.as_chunks().0) {
                *x = E::from_f32(left.to_f32() + right.to_f32());
            }
        } else {
            for (x, y) in self.x.iter_mut().zip(self.y.chunks_exact(self.times)) {
                *x = E::from_f32(y.iter().map(|y| y.to_f32()).sum());
            }
        }
    }
}

fn check_repeated(times: usize, len: usize, repeated: usize) {
    assert!(times > 0, "copies: expected at least one time, got 0");
    same(
        "repeated values",
        repeated,
        elements("copies: values", &[len, times]),
    );
}

fn check(widths: [usize; 2], len: usize, parts: [usize; 2]) -> [usize; 2] {
    assert!(
        !widths.contains(&0),
        "copies: expected widths of at least 1, got {widths:?}"
    );
    let rows = parts[0] / widths[0];
    same("left", parts[0], rows * widths[0]);
    same("right", parts[1], rows * widths[1]);
    same("y", len, parts[0] + parts[1]);
    widths
}

fn same(what: &str, got: usize, expected: usize) {
    assert!(
        got == expected,
        "copies: {what}: expected {expected} values, got {got}"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{same_everywhere, values};
    use half::bf16;

    #[test]
    fn axes_are_exchanged_and_back() {
        for extents in [
            [2, 3, 4, 5],
            [2, 37, 50, 1],
            [3, 1, 5, 16],
            [2, 0, 3, 4],
            [1, 7, 2, 1],
        ] {
            let [a, b, c, run] = extents;
            let x = values(extents.iter().product(), 1);
            let mut y = vec![f32::NAN; x.len()];
            swap_axes(extents, &x, &mut y);
            for (at, y) in y.iter().enumerate() {
                let (place, row) = (at % run, at / run);
                let (second, third, first) = (row % b, row / b % c, row / b / c);
                assert_eq!(*y, x[((first * b + second) * c + third) * run + place]);
            }
            let mut back = vec![f32::NAN; x.len()];
            swap_axes([a, c, b, run], &y, &mut back);
            assert_eq!(back, x);
        }
    }

    #[test]
    fn values_are_widened_and_rounded() {
        let x = values(9001, 3);
        let narrow: Vec<bf16> = x.iter().map(|x| bf16::from_f32(*x)).collect();
        let (rounded, wide) = same_everywhere(|isa| {
            let mut rounded = vec![bf16::NAN; x.len()];
            let mut wide = vec![f32::NAN; x.len()];
            convert(isa, &x, &mut rounded);
            convert(isa, &rounded, &mut wide);
            (rounded, wide)
        });
        assert_eq!(rounded, narrow);
        assert!(
            wide.iter()
                .zip(&narrow)
                .all(|(wide, narrow)| *wide == narrow.to_f32())
        );
    }

    #[test]
    fn rows_are_joined_and_parted() {
        for (rows, widths) in [(1, [1, 1]), (150, [3, 16]), (0, [2, 3])] {
            let [left, right] = [0, 1].map(|side| values(rows * widths[side], side as u64));
            let width = widths[0] + widths[1];
            let mut y = vec![f32::NAN; rows * width];
            join(widths, [&left, &right], &mut y);
            for (at, y) in y.iter().enumerate() {
                let (row, column) = (at / width, at % width);
                let expected = match column.checked_sub(widths[0]) {
                    None => left[row * widths[0] + column],
                    Some(column) => right[row * widths[1] + column],
                };
                assert_eq!(*y, expected);
            }
            let mut parts = [left.clone(), right.clone()].map(|side| vec![f32::NAN; side.len()]);
            let [a, b] = &mut parts;
            part(widths, &y, [a, b]);
            assert_eq!(parts, [left, right]);
        }
    }

    #[test]
    fn parts_of_rows_are_summed_the_same_everywhere() {
        for (rows, width) in [(1, 1), (150, 19), (0, 2)] {
            let y = values(rows * 2 * width, 3);
            let x = same_everywhere(|isa| {
                let mut x = vec![f32::NAN; rows * width];
                sum_parts(isa, width, &y, &mut x);
                x
            });
            for (at, x) in x.iter().enumerate() {
                let left = at / width * 2 * width + at % width;
                assert_eq!(*x, y[left] + y[left + width]);
            }
        }
    }

    #[test]
    fn values_are_repeated_and_summed_the_same_everywhere() {
        for (len, times) in [(10_000, 2), (777, 3), (5, 1), (0, 4)] {
            let x = values(len, 1);
            let mut y = vec![f32::NAN; len * times];
            repeat(times, &x, &mut y);
            assert!(y.iter().enumerate().all(|(at, y)| *y == x[at / times]));
            let dy = values(y.len(), 2);
            let sums = same_everywhere(|isa| {
                let mut sums = vec![f32::NAN; len];
                sum_repeated(isa, times, &dy, &mut sums);
                sums
            });
            for (sum, dy) in sums.iter().zip(dy.chunks_exact(times)) {
                assert_eq!(*sum, dy.iter().sum::<f32>());
            }
        }
    }

    #[test]
    #[should_panic(expected = "copies: right: expected 6 values, got 5")]
    fn a_wrong_length_is_named() {
        join([1, 3], [&[0.0; 2], &[0.0; 5]], &mut [0.0; 7]);
    }
}
