//! Inverse discrete cosine transform (IDCT) of eight blocks at once.
//!
//! In: coefficients of blocks in zigzag order. Out: 8x8 bytes per block.
//! Invariant: the bits are those of libjpeg's "islow" on every instruction set. For coarse
//! quantisation, they are those of libjpeg-turbo's 16-bit vectors.
//! Source: Loeffler, Ligtenberg and Moschytz 1989, "Practical fast 1-D DCT algorithms with 11
//! multiplications". Fixed-point constants have 13 bits. Columns come first, and 2 more bits are
//! kept between the passes.

use std::num::Wrapping;

/// Number of blocks that are transformed together.
pub(super) const LANES: usize = 8;

/// Position in the block, row by row, of each zigzag index. Indices beyond the block have position
/// 64.
const PLACES: [u8; 256] = {
    let mut places = [64; 256];
    let mut index = 0;
    let mut diagonal = 0;
    while diagonal < 15 {
        let mut step = 0;
        while step <= diagonal {
            // Odd diagonals run downwards.
            let (row, column) = if diagonal % 2 == 1 {
                (step, diagonal - step)
            } else {
                (diagonal - step, step)
            };
            if row < 8 && column < 8 {
                places[index] = (8 * row + column) as u8;
                index += 1;
            }
            step += 1;
        }
        diagonal += 1;
    }
    places
};

/// Coefficients of up to eight blocks. Unset coefficients are zero.
pub(super) struct Group {
    /// True if intermediate values may exceed 16 bits.
    is_coarse: bool,
    /// `[row, column, block]`.
    values: [[i32; 8 * LANES]; 8],
}

impl Group {
    /// Returns an empty group for these quantisation steps. With 8-bit steps no image has values
    /// above 16 bits.
    pub(super) fn new<'a>(mut quantizations: impl Iterator<Item = &'a [i32; 64]>) -> Self {
        let is_coarse = quantizations.any(|steps| steps.iter().any(|step| *step > 255));
        Self {
            is_coarse,
            values: [[0; 8 * LANES]; 8],
        }
    }

    /// Sets the coefficient at a zigzag index. Ignores indices beyond the block.
    #[inline(always)]
    pub(super) fn set(&mut self, place: u8, lane: usize, value: i32) {
        let place = usize::from(PLACES[usize::from(place)]);
        if let Some(row) = self.values.get_mut(place / 8) {
            row[place % 8 * LANES + lane % LANES] = value;
        }
    }

    /// Transforms the blocks, writes their rows of eight bytes, and clears the group. `starts` is
    /// the position of each block's first row. Rows are `stride` bytes apart.
    #[inline(always)]
    pub(super) fn write(&mut self, starts: &[(usize, usize)], planes: &mut [u8]) {
        if self.is_coarse {
            self.write_coarse(starts, planes)
        } else {
            self.write_in::<false>(starts, planes)
        }
    }

    #[inline(never)]
    fn write_coarse(&mut self, starts: &[(usize, usize)], planes: &mut [u8]) {
        self.write_in::<true>(starts, planes);
    }

    #[inline(always)]
    fn write_in<const SHORT: bool>(&mut self, starts: &[(usize, usize)], planes: &mut [u8]) {
        let values = &mut self.values;
        for index in 0..8 * LANES {
            let [a, b, c, d, e, f, g, h] = &*values;
            let column = [
                a[index], b[index], c[index], d[index], e[index], f[index], g[index], h[index],
            ];
            for (row, value) in values.iter_mut().zip(one_dimension::<SHORT>(column, 11)) {
                row[index] = if SHORT {
                    value.clamp(i16::MIN.into(), i16::MAX.into())
                } else {
                    value
                };
            }
        }
        for (row, values) in values.iter_mut().enumerate() {
            for lane in 0..LANES {
                let at = |column: usize| values[column * LANES + lane];
                let transformed = one_dimension::<SHORT>(
                    [at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7)],
                    18,
                );
                for (column, value) in transformed.into_iter().enumerate() {
                    values[column * LANES + lane] = value;
                }
            }
            let mut bytes = [0; 8 * LANES];
            for (byte, value) in bytes.iter_mut().zip(&mut *values) {
                *byte = value.wrapping_add(128).clamp(0, 255) as u8;
            }
            *values = [0; 8 * LANES];
            for ((start, stride), block) in starts.iter().zip(transposed(&bytes)) {
                planes[start + row * stride..][..8].copy_from_slice(&block);
            }
        }
    }
}

/// Returns the eight values of a row or column with these frequencies, divided by 2^`bits`. If
/// `SHORT`, values and their sums are cut to 16 bits.
#[inline(always)]
fn one_dimension<const SHORT: bool>(frequencies: [i32; 8], bits: u32) -> [i32; 8] {
    let short = |value: Wrapping<i32>| {
        if SHORT {
            Wrapping(i32::from(value.0 as i16))
        } else {
            value
        }
    };
    let [f0, f1, f2, f3, f4, f5, f6, f7] = frequencies.map(|value| short(Wrapping(value)));
    let times = |value: Wrapping<i32>, factor: i32| value * Wrapping(factor);
    let shared = times(f2 + f6, 4433);
    let even2 = shared - times(f6, 15_137);
    let even3 = shared + times(f2, 6270);
    let even0 = short(f0 + f4) << 13;
    let even1 = short(f0 - f4) << 13;
    let even = [even0 + even3, even1 + even2, even1 - even2, even0 - even3];

    let a = f7 + f1;
    let b = f5 + f3;
    let c = short(f7 + f3);
    let d = short(f5 + f1);
    let shared = times(c + d, 9633);
    let a = times(a, -7373);
    let b = times(b, -20_995);
    let c = shared - times(c, 16_069);
    let d = shared - times(d, 3196);
    let odd = [
        times(f1, 12_299) + a + d,
        times(f3, 25_172) + b + c,
        times(f5, 16_819) + b + d,
        times(f7, 2446) + a + c,
    ];

    let half = Wrapping(1 << (bits - 1));
    let sum = |index: usize| (even[index] + odd[index] + half).0 >> bits;
    let difference = |index: usize| (even[index] - odd[index] + half).0 >> bits;
    [
        sum(0),
        sum(1),
        sum(2),
        sum(3),
        difference(3),
        difference(2),
        difference(1),
        difference(0),
    ]
}

/// Transposes 8x8 bytes: swaps bytes, then 2x2 blocks, then 4x4 blocks.
#[inline(always)]
fn transposed(bytes: &[u8; 64]) -> [[u8; 8]; 8] {
    let mut rows = [0; 8];
    for (row, bytes) in rows.iter_mut().zip(bytes.as_chunks().0) {
        *row = u64::from_le_bytes(*bytes);
    }
    for row in [0, 2, 4, 6] {
        exchange(&mut rows, row, 1, 0x00FF_00FF_00FF_00FF);
    }
    for row in [0, 1, 4, 5] {
        exchange(&mut rows, row, 2, 0x0000_FFFF_0000_FFFF);
    }
    for row in [0, 1, 2, 3] {
        exchange(&mut rows, row, 4, 0x0000_0000_FFFF_FFFF);
    }
    rows.map(u64::to_le_bytes)
}

/// Swaps the bytes outside `mask` of a row with the bytes inside `mask` of the row `distance`
/// below.
#[inline(always)]
fn exchange(rows: &mut [u64; 8], row: usize, distance: usize, mask: u64) {
    let upper = rows[row];
    let lower = rows[row + distance];
    rows[row] = upper & mask | (lower & mask) << (8 * distance);
    rows[row + distance] = upper >> (8 * distance) & mask | lower & !mask;
}
