//! Messages between two ranks, by size and pair, and the network that follows.
//!
//! In: the ranks' nodes, sizes. Out: [`PairTimes`] on all ranks; [`Links`], the fit over all pairs,
//! and the network of a simulation.
//! Invariant: all ranks choose the same pairs, in every run; one pair at a time sends; the other
//! ranks sleep.

use crate::NetbenchPlan;
use crate::points::ping_pong;
use anyhow::{Context, Result, ensure};
use distributed::Communicator;
use distributed::communicator::WaitPolicy;
use records::{FitFacts, Links, PairTimes, SizeTimes};
use simulate::{Link, NetworkModel, Node};
use std::collections::BTreeSet;

/// Size of the memory that a node's ranks try to share.
const SHARED_BYTES: usize = 4096;

/// Chooses the pairs in the order of their measurement, and counts the possible ones: at most
/// `most` pairs of nodes, each by its first rank, then one pair inside a node if a node has two
/// ranks. On a single node it chooses at most `most` pairs of its ranks. A choice among more pairs
/// is random but fixed.
///
/// `nodes` has the name of every rank's node.
pub(crate) fn pairs(nodes: &[String], most: usize) -> (Vec<PairTimes>, usize) {
    let mut members: Vec<usize> = Vec::new();
    let mut inside = None;
    for (rank, node) in nodes.iter().enumerate() {
        match members.iter().find(|&&first| nodes[first] == *node) {
            None => members.push(rank),
            Some(&first) => inside = inside.or(Some([first, rank])),
        }
    }
    if members.len() == 1 {
        members = (0..nodes.len()).collect();
        inside = None;
    }
    let number = members.len();
    let num_possible = number * number.saturating_sub(1) / 2;
    let mut chosen = BTreeSet::new();
    if num_possible <= most {
        for (index, first) in members.iter().enumerate() {
            chosen.extend(members[index + 1..].iter().map(|second| [*first, *second]));
        }
    }
    for draw in (0..).take_while(|_| num_possible > most) {
        if chosen.len() == most {
            break;
        }
        let bits = mixed(draw);
        let mut pair = [bits, bits >> 32].map(|bits| members[bits as u32 as usize % number]);
        pair.sort_unstable();
        if pair[0] < pair[1] {
            chosen.insert(pair);
        }
    }
    let pair = |ranks: [usize; 2]| PairTimes {
        ranks,
        nodes: ranks.map(|rank| nodes[rank].clone()),
        is_inside_node: nodes[ranks[0]] == nodes[ranks[1]],
        points: Vec::new(),
        fit: None,
    };
    (
        chosen.into_iter().chain(inside).map(pair).collect(),
        num_possible,
    )
}

/// Returns random bits for a number: SplitMix64, Steele, Lea & Flood 2014.
fn mixed(number: u64) -> u64 {
    let mut bits = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// Times messages of all pairs, one pair after the other.
/// Collective: all ranks, with the same plan and pairs.
///
/// # Errors
/// A message or a collective fails; a signal stops this rank.
pub(crate) fn measure(
    plan: &NetbenchPlan,
    communicator: &dyn Communicator,
    pairs: &mut [PairTimes],
    is_stopped: &dyn Fn() -> bool,
) -> Result<()> {
    // A waiting rank must not take the core of a measured one.
    let idle = communicator.duplicate()?;
    idle.set_wait_policy(WaitPolicy::Sleep);
    for pair in pairs {
        let mut own = Vec::new();
        for &bytes in &plan.sizes {
            ensure!(!is_stopped(), "netbench: stopped by a signal");
            if pair.ranks.contains(&communicator.rank()) {
                own.extend(ping_pong(
                    communicator,
                    pair.ranks,
                    bytes,
                    plan.time_per_point,
                )?);
            }
            idle.barrier()?;
        }
        let gathered = idle.all_gather(&serde_json::to_vec(&own)?)?;
        let first = pair.ranks[0];
        pair.points = serde_json::from_slice(&gathered[first])
            .with_context(|| format!("netbench: the times of rank {first}"))?;
        pair.fit = fit([&pair.points[..]]);
    }
    Ok(())
}

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
        let points = (0..12).map(|power| point(1 << (2 * power)));
        PairTimes {
            ranks: [0, 1],
            nodes: ["a".to_owned(), "a".to_owned()],
            is_inside_node,
            points: points.collect(),
            fit: None,
        }
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

    /// Returns the ranks of the chosen pairs, whether both are on one node, and the number of
    /// possible pairs.
    fn chosen(nodes: &[usize], most: usize) -> (Vec<(usize, usize, bool)>, usize) {
        let nodes: Vec<String> = nodes.iter().map(|node| format!("n{node}")).collect();
        let (pairs, num_possible) = pairs(&nodes, most);
        let pair = |pair: &PairTimes| {
            let [first, second] = pair.ranks;
            assert_eq!(pair.nodes, [nodes[first].clone(), nodes[second].clone()]);
            (first, second, pair.is_inside_node)
        };
        (pairs.iter().map(pair).collect(), num_possible)
    }

    #[test]
    fn nodes_are_paired_by_their_first_ranks_and_one_pair_lies_inside() {
        for (nodes, expected, num_possible) in [
            (&[0][..], &[][..], 0),
            (&[0, 0, 0], &[(0, 1, true), (0, 2, true), (1, 2, true)], 3),
            (&[0, 1], &[(0, 1, false)], 1),
            (&[0, 0, 1, 1], &[(0, 2, false), (0, 1, true)], 1),
            (
                &[0, 1, 2, 0, 1, 2],
                &[(0, 1, false), (0, 2, false), (1, 2, false), (0, 3, true)],
                3,
            ),
        ] {
            assert_eq!(chosen(nodes, 28), (expected.to_vec(), num_possible));
        }
    }

    #[test]
    fn too_many_pairs_are_a_choice_of_different_ones_that_is_the_same_each_time() {
        let nodes: Vec<usize> = (0..100).collect();
        let (some, num_possible) = chosen(&nodes, 28);
        assert_eq!((some.len(), num_possible), (28, 4950));
        assert!(some.windows(2).all(|two| two[0] < two[1]), "{some:?}");
        assert!(some.iter().all(|(first, second, _)| first < second));
        assert_eq!(some, chosen(&nodes, 28).0);
        let seen: BTreeSet<usize> = some
            .iter()
            .flat_map(|(first, second, _)| [*first, *second])
            .collect();
        assert!(seen.len() > 28, "spread over the nodes: {seen:?}");
        assert_eq!(chosen(&nodes, 4949).0.len(), 4949);
        assert_eq!(chosen(&nodes, 4950).0.len(), 4950);
    }
}
