//! The training speed of N ranks.
//!
//! In: the step of one rank, how gradients or parameters are synchronised, a network. Out: the step of N ranks, images a second,
//! efficiency. Invariant: one rank is as fast as its profile.
//! Source: Li et al. 2020, PyTorch Distributed (2006.15704), figure 6; Lin et al. 2020 (1808.07217) for local SGD.

use distributed::{
    gradients::StepHeader,
    parameter_server::Consistency,
    reduction::{CompressionKind, ReductionKind, TensorSpan, tensor_spans},
};

use crate::SimulationError;
use crate::burst::Tokens;
use crate::compressed::CompressedSums;
use crate::library::Library;
use crate::network::NetworkModel;
use crate::profile::StepProfile;
use crate::reduction::Reductions;
use crate::servers::{ServedStep, ServerPlacement, ServerWorld};

/// The smallest buckets that are tried.
const LEAST_BUCKET: u64 = 1 << 16;

/// How the replicas of N ranks become one.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Synchronisation {
    /// By an all-reduce of each bucket.
    AllReduce(ReductionKind),
    /// By a compressed sum of each bucket.
    Compressed {
        /// How.
        kind: CompressionKind,
        /// What encoding and decoding take on a rank, seconds a byte of gradients.
        encoding_s_per_byte: f64,
    },
    /// Each rank pushes its buckets to servers and gets parameters.
    ParameterServer {
        /// Number of servers, at least 1; beside the ranks, at most as many as these.
        servers: usize,
        /// Where they are.
        placement: ServerPlacement,
        /// When they update and answer.
        consistency: Consistency,
    },
    /// Ranks update alone; after some steps they average parameters and velocities, by the communication library.
    LocalSgd {
        /// Steps between two averagings, at least 1.
        every: u64,
    },
}

impl From<ReductionKind> for Synchronisation {
    fn from(kind: ReductionKind) -> Self {
        Self::AllReduce(kind)
    }
}

/// What N ranks would do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// Seconds a step.
    pub step_s: f64,
    /// Seconds in which gradients travel, hidden or not.
    pub communication_s: f64,
    /// Seconds a step longer than without communication and stragglers' delay.
    pub exposed_s: f64,
    /// Seconds of a step in which a rank waits, for gradients or for slower ranks; mean over the ranks.
    pub waiting_s: f64,
    /// Images a second of all ranks.
    pub images_per_second: f64,
    /// How many times as many images a second as one rank.
    pub speedup: f64,
    /// Speedup a rank, at most 1.
    pub efficiency: f64,
}

/// Predicts the training speed of `ranks` ranks, each with a batch of its own.
///
/// The ranks' agreement on the step comes first; then the reduction of a bucket begins when the bucket is full on the slowest rank and
/// the one before has been reduced: with `overlap` during the backward pass, else after it. The optimizer follows the last reduction.
/// While gradients travel between nodes beside computing, that is slower by the network's [share](NetworkModel::computing_share), and
/// their sums by its [slowdown](NetworkModel::sum_slowdown). Asynchronous servers and local SGD wait for stragglers seldom or never.
///
/// # Errors
/// When there is no rank or server, more servers beside ranks than ranks, a compression needs shapes that the profile lacks, or a time
/// of the profile or the network is negative or not finite.
pub fn predict(
    profile: &StepProfile,
    synchronisation: impl Into<Synchronisation>,
    network: &NetworkModel,
    ranks: usize,
    overlap: bool,
) -> Result<Prediction, SimulationError> {
    Predictor::new(profile, synchronisation, network, ranks)?.predict(profile, overlap)
}

/// Predictions for one number of ranks, which remembers what messages took.
#[derive(Debug)]
pub struct Predictor {
    network: NetworkModel,
    ranks: usize,
    library: Library,
    costs: Costs,
}

