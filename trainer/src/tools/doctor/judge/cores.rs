//! Which processors the ranks compute on.

use records::counted;

use super::Node;
use crate::tools::doctor::cpu_set::CpuSet;
use crate::tools::doctor::diagnosis::{MapLine, Row};
use crate::tools::doctor::facts::RankFacts;
use crate::tools::doctor::machine::QuotaFacts;

const NAME: &str = "cores";

/// No CPU for two ranks, no more threads than CPUs and their quotas, no CPU without a thread. Of several nodes the worst row is returned.
pub(super) fn cores(nodes: &[Node<'_>]) -> Row {
    let mut worst: Option<Row> = None;
    for row in nodes.iter().filter_map(of_node) {
        if worst
            .as_ref()
            .is_none_or(|worst| row.verdict > worst.verdict)
        {
            worst = Some(row);
        }
    }
    worst.unwrap_or_else(|| {
        let ranks = || nodes.iter().flat_map(|node| &node.ranks);
        let threads: usize = ranks().map(|rank| threads(rank)).sum();
        let quota = ranks()
            .flat_map(|rank| &rank.processors.quotas)
            .map(|quota| quota.cpus)
            .reduce(f64::min);
        let limited = quota.map_or(String::new(), |cpus| {
            format!(", within a CPU quota of {cpus:.1}")
        });
        Row::ok(
            NAME,
            format!("{threads} compute threads in all, each with a core of its own{limited}"),
        )
    })
}

/// Where the ranks are; neighbours with the same processors and threads in one line.
pub(super) fn map(nodes: &[Node<'_>]) -> Vec<MapLine> {
    let mut lines = Vec::new();
    for node in nodes {
        let key = |rank: &RankFacts| {
            (
                rank.processors.allowed.clone(),
                rank.compute.as_ref().ok().map(|compute| compute.threads),
            )
        };
        for group in node.ranks.chunk_by(|a, b| key(a) == key(b)) {
            let (allowed, threads) = key(group[0]);
            lines.push(MapLine {
                node: node.name.to_owned(),
                ranks: group
                    .iter()
                    .map(|rank| rank.place.rank)
                    .collect::<CpuSet>()
                    .to_string(),
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
        .filter_map(|group| of_group(node, &group))
        .max_by_key(|row| row.verdict);
    crowded
        .or_else(|| beyond_quota(node))
        .or_else(|| shared_core(node))
        .or_else(|| idle(node))
}

/// The ranks of a node that are under a quota; containers with different node names may call different groups the same.
fn under<'a>(node: &Node<'a>, name: &str, quota: &QuotaFacts) -> Vec<&'a RankFacts> {
    let is_under = |rank: &&RankFacts| {
        rank.place.node == name
            && rank
                .processors
                .quotas
                .iter()
                .any(|other| other.group == quota.group)
    };
    node.ranks.iter().copied().filter(is_under).collect()
}

/// Ranks with more threads than the CPU quota of their control group.
fn beyond_quota(node: &Node<'_>) -> Option<Row> {
    let quotas = node.ranks.iter().flat_map(|rank| {
        rank.processors
            .quotas
            .iter()
            .map(|quota| (&rank.place.node, quota))
    });
    quotas.into_iter().find_map(|(name, quota)| {
        let members = under(node, name, quota);
        let num_threads: usize = members.iter().map(|rank| threads(rank)).sum();
        if num_threads as f64 <= quota.cpus || num_threads == 1 {
            return None;
        }
        let remedy = match quota.cpus as usize / members.len() {
            0 => format!("start at most {} under it", counted((quota.cpus as usize).max(1), "rank")),
            each => format!("give --threads {each}"),
        };
        Some(Row::warn(
            NAME,
            format!(
                "{name}: {} with {num_threads} threads under a CPU quota of {:.1} ({}): Linux pauses them in every period",
                numbers(&members),
                quota.cpus,
                quota.group
            ),
            format!("{remedy}, or raise the quota (docker --cpus, Kubernetes limits.cpu)"),
        ))
    })
}

/// CPUs that no rank uses, where there is at least one for each rank.
fn idle(node: &Node<'_>) -> Option<Row> {
    let computes_elsewhere =
        |rank: &&RankFacts| rank.compute.as_ref().map_or(true, |compute| compute.is_gpu);
    let count = node.ranks.len();
    if node.ranks.iter().any(computes_elsewhere) {
        return None;
    }
    let open = node
        .ranks
        .iter()
        .fold(CpuSet::default(), |open, rank| {
            open.union(&rank.processors.machine)
        })
        .len();
    let granted = node
        .ranks
        .iter()
        .filter_map(|rank| rank.processors.granted)
        .max();
    let first = node.ranks[0];
    let of_all = first
        .processors
        .quotas
        .iter()
        .filter(|quota| under(node, &first.place.node, quota).len() == count);
    let quota = of_all.map(|quota| quota.cpus as usize).min();
    let num_cpus = [Some(open), granted, quota].into_iter().flatten().min()?;
    let num_threads: usize = node.ranks.iter().map(|rank| threads(rank)).sum();
    let num_idle = num_cpus.saturating_sub(num_threads);
    if num_idle < count {
        return None;
    }
    let each = num_cpus / count;
    Some(Row::warn(
        NAME,
        format!(
            "{}: {} with {} on {}: {num_idle} idle",
            node.name,
            numbers(&node.ranks),
            counted(num_threads, "thread"),
            counted(num_cpus, "CPU")
        ),
        format!(
            "give each rank {each} CPUs: --threads {each}, bound to as many (mpirun --map-by slot:PE={each}, srun --cpus-per-task={each}) \
             or to none; or start more ranks"
        ),
    ))
}

/// `rank 3`, or `ranks 0-3` of several.
fn numbers(ranks: &[&RankFacts]) -> String {
    let numbers: CpuSet = ranks.iter().map(|rank| rank.place.rank).collect();
    format!("rank{} {numbers}", if ranks.len() == 1 { "" } else { "s" })
}

/// Ranks whose processors meet, and all of these processors.
struct Group<'a> {
    ranks: Vec<&'a RankFacts>,
    processors: CpuSet,
}

fn groups<'a>(node: &Node<'a>) -> Vec<Group<'a>> {
    let mut groups: Vec<Group<'a>> = Vec::new();
    for &rank in &node.ranks {
        let mut grown = Group {
            ranks: vec![rank],
            processors: rank.processors.allowed.clone(),
        };
        let (meeting, others): (Vec<_>, Vec<_>) = groups
            .into_iter()
            .partition(|group| group.processors.meets(&grown.processors));
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
            0 => format!(
                "; if the job has no other cores, start at most {num_processors} of these ranks"
            ),
            _ => format!(", or --threads {each}"),
        };
        return Some(Row::fail(
            NAME,
            format!(
                "{name}: ranks {ranks} are bound to the same cores, {processors} of {machine}, with {num_threads} threads on \
                 {num_processors}: double binding"
            ),
            format!(
                "bind each rank to cores of its own: mpirun --bind-to core, srun --cpu-bind=cores{instead}"
            ),
        ));
    }
    let who = if count == 1 {
        format!("rank {ranks} has")
    } else {
        format!("ranks {ranks} have")
    };
    let remedy = match each {
        0 => format!("start at most {} a node", counted(num_processors, "rank")),
        _ => format!("give --threads {each}, or fewer ranks a node"),
    };
    let cores = if num_processors == 1 { "core" } else { "cores" };
    let found = format!(
        "{name}: {who} {num_threads} threads on {num_processors} {cores} ({processors}): oversubscribed"
    );
    Some(Row::warn(NAME, found, remedy))
}

/// Two ranks, each on processors of its own, that are one core's.
fn shared_core(node: &Node<'_>) -> Option<Row> {
    let mut cores: Vec<(&CpuSet, &RankFacts)> = Vec::new();
    for &rank in &node.ranks {
        for core in &rank.processors.siblings {
            let meets =
                |other: &RankFacts| rank.processors.allowed.meets(&other.processors.allowed);
            if let Some((_, other)) = cores
                .iter()
                .find(|(seen, other)| *seen == core && !meets(other))
            {
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
