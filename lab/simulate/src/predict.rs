//! Training speed of N ranks.
//!
//! In: a step of one rank, a synchronisation method, a network. Out: seconds per step of N ranks,
//! images per second, efficiency.
//! Invariant: one rank is as fast as its profile.
//! Source: Li et al. 2020, PyTorch Distributed (2006.15704), figure 6; Lin et al. 2020 (1808.07217)
//! for local SGD.

use distributed::gradients::{
    CompressionKind, Consistency, ReductionKind, ServerPlacement, StepHeader, TensorSpan,
    tensor_spans,
};
use distributed::replica::ParameterEntry;

use crate::SimulationError;
use crate::network::{Library, NetworkModel, Tokens};
use crate::profile::StepProfile;
use crate::servers::ServerWorld;
use crate::sums::Sums;

/// Smallest bucket of [`Predictor::best_bucket_bytes`].
const LEAST_BUCKET: u64 = 1 << 16;

/// Synchronisation method of the ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Synchronisation {
    /// All-reduce of each bucket.
    AllReduce(ReductionKind),
    /// Compressed sum of each bucket.
    Compressed {
        /// Compression.
        kind: CompressionKind,
        /// Seconds per byte of gradients for encoding and decoding on a rank.
        encoding_s_per_byte: f64,
    },
    /// All-reduce of each bucket by NCCL on GPUs, without headers.
    Nccl,
    /// Ranks push buckets to parameter servers and receive parameters.
    ParameterServer {
        /// Number of servers, at least 1; with [`ServerPlacement::Beside`] at most the ranks.
        servers: usize,
        /// Ranks of the servers.
        placement: ServerPlacement,
        /// Rule for updates and answers.
        consistency: Consistency,
    },
    /// Ranks update independently and periodically average parameters and velocities.
    LocalSgd {
        /// Steps between two averages, at least 1.
        every: u64,
    },
}

impl From<ReductionKind> for Synchronisation {
    fn from(kind: ReductionKind) -> Self {
        Self::AllReduce(kind)
    }
}

/// Predicted step of N ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// Seconds per step.
    pub step_s: f64,
    /// Seconds of communication, hidden or not.
    pub communication_s: f64,
    /// Seconds that communication adds to a step, without the delay by stragglers.
    pub exposed_s: f64,
    /// Mean seconds per step in which a rank waits for gradients or slower ranks.
    pub waiting_s: f64,
    /// Images per second of all ranks.
    pub images_per_second: f64,
    /// Images per second over those of one rank.
    pub speedup: f64,
    /// Speedup over the number of ranks.
    pub efficiency: f64,
}

/// Predicts the training speed of `ranks` ranks, each with its own batch.
///
/// A step begins with the exchange of headers. The reduction of a bucket begins when the bucket is
/// full on the slowest rank and the bucket before is reduced: with `overlap` during the backward
/// pass, otherwise after it. The optimizer follows the last reduction.
///
/// Communication between nodes slows computation by the network's
/// [share](NetworkModel::computing_share); computation slows sums by its
/// [factor](NetworkModel::sum_slowdown). Asynchronous servers never wait for stragglers, local SGD
/// only when it averages.
///
/// # Errors
/// When there is no rank or server, when more servers than ranks share cores with ranks, when
/// compression needs shapes that the profile lacks, or when a time is negative or not finite.
pub fn predict(
    profile: &StepProfile,
    synchronisation: impl Into<Synchronisation>,
    network: &NetworkModel,
    ranks: usize,
    overlap: bool,
) -> Result<Prediction, SimulationError> {
    Predictor::new(profile, synchronisation, network, ranks)?.predict(profile, overlap)
}

/// Predicts steps of one number of ranks and remembers the times of sums.
#[derive(Debug)]
pub struct Predictor {
    network: NetworkModel,
    ranks: usize,
    library: Library,
    synchronisation: Synchronisation,
    /// Sums of buckets, and seconds per byte of encoding.
    sums: Option<(Sums, f64)>,
}

/// Seconds that synchronisation adds to a step.
#[derive(Clone, Copy, Debug, Default)]
struct StepCost {
    communication_s: f64,
    exposed_s: f64,
    /// Part of `exposed_s` in which the rank computes more slowly instead of waiting.
    slowed_s: f64,
    straggler_s: f64,
}

