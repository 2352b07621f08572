//! Arrays of four that the compiler turns into NEON or SSE; no instruction is named.

use super::{Kernel, PANEL, Simd, methods};

#[derive(Clone, Copy)]
pub(crate) struct Portable;

type V4 = [f32; 4];

#[inline(never)]
unsafe fn entry<K: Kernel<Portable>>(kernel: K) {
    // SAFETY: passed on to our caller.
    unsafe { kernel.run() }
}

/// Multiplies and adds with one rounding where the target has the instruction; elsewhere two, since
/// a library call for each would be 50 x slower.
#[inline(always)]
fn multiply_add(a: f32, b: f32, c: f32) -> f32 {
    if cfg!(any(target_arch = "aarch64", target_feature = "fma")) {
        a.mul_add(b, c)
    } else {
        a * b + c
    }
}

// SAFETY of all methods: the trait's contract about addresses is passed on to the caller; no
// features are needed.
impl Simd for Portable {
    const LANES: usize = 4;
    const ACCUMULATORS: usize = if cfg!(target_arch = "aarch64") { 24 } else { 8 };
    type V = V4;
    type Mask = usize;

    #[inline(always)]
    unsafe fn vectorize<K: Kernel<Self>>(kernel: K) {
        // SAFETY: the trait's contract, which the caller keeps.
        unsafe { entry(kernel) }
    }
    #[inline(always)]
    unsafe fn exchange<const BY: usize>(v: V4) -> V4 {
        std::array::from_fn(|lane| v[lane ^ BY])
    }
    methods! {
        fn zero() -> V4 {
            [0.0; 4]
        }

        fn splat(value: f32) -> V4 {
            [value; 4]
        }

        fn load(p: *const f32) -> V4 {
            p.cast::<V4>().read_unaligned()
        }

        fn store(p: *mut f32, v: V4) {
            p.cast::<V4>().write_unaligned(v)
        }

        fn mask(n: usize) -> usize {
            n.min(4)
        }

        fn load_masked(p: *const f32, mask: usize) -> V4 {
            if mask == 4 {
                return Self::load(p);
            }
            let mut v = [0.0; 4];
            for (i, lane) in v.iter_mut().enumerate().take(mask) {
                *lane = *p.add(i);
            }
            v
        }

        fn store_masked(p: *mut f32, mask: usize, v: V4) {
            if mask == 4 {
                return Self::store(p, v);
            }
            for (i, lane) in v.iter().enumerate().take(mask) {
                *p.add(i) = *lane;
            }
        }

        fn load_bf16(p: *const u16) -> V4 {
            p.cast::<[u16; 4]>().read_unaligned().map(value_of)
        }

        fn load_bf16_masked(p: *const u16, mask: usize) -> V4 {
            if mask == 4 {
                return Self::load_bf16(p);
            }
            let mut v = [0.0; 4];
            for (i, lane) in v.iter_mut().enumerate().take(mask) {
                *lane = value_of(*p.add(i));
            }
            v
        }

        fn store_bf16(p: *mut u16, v: V4) {
            p.cast::<[u16; 4]>().write_unaligned(v.map(bits_of))
        }

        fn store_bf16_masked(p: *mut u16, mask: usize, v: V4) {
            if mask == 4 {
                return Self::store_bf16(p, v);
            }
            for (i, lane) in v.iter().enumerate().take(mask) {
                *p.add(i) = bits_of(*lane);
            }
        }

        fn pair_bf16(low: V4, high: V4) -> V4 {
            let lane = |i: usize| f32::from_bits(low[i].to_bits() >> 16 | high[i].to_bits());
            [lane(0), lane(1), lane(2), lane(3)]
        }

        fn add(a: V4, b: V4) -> V4 {
            [a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3]]
        }

        fn sub(a: V4, b: V4) -> V4 {
            [a[0] - b[0], a[1] - b[1], a[2] - b[2], a[3] - b[3]]
        }

        fn mul(a: V4, b: V4) -> V4 {
            [a[0] * b[0], a[1] * b[1], a[2] * b[2], a[3] * b[3]]
        }

        fn relu(v: V4) -> V4 {
            v.map(|value| if value < 0.0 { 0.0 } else { value })
        }

        fn at_most(v: V4, limit: V4) -> V4 {
            std::array::from_fn(|i| if v[i] > limit[i] { limit[i] } else { v[i] })
        }

        fn where_positive(gate: V4, v: V4) -> V4 {
            let lane = |i: usize| if gate[i] > 0.0 { v[i] } else { 0.0 };
            [lane(0), lane(1), lane(2), lane(3)]
        }

        fn fma(a: V4, b: V4, c: V4) -> V4 {
            [
                multiply_add(a[0], b[0], c[0]),
                multiply_add(a[1], b[1], c[1]),
                multiply_add(a[2], b[2], c[2]),
                multiply_add(a[3], b[3], c[3]),
            ]
        }

        fn transpose(rows: &mut [V4; PANEL]) {
            let [a, b, c, d] = [rows[0], rows[1], rows[2], rows[3]];
            for (i, row) in rows.iter_mut().enumerate().take(4) {
                *row = [a[i], b[i], c[i], d[i]];
            }
        }
    }
}

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
