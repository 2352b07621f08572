//! A researcher's own network, not a ResNet, trained by Lockstep's trainer on one process or many:
//!
//!     cargo run --release -p trainer --example own_model -- --epochs 3
//!     mpirun -n 2 target/release/examples/own_model --epochs 3
//!
//! The flags of `trainer train` work; those that choose or compute one of its residual networks are refused, as this model does not
//! take them ([`OwnModel::taking`] says which a model does).

use std::process::ExitCode;

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{Linear, LinearConfig, PaddingConfig2d};
use burn::tensor::activation::gelu;
use burn::tensor::{Device, Tensor};
use clap::Parser;
use trainer::commands::train::train_model;
use trainer::config::OwnModel;
use trainer::config::cli::TrainArgs;
use trainer::model::ImageClassifier;
use trainer::world::launch::launch;

/// Three strided convolutions without any normalisation, and a linear layer.
#[derive(Module, Debug)]
struct SmallNet {
    convolutions: Vec<Conv2d>,
    linear: Linear,
}

impl SmallNet {
    fn new(num_classes: usize, device: &Device) -> Self {
        let convolution = |c_in, c_out| {
            Conv2dConfig::new([c_in, c_out], [3, 3])
                .with_stride([2, 2])
                .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
                .init(device)
        };
        Self {
            convolutions: vec![convolution(3, 32), convolution(32, 64), convolution(64, 64)],
            linear: LinearConfig::new(64, num_classes).init(device),
        }
    }
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

#[derive(Debug, Parser)]
struct Flags {
    #[command(flatten)]
    train: TrainArgs,
}

fn main() -> ExitCode {
    let flags = Flags::parse();
    let own = OwnModel::new("small-net");
    launch(|world| {
        train_model(&flags.train, world, &own, |_, request| Ok(SmallNet::new(request.num_classes, request.device)))
            .map(drop)
    })
}
