//! Bandwidth and time by message size.
//!
//! In: files of `trainer netbench`. Out: figures with the fitted line, a table of fits.
//! Invariant: points are medians, bars the 10th and 90th percentile. A fit or simulation is dashed.

use super::Facts;
use crate::chart::{Axis, Kind, MOST_SERIES, Point, Series, Unit};
use crate::document::{NamedRow, Section, number, percent, row};
use records::{CollectiveTimes, FitFacts, NetbenchResult, SizeTimes};
use std::collections::BTreeMap;

/// Pairs of ranks that are drawn; the fit covers all.
const MOST_PAIRS: usize = 3;

/// Points of a fitted line.
const FITTED_POINTS: u32 = 48;

pub(super) fn add(facts: &Facts<'_>, section: &mut Section) {
    let mut fits: Vec<NamedRow> = Vec::new();
    for (name, network) in &facts.sources.networks {
        pairs(name, network, section);
        collectives(name, network, section);
        for (place, fit) in links(network) {
            fits.extend(fit.map(|fit| of_fit(name, place, fit)));
        }
    }
    let title = "Latency and bandwidth, fitted to all sizes";
    section.table("network-fits", title, fits);
}

/// Returns the links inside and between nodes with their fits.
fn links(network: &NetbenchResult) -> [(&'static str, Option<&FitFacts>); 2] {
    [
        ("between nodes", network.links.between_nodes.as_ref()),
        ("inside a node", network.links.inside_node.as_ref()),
    ]
}

fn of_fit(name: &str, place: &str, fit: &FitFacts) -> NamedRow {
    row![
        "measurement" => name,
        "pairs" => place,
        "latency, us" => number(fit.alpha_s * 1e6, 2),
        "bandwidth, MB/s" => number(fit.bandwidth_bytes_per_s / 1e6, 1),
        "burst, KiB" => number(fit.burst_bytes / 1024.0, 0),
        "residual, %" => percent(fit.residual, 0),
        "worst residual, %" => percent(fit.worst_residual, 0),
        "at bytes" => fit.worst_bytes,
    ]
}

/// Draws series over the message size; the words are id, title and caption.
fn draw(
    section: &mut Section,
    network: &NetbenchResult,
    [id, title, caption]: [&str; 3],
    y: &str,
    series: Vec<Series>,
) {
    let environment = &network.environment;
    let caption = format!(
        "{caption} {} on {}, {}, {}. Every point was repeated until its median was known to {:.0} % or for {} s; the first repetition is the warm-up and excluded. Points are medians, bars the 10th and 90th percentile.",
        records::counted(environment.ranks, "rank"),
        records::counted(environment.nodes, "node"),
        environment.processor,
        environment.library.split(',').next().unwrap_or_default(),
        100.0 * network.method.precision,
        network.method.seconds_per_point
    );
    section.lines(
        [id, title, &caption],
        Axis::logarithmic("message size").in_unit(Unit::Bytes),
        Axis::logarithmic(y),
        series,
    );
}

/// Returns the times of all sizes, or with `is_bandwidth` the bytes per time, in units of 1e-6.
fn points(times: &[SizeTimes], is_bandwidth: bool) -> Vec<Point> {
    let point = |size: &SizeTimes| {
        let bytes = size.bytes as f64;
        let of = |seconds: f64| match is_bandwidth {
            true => bytes / seconds / 1e6,
            false => seconds * 1e6,
        };
        let ends = [size.seconds_p10, size.seconds_p90].map(of);
        Point {
            x: bytes,
            y: of(size.seconds_median),
            range: Some((ends[0].min(ends[1]), ends[0].max(ends[1]))),
        }
    };
    times
        .iter()
        .filter(|size| size.bytes > 0)
        .map(point)
        .collect()
}

/// Draws bandwidth and time of messages between pairs of ranks.
fn pairs(name: &str, network: &NetbenchResult, section: &mut Section) {
    for is_bandwidth in [true, false] {
        let mut series = Vec::new();
        let mut num_pairs = 0;
        for (place, fit) in links(network) {
            let mut pairs = network.point_to_point.clone();
            pairs.retain(|pair| pair.is_inside_node == (place == "inside a node"));
            for pair in pairs.iter().take(MOST_PAIRS) {
                let [a, b] = pair.ranks;
                let name = format!("ranks {a} and {b}, {place}");
                let points = points(&pair.points, is_bandwidth);
                series.push(Series::line(name, num_pairs, Kind::Measured, points));
                num_pairs += 1;
            }
            let sizes = pairs.iter().flat_map(|pair| &pair.points);
            let sizes = sizes
                .map(|size| size.bytes as f64)
                .filter(|bytes| *bytes > 0.0);
            let low = sizes.clone().fold(f64::INFINITY, f64::min);
            let high = sizes.fold(0.0, f64::max);
            let Some(fit) = fit.filter(|_| high > 0.0) else {
                continue;
            };
            let point = |index: u32| {
                let part = f64::from(index) / f64::from(FITTED_POINTS);
                let bytes = low * (high / low).powf(part);
                match is_bandwidth {
                    true => Point::new(bytes, bytes / fit.seconds(bytes) / 1e6),
                    false => Point::new(bytes, fit.seconds(bytes) * 1e6),
                }
            };
            let microseconds = fit.alpha_s * 1e6;
            let megabytes = fit.bandwidth_bytes_per_s / 1e6;
            let name = format!("fit: {microseconds:.1} us, {megabytes:.0} MB/s");
            let style = if place == "inside a node" { 5 } else { 6 };
            let line = (0..=FITTED_POINTS).map(point).collect();
            series.push(Series::line(name, style, Kind::Fitted, line));
        }
        let caption = "Half of a round trip between two ranks; dashed: latency and bandwidth fitted to all pairs. A burst passes at once: half of a message of up to two bursts waits for the bandwidth, and all but the burst of a longer one.";
        let [id, quantity, y] = match is_bandwidth {
            true => ["bandwidth", "Bandwidth", "MB/s"],
            false => ["latency", "Time", "microseconds"],
        };
        let title = format!("{quantity} by message size: {name}");
        draw(section, network, [id, &title, caption], y, series);
    }
}

/// Draws the times of each collective, one line per algorithm, with the simulated times.
fn collectives(name: &str, network: &NetbenchResult, section: &mut Section) {
    let mut groups: BTreeMap<(String, usize), Vec<&CollectiveTimes>> = BTreeMap::new();
    for times in &network.collectives {
        let key = (records::name(times.operation), times.ranks);
        groups.entry(key).or_default().push(times);
    }
    for ((operation, ranks), all) in groups {
        let mut series = Vec::new();
        for (style, times) in all.into_iter().take(MOST_SERIES).enumerate() {
            let algorithm = &times.algorithm;
            let measured = points(&times.points, false);
            let simulated = times.points.iter().filter_map(|size| {
                let seconds = size.simulated_seconds.filter(|_| size.bytes > 0)?;
                Some(Point::new(size.bytes as f64, seconds * 1e6))
            });
            let simulated: Vec<Point> = simulated.collect();
            series.push(Series::line(algorithm, style, Kind::Measured, measured));
            if !simulated.is_empty() {
                let name = format!("{algorithm}, simulated");
                series.push(Series::line(name, style, Kind::Predicted, simulated));
            }
        }
        let id = format!("{operation}-{ranks}-ranks");
        let title = format!("Time of {operation}, {ranks} ranks: {name}");
        let caption = "Time of the slowest rank after a barrier. Hollow markers on dashed lines: simulated with the fitted links.";
        draw(
            section,
            network,
            [&id, &title, caption],
            "microseconds",
            series,
        );
    }
}
