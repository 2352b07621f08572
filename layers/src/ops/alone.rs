//! Times the kernels of a step separately.
//!
//! In: the calls of a step.
//! Out: for each kind of kernel the time of equal calls one after the other, and the bytes of
//! activations that they read and write.
//! Invariant: calls have equal shapes and rotate over enough separate, aligned buffers that none is
//! in a cache. The difference to a step is the cost of the step's memory and of work between the
//! kernels.

use std::hint::black_box;
use std::time::Instant;

use burn::tensor::bf16;
use kernels::arena::{Arena, Buffer};
use kernels::batch_norm::{self, Affine, Gate, ResidualGradient, Saved, ShortcutA};
use kernels::layer::{Backward, Gradients, Input};
use kernels::scratch::Scratch;
use kernels::{Element, Storage};

use super::clock::{Kernel, calls_of};
use super::fused::{self, Before, LayerCall, ResidualKind};

/// Beyond the last cache of common processors: a set of buffers is as cold as if a step had come
/// between.
const COLD_BYTES: usize = 96 * 1024 * 1024;
/// Calls of which the median counts, if they are short.
const REPETITIONS: usize = 5;
/// A longer call is measured once.
const SHORT_SECONDS: f64 = 0.05;

/// All calls of one kind of kernel in a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KernelAlone {
    /// The kind's name, as in [`super::KernelTime`].
    pub name: &'static str,
    /// Wall time, in seconds, of equal calls one directly after the other.
    pub seconds: f64,
    /// Bytes of activations that the kernels read and write. A kernel counts each activation once.
    pub bytes: usize,
}

/// The calls of the layers' kernels in a step.
#[derive(Clone, Debug, Default)]
pub struct KernelCalls(Vec<(Kernel, LayerCall)>);

impl KernelCalls {
    /// Records the calls of `work` in all threads of the process, so no other work may compute
    /// meanwhile.
    pub fn of<T>(work: impl FnOnce() -> T) -> (T, Self) {
        let (result, calls) = calls_of(work);
        (result, Self(calls))
    }

    /// Returns how often a step reads or writes the output of a layer: the bytes of all reads and
    /// writes, divided by the bytes of all results of convolutions. Returns 0 without trained
    /// layers.
    pub fn walks(&self) -> f64 {
        let of = |bytes: fn(&(Kernel, LayerCall)) -> usize| {
            self.0.iter().map(bytes).sum::<usize>() as f64
        };
        let outputs = of(|(kernel, call)| {
            usize::from(*kernel == Kernel::Gradients)
                * call.shape.output_len()
                * call.storage.size()
        });
        of(|(kernel, call)| call.bytes(*kernel)) / outputs.max(1.0)
    }

    /// Runs each kind of call separately on the current rayon pool, which takes about a second for
    /// a small network.
    pub fn alone(&self) -> Vec<KernelAlone> {
        let mut kinds: Vec<KernelAlone> = Vec::new();
        for (index, (kernel, call)) in self.0.iter().enumerate() {
            if self.0[..index].contains(&(*kernel, *call)) {
                continue;
            }
            let count = self.0[index..]
                .iter()
                .filter(|other| **other == (*kernel, *call))
                .count();
            let name = kernel.name();
            let position = kinds
                .iter()
                .position(|kind| kind.name == name)
                .unwrap_or_else(|| {
                    kinds.push(KernelAlone {
                        name,
                        seconds: 0.0,
                        bytes: 0,
                    });
                    kinds.len() - 1
                });
            kinds[position].seconds += count as f64 * median_seconds(*kernel, call);
            kinds[position].bytes += count * call.bytes(*kernel);
        }
        kinds
    }
}

fn median_seconds(kernel: Kernel, call: &LayerCall) -> f64 {
    let arena = Arena::new();
    let num_sets = COLD_BYTES.div_ceil(call.bytes(kernel).max(COLD_BYTES / 16));
    let mut sets: Vec<Box<dyn FnMut()>> = (0..num_sets)
        .map(|_| prepare(kernel, call, &arena))
        .collect();
    let mut run = |turn: usize| {
        let start = Instant::now();
        sets[turn % num_sets]();
        start.elapsed().as_secs_f64()
    };
    // The first call is slower, as its workspace is fresh.
    let first = (0..=num_sets).map(&mut run).last().unwrap_or_default();
    let further = if first < SHORT_SECONDS {
        REPETITIONS - 1
    } else {
        0
    };
    let mut seconds: Vec<f64> = (1..=further)
        .map(|turn| run(num_sets + turn))
        .chain([first])
        .collect();
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}

/// Returns the call with its own buffers.
fn prepare(kernel: Kernel, call: &LayerCall, arena: &Arena) -> Box<dyn FnMut()> {
    match call.storage {
        Storage::F32 => prepare_of::<f32>(kernel, *call, arena),
        Storage::Bf16 => prepare_of::<bf16>(kernel, *call, arena),
    }
}

