//! Whether a device computes what the reference computes: what `trainer verify` finds and says.
//!
//! In: a device, files that stay outside the program. Out: a [`Verification`]: checks, each with what was expected, what came
//! and the tolerance. Invariant: judging is a function of numbers; a check that could not be made is skipped and never counts
//! as passed; a check that breaks off fails, and the others are still made.

mod checkpoints;
mod comparison;
mod files;
mod golden;
mod known_answer;
mod learning;
mod memory;
mod nccl;
mod precision;
mod ranks;
mod reference;
mod render;
mod ten_steps;
mod trainee;

use std::time::Instant;

use anyhow::{Result, anyhow, ensure};
use burn::tensor::Device;
use burn_resnet::ResNet;
use serde::Serialize;

use crate::config::ComputeSection;
use crate::config::VerifyConfig;
use crate::config::cli::TrainArgs;
use crate::run::train::Outcome;
use crate::world::panics;
use crate::world::ranks::World;
pub use comparison::{Comparison, Finding, Verdict};
use precision::Precision;
pub use render::{conclusion, heading, rows};

/// A whole training run, as the command `train` makes it.
pub type Train = fn(&TrainArgs, &World) -> Result<Outcome<ResNet>>;

/// What a check is made with.
#[derive(Debug)]
struct Subject<'a> {
    config: &'a VerifyConfig,
    world: &'a World,
    train: Train,
    /// The device that is verified, without autodiff.
    device: Device,
    precision: Precision,
}

impl Subject<'_> {
    fn compute(&self) -> &ComputeSection {
        &self.config.compute
    }
}

/// A check that can be asked for.
struct Kind {
    name: &'static str,
    expectation: &'static str,
    make: fn(&Subject<'_>) -> Result<Finding>,
}

const KINDS: [Kind; 8] = [
    Kind {
        name: "known-answer",
        expectation: known_answer::EXPECTATION,
        make: known_answer::check,
    },
    Kind {
        name: "golden",
        expectation: golden::EXPECTATION,
        make: golden::check,
    },
    Kind {
        name: "ten-steps",
        expectation: ten_steps::EXPECTATION,
        make: ten_steps::check,
    },
    Kind {
        name: "ranks",
        expectation: ranks::EXPECTATION,
        make: ranks::check,
    },
    Kind {
        name: "nccl",
        expectation: nccl::EXPECTATION,
        make: nccl::check,
    },
    Kind {
        name: "learning",
        expectation: learning::EXPECTATION,
        make: learning::check,
    },
    Kind {
        name: "checkpoints",
        expectation: checkpoints::EXPECTATION,
        make: checkpoints::check,
    },
    Kind {
        name: "memory",
        expectation: memory::EXPECTATION,
        make: memory::check,
    },
];

/// The names of the checks, in the order in which they are made.
pub fn names() -> Vec<&'static str> {
    KINDS.iter().map(|kind| kind.name).collect()
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Check {
    /// Its name, as for `--only`.
    pub name: &'static str,
    pub expectation: &'static str,
    pub verdict: Verdict,
    /// Why it was skipped or broke off.
    pub reason: Option<String>,
    pub comparisons: Vec<Comparison>,
    pub seconds: f64,
}

impl Check {
    fn new(kind: &Kind, finding: Result<Finding>, seconds: f64) -> Self {
        let (verdict, reason, comparisons) = match finding {
            Ok(Finding::Compared(comparisons)) => (Verdict::of(&comparisons), None, comparisons),
            Ok(Finding::Skipped(reason)) => (Verdict::Skipped, Some(reason), Vec::new()),
            Err(error) => (
                Verdict::Failed,
                Some(format!("broke off: {error:#}")),
                Vec::new(),
            ),
        };
        Self {
            name: kind.name,
            expectation: kind.expectation,
            verdict,
            reason,
            comparisons,
            seconds,
        }
    }
}

/// All checks of a device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verification {
    /// Backend and device.
    pub device: String,
    pub dtype: String,
    /// Whose kernels: fused or stock.
    pub kernels: String,
    pub threads: usize,
    /// Version and commit of the program.
    pub version: String,
    /// The class of the tolerances, which the device's roundings decide.
    pub precision: &'static str,
    /// Failed if any check did; else passed if any did.
    pub verdict: Verdict,
    pub checks: Vec<Check>,
}

/// Makes the checks that are asked for; `begins` hears the name of each, `ended` what it found, since a check may take minutes, and the
/// next may end the program.
///
/// # Errors
/// When there is no such device, or a signal asks for a stop.
pub fn verify(
    config: &VerifyConfig,
    world: &World,
    train: Train,
    (begins, ended): (impl Fn(&str), impl Fn(&Check)),
) -> Result<Verification> {
    let (device, threads) = world.prepare_compute_of_threads(&config.compute)?;
    let precision = Precision::of(&config.compute);
    let subject = Subject {
        config,
        world,
        train,
        device,
        precision,
    };
    let is_wanted = |kind: &&Kind| {
        config
            .only
            .as_ref()
            .is_none_or(|only| only.iter().any(|name| name == kind.name))
    };
    let mut checks = Vec::new();
    for kind in KINDS.iter().filter(is_wanted) {
        begins(kind.name);
        let start = Instant::now();
        let finding = caught(|| (kind.make)(&subject));
        ensure!(
            !world.stop.is_raised(),
            "verify: stopped by a signal in {}",
            kind.name
        );
        let check = Check::new(kind, finding, start.elapsed().as_secs_f64());
        ended(&check);
        checks.push(check);
    }
    Ok(Verification {
        device: config.compute.device.to_string(),
        dtype: config.compute.dtype().to_string(),
        kernels: config.compute.kernels().to_string(),
        threads,
        version: concat!(
            env!("CARGO_PKG_VERSION"),
            " (",
            env!("LOCKSTEP_COMMIT"),
            ")"
        )
        .to_owned(),
        precision: precision.name(),
        verdict: Verdict::of_all(checks.iter().map(|check| check.verdict)),
        checks,
    })
}

/// Backends report what they cannot do by a panic; it belongs to its check.
fn caught(make: impl FnOnce() -> Result<Finding>) -> Result<Finding> {
    panics::caught(make).unwrap_or_else(|panic| Err(anyhow!(panic)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(finding: Result<Finding>) -> Check {
        Check::new(&KINDS[0], finding, 0.0)
    }

    #[test]
    fn a_check_that_breaks_off_or_panics_fails_with_its_words() {
        let broken = check(caught(|| Err(anyhow!("no kernel"))));
        assert_eq!(
            (broken.verdict, broken.reason.as_deref()),
            (Verdict::Failed, Some("broke off: no kernel"))
        );
        let panicked = check(caught(|| panic!("device lost")));
        assert_eq!(panicked.verdict, Verdict::Failed);
        assert!(
            panicked
                .reason
                .is_some_and(|reason| reason.contains("device lost"))
        );
    }

    #[test]
    fn a_skipped_check_is_not_a_passed_one() {
        let skipped = check(Ok(Finding::Skipped("no files".to_owned())));
        assert_eq!(
            (skipped.verdict, skipped.reason.as_deref()),
            (Verdict::Skipped, Some("no files"))
        );
        assert_eq!(Verdict::of_all([Verdict::Skipped]), Verdict::Skipped);
    }

    #[test]
    fn names_are_those_of_the_checks_and_differ() {
        let mut names = names();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), KINDS.len());
    }
}
