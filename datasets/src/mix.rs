//! Mixing of two training images and their labels.
//!
//! In: (seed, epoch, sample index) and the number of samples. Out: the other sample, and the share
//! of the first image.
//! Invariant: a draw depends only on these inputs, never on shard, thread or batch. The result
//! therefore does not depend on the number of ranks.
//! Source: Zhang et al. 2018, mixup (1710.09412); Yun et al. 2019, CutMix (1905.04899).

use rand_distr::{Beta, Distribution};

use crate::dataset::ImageShape;
use crate::random::{Purpose, Stream};

/// Mixing of training images. With both methods, each image uses one of them, each with probability
/// one half.
///
/// # Differs from PyTorch
/// torchvision's `MixUp` and `CutMix` draw one share per batch and mix each image with its
/// neighbour. Here each image has a separate share, and the other sample is any sample of the
/// split. A draw does not depend on the division of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Mix {
    /// Both parameters of the beta distribution of mixup's shares. `None` disables mixup.
    pub mixup: Option<f64>,
    /// Both parameters of the beta distribution of CutMix's shares. `None` disables CutMix.
    pub cutmix: Option<f64>,
}

/// Partner of one sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Mixture {
    /// Index of the other sample.
    pub(crate) other: usize,
    /// Share of the other sample in the label, 0 to 1.
    pub(crate) share: f32,
    /// Rectangle of the pasted part of the other image. `None` if the images are added with their
    /// shares.
    pub(crate) region: Option<Region>,
}

/// A rectangle of pixels with exclusive ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    top: usize,
    bottom: usize,
    left: usize,
    right: usize,
}

impl Mix {
    /// Draws the mixture of one sample in one epoch. Returns `None` if no method is enabled.
    ///
    /// # Panics
    /// Panics if a parameter is not above 0.
    pub(crate) fn draw(
        self,
        seed: u64,
        epoch: u64,
        index: usize,
        num_samples: usize,
        shape: ImageShape,
    ) -> Option<Mixture> {
        let mut stream = Stream::new(seed, epoch, index as u64, Purpose::Mix);
        let (alpha, cuts) = match (self.mixup, self.cutmix) {
            (None, None) => return None,
            (Some(alpha), None) => (alpha, false),
            (None, Some(alpha)) => (alpha, true),
            (Some(mixup), Some(cutmix)) => match stream.coin() {
                true => (cutmix, true),
                false => (mixup, false),
            },
        };
        let other = stream.below(num_samples);
        let beta = Beta::new(alpha, alpha).expect("mix: expected parameters above 0");
        let share = beta.sample(&mut stream) as f32;
        if !cuts {
            return Some(Mixture {
                other,
                share,
                region: None,
            });
        }
        let region = Region::around(
            [stream.below(shape.height), stream.below(shape.width)],
            share,
            shape,
        );
        // Pixels outside the image do not count.
        let share = region.num_pixels() as f32 / (shape.height * shape.width) as f32;
        Some(Mixture {
            other,
            share,
            region: Some(region),
        })
    }
}

impl Mixture {
    /// Mixes `other` into `image`.
    ///
    /// # Shapes
    /// Both: `[H, W, C]` of `shape`, normalised.
    pub(crate) fn apply(&self, image: &mut [f32], other: &[f32], shape: ImageShape) {
        let Some(Region {
            top,
            bottom,
            left,
            right,
        }) = self.region
        else {
            let own_share = 1.0 - self.share;
            for (value, other) in image.iter_mut().zip(other) {
                *value = own_share * *value + self.share * other;
            }
            return;
        };
        for y in top..bottom {
            let row = (y * shape.width + left) * shape.channels
                ..(y * shape.width + right) * shape.channels;
            image[row.clone()].copy_from_slice(&other[row]);
        }
    }
}

impl Region {
    /// Returns the part inside the image of a rectangle with the image's proportions and `share` of
    /// its area.
    fn around([y, x]: [usize; 2], share: f32, shape: ImageShape) -> Self {
        let half = |len: usize| (len as f32 * share.sqrt() / 2.0) as usize;
        let half_height = half(shape.height);
        let half_width = half(shape.width);
        Self {
            top: y.saturating_sub(half_height),
            bottom: (y + half_height).min(shape.height),
            left: x.saturating_sub(half_width),
            right: (x + half_width).min(shape.width),
        }
    }

