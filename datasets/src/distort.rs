//! Random changes of colour, rotation, and an erased rectangle of training images.
//!
//! In: (seed, epoch, sample index) and the pixels of an image. Out: the changed image.
//! Invariant: a draw depends only on the first three inputs. Pixels equal those of torchvision on
//! PIL images, bit for bit, for images with three channels.
//! Source: torchvision's `ColorJitter` and `RandomRotation`; Zhong et al. 2017, Random Erasing
//! (1708.04896), with the bounds of torchvision's `RandomErasing`.

use crate::dataset::ImageShape;
use crate::operation::{Operation, Reading};
use crate::random::{Purpose, Stream};
use crate::resized_crop::random_part;

/// Bounds of the share of the area that is erased.
const ERASED_SCALES: (f64, f64) = (0.02, 0.33);
/// Bounds of width over height of an erased rectangle.
const ERASED_RATIOS: (f64, f64) = (1.0 / 3.3, 1.0 / 0.3);

/// Random changes of training images, each disabled by 0. They follow the operations of
/// [`Augment`](crate::Augment) and precede its crop with padding and its flip; only erasing is last.
///
/// # Differs from PyTorch
/// The distributions are torchvision's. The random stream is Lockstep's.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Distortion {
    /// Largest change of brightness, contrast and saturation, as a share, and of hue, as a share of
    /// a full turn, up to 0.5. The order of the four changes is random.
    pub color_jitter: [f32; 4],
    /// Largest angle of a rotation in either direction, degrees. Outside the image is black.
    pub rotation: f32,
    /// Probability of erasing a rectangle. Its normalised pixels are 0, the mean of the data set.
    pub erasing: f32,
}

impl Distortion {
    /// Changes colours and rotates, before crop and flip.
    ///
    /// # Shapes
    /// `image`: `[H, W, C]` of `shape`.
    pub(crate) fn apply(
        self,
        (seed, epoch, index): (u64, u64, usize),
        image: &mut [u8],
        shape: ImageShape,
    ) {
        let stream = |purpose| Stream::new(seed, epoch, index as u64, purpose);
        if self.color_jitter != [0.0; 4] {
            let operations = colors(self.color_jitter, stream(Purpose::ColorJitter));
            operations.for_each(|operation| operation.apply(image, shape));
        }
        if self.rotation > 0.0 {
            let angle = stream(Purpose::Rotation).between(-self.rotation, self.rotation);
            Operation::Rotate(f64::from(angle), Reading::Nearest).apply(image, shape);
        }
    }

    /// Erases a rectangle, after crop, flip and normalisation.
    ///
    /// # Shapes
    /// `image`: `[H, W, C]` of `shape`.
    pub(crate) fn erase(
        self,
        (seed, epoch, index): (u64, u64, usize),
        image: &mut [f32],
        shape: ImageShape,
    ) {
        let mut stream = Stream::new(seed, epoch, index as u64, Purpose::Erasing);
        if stream.unit() >= self.erasing {
            return;
        }
        let size = [shape.width as u32, shape.height as u32];
        let largest = size.map(|side| side.saturating_sub(1));
        let Some(part) = random_part(&mut stream, size, largest, ERASED_SCALES, ERASED_RATIOS)
        else {
            return;
        };
        let [left, top, width, height] =
            [part.left, part.top, part.width, part.height].map(|pixels| pixels as usize);
        for row in image
            .chunks_exact_mut(shape.width * shape.channels)
            .skip(top)
            .take(height)
        {
            row[left * shape.channels..(left + width) * shape.channels].fill(0.0);
        }
    }
}

