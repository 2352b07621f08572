//! Training speed of N ranks.
//!
//! In: a step of one rank, a synchronisation method, a network. Out: seconds per step of N ranks,
//! images per second, efficiency.
//! Invariant: one rank is as fast as its profile.
//! Source: Li et al. 2020, PyTorch Distributed (2006.15704), figure 6; Lin et al. 2020 (1808.07217)
//! for local SGD.

use distributed::gradients::{
    CompressionKind, Consistency, ReductionKind, StepHeader, TensorSpan, tensor_spans,
};

use crate::SimulationError;
use crate::compressed::CompressedSums;
use crate::network::{Library, NetworkModel, Tokens};
use crate::profile::StepProfile;
use crate::reduction::Reductions;
use crate::servers::{ServerPlacement, ServerWorld};

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
/// When there is no rank or server, when more servers than ranks are beside ranks, when compression
/// needs shapes that the profile lacks, or when a time is negative or not finite.
pub fn predict(
    profile: &StepProfile,
    synchronisation: impl Into<Synchronisation>,
    network: &NetworkModel,
    ranks: usize,
    overlap: bool,
) -> Result<Prediction, SimulationError> {
    Predictor::new(profile, synchronisation, network, ranks)?.predict(profile, overlap)
}

/// Predicts steps of one number of ranks and remembers the times of reductions.
#[derive(Debug)]
pub struct Predictor {
    network: NetworkModel,
    ranks: usize,
    library: Library,
    method: CostModel,
}

