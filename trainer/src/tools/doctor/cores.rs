//! Check of the CPUs that the ranks compute on.

use records::counted;

use super::cpu_set::CpuSet;
use super::facts::RankFacts;
use super::machine::QuotaFacts;
use super::{Facts, Node, numbers};
use crate::tools::check::Finding;

/// Returns the worst finding of all machines.
///
/// A finding is about shared CPUs, threads beyond a quota, shared hyper-threads, or idle CPUs.
pub(super) fn cores(facts: &Facts<'_>) -> Finding {
    // Of equal findings, `max_by_key` returns the last, so the reversed order selects the first.
    let worst = facts.machines.iter().rev().filter_map(of_machine);
    let worst = worst.max_by_key(|finding| finding.verdict);
    worst.unwrap_or_else(|| {
        let threads: usize = facts.ranks.iter().map(threads).sum();
        let quotas = facts.ranks.iter().flat_map(|rank| &rank.processors.quotas);
        let quota = quotas.map(|quota| quota.cpus).reduce(f64::min);
        let quota = quota.map(|cpus| format!(", within a CPU quota of {cpus:.1}"));
        let quota = quota.unwrap_or_default();
        Finding::ok(format!(
            "{threads} compute threads in all, each on its own core{quota}"
        ))
    })
}

fn threads(rank: &RankFacts) -> usize {
    rank.compute.as_ref().map_or(0, |compute| compute.threads)
}

fn sum_of_threads(ranks: &[&RankFacts]) -> usize {
    ranks.iter().map(|rank| threads(rank)).sum()
}

/// Returns `rank 3` or `ranks 0-3`.
fn named(ranks: &[&RankFacts]) -> String {
    let plural = if ranks.len() == 1 { "" } else { "s" };
    format!("rank{plural} {}", numbers(ranks))
}

fn of_machine(node: &Node<'_>) -> Option<Finding> {
    let crowded = groups(node)
        .into_iter()
        .filter_map(|(ranks, processors)| crowded(node, &ranks, &processors));
    crowded
        .max_by_key(|finding| finding.verdict)
        .or_else(|| beyond_quota(node))
        .or_else(|| shared_core(node))
        .or_else(|| idle(node))
}

/// Returns the ranks under a quota. Groups of different containers may have the same name.
fn under<'a>(node: &Node<'a>, name: &str, quota: &QuotaFacts) -> Vec<&'a RankFacts> {
    let is_under = |rank: &&RankFacts| {
        let mut quotas = rank.processors.quotas.iter();
        rank.place.node == name && quotas.any(|other| other.group == quota.group)
    };
    node.ranks.iter().copied().filter(is_under).collect()
}

/// Finds ranks with more threads than the CPU quota of their control group.
fn beyond_quota(node: &Node<'_>) -> Option<Finding> {
    let quotas = node.ranks.iter().flat_map(|rank| {
        rank.processors
            .quotas
            .iter()
            .map(|quota| (&rank.place.node, quota))
    });
    let mut exceeded = quotas.filter_map(|(name, quota)| {
        let members = under(node, name, quota);
        let num_threads = sum_of_threads(&members);
        let is_exceeded = num_threads as f64 > quota.cpus && num_threads > 1;
        is_exceeded.then_some((name, quota, members, num_threads))
    });
    let (name, quota, members, num_threads) = exceeded.next()?;
    let remedy = match quota.cpus as usize / members.len() {
        0 => format!(
            "start at most {} under it",
            counted((quota.cpus as usize).max(1), "rank")
        ),
        each => format!("give --threads {each}"),
    };
    let found = format!(
        "{name}: {} with {num_threads} threads under a CPU quota of {:.1} ({}): Linux pauses them in every period",
        named(&members),
        quota.cpus,
        quota.group
    );
    let remedy = format!("{remedy}, or raise the quota (docker --cpus, Kubernetes limits.cpu)");
    Some(Finding::warn(found, remedy))
}

