//! Time of Lockstep's kernels, summed over the process.
//!
//! In: calls of [`time`] around each kernel. Out: [`kernel_times`], and the calls of one step
//! ([`calls_of`]).
//! Invariant: kernels are not nested, so the sum is the time in kernels. The rest of a step is
//! tape, dispatch, loader and burn's operations.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::fused::LayerCall;

/// A kind of kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kernel {
    PackForward,
    Convolution,
    Normalisation,
    NormSums,
    PackBackward,
    Gradients,
    Average,
    NormStatistics,
    NormGradient,
    PlainConvolution,
    Linear,
    LayerNorm,
    Activation,
    Attention,
    MaxPool,
    Loss,
    GroupNorm,
    Softmax,
    Resampling,
    Copies,
    Dropout,
    Scale,
}

const NAMES: [&str; 22] = [
    "weight packing",
    "convolution, norm statistics",
    "normalisation, residual, ReLU",
    "norm gradient sums",
    "weight packing for gradients",
    "gradients of norm, weights, input",
    "global average",
    "norm statistics",
    "norm gradient",
    "convolution alone, gradients",
    "linear layer, gradients",
    "layer norm, gradients",
    "activation, gradients",
    "attention, gradients",
    "max pool, gradients",
    "loss, gradients",
    "group norm, gradients",
    "softmax, gradients",
    "average pool, interpolation, gradients",
    "copies of features",
    "dropout, gradients",
    "factors of channels, gradients",
];

static NANOSECONDS: [AtomicU64; NAMES.len()] = [const { AtomicU64::new(0) }; NAMES.len()];

/// Calls collected so far, if they are being collected.
static CALLS: Mutex<Option<Vec<(Kernel, LayerCall)>>> = Mutex::new(None);

thread_local! {
    static MULTIPLY_ADDS: Cell<f64> = const { Cell::new(0.0) };
}

/// Returns the multiply-adds of convolutions and linear layers in all forward passes of this
/// thread.
pub fn multiply_adds() -> f64 {
    MULTIPLY_ADDS.get()
}

/// Counts a layer that multiplies all its weights at each of these positions.
pub(crate) fn count_multiply_adds(num_weights: usize, num_positions: usize) {
    MULTIPLY_ADDS.set(multiply_adds() + num_weights as f64 * num_positions as f64);
}

/// Time spent in one kind of kernel since the process began, by all ranks of the process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KernelTime {
    /// The kind's name.
    pub name: &'static str,
    /// Wall time, in seconds, added over all calls.
    pub seconds: f64,
}

/// Returns the time of each kind of kernel since the process began. The difference of two calls is
/// the time between them.
pub fn kernel_times() -> Vec<KernelTime> {
    let nanoseconds = NANOSECONDS
        .iter()
        .map(|total| total.load(Ordering::Relaxed));
    NAMES
        .into_iter()
        .zip(nanoseconds)
        .map(|(name, total)| KernelTime {
            name,
            seconds: total as f64 * 1e-9,
        })
        .collect()
}

impl Kernel {
    pub(super) fn name(self) -> &'static str {
        NAMES[self as usize]
    }
}

/// Runs `work` and counts its time: 50 ns more. `call` is what its time depends on, if it is a
/// layer's.
pub(crate) fn time<T>(kernel: Kernel, call: Option<&LayerCall>, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = work();
    let nanoseconds = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
    NANOSECONDS[kernel as usize].fetch_add(nanoseconds, Ordering::Relaxed);
    if let (Some(call), Some(calls)) = (call, lock().as_mut()) {
        calls.push((kernel, *call));
    }
    result
}

/// Returns the calls of layers during `work`, in all threads of the process.
pub(super) fn calls_of<T>(work: impl FnOnce() -> T) -> (T, Vec<(Kernel, LayerCall)>) {
    *lock() = Some(Vec::new());
    let result = work();
    (result, lock().take().unwrap_or_default())
}

/// Returns a list of calls is whole after any panic.
fn lock() -> MutexGuard<'static, Option<Vec<(Kernel, LayerCall)>>> {
    CALLS.lock().unwrap_or_else(PoisonError::into_inner)
}
