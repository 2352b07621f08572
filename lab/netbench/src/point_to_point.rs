//! Messages between two ranks, by size and pair, and the network that follows.
//!
//! In: the ranks' nodes, sizes. Out: [`PairTimes`] on all ranks; [`Links`], the fit over all pairs,
//! and the network of a simulation.
//! Invariant: one pair at a time sends; the other ranks sleep.

use crate::NetbenchPlan;
use crate::pairs::{PairPlan, RankPair};
use crate::points::ping_pong;
use anyhow::{Context, Result, ensure};
use distributed::Communicator;
use distributed::communicator::WaitPolicy;
use records::{FitFacts, Links, PairTimes, SizeTimes};
use simulate::{Link, NetworkModel, Node};

/// Size of the memory that a node's ranks try to share.
const SHARED_BYTES: usize = 4096;

/// Fits a link to the messages of these pairs; `None` if they do not determine one.
pub(crate) fn fit<'a>(pairs: impl IntoIterator<Item = &'a [SizeTimes]>) -> Option<FitFacts> {
    let points: Vec<(f64, f64)> = pairs
        .into_iter()
        .flatten()
        .map(|point| (point.bytes as f64, point.seconds_median))
        .collect();
    simulate::fit(&points)
}

/// Returns the link of a fit in four digits, more than are known.
fn link(fit: &FitFacts) -> Link {
    let rounded = |value: f64| format!("{value:.3e}").parse::<f64>().unwrap_or(value);
    // Rounded in the units of the text.
    Link::new(
        rounded(fit.alpha_s * 1e6) / 1e6,
        rounded(fit.bandwidth_bytes_per_s),
    )
}

/// Times messages of all pairs, one pair after the other.
/// Collective: all ranks, with the same plan.
///
/// # Errors
/// A message or a collective fails; a signal stops this rank.
pub(crate) fn measure(
    config: &NetbenchPlan,
    communicator: &dyn Communicator,
    nodes: &[String],
    plan: &PairPlan,
    is_stopped: &dyn Fn() -> bool,
) -> Result<Vec<PairTimes>> {
    // A waiting rank must not take the core of a measured one.
    let idle = communicator.duplicate()?;
    idle.set_wait_policy(WaitPolicy::Sleep);
    let mut all = Vec::new();
    for &pair in &plan.pairs {
        let is_member = [pair.first, pair.second].contains(&communicator.rank());
        let mut own = Vec::new();
        for &bytes in &config.sizes {
            ensure!(!is_stopped(), "netbench: stopped by a signal");
            if is_member {
                own.extend(ping_pong(communicator, pair, bytes, config.time_per_point)?);
            }
            idle.barrier()?;
        }
        let gathered = idle.all_gather(&serde_json::to_vec(&own)?)?;
        let points: Vec<SizeTimes> = serde_json::from_slice(&gathered[pair.first])
            .with_context(|| format!("netbench: the times of rank {}", pair.first))?;
        all.push(pair_times(pair, nodes, points));
    }
    Ok(all)
}

fn pair_times(pair: RankPair, nodes: &[String], points: Vec<SizeTimes>) -> PairTimes {
    let fit = fit([&points[..]]);
    PairTimes {
        ranks: [pair.first, pair.second],
        nodes: [nodes[pair.first].clone(), nodes[pair.second].clone()],
        is_inside_node: pair.is_inside,
        points,
        fit,
    }
}

/// Fits the pairs between nodes, and those inside nodes.
pub(crate) fn links(pairs: &[PairTimes]) -> Links {
    let fit_of = |is_inside| {
        let wanted = pairs.iter().filter(|pair| pair.is_inside_node == is_inside);
        fit(wanted.map(|pair| &pair.points[..]))
    };
    Links {
        between_nodes: fit_of(false),
        inside_node: fit_of(true),
    }
}

/// Returns the network of a simulation, for nodes of `ranks_per_node` ranks that may share memory.
///
/// On one node, messages between nodes count like those inside. `None` if no fit determines a link.
pub(crate) fn network(
    links: &Links,
    ranks_per_node: usize,
    is_shared: bool,
) -> Option<NetworkModel> {
    let inside = links.inside_node.as_ref().map(link);
    let between = links.between_nodes.as_ref().map(link).or(inside)?;
    let node = Node {
        ranks: ranks_per_node,
        link: inside.unwrap_or(Link::MEMORY),
        shared: is_shared,
    };
    let burst_bytes = links
        .between_nodes
        .map_or(0.0, |fit| fit.burst_bytes.round());
    let node = (ranks_per_node > 1).then_some(node);
    Some(NetworkModel {
        node,
        burst_bytes,
        ..NetworkModel::new(between)
    })
}

/// Returns whether the ranks of each node share memory.
/// Collective: all ranks.
pub(crate) fn nodes_share_memory(
    communicator: &dyn Communicator,
    nodes: &[String],
) -> Result<bool> {
    let own = &communicator.topology().node;
    let members: Vec<usize> = (0..nodes.len())
        .filter(|&rank| nodes[rank] == *own)
        .collect();
    Ok(communicator.node_memory(&members, SHARED_BYTES)?.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use records::StoppedBy;

    fn pair(is_inside_node: bool, link: Link) -> PairTimes {
        let point = |bytes: u64| SizeTimes {
            bytes,
            seconds_median: link.seconds(bytes as f64),
            seconds_p10: 0.0,
            seconds_p90: 0.0,
            relative_half_width: None,
            repetitions: 3,
            stopped_by: StoppedBy::Time,
            simulated_seconds: None,
        };
        let points = (0..12).map(|power| point(1 << (2 * power))).collect();
        let second = if is_inside_node { 1 } else { 2 };
        pair_times(
            RankPair {
                first: 0,
                second,
                is_inside: is_inside_node,
            },
            &["a", "a", "b"].map(str::to_owned),
            points,
        )
    }

    #[test]
    fn the_network_has_the_links_that_were_measured_and_reads_as_text_again() {
        let fast = Link::new(0.5e-6, 5e9);
        let slow = Link::new(50e-6, 113e6);
        let both = links(&[pair(false, slow), pair(true, fast)]);
        let network = super::network(&both, 2, true).unwrap();
        assert_eq!(
            network.to_string(),
            "50us,113MB/s@2:shared:0.5us,5000MB/s".replace("50us,113MB/s", "1gbe")
        );
        let read: NetworkModel = network.to_string().parse().unwrap();
        assert_eq!(read.to_string(), network.to_string());
        assert_eq!(super::network(&both, 1, true).unwrap().node, None);
    }

    #[test]
    fn one_node_stands_for_several_and_nothing_measured_is_no_network() {
        let fast = Link::new(0.5e-6, 5e9);
        let network = super::network(&links(&[pair(true, fast)]), 4, false).unwrap();
        assert_eq!(network.link, network.node.unwrap().link);
        assert_eq!(super::network(&links(&[]), 4, true), None);
    }

    #[test]
    fn a_pair_names_its_nodes_and_its_own_fit() {
        let pair = pair(false, Link::new(50e-6, 113e6));
        assert_eq!(pair.nodes, ["a", "b"]);
        assert!((pair.fit.unwrap().bandwidth_bytes_per_s / 113e6 - 1.0).abs() < 1e-6);
    }
}
