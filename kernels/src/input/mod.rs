//! From u8 pixels to normalised f32 or bf16, cropped and flipped in the same pass.
//!
//! In: u8 `[N, H, W, C]` and a [`Placement`] for each image. Out: `[N, H, W, C]`, each (p / 255 - mean) / std.
//! Invariant: every value comes from a table of 256 entries a channel, so it has the bits of the formula (rounded where bf16 is
//! stored), of
//! `datasets/src/normalize.rs` and of torchvision's `ToTensor` and `Normalize`.
//! The work is a load from the table for each value; wider instructions would not make it faster, so it takes no `Isa`.

use rayon::prelude::*;

use crate::Element;

#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

/// Where an image is read: output pixel (y, x) is source pixel (y + dy, x' + dx), x' = W - 1 - x if flipped, else x;
/// outside the source it is black.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// Vertical offset in pixels, in -4..=4 for the crop of arXiv 1512.03385, section 4.2.
    pub dy: isize,
    /// Horizontal offset in pixels.
    pub dx: isize,
    /// Whether left and right are exchanged.
    pub flip: bool,
}

/// The normalised value of each pixel value, for `C` channels.
#[derive(Clone, Debug)]
pub struct PixelTable<const C: usize> {
    channels: [[f32; 256]; C],
}

impl<const C: usize> PixelTable<C> {
    /// Computes (p / 255 - mean) / std in f32 for all p.
    ///
    /// # Panics
    /// If a standard deviation is not above 0.
    pub fn new(mean: [f32; C], std: [f32; C]) -> Self {
        assert!(std.iter().all(|std| *std > 0.0), "input: expected std above 0, got {std:?}");
        let value = |pixel: usize, channel: usize| (pixel as f32 / 255.0 - mean[channel]) / std[channel];
        Self { channels: std::array::from_fn(|channel| std::array::from_fn(|pixel| value(pixel, channel))) }
    }

    /// The value of black in each channel: what lies outside an image.
    pub fn black(&self) -> [f32; C] {
        std::array::from_fn(|channel| self.channels[channel][0])
    }

    /// Writes a batch of normalised images.
    ///
    /// # Shapes
    /// `source`, `output`: `[N, height, width, C]`. `placements`: `[N]`.
    ///
    /// # Panics
    /// If a length differs.
    pub fn apply<E: Element>(
        &self,
        source: &[u8],
        (height, width): (usize, usize),
        placements: &[Placement],
        output: &mut [E],
    ) {
        let image = height * width * C;
        let expected = placements.len() * image;
        assert!(source.len() == expected, "input: expected {expected} source values, got {}", source.len());
        assert!(output.len() == expected, "input: expected {expected} output values, got {}", output.len());
        if image == 0 {
            return;
        }
        // Rounded once, not value by value.
        let stored = Stored { channels: self.channels.each_ref().map(|values| values.map(E::from_f32)) };
        let images = output.par_chunks_exact_mut(image).zip(source.par_chunks_exact(image)).zip(placements);
        images.for_each(|((output, source), placement)| stored.apply_one(source, width, *placement, output));
    }
}

/// The table as it is stored.
struct Stored<E, const C: usize> {
    channels: [[E; 256]; C],
}

impl<E: Element, const C: usize> Stored<E, C> {
    #[inline(always)]
    fn look_up(&self, pixel: [u8; C]) -> [E; C] {
        std::array::from_fn(|channel| self.channels[channel][usize::from(pixel[channel])])
    }

    fn apply_one(&self, source: &[u8], width: usize, placement: Placement, output: &mut [E]) {
        let Placement { dy, dx, flip } = placement;
        let (source, _) = source.as_chunks::<C>();
        let (output, _) = output.as_chunks_mut::<C>();
        let black = self.look_up([0; C]);
        // Unflipped output columns x' in first..last have their source column x' + dx inside the image.
        let clamp = |column: isize| column.clamp(0, width as isize) as usize;
        let (first, last) = (clamp(dx.saturating_neg()), clamp((width as isize).saturating_sub(dx)));
        let inside = first < last;
        for (y, row) in output.chunks_exact_mut(width).enumerate() {
            let source_y = usize::try_from((y as isize).saturating_add(dy)).ok();
            let pixels = source_y.and_then(|y| source.chunks_exact(width).nth(y)).filter(|_| inside);
            let Some(pixels) = pixels else {
                row.fill(black);
                continue;
            };
            let pixels = &pixels[(first as isize + dx) as usize..(last as isize + dx) as usize];
            let (first, last) = if flip { (width - last, width - first) } else { (first, last) };
            row[..first].fill(black);
            row[last..].fill(black);
            let row = &mut row[first..last];
            if flip {
                row.iter_mut().zip(pixels.iter().rev()).for_each(|(value, pixel)| *value = self.look_up(*pixel));
            } else {
                row.iter_mut().zip(pixels).for_each(|(value, pixel)| *value = self.look_up(*pixel));
            }
        }
    }
}
