//! How fast the network is: what `trainer netbench` measures.
//!
//! In: the ranks, sizes. Out: [`NetbenchResult`]: times of messages and collectives by size, and the network of a simulation.
//! Invariant: every rank makes the same calls; one rank decides how often each is repeated.
//! Source: Hoefler & Belli 2015, Scientific Benchmarking of Parallel Computing Systems (SC'15); Snell, Mikler & Gustafson 1996, NetPIPE;
//! Hockney 1994 for latency and bandwidth.
//!
//! A message's time is half of its round trip. A collective's is that of the slowest rank, after a barrier. Each point is repeated until
//! the 95 % confidence interval of its median is narrower than 5 % to either side, or its time is used up, or ten thousand times.

pub mod collectives;
mod environment;
pub mod overlap;
mod pairs;
pub mod point_to_point;
mod points;
mod render;
mod repetitions;
mod statistics;

pub use collectives::{CollectiveTimes, Operation};
pub use environment::Environment;
pub use overlap::Overlap;
pub use pairs::{Pair, PairPlan};
pub use point_to_point::{FitFacts, Links, PairTimes};
pub use points::Point;
pub use render::{collective_lines, conclusion_lines, heading_lines, overlap_line, pair_lines};
pub use repetitions::{MOST as MOST_REPETITIONS, Next, PRECISION, StoppedBy, next};
pub use statistics::{CONFIDENCE, Spread, median_interval, percentile};

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
    /// Computing beside sums; none on one rank and in older files.
    #[serde(default)]
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
