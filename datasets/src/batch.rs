//! Batches, on the host and on a device; the only file of this crate that names burn.
//!
//! In: normalised pixels and labels in host memory. Out: tensors.
//! Shapes: images `[N, H, W, C]` (channels last), labels `[N]`.

use burn::tensor::{Device, Int, Tensor, TensorData};

use crate::dataset::ImageShape;

/// A micro-batch in host memory.
#[derive(Clone, Debug, PartialEq)]
pub struct HostBatch {
    /// Normalised pixels `[N, H, W, C]`.
    pub pixels: Vec<f32>,
    /// The classes `[N]`.
    pub labels: Vec<u32>,
    /// The samples' indices in the data set `[N]`.
    pub indices: Vec<usize>,
    /// The shape of each image.
    pub shape: ImageShape,
}

/// A micro-batch on a device.
#[derive(Clone, Debug)]
pub struct ImageBatch {
    /// Normalised pixels `[N, H, W, C]`.
    pub images: Tensor<4>,
    /// The classes `[N]`.
    pub labels: Tensor<1, Int>,
}

impl HostBatch {
    /// N; may be 0 in the last step of an epoch.
    pub fn num_samples(&self) -> usize {
        self.labels.len()
    }

    /// Moves the batch to a device.
    ///
    /// # Panics
    /// If the batch is empty: not every backend has tensors without elements, and there is nothing to compute.
    pub fn to_device(self, device: &Device) -> ImageBatch {
        let num_samples = self.num_samples();
        assert!(num_samples > 0, "batch: expected at least one sample, got none");
        let ImageShape { height, width, channels } = self.shape;
        let labels: Vec<i32> = self.labels.into_iter().map(|label| label as i32).collect();
        let images = TensorData::new(self.pixels, [num_samples, height, width, channels]);
        ImageBatch {
            images: Tensor::from_data(images, device),
            labels: Tensor::from_data(TensorData::new(labels, [num_samples]), device),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_hold_the_pixels_and_labels_in_order() {
        let shape = ImageShape { height: 2, width: 3, channels: 1 };
        let pixels: Vec<f32> = (0..12).map(|value| value as f32 / 8.0).collect();
        let host = HostBatch { pixels: pixels.clone(), labels: vec![7, 3], indices: vec![0, 1], shape };
        let batch = host.to_device(&Device::flex());
        assert_eq!(batch.images.dims(), [2, 2, 3, 1]);
        assert_eq!(batch.images.into_data().as_slice::<f32>().unwrap(), &pixels[..]);
        assert_eq!(batch.labels.into_data().as_slice::<i32>().unwrap(), &[7, 3]);
    }
}
