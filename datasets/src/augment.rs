//! Random augmentation of training images.
//!
//! In: (seed, epoch, sample index). Out: the source pixel of each output pixel, and changes of
//! pixel values.
//! Invariant: a draw depends only on the three inputs, never on shard, thread or batch.
//! Source: 4 pixels of padding, random crop, horizontal flip: arXiv 1512.03385, section 4.2.

use crate::dataset::{ImageDataset, ImageShape, Normalization};
use crate::error::DatasetError;
use crate::rand_augment::RandAugment;
use crate::random::{Purpose, Stream};
use crate::resized_crop::ResizedCrop;
use crate::trivial_augment;

/// Augmentation of training images.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Augment {
    /// No augmentation.
    None,
    /// Pads with black, crops the original size at a random position, and flips left to right with
    /// probability one half.
    ///
    /// The result equals torchvision's `RandomCrop(size, padding=pad)`, then
    /// `RandomHorizontalFlip()`, before `ToTensor` and `Normalize`. The padding is black pixels, so
    /// its value after normalisation is (0 - mean) / std, not 0.
    CropFlip {
        /// Padding on each side in pixels. 4 in the paper.
        pad: usize,
    },
    /// One random operation of random strength (TrivialAugment, Müller and Hutter 2021,
    /// 2103.10158), then `CropFlip`.
    ///
    /// The operations are those of torchvision's `TrivialAugmentWide`. torchvision's recipes apply
    /// them after crop and flip.
    Trivial {
        /// As in `CropFlip`.
        pad: usize,
    },
    /// Resizes a random part to the size of the sample and flips left to right with probability one
    /// half.
    ///
    /// The result equals torchvision's `RandomResizedCrop`, then `RandomHorizontalFlip()`.
    ResizedCrop(ResizedCrop),
    /// `ResizedCrop` with two random operations before the flip (RandAugment, Cubuk et al. 2019,
    /// 1909.13719).
    Rand(ResizedCrop, RandAugment),
}

/// Shift and flip between the pixels of a sample and its source image.
///
/// Output pixel (y, x) is source pixel (y + dy, x' + dx), with x' = W - 1 - x if flipped, else x.
/// Outside the source it is black.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImageShift {
    /// Vertical offset in pixels, in -pad..=pad.
    pub dy: isize,
    /// Horizontal offset in pixels, in -pad..=pad.
    pub dx: isize,
    /// True if the image is flipped left to right.
    pub flip: bool,
}

impl Augment {
    /// Draws the shift of one sample in one epoch.
    pub fn draw(self, seed: u64, epoch: u64, index: usize) -> ImageShift {
        match self {
            Self::None => ImageShift::default(),
            Self::CropFlip { pad } | Self::Trivial { pad } => {
                let mut stream = Stream::new(seed, epoch, index as u64, Purpose::Augmentation);
                let mut offset = || stream.below(2 * pad + 1) as isize - pad as isize;
                let dy = offset();
                let dx = offset();
                ImageShift {
                    dy,
                    dx,
                    flip: stream.coin(),
                }
            }
            Self::ResizedCrop(_) | Self::Rand(..) => {
                let flip = Stream::new(seed, epoch, index as u64, Purpose::Augmentation).coin();
                ImageShift {
                    flip,
                    ..ImageShift::default()
                }
            }
        }
    }

    /// Reads the pixels `[H, W, C]` of one sample in one epoch, before the shift.
    ///
    /// `shape` differs from the data set's only for resized crops. The mean of `normalization` may
    /// fill the edges of an image.
    ///
    /// # Errors
    /// Returns an error if the data set cannot read them.
    pub(crate) fn read(
        self,
        (seed, epoch, draw): (u64, u64, usize),
        dataset: &dyn ImageDataset,
        shape: ImageShape,
        normalization: &Normalization,
        pixels: &mut [u8],
    ) -> Result<(), DatasetError> {
        let index = draw % dataset.len();
        match self {
            Self::None | Self::CropFlip { .. } => dataset.read_image(index, pixels)?,
            Self::Trivial { .. } => {
                dataset.read_image(index, pixels)?;
                trivial_augment::draw(seed, epoch, draw).apply(pixels, shape);
            }
            Self::ResizedCrop(crop) | Self::Rand(crop, _) => {
                dataset.read_crop(
                    index,
                    &|size| crop.draw(seed, epoch, draw, size),
                    shape,
                    pixels,
                )?;
                if let Self::Rand(_, rand) = self {
                    let operations = rand.draw(seed, epoch, draw, &normalization.mean);
                    operations
                        .into_iter()
                        .for_each(|operation| operation.apply(pixels, shape));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn the_draw_is_a_pure_function_of_seed_epoch_and_index() {
        let augment = Augment::CropFlip { pad: 4 };
        let all = |seed, epoch| {
            (0..64)
                .map(|index| augment.draw(seed, epoch, index))
                .collect::<Vec<_>>()
        };
        assert_eq!(all(1, 2), all(1, 2));
        assert_ne!(all(1, 2), all(1, 3));
        assert_ne!(all(1, 2), all(2, 2));
    }

    #[test]
    fn every_placement_is_drawn_about_equally_often() {
        let augment = Augment::CropFlip { pad: 1 };
        let mut counts = HashMap::new();
        for index in 0..18_000 {
            let ImageShift { dy, dx, flip } = augment.draw(0, 0, index);
            assert!((-1..=1).contains(&dy) && (-1..=1).contains(&dx));
            *counts.entry((dy, dx, flip)).or_insert(0usize) += 1;
        }
        assert_eq!(counts.len(), 18);
        // Five standard deviations of a binomial with n = 18,000 and p = 1/18 are 154.
        assert!(
            counts.values().all(|count| count.abs_diff(1000) < 154),
            "{counts:?}"
        );
    }

    #[test]
    fn none_leaves_images_as_they_are() {
        assert_eq!(Augment::None.draw(9, 9, 9), ImageShift::default());
    }
}
