//! Time of all-reduces of N ranks.
//!
//! In: an algorithm, a network, a number of bytes. Out: seconds from the common start until the
//! last rank has the sum.
//! Invariant: the messages are those of the real algorithm on each rank.
//!
//! A shorter buffer represents a large one: each of its elements stands for several. Its length is
//! a multiple of the number of ranks. From [`MANY_RANKS`] on, times are interpolated between
//! powers of four, because the messages have the same pattern.

use std::collections::HashMap;
use std::sync::Arc;

use distributed::Communicator;
use distributed::gradients::{AllReducer, ReductionKind};

use crate::SimulationError;
use crate::network::NetworkModel;
use crate::record::{Gathered, Recorder};
use crate::schedule::finish;

/// Most elements in the buffers of all ranks together that are simulated one by one.
const MOST_ELEMENTS: usize = 1 << 24;

/// Number of ranks from which times are interpolated.
const MANY_RANKS: usize = 64;

/// Bytes from which times are interpolated.
const LEAST_BYTES: u64 = 1 << 14;

/// Least elements per rank of a buffer that represents a larger one.
const LEAST_ELEMENTS: usize = 16;

/// All-reduce algorithm of all ranks, which run one after another.
#[derive(Debug)]
pub(crate) struct Reductions {
    network: NetworkModel,
    ranks: Vec<(Arc<Recorder>, AllReducer)>,
    /// Known seconds by bytes.
    seconds: HashMap<u64, f64>,
}

impl Reductions {
    /// # Errors
    /// When there are no ranks, or a time of the network is negative or not finite.
    pub(crate) fn new(
        kind: ReductionKind,
        network: &NetworkModel,
        ranks: usize,
    ) -> Result<Self, SimulationError> {
        network.check()?;
        if ranks == 0 {
            return Err(SimulationError::Nobody { what: "rank" });
        }
        let mut known: Vec<Gathered> = Vec::new();
        loop {
            let gathers = Arc::new(known.clone());
            let recorders: Vec<_> = (0..ranks)
                .map(|rank| Arc::new(Recorder::new(network, rank, ranks, Arc::clone(&gathers))))
                .collect();
            let reducers: Vec<_> = recorders
                .iter()
                .map(|recorder| {
                    AllReducer::new(kind, Arc::clone(recorder) as Arc<dyn Communicator>)
                })
                .collect();
            // Either all ranks stop at the same gather or none does.
            match recorders
                .iter()
                .map(|recorder| recorder.brought())
                .collect::<Option<Gathered>>()
            {
                Some(gathered) => known.push(gathered),
                None => {
                    let reducers = reducers.into_iter().collect::<Result<Vec<_>, _>>()?;
                    let ranks = recorders.into_iter().zip(reducers).collect();
                    return Ok(Self {
                        network: *network,
                        ranks,
                        seconds: HashMap::new(),
                    });
                }
            }
        }
    }

    /// Returns the least bytes that a sending rank sends to other nodes, per byte of the buffer.
    pub(crate) fn least_sent(&self) -> f64 {
        let ranks = self.ranks.len();
        let leaders = ranks.div_ceil(self.network.ranks_per_node());
        let of = |senders: usize| 2.0 * (senders - 1) as f64 / senders as f64;
        match self.ranks[0].1.kind() {
            ReductionKind::Hierarchical => of(leaders),
            ReductionKind::Exact => {
                let shares_memory = self.network.node.is_some_and(|node| node.shared);
                (size_of::<u64>() / size_of::<f32>()) as f64
                    * of(if shares_memory { leaders } else { ranks })
            }
            _ => of(ranks),
        }
    }

    /// Returns the seconds of a reduction.
    ///
    /// # Errors
    /// When the algorithm fails or uses an operation that one rank cannot record.
    pub(crate) fn seconds(&mut self, bytes: u64) -> Result<f64, SimulationError> {
        interpolated(self.ranks.len(), bytes, |bytes| self.exact_seconds(bytes))
    }

    fn exact_seconds(&mut self, bytes: u64) -> Result<f64, SimulationError> {
        if let Some(&seconds) = self.seconds.get(&bytes) {
            return Ok(seconds);
        }
        let (length, magnification) = stand_in(bytes, self.ranks.len());
        // Nothing is received, so zeros stay zeros.
        let mut buffer = vec![0.0; length];
        let mut operations = Vec::with_capacity(self.ranks.len());
        for (recorder, reducer) in &mut self.ranks {
            recorder.begin(magnification);
            reducer.set_magnification(magnification);
            reducer.sum(&mut buffer)?;
            operations.push(recorder.take());
        }
        let seconds = finish(&self.network, magnification, &operations)?
            .into_iter()
            .fold(0.0, f64::max);
        self.seconds.insert(bytes, seconds);
        Ok(seconds)
    }
}

/// Returns the time of `bytes`; for many ranks, interpolated between two powers of four.
pub(crate) fn interpolated(
    ranks: usize,
    bytes: u64,
    mut seconds: impl FnMut(u64) -> Result<f64, SimulationError>,
) -> Result<f64, SimulationError> {
    if ranks < MANY_RANKS || bytes < LEAST_BYTES {
        return seconds(bytes);
    }
    let below = 1 << (bytes.ilog2() / 2 * 2);
    let least = seconds(below)?;
    let most = seconds(4 * below)?;
    Ok(least + (most - least) * (bytes - below) as f64 / (3 * below) as f64)
}

/// Returns the length of the buffer that represents `bytes`, and the bytes that each of its bytes
/// represents.
pub(crate) fn stand_in(bytes: u64, ranks: usize) -> (usize, f64) {
    let length = length(bytes.div_ceil(size_of::<f32>() as u64), ranks);
    let magnification = match length {
        0 => 1.0,
        _ => bytes as f64 / (length * size_of::<f32>()) as f64,
    };
    (length, magnification)
}

fn length(elements: u64, ranks: usize) -> usize {
    let most = (MOST_ELEMENTS / ranks).max(LEAST_ELEMENTS * ranks);
    match usize::try_from(elements) {
        Ok(elements) if elements <= most => elements,
        _ => most / ranks * ranks,
    }
}

/// Returns the seconds of an all-reduce of `bytes` of `f32` that all `ranks` start at once.
///
/// # Errors
/// When there are no ranks, or a time of the network is negative or not finite.
pub fn reduction_seconds(
    kind: ReductionKind,
    network: &NetworkModel,
    ranks: usize,
    bytes: u64,
) -> Result<f64, SimulationError> {
    Reductions::new(kind, network, ranks)?.seconds(bytes)
}
