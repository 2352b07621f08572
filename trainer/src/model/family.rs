//! A model family: what a program needs to know of its models to train, evaluate, apply and measure them.
//!
//! In: the family's flags, what a model is made for. Out: a model on a device.
//! Invariant: a model whose file cannot hold it is not made, where its family can tell.

use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use burn::optim::ModuleOptimizer;
use burn::tensor::Device;
use clap::Args;
use datasets::DatasetSplits;
use distributed::replica::{ParameterLayout, draw_seed};
use layers::{Activations, Computation, Convolution, Kernels, Recompute};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::config::ComputeSection;
use crate::config::cli::ModelSection;
use crate::config::{
    ConfigError, ConvolutionKind, Dtype, Family, KernelsKind, ModelOption, RecomputeKind, decided,
    instruction_set,
};
use crate::model::ImageClassifier;
use crate::model::loss::Loss;
use crate::model::metric::Metric;

/// What a model is made for.
#[derive(Clone, Debug)]
pub struct ModelRequest<'a> {
    /// Classes to tell apart.
    pub num_classes: usize,
    /// Channels of the images.
    pub in_channels: usize,
    /// Seed of the weights. burn's random numbers are seeded with it, too.
    pub seed: u64,
    /// Start the last normalisation of every block at zero, for a family that heeds [`ModelOption::ZeroGamma`].
    pub zero_gamma: bool,
    /// How the layers are computed, for a family that heeds it.
    pub compute: &'a ComputeSection,
    /// Where the parameters live: an autodiff device for training.
    pub device: &'a Device,
}

impl<'a> ModelRequest<'a> {
    /// For images of three channels, with seed 0.
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

    /// How the layers are computed, as `--kernels`, `--dtype`, `--convolution`, `--recompute` and `--cpu` say: for the [`PassContext`](layers::PassContext) that a
    /// model of crate `layers` sets around its forward pass.
    ///
    /// # Errors
    /// When this processor lacks the instruction set.
    pub fn computation(&self) -> Result<Computation, ConfigError> {
        let ComputeSection {
            convolution,
            recompute,
            cpu,
            ..
        } = *self.compute;
        Ok(Computation {
            kernels: match self.compute.kernels() {
                KernelsKind::Stock => Kernels::Stock,
                KernelsKind::Fused => Kernels::Fused,
            },
            convolution: match convolution.unwrap_or(ConvolutionKind::Auto) {
                ConvolutionKind::Auto => Convolution::Auto,
                ConvolutionKind::Direct => Convolution::Direct,
            },
            recompute: match recompute.unwrap_or(RecomputeKind::None) {
                RecomputeKind::None => Recompute::None,
                RecomputeKind::Norms => Recompute::Norms,
                RecomputeKind::Convolutions => Recompute::Convolutions,
            },
            isa: instruction_set(cpu)?,
            activations: match self.compute.dtype() {
                Dtype::F32 => Activations::F32,
                Dtype::Bf16 => Activations::Bf16,
                Dtype::F16 => Activations::F16,
            },
        })
    }
}

/// Models that share their flags. [`program`](crate::commands::program::program) is the program of one family.
pub trait ModelFamily {
    /// What it is called in checkpoints, which are of no other family's programs: letters, digits, `-`, `_` and `.`.
    const NAME: &'static str;

    /// The general options of how a network is made or computed that [`build`](Self::build) heeds; the others are refused.
    const OPTIONS: &'static [ModelOption] = &[];

    /// Its own flags: each an `Option`, so that a flag that was not typed leaves the value of a TOML file, in whose section `[model]`
    /// it has the flag's name (`#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]`). No flag, and no field, has the name of
    /// a general one: [`program`](crate::commands::program::program) refuses such a family.
    type Args: Args + Default + Debug + Serialize + DeserializeOwned;

    /// What is trained.
    type Model: ImageClassifier;

    /// Fills the gaps with defaults, so that a run says what it was; by default nothing.
    ///
    /// # Errors
    /// A [`ConfigError`] that names the flag, if there is no such model.
    fn fill(_args: &mut Self::Args) -> Result<(), ConfigError> {
        Ok(())
    }

    /// Name of a model in run directories and reports; by default that of the family.
    fn name(_args: &Self::Args) -> String {
        Self::NAME.to_owned()
    }

    /// Parameters and norm statistics of the model, where that can be told without making it: a weights file with fewer bytes is
    /// refused before memory is asked for. By default it is not looked at.
    ///
    /// # Errors
    /// When there is no such model.
    fn num_values(_args: &Self::Args, _request: &ModelRequest<'_>) -> Result<Option<u64>> {
        Ok(None)
    }

    /// What updates the parameters with `--optimizer custom`, at the schedule's learning rate; by default nothing.
    fn optimizer(_args: &Self::Args) -> Option<ModuleOptimizer> {
        None
    }

    /// The data set of `--dataset custom`; by default none.
    ///
    /// # Errors
    /// When it cannot be opened.
    fn dataset(_args: &Self::Args) -> Result<Option<DatasetSplits>> {
        Ok(None)
    }

    /// What its models are trained by; by default `configured`, that of `--loss` and `--label-smoothing`.
    fn loss(_args: &Self::Args, configured: Arc<dyn Loss>) -> Arc<dyn Loss> {
        configured
    }

    /// What is reported of an evaluation beside loss, top-1 and top-5; by default nothing.
    fn metrics(_args: &Self::Args, _num_classes: usize) -> Vec<Arc<dyn Metric>> {
        Vec::new()
    }

    /// The model with its initial weights, from flags that are filled.
    ///
    /// # Errors
    /// When there is no such model.
    fn build(args: &Self::Args, request: &ModelRequest<'_>) -> Result<Self::Model>;
}

impl Family {
    /// What a configuration needs to know of `F`.
    pub fn of<F: ModelFamily>() -> Self {
        Self {
            name: F::NAME,
            options: F::OPTIONS,
            decide: |flags| decided::<F::Args>(flags, F::fill, F::name),
        }
    }
}

/// burn's random numbers are one stream a process; ranks that are its threads take turns.
static BUILDING: Mutex<()> = Mutex::new(());

/// The model of a filled section, its weights drawn.
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

/// Begins burn's random numbers anew for a step: what a model draws in it, as for dropout, is another stream on each rank and in each step,
/// and the same one where a run goes on.
pub fn seed_draws(device: &Device, (seed, rank): (u64, usize), step: u64) {
    let _turn = BUILDING.lock().unwrap_or_else(PoisonError::into_inner);
    device.seed(draw_seed(seed, rank, step));
}

/// Opens the data set that `F` brings, with the flags of a filled section.
pub fn own_data<F: ModelFamily>(
    model: &ModelSection,
) -> impl FnOnce() -> Result<Option<DatasetSplits>> {
    || F::dataset(&model.read()?)
}

/// The model of a filled section, to be filled from a weights file of `num_bytes` bytes: a model that such a file cannot hold asks for no memory.
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
