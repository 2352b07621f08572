//! Switches for parts of the computation, to find the part that is wrong or slow on a device.
//!
//! In: the choice of the program, once. Out: the choice for every operation of the process.
//! Invariant: by default every part is on. A switch changes speed and rounding, never the function.

use std::sync::{PoisonError, RwLock};

/// The parts that are switched off in this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Switches {
    /// No step is captured as a CUDA graph. The training program reads this switch.
    pub no_capture: bool,
    /// Normalisations composed of burn's operations sum over all rows in one stage instead of two.
    pub one_stage_sums: bool,
    /// GPUs compute normalisations with burn's operations instead of Lockstep's kernels.
    pub composed_norms: bool,
    /// GPUs compute all convolutions with burn's operations.
    pub burn_convolutions: bool,
}

static CURRENT: RwLock<Switches> = RwLock::new(Switches {
    no_capture: false,
    one_stage_sums: false,
    composed_norms: false,
    burn_convolutions: false,
});

impl Switches {
    /// Applies these switches to the process.
    pub fn apply(self) {
        *CURRENT.write().unwrap_or_else(PoisonError::into_inner) = self;
    }

    /// Returns the switches of the process.
    pub fn current() -> Self {
        *CURRENT.read().unwrap_or_else(PoisonError::into_inner)
    }
}
