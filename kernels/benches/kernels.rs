//! Measures the passes of a convolution and the packing of its weights, for the convolutions of the
//! CIFAR ResNets and of ResNet-50, against the FMA peak.
//!
//! In: the options of [`Arguments`]. `144->144@32k3s1g144` is depthwise.
//! Out: a table, or with `--json` one JSON line per measurement: `layer`, `batch`, `operation`,
//! `dtype`, `threads`, `ms`, `gflops`, `share_of_peak`, `gb_per_s`, `library`. A value that does
//! not apply is null. A share of the peak can exceed 1: the operations of Winograd are counted as
//! direct convolution's.
//! Invariant: a time is the minimum over repetitions. `lab/peers/onednn_layers.py` has the same
//! lists of layers.
//! Source: He et al., arXiv 1512.03385, table 1 and section 4.2; strides of ResNet-50 as in
//! PyTorch.
//!
//! `cargo run --release --example kernels -- --layers cifar --dtype bf16`;
//! `lab/peers/onednn_layers.py` joins the lines with oneDNN's.
#![allow(clippy::print_stdout, reason = "printing is its job")]

use std::time::{Duration, Instant};

use clap::Parser;
use half::bf16;
use kernels::arena::{Arena, Buffer};
use kernels::conv2d::{Addend, Algorithm, Conv2d, Conv2dShape, Epilogue};
use kernels::simd::{Isa, measure_fma_gflops};
use kernels::{Element, Storage};

/// Images in a batch of ResNet-50, at most: with 128 a pass would take half a second.
const RESNET50_BATCH: usize = 8;
/// Channels of an image: no training needs its gradient.
const IMAGE_CHANNELS: usize = 3;

const CIFAR: &str = "3->16@32k3s1,16->16@32k3s1,16->32@32k3s2,32->32@16k3s1,32->64@16k3s2,64->64@8k3s1,16->32@32k1s2,32->64@16k1s2";
const RESNET50: &str = "64->64@56k1s1,64->256@56k1s1,256->64@56k1s1,256->128@56k1s1,512->128@28k1s1,128->512@28k1s1,\
1024->256@14k1s1,256->1024@14k1s1,512->2048@7k1s1,2048->512@7k1s1,256->512@56k1s2,512->1024@28k1s2,1024->2048@14k1s2,\
64->64@56k3s1,128->128@28k3s1,256->256@14k3s1,512->512@7k3s1,128->128@56k3s2,256->256@28k3s2,512->512@14k3s2,3->64@224k7s2";

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
        println!(
            "{:<22} {:>5}  {:<20} {:<5} {:>10} {:>10} {:>10} {:>10}",
            "layer", "batch", "operation", "dtype", "ms", "GFLOP/s", "% of peak", "GB/s"
        );
    }
    let bench = Bench {
        peak: peak * arguments.threads as f64,
        arguments,
        algorithm,
        isa,
        arena: Arena::new(),
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
}

impl Bench {
    fn measure_all<E: Element>(&self) -> Result<(), String> {
        for (name, shape) in named(&self.arguments.layers, self.arguments.batch)? {
            self.measure_layer::<E>(&name, shape);
        }
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

    /// Times `call` and prints a line; `bytes` counts each operand once.
    fn measure(
        &self,
        [layer, operation]: [&str; 2],
        batch: usize,
        storage: Storage,
        bytes: usize,
        flops: Option<f64>,
        mut call: impl FnMut(),
    ) {
        call();
        let mut seconds_of = |calls: u32| {
            let start = Instant::now();
            (0..calls).for_each(|_| call());
            start.elapsed().as_secs_f64() / f64::from(calls)
        };
        let calls = (CLOCKED_SECONDS / seconds_of(1)).clamp(1.0, MAX_CALLS) as u32;
        let time = Duration::from_secs_f64(self.arguments.seconds);
        let begin = Instant::now();
        let mut best = f64::INFINITY;
        let mut repetitions = 0;
        while repetitions < MIN_REPETITIONS || begin.elapsed() < time {
            best = best.min(seconds_of(calls));
            repetitions += 1;
        }
        let seconds = best.max(MIN_SECONDS);
        let gb_per_s = bytes as f64 / seconds / 1e9;
        let gflops = flops.map(|flops| flops / seconds / 1e9);
        let share = gflops.map(|gflops| gflops / self.peak);
        let dtype = match storage {
            Storage::F32 => "f32",
            Storage::Bf16 => "bf16",
        };
        let ms = seconds * 1e3;
        if self.arguments.json {
            let number =
                |value: Option<f64>| value.map_or("null".to_owned(), |value| format!("{value:.4}"));
            println!(
                r#"{{"layer": "{layer}", "batch": {batch}, "operation": "{operation}", "dtype": "{dtype}", "threads": {}, "ms": {ms:.6}, "gflops": {}, "share_of_peak": {}, "gb_per_s": {gb_per_s:.4}, "library": "kernels"}}"#,
                self.arguments.threads,
                number(gflops),
                number(share),
            );
        } else {
            let number =
                |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.1}"));
            println!(
                "{layer:<22} {batch:>5}  {operation:<20} {dtype:<5} {ms:>10.5} {:>10} {:>10} {gb_per_s:>10.1}",
                number(gflops),
                number(share.map(|share| 100.0 * share)),
            );
        }
    }

