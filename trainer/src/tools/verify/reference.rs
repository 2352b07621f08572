//! The device that others are measured by: Flex with our own kernels in f32, which the tests hold against PyTorch in f64.

use burn::tensor::Device;

use crate::config::ComputeSection;
use crate::config::{Activations, Convolution, DeviceChoice, Kernels};

/// Why a comparison with the reference is skipped.
pub(super) const ABSENT: &str =
    "this program was built without the reference: rebuild with the cargo feature flex";

/// The reference, if it is part of this program; `compute` tells threads and instruction set.
pub(super) fn reference(compute: &ComputeSection) -> Option<(Device, ComputeSection)> {
    let compute = ComputeSection {
        device: DeviceChoice::Flex,
        kernels: Some(Kernels::Fused),
        dtype: Some(Activations::F32),
        convolution: Some(Convolution::Auto),
        ..*compute
    };
    flex().map(|device| (device, compute))
}

#[cfg(feature = "flex")]
fn flex() -> Option<Device> {
    Some(Device::flex())
}

#[cfg(not(feature = "flex"))]
fn flex() -> Option<Device> {
    None
}
