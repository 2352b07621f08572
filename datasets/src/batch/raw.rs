//! Images from raw pixels on a device. burn's operations crop, flip and normalise them.
//!
//! In: u8 `[N, H, W, C]`, an [`ImageShift`] for each image, the [`NormalizationTable`]. Out: f32
//! `[N, H, W, C]`.
//! Invariant: each value is an entry of the host's table, so the bits do not depend on the device's
//! division and rounding. The upload has a quarter of the bytes of host-made images, plus 4 (H + W)
//! bytes per shifted image.

use std::sync::Arc;

use burn::tensor::{DType, Device, Int, IntDType, Tensor, TensorData};

use crate::augment::ImageShift;
use crate::dataset::ImageShape;
use crate::normalize::{NUM_PIXEL_VALUES, NormalizationTable};

/// Raw pixels of a micro-batch, with shifts and normalisation.
#[derive(Clone, Debug, PartialEq)]
pub struct RawPixels {
    /// `[N, H, W, C]`.
    pub bytes: Vec<u8>,
    /// Shift of each image `[N]`.
    pub shifts: Vec<ImageShift>,
    /// The normalised value of each pixel value.
    pub table: Arc<NormalizationTable>,
}

/// [`RawPixels`] on a device, in flat tensors.
#[derive(Clone, Debug)]
pub(super) struct UploadedPixels {
    /// u8 pixels. A black pixel follows the images if images are shifted.
    bytes: Tensor<1, Int>,
    /// Sources of shifted images, or `None` if no image is shifted.
    sources: Option<Sources>,
    /// `[C * 256]`
    table: Tensor<1>,
}

/// Source pixel of each output pixel: row plus column. A larger sum than the last pixel's index
/// stands for black.
#[derive(Clone, Debug)]
struct Sources {
    /// First pixel of each output row's source row `[N * H]`.
    rows: Tensor<1, Int>,
    /// Source column of each output column `[N * W]`.
    columns: Tensor<1, Int>,
}

impl RawPixels {
    /// Returns black images with these shifts.
    pub fn black(
        shifts: Vec<ImageShift>,
        shape: ImageShape,
        table: Arc<NormalizationTable>,
    ) -> Self {
        let len = shifts.len() * shape.num_values();
        // The capacity includes the black pixel that the upload may add.
        let mut bytes = Vec::with_capacity(len + shape.channels);
        bytes.resize(len, 0);
        Self {
            bytes,
            shifts,
            table,
        }
    }

    /// Returns the images `[N, H, W, C]` of `shape`, computed on the host.
    pub fn normalised(&self, shape: ImageShape) -> Vec<f32> {
        let len = shape.num_values();
        let mut output = vec![0.0; self.bytes.len()];
        let images = self
            .bytes
            .chunks_exact(len)
            .zip(output.chunks_exact_mut(len));
        for ((bytes, output), shift) in images.zip(&self.shifts) {
            self.table.apply(bytes, shape, *shift, output);
        }
        output
    }

    pub(super) fn upload(mut self, shape: ImageShape, device: &Device) -> UploadedPixels {
        let is_moved = self
            .shifts
            .iter()
            .any(|shift| *shift != ImageShift::default());
        let sources = is_moved.then(|| {
            self.bytes.resize(self.bytes.len() + shape.channels, 0);
            Sources::upload(&self.shifts, shape, device)
        });
        let len = self.bytes.len();
        let table = self.table.values();
        let num_entries = table.len();
        UploadedPixels {
            bytes: Tensor::from_data(TensorData::new(self.bytes, [len]), (device, DType::U8)),
            sources,
            table: Tensor::from_data(TensorData::new(table, [num_entries]), device),
        }
    }
}

impl UploadedPixels {
    /// Returns the images `[N, H, W, C]`.
    pub(super) fn normalised(self, num_samples: usize, shape: ImageShape) -> Tensor<4> {
        let ImageShape {
            height,
            width,
            channels,
        } = shape;
        let num_pixels = num_samples * height * width;
        let bytes = match self.sources {
            None => self.bytes,
            Some(Sources { rows, columns }) => {
                let sources = rows.reshape([num_samples, height, 1])
                    + columns.reshape([num_samples, 1, width]);
                let sources = sources.clamp_max(num_pixels as i32).reshape([num_pixels]);
                let pixels = self
                    .bytes
                    .reshape([num_pixels + 1, channels])
                    .select(0, sources);
                pixels.reshape([num_pixels * channels])
            }
        };
        let entries = bytes
            .cast(IntDType::I32)
            .reshape([num_samples, height, width, channels]);
        let first_entries =
            Tensor::<1, Int>::arange(0..channels as i64, (&entries.device(), DType::I32));
        let first_entries = first_entries
            .mul_scalar(NUM_PIXEL_VALUES as i32)
            .reshape([1, 1, 1, channels]);
        self.table.take::<4, 4>(0, entries + first_entries)
    }
}

impl Sources {
    fn upload(
        shifts: &[ImageShift],
        ImageShape { height, width, .. }: ImageShape,
        device: &Device,
    ) -> Self {
        let black = shifts.len() * height * width;
        // The sum of an outside row and an outside column must still fit the integer type.
        assert!(
            black < 1 << 30,
            "batch: expected less than {} pixels, got {black}. Use smaller batches.",
            1 << 30
        );
        let inside = |position: isize, len: usize| {
            usize::try_from(position)
                .ok()
                .filter(|position| *position < len)
        };
        let mut rows = Vec::with_capacity(shifts.len() * height);
        let mut columns = Vec::with_capacity(shifts.len() * width);
        for (image, shift) in shifts.iter().enumerate() {
            rows.extend((0..height).map(|y| {
                let row = inside(y as isize + shift.dy, height);
                row.map_or(black, |row| (image * height + row) * width) as i32
            }));
            columns.extend((0..width).map(|x| {
                let x = if shift.flip { width - 1 - x } else { x };
                inside(x as isize + shift.dx, width).unwrap_or(black) as i32
            }));
        }
        let upload = |values: Vec<i32>| {
            let len = values.len();
            Tensor::from_data(TensorData::new(values, [len]), (device, DType::I32))
        };
        Self {
            rows: upload(rows),
            columns: upload(columns),
        }
    }
}
