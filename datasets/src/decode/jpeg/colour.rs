//! Conversion of brightness and colour planes to RGB.
//!
//! In: rows of planes with the image's size, or half its width or height. Out: rows of RGB.
//! Invariant: the results have the bits of libjpeg-turbo, and for CMYK the bits of Pillow.
//! Source: JFIF (ITU-T T.871), section 7.

/// Two rows for an interpolation, and the rounding constants for left and right pixels.
#[derive(Clone, Copy)]
pub(super) struct Mix<'a> {
    /// The row that contains the pixels, and the nearest other row. At a border both are the same
    /// row.
    pub(super) rows: [&'a [u8]; 2],
    pub(super) rounding: [u16; 2],
}

impl Mix<'_> {
    /// Interpolates a row: three parts of the nearer row and one part of the other row.
    #[inline(always)]
    pub(super) fn between_rows(self, columns: std::ops::Range<usize>, output: &mut [u8]) {
        let [near, far] = self.rows.map(|row| &row[columns.clone()]);
        for (output, (near, far)) in output.iter_mut().zip(near.iter().zip(far)) {
            *output = ((3 * u16::from(*near) + u16::from(*far) + self.rounding[0]) >> 2) as u8;
        }
    }
}

/// Doubles the width of a row by interpolation: three parts of the nearest colour and one part of
/// the next. The first and last colours are repeated beyond the ends.
///
/// # Shapes
/// `columns`: colours to double. `wide`: at least two values per column. `sums`: scratch memory.
#[inline(always)]
pub(super) fn widen(
    mix: Mix<'_>,
    columns: std::ops::Range<usize>,
    sums: &mut Vec<u16>,
    wide: &mut [u8],
) {
    // Loops over indices are inlined in development builds. Nested zips are not.
    let [near, far] = mix.rows;
    let sum = |near: &[u8], far: &[u8], column: usize| {
        3 * u16::from(near[column]) + u16::from(far[column])
    };
    let [first, last] = [
        columns.start.saturating_sub(1),
        columns.end.min(near.len() - 1),
    ]
    .map(|column| sum(near, far, column));
    let near = &near[columns.clone()];
    let far = &far[columns.clone()];
    let len = columns.len();
    sums.resize(sums.len().max(len + 2), 0);
    let sums = &mut sums[..len + 2];
    (sums[0], sums[len + 1]) = (first, last);
    for (column, middle) in sums[1..=len].iter_mut().enumerate() {
        *middle = sum(near, far, column);
    }
    let left = &sums[..len];
    let middle = &sums[1..=len];
    let right = &sums[2..];
    let pairs = &mut wide.as_chunks_mut().0[..len];
    for column in 0..len {
        // The sum is below 2^12.
        let both = middle[column].wrapping_mul(3);
        let left = both
            .wrapping_add(left[column])
            .wrapping_add(mix.rounding[0]);
        let right = both
            .wrapping_add(right[column])
            .wrapping_add(mix.rounding[1]);
        pairs[column] = [(left >> 4) as u8, (right >> 4) as u8];
    }
}

/// Converts a row of pixels to RGB.
///
/// # Shapes
/// `brightness`, `blue`, `red`: `[W]`; `rgb`: `[W, 3]`.
#[inline(always)]
pub(in crate::decode) fn to_rgb(brightness: &[u8], blue: &[u8], red: &[u8], rgb: &mut [u8]) {
    // Factors below one half keep factors and differences in 16 bits. The factors are 1.402, 1.772,
    // 0.34414 and 0.71414 in units of 2^-16.
    let rounded = |sum: i32| (sum + (1 << 15)) >> 16;
    let pixels = rgb.as_chunks_mut().0;
    let len = pixels.len();
    let brightness = &brightness[..len];
    let blue = &blue[..len];
    let red = &red[..len];
    for column in 0..len {
        let [blue, red] = [blue[column], red[column]].map(|colour| i32::from(colour) - 128);
        let byte = |value: i32| (i32::from(brightness[column]) + value).clamp(0, 255) as u8;
        pixels[column] = [
            byte(red + rounded(26_345 * red)),
            byte(rounded(-22_554 * blue + 18_734 * red) - red),
            byte(2 * blue + rounded(-14_942 * blue)),
        ];
    }
}

/// Converts CMYK pixels to RGB. `inverted` is the mask of inverted bits in the three inks. Files
/// store the ink `black` inverted.
///
/// The rounding of a product of two bytes is that of Pillow's `convert("RGB")`.
#[inline(always)]
pub(in crate::decode) fn darken(pixels: &mut [u8], inverted: u8, black: &[u8]) {
    for (pixel, light) in pixels.as_chunks_mut::<3>().0.iter_mut().zip(black) {
        for value in pixel {
            let product = u32::from(*value ^ inverted) * u32::from(*light) + 128;
            *value = light.saturating_sub(((product + (product >> 8)) >> 8) as u8);
        }
    }
}
