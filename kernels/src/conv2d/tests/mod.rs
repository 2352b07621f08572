//! Fast equals reference: random shapes, every instruction set, unaligned slices, 1..=3 threads
//! bit-equal; bf16 equals f32 of the widened inputs, rounded.

use super::winograd::plan::WinogradPlan;
use super::{Addend, Algorithm, Conv2d, Conv2dShape, Epilogue, depthwise};
use crate::simd::Isa;
use crate::tests::{dirty, rounded, shape_of, widened};
use crate::{Element, Storage};

mod dot;
mod far_pixels;
mod reference;

/// SplitMix64: values in -1..1 from a seed.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(super) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[(self.next() % from.len() as u64) as usize]
    }

    /// `len` values behind one unused element, so that the slice is not aligned to a vector.
    pub(super) fn values(&mut self, len: usize) -> Vec<f32> {
        (0..=len)
            .map(|_| (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0)
            .collect()
    }
}

/// A random shape of at most `limit` multiply-adds.
pub(super) fn random_shape(random: &mut Random, limit: f64) -> Conv2dShape {
    loop {
        let (kernel, stride, padding) = random.pick(&[
            ([3, 3], 1, [1, 1]),
            ([3, 3], 1, [1, 1]),
            ([3, 3], 1, [1, 0]),
            ([3, 3], 2, [1, 1]),
            ([1, 1], 1, [0, 0]),
            ([1, 1], 2, [0, 0]),
            ([7, 7], 2, [3, 3]),
            ([5, 5], 1, [2, 2]),
            ([3, 3], 1, [0, 0]),
            ([1, 7], 1, [0, 3]),
            ([7, 1], 1, [3, 0]),
            ([2, 5], 2, [1, 0]),
            ([3, 3], 3, [0, 0]),
            ([5, 3], 3, [1, 2]),
            ([1, 2], 3, [0, 1]),
            ([5, 6], 4, [2, 0]),
        ]);
        let groups = random.pick(&[1, 1, 2, 3, 4, 8, 16]);
        let extents = [1, 2, 3, 4, 5, 6, 7, 8, 9, 14, 19, 32];
        let channels = [1, 2, 3, 5, 8, 16, 17, 24, 32, 33, 48, 64];
        let shape = Conv2dShape {
            batch: random.pick(&[1, 2, 3, 5]),
            height: random.pick(&extents),
            width: random.pick(&extents),
            in_channels: random.pick(&channels),
            out_channels: random.pick(&channels),
            kernel,
            stride,
            padding,
            groups,
        };
        let fits = kernel[0] <= shape.height + 2 * padding[0]
            && kernel[1] <= shape.width + 2 * padding[1]
            && shape.in_channels.is_multiple_of(groups)
            && shape.out_channels.is_multiple_of(groups);
        if fits && shape.flops() / 2.0 <= limit {
            return shape;
        }
    }
}

/// Largest difference relative to the root of the mean square of `expected`, of which each is a sum
/// of `terms`.
fn assert_close(what: &str, shape: &Conv2dShape, isa: Isa, got: &[f32], expected: &[f64]) {
    let scale = (expected.iter().map(|e| e * e).sum::<f64>() / expected.len() as f64)
        .sqrt()
        .max(1e-3);
    for (index, (&got, &expected)) in got.iter().zip(expected).enumerate() {
        let difference = (f64::from(got) - expected).abs() / scale;
        assert!(
            difference < 2e-5,
            "{what} {shape:?} {isa:?}: element {index} is {got}, expected {expected}"
        );
    }
}

#[derive(PartialEq)]
pub(super) struct Results<E = f32> {
    pub(super) y: Vec<E>,
    pub(super) dx: Vec<E>,
    pub(super) dw: Vec<f32>,
    pub(super) moments: Vec<f64>,
}

/// Input, weights and gradient of the output, each behind one unused element.
pub(super) fn operands(shape: &Conv2dShape, random: &mut Random) -> [Vec<f32>; 3] {
    [shape.input_len(), shape.weight_len(), shape.output_len()].map(|len| random.values(len))
}

/// The results of `run` with each pool, of which only the first is returned: they are equal.
pub(super) fn equal_results<E: Element + PartialEq + Send>(
    what: &str,
    pools: &[rayon::ThreadPool],
    run: impl Fn() -> Results<E> + Sync,
) -> Results<E> {
    let first = pools[0].install(&run);
    for pool in &pools[1..] {
        let is_equal = pool.install(&run) == first;
        assert!(is_equal, "{what}: the results depend on the threads");
    }
    first
}

