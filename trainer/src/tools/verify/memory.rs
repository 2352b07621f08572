//! Memory stays flat while steps go on.
//!
//! In: a device. Out: what it holds at most in the second half of the steps, against the first half.
//! Invariant: on a GPU the device's allocator is asked, elsewhere the system for the process's resident memory.

use anyhow::Result;
use burn::tensor::Device;

use super::Subject;
use super::comparison::{Comparison, Finding};
use super::trainee::{Lesson, Trainee};
use crate::measure::process_memory::resident_memory_bytes;
use crate::measure::report::bytes;

pub(super) const EXPECTATION: &str = "memory stays flat over 1,000 training steps (--quick: 100)";

/// Tiny: what leaks does so at every step, whatever its size.
const LESSON: Lesson = Lesson { depth: 8, batch_size: 4, num_batches: 4 };

/// Steps that fill pools and caches.
const WARMUP_STEPS: usize = 10;

/// An activation of the first stage has 256 KiB: one lost at each of 50 steps is more than this.
const BOUND_BYTES: u64 = 8 << 20;

pub(super) fn check(subject: &Subject<'_>) -> Result<Finding> {
    let num_steps = if subject.config.quick { 100 } else { 1000 };
    let mut trainee = Trainee::new(LESSON, subject.compute(), &subject.device)?;
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
        return Ok(Finding::Skipped("neither the device nor the system tells how much memory is held".to_owned()));
    }
    Ok(Finding::Compared(vec![flatness(&held)]))
}

fn held_bytes(device: &Device) -> u64 {
    device.memory_pool_usage().map_or_else(resident_memory_bytes, |usage| usage.bytes_reserved)
}

/// Growth of the second half's largest over the first half's.
fn flatness(held: &[u64]) -> Comparison {
    let (first, second) = held.split_at(held.len() / 2);
    let most = |half: &[u64]| half.iter().copied().max().unwrap_or(0);
    let (first, second) = (most(first), most(second));
    let growth = second.saturating_sub(first);
    Comparison {
        what: "growth of the second half's largest over the first half's".to_owned(),
        expected: "0 B".to_owned(),
        got: format!("{} ({} after {})", bytes(growth), bytes(second), bytes(first)),
        tolerance: bytes(BOUND_BYTES),
        passes: first > 0 && growth <= BOUND_BYTES,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_peak_in_the_first_half_is_no_growth() {
        assert!(flatness(&[100 * MIB, 140 * MIB, 120 * MIB, 141 * MIB]).passes);
    }

    #[test]
    fn steady_growth_fails_and_so_does_nothing_measured() {
        let leaking: Vec<u64> = (0..100).map(|step| 100 * MIB + step * MIB / 4).collect();
        let comparison = flatness(&leaking);
        assert!(!comparison.passes && comparison.got.starts_with("12 MiB"), "{comparison:?}");
        assert!(!flatness(&[]).passes);
    }
}
