//! The tables of a measurement.
//!
//! In: times. Out: lines of at most 100 columns, except for names of nodes; units are in the
//! headings.

use crate::points::{PRECISION, percentile};
use records::{
    CollectiveTimes, Environment, FitFacts, Links, Operation, Overlap, PairTimes, SizeTimes, bytes,
    counted,
};
use std::collections::BTreeSet;

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
        let of_group = |pair: &&PairTimes| pair.is_inside_node == is_inside;
        let group: Vec<&PairTimes> = pairs.iter().filter(of_group).collect();
        let place = match is_inside {
            true => "inside a node",
            false => "between nodes",
        };
        // With pairs of nodes, the pair inside one is an example.
        let is_all = (is_inside && pairs.len() > group.len()) || group.len() == possible;
        let choice = match is_all {
            true => String::new(),
            false => format!(", chosen at random of {possible}"),
        };
        let num_pairs = counted(group.len(), "pair");
        let heading = format!("point to point {place}, half of a round trip, {num_pairs}{choice}");
        let largest = match &group[..] {
            [] => continue,
            [first, ..] => first.points.iter().map(|point| point.bytes).max(),
        };
        lines.extend([String::new(), heading]);
        match group[..] {
            [pair] => lines.extend(single_pair(pair)),
            _ => lines.extend(several_pairs(&group)),
        }
        let text = fit.as_ref().map_or_else(
            || {
                let largest = bytes(largest.unwrap_or(0));
                format!("none, as sizes up to {largest} do not determine it")
            },
            fit_text,
        );
        lines.push(format!("fit {place}: {text}"));
        if group.len() > 1 {
            lines.extend(group.iter().take(MOST_PAIRS).map(|pair| {
                let fit = pair.fit.as_ref().map_or("none".to_owned(), fit_text);
                format!("  {}: {fit}", name(pair))
            }));
        }
        if group.len() > MOST_PAIRS {
            let more = group.len() - MOST_PAIRS;
            lines.push(format!("  and {more} more pairs, in --output and --json"));
        }
    }
    lines
}

fn single_pair(pair: &PairTimes) -> Vec<String> {
    let [first, second] = pair.ranks;
    let [node, other] = &pair.nodes;
    let row = |[size, median, p10, p90, speed, times, width, until]: [String; 8]| {
        format!(
            "{size:>8} {median:>11} {p10:>11} {p90:>11} {speed:>9} {times:>7} {width:>6}  {until}"
        )
    };
    let mut lines = vec![
        match pair.is_inside_node {
            true => format!("ranks {first} and {second} on {node}"),
            false => format!("rank {first} on {node}, rank {second} on {other}"),
        },
        row([
            "size",
            "median us",
            "p10 us",
            "p90 us",
            "MB/s",
            "times",
            "+- %",
            "until",
        ]
        .map(str::to_owned)),
    ];
    lines.extend(pair.points.iter().map(|point| {
        let width = point.relative_half_width;
        row([
            bytes(point.bytes),
            microseconds(point.seconds_median),
            microseconds(point.seconds_p10),
            microseconds(point.seconds_p90),
            megabytes_per_s(point.bytes as f64 / point.seconds_median),
            point.repetitions.to_string(),
            width.map_or("-".to_owned(), |width| format!("{:.1}", 100.0 * width)),
            records::name(point.stopped_by),
        ])
    }));
    lines
}

/// Returns the medians of several pairs by size: of the fastest, the middle and the slowest pair.
fn several_pairs(group: &[&PairTimes]) -> Vec<String> {
    let row = |[size, fastest, middle, slowest, speed, pair]: [String; 6]| {
        format!("{size:>8} {fastest:>11} {middle:>11} {slowest:>11} {speed:>9}  {pair}")
    };
    let heading = [
        "size",
        "fastest us",
        "middle us",
        "slowest us",
        "MB/s",
        "slowest pair",
    ];
    let mut lines = vec![row(heading.map(str::to_owned))];
    for (index, point) in group[0].points.iter().enumerate() {
        let median = |pair: &PairTimes| pair.points[index].seconds_median;
        let mut sorted = group.to_vec();
        sorted.sort_by(|a, b| median(a).total_cmp(&median(b)));
        let nanos: Vec<u64> = sorted
            .iter()
            .map(|pair| (median(pair) * 1e9) as u64)
            .collect();
        let middle = percentile(&nanos, 0.5) / 1e9;
        let slowest = sorted[sorted.len() - 1];
        lines.push(row([
            bytes(point.bytes),
            microseconds(median(sorted[0])),
            microseconds(middle),
            microseconds(median(slowest)),
            megabytes_per_s(point.bytes as f64 / middle),
            name(slowest),
        ]));
    }
    lines
}

fn name(pair: &PairTimes) -> String {
    match pair.is_inside_node {
        true => format!("{}-{}", pair.ranks[0], pair.ranks[1]),
        false => pair.nodes.join("-"),
    }
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
    let row = |name: &str, cells: Vec<String>| {
        let cells = cells.iter().map(|cell| format!(" {cell:>11}"));
        format!("{name:>8}{}", cells.collect::<String>())
    };
    let heading = |times: &CollectiveTimes| match times.operation {
        Operation::AllReduce => {
            let algorithm = &times.algorithm;
            match algorithm.char_indices().nth(9) {
                Some((end, _)) if algorithm.chars().count() > 10 => {
                    format!("{}.", &algorithm[..end])
                }
                _ => algorithm.clone(),
            }
        }
        operation => records::name(operation),
    };
    let points = || all.iter().flat_map(|times| &times.points);
    let is_unsure = |point: &SizeTimes| {
        let width = point.relative_half_width;
        width.is_none_or(|width| width >= PRECISION)
    };
    let mut lines = vec![
        String::new(),
        format!(
            "collectives over {} ranks, median us of the slowest rank; the first columns are all-reduces",
            first.ranks
        ),
        row("size", all.iter().map(heading).collect()),
    ];
    let sizes: BTreeSet<u64> = points().map(|point| point.bytes).collect();
    for size in sizes {
        let cell = |times: &CollectiveTimes| {
            let point = times.points.iter().find(|point| point.bytes == size);
            point.map_or("-".to_owned(), |point| {
                let mark = if is_unsure(point) { "~" } else { "" };
                format!("{mark}{}", microseconds(point.seconds_median))
            })
        };
        lines.push(row(&bytes(size), all.iter().map(cell).collect()));
    }
    if points().any(is_unsure) {
        lines.push(format!(
            "~ the median is known to less than {:.0} %; --seconds-per-point is its time",
            100.0 * PRECISION
        ));
    }
    lines
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
        let share = 100.0 * point.simulated_seconds? / point.seconds_median;
        Some(format!("{} {share:.0} %", times.algorithm))
    });
    let simulated: Vec<String> = simulated.collect();
    let first = all.first().and_then(|times| times.points.last());
    if let (Some(first), false) = (first, simulated.is_empty()) {
        lines.push(format!(
            "all-reduce of {} simulated with the fit, of the measured: {}",
            bytes(first.bytes),
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
