//! AVX2 with FMA: 8 lanes, 16 registers; tails by `vmaskmov`.

use super::{Kernel, Simd};
use core::arch::x86_64::*;

#[derive(Clone, Copy)]
pub(crate) struct Avx2Fma;

#[target_feature(enable = "avx2,fma")]
#[inline(never)]
unsafe fn entry<K: Kernel<Avx2Fma>>(kernel: K) {
    // SAFETY: passed on to our caller.
    unsafe { kernel.run() }
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
    unsafe fn prefetch(p: *const f32) {
        // SAFETY: the trait's contract, which the caller keeps.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
    #[inline(always)]
    unsafe fn zero() -> __m256 {
        // SAFETY: the trait's contract, which the caller keeps.
        unsafe { _mm256_setzero_ps() }
    }
    #[inline(always)]
    unsafe fn splat(value: f32) -> __m256 {
        // SAFETY: the trait's contract, which the caller keeps.
        unsafe { _mm256_set1_ps(value) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m256 {
        // SAFETY: the trait's contract, which the caller keeps.
        unsafe { _mm256_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: __m256) {
        // SAFETY: the trait's contract, which the caller keeps.
        unsafe { _mm256_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn mask(n: usize) -> __m256i {
        // SAFETY: the trait's contract, which the caller keeps.
        unsafe {
            let lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            _mm256_cmpgt_epi32(_mm256_set1_epi32(n.min(8) as i32), lane)
        }
    }
    #[inline(always)]
    unsafe fn load_masked(p: *const f32, mask: __m256i) -> __m256 {
        // SAFETY: the trait's contract, which the caller keeps.
        unsafe { _mm256_maskload_ps(p, mask) }
    }
    #[inline(always)]
    unsafe fn store_masked(p: *mut f32, mask: __m256i, v: __m256) {
        // SAFETY: the trait's contract, which the caller keeps.
        unsafe { _mm256_maskstore_ps(p, mask, v) }
    }
    #[inline(always)]
    unsafe fn add(a: __m256, b: __m256) -> __m256 {
        // SAFETY: the trait's contract, which the caller keeps.
        unsafe { _mm256_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: __m256, b: __m256) -> __m256 {
        // SAFETY: the trait's contract, which the caller keeps.
        unsafe { _mm256_sub_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m256, b: __m256) -> __m256 {
        // SAFETY: the trait's contract, which the caller keeps.
        unsafe { _mm256_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: the trait's contract, which the caller keeps.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }
}
