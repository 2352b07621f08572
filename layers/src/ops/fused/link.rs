//! State that a layer shares with the readers of its output, so that no activation is read twice.
//!
//! In: the forward pass of the first layer, the backward passes of its readers.
//! Out: three facts. (1) The normalisation of the first layer: a reader applies it if its input is
//! raw. (2) Whether the tape has the gradient of another reader: the next reader adds it to its own
//! gradient. (3) The sums of the normalisation's gradient, which the last reader computes.
//! Invariant: sums belong to the gradient that is stored with them, so the first layer takes them
//! only if it gets that gradient. A reader without links changes only the speed.
//! Source: Jung et al. 2019, arXiv 1807.01702.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

#[cfg(feature = "flex")]
use burn::backend::flex::FlexTensor;

#[cfg(feature = "flex")]
use super::linked::LinkedNorm;
use crate::ops::statistics::GradientSums;

/// Link between a layer and the readers of its output.
#[derive(Debug)]
pub(crate) struct NormLink {
    /// True if the output may stay the convolution's raw result, since the only reader normalises
    /// it.
    pub(in crate::ops) may_be_raw: bool,
    /// True if the tape holds a gradient of the output.
    has_gradient: AtomicBool,
    #[cfg(feature = "flex")]
    pub(in crate::ops) norm: OnceLock<LinkedNorm>,
    #[cfg(feature = "flex")]
    sums: Mutex<Option<(FlexTensor, GradientSums)>>,
}

impl NormLink {
    /// Returns a link that the first layer has not filled yet.
    pub(crate) fn new(may_be_raw: bool) -> Self {
        Self {
            may_be_raw,
            has_gradient: AtomicBool::new(false),
            #[cfg(feature = "flex")]
            norm: OnceLock::new(),
            #[cfg(feature = "flex")]
            sums: Mutex::new(None),
        }
    }

    /// Sets whether the tape holds a gradient of the output, and returns the former value.
    pub(in crate::ops) fn hold_gradient(&self, holds: bool) -> bool {
        self.has_gradient.swap(holds, Ordering::Relaxed)
    }

    /// Stores the sums of `gradient` for the first layer, and keeps `gradient` so that its memory
    /// is not reused.
    #[cfg(feature = "flex")]
    pub(in crate::ops) fn leave_sums(&self, gradient: FlexTensor, sums: GradientSums) {
        *self.sums.lock().unwrap_or_else(PoisonError::into_inner) = Some((gradient, sums));
    }

    /// Returns the sums if the last reader stored sums of `gradient`.
    #[cfg(feature = "flex")]
    pub(in crate::ops) fn take_sums(&self, gradient: &FlexTensor) -> Option<GradientSums> {
        let (summed, sums) = self
            .sums
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()?;
        std::ptr::eq(summed.bytes(), gradient.bytes()).then_some(sums)
    }
}
