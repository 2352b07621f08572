//! Sparse sums: each rank sends the elements of its bucket with the largest magnitudes.
//!
//! In: gradients plus the residuals of earlier steps. Out: the sum of all sent elements, zero where
//! no rank sent an element.
//! Invariant: the sent elements and the residual are together the input, bit for bit.
//! Source: Stich et al. 2018, Sparsified SGD with Memory (1809.07599); Aji and Heafield 2017
//! (1704.05021).

use super::gather_bytes_sent;
use super::matrix::norm_squared;
use crate::reduction::Traffic;
use crate::{CollectiveError, Communicator, ROOT};

/// Bytes of one element in a message: a `u32` index and an `f32` value, little-endian.
const ELEMENT_BYTES: usize = 8;

/// Low bits of a magnitude that the histogram ignores, so that the histogram fits the L1 cache.
const TRAILING_BITS: u32 = 21;

/// State for one bucket.
#[derive(Debug)]
pub(super) struct TopK {
    /// Number of elements that each rank sends.
    count: usize,
    /// Number of elements for each value of the magnitude's leading bits.
    histogram: Vec<usize>,
    /// Magnitudes with the same leading bits as the smallest magnitude that is sent.
    candidates: Vec<u32>,
    message: Vec<u8>,
}

impl TopK {
    /// Returns the state for a bucket of `length` elements, of which `percent` percent are sent.
    /// The number is rounded up, so at least one element is sent.
    ///
    /// # Panics
    /// Panics if `percent` is not above 0 and at most 100, or an index does not fit 32 bits.
    pub(super) fn new(percent: f32, length: usize) -> Self {
        assert!(
            percent > 0.0 && percent <= 100.0,
            "top-k: expected a percentage above 0 and at most 100, got {percent}"
        );
        assert!(
            u32::try_from(length).is_ok(),
            "top-k: expected a bucket of less than 2^32 elements, got {length}"
        );
        // Whole millionths of a percent avoid the rounding of 0.1 in base 2.
        let millionths = (f64::from(percent) * 1e6).round() as u64;
        let count = (millionths * length as u64).div_ceil(100_000_000).max(1) as usize;
        let count = count.min(length);
        let message = Vec::with_capacity(count * ELEMENT_BYTES);
        Self {
            count,
            histogram: vec![0; 1 << (32 - TRAILING_BITS)],
            candidates: Vec::new(),
            message,
        }
    }

    /// Replaces `values` by the sparse sum, and `residual` by the elements that this rank did not
    /// send.
    pub(super) fn sum(
        &mut self,
        values: &mut [f32],
        residual: &mut [f32],
        communicator: &dyn Communicator,
    ) -> Result<Traffic, CollectiveError> {
        let (least, mut num_least) = self.least_sent(values);
        residual.copy_from_slice(values);
        self.message.clear();
        for (index, residual) in residual.iter_mut().enumerate() {
            let bits = magnitude(*residual);
            if bits < least || (bits == least && num_least == 0) {
                continue;
            }
            num_least -= usize::from(bits == least);
            let value = std::mem::take(residual);
            self.message
                .extend_from_slice(&(index as u32).to_le_bytes());
            self.message.extend_from_slice(&value.to_le_bytes());
        }
        let messages = communicator.all_gather(&self.message)?;
        let expected = messages[ROOT].len();
        if let Some(rank) = messages
            .iter()
            .position(|message| message.len() != expected)
        {
            return Err(CollectiveError::lengths(
                "top-k gather",
                rank,
                expected / ELEMENT_BYTES,
                messages[rank].len() / ELEMENT_BYTES,
            ));
        }
        values.fill(0.0);
        for message in &messages {
            for element in message.as_chunks::<ELEMENT_BYTES>().0 {
                let [i0, i1, i2, i3, v0, v1, v2, v3] = *element;
                values[u32::from_le_bytes([i0, i1, i2, i3]) as usize] +=
                    f32::from_le_bytes([v0, v1, v2, v3]);
            }
        }
        let bytes_sent = gather_bytes_sent(communicator.world_size(), self.message.len());
        Ok(Traffic {
            bytes_sent,
            error_squared: norm_squared(residual),
            ..Traffic::default()
        })
    }

