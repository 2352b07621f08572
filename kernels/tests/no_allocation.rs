//! After a first call the kernels allocate nothing: callers bring every buffer.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use kernels::batch_norm::{self, Affine, Gate, Rectifier, Residual, ResidualGradient, Saved, ShortcutA};
use kernels::optimizer::adam::{self, AdamDirection, AdamWUpdate};
use kernels::optimizer::lamb::{self, LambUpdate};
use kernels::optimizer::lars;
use kernels::optimizer::sgd::{self, SgdUpdate};
use kernels::simd::Isa;

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
    let (images, side, channels) = (16, 16, 32);
    let rows = images * side * side;
    let shape = ShortcutA { num_images: images, height: 32, width: 32, channels_in: 16, channels };
    let x: Vec<f32> = (0..rows * channels).map(|i| (i % 13) as f32).collect();
    let [mut y, mut dx, mut second, mut updated] = std::array::from_fn(|_| vec![0.0; x.len()]);
    let mut input = vec![0.5; images * shape.image_in()];
    let (gamma, beta) = (vec![1.0; channels], vec![0.0; channels]);
    let (mean, invstd) = (vec![0.5; channels], vec![1.0; channels]);
    let mut sums = vec![0.0; 2 * channels];
    let mut workspace = vec![0.0; batch_norm::workspace_len(rows, channels)];
    let isa = Isa::detect();
    let mut run = || {
        let affine = Affine { mean: &mean, invstd: &invstd, gamma: &gamma, beta: &beta };
        batch_norm::normalize(isa, &affine, &x, Residual::OptionA(shape, &input), Rectifier::Relu, &mut y);
        let saved = Saved { affine, x: &x, gate: Gate::Output(&y) };
        batch_norm::backward_sums(isa, &saved, &x, &mut sums, &mut workspace);
        let residual = ResidualGradient::WriteOptionA(shape, &mut input);
        batch_norm::backward(isa, &saved, &sums, rows as f64, &x, &mut dx, residual);
        let update = SgdUpdate { learning_rate: 0.1, momentum: 0.9, weight_decay: 0.0, nesterov: true };
        sgd::step(isa, &update, &mut y, &mut dx, &x);
        lars::step(isa, &update, 1e-3, &mut y, &mut dx, &x);
        let direction = AdamDirection::new([0.9, 0.999], 1e-8, 1);
        let update = AdamWUpdate { learning_rate: 0.1, kept: 1.0, direction };
        adam::step(isa, &update, &mut y, [&mut dx, &mut second], &x);
        let update = LambUpdate { learning_rate: 0.1, weight_decay: 0.0, direction, adapts: true };
        lamb::step(isa, &update, &y, &mut updated, [&mut dx, &mut second], &x);
    };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().expect("threads can be started");
    let least = pool.install(|| {
        let rounds = (0..10).map(|_| {
            let before = NUM_ALLOCATIONS.load(Ordering::Relaxed);
            run();
            NUM_ALLOCATIONS.load(Ordering::Relaxed) - before
        });
        rounds.min()
    });
    // The least of several rounds: rayon's queues and the test harness allocate now and then, on other threads.
    assert_eq!(least, Some(0));
}
