//! Plain safe loops, compiled once for each instruction set; the compiler vectorises them.
//!
//! In: a [`Task`].
//! Out: its result.
//! Invariant: equal bits for every instruction set, because rustc neither contracts `a * b + c` nor
//! reorders additions. For memory-bound work this is as fast as intrinsics (`examples/kernels`).

use super::Isa;

/// Work to be compiled once for each instruction set.
pub trait Task {
    /// Result of the work.
    type Output;

    /// Runs the work. Implementations, and all functions that they call in a loop, need
    /// `#[inline(always)]`; otherwise they are compiled for the portable instruction set.
    fn run(self) -> Self::Output;
}

/// Runs `task` compiled for `isa`.
///
/// # Panics
/// If the processor lacks `isa`.
#[allow(unsafe_code)]
pub fn vectorized<T: Task>(isa: Isa, task: T) -> T::Output {
    assert!(
        isa.is_available(),
        "instruction set {isa:?}: not offered by this processor"
    );
    match isa {
        // SAFETY: the assertion above asked the processor for these features.
        #[cfg(target_arch = "x86_64")]
        Isa::Amx | Isa::Avx512Bf16 | Isa::Avx512 => unsafe { with_avx512(task) },
        // SAFETY: the assertion above asked the processor for these features.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2Fma => unsafe { with_avx2_fma(task) },
        _ => task.run(),
    }
}

/// Reduces 16 lanes by halving: four dependent operations instead of 16.
#[inline(always)]
pub(crate) fn halved(lanes: [f32; 16], of: impl Fn(f32, f32) -> f32) -> f32 {
    let eight: [f32; 8] = std::array::from_fn(|lane| of(lanes[lane], lanes[lane + 8]));
    let four: [f32; 4] = std::array::from_fn(|lane| of(eight[lane], eight[lane + 4]));
    of(of(four[0], four[2]), of(four[1], four[3]))
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")]
fn with_avx512<T: Task>(task: T) -> T::Output {
    task.run()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn with_avx2_fma<T: Task>(task: T) -> T::Output {
    task.run()
}
