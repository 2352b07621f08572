//! Bandwidth and time by message size.
//!
//! In: files of `trainer netbench`. Out: figures with the fitted line, a table of fits.
//! Invariant: points are medians, bars the 10th and 90th percentile; a fit or simulation is dashed.

use super::{Facts, suffix};
use crate::chart::{Axis, Kind, LinePlot, MOST_SERIES, Plot, Point, Series, Unit};
use crate::document::{Content, Figure, NamedRow, Table, number, percent, row};
use records::{CollectiveTimes, FitFacts, NetbenchResult, PairTimes, SizeTimes};
use std::collections::BTreeMap;

/// Pairs of ranks that are drawn; the fit covers all.
const MOST_PAIRS: usize = 3;

/// Points of a fitted line.
const FITTED_POINTS: u32 = 48;

pub(super) fn contents(facts: &Facts<'_>) -> Vec<Content> {
    let networks = &facts.sources.networks;
    let mut contents = Vec::new();
    let mut fits: Vec<NamedRow> = Vec::new();
    for (index, (name, network)) in networks.iter().enumerate() {
        let suffix = suffix(index, networks.len());
        let figures = of_pairs(name, network, &suffix).into_iter();
        let figures = figures.chain(of_collectives(name, network, &suffix));
        contents.extend(figures.map(Content::Figure));
        for (place, fit) in places(network) {
            fits.extend(fit.map(|fit| of_fit(name, place, fit)));
        }
    }
    let table = Table::new(
        "network-fits",
        "Latency and bandwidth, fitted to all sizes",
        fits,
    );
    contents.extend(Content::table(table));
    contents
}

