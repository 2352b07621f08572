//! A character GPT: a transformer that predicts the next byte of a text.
//!
//!     cargo run --release -p trainer --example char_gpt -- train --optimizer adamw --epochs 3
//!     mpirun -n 2 target/release/examples/char_gpt train --dtype bf16 --ema-decay 0.99
//!     target/release/examples/char_gpt eval --checkpoint runs/char-gpt-custom-adamw-ep3-seed0
//!
//! Source: Radford et al. 2019 (GPT-2): normalisation before each part, learned positions, and an
//! embedding that is also the last layer.

use std::process::ExitCode;

use anyhow::{Context, Result};
use burn::module::{Initializer, Module, Param};
use burn::tensor::{Device, FloatDType, Int, Tensor, TensorData};
use layers::{
    AttentionMask, LayerNorm, LayerNormConfig, Linear, LinearConfig, gelu, in_activations, linear,
    log_softmax, masked_attention, with_gradient_hook,
};
use trainer::commands::program::task_program;
use trainer::task::{
    Arrays, DatasetError, Draw, Draws, ModelRequest, NoArgs, Opening, Samples, Splits, Task,
};

/// A text in ASCII that Debian has.
const TEXT: &str = "/usr/share/common-licenses/GPL-3";
/// Number of different bytes.
const VOCABULARY: usize = 128;
/// Number of bytes that a prediction may depend on.
const CONTEXT: usize = 64;
const WIDTH: usize = 64;
const HEADS: usize = 4;
const NUM_BLOCKS: usize = 2;

/// Consecutive pieces of a text. The last piece may be shorter.
#[derive(Debug)]
pub(crate) struct Text(&'static str, Vec<u8>);

impl Samples for Text {
    type Batch = Vec<TensorData>;

    fn name(&self) -> &str {
        self.0
    }

    fn len(&self) -> usize {
        (self.1.len() - 1).div_ceil(CONTEXT)
    }

    fn checksum(&self) -> String {
        datasets::samples::checksum(&[&self.1])
    }

    /// Returns the bytes, the bytes that follow them, and 1 where there is one, `[N, CONTEXT]`.
    fn batch(&self, draws: &Draws<'_>) -> Result<Vec<TensorData>, DatasetError> {
        let shape = [draws.len(), CONTEXT];
        let starts = draws.iter().map(|draw| draw.index * CONTEXT);
        let places: Vec<usize> = starts.flat_map(|at| at..at + CONTEXT).collect();
        let byte = |place: usize| self.1.get(place).map_or(0, |byte| i32::from(*byte));
        let is_there = |place: &usize| f32::from(place + 1 < self.1.len());
        let inputs: Vec<i32> = places.iter().map(|place| byte(*place)).collect();
        let targets: Vec<i32> = places.iter().map(|place| byte(place + 1)).collect();
        let counts: Vec<f32> = places.iter().map(is_there).collect();
        let [inputs, targets] = [inputs, targets].map(|bytes| TensorData::new(bytes, shape));
        Ok(vec![inputs, targets, TensorData::new(counts, shape)])
    }

    /// The number of predicted bytes.
    fn weight(&self, draw: Draw) -> f64 {
        CONTEXT.min(self.1.len() - 1 - draw.index * CONTEXT) as f64
    }
}

#[derive(Module, Debug)]
struct Block {
    norm1: LayerNorm,
    qkv: Linear,
    proj: Linear,
    norm2: LayerNorm,
    fc1: Linear,
    fc2: Linear,
}

/// The network.
#[derive(Module, Debug)]
pub(crate) struct Gpt {
    bytes: Param<Tensor<2>>,
    positions: Param<Tensor<2>>,
    blocks: Vec<Block>,
    norm: LayerNorm,
}

impl Block {
    fn new(device: &Device) -> Self {
        let norm = || LayerNormConfig::new(WIDTH).init(device);
        let linear = |from, to| LinearConfig::new(from, to).init(device);
        Self {
            norm1: norm(),
            qkv: linear(WIDTH, 3 * WIDTH),
            proj: linear(WIDTH, WIDTH),
            norm2: norm(),
            fc1: linear(WIDTH, 4 * WIDTH),
            fc2: linear(4 * WIDTH, WIDTH),
        }
    }

    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let qkv = self.qkv.forward(self.norm1.forward(x.clone()));
        let mixed = masked_attention(qkv, HEADS, AttentionMask::Causal);
        let x = x + self.proj.forward(mixed);
        let hidden = gelu(self.fc1.forward(self.norm2.forward(x.clone())));
        x + self.fc2.forward(hidden)
    }
}

impl Gpt {
    fn forward(&self, inputs: Tensor<2, Int>) -> Tensor<3> {
        let [n, t] = inputs.dims();
        let first = inputs.clone().float();
        let [bytes, positions] =
            [&self.bytes, &self.positions].map(|table| with_gradient_hook(table, &first).val());
        let embedded = bytes.clone().select(0, inputs.flatten(0, 1));
        let x = embedded.reshape([n, t, WIDTH]) + positions.unsqueeze::<3>();
        let x = in_activations(x);
        let x = self.blocks.iter().fold(x, |x, block| block.forward(x));
        let x = self.norm.forward(x).cast(FloatDType::F32);
        linear(x, bytes.transpose(), None)
    }
}

/// The task: to predict the next byte.
#[derive(Debug, Default)]
pub(crate) struct CharGpt;

impl Task for CharGpt {
    const NAME: &'static str = "char-gpt";
    type Args = NoArgs;
    type Model = Gpt;
    type Samples = Text;
    type Outputs = Tensor<3>;

    fn open(_args: &NoArgs, _opening: &Opening<'_>) -> Result<Splits<Text>> {
        let bytes = std::fs::read(TEXT).context(TEXT)?;
        // The last tenth is for testing.
        let (train, test) = bytes.split_at(bytes.len() / 10 * 9);
        let train = Text("text train", train.to_vec());
        Ok(Splits::of_two(train, Text("text test", test.to_vec())))
    }

    fn build(&self, _args: &NoArgs, request: &ModelRequest<'_>) -> Result<Gpt> {
        let device = request.device;
        let normal = Initializer::Normal {
            mean: 0.0,
            std: 0.02,
        };
        Ok(Gpt {
            bytes: normal.init([VOCABULARY, WIDTH], device),
            positions: normal.init([CONTEXT, WIDTH], device),
            blocks: (0..NUM_BLOCKS).map(|_| Block::new(device)).collect(),
            norm: LayerNormConfig::new(WIDTH).init(device),
        })
    }

    fn forward(&self, model: &Gpt, batch: &Arrays) -> Result<Tensor<3>> {
        Ok(model.forward(batch.ints(0)))
    }

    fn loss_sum(&self, logits: &Tensor<3>, batch: &Arrays) -> Tensor<1> {
        let targets = batch.ints::<2>(1).unsqueeze_dim(2);
        let logs = log_softmax(logits.clone(), 2).gather(2, targets);
        (logs.squeeze_dim(2) * batch.floats::<2>(2)).sum().neg()
    }

    fn supports_pass_context(&self, _model: &Gpt) -> bool {
        true
    }
}

#[allow(dead_code, reason = "tests include this file")]
fn main() -> ExitCode {
    task_program::<CharGpt>()
}
