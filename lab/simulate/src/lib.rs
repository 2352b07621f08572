//! Training speed of N ranks: the real all-reduce algorithms in virtual time.
//!
//! In: a model of a network, the step of one rank without communication. Out: seconds per step,
//! images per second, efficiency.
//! Invariant: the time of a reduction depends only on the messages of the real algorithm.
//! Source: Hockney 1994, The communication challenge for MPP (latency and bandwidth); Thakur,
//! Rabenseifner & Gropp 2005 (one message at a time in each direction); Li et al. 2020, PyTorch
//! Distributed (2006.15704), for overlap with the backward pass.

use distributed::CollectiveError;

pub use self::fit::fit;
pub use self::network::{Link, NetworkError, NetworkModel, Node};
pub use self::predict::{Prediction, Predictor, Synchronisation, predict};
pub use self::profile::StepProfile;
pub use self::published::published_answers;
pub use self::reduction::reduction_seconds;
pub use self::scenario::{Scaling, Scenario, ScenarioPrediction, karp_flatt, predict_scenarios};
pub use self::servers::ServerPlacement;

mod compressed;
mod fit;
mod network;
mod predict;
mod profile;
mod published;
mod record;
mod reduction;
mod scenario;
mod schedule;
mod servers;

/// Reason why a simulation is impossible.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the message of each variant names its fields")]
pub enum SimulationError {
    /// No ranks, servers or steps.
    #[error("simulation: expected at least one {what}, got none")]
    Nobody { what: &'static str },
    /// More servers beside ranks than ranks.
    #[error(
        "simulation: expected at most one server beside each rank, got {servers} servers and {ranks} ranks; use separate ranks for the servers"
    )]
    Servers { servers: usize, ranks: usize },
    /// Invalid time or size in the profile.
    #[error("step profile: expected {what}, got {got}")]
    Profile {
        /// Name and permitted range of the number.
        what: String,
        got: f64,
    },
    /// Negative or infinite time of a link.
    #[error(
        "network: expected alpha and beta of each link finite and not negative, got {} and {}",
        .link.alpha,
        .link.beta
    )]
    Network { link: Link },
    /// Negative or infinite burst.
    #[error("network: expected a burst that is finite and not negative, got {bytes} bytes")]
    Burst { bytes: f64 },
    /// Share of computation outside 0 to 1.
    #[error(
        "network: expected messages to slow computation by a share from 0 to below 1, got {share}"
    )]
    ComputingShare { share: f64 },
    /// Slowdown below 1.
    #[error("network: expected computation to slow sums by a factor of at least 1, got {times}")]
    SumSlowdown { times: f64 },
    /// A rank waits for a message that no rank sends.
    #[error("simulation: deadlock: rank {rank} waits for a message or a collective")]
    Deadlock { rank: usize },
    /// Failed collective.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
}