/// Source of the time that a synchronisation takes.
#[derive(Debug)]
enum CostModel {
    OneRank,
    AllReduce(Reductions),
    Compressed {
        sums: CompressedSums,
        encoding_s_per_byte: f64,
    },
    Servers {
        servers: usize,
        placement: ServerPlacement,
        consistency: Consistency,
    },
    Averages {
        every: f64,
    },
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

/// Cost of a bucket before computation slows it.
struct BucketCost {
    encoding_s: f64,
    seconds: f64,
    /// Least bytes that a rank sends between nodes.
    sent_bytes: f64,
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
        network.check()?;
        let none_of = |what| Err(SimulationError::Nobody { what });
        let method = match synchronisation.into() {
            _ if ranks == 0 => return none_of("rank"),
            Synchronisation::ParameterServer { servers: 0, .. } => return none_of("server"),
            Synchronisation::LocalSgd { every: 0 } => return none_of("step between averages"),
            _ if ranks == 1 => CostModel::OneRank,
            Synchronisation::ParameterServer {
                servers,
                placement: ServerPlacement::Beside,
                ..
            } if servers > ranks => return Err(SimulationError::Servers { servers, ranks }),
            Synchronisation::AllReduce(kind) => {
                CostModel::AllReduce(Reductions::new(kind, network, ranks)?)
            }
            Synchronisation::Compressed {
                kind,
                encoding_s_per_byte,
            } => CostModel::Compressed {
                sums: CompressedSums::new(kind, network, ranks),
                encoding_s_per_byte,
            },
            Synchronisation::ParameterServer {
                servers,
                placement,
                consistency,
            } => CostModel::Servers {
                servers,
                placement,
                consistency,
            },
            Synchronisation::LocalSgd { every } => CostModel::Averages {
                every: every as f64,
            },
        };
        Ok(Self {
            network: *network,
            ranks,
            library: Library::new(network, ranks),
            method,
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
        match &mut self.method {
            CostModel::OneRank => Ok(StepCost::default()),
            CostModel::Servers {
                servers,
                placement,
                consistency,
            } => {
                let world = ServerWorld {
                    profile,
                    network: &self.network,
                    workers: self.ranks,
                    servers: *servers,
                    placement: *placement,
                    consistency: *consistency,
                    overlap,
                    header_s,
                };
                let step = world.step();
                let exposed_s = (step.step_s - profile.compute_s()).max(0.0);
                let is_synchronous = *consistency == Consistency::Synchronous;
                Ok(StepCost {
                    communication_s: step.communication_s,
                    exposed_s,
                    slowed_s: exposed_s - step.waiting_s,
                    straggler_s: if is_synchronous { straggler_s } else { 0.0 },
                })
            }
            CostModel::Averages { every } => {
                let bytes: u64 = profile.buckets.iter().map(|bucket| bucket.bytes).sum();
                let seconds = (header_s + 2.0 * self.library.reduce(bytes as f64)) / *every;
                Ok(StepCost {
                    communication_s: seconds,
                    exposed_s: seconds,
                    slowed_s: 0.0,
                    // The independent delays of `every` steps add up before ranks wait.
                    straggler_s: straggler_s / every.sqrt(),
                })
            }
            method => {
                let cost = method.reduce(profile, overlap, header_s, &self.network, self.ranks)?;
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
        let total: u64 = profile.buckets.iter().map(|bucket| bucket.bytes).sum();
        let largest = total.max(LEAST_BUCKET).next_power_of_two();
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
}

impl CostModel {
    /// Returns the cost of reducing all buckets, without stragglers.
    fn reduce(
        &mut self,
        profile: &StepProfile,
        overlap: bool,
        header_s: f64,
        network: &NetworkModel,
        ranks: usize,
    ) -> Result<StepCost, SimulationError> {
        // Messages inside a node do not slow computation.
        let network = match network.is_inside(0, ranks - 1) {
            true => NetworkModel::new(network.link),
            false => *network,
        };
        let spans = match self {
            Self::Compressed { .. } => spans_of_buckets(profile)?,
            _ => Vec::new(),
        };
        let mut tokens = Tokens::full(&network);
        let mut communication_s = header_s;
        let mut end = header_s;
        if !overlap {
            end += profile.backward_s;
        }
        // Delay of the backward pass by communication.
        let mut slowed_s = 0.0;
        for (index, bucket) in profile.buckets.iter().enumerate() {
            let cost = self.bucket_cost(bucket.bytes, spans.get(index), ranks)?;
            let ready = if overlap {
                bucket.ready_s + slowed_s
            } else {
                0.0
            };
            let start = f64::max(end, ready);
            let left_s = profile.backward_s + slowed_s - start;
            let (encoding_s, lost_s) = network.during_computation(left_s, cost.encoding_s, 1.0);
            slowed_s += lost_s;
            let sent_at = start + encoding_s;
            let seconds = tokens.send(sent_at, cost.sent_bytes, cost.seconds);
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

    /// Returns the cost of a bucket. Bursts count only for full and half precision, whose least sent
    /// bytes are known.
    fn bucket_cost(
        &mut self,
        bytes: u64,
        spans: Option<&Vec<TensorSpan>>,
        ranks: usize,
    ) -> Result<BucketCost, SimulationError> {
        match self {
            Self::AllReduce(reductions) => Ok(BucketCost {
                encoding_s: 0.0,
                seconds: reductions.seconds(bytes)?,
                sent_bytes: reductions.least_sent() * bytes as f64,
            }),
            Self::Compressed {
                sums,
                encoding_s_per_byte,
            } => {
                let is_half = matches!(sums.kind(), CompressionKind::Bf16 | CompressionKind::F16);
                let least_sent = 2.0 * (ranks - 1) as f64 / ranks as f64;
                Ok(BucketCost {
                    encoding_s: *encoding_s_per_byte * bytes as f64,
                    seconds: sums.seconds(spans.map_or(&[], Vec::as_slice))?,
                    sent_bytes: if is_half {
                        0.5 * least_sent * bytes as f64
                    } else {
                        0.0
                    },
                })
            }
            _ => Ok(BucketCost {
                encoding_s: 0.0,
                seconds: 0.0,
                sent_bytes: 0.0,
            }),
        }
    }
}

/// Returns the tensors of each bucket, from the last parameter on; one row per bucket if the
/// parameters are unknown.
fn spans_of_buckets(profile: &StepProfile) -> Result<Vec<Vec<TensorSpan>>, SimulationError> {
    let row = |bytes: u64| {
        let columns = bytes as usize / size_of::<f32>();
        vec![TensorSpan {
            range: 0..columns,
            rows: 1,
            columns,
        }]
    };
    let Some(layout) = profile.layout() else {
        return Ok(profile
            .buckets
            .iter()
            .map(|bucket| row(bucket.bytes))
            .collect());
    };
    let mut entries = layout.entries();
    let mut all = Vec::new();
    for bucket in &profile.buckets {
        let mut start = entries.len();
        let mut bytes = 0;
        while bytes < bucket.bytes && start > 0 {
            start -= 1;
            bytes += (entries[start].len * size_of::<f32>()) as u64;
        }
        if bytes != bucket.bytes {
            let what = format!("buckets of whole parameters, {bytes} bytes");
            return Err(SimulationError::Profile {
                what,
                got: bucket.bytes as f64,
            });
        }
        all.push(tensor_spans(&entries[start..]));
        entries = &entries[..start];
    }
    Ok(all)
}
