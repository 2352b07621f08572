//! After a first call the kernels allocate nothing: callers bring every buffer.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use kernels::activation::{self, Function};
use kernels::attention::{Attention, Mask};
use kernels::batch_norm::{
    self, Affine, Gate, Rectifier, Residual, ResidualGradient, Saved, ShortcutA,
};
use kernels::conv2d::{Algorithm, Conv2dShape};
use kernels::group_norm::{self, GroupNorm};
use kernels::layer::{Backward, Gradients, Input, Layer};
use kernels::optimizer::adam::{self, AdamDirection, AdamWUpdate};
use kernels::optimizer::lamb::{self, LambUpdate};
use kernels::optimizer::lars;
use kernels::optimizer::sgd::{self, SgdUpdate};
use kernels::pool::{self, MaxPoolShape};
use kernels::scratch::Scratch;
use kernels::simd::Isa;
use kernels::softmax::Softmax;
use kernels::{Storage, layer_norm};

static NUM_ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: every call is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        NUM_ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `GlobalAlloc::dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn norm_and_update_allocate_nothing() {
    let images = 16;
    let side = 16;
    let channels = 32;
    let rows = images * side * side;
    let shape = ShortcutA {
        num_images: images,
        height: 32,
        width: 32,
        channels_in: 16,
        channels,
    };
    let x: Vec<f32> = (0..rows * channels).map(|i| (i % 13) as f32).collect();
    let [mut y, mut dx, mut second, mut scratch] = std::array::from_fn(|_| vec![0.0; x.len()]);
    let mut input = vec![0.5; images * shape.image_in()];
    let gamma = vec![1.0; channels];
    let beta = vec![0.0; channels];
    let mean = vec![0.5; channels];
    let invstd = vec![1.0; channels];
    let mut sums = vec![0.0; 2 * channels];
    let mut workspace = vec![0.0; batch_norm::workspace_len(rows, channels)];
    let isa = Isa::detect();
    let run = || {
        let affine = Affine {
            mean: &mean,
            invstd: &invstd,
            gamma: &gamma,
            beta: &beta,
        };
        batch_norm::normalize(
            isa,
            &affine,
            &x,
            Residual::OptionA(shape, &input),
            Rectifier::Relu,
            &mut y,
        );
        let saved = Saved {
            affine,
            x: &x,
            gate: Gate::Output(&y),
        };
        batch_norm::backward_sums(isa, &saved, &x, &mut sums, &mut workspace);
        let residual = ResidualGradient::WriteOptionA(shape, &mut input);
        batch_norm::backward(isa, &saved, &sums, rows as f64, &x, &mut dx, residual);
        let update = SgdUpdate {
            learning_rate: 0.1,
            momentum: 0.9,
            weight_decay: 0.0,
            nesterov: true,
        };
        sgd::step(isa, &update, &mut y, &mut dx, &x);
        lars::step(isa, &update, 1e-3, &mut y, &mut dx, &x);
        let direction = AdamDirection::new([0.9, 0.999], 1e-8, 1);
        let update = AdamWUpdate {
            learning_rate: 0.1,
            kept: 1.0,
            direction,
        };
        adam::step(isa, &update, &mut y, [&mut dx, &mut second], &x);
        let update = LambUpdate {
            learning_rate: 0.1,
            weight_decay: 0.0,
            direction,
            adapts: true,
        };
        lamb::step(
            isa,
            &update,
            &mut y,
            &mut scratch,
            [&mut dx, &mut second],
            &x,
        );
    };
    assert_eq!(least_allocations(2, run), 0);
}

/// Rounds of a measurement: rayon's queues and the test harness allocate now and then, on other
/// threads.
fn least_allocations(threads: usize, mut run: impl FnMut() + Send) -> usize {
    // One test at a time, since all allocations of the process are counted.
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .expect("threads can be started");
    pool.install(|| {
        let rounds = (0..10).map(|_| {
            let before = NUM_ALLOCATIONS.load(Ordering::Relaxed);
            run();
            NUM_ALLOCATIONS.load(Ordering::Relaxed) - before
        });
        rounds.min().expect("there are rounds")
    })
}

#[test]
fn layers_depthwise_ones_too_allocate_nothing() {
    for (in_channels, out_channels, kernel, groups) in [
        (16, 32, 3, 1),
        (32, 48, 1, 1),
        (32, 32, 3, 32),
        (32, 32, 7, 32),
    ] {
        let padding = kernel / 2;
        let shape = Conv2dShape {
            batch: 4,
            height: 16,
            width: 16,
            in_channels,
            out_channels,
            kernel: [kernel; 2],
            stride: 1,
            padding: [padding; 2],
            groups,
        };
        let isa = Isa::detect();
        let layer = Layer::new(shape, Algorithm::Auto, isa, Storage::F32);
        let [x, dy] = [shape.input_len(), shape.output_len()].map(|len| vec![0.5; len]);
        let [mut dx, mut z] = [shape.input_len(), shape.output_len()].map(|len| vec![0.0; len]);
        let [mut dw, weights] = [(); 2].map(|()| vec![0.1; shape.weight_len()]);
        let zeros = [0.0; 48];
        let ones = [1.0; 48];
        let affine = |channels: usize| Affine {
            mean: &zeros[..channels],
            invstd: &ones[..channels],
            gamma: &ones[..channels],
            beta: &zeros[..channels],
        };
        let mut moments = vec![0.0; 2 * out_channels];
        let mut input_sums = vec![0.0; 2 * in_channels];
        let mut scratch = [(); 3].map(|()| Scratch::new());
        let run = || {
            let [packed, packed_back, workspace] = &mut scratch;
            let gate = Gate::Recomputed;
            let input = Input {
                stored: None,
                norm: Some(Saved {
                    affine: affine(in_channels),
                    x: &x[..],
                    gate,
                }),
            };
            let packed = packed.floats(layer.conv().packed_forward_len());
            layer.conv().pack_forward(&weights, packed);
            layer.forward(
                input,
                packed,
                &mut z,
                workspace.floats(layer.forward_workspace_len()),
                &mut moments,
            );
            let packed = packed_back.floats(layer.conv().packed_data_gradient_len());
            layer.conv().pack_data_gradient(&weights, packed);
            let norm = Saved {
                affine: affine(out_channels),
                x: &z[..],
                gate,
            };
            let sums = &moments[..];
            let count = 1024.0;
            let given = Backward {
                input,
                norm,
                sums,
                count,
                dy: &dy,
                packed,
                addend: None,
            };
            let residual = ResidualGradient::None;
            let wanted = Gradients {
                dx: Some(&mut dx),
                dw: &mut dw,
                residual,
                input_sums: &mut input_sums,
            };
            layer.backward(
                &given,
                wanted,
                workspace.floats(layer.backward_workspace_len()),
            );
        };
        // On one thread: a scope of several is a list of rayon's.
        assert_eq!(least_allocations(1, run), 0, "{shape:?}");
    }
}

#[test]
fn layer_norm_activations_attention_and_pools_allocate_nothing() {
    let isa = Isa::detect();
    let attention = Attention {
        images: 2,
        tokens: 17,
        heads: 2,
        width: 16,
    };
    let pool = MaxPoolShape {
        num_images: 2,
        height: 8,
        width: 8,
        channels: 16,
        window: 3,
    };
    let small = MaxPoolShape { window: 2, ..pool };
    let group_norm = GroupNorm {
        pixels: 64,
        channels: 16,
        groups: 4,
        epsilon: 1e-5,
    };
    let x = vec![0.25; 2 * 17 * 3 * 32];
    let [mut y, mut dx] = [(); 2].map(|()| vec![0.0; x.len()]);
    let [mut d_gamma, mut d_beta, gamma] = [(); 3].map(|()| vec![0.5; 32]);
    let mut taps = vec![0; pool.output_len()];
    let mut scratch = Scratch::new();
    let run = || {
        layer_norm::forward(isa, 1e-5, &x, &gamma, &gamma, &mut y);
        let workspace = scratch.floats(layer_norm::backward_workspace_len(x.len() / 32, 32));
        let wanted = layer_norm::Gradients {
            dx: &mut dx,
            d_gamma: &mut d_gamma,
            d_beta: &mut d_beta,
        };
        layer_norm::backward(isa, 1e-5, &x, &gamma, &y, wanted, workspace);
        for function in [
            Function::Gelu,
            Function::Silu,
            Function::Relu,
            Function::Relu6,
            Function::Sigmoid,
            Function::Tanh,
            Function::LeakyRelu { slope: 0.1 },
            Function::HardSwish,
        ] {
            activation::forward(isa, function, &x, &mut y);
            activation::backward(isa, function, &x, &y, &mut dx);
        }
        let workspace = scratch.floats(attention.workspace_len());
        for mask in [Mask::None, Mask::Causal] {
            let y = &mut y[..attention.output_len()];
            attention.forward(isa, &x, mask, y, workspace);
            attention.backward(isa, &x, mask, y, &mut dx, workspace);
        }
        for is_log in [false, true] {
            let softmax = Softmax {
                channels: 32,
                is_log,
            };
            let workspace = scratch.floats(softmax.workspace_len());
            softmax.forward(isa, &x, &mut y, workspace);
            softmax.backward(isa, &x, &y, &mut dx, workspace);
        }
        let x = &x[..pool.input_len()];
        let parameters = [&gamma[..16]; 2];
        let workspace = scratch.floats(group_norm.workspace_len(2));
        group_norm.forward(isa, x, parameters, &mut y[..x.len()], workspace);
        let wanted = group_norm::Gradients {
            dx: &mut dx[..x.len()],
            d_gamma: &mut d_gamma[..16],
            d_beta: &mut d_beta[..16],
        };
        group_norm.backward(isa, x, &gamma[..16], &y[..x.len()], wanted, workspace);
        let y = &mut y[..pool.output_len()];
        let large = [2, 8, 8, 16];
        pool::halve(isa, large, 0.25, x, y);
        pool::double(isa, large, 0.25, y, &mut dx[..x.len()]);
        pool::max_pool(isa, small, x, y, &mut taps);
        pool::max_pool_backward(isa, small, y, &taps, &mut dx[..x.len()]);
        pool::max_pool(isa, pool, x, y, &mut taps);
        pool::max_pool_backward(isa, pool, y, &taps, &mut dx[..pool.input_len()]);
        pool::global_average(isa, x, 64, 16, &mut d_gamma);
        pool::global_average_backward(isa, &d_gamma, 64, 16, None, &mut dx[..pool.input_len()]);
    };
    assert_eq!(least_allocations(1, run), 0);
}
