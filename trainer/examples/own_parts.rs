//! A custom optimizer, loss, metric and data set in the program with its built-in networks.
//!
//!     cargo run --release -p trainer --example own_parts -- train \
//!         --dataset custom --optimizer custom --epochs 3 --output-dir runs/stripes
//!     mpirun -n 2 target/release/examples/own_parts train --dataset custom --optimizer lamb
//!     target/release/examples/own_parts eval --checkpoint runs/stripes
//!
//! Each part is a method of the model family with a default. A program may replace one part or all
//! of them.

use std::sync::Arc;

use anyhow::Result;
use burn::module::ParamGroup;
use burn::optim::{LionConfig, LionState, ModuleOptimizer, Optimizer};
use burn::tensor::activation::log_softmax;
use burn::tensor::{Device, Tensor};
use clap::Args;
use datasets::{DatasetError, DatasetSplits, ImageDataset, ImageShape, Normalization, Targets};
use serde::{Deserialize, Serialize};
use trainer::commands::program::program;
use trainer::config::cli::ModelArgs;
use trainer::config::{ConfigError, ModelOption, invalid};
use trainer::model::family::{ModelFamily, ModelRequest};
use trainer::model::loss::Loss;
use trainer::model::metric::Metric;
use trainer::model::network::{Network, NetworkFamily};

/// Focal loss (Lin et al. 2017, arXiv 1708.02002): well-classified samples have smaller weights.
#[derive(Debug)]
struct Focal {
    gamma: f64,
}

impl Loss for Focal {
    fn sum(&self, logits: Tensor<2>, targets: Targets) -> Tensor<1> {
        let log_probability = log_softmax(logits, 1).gather(1, targets.labels.unsqueeze_dim(1));
        let doubt = log_probability
            .clone()
            .exp()
            .neg()
            .add_scalar(1.0)
            .clamp_min(0.0);
        (doubt.powf_scalar(self.gamma) * log_probability)
            .sum()
            .neg()
    }

    fn is_recordable(&self) -> bool {
        true
    }
}

/// Mean over classes of the share of correct answers. The class sizes do not matter. Sums: the
/// number of samples of each class, then the number of correct ones.
#[derive(Debug)]
struct MeanClassAccuracy {
    num_classes: usize,
}

impl Metric for MeanClassAccuracy {
    fn name(&self) -> String {
        "mean_class_accuracy".to_owned()
    }

    fn num_sums(&self) -> usize {
        2 * self.num_classes
    }

    fn add(&self, logits: &[f32], label: u32, sums: &mut [f64]) {
        let label = label as usize;
        sums[label] += 1.0;
        let is_right = logits
            .iter()
            .enumerate()
            .all(|(class, logit)| class == label || *logit < logits[label]);
        sums[self.num_classes + label] += f64::from(is_right);
    }

    fn value(&self, sums: &[f64]) -> f64 {
        let (samples, right) = sums.split_at(self.num_classes);
        let shares = samples
            .iter()
            .zip(right)
            .filter(|(samples, _)| **samples > 0.0);
        let shares: Vec<f64> = shares.map(|(samples, right)| right / samples).collect();
        shares.iter().sum::<f64>() / shares.len() as f64
    }
}

/// Signum (Bernstein et al. 2018, arXiv 1802.04434): steps of equal length along the signs of the
/// gradients' moving average. The state is one of burn's. Other states can derive `RecordState`.
#[derive(Clone)]
struct Signum {
    beta: f64,
}

impl Optimizer for Signum {
    type State<const D: usize> = LionState<D>;

    fn step<const D: usize>(
        &self,
        learning_rate: f64,
        parameter: Tensor<D>,
        gradient: Tensor<D>,
        state: Option<LionState<D>>,
    ) -> (Tensor<D>, Option<LionState<D>>) {
        let last = state.map_or_else(|| gradient.zeros_like(), |state| state.momentum);
        let average = last * self.beta + gradient * (1.0 - self.beta);
        (
            parameter - average.clone().sign() * learning_rate,
            Some(LionState::new(average)),
        )
    }

