//! Exponential functions in f32 operations, which every instruction set vectorises alike.
//!
//! In: any value.
//! Out: e^x within 2 units in the last place. Values below -87 give e^-87 (1.6e-38), values above
//! 88 give e^88 (1.7e38); NaN stays NaN.
//! Invariant: no branch, and `mul_add` rounds once on every processor, so the bits are the same
//! everywhere. Without FMA, the C library computes `mul_add`, many times slower.
//! Source: Cody and Waite 1980, "Software Manual for the Elementary Functions", for the reduction.
//! The polynomial interpolates (e^x - 1 - x) / x² at the Chebyshev nodes of |x| < ln 2 / 2.

/// Adding and subtracting it rounds to a whole number.
const ROUND: f32 = 12_582_912.0;
/// ln 2 in two parts, of which the first has so few digits that its multiples are exact.
const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];

#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    exp_to_88(if x > 88.0 { 88.0 } else { x })
}

/// Returns the bits of [`exp`] for x up to 88.
#[inline(always)]
pub(crate) fn exp_to_88(x: f32) -> f32 {
    let (part, power) = parts(x);
    part.mul_add(power, power)
}

/// Returns e^x - 1 for x up to 88, within 3 units in the last place, also next to 0. The lower
/// limit is that of [`exp`].
#[inline(always)]
pub(crate) fn exp_m1(x: f32) -> f32 {
    let (part, power) = parts(x);
    part.mul_add(power, power - 1.0)
}

/// Returns f and a power of two p with e^x = (1 + f) p, for x up to 88.
#[inline(always)]
fn parts(x: f32) -> (f32, f32) {
    // So written a NaN passes.
    let x = if x < -87.0 { -87.0 } else { x };
    let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUND);
    let whole = shifted - ROUND;
    let r = whole.mul_add(-LN_2[0], x);
    let r = whole.mul_add(-LN_2[1], r);
    let mut p = 1.392_617_6e-3;
    for coefficient in [8.363_173e-3, 4.166_655_6e-2, 1.666_657_8e-1, 0.5] {
        p = r.mul_add(p, coefficient);
    }
    // The low bits of what was rounded are the whole number.
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(0x3f80_0000));
    ((p * r).mul_add(r, r), power)
}

/// Most digits that [`exp_f64`] takes: beyond, results may be subnormal or infinite.
pub(crate) const EXP_F64_LIMIT: f64 = 700.0;

/// Returns e^x with the bits of `libm::exp`, for x up to [`EXP_F64_LIMIT`] in size.
/// Source: FreeBSD's e_exp.c, with selections instead of branches.
#[inline(always)]
pub(crate) fn exp_f64(x: f64) -> f64 {
    const LN_2: [f64; 2] = [6.931_471_803_691_238e-1, 1.908_214_929_270_587_7e-10];
    const ROUND: f64 = 6_755_399_441_055_744.0;
    let high_word = x.to_bits() >> 32 & 0x7fff_ffff;
    let half = 0.5_f64.copysign(x);
    let far = (std::f64::consts::LOG2_E * x + half).trunc();
    let near = if high_word > 0x3fd6_2e42 {
        2.0 * half
    } else {
        0.0
    };
    let whole = if high_word >= 0x3ff0_a2b2 { far } else { near };
    let high = x - whole * LN_2[0];
    let low = whole * LN_2[1];
    let r = high - low;
    let square = r * r;
    let mut p = 4.138_136_797_057_238_5e-8;
    for coefficient in [
        -1.653_390_220_546_525_2e-6,
        6.613_756_321_437_934e-5,
        -2.777_777_777_701_559_3e-3,
        1.666_666_666_666_660_2e-1,
    ] {
        p = coefficient + square * p;
    }
    let c = r - square * p;
    let part = 1.0 + (r * c / (2.0 - c) - low + high);
    // The low bits of what was rounded are the whole number.
    let power = f64::from_bits(((whole + ROUND).to_bits() << 52).wrapping_add(1023 << 52));
    let tiny = 1.0 + x;
    if high_word > 0x3e30_0000 {
        part * power
    } else {
        tiny
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_f64_has_the_bits_of_libm() {
        let small = (-60..3).flat_map(|power| {
            let x = 2.0_f64.powi(power);
            [x, 1.3 * x, x.next_down(), x.next_up()]
        });
        let corners = [0.5, 1.5].map(|times| times * std::f64::consts::LN_2);
        let corners = corners
            .into_iter()
            .flat_map(|x| (-3000..3000).map(move |step| x * (1.0 + f64::from(step) * 1e-10)));
        let steps = (0..2_000_000).map(|step| f64::from(step) * 3.5e-4);
        let all = small.chain(corners).chain(steps).chain([0.0]);
        for x in all.flat_map(|x| [x, -x]) {
            assert_eq!(exp_f64(x).to_bits(), libm::exp(x).to_bits(), "{x}");
        }
    }

    #[test]
    fn exp_m1_is_within_three_units_in_the_last_place_next_to_0_too() {
        let small = (-126..4).map(|power| 2.0_f32.powi(power));
        let steps = (-870_000..880_000).map(|step| step as f32 * 1e-4);
        for x in small.flat_map(|x| [x, -x]).chain(steps) {
            let exact = f64::from(x).exp_m1();
            let unit = f64::from(f32::EPSILON) * exact.abs();
            assert!(
                (f64::from(exp_m1(x)) - exact).abs() <= 3.0 * unit,
                "{x}: {} against {exact}",
                exp_m1(x)
            );
        }
        assert!(exp_m1(f32::NAN).is_nan());
        assert_eq!(exp_m1(f32::NEG_INFINITY), -1.0);
    }

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
