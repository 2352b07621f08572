//! Measured network, as written by `trainer netbench --output`.
//!
//! Invariant: a message's time is half of its round trip; a collective's time is that of the
//! slowest rank; times are seconds.

use serde::{Deserialize, Serialize};

/// Result of a network measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NetbenchResult {
    /// Machines, program and ranks.
    pub environment: Environment,
    /// Rules of the repetitions.
    pub method: PointRules,
    /// Number of node pairs, or of rank pairs on a single node.
    pub possible_pairs: usize,
    /// Messages between two ranks, for each measured pair.
    pub point_to_point: Vec<PairTimes>,
    /// Links fitted to all pairs.
    pub links: Links,
    /// Overlap of computation and sums; absent (null) on one rank.
    pub overlap: Option<Overlap>,
    /// Network for `trainer bench --simulate-network`, if the messages determine it.
    pub network: Option<String>,
    /// Collectives by operation, algorithm and number of ranks.
    pub collectives: Vec<CollectiveTimes>,
}

/// Rules of the repetitions of a point.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PointRules {
    /// Confidence of the median's interval.
    pub confidence: f64,
    /// Half width of the interval, as a share of the median, that ends a point.
    pub precision: f64,
    /// Seconds that end a point.
    pub seconds_per_point: f64,
    /// Most repetitions of a point.
    pub most_repetitions: usize,
}

/// Machines, program and ranks of a measurement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Environment {
    /// Version of the program.
    pub version: String,
    /// Commit of the program, or "unknown".
    pub commit: String,
    /// Start in UTC, RFC 3339.
    pub date: String,
    /// Program and flags as typed.
    pub command_line: Vec<String>,
    /// CPU of root's machine.
    pub processor: String,
    /// CPUs that root may use.
    pub processor_count: usize,
    /// Operating system and architecture.
    pub platform: String,
    /// Communication library: first line of its version text.
    pub library: String,
    /// Number of ranks.
    pub ranks: usize,
    /// Number of nodes.
    pub nodes: usize,
    /// Node of every rank.
    pub node_of_rank: Vec<String>,
}

/// Times of one message size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SizeTimes {
    /// Size of the message, of the buffer of a sum or broadcast, or of all gathered bytes.
    pub bytes: u64,
    /// Median time.
    pub seconds_median: f64,
    /// Time below which a tenth of the repetitions are.
    pub seconds_p10: f64,
    /// Time above which a tenth of the repetitions are.
    pub seconds_p90: f64,
    /// Larger side of the median's 95 % confidence interval, as a share of the median; absent
    /// (null) below six repetitions.
    pub relative_half_width: Option<f64>,
    /// Number of repetitions.
    pub repetitions: u64,
    /// Reason for the end of the point.
    pub stopped_by: StoppedBy,
    /// Time simulated with the fitted network, for all-reduces of a few ranks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub simulated_seconds: Option<f64>,
}

/// Reason for the end of a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StoppedBy {
    /// The median is precise to 5 % with 95 % confidence.
    Precision,
    /// The time limit of a point.
    Time,
    /// The limit of repetitions.
    Count,
}

/// Messages between two ranks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PairTimes {
    /// Both ranks.
    pub ranks: [usize; 2],
    /// Nodes of the ranks.
    pub nodes: [String; 2],
    /// True if both ranks are on one node.
    pub is_inside_node: bool,
    /// Times in one direction, smallest size first.
    pub points: Vec<SizeTimes>,
    /// Link fitted to this pair, if its points determine it.
    pub fit: Option<FitFacts>,
}

/// Fitted link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FitFacts {
    /// Latency, seconds per message.
    pub alpha_s: f64,
    /// Seconds per byte.
    pub beta_s_per_byte: f64,
    /// Reciprocal of `beta_s_per_byte`.
    pub bandwidth_bytes_per_s: f64,
    /// Burst of a rate limit: bytes that pass without delay after a pause; 0 without a burst.
    #[serde(default)]
    pub burst_bytes: f64,
    /// Root mean square of the relative errors.
    pub residual: f64,
    /// Largest relative error; positive if the measured time is longer.
    pub worst_residual: f64,
    /// Size of the message with that error.
    pub worst_bytes: u64,
    /// Number of measured points over all pairs.
    pub num_points: usize,
}

/// Links fitted to all pairs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Links {
    /// Link between nodes, if there are several.
    pub between_nodes: Option<FitFacts>,
    /// Link inside a node.
    pub inside_node: Option<FitFacts>,
}

/// Overlap of computation and sums.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Overlap {
    /// Slowdown of computation during a sum, as a share from 0 to below 1: median over rounds, mean
    /// over ranks.
    pub computing_share: f64,
    /// Size of the sum.
    pub bytes: u64,
    /// Seconds of a sum without computation: median over rounds on the slowest rank.
    pub sum_seconds: f64,
    /// Seconds of a sum during computation: median over rounds on the slowest rank; 0 if not
    /// measured.
    pub sum_seconds_beside: f64,
}

/// Collective operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// Sum of `f32` values over all ranks.
    AllReduce,
    /// Copy of root's bytes to all ranks.
    Broadcast,
    /// Copy of every rank's bytes to all ranks.
    AllGather,
}

/// Times of a collective on a number of ranks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CollectiveTimes {
    /// Operation.
    pub operation: Operation,
    /// Algorithm as `--reduction` names it; `mpi` is the communication library.
    pub algorithm: String,
    /// Number of ranks; the first ones of the job.
    pub ranks: usize,
    /// Times, smallest size first.
    pub points: Vec<SizeTimes>,
}

impl FitFacts {
    /// Returns the seconds of a ping-pong's message.
    pub fn seconds(&self, bytes: f64) -> f64 {
        self.alpha_s + limited_bytes(bytes, self.burst_bytes) / self.bandwidth_bytes_per_s
    }
}

/// Returns the number of bytes of a ping-pong message that the bandwidth limits.
///
/// Without bursts (`burst_bytes` is 0) the bandwidth limits all bytes. With bursts, the token
/// bucket refills while the answer travels. So the bandwidth limits half of the message, or all
/// bytes beyond the burst, whichever is more.
pub fn limited_bytes(bytes: f64, burst_bytes: f64) -> f64 {
    match burst_bytes {
        0.0 => bytes,
        burst_bytes => (0.5 * bytes).max(bytes - burst_bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fitted_line_lets_the_burst_pass_at_once() {
        let fit = FitFacts {
            alpha_s: 1e-3,
            beta_s_per_byte: 1e-6,
            bandwidth_bytes_per_s: 1e6,
            burst_bytes: 1000.0,
            ..FitFacts::default()
        };
        for (bytes, expected) in [(1000.0, 1.5e-3), (5000.0, 5e-3)] {
            assert!((fit.seconds(bytes) - expected).abs() < 1e-12, "{bytes}");
        }
        assert!(
            (FitFacts {
                burst_bytes: 0.0,
                ..fit
            }
            .seconds(5000.0)
                - 6e-3)
                .abs()
                < 1e-12
        );
    }
}