/// All passes; `x`, `w`, `dy` skip their first element. Results and workspaces are dirty before.
pub(super) fn run_all<E: Element>(conv: &Conv2d, x: &[E], w: &[f32], dy: &[E]) -> Results<E> {
    let s = conv.shape();
    let x = &x[1..];
    let w = &w[1..];
    let dy = &dy[1..];
    let mut results = Results {
        y: vec![E::from_f32(f32::NAN); s.output_len()],
        dx: vec![E::from_f32(f32::NAN); s.input_len()],
        dw: vec![f32::NAN; s.weight_len()],
        moments: vec![0.5; 2 * s.out_channels],
    };
    let mut packed = dirty(conv.packed_forward_len());
    conv.pack_forward(w, &mut packed);
    let mut workspace = dirty(conv.forward_workspace_len());
    conv.forward(
        x,
        &packed,
        &mut results.y,
        &mut workspace,
        Epilogue::Moments(&mut results.moments),
    );
    let mut plain = vec![E::from_f32(f32::NAN); s.output_len()];
    conv.forward(
        x,
        &packed,
        &mut plain,
        &mut dirty(conv.forward_workspace_len()),
        Epilogue::None,
    );
    assert_eq!(plain, results.y, "{s:?}: the moments change the output");
    let bias = &w[..s.out_channels.min(w.len())];
    if bias.len() == s.out_channels {
        let mut shifted = vec![E::from_f32(f32::NAN); s.output_len()];
        conv.forward(
            x,
            &packed,
            &mut shifted,
            &mut dirty(conv.forward_workspace_len()),
            Epilogue::Bias(bias),
        );
        let expected = plain
            .iter()
            .zip(bias.iter().cycle())
            .map(|(y, bias)| E::from_f32(y.to_f32() + bias));
        assert!(shifted.iter().copied().eq(expected), "{s:?}: with a bias");
    }
    let mut packed = dirty(conv.packed_data_gradient_len());
    conv.pack_data_gradient(w, &mut packed);
    conv.data_gradient(
        dy,
        &packed,
        Addend::None,
        &mut results.dx,
        &mut dirty(conv.data_gradient_workspace_len()),
    );
    conv.weight_gradient(
        x,
        dy,
        &mut results.dw,
        &mut dirty(conv.weight_gradient_workspace_len()),
    );
    results
}

pub(super) fn pool(num_threads: usize) -> rayon::ThreadPool {
    rayon::ThreadPoolBuilder::new()
        .num_threads(num_threads)
        .build()
        .unwrap()
}

/// The fastest way of this processor.
pub(super) fn plan(shape: Conv2dShape) -> Conv2d {
    Conv2d::new(shape, Algorithm::Auto, Isa::detect(), Storage::F32)
}

/// Each instruction set with each algorithm that has the shape.
fn ways(shape: &Conv2dShape) -> impl Iterator<Item = (Isa, Algorithm)> {
    let has_winograd = WinogradPlan::supports(shape);
    let algorithms = match has_winograd {
        true => &[Algorithm::Direct, Algorithm::Winograd][..],
        false => &[Algorithm::Direct],
    };
    Isa::available().flat_map(|isa| algorithms.iter().map(move |&algorithm| (isa, algorithm)))
}

pub(super) fn check_shape(shape: &Conv2dShape, random: &mut Random, pools: &[rayon::ThreadPool]) {
    let [x, w, dy] = operands(shape, random);
    let expected_y = reference::forward(shape, &x[1..], &w[1..]);
    let expected_dx = reference::data_gradient(shape, &dy[1..], &w[1..]);
    let expected_dw = reference::weight_gradient(shape, &x[1..], &dy[1..]);
    for (isa, algorithm) in ways(shape) {
        let conv = Conv2d::new(*shape, algorithm, isa, Storage::F32);
        let what = format!("{shape:?} {isa:?}");
        let results = equal_results(&what, pools, || run_all(&conv, &x, &w, &dy));
        assert_close("forward", shape, isa, &results.y, &expected_y);
        assert_close("data gradient", shape, isa, &results.dx, &expected_dx);
        assert_close("weight gradient", shape, isa, &results.dw, &expected_dw);
        check_statistics(shape, &results);
    }
}

