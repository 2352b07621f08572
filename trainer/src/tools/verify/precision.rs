//! How far a device may be off, by the roundings that it makes.
//!
//! In: device and number format. Out: tolerances. Source: docs/numerics.md, which lists them.

use crate::config::ComputeSection;
use crate::config::{Activations, DeviceChoice};

/// What a device rounds the factors of its products to.
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

    /// Logits of a training pass, relative to the largest.
    pub(super) fn logits(self) -> f64 {
        self.choose(2e-6, 1e-2, 5e-2)
    }

    /// Mean loss of one pass, relative.
    pub(super) fn loss(self) -> f64 {
        self.choose(1e-6, 5e-3, 3e-2)
    }

    /// All gradients of one pass as one vector, relative L2.
    pub(super) fn gradients(self) -> f64 {
        self.choose(1e-5, 5e-2, 2e-1)
    }

    /// Ten losses, relative to the largest.
    pub(super) fn losses(self) -> f64 {
        self.choose(1e-3, 5e-3, 1e-2)
    }

    /// What ten steps added to the parameters, relative L2. Of f32 too it is wide: of the 300,000 inputs of ReLUs in the smallest check a rounding moves one
    /// to the other side of zero in some steps, and so switches a gradient that is one of four images'.
    pub(super) fn update(self) -> f64 {
        self.choose(2e-2, 1.5e-1, 2e-1)
    }

    /// The same of two steps of two ranks, whose gradients differ by the order of sums alone.
    pub(super) fn ranks(self) -> f64 {
        self.choose(5e-3, 1e-1, 2e-1)
    }

    /// Mean loss of an evaluation, relative.
    pub(super) fn evaluation(self) -> f64 {
        self.choose(1e-5, 1e-2, 3e-2)
    }

    /// Images of the known answer that may change sides.
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
