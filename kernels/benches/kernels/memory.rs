//! Memory-bound kernels: batch normalisation with what is fused into it, pools, and the updates of
//! the optimizers.
//!
//! In: the networks.
//! Out: measurements, each after a copy of its tensor; bytes are those of the tensors only.

use kernels::batch_norm::{
    self, Affine, Gate, Rectifier, Residual, ResidualGradient, Saved, ShortcutA,
};
use kernels::optimizer::adam::{self, AdamDirection, AdamWUpdate};
use kernels::optimizer::lamb::{self, LambUpdate};
use kernels::optimizer::lars;
use kernels::optimizer::sgd::{self, SgdUpdate};
use kernels::pool::{self, MaxPoolShape};
use kernels::{Element, Storage};

use crate::{Bench, Work};

/// Extent, images at most, channels, and whether networks have a shortcut A there.
const CIFAR: [(usize, usize, usize, bool); 4] = [
    (32, usize::MAX, 16, true),
    (16, usize::MAX, 32, true),
    (8, usize::MAX, 64, true),
    (32, usize::MAX, 3, false),
];
/// 3 and 100 channels are not a multiple of a vector.
const RESNET50: [(usize, usize, usize, bool); 3] = [
    (14, 64, 256, false),
    (7, 32, 2048, false),
    (14, 64, 100, false),
];
/// Parameters of an update: more than the caches hold.
const NUM_PARAMETERS: usize = 1 << 22;
/// Rows that the sums of the backward pass cover.
const COUNT: f64 = 1e3;

/// A tensor with the rate of its copy.
struct OnTensor<'a> {
    bench: &'a Bench,
    layer: String,
    batch: Option<usize>,
    storage: Storage,
    copy: f64,
}

impl<'a> OnTensor<'a> {
    fn new<E: Element>(
        bench: &'a Bench,
        layer: String,
        batch: Option<usize>,
        copied: usize,
    ) -> Self {
        let copy = bench.measure_copy::<E>(&layer, batch, copied);
        Self {
            bench,
            layer,
            batch,
            storage: Storage::of::<E>(),
            copy,
        }
    }

    fn measure(&self, operation: &str, bytes: usize, call: impl FnMut()) {
        let work = Work {
            layer: &self.layer,
            batch: self.batch,
            operation,
            storage: self.storage,
            bytes,
            flops: None,
            copy: Some(self.copy),
        };
        self.bench.measure(work, call);
    }
}

pub(crate) fn measure<E: Element>(bench: &Bench) {
    let batch = bench.arguments.batch;
    let cifar = matches!(bench.arguments.layers.as_str(), "cifar" | "all");
    let resnet50 = matches!(bench.arguments.layers.as_str(), "resnet50" | "all");
    let norms = |shape: &(usize, usize, usize, bool)| {
        let (extent, max_images, channels, has_shortcut) = *shape;
        bench.among_neighbours([channels], |[channels]| {
            norm::<E>(bench, (extent, max_images, channels, has_shortcut));
        });
    };
    if cifar {
        CIFAR.iter().for_each(norms);
        bench.among_neighbours([64], |[channels]| average::<E>(bench, batch, 8, channels));
    }
    if resnet50 {
        RESNET50.iter().for_each(norms);
        bench.among_neighbours([64], |[channels]| {
            max_pool::<E>(bench, batch.min(4), channels);
        });
        bench.among_neighbours([2048], |[channels]| {
            average::<E>(bench, batch.min(32), 7, channels);
        });
    }
    if (cifar || resnet50) && !bench.arguments.neighbours {
        updates(bench);
    }
}

fn norm<E: Element>(
    bench: &Bench,
    (extent, max_images, channels, has_shortcut): (usize, usize, usize, bool),
) {
    let isa = bench.isa;
    let images = bench.arguments.batch.min(max_images);
    let rows = images * extent * extent;
    let len = rows * channels;
    let x = bench.values::<E>(len);
    let bytes = size_of_val(&*x);
    let tensor = OnTensor::new::<E>(
        bench,
        format!("[{images}, {extent}, {extent}, {channels}]"),
        Some(images),
        len,
    );
    let [mean, gamma, beta] = std::array::from_fn(|_| bench.values::<f32>(channels));
    let invstd = vec![1.0; channels];
    let affine = Affine {
        mean: &mean,
        invstd: &invstd,
        gamma: &gamma,
        beta: &beta,
    };
    let shortcut = ShortcutA {
        num_images: images,
        height: 2 * extent,
        width: 2 * extent,
        channels_in: channels / 2,
        channels,
    };
    let mut input = bench.values::<E>(images * shortcut.image_in());
    let residual = bench.values(len);

    let mut y = bench.values(len);
    let mut forward = |operation: &str, bytes: usize, residual: Residual<'_, E>| {
        tensor.measure(operation, bytes, || {
            batch_norm::normalize(isa, &affine, &x, residual, Rectifier::Relu, &mut y);
        });
    };
    forward("normalize, ReLU", 2 * bytes, Residual::None);
    if has_shortcut {
        forward(
            "normalize, option A, ReLU",
            2 * bytes + bytes / 2,
            Residual::OptionA(shortcut, &input),
        );
    }
    // Last, since the backward pass with a residual reads the gate from this y.
    forward(
        "normalize, residual, ReLU",
        3 * bytes,
        Residual::Identity(&residual),
    );

    let mut sums = vec![0.0; 2 * channels];
    let mut workspace = vec![0.0; batch_norm::workspace_len(rows, channels)];
    let dy = bench.values::<E>(len);
    let mut dx = bench.values::<E>(len);
    let from_y = Saved {
        affine,
        x: &x[..],
        gate: Gate::Output(&y),
    };
    let recomputed = Saved {
        gate: Gate::Recomputed,
        ..from_y
    };
    for (name, saved, of_gate) in [("recomputed", recomputed, 0), ("from y", from_y, bytes)] {
        tensor.measure(
            &format!("backward sums, gate {name}"),
            2 * bytes + of_gate,
            || {
                batch_norm::backward_sums(isa, &saved, &dy, &mut sums, &mut workspace);
            },
        );
        tensor.measure(
            &format!("backward, gate {name}"),
            3 * bytes + of_gate,
            || {
                batch_norm::backward(
                    isa,
                    &saved,
                    &sums,
                    COUNT,
                    &dy,
                    &mut dx,
                    ResidualGradient::None,
                );
            },
        );
    }
    let mut gradient = bench.values(len);
    tensor.measure("backward, residual written", 5 * bytes, || {
        let residual = ResidualGradient::Write(&mut gradient);
        batch_norm::backward(isa, &from_y, &sums, COUNT, &dy, &mut dx, residual);
    });
    if has_shortcut {
        tensor.measure("backward, option A written", 5 * bytes, || {
            let residual = ResidualGradient::WriteOptionA(shortcut, &mut input);
            batch_norm::backward(isa, &from_y, &sums, COUNT, &dy, &mut dx, residual);
        });
    }
}

