//! The tables of a measurement.
//!
//! In: times. Out: lines of at most 100 columns, except for names of nodes; units are in the
//! headings.

use crate::repetitions::{PRECISION, percentile};
use records::{
    CollectiveTimes, Environment, FitFacts, Links, Operation, Overlap, PairTimes, SizeTimes, bytes,
    counted,
};

/// Largest number of pairs whose fits are shown.
const MOST_PAIRS: usize = 24;

/// Returns the lines about ranks, library and CPU.
pub fn heading_lines(environment: &Environment) -> Vec<String> {
    let Environment {
        ranks,
        nodes,
        library,
        processor,
        processor_count,
        ..
    } = environment;
    let library = library.split(',').next().unwrap_or_default();
    let mut lines = vec![
        format!(
            "netbench: {} on {}, {library}",
            counted(*ranks, "rank"),
            counted(*nodes, "node")
        ),
        format!("processor of rank 0: {processor}, {processor_count} to use"),
    ];
    if *ranks == 1 {
        lines
            .push("one rank: there is nothing to measure; start it with mpirun or srun".to_owned());
    }
    lines
}

/// Returns the tables of messages between nodes and inside one, with their fits.
pub(crate) fn pair_lines(pairs: &[PairTimes], possible: usize, links: &Links) -> Vec<String> {
    let mut lines = Vec::new();
    for (is_inside, fit) in [(false, &links.between_nodes), (true, &links.inside_node)] {
        let group: Vec<&PairTimes> = pairs
            .iter()
            .filter(|pair| pair.is_inside_node == is_inside)
            .collect();
        let Some(first) = group.first() else { continue };
        let place = if is_inside {
            "inside a node"
        } else {
            "between nodes"
        };
        // With pairs of nodes, the pair inside one is an example.
        let is_all = (is_inside && pairs.len() > group.len()) || group.len() == possible;
        let choice = if is_all {
            String::new()
        } else {
            format!(", chosen at random of {possible}")
        };
        lines.push(String::new());
        lines.push(format!(
            "point to point {place}, half of a round trip, {}{choice}",
            counted(group.len(), "pair")
        ));
        match group[..] {
            [pair] => lines.extend(single_pair(pair)),
            _ => lines.extend(several_pairs(&group)),
        }
        match fit {
            Some(fit) => lines.push(format!("fit {place}: {}", fit_text(fit))),
            None => lines.push(format!(
                "fit {place}: none, as sizes up to {} do not determine it",
                largest(first)
            )),
        }
        if group.len() > 1 {
            lines.extend(group.iter().take(MOST_PAIRS).map(|pair| fit_of_pair(pair)));
            if group.len() > MOST_PAIRS {
                lines.push(format!(
                    "  and {} more pairs, in --output and --json",
                    group.len() - MOST_PAIRS
                ));
            }
        }
    }
    lines
}

fn largest(pair: &PairTimes) -> String {
    bytes(
        pair.points
            .iter()
            .map(|point| point.bytes)
            .max()
            .unwrap_or(0),
    )
}

fn single_pair(pair: &PairTimes) -> Vec<String> {
    let ([first, second], [node, other]) = (pair.ranks, &pair.nodes);
    let mut lines = vec![match pair.is_inside_node {
        true => format!("ranks {first} and {second} on {node}"),
        false => format!("rank {first} on {node}, rank {second} on {other}"),
    }];
    lines.push(format!(
        "{:>8} {:>11} {:>11} {:>11} {:>9} {:>7} {:>6}  {}",
        "size", "median us", "p10 us", "p90 us", "MB/s", "times", "+- %", "until"
    ));
    for point in &pair.points {
        let width = point
            .relative_half_width
            .map_or("-".to_owned(), |width| format!("{:.1}", 100.0 * width));
        lines.push(format!(
            "{:>8} {:>11} {:>11} {:>11} {:>9} {:>7} {width:>6}  {}",
            bytes(point.bytes),
            microseconds(point.seconds_median),
            microseconds(point.seconds_p10),
            microseconds(point.seconds_p90),
            megabytes_per_s(point.bytes as f64 / point.seconds_median),
            point.repetitions,
            format!("{:?}", point.stopped_by).to_lowercase(),
        ));
    }
    lines
}

/// Returns the medians of several pairs by size: of the fastest, the middle and the slowest pair.
fn several_pairs(group: &[&PairTimes]) -> Vec<String> {
    let mut lines = vec![format!(
        "{:>8} {:>11} {:>11} {:>11} {:>9}  {}",
        "size", "fastest us", "middle us", "slowest us", "MB/s", "slowest pair"
    )];
    for (index, point) in group[0].points.iter().enumerate() {
        let mut medians: Vec<(f64, &PairTimes)> = group
            .iter()
            .map(|pair| (pair.points[index].seconds_median, *pair))
            .collect();
        medians.sort_by(|a, b| a.0.total_cmp(&b.0));
        let nanos: Vec<u64> = medians
            .iter()
            .map(|(seconds, _)| (seconds * 1e9) as u64)
            .collect();
        let middle = percentile(&nanos, 0.5) / 1e9;
        let (slowest, pair) = medians[medians.len() - 1];
        lines.push(format!(
            "{:>8} {:>11} {:>11} {:>11} {:>9}  {}",
            bytes(point.bytes),
            microseconds(medians[0].0),
            microseconds(middle),
            microseconds(slowest),
            megabytes_per_s(point.bytes as f64 / middle),
            name(pair),
        ));
    }
    lines
}