/// Returns the enabled changes of colour in random order.
fn colors(jitter: [f32; 4], mut stream: Stream) -> impl Iterator<Item = Operation> {
    let [brightness, contrast, saturation, hue] = jitter;
    let order = stream.permutation(4);
    let mut factor = |change: f32| stream.between((1.0 - change).max(0.0), 1.0 + change);
    let operations = [
        Operation::Brightness(factor(brightness)),
        Operation::Contrast(factor(contrast)),
        Operation::Color(factor(saturation)),
        Operation::Hue(stream.between(-hue, hue)),
    ];
    let enabled = order.into_iter().filter(move |kind| jitter[*kind] > 0.0);
    enabled.map(move |kind| operations[kind])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::tests::{SHAPE, picture};

    /// Results of torchvision from `datasets/tests/images/distort.py`.
    const FIXTURE: &[u8] = include_bytes!("../tests/images/distort.bin");

    #[test]
    fn every_change_gives_the_pixels_of_torchvision() {
        let mut expected = FIXTURE.chunks_exact(SHAPE.num_values());
        let mut expect = |operations: &[Operation]| {
            let mut image = picture();
            operations
                .iter()
                .for_each(|operation| operation.apply(&mut image, SHAPE));
            assert!(image == expected.next().unwrap(), "{operations:?}");
        };
        for factor in [0.0, 0.3, 0.85, 1.2, 1.9] {
            expect(&[Operation::Brightness(factor)]);
            expect(&[Operation::Contrast(factor)]);
            expect(&[Operation::Color(factor)]);
        }
        for sixteenth in -8_i8..=8 {
            expect(&[Operation::Hue(f32::from(sixteenth) / 16.0)]);
        }
        for degrees in [-170.0, -45.5, -10.0, 0.0, 3.75, 30.0, 90.0, 180.0] {
            expect(&[Operation::Rotate(degrees, Reading::Nearest)]);
        }
        let all = [
            Operation::Brightness(1.2),
            Operation::Contrast(0.85),
            Operation::Color(1.3),
            Operation::Hue(-0.1),
        ];
        for order in [[0, 1, 2, 3], [3, 1, 0, 2], [2, 3, 1, 0]] {
            expect(&order.map(|kind: usize| all[kind]));
        }
        assert_eq!(expected.next(), None);
    }

    #[test]
    fn changes_of_colour_have_the_bounds_and_the_order_of_torchvision_and_0_disables_one() {
        let draws = |jitter: [f32; 4]| {
            (0..20_000_u64).map(move |index| {
                let stream = Stream::new(1, 2, index, Purpose::ColorJitter);
                Vec::from_iter(colors(jitter, stream))
            })
        };
        let jitter = [0.4, 1.5, 0.3, 0.1];
        let mut num_first = [0usize; 4];
        let mut sums = [0.0; 4];
        for operations in draws(jitter) {
            assert_eq!(operations.len(), 4);
            for (place, operation) in operations.iter().enumerate() {
                let (kind, value, least, most) = match *operation {
                    Operation::Brightness(factor) => (0, factor, 0.6, 1.4),
                    Operation::Contrast(factor) => (1, factor, 0.0, 2.5),
                    Operation::Color(factor) => (2, factor, 0.7, 1.3),
                    Operation::Hue(turn) => (3, turn, -0.1, 0.1),
                    _ => unreachable!(),
                };
                assert!((least..=most).contains(&value), "{operation:?}");
                num_first[kind] += usize::from(place == 0);
                sums[kind] += f64::from(value) / 20_000.0;
            }
        }
        // Five standard deviations of a binomial with n = 20,000 and p = 1/4 are 306.
        assert!(
            num_first.iter().all(|count| count.abs_diff(5000) < 306),
            "{num_first:?}"
        );
        let expected = [1.0, 1.25, 1.0, 0.0];
        for (mean, expected) in sums.into_iter().zip(expected) {
            assert!((mean - expected).abs() < 0.03, "{sums:?}");
        }
        let only_hue = |operations: Vec<Operation>| matches!(operations[..], [Operation::Hue(_)]);
        assert!(draws([0.0, 0.0, 0.0, 0.5]).all(only_hue));
    }

    #[test]
    fn erased_rectangles_are_spread_as_torchvision_spreads_them() {
        let shape = ImageShape {
            height: 32,
            width: 32,
            channels: 3,
        };
        let distortion = Distortion {
            erasing: 0.25,
            ..Distortion::default()
        };
        let mut num_erased = 0;
        let mut area = 0.0;
        let mut ratio = 0.0;
        for index in 0..20_000 {
            let mut image = vec![1.0; shape.num_values()];
            distortion.erase((0, 1, index), &mut image, shape);
            let erased = |pixel: &[f32]| pixel == [0.0; 3];
            let num_pixels = image.chunks(3).filter(|pixel| erased(pixel)).count();
            if num_pixels == 0 {
                continue;
            }
            num_erased += 1;
            let rows = image.chunks(32 * 3);
            let height = rows.filter(|row| row.chunks(3).any(erased)).count();
            let width = num_pixels / height;
            assert!(width * height == num_pixels && width < 32 && height < 32);
            area += num_pixels as f64 / 1024.0;
            ratio += (width as f64 / height as f64).ln();
        }
        // Five standard deviations of a binomial with n = 20,000 and p = 1/4 are 306.
        assert!(5000_usize.abs_diff(num_erased) < 306, "{num_erased}");
        // Means of 400,000 draws by `distort.py`.
        let count = num_erased as f64;
        assert!((area / count - 0.1739).abs() < 0.007, "{}", area / count);
        assert!((ratio / count - 0.0051).abs() < 0.05, "{}", ratio / count);
    }

    /// Returns pixels above 0, the value of erased ones.
    fn above_zero(image: Vec<u8>) -> Vec<f32> {
        let values = image.into_iter();
        values.map(|value| f32::from(value) + 1.0).collect()
    }

    #[test]
    fn draws_depend_on_seed_epoch_and_index_and_not_on_other_changes() {
        let changed = |distortion: Distortion, seed, epoch| {
            (0..50).flat_map(move |index| {
                let mut image = picture();
                distortion.apply((seed, epoch, index), &mut image, SHAPE);
                let mut values = above_zero(image);
                distortion.erase((seed, epoch, index), &mut values, SHAPE);
                values
            })
        };
        let all = Distortion {
            color_jitter: [0.4, 0.4, 0.4, 0.1],
            rotation: 20.0,
            erasing: 0.5,
        };
        assert!(changed(all, 1, 1).eq(changed(all, 1, 1)));
        assert!(!changed(all, 1, 1).eq(changed(all, 2, 1)));
        assert!(!changed(all, 1, 1).eq(changed(all, 1, 2)));
        let none = Distortion::default();
        let unchanged = above_zero(picture().repeat(50));
        assert!(changed(none, 1, 1).eq(unchanged));
        let is_erased = |distortion| changed(distortion, 1, 1).map(|value| value == 0.0);
        let erasing = Distortion {
            erasing: 0.5,
            ..none
        };
        assert!(is_erased(all).eq(is_erased(erasing)));
    }
}
