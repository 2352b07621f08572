//! AVX2 with FMA: 8 lanes, 16 registers; tails by `vmaskmov`.

use super::{Kernel, PANEL, Simd, methods};
use core::arch::x86_64::*;

#[derive(Clone, Copy)]
pub(crate) struct Avx2Fma;

#[target_feature(enable = "avx2,fma")]
#[inline(never)]
unsafe fn entry<K: Kernel<Avx2Fma>>(kernel: K) {
    // SAFETY: passed on to our caller.
    unsafe { kernel.run() }
}

/// Rounds to the nearest, ties to even; a NaN stays one, made quiet.
#[inline(always)]
unsafe fn round(v: __m256) -> __m128i {
    // SAFETY: features by the caller's contract.
    unsafe {
        let bits = _mm256_castps_si256(v);
        let high = _mm256_srli_epi32::<16>(bits);
        let half = _mm256_add_epi32(
            _mm256_set1_epi32(0x7fff),
            _mm256_and_si256(high, _mm256_set1_epi32(1)),
        );
        let rounded = _mm256_srli_epi32::<16>(_mm256_add_epi32(bits, half));
        let quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
        let is_nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(v, v));
        let lanes = _mm256_blendv_epi8(rounded, quiet, is_nan);
        _mm_packus_epi32(
            _mm256_castsi256_si128(lanes),
            _mm256_extracti128_si256::<1>(lanes),
        )
    }
}

#[inline(always)]
unsafe fn widen(bits: __m128i) -> __m256 {
    // SAFETY: features by the caller's contract.
    unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(bits))) }
}

/// Returns the number of lanes of a mask, which are the first ones.
#[inline(always)]
unsafe fn count(mask: __m256i) -> usize {
    // SAFETY: features by the caller's contract.
    unsafe { _mm256_movemask_ps(_mm256_castsi256_ps(mask)).count_ones() as usize }
}

// SAFETY of all methods: the trait's contract, features and addresses, is passed on to the caller.
impl Simd for Avx2Fma {
    const LANES: usize = 8;
    const ACCUMULATORS: usize = 12;
    type V = __m256;
    type Mask = __m256i;

    #[inline(always)]
    unsafe fn vectorize<K: Kernel<Self>>(kernel: K) {
        // SAFETY: the trait's contract, which the caller keeps.
        unsafe { entry(kernel) }
    }
    #[inline(always)]
    unsafe fn exchange<const BY: usize>(v: __m256) -> __m256 {
        // SAFETY: the trait's contract, which the caller keeps.
        unsafe {
            match BY {
                1 => _mm256_permute_ps::<0b10_11_00_01>(v),
                2 => _mm256_permute_ps::<0b01_00_11_10>(v),
                3 => _mm256_permute_ps::<0b00_01_10_11>(v),
                _ => _mm256_permute2f128_ps::<0x01>(v, v),
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

        fn zero() -> __m256 {
            _mm256_setzero_ps()
        }

        fn splat(value: f32) -> __m256 {
            _mm256_set1_ps(value)
        }

        fn load(p: *const f32) -> __m256 {
            _mm256_loadu_ps(p)
        }

        fn store(p: *mut f32, v: __m256) {
            _mm256_storeu_ps(p, v)
        }

        fn mask(n: usize) -> __m256i {
            let lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            _mm256_cmpgt_epi32(_mm256_set1_epi32(n.min(8) as i32), lane)
        }

        fn load_masked(p: *const f32, mask: __m256i) -> __m256 {
            _mm256_maskload_ps(p, mask)
        }

        fn store_masked(p: *mut f32, mask: __m256i, v: __m256) {
            // AMD's processors take a dozen cycles for a masked store, whatever its mask.
            if count(mask) == 8 {
                Self::store(p, v)
            } else {
                _mm256_maskstore_ps(p, mask, v)
            }
        }

        fn load_bf16(p: *const u16) -> __m256 {
            widen(_mm_loadu_si128(p.cast()))
        }

        fn load_bf16_masked(p: *const u16, mask: __m256i) -> __m256 {
            // Only the mask's lanes are touched.
            let count = count(mask);
            if count == 8 {
                return Self::load_bf16(p);
            }
            let mut lanes = [0u16; 8];
            for (i, lane) in lanes.iter_mut().enumerate().take(count) {
                *lane = *p.add(i);
            }
            Self::load_bf16(lanes.as_ptr())
        }

        fn store_bf16(p: *mut u16, v: __m256) {
            _mm_storeu_si128(p.cast(), round(v))
        }

        fn store_bf16_masked(p: *mut u16, mask: __m256i, v: __m256) {
            // Only the mask's lanes are touched.
            let count = count(mask);
            if count == 8 {
                return Self::store_bf16(p, v);
            }
            let mut lanes = [0u16; 8];
            Self::store_bf16(lanes.as_mut_ptr(), v);
            for (i, lane) in lanes.iter().enumerate().take(count) {
                *p.add(i) = *lane;
            }
        }

        fn pair_bf16(low: __m256, high: __m256) -> __m256 {
            let low = _mm256_srli_epi32::<16>(_mm256_castps_si256(low));
            _mm256_castsi256_ps(_mm256_or_si256(low, _mm256_castps_si256(high)))
        }

        fn add(a: __m256, b: __m256) -> __m256 {
            _mm256_add_ps(a, b)
        }

        fn sub(a: __m256, b: __m256) -> __m256 {
            _mm256_sub_ps(a, b)
        }

        fn mul(a: __m256, b: __m256) -> __m256 {
            _mm256_mul_ps(a, b)
        }

        fn relu(v: __m256) -> __m256 {
            // The second operand is the result where one is a NaN.
            _mm256_max_ps(_mm256_setzero_ps(), v)
        }

        fn at_most(v: __m256, limit: __m256) -> __m256 {
            // The second operand is the result where one is a NaN.
            _mm256_min_ps(limit, v)
        }

        fn where_positive(gate: __m256, v: __m256) -> __m256 {
            _mm256_and_ps(_mm256_cmp_ps::<_CMP_GT_OQ>(gate, _mm256_setzero_ps()), v)
        }

        fn fma(a: __m256, b: __m256, c: __m256) -> __m256 {
            _mm256_fmadd_ps(a, b, c)
        }

        fn transpose(rows: &mut [__m256; PANEL]) {
            let quads = |a: __m256, b: __m256| {
                let a = _mm256_castps_pd(a);
                let b = _mm256_castps_pd(b);
                [_mm256_unpacklo_pd(a, b), _mm256_unpackhi_pd(a, b)].map(|v| _mm256_castpd_ps(v))
            };
            let mut fours = *rows;
            for first in [0, 4] {
                let [a, b, c, d] = [
                    rows[first],
                    rows[first + 1],
                    rows[first + 2],
                    rows[first + 3],
                ];
                [fours[first], fours[first + 1]] =
                    quads(_mm256_unpacklo_ps(a, b), _mm256_unpacklo_ps(c, d));
                [fours[first + 2], fours[first + 3]] =
                    quads(_mm256_unpackhi_ps(a, b), _mm256_unpackhi_ps(c, d));
            }
            for i in 0..4 {
                rows[i] = _mm256_permute2f128_ps::<0x20>(fours[i], fours[i + 4]);
                rows[i + 4] = _mm256_permute2f128_ps::<0x31>(fours[i], fours[i + 4]);
            }
        }
    }
}
