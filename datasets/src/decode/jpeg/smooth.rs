//! Estimates low frequencies of a truncated progressive file from the DC coefficients of 5x5
//! blocks.
//!
//! In: blocks, and the number of known bits of each coefficient. Out: the blocks, with estimates in
//! place of zeros that are not exact.
//! Invariant: the values equal those of libjpeg-turbo's `decompress_smooth_data`.
//! Source: ITU-T T.81, section K.8, with a larger window.

use super::coefficients::Coefficients;
use super::header::{Component, Header};
use super::scans::{SMOOTHED, State};
use super::{Layout, most_sampling};

/// Weights of the DC coefficients around a block, row by row.
type Window = [[i64; 5]; 5];

const NONE: [i64; 5] = [0; 5];

/// Zigzag index of a coefficient, zigzag index of the coefficient with the transposed window, and
/// the window.
type Estimate = (usize, usize, Window);

/// Estimates for components with known DC coefficients only.
const OF_MEANS: [Estimate; 5] = [
    (
        1,
        2,
        [
            [-1, -1, 0, 1, 1],
            [-3, 13, 0, -13, 3],
            [-3, 38, 0, -38, 3],
            [-3, 13, 0, -13, 3],
            [-1, -1, 0, 1, 1],
        ],
    ),
    (
        5,
        3,
        [
            NONE,
            [0, 2, -5, 2, 0],
            [1, 7, -14, 7, 1],
            [0, 2, -5, 2, 0],
            NONE,
        ],
    ),
    (
        4,
        4,
        [
            [-1, 0, 0, 0, 1],
            [0, 9, 0, -9, 0],
            NONE,
            [0, -9, 0, 9, 0],
            [1, 0, 0, 0, -1],
        ],
    ),
    (
        6,
        9,
        [
            NONE,
            [0, 1, 0, -1, 0],
            [0, 2, 0, -2, 0],
            [0, 1, 0, -1, 0],
            NONE,
        ],
    ),
    (
        7,
        8,
        [NONE, [0, 1, -3, 1, 0], NONE, [0, -1, 3, -1, 0], NONE],
    ),
];

/// Weights for a smoothed DC coefficient, in units of 1/256.
const MEAN: Window = [
    [-2, -6, -8, -6, -2],
    [-6, 6, 42, 6, -6],
    [-8, 42, 152, 42, -8],
    [-6, 6, 42, 6, -6],
    [-2, -6, -8, -6, -2],
];

/// Estimates for components with some known AC coefficients.
const OF_MORE: [Estimate; 3] = [
    (1, 2, [NONE, NONE, [-7, 50, 0, -50, 7], NONE, NONE]),
    (5, 3, [NONE, NONE, [-1, 13, -24, 13, -1], NONE, NONE]),
    (
        4,
        4,
        [
            [0, -1, 0, 1, 0],
            [-1, 10, 0, -10, 1],
            NONE,
            [1, -10, 0, 10, -1],
            [0, 1, 0, -1, 0],
        ],
    ),
];

/// Estimates the coefficients of a component.
///
/// # Shapes
/// `blocks`: all blocks of the component, including those beyond the image.
pub(super) fn smooth(
    blocks: &mut [Coefficients],
    header: &Header,
    component: &Component,
    layout: &Layout,
    state: &State,
) {
    let quantization = state.quantization.map(i64::from);
    let knows_means_only = state.lowest_bits[SMOOTHED].iter().all(Option::is_none);
    let estimates = if knows_means_only {
        &OF_MEANS[..]
    } else {
        &OF_MORE
    };
    let [across, down] = component.sampling;
    let stride = across * layout.size[0];
    let most = most_sampling(&header.components);
    let [columns, rows] =
        [0, 1].map(|side| (header.size[side] * component.sampling[side]).div_ceil(8 * most[side]));
    let means: Vec<i64> = blocks.iter().map(|block| i64::from(block[0])).collect();
    for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column))) {
        // libjpeg counts rows as if all MCUs had as many rows as the MCU of this block. The last
        // MCUs have fewer rows.
        let rows_of_unit = down.min(rows - row / down * down);
        let counted = row / down * rows_of_unit + row % down;
        let all = layout.size[1] * rows_of_unit;
        let above = row - counted.min(1);
        let below = row + usize::from(counted + 1 < all);
        let around: Window = [
            if counted > 1 { row - 2 } else { above },
            above,
            row,
            below,
            if counted + 2 < all { row + 2 } else { below },
        ]
        .map(|y| {
            std::array::from_fn(|x| {
                means[y * stride + (column + x).saturating_sub(2).min(columns - 1)]
            })
        });
        let weighted = |window: &Window, is_exchanged: bool| -> i64 {
            let weight = |y: usize, x: usize| {
                if is_exchanged {
                    window[x][y]
                } else {
                    window[y][x]
                }
            };
            (0..25)
                .map(|index| weight(index / 5, index % 5) * around[index / 5][index % 5])
                .sum()
        };
        let rounded = |sum: i64, step: i64| {
            let scaled = quantization[0] * sum;
            scaled.signum() * (((step << 7) + scaled.abs()) / (step << 8))
        };
        let block = &mut blocks[row * stride + column];
        for (place, exchanged_place, window) in estimates {
            for (place, is_exchanged) in [(*place, false), (*exchanged_place, true)] {
                let lowest_bit = state.lowest_bits[place];
                if block[place] != 0 || lowest_bit == Some(0) {
                    continue;
                }
                let value = rounded(weighted(window, is_exchanged), quantization[place]);
                // The estimate stays below the lowest known bit, because the known bits are zero.
                let most = lowest_bit.map_or(i64::MAX, |bit| (1 << bit) - 1);
                block[place] = value.clamp(-most, most) as i16;
            }
        }
        if knows_means_only {
            block[0] = rounded(weighted(&MEAN, false), quantization[0]) as i16;
        }
    }
}
