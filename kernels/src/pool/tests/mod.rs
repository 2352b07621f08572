//! Pooling against the reference on every instruction set and thread count.

use proptest::prelude::*;

use super::*;
use crate::Element;
use crate::simd::Isa;
use crate::tests::{assert_close, rounded, same_everywhere, stored, values, widened};
use half::bf16;

mod reference;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn the_average_and_its_gradient_equal_the_reference(
        images in 1..6usize, pixels in 1..150usize, channels in 1..150usize, seed in 0..1000u64,
    ) {
        let x = values(images * pixels * channels, seed);
        let y = same_everywhere(|isa| {
            let mut y = vec![f32::NAN; images * channels];
            global_average(isa, &x, pixels, channels, &mut y);
            y
        });
        assert_close("y", &y, &reference::global_average(&x, pixels, channels), 1e-6);
        let [dx, sum] = [None, Some(x.as_slice())].map(|addend| same_everywhere(|isa| {
            let mut dx = vec![f32::NAN; x.len()];
            global_average_backward(isa, &y, pixels, channels, addend, &mut dx);
            dx
        }));
        for (i, dx) in dx.iter().enumerate() {
            prop_assert_eq!(*dx, y[i / (pixels * channels) * channels + i % channels] / pixels as f32);
            prop_assert_eq!(sum[i], x[i] + *dx);
        }
    }

    #[test]
    fn products_with_factors_and_their_gradients_equal_the_formulas(
        images in 1..5usize, pixels in 1..150usize, channels in 1..150usize, seed in 0..1000u64,
    ) {
        let [x, dy] = [1, 2].map(|salt| values(images * pixels * channels, seed + salt));
        let factors = values(images * channels, seed);
        let extents = [pixels, channels];
        let (y, dx, sums) = same_everywhere(|isa| {
            let [mut y, mut dx] = [(); 2].map(|()| vec![f32::NAN; x.len()]);
            let mut sums = vec![f32::NAN; factors.len()];
            scale(isa, extents, &x, &factors, &mut y);
            scale_backward(isa, extents, [&x, &dy], &factors, &mut dx, &mut sums);
            (y, dx, sums)
        });
        let mut expected = vec![0.0; factors.len()];
        for (at, (x, dy)) in x.iter().zip(&dy).enumerate() {
            let factor = at / (pixels * channels) * channels + at % channels;
            prop_assert_eq!([y[at], dx[at]], [x, dy].map(|value| value * factors[factor]));
            expected[factor] += f64::from(*x) * f64::from(*dy);
        }
        assert_close("sums", &sums, &expected, 1e-5);
    }

    #[test]
    fn sums_of_2x2_windows_and_their_transpose_equal_the_reference(
        images in 1..4usize, height in 1..10usize, width in 1..10usize, channels in 1..70usize, seed in 0..1000u64,
    ) {
        let large = [images, height, width, channels];
        let [rows, columns] = [height / 2, width / 2];
        let x = values(large.iter().product(), seed);
        let small = values(images * rows * columns * channels, seed + 1);
        let (sums, copies) = same_everywhere(|isa| {
            let mut sums = vec![f32::NAN; small.len()];
            let mut copies = vec![f32::NAN; x.len()];
            halve(isa, large, 0.25, &x, &mut sums);
            double(isa, large, 2.0, &small, &mut copies);
            (sums, copies)
        });
        let mut expected = vec![0.0; small.len()];
        for (at, (x, copy)) in x.iter().zip(&copies).enumerate() {
            let (channel, pixel) = (at % channels, at / channels);
            let (column, row, image) = (pixel % width / 2, pixel / width % height / 2, pixel / width / height);
            if row >= rows || column >= columns {
                prop_assert_eq!(*copy, 0.0);
                continue;
            }
            let window = ((image * rows + row) * columns + column) * channels + channel;
            prop_assert_eq!(*copy, 2.0 * small[window]);
            expected[window] += 0.25 * f64::from(*x);
        }
        assert_close("sums", &sums, &expected, 1e-6);
    }

    #[test]
    fn maxima_and_their_gradient_equal_the_reference(
        num_images in 1..4usize, height in 1..12usize, width in 1..12usize, channels in 1..70usize, window in 2..4usize,
        seed in 0..1000u64,
    ) {
        let shape = MaxPoolShape { num_images, height, width, channels, window };
        // Rounded, so that windows hold equal values.
        let x: Vec<f32> = values(shape.input_len(), seed).iter().map(|x| (x * 4.0).round()).collect();
        let (expected, positions) = reference::max_pool(shape, &x);
        // Whole numbers, so that the order of additions does not matter.
        let dy: Vec<f32> = values(expected.len(), seed + 1).iter().map(|dy| (dy * 100.0).round()).collect();
        let (y, dx) = same_everywhere(|isa| {
            let mut y = vec![f32::NAN; expected.len()];
            let mut taps = vec![99; expected.len()];
            max_pool(isa, shape, &x, &mut y, &mut taps);
            let mut dx = vec![f32::NAN; x.len()];
            max_pool_backward(isa, shape, &dy, &taps, &mut dx);
            (y, dx)
        });
        prop_assert_eq!(y, expected);
        prop_assert_eq!(dx, reference::max_pool_backward(x.len(), &positions, &dy));
    }
}