pub(super) fn check_statistics<E: Element>(shape: &Conv2dShape, results: &Results<E>) {
    let channels = shape.out_channels;
    let count = (results.y.len() / channels) as f64;
    let (sums, squares) = results.moments.split_at(channels);
    for c in 0..channels {
        let of_channel = || {
            results
                .y
                .iter()
                .skip(c)
                .step_by(channels)
                .map(|&y| f64::from(y.to_f32()))
        };
        let (sum, magnitude): (f64, f64) = (of_channel().sum(), of_channel().map(f64::abs).sum());
        let square: f64 = of_channel()
            .map(|y| (y - sum / count) * (y - sum / count))
            .sum();
        assert!(
            (sums[c] - sum).abs() <= 1e-6 * magnitude + 1e-9,
            "{shape:?}: sum {c}"
        );
        assert!(
            (squares[c] - square).abs() <= 3e-6 * square + 1e-9,
            "{shape:?}: squares {c}"
        );
    }
}

#[test]
fn a_mean_of_a_hundred_standard_deviations_costs_the_moments_no_digits() {
    let shape = shape_of([3, 32, 32, 1], 5, [1, 1, 0]);
    let x: Vec<f32> = Random(3)
        .values(shape.input_len())
        .iter()
        .map(|x| 100.0 + x)
        .collect();
    let results = run_all(
        &plan(shape),
        &x,
        &vec![1.0; shape.weight_len() + 1],
        &vec![0.0; shape.output_len() + 1],
    );
    check_statistics(&shape, &results);
}

#[test]
fn random_shapes_equal_the_reference_for_any_number_of_threads() {
    let pools = [pool(1), pool(2), pool(3)];
    let mut random = Random(7);
    for _ in 0..150 {
        let shape = random_shape(&mut random, 1.5e6);
        check_shape(&shape, &mut random, &pools);
    }
}

/// Images, extent, channels in and out, kernel, stride.
type Layer = (usize, usize, usize, usize, usize, usize);

fn padded((batch, extent, in_channels, out_channels, kernel, stride): Layer) -> Conv2dShape {
    let input = [batch, extent, extent, in_channels];
    shape_of(input, out_channels, [kernel, stride, kernel / 2])
}

/// Pixels of x so far apart that the weight gradient packs them, then of dy, then of x with vectors
/// of 8 lanes.
const FAR_PIXELS: [Layer; 6] = [
    (5, 7, 1030, 40, 1, 1),
    (5, 5, 1030, 40, 1, 2),
    (5, 7, 130, 1030, 1, 1),
    (5, 7, 530, 140, 1, 1),
    (5, 5, 530, 140, 1, 2),
    (2, 7, 260, 1030, 1, 1),
];

#[test]
fn bf16_storage_gives_the_f32_results_of_the_widened_inputs_rounded_to_bf16() {
    let pools = [pool(1), pool(2), pool(3)];
    let mut random = Random(13);
    let shapes: Vec<_> = (0..100).map(|_| random_shape(&mut random, 8e5)).collect();
    for shape in shapes
        .into_iter()
        .chain(odd_numbers_of_pixels())
        .chain(depthwise::tests::shapes())
        .chain(FAR_PIXELS.map(padded))
    {
        let [x, w, dy] = operands(&shape, &mut random);
        let x = rounded(&x);
        let dy = rounded(&dy);
        for (isa, algorithm) in ways(&shape) {
            let conv = Conv2d::new(shape, algorithm, isa, Storage::F32);
            let expected = run_all(&conv, &widened(&x), &w, &widened(&dy));
            let what = format!("{shape:?} {isa:?} {algorithm:?}");
            let got = equal_results(&what, &pools, || run_all(&conv, &x, &w, &dy));
            assert_eq!(got.y, rounded(&expected.y), "{what}: forward");
            assert_eq!(got.dx, rounded(&expected.dx), "{what}: data gradient");
            assert_eq!(got.dw, expected.dw, "{what}: weight gradient");
            check_statistics(&shape, &got);
        }
    }
}

