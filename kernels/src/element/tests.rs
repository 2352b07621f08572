//! bf16 against the crate half, number by number and vector by vector.

use super::*;

/// Bits of every kind: random ones, and the neighbours of each bf16 and of each tie.
fn all_kinds_of_bits() -> impl Iterator<Item = u32> {
    let mut state = 1u32;
    let random = std::iter::repeat_with(move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state ^ state >> 15
    });
    let near = |bits: u32| [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff].map(|low| bits << 16 | low);
    (0..=0xffff).flat_map(near).chain(random.take(1 << 18))
}

#[test]
fn every_bf16_survives_widening_and_rounding() {
    for bits in 0..=u16::MAX {
        let stored = bf16::from_bits(bits);
        let value = Element::to_f32(stored);
        assert_eq!(value.to_bits(), u32::from(bits) << 16);
        let back = <bf16 as Element>::from_f32(value);
        let quiet = if stored.is_nan() { bits | 0x40 } else { bits };
        assert_eq!(back.to_bits(), quiet, "{bits:#x}");
        assert_eq!(value.is_nan(), stored.is_nan());
    }
}

#[test]
fn rounding_equals_that_of_half() {
    for bits in all_kinds_of_bits() {
        let value = f32::from_bits(bits);
        assert_eq!(
            <bf16 as Element>::from_f32(value).to_bits(),
            bf16::from_f32(value).to_bits(),
            "{bits:#x}"
        );
    }
}

/// Rounds with vectors, the last one masked, and widens what it stored.
struct ThereAndBack<'a> {
    values: &'a [f32],
    stored: &'a mut [bf16],
    widened: &'a mut [f32],
}

impl GenericWork for ThereAndBack<'_> {
    type Output = ();
    fn run<S: Simd>(self) {
        // SAFETY: `Isa::run` asserted the features.
        unsafe { S::vectorize(self) }
    }
}

impl<S: Simd> Kernel<S> for ThereAndBack<'_> {
    #[inline(always)]
    unsafe fn run(self) {
        let len = self.values.len();
        // SAFETY: all slices have `len` elements; vectors are masked there.
        unsafe {
            for first in (0..len).step_by(S::LANES) {
                let value = S::load_masked(self.values.as_ptr().add(first), S::mask(len - first));
                let stored = self.stored.as_mut_ptr().add(first);
                let widened = self.widened.as_mut_ptr().add(first);
                if len - first >= S::LANES {
                    bf16::store::<S>(stored, value);
                    S::store(widened, bf16::load::<S>(stored));
                } else {
                    let mask = S::mask(len - first);
                    bf16::store_masked::<S>(stored, mask, value);
                    S::store_masked(widened, mask, bf16::load_masked::<S>(stored, mask));
                }
            }
        }
    }
}

#[test]
fn every_instruction_set_rounds_and_widens_like_the_scalar_code() {
    let values: Vec<f32> = all_kinds_of_bits().map(f32::from_bits).collect();
    for isa in Isa::available() {
        let mut stored = vec![bf16::ONE; values.len()];
        let mut widened = vec![1.0; values.len()];
        isa.run_bf16(ThereAndBack {
            values: &values,
            stored: &mut stored,
            widened: &mut widened,
        });
        for ((value, stored), widened) in values.iter().zip(&stored).zip(&widened) {
            let expected = bits_of(*value);
            let flushed = value.is_subnormal() && stored.to_bits() == expected & 0x8000;
            assert!(
                stored.to_bits() == expected || flushed,
                "{isa:?}: {value:e} gives {stored:?}"
            );
            assert_eq!(
                widened.to_bits(),
                value_of(stored.to_bits()).to_bits(),
                "{isa:?}: {stored:?} widened"
            );
        }
    }
}

#[test]
fn masked_lanes_alone_are_touched_wherever_the_slice_starts() {
    let values: Vec<f32> = (0..40u8).map(|i| f32::from(i) / 3.0).collect();
    for isa in Isa::available() {
        for (start, len) in (0..3).flat_map(|start| (0..=36).map(move |len| (start, len))) {
            let mut stored = [bf16::ONE; 40];
            let mut widened = [1.0; 40];
            isa.run_bf16(ThereAndBack {
                values: &values[start..start + len],
                stored: &mut stored[start..start + len],
                widened: &mut widened[start..start + len],
            });
            for i in 0..40 {
                let inside = (start..start + len).contains(&i);
                let expected = if inside {
                    bf16::from_f32(values[i])
                } else {
                    bf16::ONE
                };
                assert_eq!(stored[i], expected, "{isa:?}: {i} of {start}+{len}");
                assert_eq!(
                    widened[i],
                    expected.to_f32(),
                    "{isa:?}: {i} of {start}+{len}"
                );
            }
        }
    }
}
