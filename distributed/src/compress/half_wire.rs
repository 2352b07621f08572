//! Sums with 16-bit values in messages and 32-bit accumulation.
//!
//! In: gradients plus the rounding errors of earlier steps. Out: the sum, rounded to 16 bits, with
//! the same bits on every rank.
//! Invariant: each rank keeps its own rounding errors. Σ residuals + result = Σ inputs, up to
//! 32-bit rounding.
//! Source: Thakur et al. 2005, Optimization of Collective Communication Operations in MPICH
//! (pairwise exchange); Micikevicius et al. 2018, Mixed Precision Training (1710.03740), for the
//! scale.
//!
//! The bucket is divided into one segment per rank. Each rank sends every other rank the rounded
//! values of that rank's segment. It sums its own segment in rank order, rounds the sum, and sends
//! it to all ranks.
//!
//! All ranks must have the same byte order.

use std::ops::Range;

use bytemuck::Pod;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::matrix::norm_squared;
use super::{BLOCK, gather_bytes_sent};
use crate::reduction::Traffic;
use crate::{CollectiveError, Communicator};

/// Exponent of the limit for the scaled sum of the ranks' largest magnitudes. 2^15 is half of the
/// largest `f16`.
const F16_EXPONENT: i64 = 15;

/// A 16-bit float.
pub(super) trait Half: Pod + Default {
    /// True if the values must be scaled into the range of the type.
    const SCALED: bool;
}

impl Half for bf16 {
    const SCALED: bool = false;
}

impl Half for f16 {
    const SCALED: bool = true;
}

/// Buffers for one bucket.
#[derive(Debug)]
pub(super) struct HalfWire<T> {
    /// The whole bucket in 16 bits, as sent and as received.
    wire: Vec<T>,
    /// This rank's segment from each rank, in rank order. The part of this rank is unused.
    parts: Vec<T>,
    /// One block of the sum.
    sum: Vec<f32>,
    /// One rank's part of the block.
    part: Vec<f32>,
}

