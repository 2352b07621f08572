//! One product of tiles that is equal for every implementation, to check the instructions.
//!
//! In: an implementation of tiles.
//! Out: four sums.
//! Invariant: whole numbers below 2^24, so rounding can neither hide an error of layout nor cause a
//! difference.

use super::{TILE_ROWS, TILE_VALUES, Tiles};
use crate::simd::bits_of;

/// Bytes from one row of a left factor to the next: not a whole line, so that strides are checked.
const STRIDE_VALUES: usize = TILE_VALUES + 5;
const COLUMNS: usize = 16;

/// Returns the sums `[2, rows, 2, 16]` of two left and two right factors, multiplied twice.
///
/// # Safety
/// The implementation's instructions exist.
pub(super) unsafe fn of_whole_numbers<T: Tiles>(rows: usize) -> [f32; 2 * TILE_ROWS * 2 * COLUMNS] {
    // SAFETY: passed on to the caller.
    unsafe {
        of::<T>(rows, |index| {
            bits_of(((index * index + 5 * index) % 31) as f32 - 15.0)
        })
    }
}

/// Does the same as [`of_whole_numbers`] for any values, given as bits of bf16.
///
/// # Safety
/// The implementation's instructions exist.
pub(super) unsafe fn of<T: Tiles>(
    rows: usize,
    value: impl Fn(usize) -> u16,
) -> [f32; 2 * TILE_ROWS * 2 * COLUMNS] {
    let mut left = [0u16; 2 * TILE_ROWS * STRIDE_VALUES];
    let mut right = [0u16; 2 * TILE_ROWS * TILE_VALUES];
    left.iter_mut()
        .chain(&mut right)
        .enumerate()
        .for_each(|(index, slot)| *slot = value(index));
    let mut sums = [0.0f32; 2 * TILE_ROWS * 2 * COLUMNS];
    let left = left.as_ptr().cast::<u8>();
    let right = right.as_ptr().cast::<u8>();
    let left_stride = 2 * STRIDE_VALUES;
    let row = 2 * TILE_VALUES;
    let tile = 2 * TILE_VALUES * TILE_ROWS;
    let out = sums.as_mut_ptr().cast::<u8>();
    let out_stride = 2 * COLUMNS * 4;
    // SAFETY: at most 16 rows of 64 bytes at these strides lie in the arrays; instructions by
    // contract.
    unsafe {
        let mut tiles = T::configure(rows);
        tiles.load::<4>(left, left_stride);
        tiles.load::<5>(left.add(TILE_ROWS * left_stride), left_stride);
        tiles.load::<6>(right, row);
        tiles.load::<7>(right.add(tile), row);
        tiles.multiply::<3, 4, 6>();
        tiles.zero::<3>();
        for _ in 0..2 {
            tiles.multiply::<0, 4, 6>();
            tiles.multiply::<1, 4, 7>();
            tiles.multiply::<2, 5, 6>();
            tiles.multiply::<3, 5, 7>();
        }
        tiles.store::<0>(out, out_stride);
        tiles.store::<1>(out.add(64), out_stride);
        tiles.store::<2>(out.add(TILE_ROWS * out_stride), out_stride);
        tiles.store::<3>(out.add(TILE_ROWS * out_stride + 64), out_stride);
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::amx::Emulated;

    #[test]
    fn the_emulated_product_of_whole_numbers_is_their_matrix_product() {
        for rows in [1, 7, 16] {
            // SAFETY: the emulation needs no instructions.
            let sums = unsafe { of_whole_numbers::<Emulated>(rows) };
            let value = |index: usize| ((index * index + 5 * index) % 31) as f32 - 15.0;
            let right = 2 * TILE_ROWS * STRIDE_VALUES;
            for (index, sum) in sums.iter().enumerate() {
                let row = index / 32;
                let column = index % 32;
                let tile = column / COLUMNS;
                let lane = column % COLUMNS;
                let product = |k: usize| {
                    let pair = right + tile * 512 + k / 2 * TILE_VALUES + 2 * lane + k % 2;
                    value(row * STRIDE_VALUES + k) * value(pair)
                };
                let expected: f32 = (0..TILE_VALUES).map(product).sum();
                let expected = if row % TILE_ROWS < rows {
                    2.0 * expected
                } else {
                    0.0
                };
                assert_eq!(*sum, expected, "{rows} rows: row {row}, column {column}");
            }
        }
    }
}
