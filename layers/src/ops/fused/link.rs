//! What a layer and the one that reads its output know of each other, so that neither walks over it twice.
//!
//! In: the forward pass of the first, the backward pass of the second. Out: the first one's normalisation, for the second to apply
//! where its input is still raw; the sums of that normalisation's gradient, which the second takes as it writes its input's gradient.
//! Invariant: the second layer is the only reader, so what it writes is the whole gradient; who does not know links leaves them empty,
//! and both layers then do all by themselves.
//! Source: Jung et al. 2019, arXiv 1807.01702.

use std::sync::{Mutex, OnceLock, PoisonError};

#[cfg(feature = "flex")]
use burn::backend::flex::FlexTensor;

use crate::ops::statistics::GradientSums;

/// Between one layer and the next.
#[derive(Debug)]
pub struct NormLink {
    /// Whether the output may stay the convolution's raw result.
    pub(super) may_be_raw: bool,
    #[cfg(feature = "flex")]
    pub(super) norm: OnceLock<LinkedNorm>,
    sums: Mutex<Option<GradientSums>>,
}

/// A normalisation in training.
#[cfg(feature = "flex")]
#[derive(Debug)]
pub(super) struct LinkedNorm {
    /// Its input, `[N, H, W, C]`.
    pub(super) convolved: FlexTensor,
    pub(super) mean: Vec<f32>,
    pub(super) invstd: Vec<f32>,
    /// Contiguous, as `beta`.
    pub(super) gamma: FlexTensor,
    pub(super) beta: FlexTensor,
    pub(super) relu: bool,
    /// Whether something was added before the ReLU.
    pub(super) has_residual: bool,
}

impl NormLink {
    /// A link that the first layer has not seen yet.
    pub(crate) fn new(may_be_raw: bool) -> Self {
        Self { may_be_raw, norm: OnceLock::new(), sums: Mutex::new(None) }
    }

    /// Leaves the sums for the first layer.
    pub(super) fn leave_sums(&self, sums: GradientSums) {
        *self.sums.lock().unwrap_or_else(PoisonError::into_inner) = Some(sums);
    }

    /// The sums, if the second layer left any.
    pub(super) fn take_sums(&self) -> Option<GradientSums> {
        self.sums.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
