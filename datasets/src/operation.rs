//! Image operations of TrivialAugment, RandAugment and other distortions.
//!
//! In: u8 `[H, W, C]`. Out: the changed image.
//! Invariant: pixels equal those of PIL, bit for bit, for images with three channels.

use crate::dataset::ImageShape;

/// An operation and its strength.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Operation {
    Identity,
    /// Affine map. Output pixel (x, y) is source pixel (a x + b y + c, d x + e y + f), at the
    /// centres of pixels.
    Affine([f64; 6], Reading),
    /// Shift of source pixels to the right and down, as fractions of width and height.
    Translate([f64; 2], Reading),
    /// Counterclockwise rotation in degrees.
    Rotate(f64, Reading),
    /// Brightness factor. Below 1 pixels move towards black, above 1 away from black.
    Brightness(f32),
    /// Saturation factor, relative to grey.
    Color(f32),
    /// Contrast factor, relative to the mean.
    Contrast(f32),
    /// Turn of the hue, -0.5 to 0.5, as a share of a full turn. Grey images have no hue.
    Hue(f32),
    /// Sharpness factor, relative to a smoothed image.
    Sharpness(f32),
    /// Number of bits that are kept.
    Posterize(u32),
    /// Threshold from which values are inverted.
    Solarize(f64),
    /// Number that is added to values below 128, up to 255.
    SolarizeAdd(u8),
    Invert,
    AutoContrast,
    Equalize,
}

/// Interpolation of source pixels, and the colour outside the source.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Reading {
    /// Nearest pixel. Black outside.
    Nearest,
    /// Two nearest pixels in each direction. The outside has this colour, repeated for more
    /// channels.
    Bilinear([u8; 3]),
    /// Four nearest pixels in each direction, with a cubic. The outside has this colour.
    Bicubic([u8; 3]),
}

impl Operation {
    /// Applies the operation to an image.
    ///
    /// # Shapes
    /// `image`: `[H, W, C]` of `shape`.
    pub(crate) fn apply(self, image: &mut [u8], shape: ImageShape) {
        match self {
            Self::Identity => {}
            Self::Affine(matrix, reading) => affine(image, shape, matrix, reading),
            Self::Translate([x, y], reading) => {
                let pixels = [x * shape.width as f64, y * shape.height as f64];
                affine(
                    image,
                    shape,
                    [1.0, 0.0, pixels[0], 0.0, 1.0, pixels[1]],
                    reading,
                );
            }
            Self::Rotate(degrees, reading) => {
                affine(image, shape, rotation(degrees, shape), reading)
            }
            Self::Brightness(factor) => image
                .iter_mut()
                .for_each(|value| *value = blend(0, *value, factor)),
            Self::Color(factor) => {
                for pixel in image.chunks_exact_mut(shape.channels) {
                    let grey = luminance(pixel);
                    pixel
                        .iter_mut()
                        .for_each(|value| *value = blend(grey, *value, factor));
                }
            }
            Self::Contrast(factor) => {
                let pixels = image.chunks_exact(shape.channels);
                let count = pixels.len();
                let sum = pixels.map(|pixel| u64::from(luminance(pixel))).sum::<u64>();
                let mean = (sum as f64 / count as f64 + 0.5) as u8;
                image
                    .iter_mut()
                    .for_each(|value| *value = blend(mean, *value, factor));
            }
            Self::Hue(turn) if shape.channels == 3 => turn_hue(image, turn),
            Self::Hue(_) => {}
            Self::Sharpness(factor) => {
                let smooth = smoothed(image, shape);
                image
                    .iter_mut()
                    .zip(smooth)
                    .for_each(|(value, smooth)| *value = blend(smooth, *value, factor));
            }
            Self::Posterize(bits) => image
                .iter_mut()
                .for_each(|value| *value &= (0xff00_u16 >> bits) as u8),
            Self::Solarize(threshold) => {
                image
                    .iter_mut()
                    .filter(|value| f64::from(**value) >= threshold)
                    .for_each(|value| *value = 255 - *value);
            }
            Self::SolarizeAdd(added) => {
                image
                    .iter_mut()
                    .filter(|value| **value < 128)
                    .for_each(|value| *value = value.saturating_add(added));
            }
            Self::Invert => image.iter_mut().for_each(|value| *value = 255 - *value),
            Self::AutoContrast => map_channels(image, shape, stretched),
            Self::Equalize => map_channels(image, shape, equalized),
        }
    }
}

