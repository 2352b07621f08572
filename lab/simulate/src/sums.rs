//! Time of sums over N ranks, by an all-reduce or compressed, without encoding.
//!
//! In: an algorithm or a compression, a network, a bucket. Out: seconds from the common start until
//! the last rank has the sum.
//! Invariant: the messages are those of the real algorithm on each rank.
//!
//! A shorter buffer represents a large one: each of its elements stands for several. Its length is
//! a multiple of the number of ranks. From [`MANY_RANKS`] on, times are interpolated between
//! powers of four, because the messages have the same pattern.

use std::collections::HashMap;
use std::sync::Arc;

use distributed::Communicator;
use distributed::gradients::{
    AllReducer, BucketCompressor, CompressionKind, ReductionKind, TensorSpan,
};

use crate::SimulationError;
use crate::nccl::all_reduce_s;
use crate::network::NetworkModel;
use crate::record::{RecordedCall, Recorder};
use crate::schedule::finish;

/// Most elements in the buffers of all ranks together that are simulated one by one.
const MOST_ELEMENTS: usize = 1 << 24;

/// Number of ranks from which times are interpolated.
const MANY_RANKS: usize = 64;

/// Bytes from which times are interpolated.
const LEAST_BYTES: u64 = 1 << 14;

/// Least elements per rank of a buffer that represents a larger one.
const LEAST_ELEMENTS: usize = 16;

/// Sums of all ranks, which run one after another.
#[derive(Debug)]
pub(crate) struct Sums {
    network: NetworkModel,
    ranks: Vec<Arc<Recorder>>,
    method: Method,
    /// Known seconds by rows and columns of the tensors.
    seconds: HashMap<Vec<(usize, usize)>, f64>,
}

#[derive(Debug)]
enum Method {
    /// One reducer per rank.
    AllReduce(Vec<AllReducer>),
    Compressed(CompressionKind),
    /// NCCL on this number of GPUs, by a formula: it has no recorders.
    Nccl(usize),
}

impl Sums {
    pub(crate) fn all_reduce(
        kind: ReductionKind,
        network: &NetworkModel,
        ranks: usize,
    ) -> Result<Self, SimulationError> {
        let recorders = recorders(network, ranks);
        let reducers = recorders.iter().map(|recorder| {
            let recorder = Arc::clone(recorder) as Arc<dyn Communicator>;
            AllReducer::new(kind, recorder)
        });
        let method = Method::AllReduce(reducers.collect::<Result<_, _>>()?);
        Ok(Self::new(method, network, recorders))
    }

    pub(crate) fn compressed(kind: CompressionKind, network: &NetworkModel, ranks: usize) -> Self {
        Self::new(Method::Compressed(kind), network, recorders(network, ranks))
    }

    pub(crate) fn nccl(network: &NetworkModel, ranks: usize) -> Self {
        Self::new(Method::Nccl(ranks), network, Vec::new())
    }

    fn new(method: Method, network: &NetworkModel, ranks: Vec<Arc<Recorder>>) -> Self {
        Self {
            network: *network,
            ranks,
            method,
            seconds: HashMap::new(),
        }
    }

    /// Returns the least bytes that a sending rank sends to other nodes, per byte of the buffer; 0
    /// if they are unknown.
    pub(crate) fn least_sent(&self) -> f64 {
        let ranks = self.ranks.len();
        let leaders = ranks.div_ceil(self.network.ranks_per_node());
        let of = |senders: usize| 2.0 * (senders - 1) as f64 / senders as f64;
        let kind = match &self.method {
            Method::AllReduce(reducers) => reducers[0].kind(),
            Method::Compressed(CompressionKind::Bf16 | CompressionKind::F16) => {
                return 0.5 * of(ranks);
            }
            Method::Compressed(_) | Method::Nccl(_) => return 0.0,
        };
        match kind {
            ReductionKind::Hierarchical => of(leaders),
            ReductionKind::Exact => {
                let shares_memory = self.network.node.is_some_and(|node| node.shared);
                (size_of::<u64>() / size_of::<f32>()) as f64
                    * of(if shares_memory { leaders } else { ranks })
            }
            _ => of(ranks),
        }
    }