/// Returns the links inside and between nodes with their fits.
fn places(network: &NetbenchResult) -> [(&'static str, Option<&FitFacts>); 2] {
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

/// Returns how the network was measured, for captions.
fn circumstances(network: &NetbenchResult) -> String {
    let environment = &network.environment;
    format!(
        "{} on {}, {}, {}. Every point was repeated until its median was known to {:.0} % or for {} s; the first repetition is the warm-up and excluded. Points are medians, bars the 10th and 90th percentile.",
        records::counted(environment.ranks, "rank"),
        records::counted(environment.nodes, "node"),
        environment.processor,
        environment.library.split(',').next().unwrap_or_default(),
        100.0 * network.method.precision,
        network.method.seconds_per_point
    )
}

fn figure(
    id: String,
    title: String,
    caption: &str,
    network: &NetbenchResult,
    y: &str,
    series: Vec<Series>,
) -> Figure {
    Figure {
        id,
        title,
        caption: format!("{caption} {}", circumstances(network)),
        plot: Plot::Lines(LinePlot {
            x: Axis::logarithmic("message size").in_unit(Unit::Bytes),
            y: Axis::logarithmic(y),
            series,
        }),
    }
}

fn microseconds(point: &SizeTimes) -> Point {
    Point {
        x: point.bytes as f64,
        y: point.seconds_median * 1e6,
        range: Some((point.seconds_p10 * 1e6, point.seconds_p90 * 1e6)),
    }
}

fn megabytes_per_second(point: &SizeTimes) -> Point {
    let of = |seconds: f64| point.bytes as f64 / seconds / 1e6;
    Point {
        x: point.bytes as f64,
        y: of(point.seconds_median),
        range: Some((of(point.seconds_p90), of(point.seconds_p10))),
    }
}

/// Draws bandwidth and time of messages between pairs of ranks.
fn of_pairs(name: &str, network: &NetbenchResult, suffix: &str) -> Vec<Figure> {
    let mut bandwidths = Vec::new();
    let mut times = Vec::new();
    for (place, fit) in places(network) {
        let is_here = |pair: &&PairTimes| pair.is_inside_node == (place == "inside a node");
        let pairs: Vec<&PairTimes> = network.point_to_point.iter().filter(is_here).collect();
        for pair in pairs.iter().take(MOST_PAIRS) {
            let name = format!("ranks {} and {}, {place}", pair.ranks[0], pair.ranks[1]);
            let style = bandwidths
                .iter()
                .filter(|one: &&Series| one.kind == Kind::Measured)
                .count();
            let points = || pair.points.iter().filter(|point| point.bytes > 0);
            let line = |dot: fn(&SizeTimes) -> Point| {
                Series::line(&name, style, Kind::Measured, points().map(dot).collect())
            };
            bandwidths.push(line(megabytes_per_second));
            times.push(line(microseconds));
        }
        let sizes = || {
            let points = pairs.iter().flat_map(|pair| &pair.points);
            points
                .map(|point| point.bytes as f64)
                .filter(|bytes| *bytes > 0.0)
        };
        let Some(fit) = fit.filter(|_| sizes().next().is_some()) else {
            continue;
        };
        let low = sizes().fold(f64::INFINITY, f64::min);
        let high = sizes().fold(0.0, f64::max);
        let size =
            |index: u32| low * (high / low).powf(f64::from(index) / f64::from(FITTED_POINTS));
        let name = format!(
            "fit: {:.1} us, {:.0} MB/s",
            fit.alpha_s * 1e6,
            fit.bandwidth_bytes_per_s / 1e6
        );
        let style = if place == "inside a node" { 5 } else { 6 };
        let line = |y: &dyn Fn(f64) -> f64| {
            let dots = (0..=FITTED_POINTS).map(|index| Point::new(size(index), y(size(index))));
            Series::line(&name, style, Kind::Fitted, dots.collect())
        };
        bandwidths.push(line(&|bytes| bytes / fit.seconds(bytes) / 1e6));
        times.push(line(&|bytes| fit.seconds(bytes) * 1e6));
    }
    if bandwidths.is_empty() {
        return Vec::new();
    }
    let caption = "Half of a round trip between two ranks; dashed: latency and bandwidth fitted to all pairs. A burst passes at once: half of a message of up to two bursts waits for the bandwidth, and all but the burst of a longer one.";
    let title = |what: &str| format!("{what} by message size: {name}");
    vec![
        figure(
            format!("bandwidth{suffix}"),
            title("Bandwidth"),
            caption,
            network,
            "MB/s",
            bandwidths,
        ),
        figure(
            format!("latency{suffix}"),
            title("Time"),
            caption,
            network,
            "microseconds",
            times,
        ),
    ]
}

/// Draws the times of each collective, one line per algorithm, with the simulated times.
fn of_collectives(name: &str, network: &NetbenchResult, suffix: &str) -> Vec<Figure> {
    let mut groups: BTreeMap<(String, usize), Vec<&CollectiveTimes>> = BTreeMap::new();
    for times in &network.collectives {
        let key = (times.operation.to_string(), times.ranks);
        groups.entry(key).or_default().push(times);
    }
    let draw = |((operation, ranks), all): ((String, usize), Vec<&CollectiveTimes>)| {
        let mut series = Vec::new();
        for (style, times) in all.into_iter().take(MOST_SERIES).enumerate() {
            let points = || times.points.iter().filter(|point| point.bytes > 0);
            let simulated = points().filter_map(|point| {
                Some(Point::new(
                    point.bytes as f64,
                    point.simulated_seconds? * 1e6,
                ))
            });
            let simulated: Vec<Point> = simulated.collect();
            let algorithm = &times.algorithm;
            series.push(Series::line(
                algorithm,
                style,
                Kind::Measured,
                points().map(microseconds).collect(),
            ));
            if !simulated.is_empty() {
                series.push(Series::line(
                    format!("{algorithm}, simulated"),
                    style,
                    Kind::Predicted,
                    simulated,
                ));
            }
        }
        figure(
            format!("{operation}-{ranks}-ranks{suffix}"),
            format!("Time of {operation}, {ranks} ranks: {name}"),
            "Time of the slowest rank after a barrier. Hollow markers on dashed lines: simulated with the fitted links.",
            network,
            "microseconds",
            series,
        )
    };
    groups.into_iter().map(draw).collect()
}
