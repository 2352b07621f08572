//! Where and with what a network was measured.
//!
//! In: this process, the ranks. Out: [`Environment`]. Invariant: what cannot be found out says "unknown".

use crate::measure::manifest::cpu_model;
use anyhow::Result;
use distributed::Communicator;
use records::Environment;
use std::time::SystemTime;

/// Asks all ranks for their nodes, and this process for the rest.
/// Collective: all ranks.
pub fn environment(communicator: &dyn Communicator) -> Result<Environment> {
    let topology = communicator.topology();
    let nodes = communicator.all_gather(topology.node.as_bytes())?;
    Ok(Environment {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        commit: env!("LOCKSTEP_COMMIT").to_owned(),
        date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        command_line: std::env::args_os()
            .map(|word| word.to_string_lossy().into_owned())
            .collect(),
        processor: cpu_model(),
        processor_count: std::thread::available_parallelism().map_or(1, usize::from),
        platform: format!("{}-{}", std::env::consts::OS, std::env::consts::ARCH),
        library: communicator.library(),
        ranks: topology.world_size,
        nodes: topology.num_nodes,
        node_of_rank: nodes
            .iter()
            .map(|node| String::from_utf8_lossy(node).into_owned())
            .collect(),
    })
}

/// The most ranks that a node has.
pub fn ranks_per_node(environment: &Environment) -> usize {
    let of = |node: &String| {
        environment
            .node_of_rank
            .iter()
            .filter(|other| *other == node)
            .count()
    };
    environment.node_of_rank.iter().map(of).max().unwrap_or(1)
}
