//! Interface of a data set: [`ImageDataset`], [`DatasetSplits`] and [`Normalization`].
//!
//! Invariant: all images are u8 `[H, W, C]` of one shape. Samples are addressed by index and never
//! change.

use std::fmt;
use std::sync::Arc;

use crate::error::DatasetError;
use crate::resize::{CropBox, View};
use crate::split::Split;

/// The shape of every image of a data set: u8 pixels `[H, W, C]`.
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

    /// H, W and C.
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

/// A set of labelled images of one shape, readable from several threads at once.
pub trait ImageDataset: Send + Sync {
    /// Returns the name for logs and manifests, with the split: "cifar-10 train".
    fn name(&self) -> &str;

    /// Returns the number of samples; never 0.
    fn len(&self) -> usize;

    /// Returns true if there are no samples: never, since opening an empty data set is an error.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the shape of every image.
    fn image_shape(&self) -> ImageShape;

    /// Returns the names of the classes in label order; their number is the number of classes.
    fn class_names(&self) -> &[String];

    /// Returns the class of a sample, an index into `class_names`.
    ///
    /// # Panics
    /// If `index` is not below `len`.
    fn label(&self, index: usize) -> usize;

    /// Writes a sample's pixels.
    ///
    /// # Shapes
    /// `pixels`: `[H, W, C]` of `image_shape`.
    ///
    /// # Errors
    /// If the sample is decoded on demand and its file cannot be read or decoded; the error names
    /// the path.
    ///
    /// # Panics
    /// If `index` is not below `len` or `pixels` has another length than the image.
    fn read_image(&self, index: usize, pixels: &mut [u8]) -> Result<(), DatasetError>;

    /// Writes the pixels of a part of a sample's image, brought to `shape`, which has the channels
    /// of every image.
    ///
    /// `choose` is given the width and height of the image that parts are cut of: as it is stored,
    /// where images are kept at their own size, else `image_shape`'s.
    ///
    /// # Shapes
    /// `pixels`: `[H, W, C]` of `shape`.
    ///
    /// # Errors
    /// As [`read_image`](Self::read_image).
    ///
    /// # Panics
    /// As [`read_image`](Self::read_image), and if the part does not lie within the image.
    fn read_crop(
        &self,
        index: usize,
        choose: &dyn Fn([u32; 2]) -> CropBox,
        shape: ImageShape,
        pixels: &mut [u8],
    ) -> Result<(), DatasetError> {
        crop_of_whole(self, index, choose, shape, pixels)
    }

    /// Returns the data's identity, a sha256 in hex over shape, labels and pixels, or over labels,
    /// names and bytes of image files.
    ///
    /// It is computed at the first call and may read the whole data set.
    fn checksum(&self) -> String;

    /// Returns true if the next [`checksum`](Self::checksum) would read files.
    fn checksum_reads_files(&self) -> bool {
        false
    }

    /// Takes over the checksum that another process on the same files has computed; nothing where
    /// it is known already.
    fn adopt_checksum(&self, checksum: &str) {
        let _ = checksum;
    }

    /// Warnings and facts for the log, one sentence each; none by default.
    fn notes(&self) -> &[String] {
        &[]
    }
}

/// As [`ImageDataset::read_crop`], of images that are kept in one shape.
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

/// The splits of a data set, which share image shape and classes.
#[derive(Clone, Debug)]
pub struct DatasetSplits {
    /// The samples to learn from.
    pub train: Arc<dyn ImageDataset>,
    /// The samples to compare epochs and settings by, if the data set has them.
    pub val: Option<Arc<dyn ImageDataset>>,
    /// The samples to measure the result by, if the data set has them.
    pub test: Option<Arc<dyn ImageDataset>>,
    /// Normalisation of pixels to about zero mean and unit variance.
    pub normalization: Normalization,
    /// Warnings about splits that are there and not opened, such as one without labels; one
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

    /// Returns the split by that name.
    pub fn get(&self, split: Split) -> Option<&Arc<dyn ImageDataset>> {
        match split {
            Split::Train => Some(&self.train),
            Split::Val => self.val.as_ref(),
            Split::Test => self.test.as_ref(),
        }
    }

    /// Returns the split that epochs are compared by: the validation split, else the test split;
    /// `None` if there is neither.
    pub fn evaluated(&self) -> Option<&Arc<dyn ImageDataset>> {
        self.val.as_ref().or(self.test.as_ref())
    }
}

/// Mean and standard deviation of each channel, of pixels scaled to 0..1.
#[derive(Clone, Debug, PartialEq)]
pub struct Normalization {
    /// One mean a channel.
    pub mean: Vec<f32>,
    /// One standard deviation a channel, above 0.
    pub std: Vec<f32>,
}

impl Normalization {
    /// Returns the statistics of ImageNet's RGB pixels, which published weights expect.
    pub fn imagenet() -> Self {
        Self {
            mean: vec![0.485, 0.456, 0.406],
            std: vec![0.229, 0.224, 0.225],
        }
    }

    /// Mean and standard deviation of uniformly random pixels: 1/2 and 1/sqrt(12).
    pub fn uniform(channels: usize) -> Self {
        Self {
            mean: vec![0.5; channels],
            std: vec![0.288_675_13; channels],
        }
    }
}
