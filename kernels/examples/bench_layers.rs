//! Prints a JSON line with time and GFLOP/s for each operation of ResNet-50's convolutions, on one core.
//!
//! `taskset -c 1 cargo run --release --example bench_layers -- [--isa avx2] [--direct] [batch] [seconds] [layer ...]`, a layer
//! as `256->512@56k1s2`: channels, extent of the input, kernel, stride. `onednn_layers.py --ours` joins it with oneDNN.
#![allow(clippy::print_stdout)] // Printing is its job.

use kernels::conv2d::{Algorithm, Conv2d, Conv2dShape};
use kernels::simd::Isa;
use std::time::{Duration, Instant};

const LAYERS: [&str; 21] = [
    "64->64@56k1s1",
    "64->256@56k1s1",
    "256->64@56k1s1",
    "256->128@56k1s1",
    "512->128@28k1s1",
    "128->512@28k1s1",
    "1024->256@14k1s1",
    "256->1024@14k1s1",
    "512->2048@7k1s1",
    "2048->512@7k1s1",
    "256->512@56k1s2",
    "512->1024@28k1s2",
    "1024->2048@14k1s2",
    "64->64@56k3s1",
    "128->128@28k3s1",
    "256->256@14k3s1",
    "512->512@7k3s1",
    "128->128@56k3s2",
    "256->256@28k3s2",
    "512->512@14k3s2",
    "3->64@224k7s2",
];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |word: &str| arguments.iter().any(|argument| argument == word);
    let algorithm = if has("--direct") { Algorithm::Direct } else { Algorithm::Auto };
    let isa = if has("avx2") { Isa::Avx2Fma } else { Isa::detect() };
    let mut numbers = arguments.iter().filter_map(|word| word.parse::<f64>().ok());
    let batch = numbers.next().unwrap_or(8.0) as usize;
    let time = Duration::from_secs_f64(numbers.next().unwrap_or(0.3));
    let named: Vec<&str> = arguments.iter().map(String::as_str).filter(|word| word.contains("->")).collect();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("one thread can be had");
    for layer in if named.is_empty() { &LAYERS[..] } else { &named } {
        let conv = Conv2d::with(shape(layer, batch), algorithm, isa);
        pool.install(|| bench(layer, &conv, time));
    }
}

/// The shape that `256->512@56k1s2` names.
fn shape(layer: &str, batch: usize) -> Conv2dShape {
    let numbers: Vec<usize> = layer.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect();
    let [in_channels, out_channels, extent, kernel, stride] = numbers[..] else {
        panic!("layer: expected a name as 256->512@56k1s2, got {layer}");
    };
    Conv2dShape { batch, height: extent, width: extent, in_channels, out_channels, kernel, stride, padding: kernel / 2 }
}

fn bench(layer: &str, conv: &Conv2d, time: Duration) {
    let shape = conv.shape();
    let [x, dy, w] = [shape.input_len(), shape.output_len(), shape.weight_len()].map(values);
    let [dx, y, dw] = [shape.input_len(), shape.output_len(), shape.weight_len()].map(values);
    let (forward, data) = (values(conv.packed_forward_len()), values(conv.packed_data_gradient_len()));
    let report = |operation: &str, work: &mut dyn FnMut()| {
        let seconds = best(time, work);
        let gflops = shape.flops() / seconds / 1e9;
        println!(
            r#"{{"layer": "{layer}", "batch": {}, "operation": "{operation}", "library": "kernels", "ms": {:.4}, "gflops": {gflops:.1}}}"#,
            shape.batch,
            seconds * 1e3
        );
    };
    report("pack forward", &mut || conv.pack_forward(w, forward));
    report("pack data gradient", &mut || conv.pack_data_gradient(w, data));
    let workspace = values(conv.forward_workspace_len());
    report("forward", &mut || conv.forward(x, forward, y, workspace, None));
    let workspace = values(conv.data_gradient_workspace_len());
    report("data gradient", &mut || conv.data_gradient(dy, data, None, dx, workspace));
    let workspace = values(conv.weight_gradient_workspace_len());
    report("weight gradient", &mut || conv.weight_gradient(x, dy, dw, workspace));
}

/// `len` values from the start of a cache line on, where PyTorch's tensors start too.
fn values(len: usize) -> &'static mut [f32] {
    let values: Vec<f32> = (0..len + 16).map(|i| ((i * 7919 + 13) % 1024) as f32 / 512.0 - 1.0).collect();
    let values = values.leak();
    let offset = values.as_ptr().align_offset(64);
    &mut values[offset..offset + len]
}

/// The minimum over at least five repetitions and about `time`, in seconds.
fn best(time: Duration, work: &mut dyn FnMut()) -> f64 {
    work();
    let (mut best, begin, mut count) = (f64::INFINITY, Instant::now(), 0);
    while count < 5 || begin.elapsed() < time {
        let start = Instant::now();
        work();
        best = best.min(start.elapsed().as_secs_f64());
        count += 1;
    }
    best
}