fn average<E: Element>(bench: &Bench, images: usize, extent: usize, channels: usize) {
    let pixels = extent * extent;
    let mut x = bench.values::<E>(images * pixels * channels);
    let mut y = bench.values::<f32>(images * channels);
    let tensor = OnTensor::new::<E>(
        bench,
        format!("[{images}, {extent}, {extent}, {channels}]"),
        Some(images),
        x.len(),
    );
    let bytes = size_of_val(&*x) + size_of_val(&*y);
    tensor.measure("global average", bytes, || {
        pool::global_average(bench.isa, &x, pixels, channels, &mut y);
    });
    tensor.measure("global average gradient", bytes, || {
        pool::global_average_backward(bench.isa, &y, pixels, channels, None, &mut x);
    });
}

fn max_pool<E: Element>(bench: &Bench, num_images: usize, channels: usize) {
    let shape = MaxPoolShape {
        num_images,
        height: 112,
        width: 112,
        channels,
        window: 3,
    };
    let mut x = bench.values::<E>(shape.input_len());
    let mut y = bench.values::<E>(shape.output_len());
    let mut taps = vec![0; shape.output_len()];
    let tensor = OnTensor::new::<E>(
        bench,
        format!("[{num_images}, 112, 112, {channels}]"),
        Some(num_images),
        x.len(),
    );
    let bytes = size_of_val(&*x) + size_of_val(&*y) + size_of_val(&*taps);
    tensor.measure("max pool", bytes, || {
        pool::max_pool(bench.isa, shape, &x, &mut y, &mut taps)
    });
    tensor.measure("max pool gradient", bytes, || {
        pool::max_pool_backward(bench.isa, shape, &y, &taps, &mut x);
    });
}

/// Learning rates are so small that no repetition makes the values large.
fn updates(bench: &Bench) {
    let isa = bench.isa;
    let [mut parameters, mut first, gradients] =
        std::array::from_fn(|_| bench.values::<f32>(NUM_PARAMETERS));
    let mut second = bench.values::<f32>(NUM_PARAMETERS);
    second.iter_mut().for_each(|value| *value = value.abs());
    // The two buffers of the copy are as large as the three of SGD.
    let tensor = OnTensor::new::<f32>(
        bench,
        format!("[{NUM_PARAMETERS}]"),
        None,
        NUM_PARAMETERS * 3 / 2,
    );
    let of_streams = |streams: usize| streams * size_of::<f32>() * NUM_PARAMETERS;
    let update = SgdUpdate {
        learning_rate: 1e-9,
        momentum: 0.9,
        weight_decay: 1e-4,
        nesterov: true,
    };
    tensor.measure("SGD step", of_streams(5), || {
        sgd::step(isa, &update, &mut parameters, &mut first, &gradients);
    });
    tensor.measure("LARS step", of_streams(7), || {
        lars::step(isa, &update, 1e-3, &mut parameters, &mut first, &gradients);
    });
    let direction = AdamDirection::new([0.9, 0.999], 1e-8, 10);
    let update = AdamWUpdate {
        learning_rate: 1e-9,
        kept: 1.0,
        direction,
    };
    tensor.measure("AdamW step", of_streams(7), || {
        adam::step(
            isa,
            &update,
            &mut parameters,
            [&mut first, &mut second],
            &gradients,
        );
    });
    let update = LambUpdate {
        learning_rate: 1e-9,
        weight_decay: 1e-2,
        direction,
        adapts: true,
    };
    let mut scratch = bench.values::<f32>(NUM_PARAMETERS);
    tensor.measure("LAMB step", of_streams(11), || {
        let moments = [&mut first[..], &mut second[..]];
        lamb::step(
            isa,
            &update,
            &mut parameters,
            &mut scratch,
            moments,
            &gradients,
        );
    });
}
