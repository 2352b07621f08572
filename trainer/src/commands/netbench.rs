//! `trainer netbench`: how fast the ranks reach each other, one by one and together, and the network that a simulation takes from it.
//!
//! In: flags. Out: tables, a JSON file. Invariant: an output that cannot be written is refused before anything is measured.

use std::path::Path;

use anyhow::{Result, ensure};
use distributed::communicator::WaitPolicy;
use records::{Environment, Method, NetbenchResult};
use simulate::NetworkModel;

use crate::config::NetbenchConfig;
use crate::config::cli::NetbenchArgs;
use crate::run::identity;
use crate::tools::netbench::{
    MOST_REPETITIONS, PRECISION, PairPlan, collective_lines, collectives, conclusion_lines,
    environment, heading_lines, overlap, overlap_line, pair_lines, point_to_point, ranks_per_node,
};
use crate::world::ranks::World;

/// Measures messages between pairs of ranks, then collectives; prints each table when it is measured.
/// Collective: all ranks.
///
/// # Errors
/// When flags contradict each other or differ between the ranks, the output cannot be written, or a message or collective fails.
pub fn netbench(args: &NetbenchArgs, world: &World) -> Result<()> {
    let config = NetbenchConfig::resolve(args, world.communicator.world_size())?;
    let watchdog = world.watch(config.timeout)?;
    identity::compare(config.shared_settings(), &*world.communicator)?;
    if let Some(path) = config.output.as_deref().filter(|_| world.is_root()) {
        records::file::check_replaceable(path)?;
    }
    let environment = environment(&*world.communicator)?;
    world.reporter.notes(&heading_lines(&environment));
    let result = measure(&config, world, environment)?;
    if let Some(path) = config.output.as_deref().filter(|_| world.is_root()) {
        records::file::replace_json(path, &result)?;
        world
            .reporter
            .note(&format!("written to {}{}", path.display(), hint(path)));
    }
    if config.json {
        world.reporter.json(&result)?;
    }
    world.end_watch(watchdog)
}

fn hint(path: &Path) -> &'static str {
    let is_json = path
        .extension()
        .is_some_and(|extension| extension.eq_ignore_ascii_case("json"));
    if is_json {
        ", which `trainer bench --simulate-network` takes too"
    } else {
        ""
    }
}

fn measure(
    config: &NetbenchConfig,
    world: &World,
    environment: Environment,
) -> Result<NetbenchResult> {
    let communicator = &world.communicator;
    let nodes = &environment.node_of_rank;
    let plan = PairPlan::new(nodes, config.most_pairs);
    let pairs = point_to_point::measure(config, &**communicator, nodes, &plan, &world.stop)?;
    let links = point_to_point::links(&pairs);
    world
        .reporter
        .notes(&pair_lines(&pairs, plan.num_possible, &links));
    let is_shared = point_to_point::nodes_share_memory(&**communicator, nodes)?;
    let overlap = overlap::measure(communicator, config.time_per_point)?;
    let network = point_to_point::network(&links, ranks_per_node(&environment), is_shared);
    let network = match &overlap {
        // Sums between nodes were measured where there are several.
        Some(overlap) if environment.nodes > 1 => {
            world.reporter.notes(&[overlap_line(overlap)]);
            let sum_slowdown = (overlap.sum_seconds_beside / overlap.sum_seconds).max(1.0);
            network.map(|network| NetworkModel {
                computing_share: overlap.computing_share,
                sum_slowdown,
                ..network
            })
        }
        _ => network,
    };

    let idle = communicator.duplicate()?;
    idle.set_wait_policy(WaitPolicy::Sleep);
    let mut all = Vec::new();
    for &ranks in &config.ranks {
        ensure!(!world.stop.is_raised(), "netbench: stopped by a signal");
        if let Some(part) = communicator.first_ranks(ranks)? {
            let times = collectives::measure(config, &part)?;
            world.reporter.notes(&collective_lines(&times));
            all.extend(times);
        }
        // The others must not take the cores of those that are measured.
        idle.barrier()?;
    }
    if let Some(network) = network.as_ref().filter(|_| world.is_root()) {
        collectives::simulate(&mut all, &config.reductions, network);
    }
    let network = network.as_ref().map(NetworkModel::to_string);
    world.reporter.notes(&conclusion_lines(
        network.as_deref(),
        environment.nodes == 1,
        &all,
    ));
    Ok(NetbenchResult {
        method: Method {
            confidence: records::CONFIDENCE,
            precision: PRECISION,
            seconds_per_point: config.time_per_point.as_secs_f64(),
            most_repetitions: MOST_REPETITIONS,
        },
        possible_pairs: plan.num_possible,
        point_to_point: pairs,
        links,
        overlap,
        network,
        collectives: all,
        environment,
    })
}