/// Finds idle CPUs, if at least one is idle for each rank.
fn idle(node: &Node<'_>) -> Option<Finding> {
    let computes_elsewhere =
        |rank: &&RankFacts| rank.compute.as_ref().map_or(true, |compute| compute.is_gpu);
    if node.ranks.iter().any(computes_elsewhere) {
        return None;
    }
    let count = node.ranks.len();
    let processors = || node.ranks.iter().map(|rank| &rank.processors);
    let open: CpuSet = processors()
        .flat_map(|one| one.machine.iter().copied())
        .collect();
    let granted = processors().filter_map(|one| one.granted).max();
    let first = node.ranks[0];
    let is_of_all = |quota: &&QuotaFacts| under(node, &first.place.node, quota).len() == count;
    let quotas = first.processors.quotas.iter().filter(is_of_all);
    let quota = quotas.map(|quota| quota.cpus as usize).min();
    let limits = [Some(open.len()), granted, quota];
    let num_cpus = limits.into_iter().flatten().min()?;
    let num_threads = sum_of_threads(&node.ranks);
    let num_idle = num_cpus.saturating_sub(num_threads);
    if num_idle < count {
        return None;
    }
    let each = num_cpus / count;
    Some(Finding::warn(
        format!(
            "{}: {} with {} on {}: {num_idle} idle",
            node.name,
            named(&node.ranks),
            counted(num_threads, "thread"),
            counted(num_cpus, "CPU")
        ),
        format!(
            "give each rank {each} CPUs: --threads {each}, bound to as many (mpirun --map-by slot:PE={each}, srun --cpus-per-task={each}) or to none; or start more ranks"
        ),
    ))
}

/// Returns groups of ranks with overlapping CPUs, and all CPUs of each group.
fn groups<'a>(node: &Node<'a>) -> Vec<(Vec<&'a RankFacts>, CpuSet)> {
    let mut groups: Vec<(Vec<&'a RankFacts>, CpuSet)> = Vec::new();
    for &rank in &node.ranks {
        let allowed = &rank.processors.allowed;
        let mut ranks = vec![rank];
        let mut cpus = allowed.clone();
        let overlaps = |group: &mut (_, CpuSet)| !group.1.is_disjoint(allowed);
        for (other_ranks, other) in groups.extract_if(.., overlaps) {
            ranks.extend(other_ranks);
            cpus = cpus.union(&other).copied().collect();
        }
        ranks.sort_by_key(|rank| rank.place.rank);
        groups.push((ranks, cpus));
    }
    groups
}

/// Finds a group with more threads than CPUs.
fn crowded(node: &Node<'_>, group: &[&RankFacts], processors: &CpuSet) -> Option<Finding> {
    let num_threads = sum_of_threads(group);
    let num_processors = processors.len();
    if num_processors == 0 || num_threads <= num_processors {
        return None;
    }
    let machine = group[0].processors.machine.len();
    let ranks = named(group);
    let name = node.name;
    let count = group.len();
    let each = num_processors / count;
    if count > 1 && num_processors < machine {
        let instead = match each {
            0 => format!(
                "; if the job has no other cores, start at most {num_processors} of these ranks"
            ),
            _ => format!(", or --threads {each}"),
        };
        return Some(Finding::fail(
            format!(
                "{name}: {ranks} are bound to the same cores, {processors} of {machine}, with {num_threads} threads on {num_processors}: double binding"
            ),
            format!(
                "bind each rank to its own cores: mpirun --bind-to core, srun --cpu-bind=cores{instead}"
            ),
        ));
    }
    let has = if count == 1 { "has" } else { "have" };
    let cores = counted(num_processors, "core");
    let remedy = match each {
        0 => format!("start at most {} per node", counted(num_processors, "rank")),
        _ => format!("give --threads {each}, or fewer ranks per node"),
    };
    let found = format!(
        "{name}: {ranks} {has} {num_threads} threads on {cores} ({processors}): oversubscribed"
    );
    Some(Finding::warn(found, remedy))
}

/// Finds two ranks whose different CPUs are hyper-threads of one core.
fn shared_core(node: &Node<'_>) -> Option<Finding> {
    let mut cores: Vec<(&CpuSet, &RankFacts)> = Vec::new();
    for &rank in &node.ranks {
        let allowed = &rank.processors.allowed;
        for core in &rank.processors.siblings {
            let is_shared = |(seen, other): &&(&CpuSet, &RankFacts)| {
                *seen == core && allowed.is_disjoint(&other.processors.allowed)
            };
            if let Some((_, other)) = cores.iter().find(is_shared) {
                let found = format!(
                    "{}: ranks {} and {} compute on the hyper-threads {core} of one core",
                    node.name, other.place.rank, rank.place.rank
                );
                let remedy = "give each rank whole cores: mpirun --bind-to core, srun --cpu-bind=cores --hint=nomultithread";
                return Some(Finding::warn(found, remedy));
            }
            cores.push((core, rank));
        }
    }
    None
}
