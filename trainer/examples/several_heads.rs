//! A network with several heads: which shapes a drawing has (multi-label), and its brightness
//! (regression).
//!
//!     cargo run --release -p trainer --example several_heads -- train --optimizer adamw
//!     target/release/examples/several_heads train --monitor test-error --clip-grad-norm 1

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;
use burn::module::Module;
use burn::nn::PaddingConfig2d::Explicit;
use burn::tensor::activation::log_sigmoid;
use burn::tensor::{Device, FloatDType, Tensor, TensorData};
use layers::{
    BatchNorm, BatchNormConfig, Conv2d, Conv2dConfig, Features, Linear, LinearConfig,
    global_avg_pool, in_activations, relu,
};
use trainer::commands::program::task_program;
use trainer::task::{
    Arrays, DatasetError, Draws, ModelRequest, NoArgs, Opening, Samples, Splits, Stream, Task,
    TaskMetric,
};

/// Height and width of the images, pixels.
const SIDE: usize = 16;
/// Number of shapes: a row, a column and a square, each there or not.
const NUM_SHAPES: usize = 3;

/// Drawn images: name, seed and number.
#[derive(Debug)]
pub(crate) struct Drawings(&'static str, u64, usize);

impl Samples for Drawings {
    type Batch = Vec<TensorData>;

    fn name(&self) -> &str {
        self.0
    }

    fn len(&self) -> usize {
        self.2
    }

    fn checksum(&self) -> String {
        datasets::samples::checksum(&[&self.1.to_le_bytes(), &self.2.to_le_bytes()])
    }

    /// Returns images `[N, H, W, 1]`, shapes `[N, 3]`, 1 if there, and brightness `[N, 1]`.
    fn batch(&self, draws: &Draws<'_>) -> Result<Vec<TensorData>, DatasetError> {
        let (mut images, mut labels, mut targets) = (Vec::new(), Vec::new(), Vec::new());
        for draw in draws.iter() {
            let mut random = Stream::of_sample(self.1, draw.index);
            let shapes = [(); NUM_SHAPES].map(|()| random.coin());
            let brightness = random.unit();
            let [row, column] = [(); 2].map(|()| random.below(SIDE - 4));
            for place in 0..SIDE * SIDE {
                let [y, x] = [place / SIDE, place % SIDE];
                let is_square = (row..row + 4).contains(&y) && (column..column + 4).contains(&x);
                let is_of = [y == row, x == column, is_square];
                let is_drawn = shapes.iter().zip(is_of).any(|(there, of)| *there && of);
                images.push(brightness + random.between(0.0, 0.2) + f32::from(is_drawn));
            }
            labels.extend(shapes.map(f32::from));
            targets.push(brightness);
        }
        let n = draws.len();
        Ok(vec![
            TensorData::new(images, [n, SIDE, SIDE, 1]),
            TensorData::new(labels, [n, NUM_SHAPES]),
            TensorData::new(targets, [n, 1]),
        ])
    }
}

/// Two convolutions and two heads.
#[derive(Module, Debug)]
pub(crate) struct Heads {
    convs: Vec<Conv2d>,
    norms: Vec<BatchNorm>,
    shapes: Linear,
    brightness: Linear,
}

impl Heads {
    fn new(device: &Device) -> Self {
        let conv = |channels| {
            let conv = Conv2dConfig::new(channels, [3, 3]).with_bias(false);
            let conv = conv.with_stride([2, 2]);
            conv.with_padding(Explicit(1, 1, 1, 1)).init(device)
        };
        let norm = |channels| BatchNormConfig::new(channels).init(device);
        Self {
            convs: [[1, 16], [16, 32]].map(conv).into(),
            norms: [16, 32].map(norm).into(),
            shapes: LinearConfig::new(32, NUM_SHAPES).init(device),
            brightness: LinearConfig::new(32, 1).init(device),
        }
    }

    /// Returns a logit for each shape, `[N, 3]`, and the brightness, `[N, 1]`.
    fn forward(&self, images: Tensor<4>) -> [Tensor<2>; 2] {
        let layers = self.convs.iter().zip(&self.norms);
        let first = Features::from(in_activations(images));
        let features = layers.fold(first, |x, (conv, norm)| relu(norm.forward(conv.forward(x))));
        let pooled = global_avg_pool(features);
        [&self.shapes, &self.brightness].map(|head| {
            let output = head.forward(pooled.clone());
            output.cast(FloatDType::F32)
        })
    }
}

/// The task of both heads.
#[derive(Debug, Default)]
pub(crate) struct SeveralHeads;

impl Task for SeveralHeads {
    const NAME: &'static str = "several-heads";
    type Args = NoArgs;
    type Model = Heads;
    type Samples = Drawings;
    type Outputs = [Tensor<2>; 2];

    fn open(_args: &NoArgs, _opening: &Opening<'_>) -> Result<Splits<Drawings>> {
        let train = Drawings("drawings train", 0, 2000);
        Ok(Splits::of_two(train, Drawings("drawings test", 1, 400)))
    }

    fn build(&self, _args: &NoArgs, request: &ModelRequest<'_>) -> Result<Heads> {
        Ok(Heads::new(request.device))
    }

    fn forward(&self, model: &Heads, batch: &Arrays) -> Result<[Tensor<2>; 2]> {
        Ok(model.forward(batch.floats(0)))
    }

    /// Binary cross entropy of the shapes, plus the squared error of the brightness.
    fn loss_sum(&self, [shapes, brightness]: &[Tensor<2>; 2], batch: &Arrays) -> Tensor<1> {
        let signs = batch.floats::<2>(1) * 2.0 - 1.0;
        let of_shapes = log_sigmoid(signs * shapes.clone()).sum().neg();
        let error = brightness.clone() - batch.floats(2);
        of_shapes + error.square().sum()
    }

    fn metrics(&self) -> Vec<Arc<dyn TaskMetric<Self>>> {
        vec![Arc::new(Right), Arc::new(Error)]
    }

    fn supports_pass_context(&self, _model: &Heads) -> bool {
        true
    }
}

/// Share of right answers about shapes.
#[derive(Debug)]
struct Right;

impl TaskMetric<SeveralHeads> for Right {
    fn name(&self) -> String {
        "right".to_owned()
    }

    fn sums(&self, [shapes, _]: &[Tensor<2>; 2], batch: &Arrays) -> Tensor<1> {
        let answers = shapes.clone().greater_elem(0.0).float();
        answers.equal(batch.floats(1)).float().sum()
    }

    fn value(&self, sums: &[f64], num_samples: f64) -> f64 {
        sums[0] / num_samples / NUM_SHAPES as f64
    }
}

/// Root of the mean squared error of the brightness.
#[derive(Debug)]
struct Error;

impl TaskMetric<SeveralHeads> for Error {
    fn name(&self) -> String {
        "error".to_owned()
    }

    fn sums(&self, [_, brightness]: &[Tensor<2>; 2], batch: &Arrays) -> Tensor<1> {
        (brightness.clone() - batch.floats(2)).square().sum()
    }

    fn value(&self, sums: &[f64], num_samples: f64) -> f64 {
        (sums[0] / num_samples).sqrt()
    }

    fn lower_is_better(&self) -> bool {
        true
    }
}

#[allow(dead_code, reason = "tests include this file")]
fn main() -> ExitCode {
    task_program::<SeveralHeads>()
}
