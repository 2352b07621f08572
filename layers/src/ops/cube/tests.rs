//! Lockstep's kernels against the bodies composed of burn's operations: on Flex, and on the same
//! device.
//!
//! They need an adapter, of a software Vulkan if nothing else, and print a line if there is none.

#![allow(clippy::unwrap_used, clippy::print_stderr)] // A failed unwrap here is a failed test.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use burn::backend::flex::FlexDevice;
use burn::backend::tensor::{Device, FloatTensor};
use burn::backend::{Backend, Cube, DTypeUsage, Flex, read_sync};
use burn::tensor::{FloatDType, TensorData};
use burn_cubecl::CubeDevice;
use burn_cubecl::cubecl::logging::{
    LaunchObservation, LaunchObserver, ProfileDuration, TimingMethod, TimingRequest,
};
use kernels::batch_norm::Rectifier;

use super::*;
use crate::choices::Convolution;
use crate::ops::{ConvolutionOptions, LayerOptions, LayerSaved, ResidualKind, composed, fused};

mod convolution;
#[cfg(feature = "wgpu")]
mod overwrite;
mod weight_gradient;

const EPSILON: f64 = 1e-5;
/// Distances from the composed bodies (docs/numerics.md).
const F32_TOLERANCE: f64 = 1e-5;
const F16_TOLERANCE: f64 = 1e-3;

/// Whatever cubecl finds, for one test at a time: launches are observed, and the way to normalise
/// chosen, process by process.
fn adapter() -> Option<(MutexGuard<'static, ()>, CubeDevice)> {
    static ONE: Mutex<()> = Mutex::new(());
    let alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let found = CubeDevice::enumerate_all().into_iter().next();
    if found.is_none() {
        eprintln!(
            "NOT CHECKED: our GPU kernels, for want of an adapter; Debian's mesa-vulkan-drivers brings a software Vulkan"
        );
    }
    Some((alone, found?))
}

/// One table and how it ends.
#[derive(Clone, Copy, Debug)]
struct Case {
    shape: [usize; 3],
    has_residual: bool,
    rectifier: Rectifier,
}

const fn case(shape: [usize; 3], has_residual: bool, rectifier: Rectifier) -> Case {
    Case {
        shape,
        has_residual,
        rectifier,
    }
}

/// Channels that fill vectors and cubes and such that do not; rows that fill blocks and such that
/// do not; one row; a short last batch.
const CASES: [Case; 9] = [
    case([1, 1, 16], false, Rectifier::Relu),
    case([1, 45, 3], true, Rectifier::Relu),
    case([97, 49, 16], false, Rectifier::None),
    case([128, 256, 16], true, Rectifier::Relu),
    case([33, 64, 64], false, Rectifier::Relu6),
    case([1, 1031, 100], true, Rectifier::None),
    case([7, 49, 132], false, Rectifier::Relu),
    case([5, 49, 512], true, Rectifier::Relu),
    case([1, 9973, 6], false, Rectifier::Relu),
];

impl Case {
    fn end(self) -> NormEnd {
        NormEnd {
            epsilon: EPSILON,
            has_residual: self.has_residual,
            rectifier: self.rectifier,
        }
    }

    fn rows(self) -> usize {
        self.shape[0] * self.shape[1]
    }

    fn table<B: Backend>(
        self,
        seed: usize,
        device: &Device<B>,
        dtype: FloatDType,
    ) -> FloatTensor<B> {
        upload::<B>(
            values(seed, self.shape.iter().product()),
            &self.shape,
            device,
            dtype,
        )
    }

    fn row<B: Backend>(self, seed: usize, device: &Device<B>) -> FloatTensor<B> {
        upload::<B>(
            values(seed, self.shape[2]),
            &self.shape[2..],
            device,
            FloatDType::F32,
        )
    }
}

