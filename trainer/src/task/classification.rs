//! Classification of images, the task of the built-in models.
//!
//! In: a [`ModelFamily`], labelled images. Out: logits `[N, K]`, losses, top-1 and top-5 accuracy.
//! Invariant: the loss of evaluations has neither label smoothing nor class weights.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use anyhow::{Result, bail};
use burn::optim::ModuleOptimizer;
use burn::tensor::{Device, Tensor};
use datasets::{
    DatasetSplits, DeviceBatch, ImageSamples, ImageShape, Mix, Picture, SideOfEpoch, Splits,
    SyntheticConfig, picture, synthetic,
};

use super::{Goal, ModelInput, Opening, Purpose, Scores, Setup, Task};
use crate::config::choices::Resolution;
use crate::config::{
    BenchConfig, ComputeSection, ConfigError, InputKind, LossChoice, ModelOption, SamplerKind,
    TrainConfig, TrainSplitSection,
};
use crate::measure::metrics::ScoreSums;
use crate::model::data::{self, OpenedSplit};
use crate::model::family::{ModelFamily, ModelRequest};
use crate::model::loss::{self, Loss};
use crate::model::metric::Metric;
use crate::model::{ImageClassifier, answer, count_correct, expect_logits};

/// Limit of the images shown of a batch.
const MOST_IMAGES: usize = 64;

/// Classification of images by the models of `F`.
pub struct Classification<F> {
    loss: Arc<dyn Loss>,
    /// True if the family replaces the configured loss.
    has_own_loss: bool,
    metrics: Vec<Arc<dyn Metric>>,
    /// The classes of a training, as the head of the log shows them.
    classes: Option<String>,
    num_classes: usize,
    in_channels: usize,
    /// Heights and widths of the images, those of evaluations first.
    image_sizes: Vec<[usize; 2]>,
    family: PhantomData<fn() -> F>,
}

impl<F> fmt::Debug for Classification<F> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Classification")
            .field("loss", &self.loss)
            .field("metrics", &self.metrics)
            .finish_non_exhaustive()
    }
}

impl<F: ModelFamily> Default for Classification<F> {
    /// Returns the task with cross entropy.
    fn default() -> Self {
        Self::with(Arc::new(loss::CrossEntropy::default()), Vec::new())
    }
}

impl<F: ModelFamily> Classification<F> {
    /// Returns the task with this loss and these metrics.
    pub fn with(loss: Arc<dyn Loss>, metrics: Vec<Arc<dyn Metric>>) -> Self {
        Self {
            loss,
            has_own_loss: false,
            metrics,
            classes: None,
            num_classes: 0,
            in_channels: 0,
            image_sizes: Vec::new(),
            family: PhantomData,
        }
    }
}

impl<F: ModelFamily> Task for Classification<F> {
    const NAME: &'static str = F::NAME;
    const OPTIONS: &'static [ModelOption] = F::OPTIONS;
    const HAS_IMAGES: bool = true;
    type Args = F::Args;
    type Model = F::Model;
    type Samples = ImageSamples;
    type Outputs = Tensor<2>;

    fn fill(args: &mut F::Args) -> Result<(), ConfigError> {
        F::fill(args)
    }

    fn name(args: &F::Args) -> String {
        F::name(args)
    }

    fn open(args: &F::Args, opening: &Opening<'_>) -> Result<Splits<ImageSamples>> {
        match opening.purpose {
            Purpose::Train(config) => {
                let data = data::open(
                    &config.data,
                    &config.train_split,
                    config.run.seed,
                    || F::dataset(args),
                    opening.communicator,
                    opening.reporter,
                )?;
                training(config, data)
            }
            Purpose::Eval(_) => bail!("open: expected one split of an evaluation"),
            Purpose::Bench(config) => {
                let num_ranks = opening.communicator.world_size();
                let side = config.image_size;
                let data = synthetic::open(&SyntheticConfig {
                    num_train: BenchConfig::NUM_BATCHES * config.samples_per_rank() * num_ranks,
                    num_test: 1,
                    num_classes: config.num_classes,
                    shape: ImageShape {
                        height: side,
                        width: side,
                        channels: 3,
                    },
                    seed: config.seed,
                })?;
                Ok(ImageSamples::splits(data, is_raw(config.compute.input)))
            }
        }
    }