fn prepare_of<E: Element>(kernel: Kernel, call: LayerCall, arena: &Arena) -> Box<dyn FnMut()> {
    let layer = call.plan();
    let shape = call.shape;
    let filled = |len| filled::<E>(arena, len);
    let mut packed = Scratch::new();
    let mut workspace = Scratch::new();
    let weights = vec![0.5; shape.weight_len()];
    match kernel {
        Kernel::PackForward => Box::new(move || {
            layer
                .conv()
                .pack_forward(&weights, packed.floats(layer.conv().packed_forward_len()))
        }),
        Kernel::PackBackward => Box::new(move || {
            layer.conv().pack_data_gradient(
                &weights,
                packed.floats(layer.conv().packed_data_gradient_len()),
            );
        }),
        Kernel::Convolution => {
            let x = filled(shape.input_len());
            let mut z = filled(shape.output_len());
            let before = Parameters::new(shape.in_channels);
            let mut moments = vec![0.0; 2 * shape.out_channels];
            layer
                .conv()
                .pack_forward(&weights, packed.floats(layer.conv().packed_forward_len()));
            Box::new(move || {
                let packed = packed.floats(layer.conv().packed_forward_len());
                let workspace = workspace.floats(layer.forward_workspace_len());
                layer.forward(
                    before.input(call.before, &x),
                    packed,
                    &mut z,
                    workspace,
                    &mut moments,
                );
            })
        }
        Kernel::Normalisation => {
            let z = filled(shape.output_len());
            let mut y = filled(shape.output_len());
            let residual = filled(call.residual_len());
            let norm = Parameters::new(shape.out_channels);
            Box::new(move || {
                let residual = match call.residual {
                    ResidualKind::None => batch_norm::Residual::None,
                    ResidualKind::Identity => batch_norm::Residual::Identity(&residual[..]),
                    ResidualKind::ShortcutA => {
                        batch_norm::Residual::OptionA(shortcut(&call), &residual)
                    }
                };
                batch_norm::normalize(
                    call.isa,
                    &norm.affine(),
                    &z,
                    residual,
                    call.rectifier,
                    &mut y,
                );
            })
        }
        Kernel::NormSums => {
            let [z, y, dy] = [(); 3].map(|()| filled(shape.output_len()));
            let norm = Parameters::new(shape.out_channels);
            let mut sums = vec![0.0; 2 * shape.out_channels];
            Box::new(move || {
                let len =
                    batch_norm::workspace_len(dy.len() / shape.out_channels, shape.out_channels);
                let saved = Saved {
                    affine: norm.affine(),
                    x: &z[..],
                    gate: gate(&call, &y),
                };
                batch_norm::backward_sums(call.isa, &saved, &dy, &mut sums, workspace.doubles(len));
            })
        }
        Kernel::Gradients => gradients::<E>(call, arena),
        // The other kernels are recorded without a call.
        _ => Box::new(|| ()),
    }
}

/// Returns the gradients of a layer's input, weights and residual: one call of the layer's backward
/// pass.
fn gradients<E: Element>(call: LayerCall, arena: &Arena) -> Box<dyn FnMut()> {
    let layer = call.plan();
    let shape = call.shape;
    let filled = |len| filled::<E>(arena, len);
    let mut packed = Scratch::new();
    let mut workspace = Scratch::new();
    let [z, y, dy] = [(); 3].map(|()| filled(shape.output_len()));
    let [x, addend, mut dx, raw] = [(); 4].map(|()| filled(shape.input_len()));
    let mut d_residual = filled(call.residual_len());
    let [norm, before] = [shape.out_channels, shape.in_channels].map(Parameters::new);
    let sums = vec![0.1; 2 * shape.out_channels];
    let mut input_sums = vec![0.0; 2 * shape.in_channels];
    let weights = vec![0.5; shape.weight_len()];
    let mut dw = vec![0.0; shape.weight_len()];
    if call.needs_input {
        layer.conv().pack_data_gradient(
            &weights,
            packed.floats(layer.conv().packed_data_gradient_len()),
        );
    }
    Box::new(move || {
        let input = match call.before {
            Before::Stored => Input {
                stored: Some(&x[..]),
                norm: Some(Saved {
                    affine: before.affine(),
                    x: &raw,
                    gate: Gate::Output(&x),
                }),
            },
            _ => before.input(call.before, &x),
        };
        let given = Backward {
            input,
            norm: Saved {
                affine: norm.affine(),
                x: &z[..],
                gate: gate(&call, &y),
            },
            sums: &sums,
            count: dy.len() as f64 / shape.out_channels as f64,
            dy: &dy,
            packed: packed.floats(layer.conv().packed_data_gradient_len()),
            addend: call.has_addend.then_some(&addend[..]),
        };
        let residual = match call.residual {
            ResidualKind::None => ResidualGradient::None,
            ResidualKind::Identity => ResidualGradient::Write(&mut d_residual[..]),
            ResidualKind::ShortcutA => {
                ResidualGradient::WriteOptionA(shortcut(&call), &mut d_residual)
            }
        };
        let dx = call.needs_input.then_some(&mut dx[..]);
        let wanted = Gradients {
            dx,
            dw: &mut dw,
            residual,
            input_sums: &mut input_sums,
        };
        layer.backward(
            &given,
            wanted,
            workspace.floats(layer.backward_workspace_len()),
        );
        black_box(&dw);
    })
}

