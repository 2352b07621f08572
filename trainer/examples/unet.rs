//! Segmentation: a U-Net (Ronneberger et al. 2015, 1505.04597) finds the pixels of a drawn disc.
//!
//!     cargo run --release -p trainer --example unet -- train --optimizer adamw --epochs 3
//!     mpirun -n 2 target/release/examples/unet train --batch-norm sync --reduction exact

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;
use burn::module::Module;
use burn::nn::PaddingConfig2d::Explicit;
use burn::tensor::activation::log_sigmoid;
use burn::tensor::{Device, FloatDType, Tensor, TensorData};
use layers::{BatchNorm, BatchNormConfig, Conv2d, Conv2dConfig, Features, in_activations, relu};
use trainer::commands::program::task_program;
use trainer::task::{
    Arrays, DatasetError, Draw, Draws, Goal, ModelRequest, NoArgs, Opening, Samples, Splits,
    Stream, Task, TaskMetric,
};

const SIDE: usize = 32;

/// Drawn images: name, seed and number. Those of seed 0, for training, are mirrored at random.
#[derive(Debug)]
pub(crate) struct Drawings(&'static str, u64, usize);

impl Drawings {
    /// Draws a disc on noise; returns pixels, and 1 in the disc, `[H, W]`.
    fn draw(&self, index: usize) -> [Vec<f32>; 2] {
        let mut random = Stream::of_sample(self.1, index);
        let mut pixels = Vec::from_iter((0..SIDE * SIDE).map(|_| random.between(0.0, 0.6)));
        let mut mask = vec![0.0; SIDE * SIDE];
        let [y, x] = [(); 2].map(|()| random.between(6.0, SIDE as f32 - 6.0));
        let size = random.between(3.0, 6.0);
        for (place, pixel) in pixels.iter_mut().enumerate() {
            let [row, column] = [place / SIDE, place % SIDE].map(|at| at as f32);
            if (row - y).hypot(column - x) < size {
                *pixel = 0.3 + 0.5 * *pixel;
                mask[place] = 1.0;
            }
        }
        [pixels, mask]
    }
}

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

    /// Returns the images and the masks, `[N, H, W, 1]`.
    fn batch(&self, draws: &Draws<'_>) -> Result<Vec<TensorData>, DatasetError> {
        let mut parts = [Vec::new(), Vec::new()];
        for draw in draws.iter() {
            let is_mirrored = self.1 == 0 && draw.random().coin();
            for (part, mut drawn) in parts.iter_mut().zip(self.draw(draw.index)) {
                if is_mirrored {
                    drawn.chunks_mut(SIDE).for_each(<[f32]>::reverse);
                }
                part.extend(drawn);
            }
        }
        let shape = [draws.len(), SIDE, SIDE, 1];
        Ok(parts.map(|part| TensorData::new(part, shape)).into())
    }

    fn weight(&self, _draw: Draw) -> f64 {
        (SIDE * SIDE) as f64
    }
}

#[derive(Module, Debug)]
struct Layer {
    conv: Conv2d,
    norm: BatchNorm,
}

impl Layer {
    fn new(channels: [usize; 2], stride: usize, device: &Device) -> Self {
        let conv = Conv2dConfig::new(channels, [3, 3]).with_stride([stride; 2]);
        let conv = conv.with_padding(Explicit(1, 1, 1, 1)).with_bias(false);
        Self {
            conv: conv.init(device),
            norm: BatchNormConfig::new(channels[1]).init(device),
        }
    }

    fn forward(&self, x: impl Into<Features>) -> Features {
        relu(self.norm.forward(self.conv.forward(x)))
    }
}

/// The network, with two scales.
#[derive(Module, Debug)]
pub(crate) struct UNet {
    outer: Layer,
    inner: Layer,
    joined: Layer,
    head: Conv2d,
}

impl UNet {
    fn forward(&self, images: Tensor<4>) -> Tensor<4> {
        let outer = self.outer.forward(in_activations(images));
        let inner = self.inner.forward(outer.clone());
        let both = Tensor::cat(vec![Tensor::from(outer), doubled(inner.into())], 3);
        let logits: Tensor<4> = self.head.forward(self.joined.forward(both)).into();
        logits.cast(FloatDType::F32)
    }
}

/// Returns images of twice the height and width, in which each pixel is four equal ones.
fn doubled(x: Tensor<4>) -> Tensor<4> {
    let [n, h, w, c] = x.dims();
    let four = x.reshape([n, h, 1, w, 1, c]).expand([n, h, 2, w, 2, c]);
    four.reshape([n, 2 * h, 2 * w, c])
}

/// The task: to find the pixels of the disc.
#[derive(Debug, Default)]
pub(crate) struct Segmentation;

impl Task for Segmentation {
    const NAME: &'static str = "unet";
    type Args = NoArgs;
    type Model = UNet;
    type Samples = Drawings;
    type Outputs = Tensor<4>;

    fn open(_args: &NoArgs, _opening: &Opening<'_>) -> Result<Splits<Drawings>> {
        let train = Drawings("drawings train", 0, 500);
        Ok(Splits::of_two(train, Drawings("drawings test", 1, 100)))
    }

    fn build(&self, _args: &NoArgs, request: &ModelRequest<'_>) -> Result<UNet> {
        let device = request.device;
        Ok(UNet {
            outer: Layer::new([1, 16], 1, device),
            inner: Layer::new([16, 32], 2, device),
            joined: Layer::new([48, 16], 1, device),
            head: Conv2dConfig::new([16, 1], [1, 1]).init(device),
        })
    }

    fn forward(&self, model: &UNet, batch: &Arrays) -> Result<Tensor<4>> {
        Ok(model.forward(batch.floats(0)))
    }

    fn loss_sum(&self, logits: &Tensor<4>, batch: &Arrays) -> Tensor<1> {
        let signs = batch.floats::<4>(1) * 2.0 - 1.0;
        log_sigmoid(signs * logits.clone()).sum().neg()
    }

    fn metrics(&self) -> Vec<Arc<dyn TaskMetric<Self>>> {
        vec![Arc::new(Iou)]
    }

    fn goal(&self) -> Goal {
        Goal::max("iou")
    }

    fn supports_pass_context(&self, _model: &UNet) -> bool {
        true
    }
}

/// Intersection over union of found and true pixels.
#[derive(Debug)]
struct Iou;

impl TaskMetric<Segmentation> for Iou {
    fn name(&self) -> String {
        "iou".to_owned()
    }

    fn sums(&self, logits: &Tensor<4>, batch: &Arrays) -> Tensor<1> {
        let [found, mask] = [logits.clone().greater_elem(0.0).float(), batch.floats(1)];
        let both = (found.clone() * mask.clone()).sum();
        Tensor::cat(vec![both.clone(), (found + mask).sum() - both], 0)
    }

    fn value(&self, sums: &[f64], _num_samples: f64) -> f64 {
        sums[0] / sums[1]
    }
}

#[allow(dead_code, reason = "tests include this file")]
fn main() -> ExitCode {
    task_program::<Segmentation>()
}
