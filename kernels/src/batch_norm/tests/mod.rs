//! The fast passes against the reference, every instruction set and thread count, and gradients
//! against differences.

use proptest::prelude::*;

use super::*;
use crate::simd::Isa;
use crate::tests::{assert_close, doubles, finite_differences, same_everywhere, values};

mod bf16;
mod reference;

const EPSILON: f64 = 1e-5;

/// A normalisation of `rows` of `channels` with all its inputs.
struct Case {
    x: Vec<f32>,
    gamma: Vec<f32>,
    beta: Vec<f32>,
    dy: Vec<f32>,
    residual: Vec<f32>,
}

impl Case {
    fn new(rows: usize, channels: usize, seed: u64) -> Self {
        let len = rows * channels;
        // A mean of 3 standard deviations: where careless formulas lose digits.
        let x = values(len, seed).iter().map(|x| x + 2.0).collect();
        let gamma = values(channels, seed + 1)
            .iter()
            .map(|gamma| gamma + 1.5)
            .collect();
        let beta = values(channels, seed + 2);
        let dy = values(len, seed + 3);
        Self {
            x,
            gamma,
            beta,
            dy,
            residual: values(len, seed + 4),
        }
    }

    fn channels(&self) -> usize {
        self.gamma.len()
    }

    fn rows(&self) -> usize {
        self.x.len() / self.channels()
    }

    fn workspace(&self) -> Vec<f64> {
        vec![f64::NAN; workspace_len(self.rows(), self.channels())]
    }

    /// Mean and invstd of the batch.
    fn finished(&self) -> (Vec<f32>, Vec<f32>) {
        let (mean, variance) = reference::moments(&doubles(&self.x), self.channels());
        let invstd = variance
            .iter()
            .map(|variance| (1.0 / (variance + EPSILON).sqrt()) as f32)
            .collect();
        (mean.iter().map(|mean| *mean as f32).collect(), invstd)
    }

    fn forward(&self, isa: Isa, residual: Residual<'_>, rectifier: Rectifier) -> Vec<f32> {
        let (mean, invstd) = self.finished();
        let mut y = vec![f32::NAN; self.x.len()];
        normalize(
            isa,
            &self.affine(&mean, &invstd),
            &self.x,
            residual,
            rectifier,
            &mut y,
        );
        y
    }

    fn affine<'a>(&'a self, mean: &'a [f32], invstd: &'a [f32]) -> Affine<'a> {
        Affine {
            mean,
            invstd,
            gamma: &self.gamma,
            beta: &self.beta,
        }
    }

    /// S1, S2 and dx; `residual` receives its gradient.
    fn backward(
        &self,
        isa: Isa,
        gate: Gate<'_>,
        residual: ResidualGradient<'_>,
    ) -> (Vec<f64>, Vec<f32>) {
        let (mean, invstd) = self.finished();
        let saved = Saved {
            affine: self.affine(&mean, &invstd),
            x: &self.x,
            gate,
        };
        let mut sums = vec![f64::NAN; 2 * self.channels()];
        backward_sums(isa, &saved, &self.dy, &mut sums, &mut self.workspace());
        let mut dx = vec![f32::NAN; self.dy.len()];
        backward(
            isa,
            &saved,
            &sums,
            self.rows() as f64,
            &self.dy,
            &mut dx,
            residual,
        );
        (sums, dx)
    }

    fn reference(
        &self,
        x: &[f64],
        gamma: &[f64],
        beta: &[f64],
        residual: &[f64],
        rectifier: Rectifier,
    ) -> Vec<f64> {
        reference::forward(x, gamma, beta, residual, rectifier, EPSILON)
    }

    /// Σ dy · y, whose gradients the backward pass computes.
    fn loss(&self, y: &[f64]) -> f64 {
        y.iter()
            .zip(&self.dy)
            .map(|(y, dy)| y * f64::from(*dy))
            .sum()
    }
}

fn rectifiers() -> impl Strategy<Value = Rectifier> {
    prop_oneof![
        Just(Rectifier::None),
        Just(Rectifier::Relu),
        Just(Rectifier::Relu6)
    ]
}

