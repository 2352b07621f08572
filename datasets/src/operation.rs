//! Operations on images: what TrivialAugment and RandAugment choose from.
//!
//! In: u8 `[H, W, C]`. Out: the same image, changed. Invariant: pixels are PIL's, bit by bit, for
//! images of three channels.

use crate::dataset::ImageShape;

/// An operation and its strength.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Operation {
    Identity,
    /// Output pixel (x, y) is source pixel (a x + b y + c, d x + e y + f), from the middle of
    /// pixels.
    Affine([f64; 6], Reading),
    /// Source pixels lie so far to the right and below, in parts of the width and the height.
    Translate([f64; 2], Reading),
    /// Degrees against the clock.
    Rotate(f64, Reading),
    /// Towards black below a factor of 1, away from it above; so the next three.
    Brightness(f32),
    /// Towards grey.
    Color(f32),
    /// Towards the mean.
    Contrast(f32),
    /// Towards a smooth image.
    Sharpness(f32),
    /// Bits that are kept.
    Posterize(u32),
    /// Values from this on are inverted.
    Solarize(f64),
    /// Values below 128 grow by this, up to 255.
    SolarizeAdd(u8),
    Invert,
    AutoContrast,
    Equalize,
}

/// Interpolation of pixels between and beyond those of the source.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Reading {
    /// The nearest; black outside.
    Nearest,
    /// The two nearest in each direction; this outside, the first channel first, which begins again
    /// for more.
    Bilinear([u8; 3]),
    /// The four nearest in each direction, by a cubic; this outside.
    Bicubic([u8; 3]),
}

impl Operation {
    /// Changes an image.
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

/// `from` plus `factor` times the way to `to`; beyond both, too.
fn blend(from: u8, to: u8, factor: f32) -> u8 {
    // A float becomes the nearest integer towards zero within the range of bytes.
    (f32::from(from) + factor * (f32::from(to) - f32::from(from))) as u8
}

/// ITU-R 601's luma of a pixel of three channels; of others the mean.
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

/// Returns the matrix that turns an image around its middle.
fn rotation(degrees: f64, shape: ImageShape) -> [f64; 6] {
    let radians = -degrees.rem_euclid(360.0).to_radians();
    // Fifteen digits: a right angle has a cosine of 0.
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

/// Moves the pixels of an image.
fn affine(image: &mut [u8], shape: ImageShape, matrix: [f64; 6], reading: Reading) {
    match reading {
        Reading::Nearest => nearest(image, shape, matrix),
        Reading::Bilinear(fill) => interpolated(image, shape, matrix, fill, linear),
        Reading::Bicubic(fill) => interpolated(image, shape, matrix, fill, cubic),
    }
}

/// Reads each pixel from the nearest place of `matrix`, black outside, in fixed point with 16 bits
/// behind it.
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

/// Reads each pixel from between its N x N neighbours at its place of `matrix`; places outside the
/// image are `fill`, neighbours outside are the border's pixels.
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
            // A float becomes the nearest integer towards zero within the range of bytes.
            *value = between(rows, y - y.floor()) as u8;
        }
    }
}

fn linear([first, second]: [f64; 2], way: f64) -> f64 {
    first + (second - first) * way
}

/// Returns the cubic through the two in the middle whose slopes there are those between their
/// neighbours (a = -1).
fn cubic([before, first, second, after]: [f64; 4], way: f64) -> f64 {
    let slope = second - before;
    let curve = 2.0 * (before - first) + second - after;
    first + way * (slope + way * (curve + way * (first - before - second + after)))
}

/// Returns the weighted mean of each pixel, which counts five times, and its eight neighbours.
///
/// The border stays as it is.
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

/// Gives each value of a channel the one that `table` makes of the channel's histogram.
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

/// Returns the table after which all values are about equally frequent.
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

    /// Returns a picture with edges, ramps and noise; in the first channel only few values.
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
