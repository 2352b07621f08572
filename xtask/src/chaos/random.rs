//! Numbers that look random and are the same for the same seed.
//!
//! In: a seed. Out: [`Random`]. Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014 (SplitMix64).

/// A sequence of numbers.
pub(super) struct Random(pub(super) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// In 0..1.
    pub(super) fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub(super) fn below(&mut self, end: usize) -> usize {
        (self.share() * end as f64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_draws_the_same_and_all_values_occur() {
        let draw = |seed| {
            let mut random = Random(seed);
            (0..200).map(|_| random.below(5)).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        assert!((0..5).all(|value| draw(1).contains(&value)));
    }
}
