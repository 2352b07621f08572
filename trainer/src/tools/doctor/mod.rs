//! `trainer doctor`: checks whether a job with these resources would train well.
//!
//! In: the ranks, their machines, a data set, a directory. Out: a [`Diagnosis`], the same on all
//! ranks.
//! Invariant: all facts are gathered before any fact is judged, so no rank waits for a stopped
//! rank. The judgement is a function of the gathered facts.

mod cores;
mod cpu_set;
mod facts;
mod judge;
mod machine;
mod network;
mod storage;
#[cfg(test)]
mod tests;

use records::counted;
use serde::Serialize;

pub use facts::{RankFacts, examine, is_follower_without_world};

use self::cpu_set::CpuSet;
use super::check::{Checked, Verdict, conclusion, header};
use crate::measure::report::ConsoleLook;

/// Maximum number of lines of the map.
const MAP_LINES: usize = 24;

/// Result of the examination; `--json` prints it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Diagnosis {
    /// Worst verdict of the checks.
    pub verdict: Verdict,
    /// Number of ranks.
    pub ranks: usize,
    /// Number of nodes.
    pub nodes: usize,
    /// Checks in the order of the table.
    pub rows: Vec<Checked>,
    /// Placement of the ranks.
    pub map: Vec<MapLine>,
    /// Facts by rank.
    pub facts: Vec<RankFacts>,
}

/// Neighbouring ranks of one node with the same CPUs and threads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MapLine {
    /// Name of the node.
    pub node: String,
    /// Ranks, as `0-3,8`.
    pub ranks: String,
    /// CPUs that each of the ranks may use.
    pub cores: String,
    /// Compute threads of each of the ranks; `None` if the ranks cannot compute.
    pub threads: Option<usize>,
}

/// Facts of all ranks, grouped.
struct Facts<'a> {
    root: &'a RankFacts,
    ranks: &'a [RankFacts],
    nodes: Vec<Node<'a>>,
    /// Machines. Several nodes may be containers of one machine.
    machines: Vec<Node<'a>>,
}

/// Ranks of a node or machine.
struct Node<'a> {
    /// Node of the first rank.
    name: &'a str,
    ranks: Vec<&'a RankFacts>,
}

/// Judges the facts of all ranks.
///
/// # Panics
/// If there are no ranks.
pub fn diagnose(ranks: Vec<RankFacts>) -> Diagnosis {
    let facts = Facts {
        root: &ranks[0],
        ranks: &ranks,
        nodes: grouped(&ranks, |rank| &rank.place.node),
        machines: grouped(&ranks, |rank| match rank.processors.boot.as_str() {
            "" => &rank.place.node,
            boot => boot,
        }),
    };
    let rows: Vec<Checked> = judge::CHECKS
        .iter()
        .map(|check| check.run(|judge| Ok(judge(&facts))))
        .collect();
    let map = facts.nodes.iter().flat_map(map_of).collect();
    Diagnosis {
        verdict: Verdict::of_all(&rows),
        ranks: ranks.len(),
        nodes: facts.nodes.len(),
        rows,
        map,
        facts: ranks,
    }
}

/// Groups ranks by a key, in the order of the first ranks.
fn grouped<'a>(ranks: &'a [RankFacts], key: impl Fn(&'a RankFacts) -> &'a str) -> Vec<Node<'a>> {
    let mut keys = Vec::new();
    let mut nodes: Vec<Node<'_>> = Vec::new();
    for rank in ranks {
        match keys.iter().position(|known| *known == key(rank)) {
            Some(index) => nodes[index].ranks.push(rank),
            None => {
                keys.push(key(rank));
                nodes.push(Node {
                    name: &rank.place.node,
                    ranks: vec![rank],
                });
            }
        }
    }
    nodes
}

fn map_of(node: &Node<'_>) -> Vec<MapLine> {
    let threads = |rank: &RankFacts| rank.compute.as_ref().ok().map(|compute| compute.threads);
    let is_alike = |a: &&RankFacts, b: &&RankFacts| {
        a.processors.allowed == b.processors.allowed && threads(a) == threads(b)
    };
    let line = |group: &[&RankFacts]| MapLine {
        node: node.name.to_owned(),
        ranks: numbers(group),
        cores: group[0].processors.allowed.to_string(),
        threads: threads(group[0]),
    };
    node.ranks.chunk_by(is_alike).map(line).collect()
}

/// Returns the rank numbers in the form `0-3,8`.
fn numbers(ranks: &[&RankFacts]) -> String {
    ranks
        .iter()
        .map(|rank| rank.place.rank)
        .collect::<CpuSet>()
        .to_string()
}

impl Diagnosis {
    /// Returns the lines of the map, the table and the conclusion.
    pub fn lines(&self, look: ConsoleLook) -> Vec<String> {
        let mut lines = self.map_lines(look);
        lines.push(String::new());
        lines.push(header());
        lines.extend(self.rows.iter().flat_map(|row| row.lines(look)));
        lines.push(String::new());
        let about = format!(
            "{} on {}",
            counted(self.ranks, "rank"),
            counted(self.nodes, "node")
        );
        let meanings = [
            "a job here would train well",
            "a job here would train; see the remedies",
            "do not train here before the remedies",
        ];
        lines.extend(conclusion("doctor", &about, &self.rows, meanings, look));
        lines
    }

    fn map_lines(&self, look: ConsoleLook) -> Vec<String> {
        let most = look.width.saturating_sub(12) / 3;
        let widest = |of: fn(&MapLine) -> &str, heading: &str| {
            let widths = self.map.iter().map(|line| of(line).chars().count());
            widths.chain([heading.len()]).max().unwrap_or(0).min(most)
        };
        let node = widest(|line| &line.node, "node");
        let ranks = widest(|line| &line.ranks, "ranks");
        let cores = look.width.saturating_sub(node + ranks + 14).max(8);
        let line = |first: &str, second: &str, third: &str, fourth: &str| {
            let first = shortened(first, node);
            let second = shortened(second, ranks);
            format!(
                "{first:node$}  {second:ranks$}  {third:>7}  {}",
                shortened(fourth, cores)
            )
        };
        let mut lines = vec![line("node", "ranks", "threads", "CPUs of each")];
        for entry in self.map.iter().take(MAP_LINES) {
            let threads = entry
                .threads
                .map_or("-".to_owned(), |threads| threads.to_string());
            lines.push(line(&entry.node, &entry.ranks, &threads, &entry.cores));
        }
        if self.map.len() > MAP_LINES {
            let more = self.map.len() - MAP_LINES;
            lines.push(format!("and {more} more lines, all of them in --json"));
        }
        lines
    }
}

fn shortened(text: &str, columns: usize) -> String {
    if text.chars().count() <= columns {
        return text.to_owned();
    }
    let start: String = text.chars().take(columns.saturating_sub(2)).collect();
    start + ".."
}