/// Returns `from` plus `factor` times the difference to `to`. The factor may be below 0 or above 1.
fn blend(from: u8, to: u8, factor: f32) -> u8 {
    // The conversion rounds towards zero and clamps to the range of bytes.
    (f32::from(from) + factor * (f32::from(to) - f32::from(from))) as u8
}

/// Returns ITU-R 601's luma of a pixel with three channels. Otherwise returns the mean.
fn luminance(pixel: &[u8]) -> u8 {
    match *pixel {
        [red, green, blue] => {
            ((u32::from(red) * 19_595
                + u32::from(green) * 38_470
                + u32::from(blue) * 7_471
                + (1 << 15))
                >> 16) as u8
        }
        _ => {
            (pixel.iter().map(|value| usize::from(*value)).sum::<usize>() / pixel.len().max(1))
                as u8
        }
    }
}

/// Turns the hue of RGB pixels, through PIL's HSV with 8 bits a value.
fn turn_hue(image: &mut [u8], turn: f32) {
    let turn = (f64::from(turn) * 255.0) as i32 as u8;
    for pixel in image.chunks_exact_mut(3) {
        let [red, green, blue] = [pixel[0], pixel[1], pixel[2]];
        let value = red.max(green).max(blue);
        let range = value - red.min(green).min(blue);
        if range == 0 {
            continue;
        }
        let range = f32::from(range);
        let below = |channel| f64::from(f32::from(value - channel) / range);
        let (start, next, last) = if red == value {
            (0.0, blue, green)
        } else if green == value {
            (2.0, red, blue)
        } else {
            (4.0, green, red)
        };
        let sixths = (start + below(next) - below(last)) as f32;
        let turns = f64::from(sixths) / 6.0 + 1.0;
        let hue = if turns < 1.0 { turns } else { turns - 1.0 } as f32;
        let hue = (f64::from(hue) * 255.0) as u8;
        let saturation = (f64::from(range / f32::from(value)) * 255.0) as u8;
        pixel.copy_from_slice(&rgb(hue.wrapping_add(turn), saturation, value));
    }
}

/// Converts PIL's HSV of a pixel to RGB.
fn rgb(hue: u8, saturation: u8, value: u8) -> [u8; 3] {
    // Places of the channels in the array at the end, for each sixth of a turn.
    const CHANNELS: [[usize; 3]; 6] = [
        [0, 1, 2],
        [3, 0, 2],
        [2, 0, 1],
        [2, 3, 0],
        [1, 2, 0],
        [0, 2, 3],
    ];
    let sixths = f64::from(hue) * 6.0 / 255.0;
    let sixth = sixths as u8;
    let way = f64::from((sixths - f64::from(sixth)) as f32);
    let saturation = f64::from((f64::from(saturation) / 255.0) as f32);
    // Rounds to the nearest, half up.
    let scaled = |factor: f64| (f64::from(value) * factor + 0.5) as u8;
    let values = [
        value,
        scaled(1.0 - saturation * (1.0 - way)),
        scaled(1.0 - saturation),
        scaled(1.0 - saturation * way),
    ];
    CHANNELS[usize::from(sixth % 6)].map(|place| values[place])
}

/// Returns the matrix of a rotation around the image's centre.
fn rotation(degrees: f64, shape: ImageShape) -> [f64; 6] {
    let radians = -degrees.rem_euclid(360.0).to_radians();
    // Fifteen digits give a right angle a cosine of 0.
    let rounded = |value: f64| (value * 1e15).round_ties_even() / 1e15;
    let cos = rounded(libm::cos(radians));
    let sin = rounded(libm::sin(radians));
    let x = shape.width as f64 / 2.0;
    let y = shape.height as f64 / 2.0;
    [
        cos,
        sin,
        cos * -x + sin * -y + x,
        -sin,
        cos,
        -sin * -x + cos * -y + y,
    ]
}

