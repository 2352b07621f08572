//! Pixels a multiple of 4 KiB apart, for which the direct kernels take other blocks.

use half::bf16;

use super::{Random, Results, run_all};
use crate::conv2d::{Algorithm, Conv2d, Conv2dShape};
use crate::simd::Isa;
use crate::tests::{rounded, shape_of};
use crate::{Element, Storage};

/// Channels without weight, after which pixels lie elsewhere.
const MORE: usize = 16;

/// Returns the rows with `MORE` values after each, behind the one element that `run_all` skips.
fn widened<T: Copy>(values: &[T], row: usize, more: T) -> Vec<T> {
    let mut all = vec![more];
    for row in values[1..].chunks_exact(row) {
        all.extend_from_slice(row);
        all.extend([more; MORE]);
    }
    all
}

#[test]
fn pixels_4_kib_apart_give_the_bits_of_pixels_elsewhere() {
    // In f32 and in bf16: a run of 50 pixels, and rows of 12 and of 28.
    for (extent, stride, channels) in [(5, 1, 2048), (23, 2, 1024), (56, 2, 1024)] {
        let images = if stride == 1 { 2 } else { 1 };
        let height = if extent == 56 { 3 } else { extent };
        let shape = shape_of([images, height, extent, channels], 85, [1, stride, 0]);
        let other = shape_of(
            [images, height, extent, channels + MORE],
            85,
            [1, stride, 0],
        );
        let mut random = Random(29);
        let x = random.values(shape.input_len());
        let w = random.values(shape.weight_len());
        let dy = random.values(shape.output_len());
        let other_w = widened(&w, channels, 0.0);
        for isa in Isa::available() {
            let y = |shape, x: &[f32], w: &[f32]| run(isa, shape, x, w, &dy).y;
            let expected = y(other, &widened(&x, channels, 1.0), &other_w);
            assert_eq!(y(shape, &x, &w), expected, "{shape:?} {isa:?}");
            let y = |shape, x: &[bf16], w: &[f32]| run(isa, shape, x, w, &rounded(&dy)).y;
            let x = rounded(&x);
            let expected = y(other, &widened(&x, channels, bf16::ONE), &other_w);
            assert_eq!(y(shape, &x, &w), expected, "{shape:?} {isa:?}, bf16");
        }
    }
}

fn run<E: Element>(isa: Isa, shape: Conv2dShape, x: &[E], w: &[f32], dy: &[E]) -> Results<E> {
    let conv = Conv2d::new(shape, Algorithm::Direct, isa, Storage::of::<E>());
    run_all(&conv, x, w, dy)
}
