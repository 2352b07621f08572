//! The images of a split and how they become batches.
//!
//! In: an [`ImageDataset`], augmentation and normalisation. Out: [`HostBatch`]es with normalised or
//! raw pixels.
//! Invariant: the pixels of a sample depend on its draw only.

use std::fmt;
use std::sync::Arc;

use crate::augment::{Augment, ImageShift};
use crate::batch::{HostBatch, MixedLabels, Pixels, RawPixels};
use crate::dataset::{DatasetSplits, ImageDataset, ImageShape, Normalization};
use crate::distort::Distortion;
use crate::error::DatasetError;
use crate::mix::{Mix, Mixture};
use crate::normalize::NormalizationTable;
use crate::samples::{Draw, Draws, Samples, Splits};
use crate::shard::{ShardConfig, ShardPlan};

/// The images of a split and how they become batches.
#[derive(Clone, Debug)]
pub struct ImageSamples {
    /// The images.
    pub dataset: Arc<dyn ImageDataset>,
    /// Mean and standard deviation of each channel.
    pub normalization: Normalization,
    /// Augmentation. `None` for testing.
    pub augment: Augment,
    /// Further random changes. None for testing. No erasing for raw pixels.
    pub distortion: Distortion,
    /// Mixing of two images. No mixing for testing or for raw pixels.
    pub mix: Mix,
    /// Height and width of the images by epoch, only for resized crops. `None` for the shape of the
    /// data set.
    pub side: Option<SideOfEpoch>,
    /// True if the device crops, flips and normalises the pixels.
    pub raw: bool,
    /// Weight of each class in the mean loss. Empty without weights.
    pub class_weights: Vec<f64>,
    /// True for the order of [`ShardPlan::balanced`].
    pub is_balanced: bool,
}

/// Height and width of the images of an epoch, pixels.
#[derive(Clone)]
pub struct SideOfEpoch(pub Arc<dyn Fn(u64) -> usize + Send + Sync>);

impl fmt::Debug for SideOfEpoch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("SideOfEpoch")
    }
}

impl ImageSamples {
    /// Returns images without augmentation, normalised on the host.
    pub fn new(dataset: Arc<dyn ImageDataset>, normalization: Normalization) -> Self {
        Self {
            dataset,
            normalization,
            augment: Augment::None,
            distortion: Distortion::default(),
            mix: Mix::default(),
            side: None,
            raw: false,
            class_weights: Vec::new(),
            is_balanced: false,
        }
    }

    /// Returns the splits of a data set without augmentation. `raw` is true if the device crops,
    /// flips and normalises the pixels.
    pub fn splits(data: DatasetSplits, raw: bool) -> Splits<Self> {
        let of = |dataset| {
            Arc::new(Self {
                raw,
                ..Self::new(dataset, data.normalization.clone())
            })
        };
        Splits {
            train: of(data.train),
            val: data.val.map(of),
            test: data.test.map(of),
            notes: data.notes,
        }
    }

    /// Returns the shape of the images in an epoch.
    ///
    /// # Panics
    /// If it differs from the data set's without resized crops.
    pub fn shape(&self, epoch: u64) -> ImageShape {
        let stored = self.dataset.image_shape();
        let Some(SideOfEpoch(side)) = &self.side else {
            return stored;
        };
        let side = side(epoch);
        let shape = ImageShape {
            height: side,
            width: side,
            ..stored
        };
        assert!(
            shape == stored || matches!(self.augment, Augment::ResizedCrop(_) | Augment::Rand(..)),
            "side: expected that of {stored} without resized crops, got {side}"
        );
        shape
    }

    fn label(&self, index: usize) -> u32 {
        self.dataset.label(index) as u32
    }
}

impl Samples for ImageSamples {
    type Batch = HostBatch;

    fn name(&self) -> &str {
        self.dataset.name()
    }

    fn len(&self) -> usize {
        self.dataset.len()
    }

    fn checksum(&self) -> String {
        self.dataset.checksum()
    }

    /// # Panics
    /// If raw pixels are to be mixed or erased, or the normalisation is for another number of
    /// channels.
    fn batch(&self, draws: &Draws<'_>) -> Result<HostBatch, DatasetError> {
        assert!(
            !self.raw || (self.mix == Mix::default() && self.distortion.erasing == 0.0),
            "mix, erasing: expected normalised pixels, got raw ones"
        );
        Reader {
            samples: self,
            table: Arc::new(NormalizationTable::new(&self.normalization)),
            shape: self.shape(draws.epoch),
        }
        .batch(draws)
    }

