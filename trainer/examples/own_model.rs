//! A model family of a researcher's own, and the whole program of it: training on one process or many, evaluation, prediction,
//! measurement.
//!
//!     cargo run --release -p trainer --example own_model -- train --epochs 3 --width 16 --output-dir runs/small
//!     mpirun -n 2 target/release/examples/own_model train --epochs 3
//!     target/release/examples/own_model eval --checkpoint runs/small
//!     target/release/examples/own_model bench --width 16
//!
//! Its flags stand in `--help`, in `run.toml` and in its checkpoints, which no program of another family takes. General options of how
//! layers are computed, such as `--dtype`, are refused unless `OPTIONS` names them.

use std::process::ExitCode;

use anyhow::Result;
use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{Linear, LinearConfig, PaddingConfig2d};
use burn::tensor::Tensor;
use burn::tensor::activation::gelu;
use clap::Args;
use serde::{Deserialize, Serialize};
use trainer::commands::program::program;
use trainer::config::ConfigError;
use trainer::model::ImageClassifier;
use trainer::model::family::{ModelFamily, ModelRequest};

/// Three strided convolutions without any normalisation, and a linear layer.
#[derive(Module, Debug)]
struct SmallNet {
    convolutions: Vec<Conv2d>,
    linear: Linear,
}

impl ImageClassifier for SmallNet {
    fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        // The loader's batches are channels-last, burn's convolution wants the channels in front.
        let images = images.permute([0, 3, 1, 2]);
        let features = self.convolutions.iter().fold(images, |x, convolution| gelu(convolution.forward(x)));
        let pooled = features.mean_dim(3).mean_dim(2).flatten(1, 3);
        self.linear.forward(pooled)
    }
}

#[derive(Debug, Default, Args, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct SmallNetArgs {
    /// Channels of the first convolution; the others have twice as many [default: 32]
    #[arg(long, value_name = "CHANNELS")]
    width: Option<usize>,
}

impl SmallNetArgs {
    fn width(&self) -> usize {
        self.width.unwrap_or(32)
    }
}

struct SmallNetFamily;

impl ModelFamily for SmallNetFamily {
    const NAME: &'static str = "small-net";
    type Args = SmallNetArgs;
    type Model = SmallNet;

    fn fill(args: &mut SmallNetArgs) -> Result<(), ConfigError> {
        args.width = Some(args.width());
        let expected = "1 to 4096 channels".to_owned();
        match args.width() {
            1..=4096 => Ok(()),
            other => Err(ConfigError::Invalid { option: "--width", expected, got: other.to_string() }),
        }
    }

    fn build(args: &SmallNetArgs, request: &ModelRequest<'_>) -> Result<SmallNet> {
        let convolution = |c_in, c_out| {
            Conv2dConfig::new([c_in, c_out], [3, 3])
                .with_stride([2, 2])
                .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
                .init(request.device)
        };
        let (first, further) = (args.width(), 2 * args.width());
        Ok(SmallNet {
            convolutions: vec![
                convolution(request.in_channels, first),
                convolution(first, further),
                convolution(further, further),
            ],
            linear: LinearConfig::new(further, request.num_classes).init(request.device),
        })
    }
}

fn main() -> ExitCode {
    program::<SmallNetFamily>()
}
