//! TrivialAugment: one random operation of random strength on each training image.
//!
//! In: u8 `[H, W, C]`, (seed, epoch, sample index). Out: the same image, changed.
//! Invariant: the draw depends on these only; pixels are PIL's, bit by bit, for images of three channels.
//! Source: Müller and Hutter 2021, TrivialAugment (2103.10158), the wide space of operations, as torchvision's `TrivialAugmentWide`.

use crate::dataset::ImageShape;
use crate::random::{Purpose, Stream};

/// Strengths that an operation can have.
const NUM_BINS: usize = 31;

/// An operation and its strength.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Operation {
    Identity,
    /// Output pixel (x, y) is source pixel (a x + b y + c, d x + e y + f), from the middle of pixels.
    Affine([f64; 6]),
    /// Degrees against the clock.
    Rotate(f64),
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
    AutoContrast,
    Equalize,
}

impl Operation {
    /// Draws what is done to one sample in one epoch.
    pub(crate) fn draw(seed: u64, epoch: u64, index: usize) -> Self {
        let mut stream = Stream::new(seed, epoch, index as u64, Purpose::TrivialAugment);
        let (kind, bin) = (stream.below(14), stream.below(NUM_BINS));
        Self::of(kind, bin, stream.coin())
    }

    /// The operation of this number, at one of the strengths; some have two directions.
    fn of(kind: usize, bin: usize, is_negative: bool) -> Self {
        let up_to = |largest: f64| largest * bin as f64 / (NUM_BINS - 1) as f64;
        let signed = |largest| if is_negative { -up_to(largest) } else { up_to(largest) };
        let factor = || (1.0 + signed(0.99)) as f32;
        match kind {
            0 => Self::Identity,
            1 => Self::Affine([1.0, signed(0.99), 0.0, 0.0, 1.0, 0.0]),
            2 => Self::Affine([1.0, 0.0, 0.0, signed(0.99), 1.0, 0.0]),
            3 => Self::Affine([1.0, 0.0, -signed(32.0).trunc(), 0.0, 1.0, 0.0]),
            4 => Self::Affine([1.0, 0.0, 0.0, 0.0, 1.0, -signed(32.0).trunc()]),
            5 => Self::Rotate(signed(135.0)),
            6 => Self::Brightness(factor()),
            7 => Self::Color(factor()),
            8 => Self::Contrast(factor()),
            9 => Self::Sharpness(factor()),
            10 => Self::Posterize(8 - up_to(6.0).round_ties_even() as u32),
            11 => Self::Solarize(255.0 - up_to(255.0)),
            12 => Self::AutoContrast,
            _ => Self::Equalize,
        }
    }

    /// Changes an image.
    ///
    /// # Shapes
    /// `image`: `[H, W, C]` of `shape`.
    pub(crate) fn apply(self, image: &mut [u8], shape: ImageShape) {
        match self {
            Self::Identity => {}
            Self::Affine(matrix) => affine(image, shape, matrix),
            Self::Rotate(degrees) => affine(image, shape, rotation(degrees, shape)),
            Self::Brightness(factor) => image.iter_mut().for_each(|value| *value = blend(0, *value, factor)),
            Self::Color(factor) => {
                for pixel in image.chunks_exact_mut(shape.channels) {
                    let grey = luminance(pixel);
                    pixel.iter_mut().for_each(|value| *value = blend(grey, *value, factor));
                }
            }
            Self::Contrast(factor) => {
                let pixels = image.chunks_exact(shape.channels);
                let (count, sum) = (pixels.len(), pixels.map(|pixel| u64::from(luminance(pixel))).sum::<u64>());
                let mean = (sum as f64 / count as f64 + 0.5) as u8;
                image.iter_mut().for_each(|value| *value = blend(mean, *value, factor));
            }
            Self::Sharpness(factor) => {
                let smooth = smoothed(image, shape);
                image.iter_mut().zip(smooth).for_each(|(value, smooth)| *value = blend(smooth, *value, factor));
            }
            Self::Posterize(bits) => image.iter_mut().for_each(|value| *value &= !0 << (8 - bits)),
            Self::Solarize(threshold) => {
                image
                    .iter_mut()
                    .filter(|value| f64::from(**value) >= threshold)
                    .for_each(|value| *value = 255 - *value);
            }
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
            ((u32::from(red) * 19_595 + u32::from(green) * 38_470 + u32::from(blue) * 7_471 + (1 << 15)) >> 16) as u8
        }
        _ => (pixel.iter().map(|value| usize::from(*value)).sum::<usize>() / pixel.len().max(1)) as u8,
    }
}

/// What turns an image around its middle.
fn rotation(degrees: f64, shape: ImageShape) -> [f64; 6] {
    let radians = -degrees.to_radians();
    // Fifteen digits: a right angle has a cosine of 0.
    let rounded = |value: f64| (value * 1e15).round_ties_even() / 1e15;
    let (cos, sin) = (rounded(libm::cos(radians)), rounded(libm::sin(radians)));
    let (x, y) = (shape.width as f64 / 2.0, shape.height as f64 / 2.0);
    [cos, sin, cos * -x + sin * -y + x, -sin, cos, -sin * -x + cos * -y + y]
}

