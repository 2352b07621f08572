//! The cut of a convolution.

#![allow(clippy::unwrap_used)] // A failed unwrap here is a failed test.

use burn::tensor::DType;

use super::{ConvolutionPlan, MOST_SHARED_BYTES};
use crate::cube::strip::{Factors, TILE};

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
                let plan = ConvolutionPlan::new(
                    [1, height, width, channels],
                    channels_of_result,
                    dtype,
                    MOST_SHARED_BYTES,
                );
                // For wide images with many channels in f32, not enough rows fit.
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
    let of_rtx = ConvolutionPlan::new([1, 16, 16, 32], 32, DType::F32, 101_376).unwrap();
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
    assert!(ConvolutionPlan::new([1, 8, 8, 48], 16, DType::F32, MOST_SHARED_BYTES).is_some());
    for (channels, of_result) in [(3, 16), (16, 10), (128, 64), (64, 128), (16, 48)] {
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
