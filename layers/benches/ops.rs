//! Measures operations outside fused layers, forward and backward, on one thread.
//!
//! In: words of the command line; only operations whose name contains one of them are measured.
//! `--avx2` forces AVX2; PyTorch needs `ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2` then.
//! Out: one JSON line per operation: `operation`, `dtype`, `ms`, `kernels_ms` (the part in
//! Lockstep's kernels), and `fallback`, true if burn computes it.
//! Invariant: a time is the minimum over repetitions, less the time of the gradient that a pass
//! begins with, but at least the part in kernels. Gradients are of the input and of all parameters.
//!
//! `cargo run --release -p lockstep-layers --example ops -- softmax`; `lab/peers/ops.py` joins the
//! lines with PyTorch's.
#![allow(clippy::print_stdout, reason = "printing is its job")]

use std::time::{Duration, Instant};

use burn::nn::PaddingConfig2d::{Explicit, Valid};
use burn::tensor::{Device, Distribution, FloatDType, Tensor};
use layers::backend::{Activations, Computation, Isa, Loss, loss_sum};
use layers::timing::kernel_times;
use layers::{
    AttentionMask, AvgPool2dConfig, BatchNorm, BatchNormConfig, Conv2d, Conv2dConfig,
    ConvTranspose2dConfig, DropoutConfig, Features, GroupNormConfig, Interpolate2dConfig,
    InterpolateMode, LayerNormConfig, Linear, LinearConfig, MaxPool2dConfig, PassContext,
    attention, fallback_ops, gelu, global_avg_pool, hard_swish, leaky_relu, log_softmax,
    masked_attention, relu, sigmoid, silu, softmax, tanh,
};

/// Duration of the repetitions of an operation, and the least number of them.
const DURATION: Duration = Duration::from_millis(400);
const MIN_REPETITIONS: usize = 5;

/// Images of the operations on features.
const IMAGES: [usize; 4] = [16, 32, 32, 64];

fn kernel_seconds() -> f64 {
    kernel_times().iter().map(|kernel| kernel.seconds).sum()
}

struct Bench {
    words: Vec<String>,
    device: Device,
}

impl Bench {
    /// Measures an operation in f32 and bf16.
    fn run<const D: usize, const E: usize>(
        &self,
        name: &str,
        shape: [usize; D],
        operation: impl Fn(Tensor<D>) -> Tensor<E>,
    ) {
        if !self.words.is_empty() && !self.words.iter().any(|word| name.contains(word)) {
            return;
        }
        let noted = fallback_ops().len();
        for (dtype, format, activations) in [
            ("f32", FloatDType::F32, Activations::F32),
            ("bf16", FloatDType::BF16, Activations::Bf16),
        ] {
            let mut context = PassContext::current();
            context.computation.activations = activations;
            let x = Tensor::<D>::random(shape, Distribution::Normal(0.0, 1.0), &self.device)
                .cast(format)
                .detach()
                .require_grad();
            let pass = || {
                let y = context.clone().scope(|| operation(x.clone()));
                let gradients = y.backward();
                assert!(x.grad(&gradients).is_some(), "{name}: x has a gradient");
            };
            pass();
            // burn's backward pass begins with a tensor of ones, which no training step needs.
            let y = context.clone().scope(|| operation(x.clone()).detach());
            let end = Instant::now() + DURATION;
            let mut best = Duration::MAX;
            let mut seeding = Duration::MAX;
            let mut kernels = f64::INFINITY;
            let mut count = 0;
            while count < MIN_REPETITIONS || Instant::now() < end {
                let before = kernel_seconds();
                let start = Instant::now();
                pass();
                best = best.min(start.elapsed());
                kernels = kernels.min(kernel_seconds() - before);
                let leaf = y.clone().require_grad();
                let start = Instant::now();
                drop(leaf.backward());
                seeding = seeding.min(start.elapsed());
                count += 1;
            }
            let kernels = kernels * 1e3;
            // Both are noisy, and a pass takes at least the time of its kernels.
            let ms = (best.saturating_sub(seeding).as_secs_f64() * 1e3).max(kernels);
            let fallback = fallback_ops().len() > noted;
            println!(
                r#"{{"operation": "{name}", "dtype": "{dtype}", "ms": {ms:.4}, "kernels_ms": {kernels:.4}, "fallback": {fallback}}}"#
            );
        }
    }

