//! Resizes a part of an image to the size of a sample, like Pillow and torchvision.
//!
//! In: u8 `[h, w, C]` and a [`View`] of it. Out: u8 `[H, W, C]`.
//! Invariant: the filter is bilinear, widens as the image shrinks (antialiased), and rounds to 8
//! bits after each of two passes. Each value differs by at most 1 from Pillow's on the images of a
//! test. On other images the difference is rarely 2 (4 values of 263,000).

use std::cell::RefCell;

use fast_image_resize::images::{TypedCroppedImage, TypedImage, TypedImageRef};
use fast_image_resize::pixels::U8x3;
use fast_image_resize::{FilterType, ResizeAlg, ResizeOptions, Resizer};

/// A non-empty part of an image, in whole pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CropBox {
    /// Number of columns to the left of the part.
    pub left: u32,
    /// Number of rows above the part.
    pub top: u32,
    /// Number of columns in the part.
    pub width: u32,
    /// Number of rows in the part.
    pub height: u32,
}

/// Part of an image that becomes a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum View {
    /// A part that is cropped before the resize, as in torchvision's `resized_crop`. The filter
    /// reads no pixels outside the part.
    Crop(CropBox),
    /// Centre of the image after the resize of its shorter side to this length, as in torchvision's
    /// `Resize` and `CenterCrop`.
    Middle {
        /// Length of the shorter side, at least the height and width of the sample, in pixels.
        shorter_side: u32,
    },
}

impl View {
    /// Returns the pixels of an image that are needed for a sample of `lines` rows and `columns`
    /// columns. The result may be larger than necessary.
    pub(crate) fn reads(self, [width, height]: [u32; 2], [columns, lines]: [u32; 2]) -> CropBox {
        let shorter_side = match self {
            Self::Crop(part) => return part,
            Self::Middle { shorter_side } => shorter_side,
        };
        let resized = resized_size([width, height], shorter_side);
        // The filter reads one resulting pixel more on each side.
        let along = |len: u32, resized: u32, wanted: u32| {
            let (start, seen) = middle(len, resized, wanted);
            let margin = (f64::from(len) / f64::from(resized)).max(1.0) + 2.0;
            let first = (start - margin).max(0.0) as u32;
            (
                first,
                ((start + seen + margin).ceil() as u32).min(len) - first,
            )
        };
        let (left, across) = along(width, resized[0], columns);
        let (top, down) = along(height, resized[1], lines);
        CropBox {
            left,
            top,
            width: across,
            height: down,
        }
    }

    /// Resizes the part into `output`.
    ///
    /// # Shapes
    /// `image`: `[height, width, C]`. Only pixels inside [`reads`](Self::reads) matter. `output`:
    /// `[H, W, C]`.
    ///
    /// # Panics
    /// Panics if a slice does not fit its shape, or if a crop is not inside its image.
    pub(crate) fn apply(self, image: &[u8], size: [u32; 2], shape: [usize; 3], output: &mut [u8]) {
        let [height, width, channels] = shape;
        if channels == 3 {
            return self.apply_to_rgb(image, size, [width as u32, height as u32], output);
        }
        // Other numbers of channels are rare. Each channel is tripled.
        let mut resized = vec![0; 3 * height * width];
        for channel in 0..channels {
            let of_channel = image.iter().skip(channel).step_by(channels);
            let rgb: Vec<u8> = of_channel.flat_map(|value| [*value; 3]).collect();
            self.apply_to_rgb(&rgb, size, [width as u32, height as u32], &mut resized);
            let values = output.iter_mut().skip(channel).step_by(channels);
            values
                .zip(resized.chunks_exact(3))
                .for_each(|(value, rgb)| *value = rgb[0]);
        }
    }

    fn apply_to_rgb(
        self,
        image: &[u8],
        [width, height]: [u32; 2],
        [columns, lines]: [u32; 2],
        output: &mut [u8],
    ) {
        let source =
            TypedImageRef::<U8x3>::from_buffer(width, height, image).expect("an image of its size");
        let mut target =
            TypedImage::<U8x3>::from_buffer(columns, lines, output).expect("a sample of its shape");
        let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(FilterType::Bilinear));
        let (part, options) = match self {
            Self::Crop(part) => (part, options),
            Self::Middle { shorter_side } => {
                // Only the middle is computed, from its source pixels and their neighbours.
                let [wide, high] = resized_size([width, height], shorter_side);
                let (left, across) = middle(width, wide, columns);
                let (top, down) = middle(height, high, lines);
                (
                    CropBox {
                        left: 0,
                        top: 0,
                        width,
                        height,
                    },
                    options.crop(left, top, across, down),
                )
            }
        };
        let CropBox {
            left,
            top,
            width,
            height,
        } = part;
        // A single source type suffices, and each type is compiled for every instruction set.
        let part = TypedCroppedImage::new(source, left, top, width, height)
            .expect("a crop inside the image");
        let resized =
            RESIZER.with_borrow_mut(|resizer| resizer.resize_typed(&part, &mut target, &options));
        resized.expect("a part inside the crop");
    }
}

thread_local! {
    /// Resizer of this thread, with the memory between its two passes.
    static RESIZER: RefCell<Resizer> = RefCell::new(Resizer::new());
}

/// Returns the width and the height after the resize of the shorter side to `shorter_side`.
///
/// The longer side is rounded down, as in torchvision's `Resize`.
fn resized_size([width, height]: [u32; 2], shorter_side: u32) -> [u32; 2] {
    let short = u64::from(width.min(height));
    let long = u64::from(width.max(height));
    let longer_side = (u64::from(shorter_side) * long / short) as u32;
    if width <= height {
        [shorter_side, longer_side]
    } else {
        [longer_side, shorter_side]
    }
}

