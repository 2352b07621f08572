//! Storage of activations and their gradients: f32, or bf16 for half the memory traffic.
//!
//! In: stored values.
//! Out: f32 for all arithmetic; results are rounded to nearest, ties to even.
//! Invariant: f32 passes unchanged and compiles to plain loads and stores. Widening bf16 is exact.
//! All instruction sets round alike, except that AVX512-BF16 stores subnormals as zero.

#![allow(
    private_bounds,
    private_interfaces,
    reason = "`Stored` can only be named and called inside the crate"
)]

mod lanes;
#[cfg(test)]
mod tests;

use half::bf16;
use std::fmt::Debug;

use crate::simd::{GenericWork, Isa, Kernel, PANEL, Simd, bits_of, methods, value_of};

pub(crate) use lanes::{Lanes, PerVector, each_vector};

/// Storage of activations and their gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// `f32`.
    F32,
    /// [`half::bf16`].
    Bf16,
}

impl Storage {
    /// Returns the storage of these elements.
    #[must_use]
    pub const fn of<E: Element>() -> Self {
        E::STORAGE
    }

    /// Returns the number of bytes of an element.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::F32 => size_of::<f32>(),
            Self::Bf16 => size_of::<bf16>(),
        }
    }
}

/// A stored value: `f32` or [`half::bf16`]. Sealed.
pub trait Element: Copy + Debug + Default + PartialEq + Send + Sync + Stored + 'static {
    /// Rounds to the nearest value, ties to even; NaN stays NaN.
    fn from_f32(value: f32) -> Self;

    /// Widens the value.
    fn to_f32(self) -> f32;
}

/// Vectors of stored values. Other crates cannot name this trait, so [`Element`] is sealed.
///
/// # Safety
/// The methods with pointers have the same safety conditions as those of [`Simd`].
pub trait Stored: Sized + 'static {
    /// Values read instead of pixels outside an image.
    const ZEROS: &'static [Self; PANEL];

    /// Its name.
    const STORAGE: Storage;

    /// Runs work that stores these elements.
    fn run<T: GenericWork>(isa: Isa, work: T) -> T::Output;

    /// Returns the values in place, if they are f32.
    fn as_f32(values: &[Self]) -> Option<&[f32]>;

    /// Returns the values in place, if they are bf16.
    fn as_bf16(values: &[Self]) -> Option<&[bf16]>;

    /// Copies values of one number.
    fn widen<S: Simd>(from: &[Self], to: &mut [f32]);

    unsafe fn load<S: Simd>(p: *const Self) -> S::V;
    unsafe fn load_masked<S: Simd>(p: *const Self, mask: S::Mask) -> S::V;
    unsafe fn store<S: Simd>(p: *mut Self, v: S::V);
    unsafe fn store_masked<S: Simd>(p: *mut Self, mask: S::Mask, v: S::V);
}

impl Element for f32 {
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        value
    }

    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }
}

// SAFETY of all methods: the trait's contract is that of the methods called.
impl Stored for f32 {
    const ZEROS: &'static [Self; PANEL] = &[0.0; PANEL];
    const STORAGE: Storage = Storage::F32;

    fn run<T: GenericWork>(isa: Isa, work: T) -> T::Output {
        isa.run(work)
    }

    #[inline(always)]
    fn as_f32(values: &[Self]) -> Option<&[f32]> {
        Some(values)
    }

    #[inline(always)]
    fn as_bf16(_values: &[Self]) -> Option<&[bf16]> {
        None
    }

    #[inline(always)]
    fn widen<S: Simd>(from: &[Self], to: &mut [f32]) {
        to.copy_from_slice(from);
    }

    methods! {
        fn load<S: Simd>(p: *const Self) -> S::V {
            S::load(p)
        }

        fn load_masked<S: Simd>(p: *const Self, mask: S::Mask) -> S::V {
            S::load_masked(p, mask)
        }

        fn store<S: Simd>(p: *mut Self, v: S::V) {
            S::store(p, v)
        }

        fn store_masked<S: Simd>(p: *mut Self, mask: S::Mask, v: S::V) {
            S::store_masked(p, mask, v)
        }
    }
}

impl Element for bf16 {
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        Self::from_bits(bits_of(value))
    }

    #[inline(always)]
    fn to_f32(self) -> f32 {
        value_of(self.to_bits())
    }
}

// SAFETY of all methods: the trait's contract is that of the methods called; bf16 has the layout of
// its bits.
impl Stored for bf16 {
    const ZEROS: &'static [Self; PANEL] = &[Self::ZERO; PANEL];
    const STORAGE: Storage = Storage::Bf16;

    fn run<T: GenericWork>(isa: Isa, work: T) -> T::Output {
        isa.run_bf16(work)
    }

    #[inline(always)]
    fn as_f32(_values: &[Self]) -> Option<&[f32]> {
        None
    }

    #[inline(always)]
    fn as_bf16(values: &[Self]) -> Option<&[bf16]> {
        Some(values)
    }

    fn widen<S: Simd>(from: &[Self], to: &mut [f32]) {
        // SAFETY: `S` was reached through `Isa::run`, which asserted the features; the kernel stays
        // inside the slices.
        unsafe { S::vectorize(Widen { from, to }) }
    }

    methods! {
        fn load<S: Simd>(p: *const Self) -> S::V {
            S::load_bf16(p.cast())
        }

        fn load_masked<S: Simd>(p: *const Self, mask: S::Mask) -> S::V {
            S::load_bf16_masked(p.cast(), mask)
        }

        fn store<S: Simd>(p: *mut Self, v: S::V) {
            S::store_bf16(p.cast(), v)
        }

        fn store_masked<S: Simd>(p: *mut Self, mask: S::Mask, v: S::V) {
            S::store_bf16_masked(p.cast(), mask, v)
        }
    }
}

struct Widen<'a> {
    from: &'a [bf16],
    to: &'a mut [f32],
}

impl<S: Simd> Kernel<S> for Widen<'_> {
    #[inline(always)]
    unsafe fn run(self) {
        let len = self.from.len().min(self.to.len());
        let from = self.from.as_ptr();
        let to = self.to.as_mut_ptr();
        // SAFETY: vectors start below `len`, and the last is masked there; features by contract.
        unsafe {
            let whole = len - len % S::LANES;
            for first in (0..whole).step_by(S::LANES) {
                S::store(to.add(first), bf16::load::<S>(from.add(first)));
            }
            let mask = S::mask(len - whole);
            S::store_masked(
                to.add(whole),
                mask,
                bf16::load_masked::<S>(from.add(whole), mask),
            );
        }
    }
}
