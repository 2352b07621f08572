//! Instruction sets of the CPU, chosen once at run time, and the vector type of the kernels.
//!
//! In: nothing; [`Isa::detect`] asks the CPU once.
//! Out: [`Isa`], a plain value that every operation takes. Programs and tests may force one.
//! Invariant: only `Isa::run`, which checks the CPU, reaches the code of an instruction set.

mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod exp;
mod peak;
mod portable;
mod task;

use std::sync::LazyLock;

#[cfg(test)]
pub(crate) use amx::Emulated as EmulatedTiles;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(crate) use amx::Hardware as TileRegisters;
#[cfg(any(test, all(target_arch = "x86_64", target_os = "linux")))]
pub(crate) use amx::Tiles;
pub(crate) use amx::{TILE_ROWS, TILE_VALUES};
pub(crate) use exp::{EXP_F64_LIMIT, exp, exp_f64, exp_m1, exp_to_88};
pub use peak::measure_fma_gflops;
pub(crate) use portable::{bits_of, value_of};
pub(crate) use task::halved;
pub use task::{Task, vectorized};

/// True if the processor reports Intel as its vendor.
static IS_INTEL: LazyLock<bool> = LazyLock::new(|| {
    #[cfg(target_arch = "x86_64")]
    {
        let vendor = core::arch::x86_64::__cpuid(0);
        [vendor.ebx, vendor.edx, vendor.ecx]
            .map(u32::to_le_bytes)
            .concat()
            == b"GenuineIntel"
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
});

/// An instruction set of the CPU; the kernels are compiled for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isa {
    /// [`Isa::Avx512Bf16`] and AMX-BF16, products of tiles of bf16. Available only if the system
    /// permits tiles and a first product equals the product of the emulation.
    Amx,
    /// [`Isa::Avx512`] and AVX512-BF16, which rounds to bf16 and multiplies pairs of bf16 in one
    /// instruction; arithmetic in f32 is the same.
    Avx512Bf16,
    /// 16 lanes and 32 registers: AVX-512 F, VL, BW and DQ.
    Avx512,
    /// 8 lanes and 16 registers: AVX2 with FMA.
    Avx2Fma,
    /// Plain arrays of four values, for every processor.
    Portable,
}

impl Default for Isa {
    fn default() -> Self {
        Self::detect()
    }
}

impl Isa {
    const ALL: [Self; 5] = [
        Self::Amx,
        Self::Avx512Bf16,
        Self::Avx512,
        Self::Avx2Fma,
        Self::Portable,
    ];

    /// Returns the best instruction set of this processor. On Intel processors without AMX it does
    /// not return AVX512-BF16, whose products were no faster than those of widened values
    /// (docs/decisions/kernels.md, 2026-11-25).
    #[must_use]
    pub fn detect() -> Self {
        let pays = |isa: &Self| *isa != Self::Avx512Bf16 || !*IS_INTEL;
        Self::available()
            .find(pays)
            .expect("portable code runs everywhere")
    }

    /// Returns all instruction sets of this processor, best first.
    pub fn available() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|isa| isa.is_available())
    }

    /// Returns true if this processor and operating system support the instruction set. The result
    /// is cached.
    #[must_use]
    pub fn is_available(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Amx => Self::Avx512Bf16.is_available() && amx::is_available(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Bf16 => {
                Self::Avx512.is_available() && is_x86_feature_detected!("avx512bf16")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("fma")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx2Fma => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            #[cfg(not(target_arch = "x86_64"))]
            Self::Amx | Self::Avx512Bf16 | Self::Avx512 | Self::Avx2Fma => amx::is_available(),
            Self::Portable => true,
        }
    }

    /// Returns true if [`Simd::dot_bf16`] exists in work run by [`Isa::run_bf16`].
    pub(crate) fn has_dot_products(self) -> bool {
        matches!(self, Self::Amx | Self::Avx512Bf16)
    }

    /// Returns true if the instruction set has tile registers.
    pub(crate) fn has_tiles(self) -> bool {
        self == Self::Amx
    }

    /// Runs `work` with the vectors of this instruction set. AVX512-BF16 is off, because work that
    /// stores only f32 does not need it.
    ///
    /// # Panics
    /// If the processor lacks the instruction set.
    pub(crate) fn run<T: GenericWork>(self, work: T) -> T::Output {
        self.assert_available();
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Amx | Self::Avx512Bf16 | Self::Avx512 => work.run::<avx512::Avx512<false>>(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2Fma => work.run::<avx2::Avx2Fma>(),
            #[cfg(not(target_arch = "x86_64"))]
            Self::Amx | Self::Avx512Bf16 | Self::Avx512 | Self::Avx2Fma => {
                unreachable!("asserted above")
            }
            Self::Portable => work.run::<portable::Portable>(),
        }
    }

    /// Does the same as [`Isa::run`] for work that stores bf16: with AVX512-BF16 if available.
    ///
    /// # Panics
    /// If the processor lacks the instruction set.
    pub(crate) fn run_bf16<T: GenericWork>(self, work: T) -> T::Output {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Amx | Self::Avx512Bf16 => {
                self.assert_available();
                work.run::<avx512::Avx512<true>>()
            }
            _ => self.run(work),
        }
    }

    fn assert_available(self) {
        assert!(
            self.is_available(),
            "instruction set {self:?}: not offered by this processor"
        );
    }
}

