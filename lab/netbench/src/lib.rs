//! The speed of the network between ranks: the measurement of `trainer netbench`.
//!
//! In: the ranks, a [`NetbenchPlan`]. Out: [`NetbenchResult`]: times of messages and collectives by
//! size, and the network for a simulation.
//! Invariant: all ranks make the same calls; one rank decides how often each is repeated.
//! Source: Hoefler & Belli 2015, Scientific Benchmarking of Parallel Computing Systems (SC'15);
//! Snell, Mikler & Gustafson 1996, NetPIPE; Hockney 1994 for latency and bandwidth.
//!
//! The time of a message is half of its round trip, the time of a collective that of the slowest
//! rank after a barrier. Each point is repeated until the 95 % confidence interval of its median is
//! narrower than 5 % to either side, until its time is used up, or ten thousand times.

mod collectives;
mod flags;
mod overlap;
mod point_to_point;
mod points;
mod render;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use distributed::Communicator;
use distributed::communicator::WaitPolicy;
use distributed::gradients::ReductionKind;
use records::{Environment, NetbenchResult, PointRules};
use simulate::NetworkModel;

pub use flags::NetbenchArgs;
pub use render::heading_lines;

/// Sizes, pairs and collectives of a measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct NetbenchPlan {
    /// Bytes, ascending.
    pub sizes: Vec<usize>,
    /// Limit of the time of a point.
    pub time_per_point: Duration,
    /// Limit of the pairs that send to each other.
    pub most_pairs: usize,
    /// Numbers of ranks of the collectives, ascending; none in a world of one.
    pub ranks: Vec<usize>,
    /// Algorithms of all-reduce with their names, each once.
    pub reductions: Vec<(ReductionKind, String)>,
}

/// Measures messages between pairs of ranks, then collectives; prints each table after its
/// measurement. Collective: all ranks, with the same plan.
///
/// # Errors
/// A message or collective fails; a signal stops this rank.
pub fn measure(
    plan: &NetbenchPlan,
    communicator: &Arc<dyn Communicator>,
    environment: Environment,
    is_stopped: &dyn Fn() -> bool,
    print: &dyn Fn(&[String]),
) -> Result<NetbenchResult> {
    let is_root = communicator.rank() == distributed::ROOT;
    let nodes = &environment.node_of_rank;
    let (mut pairs, possible_pairs) = point_to_point::pairs(nodes, plan.most_pairs);
    point_to_point::measure(plan, &**communicator, &mut pairs, is_stopped)?;
    let links = point_to_point::links(&pairs);
    print(&render::pair_lines(&pairs, possible_pairs, &links));
    let is_shared = point_to_point::nodes_share_memory(&**communicator, nodes)?;
    let overlap = overlap::measure(communicator, plan.time_per_point)?;
    let mut network = point_to_point::network(&links, ranks_per_node(nodes), is_shared);
    // Only sums between nodes say how much they slow down a step.
    if let Some(overlap) = overlap.as_ref().filter(|_| environment.nodes > 1) {
        print(&[render::overlap_line(overlap)]);
        let sum_slowdown = (overlap.sum_seconds_beside / overlap.sum_seconds).max(1.0);
        network = network.map(|network| NetworkModel {
            computing_share: overlap.computing_share,
            sum_slowdown,
            ..network
        });
    }

    let idle = communicator.duplicate()?;
    idle.set_wait_policy(WaitPolicy::Sleep);
    let mut all = Vec::new();
    for &ranks in &plan.ranks {
        ensure!(!is_stopped(), "netbench: stopped by a signal");
        if let Some(part) = communicator.first_ranks(ranks)? {
            let times = collectives::measure(plan, &part)?;
            print(&render::collective_lines(&times));
            all.extend(times);
        }
        // The other ranks must not take the cores of the measured ones.
        idle.barrier()?;
    }
    if let Some(network) = network.as_ref().filter(|_| is_root) {
        collectives::simulate(&mut all, &plan.reductions, network);
    }
    let network = network.map(|network| network.to_string());
    let is_one_node = environment.nodes == 1;
    print(&render::conclusion_lines(
        network.as_deref(),
        is_one_node,
        &all,
    ));
    Ok(NetbenchResult {
        method: PointRules {
            confidence: records::CONFIDENCE,
            precision: points::PRECISION,
            seconds_per_point: plan.time_per_point.as_secs_f64(),
            most_repetitions: points::MOST,
        },
        possible_pairs,
        point_to_point: pairs,
        links,
        overlap,
        network,
        collectives: all,
        environment,
    })
}

/// Returns the largest number of ranks on a node.
fn ranks_per_node(nodes: &[String]) -> usize {
    let of = |node: &String| nodes.iter().filter(|other| *other == node).count();
    nodes.iter().map(of).max().unwrap_or(1)
}