    fn measure_layer<E: Element>(&self, layer: &str, shape: Conv2dShape) {
        let conv = Conv2d::new(shape, self.algorithm, self.isa, Storage::of::<E>());
        let measure = |operation: &str, storage, bytes, flops, call: &mut dyn FnMut()| {
            self.measure([layer, operation], shape.batch, storage, bytes, flops, call);
        };
        let packing = |operation: &str, packed: usize, call: &mut dyn FnMut()| {
            measure(
                operation,
                Storage::F32,
                size_of::<f32>() * (shape.weight_len() + packed),
                None,
                call,
            );
        };
        let pass = |operation: &str, call: &mut dyn FnMut()| {
            let activations = size_of::<E>() * (shape.input_len() + shape.output_len());
            let bytes = activations + size_of::<f32>() * shape.weight_len();
            measure(
                operation,
                Storage::of::<E>(),
                bytes,
                Some(shape.flops()),
                call,
            );
        };
        let x = self.values::<E>(shape.input_len());
        let dy = self.values::<E>(shape.output_len());
        let weights = self.values::<f32>(shape.weight_len());
        {
            let mut packed = self.values(conv.packed_forward_len());
            packing("pack forward", packed.len(), &mut || {
                conv.pack_forward(&weights, &mut packed)
            });
            let mut y = self.values::<E>(shape.output_len());
            let mut workspace = self.values(conv.forward_workspace_len());
            let mut moments = vec![0.0; 2 * shape.out_channels];
            pass("forward", &mut || {
                conv.forward(&x, &packed, &mut y, &mut workspace, Epilogue::None)
            });
            pass("forward with moments", &mut || {
                let epilogue = Epilogue::Moments(&mut moments);
                conv.forward(&x, &packed, &mut y, &mut workspace, epilogue);
            });
        }
        if shape.in_channels != IMAGE_CHANNELS {
            let mut packed = self.values(conv.packed_data_gradient_len());
            packing("pack data gradient", packed.len(), &mut || {
                conv.pack_data_gradient(&weights, &mut packed)
            });
            let mut dx = self.values::<E>(shape.input_len());
            let mut workspace = self.values(conv.data_gradient_workspace_len());
            pass("data gradient", &mut || {
                conv.data_gradient(&dy, &packed, Addend::None, &mut dx, &mut workspace);
            });
        }
        let mut dw = self.values(shape.weight_len());
        let mut workspace = self.values(conv.weight_gradient_workspace_len());
        pass("weight gradient", &mut || {
            conv.weight_gradient(&x, &dy, &mut dw, &mut workspace)
        });
    }
}

/// Returns the name and the shape of each convolution that `--layers` names.
fn named(layers: &str, batch: usize) -> Result<Vec<(String, Conv2dShape)>, String> {
    let of = |names: &str, batch: usize| -> Result<Vec<_>, String> {
        names
            .split(',')
            .map(|name| Ok((name.to_owned(), shape(name, batch)?)))
            .collect()
    };
    let large = batch.min(RESNET50_BATCH);
    match layers {
        "cifar" => of(CIFAR, batch),
        "resnet50" => of(RESNET50, large),
        "all" => Ok([of(CIFAR, batch)?, of(RESNET50, large)?].concat()),
        names => of(names, batch),
    }
}

fn shape(name: &str, batch: usize) -> Result<Conv2dShape, String> {
    let numbers: Option<Vec<usize>> = name
        .replace("->", " ")
        .split([' ', '@', 'k', 's', 'g'])
        .map(|number| number.parse().ok().filter(|number| *number > 0))
        .collect();
    let numbers = match numbers {
        Some(mut numbers) if matches!(numbers.len(), 5 | 6) && numbers[4] <= 2 => {
            numbers.resize(6, 1);
            numbers
        }
        _ => {
            return Err(format!(
                "--layers: expected cifar, resnet50, all, or names such as 256->512@56k1s2, got '{name}'"
            ));
        }
    };
    Ok(Conv2dShape {
        batch,
        height: numbers[2],
        width: numbers[2],
        in_channels: numbers[0],
        out_channels: numbers[1],
        kernel: numbers[3],
        stride: numbers[4],
        padding: numbers[3] / 2,
        groups: numbers[5],
    })
}