    fn to_device<const D: usize>(state: LionState<D>, device: &Device) -> LionState<D> {
        LionState::new(state.momentum.to_device(device))
    }
}

/// Horizontal or vertical stripes, two pixels wide, with a colour that depends on the index. The
/// fields are the number of images and the names of both classes.
struct Stripes(usize, Vec<String>);

impl ImageDataset for Stripes {
    fn name(&self) -> &str {
        "stripes"
    }
    fn len(&self) -> usize {
        self.0
    }
    fn image_shape(&self) -> ImageShape {
        ImageShape {
            height: 16,
            width: 16,
            channels: 3,
        }
    }
    fn class_names(&self) -> &[String] {
        &self.1
    }
    fn label(&self, index: usize) -> usize {
        index % 2
    }
    fn read_image(&self, index: usize, pixels: &mut [u8]) -> Result<(), DatasetError> {
        for (place, value) in pixels.iter_mut().enumerate() {
            let along = if self.label(index) == 0 {
                place / 48
            } else {
                place / 3 % 16
            };
            *value = if (along + index / 2) % 4 < 2 {
                (index * 37 + place % 3 * 85) as u8
            } else {
                128
            };
        }
        Ok(())
    }
    fn checksum(&self) -> String {
        format!("stripes {}", self.0)
    }
}

/// The flags of `trainer`'s networks, and a flag of the loss.
#[derive(Debug, Default, Args, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct PartsArgs {
    #[command(flatten)]
    #[serde(flatten)]
    network: ModelArgs,

    /// Exponent of the focal loss; 0 is cross entropy [default: 2]
    #[arg(long, value_name = "EXPONENT")]
    focal_gamma: Option<f64>,
}

/// The default of `--focal-gamma`.
const FOCAL_GAMMA: f64 = 2.0;

/// The networks of `trainer` with these custom parts.
pub(crate) struct OwnParts;

impl ModelFamily for OwnParts {
    const NAME: &'static str = "resnet-with-own-parts";
    const OPTIONS: &'static [ModelOption] = ModelOption::ALL;
    type Args = PartsArgs;
    type Model = Network;

    fn fill(args: &mut PartsArgs) -> Result<(), ConfigError> {
        match *args.focal_gamma.get_or_insert(FOCAL_GAMMA) {
            0.0..=10.0 => NetworkFamily::fill(&mut args.network),
            got => Err(invalid("--focal-gamma", "a number from 0 to 10", got)),
        }
    }

    fn build(args: &PartsArgs, request: &ModelRequest<'_>) -> Result<Network> {
        NetworkFamily::build(&args.network, request)
    }

    fn optimizer(_: &PartsArgs) -> Option<ModuleOptimizer> {
        // One of burn's optimizers updates the classifier.
        let classifier = ParamGroup::from_predicate("linear");
        Some(ModuleOptimizer::from(Signum { beta: 0.9 }).with_group(
            classifier,
            LionConfig::new().build(),
            None,
        ))
    }

    fn loss(args: &PartsArgs, _: Arc<dyn Loss>) -> Arc<dyn Loss> {
        Arc::new(Focal {
            gamma: args.focal_gamma.unwrap_or(FOCAL_GAMMA),
        })
    }

    fn metrics(_: &PartsArgs, num_classes: usize) -> Vec<Arc<dyn Metric>> {
        vec![Arc::new(MeanClassAccuracy { num_classes })]
    }

    fn dataset(_: &PartsArgs) -> Result<Option<DatasetSplits>> {
        let split = |len| Arc::new(Stripes(len, vec!["across".into(), "along".into()]));
        Ok(Some(DatasetSplits::of_two(
            split(960),
            split(99),
            Normalization::uniform(3),
        )))
    }
}

fn main() -> std::process::ExitCode {
    program::<OwnParts>()
}
