//! From what all ranks found to what is said about it.
//!
//! In: [`RankFacts`] in rank order. Out: a [`Diagnosis`]. Invariant: a function of its argument alone; the same checks in the same
//! order whatever was found.

mod cores;
mod files;
mod gradients;
mod launch;
mod machine;
mod network;

use super::cpu_set::CpuSet;
use super::diagnosis::{Diagnosis, Verdict};
use super::facts::RankFacts;

/// Judges what the ranks found.
pub fn diagnose(ranks: Vec<RankFacts>) -> Diagnosis {
    let nodes = grouped(&ranks, |rank| rank.place.node.clone());
    // Nodes may be containers of one machine.
    let machines = grouped(&ranks, |rank| match rank.processors.boot.as_str() {
        "" => rank.place.node.clone(),
        boot => boot.to_owned(),
    });
    let rows = vec![
        launch::program(&ranks),
        launch::library(&ranks),
        launch::world(&ranks),
        cores::cores(&machines),
        machine::processor(&ranks),
        machine::device(&nodes),
        gradients::way(&nodes),
        machine::memory(&machines),
        machine::shared_memory(&nodes),
        machine::open_files(&ranks),
        machine::energy(&machines),
        network::sums(&ranks),
        network::bandwidth(&ranks, nodes.len()),
        network::clocks(&ranks),
        network::interfaces(&nodes),
        files::data_set(&ranks),
        files::output(&ranks),
        files::seen_by_all_nodes(&ranks, nodes.len()),
        files::locks(&ranks),
    ];
    let verdict = rows
        .iter()
        .map(|row| row.verdict)
        .max()
        .unwrap_or(Verdict::Ok);
    let (map, num_nodes) = (cores::map(&nodes), nodes.len());
    Diagnosis {
        verdict,
        ranks: ranks.len(),
        nodes: num_nodes,
        rows,
        map,
        facts: ranks,
    }
}

/// The ranks of one node, or of one machine.
struct Node<'a> {
    /// Its name, that of its first rank.
    name: &'a str,
    ranks: Vec<&'a RankFacts>,
}

/// Ranks with the same key, in the order of their first ones.
fn grouped(ranks: &[RankFacts], key: impl Fn(&RankFacts) -> String) -> Vec<Node<'_>> {
    let mut keys = Vec::new();
    let mut nodes: Vec<Node<'_>> = Vec::new();
    for rank in ranks {
        let own = key(rank);
        match keys.iter().position(|known| *known == own) {
            Some(index) => nodes[index].ranks.push(rank),
            None => {
                keys.push(own);
                nodes.push(Node {
                    name: &rank.place.node,
                    ranks: vec![rank],
                });
            }
        }
    }
    nodes
}

/// `rank 3 on n2`, or `ranks 0-3` of several.
fn named<'a>(ranks: impl IntoIterator<Item = &'a RankFacts>) -> String {
    let ranks: Vec<&RankFacts> = ranks.into_iter().collect();
    match ranks.as_slice() {
        [one] => format!("rank {} on {}", one.place.rank, one.place.node),
        many => format!(
            "ranks {}",
            many.iter().map(|rank| rank.place.rank).collect::<CpuSet>()
        ),
    }
}

/// The ranks that differ from root in what `of` tells of them.
fn unlike_root<'a, T: PartialEq>(
    ranks: &'a [RankFacts],
    of: impl Fn(&'a RankFacts) -> T,
) -> Vec<&'a RankFacts> {
    let root = ranks.first().map(&of);
    ranks.iter().filter(|rank| Some(of(rank)) != root).collect()
}

/// `, the same on 4 ranks`, and nothing for one.
fn on_all(ranks: &[RankFacts]) -> String {
    if ranks.len() == 1 {
        String::new()
    } else {
        format!(", the same on {} ranks", ranks.len())
    }
}

#[cfg(test)]
mod tests;
