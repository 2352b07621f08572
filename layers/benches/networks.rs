//! Measures networks of several families, forward and backward, in f32 on one thread.
//!
//! In: names of networks, none for all. `--avx2` forces AVX2, as in the example `ops`.
//! Out: one JSON line for each network: `network`, `samples`, `parameters`, `ms` and `kernels_ms`
//! (the part in Lockstep's kernels) of the fastest step, and `fallbacks` of the program so far.
//! Invariant: the networks are those of `lab/peers/networks.py`, which joins both times.
#![allow(clippy::print_stdout, reason = "printing is its job")]

use std::cell::Cell;
use std::time::{Duration, Instant};

use burn::module::{Initializer, Module};
use burn::nn::PaddingConfig2d::Explicit;
use burn::tensor::{Device, Distribution, Int, Tensor};
use layers::backend::{Computation, Isa, Loss, loss_sum};
use layers::timing::kernel_times;
use layers::{
    AttentionMask, AvgPool2dConfig, BatchNormConfig, Conv2dConfig, ConvTranspose2dConfig, Features,
    GroupNormConfig, LayerNormConfig, Linear, LinearConfig, MaxPool2dConfig, PassContext,
    fallback_ops, gelu, global_avg_pool, linear, log_softmax, masked_attention, relu, sigmoid,
    silu,
};

const DURATION: Duration = Duration::from_secs(2);
const MIN_STEPS: usize = 3;
const CLASSES: usize = 10;

type Layer = Box<dyn Fn(Features) -> Features>;
type Tokens = Box<dyn Fn(Tensor<3>) -> Tensor<3>>;
/// A forward pass to the loss of a batch.
type Step = Box<dyn Fn() -> Tensor<1>>;

fn chain(layers: impl IntoIterator<Item = Layer>) -> Layer {
    let layers = Vec::from_iter(layers);
    Box::new(move |x| layers.iter().fold(x, |x, layer| layer(x)))
}

/// Makes layers and counts their parameters.
struct Maker {
    device: Device,
    num_params: Cell<usize>,
}

impl Maker {
    fn counted<M: Module>(&self, module: M) -> M {
        self.num_params
            .set(self.num_params.get() + module.num_params());
        module
    }

    fn conv(&self, channels: [usize; 2], side: usize, stride: usize, groups: usize) -> Layer {
        let border = side / 2;
        let conv = Conv2dConfig::new(channels, [side; 2])
            .with_stride([stride; 2])
            .with_groups(groups)
            .with_padding(Explicit(border, border, border, border))
            .with_bias(false);
        let conv = self.counted(conv.init(&self.device));
        Box::new(move |x| conv.forward(x))
    }

    fn norm(&self, channels: usize) -> Layer {
        let norm = self.counted(BatchNormConfig::new(channels).init(&self.device));
        Box::new(move |x| norm.forward(x))
    }

    fn group_norm(&self, channels: usize) -> Layer {
        let norm = self.counted(GroupNormConfig::new(8, channels).init(&self.device));
        Box::new(move |x| norm.forward(x))
    }

    fn conv_norm(&self, channels: [usize; 2], side: usize, stride: usize, groups: usize) -> Layer {
        let conv = self.conv(channels, side, stride, groups);
        chain([conv, self.norm(channels[1])])
    }

    fn linear(&self, channels_in: usize, channels_out: usize) -> Linear {
        self.counted(LinearConfig::new(channels_in, channels_out).init(&self.device))
    }

    /// Squeeze and excitation (Hu et al. 2017, arXiv 1709.01507).
    fn gate(
        &self,
        channels: usize,
        squeezed: usize,
        function: fn(Tensor<2>) -> Tensor<2>,
    ) -> Layer {
        let [first, second] =
            [[channels, squeezed], [squeezed, channels]].map(|[from, to]| self.linear(from, to));
        Box::new(move |x| {
            let means = first.forward(global_avg_pool(x.clone()));
            let gate = sigmoid(second.forward(function(means)));
            x * gate.unsqueeze_dims::<4>(&[1, 2])
        })
    }

    /// Computes the loss of classified images of 32 x 32 pixels.
    fn classifier(&self, layers: Vec<Layer>, channels: usize, images: usize) -> Step {
        let (trunk, last) = (chain(layers), self.linear(channels, CLASSES));
        let shape = [images, 32, 32, 3];
        let x = Tensor::<4>::random(shape, Distribution::Normal(0.0, 1.0), &self.device);
        let targets = Tensor::<2>::eye(CLASSES, &self.device).repeat_dim(0, images);
        let targets = targets.narrow(0, 0, images);
        Box::new(move || {
            let logits = last.forward(global_avg_pool(trunk(x.clone().into())));
            let loss = loss_sum(Loss::SoftmaxCrossEntropy, logits, targets.clone());
            loss.expect("on Flex")
        })
    }

