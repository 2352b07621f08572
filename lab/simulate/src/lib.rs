//! Training speed of N ranks: the real all-reduce algorithms in virtual time.
//!
//! In: a model of a network, the step of one rank without communication; measured runs. Out:
//! seconds per step, images per second, efficiency; [`records::PredictionFile`]s and tables.
//! Invariant: the time of a reduction depends only on the messages of the real algorithm.
//! Predictions are marked as predictions, published figures with their source.
//! Source: Hockney 1994, The communication challenge for MPP (latency and bandwidth); Thakur,
//! Rabenseifner & Gropp 2005 (one message at a time in each direction); Li et al. 2020, PyTorch
//! Distributed (2006.15704), section 5, for overlap with the backward pass; Karp & Flatt 1990,
//! Measuring parallel processor performance.

use distributed::CollectiveError;
pub use distributed::gradients::ServerPlacement;

pub use self::fit::fit;
pub use self::forecast::{Method, forecast};
pub use self::measured::{Measured, read as read_measured};
pub use self::named::NamedNetwork;
pub use self::network::{Link, NetworkError, NetworkModel, Node};
pub use self::predict::{Prediction, Predictor, Synchronisation, predict};
pub use self::profile::StepProfile;
pub use self::profile_file::{read_profile, read_profiles, step_of};
pub use self::published::published_answers;
pub use self::scenario::{Scaling, Scenario, karp_flatt, predict_scenarios};
pub use self::sums::reduction_seconds;
pub use self::tables::{forecast_lines, measured_lines, published_lines};

mod fit;
mod forecast;
mod measured;
mod named;
mod nccl;
mod network;
mod predict;
mod profile;
mod profile_file;
mod published;
mod record;
mod scenario;
mod schedule;
mod servers;
mod sums;
mod tables;

/// Reason why a simulation is impossible.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct SimulationError(String);

impl SimulationError {
    fn none_of(what: &str) -> Self {
        Self(format!(
            "simulation: expected at least one {what}, got none"
        ))
    }
}

impl From<CollectiveError> for SimulationError {
    fn from(error: CollectiveError) -> Self {
        Self(error.to_string())
    }
}