impl<T: Half> HalfWire<T>
where
    [T]: HalfFloatSliceExt,
{
    /// Returns buffers for a bucket of `length` elements.
    pub(super) fn new(length: usize) -> Self {
        Self {
            wire: vec![T::default(); length],
            parts: Vec::new(),
            sum: Vec::new(),
            part: Vec::new(),
        }
    }

    /// Replaces `values` by the rounded sum, and `residual` by this rank's rounding errors.
    pub(super) fn sum(
        &mut self,
        values: &mut [f32],
        residual: &mut [f32],
        communicator: &dyn Communicator,
    ) -> Result<Traffic, CollectiveError> {
        let world_size = communicator.world_size();
        let mut bytes_sent = 0;
        let mut exponent = 0;
        if T::SCALED {
            exponent = agree_on_exponent(values, communicator)?;
            bytes_sent += gather_bytes_sent(world_size, size_of::<f32>());
        }
        for ((values, wire), residual) in values
            .chunks_mut(BLOCK)
            .zip(self.wire.chunks_mut(BLOCK))
            .zip(residual.chunks_mut(BLOCK))
        {
            scale(values, exponent);
            round(values, wire, residual);
        }

        let own = segment(communicator.rank(), world_size, values.len());
        bytes_sent += self.exchange(&values[own.clone()], &mut residual[own], communicator)?;
        let mut error_squared = 0.0;
        for ((values, wire), residual) in values
            .chunks_mut(BLOCK)
            .zip(self.wire.chunks(BLOCK))
            .zip(residual.chunks_mut(BLOCK))
        {
            wire.convert_to_f32_slice(values);
            scale(values, -exponent);
            scale(residual, -exponent);
            error_squared += norm_squared(residual);
        }
        Ok(Traffic {
            bytes_sent,
            error_squared,
            ..Traffic::default()
        })
    }

    /// Replaces the wire by the rounded sum of all ranks' wires, and `errors` by the sum's rounding
    /// errors in this rank's segment. `values` are this rank's values of its segment. Returns the
    /// bytes sent.
    fn exchange(
        &mut self,
        values: &[f32],
        errors: &mut [f32],
        communicator: &dyn Communicator,
    ) -> Result<u64, CollectiveError> {
        let rank = communicator.rank();
        let world_size = communicator.world_size();
        let length = self.wire.len();
        let mut bytes_sent = 0;
        let own = segment(rank, world_size, length);
        self.parts.resize(world_size * own.len(), T::default());
        for round in 1..world_size {
            let to = (rank + round) % world_size;
            let from = (rank + world_size - round) % world_size;
            let outgoing = &self.wire[segment(to, world_size, length)];
            let incoming = &mut self.parts[from * own.len()..][..own.len()];
            communicator.exchange(
                to,
                bytemuck::cast_slice(outgoing),
                from,
                bytemuck::cast_slice_mut(incoming),
            )?;
            bytes_sent += size_of_val(outgoing) as u64;
        }
        for start in (0..own.len()).step_by(BLOCK) {
            let piece = start..own.len().min(start + BLOCK);
            let place = own.start + piece.start..own.start + piece.end;
            self.add_up(rank, own.len(), piece.clone(), &values[piece.clone()]);
            round(&self.sum, &mut self.wire[place], &mut errors[piece]);
        }

        for round in 1..world_size {
            let to = (rank + round) % world_size;
            let from = (rank + world_size - round) % world_size;
            let ranges = [own.clone(), segment(from, world_size, length)];
            let [outgoing, incoming] = self
                .wire
                .get_disjoint_mut(ranges)
                .expect("segments do not overlap");
            communicator.exchange(
                to,
                bytemuck::cast_slice(outgoing),
                from,
                bytemuck::cast_slice_mut(incoming),
            )?;
            bytes_sent += size_of_val(outgoing) as u64;
        }
        Ok(bytes_sent)
    }

    /// Sums `piece` of this rank's segment, in rank order. The segment has `length` elements. `own`
    /// is the unrounded part of `rank`.
    fn add_up(&mut self, rank: usize, length: usize, piece: Range<usize>, own: &[f32]) {
        self.sum.clear();
        self.part.resize(own.len(), 0.0);
        for (sender, part) in self.parts.chunks_exact(length).enumerate() {
            let part = if sender == rank {
                own
            } else {
                part[piece.clone()].convert_to_f32_slice(&mut self.part);
                &self.part
            };
            if sender == 0 {
                self.sum.extend_from_slice(part);
            } else {
                self.sum
                    .iter_mut()
                    .zip(part)
                    .for_each(|(sum, part)| *sum += part);
            }
        }
    }
}

/// Sum of a flat tensor that a device has rounded to `bf16`; the device keeps the rounding errors.
#[derive(Debug)]
pub struct RoundedSum(HalfWire<bf16>);

impl RoundedSum {
    /// Returns a sum of `length` elements.
    pub fn new(length: usize) -> Self {
        Self(HalfWire::new(length))
    }

    /// Replaces `values` by their rounded sum over all ranks. Returns the elements that this rank
    /// added up, the rounding errors of their sums, and the bytes sent.
    ///
    /// # Errors
    /// Returns an error if the job ends.
    ///
    /// # Panics
    /// Panics if the number of `values` differs from that of [`new`](Self::new).
    ///
    /// # Collective
    /// Must be called by all ranks.
    pub fn sum(
        &mut self,
        values: &mut Vec<bf16>,
        communicator: &dyn Communicator,
    ) -> Result<(Range<usize>, Vec<f32>, u64), CollectiveError> {
        let Self(wire) = self;
        let length = wire.wire.len();
        assert_eq!(values.len(), length, "rounded sum: lengths differ");
        let own = segment(communicator.rank(), communicator.world_size(), length);
        let summands = values[own.clone()].to_f32_vec();
        let mut errors = vec![0.0; own.len()];
        std::mem::swap(values, &mut wire.wire);
        let bytes_sent = wire.exchange(&summands, &mut errors, communicator)?;
        std::mem::swap(values, &mut wire.wire);
        Ok((own, errors, bytes_sent))
    }
}

