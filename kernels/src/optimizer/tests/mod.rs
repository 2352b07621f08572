//! The updates against plain loops, bit by bit where they have no norms, and against PyTorch's
//! numbers and the papers' formulas.

use proptest::prelude::*;

use super::adam::{AdamDirection, AdamWUpdate};
use super::lamb::LambUpdate;
use super::sgd::SgdUpdate;
use super::*;
use crate::tests::{assert_close, same_everywhere, values};

mod reference;

/// A few values, two pieces, or more than a round of pieces.
fn lens() -> impl Strategy<Value = usize> {
    prop_oneof![8 => 0..70usize, 8 => 60_000..70_000usize, 1 => Just(ROUND_VALUES + 100_003)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn three_updates_of_sgd_have_the_bits_of_the_plain_loop(
        len in prop_oneof![0..70usize, 60_000..70_000usize], nesterov in any::<bool>(), seed in 0..1000u64,
        momentum in prop_oneof![Just(0.0f32), Just(0.9)], weight_decay in prop_oneof![Just(0.0f32), Just(1e-2)],
    ) {
        let update = SgdUpdate { learning_rate: 0.1, momentum, weight_decay, nesterov };
        let mut w = values(len, seed);
        let mut v = vec![0.0; len];
        for round in 1..4 {
            reference::sgd(&update, &mut w, &mut v, &values(len, seed + round));
        }
        let got = same_everywhere(|isa| {
            let mut w = values(len, seed);
            let mut v = vec![0.0; len];
            for round in 1..4 {
                sgd::step(isa, &update, &mut w, &mut v, &values(len, seed + round));
            }
            (w, v)
        });
        prop_assert!(got == (w, v));
    }

    #[test]
    fn three_updates_of_adamw_have_the_bits_of_the_plain_loop(
        len in prop_oneof![0..70usize, 60_000..70_000usize], seed in 0..1000u64, kept in prop_oneof![Just(1.0f32), Just(0.99)],
    ) {
        let update = |round| AdamWUpdate { learning_rate: 0.1, kept, direction: AdamDirection::new([0.9, 0.999], 1e-8, round) };
        let mut w = values(len, seed);
        let mut m = vec![0.0; len];
        let mut v = vec![0.0; len];
        for round in 1..4 {
            reference::adamw(&update(round), &mut w, [&mut m, &mut v], &values(len, seed + round));
        }
        let got = same_everywhere(|isa| {
            let mut w = values(len, seed);
            let mut m = vec![0.0; len];
            let mut v = vec![0.0; len];
            for round in 1..4 {
                adam::step(isa, &update(round), &mut w, [&mut m, &mut v], &values(len, seed + round));
            }
            (w, m, v)
        });
        prop_assert!(got == (w, m, v));
    }

    #[test]
    fn updates_with_norms_have_the_same_bits_on_any_threads_and_instruction_set(len in lens(), seed in 0..1000u64) {
        same_everywhere(|isa| {
            let update = SgdUpdate { learning_rate: 0.1, momentum: 0.9, weight_decay: 1e-2, nesterov: true };
            let mut w = values(len, seed);
            let mut m = vec![0.5; len];
            let gradients = values(len, seed + 1);
            lars::step(isa, &update, 1e-3, &mut w, &mut m, &gradients);
            let mut scratch = vec![f32::NAN; len];
            let mut v = vec![0.5; len];
            let direction = AdamDirection::new([0.9, 0.999], 1e-6, 3);
            let update = LambUpdate { learning_rate: 0.1, weight_decay: 1e-2, direction, adapts: true };
            lamb::step(isa, &update, &mut w, &mut scratch, [&mut m, &mut v], &gradients);
            [w, m, v]
        });
    }
}

#[test]
fn a_norm_is_that_of_all_values_whatever_their_number() {
    for len in [
        0,
        1,
        15,
        16,
        17,
        PIECE_VALUES + 3,
        ROUND_VALUES + PIECE_VALUES + 5,
    ] {
        let values = values(len, 7);
        let plain = values
            .iter()
            .map(|value| f64::from(*value).powi(2))
            .sum::<f64>()
            .sqrt();
        let got = norm(Isa::detect(), &values);
        assert!(
            (got - plain).abs() <= 1e-12 * plain,
            "{len} values: {got} against {plain}"
        );
    }
}

#[test]
fn a_ratio_without_meaning_is_1() {
    for (of_parameters, of_direction) in [(0.0, 1.0), (1.0, 0.0), (0.0, 0.0), (f64::NAN, 1.0)] {
        assert_eq!(trust_ratio(of_parameters, of_direction, || 3.0), 1.0);
    }
    assert_eq!(trust_ratio(1.0, 1.0, || 3.0), 3.0);
}

#[test]
fn parameters_or_gradients_of_zeros_take_a_step_of_ratio_1() {
    let update = SgdUpdate {
        learning_rate: 0.5,
        momentum: 0.0,
        weight_decay: 0.0,
        nesterov: false,
    };
    let mut w = [0.0; 2];
    let mut v = [0.0; 2];
    lars::step(Isa::Portable, &update, 1e-3, &mut w, &mut v, &[1.0, -2.0]);
    assert_eq!(w, [-0.5, 1.0]);
    lars::step(Isa::Portable, &update, 1e-3, &mut w, &mut v, &[0.0; 2]);
    assert_eq!(w, [-0.5, 1.0]);
}

/// Three steps of these gradients, from these parameters; `step` gets the number of each, from 1.
fn after_three_steps(mut step: impl FnMut(&mut [f32; 3], u64, &[f32; 3])) -> [f32; 3] {
    let mut parameters = [0.5, -1.25, 2.0];
    for (index, gradients) in [[1.0, -2.0, 0.5], [0.25, 0.5, -1.5], [-3.0, 1.0, 0.125]]
        .iter()
        .enumerate()
    {
        step(&mut parameters, index as u64 + 1, gradients);
    }
    parameters
}

/// Expected values as in `trainer/src/step/optimizer/tests.rs`, by PyTorch 2.15 in double
/// precision.
#[test]
fn three_steps_of_sgd_and_adamw_equal_pytorchs() {
    for (nesterov, expected) in [
        (false, [0.479_102_3, -0.896_703_3, 2.125_829_5]),
        (true, [0.655_451_8, -0.879_533_9, 2.194_702_9]),
    ] {
        let update = SgdUpdate {
            learning_rate: 0.1,
            momentum: 0.9,
            weight_decay: 0.01,
            nesterov,
        };
        let mut v = [0.0; 3];
        let w = after_three_steps(|w, _, gradients| {
            sgd::step(Isa::detect(), &update, w, &mut v, gradients)
        });
        assert_close("parameters", &w, &expected, 1e-6);
    }
    for (epsilon, expected) in [
        (1e-8, [0.355_300_4, -1.094_810_4, 1.976_620_2]),
        (0.1, [0.372_337_6, -1.102_907_7, 1.985_947_6]),
    ] {
        let mut m = [0.0; 3];
        let mut v = [0.0; 3];
        let w = after_three_steps(|w, number, gradients| {
            let direction = AdamDirection::new([0.9, 0.999], epsilon, number);
            let update = AdamWUpdate {
                learning_rate: 0.1,
                kept: 0.999,
                direction,
            };
            adam::step(Isa::detect(), &update, w, [&mut m, &mut v], gradients);
        });
        assert_close("parameters", &w, &expected, 1e-6);
    }
}

#[test]
#[should_panic(expected = "sgd: 3 parameters but 2 gradients")]
fn a_wrong_length_is_named() {
    let update = SgdUpdate {
        learning_rate: 0.1,
        momentum: 0.9,
        weight_decay: 0.0,
        nesterov: false,
    };
    sgd::step(
        Isa::Portable,
        &update,
        &mut [0.0; 3],
        &mut [0.0; 3],
        &[0.0; 2],
    );
}
