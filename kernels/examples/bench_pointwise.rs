//! Measures the operations that move memory against a copy of the same size; run with `--release`.
//!
//! In: words `[avx512bf16|avx512|avx2|portable] [bf16]`, the second for storage as bf16, and `RAYON_NUM_THREADS`.
//! Out: GB/s counting each value read or written once, best of many.

#![allow(clippy::print_stdout)]

use std::hint::black_box;
use std::time::Instant;

use half::bf16;
use kernels::Element;
use kernels::batch_norm::{self, Affine, Gate, Gradients, Residual, ResidualGradient, Saved, ShortcutA};
use kernels::simd::Isa;

fn stored<E: Element>(len: usize, seed: u32) -> Vec<E> {
    values(len, seed).into_iter().map(E::from_f32).collect()
}

fn values(len: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    std::iter::repeat_with(next).take(len).collect()
}

/// Prints the best rate over about a third of a second.
fn measure(name: &str, num_bytes: usize, mut work: impl FnMut()) {
    let (mut best_s, start) = (f64::INFINITY, Instant::now());
    while start.elapsed().as_secs_f64() < 0.3 {
        let begin = Instant::now();
        work();
        best_s = best_s.min(begin.elapsed().as_secs_f64());
    }
    println!("{name:<44} {:>9.1} us {:>7.2} GB/s", best_s * 1e6, num_bytes as f64 / best_s / 1e9);
}

fn main() {
    let isa = match std::env::args().nth(1).as_deref() {
        Some("avx512bf16") => Isa::Avx512Bf16,
        Some("avx512") => Isa::Avx512,
        Some("avx2") => Isa::Avx2Fma,
        Some("portable") => Isa::Portable,
        _ => Isa::detect(),
    };
    if std::env::args().any(|word| word == "bf16") { bench::<bf16>(isa) } else { bench::<f32>(isa) }
}

fn bench<E: Element>(isa: Isa) {
    println!("{isa:?}, {} threads, {} storage", rayon::current_num_threads(), std::any::type_name::<E>());
    for (side, images, channels) in
        [(32, 128, 16), (16, 128, 32), (8, 128, 64), (32, 128, 3), (14, 64, 256), (7, 32, 2048), (14, 64, 100)]
    {
        bench_norm::<E>(isa, side, images, channels);
    }
    bench_rest::<E>(isa);
}

fn bench_norm<E: Element>(isa: Isa, side: usize, images: usize, channels: usize) {
    let rows = images * side * side;
    let len = rows * channels;
    let bytes = size_of::<E>() * len;
    println!("batch_norm [{images}, {side}, {side}, {channels}], {:.1} MB", bytes as f64 / 1e6);
    let (x, r, dy) = (stored::<E>(len, 1), stored::<E>(len, 2), stored::<E>(len, 3));
    let (mut y, mut dx, mut dr) = (x.clone(), x.clone(), x.clone());
    let parameters: Vec<_> = (4..8).map(|seed| values(channels, seed)).collect();
    let affine = Affine { mean: &parameters[0], invstd: &parameters[1], gamma: &parameters[2], beta: &parameters[3] };
    let mut sums = vec![0.0; 2 * channels];
    let mut workspace = vec![0.0; batch_norm::workspace_len(rows, channels)];
    measure("  copy, one thread", 2 * bytes, || {
        y.copy_from_slice(&x);
        black_box(&mut y);
    });
    measure("  statistics", bytes, || batch_norm::statistics(isa, &x, channels, &mut sums, &mut workspace));
    measure("  normalize relu", 2 * bytes, || {
        batch_norm::normalize(isa, &affine, &x, Residual::None, true, &mut y);
    });
    measure("  normalize residual relu", 3 * bytes, || {
        batch_norm::normalize(isa, &affine, &x, Residual::Identity(&r), true, &mut y);
    });
    if channels.is_multiple_of(2) && channels < 128 {
        let shape =
            ShortcutA { num_images: images, height: 2 * side, width: 2 * side, channels_in: channels / 2, channels };
        let input = stored::<E>(2 * len, 9);
        measure("  normalize option A relu", 2 * bytes + bytes / 2, || {
            batch_norm::normalize(isa, &affine, &x, Residual::OptionA(shape, &input), true, &mut y);
        });
        let mut input = input;
        let saved = Saved { affine, x: &x, gate: Gate::Output(&y) };
        measure("  backward option A added", 5 * bytes, || {
            let gradients = Gradients::Separate { dy: &dy, dx: &mut dx };
            batch_norm::backward(isa, &saved, &sums, 1e3, gradients, ResidualGradient::AddOptionA(shape, &mut input));
        });
    }
    batch_norm::normalize(isa, &affine, &x, Residual::Identity(&r), true, &mut y);
    for (name, gate, streams) in [("recomputed", Gate::Recomputed, 0), ("from y", Gate::Output(&y), 1)] {
        let saved = Saved { affine, x: &x, gate };
        measure(&format!("  backward sums, gate {name}"), (2 + streams) * bytes, || {
            batch_norm::backward_sums(isa, &saved, &dy, &mut sums, &mut workspace);
        });
        measure(&format!("  backward dx, gate {name}"), (3 + streams) * bytes, || {
            let gradients = Gradients::Separate { dy: &dy, dx: &mut dx };
            batch_norm::backward(isa, &saved, &sums, 1e3, gradients, ResidualGradient::None);
        });
        measure(&format!("  backward dx in place, gate {name}"), (3 + streams) * bytes, || {
            batch_norm::backward(isa, &saved, &sums, 1e3, Gradients::InPlace(&mut dx), ResidualGradient::None);
        });
    }
    let saved = Saved { affine, x: &x, gate: Gate::Output(&y) };
    measure("  backward dx + residual", 5 * bytes, || {
        let gradients = Gradients::Separate { dy: &dy, dx: &mut dx };
        batch_norm::backward(isa, &saved, &sums, 1e3, gradients, ResidualGradient::Write(&mut dr));
    });
}

