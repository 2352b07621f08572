//! bf16 storage against f32 storage of the same values: the same arithmetic, rounded where it is
//! stored.

use proptest::prelude::*;

use crate::Element;
use crate::batch_norm::*;
use crate::simd::Isa;
use crate::tests::{rounded, same_everywhere, stored, values, widened};
use half::bf16;

/// Everything that is stored, `[rows, C]` behind one unused element, so that it is not aligned to a
/// vector.
struct Stored<E> {
    x: Vec<E>,
    dy: Vec<E>,
    residual: Vec<E>,
    /// The option A shortcut's input.
    input: Vec<E>,
}

impl Stored<bf16> {
    fn widened(&self) -> Stored<f32> {
        let [x, dy, residual, input] =
            [&self.x, &self.dy, &self.residual, &self.input].map(|values| widened(values));
        Stored {
            x,
            dy,
            residual,
            input,
        }
    }
}

/// Results of all passes: f64 and f32 results, and stored ones.
#[derive(Debug, PartialEq)]
struct Computed<E> {
    sums: Vec<Vec<f64>>,
    stored: Vec<Vec<E>>,
}

/// Every pass with every gate and residual.
fn compute<E: Element>(
    isa: Isa,
    stored: &Stored<E>,
    shape: ShortcutA,
    parameters: &[Vec<f32>; 4],
) -> Computed<E> {
    let x = &stored.x[1..];
    let dy = &stored.dy[1..];
    let residual = &stored.residual[1..];
    let input = &stored.input[1..];
    let channels = shape.channels;
    let rows = x.len() / channels;
    let [mean, invstd, gamma, beta] = parameters;
    let affine = Affine {
        mean,
        invstd,
        gamma,
        beta,
    };
    let mut workspace = vec![f64::NAN; workspace_len(rows, channels)];
    let mut results = Vec::new();
    let mut all_sums = Vec::new();
    let dirty = || vec![E::from_f32(f32::NAN); x.len()];
    for rectifier in [Rectifier::None, Rectifier::Relu, Rectifier::Relu6] {
        for residual in [
            Residual::None,
            Residual::Identity(residual),
            Residual::OptionA(shape, input),
        ] {
            let mut y = dirty();
            let mut scaled = dirty();
            normalize(isa, &affine, x, residual, rectifier, &mut y);
            scale_shift(isa, gamma, beta, x, residual, rectifier, &mut scaled);
            results.extend([y, scaled]);
        }
    }
    for gate in [
        Gate::Open,
        Gate::Recomputed,
        Gate::Recomputed6,
        Gate::Output(residual),
    ] {
        let saved = Saved { affine, x, gate };
        let mut sums = vec![f64::NAN; 2 * channels];
        backward_sums(isa, &saved, dy, &mut sums, &mut workspace);
        for kind in 0..if matches!(gate, Gate::Recomputed | Gate::Recomputed6) {
            1
        } else {
            3
        } {
            let mut dx = dirty();
            let mut of_residual = residual.to_vec();
            let mut of_input = input.to_vec();
            let residual = match kind {
                0 => ResidualGradient::None,
                1 => ResidualGradient::Write(&mut of_residual),
                _ => ResidualGradient::WriteOptionA(shape, &mut of_input),
            };
            backward(isa, &saved, &sums, rows as f64, dy, &mut dx, residual);
            results.extend([dx, of_residual, of_input]);
        }
        all_sums.push(sums);
    }
    Computed {
        sums: all_sums,
        stored: results,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn every_pass_over_bf16_equals_that_over_the_widened_values_rounded(
        (num_images, height, width) in (1..4usize, 1..12usize, 1..12usize),
        (channels_in, channels) in prop_oneof![Just((1, 1)), Just((3, 7)), Just((5, 12)), Just((16, 32)), Just((65, 131))],
        seed in 0..1000u64,
    ) {
        let shape = ShortcutA { num_images, height, width, channels_in, channels };
        let len = 1 + num_images * shape.image_out();
        let of_bf16 = Stored {
            x: stored(len, seed),
            dy: stored(len, seed + 1),
            residual: stored(len, seed + 2),
            input: stored(1 + num_images * shape.image_in(), seed + 3),
        };
        let parameters = [4, 5, 6, 7].map(|more| values(channels, seed + more));
        let got = same_everywhere(|isa| compute(isa, &of_bf16, shape, &parameters));
        let expected = compute(Isa::Portable, &of_bf16.widened(), shape, &parameters);
        prop_assert_eq!(got.sums, expected.sums);
        for (got, expected) in got.stored.iter().zip(&expected.stored) {
            prop_assert_eq!(got, &rounded(expected));
        }
    }
}
