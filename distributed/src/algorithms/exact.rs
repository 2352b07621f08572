//! A sum whose bits do not depend on the distribution of shards over ranks.
//!
//! In: any number of shards of equal length per rank. Out: the sum, with the same bits for every
//! distribution of the same shards.
//! Invariant: one scale, from the largest magnitude of all shards, converts shards to integers. The
//! order of integer additions does not matter.
//!
//! The largest magnitude takes 51 bits, and the sum of up to 2^11 shards takes 62. A number keeps
//! all of its 24 bits unless it is more than 2^27 times smaller than the largest. For smaller
//! numbers the error is at most 2^-52 of the largest, far below that of an f32 sum.

use std::sync::Arc;

use super::group::piece;
use super::hierarchical::{HierarchicalReducer, SHARED_BYTES};
use crate::{CollectiveError, Communicator};

/// Number of bits of the largest magnitude as an integer.
const MAGNITUDE_BITS: i32 = 51;

/// Logarithm of the number of shards above which each shard has fewer bits.
const SHARDS_BITS: i32 = 62 - MAGNITUDE_BITS;

/// Numbers that pass through shared memory at once.
const SHARED_PIECE: usize = SHARED_BYTES / size_of::<u64>();

/// Numbers that pass through messages at once.
const MESSAGE_PIECE: usize = 1 << 20;

/// Constant for rounding an f64 below 2^51 in magnitude to an integer. The integer is in the low
/// bits of the sum.
const ROUNDER: f64 = 1.5 * (1_u64 << 52) as f64;

/// Bits of the smallest f32 that is not finite.
const INFINITE: u32 = f32::INFINITY.to_bits();

/// All-reduce as integers.
#[derive(Debug)]
pub struct ExactReducer {
    communicator: Arc<dyn Communicator>,
    /// Reducer through shared memory, if the ranks of a node can share memory.
    nodes: Option<HierarchicalReducer>,
    fixed: Vec<u64>,
    magnification: f64,
}

impl ExactReducer {
    /// Returns a reducer on `communicator`.
    ///
    /// # Errors
    /// Returns an error if the job ends.
    ///
    /// # Collective
    /// Must be called by all ranks.
    pub fn new(communicator: Arc<dyn Communicator>) -> Result<Self, CollectiveError> {
        let nodes = HierarchicalReducer::new(Arc::clone(&communicator))?;
        let nodes = Some(nodes).filter(HierarchicalReducer::shares_memory);
        Ok(Self {
            communicator,
            nodes,
            fixed: Vec::new(),
            magnification: 1.0,
        })
    }

    /// Replaces `values`, one shard, by the sum over all ranks.
    ///
    /// # Errors
    /// Returns an error in the cases of [`sum_shards`](ExactReducer::sum_shards).
    ///
    /// # Collective
    /// Must be called by all ranks, with equal lengths.
    pub fn sum(&mut self, values: &mut [f32]) -> Result<(), CollectiveError> {
        let Some(scale) = self.scale(&[values])? else {
            values.fill(f32::NAN);
            return Ok(());
        };
        values.chunks_mut(self.piece()).try_for_each(|piece| {
            self.set(piece, scale);
            self.finish(scale, piece)
        })
    }

    /// Fills `sums` with the sum of all `shards` of all ranks. A rank may have any number of
    /// shards, even none.
    ///
    /// If any number is NaN or infinite, all sums are NaN on every rank. Zeros lose their sign.
    ///
    /// # Errors
    /// Returns an error if lengths differ between ranks (where the communicator detects it), or the
    /// job ends.
    ///
    /// # Panics
    /// Panics if a shard is not as long as `sums`.
    ///
    /// # Collective
    /// Must be called by all ranks, with equal lengths.
    pub fn sum_shards(
        &mut self,
        shards: &[&[f32]],
        sums: &mut [f32],
    ) -> Result<(), CollectiveError> {
        assert!(
            shards.iter().all(|shard| shard.len() == sums.len()),
            "shards are as long as their sum"
        );
        let Some(scale) = self.scale(shards)? else {
            sums.fill(f32::NAN);
            return Ok(());
        };
        let mut start = 0;
        for sums in sums.chunks_mut(self.piece()) {
            let range = start..start + sums.len();
            start = range.end;
            match shards {
                [] => {
                    self.fixed.clear();
                    self.fixed.resize(sums.len(), 0);
                }
                [first, others @ ..] => {
                    self.set(&first[range.clone()], scale);
                    others
                        .iter()
                        .for_each(|shard| self.add(&shard[range.clone()], scale));
                }
            }
            self.finish(scale, sums)?;
        }
        Ok(())
    }

    /// Returns how many numbers are summed at once. The numbers fit a core's cache, or are enough
    /// for one message.
    fn piece(&self) -> usize {
        let elements = match self.nodes {
            Some(_) => SHARED_PIECE,
            None => MESSAGE_PIECE,
        };
        piece(elements, self.magnification)
    }