    /// A mixed image has two classes, and the mean is over the samples, as PyTorch's over class
    /// probabilities is.
    fn weight(&self, draw: Draw) -> f64 {
        if self.class_weights.is_empty() || self.mix != Mix::default() {
            return 1.0;
        }
        self.class_weights[self.dataset.label(draw.index)]
    }

    fn plan(&self, config: ShardConfig) -> Result<ShardPlan, DatasetError> {
        match self.is_balanced {
            true => ShardPlan::balanced(config, &*self.dataset),
            false => ShardPlan::new(config),
        }
    }

    fn notes(&self) -> &[String] {
        self.dataset.notes()
    }

    fn checksum_reads_files(&self) -> bool {
        self.dataset.checksum_reads_files()
    }

    fn adopt_checksum(&self, checksum: &str) {
        self.dataset.adopt_checksum(checksum);
    }
}

/// The images of an epoch.
struct Reader<'a> {
    samples: &'a ImageSamples,
    table: Arc<NormalizationTable>,
    shape: ImageShape,
}

impl Reader<'_> {
    fn batch(&self, draws: &Draws<'_>) -> Result<HostBatch, DatasetError> {
        let samples = self.samples;
        let shape = self.shape;
        assert_eq!(
            self.table.num_channels(),
            shape.channels,
            "channels of normalisation and data set"
        );
        let len = shape.num_values();
        let mixtures: Vec<Mixture> = draws.iter().filter_map(|draw| self.mixture(draw)).collect();
        let mut pixels = match samples.raw {
            true => {
                let shifts = draws.iter().map(|draw| self.shift(draw)).collect();
                Pixels::Raw(RawPixels::black(shifts, shape, Arc::clone(&self.table)))
            }
            false => Pixels::Normalised(vec![0.0; draws.len() * len]),
        };
        let mut bytes = vec![0; len];
        let mut other = vec![0.0; if mixtures.is_empty() { 0 } else { len }];
        for (position, draw) in draws.iter().enumerate() {
            if draws.is_stopped() {
                break;
            }
            let values = position * len..(position + 1) * len;
            match &mut pixels {
                Pixels::Raw(raw) => self.read(draw, &mut raw.bytes[values])?,
                Pixels::Normalised(pixels) => {
                    let image = &mut pixels[values];
                    self.read_normalised(draw, &mut bytes, image)?;
                    if let Some(mixture) = mixtures.get(position) {
                        let partner = Draw {
                            index: mixture.other % samples.len(),
                            number: mixture.other,
                            ..draw
                        };
                        self.read_normalised(partner, &mut bytes, &mut other)?;
                        mixture.apply(image, &other, shape);
                    }
                }
            }
        }
        let indices: Vec<usize> = draws.iter().map(|draw| draw.index).collect();
        let labels = indices.iter().map(|index| samples.label(*index)).collect();
        let mixed = (!mixtures.is_empty()).then(|| MixedLabels {
            labels: mixtures
                .iter()
                .map(|mixture| samples.label(mixture.other))
                .collect(),
            shares: mixtures.iter().map(|mixture| mixture.share).collect(),
        });
        Ok(HostBatch {
            pixels,
            labels,
            mixed,
            indices,
            shape,
        })
    }

    /// Returns the mixture of a sample. `None` without mixing.
    fn mixture(&self, draw: Draw) -> Option<Mixture> {
        let len = self.samples.len();
        let mix = self.samples.mix;
        mix.draw(draw.seed, draw.epoch, draw.number, len, self.shape)
    }

    /// Reads one image, cropped, flipped and normalised. `bytes` is scratch memory.
    fn read_normalised(
        &self,
        draw: Draw,
        bytes: &mut [u8],
        output: &mut [f32],
    ) -> Result<(), DatasetError> {
        self.read(draw, bytes)?;
        self.table
            .apply(bytes, self.shape, self.shift(draw), output);
        let of_draw = (draw.seed, draw.epoch, draw.number);
        self.samples.distortion.erase(of_draw, output, self.shape);
        Ok(())
    }

    /// Reads one image with its changes of pixel values.
    fn read(&self, draw: Draw, bytes: &mut [u8]) -> Result<(), DatasetError> {
        let of_draw = (draw.seed, draw.epoch, draw.number);
        self.samples.augment.read(
            of_draw,
            &*self.samples.dataset,
            self.shape,
            &self.samples.normalization,
            bytes,
        )?;
        self.samples.distortion.apply(of_draw, bytes, self.shape);
        Ok(())
    }

    fn shift(&self, draw: Draw) -> ImageShift {
        self.samples
            .augment
            .draw(draw.seed, draw.epoch, draw.number)
    }
}
