//! The composed layer in 16 bits, on Flex: near f32, near Lockstep's kernels, every tensor of the
//! type it should have.

#![allow(clippy::unwrap_used)] // A failed unwrap here is a failed test.

use burn::backend::flex::{FlexDevice, FlexTensor};
use burn::backend::ops::FloatTensorOps;
use burn::backend::{DTypeUsage, Flex};
use burn::tensor::{DType, TensorData};

use super::super::flex;
use super::*;
use crate::choices;
use crate::ops::ConvolutionOptions;

const HALVES: [FloatDType; 2] = [FloatDType::BF16, FloatDType::F16];

/// Relative L2 distances from f32 over the same operands (docs/numerics.md): some roundings of 2^-9
/// or 2^-12 each.
const BF16_TOLERANCE: f64 = 0.02;
const F16_TOLERANCE: f64 = 0.003;

fn tolerance(dtype: FloatDType) -> f64 {
    if dtype == FloatDType::BF16 {
        BF16_TOLERANCE
    } else {
        F16_TOLERANCE
    }
}

/// Repeatable numbers around zero, rounded so that both types of 16 bits hold them. Hashed (the
/// mixing of splitmix64): numbers with a pattern cancel in a weight's gradient, and their roundings
/// do not.
fn tensor<const D: usize>(seed: usize, shape: [usize; D], amplitude: f32) -> FlexTensor {
    let len = shape.iter().product::<usize>();
    let value = |i: usize| {
        let x = ((i + 1 + seed * 1_000_003) as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        (((x ^ (x >> 27)) >> 40) as f32 / (1 << 23) as f32 - 1.0) * amplitude
    };
    let exact = FlexTensor::from_data(TensorData::new(
        (0..len).map(value).collect::<Vec<_>>(),
        shape,
    ));
    Flex::float_cast(
        Flex::float_cast(Flex::float_cast(exact, FloatDType::BF16), FloatDType::F16),
        FloatDType::F32,
    )
}

fn values(tensor: &FlexTensor) -> Vec<f32> {
    let wide = Flex::float_cast(tensor.clone(), FloatDType::F32).to_contiguous();
    wide.as_slice::<f32>().unwrap().to_vec()
}

fn assert_near(found: &FlexTensor, expected: &FlexTensor, tolerance: f64, what: &str) {
    let found = values(found);
    let expected = values(expected);
    assert_eq!(found.len(), expected.len(), "{what}");
    let square = |value: f32| f64::from(value) * f64::from(value);
    let difference: f64 = found
        .iter()
        .zip(&expected)
        .map(|(a, b)| square(a - b))
        .sum();
    let norm: f64 = expected.iter().map(|b| square(*b)).sum();
    let distance = (difference / norm).sqrt();
    assert!(
        distance <= tolerance,
        "{what}: relative L2 distance {distance:e}, expected at most {tolerance:e}"
    );
}

/// A layer's shapes and kind.
#[derive(Clone, Copy, Debug)]
struct Case {
    residual: ResidualKind,
    stride: usize,
    kernel: usize,
    channels: [usize; 2],
    rectifier: Rectifier,
}

const CASES: [Case; 4] = [
    Case {
        residual: ResidualKind::None,
        stride: 1,
        kernel: 3,
        channels: [3, 16],
        rectifier: Rectifier::Relu,
    },
    Case {
        residual: ResidualKind::Identity,
        stride: 1,
        kernel: 3,
        channels: [16, 16],
        rectifier: Rectifier::Relu,
    },
    Case {
        residual: ResidualKind::ShortcutA,
        stride: 1,
        kernel: 3,
        channels: [16, 16],
        rectifier: Rectifier::Relu,
    },
    Case {
        residual: ResidualKind::None,
        stride: 2,
        kernel: 1,
        channels: [8, 16],
        rectifier: Rectifier::None,
    },
];

impl Case {
    fn convolution(self) -> ConvolutionOptions {
        ConvolutionOptions {
            stride: self.stride,
            padding: [self.kernel / 2; 2],
            algorithm: choices::Convolution::Auto,
        }
    }

    fn options(self) -> LayerOptions {
        LayerOptions {
            residual: self.residual,
            rectifier: self.rectifier,
            ..LayerOptions::new(Some(self.convolution()), 1e-5)
        }
    }

    fn residual_shape(self) -> [usize; 4] {
        match self.residual {
            ResidualKind::ShortcutA => [4, 20, 20, self.channels[1] / 2],
            _ => [
                4,
                10usize.div_ceil(self.stride),
                10usize.div_ceil(self.stride),
                self.channels[1],
            ],
        }
    }

    fn weight(self) -> FlexTensor {
        let [c_in, c_out] = self.channels;
        tensor(2, [c_out, c_in, self.kernel, self.kernel], 0.3)
    }

    fn train(self, dtype: FloatDType) -> (LayerSaved<Flex>, LayerOutput<Flex>, FlexTensor) {
        let [c_in, c_out] = self.channels;
        let half = |tensor| Flex::float_cast(tensor, dtype);
        let gamma = tensor(3, [c_out], 1.0);
        let beta = tensor(4, [c_out], 0.5);
        let input = half(tensor(1, [4, 10, 10, c_in], 1.0));
        let residual = half(tensor(5, self.residual_shape(), 1.0));
        let fused = forward::<Flex>(
            input.clone(),
            self.weight(),
            gamma.clone(),
            beta.clone(),
            residual,
            self.options(),
        );
        let saved = LayerSaved {
            addend: half(tensor(6, [4, 10, 10, c_in], 0.1)),
            has_addend: self.residual == ResidualKind::None,
            needs_input: true,
            input,
            weight: self.weight(),
            gamma,
            beta,
            output: fused.output.clone(),
            convolved: fused.kept_convolved.clone(),
            mean: fused.mean.clone(),
            variance: fused.variance.clone(),
            num_values: fused.num_values,
            residual_shape: self.residual_shape(),
        };
        let side = 10usize.div_ceil(self.stride);
        (saved, fused, half(tensor(7, [4, side, side, c_out], 0.01)))
    }
}

#[test]
fn a_composed_layer_in_16_bits_stays_near_f32_forward_and_in_every_gradient() {
    for (case, dtype) in CASES
        .iter()
        .flat_map(|case| HALVES.map(|dtype| (case, dtype)))
    {
        let what = |name: &str| format!("{name}, {dtype:?}, {case:?}");
        let (saved, expected, dy) = case.train(FloatDType::F32);
        let expected_gradients = backward::<Flex>(saved.clone(), dy.clone(), case.options());
        let (half_saved, found, half_dy) = case.train(dtype);
        let pairs = [
            ("output", &found.output, &expected.output),
            ("mean", &found.mean, &expected.mean),
            ("variance", &found.variance, &expected.variance),
        ];
        for (name, found, expected) in pairs {
            assert_near(found, expected, tolerance(dtype), &what(name));
        }
        // The same gate and the same saved values, so that only the gradients' own arithmetic
        // differs.
        let half = |tensor| Flex::float_cast(tensor, dtype);
        let output = half(saved.output);
        let convolved = half(saved.convolved);
        let half_saved = LayerSaved {
            output,
            convolved,
            ..half_saved
        };
        let found = backward::<Flex>(half_saved, half_dy, case.options());
        let mut pairs = vec![
            ("input's gradient", found.input, expected_gradients.input),
            ("weight's gradient", found.weight, expected_gradients.weight),
            ("gamma's gradient", found.gamma, expected_gradients.gamma),
            ("beta's gradient", found.beta, expected_gradients.beta),
        ];
        if case.residual != ResidualKind::None {
            pairs.push((
                "residual's gradient",
                found.residual,
                expected_gradients.residual,
            ));
        }
        for (name, found, expected) in &pairs {
            assert_near(found, expected, tolerance(dtype), &what(name));
        }
    }
}

#[test]
fn activations_keep_their_16_bits_and_everything_else_is_f32() {
    for (case, dtype) in CASES
        .iter()
        .flat_map(|case| HALVES.map(|dtype| (case, dtype)))
    {
        let (saved, fused, dy) = case.train(dtype);
        let gradients = backward::<Flex>(saved, dy, case.options());
        for tensor in [
            &fused.output,
            &fused.kept_convolved,
            &gradients.input,
            &gradients.residual,
        ] {
            assert_eq!(tensor.dtype(), DType::from(dtype), "{case:?}");
        }
        for tensor in [
            &fused.mean,
            &fused.variance,
            &gradients.weight,
            &gradients.gamma,
            &gradients.beta,
        ] {
            assert_eq!(tensor.dtype(), DType::F32, "{case:?}");
        }
    }
}

#[test]
fn the_composed_layer_in_bf16_agrees_with_our_kernels() {
    for case in CASES {
        let (saved, composed, dy) = case.train(FloatDType::BF16);
        let LayerSaved {
            input,
            weight,
            gamma,
            beta,
            ..
        } = saved.clone();
        let residual = Flex::float_cast(tensor(5, case.residual_shape(), 1.0), FloatDType::BF16);
        let own = flex::forward::<burn::tensor::bf16>(
            input,
            weight,
            gamma,
            beta,
            residual,
            &case.options(),
        );
        assert_near(
            &composed.output,
            &own.output,
            tolerance(FloatDType::BF16),
            "output",
        );
        let composed = backward::<Flex>(saved.clone(), dy.clone(), case.options());
        let own = flex::backward::<burn::tensor::bf16>(saved, dy, &case.options());
        assert_near(
            &composed.input,
            &own.input,
            tolerance(FloatDType::BF16),
            "input's gradient",
        );
        assert_near(
            &composed.weight,
            &own.weight,
            tolerance(FloatDType::BF16),
            "weight's gradient",
        );
    }
}

#[test]
fn inference_in_16_bits_stays_near_f32() {
    for (case, dtype) in CASES
        .iter()
        .flat_map(|case| HALVES.map(|dtype| (case, dtype)))
    {
        let [c_in, c_out] = case.channels;
        let run = |dtype| {
            let half = |tensor| Flex::float_cast(tensor, dtype);
            let input = half(tensor(1, [4, 10, 10, c_in], 1.0));
            let residual = half(tensor(5, case.residual_shape(), 1.0));
            let scale = tensor(3, [c_out], 1.0);
            let shift = tensor(4, [c_out], 0.5);
            inference::<Flex>(
                input,
                case.weight(),
                scale,
                shift,
                residual,
                &case.options(),
            )
        };
        let found = run(dtype);
        assert_eq!(found.dtype(), DType::from(dtype));
        assert_near(
            &found,
            &run(FloatDType::F32),
            tolerance(dtype),
            &format!("{dtype:?}, {case:?}"),
        );
    }
}

/// Operands on a device with tensor cores: tensors of 16 bits. Flex takes them too, with sums in
/// f16 for f16.
#[test]
fn a_convolution_given_to_burn_in_16_bits_has_its_types_and_stays_near_the_one_in_f32() {
    assert!(!Flex::dtype_usage(&FlexDevice, DType::F16).contains(DTypeUsage::Accelerated));
    for (case, dtype) in CASES
        .iter()
        .flat_map(|case| HALVES.map(|dtype| (case, dtype)))
    {
        let input = Flex::float_cast(tensor(1, [4, 10, 10, case.channels[0]], 1.0), dtype);
        let rounded = BurnConvolution::of::<Flex>(&input, &case.weight(), case.convolution());
        assert_eq!((rounded.stored, rounded.computed), (dtype, FloatDType::F32));
        let native = BurnConvolution {
            computed: dtype,
            ..rounded.clone()
        };
        let expected = rounded.forward::<Flex>(input.clone(), case.weight());
        let found = native.forward::<Flex>(input.clone(), case.weight());
        assert_eq!(found.dtype(), DType::from(dtype));
        assert_near(&found, &expected, tolerance(dtype), "convolution");
        let side = 10usize.div_ceil(case.stride);
        let dy = tensor(7, [4, side, side, case.channels[1]], 0.5);
        let (d_input, d_weight) =
            rounded.gradients::<Flex>(input.clone(), case.weight(), dy.clone(), true);
        let (found_input, found_weight) = native.gradients::<Flex>(input, case.weight(), dy, true);
        assert_near(
            &found_input.unwrap(),
            &d_input.unwrap(),
            tolerance(dtype),
            "input's gradient",
        );
        assert_eq!(found_weight.dtype(), DType::F32);
        assert_near(
            &found_weight,
            &d_weight,
            tolerance(dtype),
            "weight's gradient",
        );
    }
}
