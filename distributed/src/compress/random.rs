//! Reproducible random numbers for the first factors.
//!
//! In: a seed and a stream. Out: approximately normal numbers. They are the same on every rank and
//! machine, because the code uses only integers and exact operations.
//! Source: Steele et al. 2014, SplitMix64; sums of four uniform numbers (Irwin-Hall) for the normal
//! distribution.

/// Random numbers of one stream.
#[derive(Debug)]
pub(super) struct Random {
    state: u64,
}

impl Random {
    /// Returns a generator. Streams of one seed differ, and so do equal streams of different seeds.
    pub(super) fn new(seed: u64, stream: u64) -> Self {
        let mut random = Self { state: seed };
        random.state = random.next().wrapping_add(stream);
        random.state = random.next();
        random
    }

    /// Overwrites `values` with numbers of mean 0 and variance 1/3.
    pub(super) fn fill(&mut self, values: &mut [f32]) {
        for value in values {
            let bits = self.next();
            let sum = (0..4)
                .map(|quarter| (bits >> (16 * quarter)) & 0xffff)
                .sum::<u64>();
            // The sum of four numbers in 0..=65535 has a mean of 131070. All differences fit an
            // `f32`.
            *value = (sum as f32 - 131_070.0) / 65536.0;
        }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let bits = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_centred_and_differ_by_seed_and_stream() {
        let draw = |seed, stream| {
            let mut values = vec![0.0; 10_000];
            Random::new(seed, stream).fill(&mut values);
            values
        };
        let values = draw(1, 2);
        let mean = values.iter().sum::<f32>() / 10_000.0;
        let variance = values.iter().map(|value| value * value).sum::<f32>() / 10_000.0;
        assert!(
            mean.abs() < 0.02 && (variance - 1.0 / 3.0).abs() < 0.02,
            "{mean} {variance}"
        );
        assert_eq!(values, draw(1, 2));
        assert_ne!(values, draw(1, 3));
        assert_ne!(values, draw(2, 2));
    }
}
