//! Where the time of our own kernels goes, summed over the process.
//!
//! In: calls of [`time`] around each kernel. Out: [`kernel_times`]. Invariant: kernels are not nested, so the sum over all
//! is the time spent in kernels; what a step takes beyond it is tape, dispatch, loader and burn's own operations.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// A kind of kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kernel {
    Pack,
    Convolution,
    Normalisation,
    NormSums,
    Gradients,
    Average,
}

const NAMES: [&str; 6] = [
    "weight packing",
    "convolution, norm statistics",
    "normalisation, residual, ReLU",
    "norm gradient sums",
    "gradients of norm, weights, input",
    "global average",
];

static NANOSECONDS: [AtomicU64; NAMES.len()] = [const { AtomicU64::new(0) }; NAMES.len()];

/// Time spent in one kind of kernel since the process began, by all ranks of the process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KernelTime {
    /// The kind's name.
    pub name: &'static str,
    /// Wall time, in seconds, added over all calls.
    pub seconds: f64,
}

/// The time of each kind of kernel since the process began; two snapshots bound a measurement.
pub fn kernel_times() -> Vec<KernelTime> {
    let nanoseconds = NANOSECONDS.iter().map(|total| total.load(Ordering::Relaxed));
    NAMES.into_iter().zip(nanoseconds).map(|(name, total)| KernelTime { name, seconds: total as f64 * 1e-9 }).collect()
}

/// Runs `work` and counts its time: 50 ns more.
pub(crate) fn time<T>(kernel: Kernel, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = work();
    let nanoseconds = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
    NANOSECONDS[kernel as usize].fetch_add(nanoseconds, Ordering::Relaxed);
    result
}
