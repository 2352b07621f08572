//! Random streams that depend only on their purpose and inputs.
//!
//! In: (seed, epoch or split, index, purpose). Out: an independent ChaCha8 stream.
//! Invariant: the four words are the cipher's 256-bit key. Two uses never share a stream, on any
//! rank, thread or platform.
//! Source: D. J. Bernstein, "ChaCha, a variant of Salsa20" (2008).

use std::convert::Infallible;

use rand::TryRng;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// Purpose of a stream. It is part of the key, so that purposes are independent.
#[derive(Clone, Copy)]
#[repr(u64)]
pub(crate) enum Purpose {
    Permutation = 1,
    Augmentation = 2,
    Shape = 3,
    Synthetic = 4,
    Subset = 5,
    Mix = 6,
    TrivialAugment = 7,
    ResizedCrop = 8,
    RandAugment = 9,
    Validation = 10,
    BalancedOrder = 11,
    Task = 12,
    TaskSample = 13,
    ColorJitter = 14,
    Rotation = 15,
    Erasing = 16,
}

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub struct Stream(ChaCha8Rng);

impl Stream {
    pub(crate) fn new(seed: u64, scope: u64, index: u64, purpose: Purpose) -> Self {
        let mut key = [0; 32];
        for (bytes, word) in key
            .chunks_exact_mut(8)
            .zip([seed, scope, index, purpose as u64])
        {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        Self(ChaCha8Rng::from_seed(key))
    }

    /// Returns random numbers that depend only on a seed and the index of a sample, for samples
    /// that are made and not read. Those of a [`Draw`](crate::Draw) are independent of them.
    pub fn of_sample(seed: u64, index: usize) -> Self {
        Self::new(seed, 0, index as u64, Purpose::TaskSample)
    }

    /// Returns a uniform integer in `0..bound`, without modulo bias (Lemire, arXiv 1805.10941, with
    /// 64-bit words).
    ///
    /// # Panics
    /// If `bound` is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        assert!(bound > 0, "bound: expected at least 1, got 0");
        let bound = bound as u64;
        let threshold = bound.wrapping_neg() % bound;
        loop {
            let product = u128::from(self.0.next_u64()) * u128::from(bound);
            if product as u64 >= threshold {
                return (product >> 64) as usize;
            }
        }
    }

    /// Returns a uniform number in `[0, 1)` with 24 random bits.
    pub fn unit(&mut self) -> f32 {
        (self.0.next_u32() >> 8) as f32 / (1 << 24) as f32
    }

    /// Returns a uniform number in `[low, high)`.
    pub fn between(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * self.unit()
    }

    /// Returns true with probability one half.
    pub fn coin(&mut self) -> bool {
        self.0.next_u32() >> 31 == 1
    }

    /// Fills `bytes` with random bytes.
    pub(crate) fn fill(&mut self, bytes: &mut [u8]) {
        self.0.fill_bytes(bytes);
    }

    /// Returns a uniform permutation of `0..len` (Fisher-Yates; Knuth, TAOCP 2, algorithm 3.4.2 P).
    pub(crate) fn permutation(&mut self, len: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..len).collect();
        for last in (1..len).rev() {
            order.swap(last, self.below(last + 1));
        }
        order
    }
}

/// Implementation for the distributions of other crates.
impl TryRng for Stream {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok(self.0.next_u32())
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(self.0.next_u64())
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        self.fill(bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_uniform_within_their_bound() {
        let mut stream = Stream::new(1, 2, 3, Purpose::Shape);
        let mut counts = [0usize; 7];
        for _ in 0..70_000 {
            counts[stream.below(7)] += 1;
        }
        // Five standard deviations of a binomial with n = 70,000 and p = 1/7 are 463.
        assert!(
            counts.iter().all(|&count| count.abs_diff(10_000) < 463),
            "{counts:?}"
        );
    }

    #[test]
    fn each_word_of_the_key_changes_the_stream() {
        let draw = |seed, scope, index, purpose| {
            Stream::new(seed, scope, index, purpose).below(usize::MAX)
        };
        let first = draw(0, 0, 0, Purpose::Shape);
        assert_eq!(first, draw(0, 0, 0, Purpose::Shape));
        assert_ne!(first, draw(1, 0, 0, Purpose::Shape));
        assert_ne!(first, draw(0, 1, 0, Purpose::Shape));
        assert_ne!(first, draw(0, 0, 1, Purpose::Shape));
        assert_ne!(first, draw(0, 0, 0, Purpose::Subset));
    }
}
