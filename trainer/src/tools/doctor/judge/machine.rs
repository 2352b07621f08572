//! What the nodes have: processors, GPUs, memory, files.

use super::{Node, named, on_all, unlike_root};
use crate::measure::report::bytes;
use crate::tools::doctor::diagnosis::Row;
use crate::tools::doctor::facts::RankFacts;

/// Least memory of a rank.
const RANK_BYTES: u64 = 1 << 30;

/// Least `/dev/shm`, through which the ranks of a node sum.
const SHARED_BYTES: u64 = 64 << 20;

/// Least number of files that a process must be able to open.
const OPEN_FILES: u64 = 1024;

/// What rank computes on, in words.
fn computes(rank: &RankFacts) -> (&str, &str) {
    let set = rank
        .compute
        .as_ref()
        .map_or("none", |compute| compute.instruction_set.as_str());
    (rank.processors.model.as_str(), set)
}

/// The processors, and what our kernels make of them.
pub(super) fn processor(ranks: &[RankFacts]) -> Row {
    const NAME: &str = "processor";
    let Some(root) = ranks.first() else {
        return Row::ok(NAME, "none");
    };
    let differing = unlike_root(ranks, |rank| computes(rank).1);
    let (model, set) = computes(root);
    if let Some(first) = differing.first() {
        let (other_model, other_set) = computes(first);
        return Row::warn(
            NAME,
            format!(
                "{}: kernels for {other_set} ({other_model}); root: {set} ({model}); the slowest rank sets the pace",
                named(differing.iter().copied())
            ),
            "ask for nodes of one kind (Slurm: --constraint); the result stays right",
        );
    }
    if set == "Portable" {
        return Row::warn(
            NAME,
            format!("{model}: portable kernels, without AVX2 and FMA"),
            "use a processor with AVX2, or leave out --cpu portable; training takes several times as long without",
        );
    }
    Row::ok(NAME, format!("{model}, kernels for {set}{}", on_all(ranks)))
}

