//! AVX-512: 16 lanes, 32 registers, masked loads and stores for tails.

use super::{Kernel, Simd};
use core::arch::x86_64::*;

#[derive(Clone, Copy)]
pub(crate) struct Avx512;

#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")]
#[inline(never)]
unsafe fn entry<K: Kernel<Avx512>>(kernel: K) {
    // SAFETY: passed on to our caller.
    unsafe { kernel.run() }
}

// SAFETY of all methods: the trait's contract, features and addresses, is passed on to the caller.
impl Simd for Avx512 {
    const LANES: usize = 16;
    const ACCUMULATORS: usize = 24;
    type V = __m512;
    type Mask = __mmask16;

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
    unsafe fn zero() -> __m512 {
        // SAFETY: the trait's contract, which the caller keeps.
        unsafe { _mm512_setzero_ps() }
    }
    #[inline(always)]
    unsafe fn splat(value: f32) -> __m512 {
        // SAFETY: the trait's contract, which the caller keeps.
        unsafe { _mm512_set1_ps(value) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m512 {
        // SAFETY: the trait's contract, which the caller keeps.
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: __m512) {
        // SAFETY: the trait's contract, which the caller keeps.
        unsafe { _mm512_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn mask(n: usize) -> __mmask16 {
        if n >= 16 { 0xffff } else { (1 << n) - 1 }
    }
    #[inline(always)]
    unsafe fn load_masked(p: *const f32, mask: __mmask16) -> __m512 {
        // SAFETY: the trait's contract, which the caller keeps.
        unsafe { _mm512_maskz_loadu_ps(mask, p) }
    }
    #[inline(always)]
    unsafe fn store_masked(p: *mut f32, mask: __mmask16, v: __m512) {
        // SAFETY: the trait's contract, which the caller keeps.
        unsafe { _mm512_mask_storeu_ps(p, mask, v) }
    }
    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        // SAFETY: the trait's contract, which the caller keeps.
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: __m512, b: __m512) -> __m512 {
        // SAFETY: the trait's contract, which the caller keeps.
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        // SAFETY: the trait's contract, which the caller keeps.
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: the trait's contract, which the caller keeps.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
}