#[test]
fn layers_of_resnets_and_channels_of_several_blocks_equal_the_reference() {
    let pools = [pool(1), pool(2), pool(3)];
    let layers = [
        (9, 32, 3, 16, 3, 1),
        (3, 32, 16, 16, 3, 1),
        (3, 32, 16, 32, 3, 2),
        (3, 8, 64, 64, 3, 1),
        (1, 56, 3, 64, 7, 2),
        (2, 14, 64, 128, 1, 2),
        (2, 14, 128, 64, 1, 1),
        (2, 7, 70, 131, 3, 1),
        // More channels than a task of the weight gradient has, in blocks of unequal size with odd
        // tails.
        (5, 7, 300, 150, 1, 1),
        (3, 9, 270, 131, 1, 2),
        (5, 9, 90, 140, 3, 2),
        (2, 9, 40, 17, 7, 2),
        (2, 6, 100, 133, 3, 1),
        // Pixels 4 KB apart, in rows of 50.
        (2, 5, 1024, 85, 1, 1),
        // Transformed weights that no cache holds.
        (2, 5, 345, 350, 3, 1),
        // Weights that L2 does not hold: several images make a part of the work, and fewer the last
        // one.
        (19, 3, 176, 178, 3, 2),
        (19, 3, 530, 500, 1, 2),
        (11, 3, 176, 178, 3, 1),
    ];
    // Without padding x is read in place where a task has all its channels, and copied where it has
    // not.
    let unpadded = [20, 200].map(|in_channels| Conv2dShape {
        height: 7,
        padding: [0, 0],
        ..padded((2, 9, in_channels, 33, 3, 2))
    });
    let layers = layers.into_iter().chain(FAR_PIXELS).map(padded);
    for shape in layers.chain(unpadded).chain(odd_numbers_of_pixels()) {
        check_shape(&shape, &mut Random(5), &pools);
    }
}

#[test]
fn groups_of_any_size_equal_the_reference() {
    let pools = [pool(1), pool(3)];
    // Groups as wide as panels and wider, merged ones, and numbers of groups without a divisor.
    for (groups, of_group, per_group, kernel, stride) in [
        (4, 16, 16, 3, 1),
        (3, 20, 40, 3, 2),
        (32, 4, 4, 3, 1),
        (32, 4, 8, 3, 2),
        (12, 3, 5, 5, 1),
        (17, 1, 2, 3, 1),
        (64, 1, 1, 3, 3),
        (40, 1, 2, 3, 1),
        (4, 24, 8, 1, 1),
        (2, 150, 140, 3, 1),
    ] {
        let shape = Conv2dShape {
            groups,
            ..padded((3, 9, groups * of_group, groups * per_group, kernel, stride))
        };
        check_shape(&shape, &mut Random(5), &pools);
    }
}

#[test]
fn a_plan_for_many_threads_gives_the_bits_of_one_for_few() {
    let layers = [
        (9, 9, 600, 500, 1, 1),
        (9, 9, 1100, 300, 1, 2),
        (9, 5, 180, 180, 3, 2),
        (9, 14, 180, 180, 3, 2),
    ];
    for shape in layers.map(padded) {
        let mut random = Random(13);
        let [x, w, dy] = operands(&shape, &mut random);
        let [few, many] = [1, 8]
            .map(|num_threads| pool(num_threads).install(|| run_all(&plan(shape), &x, &w, &dy)));
        assert!(few == many, "{shape:?}");
    }
}

/// 1x1 convolutions whose pixels, all in one row or in images, have no divisor near 64, or fewer
/// than 64.
pub(super) fn odd_numbers_of_pixels() -> impl Iterator<Item = Conv2dShape> {
    let extents = [
        (13, 7, 7),
        (1, 1, 1021),
        (1, 67, 1),
        (1, 1, 61),
        (3, 11, 23),
        (1, 1, 4099),
    ];
    let channels = [(3, 5), (16, 48), (35, 33), (300, 20), (64, 150)];
    extents
        .into_iter()
        .zip(channels.into_iter().cycle())
        .flat_map(move |((batch, height, width), (inputs, outputs))| {
            [(inputs, outputs), (outputs, inputs)].map(|(inputs, outputs)| Conv2dShape {
                height,
                width,
                ..padded((batch, 1, inputs, outputs, 1, 1))
            })
        })
}