/// Repeatable numbers in [-1, 1), hashed by the mixing of splitmix64.
fn values(seed: usize, len: usize) -> Vec<f32> {
    let value = |i: usize| {
        let x = ((i + 1 + seed * 1_000_003) as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        ((x ^ (x >> 27)) >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..len).map(value).collect()
}

fn upload<B: Backend>(
    values: Vec<f32>,
    shape: &[usize],
    device: &Device<B>,
    dtype: FloatDType,
) -> FloatTensor<B> {
    B::float_from_data(
        TensorData::new(values, shape.to_vec()).convert_dtype(dtype.into()),
        device,
    )
}

fn read<B: Backend>(tensor: FloatTensor<B>) -> Vec<f32> {
    read_sync(B::float_into_data(tensor))
        .unwrap()
        .iter::<f32>()
        .collect()
}

/// Returns whether the adapter has matrix units that our convolutions use.
fn has_units(device: &CubeDevice, dtype: FloatDType) -> bool {
    gpu::cube::has_matrix_units(device.client().properties(), dtype.into())
}

/// The relative L2 distance; infinite for another length.
fn distance(found: &[f32], expected: &[f32]) -> f64 {
    let norm = |values: &mut dyn Iterator<Item = f32>| {
        values
            .map(|v| f64::from(v) * f64::from(v))
            .sum::<f64>()
            .sqrt()
    };
    if found.len() != expected.len() {
        return f64::INFINITY;
    }
    norm(&mut found.iter().zip(expected).map(|(a, b)| a - b)) / norm(&mut expected.iter().copied())
}

/// Results of the four operations on the same operands: `output`, `mean` and `variance` are
/// those of the reference, so that no gate opens on one side only.
#[derive(Clone, Debug, PartialEq)]
struct Results(Vec<(&'static str, Vec<f32>)>);

type Reference = [Vec<f32>; 3];

fn results<B: LayerOps>(
    case: Case,
    dtype: FloatDType,
    device: &Device<B>,
    own: bool,
    reference: Option<&Reference>,
) -> Results {
    let table = |seed| case.table::<B>(seed, device, dtype);
    let (mean, variance) = if own {
        B::norm_moments(table(1))
    } else {
        composed::moments::<B>(table(1))
    };
    let mut found = vec![
        ("mean", read::<B>(mean.clone())),
        ("variance", read::<B>(variance.clone())),
    ];
    let row =
        |values: &Vec<f32>| upload::<B>(values.clone(), &[case.shape[2]], device, FloatDType::F32);
    let (mean, variance) = reference.map_or((mean, variance), |[mean, variance, _]| {
        (row(mean), row(variance))
    });
    let saved = NormTable {
        input: table(1),
        gamma: case.row::<B>(2, device),
        beta: case.row::<B>(3, device),
        mean,
        variance,
        num_values: case.rows() as f64,
    };
    let end = case.end();
    let output = if own {
        B::norm_apply(saved.clone(), table(4), end)
    } else {
        composed::apply::<B>(&saved, table(4), end)
    };
    found.push(("output", read::<B>(output.clone())));
    let output = reference.map_or(output, |[.., output]| {
        upload::<B>(output.clone(), &case.shape, device, dtype)
    });
    let (gated, plain, with_normalised) = if own {
        B::norm_gradient_sums(saved.clone(), output, table(5), end)
    } else {
        composed::gradient_sums::<B>(&saved, output, table(5), end)
    };
    found.push(("gated", read::<B>(gated.clone())));
    found.push(("beta's gradient", read::<B>(plain.clone())));
    found.push(("gamma's gradient", read::<B>(with_normalised.clone())));
    let dx = if own {
        B::norm_gradient_input(saved, plain, with_normalised, gated, end)
    } else {
        composed::gradient_input::<B>(saved, [plain, with_normalised], gated, end)
    };
    found.push(("input's gradient", read::<B>(dx)));
    Results(found)
}

impl Results {
    fn of(&self, name: &str) -> &Vec<f32> {
        &self.0.iter().find(|(found, _)| *found == name).unwrap().1
    }

    fn reference(&self) -> Reference {
        ["mean", "variance", "output"].map(|name| self.of(name).clone())
    }

    /// Relative L2 distances; of sums that nearly cancel, relative to what was added.
    fn assert_near(&self, expected: &Self, case: Case, tolerance: f64, what: &str) {
        let square = |value: f32| f64::from(value) * f64::from(value);
        for ((name, found), (_, expected)) in self.0.iter().zip(&expected.0) {
            assert_eq!(found.len(), expected.len(), "{name}, {what}, {case:?}");
            let difference: f64 = found.iter().zip(expected).map(|(a, b)| square(a - b)).sum();
            let sums = ["mean", "beta's gradient", "gamma's gradient"];
            let floor = if sums.contains(name) {
                0.3 * expected.len() as f64
            } else {
                0.0
            };
            let norm = expected.iter().map(|b| square(*b)).sum::<f64>().max(floor);
            let distance = (difference / norm.max(f64::MIN_POSITIVE)).sqrt();
            assert!(
                distance <= tolerance,
                "{name}: {distance:.1e}, at most {tolerance:.0e}, {what}, {case:?}"
            );
        }
    }
}

#[test]
fn kernels_agree_with_the_composed_bodies_on_flex_to_a_hundred_thousandth() {
    let Some((_alone, device)) = adapter() else {
        return;
    };
    for case in CASES {
        let expected = results::<Flex>(case, FloatDType::F32, &FlexDevice, false, None);
        let found = results::<Cube>(
            case,
            FloatDType::F32,
            &device,
            true,
            Some(&expected.reference()),
        );
        found.assert_near(&expected, case, F32_TOLERANCE, "f32");
    }
}

#[test]
fn kernels_agree_with_the_composed_bodies_on_the_same_device() {
    let Some((_alone, device)) = adapter() else {
        return;
    };
    for case in CASES {
        let expected = results::<CubeBackend>(case, FloatDType::F32, &device, false, None);
        let found = results::<Cube>(
            case,
            FloatDType::F32,
            &device,
            true,
            Some(&expected.reference()),
        );
        found.assert_near(&expected, case, F32_TOLERANCE, "f32");
    }
}

#[test]
fn kernels_in_16_bits_agree_with_the_composed_bodies_to_a_rounding_of_what_they_store() {
    let Some((_alone, device)) = adapter() else {
        return;
    };
    for (dtype, tolerance) in [(FloatDType::F16, F16_TOLERANCE), (FloatDType::BF16, 8e-3)] {
        if !Cube::dtype_usage(&device, dtype.into()).contains(DTypeUsage::Storage) {
            eprintln!(
                "NOT CHECKED: our GPU kernels in {dtype:?}, which this adapter does not store"
            );
            continue;
        }
        for case in CASES {
            let expected = results::<Flex>(case, dtype, &FlexDevice, false, None);
            let found = results::<Cube>(case, dtype, &device, true, Some(&expected.reference()));
            found.assert_near(&expected, case, tolerance, &format!("{dtype:?}"));
        }
    }
}

#[test]
fn kernels_give_equal_bits_twice() {
    let Some((_alone, device)) = adapter() else {
        return;
    };
    for case in CASES {
        let bits = || {
            let found = results::<Cube>(case, FloatDType::F32, &device, true, None).0;
            found
                .into_iter()
                .map(|(_, values)| values.into_iter().map(f32::to_bits).collect())
                .collect::<Vec<Vec<_>>>()
        };
        assert_eq!(bits(), bits(), "{case:?}");
    }
}

#[test]
fn a_variance_keeps_its_digits_where_the_mean_is_far_from_zero() {
    let Some((_alone, device)) = adapter() else {
        return;
    };
    let rows = 20_011;
    let channels = 6;
    let far: Vec<f32> = values(1, rows * channels)
        .iter()
        .map(|value| 1000.0 + 0.1 * value)
        .collect();
    let (_, variance) = <Cube as LayerOps>::norm_moments(upload::<Cube>(
        far.clone(),
        &[1, rows, channels],
        &device,
        FloatDType::F32,
    ));
    for (channel, found) in read::<Cube>(variance).into_iter().enumerate() {
        let of_channel = || {
            far.iter()
                .skip(channel)
                .step_by(channels)
                .map(|&value| f64::from(value))
        };
        let mean = of_channel().sum::<f64>() / rows as f64;
        let expected = of_channel()
            .map(|value| (value - mean).powi(2))
            .sum::<f64>()
            / rows as f64;
        assert!(
            (f64::from(found) / expected - 1.0).abs() < 1e-4,
            "{found}, expected {expected}"
        );
    }
}

#[test]
fn what_is_no_number_stays_so_in_its_channel_and_nowhere_else() {
    let Some((_alone, device)) = adapter() else {
        return;
    };
    let shape = [1, 300, 8];
    let mut values = values(1, 2400);
    values[8 * 123 + 5] = f32::NAN;
    let table = upload::<Cube>(values, &shape, &device, FloatDType::F32);
    let (mean, variance) = <Cube as LayerOps>::norm_moments(table.clone());
    let row = || upload::<Cube>(vec![1.0; 8], &[8], &device, FloatDType::F32);
    let saved = NormTable {
        input: table.clone(),
        gamma: row(),
        beta: row(),
        mean,
        variance,
        num_values: 300.0,
    };
    let end = NormEnd {
        epsilon: EPSILON,
        has_residual: false,
        rectifier: Rectifier::Relu6,
    };
    let output = read::<Cube>(<Cube as LayerOps>::norm_apply(saved, table, end));
    assert!(
        output
            .iter()
            .enumerate()
            .all(|(i, value)| value.is_nan() == (i % 8 == 5))
    );
}

/// A layer with its convolution, forward and backward, by the extension's own entries: `results` of
/// what the passes make.
fn layer<B: LayerOps>(residual: ResidualKind, device: &Device<B>) -> Results {
    let shape = [5, 9, 9, 20];
    let table = |seed| upload::<B>(values(seed, 5 * 81 * 20), &shape, device, FloatDType::F32);
    let row = |seed| upload::<B>(values(seed, 20), &[20], device, FloatDType::F32);
    let weight = upload::<B>(
        values(2, 20 * 20 * 9),
        &[20, 20, 3, 3],
        device,
        FloatDType::F32,
    );
    let convolution = ConvolutionOptions {
        stride: 1,
        padding: [1, 1],
        algorithm: Convolution::Auto,
    };
    let options = LayerOptions {
        residual,
        rectifier: Rectifier::Relu,
        ..LayerOptions::new(Some(convolution), EPSILON)
    };
    // The bodies themselves: on Flex the entries would take its own kernels.
    let fused = fused::composed::forward::<B>(
        table(1),
        weight.clone(),
        row(3),
        row(4),
        table(5),
        options.clone(),
    );
    let made = [
        &fused.output,
        &fused.kept_convolved,
        &fused.mean,
        &fused.variance,
    ]
    .map(|tensor| read::<B>(tensor.clone()));
    let saved = LayerSaved {
        input: table(1),
        weight,
        gamma: row(3),
        beta: row(4),
        output: fused.output,
        convolved: fused.kept_convolved,
        mean: fused.mean,
        variance: fused.variance,
        num_values: fused.num_values,
        residual_shape: shape,
        addend: table(6),
        has_addend: true,
        needs_input: true,
    };
    let gradients = fused::composed::backward::<B>(saved, table(7), options);
    let mut found: Vec<_> = ["output", "convolved", "mean", "variance"]
        .into_iter()
        .zip(made)
        .collect();
    found.extend([
        ("input's gradient", read::<B>(gradients.input)),
        ("weight's gradient", read::<B>(gradients.weight)),
        ("gamma's gradient", read::<B>(gradients.gamma)),
        ("beta's gradient", read::<B>(gradients.beta)),
    ]);
    if residual != ResidualKind::None {
        found.push(("residual's gradient", read::<B>(gradients.residual)));
    }
    Results(found)
}

#[test]
fn a_layer_on_the_device_agrees_with_flex_and_gives_equal_bits_twice() {
    let Some((_alone, device)) = adapter() else {
        return;
    };
    for residual in [ResidualKind::None, ResidualKind::Identity] {
        let found = layer::<Cube>(residual, &device);
        let again = layer::<Cube>(residual, &device);
        assert_eq!(found, again);
        found.assert_near(
            &layer::<Flex>(residual, &FlexDevice),
            CASES[0],
            1e-4,
            &format!("{residual:?}"),
        );
    }
}

/// The names of what was launched.
#[derive(Default)]
struct Launches(Mutex<Vec<&'static str>>);

impl LaunchObserver for Launches {
    fn launched(&self, kernel: &'static str) {
        self.0.lock().unwrap().push(kernel);
    }

    fn timing(&self) -> TimingRequest {
        TimingRequest::Deferred
    }

    fn profiled(&self, _: &'static str, _: ProfileDuration) {}

    fn timed(&self, _: &'static str, _: Duration, _: TimingMethod) {}
}

fn launches(make: impl FnOnce()) -> Vec<&'static str> {
    let log = Arc::new(Launches::default());
    let observation = LaunchObservation::new(log.clone());
    make();
    drop(observation);
    std::mem::take(&mut *log.0.lock().unwrap())
}

#[test]
fn a_layers_normalisation_is_six_launches_of_ours() {
    let Some((_alone, device)) = adapter() else {
        return;
    };
    let own = launches(|| drop(layer::<Cube>(ResidualKind::Identity, &device)));
    let of_ours = |names: &[&str]| {
        names
            .iter()
            .filter(|name| name.contains("cube::norm"))
            .count()
    };
    assert_eq!(of_ours(&own), 6, "{own:?}");
    let composed = crate::switches::Switches {
        composed_norms: true,
        ..Default::default()
    };
    composed.apply();
    let composed = launches(|| drop(layer::<Cube>(ResidualKind::Identity, &device)));
    crate::switches::Switches::default().apply();
    assert_eq!(of_ours(&composed), 0);
    eprintln!(
        "launches of a layer: {} with our kernels {own:?}, {} composed {composed:?}",
        own.len(),
        composed.len()
    );
    assert!(
        own.len() + 5 <= composed.len(),
        "{own:?}, composed {composed:?}"
    );
}