    fn conv(&self, name: &str, shape: [usize; 4], config: Conv2dConfig) {
        let conv = config.init(&self.device);
        self.run(name, shape, |x| Tensor::from(conv.forward(x)));
    }
}

/// A bottleneck block of 32 groups of 4 channels with squeeze and excitation (Xie et al. 2016,
/// arXiv 1611.05431; Hu et al. 2017, arXiv 1709.01507).
struct SeResNeXt {
    layers: [(Conv2d, BatchNorm); 3],
    gate: [Linear; 2],
}

impl SeResNeXt {
    fn new(device: &Device) -> Self {
        let layer = |[from, to]: [usize; 2], side: usize, groups| {
            let border = side / 2;
            let conv = Conv2dConfig::new([from, to], [side; 2])
                .with_padding(Explicit(border, border, border, border))
                .with_groups(groups)
                .with_bias(false);
            (conv.init(device), BatchNormConfig::new(to).init(device))
        };
        let linear = |from, to| LinearConfig::new(from, to).init(device);
        Self {
            layers: [
                layer([256, 128], 1, 1),
                layer([128, 128], 3, 32),
                layer([128, 256], 1, 1),
            ],
            gate: [linear(256, 16), linear(16, 256)],
        }
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let x = Features::from(x);
        let layer = |index: usize, x: Features| {
            let (conv, norm) = &self.layers[index];
            norm.forward(conv.forward(x))
        };
        let y = layer(2, relu(layer(1, relu(layer(0, x.clone())))));
        let squeezed = self.gate[0].forward(global_avg_pool(y.clone()));
        let squeezed = Tensor::<4>::from(relu(squeezed.unsqueeze_dims::<4>(&[1, 2])));
        let gate = sigmoid(self.gate[1].forward(squeezed));
        Tensor::from(relu(y * gate + x))
    }
}

fn main() {
    // As in training.
    kernels::arena::keep_freed_memory();
    rayon::ThreadPoolBuilder::new()
        .num_threads(1)
        .build_global()
        .expect("the first pool of the program");
    let (flags, words): (Vec<_>, Vec<_>) =
        std::env::args().skip(1).partition(|word| word == "--avx2");
    let isa = if flags.is_empty() {
        Isa::detect()
    } else {
        Isa::Avx2Fma
    };
    let bench = Bench {
        words,
        device: Device::flex().autodiff(),
    };
    let computation = Computation {
        isa,
        ..Computation::default()
    };
    PassContext::from(computation).scope(|| measure(&bench));
}