#[test]
fn the_reference_gradients_are_adjoint_to_its_forward_pass() {
    let mut random = Random(11);
    for _ in 0..40 {
        let s = random_shape(&mut random, 2e5);
        let [x, w, dy] = operands(&s, &mut random);
        let x = &x[1..];
        let w = &w[1..];
        let dy = &dy[1..];
        let dot =
            |a: &[f64], b: &[f32]| a.iter().zip(b).map(|(a, &b)| a * f64::from(b)).sum::<f64>();
        let by_y = dot(&reference::forward(&s, x, w), dy);
        let by_x = dot(&reference::data_gradient(&s, dy, w), x);
        let by_w = dot(&reference::weight_gradient(&s, x, dy), w);
        let tolerance = 1e-9 * (1.0 + by_y.abs() + s.output_len() as f64);
        assert!(
            (by_y - by_x).abs() < tolerance && (by_y - by_w).abs() < tolerance,
            "{s:?}: {by_y} {by_x} {by_w}"
        );
    }
}

#[test]
fn what_stands_before_the_slots_of_a_workspace_is_whole_cache_lines() {
    let mut random = Random(41);
    for _ in 0..100 {
        let conv = plan(random_shape(&mut random, 1e7));
        let lengths = [
            conv.forward_partials_len(),
            conv.weight_gradient.plan().workspace_len(0),
        ];
        assert!(
            lengths.iter().all(|len| len.is_multiple_of(16)),
            "{:?}: {lengths:?}",
            conv.shape()
        );
    }
}

#[test]
#[should_panic(expected = "convolution: expected groups that divide the channels")]
fn groups_that_do_not_divide_the_channels_are_refused() {
    let shape = shape_of([1, 4, 4, 4], 4, [3, 1, 1]);
    plan(Conv2dShape { groups: 3, ..shape });
}

#[test]
#[should_panic(expected = "convolution: input length")]
fn a_short_input_is_refused() {
    let shape = shape_of([1, 4, 4, 2], 2, [3, 1, 1]);
    let conv = plan(shape);
    let packed = dirty(conv.packed_forward_len());
    let mut y = vec![0.0; shape.output_len()];
    let mut workspace = dirty(conv.forward_workspace_len());
    conv.forward(&[0.0; 31], &packed, &mut y, &mut workspace, Epilogue::None);
}

/// Root of the mean square difference over that of `expected`.
/// Relative L2 distances from f64 (docs/numerics.md).
const DIRECT_TOLERANCE: f64 = 1e-6;
const WINOGRAD_TOLERANCE: f64 = 3e-6;

fn relative_error(got: &[f32], expected: &[f64]) -> f64 {
    let difference: f64 = got
        .iter()
        .zip(expected)
        .map(|(&g, e)| (f64::from(g) - e).powi(2))
        .sum();
    (difference / expected.iter().map(|e| e * e).sum::<f64>()).sqrt()
}

#[test]
fn the_error_of_winograd_stays_within_its_bound() {
    for channels in [16, 32, 64, 256] {
        let batch = 1;
        let in_channels = channels;
        let out_channels = 16;
        let shape = shape_of([batch, 16, 16, in_channels], out_channels, [3, 1, 1]);
        let mut random = Random(5);
        let [x, w, dy] = operands(&shape, &mut random);
        let expected = reference::forward(&shape, &x[1..], &w[1..]);
        let expected_dx = reference::data_gradient(&shape, &dy[1..], &w[1..]);
        let expected_dw = reference::weight_gradient(&shape, &x[1..], &dy[1..]);
        let [direct, winograd] = [Algorithm::Direct, Algorithm::Winograd].map(|algorithm| {
            let results = run_all(
                &Conv2d::new(shape, algorithm, Isa::detect(), Storage::F32),
                &x,
                &w,
                &dy,
            );
            let y = &results.y;
            let dx = &results.dx;
            let dw = &results.dw;
            [(y, &expected), (dx, &expected_dx), (dw, &expected_dw)]
                .map(|(got, want)| relative_error(got, want))
        });
        println!(
            "{channels} channels: forward, data and weight gradient: direct {direct:?}, winograd {winograd:?}"
        );
        assert!(
            direct.iter().all(|&error| error < DIRECT_TOLERANCE),
            "{channels} channels: {direct:?}"
        );
        assert!(
            winograd.iter().all(|&error| error < WINOGRAD_TOLERANCE),
            "{channels} channels: {winograd:?}"
        );
    }
}