impl Predictor {
    /// # Errors
    /// As for [`predict`].
    pub fn new(
        profile: &StepProfile,
        synchronisation: impl Into<Synchronisation>,
        network: &NetworkModel,
        ranks: usize,
    ) -> Result<Self, SimulationError> {
        profile.check()?;
        let synchronisation = synchronisation.into();
        let sums = match synchronisation {
            _ if ranks == 0 => return Err(SimulationError::none_of("rank")),
            Synchronisation::ParameterServer { servers: 0, .. } => {
                return Err(SimulationError::none_of("server"));
            }
            Synchronisation::LocalSgd { every: 0 } => {
                return Err(SimulationError::none_of("step between averages"));
            }
            Synchronisation::ParameterServer {
                servers,
                placement: ServerPlacement::Beside,
                ..
            } if servers > ranks && ranks > 1 => {
                return Err(SimulationError(format!(
                    "simulation: expected at most one server on each rank, got {servers} servers and {ranks} ranks; use separate ranks for the servers"
                )));
            }
            Synchronisation::AllReduce(kind) if ranks > 1 => {
                Some((Sums::all_reduce(kind, network, ranks)?, 0.0))
            }
            Synchronisation::Compressed {
                kind,
                encoding_s_per_byte,
            } => Some((Sums::compressed(kind, network, ranks), encoding_s_per_byte)),
            Synchronisation::Nccl => Some((Sums::nccl(network, ranks), 0.0)),
            _ => None,
        };
        Ok(Self {
            network: *network,
            ranks,
            library: Library::new(network, ranks),
            synchronisation,
            sums,
        })
    }

    /// Predicts as [`predict`](predict()), for a step with the same parameters in any buckets.
    ///
    /// # Errors
    /// As for [`predict`](predict()).
    pub fn predict(
        &mut self,
        profile: &StepProfile,
        overlap: bool,
    ) -> Result<Prediction, SimulationError> {
        profile.check()?;
        let cost = self.cost(profile, overlap)?;
        let step_s = profile.compute_s() + cost.straggler_s + cost.exposed_s;
        let efficiency = profile.compute_s() / step_s;
        Ok(Prediction {
            step_s,
            communication_s: cost.communication_s,
            exposed_s: cost.exposed_s,
            waiting_s: cost.straggler_s + cost.exposed_s - cost.slowed_s,
            images_per_second: (self.ranks * profile.batch_size_per_rank) as f64 / step_s,
            speedup: self.ranks as f64 * efficiency,
            efficiency,
        })
    }

    fn cost(&mut self, profile: &StepProfile, overlap: bool) -> Result<StepCost, SimulationError> {
        let header_bytes = (self.ranks * StepHeader::NUM_BYTES) as f64;
        let header_s = self.library.gather(header_bytes);
        let straggler_s = profile.straggler_s(self.ranks);
        match self.synchronisation {
            _ if self.ranks == 1 => Ok(StepCost::default()),
            Synchronisation::ParameterServer {
                servers,
                placement,
                consistency,
            } => {
                let world = ServerWorld {
                    profile,
                    network: &self.network,
                    workers: self.ranks,
                    servers,
                    placement,
                    consistency,
                    overlap,
                    header_s,
                };
                let step = world.step();
                let exposed_s = (step.step_s - profile.compute_s()).max(0.0);
                let is_synchronous = consistency == Consistency::Synchronous;
                Ok(StepCost {
                    communication_s: step.communication_s,
                    exposed_s,
                    slowed_s: exposed_s - step.waiting_s,
                    straggler_s: if is_synchronous { straggler_s } else { 0.0 },
                })
            }
            Synchronisation::LocalSgd { every } => {
                let every = every as f64;
                let bytes = profile.num_bytes() as f64;
                let seconds = (header_s + 2.0 * self.library.reduce(bytes)) / every;
                Ok(StepCost {
                    communication_s: seconds,
                    exposed_s: seconds,
                    slowed_s: 0.0,
                    // The independent delays of `every` steps add up before ranks wait.
                    straggler_s: straggler_s / every.sqrt(),
                })
            }
            Synchronisation::AllReduce(_)
            | Synchronisation::Compressed { .. }
            | Synchronisation::Nccl => {
                let has_header = self.synchronisation != Synchronisation::Nccl;
                let header_s = if has_header { header_s } else { 0.0 };
                let cost = self.sum_buckets(profile, overlap, header_s)?;
                Ok(StepCost {
                    straggler_s,
                    ..cost
                })
            }
        }
    }