    pub(super) fn set_magnification(&mut self, magnification: f64) {
        self.magnification = magnification;
        if let Some(nodes) = &mut self.nodes {
            nodes.set_magnification(magnification);
        }
    }

    /// Returns the power of two that converts numbers to integers, the same on every rank. Returns
    /// `None` if a number is not finite.
    fn scale(&self, shards: &[&[f32]]) -> Result<Option<f64>, CollectiveError> {
        let largest = shards
            .iter()
            .map(|shard| largest_magnitude(shard))
            .max()
            .unwrap_or(0);
        let mut largest = [u64::from(largest)];
        let mut num_shards = [shards.len() as u64];
        self.communicator.all_reduce_max_u64(&mut largest)?;
        self.communicator.all_reduce_sum_u64(&mut num_shards)?;
        let largest = u32::try_from(largest[0]).expect("a maximum of 32-bit numbers");
        if largest >= INFINITE {
            return Ok(None);
        }
        // 2^exponent is above the largest magnitude. Subnormal numbers have the exponent of the
        // smallest normal number.
        let exponent = (largest >> 23).max(1) as i32 - 126;
        let headroom =
            (num_shards[0].max(1).next_power_of_two().ilog2() as i32 - SHARDS_BITS).max(0);
        Ok(Some(2.0_f64.powi(MAGNITUDE_BITS - exponent - headroom)))
    }

    fn set(&mut self, values: &[f32], scale: f64) {
        self.fixed.clear();
        self.fixed
            .extend(values.iter().map(|&value| to_fixed(value, scale)));
    }

    fn add(&mut self, values: &[f32], scale: f64) {
        let pairs = self.fixed.iter_mut().zip(values);
        pairs.for_each(|(sum, &value)| *sum = sum.wrapping_add(to_fixed(value, scale)));
    }

    /// Sums `fixed` over all ranks.
    fn finish(&mut self, scale: f64, sums: &mut [f32]) -> Result<(), CollectiveError> {
        match &mut self.nodes {
            Some(nodes) => nodes.reduce(&mut self.fixed)?,
            None => self.communicator.all_reduce_sum_u64(&mut self.fixed)?,
        }
        let unit = scale.recip();
        sums.iter_mut()
            .zip(&self.fixed)
            .for_each(|(sum, &fixed)| *sum = (from_fixed(fixed) * unit) as f32);
        Ok(())
    }
}

/// Returns the bits of the largest magnitude. Infinities and NaNs have larger bits than all
/// numbers.
fn largest_magnitude(values: &[f32]) -> u32 {
    // Magnitudes fit an i32. More vector instruction sets have a maximum of i32 than of u32.
    let largest = values.iter().fold(0, |largest: i32, value| {
        largest.max(value.abs().to_bits().cast_signed())
    });
    largest.cast_unsigned()
}

/// Returns `value * scale`, rounded to an integer in two's complement.
fn to_fixed(value: f32, scale: f64) -> u64 {
    (f64::from(value) * scale + ROUNDER)
        .to_bits()
        .wrapping_sub(ROUNDER.to_bits())
}

/// Returns `fixed`, in two's complement, rounded to an f64.
///
/// The result is that of `fixed as i64 as f64`, in steps that SSE2 can vectorise. Each half becomes
/// the low bits of an f64 whose exponent gives the position. Only the last addition rounds.
fn from_fixed(fixed: u64) -> f64 {
    const LOW: f64 = (1_u64 << 52) as f64;
    const HIGH: f64 = LOW * (1_u64 << 32) as f64;
    const BIAS: f64 = HIGH + (1_u64 << 63) as f64 + LOW;
    let low = f64::from_bits((fixed & 0xffff_ffff) | LOW.to_bits());
    let high = f64::from_bits(((fixed >> 32) ^ 0x8000_0000) | HIGH.to_bits());
    (high - BIAS) + low
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_rounded_to_even_and_signed() {
        let fixed = |value| to_fixed(value, 1.0).cast_signed();
        assert_eq!(
            [0.0, -0.0, 0.5, 1.5, -2.5, -3.0, 8_388_607.0].map(fixed),
            [0, 0, 0, 2, -2, -3, 8_388_607]
        );
        let largest = 2.0_f64.powi(MAGNITUDE_BITS);
        assert_eq!(to_fixed(1.0, largest).cast_signed(), 1 << MAGNITUDE_BITS);
        assert_eq!(
            to_fixed(-1.0, largest).cast_signed(),
            -(1 << MAGNITUDE_BITS)
        );
    }

    #[test]
    fn integers_become_the_nearest_f64() {
        let values = [
            0,
            1,
            -1,
            i64::MAX,
            i64::MIN,
            (1 << 62) + 1,
            -(1 << 62) - 513,
            0xffff_ffff,
            -(1 << 32),
            12_345,
        ];
        for value in values {
            assert_eq!(from_fixed(value.cast_unsigned()), value as f64, "{value}");
        }
    }
}
