//! RandAugment: two random operations of similar strength on each training image.
//!
//! In: (seed, epoch, sample index). Out: the operations.
//! Invariant: a draw depends only on the inputs.
//! Source: Cubuk et al. 2019, RandAugment (1909.13719), in the variant of Wightman, Touvron and
//! Jégou (2110.00476). This is timm's `rand-mM-mstd0.5-inc1`: two of 15 operations, each applied
//! with probability one half. A greater magnitude makes operations stronger.

use rand_distr::{Distribution, StandardNormal};

use crate::operation::{Operation, Reading};
use crate::random::{Purpose, Stream};

/// Maximum magnitude.
pub const MAX_MAGNITUDE: f64 = 10.0;

const NUM_DRAWS: usize = 2;
const NUM_KINDS: usize = 15;
/// Standard deviation of the magnitude.
const STANDARD_DEVIATION: f64 = 0.5;

/// Strength of the operations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RandAugment {
    /// Mean of the magnitude, 0 to [`MAX_MAGNITUDE`].
    pub magnitude: f64,
}

impl RandAugment {
    /// Draws the operations of one sample in one epoch. The mean of its data set, as a fraction of
    /// white, is the colour outside the image.
    ///
    /// # Differs from PyTorch
    /// The distribution is timm's, except that images are flipped afterwards, not before. The
    /// random stream is Lockstep's.
    pub(crate) fn draw(
        self,
        seed: u64,
        epoch: u64,
        index: usize,
        mean: &[f32],
    ) -> [Operation; NUM_DRAWS] {
        let mut stream = Stream::new(seed, epoch, index as u64, Purpose::RandAugment);
        let mut channels = mean
            .iter()
            .map(|mean| (mean * 255.0).round_ties_even() as u8)
            .cycle();
        let fill = std::array::from_fn(|_| channels.next().unwrap_or_default());
        std::array::from_fn(|_| {
            let kind = stream.below(NUM_KINDS);
            let is_made = stream.coin();
            let deviation: f64 = StandardNormal.sample(&mut stream);
            let magnitude =
                (self.magnitude + STANDARD_DEVIATION * deviation).clamp(0.0, MAX_MAGNITUDE);
            let is_negative = stream.coin();
            let is_cubic = stream.coin();
            let reading = if is_cubic {
                Reading::Bicubic(fill)
            } else {
                Reading::Bilinear(fill)
            };
            if is_made {
                of(kind, magnitude, is_negative, reading)
            } else {
                Operation::Identity
            }
        })
    }
}

/// Returns the operation with this number. Some operations have two directions.
fn of(kind: usize, magnitude: f64, is_negative: bool, reading: Reading) -> Operation {
    let up_to = |largest: f64| magnitude / MAX_MAGNITUDE * largest;
    let signed = |largest| {
        if is_negative {
            -up_to(largest)
        } else {
            up_to(largest)
        }
    };
    let factor = || (1.0 + signed(0.9)).max(0.1) as f32;
    match kind {
        0 => Operation::AutoContrast,
        1 => Operation::Equalize,
        2 => Operation::Invert,
        3 => Operation::Rotate(signed(30.0), reading),
        4 => Operation::Posterize(4 - up_to(4.0) as u32),
        5 => Operation::Solarize(256.0 - up_to(256.0).floor()),
        6 => Operation::SolarizeAdd(up_to(110.0) as u8),
        7 => Operation::Color(factor()),
        8 => Operation::Contrast(factor()),
        9 => Operation::Brightness(factor()),
        10 => Operation::Sharpness(factor()),
        11 => Operation::Affine([1.0, signed(0.3), 0.0, 0.0, 1.0, 0.0], reading),
        12 => Operation::Affine([1.0, 0.0, 0.0, signed(0.3), 1.0, 0.0], reading),
        13 => Operation::Translate([signed(0.45), 0.0], reading),
        _ => Operation::Translate([0.0, signed(0.45)], reading),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::tests::{SHAPE, picture};

    /// Results of PIL from `datasets/tests/images/rand_augment.py`: three strengths of each
    /// operation, in both directions, with both interpolations.
    const FIXTURE: &[u8] = include_bytes!("../tests/images/rand_augment.bin");

    #[test]
    fn every_operation_gives_the_pixels_of_pil() {
        let mut expected = FIXTURE.chunks_exact(SHAPE.num_values());
        let fill = [124, 116, 104];
        for kind in 0..NUM_KINDS {
            for magnitude in [1.7, 6.0, 10.0] {
                for is_negative in [false, true] {
                    for reading in [Reading::Bilinear(fill), Reading::Bicubic(fill)] {
                        let mut image = picture();
                        let operation = of(kind, magnitude, is_negative, reading);
                        operation.apply(&mut image, SHAPE);
                        assert!(image == expected.next().unwrap(), "{operation:?}");
                    }
                }
            }
        }
        assert_eq!(expected.next(), None);
    }

    #[test]
    fn half_of_the_operations_are_made_and_all_depend_on_seed_epoch_and_index() {
        let draws = |seed, epoch| {
            (0..15_000).flat_map(move |index| {
                RandAugment { magnitude: 6.0 }.draw(seed, epoch, index, &[0.5])
            })
        };
        let made = draws(1, 1)
            .filter(|operation| *operation != Operation::Identity)
            .count();
        // Five standard deviations of a binomial with n = 30,000 and p = 1/2 are 433.
        assert!(made.abs_diff(15_000) < 433, "{made}");
        let inverted = draws(1, 1)
            .filter(|operation| *operation == Operation::Invert)
            .count();
        // Five standard deviations for n = 30,000 and p = 1/30 are 156.
        assert!(inverted.abs_diff(1000) < 156, "{inverted}");
        assert!(
            draws(1, 1).eq(draws(1, 1))
                && !draws(1, 1).eq(draws(2, 1))
                && !draws(1, 1).eq(draws(1, 2))
        );
    }

    #[test]
    fn magnitudes_lie_around_their_mean_and_within_bounds() {
        let bits = |magnitude: f64| {
            let draws =
                (0..30_000).flat_map(move |index| RandAugment { magnitude }.draw(5, 0, index, &[]));
            draws.filter_map(|operation| match operation {
                Operation::SolarizeAdd(added) => Some(f64::from(added) / 11.0),
                _ => None,
            })
        };
        let (count, sum) = bits(6.0).fold((0.0, 0.0), |(count, sum), magnitude| {
            (count + 1.0, sum + magnitude)
        });
        // Values are rounded down by half a step of 1/11 on average.
        let mean = sum / count;
        let deviation = 0.5 / f64::sqrt(count);
        assert!((mean + 0.5 / 11.0 - 6.0).abs() < 5.0 * deviation, "{mean}");
        assert!(
            bits(10.0).all(|magnitude| magnitude <= 10.0)
                && bits(0.0).all(|magnitude| magnitude >= 0.0)
        );
    }
}