/// Returns the start and the length of the middle `wanted` pixels of a side that is resized to
/// `resized`.
///
/// Both are in pixels of the original side of `len` pixels. An odd remainder is cut as in
/// torchvision's `CenterCrop`: half a pixel is rounded to the even number.
fn middle(len: u32, resized: u32, wanted: u32) -> (f64, f64) {
    let first = (f64::from(resized - wanted) / 2.0).round_ties_even();
    let scale = f64::from(len) / f64::from(resized);
    let start = first * scale;
    (
        start,
        (f64::from(wanted) * scale).min(f64::from(len) - start),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longer_side_is_rounded_down_as_torchvision_does() {
        // int(256 * 500 / 375) = 341; int(256 * 333 / 500)'s shorter side is the width.
        assert_eq!(resized_size([500, 375], 256), [341, 256]);
        assert_eq!(resized_size([333, 500], 256), [256, 384]);
        assert_eq!(resized_size([7, 7], 256), [256, 256]);
        assert_eq!(resized_size([1, 16_384], 8), [8, 131_072]);
    }

    #[test]
    fn half_a_pixel_of_margin_is_rounded_to_the_even_number() {
        // Total margins of 117, 115 and 32 pixels on both sides.
        for (resized, first) in [(341, 58.0), (339, 58.0), (256, 16.0)] {
            assert_eq!(middle(resized, resized, 224), (first, 224.0));
        }
        assert_eq!(middle(227, 227, 224), (2.0, 224.0));
        assert_eq!(middle(225, 225, 224), (0.0, 224.0));
    }

    #[test]
    fn the_middle_never_reaches_beyond_the_image() {
        for len in 1..400 {
            for resized in [224, 225, 256, 300, 401] {
                let (start, columns) = middle(len, resized, 224);
                assert!(
                    start >= 0.0 && start + columns <= f64::from(len),
                    "{len} {resized}"
                );
            }
        }
    }

    /// Returns the image that `make.py` draws.
    fn drawn(width: u32, height: u32) -> Vec<u8> {
        let pixel =
            |y: u32, x: u32, channel: u32| ((x * 7 + y * 13 + channel * 50) ^ (x * y / 3)) as u8;
        let row = |y| (0..width).flat_map(move |x| (0..3).map(move |channel| pixel(y, x, channel)));
        (0..height).flat_map(row).collect()
    }

    #[test]
    fn each_value_is_within_one_of_that_of_pillow() {
        let cases = include_bytes!("../tests/images/resize/resized.bin");
        let mut num_cases = 0;
        let mut rest = &cases[..];
        while let Some((numbers, behind)) = rest.split_first_chunk::<16>() {
            let [width, height, left, top, w, h, size, _] = std::array::from_fn(|at| {
                u32::from(u16::from_le_bytes([numbers[2 * at], numbers[2 * at + 1]]))
            });
            let (expected, behind) = behind.split_at((size * size * 3) as usize);
            let view = match w {
                0 => View::Middle { shorter_side: h },
                _ => View::Crop(CropBox {
                    left,
                    top,
                    width: w,
                    height: h,
                }),
            };
            let mut got = vec![0; expected.len()];
            view.apply(
                &drawn(width, height),
                [width, height],
                [size as usize, size as usize, 3],
                &mut got,
            );
            let difference = got
                .iter()
                .zip(expected)
                .map(|(got, expected)| got.abs_diff(*expected))
                .max()
                .unwrap();
            assert!(
                difference <= 1,
                "{width} x {height}, {view:?}: off by {difference}"
            );
            num_cases += 1;
            rest = behind;
        }
        assert_eq!((num_cases, rest.len()), (19, 0));
    }

    #[test]
    fn what_is_not_read_of_an_image_does_not_matter() {
        for case in 0..120 {
            let [width, height] = [1 + case * 37 % 211, 1 + case * 53 % 173];
            let size = 1 + case * 7 % 40;
            let view = View::Middle {
                shorter_side: size + case * 11 % 50,
            };
            let part = view.reads([width, height], [size, size]);
            let is_read = |x: u32, y: u32| {
                (part.left..part.left + part.width).contains(&x)
                    && (part.top..part.top + part.height).contains(&y)
            };
            let resized = |outside: u8| {
                let mut image = drawn(width, height);
                for (place, value) in (0..).zip(&mut image) {
                    if !is_read(place / 3 % width, place / 3 / width) {
                        *value = outside;
                    }
                }
                let mut output = vec![0; (3 * size * size) as usize];
                view.apply(
                    &image,
                    [width, height],
                    [size as usize, size as usize, 3],
                    &mut output,
                );
                output
            };
            assert!(
                resized(0) == resized(255),
                "{width} x {height}, {view:?}, {size}"
            );
        }
    }

    #[test]
    fn each_channel_is_resized_alone() {
        let rgb = drawn(31, 22);
        let view = View::Crop(CropBox {
            left: 2,
            top: 1,
            width: 25,
            height: 20,
        });
        let mut expected = vec![0; 9 * 8 * 3];
        view.apply(&rgb, [31, 22], [9, 8, 3], &mut expected);
        for channels in [1, 2] {
            let first: Vec<u8> = rgb
                .chunks(3)
                .flat_map(|pixel| &pixel[..channels])
                .copied()
                .collect();
            let mut got = vec![0; 9 * 8 * channels];
            view.apply(&first, [31, 22], [9, 8, channels], &mut got);
            let expected: Vec<u8> = expected
                .chunks(3)
                .flat_map(|pixel| &pixel[..channels])
                .copied()
                .collect();
            assert_eq!(got, expected, "{channels}");
        }
    }
}
