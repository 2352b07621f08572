//! From what all ranks found to what is said about it.
//!
//! In: [`RankFacts`] in rank order. Out: a [`Diagnosis`]. Invariant: a function of its argument alone; the same checks in the same
//! order whatever was found.

mod cores;
mod files;
mod launch;
mod machine;
mod network;

use super::cpu_set::CpuSet;
use super::diagnosis::{Diagnosis, Verdict};
use super::facts::RankFacts;

/// Judges what the ranks found.
pub fn diagnose(ranks: Vec<RankFacts>) -> Diagnosis {
    let nodes = by_node(&ranks);
    let rows = vec![
        launch::program(&ranks),
        launch::library(&ranks),
        launch::world(&ranks),
        cores::cores(&nodes),
        machine::processor(&ranks),
        machine::device(&nodes),
        machine::memory(&nodes),
        machine::shared_memory(&nodes),
        machine::open_files(&ranks),
        network::sums(&ranks),
        network::bandwidth(&ranks, nodes.len()),
        network::clocks(&ranks),
        network::interfaces(&nodes),
        files::data_set(&ranks),
        files::output(&ranks),
        files::seen_by_all_nodes(&ranks, nodes.len()),
        files::locks(&ranks),
    ];
    let verdict = rows.iter().map(|row| row.verdict).max().unwrap_or(Verdict::Ok);
    let (map, num_nodes) = (cores::map(&nodes), nodes.len());
    Diagnosis { verdict, ranks: ranks.len(), nodes: num_nodes, rows, map, facts: ranks }
}

/// The ranks of one node.
struct Node<'a> {
    name: &'a str,
    ranks: Vec<&'a RankFacts>,
}

/// The nodes in the order of their first ranks.
fn by_node(ranks: &[RankFacts]) -> Vec<Node<'_>> {
    let mut nodes: Vec<Node<'_>> = Vec::new();
    for rank in ranks {
        match nodes.iter_mut().find(|node| node.name == rank.place.node) {
            Some(node) => node.ranks.push(rank),
            None => nodes.push(Node { name: &rank.place.node, ranks: vec![rank] }),
        }
    }
    nodes
}

/// `rank 3 on n2`, or `ranks 0-3` of several.
fn named<'a>(ranks: impl IntoIterator<Item = &'a RankFacts>) -> String {
    let ranks: Vec<&RankFacts> = ranks.into_iter().collect();
    match ranks.as_slice() {
        [one] => format!("rank {} on {}", one.place.rank, one.place.node),
        many => format!("ranks {}", many.iter().map(|rank| rank.place.rank).collect::<CpuSet>()),
    }
}

/// The ranks that differ from root in what `of` tells of them.
fn unlike_root<'a, T: PartialEq>(ranks: &'a [RankFacts], of: impl Fn(&'a RankFacts) -> T) -> Vec<&'a RankFacts> {
    let root = ranks.first().map(&of);
    ranks.iter().filter(|rank| Some(of(rank)) != root).collect()
}

/// `, the same on 4 ranks`, and nothing for one.
fn on_all(ranks: &[RankFacts]) -> String {
    if ranks.len() == 1 { String::new() } else { format!(", the same on {} ranks", ranks.len()) }
}

#[cfg(test)]
mod tests;
