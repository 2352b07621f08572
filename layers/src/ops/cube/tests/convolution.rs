//! Convolutions by matrix units against Flex's.

#![allow(clippy::unwrap_used, clippy::print_stderr)] // A failed unwrap here is a failed test.

use burn::backend::flex::FlexDevice;
use burn::backend::ops::ConvOptions;
use burn::backend::tensor::{Device, FloatTensor};
use burn::backend::{Cube, Flex};
use burn::tensor::FloatDType;

use super::{adapter, distance, has_units, launches, read, upload, values};
use crate::ops::LayerOps;

/// Inputs and channels out: a CIFAR ResNet's stages, images that fill no strips, one image, wider
/// ones, batches beyond a GPU's cubes.
const CONVOLUTIONS: [([usize; 4], usize); 8] = [
    ([40, 32, 32, 16], 16),
    ([33, 16, 16, 32], 32),
    ([300, 8, 8, 64], 64),
    ([1, 1, 1, 16], 16),
    ([3, 13, 7, 32], 64),
    ([2, 5, 21, 64], 16),
    ([2, 56, 56, 64], 64),
    ([700, 3, 3, 16], 32),
];

/// Precision of a sum in a number format of the GPU's matrix units.
const TOLERANCES: [(FloatDType, f64); 3] = [
    (FloatDType::F32, 1e-5),
    (FloatDType::F16, 2e-3),
    (FloatDType::BF16, 8e-3),
];

/// The output, the input's gradient and the weight's.
fn results<B: LayerOps>(
    shape: [usize; 4],
    channels: usize,
    dtype: FloatDType,
    device: &Device<B>,
) -> [FloatTensor<B>; 3] {
    let of_output = [shape[0], shape[1], shape[2], channels];
    let of_weight = [channels, shape[3], 3, 3];
    let tensor = |seed, shape: &[usize]| {
        // Numbers that 16 bits hold, so that only the computation differs.
        let rounded = upload::<B>(
            values(seed, shape.iter().product()),
            shape,
            device,
            FloatDType::BF16,
        );
        B::float_cast(rounded, dtype)
    };
    let options = || ConvOptions::new([1, 1], [1, 1], [1, 1], 1);
    let input = tensor(1, &shape);
    let weight = tensor(2, &of_weight);
    let dy = tensor(3, &of_output);
    [
        B::convolution(input.clone(), weight.clone(), options()),
        B::input_gradient(input.clone(), weight.clone(), dy.clone(), options()),
        B::weight_gradient(input, weight, dy, options()),
    ]
}

#[test]
fn convolutions_by_matrix_units_agree_with_flex_and_give_equal_bits_twice() {
    let Some((_alone, device)) = adapter() else {
        return;
    };
    let properties = device.client().properties().clone();
    let mut wrong = Vec::new();
    for (dtype, tolerance) in TOLERANCES {
        if !has_units(&device, dtype) {
            eprintln!(
                "NOT CHECKED: convolutions by matrix units in {dtype:?}: the adapter has none for it"
            );
            continue;
        }
        for (shape, channels) in CONVOLUTIONS {
            let expected =
                results::<Flex>(shape, channels, FloatDType::F32, &FlexDevice).map(read::<Flex>);
            let mut found = Vec::new();
            let made = launches(|| {
                found = results::<Cube>(shape, channels, dtype, &device)
                    .map(read::<Cube>)
                    .to_vec()
            });
            let own = made
                .iter()
                .filter(|name| name.contains("cube::convolution"))
                .count();
            let again = results::<Cube>(shape, channels, dtype, &device).map(read::<Cube>);
            for (name, (found, (expected, again))) in
                ["output", "input's gradient", "weight's gradient"]
                    .iter()
                    .zip(found.iter().zip(expected.iter().zip(&again)))
            {
                let off = distance(found, expected);
                eprintln!("{dtype:?} {shape:?} {channels}: {name}: {off:.1e}, {own} launches");
                if off > tolerance || off.is_nan() || found != again {
                    wrong.push(format!(
                        "{name}: {off:.1e}, {dtype:?} {shape:?} {channels}, equal: {}",
                        found == again
                    ));
                }
            }
            let [images, height, width, channels_in] = shape;
            let ways = [
                (shape, channels),
                ([images, height, width, channels], channels_in),
            ];
            let has_plan = |(shape, channels)| {
                gpu::cube::takes_convolution(&properties, shape, channels, dtype.into())
            };
            let expected = ways.into_iter().filter(|way| has_plan(*way)).count();
            if own != expected {
                wrong.push(format!("{own} launches instead of {expected}: {made:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