/// How long the synchronisation of a bucket takes.
#[derive(Debug)]
enum Costs {
    Nothing,
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
        let costs = match synchronisation.into() {
            _ if ranks == 0 => return Err(SimulationError::Nobody { what: "rank" }),
            Synchronisation::ParameterServer { servers: 0, .. } => {
                return Err(SimulationError::Nobody { what: "server" });
            }
            Synchronisation::LocalSgd { every: 0 } => {
                return Err(SimulationError::Nobody {
                    what: "step between averages",
                });
            }
            _ if ranks == 1 => Costs::Nothing,
            Synchronisation::ParameterServer {
                servers,
                placement: ServerPlacement::Beside,
                ..
            } if servers > ranks => {
                return Err(SimulationError::Servers { servers, ranks });
            }
            Synchronisation::AllReduce(kind) => {
                Costs::AllReduce(Reductions::new(kind, network, ranks)?)
            }
            Synchronisation::Compressed {
                kind,
                encoding_s_per_byte,
            } => Costs::Compressed {
                sums: CompressedSums::new(kind, network, ranks),
                encoding_s_per_byte,
            },
            Synchronisation::ParameterServer {
                servers,
                placement,
                consistency,
            } => Costs::Servers {
                servers,
                placement,
                consistency,
            },
            Synchronisation::LocalSgd { every } => Costs::Averages {
                every: every as f64,
            },
        };
        Ok(Self {
            network: *network,
            ranks,
            library: Library::new(network, ranks),
            costs,
        })
    }

    /// As [`predict`](predict()), for a step of the same parameters in any buckets.
    ///
    /// # Errors
    /// As for [`predict`](predict()).
    pub fn predict(
        &mut self,
        profile: &StepProfile,
        overlap: bool,
    ) -> Result<Prediction, SimulationError> {
        profile.check()?;
        // The header of every rank, gathered ahead of the first bucket.
        let header_s = self
            .library
            .gather((self.ranks * StepHeader::NUM_BYTES) as f64);
        let straggler_s = profile.straggler_s(self.ranks);
        let (communication_s, exposed_s, slowed_s, straggler_s) = match &mut self.costs {
            Costs::Nothing => (0.0, 0.0, 0.0, 0.0),
            Costs::Servers {
                servers,
                placement,
                consistency,
            } => {
                let (workers, servers, placement, consistency) =
                    (self.ranks, *servers, *placement, *consistency);
                let network = &self.network;
                let world = ServerWorld {
                    profile,
                    network,
                    workers,
                    servers,
                    placement,
                    consistency,
                    overlap,
                    header_s,
                };
                let ServedStep {
                    step_s,
                    communication_s,
                    waiting_s,
                } = world.step();
                let is_together = consistency == Consistency::Synchronous;
                let exposed_s = (step_s - profile.compute_s()).max(0.0);
                (
                    communication_s,
                    exposed_s,
                    exposed_s - waiting_s,
                    if is_together { straggler_s } else { 0.0 },
                )
            }
            Costs::Averages { every } => {
                let bytes: u64 = profile.buckets.iter().map(|bucket| bucket.bytes).sum();
                let seconds = (header_s + 2.0 * self.library.reduce(bytes as f64)) / *every;
                // The delays of so many steps add up before ranks wait for each other.
                (seconds, seconds, 0.0, straggler_s / every.sqrt())
            }
            costs => {
                let way = Way::of(&self.network, self.ranks);
                let (communication_s, end, slowed_s) =
                    costs.reduce(profile, overlap, header_s, way)?;
                (
                    communication_s,
                    (end - profile.backward_s).max(0.0),
                    slowed_s,
                    straggler_s,
                )
            }
        };
        let step_s = profile.compute_s() + straggler_s + exposed_s;
        let efficiency = profile.compute_s() / step_s;
        Ok(Prediction {
            step_s,
            communication_s,
            exposed_s,
            waiting_s: straggler_s + exposed_s - slowed_s,
            images_per_second: (self.ranks * profile.batch_size_per_rank) as f64 / step_s,
            speedup: self.ranks as f64 * efficiency,
            efficiency,
        })
    }

    /// The length of buckets, a power of two, with which the ranks train fastest, and how fast that is with overlap.
    ///
    /// # Units
    /// Bytes.
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

