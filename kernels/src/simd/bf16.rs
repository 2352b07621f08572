//! bf16 as bits: the upper half of an f32.
//!
//! In and out: values.
//! Invariant: widening is exact; rounding is to the nearest, ties to even, and a NaN stays one.

/// Returns the value of a bf16, given as bits: the upper half of an f32.
#[inline(always)]
pub(crate) fn value_of(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Returns the bits of the nearest bf16, ties to even. Without a jump, so that the compiler finds
/// vectors.
#[inline(always)]
pub(crate) fn bits_of(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    // Rounding up could make an infinity of a NaN.
    let quiet = bits >> 16 | 0x40;
    (if value.is_nan() { quiet } else { rounded }) as u16
}
