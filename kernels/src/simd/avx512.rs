//! AVX-512: 16 lanes, 32 registers, masked loads and stores for tails; with AVX512-BF16 or without.

use super::{Kernel, PANEL, Simd, methods};
use core::arch::x86_64::*;

/// `BF16`: one instruction rounds a vector to bf16, else a few of integers do.
#[derive(Clone, Copy)]
pub(crate) struct Avx512<const BF16: bool>;

#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")]
#[inline(never)]
unsafe fn entry<const BF16: bool, K: Kernel<Avx512<BF16>>>(kernel: K) {
    // SAFETY: passed on to our caller.
    unsafe { kernel.run() }
}

#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx512bf16,avx2,fma")]
#[inline(never)]
unsafe fn entry_bf16<const BF16: bool, K: Kernel<Avx512<BF16>>>(kernel: K) {
    // SAFETY: passed on to our caller.
    unsafe { kernel.run() }
}

/// Rounds to the nearest, ties to even; a NaN stays one, made quiet. The instruction takes
/// subnormals for zero.
#[inline(always)]
unsafe fn round<const BF16: bool>(v: __m512) -> __m256i {
    // SAFETY: features by the caller's contract; the vector of bf16 is one of bits.
    unsafe {
        if BF16 {
            return core::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(v));
        }
        let bits = _mm512_castps_si512(v);
        let high = _mm512_srli_epi32::<16>(bits);
        let half = _mm512_add_epi32(
            _mm512_set1_epi32(0x7fff),
            _mm512_and_si512(high, _mm512_set1_epi32(1)),
        );
        let rounded = _mm512_srli_epi32::<16>(_mm512_add_epi32(bits, half));
        let is_nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(v, v);
        _mm512_cvtepi32_epi16(_mm512_mask_or_epi32(
            rounded,
            is_nan,
            high,
            _mm512_set1_epi32(0x40),
        ))
    }
}

#[inline(always)]
unsafe fn widen(bits: __m256i) -> __m512 {
    // SAFETY: features by the caller's contract.
    unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(bits))) }
}

// SAFETY of all methods: the trait's contract, features and addresses, is passed on to the caller.
impl<const BF16: bool> Simd for Avx512<BF16> {
    const LANES: usize = 16;
    const ACCUMULATORS: usize = 24;
    const HAS_DOTS: bool = BF16;
    type V = __m512;
    type Mask = __mmask16;

