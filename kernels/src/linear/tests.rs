//! The linear layer and the loss against the reference, in both layouts, everywhere.

use proptest::prelude::*;

use super::*;
use crate::testing::{assert_close, doubles, finite_differences, same_everywhere, values};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn the_layer_and_its_gradients_equal_the_reference(
        rows in 1..40usize, inputs in 1..90usize, outputs in prop_oneof![1..40usize, Just(300)], seed in 0..1000u64,
    ) {
        let (x, weight) = (values(rows * inputs, seed), values(outputs * inputs, seed + 1));
        let (bias, dlogits) = (values(outputs, seed + 2), values(rows * outputs, seed + 3));
        let (x64, weight64, dlogits64) = (doubles(&x), doubles(&weight), doubles(&dlogits));
        let mut expected = reference::product(&x64, &weight64, inputs);
        for (i, logit) in expected.iter_mut().enumerate() {
            *logit += f64::from(bias[i % outputs]);
        }
        let of_outputs = reference::transposed(&dlogits64, outputs);
        let expected_dx = reference::product(&dlogits64, &reference::transposed(&weight64, inputs), outputs);
        let expected_dw = reference::product(&of_outputs, &reference::transposed(&x64, inputs), rows);
        let expected_db: Vec<f64> = of_outputs.chunks_exact(rows).map(|column| column.iter().sum()).collect();
        for layout in [WeightLayout::OutputMajor, WeightLayout::InputMajor] {
            let shape = LinearShape { rows, inputs, outputs, layout };
            let major = layout == WeightLayout::OutputMajor;
            let weight = if major { weight.clone() } else { reference::transposed(&weight, inputs) };
            let (logits, dx, dw, db) = same_everywhere(|isa| {
                let (mut logits, mut dx) = (vec![f32::NAN; rows * outputs], vec![f32::NAN; x.len()]);
                let (mut dw, mut db) = (vec![f32::NAN; weight.len()], vec![f32::NAN; outputs]);
                forward(isa, shape, &x, &weight, &bias, &mut logits);
                backward_input(isa, shape, &dlogits, &weight, &mut dx);
                backward_weight(isa, shape, &x, &dlogits, &mut dw, &mut db);
                (logits, dx, dw, db)
            });
            let dw = if major { dw } else { reference::transposed(&dw, outputs) };
            assert_close("logits", &logits, &expected, 1e-5);
            assert_close("dx", &dx, &expected_dx, 1e-5);
            assert_close("dw", &dw, &expected_dw, 1e-5);
            assert_close("db", &db, &expected_db, 1e-5);
        }
    }

    #[test]
    fn the_loss_and_its_gradient_equal_the_reference(
        rows in 1..9usize, classes in 1..12usize, smoothing in prop_oneof![Just(0.0), Just(0.1)], seed in 0..1000u64,
    ) {
        let logits: Vec<f32> = values(rows * classes, seed).iter().map(|logit| logit * 8.0).collect();
        let labels: Vec<i64> = (0..rows as u64).map(|row| ((seed + row * 7) % classes as u64) as i64).collect();
        let (loss, correct, gradient) = same_everywhere(|_| {
            let (mut gradient, mut workspace) = (vec![f32::NAN; logits.len()], vec![f64::NAN; rows]);
            let (loss, correct) =
                softmax_cross_entropy(&logits, classes, &labels, smoothing, 0.5, &mut gradient, &mut workspace);
            (loss, correct, gradient)
        });
        let loss_sum = |logits: &[f64]| reference::loss_sum(logits, classes, &labels, smoothing);
        assert_close("loss", &[loss], &[loss_sum(&doubles(&logits))], 1e-12);
        let expected = finite_differences(&doubles(&logits), |logits| 0.5 * loss_sum(logits));
        assert_close("gradient", &gradient, &expected, 1e-6);
        let right = logits.chunks(classes).zip(&labels).filter(|(row, label)| row.iter().all(|v| *v <= row[**label as usize]));
        prop_assert_eq!(correct, right.count());
    }
}

#[test]
fn large_logits_neither_overflow_nor_lose_the_loss() {
    let mut gradient = [0.0; 2];
    let (loss, correct) = softmax_cross_entropy(&[1e4, -1e4], 2, &[1], 0.0, 1.0, &mut gradient, &mut [0.0]);
    assert_eq!((loss, correct, gradient), (2e4, 0, [1.0, -1.0]));
}

#[test]
#[should_panic(expected = "label 3 is not in 0..3")]
fn a_label_out_of_range_is_named() {
    softmax_cross_entropy(&[0.0; 3], 3, &[3], 0.0, 1.0, &mut [0.0; 3], &mut [0.0]);
}
