//! Exponential function in plain f32 operations, which every instruction set vectorises alike.
//!
//! In: any value.
//! Out: e^x within 2 units in the last place. Values below -87 give e^-87 (1.6e-38), values above
//! 88 give e^88 (1.7e38); NaN stays NaN.
//! Invariant: no branch and no fused operation, so the bits are the same everywhere.
//! Source: Cody and Waite 1980, "Software Manual for the Elementary Functions", for the reduction;
//! the polynomial is that of Cephes' `expf`.

/// Adding and subtracting it rounds to a whole number.
const ROUND: f32 = 12_582_912.0;
/// ln 2 in two parts, of which the first has so few digits that its multiples are exact.
const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];

#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // So written a NaN passes.
    let x = if x < -87.0 { -87.0 } else { x };
    let x = if x > 88.0 { 88.0 } else { x };
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let whole = shifted - ROUND;
    let r = x - whole * LN_2[0] - whole * LN_2[1];
    let mut p = 1.987_569_2e-4;
    for coefficient in [
        1.398_2e-3,
        8.333_452e-3,
        4.166_579_6e-2,
        1.666_666_5e-1,
        0.5,
    ] {
        p = p * r + coefficient;
    }
    // The low bits of what was rounded are the whole number.
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(0x3f80_0000));
    (p * r * r + r + 1.0) * power
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_two_units_in_the_last_place_and_a_nan_stays_one() {
        for step in -870_000..880_000 {
            let x = step as f32 * 1e-4;
            let exact = f64::from(x).exp();
            let unit = f64::from(f32::EPSILON) * exact;
            assert!(
                (f64::from(exp(x)) - exact).abs() <= 2.0 * unit,
                "{x}: {} against {exact}",
                exp(x)
            );
        }
        assert!(exp(f32::NAN).is_nan());
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(
            (exp(f32::NEG_INFINITY), exp(f32::INFINITY)),
            (exp(-87.0), exp(88.0))
        );
    }
}
