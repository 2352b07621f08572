//! Pooling against the reference on every instruction set and thread count.

use proptest::prelude::*;

use super::*;
use crate::simd::Isa;
use crate::testing::{assert_close, same_everywhere, values};

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
        let dx = same_everywhere(|isa| {
            let mut dx = vec![f32::NAN; x.len()];
            global_average_backward(isa, &y, pixels, channels, &mut dx);
            dx
        });
        for (i, dx) in dx.iter().enumerate() {
            prop_assert_eq!(*dx, y[i / (pixels * channels) * channels + i % channels] / pixels as f32);
        }
    }

    #[test]
    fn maxima_and_their_gradient_equal_the_reference(
        num_images in 1..4usize, height in 1..12usize, width in 1..12usize, channels in 1..70usize, seed in 0..1000u64,
    ) {
        let shape = MaxPoolShape { num_images, height, width, channels };
        // Rounded, so that windows hold equal values.
        let x: Vec<f32> = values(shape.input_len(), seed).iter().map(|x| (x * 4.0).round()).collect();
        let (expected, positions) = reference::max_pool(shape, &x);
        // Whole numbers, so that the order of additions does not matter.
        let dy: Vec<f32> = values(expected.len(), seed + 1).iter().map(|dy| (dy * 100.0).round()).collect();
        let (y, dx) = same_everywhere(|isa| {
            let (mut y, mut taps) = (vec![f32::NAN; expected.len()], vec![99; expected.len()]);
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
fn a_nan_is_the_maximum_of_its_windows() {
    let shape = MaxPoolShape { num_images: 1, height: 4, width: 4, channels: 1 };
    let mut x = vec![1.0; 16];
    x[5] = f32::NAN;
    let (mut y, mut taps) = ([0.0; 4], [0; 4]);
    max_pool(Isa::detect(), shape, &x, &mut y, &mut taps);
    assert!(y.iter().all(|y| y.is_nan()));
    assert_eq!(taps, [8, 6, 2, 0]);
}

#[test]
#[should_panic(expected = "taps: expected 4 values, got 3")]
fn a_wrong_length_is_named() {
    let shape = MaxPoolShape { num_images: 1, height: 4, width: 4, channels: 1 };
    max_pool(Isa::Portable, shape, &[0.0; 16], &mut [0.0; 4], &mut [0; 3]);
}
