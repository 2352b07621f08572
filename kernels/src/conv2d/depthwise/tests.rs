//! Against the reference, as all convolutions.

use crate::Storage;
use crate::conv2d::tests::{Random, check_shape, operands, pool, run_all};
use crate::conv2d::{Algorithm, Conv2d, Conv2dShape};
use crate::simd::Isa;

/// Depthwise convolutions of any side and stride, and those of groups of several channels, with
/// blocks of channels that are not whole and bands that are.
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
    let of_channels = layers.map(|layer| (layer, 1));
    let of_groups = [4, 8].into_iter().flat_map(|of_group| {
        [
            ([2, 8, 9, 16], 3, 1, 1),
            ([3, 7, 5, 40], 3, 2, 1),
            ([1, 9, 17, 8 * of_group], 3, 1, 0),
        ]
        .map(|layer| (layer, of_group))
    });
    of_channels.into_iter().chain(of_groups).map(
        |(([batch, height, width, channels], kernel, stride, padding), of_group)| {
            let in_channels = channels;
            let out_channels = channels;
            let groups = channels / of_group;
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

#[test]
fn a_value_that_is_not_finite_stays_in_its_group() {
    for shape in shapes() {
        let [mut x, w, mut dy] = operands(&shape, &mut Random(4));
        // The last channel, behind one unused element.
        let last = shape.in_channels;
        (x[last], dy[last]) = (f32::INFINITY, f32::INFINITY);
        let of_group = shape.in_channels / shape.groups;
        for isa in Isa::available() {
            let conv = Conv2d::new(shape, Algorithm::Auto, isa, Storage::F32);
            let results = run_all(&conv, &x, &w, &dy);
            for values in [&results.y, &results.dx] {
                for (at, value) in values.iter().enumerate() {
                    let is_near = at % last >= last - of_group;
                    assert!(is_near || value.is_finite(), "{shape:?} {isa:?}");
                }
            }
            let of_others = results.dw.len() / shape.groups * (shape.groups - 1);
            assert!(results.dw[..of_others].iter().all(|dw| dw.is_finite()));
        }
    }
}
