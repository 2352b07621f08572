//! Trains four networks other than ResNets. The crate `networks` has them.
//!
//!     cargo run --release -p trainer --example networks -- \
//!         train --model vit-tiny --optimizer adamw --epochs 5 --output-dir runs/vit
//!     mpirun -n 2 target/release/examples/networks train --model mobilenet-v2
//!     target/release/examples/networks bench --model convnext-tiny --dtype bf16

use anyhow::{Result, ensure};
use burn::module::Module;
use burn::optim::ModuleOptimizer;
use burn::tensor::{FloatDType, Tensor};
use clap::{Args, ValueEnum};
use layers::PassContext;
use layers::backend::{Activations, Computation};
use networks::{ConvNeXt, MobileNetV2, VisionTransformer, WideResNet};
use serde::{Deserialize, Serialize};
use trainer::commands::program::program;
use trainer::config::{ConfigError, ModelOption, invalid};
use trainer::model::ImageClassifier;
use trainer::model::family::{ModelFamily, ModelRequest};

/// One of the four networks.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant, reason = "there is one in a program")]
enum Network {
    WideResNet(WideResNet),
    MobileNetV2(MobileNetV2),
    ConvNeXt(ConvNeXt),
    Vit(VisionTransformer),
}

/// A network and its computation settings.
#[derive(Module, Debug)]
struct Computed {
    network: Network,
    #[module(skip)]
    computation: Computation,
    /// True if the network has stochastic depth.
    #[module(skip)]
    draws: bool,
}

impl ImageClassifier for Computed {
    fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        // A layer computes in the number format of its input.
        let images = match self.computation.activations {
            Activations::Bf16 => images.cast(FloatDType::BF16),
            _ => images,
        };
        PassContext {
            computation: self.computation,
            ..PassContext::current()
        }
        .scope(|| match &self.network {
            Network::WideResNet(network) => network.forward(images),
            Network::MobileNetV2(network) => network.forward(images),
            Network::ConvNeXt(network) => network.forward(images),
            Network::Vit(network) => network.forward(images),
        })
    }

    fn supports_pass_context(&self) -> bool {
        true
    }

    fn is_recordable(&self) -> bool {
        !self.draws
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
    /// Network [default: mobilenet-v2]
    #[arg(long, value_enum, value_name = "NAME")]
    model: Option<Name>,

    /// Probability of leaving a branch of the last block out for a sample, of earlier ones less
    /// (convnext-tiny, vit-tiny), 0 up to but not 1 [default: 0]
    #[arg(long, value_name = "PROBABILITY")]
    stochastic_depth: Option<f64>,
}

struct Networks;

impl ModelFamily for Networks {
    const NAME: &'static str = "networks";
    const OPTIONS: &'static [ModelOption] = &[
        ModelOption::Kernels,
        ModelOption::Dtype,
        ModelOption::Convolution,
        ModelOption::Recompute,
        ModelOption::Cpu,
    ];
    type Args = NetworkArgs;
    type Model = Computed;

    fn fill(args: &mut NetworkArgs) -> Result<(), ConfigError> {
        let name = *args.model.get_or_insert(Name::MobilenetV2);
        let drop = args.stochastic_depth.unwrap_or(0.0);
        let expected = match name {
            Name::ConvnextTiny | Name::VitTiny if (0.0..1.0).contains(&drop) => return Ok(()),
            Name::ConvnextTiny | Name::VitTiny => "0 up to but not 1",
            _ if args.stochastic_depth.is_none() => return Ok(()),
            _ => "--model convnext-tiny or vit-tiny, or nothing",
        };
        Err(invalid("--stochastic-depth", expected, drop))
    }

    fn optimizer(args: &NetworkArgs) -> Option<ModuleOptimizer> {
        matches!(args.model, Some(Name::VitTiny)).then(VisionTransformer::optimizer)
    }

    fn name(args: &NetworkArgs) -> String {
        let name = args.model.and_then(|name| name.to_possible_value());
        name.map_or_else(
            || Self::NAME.to_owned(),
            |value| value.get_name().to_owned(),
        )
    }

    fn build(args: &NetworkArgs, request: &ModelRequest<'_>) -> Result<Computed> {
        let computation = request.computation()?;
        ensure!(
            computation.activations != Activations::F16,
            "--dtype: expected f32 or bf16 for these networks, got f16"
        );
        let (channels, classes, device) =
            (request.in_channels, request.num_classes, request.device);
        let drop = args.stochastic_depth.unwrap_or(0.0);
        let network = match args.model.unwrap_or(Name::MobilenetV2) {
            Name::WideResNet => {
                Network::WideResNet(WideResNet::new(28, 10, channels, classes, device))
            }
            Name::MobilenetV2 => Network::MobileNetV2(MobileNetV2::new(channels, classes, device)),
            Name::ConvnextTiny => Network::ConvNeXt(ConvNeXt::new(channels, classes, drop, device)),
            Name::VitTiny => {
                Network::Vit(VisionTransformer::new([32, 32], channels, classes, drop, device))
            }
        };
        Ok(Computed {
            network,
            computation,
            draws: drop > 0.0,
        })
    }
}

fn main() -> std::process::ExitCode {
    program::<Networks>()
}
