//! Interface of a data set: [`ImageDataset`], [`DatasetSplits`] and [`Normalization`].
//!
//! Invariant: all images are u8 `[H, W, C]` of one shape. Samples have an index and never change.

use std::fmt;
use std::sync::Arc;

use crate::error::DatasetError;
use crate::resize::{CropBox, View};
use crate::split::Split;

/// Shape of every image of a data set: u8 pixels `[H, W, C]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ImageShape {
    /// H, in pixels.
    pub height: usize,
    /// W, in pixels.
    pub width: usize,
    /// C: 3 for RGB, 1 for grey.
    pub channels: usize,
}

impl ImageShape {
    /// Returns the number of values of one image: H * W * C.
    pub fn num_values(self) -> usize {
        self.height * self.width * self.channels
    }

    /// Returns H, W and C.
    pub(crate) fn dims(self) -> [usize; 3] {
        [self.height, self.width, self.channels]
    }
}

impl fmt::Display for ImageShape {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{}x{}x{}",
            self.height, self.width, self.channels
        )
    }
}

/// A set of labelled images of one shape. Several threads may read it concurrently.
pub trait ImageDataset: Send + Sync {
    /// Returns the name for logs and manifests, with the split: "cifar-10 train".
    fn name(&self) -> &str;

    /// Returns the number of samples; never 0.
    fn len(&self) -> usize;

    /// Returns true if there are no samples. The result is always false, because opening an empty
    /// data set is an error.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the shape of every image.
    fn image_shape(&self) -> ImageShape;

    /// Returns the names of the classes in label order.
    fn class_names(&self) -> &[String];

    /// Returns the class of a sample, an index into `class_names`.
    ///
    /// # Panics
    /// Panics if `index` is not below `len`.
    fn label(&self, index: usize) -> usize;

    /// Reads a sample's pixels into `pixels`.
    ///
    /// # Shapes
    /// `pixels`: `[H, W, C]` of `image_shape`.
    ///
    /// # Errors
    /// Returns an error with the path if the sample is decoded on demand and its file cannot be
    /// read or decoded.
    ///
    /// # Panics
    /// Panics if `index` is not below `len`, or if `pixels` and the image differ in length.
    fn read_image(&self, index: usize, pixels: &mut [u8]) -> Result<(), DatasetError>;

    /// Reads a part of a sample's image into `pixels`, resized to `shape`. The number of channels
    /// is that of every image.
    ///
    /// The arguments of `choose` are the width and height of the stored image if images keep their
    /// own size. Otherwise they are those of `image_shape`.
    ///
    /// # Shapes
    /// `pixels`: `[H, W, C]` of `shape`.
    ///
    /// # Errors
    /// Returns an error in the cases of [`read_image`](Self::read_image).
    ///
    /// # Panics
    /// Panics in the cases of [`read_image`](Self::read_image), and if the part is not inside the
    /// image.
    fn read_crop(
        &self,
        index: usize,
        choose: &dyn Fn([u32; 2]) -> CropBox,
        shape: ImageShape,
        pixels: &mut [u8],
    ) -> Result<(), DatasetError> {
        crop_of_whole(self, index, choose, shape, pixels)
    }

    /// Returns the data's identity: a sha256 in hex of shape, labels and pixels, or of labels,
    /// names and bytes of image files.
    ///
    /// The first call computes the identity and may read the whole data set.
    fn checksum(&self) -> String;

    /// Returns true if the next [`checksum`](Self::checksum) would read files.
    fn checksum_reads_files(&self) -> bool {
        false
    }

    /// Sets the checksum that another process has computed from the same files. Does nothing if the
    /// checksum is already known.
    fn adopt_checksum(&self, checksum: &str) {
        let _ = checksum;
    }

    /// Returns warnings and facts for the log, one sentence each. Empty by default.
    fn notes(&self) -> &[String] {
        &[]
    }
}

/// Reads a part like [`ImageDataset::read_crop`], from images of one stored shape.
pub(crate) fn crop_of_whole<D: ImageDataset + ?Sized>(
    dataset: &D,
    index: usize,
    choose: &dyn Fn([u32; 2]) -> CropBox,
    shape: ImageShape,
    pixels: &mut [u8],
) -> Result<(), DatasetError> {
    let stored = dataset.image_shape();
    let mut whole = vec![0; stored.num_values()];
    dataset.read_image(index, &mut whole)?;
    let size = [stored.width as u32, stored.height as u32];
    View::Crop(choose(size)).apply(&whole, size, shape.dims(), pixels);
    Ok(())
}

impl fmt::Debug for dyn ImageDataset {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ImageDataset")
            .field("name", &self.name())
            .field("len", &self.len())
            .field("image_shape", &self.image_shape())
            .field("num_classes", &self.class_names().len())
            .finish()
    }
}

/// The splits of a data set, which share the image shape and the classes.
#[derive(Clone, Debug)]
pub struct DatasetSplits {
    /// Samples for training.
    pub train: Arc<dyn ImageDataset>,
    /// Samples for the comparison of epochs and settings, if the data set has them.
    pub val: Option<Arc<dyn ImageDataset>>,
    /// Samples for the measurement of the result, if the data set has them.
    pub test: Option<Arc<dyn ImageDataset>>,
    /// Normalisation of pixels to about zero mean and unit variance.
    pub normalization: Normalization,
    /// Warnings about existing splits that were not opened, such as a split without labels. One
    /// sentence each.
    pub notes: Vec<String>,
}

impl DatasetSplits {
    /// Returns the splits of a data set without a validation split.
    pub fn of_two(
        train: Arc<dyn ImageDataset>,
        test: Arc<dyn ImageDataset>,
        normalization: Normalization,
    ) -> Self {
        Self {
            train,
            val: None,
            test: Some(test),
            normalization,
            notes: Vec::new(),
        }
    }

    /// Returns the split with this name.
    pub fn get(&self, split: Split) -> Option<&Arc<dyn ImageDataset>> {
        match split {
            Split::Train => Some(&self.train),
            Split::Val => self.val.as_ref(),
            Split::Test => self.test.as_ref(),
        }
    }

    /// Returns the split for the comparison of epochs: the validation split, or the test split
    /// without one. `None` if there is neither.
    pub fn evaluated(&self) -> Option<&Arc<dyn ImageDataset>> {
        self.val.as_ref().or(self.test.as_ref())
    }
}

/// Mean and standard deviation of each channel, for pixels scaled to 0..1.
#[derive(Clone, Debug, PartialEq)]
pub struct Normalization {
    /// Mean of each channel.
    pub mean: Vec<f32>,
    /// Standard deviation of each channel, above 0.
    pub std: Vec<f32>,
}

impl Normalization {
    /// Returns the statistics of ImageNet's RGB pixels, which published weights assume.
    pub fn imagenet() -> Self {
        Self {
            mean: vec![0.485, 0.456, 0.406],
            std: vec![0.229, 0.224, 0.225],
        }
    }

    /// Returns mean and standard deviation of uniformly random pixels: 1/2 and 1/sqrt(12).
    pub fn uniform(channels: usize) -> Self {
        Self {
            mean: vec![0.5; channels],
            std: vec![0.288_675_13; channels],
        }
    }
}
