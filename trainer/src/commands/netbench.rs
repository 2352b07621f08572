//! `trainer netbench`: measures the network between the ranks.
//!
//! In: flags. Out: tables, a JSON file. Invariant: an output that cannot be written is rejected
//! before the measurement.

use anyhow::Result;
use distributed::Communicator;
use netbench::NetbenchArgs;
use records::Environment;
use std::path::Path;

use super::output;
use crate::config::{ConfigError, timeout};
use crate::measure::manifest::cpu_model;
use crate::run::identity;
use crate::world::ranks::World;

/// Measures messages between pairs of ranks, then collectives. Prints each table as soon as it is
/// measured. Collective: all ranks.
///
/// # Errors
/// If flags contradict each other or differ between ranks, the output cannot be written, or a
/// message or collective fails.
pub fn netbench(args: &NetbenchArgs, world: &World) -> Result<()> {
    let timeout = timeout(args.timeout)?;
    let plan = args.plan(world.communicator.world_size(), timeout);
    let plan = plan.map_err(ConfigError)?;
    let watchdog = world.watch(timeout)?;
    let mut settings = plan.shared_settings();
    settings.push(("--timeout".to_owned(), timeout.as_secs().to_string()));
    identity::compare(settings, &*world.communicator)?;
    let output = output("--output", args.output.as_ref(), world)?;
    let environment = environment(&*world.communicator)?;
    let reporter = &world.reporter;
    reporter.notes(&netbench::heading_lines(&environment));
    let result = netbench::measure(
        &plan,
        &world.communicator,
        environment,
        &|| world.stop.is_raised(),
        &|lines| reporter.notes(lines),
    )?;
    if let Some(path) = &output {
        records::file::replace_json(path, &result)?;
        world
            .reporter
            .note(&format!("written to {}{}", path.display(), hint(path)));
    }
    if args.json {
        world.reporter.json(&result)?;
    }
    world.end_watch(watchdog)
}

fn hint(path: &Path) -> &'static str {
    let is_json = path
        .extension()
        .is_some_and(|extension| extension.eq_ignore_ascii_case("json"));
    if is_json {
        ", an input of `trainer bench --simulate-network`"
    } else {
        ""
    }
}

/// Returns the nodes of all ranks, and the other facts of this process.
/// Collective: all ranks.
fn environment(communicator: &dyn Communicator) -> Result<Environment> {
    let topology = communicator.topology();
    let nodes = communicator.all_gather(topology.node.as_bytes())?;
    let word = |word: std::ffi::OsString| word.to_string_lossy().into_owned();
    Ok(Environment {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        commit: env!("LOCKSTEP_COMMIT").to_owned(),
        date: records::now(),
        command_line: std::env::args_os().map(word).collect(),
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