    /// Returns the seconds of a bucket; an all-reduce ignores the tensors in it.
    ///
    /// # Errors
    /// When the algorithm fails or uses an operation that one rank cannot record.
    pub(crate) fn seconds(
        &mut self,
        bytes: u64,
        spans: &[TensorSpan],
    ) -> Result<f64, SimulationError> {
        match self.method {
            Method::Nccl(gpus) => Ok(all_reduce_s(&self.network, gpus, bytes)),
            // These depend on the borders of tensors.
            Method::Compressed(CompressionKind::PowerSgd { .. } | CompressionKind::TopK { .. }) => {
                self.collectives(spans)
            }
            _ if self.ranks.len() < MANY_RANKS || bytes < LEAST_BYTES => self.elements(bytes),
            _ => {
                let below = 1 << (bytes.ilog2() / 2 * 2);
                let least = self.elements(below)?;
                let most = self.elements(4 * below)?;
                Ok(least + (most - least) * (bytes - below) as f64 / (3 * below) as f64)
            }
        }
    }

    fn elements(&mut self, bytes: u64) -> Result<f64, SimulationError> {
        let key = vec![(1, bytes as usize)];
        if let Some(&seconds) = self.seconds.get(&key) {
            return Ok(seconds);
        }
        let length = length(bytes.div_ceil(size_of::<f32>() as u64), self.ranks.len());
        let magnification = match length {
            0 => 1.0,
            _ => bytes as f64 / (length * size_of::<f32>()) as f64,
        };
        // Nothing is received, so zeros stay zeros.
        let mut buffer = vec![0.0; length];
        let mut operations = Vec::with_capacity(self.ranks.len());
        for (rank, recorder) in self.ranks.iter().enumerate() {
            recorder.begin(magnification);
            match &mut self.method {
                Method::AllReduce(reducers) => {
                    reducers[rank].set_magnification(magnification);
                    reducers[rank].sum(&mut buffer)?;
                }
                Method::Compressed(kind) => {
                    let row = vec![TensorSpan {
                        range: 0..length,
                        rows: 1,
                        columns: length,
                    }];
                    BucketCompressor::new(*kind, row, 0).sum(&mut buffer, &**recorder)?;
                }
                Method::Nccl(_) => {}
            }
            operations.push(recorder.take());
        }
        let times = finish(&self.network, magnification, &operations)?;
        let seconds = times.into_iter().fold(0.0, f64::max);
        self.seconds.insert(key, seconds);
        Ok(seconds)
    }

    /// Adds up collectives, which are the same on all ranks.
    fn collectives(&mut self, spans: &[TensorSpan]) -> Result<f64, SimulationError> {
        let key = spans.iter().map(|span| (span.rows, span.columns)).collect();
        if let Some(&seconds) = self.seconds.get(&key) {
            return Ok(seconds);
        }
        let Method::Compressed(kind) = self.method else {
            return Ok(0.0);
        };
        let recorder = &self.ranks[0];
        recorder.begin(1.0);
        let length = spans.last().map_or(0, |span| span.range.end);
        BucketCompressor::new(kind, spans.to_vec(), 0).sum(&mut vec![0.0; length], &**recorder)?;
        let operations = recorder.take();
        let seconds = operations.iter().map(|operation| match operation {
            RecordedCall::Meeting { seconds, .. } => *seconds,
            _ => 0.0,
        });
        let seconds = seconds.sum();
        self.seconds.insert(key, seconds);
        Ok(seconds)
    }
}

fn recorders(network: &NetworkModel, ranks: usize) -> Vec<Arc<Recorder>> {
    (0..ranks)
        .map(|rank| Arc::new(Recorder::new(network, rank, ranks)))
        .collect()
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
/// When there are no ranks.
pub fn reduction_seconds(
    kind: ReductionKind,
    network: &NetworkModel,
    ranks: usize,
    bytes: u64,
) -> Result<f64, SimulationError> {
    if ranks == 0 {
        return Err(SimulationError::none_of("rank"));
    }
    Sums::all_reduce(kind, network, ranks)?.seconds(bytes, &[])
}
