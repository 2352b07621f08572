//! How fast the network is: what `trainer netbench` measures.
//!
//! In: the ranks, sizes. Out: [`records::NetbenchResult`]: times of messages and collectives by size, and the network of a simulation.
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

pub use environment::{environment, ranks_per_node};
pub use pairs::{Pair, PairPlan};
pub use render::{collective_lines, conclusion_lines, heading_lines, overlap_line, pair_lines};
pub use repetitions::{MOST as MOST_REPETITIONS, Next, PRECISION, next};
pub use statistics::{Spread, percentile};
