//! Which way gradients take.

use super::Node;
use crate::tools::doctor::diagnosis::Row;
use crate::tools::doctor::gradients::GradientFacts;

const NAME: &str = "gradients' way";

/// Through host memory; between GPUs also by NCCL, where every node has the same.
pub(super) fn way(nodes: &[Node<'_>]) -> Row {
    if nodes.iter().map(|node| node.ranks.len()).sum::<usize>() < 2 {
        return Row::ok(NAME, "one rank, none to take");
    }
    let with_gpus: Vec<(&str, &GradientFacts)> = nodes
        .iter()
        .filter_map(|node| {
            Some((
                node.name,
                node.ranks.iter().find_map(|rank| rank.gradients.as_ref())?,
            ))
        })
        .collect();
    let Some((first_name, first)) = with_gpus.first() else {
        return Row::ok(NAME, "host memory over MPI");
    };
    let aware = match first.is_cuda_aware {
        Some(true) => "MPI is CUDA-aware, which is not used: only host memory is sent",
        Some(false) => "MPI is not CUDA-aware, and need not be: only host memory is sent",
        None => {
            "whether MPI is CUDA-aware is unknown, and need not be known: only host memory is sent"
        }
    };
    let staged = "staged through host memory over MPI";
    if let Some((name, without)) = with_gpus
        .iter()
        .find(|(_, facts)| facts.nccl_version.is_none())
    {
        let files = match without.nccl_files.as_slice() {
            [] => "no libnccl.so in the loader's folders".to_owned(),
            files if files.iter().all(|file| file.ends_with(".so.2")) => {
                format!(
                    "libnccl.so is looked for, there is only {}",
                    files.join(", ")
                )
            }
            files => format!("there is {}", files.join(", ")),
        };
        return Row::ok(
            NAME,
            format!("{staged}; not by NCCL, which does not load on {name} ({files}); {aware}"),
        );
    }
    if let Some((name, other)) = with_gpus
        .iter()
        .find(|(_, facts)| facts.nccl_version != first.nccl_version)
    {
        let version = |facts: &GradientFacts| facts.nccl_version.clone().unwrap_or_default();
        return Row::warn(
            NAME,
            format!(
                "{staged}; not by NCCL, which is {} on {first_name} and {} on {name}",
                version(first),
                version(other)
            ),
            "load the same NCCL on every node, or do without --reduction nccl",
        );
    }
    let version = first.nccl_version.clone().unwrap_or_default();
    Row::ok(
        NAME,
        format!("{staged}; by NCCL {version} with --reduction nccl; {aware}"),
    )
}