    fn open_split(
        args: &F::Args,
        name: &str,
        input: Option<&ModelInput>,
        opening: &Opening<'_>,
    ) -> Result<Option<Arc<ImageSamples>>> {
        let Purpose::Eval(config) = opening.purpose else {
            bail!("open_split: expected an evaluation")
        };
        // Without class names, labels are compared by position.
        let classes = input
            .filter(|_| !config.allow_changed_classes)
            .map(|input| &input.class_names[..]);
        let opened = data::open_split(
            config,
            || F::dataset(args),
            name,
            classes,
            opening.communicator,
            opening.reporter,
        )?;
        Ok(opened.map(
            |OpenedSplit {
                 samples,
                 normalization,
             }| {
                // The network was trained with the normalisation of `input`.
                let of_training = input
                    .filter(|_| !config.replaces_normalization)
                    .map(ModelInput::normalization);
                Arc::new(ImageSamples {
                    raw: is_raw(config.compute.input),
                    ..ImageSamples::new(samples, of_training.unwrap_or(normalization))
                })
            },
        ))
    }

    fn new(args: &F::Args, setup: &Setup<'_, ImageSamples>) -> Result<Self> {
        let num_classes = match setup.input {
            Some(input) => input.class_names.len(),
            None => setup.samples.dataset.class_names().len(),
        };
        let metrics = F::metrics(args, num_classes);
        let shape = setup.samples.dataset.image_shape();
        let with = |loss, data| Self {
            num_classes,
            in_channels: shape.channels,
            image_sizes: data::image_sizes(data, shape),
            ..Self::with(loss, metrics)
        };
        let config = match setup.purpose {
            Purpose::Train(config) => config,
            Purpose::Eval(config) => {
                let configured = loss::cross_entropy(&config.compute);
                return Ok(with(F::loss(args, configured), None));
            }
            Purpose::Bench(config) => {
                return Ok(with(loss::cross_entropy(&config.compute), None));
            }
        };
        let class_weights = &setup.samples.class_weights;
        let configured = loss::configured(
            &config.optimizer.loss,
            Some(&**class_weights).filter(|weights| !weights.is_empty()),
            &config.compute,
        );
        let loss = F::loss(args, Arc::clone(&configured));
        let is_used = Arc::strong_count(&configured) > 1;
        let takes_mixed = || loss::takes_mixed_targets(&*loss, num_classes, setup.device);
        expect_options_of_loss::<F>(config, is_used, takes_mixed)?;
        let has_own_loss = !Arc::ptr_eq(&loss, &configured);
        Ok(Self {
            has_own_loss,
            classes: Some(data::class_list(&*setup.samples.dataset, class_weights)),
            ..with(loss, Some(&config.data))
        })
    }

    fn request<'a>(&'a self, compute: &'a ComputeSection, device: &'a Device) -> ModelRequest<'a> {
        ModelRequest {
            in_channels: self.in_channels,
            image_sizes: &self.image_sizes,
            ..ModelRequest::new(self.num_classes, compute, device)
        }
    }

    fn build(&self, args: &F::Args, request: &ModelRequest<'_>) -> Result<F::Model> {
        F::build(args, request)
    }

    fn num_values(&self, args: &F::Args, request: &ModelRequest<'_>) -> Result<Option<u64>> {
        F::num_values(args, request)
    }

    fn optimizer(args: &F::Args) -> Option<ModuleOptimizer> {
        F::optimizer(args)
    }

    fn forward(&self, model: &F::Model, batch: &DeviceBatch) -> Result<Tensor<2>> {
        let images = batch.clone().into_images().images;
        expect_logits(model.forward(images), &batch.labels)
    }

    fn loss_sum(&self, logits: &Tensor<2>, batch: &DeviceBatch) -> Tensor<1> {
        self.loss.sum(logits.clone(), batch.targets().clone())
    }

    fn test_loss_sum(&self, logits: &Tensor<2>, batch: &DeviceBatch) -> Tensor<1> {
        self.loss
            .test_sum(logits.clone(), batch.targets().labels.clone())
    }

    /// Top-1 accuracy, or the loss if the family has its own loss.
    fn goal(&self) -> Goal {
        if self.has_own_loss {
            Goal::min("loss")
        } else {
            Goal::max("top1")
        }
    }

    fn supports_pass_context(&self, model: &F::Model) -> bool {
        model.supports_pass_context()
    }

    fn is_recordable(&self, model: &F::Model) -> bool {
        model.is_recordable() && self.loss.is_recordable()
    }

    fn ranked_figures(&self) -> BTreeMap<String, bool> {
        let own = self.metrics.iter();
        let own = own.map(|metric| (metric.name(), metric.lower_is_better()));
        own.chain([("top1".to_owned(), false)]).collect()
    }

    /// The logits.
    fn to_read(&self, logits: &Tensor<2>, _batch: &DeviceBatch) -> Vec<Tensor<1>> {
        vec![logits.clone().flatten(0, 1)]
    }

    fn score(&self, read: &[Vec<f32>], labels: &[u32], Scores { sums, answers }: &mut Scores) {
        let [logits] = read else { return };
        let num_classes = logits.len() / labels.len().max(1);
        let (top1, top5) = count_correct(logits, labels, num_classes);
        sums.add("top1_correct", top1 as f64);
        sums.add("top5_correct", top5 as f64);
        let Some(answers) = answers else { return };
        for metric in &self.metrics {
            let mut own = vec![0.0; metric.num_sums()];
            for (row, label) in logits.chunks_exact(num_classes).zip(labels) {
                metric.add(row, *label, &mut own);
            }
            for (index, sum) in own.into_iter().enumerate() {
                sums.add_to(&metric.name(), index, sum);
            }
        }
        for (row, &label) in logits.chunks_exact(num_classes).zip(labels) {
            *answers.entry((label, answer(row, label))).or_default() += 1;
        }
    }

    fn figures(&self, sums: &ScoreSums) -> BTreeMap<String, f64> {
        let mut figures = BTreeMap::new();
        for metric in &self.metrics {
            let own = sums.of_metric(&metric.name());
            if own.len() == metric.num_sums() && sums.num_samples > 0 {
                figures.insert(metric.name(), metric.value(&own));
            }
        }
        figures
    }

    fn input(train: &ImageSamples, evaluated: &ImageSamples) -> Option<ModelInput> {
        Some(ModelInput::of(train, evaluated))
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        let classes = self.classes.clone();
        classes.map(|list| ("classes", list)).into_iter().collect()
    }

    /// The size of the images, if it changes with the epoch.
    fn note_of_epoch(samples: &ImageSamples, epoch: u64) -> Option<String> {
        let ImageShape { height, width, .. } = samples.shape(epoch);
        samples
            .side
            .as_ref()
            .map(|_| format!("images of {height} x {width} pixels"))
    }

    /// The first images, as the model sees them.
    fn picture(samples: &ImageSamples, batch: &DeviceBatch) -> Option<Picture> {
        let images = batch.clone().into_images().images;
        let [number, height, width, channels] = images.dims();
        let shape = ImageShape {
            height,
            width,
            channels,
        };
        let num_pixels = number.min(MOST_IMAGES) * height * width * channels;
        let pixels = images.into_data().convert::<f32>();
        let pixels = pixels.as_slice().ok()?;
        picture(&pixels[..num_pixels], shape, &samples.normalization)
    }
}

