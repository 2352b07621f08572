//! Bandwidth and time by message size.
//!
//! In: files of `trainer netbench`. Out: figures with the fitted line, a table of fits.
//! Invariant: points are medians, bars the 10th and 90th percentile. A fit or simulation is dashed.

use super::Facts;
use crate::chart::{Axis, Kind, MOST_SERIES, Point, Series, Unit};
use crate::document::{NamedRow, Section, number, percent, row};
use records::{CollectiveTimes, FitFacts, NetbenchResult, SizeTimes, Spread};
use std::collections::BTreeMap;

/// Pairs of ranks that are drawn; the fit covers all.
const MOST_PAIRS: usize = 3;

/// Points of a fitted line.
const FITTED_POINTS: u32 = 48;

pub(super) fn add(facts: &Facts<'_>, section: &mut Section) {
    let mut fits: Vec<NamedRow> = Vec::new();
    for (name, network) in &facts.sources.networks {
        for (place, fit) in links(network) {
            fits.extend(fit.map(|fit| of_fit(name, place, fit)));
        }
        let environment = &network.environment;
        let method = format!(
            "{} on {}, {}, {}. Points are medians without the first repetition, bars the 10th and 90th percentile; every median is known to {:.0} %, or was measured for {} s.",
            records::counted(environment.ranks, "rank"),
            records::counted(environment.nodes, "node"),
            environment.processor,
            environment.library.split(',').next().unwrap_or_default(),
            100.0 * network.method.precision,
            network.method.seconds_per_point
        );
        let mut draw = |[id, title, caption]: [&str; 3], y: &str, series| {
            section.lines(
                [
                    id,
                    &format!("{title}: {name}"),
                    &format!("{caption} {method}"),
                ],
                Axis::logarithmic("message size").in_unit(Unit::Bytes),
                Axis::logarithmic(y),
                series,
            );
        };
        let caption = "Half of a round trip between two ranks; dashed: latency and bandwidth fitted to all pairs. Half of a message of up to two bursts waits for the bandwidth, and all but one burst of a longer one.";
        for (id, quantity, y, is_bandwidth) in [
            ("bandwidth", "Bandwidth", "MB/s", true),
            ("latency", "Time", "microseconds", false),
        ] {
            let title = format!("{quantity} by message size");
            draw([id, &title, caption], y, pairs(network, is_bandwidth));
        }
        let mut groups: BTreeMap<(String, usize), Vec<&CollectiveTimes>> = BTreeMap::new();
        for times in &network.collectives {
            let key = (records::name(times.operation), times.ranks);
            groups.entry(key).or_default().push(times);
        }
        for ((operation, ranks), all) in groups {
            let id = format!("{operation}-{ranks}-ranks");
            let title = format!("Time of {operation}, {}", records::counted(ranks, "rank"));
            let caption = "Time of the slowest rank after a barrier. Hollow markers on dashed lines: simulated with the fitted links.";
            draw([&id, &title, caption], "microseconds", algorithms(&all));
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

/// Returns microseconds, or with `is_bandwidth` MB/s.
fn in_units(bytes: f64, seconds: f64, is_bandwidth: bool) -> f64 {
    match is_bandwidth {
        true => bytes / seconds / 1e6,
        false => seconds * 1e6,
    }
}

fn points(times: &[SizeTimes], is_bandwidth: bool) -> Vec<Point> {
    let point = |size: &SizeTimes| {
        let bytes = size.bytes as f64;
        let of = |seconds: f64| in_units(bytes, seconds, is_bandwidth);
        let [a, b] = [size.seconds_p10, size.seconds_p90].map(of);
        Point {
            x: bytes,
            y: of(size.seconds_median),
            range: Some((a.min(b), a.max(b))),
        }
    };
    let times = times.iter().filter(|size| size.bytes > 0);
    times.map(point).collect()
}

/// Returns the messages between pairs of ranks, and the fits over the same sizes.
fn pairs(network: &NetbenchResult, is_bandwidth: bool) -> Vec<Series> {
    let mut series: Vec<Series> = Vec::new();
    let mut num_pairs = 0;
    for (style, (place, fit)) in (5..).zip(links(network)) {
        let is_inside = place == "inside a node";
        let pairs = network.point_to_point.iter();
        let pairs = pairs.filter(|pair| pair.is_inside_node == is_inside);
        let mut sizes: Vec<f64> = Vec::new();
        for (index, pair) in pairs.enumerate() {
            let [a, b] = pair.ranks;
            let points = points(&pair.points, is_bandwidth);
            sizes.extend(points.iter().map(|point| point.x));
            if index < MOST_PAIRS {
                let name = format!("ranks {a} and {b}, {place}");
                series.push(Series::line(name, num_pairs, Kind::Measured, points));
                num_pairs += 1;
            }
        }
        let (Some(fit), Some(sizes)) = (fit, Spread::of(sizes)) else {
            continue;
        };
        let point = |index: u32| {
            let part = f64::from(index) / f64::from(FITTED_POINTS);
            let bytes = sizes.least * (sizes.most / sizes.least).powf(part);
            Point::new(bytes, in_units(bytes, fit.seconds(bytes), is_bandwidth))
        };
        let [latency, bandwidth] = [fit.alpha_s * 1e6, fit.bandwidth_bytes_per_s / 1e6];
        let name = format!("fit: {latency:.1} us, {bandwidth:.0} MB/s");
        let line = (0..=FITTED_POINTS).map(point).collect();
        series.push(Series::line(name, style, Kind::Fitted, line));
    }
    series
}

/// Returns one line per algorithm of a collective, with the simulated times.
fn algorithms(all: &[&CollectiveTimes]) -> Vec<Series> {
    let of_algorithm = |(style, times): (usize, &&CollectiveTimes)| {
        let simulated = times.points.iter().filter_map(|size| {
            let seconds = size.simulated_seconds.filter(|_| size.bytes > 0)?;
            Some(Point::new(size.bytes as f64, seconds * 1e6))
        });
        let name = &times.algorithm;
        let simulated_name = format!("{name}, simulated");
        let measured = points(&times.points, false);
        [
            Series::line(name, style, Kind::Measured, measured),
            Series::line(simulated_name, style, Kind::Predicted, simulated.collect()),
        ]
    };
    let all = all.iter().take(MOST_SERIES).enumerate();
    let mut series: Vec<Series> = all.flat_map(of_algorithm).collect();
    series.retain(|one| one.points().next().is_some());
    series
}