    #[inline(always)]
    unsafe fn vectorize<K: Kernel<Self>>(kernel: K) {
        // SAFETY: the trait's contract, which the caller keeps.
        unsafe {
            if BF16 {
                entry_bf16(kernel)
            } else {
                entry(kernel)
            }
        }
    }
    #[inline(always)]
    unsafe fn exchange<const BY: usize>(v: __m512) -> __m512 {
        // SAFETY: the trait's contract, which the caller keeps.
        unsafe {
            match BY {
                1 => _mm512_permute_ps::<0b10_11_00_01>(v),
                2 => _mm512_permute_ps::<0b01_00_11_10>(v),
                3 => _mm512_permute_ps::<0b00_01_10_11>(v),
                _ => _mm512_shuffle_f32x4::<0b10_11_00_01>(v, v),
            }
        }
    }
    methods! {
        fn prefetch(p: *const f32) {
            _mm_prefetch::<_MM_HINT_T0>(p.cast())
        }

        fn prefetch_write(p: *const f32) {
            // It changes nothing but caches; a processor without it does nothing.
            core::arch::asm!("prefetchw [{p}]", p = in(reg) p, options(nostack, preserves_flags))
        }

        fn zero() -> __m512 {
            _mm512_setzero_ps()
        }

        fn splat(value: f32) -> __m512 {
            _mm512_set1_ps(value)
        }

        fn load(p: *const f32) -> __m512 {
            _mm512_loadu_ps(p)
        }

        fn store(p: *mut f32, v: __m512) {
            _mm512_storeu_ps(p, v)
        }

        fn mask(n: usize) -> __mmask16 {
            if n >= 16 { 0xffff } else { (1 << n) - 1 }
        }

        fn load_masked(p: *const f32, mask: __mmask16) -> __m512 {
            _mm512_maskz_loadu_ps(mask, p)
        }

        fn store_masked(p: *mut f32, mask: __mmask16, v: __m512) {
            _mm512_mask_storeu_ps(p, mask, v)
        }

        fn load_bf16(p: *const u16) -> __m512 {
            widen(_mm256_loadu_si256(p.cast()))
        }

        fn load_bf16_masked(p: *const u16, mask: __mmask16) -> __m512 {
            widen(_mm256_maskz_loadu_epi16(mask, p.cast()))
        }

        fn store_bf16(p: *mut u16, v: __m512) {
            _mm256_storeu_si256(p.cast(), round::<BF16>(v))
        }

        fn store_bf16_masked(p: *mut u16, mask: __mmask16, v: __m512) {
            _mm256_mask_storeu_epi16(p.cast(), mask, round::<BF16>(v))
        }

        fn pair_bf16(low: __m512, high: __m512) -> __m512 {
            let low = _mm512_srli_epi32::<16>(_mm512_castps_si512(low));
            _mm512_castsi512_ps(_mm512_or_si512(low, _mm512_castps_si512(high)))
        }

        fn add(a: __m512, b: __m512) -> __m512 {
            _mm512_add_ps(a, b)
        }

        fn sub(a: __m512, b: __m512) -> __m512 {
            _mm512_sub_ps(a, b)
        }

        fn mul(a: __m512, b: __m512) -> __m512 {
            _mm512_mul_ps(a, b)
        }

        fn relu(v: __m512) -> __m512 {
            // The second operand is the result where one is a NaN.
            _mm512_max_ps(_mm512_setzero_ps(), v)
        }

        fn at_most(v: __m512, limit: __m512) -> __m512 {
            // The second operand is the result where one is a NaN.
            _mm512_min_ps(limit, v)
        }

        fn where_positive(gate: __m512, v: __m512) -> __m512 {
            _mm512_maskz_mov_ps(
                _mm512_cmp_ps_mask::<_CMP_GT_OQ>(gate, _mm512_setzero_ps()),
                v,
            )
        }

        fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
            _mm512_fmadd_ps(a, b, c)
        }

        fn transpose(rows: &mut [__m512; PANEL]) {
            let pairs = |v: &[__m512; PANEL], i: usize, j: usize| {
                [
                    _mm512_unpacklo_ps(v[i], v[j]),
                    _mm512_unpackhi_ps(v[i], v[j]),
                ]
            };
            let quads = |a: __m512, b: __m512| {
                let a = _mm512_castps_pd(a);
                let b = _mm512_castps_pd(b);
                [_mm512_unpacklo_pd(a, b), _mm512_unpackhi_pd(a, b)].map(|v| _mm512_castpd_ps(v))
            };
            let mut fours = *rows;
            for first in (0..PANEL).step_by(4) {
                let [a, b] = pairs(rows, first, first + 1);
                let [c, d] = pairs(rows, first + 2, first + 3);
                [fours[first], fours[first + 1]] = quads(a, c);
                [fours[first + 2], fours[first + 3]] = quads(b, d);
            }
            // Vector i + 4 j holds column i of each 4 x 4 square of rows 4 j..4 j + 4: now squares
            // change places.
            let even = |a, b| _mm512_shuffle_f32x4::<0x88>(a, b);
            let odd = |a, b| _mm512_shuffle_f32x4::<0xdd>(a, b);
            for i in 0..4 {
                let a = even(fours[i], fours[i + 4]);
                let b = even(fours[i + 8], fours[i + 12]);
                let c = odd(fours[i], fours[i + 4]);
                let d = odd(fours[i + 8], fours[i + 12]);
                [rows[i], rows[i + 4], rows[i + 8], rows[i + 12]] =
                    [even(a, b), even(c, d), odd(a, b), odd(c, d)];
            }
        }

        fn dot_bf16(a: __m512, b: __m512, c: __m512) -> __m512 {
            assert!(const { BF16 }, "only planned where `Isa::has_dot_products`");
            // Only the last operand can be broadcast by the instruction itself, a quarter faster
            // where it is used once.
            // SAFETY: the trait's contract, which the caller keeps; vectors of bf16 are ones of
            // bits.
            unsafe {
                let [a, b] = [a, b].map(|v| core::mem::transmute::<__m512, __m512bh>(v));
                _mm512_dpbf16_ps(c, b, a)
            }
        }
    }
}