/// Returns values of both signs, none of them subnormal.
fn filled<E: Element>(arena: &Arena, len: usize) -> Buffer<E> {
    let mut block = arena.take::<E>(len);
    for (index, value) in block.iter_mut().enumerate() {
        *value = E::from_f32(((index * 7919) % 257) as f32 / 128.0 - 1.0);
    }
    block
}

/// Parameters of a normalisation that changes nothing.
struct Parameters {
    zeros: Vec<f32>,
    ones: Vec<f32>,
}

impl Parameters {
    fn new(channels: usize) -> Self {
        Self {
            zeros: vec![0.0; channels],
            ones: vec![1.0; channels],
        }
    }

    fn affine(&self) -> Affine<'_> {
        Affine {
            mean: &self.zeros,
            invstd: &self.ones,
            gamma: &self.ones,
            beta: &self.zeros,
        }
    }

    fn input<'a, E: Element>(&'a self, before: Before, x: &'a [E]) -> Input<'a, E> {
        let norm = Saved {
            affine: self.affine(),
            x,
            gate: Gate::Recomputed,
        };
        match before {
            Before::Raw => Input {
                stored: None,
                norm: Some(norm),
            },
            _ => Input {
                stored: Some(x),
                norm: None,
            },
        }
    }
}

fn gate<'a, E>(call: &LayerCall, output: &'a [E]) -> Gate<'a, E> {
    Gate::of(call.rectifier, call.residual != ResidualKind::None, output)
}

fn shortcut(call: &LayerCall) -> ShortcutA {
    fused::shortcut_a(call.shortcut_shape(), call.shape.out_channels)
}

#[cfg(test)]
mod tests {
    use kernels::batch_norm::Rectifier;
    use kernels::conv2d::{Algorithm, Conv2dShape};
    use kernels::simd::Isa;

    use super::*;

    /// The second convolution of a residual block in training, of images that are walked over in
    /// groups.
    fn call(storage: Storage) -> LayerCall {
        let height = 16;
        let width = 16;
        let in_channels = 32;
        let out_channels = 32;
        let shape = Conv2dShape {
            batch: 16,
            height,
            width,
            in_channels,
            out_channels,
            kernel: [3, 3],
            stride: 1,
            padding: [1, 1],
            groups: 1,
        };
        LayerCall {
            shape,
            algorithm: Algorithm::Auto,
            isa: Isa::detect(),
            storage,
            before: Before::Raw,
            residual: ResidualKind::Identity,
            rectifier: Rectifier::Relu,
            needs_input: true,
            has_addend: false,
        }
    }

    const IN_ORDER: [Kernel; 6] = [
        Kernel::PackForward,
        Kernel::Convolution,
        Kernel::Normalisation,
        Kernel::NormSums,
        Kernel::PackBackward,
        Kernel::Gradients,
    ];

    #[test]
    fn walks_are_counted_as_a_layer_makes_them() {
        let calls = KernelCalls(IN_ORDER.map(|kernel| (kernel, call(Storage::F32))).to_vec());
        // Input, z; z, residual, y; dy, z, gate; dy, z, gate, residual's gradient, input, dx.
        assert!(
            (calls.walks() - (2.0 + 3.0 + 3.0 + 6.0)).abs() < 1e-12,
            "{}",
            calls.walks()
        );
        assert_eq!(KernelCalls::default().walks(), 0.0);
    }

    #[test]
    fn every_kernel_of_a_step_runs_alone_and_equal_calls_count_each() {
        for storage in [Storage::F32, Storage::Bf16] {
            let first = call(storage);
            let others = [
                LayerCall {
                    before: Before::Stored,
                    has_addend: true,
                    residual: ResidualKind::None,
                    ..first
                },
                LayerCall {
                    before: Before::Unknown,
                    needs_input: false,
                    residual: ResidualKind::ShortcutA,
                    ..first
                },
            ];
            let of = |call: LayerCall| IN_ORDER.map(|kernel| (kernel, call));
            let calls = KernelCalls(
                [first, others[0], others[1]]
                    .into_iter()
                    .flat_map(of)
                    .collect(),
            );
            let alone = calls.alone();
            assert_eq!(alone.len(), IN_ORDER.len());
            assert!(alone.iter().all(|kernel| kernel.seconds > 0.0), "{alone:?}");
            let twice = KernelCalls(vec![(Kernel::Convolution, first); 2]).alone();
            assert_eq!(twice[0].bytes, 2 * first.bytes(Kernel::Convolution));
        }
    }
}
