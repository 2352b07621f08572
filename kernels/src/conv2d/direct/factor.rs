//! Factors of a direct convolution: f32 values one by one, or bf16 values in pairs by dot products.
//!
//! In: stored activations.
//! Out: a band of rows as the kernels read it, in place or in a worker's slot, and the products.
//! Invariant: no value after the end of a run is read. In a run of odd length, the last value is
//! paired with zero. (The next value times a weight of zero would be NaN if that value is not
//! finite.)

use half::bf16;

use crate::simd::Simd;
use crate::{Element, Storage};

/// A value of a band.
///
/// # Safety
/// The methods with pointers demand what those of [`Simd`] do.
pub(crate) trait Factor: Copy + Default + Sync + 'static {
    /// Values of a run that one vector of weights is for.
    const VALUES: usize;

    /// Returns whether bands can be made of activations of this storage.
    fn accepts(storage: Storage) -> bool;

    /// Activations that need not be converted.
    fn in_place<E: Element>(stored: &[E]) -> Option<&[Self]>;

    /// Converts activations, of a storage that is accepted, to as many factors.
    fn convert<S: Simd, E: Element>(from: &[E], to: &mut [Self]);

    /// Returns a slot of the workspace as a buffer of factors.
    fn of_slot(slot: &mut [f32]) -> &mut [Self];

    /// Broadcasts `VALUES` values.
    unsafe fn splat<S: Simd>(p: *const Self) -> S::V;

    /// Broadcasts the one value that is left of a run, and zeros.
    unsafe fn splat_single<S: Simd>(p: *const Self) -> S::V;

    /// Returns `sum` plus the products of factors and weights.
    unsafe fn multiply_add<S: Simd>(factors: S::V, weights: S::V, sum: S::V) -> S::V;
}

impl Factor for f32 {
    const VALUES: usize = 1;

    fn accepts(_storage: Storage) -> bool {
        true
    }

    fn in_place<E: Element>(stored: &[E]) -> Option<&[Self]> {
        E::as_f32(stored)
    }

    #[inline(always)]
    fn convert<S: Simd, E: Element>(from: &[E], to: &mut [Self]) {
        E::widen::<S>(from, to);
    }

    fn of_slot(slot: &mut [f32]) -> &mut [Self] {
        slot
    }

    #[inline(always)]
    unsafe fn splat<S: Simd>(p: *const Self) -> S::V {
        // SAFETY: the trait's contract, which the caller keeps.
        unsafe { S::splat(*p) }
    }

    #[inline(always)]
    unsafe fn splat_single<S: Simd>(p: *const Self) -> S::V {
        // SAFETY: the trait's contract, which the caller keeps.
        unsafe { S::splat(*p) }
    }

    #[inline(always)]
    unsafe fn multiply_add<S: Simd>(factors: S::V, weights: S::V, sum: S::V) -> S::V {
        // SAFETY: the trait's contract, which the caller keeps.
        unsafe { S::fma(factors, weights, sum) }
    }
}

impl Factor for bf16 {
    const VALUES: usize = 2;

    fn accepts(storage: Storage) -> bool {
        storage == Storage::Bf16
    }

    fn in_place<E: Element>(stored: &[E]) -> Option<&[Self]> {
        E::as_bf16(stored)
    }

    fn convert<S: Simd, E: Element>(from: &[E], to: &mut [Self]) {
        to.copy_from_slice(E::as_bf16(from).expect("the storage was checked at the entry"));
    }

    fn of_slot(slot: &mut [f32]) -> &mut [Self] {
        // SAFETY: the same memory, of which any bits are values of both types; an f32 is aligned
        // for a bf16, half as long.
        unsafe { core::slice::from_raw_parts_mut(slot.as_mut_ptr().cast(), 2 * slot.len()) }
    }

    #[inline(always)]
    unsafe fn splat<S: Simd>(p: *const Self) -> S::V {
        // SAFETY: the trait's contract, which the caller keeps, for both values.
        unsafe { S::splat(f32::from_bits(p.cast::<u32>().read_unaligned())) }
    }

    #[inline(always)]
    unsafe fn splat_single<S: Simd>(p: *const Self) -> S::V {
        // SAFETY: the trait's contract, which the caller keeps.
        unsafe { S::splat(f32::from_bits(u32::from((*p).to_bits()))) }
    }

    #[inline(always)]
    unsafe fn multiply_add<S: Simd>(factors: S::V, weights: S::V, sum: S::V) -> S::V {
        // SAFETY: the trait's contract, which the caller keeps.
        unsafe { S::dot_bf16(factors, weights, sum) }
    }
}
