//! Tiles in plain Rust, with the semantics of the CPU.
//!
//! In, out: as [`Tiles`].
//! Invariant: rounds to nearest, ties to even; subnormal inputs and results are zero, as in the
//! Software Developer's Manual.

use super::{TILE_ROWS, Tiles, has_given_rows};
use crate::simd::value_of;

const COLUMNS: usize = 16;

/// Eight tiles in memory; a word is an f32 or a pair of bf16, the first one low.
pub(crate) struct Emulated {
    rows: usize,
    tiles: [[[u32; COLUMNS]; TILE_ROWS]; 8],
}

impl Emulated {
    fn rows_of(&self, tile: usize) -> usize {
        if has_given_rows(tile) {
            self.rows
        } else {
            TILE_ROWS
        }
    }
}

// SAFETY of all methods: only those with a pointer need it, and only that the rows exist.
impl Tiles for Emulated {
    unsafe fn configure(rows: usize) -> Self {
        assert!((1..=TILE_ROWS).contains(&rows), "tiles: {rows} rows");
        Self {
            rows,
            tiles: [[[0; COLUMNS]; TILE_ROWS]; 8],
        }
    }

    unsafe fn zero<const SUM: usize>(&mut self) {
        self.tiles[SUM] = [[0; COLUMNS]; TILE_ROWS];
    }

    unsafe fn load<const TILE: usize>(&mut self, p: *const u8, stride: usize) {
        for row in 0..self.rows_of(TILE) {
            // SAFETY: the trait's contract, which the caller keeps.
            self.tiles[TILE][row] = unsafe {
                p.add(row * stride)
                    .cast::<[u32; COLUMNS]>()
                    .read_unaligned()
            };
        }
    }

    unsafe fn multiply<const SUM: usize, const LEFT: usize, const RIGHT: usize>(&mut self) {
        for row in 0..self.rows_of(SUM) {
            let left = self.tiles[LEFT][row];
            for column in 0..COLUMNS {
                let mut sums = [0.0f32; 2];
                for (pair, right) in left.iter().zip(&self.tiles[RIGHT]) {
                    for (half, sum) in sums.iter_mut().enumerate() {
                        let [a, b] = [*pair, right[column]]
                            .map(|pair| flushed(value_of((pair >> (16 * half)) as u16)));
                        *sum = flushed(a.mul_add(b, *sum));
                    }
                }
                let sum = flushed(f32::from_bits(self.tiles[SUM][row][column]));
                self.tiles[SUM][row][column] = flushed(sum + flushed(sums[0] + sums[1])).to_bits();
            }
        }
    }

    unsafe fn store<const SUM: usize>(&self, p: *mut u8, stride: usize) {
        for row in 0..self.rows_of(SUM) {
            // SAFETY: the trait's contract, which the caller keeps.
            unsafe {
                p.add(row * stride)
                    .cast::<[u32; COLUMNS]>()
                    .write_unaligned(self.tiles[SUM][row])
            };
        }
    }
}

/// Returns zero of the same sign in place of a subnormal number.
fn flushed(value: f32) -> f32 {
    if value.is_subnormal() {
        0.0f32.copysign(value)
    } else {
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::bits_of;

    /// The first element of a product whose left row and right column are given.
    fn first_of_product(left: [f32; 4], right: [f32; 4]) -> f32 {
        let bits = |values: [f32; 4]| values.map(|value| u32::from(bits_of(value)));
        let left = bits(left);
        let right = bits(right);
        // SAFETY: of a single row and column, in local arrays of a whole row each.
        unsafe {
            let mut tiles = Emulated::configure(1);
            let mut row = [0u32; COLUMNS];
            let mut rows = [[0u32; COLUMNS]; TILE_ROWS];
            for k in 0..2 {
                row[k] = left[2 * k] | left[2 * k + 1] << 16;
                rows[k][0] = right[2 * k] | right[2 * k + 1] << 16;
            }
            tiles.load::<4>(row.as_ptr().cast(), 0);
            tiles.load::<6>(rows.as_ptr().cast(), 64);
            tiles.multiply::<0, 4, 6>();
            let mut sums = [0.0f32; COLUMNS];
            tiles.store::<0>(sums.as_mut_ptr().cast(), 0);
            assert_eq!(sums[1..], [0.0; 15]);
            sums[0]
        }
    }

    #[test]
    fn even_and_odd_products_are_added_apart_and_then_together() {
        let large = 2f32.powi(60);
        assert_eq!(
            first_of_product([large, 3.0, -large, 4.0], [1.0, 1.0, 1.0, 0.5]),
            5.0
        );
        assert_eq!(
            first_of_product([large, -large, 3.0, 0.0], [1.0; 4]),
            0.0,
            "3 is lost next to 2^60"
        );
    }

    #[test]
    fn subnormal_inputs_and_results_are_zero() {
        let smallest = f32::MIN_POSITIVE;
        assert_eq!(
            first_of_product([smallest / 2.0, 0.0, 0.0, 0.0], [2.0; 4]),
            0.0
        );
        assert_eq!(first_of_product([smallest, 0.0, 0.0, 0.0], [0.5; 4]), 0.0);
        assert_eq!(
            first_of_product([smallest, 0.0, 0.0, 0.0], [1.0; 4]),
            smallest
        );
    }
}
