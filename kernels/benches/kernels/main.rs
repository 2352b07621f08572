//! Measures every kernel of a training step: convolutions against the FMA peak, memory-bound
//! kernels against a copy.
//!
//! In: the options of [`Arguments`].
//! Out: a table, or with `--json` one JSON line per measurement: `layer`, `batch`, `operation`,
//! `dtype`, `threads`, `ms`, `gflops`, `share_of_peak`, `gb_per_s`, `share_of_copy`, `library`. A
//! value that does not apply is null. Shares are fractions in JSON. A share of the peak can exceed
//! 1: the operations of Winograd are counted as direct convolution's.
//! With `--neighbours`: the comparison that `neighbours.rs` describes.
//! Invariant: a time is the minimum over repetitions.
//!
//! `cargo run --release --example kernels -- --layers cifar --dtype bf16`;
//! `lab/peers/onednn_layers.py` joins the lines with oneDNN's.
#![allow(clippy::print_stdout, reason = "printing is its job")]

mod convolutions;
mod memory;
mod neighbours;

use std::hint::black_box;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use clap::Parser;
use half::bf16;
use kernels::arena::{Arena, Buffer};
use kernels::conv2d::Algorithm;
use kernels::simd::{Isa, measure_fma_gflops};
use kernels::{Element, Storage};
use neighbours::{ROUNDS, Rate};
use rayon::prelude::*;

/// Runs of about a millisecond, of which the best is the peak.
const PEAK_REPETITIONS: usize = 200;
/// Repetitions of a call that takes longer than `--seconds`.
const MIN_REPETITIONS: usize = 3;
/// Shorter calls are repeated between two looks at the clock, but not without end.
const CLOCKED_SECONDS: f64 = 10e-6;
const MAX_CALLS: f64 = 1000.0;
/// A coarse clock may see no time pass; a rate stays finite for JSON.
const MIN_SECONDS: f64 = 1e-9;

#[derive(Parser)]
struct Arguments {
    /// Threads
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Storage of activations: f32 or bf16
    #[arg(long, default_value = "f32", value_parser = ["f32", "bf16"])]
    dtype: String,
    /// Algorithm of convolutions: auto or direct
    #[arg(long, default_value = "auto", value_parser = ["auto", "direct"])]
    convolution: String,
    /// Instruction set
    #[arg(long, default_value = "auto", value_parser = ["auto", "amx", "avx512bf16", "avx512", "avx2", "portable"])]
    cpu: String,
    /// Images; layers of ResNet-50 take at most 8 of them
    #[arg(long, default_value_t = 128)]
    batch: usize,
    /// cifar, resnet50, all, or convolutions such as 64->64@56k3s1: channels, extent of the input,
    /// kernel, stride
    #[arg(long, default_value = "all")]
    layers: String,
    /// Duration of each measurement
    #[arg(long, default_value_t = 0.3)]
    seconds: f64,
    /// Comparison of channels that are a power of two with 32 fewer and 32 more
    #[arg(long, conflicts_with = "json")]
    neighbours: bool,
    /// JSON lines instead of the table
    #[arg(long)]
    json: bool,
}

fn main() -> Result<(), String> {
    let arguments = Arguments::parse();
    let isa = match arguments.cpu.as_str() {
        "amx" => Isa::Amx,
        "avx512bf16" => Isa::Avx512Bf16,
        "avx512" => Isa::Avx512,
        "avx2" => Isa::Avx2Fma,
        "portable" => Isa::Portable,
        _ => Isa::detect(),
    };
    if !isa.is_available() {
        let offered: Vec<Isa> = Isa::available().collect();
        let cpu = &arguments.cpu;
        return Err(format!(
            "--cpu {cpu}: not offered by this processor (expected auto or one of {offered:?})"
        ));
    }
    let algorithm = match arguments.convolution.as_str() {
        "direct" => Algorithm::Direct,
        _ => Algorithm::Auto,
    };
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(arguments.threads)
        .build()
        .map_err(|error| format!("--threads {}: {error}", arguments.threads))?;
    let peak = measure_fma_gflops(isa, PEAK_REPETITIONS);
    if !arguments.json {
        println!("{isa:?}, {algorithm:?}, FMA peak of one thread: {peak:.1} GFLOP/s\n");
    }
    if arguments.neighbours {
        neighbours::print_header();
    } else if !arguments.json {
        println!(
            "{:<22} {:>5}  {:<36} {:<5} {:>10} {:>10} {:>10} {:>10} {:>10}",
            "layer",
            "batch",
            "operation",
            "dtype",
            "ms",
            "GFLOP/s",
            "% of peak",
            "GB/s",
            "% of copy"
        );
    }
    let bench = Bench {
        peak: peak * arguments.threads as f64,
        arguments,
        algorithm,
        isa,
        arena: Arena::new(),
        rates: Mutex::new(Vec::new()),
    };
    pool.install(|| match bench.arguments.dtype.as_str() {
        "bf16" => bench.measure_all::<bf16>(),
        _ => bench.measure_all::<f32>(),
    })
}

