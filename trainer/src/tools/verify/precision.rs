//! Tolerances of a device by its rounding.
//!
//! In: device and number format. Out: tolerances. Source: docs/numerics.md, which lists them.

use crate::config::{Activations, ComputeSection, DeviceChoice};

/// Tolerances by the rounding of the factors of products.
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
    /// It is wide even for f32: among 300,000 inputs of ReLUs, rounding moves one across zero in some
    /// steps and switches the gradient of one of four images.
    pub(super) update: f64,
    /// The same for two steps of two ranks, which differ in the order of sums only.
    pub(super) ranks: f64,
    /// Mean loss of an evaluation, relative.
    pub(super) evaluation: f64,
    /// Images of the known answer that may be answered differently.
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

/// f32 whose matrix units keep 10 bits of each factor (TF32), as on NVIDIA GPUs.
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

/// Activations of 16 bits.
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
