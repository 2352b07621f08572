//! Batch normalisation of `[rows, C]` with a residual and a ReLU or ReLU6 in the same pass.
//!
//! - Forward: [`normalize()`] computes y = rectified(gamma · (x - mean) · invstd + beta +
//!   residual). The statistics come from the convolution ([`crate::conv2d::Conv2d::forward`]) or
//!   from [`moments()`].
//! - Inference: [`normalize()`] with the running mean, or [`scale_shift`] with folded parameters.
//! - Backward: [`backward_sums`] computes S1 = Σ g and S2 = Σ g·x̂, the gradients of beta and
//!   gamma, with g = dy if the ReLU was open. Then [`backward`] computes dx = gamma · invstd · (g -
//!   S1/n - x̂ · S2/n), and g for the residual.
//!
//! In and out: tables `[rows, C]` in f32 or bf16 ([`crate::Element`]); parameters in f32, sums in
//! f64.
//! Invariant: the bits do not depend on threads or instruction set. n, S1 and S2 are arguments, so
//! a synchronised norm can sum them over ranks between the two passes.
//!
//! The backward pass recomputes x̂ from x, the output of the convolution. With a residual it reads
//! the gate of the ReLU from y ([`Gate::Output`]). Otherwise it recomputes the gate from x
//! ([`Gate::Recomputed`]), so that y need not be kept.
//!
//! Source: Ioffe and Szegedy, arXiv 1502.03167; option A shortcut: He et al., arXiv 1512.03385,
//! section 3.3.

mod gradient;
mod moments;
mod normalize;
mod shortcut;
mod sums;

#[cfg(test)]
mod tests;

pub use gradient::{ResidualGradient, backward};
pub use moments::{moments, moments_workspace_len};
pub use normalize::{Rectifier, Residual, normalize, scale_shift};
pub use shortcut::ShortcutA;
pub use sums::{backward_sums, workspace_len};

/// The parameters of a normalisation, each `[C]`.
///
/// # Differs from PyTorch
/// Lockstep computes (x - mean) · (gamma · invstd) + beta. PyTorch computes x · (gamma · invstd) +
/// (beta - mean · gamma · invstd), which loses digits if the mean is much larger than the standard
/// deviation.
#[derive(Clone, Copy, Debug)]
pub struct Affine<'a> {
    /// Mean of each channel: of the batch, or the running mean.
    pub mean: &'a [f32],
    /// 1 / sqrt(variance + epsilon) of each channel.
    pub invstd: &'a [f32],
    /// Scale of each channel.
    pub gamma: &'a [f32],
    /// Shift of each channel.
    pub beta: &'a [f32],
}

impl Affine<'_> {
    /// Returns the number of channels.
    pub fn num_channels(&self) -> usize {
        self.mean.len()
    }

    fn check(&self) {
        let channels = self.num_channels();
        assert!(channels > 0, "batch_norm: expected at least one channel");
        assert_len("invstd", self.invstd.len(), channels);
        assert_len("gamma", self.gamma.len(), channels);
        assert_len("beta", self.beta.len(), channels);
    }
}

/// Condition under which a gradient passes: the operation after the normalisation in the
/// forward pass.
#[derive(Clone, Copy, Debug)]
pub enum Gate<'a, E = f32> {
    /// No ReLU: every gradient passes.
    Open,
    /// A ReLU with this output, `[rows, C]`: a gradient passes if the output is above 0.
    Output(&'a [E]),
    /// A ReLU directly after the normalisation, without a residual: a gradient passes if gamma · (x
    /// - mean) · invstd + beta is above 0.
    Recomputed,
    /// A ReLU6 directly after the normalisation: a gradient passes if the same value is between 0
    /// and 6.
    Recomputed6,
}

impl<'a, E> Gate<'a, E> {
    /// Returns the gate of a rectifier with the output `y`. The gate reads `y` only if there is a
    /// residual.
    ///
    /// # Panics
    /// If the rectifier is a ReLU6 after a residual: that is a separate operation.
    pub fn of(rectifier: Rectifier, has_residual: bool, y: &'a [E]) -> Self {
        match (rectifier, has_residual) {
            (Rectifier::None, _) => Self::Open,
            (Rectifier::Relu, true) => Self::Output(y),
            (Rectifier::Relu, false) => Self::Recomputed,
            (Rectifier::Relu6, false) => Self::Recomputed6,
            (Rectifier::Relu6, true) => {
                panic!("batch_norm: a ReLU6 after a residual has no gate here")
            }
        }
    }
}

/// The inputs that both backward passes share.
#[derive(Clone, Copy, Debug)]
pub struct Saved<'a, E = f32> {
    /// The parameters of the forward pass.
    pub affine: Affine<'a>,
    /// The input of the normalisation, `[rows, C]`.
    pub x: &'a [E],
    /// Operation after the normalisation.
    pub gate: Gate<'a, E>,
}

impl<'a, E> Saved<'a, E> {
    /// Checks all lengths and returns (rows, channels).
    fn check(&self) -> (usize, usize) {
        self.affine.check();
        if let Gate::Output(y) = self.gate {
            assert_len("gate", y.len(), self.x.len());
        }
        (
            num_rows(self.x.len(), self.affine.num_channels()),
            self.affine.num_channels(),
        )
    }

    fn gate_values(&self) -> Option<&'a [E]> {
        if let Gate::Output(y) = self.gate {
            Some(y)
        } else {
            None
        }
    }
}

fn num_rows(len: usize, channels: usize) -> usize {
    assert!(channels > 0, "batch_norm: expected at least one channel");
    assert!(
        len.is_multiple_of(channels),
        "batch_norm: {len} values are no whole rows of {channels} channels"
    );
    len / channels
}

fn assert_len(what: &str, got: usize, expected: usize) {
    assert!(
        got == expected,
        "batch_norm: {what}: expected {expected} values, got {got}"
    );
}