fn name(pair: &PairTimes) -> String {
    match pair.is_inside_node {
        true => format!("{}-{}", pair.ranks[0], pair.ranks[1]),
        false => format!("{}-{}", pair.nodes[0], pair.nodes[1]),
    }
}

fn fit_of_pair(pair: &PairTimes) -> String {
    format!(
        "  {}: {}",
        name(pair),
        pair.fit.as_ref().map_or("none".to_owned(), fit_text)
    )
}

fn fit_text(fit: &FitFacts) -> String {
    let burst = if fit.burst_bytes > 0.0 {
        format!(", bursts of {}", bytes(fit.burst_bytes as u64))
    } else {
        String::new()
    };
    format!(
        "latency {} us, bandwidth {} MB/s{burst}, residual {:.0} % (worst {:+.0} % at {})",
        microseconds(fit.alpha_s),
        megabytes_per_s(fit.bandwidth_bytes_per_s),
        100.0 * fit.residual,
        100.0 * fit.worst_residual,
        bytes(fit.worst_bytes)
    )
}

/// Returns the line about the cost of sums for a computation.
pub(crate) fn overlap_line(overlap: &Overlap) -> String {
    format!(
        "computing during all-reduces of {} is {:.1} % slower, and these take {} us each instead of {}",
        bytes(overlap.bytes),
        100.0 * overlap.computing_share,
        microseconds(overlap.sum_seconds_beside),
        microseconds(overlap.sum_seconds)
    )
}

/// Returns the table of collectives on one number of ranks: a line for each size, a column for each
/// algorithm.
pub(crate) fn collective_lines(all: &[CollectiveTimes]) -> Vec<String> {
    let Some(first) = all.first() else {
        return Vec::new();
    };
    let heading = |times: &CollectiveTimes| match times.operation {
        Operation::AllReduce => shortened(&times.algorithm),
        Operation::Broadcast => "broadcast".to_owned(),
        Operation::AllGather => "all-gather".to_owned(),
    };
    let row = |name: &str, cells: &mut dyn Iterator<Item = String>| {
        cells.fold(format!("{name:>8}"), |line, cell| {
            line + &format!(" {cell:>11}")
        })
    };
    let mut sizes: Vec<u64> = all
        .iter()
        .flat_map(|times| &times.points)
        .map(|point| point.bytes)
        .collect();
    sizes.sort_unstable();
    sizes.dedup();
    let mut lines = vec![
        String::new(),
        format!(
            "collectives over {} ranks, median us of the slowest rank; the first columns are all-reduces",
            first.ranks
        ),
        row("size", &mut all.iter().map(heading)),
    ];
    let mut is_any_unsure = false;
    for size in sizes {
        let mut cells = all.iter().map(|times| {
            let point = times.points.iter().find(|point| point.bytes == size);
            is_any_unsure |= point.is_some_and(is_unsure);
            point.map_or("-".to_owned(), cell)
        });
        lines.push(row(&bytes(size), &mut cells));
    }
    if is_any_unsure {
        lines.push(format!(
            "~ the median is known to less than {:.0} %; --seconds-per-point is its time",
            100.0 * PRECISION
        ));
    }
    lines
}

/// Returns an algorithm's name for a column.
fn shortened(algorithm: &str) -> String {
    match algorithm.char_indices().nth(9) {
        Some((end, _)) if algorithm.chars().count() > 10 => format!("{}.", &algorithm[..end]),
        _ => algorithm.to_owned(),
    }
}

fn is_unsure(point: &SizeTimes) -> bool {
    point
        .relative_half_width
        .is_none_or(|width| width >= PRECISION)
}

fn cell(point: &SizeTimes) -> String {
    format!(
        "{}{}",
        if is_unsure(point) { "~" } else { "" },
        microseconds(point.seconds_median)
    )
}

/// Returns the lines about the network of a simulation.
pub(crate) fn conclusion_lines(
    network: Option<&str>,
    is_one_node: bool,
    all: &[CollectiveTimes],
) -> Vec<String> {
    let Some(network) = network else {
        return Vec::new();
    };
    let mut lines = vec![String::new()];
    let simulated = all.iter().filter_map(|times| {
        let point = times.points.last()?;
        let share = point.simulated_seconds? / point.seconds_median;
        Some(format!("{} {:.0} %", times.algorithm, 100.0 * share))
    });
    let simulated: Vec<String> = simulated.collect();
    if let (Some(first), false) = (
        all.first().and_then(|times| times.points.last()),
        simulated.is_empty(),
    ) {
        let size = bytes(first.bytes);
        lines.push(format!(
            "all-reduce of {size} simulated with the fit, of the measured: {}",
            simulated.join(", ")
        ));
    }
    if is_one_node {
        lines.push(
            "measured on one node: a simulation takes messages between nodes to be as fast"
                .to_owned(),
        );
    }
    lines.push(format!("network: --simulate-network {network}"));
    lines
}

/// Returns microseconds with about four digits.
fn microseconds(seconds: f64) -> String {
    digits(seconds * 1e6)
}

/// Returns 10^6 bytes per second.
fn megabytes_per_s(bytes_per_s: f64) -> String {
    digits(bytes_per_s / 1e6)
}

fn digits(value: f64) -> String {
    match value {
        _ if value < 100.0 => format!("{value:.2}"),
        _ if value < 1000.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests;