/// Applies an affine map to an image.
fn affine(image: &mut [u8], shape: ImageShape, matrix: [f64; 6], reading: Reading) {
    match reading {
        // A number of channels that the compiler knows is faster.
        Reading::Nearest if shape.channels == 3 => {
            let channels = 3;
            nearest(image, ImageShape { channels, ..shape }, matrix);
        }
        Reading::Nearest => nearest(image, shape, matrix),
        Reading::Bilinear(fill) => interpolated(image, shape, matrix, fill, linear),
        Reading::Bicubic(fill) => interpolated(image, shape, matrix, fill, cubic),
    }
}

/// Reads each pixel from the nearest source pixel of `matrix`, black outside. The fixed-point
/// numbers have 16 fractional bits.
#[inline(always)]
fn nearest(image: &mut [u8], shape: ImageShape, [a, b, c, d, e, f]: [f64; 6]) {
    let ImageShape {
        height,
        width,
        channels,
    } = shape;
    let source = image.to_vec();
    let fixed = |value: f64| (value * 65_536.0 + 0.5).floor() as i64;
    let inside = |place: i64, len: usize| {
        usize::try_from(place >> 16)
            .ok()
            .filter(|place| *place < len)
    };
    let mut first_x = fixed(c + a * 0.5 + b * 0.5);
    let mut first_y = fixed(f + d * 0.5 + e * 0.5);
    for row in image.chunks_exact_mut(width * channels) {
        let mut x = first_x;
        let mut y = first_y;
        for pixel in row.chunks_exact_mut(channels) {
            match (inside(x, width), inside(y, height)) {
                (Some(x), Some(y)) => {
                    pixel.copy_from_slice(
                        &source[(y * width + x) * channels..(y * width + x + 1) * channels],
                    );
                }
                _ => pixel.fill(0),
            }
            x += fixed(a);
            y += fixed(d);
        }
        first_x += fixed(b);
        first_y += fixed(e);
    }
}

/// Interpolates each pixel from N x N source pixels around its position of `matrix`. Positions
/// outside the image have the value `fill`. Neighbours outside are the border's pixels.
fn interpolated<const N: usize>(
    image: &mut [u8],
    shape: ImageShape,
    [a, b, c, d, e, f]: [f64; 6],
    fill: [u8; 3],
    between: fn([f64; N], f64) -> f64,
) {
    let ImageShape {
        height,
        width,
        channels,
    } = shape;
    let source = image.to_vec();
    for (place, pixel) in image.chunks_exact_mut(channels).enumerate() {
        let column = (place % width) as f64 + 0.5;
        let row = (place / width) as f64 + 0.5;
        let x = a * column + b * row + c;
        let y = d * column + e * row + f;
        if !(0.0..width as f64).contains(&x) || !(0.0..height as f64).contains(&y) {
            pixel
                .iter_mut()
                .zip(fill.iter().cycle())
                .for_each(|(value, fill)| *value = *fill);
            continue;
        }
        let x = x - 0.5;
        let y = y - 0.5;
        let first = |place: f64| place.floor() as isize - (N as isize / 2 - 1);
        let neighbour = |first: isize, index: usize, len: usize| {
            (first + index as isize).clamp(0, len as isize - 1) as usize
        };
        for (channel, value) in pixel.iter_mut().enumerate() {
            let read = |row: usize, column: usize| {
                let y = neighbour(first(y), row, height);
                let x = neighbour(first(x), column, width);
                f64::from(source[(y * width + x) * channels + channel])
            };
            let rows = std::array::from_fn(|row| {
                between(
                    std::array::from_fn(|column| read(row, column)),
                    x - x.floor(),
                )
            });
            // The conversion rounds towards zero and clamps to the range of bytes.
            *value = between(rows, y - y.floor()) as u8;
        }
    }
}

