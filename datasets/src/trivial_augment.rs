//! TrivialAugment: one random operation of random strength on each training image.
//!
//! In: (seed, epoch, sample index). Out: the [`Operation`].
//! Invariant: a draw depends only on the inputs.
//! Source: Müller and Hutter 2021, TrivialAugment (2103.10158), the wide space of operations, as in
//! torchvision's `TrivialAugmentWide`.

use crate::operation::Operation;
use crate::operation::Reading::Nearest;
use crate::random::{Purpose, Stream};

/// Number of strengths of an operation.
const NUM_BINS: usize = 31;

/// Draws the operation of one sample in one epoch.
pub(crate) fn draw(seed: u64, epoch: u64, index: usize) -> Operation {
    let mut stream = Stream::new(seed, epoch, index as u64, Purpose::TrivialAugment);
    let kind = stream.below(14);
    let bin = stream.below(NUM_BINS);
    of(kind, bin, stream.coin())
}

/// Returns the operation with this number, at one of the strengths. Some operations have two
/// directions.
fn of(kind: usize, bin: usize, is_negative: bool) -> Operation {
    let up_to = |largest: f64| largest * bin as f64 / (NUM_BINS - 1) as f64;
    let signed = |largest| {
        if is_negative {
            -up_to(largest)
        } else {
            up_to(largest)
        }
    };
    let factor = || (1.0 + signed(0.99)) as f32;
    match kind {
        0 => Operation::Identity,
        1 => Operation::Affine([1.0, signed(0.99), 0.0, 0.0, 1.0, 0.0], Nearest),
        2 => Operation::Affine([1.0, 0.0, 0.0, signed(0.99), 1.0, 0.0], Nearest),
        3 => Operation::Affine([1.0, 0.0, -signed(32.0).trunc(), 0.0, 1.0, 0.0], Nearest),
        4 => Operation::Affine([1.0, 0.0, 0.0, 0.0, 1.0, -signed(32.0).trunc()], Nearest),
        5 => Operation::Rotate(signed(135.0), Nearest),
        6 => Operation::Brightness(factor()),
        7 => Operation::Color(factor()),
        8 => Operation::Contrast(factor()),
        9 => Operation::Sharpness(factor()),
        10 => Operation::Posterize(8 - up_to(6.0).round_ties_even() as u32),
        11 => Operation::Solarize(255.0 - up_to(255.0)),
        12 => Operation::AutoContrast,
        _ => Operation::Equalize,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::ImageShape;
    use crate::operation::tests::{SHAPE, picture};

    /// Results of PIL from `datasets/tests/images/trivial_augment.py`: five strengths of each
    /// operation, in both directions.
    const FIXTURE: &[u8] = include_bytes!("../tests/images/trivial_augment.bin");

    #[test]
    fn every_operation_gives_the_pixels_of_pil() {
        let mut expected = FIXTURE.chunks_exact(SHAPE.num_values());
        for kind in 0..14 {
            for bin in [0, 7, 15, 20, 30] {
                for is_negative in [false, true] {
                    let mut image = picture();
                    let operation = of(kind, bin, is_negative);
                    operation.apply(&mut image, SHAPE);
                    assert!(image == expected.next().unwrap(), "{operation:?}");
                }
            }
        }
        assert_eq!(expected.next(), None);
    }

    #[test]
    fn an_image_of_one_value_or_one_pixel_is_no_hindrance() {
        for shape in [
            ImageShape {
                height: 1,
                width: 1,
                channels: 1,
            },
            ImageShape {
                height: 2,
                width: 7,
                channels: 4,
            },
        ] {
            for (kind, bin) in (0..14).flat_map(|kind| (0..NUM_BINS).map(move |bin| (kind, bin))) {
                of(kind, bin, false).apply(&mut vec![9; shape.num_values()], shape);
            }
        }
    }

    #[test]
    fn every_operation_is_drawn_about_equally_often_and_depends_on_seed_epoch_and_index() {
        let draws = |seed, epoch| (0..14_000).map(move |index| draw(seed, epoch, index));
        let count = draws(1, 1)
            .filter(|operation| matches!(operation, Operation::Equalize))
            .count();
        // Five standard deviations of a binomial with n = 14,000 and p = 1/14 are 152.
        assert!(count.abs_diff(1000) < 152, "{count}");
        assert!(
            draws(1, 1).eq(draws(1, 1))
                && !draws(1, 1).eq(draws(2, 1))
                && !draws(1, 1).eq(draws(1, 2))
        );
    }
}
