//! What a layer and the one that reads its output know of each other, so that neither walks over it twice.
//!
//! In: the forward pass of the first, the backward passes of its readers. Out: the first one's normalisation, for a reader to apply
//! where its input is still raw; whether a reader has left a gradient on the tape, which the next one then adds as it writes its own; the
//! sums of the normalisation's gradient, which the last reader takes on the way.
//! Invariant: sums are of the gradient that they lie beside, so the first layer takes them only if that is the one it is given; a
//! reader that knows no links changes nothing but the speed.
//! Source: Jung et al. 2019, arXiv 1807.01702.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

#[cfg(feature = "flex")]
use burn::backend::flex::FlexTensor;

#[cfg(feature = "flex")]
use super::linked::LinkedNorm;
use crate::ops::statistics::GradientSums;

/// Between one layer and those that read its output.
#[derive(Debug)]
pub(crate) struct NormLink {
    /// Whether the output may stay the convolution's raw result, since there is one reader, which normalises it.
    pub(in crate::ops) may_be_raw: bool,
    /// Whether the tape holds a gradient of the output.
    has_gradient: AtomicBool,
    #[cfg(feature = "flex")]
    pub(in crate::ops) norm: OnceLock<LinkedNorm>,
    #[cfg(feature = "flex")]
    sums: Mutex<Option<(FlexTensor, GradientSums)>>,
}

impl NormLink {
    /// A link that the first layer has not seen yet.
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

    /// Says whether the tape holds a gradient of the output from now on. Returns what was said before.
    pub(in crate::ops) fn hold_gradient(&self, holds: bool) -> bool {
        self.has_gradient.swap(holds, Ordering::Relaxed)
    }

    /// Leaves the sums of `gradient` for the first layer. Held here, its memory is not written again.
    #[cfg(feature = "flex")]
    pub(in crate::ops) fn leave_sums(&self, gradient: FlexTensor, sums: GradientSums) {
        *self.sums.lock().unwrap_or_else(PoisonError::into_inner) = Some((gradient, sums));
    }

    /// The sums, if the last reader left those of `gradient`.
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
