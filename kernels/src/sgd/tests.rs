//! The update against the plain loop, bit by bit.

use proptest::prelude::*;

use super::*;
use crate::testing::{assert_close, same_everywhere, values};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn three_updates_have_the_bits_of_the_plain_loop(
        len in prop_oneof![0..70usize, 60_000..70_000usize], nesterov in any::<bool>(), seed in 0..1000u64,
        momentum in prop_oneof![Just(0.0f32), Just(0.9)], weight_decay in prop_oneof![Just(0.0f32), Just(1e-2)],
    ) {
        let update = SgdUpdate { learning_rate: 0.1, momentum, weight_decay, nesterov };
        let (mut w, mut v) = (values(len, seed), vec![0.0; len]);
        for round in 1..4 {
            reference::step(&update, &mut w, &mut v, &values(len, seed + round));
        }
        let got = same_everywhere(|isa| {
            let (mut w, mut v) = (values(len, seed), vec![0.0; len]);
            for round in 1..4 {
                step(isa, &update, &mut w, &mut v, &values(len, seed + round));
            }
            (w, v)
        });
        prop_assert!(got == (w, v));
    }
}

/// Expected values as in `trainer/src/step/optimizer.rs`, by PyTorch 2.15 in double precision.
#[test]
fn three_steps_equal_pytorchs() {
    for (nesterov, expected) in
        [(false, [0.479_102_3, -0.896_703_3, 2.125_829_5]), (true, [0.655_451_8, -0.879_533_9, 2.194_702_9])]
    {
        let update = SgdUpdate { learning_rate: 0.1, momentum: 0.9, weight_decay: 0.01, nesterov };
        let (mut w, mut v) = ([0.5, -1.25, 2.0], [0.0; 3]);
        for gradients in [[1.0, -2.0, 0.5], [0.25, 0.5, -1.5], [-3.0, 1.0, 0.125]] {
            step(Isa::detect(), &update, &mut w, &mut v, &gradients);
        }
        assert_close("parameters", &w, &expected, 1e-6);
    }
}

#[test]
#[should_panic(expected = "3 parameters but 2 gradients")]
fn a_wrong_length_is_named() {
    let update = SgdUpdate { learning_rate: 0.1, momentum: 0.9, weight_decay: 0.0, nesterov: false };
    step(Isa::Portable, &update, &mut [0.0; 3], &mut [0.0; 3], &[0.0; 2]);
}