    /// ResNeXt-29, 32x4d (Xie et al. 2016, arXiv 1611.05431), with squeeze and excitation.
    fn se_resnext(&self) -> Step {
        let mut layers = vec![self.conv_norm([3, 64], 3, 1, 1), Box::new(relu)];
        let mut from = 64;
        for (to, first_stride) in [(256, 1), (512, 2), (1024, 2)] {
            for block in 0..3 {
                let (width, stride) = (to / 2, if block == 0 { first_stride } else { 1 });
                let body = chain([
                    self.conv_norm([from, width], 1, 1, 1),
                    Box::new(relu),
                    self.conv_norm([width, width], 3, stride, 32),
                    Box::new(relu),
                    self.conv_norm([width, to], 1, 1, 1),
                    self.gate(to, to / 16, rectified),
                ]);
                let shortcut = (from != to).then(|| self.conv_norm([from, to], 1, stride, 1));
                layers.push(residual(body, shortcut, true));
                from = to;
            }
        }
        self.classifier(layers, from, 16)
    }

    /// ResNet-20 with group norms of 8 groups (Wu and He 2018, arXiv 1803.08494).
    fn group_norm_resnet(&self) -> Step {
        let layer = |channels: [usize; 2], side, stride| {
            chain([
                self.conv(channels, side, stride, 1),
                self.group_norm(channels[1]),
            ])
        };
        let mut layers = vec![layer([3, 16], 3, 1), Box::new(relu)];
        let mut from = 16;
        for to in [16, 32, 64] {
            for _ in 0..3 {
                let stride = if from == to { 1 } else { 2 };
                let body = chain([
                    layer([from, to], 3, stride),
                    Box::new(relu),
                    layer([to, to], 3, 1),
                ]);
                let shortcut = (from != to).then(|| layer([from, to], 1, stride));
                layers.push(residual(body, shortcut, true));
                from = to;
            }
        }
        self.classifier(layers, from, 64)
    }

    /// DenseNet-BC of 40 layers, growth 12 (Huang et al. 2016, arXiv 1608.06993).
    fn densenet(&self) -> Step {
        const GROWTH: usize = 12;
        let mut channels = 2 * GROWTH;
        let mut layers = vec![self.conv([3, channels], 3, 1, 1)];
        for stage in 0..3 {
            for _ in 0..6 {
                let body = chain([
                    self.norm(channels),
                    Box::new(relu),
                    self.conv([channels, 4 * GROWTH], 1, 1, 1),
                    self.norm(4 * GROWTH),
                    Box::new(relu),
                    self.conv([4 * GROWTH, GROWTH], 3, 1, 1),
                ]);
                layers.push(Box::new(move |x| {
                    let added = body(x.clone());
                    Features::cat(vec![x, added])
                }));
                channels += GROWTH;
            }
            layers.extend([self.norm(channels), Box::new(relu)]);
            if stage < 2 {
                let pool = AvgPool2dConfig::new([2, 2]).with_strides([2, 2]).init();
                layers.push(self.conv([channels, channels / 2], 1, 1, 1));
                layers.push(Box::new(move |x| pool.forward(x)));
                channels /= 2;
            }
        }
        self.classifier(layers, channels, 32)
    }

    /// Inverted residuals with squeeze and excitation and SiLU (Tan and Le 2019, arXiv
    /// 1905.11946).
    fn efficientnet(&self) -> Step {
        let mut layers = vec![self.conv_norm([3, 32], 3, 1, 1), Box::new(silu) as Layer];
        let mut from = 32;
        for (to, widening, count, first_stride, side) in [
            (16, 1, 1, 1, 3),
            (24, 6, 2, 1, 3),
            (40, 6, 2, 2, 5),
            (80, 6, 3, 2, 3),
            (112, 6, 3, 1, 5),
            (192, 6, 2, 2, 5),
        ] {
            for block in 0..count {
                let (wide, stride) = (from * widening, if block == 0 { first_stride } else { 1 });
                let mut body = Vec::new();
                if widening > 1 {
                    body.extend([self.conv_norm([from, wide], 1, 1, 1), Box::new(silu)]);
                }
                body.extend([
                    self.conv_norm([wide, wide], side, stride, wide),
                    Box::new(silu),
                    self.gate(wide, from / 4, silu),
                    self.conv_norm([wide, to], 1, 1, 1),
                ]);
                let body = chain(body);
                layers.push(if from == to && stride == 1 {
                    residual(body, None, false)
                } else {
                    body
                });
                from = to;
            }
        }
        layers.extend([self.conv_norm([from, 640], 1, 1, 1), Box::new(silu)]);
        self.classifier(layers, 640, 32)
    }