    /// Returns the fastest bucket size, a power of two, and its prediction with overlap.
    ///
    /// # Errors
    /// As for [`predict`](predict()).
    pub fn best_bucket_bytes(
        &mut self,
        profile: &StepProfile,
    ) -> Result<(u64, Prediction), SimulationError> {
        let largest = profile.num_bytes().max(LEAST_BUCKET).next_power_of_two();
        let mut best = (
            largest,
            self.predict(&profile.with_bucket_cap(largest), true)?,
        );
        let mut bytes = largest / 2;
        while bytes >= LEAST_BUCKET {
            let prediction = self.predict(&profile.with_bucket_cap(bytes), true)?;
            if prediction.step_s < best.1.step_s {
                best = (bytes, prediction);
            }
            bytes /= 2;
        }
        Ok(best)
    }

    /// Returns the cost of summing all buckets, without stragglers.
    fn sum_buckets(
        &mut self,
        profile: &StepProfile,
        overlap: bool,
        header_s: f64,
    ) -> Result<StepCost, SimulationError> {
        // Messages inside a node do not slow computation.
        let network = match self.network.is_inside(0, self.ranks - 1) {
            true => NetworkModel::new(self.network.link),
            false => self.network,
        };
        let is_compressed = matches!(self.synchronisation, Synchronisation::Compressed { .. });
        let layout = profile.layout();
        let mut tensors = layout.entries();
        let Some((sums, encoding_s_per_byte)) = &mut self.sums else {
            return Ok(StepCost::default());
        };
        let mut tokens = Tokens::full(&network);
        let mut communication_s = header_s;
        let mut end = header_s;
        if !overlap {
            end += profile.backward_s;
        }
        // Delay of the backward pass by communication.
        let mut slowed_s = 0.0;
        for bucket in &profile.buckets {
            let bytes = bucket.bytes as f64;
            let spans = match is_compressed {
                true => spans_of(bucket.bytes, &mut tensors)?,
                false => Vec::new(),
            };
            let ready = match overlap {
                true => bucket.ready_s + slowed_s,
                false => 0.0,
            };
            let start = f64::max(end, ready);
            let left_s = profile.backward_s + slowed_s - start;
            let encoding_s = *encoding_s_per_byte * bytes;
            let (encoding_s, lost_s) = network.during_computation(left_s, encoding_s, 1.0);
            slowed_s += lost_s;
            let sent_at = start + encoding_s;
            let seconds = sums.seconds(bucket.bytes, &spans)?;
            let seconds = tokens.send(sent_at, sums.least_sent() * bytes, seconds);
            let left_s = profile.backward_s + slowed_s - sent_at;
            let (seconds, lost_s) =
                network.during_computation(left_s, seconds, network.sum_slowdown);
            slowed_s += lost_s;
            end = sent_at + seconds;
            communication_s += end - start;
        }
        let end = end.max(profile.backward_s + slowed_s);
        Ok(StepCost {
            communication_s,
            exposed_s: (end - profile.backward_s).max(0.0),
            slowed_s,
            straggler_s: 0.0,
        })
    }
}

/// Takes the tensors of a bucket from the last parameter on.
fn spans_of(
    expected: u64,
    entries: &mut &[ParameterEntry],
) -> Result<Vec<TensorSpan>, SimulationError> {
    let mut start = entries.len();
    let mut bytes = 0;
    while bytes < expected && start > 0 {
        start -= 1;
        bytes += (entries[start].len * size_of::<f32>()) as u64;
    }
    if bytes != expected {
        return Err(SimulationError(format!(
            "step profile: expected buckets of whole parameters, {bytes} bytes, got {expected}"
        )));
    }
    let spans = tensor_spans(&entries[start..]);
    *entries = &entries[..start];
    Ok(spans)
}
