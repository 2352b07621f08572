//! Prints time, GFLOP/s and share of the measured FMA peak of each convolution of the CIFAR nets, on one core.
//!
//! `taskset -c 1 cargo run --release --example bench_conv [avx512bf16|avx512|avx2|portable] [direct] [bf16] [batch]`
//! `bf16`: activations and their gradients are stored as bf16 instead of f32.
#![allow(clippy::print_stdout)] // Printing is its job.

use half::bf16;
use kernels::Element;
use kernels::conv2d::{Algorithm, Conv2d, Conv2dShape};
use kernels::simd::{Isa, measure_fma_gflops};
use std::time::Instant;

const REPETITIONS: usize = 15;

fn main() {
    let isa = match std::env::args().nth(1).as_deref() {
        Some("avx512bf16") => Isa::Avx512Bf16,
        Some("avx512") => Isa::Avx512,
        Some("avx2") => Isa::Avx2Fma,
        Some("portable") => Isa::Portable,
        _ => Isa::detect(),
    };
    let algorithm = if std::env::args().any(|word| word == "direct") { Algorithm::Direct } else { Algorithm::Auto };
    let batch = std::env::args().find_map(|word| word.parse().ok()).unwrap_or(128);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("one thread can be had");
    let bf16_storage = std::env::args().any(|word| word == "bf16");
    pool.install(
        || if bf16_storage { bench::<bf16>(isa, algorithm, batch) } else { bench::<f32>(isa, algorithm, batch) },
    );
}

fn bench<E: Element>(isa: Isa, algorithm: Algorithm, batch: usize) {
    let peak = measure_fma_gflops(isa, 200);
    println!(
        "{isa:?}, {} storage: peak {peak:.1} GFLOP/s; GFLOP/s and share of it; minimum of {REPETITIONS}",
        std::any::type_name::<E>()
    );
    let heads = ["forward", "with statistics", "data gradient", "weight gradient"].map(|head| format!("{head:>16}"));
    println!("{:24} {:>8} {}   pack (us)", format!("layer, batch {batch}"), "MFLOP", heads.join(" "));
    let layers = [
        (32, 3, 16, 3, 1),
        (32, 16, 16, 3, 1),
        (32, 16, 32, 3, 2),
        (16, 32, 32, 3, 1),
        (16, 32, 64, 3, 2),
        (8, 64, 64, 3, 1),
        (32, 16, 32, 1, 2),
        (56, 64, 64, 3, 1),
        (14, 256, 256, 3, 1),
        (7, 512, 512, 3, 1),
        (56, 64, 256, 1, 1),
        (14, 256, 1024, 1, 1),
    ];
    for (extent, in_channels, out_channels, kernel, stride) in layers {
        let batch = if matches!(extent, 56 | 14 | 7) { 8 } else { batch };
        let (height, width, padding) = (extent, extent, kernel / 2);
        let shape = Conv2dShape { batch, height, width, in_channels, out_channels, kernel, stride, padding };
        let (rates, pack_us) = rates::<E>(Conv2d::with(shape, algorithm, isa));
        let name = format!("{in_channels}->{out_channels} {extent}x{extent} k{kernel} s{stride}");
        let columns = rates.map(|rate| format!("{rate:8.1} ({:3.0} %)", 100.0 * rate / peak));
        println!("{name:24} {:8.0} {} {pack_us:9.1}", shape.flops() / 1e6, columns.join(" "));
    }
}

fn rates<E: Element>(conv: Conv2d) -> ([f64; 4], f64) {
    let shape = *conv.shape();
    let values = |len: usize| (0..len).map(|i| ((i * 7919 + 13) % 1024) as f32 / 512.0 - 1.0).collect::<Vec<f32>>();
    let stored = |len: usize| values(len).into_iter().map(E::from_f32).collect::<Vec<E>>();
    let (x, w, dy) = (stored(shape.input_len()), values(shape.weight_len()), stored(shape.output_len()));
    let (mut y, mut dx, mut dw) = (dy.clone(), x.clone(), w.clone());
    let mut packed_forward = values(conv.packed_forward_len());
    conv.pack_forward(&w, &mut packed_forward);
    let pack = best(|| conv.pack_forward(&w, &mut packed_forward));
    let mut workspace_forward = values(conv.forward_workspace_len());
    let forward = best(|| conv.forward(&x, &packed_forward, &mut y, &mut workspace_forward, None));
    let mut packed = values(conv.packed_data_gradient_len());
    conv.pack_data_gradient(&w, &mut packed);
    let mut workspace = values(conv.data_gradient_workspace_len());
    let mut moments = vec![0.0; 2 * shape.out_channels];
    let statistics = best(|| conv.forward(&x, &packed_forward, &mut y, &mut workspace_forward, Some(&mut moments)));
    let data = best(|| conv.data_gradient(&dy, &packed, None, &mut dx, &mut workspace));
    let mut workspace = values(conv.weight_gradient_workspace_len());
    let weight = best(|| conv.weight_gradient(&x, &dy, &mut dw, &mut workspace));
    ([forward, statistics, data, weight].map(|seconds| shape.flops() / seconds / 1e9), pack * 1e6)
}

fn best(mut work: impl FnMut()) -> f64 {
    work();
    let mut best = f64::INFINITY;
    for _ in 0..REPETITIONS {
        let start = Instant::now();
        work();
        best = best.min(start.elapsed().as_secs_f64());
    }
    best
}
