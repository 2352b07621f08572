//! Convolutions by matrix units against Flex's.

#![allow(clippy::unwrap_used, clippy::print_stderr)] // A failed unwrap here is a failed test.

use burn::backend::flex::FlexDevice;
use burn::backend::ops::ConvOptions;
use burn::backend::tensor::{Device, FloatTensor};
use burn::backend::{Cube, Flex};
use burn::tensor::{DType, FloatDType};

use super::{MOST_SHARED_BYTES, Plan};
use crate::ops::LayerOps;
use crate::ops::cube::strip::{Factors, TILE};
use crate::ops::cube::tests::{adapter, distance, has_units, launches, read, upload, values};

/// Inputs and channels out: a CIFAR ResNet's stages, images that fill no strips, one image, wider ones, batches beyond a GPU's cubes.
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

/// What a number format of the GPU's matrix units leaves of a sum's digits.
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
        // Of numbers that 16 bits hold, so that only what is computed differs.
        let rounded = upload::<B>(
            values(seed, shape.iter().product()),
            shape,
            device,
            FloatDType::BF16,
        );
        B::float_cast(rounded, dtype)
    };
    let options = || ConvOptions::new([1, 1], [1, 1], [1, 1], 1);
    let (input, weight, dy) = (
        tensor(1, &shape),
        tensor(2, &of_weight),
        tensor(3, &of_output),
    );
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
            let has_plan =
                |(shape, channels)| Plan::on(&properties, shape, channels, dtype.into()).is_some();
            let expected = ways.into_iter().filter(|way| has_plan(*way)).count();
            if own != expected {
                wrong.push(format!("{own} launches instead of {expected}: {made:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_plan_reaches_every_pixel_of_an_image_within_its_strips_and_fits_a_multiprocessor() {
    for dtype in [DType::F32, DType::BF16] {
        for (height, width) in [
            (32, 32),
            (16, 16),
            (8, 8),
            (1, 1),
            (13, 7),
            (5, 21),
            (56, 56),
            (64, 3),
        ] {
            for (channels, channels_of_result) in [(16, 16), (16, 32), (32, 32), (64, 32), (64, 64)]
            {
                let plan = Plan::new(
                    [1, height, width, channels],
                    channels_of_result,
                    dtype,
                    MOST_SHARED_BYTES,
                );
                // Of wide images with many channels in f32 not enough rows fit.
                let Some(plan) = plan else {
                    assert!(
                        dtype == DType::F32
                            && width >= 32
                            && channels.max(channels_of_result) == 64
                    );
                    continue;
                };
                assert!(plan.strips() * plan.strip.rows >= height, "{plan:?}");
                assert!(
                    plan.sums() * plan.lanes() * TILE >= plan.strip.rows * plan.strip.pitch(),
                    "{plan:?}"
                );
                // The last tile's last pixel, under the last tap.
                assert!(
                    plan.tiles() * TILE + 2 * plan.strip.pitch() + 2 <= plan.strip.pixels,
                    "{plan:?}"
                );
                assert!(plan.shared_bytes() <= MOST_SHARED_BYTES, "{plan:?}");
            }
        }
    }
    // An RTX has less: fewer rows at a time.
    let of_rtx = Plan::new([1, 16, 16, 32], 32, DType::F32, 101_376).unwrap();
    assert!(
        of_rtx.strip.rows < 16 && of_rtx.shared_bytes() <= 101_376,
        "{of_rtx:?}"
    );
    for channels in [16, 32, 48, 64] {
        let bytes = [DType::F32, DType::BF16]
            .map(|dtype| 16 * Factors::of(dtype).unwrap().stride(channels));
        assert!(
            bytes.iter().all(|bytes| bytes % 64 == 32),
            "{channels}: {bytes:?}"
        );
    }
    assert!(Plan::new([1, 8, 8, 48], 16, DType::F32, MOST_SHARED_BYTES).is_some());
    for (channels, of_result) in [(3, 16), (16, 10), (128, 64), (64, 128), (16, 48)] {
        assert!(
            Plan::new(
                [1, 8, 8, channels],
                of_result,
                DType::F32,
                MOST_SHARED_BYTES
            )
            .is_none(),
            "{channels} to {of_result}"
        );
    }
}
