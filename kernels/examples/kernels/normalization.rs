//! Batch normalisation, forward and backward, with what is fused into it.
//!
//! In: nothing. Out: a measurement of each kind of pass over `[N, H, W, C]`; bytes of tensors of this size only, the
//! parameters of channels being nothing beside them.

use kernels::Element;
use kernels::arena::Block;
use kernels::batch_norm::{
    self, Affine, Gate, Rectifier, Residual, ResidualGradient, Saved, ShortcutA,
};

use crate::measure::{Bench, OnTensor};

/// Extent, images at most, channels.
type Shape = (usize, usize, usize);

/// 3 channels, and 100 below, are no multiple of a vector.
const CIFAR: [Shape; 4] = [
    (32, usize::MAX, 16),
    (16, usize::MAX, 32),
    (8, usize::MAX, 64),
    (32, usize::MAX, 3),
];
const RESNET50: [Shape; 3] = [(14, 64, 256), (7, 32, 2048), (14, 64, 100)];

/// Rows that the sums of the backward pass are said to be over.
const COUNT: f64 = 1e3;

/// A normalisation of `[N, H, W, C]`.
struct Norm<'a, E> {
    bench: &'a Bench,
    tensor: OnTensor<'a>,
    affine: Affine<'a>,
    x: &'a [E],
    /// Where networks have it: with few channels.
    option_a: Option<ShortcutA>,
}

pub(crate) fn measure<E: Element>(bench: &Bench, cifar: bool, resnet50: bool) {
    let of = |shapes: &[Shape], option_a| {
        for &(extent, max_images, channels) in shapes {
            measure_shape::<E>(
                bench,
                bench.arguments.batch.min(max_images),
                extent,
                channels,
                option_a,
            );
        }
    };
    if cifar {
        of(&CIFAR, true);
    }
    if resnet50 {
        of(&RESNET50, false);
    }
}

fn measure_shape<E: Element>(
    bench: &Bench,
    num_images: usize,
    extent: usize,
    channels: usize,
    option_a: bool,
) {
    let rows = num_images * extent * extent;
    let x = bench.values::<E>(rows * channels);
    let shape = format!("[{num_images}, {extent}, {extent}, {channels}]");
    let tensor = OnTensor::new::<E>(bench, shape, Some(num_images), x.len());

    let mut sums = vec![0.0; 2 * channels];
    let mut workspace = vec![0.0; batch_norm::workspace_len(rows, channels)];
    let [mean, gamma, beta] = std::array::from_fn(|_| bench.values::<f32>(channels));
    let invstd = vec![1.0; channels];
    let affine = Affine {
        mean: &mean,
        invstd: &invstd,
        gamma: &gamma,
        beta: &beta,
    };

    let option_a = (option_a && channels.is_multiple_of(2)).then_some(ShortcutA {
        num_images,
        height: 2 * extent,
        width: 2 * extent,
        channels_in: channels / 2,
        channels,
    });
    let norm = Norm {
        bench,
        tensor,
        affine,
        x: &x,
        option_a,
    };
    let mut y = bench.values(x.len());
    norm.measure_forward(&mut y);
    norm.measure_backward(&y, &mut sums, &mut workspace);
}

impl<E: Element> Norm<'_, E> {
    fn measure_forward(&self, y: &mut [E]) {
        let (isa, bytes) = (self.bench.arguments.isa, size_of_val(self.x));
        let mut of = |operation: &str, num_bytes: usize, residual: Residual<'_, E>| {
            self.tensor.measure(operation, num_bytes, || {
                batch_norm::normalize(isa, &self.affine, self.x, residual, Rectifier::Relu, y);
            });
        };
        of("normalize, ReLU", 2 * bytes, Residual::None);
        if let Some(shortcut) = self.option_a {
            let input = self.shortcut_input(shortcut);
            of(
                "normalize, option A, ReLU",
                2 * bytes + bytes / 2,
                Residual::OptionA(shortcut, &input),
            );
        }
        // Last, since it leaves the y of which the backward pass with a residual reads the gate.
        let residual = self.bench.values(self.x.len());
        of(
            "normalize, residual, ReLU",
            3 * bytes,
            Residual::Identity(&residual),
        );
    }

    fn measure_backward(&self, y: &[E], sums: &mut [f64], workspace: &mut [f64]) {
        let Self {
            bench,
            tensor,
            affine,
            x,
            option_a,
        } = self;
        let (isa, bytes) = (bench.arguments.isa, size_of_val(*x));
        let (dy, mut dx) = (bench.values(x.len()), bench.values(x.len()));
        for (name, gate, of_gate) in [
            ("recomputed", Gate::Recomputed, 0),
            ("from y", Gate::Output(y), bytes),
        ] {
            let saved = Saved {
                affine: *affine,
                x,
                gate,
            };
            tensor.measure(
                &format!("backward sums, gate {name}"),
                2 * bytes + of_gate,
                || {
                    batch_norm::backward_sums(isa, &saved, &dy, sums, workspace);
                },
            );
            tensor.measure(
                &format!("backward, gate {name}"),
                3 * bytes + of_gate,
                || {
                    batch_norm::backward(
                        isa,
                        &saved,
                        sums,
                        COUNT,
                        &dy,
                        &mut dx,
                        ResidualGradient::None,
                    );
                },
            );
        }
        let saved = Saved {
            affine: *affine,
            x,
            gate: Gate::Output(y),
        };
        let mut dr = bench.values(x.len());
        tensor.measure("backward, residual written", 5 * bytes, || {
            batch_norm::backward(
                isa,
                &saved,
                sums,
                COUNT,
                &dy,
                &mut dx,
                ResidualGradient::Write(&mut dr),
            );
        });
        if let Some(shortcut) = *option_a {
            let mut input = self.shortcut_input(shortcut);
            tensor.measure("backward, option A written", 5 * bytes, || {
                let residual = ResidualGradient::WriteOptionA(shortcut, &mut input);
                batch_norm::backward(isa, &saved, sums, COUNT, &dy, &mut dx, residual);
            });
        }
    }

    fn shortcut_input(&self, shortcut: ShortcutA) -> Block<E> {
        self.bench.values(shortcut.num_images * shortcut.image_in())
    }
}