fn shapes() -> impl Strategy<Value = (usize, usize, u64)> {
    let channels = prop_oneof![
        1..40usize,
        Just(64),
        Just(100),
        Just(127),
        Just(128),
        Just(131),
        Just(2100)
    ];
    (
        prop_oneof![Just(1), 2..40usize, 300..700usize],
        channels,
        0..1000u64,
    )
        .prop_map(|(rows, channels, seed)| {
            (
                if channels > 200 { rows % 50 + 1 } else { rows },
                channels,
                seed,
            )
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn forward_equals_the_reference_everywhere((rows, channels, seed) in shapes(), rectifier in rectifiers()) {
        let case = Case::new(rows, channels, seed);
        let (_, variance) = reference::moments(&doubles(&case.x), channels);
        // The mean is rounded to f32: invstd, large where a few rows are alike, magnifies that.
        let largest = variance.iter().fold(0.0f64, |invstd, variance| invstd.max(1.0 / (variance + EPSILON).sqrt()));
        let tolerance = 1e-5 + 1e-6 * largest;
        let gamma = doubles(&case.gamma);
        let beta = doubles(&case.beta);
        let residual = doubles(&case.residual);
        let x = doubles(&case.x);
        let y = same_everywhere(|isa| case.forward(isa, Residual::Identity(&case.residual), rectifier));
        assert_close("with residual", &y, &case.reference(&x, &gamma, &beta, &residual, rectifier), tolerance);
        let y = same_everywhere(|isa| case.forward(isa, Residual::None, rectifier));
        assert_close("without", &y, &case.reference(&x, &gamma, &beta, &vec![0.0; x.len()], rectifier), tolerance);
    }

    #[test]
    fn backward_passes_agree_with_each_other_everywhere((rows, channels, seed) in shapes()) {
        let case = Case::new(rows, channels, seed);
        let y = case.forward(Isa::Portable, Residual::None, Rectifier::Relu);
        let recomputed = same_everywhere(|isa| case.backward(isa, Gate::Recomputed, ResidualGradient::None));
        let from_y = same_everywhere(|isa| case.backward(isa, Gate::Output(&y), ResidualGradient::None));
        prop_assert_eq!(&recomputed, &from_y, "the recomputed gate is the forward's");
        let masked: Vec<f32> = case.dy.iter().zip(&y).map(|(dy, y)| if *y > 0.0 { *dy } else { 0.0 }).collect();
        let written = same_everywhere(|isa| {
            let mut written = vec![f32::NAN; y.len()];
            assert_eq!(case.backward(isa, Gate::Output(&y), ResidualGradient::Write(&mut written)), from_y);
            written
        });
        prop_assert_eq!(&written, &masked);
        let plain = same_everywhere(|isa| case.backward(isa, Gate::Open, ResidualGradient::None));
        let open = vec![1.0; y.len()];
        prop_assert_eq!(plain, case.backward(Isa::Portable, Gate::Output(&open), ResidualGradient::None));
    }

    #[test]
    fn the_gate_of_a_relu6_is_shut_outside_0_to_6((rows, channels, seed) in shapes()) {
        let mut case = Case::new(rows, channels, seed);
        case.gamma.iter_mut().for_each(|gamma| *gamma *= 6.0);
        let y = case.forward(Isa::Portable, Residual::None, Rectifier::Relu6);
        let open = |y: f32| y > 0.0 && y < 6.0;
        // With no gradient where the gate is shut, no gate is needed.
        let masked = Case {
            dy: case.dy.iter().zip(&y).map(|(dy, y)| if open(*y) { *dy } else { 0.0 }).collect(),
            x: case.x.clone(),
            gamma: case.gamma.clone(),
            beta: case.beta.clone(),
            residual: Vec::new(),
        };
        let gated = same_everywhere(|isa| case.backward(isa, Gate::Recomputed6, ResidualGradient::None));
        prop_assert_eq!(gated, masked.backward(Isa::Portable, Gate::Open, ResidualGradient::None));
    }

    #[test]
    fn gradients_are_those_of_finite_differences(rows in 3..12usize, channels in 1..6usize, seed in 0..1000u64) {
        let case = Case::new(rows, channels, seed);
        let y = case.forward(Isa::Portable, Residual::Identity(&case.residual), Rectifier::Relu);
        // A ReLU at its kink has no gradient.
        prop_assume!(y.iter().all(|y| *y == 0.0 || *y > 1e-3));
        let mut dresidual = vec![f32::NAN; y.len()];
        let (sums, dx) = case.backward(Isa::detect(), Gate::Output(&y), ResidualGradient::Write(&mut dresidual));
        let x = doubles(&case.x);
        let gamma = doubles(&case.gamma);
        let beta = doubles(&case.beta);
        let residual = doubles(&case.residual);
        let before = case.reference(&x, &gamma, &beta, &residual, Rectifier::None);
        prop_assume!(before.iter().all(|y| y.abs() > 1e-3));
        let loss = |x: &[f64], gamma: &[f64], beta: &[f64], residual: &[f64]| {
            case.loss(&case.reference(x, gamma, beta, residual, Rectifier::Relu))
        };
        // Values near 3 lie 2e-7 apart; dx has their distance from the mean and itself in standard
        // deviations, and three may be near each other.
        let most_invstd = case.finished().1.iter().copied().fold(0.0, f32::max);
        let tolerance = 1e-4_f64.max(1e-6 * f64::from(most_invstd).powi(2));
        assert_close("dx", &dx, &finite_differences(&x, |x| loss(x, &gamma, &beta, &residual)), tolerance);
        assert_close("dbeta", &sums[..channels], &finite_differences(&beta, |b| loss(&x, &gamma, b, &residual)), 1e-4);
        assert_close("dgamma", &sums[channels..], &finite_differences(&gamma, |g| loss(&x, g, &beta, &residual)), 1e-4);
        assert_close("dresidual", &dresidual, &finite_differences(&residual, |r| loss(&x, &gamma, &beta, r)), 1e-4);
    }

    #[test]
    fn option_a_equals_its_stored_shortcut(
        (num_images, height, width) in (1..6usize, 1..9usize, 1..9usize),
        (channels_in, channels) in prop_oneof![Just((16, 32)), Just((3, 6)), Just((5, 12)), Just((64, 140)), Just((4, 4))],
        seed in 0..1000u64,
    ) {
        let shape = ShortcutA { num_images, height, width, channels_in, channels };
        let case = Case::new(num_images * shape.pixels_out(), channels, seed);
        let input = values(num_images * shape.image_in(), seed + 9);
        let stored: Vec<f32> = reference::shortcut(shape, &doubles(&input)).iter().map(|value| *value as f32).collect();
        let y = same_everywhere(|isa| case.forward(isa, Residual::OptionA(shape, &input), Rectifier::Relu));
        prop_assert_eq!(&y, &case.forward(Isa::Portable, Residual::Identity(&stored), Rectifier::Relu));
        let mut masked = vec![f32::NAN; y.len()];
        let expected = case.backward(Isa::Portable, Gate::Output(&y), ResidualGradient::Write(&mut masked));
        let written = same_everywhere(|isa| {
            let mut written = vec![f32::NAN; input.len()];
            let residual = ResidualGradient::WriteOptionA(shape, &mut written);
            assert_eq!(case.backward(isa, Gate::Output(&y), residual), expected);
            written
        });
        // The shortcut is linear: its gradient paired with any input is its output paired with the
        // gradient.
        let pair = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
        prop_assert!((pair(&written, &input) - pair(&masked, &stored)).abs() < 1e-9 * y.len() as f64);
    }
}

#[test]
fn moments_equal_the_reference_and_do_not_depend_on_threads() {
    for (rows, channels) in [(1, 1), (5, 3), (1024, 16), (2500, 17)] {
        let case = Case::new(rows, channels, 7);
        let (mean, variance) = reference::moments(&doubles(&case.x), channels);
        for isa in Isa::available() {
            let run = |threads: usize| {
                let pool = rayon::ThreadPoolBuilder::new()
                    .num_threads(threads)
                    .build()
                    .expect("threads can be started");
                let mut sums = vec![f64::NAN; 2 * channels];
                let mut workspace = vec![f32::NAN; moments_workspace_len(rows, channels)];
                pool.install(|| moments(isa, &case.x, &mut sums, &mut workspace));
                sums
            };
            let sums = run(1);
            assert_eq!(sums, run(3), "{isa:?}");
            let of = |sums: &[f64]| sums.iter().map(|sum| sum / rows as f64).collect::<Vec<_>>();
            assert_close("mean", &of(&sums[..channels]), &mean, 1e-6);
            assert_close("variance", &of(&sums[channels..]), &variance, 1e-6);
        }
    }
}

#[test]
fn folded_inference_equals_normalisation_and_a_nan_passes_the_relu() {
    let case = Case::new(37, 7, 3);
    let scale = &case.gamma;
    let shift = &case.beta;
    let expected: Vec<f32> = (0..case.x.len())
        .map(|i| (case.x[i] * scale[i % 7] + shift[i % 7]).max(0.0))
        .collect();
    let mut y = vec![f32::NAN; case.x.len()];
    scale_shift(
        Isa::detect(),
        scale,
        shift,
        &case.x,
        Residual::None,
        Rectifier::Relu,
        &mut y,
    );
    assert_eq!(y, expected);
    let nan = vec![f32::NAN; case.x.len()];
    scale_shift(
        Isa::detect(),
        scale,
        shift,
        &nan,
        Residual::None,
        Rectifier::Relu,
        &mut y,
    );
    assert!(y.iter().all(|y| y.is_nan()));
}

#[test]
#[should_panic(expected = "dy: expected 6 values, got 5")]
fn a_wrong_length_is_named() {
    let case = Case::new(2, 3, 1);
    let saved = Saved {
        affine: case.affine(&case.beta, &case.gamma),
        x: &case.x,
        gate: Gate::Open,
    };
    backward_sums(
        Isa::Portable,
        &saved,
        &case.dy[..5],
        &mut [0.0; 6],
        &mut case.workspace(),
    );
}

#[test]
#[cfg(target_pointer_width = "64")]
#[should_panic(
    expected = "batch_norm: shortcut input: expected at most 1152921504606846975 elements"
)]
fn a_shortcut_whose_extents_wrap_is_refused() {
    let shortcut = ShortcutA {
        num_images: 1 << 62,
        height: 2,
        width: 2,
        channels_in: 1,
        channels: 4,
    };
    let residual = Residual::OptionA(shortcut, &[]);
    scale_shift::<f32>(
        Isa::detect(),
        &[1.0; 4],
        &[0.0; 4],
        &[],
        residual,
        Rectifier::None,
        &mut [],
    );
}
