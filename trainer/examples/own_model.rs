//! A custom model family and its complete program: training on one process or many, evaluation,
//! prediction and measurement.
//!
//!     cargo run --release -p trainer --example own_model -- \
//!         train --epochs 3 --blocks 2 --output-dir runs/small
//!     mpirun -n 2 target/release/examples/own_model train --epochs 3 --batch-norm sync
//!     target/release/examples/own_model eval --checkpoint runs/small
//!
//! The modules have burn's names but come from `layers`. The network therefore uses Lockstep's
//! kernels and sends gradients during the backward pass. The flag `--blocks` appears in `--help`,
//! in `run.toml` and in the checkpoints. Options such as `--dtype` are rejected unless `OPTIONS`
//! lists them.

use anyhow::Result;
use burn::module::Module;
use burn::nn::PaddingConfig2d::Explicit;
use burn::tensor::{Device, Tensor};
use clap::Args;
use layers::{
    BatchNorm, BatchNormConfig, Conv2d, Conv2dConfig, Features, Linear, LinearConfig,
    global_avg_pool, relu,
};
use serde::{Deserialize, Serialize};
use trainer::commands::program::program;
use trainer::config::{ConfigError, invalid};
use trainer::model::{ImageClassifier, family::ModelFamily, family::ModelRequest};

type ConvNorm = (Conv2d, BatchNorm);
fn conv_norm(channels: [usize; 2], kernel: usize, stride: usize, device: &Device) -> ConvNorm {
    let conv = Conv2dConfig::new(channels, [kernel; 2])
        .with_stride([stride; 2])
        .with_bias(false);
    let conv = conv.with_padding(Explicit(kernel / 2, kernel / 2, kernel / 2, kernel / 2));
    (
        conv.init(device),
        BatchNormConfig::new(channels[1]).init(device),
    )
}

/// Two convolutions and a shortcut. The shortcut has a projection if the shape changes.
#[derive(Module, Debug)]
struct Block {
    layers: [ConvNorm; 2],
    projection: Option<ConvNorm>,
}

impl Block {
    fn forward(&self, x: Features) -> Features {
        let [(conv1, norm1), (conv2, norm2)] = &self.layers;
        let shortcut = self.projection.as_ref().map_or(x.clone(), |(conv, norm)| {
            norm.forward(conv.forward(x.clone()))
        });
        let x = relu(norm1.forward(conv1.forward(x)));
        relu(norm2.forward(conv2.forward(x)) + shortcut)
    }
}

#[derive(Module, Debug)]
struct SmallNet {
    stem: ConvNorm,
    blocks: Vec<Block>,
    linear: Linear,
}

impl ImageClassifier for SmallNet {
    fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let stem = relu(self.stem.1.forward(self.stem.0.forward(images)));
        self.linear.forward(global_avg_pool(
            self.blocks.iter().fold(stem, |x, block| block.forward(x)),
        ))
    }

    fn supports_pass_context(&self) -> bool {
        true
    }
}

#[derive(Debug, Default, Args, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct SmallNetArgs {
    /// Blocks in each of the three stages; 3 make the 20 layers of ResNet-20 [default: 1]
    #[arg(long, value_name = "BLOCKS")]
    blocks: Option<usize>,
}

struct SmallNetFamily;

impl ModelFamily for SmallNetFamily {
    const NAME: &'static str = "small-net";
    type Args = SmallNetArgs;
    type Model = SmallNet;

    fn fill(args: &mut SmallNetArgs) -> Result<(), ConfigError> {
        let got = *args.blocks.get_or_insert(1);
        match got {
            1..=200 => Ok(()),
            got => Err(invalid("--blocks", "1 to 200", got)),
        }
    }

    fn build(args: &SmallNetArgs, request: &ModelRequest<'_>) -> Result<SmallNet> {
        let conv_norm =
            |c_in, c_out, kernel, stride| conv_norm([c_in, c_out], kernel, stride, request.device);
        let blocks = [16, 32, 64].into_iter().flat_map(|width| {
            (0..args.blocks.unwrap_or(1)).map(move |block| {
                let (c_in, stride) = if block == 0 && width > 16 {
                    (width / 2, 2)
                } else {
                    (width, 1)
                };
                let layers = [
                    conv_norm(c_in, width, 3, stride),
                    conv_norm(width, width, 3, 1),
                ];
                Block {
                    layers,
                    projection: (stride == 2).then(|| conv_norm(c_in, width, 1, stride)),
                }
            })
        });
        let linear = LinearConfig::new(64, request.num_classes).init(request.device);
        Ok(SmallNet {
            stem: conv_norm(request.in_channels, 16, 3, 1),
            blocks: blocks.collect(),
            linear,
        })
    }
}

fn main() -> std::process::ExitCode {
    program::<SmallNetFamily>()
}
