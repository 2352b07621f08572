//! Helpers of the tests of several operations: values, and every way to run a kernel.

use core::ops::{Deref, DerefMut};

use crate::arena::Line;
use crate::conv2d::Conv2dShape;
use crate::scratch::LINE_FLOATS;
use crate::simd::Isa;
use half::bf16;

/// Scratch memory that begins on a cache line, as the kernels ask, and is dirty. A vector, so that
/// what goes beyond it is found.
pub(crate) struct Dirty {
    lines: Vec<Line>,
    len: usize,
}

/// So many floats that are not numbers.
pub(crate) fn dirty(len: usize) -> Dirty {
    let mut dirty = Dirty {
        lines: vec![Line::ZEROS; len.div_ceil(LINE_FLOATS)],
        len,
    };
    dirty.fill(f32::NAN);
    dirty
}

impl Deref for Dirty {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        // SAFETY: the lines hold so many floats, aligned and initialised.
        unsafe { core::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }
}

impl DerefMut for Dirty {
    fn deref_mut(&mut self) -> &mut [f32] {
        // SAFETY: as above, borrowed mutably.
        unsafe { core::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }
}

/// Values in -1..1 that depend on the seed only.
pub(crate) fn values(len: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    std::iter::repeat_with(next).take(len).collect()
}

/// The result of `run` on every instruction set of this machine and 1..=3 threads, asserted to be
/// the same bits.
pub(crate) fn same_everywhere<T: PartialEq + std::fmt::Debug + Send>(
    run: impl Fn(Isa) -> T + Sync,
) -> T {
    let mut first = None;
    for isa in Isa::available() {
        for threads in 1..=3 {
            let pool = rayon::ThreadPoolBuilder::new()
                .num_threads(threads)
                .build()
                .expect("threads can be started");
            let result = pool.install(|| run(isa));
            match &first {
                None => first = Some(result),
                Some(first) => assert!(
                    *first == result,
                    "{isa:?} with {threads} threads gives other bits"
                ),
            }
        }
    }
    first.expect("the portable instruction set is always there")
}

/// Asserts that each value is within `tolerance` of the expected one, relative to the larger of 1
/// and its size.
#[track_caller]
pub(crate) fn assert_close<A: Copy + Into<f64>, B: Copy + Into<f64>>(
    what: &str,
    got: &[A],
    expected: &[B],
    tolerance: f64,
) {
    assert_eq!(got.len(), expected.len(), "{what}: length");
    for (index, (got, expected)) in got.iter().zip(expected).enumerate() {
        let (got, expected): (f64, f64) = ((*got).into(), (*expected).into());
        let error = (got - expected).abs() / expected.abs().max(1.0);
        assert!(
            error <= tolerance,
            "{what}: value {index}: {got} against {expected}"
        );
    }
}

/// [`values`] rounded to bf16.
pub(crate) fn stored(len: usize, seed: u64) -> Vec<bf16> {
    rounded(&values(len, seed))
}

pub(crate) fn rounded(values: &[f32]) -> Vec<bf16> {
    values.iter().map(|value| bf16::from_f32(*value)).collect()
}

pub(crate) fn widened(values: &[bf16]) -> Vec<f32> {
    values.iter().map(|value| value.to_f32()).collect()
}

pub(crate) fn doubles(values: &[f32]) -> Vec<f64> {
    values.iter().map(|value| f64::from(*value)).collect()
}

/// Central differences of `loss` in every value of `at`.
pub(crate) fn finite_differences(at: &[f64], loss: impl Fn(&[f64]) -> f64) -> Vec<f64> {
    let mut at = at.to_vec();
    let step = 1e-5;
    (0..at.len())
        .map(|index| {
            let value = at[index];
            let mut loss_at = |shifted| {
                at[index] = shifted;
                loss(&at)
            };
            let difference = loss_at(value + step) - loss_at(value - step);
            at[index] = value;
            difference / (2.0 * step)
        })
        .collect()
}

/// Returns a convolution in one group: input, output channels, then kernel, stride and padding.
pub(crate) fn shape_of(
    [batch, height, width, in_channels]: [usize; 4],
    out_channels: usize,
    [kernel, stride, padding]: [usize; 3],
) -> Conv2dShape {
    Conv2dShape {
        batch,
        height,
        width,
        in_channels,
        out_channels,
        kernel: [kernel; 2],
        stride,
        padding: [padding; 2],
        groups: 1,
    }
}
