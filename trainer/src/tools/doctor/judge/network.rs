//! What passes between the ranks.

use super::{Node, named};
use crate::tools::doctor::diagnosis::Row;
use crate::tools::doctor::facts::RankFacts;
use crate::tools::doctor::machine::InterfaceFacts;
use crate::tools::doctor::network::{SpeedFacts, SumFacts};

/// Least bandwidth between nodes, bytes/s: somewhat more than a gigabit of Ethernet carries.
const SLOW_BYTES_PER_S: f64 = 0.15e9;

/// Below it the time is the latency's, not the bandwidth's.
const LARGE_BYTES: u64 = 1 << 20;

/// Differences of the clocks, seconds: files seem to be from the future; certificates and Slurm's messages are refused.
const SKEWED_S: f64 = 1.0;
const BROKEN_S: f64 = 60.0;

/// Known sums are right.
pub(super) fn sums(ranks: &[RankFacts]) -> Row {
    const NAME: &str = "sums";
    if ranks.len() == 1 {
        return Row::ok(NAME, "one rank, nothing to reduce");
    }
    let wrong = |rank: &&RankFacts| rank.sums.iter().any(|sum| sum.wrong.is_some());
    let first = ranks
        .iter()
        .flat_map(|rank| rank.sums.iter())
        .find_map(|sum| Some((sum, sum.wrong.as_ref()?)));
    match first {
        Some((sum, wrong_value)) => Row::fail(
            NAME,
            format!(
                "{}: {}: {wrong_value}",
                named(ranks.iter().filter(wrong)),
                sum.way
            ),
            "do not train here: try --reduction mpi or ring, another network (UCX_TLS, --mca btl), then the memory of the node",
        ),
        None => Row::ok(
            NAME,
            format!(
                "exact on all {} ranks: {}",
                ranks.len(),
                ways(&ranks[0].sums)
            ),
        ),
    }
}

fn ways(sums: &[SumFacts]) -> String {
    sums.iter()
        .map(|sum| sum.way.as_str())
        .collect::<Vec<_>>()
        .join(", ")
}

/// Sums are fast.
pub(super) fn bandwidth(ranks: &[RankFacts], num_nodes: usize) -> Row {
    const NAME: &str = "bandwidth";
    let Some(root) = ranks.first().filter(|_| ranks.len() > 1) else {
        return Row::ok(NAME, "one rank, nothing to reduce");
    };
    // The slowest rank's, as all wait for it.
    let slowest = |way: usize, size: usize| {
        let of_rank = |rank: &RankFacts| rank.sums.get(way)?.speeds.get(size).copied();
        ranks
            .iter()
            .filter_map(of_rank)
            .max_by(|a, b| a.seconds.total_cmp(&b.seconds))
    };
    let mut texts = Vec::new();
    let mut best = 0.0f64;
    for (way, sum) in root
        .sums
        .iter()
        .enumerate()
        .filter(|(_, sum)| !sum.speeds.is_empty())
    {
        let speeds: Vec<SpeedFacts> = (0..sum.speeds.len())
            .filter_map(|size| slowest(way, size))
            .collect();
        let words = speeds.iter().map(|speed| {
            let text = format!(
                "{} in {}",
                crate::measure::report::bytes(speed.bytes),
                time(speed.seconds)
            );
            match speed.bytes {
                ..LARGE_BYTES => text,
                _ => format!(
                    "{text} ({:.2} GB/s)",
                    speed.bus_bytes_per_s(ranks.len()) / 1e9
                ),
            }
        });
        texts.push(format!(
            "{}: {}",
            sum.way,
            words.collect::<Vec<_>>().join(", ")
        ));
        best = best.max(
            speeds
                .last()
                .map_or(0.0, |speed| speed.bus_bytes_per_s(ranks.len())),
        );
    }
    let found = texts.join("; ");
    if num_nodes > 1 && best < SLOW_BYTES_PER_S {
        return Row::warn(
            NAME,
            format!(
                "{found}: slow between nodes, expected {:.2} GB/s",
                SLOW_BYTES_PER_S / 1e9
            ),
            "choose the fast network: mpirun --mca btl_tcp_if_include INTERFACE (see interfaces), or UCX with UCX_NET_DEVICES; \
             where there is none, --compress bf16 or --sync local-sgd send less",
        );
    }
    Row::ok(NAME, found)
}

fn time(seconds: f64) -> String {
    if seconds < 1e-3 {
        format!("{:.0} us", seconds * 1e6)
    } else {
        format!("{:.1} ms", seconds * 1e3)
    }
}

/// Clocks agree.
pub(super) fn clocks(ranks: &[RankFacts]) -> Row {
    const NAME: &str = "clocks";
    if ranks.len() == 1 {
        return Row::ok(NAME, "one rank, one clock");
    }
    let worst = ranks
        .iter()
        .max_by(|a, b| a.clock.offset_s.abs().total_cmp(&b.clock.offset_s.abs()));
    let Some(worst) = worst else {
        return Row::ok(NAME, "none");
    };
    // The part of the difference that the messages' time cannot explain.
    let (skew, uncertainty) = (worst.clock.offset_s.abs(), worst.clock.uncertainty_s);
    let sure = skew - uncertainty;
    let way = if worst.clock.offset_s > 0.0 {
        "behind"
    } else {
        "ahead of"
    };
    let found = format!(
        "{} is {} {way} root, give or take {}",
        named([worst]),
        long_time(skew),
        long_time(uncertainty)
    );
    let remedy = "set the clocks by NTP: chronyc tracking tells how they stand";
    match sure {
        _ if sure > BROKEN_S => Row::fail(NAME, found, remedy),
        _ if sure > SKEWED_S => Row::warn(NAME, found, remedy),
        _ => Row::ok(
            NAME,
            format!(
                "within {} of root's, give or take {}",
                long_time(skew),
                long_time(uncertainty)
            ),
        ),
    }
}

fn long_time(seconds: f64) -> String {
    if seconds < 1.0 {
        time(seconds)
    } else {
        format!("{seconds:.1} s")
    }
}

/// What connects the nodes.
pub(super) fn interfaces(nodes: &[Node<'_>]) -> Row {
    const NAME: &str = "interfaces";
    let words = |interfaces: &[InterfaceFacts]| {
        let of = |interface: &InterfaceFacts| match &interface.speed {
            Some(speed) => format!("{} ({speed})", interface.name),
            None => interface.name.clone(),
        };
        match interfaces {
            [] => "none is up".to_owned(),
            _ => interfaces.iter().map(of).collect::<Vec<_>>().join(", "),
        }
    };
    let mut kinds: Vec<(String, Vec<&str>)> = Vec::new();
    for node in nodes {
        let text = words(&node.ranks[0].interfaces);
        match kinds.iter_mut().find(|(known, _)| *known == text) {
            Some((_, names)) => names.push(node.name),
            None => kinds.push((text, vec![node.name])),
        }
    }
    match kinds.as_slice() {
        [(text, _)] => Row::ok(NAME, text.clone()),
        many => {
            let of = |(text, names): &(String, Vec<&str>)| format!("{}: {text}", names.join(", "));
            Row::ok(NAME, many.iter().map(of).collect::<Vec<_>>().join("; "))
        }
    }
}