/// Reads each pixel from the nearest place of `matrix`, black outside, in fixed point with 16 bits behind it.
fn affine(image: &mut [u8], shape: ImageShape, [a, b, c, d, e, f]: [f64; 6]) {
    let ImageShape { height, width, channels } = shape;
    let source = image.to_vec();
    let fixed = |value: f64| (value * 65_536.0 + 0.5).floor() as i64;
    let inside = |place: i64, len: usize| usize::try_from(place >> 16).ok().filter(|place| *place < len);
    let (mut first_x, mut first_y) = (fixed(c + a * 0.5 + b * 0.5), fixed(f + d * 0.5 + e * 0.5));
    for row in image.chunks_exact_mut(width * channels) {
        let (mut x, mut y) = (first_x, first_y);
        for pixel in row.chunks_exact_mut(channels) {
            match (inside(x, width), inside(y, height)) {
                (Some(x), Some(y)) => {
                    pixel.copy_from_slice(&source[(y * width + x) * channels..(y * width + x + 1) * channels]);
                }
                _ => pixel.fill(0),
            }
            (x, y) = (x + fixed(a), y + fixed(d));
        }
        (first_x, first_y) = (first_x + fixed(b), first_y + fixed(e));
    }
}

/// Each pixel five times with its eight neighbours; the border stays.
fn smoothed(image: &[u8], shape: ImageShape) -> Vec<u8> {
    let ImageShape { height, width, channels } = shape;
    let (mut output, row) = (image.to_vec(), width * channels);
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
        image.iter().skip(channel).step_by(shape.channels).for_each(|value| histogram[usize::from(*value)] += 1);
        let table = table(&histogram);
        image.iter_mut().skip(channel).step_by(shape.channels).for_each(|value| *value = table[usize::from(*value)]);
    }
}

fn identity() -> [u8; 256] {
    std::array::from_fn(|value| value as u8)
}

/// The darkest value becomes 0, the brightest 255.
fn stretched(histogram: &[usize; 256]) -> [u8; 256] {
    let is_used = |value: &usize| histogram[*value] > 0;
    let (darkest, brightest) = ((0..256).find(is_used), (0..256).rfind(is_used));
    let (Some(darkest), Some(brightest)) = (darkest, brightest.filter(|value| Some(*value) != darkest)) else {
        return identity();
    };
    let scale = 255.0 / (brightest - darkest) as f64;
    std::array::from_fn(|value| (value as f64 * scale - darkest as f64 * scale) as u8)
}

/// Each value about equally often.
fn equalized(histogram: &[usize; 256]) -> [u8; 256] {
    let Some(brightest) = (0..256).rfind(|value| histogram[*value] > 0) else { return identity() };
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
mod tests {
    use super::*;

    /// `datasets/tests/images/trivial_augment.py` made them with PIL: of each operation five strengths, both directions.
    const FIXTURE: &[u8] = include_bytes!("../tests/images/trivial_augment.bin");
    const SHAPE: ImageShape = ImageShape { height: 12, width: 10, channels: 3 };

    /// A picture with edges, ramps and noise; in the first channel only few values.
    fn picture() -> Vec<u8> {
        let value = |y: usize, x: usize, channel: usize| match channel {
            0 => 40 + 30 * ((x / 5 + y / 6) % 3),
            1 => (x * 9 + y * 3) % 256,
            _ => (x * x * 7 + y * 31 + x * y) % 199 + 20,
        };
        let places = (0..SHAPE.num_values()).map(|place| (place / 30, place / 3 % 10, place % 3));
        places.map(|(y, x, channel)| value(y, x, channel) as u8).collect()
    }

    #[test]
    fn every_operation_gives_the_pixels_of_pil() {
        let mut expected = FIXTURE.chunks_exact(SHAPE.num_values());
        for kind in 0..14 {
            for bin in [0, 7, 15, 20, 30] {
                for is_negative in [false, true] {
                    let mut image = picture();
                    let operation = Operation::of(kind, bin, is_negative);
                    operation.apply(&mut image, SHAPE);
                    assert!(image == expected.next().unwrap(), "{operation:?}");
                }
            }
        }
        assert_eq!(expected.next(), None);
    }

    #[test]
    fn an_image_of_one_value_or_one_pixel_is_no_hindrance() {
        for shape in [ImageShape { height: 1, width: 1, channels: 1 }, ImageShape { height: 2, width: 7, channels: 4 }]
        {
            for (kind, bin) in (0..14).flat_map(|kind| (0..NUM_BINS).map(move |bin| (kind, bin))) {
                Operation::of(kind, bin, false).apply(&mut vec![9; shape.num_values()], shape);
            }
        }
    }

    #[test]
    fn every_operation_is_drawn_about_equally_often_and_depends_on_seed_epoch_and_index() {
        let draws = |seed, epoch| (0..14_000).map(move |index| Operation::draw(seed, epoch, index));
        let count = draws(1, 1).filter(|operation| matches!(operation, Operation::Equalize)).count();
        // Five standard deviations of a binomial with n = 14,000 and p = 1/14 are 152.
        assert!(count.abs_diff(1000) < 152, "{count}");
        assert!(draws(1, 1).eq(draws(1, 1)) && !draws(1, 1).eq(draws(2, 1)) && !draws(1, 1).eq(draws(1, 2)));
    }
}
