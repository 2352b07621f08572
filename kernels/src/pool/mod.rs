//! Pools, channels-last: the mean over all pixels, maxima of 3x3 and 2x2 windows with stride 2,
//! sums of 2x2 windows and their transpose, interpolation, products with a factor of each image and
//! channel.
//!
//! In: `[N, H, W, C]`. Out: `[N, C]`, or `[N, H_out, W_out, C]`, for maxima with their positions.
//! Invariant: one thread computes an output value in a fixed order, so the bits do not depend on
//! the number of threads. The backward pass of max pooling gathers: an input pixel adds the
//! gradients of up to four windows whose maximum it is. So no value is cleared first or written
//! twice.
//! Source: Lin et al., arXiv 1312.4400 (global average); the stem of He et al., arXiv 1512.03385,
//! table 1. Plain versions: `reference`.

mod average;
mod factors;
mod halve;
mod max;
mod resample;

#[cfg(test)]
mod tests;

pub use average::{global_average, global_average_backward};
pub use factors::{scale, scale_backward};
pub use halve::{double, halve};
pub use max::{MaxPoolShape, max_pool, max_pool_backward};
pub use resample::{Axis, Interpolation, resample, resample_workspace_len};

fn assert_len(what: &str, got: usize, expected: usize) {
    assert!(
        got == expected,
        "pool: {what}: expected {expected} values, got {got}"
    );
}
