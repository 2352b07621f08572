//! Where and with what a network was measured.
//!
//! In: this process, the ranks. Out: [`Environment`]. Invariant: what cannot be found out says "unknown".

use crate::manifest::cpu_model;
use anyhow::Result;
use distributed::Communicator;
use serde::{Deserialize, Serialize};
use std::time::SystemTime;

/// The circumstances of a measurement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Environment {
    /// Version of the program.
    pub version: String,
    /// Commit the program was built from, or "unknown".
    pub commit: String,
    /// Start in UTC, RFC 3339.
    pub date: String,
    /// Program and flags as typed.
    pub command_line: Vec<String>,
    /// Processor of root's machine.
    pub processor: String,
    /// Processors root may use.
    pub processor_count: usize,
    /// Operating system and architecture.
    pub platform: String,
    /// The communication library, its first line about itself.
    pub library: String,
    /// Number of ranks.
    pub ranks: usize,
    /// Number of nodes.
    pub nodes: usize,
    /// The node of every rank.
    pub node_of_rank: Vec<String>,
}

impl Environment {
    /// Asks all ranks for their nodes, and this process for the rest.
    ///
    /// # Errors
    /// When a collective fails.
    ///
    /// # Collective
    /// Must be called by all ranks.
    pub fn gather(communicator: &dyn Communicator) -> Result<Self> {
        let topology = communicator.topology();
        let nodes = communicator.all_gather(topology.node.as_bytes())?;
        Ok(Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            commit: env!("LOCKSTEP_COMMIT").to_owned(),
            date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            command_line: std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect(),
            processor: cpu_model(),
            processor_count: std::thread::available_parallelism().map_or(1, usize::from),
            platform: format!("{}-{}", std::env::consts::OS, std::env::consts::ARCH),
            library: communicator.library(),
            ranks: topology.world_size,
            nodes: topology.num_nodes,
            node_of_rank: nodes.iter().map(|node| String::from_utf8_lossy(node).into_owned()).collect(),
        })
    }

    /// The most ranks that a node has.
    pub fn ranks_per_node(&self) -> usize {
        let of = |node: &String| self.node_of_rank.iter().filter(|other| *other == node).count();
        self.node_of_rank.iter().map(of).max().unwrap_or(1)
    }
}
