//! How fast N ranks would train: the real all-reduce algorithms in virtual time.
//!
//! In: a model of a network, how long one rank's step takes without communication. Out: seconds a step, images a second, efficiency.
//! Invariant: the time of a reduction follows from the messages of the real algorithm alone, never from how threads are scheduled.
//! Source: Hockney 1994, The communication challenge for MPP (latency and bandwidth); Thakur, Rabenseifner & Gropp 2005 (one message
//! at a time in each direction); Li et al. 2020, PyTorch Distributed (2006.15704), for reductions that hide behind the backward pass.
//!
//! [`VirtualCommunicator`]s run any code of a rank on a thread, with its real sums, and tell the time it would take. For up to
//! thousands of ranks [`reduction_seconds`] lets one rank after the other run the algorithm on a communicator that writes down its
//! messages, and then follows these through the network: the same times, without threads and sums.

use distributed::CollectiveError;

pub use self::communicator::{VirtualCommunicator, run_virtual_ranks};
pub use self::fit::fit;
pub use self::network::{Link, NetworkError, NetworkModel, Node};
pub use self::predict::{Prediction, Predictor, Synchronisation, predict};
pub use self::profile::StepProfile;
pub use self::published::published_answers;
pub use self::reduction::reduction_seconds;
pub use self::scenario::{Outcome, Scaling, Scenario, predict_scenarios};
pub use self::servers::ServerPlacement;
pub use self::speedup::karp_flatt;

mod burst;
mod clock;
mod communicator;
mod compressed;
mod event;
mod fit;
mod library;
mod memory;
mod network;
mod normal;
mod predict;
mod profile;
mod published;
mod record;
mod reduction;
mod scenario;
mod schedule;
mod servers;
mod speedup;

/// A simulation cannot be made.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(
    missing_docs,
    reason = "the message of each variant says what its fields are"
)]
pub enum SimulationError {
    /// A world without ranks, or parameter servers without a server.
    #[error("simulation: expected at least one {what}, got none")]
    Nobody { what: &'static str },
    /// Servers are beside ranks of which there are fewer.
    #[error(
        "simulation: expected at most one server beside each rank, got {servers} servers beside {ranks} ranks; give them ranks of their own"
    )]
    Servers { servers: usize, ranks: usize },
    /// A time or size of the profile.
    #[error("step profile: expected {what}, got {got}")]
    Profile {
        /// The number and how it should be.
        what: String,
        got: f64,
    },
    /// A link that would carry messages back in time.
    #[error(
        "network: expected alpha and beta of each link finite and not negative, got {} and {}",
        .link.alpha,
        .link.beta
    )]
    Network { link: Link },
    /// Bursts of an impossible length.
    #[error("network: expected bursts of a finite length that is not negative, got {bytes} bytes")]
    Burst { bytes: f64 },
    /// Messages that would leave nothing of the computing, or add to it.
    #[error(
        "network: expected messages to take a share of computing from 0 to below 1, got {share}"
    )]
    ComputingShare { share: f64 },
    /// Sums that computing would make faster.
    #[error(
        "network: expected sums to take at least 1 times as long beside computing, got {times}"
    )]
    SumSlowdown { times: f64 },
    /// Every rank waits for a message that none sends.
    #[error("simulation: rank {rank} waits for a message or a collective that never comes")]
    Deadlock { rank: usize },
    /// A collective failed.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
}
