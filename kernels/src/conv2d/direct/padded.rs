//! Copies a band of an image into a buffer with zeros around it.

use super::factor::Factor;
use crate::Element;
use crate::simd::Simd;

/// Source and padding of a band; extents in pixels.
#[derive(Clone, Copy)]
pub(crate) struct Band {
    pub(crate) in_h: usize,
    pub(crate) in_w: usize,
    /// Channels to copy, and elements from one pixel of the image to the next.
    pub(crate) channels: usize,
    pub(crate) pixel_stride: usize,
    /// The image row of the first padded row; rows outside the image are zero.
    pub(crate) first_row: isize,
    pub(crate) rows: usize,
    pub(crate) pad_left: usize,
    pub(crate) padded_w: usize,
    /// Only the first `taps` of every `step` rows are copied.
    pub(crate) step: usize,
    pub(crate) taps: usize,
}

/// Fills `padded` (`[rows, padded_w, channels]`) from `image`, which starts with the first channel
/// to copy, converted.
pub(crate) fn copy_band<S: Simd, E: Element, X: Factor>(
    image: &[E],
    band: &Band,
    padded: &mut [X],
) {
    let Band {
        channels,
        pixel_stride,
        ..
    } = *band;
    let row_len = band.padded_w * channels;
    let left = band.pad_left * channels;
    for (index, row) in padded.chunks_exact_mut(row_len).take(band.rows).enumerate() {
        if index % band.step >= band.taps {
            continue;
        }
        let from = band.first_row + index as isize;
        if from < 0 || from >= band.in_h as isize {
            row.fill(X::default());
            continue;
        }
        let source = &image[from as usize * band.in_w * pixel_stride..];
        // The last row of an image that is one run of pixels may be short.
        let in_w = band.in_w.min(source.len().div_ceil(pixel_stride));
        let copied = (in_w * channels).min(row_len - left);
        row[..left].fill(X::default());
        if channels == pixel_stride {
            X::convert::<S, E>(&source[..copied], &mut row[left..left + copied]);
        } else {
            let pixels = row[left..left + copied].chunks_exact_mut(channels);
            for (pixel, source) in pixels.zip(source.chunks(pixel_stride)) {
                X::convert::<S, E>(&source[..channels], pixel);
            }
        }
        row[left + copied..].fill(X::default());
    }
}
