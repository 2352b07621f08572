//! `trainer verify`: compares a device with the reference.
//!
//! In: a device, files that are not part of the program. Out: a [`Verification`] of checks. Each
//! check has the expected numbers, the found numbers, and the tolerance.
//! Invariant: a check that could not run is skipped. The tolerances depend only on the device's
//! rounding.

mod known;
mod precision;
mod runs;
mod steps;

use std::path::PathBuf;

use anyhow::{Result, ensure};
use burn::tensor::Device;
use serde::Serialize;

use self::precision::Precision;
use super::check::{Check, Checked, Finding, Skipped, Verdict};
use crate::config::cli::{TrainArgs, VerifyArgs};
use crate::config::{Activations, ComputeSection, Convolution, DeviceChoice, Kernels};
use crate::model::network::Network;
use crate::run::train::Outcome;
use crate::world::ranks::World;

/// Function that runs a whole training, as the command `train` does.
pub type Train = fn(&TrainArgs, &World) -> Result<Outcome<Network>>;

/// Device under verification, and the settings of its checks.
#[derive(Debug)]
struct Subject<'a> {
    args: &'a VerifyArgs,
    compute: ComputeSection,
    world: &'a World,
    train: Train,
    /// Verified device, without autodiff.
    device: Device,
    precision: Precision,
}

type Judge = fn(&Subject<'_>) -> Result<Finding>;

const CHECKS: [Check<Judge>; 8] = [
    Check::new(
        "known-answer",
        "a published ResNet-20 classifies 932 of 1,017 CIFAR-10 images correctly",
        known::answer,
    ),
    Check::new(
        "golden",
        "logits, loss and gradients of a ResNet-8 equal PyTorch's in f64",
        known::golden,
    ),
    Check::new(
        "ten-steps",
        "ten training steps equal those of Flex in f32, including a short batch",
        steps::ten_steps,
    ),
    Check::new(
        "ranks",
        "two ranks on the device train like one rank with the joined batch",
        steps::ranks,
    ),
    Check::new(
        "nccl",
        "NCCL joins one rank and returns its tensors unchanged",
        steps::nccl,
    ),
    Check::new(
        "learning",
        "the embedded images are learned to 95 % test accuracy (--quick: 16 are overfitted)",
        runs::learning,
    ),
    Check::new(
        "checkpoints",
        "a checkpoint keeps its bits from the device to Flex and back, and evaluates alike",
        runs::checkpoints,
    ),
    Check::new(
        "memory",
        "memory stays flat over 1,000 training steps (--quick: 100)",
        steps::memory,
    ),
];

/// Returns the names of the checks, in order.
pub fn names() -> Vec<&'static str> {
    CHECKS.iter().map(|check| check.name).collect()
}

/// Results of all checks of a device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verification {
    /// Backend and device.
    pub device: String,
    /// Number format of activations.
    pub dtype: String,
    /// Kernel implementation: fused or stock.
    pub kernels: String,
    /// Number of compute threads.
    pub threads: usize,
    /// Version and commit of the program.
    pub version: String,
    /// Class of the tolerances.
    pub precision: &'static str,
    /// Worst verdict.
    pub verdict: Verdict,
    /// Checks, in order.
    pub checks: Vec<Checked>,
}

impl Verification {
    /// Returns the device and its tolerances in words.
    pub fn about(&self) -> String {
        let Self {
            device,
            dtype,
            kernels,
            precision,
            ..
        } = self;
        format!("{device} {dtype} {kernels}, tolerances of {precision}")
    }
}

