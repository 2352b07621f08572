//! Attention against its definition in f64, on every instruction set, with one thread and three.

use super::*;
use crate::tests::{assert_close, doubles, finite_differences, rounded, values, widened};
use half::bf16;

const SHAPES: [Attention; 4] = [
    Attention {
        images: 2,
        tokens: 3,
        heads: 2,
        width: 5,
    },
    Attention {
        images: 3,
        tokens: 17,
        heads: 1,
        width: 16,
    },
    Attention {
        images: 2,
        tokens: 65,
        heads: 3,
        width: 32,
    },
    Attention {
        images: 1,
        tokens: 32,
        heads: 2,
        width: 16,
    },
];

/// The result of f64 loops. A query without a visible key has the result 0.
fn reference(shape: &Attention, qkv: &[f64], mask: Mask<'_>) -> Vec<f64> {
    let Attention {
        images,
        tokens,
        heads,
        width,
    } = *shape;
    let mut y = vec![0.0; shape.output_len()];
    let at =
        |image, token, part, head| (((image * tokens + token) * 3 + part) * heads + head) * width;
    for (image, head, row) in
        (0..images).flat_map(|i| (0..heads).flat_map(move |h| (0..tokens).map(move |t| (i, h, t))))
    {
        let query = &qkv[at(image, row, 0, head)..][..width];
        let scores: Vec<f64> = (0..tokens)
            .map(|token| {
                query
                    .iter()
                    .zip(&qkv[at(image, token, 1, head)..])
                    .map(|(q, k)| q * k)
                    .sum::<f64>()
            })
            .enumerate()
            .map(|(token, score)| {
                let mask = match mask {
                    Mask::Causal if token > row => f64::NEG_INFINITY,
                    Mask::Added(mask) => f64::from(mask[(image * tokens + row) * tokens + token]),
                    _ => 0.0,
                };
                (score / (width as f64).sqrt() + mask).exp()
            })
            .collect();
        let total = scores.iter().sum::<f64>().max(f64::MIN_POSITIVE);
        for (token, score) in scores.iter().enumerate() {
            for column in 0..width {
                y[((image * tokens + row) * heads + head) * width + column] +=
                    score / total * qkv[at(image, token, 2, head) + column];
            }
        }
    }
    y
}

/// Values of which some hide a key, and all keys of the first query.
fn added(shape: &Attention) -> Vec<f32> {
    let mut mask = values(shape.images * shape.tokens * shape.tokens, 9);
    for (index, value) in mask.iter_mut().enumerate() {
        if *value > 0.5 || index < shape.tokens {
            *value = f32::NEG_INFINITY;
        }
    }
    mask
}

fn run<E: Element>(
    shape: &Attention,
    isa: Isa,
    qkv: &[E],
    mask: Mask<'_>,
    dy: &[E],
) -> [Vec<E>; 2] {
    let mut y = vec![E::default(); dy.len()];
    let mut d_qkv = vec![E::default(); qkv.len()];
    let mut workspace = vec![f32::NAN; shape.workspace_len()];
    shape.forward(isa, qkv, mask, &mut y, &mut workspace);
    shape.backward(isa, qkv, mask, dy, &mut d_qkv, &mut workspace);
    [y, d_qkv]
}

#[test]
fn attention_equals_the_reference_and_does_not_depend_on_threads() {
    for shape in SHAPES {
        let qkv: Vec<f32> = values(3 * shape.output_len(), 1)
            .iter()
            .map(|value| 3.0 * value)
            .collect();
        let dy = values(shape.output_len(), 2);
        let added = added(&shape);
        for mask in [Mask::None, Mask::Causal, Mask::Added(&added)] {
            let expected = reference(&shape, &doubles(&qkv), mask);
            for isa in Isa::available() {
                let [one, three] = [1, 3].map(|threads| {
                    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
                    pool.expect("threads can be started")
                        .install(|| run(&shape, isa, &qkv, mask, &dy))
                });
                assert_eq!(one, three, "{isa:?}");
                assert_close(&format!("{shape:?}, {isa:?}"), &one[0], &expected, 5e-6);
            }
        }
    }
}

#[test]
fn its_gradient_is_that_of_finite_differences() {
    for shape in &SHAPES[..2] {
        let qkv = values(3 * shape.output_len(), 3);
        let dy = values(shape.output_len(), 4);
        let added = added(shape);
        for mask in [Mask::None, Mask::Causal, Mask::Added(&added)] {
            let loss = |qkv: &[f64]| {
                reference(shape, qkv, mask)
                    .iter()
                    .zip(&dy)
                    .map(|(y, dy)| y * f64::from(*dy))
                    .sum::<f64>()
            };
            let expected = finite_differences(&doubles(&qkv), loss);
            for isa in Isa::available() {
                let [_, d_qkv] = run(shape, isa, &qkv, mask, &dy);
                assert_close(&format!("{shape:?}, {isa:?}"), &d_qkv, &expected, 1e-5);
            }
        }
    }
}

#[test]
fn attention_of_bf16_is_that_of_the_widened_values_rounded() {
    let shape = SHAPES[2];
    let qkv = rounded(&values(3 * shape.output_len(), 5));
    let dy = rounded(&values(shape.output_len(), 6));
    for mask in [Mask::None, Mask::Causal] {
        let found: [Vec<bf16>; 2] = run(&shape, Isa::detect(), &qkv, mask, &dy);
        let expected = run(&shape, Isa::detect(), &widened(&qkv), mask, &widened(&dy));
        assert_eq!(found, expected.map(|values| rounded(&values)));
    }
}

#[test]
#[cfg(target_pointer_width = "64")]
#[should_panic(expected = "attention: result: expected at most 1152921504606846975 elements")]
fn extents_whose_product_wraps_are_refused() {
    let shape = Attention {
        images: 1,
        tokens: (1 << 63) + 1,
        heads: 2,
        width: 1,
    };
    shape.forward(
        Isa::detect(),
        &[0.0; 6],
        Mask::None,
        &mut [0.0; 2],
        &mut [0.0; 4096],
    );
}
