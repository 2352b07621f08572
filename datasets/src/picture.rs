//! A batch as a picture for people.
//!
//! In: normalised pixels of images of one shape. Out: a PNG of the images next to each other.
//! Invariant: pixels have their values before normalisation, up to rounding. Values outside 0..1
//! are clipped.

use image::codecs::png::PngEncoder;
use image::{ExtendedColorType, ImageEncoder};

use crate::{ImageShape, Normalization};

/// Images side by side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Picture {
    /// The encoded picture.
    pub png: Vec<u8>,
    /// Shape of the picture.
    pub shape: ImageShape,
}

/// Arranges the images of `pixels` `[N, H, W, C]` in a square, row by row. Returns `None` if there
/// are no images, or if they have neither 1 nor 3 channels.
///
/// # Panics
/// Panics if `pixels` is not a whole number of images of `shape`, or if `normalization` has another
/// number of channels.
pub fn picture(
    pixels: &[f32],
    shape: ImageShape,
    normalization: &Normalization,
) -> Option<Picture> {
    let ImageShape {
        height,
        width,
        channels,
    } = shape;
    let color = match channels {
        1 => ExtendedColorType::L8,
        3 => ExtendedColorType::Rgb8,
        _ => return None,
    };
    let images = pixels.chunks_exact(height * width * channels);
    assert!(
        images.remainder().is_empty() && normalization.mean.len() == channels,
        "picture: expected images of {shape:?}"
    );
    if images.len() == 0 {
        return None;
    }
    let columns = (images.len() as f64).sqrt().ceil() as usize;
    let whole = ImageShape {
        height: images.len().div_ceil(columns) * height,
        width: columns * width,
        channels,
    };
    let mut bytes = vec![0; whole.height * whole.width * channels];
    for (index, image) in images.enumerate() {
        let top = index / columns * height;
        let left = index % columns * width;
        for (y, row) in image.chunks_exact(width * channels).enumerate() {
            let start = ((top + y) * whole.width + left) * channels;
            for (at, value) in row.iter().enumerate() {
                let channel = at % channels;
                let value = value * normalization.std[channel] + normalization.mean[channel];
                bytes[start + at] = (value * 255.0).round() as u8;
            }
        }
    }
    let mut png = Vec::new();
    let size = [whole.width, whole.height].map(u32::try_from);
    PngEncoder::new(&mut png)
        .write_image(&bytes, size[0].ok()?, size[1].ok()?, color)
        .ok()?;
    Some(Picture { png, shape: whole })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_has_the_pixels_of_its_images_in_rows() {
        let shape = ImageShape {
            height: 1,
            width: 2,
            channels: 3,
        };
        let bytes: Vec<u8> = (0..18).map(|value| value * 14).collect();
        let normalization = Normalization {
            mean: vec![0.4, 0.5, 0.6],
            std: vec![0.1, 0.2, 0.3],
        };
        let normalised = |(at, byte): (usize, &u8)| {
            (f32::from(*byte) / 255.0 - normalization.mean[at % 3]) / normalization.std[at % 3]
        };
        let pixels: Vec<f32> = bytes.iter().enumerate().map(normalised).collect();
        let picture = picture(&pixels, shape, &normalization).unwrap();
        assert_eq!(
            picture.shape,
            ImageShape {
                height: 2,
                width: 4,
                channels: 3
            }
        );
        let read = image::load_from_memory(&picture.png).unwrap().into_rgb8();
        assert_eq!(read.dimensions(), (4, 2));
        assert_eq!(read.as_raw()[..18], bytes);
        assert_eq!(read.as_raw()[18..], [0; 6]);
    }

    #[test]
    fn there_is_no_picture_of_nothing_or_of_other_channels() {
        let shape = |channels| ImageShape {
            height: 1,
            width: 1,
            channels,
        };
        assert_eq!(
            picture(&[0.0; 4], shape(4), &Normalization::uniform(4)),
            None
        );
        assert_eq!(picture(&[], shape(1), &Normalization::uniform(1)), None);
    }
}
