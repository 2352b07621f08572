//! A network: what `trainer netbench --output` writes.
//!
//! Invariant: a message's time is half of its round trip, a collective's that of the slowest rank; times are seconds.

use serde::{Deserialize, Serialize};

/// All that was measured, as it is written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NetbenchResult {
    /// Where and with what.
    pub environment: Environment,
    /// How each point was measured.
    pub method: Method,
    /// Pairs between nodes, or of ranks on a single node, that there are.
    pub possible_pairs: usize,
    /// Messages between two ranks, for each pair that was measured.
    pub point_to_point: Vec<PairTimes>,
    /// The links of all pairs together.
    pub links: Links,
    /// Computing beside sums; none on one rank.
    pub overlap: Option<Overlap>,
    /// The network for `trainer bench --simulate-network`, if the messages tell it.
    pub network: Option<String>,
    /// Collectives by algorithm and number of ranks.
    pub collectives: Vec<CollectiveTimes>,
}

/// How each point was measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Method {
    /// Confidence of the median's interval.
    pub confidence: f64,
    /// Half of its width, as a share of the median, at which a point was precise enough.
    pub precision: f64,
    /// Seconds after which a point was left as it was.
    pub seconds_per_point: f64,
    /// Most repetitions of a point.
    pub most_repetitions: usize,
}

/// The circumstances of a measurement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Environment {
    /// Version of the program.
    pub version: String,
    /// Commit the program was built from, or "unknown".
    pub commit: String,
    /// Start in UTC, RFC 3339.
    pub date: String,
    /// Program and flags as typed.
    pub command_line: Vec<String>,
    /// Processor of root's machine.
    pub processor: String,
    /// Processors root may use.
    pub processor_count: usize,
    /// Operating system and architecture.
    pub platform: String,
    /// The communication library, its first line about itself.
    pub library: String,
    /// Number of ranks.
    pub ranks: usize,
    /// Number of nodes.
    pub nodes: usize,
    /// The node of every rank.
    pub node_of_rank: Vec<String>,
}

/// The times of one size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Size of the message, of the buffer that is summed or broadcast, or of all that is gathered.
    pub bytes: u64,
    /// Median time.
    pub seconds_median: f64,
    /// A tenth of the repetitions were faster.
    pub seconds_p10: f64,
    /// A tenth of the repetitions were slower.
    pub seconds_p90: f64,
    /// How far the median's 95 % confidence interval reaches to its farther side, as a share of the median; none below six repetitions.
    pub relative_half_width: Option<f64>,
    /// How many there were.
    pub repetitions: u64,
    /// Why no more.
    pub stopped_by: StoppedBy,
    /// What a simulation with the fitted network takes for it; all-reduces of a few ranks only.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub simulated_seconds: Option<f64>,
}

/// Why a point has no more repetitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StoppedBy {
    /// The median is known to 5 %, with 95 % confidence.
    Precision,
    /// The time of a point is used up.
    Time,
    /// There may be no more.
    Count,
}

/// Messages between two ranks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PairTimes {
    /// The ranks.
    pub ranks: [usize; 2],
    /// Their nodes.
    pub nodes: [String; 2],
    /// Whether that is one node.
    pub is_inside_node: bool,
    /// Times one way, smallest size first.
    pub points: Vec<Point>,
    /// The link of this pair alone, if they tell it.
    pub fit: Option<FitFacts>,
}

/// A fitted link, as a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FitFacts {
    /// Latency: seconds a message.
    pub alpha_s: f64,
    /// Seconds a byte.
    pub beta_s_per_byte: f64,
    /// One over that.
    pub bandwidth_bytes_per_s: f64,
    /// Bytes that pass at once after a pause, as a rate limit may let them; 0 where the times tell of none.
    #[serde(default)]
    pub burst_bytes: f64,
    /// Root mean square of the relative errors.
    pub residual: f64,
    /// The largest relative error; positive where the measured time is longer.
    pub worst_residual: f64,
    /// Size of the message with that error.
    pub worst_bytes: u64,
    /// Number of measured sizes, over all pairs.
    pub num_points: usize,
}

/// What all pairs tell together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Links {
    /// Between nodes, if there are several and their messages tell it.
    pub between_nodes: Option<FitFacts>,
    /// Inside a node.
    pub inside_node: Option<FitFacts>,
}

/// Computing beside sums.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Overlap {
    /// How much slower ranks compute while a sum is under way, as a share from 0 to below 1: median over rounds, mean over ranks.
    pub computing_share: f64,
    /// Bytes that are summed.
    pub bytes: u64,
    /// Seconds of a sum with nothing beside it, waited for busily: median over rounds, on the slowest rank.
    pub sum_seconds: f64,
    /// Seconds of a sum while the ranks compute: median over rounds, on the slowest rank; 0 where it was not measured.
    #[serde(default)]
    pub sum_seconds_beside: f64,
}

/// What all ranks do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// The sum of `f32` over all ranks, on all ranks.
    AllReduce,
    /// Root's bytes, on all ranks.
    Broadcast,
    /// The bytes of all ranks, on all ranks.
    AllGather,
}

/// One collective on so many ranks, by size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CollectiveTimes {
    /// What is done.
    pub operation: Operation,
    /// How, as `--reduction` names it; `mpi` is the communication library.
    pub algorithm: String,
    /// Ranks, from 0.
    pub ranks: usize,
    /// Smallest size first; root's.
    pub points: Vec<Point>,
}

impl FitFacts {
    /// Seconds of a message of `bytes`, of which as many wait for the bandwidth as in a ping-pong.
    pub fn seconds(&self, bytes: f64) -> f64 {
        self.alpha_s + limited_bytes(bytes, self.burst_bytes) / self.bandwidth_bytes_per_s
    }
}

/// The bytes of a ping-pong's message of `bytes` that wait for the link's bandwidth where bursts of `burst_bytes` pass at once, which the
/// rate limit gathers again while the answer comes: half of them, and all but the burst of a longer message; all of them where none do,
/// which is a burst of 0.
pub fn limited_bytes(bytes: f64, burst_bytes: f64) -> f64 {
    match burst_bytes {
        0.0 => bytes,
        burst_bytes => (0.5 * bytes).max(bytes - burst_bytes),
    }
}

impl std::fmt::Display for Operation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Operation::AllReduce => "all-reduce",
            Operation::Broadcast => "broadcast",
            Operation::AllGather => "all-gather",
        })
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
