//! The training speed of N ranks.
//!
//! In: the step of one rank, how gradients are synchronised, a network. Out: the step of N ranks, images a second, efficiency.
//! Invariant: one rank is as fast as its profile.
//! Source: Li et al. 2020, PyTorch Distributed (2006.15704), figure 6; Li et al. 2014, Scaling distributed machine learning with the
//! parameter server.

use super::SimulationError;
use super::network::{Link, NetworkModel};
use super::profile::StepProfile;
use super::reduction::Reductions;
use crate::ReductionKind;

/// The smallest buckets that are tried.
const LEAST_BUCKET: u64 = 1 << 16;

/// How ranks get the sum of their gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Synchronisation {
    /// By an all-reduce of each bucket.
    AllReduce(ReductionKind),
    /// Each rank pushes its part of each bucket to every server and pulls the sum.
    ///
    /// Servers are alone on their nodes and begin to answer when they have heard of all ranks; a bucket of B bytes takes
    /// 2 max(ranks, servers) (alpha + beta B / servers), as a server's link carries a message a rank, and a rank's one a server.
    ParameterServer {
        /// Number of servers, at least 1.
        servers: usize,
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
    /// Images a second of all ranks.
    pub images_per_second: f64,
    /// How many times as many images a second as one rank.
    pub speedup: f64,
    /// Speedup a rank, at most 1.
    pub efficiency: f64,
}

/// Predicts the training speed of `ranks` ranks, each with a batch of its own.
///
/// The reduction of a bucket begins when the bucket is full on the slowest rank and the one before has been reduced: with `overlap`
/// during the backward pass, else after it. The optimizer follows the last reduction. Computing and reducing do not slow each other
/// down.
///
/// # Errors
/// When there is no rank or server, or a time of the profile or the network is negative or not finite.
pub fn predict(
    profile: &StepProfile,
    synchronisation: impl Into<Synchronisation>,
    network: &NetworkModel,
    ranks: usize,
    overlap: bool,
) -> Result<Prediction, SimulationError> {
    profile.check()?;
    let mut costs = Costs::new(synchronisation.into(), network, ranks)?;
    predict_with(profile, &mut costs, ranks, overlap)
}

/// The length of buckets, a power of two, with which `ranks` ranks train fastest, and how fast that is with overlap.
///
/// # Units
/// Bytes.
///
/// # Errors
/// As for [`predict`].
pub fn best_bucket_bytes(
    profile: &StepProfile,
    synchronisation: impl Into<Synchronisation>,
    network: &NetworkModel,
    ranks: usize,
) -> Result<(u64, Prediction), SimulationError> {
    profile.check()?;
    let mut costs = Costs::new(synchronisation.into(), network, ranks)?;
    let total: u64 = profile.buckets.iter().map(|bucket| bucket.bytes).sum();
    let largest = total.max(LEAST_BUCKET).next_power_of_two();
    let mut best = (largest, predict_with(&profile.with_bucket_bytes(largest), &mut costs, ranks, true)?);
    let mut bytes = largest / 2;
    while bytes >= LEAST_BUCKET {
        let prediction = predict_with(&profile.with_bucket_bytes(bytes), &mut costs, ranks, true)?;
        if prediction.step_s < best.1.step_s {
            best = (bytes, prediction);
        }
        bytes /= 2;
    }
    Ok(best)
}

fn predict_with(
    profile: &StepProfile,
    costs: &mut Costs,
    ranks: usize,
    overlap: bool,
) -> Result<Prediction, SimulationError> {
    let mut end = if overlap { 0.0 } else { profile.backward_s };
    let mut communication_s = 0.0;
    for bucket in &profile.buckets {
        let seconds = costs.seconds(bucket.bytes)?;
        let ready = if overlap { bucket.ready_s } else { 0.0 };
        end = f64::max(end, ready) + seconds;
        communication_s += seconds;
    }
    let exposed_s = if ranks == 1 { 0.0 } else { (end - profile.backward_s).max(0.0) };
    let step_s = profile.compute_s() + profile.straggler_s(ranks) + exposed_s;
    let images = (ranks * profile.batch_size_per_rank) as f64;
    let efficiency = profile.compute_s() / step_s;
    Ok(Prediction {
        step_s,
        communication_s,
        exposed_s,
        images_per_second: images / step_s,
        speedup: ranks as f64 * efficiency,
        efficiency,
    })
}

/// How long the synchronisation of a bucket takes.
enum Costs {
    Nothing,
    AllReduce(Reductions),
    /// As many messages one after the other, each of this part of the bucket.
    Messages {
        link: Link,
        number: f64,
        part: f64,
    },
}

impl Costs {
    fn new(synchronisation: Synchronisation, network: &NetworkModel, ranks: usize) -> Result<Self, SimulationError> {
        network.check()?;
        match synchronisation {
            _ if ranks == 0 => Err(SimulationError::Nobody { what: "rank" }),
            Synchronisation::ParameterServer { servers: 0 } => Err(SimulationError::Nobody { what: "server" }),
            _ if ranks == 1 => Ok(Self::Nothing),
            Synchronisation::AllReduce(kind) => Ok(Self::AllReduce(Reductions::new(kind, network, ranks)?)),
            Synchronisation::ParameterServer { servers } => {
                let number = 2.0 * ranks.max(servers) as f64;
                Ok(Self::Messages { link: network.link, number, part: 1.0 / servers as f64 })
            }
        }
    }

    fn seconds(&mut self, bytes: u64) -> Result<f64, SimulationError> {
        match self {
            Self::Nothing => Ok(0.0),
            Self::AllReduce(reductions) => reductions.seconds(bytes),
            Self::Messages { link, number, part } => Ok(*number * link.seconds(bytes as f64 * *part)),
        }
    }
}