    /// Returns the smallest magnitude that is sent, and the number of sent elements with this
    /// magnitude. Elements with lower indices come first.
    fn least_sent(&mut self, values: &[f32]) -> (u32, usize) {
        if self.count == 0 {
            return (u32::MAX, 0);
        }
        self.histogram.fill(0);
        for &value in values {
            self.histogram[(magnitude(value) >> TRAILING_BITS) as usize] += 1;
        }
        let mut missing = self.count;
        let mut leading = self.histogram.len() - 1;
        while self.histogram[leading] < missing {
            missing -= self.histogram[leading];
            leading -= 1;
        }
        self.candidates.clear();
        let magnitudes = values.iter().map(|&value| magnitude(value));
        self.candidates
            .extend(magnitudes.filter(|bits| (bits >> TRAILING_BITS) as usize == leading));
        let (larger, &mut least, _) = self
            .candidates
            .select_nth_unstable_by(missing - 1, |a, b| b.cmp(a));
        (
            least,
            missing - larger.iter().filter(|bits| **bits > least).count(),
        )
    }
}

/// Returns the bits of a magnitude. They have the order of magnitudes, then infinity, then NaN.
/// Infinity and NaN are always sent.
fn magnitude(value: f32) -> u32 {
    value.abs().to_bits()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::communicator::SingleCommunicator;

    fn selected(percent: f32, values: &[f32]) -> Vec<usize> {
        let mut sum = values.to_vec();
        let mut residual = vec![0.0; values.len()];
        let mut top_k = TopK::new(percent, values.len());
        top_k
            .sum(&mut sum, &mut residual, &SingleCommunicator::new())
            .unwrap();
        let index = |element: &[u8; ELEMENT_BYTES]| {
            u32::from_le_bytes(element[..4].try_into().unwrap()) as usize
        };
        top_k.message.as_chunks().0.iter().map(index).collect()
    }

    #[test]
    fn the_largest_are_selected_and_the_lower_index_wins() {
        assert_eq!(selected(50.0, &[1.0, -3.0, 2.0, -0.5]), [1, 2]);
        assert_eq!(selected(40.0, &[1.0, -1.0, 1.0, -1.0, 1.0]), [0, 1]);
        assert_eq!(selected(75.0, &[1.0, 1.5, 1.0, 1.0]), [0, 1, 2]);
        assert_eq!(selected(50.0, &[0.0; 4]), [0, 1]);
        assert_eq!(selected(1.0, &[0.0, f32::MAX, f32::NEG_INFINITY, 3.0]), [2]);
        assert_eq!(selected(1.0, &[f32::INFINITY, 1.0, -f32::NAN]), [2]);
        assert_eq!(selected(100.0, &[0.0, 1.0, 2.0]), [0, 1, 2]);
        assert!(selected(1.0, &[]).is_empty());
    }

    #[test]
    fn selection_agrees_with_sorting() {
        let values: Vec<f32> = (0..5000_u32)
            .map(|index| ((index * 7919) % 997) as f32 / 31.0 - 16.0)
            .collect();
        for percent in [0.1, 1.0, 7.0, 50.0, 99.0] {
            let mut sorted: Vec<usize> = (0..values.len()).collect();
            sorted.sort_by_key(|&index| (std::cmp::Reverse(magnitude(values[index])), index));
            sorted.truncate((percent * 50.0_f32).round() as usize);
            sorted.sort_unstable();
            assert_eq!(selected(percent, &values), sorted, "{percent}");
        }
    }

    #[test]
    fn counts_are_rounded_up() {
        for (percent, length, count) in [
            (1.0, 1, 1),
            (1.0, 100, 1),
            (1.0, 101, 2),
            (0.1, 1_000_000, 1000),
            (1e-9, 100, 1),
            (0.7, 1000, 7),
            (100.0, 7, 7),
        ] {
            assert_eq!(
                TopK::new(percent, length).count,
                count,
                "{percent} % of {length}"
            );
        }
    }
}
