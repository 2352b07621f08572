//! Dropout: sets values to zero by a seed, and scales the others.
//!
//! In: values. Out: as many values.
//! Invariant: whether a value is kept depends only on the seed, its index and the probability. So
//! the gradient is the same function of the output's gradient, and no mask is kept.
//! Source: Srivastava et al. 2014, "Dropout: A Simple Way to Prevent Neural Networks from
//! Overfitting". The mixing of 32 bits is Wellons' `lowbias32`, that of a piece's seed SplitMix64.

use rayon::prelude::*;

use crate::Element;
use crate::simd::{Isa, Task, vectorized};

/// Values of a piece, which has its own seed.
const PIECE_VALUES: usize = 1 << 14;

/// Computes y = 0 with the probability, else x / (1 - probability).
///
/// # Panics
/// If the lengths differ, the probability is not in `[0, 1)`, or the processor lacks `isa`.
#[inline(never)]
pub fn dropout<E: Element>(isa: Isa, probability: f64, seed: u64, x: &[E], y: &mut [E]) {
    assert!(
        x.len() == y.len(),
        "dropout: {} values of x but {} of y",
        x.len(),
        y.len()
    );
    assert!(
        (0.0..1.0).contains(&probability),
        "dropout: expected a probability of 0 up to but not 1, got {probability}"
    );
    // 2^32 times the probability.
    let threshold = (probability * 4_294_967_296.0) as u32;
    let factor = (1.0 / (1.0 - probability)) as f32;
    y.par_chunks_mut(PIECE_VALUES)
        .zip(x.par_chunks(PIECE_VALUES))
        .enumerate()
        .for_each(|(piece, (y, x))| {
            let seed = mixed(seed.wrapping_add(piece as u64));
            let work = Piece {
                seeds: [seed as u32, (seed >> 32) as u32],
                threshold,
                factor,
                x,
                y,
            };
            vectorized(isa, work);
        });
}

/// SplitMix64's mixing function.
fn mixed(seed: u64) -> u64 {
    let mut z = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

struct Piece<'a, E> {
    seeds: [u32; 2],
    threshold: u32,
    factor: f32,
    x: &'a [E],
    y: &'a mut [E],
}

impl<E: Element> Task for Piece<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let [first, second] = self.seeds;
        for (index, (y, x)) in (0_u32..).zip(self.y.iter_mut().zip(self.x)) {
            let mut bits = index.wrapping_mul(0x9e37_79b9) ^ first;
            bits = (bits ^ (bits >> 16)).wrapping_mul(0x7feb_352d);
            bits = (bits ^ (bits >> 15)).wrapping_mul(0x846c_a68b);
            bits = (bits ^ (bits >> 16)) ^ second;
            let value = E::from_f32(x.to_f32() * self.factor);
            *y = if bits >= self.threshold {
                value
            } else {
                E::default()
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{rounded, same_everywhere, stored, values, widened};

    fn run<E: Element>(isa: Isa, probability: f64, seed: u64, x: &[E]) -> Vec<E> {
        let mut y = vec![E::from_f32(f32::NAN); x.len()];
        dropout(isa, probability, seed, x, &mut y);
        y
    }

    #[test]
    fn values_are_zero_or_scaled_and_the_same_everywhere() {
        let x = values(3 * PIECE_VALUES + 77, 1);
        let y = same_everywhere(|isa| run(isa, 0.2, 5, &x));
        for (x, y) in x.iter().zip(&y) {
            assert!(*y == 0.0 || *y == x * 1.25, "{y} of {x}");
        }
        assert_ne!(y, run(Isa::detect(), 0.2, 6, &x));
        assert_eq!(run(Isa::detect(), 0.0, 5, &x), x);
    }

    #[test]
    fn the_kept_share_is_that_of_independent_draws() {
        let len = 64 * PIECE_VALUES;
        for (probability, seed) in [(0.5, 0), (0.1, 1), (0.9, u64::MAX)] {
            let y = run(Isa::detect(), probability, seed, &vec![1.0_f32; len]);
            let kept: Vec<bool> = y.iter().map(|y| *y != 0.0).collect();
            let share = 1.0 - probability;
            // Also of neighbours, of values a power of 2 apart, and of the same place in two
            // pieces.
            for distance in [0, 1, 2, 16, 1024, PIECE_VALUES] {
                let both = kept
                    .iter()
                    .zip(&kept[distance..])
                    .filter(|(a, b)| **a && **b);
                let expected = if distance == 0 { share } else { share * share };
                let num = (len - distance) as f64;
                let deviation = (num * expected * (1.0 - expected)).sqrt();
                let off = both.count() as f64 - num * expected;
                assert!(
                    off.abs() < 6.0 * deviation,
                    "{probability}, distance {distance}: {off} of {deviation}"
                );
            }
        }
    }

    #[test]
    fn bf16_is_the_rounded_result_of_the_widened_values() {
        let x = stored(1000, 2);
        let y = run(Isa::detect(), 0.3, 9, &x);
        assert_eq!(y, rounded(&run(Isa::detect(), 0.3, 9, &widened(&x))));
    }
}