    /// A U-Net of three scales (Ronneberger et al. 2015, arXiv 1505.04597): the loss of each pixel.
    fn unet(&self) -> Step {
        let pair = |from, to| {
            chain([
                self.conv_norm([from, to], 3, 1, 1),
                Box::new(relu),
                self.conv_norm([to, to], 3, 1, 1),
                Box::new(relu),
            ])
        };
        let widths = [32, 64, 128];
        let down = [pair(3, 32), pair(32, 64), pair(64, 128)];
        let up = [64, 32].map(|to| {
            let config = ConvTranspose2dConfig::new([2 * to, to], [2, 2]).with_stride([2, 2]);
            let up = self.counted(config.init(&self.device));
            (up, pair(2 * to, to))
        });
        let last = self.linear(widths[0], 1);
        let pool = MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init();
        let shape = [8, 64, 64, 3];
        let x = Tensor::<4>::random(shape, Distribution::Normal(0.0, 1.0), &self.device);
        let masks = Tensor::<4>::random([8, 64, 64, 1], Distribution::Bernoulli(0.5), &self.device);
        let num_pixels = 8 * 64 * 64;
        let masks = masks.reshape([num_pixels, 1]);
        Box::new(move || {
            let outer = down[0](x.clone().into());
            let middle = down[1](pool.forward(outer.clone()));
            let inner = down[2](pool.forward(middle.clone()));
            let skips = [middle, outer];
            let y = up.iter().zip(skips).fold(inner, |y, ((up, pair), skip)| {
                pair(Features::cat(vec![skip, up.forward(y)]))
            });
            let logits = last.forward(Tensor::<4>::from(y)).reshape([num_pixels, 1]);
            let loss = loss_sum(Loss::SigmoidCrossEntropy, logits, masks.clone());
            loss.expect("on Flex")
        })
    }

    fn layer_norm(&self, channels: usize) -> Tokens {
        let norm = self.counted(LayerNormConfig::new(channels).init(&self.device));
        Box::new(move |x| norm.forward(x))
    }

    fn mlp(&self, channels: usize, wide: usize) -> Tokens {
        let [first, second] =
            [[channels, wide], [wide, channels]].map(|[from, to]| self.linear(from, to));
        Box::new(move |x| second.forward(gelu(first.forward(x))))
    }

    /// The character GPT of nanoGPT's settings for a CPU: 4 blocks, 4 heads, 64 characters; and a
    /// wide one of 3 blocks, 12 heads, 768 channels.
    fn gpt(&self, [num_blocks, heads, width, tokens, samples]: [usize; 5]) -> Step {
        const VOCABULARY: usize = 128;
        let table = |rows| {
            self.num_params.set(self.num_params.get() + rows * width);
            let table = Initializer::Normal {
                mean: 0.0,
                std: 0.02,
            };
            table.init::<2, _>([rows, width], &self.device)
        };
        let (characters, positions) = (table(VOCABULARY), table(tokens));
        let blocks = Vec::from_iter((0..num_blocks).map(|_| {
            (
                [self.layer_norm(width), self.layer_norm(width)],
                [self.linear(width, 3 * width), self.linear(width, width)],
                self.mlp(width, 4 * width),
            )
        }));
        let norm = self.layer_norm(width);
        let count = samples * tokens;
        let ids = Tensor::<1, Int>::arange(0..count as i64, &self.device);
        let inputs = (ids * 7).remainder_scalar(VOCABULARY as i64);
        let targets = inputs.clone().reshape([samples, tokens, 1]);
        Box::new(move || {
            let embedded = characters.val().select(0, inputs.clone());
            let x = embedded.reshape([samples, tokens, width]);
            let x = x + positions.val().unsqueeze::<3>();
            let x = blocks.iter().fold(x, |x, (norms, [qkv, proj], mlp)| {
                let qkv = qkv.forward(norms[0](x.clone()));
                let x = x + proj.forward(masked_attention(qkv, heads, AttentionMask::Causal));
                let hidden = mlp(norms[1](x.clone()));
                x + hidden
            });
            let logits = linear(norm(x), characters.val().transpose(), None);
            log_softmax(logits, 2)
                .gather(2, targets.clone())
                .sum()
                .neg()
        })
    }