/// Runs the requested checks.
///
/// Calls `begin` with the name before each check, and `end` with the result after the check. A
/// check may take minutes and may end the program.
///
/// # Errors
/// If the device does not exist, or a signal requests a stop.
pub fn verify(
    args: &VerifyArgs,
    compute: ComputeSection,
    world: &World,
    train: Train,
    begin: impl Fn(&str),
    end: impl Fn(&Checked),
) -> Result<Verification> {
    let (device, threads) = world.prepare_compute_of_threads(&compute)?;
    let precision = Precision::of(&compute);
    let subject = Subject {
        args,
        compute,
        world,
        train,
        device,
        precision,
    };
    let is_wanted = |check: &&Check<Judge>| {
        let only = args.only.as_ref();
        only.is_none_or(|only| only.iter().any(|name| name == check.name))
    };
    let mut checks = Vec::new();
    for check in CHECKS.iter().filter(is_wanted) {
        begin(check.name);
        let checked = check.run(|judge| judge(&subject));
        ensure!(
            !world.stop.is_raised(),
            "verify: stopped by a signal in {}",
            check.name
        );
        end(&checked);
        checks.push(checked);
    }
    let version = env!("CARGO_PKG_VERSION");
    Ok(Verification {
        device: compute.device.to_string(),
        dtype: compute.dtype().to_string(),
        kernels: compute.kernels().to_string(),
        threads,
        version: format!("{version} ({})", env!("LOCKSTEP_COMMIT")),
        precision: precision.name,
        verdict: Verdict::of_all(&checks),
        checks,
    })
}

impl Subject<'_> {
    /// Returns the path of a file in `--data-dir`. Skips the check if the file is missing.
    fn find(&self, name: &str, what: &str) -> Result<PathBuf, Skipped> {
        let Some(folder) = self.args.data_dir.as_deref() else {
            return Err(Skipped(format!(
                "{what} are not part of the program: give --data-dir with {name} in it"
            )));
        };
        let path = folder.join(name);
        match path.is_file() {
            true => Ok(path),
            false => Err(Skipped(format!(
                "{what}: no {name} in {}",
                folder.display()
            ))),
        }
    }
}

/// Returns the reference: Flex with Lockstep's kernels in f32.
///
/// The tests compare the reference with PyTorch in f64. Skips the check in a build without Flex.
fn reference(compute: &ComputeSection) -> Result<(Device, ComputeSection), Skipped> {
    let compute = ComputeSection {
        device: DeviceChoice::Flex,
        kernels: Some(Kernels::Fused),
        dtype: Some(Activations::F32),
        convolution: Some(Convolution::Auto),
        ..*compute
    };
    #[cfg(feature = "flex")]
    return Ok((Device::flex(), compute));
    #[cfg(not(feature = "flex"))]
    return Err(Skipped(
        "built without the reference: rebuild with the cargo feature flex".to_owned(),
    ));
}

/// Returns the largest absolute difference, divided by the largest absolute expected value.
///
/// Returns infinity for NaN or for different lengths.
fn of_largest(expected: &[f32], got: &[f32]) -> f64 {
    relative(expected, got, |largest, value| {
        largest.max(if value.is_nan() {
            f64::INFINITY
        } else {
            value.abs()
        })
    })
}

/// Returns the L2 norm of the difference, divided by the L2 norm of the expected values.
///
/// Returns infinity for different lengths.
fn relative_l2(expected: &[f32], got: &[f32]) -> f64 {
    relative(expected, got, |sum, value| sum + value * value).sqrt()
}

/// Folds the differences and the expected values with `add`, and divides the two results.
fn relative(expected: &[f32], got: &[f32], add: impl Fn(f64, f64) -> f64) -> f64 {
    if expected.len() != got.len() || expected.is_empty() {
        return f64::INFINITY;
    }
    let expected = || expected.iter().map(|value| f64::from(*value));
    let differences = expected().zip(got).map(|(a, b)| a - f64::from(*b));
    let difference = differences.fold(0.0, &add);
    if difference == 0.0 {
        return 0.0;
    }
    difference / expected().fold(0.0, &add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_checks_differ() {
        let mut names = names();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), CHECKS.len());
    }

    #[test]
    fn differences_are_relative_and_infinite_where_nothing_can_be_compared() {
        assert_eq!(of_largest(&[4.0, -2.0], &[4.0, -1.0]), 0.25);
        assert_eq!(relative_l2(&[3.0, 4.0], &[3.0, 4.5]), 0.1);
        assert_eq!(of_largest(&[0.0], &[0.0]), 0.0);
        for wrong in [&[f32::NAN][..], &[1.0, 1.0], &[]] {
            assert_eq!(of_largest(&[1.0], wrong), f64::INFINITY, "{wrong:?}");
        }
        assert!(
            relative_l2(&[1.0], &[f32::NAN]).is_nan(),
            "no tolerance contains NaN"
        );
    }
}