/// Returns the value, of which the compiler knows nothing: addresses made of it are computed where
/// they are used, not before the loop for all its rounds, on the stack.
#[inline(always)]
pub(crate) fn opaque(value: usize) -> usize {
    #[cfg(target_arch = "x86_64")]
    {
        let mut value = value;
        // SAFETY: no instruction.
        unsafe {
            core::arch::asm!("/* {value} */", value = inout(reg) value, options(nomem, nostack, preserves_flags))
        };
        value
    }
    #[cfg(not(target_arch = "x86_64"))]
    value
}

/// A driver, compiled once for each instruction set but without its features; it hands hot loops to
/// [`Simd::vectorize`].
pub(crate) trait GenericWork {
    type Output;
    fn run<S: Simd>(self) -> Self::Output;
}

/// A hot loop, compiled with the features of `S` switched on. Implementations mark `run` as
/// `#[inline(always)]`: only what is inlined into [`Simd::vectorize`] gets the features.
pub(crate) trait Kernel<S: Simd> {
    /// # Safety
    /// The processor has the features of `S`, and the kernel's own addresses are valid.
    unsafe fn run(self);
}

/// Defines methods of [`Simd`], or of a trait whose contract is that of [`Simd`]: each is inlined,
/// and its body may do what the contract allows.
macro_rules! methods {
    ($($(#[$attribute:meta])* fn $name:ident $(<$($parameter:ident: $bound:path),+>)? ($($argument:ident: $type:ty),*) $(-> $output:ty)? $body:block)*) => {
        $(
            $(#[$attribute])*
            #[inline(always)]
            unsafe fn $name $(<$($parameter: $bound),+>)? ($($argument: $type),*) $(-> $output)? {
                // SAFETY: the trait's contract about features and addresses, which the caller
                // keeps.
                #[allow(unused_unsafe, reason = "some bodies need no contract")]
                unsafe { $body }
            }
        )*
    };
}
pub(crate) use methods;

/// One instruction set's vector of `f32`.
///
/// # Safety
/// Every method demands that the processor has the features of the implementor (`Isa::run` asserts
/// it), and those with a pointer that the lanes they touch, of which a mask may leave none, lie
/// inside one allocation; no alignment is demanded.
pub(crate) trait Simd: Copy + Send + Sync + 'static {
    /// Lanes of a vector: a divisor of [`PANEL`].
    const LANES: usize;
    /// Sums that fit into registers together with the operands.
    const ACCUMULATORS: usize;
    /// True if [`Simd::dot_bf16`] exists.
    const HAS_DOTS: bool = false;
    type V: Copy;
    type Mask: Copy;

    /// Runs `kernel` in a separate function with the features switched on.
    unsafe fn vectorize<K: Kernel<Self>>(kernel: K);

    unsafe fn zero() -> Self::V;
    unsafe fn splat(value: f32) -> Self::V;
    unsafe fn load(p: *const f32) -> Self::V;
    unsafe fn store(p: *mut f32, v: Self::V);
    /// Returns the first `n` lanes, all if `n >= LANES`.
    unsafe fn mask(n: usize) -> Self::Mask;
    /// Returns the masked lanes; zero elsewhere, without touching memory there.
    unsafe fn load_masked(p: *const f32, mask: Self::Mask) -> Self::V;
    unsafe fn store_masked(p: *mut f32, mask: Self::Mask, v: Self::V);
    /// Widens bf16, given as bits.
    unsafe fn load_bf16(p: *const u16) -> Self::V;
    /// Loads as [`Simd::load_masked`].
    unsafe fn load_bf16_masked(p: *const u16, mask: Self::Mask) -> Self::V;
    /// Rounds to the nearest bf16, ties to even; a NaN stays one. Subnormal values may become zero.
    unsafe fn store_bf16(p: *mut u16, v: Self::V);
    unsafe fn store_bf16_masked(p: *mut u16, mask: Self::Mask, v: Self::V);
    /// Returns the bits of two vectors of widened bf16 in one: those of `low` in the low half of
    /// each lane, of `high` in the high.
    unsafe fn pair_bf16(low: Self::V, high: Self::V) -> Self::V;
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    /// Returns 0 where `v` is below 0; a NaN stays one, so that a diverged run is seen.
    unsafe fn relu(v: Self::V) -> Self::V;
    /// Returns `limit` where `v` is above it; a NaN stays one.
    unsafe fn at_most(v: Self::V, limit: Self::V) -> Self::V;
    /// Returns `v` where `gate` is above 0, else 0.
    unsafe fn where_positive(gate: Self::V, v: Self::V) -> Self::V;
    /// Returns in each lane the value of the lane whose number differs in the bits of `BY`: 1 to 4,
    /// less than [`Self::LANES`].
    unsafe fn exchange<const BY: usize>(v: Self::V) -> Self::V;
    /// Transposes the square of the first [`Self::LANES`] vectors, in registers where the
    /// instruction set can.
    unsafe fn transpose(rows: &mut [Self::V; PANEL]);
    /// Prefetches the cache line at `p`, which need not exist.
    #[inline(always)]
    unsafe fn prefetch(_p: *const f32) {}
    /// Prefetches a line that will be written, so that a store need not wait for it.
    #[inline(always)]
    unsafe fn prefetch_write(_p: *const f32) {}
    /// Returns `a * b + c`, with one rounding if the instruction set supports it.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// Returns `c` plus the products of two pairs of bf16 in each lane, with a rounding to f32
    /// after each product. Subnormal values are zero. `a` should be the broadcast operand.
    #[inline(always)]
    unsafe fn dot_bf16(_a: Self::V, _b: Self::V, _c: Self::V) -> Self::V {
        unreachable!("only planned where `Isa::has_dot_products`")
    }
}

/// Output channels of a weight panel: the widest vector. Packed weights are the same for every
/// instruction set.
pub(crate) const PANEL: usize = 16;
