//! A random part of an image, with the distribution of torchvision's `RandomResizedCrop`.
//!
//! In: (seed, epoch, sample index) and the size of the image. Out: a [`CropBox`].
//! Invariant: a draw depends only on the inputs.
//! Source: Szegedy et al. 2014 (1409.4842), section 6: 8 to 100 % of the area, aspect ratio 3/4 to
//! 4/3.

use crate::random::{Purpose, Stream};
use crate::resize::CropBox;

/// Minimum and maximum aspect ratio, width over height.
const RATIOS: (f64, f64) = (3.0 / 4.0, 4.0 / 3.0);

/// Number of draws until one fits.
const MAX_TRIES: usize = 10;

/// Range of areas of random crops.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ResizedCrop {
    /// Minimum share of the image's area, above 0.
    pub min_scale: f64,
    /// Maximum share of the image's area, at most 1.
    pub max_scale: f64,
}

impl ResizedCrop {
    /// Returns the random part of a sample's image of this size in one epoch.
    ///
    /// # Differs from PyTorch
    /// The distribution is torchvision's. The random stream is Lockstep's.
    pub fn draw(self, seed: u64, epoch: u64, index: usize, [width, height]: [u32; 2]) -> CropBox {
        let mut stream = Stream::new(seed, epoch, index as u64, Purpose::ResizedCrop);
        let size = [width, height];
        let scales = (self.min_scale, self.max_scale);
        random_part(&mut stream, size, size, scales, RATIOS)
            .unwrap_or_else(|| middle(width, height))
    }
}

/// Returns a random part of an image of `size`. `largest` limits its width and height, `scales` its
/// share of the area, `ratios` its width over its height. Returns `None` if no draw fits.
pub(crate) fn random_part(
    stream: &mut Stream,
    [width, height]: [u32; 2],
    largest: [u32; 2],
    scales: (f64, f64),
    ratios: (f64, f64),
) -> Option<CropBox> {
    let mut between = |low: f64, high: f64| low + (high - low) * f64::from(stream.unit());
    let area = f64::from(width) * f64::from(height);
    let mut sides = || {
        let target = area * between(scales.0, scales.1);
        let ratio = libm::exp(between(libm::log(ratios.0), libm::log(ratios.1)));
        // Python's round: half is rounded to the even number.
        let side = |square: f64| square.sqrt().round_ties_even() as u32;
        [side(target * ratio), side(target / ratio)]
    };
    let fits = |sides: &[u32; 2]| (0..2).all(|at| 0 < sides[at] && sides[at] <= largest[at]);
    let [w, h] = (0..MAX_TRIES).map(|_| sides()).find(fits)?;
    let top = stream.below((height - h) as usize + 1) as u32;
    let left = stream.below((width - w) as usize + 1) as u32;
    Some(CropBox {
        left,
        top,
        width: w,
        height: h,
    })
}

/// Returns the largest middle part with an allowed aspect ratio.
fn middle(width: u32, height: u32) -> CropBox {
    let ratio = f64::from(width) / f64::from(height);
    let times =
        |side: u32, factor: f64| ((f64::from(side) * factor).round_ties_even() as u32).max(1);
    let (w, h) = match ratio {
        ratio if ratio < RATIOS.0 => (width, times(width, 1.0 / RATIOS.0).min(height)),
        ratio if ratio > RATIOS.1 => (times(height, RATIOS.1).min(width), height),
        _ => (width, height),
    };
    CropBox {
        left: (width - w) / 2,
        top: (height - h) / 2,
        width: w,
        height: h,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IMAGENET: ResizedCrop = ResizedCrop {
        min_scale: 0.08,
        max_scale: 1.0,
    };

    #[test]
    fn the_draw_is_a_pure_function_of_seed_epoch_and_index() {
        let all = |seed, epoch| {
            (0..64)
                .map(|index| IMAGENET.draw(seed, epoch, index, [500, 375]))
                .collect::<Vec<_>>()
        };
        assert_eq!(all(1, 2), all(1, 2));
        assert_ne!(all(1, 2), all(1, 3));
        assert_ne!(all(1, 2), all(2, 2));
    }

    #[test]
    fn areas_and_ratios_are_spread_as_torchvision_spreads_them() {
        let boxes: Vec<CropBox> = (0..20_000)
            .map(|index| IMAGENET.draw(0, 0, index, [500, 500]))
            .collect();
        let mean = |value: &dyn Fn(&CropBox) -> f64| {
            boxes.iter().map(value).sum::<f64>() / boxes.len() as f64
        };
        for CropBox {
            left,
            top,
            width,
            height,
        } in &boxes
        {
            assert!(left + width <= 500 && top + height <= 500);
            let ratio = f64::from(*width) / f64::from(*height);
            assert!((0.74..=1.35).contains(&ratio), "{ratio}");
        }
        // Large flat parts of a square do not fit and are drawn again. The expected mean comes from
        // 400,000 draws by torchvision's code in Python.
        let scale = mean(&|part| f64::from(part.width * part.height) / 250_000.0);
        let ratio = mean(&|part| (f64::from(part.width) / f64::from(part.height)).ln());
        assert!((scale - 0.4788).abs() < 0.01, "{scale}");
        assert!(ratio.abs() < 0.01, "{ratio}");
    }

    #[test]
    fn an_image_that_no_draw_fits_gives_its_middle() {
        let all = ResizedCrop {
            min_scale: 1.0,
            max_scale: 1.0,
        };
        // 3/4 and 4/3 of the shorter side. A share of 1 never fits these images.
        for ([width, height], expected) in [
            (
                [100, 1000],
                CropBox {
                    left: 0,
                    top: 433,
                    width: 100,
                    height: 133,
                },
            ),
            (
                [1000, 100],
                CropBox {
                    left: 433,
                    top: 0,
                    width: 133,
                    height: 100,
                },
            ),
            (
                [1, 9],
                CropBox {
                    left: 0,
                    top: 4,
                    width: 1,
                    height: 1,
                },
            ),
        ] {
            assert_eq!(all.draw(0, 0, 7, [width, height]), expected);
        }
        assert_eq!(
            middle(120, 100),
            CropBox {
                left: 0,
                top: 0,
                width: 120,
                height: 100
            }
        );
    }

    #[test]
    fn the_smallest_images_have_a_part() {
        for index in 0..1000 {
            let CropBox {
                left,
                top,
                width,
                height,
            } = IMAGENET.draw(3, 1, index, [1, 1]);
            assert_eq!((left, top, width, height), (0, 0, 1, 1));
        }
    }
}