/// What is computed on; a GPU that is there should be it.
pub(super) fn device(nodes: &[Node<'_>]) -> Row {
    const NAME: &str = "device";
    let ranks = || nodes.iter().flat_map(|node| node.ranks.iter().copied());
    if let Some((first, error)) =
        ranks().find_map(|rank| Some((rank, rank.compute.as_ref().err()?)))
    {
        let failed = ranks().filter(|rank| rank.compute.is_err());
        let remedy = if first.gpus.has_driver {
            "rebuild with --features cuda"
        } else {
            "choose another --device"
        };
        return Row::fail(NAME, format!("{}: {error}", named(failed)), remedy);
    }
    let device = ranks()
        .find_map(|rank| rank.compute.as_ref().ok())
        .map_or("none", |compute| &compute.device);
    let uses_gpu = |rank: &RankFacts| rank.compute.as_ref().is_ok_and(|compute| compute.is_gpu);
    let short = nodes.iter().find(|node| {
        let gpus = node.ranks[0].gpus.num_gpus;
        node.ranks.iter().any(|rank| uses_gpu(rank)) && gpus > 0 && node.ranks.len() > gpus
    });
    if let Some(node) = short {
        let gpus = node.ranks[0].gpus.num_gpus;
        return Row::warn(
            NAME,
            format!("{}: {} ranks on {gpus} GPUs", node.name, node.ranks.len()),
            format!(
                "start {gpus} ranks a node: mpirun --map-by ppr:{gpus}:node, srun --ntasks-per-node={gpus}"
            ),
        );
    }
    if let Some(idle) = nodes
        .iter()
        .find(|node| node.ranks[0].gpus.has_driver && !node.ranks.iter().any(|rank| uses_gpu(rank)))
    {
        return Row::warn(
            NAME,
            format!(
                "{device}; {} has an NVIDIA driver with {} GPUs, which are idle",
                idle.name, idle.ranks[0].gpus.num_gpus
            ),
            "build with --features cuda and leave out --device, or give --device cuda",
        );
    }
    match ranks().any(uses_gpu) {
        true => Row::ok(NAME, format!("{device}, a GPU for every rank")),
        false => Row::ok(NAME, format!("no GPU found, {device} on the CPU")),
    }
}

/// Memory for every rank.
pub(super) fn memory(nodes: &[Node<'_>]) -> Row {
    const NAME: &str = "memory";
    let of_node = |node: &Node<'_>| {
        let memory = &node.ranks[0].memory;
        let left = [memory.available_bytes, memory.group_left_bytes]
            .into_iter()
            .flatten()
            .min()?;
        Some(left / node.ranks.len() as u64)
    };
    let least = nodes
        .iter()
        .filter_map(|node| Some((of_node(node)?, node)))
        .min_by_key(|(bytes, _)| *bytes);
    let Some((least, node)) = least else {
        return Row::warn(
            NAME,
            "unknown",
            "look at `free` on the nodes; /proc tells nothing here",
        );
    };
    let memory = &node.ranks[0].memory;
    let limited =
        if memory.group_left_bytes < memory.available_bytes && memory.group_left_bytes.is_some() {
            ", by the job's own limit"
        } else {
            ""
        };
    let found = format!(
        "{} free for each rank on {}{limited}",
        bytes(least),
        node.name
    );
    if least < RANK_BYTES {
        return Row::warn(
            NAME,
            format!("{found}, expected {}", bytes(RANK_BYTES)),
            "start fewer ranks a node, or ask for more memory (Slurm: --mem-per-cpu); a rank without memory is killed",
        );
    }
    Row::ok(NAME, found)
}

/// Room for the ranks of a node to sum in.
pub(super) fn shared_memory(nodes: &[Node<'_>]) -> Row {
    const NAME: &str = "shared memory";
    let shared = nodes.iter().filter(|node| node.ranks.len() > 1);
    let least = shared
        .filter_map(|node| Some((node.ranks[0].memory.shared_free_bytes?, node.name)))
        .min();
    match least {
        None => Row::ok(NAME, "one rank a node needs none"),
        Some((free, name)) if free < SHARED_BYTES => Row::warn(
            NAME,
            format!(
                "{} free in /dev/shm on {name}, expected {}",
                bytes(free),
                bytes(SHARED_BYTES)
            ),
            "give the container more (docker run --shm-size=1g), or remove old files in /dev/shm; not --ipc=host, where containers \
             share files of one name",
        ),
        Some((free, name)) => Row::ok(NAME, format!("{} free in /dev/shm on {name}", bytes(free))),
    }
}

/// Files and connections of a rank.
pub(super) fn open_files(ranks: &[RankFacts]) -> Row {
    const NAME: &str = "open files";
    let least = ranks
        .iter()
        .filter_map(|rank| Some((rank.memory.open_files?, rank)))
        .min_by_key(|(files, _)| *files);
    match least {
        None => Row::ok(NAME, "no limit known"),
        Some((files, rank)) if files < OPEN_FILES => Row::warn(
            NAME,
            format!(
                "at most {files} on {}, expected {OPEN_FILES}",
                named([rank])
            ),
            "raise the limit: ulimit -n 4096; every connection to a rank of another node takes one",
        ),
        Some((u64::MAX, _)) => Row::ok(NAME, "as many as a rank likes"),
        Some((files, _)) => Row::ok(NAME, format!("up to {files} a rank")),
    }
}

/// Whether a run's records will have joules; training does not need them.
pub(super) fn energy(machines: &[Node<'_>]) -> Row {
    const NAME: &str = "energy";
    let unread = machines
        .iter()
        .find_map(|node| Some((node.name, node.ranks[0].energy.as_ref().err()?)));
    match unread {
        Some((name, error)) => Row::ok(
            NAME,
            format!("no joules in a run's records, as {name} has {error}"),
        ),
        None => Row::ok(NAME, "joules per image by RAPL"),
    }
}
