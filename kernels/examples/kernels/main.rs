//! Measures every kernel of a training step: convolutions against the FMA peak, what moves memory against a copy.
//!
//! In: the flags of [`arguments::USAGE`]. Out: a table, or with `--json` a JSON line for each measurement (`report`).
//!
//! `cargo run --release --example kernels -- --layers cifar --dtype bf16`; `onednn_layers.py` joins it with oneDNN.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "printing is its job"
)]

mod arguments;
mod convolutions;
mod measure;
mod normalization;
mod pointwise;
mod report;
mod shapes;

use std::process::ExitCode;

use half::bf16;
use kernels::Element;
use kernels::simd::measure_fma_gflops;

use arguments::{Arguments, Dtype, USAGE};
use measure::Bench;
use shapes::Layers;

/// Runs of about a millisecond, of which the best is the peak.
const PEAK_REPETITIONS: usize = 200;

fn main() -> ExitCode {
    let arguments = match Arguments::parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(message) => {
            eprintln!("kernels: {message}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let pool = match rayon::ThreadPoolBuilder::new()
        .num_threads(arguments.threads)
        .build()
    {
        Ok(pool) => pool,
        Err(error) => {
            eprintln!("kernels: --threads {}: {error}", arguments.threads);
            return ExitCode::FAILURE;
        }
    };
    let peak_gflops = measure_fma_gflops(arguments.isa, PEAK_REPETITIONS);
    if !arguments.json {
        println!("{}", report::header(&arguments, peak_gflops));
    }
    let peak_gflops = peak_gflops * arguments.threads as f64;
    let bench = Bench::new(arguments, peak_gflops);
    pool.install(|| match bench.arguments.dtype {
        Dtype::F32 => measure_all::<f32>(&bench),
        Dtype::Bf16 => measure_all::<bf16>(&bench),
    });
    ExitCode::SUCCESS
}

/// Measures what `--layers` asks for, with activations stored as `E`.
fn measure_all<E: Element>(bench: &Bench) {
    let Arguments {
        batch,
        layers,
        json,
        ..
    } = &bench.arguments;
    if !json {
        println!("\n{}", report::convolutions_head());
    }
    for (name, shape) in layers.convolutions(*batch) {
        convolutions::measure::<E>(bench, &name, shape);
    }
    let Layers::Networks { cifar, resnet50 } = *layers else {
        return;
    };
    if !json {
        println!("\n{}", report::memory_head());
    }
    normalization::measure::<E>(bench, cifar, resnet50);
    pointwise::measure::<E>(bench, cifar, resnet50);
}
