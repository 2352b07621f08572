//! Tolerances of a device by its rounding.
//!
//! In: a device and a number format. Out: tolerances. Source: docs/numerics.md, which lists them.

use crate::config::{Activations, ComputeSection, DeviceChoice};

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
    ///
    /// The tolerance is wide even for f32. In some steps, rounding moves one of 300,000 inputs of
    /// ReLUs across zero, which switches the gradient of one of four images.
    pub(super) update: f64,
    /// Change of the parameters in two steps of two ranks. Only the order of sums differs.
    pub(super) ranks: f64,
    /// Mean loss of an evaluation, relative.
    pub(super) evaluation: f64,
    /// Number of images of the known answer whose class may differ.
    pub(super) images: u64,
}

/// f32 throughout.
pub(super) const SINGLE: Precision = Precision {
    name: "f32",
    logits: 2e-6,
    loss: 1e-6,
    gradients: 1e-5,
    losses: 1e-3,
    update: 2e-2,
    ranks: 5e-3,
    evaluation: 1e-5,
    images: 0,
};

/// f32 with matrix units that keep 10 bits of each factor (TF32), as on NVIDIA GPUs.
const TENSOR: Precision = Precision {
    name: "tf32",
    logits: 1e-2,
    loss: 5e-3,
    gradients: 5e-2,
    losses: 5e-3,
    update: 1.5e-1,
    ranks: 1e-1,
    evaluation: 1e-2,
    images: 3,
};

/// 16-bit activations.
pub(super) const HALF: Precision = Precision {
    name: "16 bits",
    logits: 5e-2,
    loss: 3e-2,
    gradients: 2e-1,
    losses: 1e-2,
    update: 2e-1,
    ranks: 2e-1,
    evaluation: 3e-2,
    images: 3,
};

impl Precision {
    pub(super) fn of(compute: &ComputeSection) -> Self {
        match compute.device {
            _ if compute.dtype() != Activations::F32 => HALF,
            DeviceChoice::Cuda(_) => TENSOR,
            DeviceChoice::Flex | DeviceChoice::Ndarray => SINGLE,
        }
    }
}
