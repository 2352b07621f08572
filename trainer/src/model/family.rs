//! A model family: what a program needs to know of its models to train, evaluate, apply and measure
//! them.
//!
//! In: the family's flags, what a model is made for. Out: a model on a device.
//! Invariant: a model that its weights file cannot hold is not made, if its family knows the size.

use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use burn::optim::ModuleOptimizer;
use burn::tensor::Device;
use clap::Args;
use datasets::DatasetSplits;
use distributed::replica::{ParameterLayout, draw_seed};
use layers::backend::Computation;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::config::ComputeSection;
use crate::config::cli::ModelSection;
use crate::config::{ConfigError, Family, ModelOption, decided, instruction_set};
use crate::model::ImageClassifier;
use crate::model::loss::Loss;
use crate::model::metric::Metric;

/// The request for a model.
#[derive(Clone, Debug)]
pub struct ModelRequest<'a> {
    /// Number of classes.
    pub num_classes: usize,
    /// Channels of the images.
    pub in_channels: usize,
    /// Seed of the weights. burn's random numbers are seeded with it, too.
    pub seed: u64,
    /// Start the last normalisation of every block at zero, for families with
    /// [`ModelOption::ZeroGamma`].
    pub zero_gamma: bool,
    /// Options of computation that the family supports.
    pub compute: &'a ComputeSection,
    /// Device of the parameters: an autodiff device for training.
    pub device: &'a Device,
}

impl<'a> ModelRequest<'a> {
    /// Returns a request for images of three channels, with seed 0.
    pub fn new(num_classes: usize, compute: &'a ComputeSection, device: &'a Device) -> Self {
        Self {
            num_classes,
            in_channels: 3,
            seed: 0,
            zero_gamma: false,
            compute,
            device,
        }
    }

    /// Returns how the layers are computed, for the [`PassContext`](layers::PassContext) that a
    /// model of crate `layers` sets around its forward pass.
    ///
    /// # Errors
    /// When this processor lacks the instruction set.
    pub fn computation(&self) -> Result<Computation, ConfigError> {
        let compute = self.compute;
        Ok(Computation {
            kernels: compute.kernels(),
            convolution: compute.convolution.unwrap_or_default(),
            recompute: compute.recompute.unwrap_or_default(),
            isa: instruction_set(compute.cpu)?,
            activations: compute.dtype(),
        })
    }
}

/// Models that share their flags. [`program`](crate::commands::program::program) is the program of
/// one family.
pub trait ModelFamily {
    /// Name in checkpoints, which only programs of the same family read: letters, digits, `-`, `_`
    /// and `.`.
    const NAME: &'static str;

    /// The general options that [`build`](Self::build) respects; the program rejects the others.
    const OPTIONS: &'static [ModelOption] = &[];

    /// Flags of the family, each an `Option`: a flag that was not typed leaves the value of a TOML
    /// file, in whose section `[model]` it has the name of the flag (`#[serde(default,
    /// deny_unknown_fields, rename_all = "kebab-case")]`). A flag or field with the name of a
    /// general one is rejected by [`program`](crate::commands::program::program).
    type Args: Args + Default + Debug + Serialize + DeserializeOwned;

    /// The model that is trained.
    type Model: ImageClassifier;

    /// Applies defaults to the flags that were not typed. Default: nothing.
    ///
    /// # Errors
    /// A [`ConfigError`] that names the flag, if there is no such model.
    fn fill(_args: &mut Self::Args) -> Result<(), ConfigError> {
        Ok(())
    }

    /// Returns the name of a model in run directories and reports. Default: that of the family.
    fn name(_args: &Self::Args) -> String {
        Self::NAME.to_owned()
    }

    /// Returns the number of values of the model, if known without making it: a weights file with
    /// fewer bytes is rejected before memory is allocated. Default: `None`.
    ///
    /// # Errors
    /// When there is no such model.
    fn num_values(_args: &Self::Args, _request: &ModelRequest<'_>) -> Result<Option<u64>> {
        Ok(None)
    }

    /// Returns the optimizer of `--optimizer custom`, which updates at the learning rate of the
    /// schedule. Default: `None`.
    fn optimizer(_args: &Self::Args) -> Option<ModuleOptimizer> {
        None
    }

    /// Returns the data set of `--dataset custom`. Default: `None`.
    ///
    /// # Errors
    /// When it cannot be opened.
    fn dataset(_args: &Self::Args) -> Result<Option<DatasetSplits>> {
        Ok(None)
    }

    /// Returns the training loss. Default: `configured`, that of `--loss` and `--label-smoothing`.
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
    /// When there is no such model.
    fn build(args: &Self::Args, request: &ModelRequest<'_>) -> Result<Self::Model>;
}

impl Family {
    /// Returns the facts of `F` that a configuration needs.
    pub fn of<F: ModelFamily>() -> Self {
        Self {
            name: F::NAME,
            options: F::OPTIONS,
            decide: |flags| decided::<F::Args>(flags, F::fill, F::name),
        }
    }
}

/// burn's random numbers are one stream a process; ranks that are threads take turns.
static BUILDING: Mutex<()> = Mutex::new(());

/// Returns the model of a decided section, its weights drawn.
///
/// # Errors
/// When there is no such model, or two of its modules share a parameter.
pub fn build<F: ModelFamily>(model: &ModelSection, request: &ModelRequest<'_>) -> Result<F::Model> {
    let _turn = BUILDING.lock().unwrap_or_else(PoisonError::into_inner);
    request.device.seed(request.seed);
    let model = F::build(&model.read()?, request)?;
    // burn draws a parameter when it is first read: here, in module order.
    let layout = ParameterLayout::new(&model);
    ParameterLayout::state(&model);
    layout.expect_unshared().context("model")?;
    Ok(model)
}

/// Seeds burn's random numbers for a step: the draws of a model, as for dropout, differ between
/// ranks and steps, and are the same after a resume.
pub fn seed_draws(device: &Device, (seed, rank): (u64, usize), step: u64) {
    let _turn = BUILDING.lock().unwrap_or_else(PoisonError::into_inner);
    device.seed(draw_seed(seed, rank, step));
}

/// Opens the data set of `F`, with the flags of a decided section.
pub fn own_data<F: ModelFamily>(
    model: &ModelSection,
) -> impl FnOnce() -> Result<Option<DatasetSplits>> {
    || F::dataset(&model.read()?)
}

/// Returns the model of a decided section, to be filled from a weights file of `num_bytes` bytes. A
/// model that such a file cannot hold allocates no memory.
///
/// # Errors
/// When there is no such model, or it has more values than the file has bytes.
pub fn build_within<F: ModelFamily>(
    num_bytes: u64,
    model: &ModelSection,
    request: &ModelRequest<'_>,
) -> Result<F::Model> {
    let args: F::Args = model.read()?;
    if let Some(num_values) = F::num_values(&args, request)? {
        ensure!(
            num_values <= num_bytes,
            "{} for {} classes and {} channels: expected at most {num_bytes} values, as many as the weights file has bytes, \
             got {num_values}; check that it is a file of weights, the flags of the model and the number of classes",
            F::name(&args),
            request.num_classes,
            request.in_channels
        );
    }
    F::build(&args, request)
}
