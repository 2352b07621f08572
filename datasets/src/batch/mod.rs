//! Batches in host memory, on a device, and as input of a model. Only this folder of the crate uses
//! burn.
//!
//! In: pixels and labels in host memory. Out: tensors.
//! Shapes: images `[N, H, W, C]` (channels last), labels `[N]`.
//! Invariant: images that the device makes from raw pixels have the bits of images from the host.

mod arrays;
mod raw;

use std::borrow::Cow;

use burn::tensor::{Device, Int, Tensor, TensorData};

use crate::dataset::ImageShape;
pub use arrays::Arrays;
pub use raw::RawPixels;
use raw::UploadedPixels;

/// A batch in host memory that a device can receive.
pub trait Upload: Clone + Send + 'static {
    /// The batch on a device.
    type OnDevice: OnDevice;

    /// Copies the batch to a device. A computation is better done where the batch is used, since a
    /// thread may upload ahead.
    fn upload(self, device: &Device) -> Self::OnDevice;
}

/// A batch on a device: any tensors.
pub trait OnDevice: Clone + Send + 'static {
    /// Returns all tensors of the batch, flat, in f32, for a GPU to capture the step that reads
    /// them. `None` (the default) if a captured step cannot read them.
    fn flat(&self) -> Option<Vec<Tensor<1>>> {
        None
    }

    /// Returns the sizes of all tensors. A step that was captured with other sizes is not replayed.
    /// Default: none.
    fn sizes(&self) -> Vec<usize> {
        Vec::new()
    }

    /// Returns the labels of the samples, if scores need them in host memory. Default: none.
    fn labels(&self) -> Vec<u32> {
        Vec::new()
    }

    /// Returns the batch with these tensors, which are as [`flat`](Self::flat) returned them.
    /// Default: unchanged.
    #[must_use]
    fn with_flat(&self, tensors: Vec<Tensor<1>>) -> Self {
        let _ = tensors;
        self.clone()
    }
}

/// A micro-batch of images in host memory.
#[derive(Clone, Debug, PartialEq)]
pub struct HostBatch {
    /// The pixels of all images.
    pub pixels: Pixels,
    /// The classes `[N]`.
    pub labels: Vec<u32>,
    /// Second classes of the samples, if images were mixed.
    pub mixed: Option<MixedLabels>,
    /// The samples' indices in the data set `[N]`.
    pub indices: Vec<usize>,
    /// The shape of each image.
    pub shape: ImageShape,
}

/// A second class of each sample.
#[derive(Clone, Debug, PartialEq)]
pub struct MixedLabels {
    /// `[N]`.
    pub labels: Vec<u32>,
    /// Share of the second class in each sample `[N]`, 0 to 1. The first class has the rest.
    pub shares: Vec<f32>,
}

/// The pixels of a micro-batch in host memory.
#[derive(Clone, Debug, PartialEq)]
pub enum Pixels {
    /// Cropped, flipped and normalised, `[N, H, W, C]`.
    Normalised(Vec<f32>),
    /// Raw pixels, a quarter of the bytes. The device does the rest of the work.
    Raw(RawPixels),
}

/// A micro-batch of images on a device, perhaps from another thread. Remaining work is done at its
/// use.
#[derive(Clone, Debug)]
pub struct DeviceBatch {
    /// The classes `[N]`, in host memory.
    pub labels: Vec<u32>,
    /// The shape of each image.
    pub shape: ImageShape,
    images: UploadedImages,
    targets: Targets,
}

/// Images of a [`DeviceBatch`].
///
/// All tensors are flat, because a transfer to a GPU would pad each short row of a matrix to 16
/// bytes or more. The uploading thread computes nothing, so that it leaves no work in a separate
/// queue.
#[derive(Clone, Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "there is one a batch, and its handles are moved twice"
)]
enum UploadedImages {
    Normalised(Tensor<1>),
    Raw(UploadedPixels),
}

/// A micro-batch as the input of a model.
#[derive(Clone, Debug)]
pub struct ImageBatch {
    /// Normalised pixels `[N, H, W, C]`.
    pub images: Tensor<4>,
    /// Expected outputs of a model.
    pub targets: Targets,
}

/// The classes of a micro-batch.
#[derive(Clone, Debug)]
pub struct Targets {
    /// `[N]`.
    pub labels: Tensor<1, Int>,
    /// Second class of each sample, if images were mixed.
    pub mixed: Option<MixedTargets>,
}

/// [`MixedLabels`] on a device.
#[derive(Clone, Debug)]
pub struct MixedTargets {
    /// `[N]`.
    pub labels: Tensor<1, Int>,
    /// `[N]`, 0 to 1.
    pub shares: Tensor<1>,
}

impl Targets {
    /// Returns targets with one class per sample, `[N]`.
    pub fn of(labels: Tensor<1, Int>) -> Self {
        Self {
            labels,
            mixed: None,
        }
    }
}

