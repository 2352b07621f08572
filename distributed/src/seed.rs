//! Seeds of what models draw while they train, as for dropout.
//!
//! In: a run's seed, a rank, a step. Out: a seed for burn's random numbers. Invariant: no two
//! ranks, and no two steps of a rank, have one seed.

/// Distance between the seeds of ranks: odd, so that no two are equal, and without a pattern (2^64
/// / the golden ratio).
const ODD_STRIDE: u64 = 0x9E37_79B9_7F4A_7C15;

/// Returns a seed for `rank` and `step`, to be given to `Device::seed` before the step's forward
/// pass. With one seed on all ranks, all draw the same dropout masks.
pub fn draw_seed(seed: u64, rank: usize, step: u64) -> u64 {
    let of_rank = seed.wrapping_add((rank as u64 + 1).wrapping_mul(ODD_STRIDE));
    // Multiplied once more: the steps that follow are no other rank's.
    of_rank.wrapping_mul(ODD_STRIDE).wrapping_add(step)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn ranks_and_steps_have_seeds_that_differ() {
        let seeds: HashSet<u64> = (0..16)
            .flat_map(|rank| (0..1000).map(move |step| draw_seed(7, rank, step)))
            .collect();
        assert_eq!(seeds.len(), 16_000);
    }
}
