//! Every pass against loops over the definition, on every instruction set, with one thread and three.

use super::*;
use crate::testing::{assert_close, doubles, rounded, values, widened};
use half::bf16;

const fn shape(extents: [usize; 4], kernel: usize, stride: usize, padding: usize) -> DepthwiseShape {
    let [batch, height, width, channels] = extents;
    DepthwiseShape { batch, height, width, channels, kernel, stride, padding }
}

const SHAPES: [DepthwiseShape; 9] = [
    shape([2, 8, 8, 16], 3, 1, 1),
    shape([1, 5, 7, 1], 3, 1, 1),
    shape([5, 7, 5, 17], 3, 2, 1),
    shape([2, 8, 8, 40], 3, 2, 1),
    shape([3, 2, 2, 33], 7, 1, 3),
    shape([1, 9, 16, 3], 7, 1, 3),
    shape([2, 8, 11, 16], 5, 2, 2),
    shape([1, 6, 6, 20], 5, 1, 2),
    shape([1, 9, 8, 4], 3, 1, 0),
];

/// Output, gradient of the input, of the weights, of the bias: by loops over the definition.
fn reference(shape: &DepthwiseShape, [x, weight, bias, dy]: [&[f64]; 4]) -> [Vec<f64>; 4] {
    let DepthwiseShape { batch, height, width, channels, kernel, stride, padding } = *shape;
    let mut y: Vec<f64> = (0..dy.len()).map(|index| bias[index % channels]).collect();
    let (mut dx, mut dw, mut db) = (vec![0.0; x.len()], vec![0.0; weight.len()], vec![0.0; channels]);
    let (rows, columns) = (shape.out_height(), shape.out_width());
    for (index, dy) in dy.iter().enumerate() {
        let (channel, column) = (index % channels, index / channels % columns);
        let (row, image) = (index / channels / columns % rows, index / channels / columns / rows);
        db[channel] += dy;
        for tap in 0..kernel * kernel {
            let at =
                |out: usize, tap: usize, len: usize| (out * stride + tap).checked_sub(padding).filter(|&at| at < len);
            let (Some(i), Some(j)) = (at(row, tap / kernel, height), at(column, tap % kernel, width)) else {
                continue;
            };
            assert!(image < batch);
            let (from, of) = (((image * height + i) * width + j) * channels + channel, channel * kernel * kernel + tap);
            y[index] += x[from] * weight[of];
            dx[from] += dy * weight[of];
            dw[of] += dy * x[from];
        }
    }
    [y, dx, dw, db]
}

type Passes<E> = (Vec<E>, Vec<E>, Vec<f32>, Vec<f32>);

fn run<E: Element>(shape: &DepthwiseShape, isa: Isa, [x, dy]: [&[E]; 2], [weight, bias]: [&[f32]; 2]) -> Passes<E> {
    let (mut y, mut dx) = (vec![E::default(); dy.len()], vec![E::default(); x.len()]);
    let (mut dw, mut db) = (vec![f32::NAN; weight.len()], vec![f32::NAN; bias.len()]);
    let mut workspace = vec![f32::NAN; shape.workspace_len()];
    forward(isa, shape, x, weight, Some(bias), &mut y, &mut workspace);
    data_gradient(isa, shape, dy, weight, &mut dx, &mut workspace);
    weight_gradient(isa, shape, x, dy, &mut dw, &mut db, &mut workspace);
    (y, dx, dw, db)
}

#[test]
fn every_pass_equals_the_definition_and_does_not_depend_on_threads() {
    for shape in SHAPES {
        let (x, dy) = (values(shape.input_len(), 1), values(shape.output_len(), 2));
        let (weight, bias) = (values(shape.weight_len(), 3), values(shape.channels, 4));
        let [wide_x, wide_weight, wide_bias, wide_dy] = [&x, &weight, &bias, &dy].map(|values| doubles(values));
        let expected = reference(&shape, [&wide_x, &wide_weight, &wide_bias, &wide_dy]);
        for isa in Isa::available() {
            let [one, three] = [1, 3].map(|threads| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
                let pool = pool.expect("threads can be started");
                pool.install(|| run(&shape, isa, [&x, &dy], [&weight, &bias]))
            });
            assert_eq!(one, three, "{isa:?}");
            let (y, dx, dw, db) = one;
            for (found, expected) in [y, dx, dw, db].iter().zip(&expected) {
                assert_close(&format!("{shape:?}, {isa:?}"), found, expected, 2e-6);
            }
        }
    }
}

#[test]
fn passes_over_bf16_are_those_of_the_widened_values_rounded() {
    for shape in SHAPES {
        let (x, dy) = (rounded(&values(shape.input_len(), 5)), rounded(&values(shape.output_len(), 6)));
        let parameters = [&values(shape.weight_len(), 7)[..], &values(shape.channels, 8)];
        let found: Passes<bf16> = run(&shape, Isa::detect(), [&x, &dy], parameters);
        let (y, dx, dw, db) = run(&shape, Isa::detect(), [&widened(&x)[..], &widened(&dy)], parameters);
        assert_eq!(found, (rounded(&y), rounded(&dx), dw, db), "{shape:?}");
    }
}

#[test]
#[should_panic(expected = "depthwise: expected kernel 3, 5 or 7")]
fn another_kernel_is_refused() {
    run(&shape([1, 4, 4, 1], 2, 1, 0), Isa::detect(), [&[0.0; 16][..], &[0.0; 9]], [&[0.0; 4], &[0.0]]);
}