impl HostBatch {
    /// Returns N.
    pub fn num_samples(&self) -> usize {
        self.labels.len()
    }

    /// Returns the pixels, cropped, flipped and normalised, `[N, H, W, C]`. Raw pixels are
    /// processed in this call.
    pub fn normalised_pixels(&self) -> Cow<'_, [f32]> {
        match &self.pixels {
            Pixels::Normalised(pixels) => Cow::Borrowed(pixels),
            Pixels::Raw(raw) => Cow::Owned(raw.normalised(self.shape)),
        }
    }

    /// Moves the batch to a device and processes its images there.
    ///
    /// # Panics
    /// Panics in the cases of [`upload`](Upload::upload).
    pub fn to_device(self, device: &Device) -> ImageBatch {
        self.upload(device).into_images()
    }
}

impl Upload for HostBatch {
    type OnDevice = DeviceBatch;

    /// # Panics
    /// Panics if there are no images, because some backends have no tensors without elements, or
    /// 2^30 or more raw pixels to shift.
    fn upload(self, device: &Device) -> DeviceBatch {
        let Self {
            pixels,
            labels,
            mixed,
            indices: _,
            shape,
        } = self;
        assert!(
            !labels.is_empty(),
            "batch: expected at least one sample, got none"
        );
        let images = match pixels {
            Pixels::Normalised(pixels) => {
                let len = pixels.len();
                UploadedImages::Normalised(Tensor::from_data(
                    TensorData::new(pixels, [len]),
                    device,
                ))
            }
            Pixels::Raw(raw) => UploadedImages::Raw(raw.upload(shape, device)),
        };
        let mixed = mixed.map(|MixedLabels { labels, shares }| {
            let shares = Tensor::from_data(TensorData::new(shares, [labels.len()]), device);
            MixedTargets {
                labels: classes(&labels, device),
                shares,
            }
        });
        DeviceBatch {
            targets: Targets {
                labels: classes(&labels, device),
                mixed,
            },
            labels,
            shape,
            images,
        }
    }
}

impl DeviceBatch {
    /// Returns N.
    pub fn num_samples(&self) -> usize {
        self.labels.len()
    }

    /// Returns the classes.
    pub fn targets(&self) -> &Targets {
        &self.targets
    }

    /// Returns the batch as the input of a model. The device now crops, flips and normalises raw
    /// pixels.
    pub fn into_images(self) -> ImageBatch {
        let num_samples = self.num_samples();
        let ImageShape {
            height,
            width,
            channels,
        } = self.shape;
        let images = match self.images {
            UploadedImages::Normalised(pixels) => {
                pixels.reshape([num_samples, height, width, channels])
            }
            UploadedImages::Raw(raw) => raw.normalised(num_samples, self.shape),
        };
        ImageBatch {
            images,
            targets: self.targets,
        }
    }
}

impl OnDevice for DeviceBatch {
    /// Returns the normalised images and the labels; `None` if images were mixed.
    fn flat(&self) -> Option<Vec<Tensor<1>>> {
        if self.targets.mixed.is_some() {
            return None;
        }
        let ImageBatch { images, targets } = self.clone().into_images();
        Some(vec![images.flatten(0, 3), targets.labels.float()])
    }

    fn sizes(&self) -> Vec<usize> {
        [&[self.num_samples()][..], &self.shape.dims()].concat()
    }

    fn labels(&self) -> Vec<u32> {
        self.labels.clone()
    }

    fn with_flat(&self, tensors: Vec<Tensor<1>>) -> Self {
        let Ok([images, labels]) = <[Tensor<1>; 2]>::try_from(tensors) else {
            unreachable!("a batch of images is flat in two tensors")
        };
        Self {
            labels: self.labels.clone(),
            shape: self.shape,
            images: UploadedImages::Normalised(images),
            targets: Targets::of(labels.int()),
        }
    }
}

fn classes(labels: &[u32], device: &Device) -> Tensor<1, Int> {
    let classes: Vec<i32> = labels.iter().map(|label| *label as i32).collect();
    Tensor::from_data(TensorData::new(classes, [labels.len()]), device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_hold_the_pixels_and_labels_in_order() {
        let shape = ImageShape {
            height: 2,
            width: 3,
            channels: 1,
        };
        let pixels: Vec<f32> = (0..12).map(|value| value as f32 / 8.0).collect();
        let host = HostBatch {
            pixels: Pixels::Normalised(pixels.clone()),
            labels: vec![7, 3],
            mixed: None,
            indices: vec![0, 1],
            shape,
        };
        let batch = host.to_device(&Device::flex());
        assert_eq!(batch.images.dims(), [2, 2, 3, 1]);
        assert_eq!(
            batch.images.into_data().as_slice::<f32>().unwrap(),
            &pixels[..]
        );
        assert_eq!(
            batch.targets.labels.into_data().as_slice::<i32>().unwrap(),
            &[7, 3]
        );
    }
}
