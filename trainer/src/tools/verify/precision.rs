//! Tolerances of a device by its rounding.
//!
//! In: device and number format. Out: tolerances. Source: docs/numerics.md, which lists them.

use crate::config::ComputeSection;
use crate::config::{Activations, DeviceChoice};

/// Rounding of the factors of products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Precision {
    /// f32 throughout.
    Single,
    /// f32 whose matrix units keep 10 bits of each factor (TF32), as on NVIDIA GPUs.
    Tensor,
    /// Activations of 16 bits.
    Half,
}

impl Precision {
    pub(super) fn of(compute: &ComputeSection) -> Self {
        match compute.device {
            _ if compute.dtype() != Activations::F32 => Self::Half,
            DeviceChoice::Cuda(_) => Self::Tensor,
            DeviceChoice::Flex | DeviceChoice::Ndarray => Self::Single,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Single => "f32",
            Self::Tensor => "tf32",
            Self::Half => "16 bits",
        }
    }

    /// Returns the tolerance of the logits of a training pass, relative to the largest.
    pub(super) fn logits(self) -> f64 {
        self.choose(2e-6, 1e-2, 5e-2)
    }

    /// Returns the relative tolerance of the mean loss of one pass.
    pub(super) fn loss(self) -> f64 {
        self.choose(1e-6, 5e-3, 3e-2)
    }

    /// Returns the relative L2 tolerance of all gradients of one pass as one vector.
    pub(super) fn gradients(self) -> f64 {
        self.choose(1e-5, 5e-2, 2e-1)
    }

    /// Returns the tolerance of ten losses, relative to the largest.
    pub(super) fn losses(self) -> f64 {
        self.choose(1e-3, 5e-3, 1e-2)
    }

    /// Returns the relative L2 tolerance of the change of the parameters in ten steps.
    ///
    /// It is wide even for f32: among 300,000 inputs of ReLUs, rounding moves one across zero in some
    /// steps and switches the gradient of one of four images.
    pub(super) fn update(self) -> f64 {
        self.choose(2e-2, 1.5e-1, 2e-1)
    }

    /// Returns that tolerance for two steps of two ranks, which differ in the order of sums only.
    pub(super) fn ranks(self) -> f64 {
        self.choose(5e-3, 1e-1, 2e-1)
    }

    /// Returns the relative tolerance of the mean loss of an evaluation.
    pub(super) fn evaluation(self) -> f64 {
        self.choose(1e-5, 1e-2, 3e-2)
    }

    /// Returns the number of images of the known answer that may be answered differently.
    pub(super) fn images(self) -> u64 {
        match self {
            Self::Single => 0,
            Self::Tensor | Self::Half => 3,
        }
    }

    fn choose(self, single: f64, tensor: f64, half: f64) -> f64 {
        match self {
            Self::Single => single,
            Self::Tensor => tensor,
            Self::Half => half,
        }
    }
}
