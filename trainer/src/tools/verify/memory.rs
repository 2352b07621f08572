//! Memory stays flat while steps go on.
//!
//! In: a device. Out: what it holds at most in the last quarter of the steps, against all before: pools may fill for long, a leak never ends.
//! Invariant: on a GPU the device's allocator is asked, elsewhere the system for the process's resident memory.

use anyhow::Result;
use burn::tensor::Device;

use super::Subject;
use super::comparison::{Comparison, Finding};
use super::ten_steps;
use super::trainee::{Lesson, SGD, Trainee};
use crate::measure::process_memory::resident_memory_bytes;
use crate::measure::report::bytes;

pub(super) const EXPECTATION: &str = "memory stays flat over 1,000 training steps (--quick: 100)";

/// Steps that fill pools and caches.
const WARMUP_STEPS: usize = 10;

/// An activation of the first stage has 256 KiB: one lost at each of 25 steps is more than this.
const BOUND_BYTES: u64 = 4 << 20;

pub(super) fn check(subject: &Subject<'_>) -> Result<Finding> {
    let num_steps = if subject.config.quick { 100 } else { 1000 };
    // Tiny: what leaks does so at every step, whatever its size. But a GPU has tuned kernels for another check's shapes.
    let is_tiny = subject.config.quick || subject.device.memory_pool_usage().is_none();
    let (depth, batch_size) = ten_steps::size(is_tiny);
    let lesson = Lesson {
        depth,
        batch_size,
        num_batches: 4,
        last_batch_size: batch_size,
        optimizer: SGD,
    };
    let mut trainee = Trainee::new(lesson, subject.compute(), &subject.device)?;
    let mut held = Vec::with_capacity(num_steps);
    for step in 0..WARMUP_STEPS + num_steps {
        if subject.world.stop.is_raised() {
            return Ok(Finding::Skipped("stopped by a signal".to_owned()));
        }
        trainee.step()?;
        if step >= WARMUP_STEPS {
            held.push(held_bytes(&subject.device));
        }
    }
    if held.contains(&0) {
        return Ok(Finding::Skipped(
            "neither the device nor the system tells how much memory is held".to_owned(),
        ));
    }
    Ok(Finding::Compared(vec![flatness(&held)]))
}

fn held_bytes(device: &Device) -> u64 {
    device
        .memory_pool_usage()
        .map_or_else(resident_memory_bytes, |usage| usage.bytes_reserved)
}

/// Growth of the last quarter's largest over that of all before.
fn flatness(held: &[u64]) -> Comparison {
    let (before, last) = held.split_at(held.len() - held.len() / 4);
    let most = |part: &[u64]| part.iter().copied().max().unwrap_or(0);
    let (before, last) = (most(before), most(last));
    let growth = last.saturating_sub(before);
    Comparison {
        what: "growth of the last quarter's largest over that of all before".to_owned(),
        expected: "0 B".to_owned(),
        got: format!(
            "{} ({} after {})",
            bytes(growth),
            bytes(last),
            bytes(before)
        ),
        tolerance: bytes(BOUND_BYTES),
        passes: before > 0 && growth <= BOUND_BYTES,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn what_fills_before_the_last_quarter_is_no_growth() {
        assert!(flatness(&[100 * MIB, 120 * MIB, 240 * MIB, 241 * MIB]).passes);
        assert!(!flatness(&[100 * MIB, 120 * MIB, 240 * MIB, 245 * MIB]).passes);
    }

    #[test]
    fn steady_growth_fails_and_so_does_nothing_measured() {
        let leaking: Vec<u64> = (0..100).map(|step| 100 * MIB + step * MIB / 4).collect();
        let comparison = flatness(&leaking);
        assert!(
            !comparison.passes && comparison.got.starts_with("6 MiB"),
            "{comparison:?}"
        );
        assert!(!flatness(&[]).passes);
    }
}