#[test]
fn pooling_bf16_equals_pooling_the_widened_values_and_rounding() {
    for (num_images, height, width, channels) in [(2, 7, 8, 5), (1, 3, 3, 131), (3, 8, 1, 16)] {
        let shape = MaxPoolShape {
            num_images,
            height,
            width,
            channels,
            window: 3,
        };
        let x = stored(shape.input_len() + 1, 1);
        let dy = stored(shape.output_len() + 1, 2);
        let x = &x[1..];
        let dy = &dy[1..];
        let (y, taps, dx) = same_everywhere(|isa| max_pool_both(isa, shape, x, dy));
        let expected = max_pool_both(Isa::Portable, shape, &widened(x), &widened(dy));
        assert_eq!(
            (y, taps, dx),
            (rounded(&expected.0), expected.1, rounded(&expected.2))
        );
        let pixels = height * width;
        let means = values(num_images * channels, 3);
        let (mean, dx) = same_everywhere(|isa| average_both(isa, x, pixels, channels, &means));
        let expected = average_both(Isa::Portable, &widened(x), pixels, channels, &means);
        assert_eq!((mean, dx), (expected.0, rounded(&expected.1)));
    }
}

fn max_pool_both<E: Element>(
    isa: Isa,
    shape: MaxPoolShape,
    x: &[E],
    dy: &[E],
) -> (Vec<E>, Vec<u8>, Vec<E>) {
    let dirty = E::from_f32(f32::NAN);
    let mut y = vec![dirty; dy.len()];
    let mut taps = vec![99; dy.len()];
    let mut dx = vec![dirty; x.len()];
    max_pool(isa, shape, x, &mut y, &mut taps);
    max_pool_backward(isa, shape, dy, &taps, &mut dx);
    (y, taps, dx)
}

fn average_both<E: Element>(
    isa: Isa,
    x: &[E],
    pixels: usize,
    channels: usize,
    dy: &[f32],
) -> (Vec<f32>, Vec<E>) {
    let mut y = vec![f32::NAN; dy.len()];
    let mut dx = vec![E::from_f32(f32::NAN); x.len()];
    global_average(isa, x, pixels, channels, &mut y);
    global_average_backward(isa, dy, pixels, channels, None, &mut dx);
    (y, dx)
}

/// The taps of a pool of 4x4 pixels, the same values in every channel, and how many maxima are NaN.
fn chosen<E: Element>(pixels: [f32; 16], stored: impl Fn(f32) -> E) -> (Vec<u8>, usize) {
    // A block of channels and one more.
    const CHANNELS: usize = 17;
    let shape = MaxPoolShape {
        num_images: 1,
        height: 4,
        width: 4,
        channels: CHANNELS,
        window: 3,
    };
    let x: Vec<E> = pixels
        .iter()
        .flat_map(|&pixel| [pixel; CHANNELS])
        .map(stored)
        .collect();
    let (y, taps) = same_everywhere(|isa| {
        let mut y = vec![E::from_f32(0.0); 4 * CHANNELS];
        let mut taps = vec![99; 4 * CHANNELS];
        max_pool(isa, shape, &x, &mut y, &mut taps);
        (y.iter().filter(|y| y.to_f32().is_nan()).count(), taps)
    });
    assert!(
        taps.chunks(CHANNELS)
            .all(|of_window| of_window.iter().all(|tap| *tap == of_window[0])),
        "{taps:?}"
    );
    (taps.into_iter().step_by(CHANNELS).collect(), y / CHANNELS)
}

#[test]
fn a_nan_is_the_maximum_of_its_windows() {
    let mut pixels = [1.0; 16];
    pixels[5] = f32::NAN;
    assert_eq!(chosen(pixels, |x| x), (vec![8, 6, 2, 0], 4));
    assert_eq!(chosen(pixels, bf16::from_f32), (vec![8, 6, 2, 0], 4));
}

#[test]
fn of_equal_values_the_first_is_the_maximum_minus_infinity_too() {
    for value in [1.0, f32::NEG_INFINITY] {
        assert_eq!(chosen([value; 16], |x| x), (vec![4, 3, 1, 0], 0));
    }
}

#[test]
#[should_panic(expected = "taps: expected 4 values, got 3")]
fn a_wrong_length_is_named() {
    let shape = MaxPoolShape {
        num_images: 1,
        height: 4,
        width: 4,
        channels: 1,
        window: 3,
    };
    max_pool(Isa::Portable, shape, &[0.0; 16], &mut [0.0; 4], &mut [0; 3]);
}

#[test]
#[cfg(target_pointer_width = "64")]
#[should_panic(expected = "pool: average: expected at most 1152921504606846975 elements")]
fn an_average_over_pixels_whose_number_wraps_is_refused() {
    global_average(Isa::detect(), &[0.0; 16], (1 << 60) + 1, 16, &mut [0.0; 16]);
}

#[test]
#[cfg(target_pointer_width = "64")]
#[should_panic(expected = "pool: input: expected at most 1152921504606846975 elements")]
fn a_maximum_of_extents_whose_product_wraps_is_refused() {
    let shape = MaxPoolShape {
        num_images: 1 << 32,
        height: 1 << 16,
        width: 1 << 16,
        channels: 4,
        window: 3,
    };
    max_pool::<f32>(Isa::detect(), shape, &[], &mut [], &mut []);
}
