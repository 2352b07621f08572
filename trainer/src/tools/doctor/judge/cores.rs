//! Which processors the ranks compute on.

use super::Node;
use crate::tools::doctor::cpu_set::CpuSet;
use crate::tools::doctor::diagnosis::{MapLine, Row, Verdict};
use crate::tools::doctor::facts::RankFacts;

const NAME: &str = "cores";

/// No processor for two ranks, no more threads than processors. Of several nodes the worst one is told.
pub(super) fn cores(nodes: &[Node<'_>]) -> Row {
    let mut worst: Option<Row> = None;
    for row in nodes.iter().filter_map(of_node) {
        if worst.as_ref().is_none_or(|worst| row.verdict > worst.verdict) {
            worst = Some(row);
        }
    }
    worst.unwrap_or_else(|| {
        let threads: usize = nodes.iter().flat_map(|node| &node.ranks).map(|rank| threads(rank)).sum();
        Row::ok(NAME, format!("{threads} compute threads in all, each with a core of its own"))
    })
}

/// Where the ranks are; neighbours with the same processors and threads in one line.
pub(super) fn map(nodes: &[Node<'_>]) -> Vec<MapLine> {
    let mut lines = Vec::new();
    for node in nodes {
        let key = |rank: &RankFacts| {
            (rank.processors.allowed.clone(), rank.compute.as_ref().ok().map(|compute| compute.threads))
        };
        for group in node.ranks.chunk_by(|a, b| key(a) == key(b)) {
            let (allowed, threads) = key(group[0]);
            lines.push(MapLine {
                node: node.name.to_owned(),
                ranks: group.iter().map(|rank| rank.place.rank).collect::<CpuSet>().to_string(),
                cores: allowed.to_string(),
                threads,
            });
        }
    }
    lines
}

fn threads(rank: &RankFacts) -> usize {
    rank.compute.as_ref().map_or(0, |compute| compute.threads)
}

fn of_node(node: &Node<'_>) -> Option<Row> {
    let crowded = groups(node)
        .into_iter()
        .map(|group| of_group(node, &group))
        .max_by_key(|row| row.as_ref().map(|row| row.verdict));
    match crowded.flatten() {
        Some(row) if row.verdict == Verdict::Fail => Some(row),
        other => other.or_else(|| shared_core(node)),
    }
}

/// Ranks whose processors meet, and all of these processors.
struct Group<'a> {
    ranks: Vec<&'a RankFacts>,
    processors: CpuSet,
}

fn groups<'a>(node: &Node<'a>) -> Vec<Group<'a>> {
    let mut groups: Vec<Group<'a>> = Vec::new();
    for &rank in &node.ranks {
        let mut grown = Group { ranks: vec![rank], processors: rank.processors.allowed.clone() };
        let (meeting, others): (Vec<_>, Vec<_>) =
            groups.into_iter().partition(|group| group.processors.meets(&grown.processors));
        for group in meeting {
            grown.processors = grown.processors.union(&group.processors);
            grown.ranks.extend(group.ranks);
        }
        grown.ranks.sort_by_key(|rank| rank.place.rank);
        groups = others;
        groups.push(grown);
    }
    groups
}

fn of_group(node: &Node<'_>, group: &Group<'_>) -> Option<Row> {
    let num_threads: usize = group.ranks.iter().map(|rank| threads(rank)).sum();
    let num_processors = group.processors.len();
    if num_processors == 0 || num_threads <= num_processors {
        return None;
    }
    let machine = group.ranks[0].processors.machine.len();
    let ranks: CpuSet = group.ranks.iter().map(|rank| rank.place.rank).collect();
    let (name, processors, count) = (node.name, &group.processors, group.ranks.len());
    let each = num_processors / count;
    if count > 1 && num_processors < machine {
        let instead = match each {
            0 => format!("; if the job has no other cores, start at most {num_processors} of these ranks"),
            _ => format!(", or --threads {each}"),
        };
        return Some(Row::fail(
            NAME,
            format!(
                "{name}: ranks {ranks} are bound to the same cores, {processors} of {machine}, with {num_threads} threads on \
                 {num_processors}: double binding"
            ),
            format!("bind each rank to cores of its own: mpirun --bind-to core, srun --cpu-bind=cores{instead}"),
        ));
    }
    let who = if count == 1 { format!("rank {ranks} has") } else { format!("ranks {ranks} have") };
    let remedy = match each {
        0 => format!("start at most {num_processors} ranks a node"),
        _ => format!("give --threads {each}, or fewer ranks a node"),
    };
    let cores = if num_processors == 1 { "core" } else { "cores" };
    let found =
        format!("{name}: {who} {num_threads} threads on {num_processors} {cores} ({processors}): oversubscribed");
    Some(Row::warn(NAME, found, remedy))
}

/// Two ranks, each on processors of its own, that are one core's.
fn shared_core(node: &Node<'_>) -> Option<Row> {
    let mut cores: Vec<(&CpuSet, &RankFacts)> = Vec::new();
    for &rank in &node.ranks {
        for core in &rank.processors.siblings {
            let meets = |other: &RankFacts| rank.processors.allowed.meets(&other.processors.allowed);
            if let Some((_, other)) = cores.iter().find(|(seen, other)| *seen == core && !meets(other)) {
                return Some(Row::warn(
                    NAME,
                    format!(
                        "{}: ranks {} and {} compute on one core, of which {core} are the hyper-threads",
                        node.name, other.place.rank, rank.place.rank
                    ),
                    "give each rank whole cores: mpirun --bind-to core, srun --cpu-bind=cores --hint=nomultithread",
                ));
            }
            cores.push((core, rank));
        }
    }
    None
}
