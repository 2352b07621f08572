//! Measures operations outside fused layers, forward and backward, on one thread.
//!
//! In: words of the command line; only operations whose name contains one of them are measured.
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
use layers::backend::{Loss, loss_sum};
use layers::timing::kernel_times;
use layers::{
    AttentionMask, AvgPool2dConfig, Conv2dConfig, ConvTranspose2dConfig, Features, GroupNormConfig,
    Interpolate2dConfig, InterpolateMode, MaxPool2dConfig, attention, fallback_ops, gelu,
    hard_swish, leaky_relu, log_softmax, masked_attention, sigmoid, silu, softmax, tanh,
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
        for (dtype, format) in [("f32", FloatDType::F32), ("bf16", FloatDType::BF16)] {
            let x = Tensor::<D>::random(shape, Distribution::Normal(0.0, 1.0), &self.device)
                .cast(format)
                .detach()
                .require_grad();
            let pass = || {
                let gradients = operation(x.clone()).backward();
                assert!(x.grad(&gradients).is_some(), "{name}: x has a gradient");
            };
            pass();
            // burn's backward pass begins with a tensor of ones, which no training step needs.
            let y = operation(x.clone()).detach();
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

fn main() {
    rayon::ThreadPoolBuilder::new()
        .num_threads(1)
        .build_global()
        .expect("the first pool of the program");
    let bench = Bench {
        words: std::env::args().skip(1).collect(),
        device: Device::flex().autodiff(),
    };
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
    let max = MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init();
    bench.run("max pool 2x2", IMAGES, |x| {
        Tensor::<4>::from(max.forward(x))
    });
    let average = AvgPool2dConfig::new([2, 2]).with_strides([2, 2]).init();
    bench.run("average pool 2x2", IMAGES, |x| {
        Tensor::<4>::from(average.forward(x))
    });
    bench.run("relu", IMAGES, |x| {
        Tensor::<4>::from(layers::relu(Features::from(x)))
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
    let depthwise = conv([64, 64], [9, 9]).with_groups(64);
    bench.conv("depthwise 9x9", IMAGES, depthwise.with_padding(pad(4, 4)));
    let doubled = conv([64, 128], [3, 3]).with_groups(64);
    bench.conv("depthwise doubled", IMAGES, doubled.with_padding(pad(1, 1)));
    let transposed = ConvTranspose2dConfig::new([64, 64], [2, 2]).with_stride([2, 2]);
    let transposed = transposed.init(&bench.device);
    bench.run("transposed convolution 2x2", IMAGES, |x| {
        Tensor::<4>::from(transposed.forward(x))
    });
}