/// Settings of all measurements.
struct Bench {
    arguments: Arguments,
    algorithm: Algorithm,
    isa: Isa,
    /// FMA peak of all threads, in GFLOP/s.
    peak: f64,
    arena: Arena,
    /// Rates since the last comparison.
    rates: Mutex<Vec<Rate>>,
}

/// A measured operation.
struct Work<'a> {
    layer: &'a str,
    batch: Option<usize>,
    operation: &'a str,
    storage: Storage,
    /// Bytes of all operands, each counted once.
    bytes: usize,
    /// Operations of a convolution.
    flops: Option<f64>,
    /// GB/s of a copy of the same tensor.
    copy: Option<f64>,
}

impl Bench {
    fn measure_all<E: Element>(&self) -> Result<(), String> {
        for shape in convolutions::named(&self.arguments.layers, self.arguments.batch)? {
            convolutions::measure_among_neighbours::<E>(self, shape);
        }
        memory::measure::<E>(self);
        Ok(())
    }

    /// Values in -1..1.
    fn values<E: Element>(&self, len: usize) -> Buffer<E> {
        let mut buffer = self.arena.take(len);
        for (index, value) in buffer.iter_mut().enumerate() {
            *value = E::from_f32(((index * 7919 + 13) % 1024) as f32 / 512.0 - 1.0);
        }
        buffer
    }

    /// Times `call`, prints a line, and returns GB/s.
    fn measure(&self, work: Work<'_>, mut call: impl FnMut()) -> f64 {
        call();
        let mut seconds_of = |calls: u32| {
            let start = Instant::now();
            (0..calls).for_each(|_| call());
            start.elapsed().as_secs_f64() / f64::from(calls)
        };
        let calls = (CLOCKED_SECONDS / seconds_of(1)).clamp(1.0, MAX_CALLS) as u32;
        let mut time = Duration::from_secs_f64(self.arguments.seconds);
        if self.arguments.neighbours {
            time /= ROUNDS;
        }
        let begin = Instant::now();
        let mut best = f64::INFINITY;
        let mut repetitions = 0;
        while repetitions < MIN_REPETITIONS || begin.elapsed() < time {
            best = best.min(seconds_of(calls));
            repetitions += 1;
        }
        let seconds = best.max(MIN_SECONDS);
        let gb_per_s = work.bytes as f64 / seconds / 1e9;
        let gflops = work.flops.map(|flops| flops / seconds / 1e9);
        let share_of_peak = gflops.map(|gflops| gflops / self.peak);
        let share_of_copy = work.copy.map(|copy| gb_per_s / copy);
        let Work {
            layer,
            batch,
            operation,
            ..
        } = work;
        let dtype = match work.storage {
            Storage::F32 => "f32",
            Storage::Bf16 => "bf16",
        };
        let ms = seconds * 1e3;
        if self.arguments.neighbours {
            self.keep(layer, operation, gflops.unwrap_or(gb_per_s));
            return gb_per_s;
        }
        if self.arguments.json {
            let number =
                |value: Option<f64>| value.map_or("null".to_owned(), |value| format!("{value:.4}"));
            println!(
                r#"{{"layer": "{layer}", "batch": {}, "operation": "{operation}", "dtype": "{dtype}", "threads": {}, "ms": {ms:.6}, "gflops": {}, "share_of_peak": {}, "gb_per_s": {gb_per_s:.4}, "share_of_copy": {}, "library": "kernels"}}"#,
                batch.map_or("null".to_owned(), |batch| batch.to_string()),
                self.arguments.threads,
                number(gflops),
                number(share_of_peak),
                number(share_of_copy),
            );
        } else {
            let number =
                |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.1}"));
            let percent = |share: Option<f64>| number(share.map(|share| 100.0 * share));
            println!(
                "{layer:<22} {:>5}  {operation:<36} {dtype:<5} {ms:>10.5} {:>10} {:>10} {gb_per_s:>10.1} {:>10}",
                batch.map_or("-".to_owned(), |batch| batch.to_string()),
                number(gflops),
                percent(share_of_peak),
                percent(share_of_copy),
            );
        }
        gb_per_s
    }

    /// Measures a copy of `len` values by all threads, and returns GB/s.
    fn measure_copy<E: Element>(&self, layer: &str, batch: Option<usize>, len: usize) -> f64 {
        let from = self.values::<E>(len);
        let mut to = self.values::<E>(len);
        let piece = len.div_ceil(self.arguments.threads);
        let work = Work {
            layer,
            batch,
            operation: "copy",
            storage: Storage::of::<E>(),
            bytes: 2 * size_of::<E>() * len,
            flops: None,
            copy: None,
        };
        self.measure(work, || {
            to.par_chunks_mut(piece)
                .zip(from.par_chunks(piece))
                .for_each(|(to, from)| to.copy_from_slice(from));
            black_box(&mut to);
        })
    }
}
