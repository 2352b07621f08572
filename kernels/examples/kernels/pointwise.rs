//! What else moves memory: pools and the update.
//!
//! In: the networks. Out: a measurement of each operation; each has a copy of as many bytes beside it.

use kernels::Element;
use kernels::optimizer::adam::{self, AdamDirection, AdamWUpdate};
use kernels::optimizer::lamb::{self, LambUpdate};
use kernels::optimizer::lars;
use kernels::optimizer::sgd::{self, SgdUpdate};
use kernels::pool::{self, MaxPoolShape};

use crate::measure::{Bench, OnTensor};

/// Parameters of an update: more than caches hold.
const NUM_PARAMETERS: usize = 1 << 22;

pub(crate) fn measure<E: Element>(bench: &Bench, cifar: bool, resnet50: bool) {
    let batch = bench.arguments.batch;
    if cifar {
        measure_global_average::<E>(bench, batch, 8, 64);
    }
    if resnet50 {
        measure_max_pool::<E>(bench, batch.min(4));
        measure_global_average::<E>(bench, batch.min(32), 7, 2048);
    }
    measure_update(bench);
}

fn measure_global_average<E: Element>(
    bench: &Bench,
    images: usize,
    extent: usize,
    channels: usize,
) {
    let (isa, pixels) = (bench.arguments.isa, extent * extent);
    let mut x = bench.values::<E>(images * pixels * channels);
    let mut y = bench.values::<f32>(images * channels);
    let shape = format!("[{images}, {extent}, {extent}, {channels}]");
    let tensor = OnTensor::new::<E>(bench, shape, Some(images), x.len());
    let num_bytes = size_of_val(&*x) + size_of_val(&*y);
    tensor.measure("global average", num_bytes, || {
        pool::global_average(isa, &x, pixels, channels, &mut y)
    });
    tensor.measure("global average gradient", num_bytes, || {
        pool::global_average_backward(isa, &y, pixels, channels, &mut x);
    });
}

fn measure_max_pool<E: Element>(bench: &Bench, num_images: usize) {
    let isa = bench.arguments.isa;
    let shape = MaxPoolShape {
        num_images,
        height: 112,
        width: 112,
        channels: 64,
    };
    let mut x = bench.values::<E>(shape.input_len());
    let mut y = bench.values::<E>(shape.output_len());
    let mut taps = vec![0; shape.output_len()];
    let name = format!(
        "[{num_images}, {}, {}, {}]",
        shape.height, shape.width, shape.channels
    );
    let tensor = OnTensor::new::<E>(bench, name, Some(num_images), x.len());
    let num_bytes = size_of_val(&*x) + size_of_val(&*y) + size_of_val(&*taps);
    tensor.measure("max pool", num_bytes, || {
        pool::max_pool(isa, shape, &x, &mut y, &mut taps)
    });
    tensor.measure("max pool gradient", num_bytes, || {
        pool::max_pool_backward(isa, shape, &y, &taps, &mut x)
    });
}

fn measure_update(bench: &Bench) {
    let isa = bench.arguments.isa;
    // So small a step that no repetition makes the values large.
    let update = SgdUpdate {
        learning_rate: 1e-9,
        momentum: 0.9,
        weight_decay: 1e-4,
        nesterov: true,
    };
    let [mut parameters, mut velocities, gradients] =
        std::array::from_fn(|_| bench.values::<f32>(NUM_PARAMETERS));
    // Two parameters for each copied one: the copy's two buffers are as large as the update's three.
    let tensor = OnTensor::new::<f32>(
        bench,
        format!("[{NUM_PARAMETERS}]"),
        None,
        NUM_PARAMETERS * 3 / 2,
    );
    // Three are read and two written.
    tensor.measure("SGD step", 5 * size_of::<f32>() * NUM_PARAMETERS, || {
        sgd::step(isa, &update, &mut parameters, &mut velocities, &gradients);
    });
    // The norms read parameters and gradients once more.
    tensor.measure("LARS step", 7 * size_of::<f32>() * NUM_PARAMETERS, || {
        lars::step(
            isa,
            &update,
            1e-3,
            &mut parameters,
            &mut velocities,
            &gradients,
        );
    });
    let direction = AdamDirection::new([0.9, 0.999], 1e-8, 10);
    let update = AdamWUpdate {
        learning_rate: 1e-9,
        kept: 1.0,
        direction,
    };
    let mut second = bench.values::<f32>(NUM_PARAMETERS);
    second.iter_mut().for_each(|value| *value = value.abs());
    // Four are read and three written.
    tensor.measure("AdamW step", 7 * size_of::<f32>() * NUM_PARAMETERS, || {
        adam::step(
            isa,
            &update,
            &mut parameters,
            [&mut velocities, &mut second],
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
    // Four are read and three written; the norm reads one, the descent two, and writes one.
    tensor.measure("LAMB step", 11 * size_of::<f32>() * NUM_PARAMETERS, || {
        lamb::step(
            isa,
            &update,
            &mut parameters,
            &mut scratch,
            [&mut velocities, &mut second],
            &gradients,
        );
    });
}
