//! Normalises u8 pixels to f32, including crop and flip in the same pass.
//!
//! In: u8 `[H, W, C]` and an [`ImageShift`]. Out: f32 `[H, W, C]`, each (p / 255 - mean) / std.
//! Invariant: every value comes from a table with 256 entries per channel, so it is exact and needs
//! only one load.

use crate::augment::ImageShift;
use crate::dataset::{ImageShape, Normalization};

/// Number of values of a u8.
pub(crate) const NUM_PIXEL_VALUES: usize = 256;

/// Normalised value of each pixel value, per channel.
#[derive(Clone, Debug, PartialEq)]
pub struct NormalizationTable {
    channels: Vec<[f32; NUM_PIXEL_VALUES]>,
}

impl NormalizationTable {
    /// Computes the table in f32, like torchvision's `ToTensor` and `Normalize`.
    ///
    /// # Panics
    /// Panics if the numbers of means and standard deviations differ, or if a standard deviation is
    /// not above 0.
    pub fn new(normalization: &Normalization) -> Self {
        let Normalization { mean, std } = normalization;
        assert_eq!(
            mean.len(),
            std.len(),
            "normalization: one mean and one std a channel"
        );
        assert!(
            std.iter().all(|std| *std > 0.0),
            "normalization: expected std above 0, got {std:?}"
        );
        let channels = mean
            .iter()
            .zip(std)
            .map(|(mean, std)| std::array::from_fn(|pixel| (pixel as f32 / 255.0 - mean) / std))
            .collect();
        Self { channels }
    }

    /// Returns the number of channels.
    pub fn num_channels(&self) -> usize {
        self.channels.len()
    }

    /// Returns the table `[C, 256]`.
    pub fn values(&self) -> Vec<f32> {
        self.channels.concat()
    }

    /// Writes one normalised image.
    ///
    /// # Shapes
    /// `source` and `output`: `[H, W, C]` of `shape`.
    ///
    /// # Panics
    /// Panics if the lengths of a slice and `shape` differ, or if the numbers of channels of
    /// `shape` and the table differ.
    pub fn apply(&self, source: &[u8], shape: ImageShape, shift: ImageShift, output: &mut [f32]) {
        let ImageShape {
            height,
            width,
            channels,
        } = shape;
        assert_eq!(channels, self.channels.len(), "channels of the image");
        assert_eq!(source.len(), shape.num_values(), "source values");
        assert_eq!(output.len(), shape.num_values(), "output values");
        // Output columns x' whose source column x' + dx is inside the image.
        let clamp = |column: isize| column.clamp(0, width as isize) as usize;
        let first = clamp(-shift.dx);
        let last = clamp(width as isize - shift.dx);
        for (y, row) in output.chunks_exact_mut(width * channels).enumerate() {
            let source_y = y as isize + shift.dy;
            if source_y < 0 || source_y >= height as isize || first >= last {
                self.fill_black(row);
                continue;
            }
            self.fill_black(&mut row[..first * channels]);
            self.fill_black(&mut row[last * channels..]);
            let start = source_y as usize * width + (first as isize + shift.dx) as usize;
            let pixels = &source[start * channels..(start + last - first) * channels];
            let inside = row[first * channels..last * channels].chunks_exact_mut(channels);
            for (values, pixel) in inside.zip(pixels.chunks_exact(channels)) {
                for ((value, byte), table) in values.iter_mut().zip(pixel).zip(&self.channels) {
                    *value = table[usize::from(*byte)];
                }
            }
            if shift.flip {
                flip_row(row, width, channels);
            }
        }
    }

    fn fill_black(&self, values: &mut [f32]) {
        for pixel in values.chunks_exact_mut(self.channels.len()) {
            for (value, table) in pixel.iter_mut().zip(&self.channels) {
                *value = table[0];
            }
        }
    }
}

/// Flips a row left to right. The row is already in the L1 cache.
fn flip_row(row: &mut [f32], width: usize, channels: usize) {
    for x in 0..width / 2 {
        for channel in 0..channels {
            row.swap(x * channels + channel, (width - 1 - x) * channels + channel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: ImageShape = ImageShape {
        height: 3,
        width: 4,
        channels: 2,
    };

    fn normalization() -> Normalization {
        Normalization {
            mean: vec![0.25, 0.5],
            std: vec![0.5, 0.125],
        }
    }

    /// Returns the result of the definition in [`ImageShift`], one pixel at a time.
    fn expected(source: &[u8], shift: ImageShift) -> Vec<f32> {
        let Normalization { mean, std } = normalization();
        let mut output = Vec::new();
        for y in 0..SHAPE.height {
            for x in 0..SHAPE.width {
                let column = if shift.flip { SHAPE.width - 1 - x } else { x };
                let sy = y as isize + shift.dy;
                let sx = column as isize + shift.dx;
                let inside = (0..SHAPE.height as isize).contains(&sy)
                    && (0..SHAPE.width as isize).contains(&sx);
                for channel in 0..SHAPE.channels {
                    let pixel = if inside {
                        source[(sy as usize * SHAPE.width + sx as usize) * SHAPE.channels + channel]
                    } else {
                        0
                    };
                    output.push((f32::from(pixel) / 255.0 - mean[channel]) / std[channel]);
                }
            }
        }
        output
    }

    #[test]
    fn every_placement_gives_the_pixels_of_its_definition() {
        let table = NormalizationTable::new(&normalization());
        let source: Vec<u8> = (0..SHAPE.num_values() as u8).map(|i| i * 10 + 1).collect();
        for dy in -4..=4 {
            for dx in -5..=5 {
                for flip in [false, true] {
                    let shift = ImageShift { dy, dx, flip };
                    let mut output = vec![f32::NAN; SHAPE.num_values()];
                    table.apply(&source, SHAPE, shift, &mut output);
                    assert_eq!(output, expected(&source, shift), "{shift:?}");
                }
            }
        }
    }
}