    fn num_pixels(self) -> usize {
        (self.bottom - self.top) * (self.right - self.left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: ImageShape = ImageShape {
        height: 8,
        width: 6,
        channels: 2,
    };

    fn draws(mix: Mix) -> Vec<Mixture> {
        (0..4000)
            .map(|index| mix.draw(3, 1, index, 50, SHAPE).unwrap())
            .collect()
    }

    #[test]
    fn the_draw_is_a_pure_function_of_seed_epoch_and_index() {
        let mix = Mix {
            mixup: Some(0.2),
            cutmix: Some(1.0),
        };
        assert_eq!(draws(mix), draws(mix));
        assert_ne!(mix.draw(3, 1, 7, 50, SHAPE), mix.draw(3, 2, 7, 50, SHAPE));
        assert_eq!(Mix::default().draw(3, 1, 7, 50, SHAPE), None);
    }

    #[test]
    fn shares_have_the_mean_and_the_variance_of_their_beta_distribution() {
        for alpha in [0.2, 1.0, 4.0] {
            let shares: Vec<f64> = draws(Mix {
                mixup: Some(alpha),
                cutmix: None,
            })
            .iter()
            .map(|mixture| f64::from(mixture.share))
            .collect();
            let mean = shares.iter().sum::<f64>() / 4000.0;
            let variance = shares
                .iter()
                .map(|share| (share - mean).powi(2))
                .sum::<f64>()
                / 4000.0;
            let expected = 1.0 / (4.0 * (2.0 * alpha + 1.0));
            assert!(
                (mean - 0.5).abs() < 5.0 * (expected / 4000.0).sqrt(),
                "{alpha}: {mean}"
            );
            assert!(
                (variance / expected - 1.0).abs() < 0.1,
                "{alpha}: {variance} against {expected}"
            );
        }
    }

    #[test]
    fn each_other_sample_and_each_way_is_drawn_about_equally_often() {
        let all = draws(Mix {
            mixup: Some(1.0),
            cutmix: Some(1.0),
        });
        let num_cut = all
            .iter()
            .filter(|mixture| mixture.region.is_some())
            .count();
        // Five standard deviations of a binomial with n = 4,000 and p = 1/2 are 158; with p = 1/50
        // they are 44.
        assert!(num_cut.abs_diff(2000) < 158, "{num_cut}");
        for other in 0..50 {
            let count = all.iter().filter(|mixture| mixture.other == other).count();
            assert!(count.abs_diff(80) < 44, "{other}: {count}");
        }
    }

    #[test]
    fn the_share_of_a_label_is_that_of_its_pixels() {
        let own = vec![1.0; SHAPE.num_values()];
        let other = vec![3.0; SHAPE.num_values()];
        for mixture in draws(Mix {
            mixup: Some(0.5),
            cutmix: Some(0.5),
        }) {
            let mut image = own.clone();
            mixture.apply(&mut image, &other, SHAPE);
            let mean = image.iter().sum::<f32>() / image.len() as f32;
            assert!(
                (mean - (1.0 + 2.0 * mixture.share)).abs() < 1e-5,
                "{mixture:?}: {mean}"
            );
        }
    }

    #[test]
    fn a_region_lies_in_both_images_at_the_same_place() {
        let number = |start: f32| {
            (0..SHAPE.num_values())
                .map(|value| start + value as f32)
                .collect::<Vec<_>>()
        };
        let region = Region {
            top: 2,
            bottom: 5,
            left: 1,
            right: 6,
        };
        let mut image = number(0.0);
        Mixture {
            other: 0,
            share: 0.3,
            region: Some(region),
        }
        .apply(&mut image, &number(1000.0), SHAPE);
        for (place, value) in image.iter().enumerate() {
            let y = place / 12;
            let x = place / 2 % 6;
            let is_pasted = (2..5).contains(&y) && (1..6).contains(&x);
            assert_eq!(*value, place as f32 + if is_pasted { 1000.0 } else { 0.0 });
        }
    }
}
