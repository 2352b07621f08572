//! A layer's call as its kernels see it: the properties that their time depends on, and the
//! activations that they read and write.

use kernels::Storage;
use kernels::batch_norm::{Rectifier, ShortcutA};
use kernels::conv2d::{Algorithm, Conv2dShape};
use kernels::layer::Layer;
use kernels::simd::Isa;

use super::ResidualKind;
use crate::ops::clock::Kernel;

/// Knowledge about the normalisation that made a layer's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::ops) enum Before {
    Unknown,
    /// All, and the input is stored.
    Stored,
    /// All, and the layer reads the input of the normalisation.
    Raw,
}

/// A layer in training or inference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LayerCall {
    pub(in crate::ops) shape: Conv2dShape,
    pub(in crate::ops) algorithm: Algorithm,
    pub(in crate::ops) isa: Isa,
    pub(in crate::ops) storage: Storage,
    pub(in crate::ops) before: Before,
    pub(in crate::ops) residual: ResidualKind,
    pub(in crate::ops) rectifier: Rectifier,
    /// For the backward pass, as `has_addend`.
    pub(in crate::ops) needs_input: bool,
    pub(in crate::ops) has_addend: bool,
}

impl LayerCall {
    pub(in crate::ops) fn plan(&self) -> Layer {
        let Conv2dShape { batch, height, .. } = self.shape;
        // A convolution of single pixels may be cut between any rows; shortcut A between images
        // only.
        let by_rows = self.shape.is_pointwise() && self.residual != ResidualKind::ShortcutA;
        let shape = if by_rows {
            Conv2dShape {
                batch: batch * height,
                height: 1,
                ..self.shape
            }
        } else {
            self.shape
        };
        Layer::new(shape, self.algorithm, self.isa, self.storage)
    }

    /// Returns the number of elements of the residual.
    pub(in crate::ops) fn residual_len(&self) -> usize {
        match self.residual {
            ResidualKind::None => 0,
            ResidualKind::Identity => self.shape.output_len(),
            ResidualKind::ShortcutA => self.shortcut_shape().iter().product(),
        }
    }

    /// Returns the shape of the input of shortcut A, if the residual is one.
    pub(in crate::ops) fn shortcut_shape(&self) -> [usize; 4] {
        let shape = &self.shape;
        [
            shape.batch,
            2 * shape.out_height(),
            2 * shape.out_width(),
            shape.out_channels / 2,
        ]
    }

    /// Returns the bytes of activations that a kernel reads and writes in memory, if a group of
    /// images stays in a cache.
    pub(in crate::ops) fn bytes(&self, kernel: Kernel) -> usize {
        let x = self.shape.input_len();
        let z = self.shape.output_len();
        let residual = self.residual_len();
        let gate = usize::from(is_gated_by_output(self.rectifier, self.residual)) * z;
        let elements = match kernel {
            Kernel::Convolution => x + z,
            Kernel::Normalisation => 2 * z + residual,
            Kernel::NormSums => 2 * z + gate,
            Kernel::Gradients => {
                let of_norm = 2 * z + gate + residual;
                let dx = usize::from(self.needs_input) * x * (1 + usize::from(self.has_addend));
                let before = usize::from(self.needs_input && self.before == Before::Stored) * x;
                let again = if self.plan().is_grouped() {
                    0
                } else {
                    self.elements_again(x, z)
                };
                of_norm + x + dx + before + again
            }
            _ => 0,
        };
        elements * self.storage.size()
    }

    /// Returns the elements that a gradient reads and writes again if its passes run one after the
    /// other.
    fn elements_again(&self, x: usize, z: usize) -> usize {
        let dz = z * (2 + usize::from(self.needs_input));
        let normalised = usize::from(self.before == Before::Raw) * 2 * x;
        let sums = usize::from(self.needs_input && self.before != Before::Unknown) * 2 * x;
        dz + normalised + sums
    }
}

/// Returns whether the gate of a rectifier is read from the layer's output, not recomputed.
pub(in crate::ops) fn is_gated_by_output(rectifier: Rectifier, residual: ResidualKind) -> bool {
    rectifier != Rectifier::None && residual != ResidualKind::None
}

/// Returns shortcut A of values of a shape, for the given number of channels.
pub(in crate::ops) fn shortcut_a(
    [num_images, height, width, channels_in]: [usize; 4],
    channels: usize,
) -> ShortcutA {
    ShortcutA {
        num_images,
        height,
        width,
        channels_in,
        channels,
    }
}