    /// Mixer-S/4 with half the blocks (Tolstikhin et al. 2021, arXiv 2105.01601).
    fn mixer(&self) -> Step {
        const WIDTH: usize = 512;
        let patches = self.linear(48, WIDTH);
        let blocks = [(); 4].map(|()| {
            let norms = [self.layer_norm(WIDTH), self.layer_norm(WIDTH)];
            (norms, self.mlp(64, 256), self.mlp(WIDTH, 4 * WIDTH))
        });
        let norm = self.layer_norm(WIDTH);
        let trunk: Layer = Box::new(move |x| {
            let x = Tensor::<4>::from(x);
            let [n, ..] = x.dims();
            let windows = x.reshape([n, 8, 4, 8, 4, 3]).permute([0, 1, 3, 2, 4, 5]);
            let x = patches.forward(windows.reshape([n, 64, 48]));
            let x = blocks.iter().fold(x, |x, (norms, tokens, channels)| {
                let mixed = tokens(norms[0](x.clone()).swap_dims(1, 2)).swap_dims(1, 2);
                let x = x + mixed;
                let mixed = channels(norms[1](x.clone()));
                x + mixed
            });
            norm(x).reshape([n, 8, 8, WIDTH]).into()
        });
        self.classifier(vec![trunk], WIDTH, 16)
    }
}

fn rectified(x: Tensor<2>) -> Tensor<2> {
    let x = Tensor::<4>::from(relu(x.unsqueeze_dims::<4>(&[1, 2])));
    x.squeeze_dims(&[1, 2])
}

/// Adds the input, or its shortcut, to the result of a body.
fn residual(body: Layer, shortcut: Option<Layer>, is_rectified: bool) -> Layer {
    Box::new(move |x| {
        let skip = match &shortcut {
            Some(shortcut) => shortcut(x.clone()),
            None => x.clone(),
        };
        let sum = body(x) + skip;
        if is_rectified { relu(sum) } else { sum }
    })
}

fn kernel_seconds() -> f64 {
    kernel_times().iter().map(|kernel| kernel.seconds).sum()
}

fn measure(name: &str, samples: usize, make: impl FnOnce(&Maker) -> Step) {
    let words: Vec<_> = std::env::args()
        .skip(1)
        .filter(|word| word != "--avx2")
        .collect();
    if !words.is_empty() && !words.iter().any(|word| word == name) {
        return;
    }
    let maker = Maker {
        device: Device::flex().autodiff(),
        num_params: Cell::new(0),
    };
    let step = make(&maker);
    drop(step().backward());
    let (mut best, mut kernels) = (f64::INFINITY, 0.0);
    let (mut count, end) = (0, Instant::now() + DURATION);
    while count < MIN_STEPS || Instant::now() < end {
        let (before, start) = (kernel_seconds(), Instant::now());
        drop(step().backward());
        let seconds = start.elapsed().as_secs_f64();
        if seconds < best {
            (best, kernels) = (seconds, kernel_seconds() - before);
        }
        count += 1;
    }
    let [ms, kernels_ms] = [best * 1e3, kernels * 1e3];
    let parameters = maker.num_params.get();
    let fallbacks = fallback_ops();
    println!(
        r#"{{"network": "{name}", "samples": {samples}, "parameters": {parameters}, "ms": {ms:.3}, "kernels_ms": {kernels_ms:.3}, "fallbacks": {fallbacks:?}}}"#
    );
}

fn main() {
    // As in training.
    kernels::arena::keep_freed_memory();
    rayon::ThreadPoolBuilder::new()
        .num_threads(1)
        .build_global()
        .expect("the first pool of the program");
    let isa = if std::env::args().any(|word| word == "--avx2") {
        Isa::Avx2Fma
    } else {
        Isa::detect()
    };
    let computation = Computation {
        isa,
        ..Computation::default()
    };
    PassContext::from(computation).scope(|| {
        measure("se-resnext29", 16, Maker::se_resnext);
        measure("gpt", 12, |maker| maker.gpt([4, 4, 128, 64, 12]));
        measure("gpt-wide", 2, |maker| maker.gpt([3, 12, 768, 128, 2]));
        measure("mixer", 16, Maker::mixer);
        measure("unet", 8, Maker::unet);
        measure("group-norm-resnet20", 64, Maker::group_norm_resnet);
        measure("densenet-bc40", 32, Maker::densenet);
        measure("efficientnet", 32, Maker::efficientnet);
    });
}
