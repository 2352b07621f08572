//! Against the reference, as all convolutions.

use crate::conv2d::Conv2dShape;
use crate::conv2d::tests::{Random, check_shape, pool};

/// Depthwise convolutions of any side and stride, with blocks of channels that are not whole and
/// bands that are.
pub(in crate::conv2d) fn shapes() -> impl Iterator<Item = Conv2dShape> {
    let layers = [
        ([2, 8, 8, 16], 3, 1, 1),
        ([1, 5, 7, 2], 3, 1, 1),
        ([5, 7, 5, 17], 3, 2, 1),
        ([2, 32, 30, 40], 3, 2, 1),
        ([2, 40, 33, 45], 3, 1, 1),
        ([3, 2, 2, 33], 7, 1, 3),
        ([1, 9, 16, 3], 7, 1, 3),
        ([2, 9, 16, 24], 7, 2, 3),
        ([2, 8, 11, 16], 5, 2, 2),
        ([1, 6, 6, 20], 5, 1, 2),
        ([1, 9, 8, 4], 3, 1, 0),
    ];
    layers.into_iter().map(
        |([batch, height, width, channels], kernel, stride, padding)| {
            let in_channels = channels;
            let out_channels = channels;
            let groups = channels;
            Conv2dShape {
                batch,
                height,
                width,
                in_channels,
                out_channels,
                kernel: [kernel; 2],
                stride,
                padding: [padding; 2],
                groups,
            }
        },
    )
}

#[test]
fn depthwise_convolutions_equal_the_reference() {
    for shape in shapes() {
        check_shape(&shape, &mut Random(9), &[pool(1), pool(3)]);
    }
}
