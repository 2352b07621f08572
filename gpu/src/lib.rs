//! GPU code of a training step: what burn's own operations do not offer.
//!
//! In: a closure that runs a step. Out: a [`CapturedStep`], which replays it with one launch.
//! Invariant: knows no layer, no rank and no option of the program.

mod capture;

pub use capture::{CapturedStep, capture_lock};