fn bench_rest<E: Element>(isa: Isa) {
    let len = 1 << 22;
    let (mut parameters, mut velocities, gradients) = (values(len, 1), values(len, 2), values(len, 3));
    let update = kernels::sgd::SgdUpdate { learning_rate: 1e-9, momentum: 0.9, weight_decay: 1e-4, nesterov: true };
    measure("sgd, 4 M parameters", 20 * len, || {
        kernels::sgd::step(isa, &update, &mut parameters, &mut velocities, &gradients);
    });
    bench_pool::<E>(isa);
    bench_linear(isa);
    let table = kernels::input::PixelTable::new([0.5; 3], [0.25; 3]);
    let placements: Vec<_> =
        (0..128).map(|i| kernels::input::Placement { dy: i % 9 - 4, dx: i % 7 - 3, flip: i % 2 == 0 }).collect();
    let source: Vec<u8> = (0..128 * 3072).map(|i| (i * 7 % 251) as u8).collect();
    let mut output = vec![E::default(); source.len()];
    measure("input, 128 CIFAR images", (1 + size_of::<E>()) * source.len(), || {
        table.apply(&source, (32, 32), &placements, &mut output);
    });
}

fn bench_pool<E: Element>(isa: Isa) {
    for (name, images, pixels, channels) in [("CIFAR", 128, 64, 64), ("ImageNet", 32, 49, 2048)] {
        let x = stored::<E>(images * pixels * channels, 1);
        let (mut y, mut dx) = (vec![0.0; images * channels], vec![E::default(); x.len()]);
        measure(&format!("global average, {name}"), size_of::<E>() * x.len(), || {
            kernels::pool::global_average(isa, &x, pixels, channels, &mut y);
        });
        measure(&format!("global average backward, {name}"), size_of::<E>() * x.len(), || {
            kernels::pool::global_average_backward(isa, &y, pixels, channels, &mut dx);
        });
    }
    let shape = kernels::pool::MaxPoolShape { num_images: 4, height: 112, width: 112, channels: 64 };
    let x = stored::<E>(shape.input_len(), 1);
    let (mut y, mut taps) = (vec![E::default(); shape.output_len()], vec![0; shape.output_len()]);
    let mut dx = vec![E::default(); x.len()];
    let num_bytes = size_of::<E>() * (x.len() + y.len()) + y.len();
    measure("max pool, 4 ImageNet images", num_bytes, || kernels::pool::max_pool(isa, shape, &x, &mut y, &mut taps));
    measure("max pool backward", num_bytes, || {
        kernels::pool::max_pool_backward(isa, shape, &y, &taps, &mut dx);
    });
}

fn bench_linear(isa: Isa) {
    use kernels::linear::{LinearShape, WeightLayout, backward_input, backward_weight, forward, softmax_cross_entropy};
    for (rows, inputs, outputs) in [(128, 64, 10), (32, 2048, 1000)] {
        for layout in [WeightLayout::OutputMajor, WeightLayout::InputMajor] {
            let shape = LinearShape { rows, inputs, outputs, layout };
            let (x, weight, bias) = (values(rows * inputs, 1), values(inputs * outputs, 2), values(outputs, 3));
            let (mut logits, mut dx) = (vec![0.0; rows * outputs], vec![0.0; x.len()]);
            let (mut dweight, mut dbias) = (vec![0.0; weight.len()], vec![0.0; outputs]);
            let num_bytes = 4 * (weight.len() + x.len() + logits.len());
            let name = format!("{rows} x {inputs} x {outputs} {layout:?}");
            measure(&format!("linear {name}"), num_bytes, || forward(isa, shape, &x, &weight, &bias, &mut logits));
            measure("  backward, input", num_bytes, || backward_input(isa, shape, &logits, &weight, &mut dx));
            measure("  backward, weight", num_bytes, || {
                backward_weight(isa, shape, &x, &logits, &mut dweight, &mut dbias);
            });
            let labels = vec![0; rows];
            let (mut gradient, mut workspace) = (vec![0.0; logits.len()], vec![0.0; rows]);
            measure("  cross entropy", 8 * logits.len(), || {
                black_box(softmax_cross_entropy(&logits, outputs, &labels, 0.1, 1.0, &mut gradient, &mut workspace));
            });
        }
    }
}
