//! Four networks that people train beside ResNets, each a file, and the program that trains them.
//!
//!     cargo run --release -p trainer --example networks -- train --network vit-tiny --optimizer adamw --epochs 5 --output-dir runs/vit
//!     mpirun -n 2 target/release/examples/networks train --network mobilenet-v2
//!     target/release/examples/networks bench --network convnext-tiny

mod convnext;
mod mobilenet_v2;
mod vit;
mod wide_resnet;

use anyhow::Result;
use burn::module::Module;
use burn::tensor::Tensor;
use clap::{Args, ValueEnum};
use convnext::ConvNeXt;
use mobilenet_v2::MobileNetV2;
use serde::{Deserialize, Serialize};
use trainer::commands::program::program;
use trainer::config::ConfigError;
use trainer::model::ImageClassifier;
use trainer::model::family::{ModelFamily, ModelRequest};
use vit::VisionTransformer;
use wide_resnet::WideResNet;

/// One of them.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant, reason = "there is one in a program")]
enum Network {
    WideResNet(WideResNet),
    MobileNetV2(MobileNetV2),
    ConvNeXt(ConvNeXt),
    Vit(VisionTransformer),
}

impl ImageClassifier for Network {
    fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        match self {
            Self::WideResNet(network) => network.forward(images),
            Self::MobileNetV2(network) => network.forward(images),
            Self::ConvNeXt(network) => network.forward(images),
            Self::Vit(network) => network.forward(images),
        }
    }

    fn heeds_pass_context(&self) -> bool {
        true
    }
}

#[derive(Clone, Copy, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Name {
    #[value(name = "wide-resnet-28-10")]
    #[serde(rename = "wide-resnet-28-10")]
    WideResNet,
    MobilenetV2,
    ConvnextTiny,
    VitTiny,
}

#[derive(Debug, Default, Args, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct NetworkArgs {
    /// Which network [default: mobilenet-v2]
    #[arg(long, value_enum, value_name = "NAME")]
    network: Option<Name>,
}

struct Networks;

impl ModelFamily for Networks {
    const NAME: &'static str = "networks";
    type Args = NetworkArgs;
    type Model = Network;

    fn fill(args: &mut NetworkArgs) -> Result<(), ConfigError> {
        args.network.get_or_insert(Name::MobilenetV2);
        Ok(())
    }

    fn name(args: &NetworkArgs) -> String {
        let name = args.network.and_then(|name| name.to_possible_value());
        name.map_or_else(|| Self::NAME.to_owned(), |value| value.get_name().to_owned())
    }

    fn build(args: &NetworkArgs, request: &ModelRequest<'_>) -> Result<Network> {
        let (channels, classes, device) = (request.in_channels, request.num_classes, request.device);
        Ok(match args.network.unwrap_or(Name::MobilenetV2) {
            Name::WideResNet => Network::WideResNet(WideResNet::new(28, 10, channels, classes, device)),
            Name::MobilenetV2 => Network::MobileNetV2(MobileNetV2::new(channels, classes, device)),
            Name::ConvnextTiny => Network::ConvNeXt(ConvNeXt::new(channels, classes, device)),
            Name::VitTiny => Network::Vit(VisionTransformer::new(32, channels, classes, device)),
        })
    }
}

fn main() -> std::process::ExitCode {
    program::<Networks>()
}
