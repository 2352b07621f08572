//! GPU code of a training step that burn's own operations do not offer.
//!
//! In: tensors on burn's CubeCL backend, or a closure that runs a step. Out: tensors, or a
//! [`CapturedStep`], which replays the step with one launch.
//! Invariant: this crate knows no layer, no rank and no option of the program.

mod capture;
#[cfg(feature = "cube")]
pub mod cube;

pub use capture::{CapturedStep, capture_lock};
