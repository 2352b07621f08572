//! Tolerances of a device by its rounding.
//!
//! In: a device and a number format. Out: tolerances. Source: docs/numerics.md, which lists them.

use crate::config::{Activations, ComputeSection, DeviceChoice};

/// A value in f32, in TF32 (f32 on NVIDIA GPUs, which keep 10 bits of each factor), and with 16-bit
/// activations.
type ByRounding<T> = [T; 3];

const NAMES: ByRounding<&str> = ["f32", "tf32", "16 bits"];
const LOGITS: ByRounding<f64> = [2e-6, 1e-2, 5e-2];
const LOSS: ByRounding<f64> = [1e-6, 5e-3, 3e-2];
const GRADIENTS: ByRounding<f64> = [1e-5, 1e-1, 2e-1];
const LOSSES: ByRounding<f64> = [1e-3, 5e-3, 1e-2];
/// The tolerance is wide even for f32. In some steps, rounding moves one of 300,000 inputs of ReLUs
/// across zero, which switches the gradient of one of four images.
const UPDATE: ByRounding<f64> = [2e-2, 1.5e-1, 2e-1];
const RANKS: ByRounding<f64> = [5e-3, 1e-1, 2e-1];
const EVALUATION: ByRounding<f64> = [1e-5, 1e-2, 3e-2];
const IMAGES: ByRounding<u64> = [0, 3, 3];

/// Tolerances for one rounding of the factors of products.
#[derive(Clone, Copy, Debug)]
pub(super) struct Precision {
    pub(super) name: &'static str,
    /// Logits of a training pass, relative to the largest.
    pub(super) logits: f64,
    /// Mean loss of one pass, relative.
    pub(super) loss: f64,
    /// All gradients of one pass as one vector, relative L2.
    pub(super) gradients: f64,
    /// Ten losses, relative to the largest.
    pub(super) losses: f64,
    /// Change of the parameters in ten steps, relative L2.
    pub(super) update: f64,
    /// Change of the parameters in two steps of two ranks. Only the order of sums differs.
    pub(super) ranks: f64,
    /// Mean loss of an evaluation, relative.
    pub(super) evaluation: f64,
    /// Number of images of the known answer whose class may differ.
    pub(super) images: u64,
}

/// f32 throughout.
pub(super) const SINGLE: Precision = Precision::by_rounding(0);

/// 16-bit activations.
pub(super) const HALF: Precision = Precision::by_rounding(2);

impl Precision {
    const fn by_rounding(index: usize) -> Self {
        Self {
            name: NAMES[index],
            logits: LOGITS[index],
            loss: LOSS[index],
            gradients: GRADIENTS[index],
            losses: LOSSES[index],
            update: UPDATE[index],
            ranks: RANKS[index],
            evaluation: EVALUATION[index],
            images: IMAGES[index],
        }
    }

    pub(super) fn of(compute: &ComputeSection) -> Self {
        match compute.device {
            _ if compute.dtype() != Activations::F32 => HALF,
            DeviceChoice::Cuda(_) => Self::by_rounding(1),
            DeviceChoice::Flex | DeviceChoice::Ndarray => SINGLE,
        }
    }
}