fn is_raw(input: InputKind) -> bool {
    input == InputKind::Device
}

/// Returns splits for training.
fn training(config: &TrainConfig, data: DatasetSplits) -> Result<Splits<ImageSamples>> {
    let class_weights = data::class_weights(config, &*data.train)?;
    let plain = ImageSamples::splits(data, is_raw(config.compute.input));
    let TrainSplitSection { mixup, cutmix, .. } = config.train_split;
    let epochs = config.schedule.planned_epochs();
    let resolution = config.data.resolution().cloned();
    let resolution = resolution.filter(Resolution::varies);
    let side = resolution
        .map(|resolution| SideOfEpoch(Arc::new(move |epoch| resolution.in_epoch(epoch, epochs))));
    let train = ImageSamples {
        augment: data::augment(&config.train_split),
        distortion: data::distortion(&config.train_split),
        mix: Mix { mixup, cutmix },
        side,
        class_weights,
        is_balanced: config.train_split.sampler == Some(SamplerKind::Balanced),
        ..ImageSamples::clone(&plain.train)
    };
    Ok(Splits {
        train: Arc::new(train),
        ..plain
    })
}

/// Checks that a custom loss uses the options of losses, and mixed images. `is_configured`: the
/// loss uses the configured loss.
///
/// # Errors
/// If an option would have no effect on a custom loss.
fn expect_options_of_loss<F: ModelFamily>(
    config: &TrainConfig,
    is_configured: bool,
    takes_mixed: impl FnOnce() -> bool,
) -> Result<()> {
    let custom = format!("the custom loss of the model family {}", F::NAME);
    let of_loss = match &config.optimizer.loss {
        LossChoice::BinaryCrossEntropy => Some("--loss"),
        LossChoice::CrossEntropy {
            label_smoothing, ..
        } if *label_smoothing != 0.0 => Some("--label-smoothing"),
        LossChoice::CrossEntropy { class_weights, .. } => {
            class_weights.as_ref().map(|_| "--class-weights")
        }
    };
    if let Some(option) = of_loss
        && !is_configured
    {
        bail!(
            "{option}: no effect, since {custom} does not use the configured one. Remove {option}, or wrap \
             the loss that `ModelFamily::loss` is given"
        );
    }
    let split = &config.train_split;
    let mixing = [("--mixup", split.mixup), ("--cutmix", split.cutmix)];
    if let Some((option, _)) = mixing.iter().find(|(_, alpha)| alpha.is_some())
        && !takes_mixed()
    {
        bail!(
            "{option}: {custom} ignores `Targets::mixed`, so mixed images would count as their first class. \
             Remove {option}, or use both classes in the loss"
        );
    }
    Ok(())
}