/// What the buckets of a rank share on their way to the others.
#[derive(Clone, Copy, Debug)]
struct Way {
    /// Inside a node one that takes nothing from computing.
    network: NetworkModel,
    tokens: Tokens,
    /// Bytes that a rank sends at least, over those of an uncompressed bucket, where it is compressed.
    sent: f64,
}

impl Way {
    fn of(network: &NetworkModel, ranks: usize) -> Self {
        let sent = 2.0 * (ranks - 1) as f64 / ranks as f64;
        let is_inside = network.is_inside(0, ranks - 1);
        let network = if is_inside {
            NetworkModel::new(network.link)
        } else {
            *network
        };
        Self {
            network,
            tokens: Tokens::full(&network),
            sent,
        }
    }
}

impl Costs {
    /// Seconds in which all buckets travel, when after the start of the backward pass both that pass and the last bucket have ended, and
    /// by how much that pass is slower for what travels beside it.
    ///
    /// A link that is limited has its whole burst at the start of the step, and again what it gathers in pauses. N ranks, or N nodes whose
    /// first ranks alone send, send at least 2 (N-1) / N of a bucket each, twice that in exact sums, half of it in half precision; what
    /// passes at once of other compressed ones is not counted.
    fn reduce(
        &mut self,
        profile: &StepProfile,
        overlap: bool,
        header_s: f64,
        mut way: Way,
    ) -> Result<(f64, f64, f64), SimulationError> {
        let spans = match self {
            Self::Compressed { .. } => spans_of_buckets(profile)?,
            _ => Vec::new(),
        };
        let (mut communication_s, mut end) = (
            header_s,
            header_s + if overlap { 0.0 } else { profile.backward_s },
        );
        // What the backward pass is behind, for what travelled beside it.
        let mut behind_s = 0.0;
        for (index, bucket) in profile.buckets.iter().enumerate() {
            let bytes = bucket.bytes as f64;
            let (encoding_s, seconds, sent_bytes) = match self {
                Self::AllReduce(reductions) => (
                    0.0,
                    reductions.seconds(bucket.bytes)?,
                    reductions.least_sent() * bytes,
                ),
                Self::Compressed {
                    sums,
                    encoding_s_per_byte,
                } => {
                    let is_half =
                        matches!(sums.kind(), CompressionKind::Bf16 | CompressionKind::F16);
                    let sent_bytes = if is_half { 0.5 * way.sent * bytes } else { 0.0 };
                    (
                        *encoding_s_per_byte * bytes,
                        sums.seconds(&spans[index])?,
                        sent_bytes,
                    )
                }
                _ => (0.0, 0.0, 0.0),
            };
            let ready = if overlap {
                bucket.ready_s + behind_s
            } else {
                0.0
            };
            let start = f64::max(end, ready);
            let (encoding_s, lost_s) =
                way.network
                    .beside(profile.backward_s + behind_s - start, encoding_s, 1.0);
            behind_s += lost_s;
            let sent_at = start + encoding_s;
            let seconds = way.tokens.send(sent_at, sent_bytes, seconds);
            let left_s = profile.backward_s + behind_s - sent_at;
            let (seconds, lost_s) = way
                .network
                .beside(left_s, seconds, way.network.sum_slowdown);
            behind_s += lost_s;
            end = sent_at + seconds;
            communication_s += end - start;
        }
        Ok((
            communication_s,
            end.max(profile.backward_s + behind_s),
            behind_s,
        ))
    }
}

/// The tensors of each bucket: as many parameters, from the last one, as its bytes hold; without parameters one row.
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
