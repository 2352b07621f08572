//! Comparison of channels that are a power of two with 32 fewer and 32 more.
//!
//! In: the measurements of a layer and its two neighbours.
//! Out: a line per operation, marked if the rate differs by more than a tenth from the mean of the
//! neighbours' rates. A reason for a difference: pixels a multiple of 4 KiB apart share a set of
//! an L1 cache.

use std::mem;
use std::sync::{MutexGuard, PoisonError};

use crate::Bench;

/// Channels from a power of two to its neighbours.
const SHIFT: usize = 32;
/// Measurements of a layer and its neighbours in turn, of which the best count.
pub(crate) const ROUNDS: u32 = 10;
const MARKED_DIFFERENCE: f64 = 0.1;

/// GFLOP/s of an operation, or else GB/s.
pub(crate) struct Rate {
    layer: String,
    operation: String,
    value: f64,
}

pub(crate) fn print_header() {
    println!(
        "{:<22} {:<36} {:>10} {:>10} {:>10} {:>10}",
        "layer", "operation", "-32", "GFLOP/s", "+32", "% of mean"
    );
}

impl Bench {
    /// Calls `measure` for a layer of these channels, or compares the layer with its neighbours.
    pub(crate) fn among_neighbours<const N: usize>(
        &self,
        channels: [usize; N],
        measure: impl Fn([usize; N]),
    ) {
        if !self.arguments.neighbours {
            return measure(channels);
        }
        let has_neighbours = |channels: usize| channels > SHIFT && channels.is_power_of_two();
        if !channels.into_iter().any(has_neighbours) {
            return;
        }
        let neighbour = |shifted: fn(usize) -> usize| {
            channels.map(|channels| {
                if has_neighbours(channels) {
                    shifted(channels)
                } else {
                    channels
                }
            })
        };
        let layers = [neighbour(|c| c - SHIFT), channels, neighbour(|c| c + SHIFT)];
        let mut best: [Vec<Rate>; 3] = Default::default();
        for _ in 0..ROUNDS {
            for (best, channels) in best.iter_mut().zip(layers) {
                measure(channels);
                let rates = mem::take(&mut *self.rates());
                if best.is_empty() {
                    *best = rates;
                } else {
                    for (best, rate) in best.iter_mut().zip(rates) {
                        best.value = best.value.max(rate.value);
                    }
                }
            }
        }
        let [fewer, same, more] = best;
        for ((fewer, same), more) in fewer.iter().zip(same).zip(more) {
            let Rate {
                layer,
                operation,
                value,
            } = same;
            let share = 2.0 * value / (fewer.value + more.value);
            let is_marked = (share - 1.0).abs() > MARKED_DIFFERENCE;
            println!(
                "{layer:<22} {operation:<36} {:>10.1} {value:>10.1} {:>10.1} {:>10.1}{}",
                fewer.value,
                more.value,
                100.0 * share,
                if is_marked { " <" } else { "" },
            );
        }
    }

    /// Keeps a rate for the comparison.
    pub(crate) fn keep(&self, layer: &str, operation: &str, value: f64) {
        self.rates().push(Rate {
            layer: layer.to_owned(),
            operation: operation.to_owned(),
            value,
        });
    }

    fn rates(&self) -> MutexGuard<'_, Vec<Rate>> {
        self.rates.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
