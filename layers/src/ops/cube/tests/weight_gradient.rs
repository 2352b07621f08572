//! Our kernel of a weight's gradient against Flex's, where any adapter is.

#![allow(clippy::unwrap_used)] // A failed unwrap here is a failed test.

use burn::backend::flex::FlexDevice;
use burn::backend::ops::ConvOptions;
use burn::backend::tensor::Device;
use burn::backend::{Cube, Flex};
use burn::tensor::FloatDType;

use super::{adapter, distance, has_units, launches, read, upload, values};
use crate::ops::LayerOps;

/// A convolution whose weight's gradient is ours: input, kernel, channels out, stride, padding.
const CONVOLUTIONS: [([usize; 4], usize, usize, usize, usize); 7] = [
    ([5, 9, 9, 3], 3, 16, 1, 1),
    ([3, 12, 10, 16], 3, 16, 1, 1),
    ([40, 16, 16, 16], 3, 32, 2, 1),
    ([2, 7, 5, 6], 2, 10, 1, 0),
    ([130, 4, 4, 64], 3, 64, 1, 1),
    ([1, 3, 3, 20], 3, 12, 3, 2),
    ([7, 5, 6, 37], 3, 23, 1, 1),
];

#[test]
fn a_weights_gradient_is_two_launches_that_agree_with_flex_and_give_equal_bits_twice() {
    let Some((_alone, device)) = adapter() else {
        return;
    };
    let has_units = has_units(&device, FloatDType::F32);
    for case @ (shape, kernel, channels_out, stride, padding) in CONVOLUTIONS {
        let side = |pixels: usize| (pixels + 2 * padding - kernel) / stride + 1;
        let of_output = [shape[0], side(shape[1]), side(shape[2]), channels_out];
        let of_weight = [channels_out, shape[3], kernel, kernel];
        let options = ConvOptions::new([stride; 2], [padding; 2], [1, 1], 1);
        let tensor = |seed, shape: &[usize]| (values(seed, shape.iter().product()), shape.to_vec());
        let input = tensor(1, &shape);
        let dy = tensor(2, &of_output);
        let weight = tensor(3, &of_weight);
        fn on<B: LayerOps>(
            [input, weight, dy]: [&(Vec<f32>, Vec<usize>); 3],
            options: &ConvOptions<2>,
            device: &Device<B>,
        ) -> Vec<f32> {
            let [input, weight, dy] = [input, weight, dy]
                .map(|(values, shape)| upload::<B>(values.clone(), shape, device, FloatDType::F32));
            read::<B>(B::weight_gradient(input, weight, dy, options.clone()))
        }
        let expected = on::<Flex>([&input, &weight, &dy], &options, &FlexDevice);
        let mut found = Vec::new();
        let made = launches(|| found = on::<Cube>([&input, &weight, &dy], &options, &device));
        assert_eq!(
            made.iter()
                .filter(|name| name.contains("cube::weight_gradient"))
                .count(),
            2,
            "{case:?}: {made:?}"
        );
        assert_eq!(
            found,
            on::<Cube>([&input, &weight, &dy], &options, &device),
            "{case:?}"
        );
        // Sixteens of channels with stride 1 are for matrix units, where the adapter has them:
        // TF32.
        let distance = distance(&found, &expected);
        let sixteens = [channels_out, shape[3]]
            .iter()
            .all(|channels| channels.is_multiple_of(16));
        let is_tiled = has_units && [kernel, stride, padding] == [3, 1, 1] && sixteens;
        let tolerance = if is_tiled { 1e-3 } else { 1e-5 };
        assert!(distance <= tolerance, "{case:?}: {distance:e}");
    }
}