fn measure(bench: &Bench) {
    let dropout = DropoutConfig::new(0.1).init();
    bench.run("dropout", IMAGES, |x| dropout.forward(x));
    bench.run("leaky relu", IMAGES, |x| leaky_relu(x, 0.01));
    bench.run("sigmoid", IMAGES, sigmoid);
    bench.run("tanh", IMAGES, tanh);
    bench.run("hard swish", IMAGES, hard_swish);
    bench.run("gelu", IMAGES, gelu);
    bench.run("silu", IMAGES, silu);
    bench.run("softmax", [512, 1000], |x: Tensor<2>| softmax(x, 1));
    bench.run("softmax of 10", [65536, 10], |x: Tensor<2>| softmax(x, 1));
    bench.run("log softmax", [512, 1000], |x: Tensor<2>| log_softmax(x, 1));
    let shares = Tensor::<2>::eye(512, &bench.device).pad([(0, 0), (0, 488)], 0.0);
    bench.run("cross entropy", [512, 1000], |x| {
        loss_sum(Loss::SoftmaxCrossEntropy, x, shares.clone()).expect("on Flex")
    });
    bench.run("attention", [8, 256, 3 * 256], |x| attention(x, 4));
    bench.run("causal attention", [8, 256, 3 * 256], |x| {
        masked_attention(x, 4, AttentionMask::Causal)
    });
    let norm = GroupNormConfig::new(8, 64).init(&bench.device);
    bench.run("group norm", IMAGES, |x| Tensor::<4>::from(norm.forward(x)));
    let norm = LayerNormConfig::new(256).init(&bench.device);
    bench.run("layer norm", [16, 256, 256], |x: Tensor<3>| norm.forward(x));
    let max = MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init();
    bench.run("max pool 2x2", IMAGES, |x| {
        Tensor::<4>::from(max.forward(x))
    });
    let average = AvgPool2dConfig::new([2, 2]).with_strides([2, 2]).init();
    bench.run("average pool 2x2", IMAGES, |x| {
        Tensor::<4>::from(average.forward(x))
    });
    bench.run("relu", IMAGES, |x| {
        Tensor::<4>::from(relu(Features::from(x)))
    });
    bench.run("cat", IMAGES, |x: Tensor<4>| {
        Tensor::<4>::from(Features::cat(vec![x.clone().into(), x.into()]))
    });
    let doubled = Interpolate2dConfig::new().with_scale_factor(Some([2.0; 2]));
    let nearest = doubled.clone().init();
    bench.run("nearest x2", IMAGES, |x| {
        Tensor::<4>::from(nearest.forward(x))
    });
    let bilinear = doubled.with_mode(InterpolateMode::Linear);
    let bilinear = bilinear.with_align_corners(false).init();
    bench.run("bilinear x2", IMAGES, |x| {
        Tensor::<4>::from(bilinear.forward(x))
    });
    let pad = |rows, columns| Explicit(rows, columns, rows, columns);
    let conv = |channels, kernel| Conv2dConfig::new(channels, kernel).with_bias(false);
    let grouped = conv([64, 64], [3, 3]).with_padding(pad(1, 1));
    bench.conv("convolution 4 groups", IMAGES, grouped.with_groups(4));
    let resnext = conv([128, 128], [3, 3]).with_padding(pad(1, 1));
    bench.conv(
        "convolution 32 groups",
        [8, 28, 28, 128],
        resnext.with_groups(32),
    );
    let strided = conv([64, 64], [3, 3]).with_stride([3, 3]);
    bench.conv("convolution stride 3", IMAGES, strided.with_padding(Valid));
    let dilated = conv([64, 64], [3, 3]).with_dilation([2, 2]);
    bench.conv(
        "convolution dilated",
        IMAGES,
        dilated.with_padding(pad(2, 2)),
    );
    let flat = conv([64, 64], [1, 7]).with_padding(pad(0, 3));
    bench.conv("convolution 1x7", IMAGES, flat);
    let tall = conv([64, 64], [7, 1]).with_padding(pad(3, 0));
    bench.conv("convolution 7x1", IMAGES, tall);
    let depthwise = conv([64, 64], [9, 9]).with_groups(64);
    bench.conv("depthwise 9x9", IMAGES, depthwise.with_padding(pad(4, 4)));
    let doubled = conv([64, 128], [3, 3]).with_groups(64);
    bench.conv("depthwise doubled", IMAGES, doubled.with_padding(pad(1, 1)));
    bench.run("SE-ResNeXt block", [8, 28, 28, 256], {
        let block = SeResNeXt::new(&bench.device);
        move |x| block.forward(x)
    });
    let transposed = ConvTranspose2dConfig::new([64, 64], [2, 2]).with_stride([2, 2]);
    let transposed = transposed.init(&bench.device);
    bench.run("transposed convolution 2x2", IMAGES, |x| {
        Tensor::<4>::from(transposed.forward(x))
    });
}
