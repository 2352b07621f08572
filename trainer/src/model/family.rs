//! A model family: the interface for training, evaluation, prediction and measurement of its
//! models.
//!
//! In: the family's flags, a request for a model. Out: a model on a device.
//! Invariant: a model that exceeds its weights file is not made, if its family knows the size.

use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use burn::optim::ModuleOptimizer;
use burn::tensor::Device;
use clap::Args;
use datasets::DatasetSplits;
use distributed::replica::draw_seed;
use layers::backend::Computation;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::config::ComputeSection;
use crate::config::{ConfigError, ModelOption};
use crate::model::ImageClassifier;
use crate::model::loss::Loss;
use crate::model::metric::Metric;

/// A request for a model.
#[derive(Clone, Debug)]
pub struct ModelRequest<'a> {
    /// Number of classes.
    pub num_classes: usize,
    /// Channels of the images.
    pub in_channels: usize,
    /// Heights and widths of the images; several if they change during training. The first is that
    /// of evaluations.
    pub image_sizes: &'a [[usize; 2]],
    /// Seed of the weights and of burn's random numbers.
    pub seed: u64,
    /// True if the last normalisation of every block starts at zero, for families with
    /// [`ModelOption::ZeroGamma`].
    pub zero_gamma: bool,
    /// Options of computation that the family supports.
    pub compute: &'a ComputeSection,
    /// Device of the parameters: an autodiff device for training.
    pub device: &'a Device,
}

impl<'a> ModelRequest<'a> {
    /// Returns a request for images of 32 x 32 pixels and three channels, with seed 0.
    pub fn new(num_classes: usize, compute: &'a ComputeSection, device: &'a Device) -> Self {
        Self {
            num_classes,
            in_channels: 3,
            image_sizes: &[[32, 32]],
            seed: 0,
            zero_gamma: false,
            compute,
            device,
        }
    }

    /// Returns the computation of the layers, for the [`PassContext`](layers::PassContext) that a
    /// model of crate `layers` sets around its forward pass.
    ///
    /// # Errors
    /// If this CPU lacks the instruction set.
    pub fn computation(&self) -> Result<Computation, ConfigError> {
        self.compute.computation()
    }
}

/// Models that share their flags. [`program`](crate::commands::program::program) is the program of
/// one family.
pub trait ModelFamily: 'static {
    /// Name in checkpoints: letters, digits, `-`, `_` and `.`. Only programs of the same family
    /// read these checkpoints.
    const NAME: &'static str;

    /// General options that [`build`](Self::build) supports; the program rejects the others.
    const OPTIONS: &'static [ModelOption] = &[];

    /// Flags of the family, each an `Option`. A flag that was not typed keeps the value of the TOML
    /// file. In section `[model]` of the file, each key is the name of a flag (`#[serde(default,
    /// deny_unknown_fields, rename_all = "kebab-case")]`).
    /// [`program`](crate::commands::program::program) rejects a flag or field with the name of a
    /// general one.
    type Args: Args + Default + Debug + Serialize + DeserializeOwned;

    /// Model to train.
    type Model: ImageClassifier;

    /// Applies defaults to the flags that were not typed. Default: nothing.
    ///
    /// # Errors
    /// A [`ConfigError`] that names the flag, if there is no such model.
    fn fill(_args: &mut Self::Args) -> Result<(), ConfigError> {
        Ok(())
    }

    /// Returns the name of a model in run directories and reports. Default: the name of the family.
    fn name(_args: &Self::Args) -> String {
        Self::NAME.to_owned()
    }

    /// Returns the number of values of the model, if known without making the model. A weights file
    /// with fewer bytes is rejected before memory is allocated. Default: `None`.
    ///
    /// # Errors
    /// If there is no such model.
    fn num_values(_args: &Self::Args, _request: &ModelRequest<'_>) -> Result<Option<u64>> {
        Ok(None)
    }

    /// Returns the optimizer of `--optimizer custom`. It updates at the learning rate of the
    /// schedule. Default: `None`.
    fn optimizer(_args: &Self::Args) -> Option<ModuleOptimizer> {
        None
    }

    /// Returns the data set of `--dataset custom`. Default: `None`.
    ///
    /// # Errors
    /// If the data set cannot be opened.
    fn dataset(_args: &Self::Args) -> Result<Option<DatasetSplits>> {
        Ok(None)
    }

    /// Returns the training loss. Default: `configured`, the loss of `--loss` and
    /// `--label-smoothing`.
    fn loss(_args: &Self::Args, configured: Arc<dyn Loss>) -> Arc<dyn Loss> {
        configured
    }

    /// Returns metrics of evaluations besides loss, top-1 and top-5. Default: none.
    fn metrics(_args: &Self::Args, _num_classes: usize) -> Vec<Arc<dyn Metric>> {
        Vec::new()
    }

    /// Returns the model with its initial weights, from flags with defaults applied.
    ///
    /// # Errors
    /// If there is no such model.
    fn build(args: &Self::Args, request: &ModelRequest<'_>) -> Result<Self::Model>;
}

/// Lock for burn's random numbers: a process has one stream, which ranks in threads share.
pub(crate) static DRAWING: Mutex<()> = Mutex::new(());

/// Seeds burn's random numbers for a step. The draws of a model, such as dropout, differ between
/// ranks and steps, and are equal after a resume.
pub fn seed_draws(device: &Device, (seed, rank): (u64, usize), step: u64) {
    let _turn = DRAWING.lock().unwrap_or_else(PoisonError::into_inner);
    device.seed(draw_seed(seed, rank, step));
}