/// Rounds `values` to `wire` and writes the rounding errors to `residual`.
fn round<T>(values: &[f32], wire: &mut [T], residual: &mut [f32])
where
    [T]: HalfFloatSliceExt,
{
    wire.convert_from_f32_slice(values);
    wire.convert_to_f32_slice(residual);
    residual
        .iter_mut()
        .zip(values)
        .for_each(|(residual, value)| *residual = value - *residual);
}

/// Returns the elements that `rank` sums.
fn segment(rank: usize, world_size: usize, length: usize) -> Range<usize> {
    rank * length / world_size..(rank + 1) * length / world_size
}

/// Returns the exponent of a power of two that scales the sum of the ranks' largest magnitudes to
/// just below 2^15, equal on all ranks.
///
/// No value and no sum then overflows `f16`. Values within 2^29 of the largest keep all 11 bits. If
/// a rank has a value that is not finite, the exponent is 0, and the result has infinity or NaN.
fn agree_on_exponent(
    values: &[f32],
    communicator: &dyn Communicator,
) -> Result<i64, CollectiveError> {
    // The bits of magnitudes have the order of the magnitudes. NaN is the largest.
    let largest = values
        .iter()
        .fold(0, |largest, value| value.abs().to_bits().max(largest));
    let gathered = communicator.all_gather(&largest.to_ne_bytes())?;
    let bound: f64 = gathered
        .iter()
        .filter_map(|bytes| bytes.as_slice().try_into().ok())
        .map(|bytes| f64::from(f32::from_bits(u32::from_ne_bytes(bytes))))
        .sum();
    if bound == 0.0 || !bound.is_finite() {
        return Ok(0);
    }
    // A sum of `f32` magnitudes is a normal `f64`. Its stored exponent has a bias of 1023.
    let exponent = (bound.to_bits() >> 52) as i64 - 1023;
    // Within these limits 2^exponent and its inverse are normal `f32`.
    Ok((F16_EXPONENT - 1 - exponent).clamp(-126, 126))
}

/// Multiplies by 2^`exponent`.
fn scale(values: &mut [f32], exponent: i64) {
    if exponent != 0 {
        let factor = 2.0_f64.powi(exponent as i32) as f32;
        values.iter_mut().for_each(|value| *value *= factor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_ranks;

    #[test]
    fn segments_cover_the_bucket_in_order() {
        for (world_size, length) in [(1, 5), (3, 10), (4, 3), (3, 0)] {
            let covered: Vec<usize> = (0..world_size)
                .flat_map(|rank| segment(rank, world_size, length))
                .collect();
            assert_eq!(covered, (0..length).collect::<Vec<_>>());
        }
    }

    #[test]
    fn the_scaled_bound_is_below_half_of_the_largest_f16() {
        for magnitude in [1e-45_f32, 1e-30, 3.0e-7, 1.0, 4.0, 65504.0, 1e30, f32::MAX] {
            let exponents = run_ranks(3, |communicator| {
                agree_on_exponent(&[0.0, -magnitude, magnitude / 2.0], &communicator).unwrap()
            });
            let scaled = 3.0 * f64::from(magnitude) * 2.0_f64.powi(exponents[0] as i32);
            assert!(
                exponents.iter().all(|exponent| *exponent == exponents[0]) && scaled < 32768.0,
                "{magnitude}"
            );
            assert!(
                magnitude < 1e-30 || scaled >= 16384.0,
                "{magnitude}: {scaled}"
            );
        }
    }
}