fn linear([first, second]: [f64; 2], way: f64) -> f64 {
    first + (second - first) * way
}

/// Returns the value of a cubic through the two middle points. Its slopes there are those between
/// their neighbours (a = -1).
fn cubic([before, first, second, after]: [f64; 4], way: f64) -> f64 {
    let slope = second - before;
    let curve = 2.0 * (before - first) + second - after;
    first + way * (slope + way * (curve + way * (first - before - second + after)))
}

/// Returns the weighted mean of each pixel, with weight five, and its eight neighbours.
///
/// Border pixels are unchanged.
fn smoothed(image: &[u8], shape: ImageShape) -> Vec<u8> {
    let ImageShape {
        height,
        width,
        channels,
    } = shape;
    let mut output = image.to_vec();
    let row = width * channels;
    for y in 1..height.saturating_sub(1) {
        for place in y * row + channels..(y + 1) * row - channels {
            let sum: u32 = [place - row, place, place + row]
                .into_iter()
                .flat_map(|place| [place - channels, place, place + channels])
                .map(|place| u32::from(image[place]))
                .sum();
            output[place] = ((2 * (sum + 4 * u32::from(image[place])) + 13) / 26) as u8;
        }
    }
    output
}

/// Replaces the values of each channel by the table that `table` computes from the channel's
/// histogram.
fn map_channels(image: &mut [u8], shape: ImageShape, table: fn(&[usize; 256]) -> [u8; 256]) {
    for channel in 0..shape.channels {
        let mut histogram = [0; 256];
        image
            .iter()
            .skip(channel)
            .step_by(shape.channels)
            .for_each(|value| histogram[usize::from(*value)] += 1);
        let table = table(&histogram);
        image
            .iter_mut()
            .skip(channel)
            .step_by(shape.channels)
            .for_each(|value| *value = table[usize::from(*value)]);
    }
}

fn identity() -> [u8; 256] {
    std::array::from_fn(|value| value as u8)
}

/// Returns the table that maps the darkest value to 0 and the brightest to 255.
fn stretched(histogram: &[usize; 256]) -> [u8; 256] {
    let is_used = |value: &usize| histogram[*value] > 0;
    let darkest = (0..256).find(is_used);
    let brightest = (0..256).rfind(is_used);
    let (Some(darkest), Some(brightest)) =
        (darkest, brightest.filter(|value| Some(*value) != darkest))
    else {
        return identity();
    };
    let scale = 255.0 / (brightest - darkest) as f64;
    std::array::from_fn(|value| (value as f64 * scale - darkest as f64 * scale) as u8)
}

/// Returns the table that makes all values approximately equally frequent.
fn equalized(histogram: &[usize; 256]) -> [u8; 256] {
    let Some(brightest) = (0..256).rfind(|value| histogram[*value] > 0) else {
        return identity();
    };
    let step = (histogram.iter().sum::<usize>() - histogram[brightest]) / 255;
    if step == 0 {
        return identity();
    }
    let mut sum = step / 2;
    std::array::from_fn(|value| {
        let place = sum / step;
        sum += histogram[value];
        place.min(255) as u8
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const SHAPE: ImageShape = ImageShape {
        height: 12,
        width: 10,
        channels: 3,
    };

    /// Returns a picture with edges, ramps and noise. The first channel has few different values.
    pub(crate) fn picture() -> Vec<u8> {
        let value = |y: usize, x: usize, channel: usize| match channel {
            0 => 40 + 30 * ((x / 5 + y / 6) % 3),
            1 => (x * 9 + y * 3) % 256,
            _ => (x * x * 7 + y * 31 + x * y) % 199 + 20,
        };
        let places = (0..SHAPE.num_values()).map(|place| (place / 30, place / 3 % 10, place % 3));
        places
            .map(|(y, x, channel)| value(y, x, channel) as u8)
            .collect()
    }
}
