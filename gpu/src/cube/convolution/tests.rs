//! The cut of a convolution.

#![allow(clippy::unwrap_used)] // A failed unwrap here is a failed test.

use burn::tensor::DType;

use super::{ConvolutionPlan, MOST_SHARED_BYTES};
use crate::cube::strip::{Factors, TILE};

/// Shared memory of a multiprocessor of a V100, an A100 and an H100.
const SHARED_BYTES: [usize; 3] = [96 << 10, 163 << 10, MOST_SHARED_BYTES];

#[test]
fn a_plan_reaches_every_pixel_and_channel_of_an_image_and_fits_a_multiprocessor() {
    for (dtype, shared_bytes) in [DType::F32, DType::BF16]
        .into_iter()
        .flat_map(|dtype| SHARED_BYTES.map(|bytes| (dtype, bytes)))
    {
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
            for (channels, channels_of_result) in [
                (16, 16),
                (16, 32),
                (32, 32),
                (64, 32),
                (64, 64),
                (48, 16),
                (16, 48),
            ] {
                let shape = [1, height, width, channels];
                let plan = ConvolutionPlan::new(shape, channels_of_result, dtype, shared_bytes);
                // Four rows of a wide image with many channels do not fit a V100, which has no
                // matrix units for f32.
                let Some(plan) = plan else {
                    assert_eq!(
                        (dtype, shared_bytes),
                        (DType::F32, SHARED_BYTES[0]),
                        "{shape:?}"
                    );
                    assert!(width > 16 && channels > 32, "{shape:?}");
                    continue;
                };
                assert!(plan.strips() * plan.strip.rows >= height, "{plan:?}");
                assert_eq!(plan.channels * plan.parts, channels_of_result, "{plan:?}");
                assert!(
                    plan.sums() * plan.lanes() * TILE >= plan.strip.rows * plan.strip.pitch(),
                    "{plan:?}"
                );
                // The last tile's last pixel, under the last tap.
                assert!(
                    plan.tiles() * TILE + 2 * plan.strip.pitch() + 2 <= plan.strip.pixels,
                    "{plan:?}"
                );
                assert!(plan.shared_bytes() <= shared_bytes, "{plan:?}");
            }
        }
    }
    for channels in [16, 32, 48, 64] {
        let bytes = [DType::F32, DType::BF16]
            .map(|dtype| 16 * Factors::of(dtype).unwrap().stride(channels));
        assert!(
            bytes.iter().all(|bytes| bytes % 64 == 32),
            "{channels}: {bytes:?}"
        );
    }
    for (channels, of_result) in [(3, 16), (16, 10), (128, 64), (64, 128)] {
        assert!(
            ConvolutionPlan::new(
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

#[test]
fn a_weight_stays_whole_where_it_fits_and_is_cut_where_it_does_not() {
    let parts = |dtype, shared_bytes| {
        let plan = ConvolutionPlan::new([128, 8, 8, 64], 64, dtype, shared_bytes);
        plan.unwrap().parts
    };
    assert_eq!(
        SHARED_BYTES.map(|bytes| parts(DType::F16, bytes)),
        [2, 1, 1]
    );
    assert_eq!(
        SHARED_BYTES.map(|bytes| parts(DType::F32, bytes)),
        [4, 2, 1]
    );
}
