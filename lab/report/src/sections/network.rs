//! Message size against bandwidth and time.
//!
//! In: files of `trainer netbench`. Out: figures with the fitted line, a table of fits.
//! Invariant: points are medians, bars the tenth and ninetieth percentile; a fit or simulation is dashed.

use super::{Facts, MOST_SERIES};
use crate::chart::{Axis, Kind, LinePlot, Plot, Point, Scale, Series, Unit};
use crate::document::{Block, Cell, Figure, Table};
use records::{CollectiveTimes, NetbenchResult, PairTimes};
use std::collections::BTreeMap;

/// Pairs that are drawn; a fit is of all.
const MOST_PAIRS: usize = 3;

pub(super) fn blocks(facts: &Facts<'_>) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut fits = Vec::new();
    for (index, (name, network)) in facts.sources.networks.iter().enumerate() {
        let figures = of_pairs(name, network, index + 1)
            .into_iter()
            .chain(of_collectives(name, network, index + 1));
        blocks.extend(figures.map(|figure| Block::Figure(Box::new(figure))));
        for (place, fit) in [
            ("between nodes", &network.links.between_nodes),
            ("inside a node", &network.links.inside_node),
        ] {
            let Some(fit) = fit else { continue };
            fits.push(vec![
                ("measurement", Cell::text(name.clone())),
                ("pairs", Cell::text(place)),
                ("latency, us", Cell::number(fit.alpha_s * 1e6, 2)),
                (
                    "bandwidth, MB/s",
                    Cell::number(fit.bandwidth_bytes_per_s / 1e6, 1),
                ),
                ("burst, KiB", Cell::number(fit.burst_bytes / 1024.0, 0)),
                ("residual, %", Cell::number(100.0 * fit.residual, 0)),
                (
                    "worst residual, %",
                    Cell::number(100.0 * fit.worst_residual, 0),
                ),
                ("at bytes", Cell::count(fit.worst_bytes)),
            ]);
        }
    }
    if !fits.is_empty() {
        blocks.push(Block::Table(Table::of(
            "network-fits",
            "Latency and bandwidth, fitted to all sizes",
            fits,
        )));
    }
    blocks
}

fn circumstances(network: &NetbenchResult) -> String {
    let environment = &network.environment;
    format!(
        "{}, {}, {}. Every point was repeated until its median was sure to {:.0} % or {} s were gone; its first repetition, the warm-up, is left out. Points are medians, bars the 10th and 90th percentile.",
        place(environment.ranks, environment.nodes),
        environment.processor,
        environment.library.split(',').next().unwrap_or_default(),
        100.0 * network.method.precision,
        network.method.seconds_per_point
    )
}

fn place(ranks: usize, nodes: usize) -> String {
    format!(
        "{} on {}",
        records::counted(ranks, "rank"),
        records::counted(nodes, "node")
    )
}

fn sizes() -> Axis {
    Axis {
        scale: Scale::Binary,
        ..Axis::linear("message size")
    }
    .in_unit(Unit::Bytes)
}

// tidy: long function because a figure's points, words and table are made from the same pairs
fn of_pairs(name: &str, network: &NetbenchResult, number: usize) -> Vec<Figure> {
    let mut series: [Vec<Series>; 2] = [Vec::new(), Vec::new()];
    let columns = [
        "pair",
        "bytes",
        "seconds, median",
        "10th percentile",
        "90th percentile",
        "bytes/s",
        "fitted seconds",
    ];
    let mut data = Table::new("", "", &columns);
    for (is_inside, fit) in [
        (false, &network.links.between_nodes),
        (true, &network.links.inside_node),
    ] {
        let pairs: Vec<&PairTimes> = network
            .point_to_point
            .iter()
            .filter(|pair| pair.is_inside_node == is_inside)
            .collect();
        for pair in pairs.iter().take(MOST_PAIRS) {
            let place = if is_inside {
                "inside a node"
            } else {
                "between nodes"
            };
            let name = format!("ranks {} and {}, {place}", pair.ranks[0], pair.ranks[1]);
            let style = series[0]
                .iter()
                .filter(|series| series.kind == Kind::Measured)
                .count();
            let with_bytes = || pair.points.iter().filter(|point| point.bytes > 0);
            let bandwidth = with_bytes().map(|point| {
                let of = |seconds: f64| point.bytes as f64 / seconds / 1e6;
                Point {
                    x: point.bytes as f64,
                    y: of(point.seconds_median),
                    range: Some((of(point.seconds_p90), of(point.seconds_p10))),
                }
            });
            let time = with_bytes().map(|point| {
                let range = Some((point.seconds_p10 * 1e6, point.seconds_p90 * 1e6));
                Point {
                    x: point.bytes as f64,
                    y: point.seconds_median * 1e6,
                    range,
                }
            });
            let lines: [Vec<Point>; 2] = [bandwidth.collect(), time.collect()];
            for (series, line) in series.iter_mut().zip(lines) {
                series.push(Series {
                    name: name.clone(),
                    style,
                    kind: Kind::Measured,
                    lines: vec![line],
                });
            }
            for point in with_bytes() {
                data.push(vec![
                    Cell::text(name.clone()),
                    Cell::count(point.bytes),
                    Cell::number(point.seconds_median, 9),
                    Cell::number(point.seconds_p10, 9),
                    Cell::number(point.seconds_p90, 9),
                    Cell::number(point.bytes as f64 / point.seconds_median, 0),
                    Cell::number(fit.as_ref().map(|fit| fit.seconds(point.bytes as f64)), 9),
                ]);
            }
        }
        let sizes: Vec<f64> = pairs
            .iter()
            .flat_map(|pair| &pair.points)
            .map(|point| point.bytes as f64)
            .filter(|bytes| *bytes > 0.0)
            .collect();
        if let (Some(fit), false) = (fit, sizes.is_empty()) {
            let (low, high) = sizes
                .iter()
                .fold((f64::INFINITY, 0.0_f64), |(low, high), size| {
                    (low.min(*size), high.max(*size))
                });
            let size = |index: u32| low * (high / low).powf(f64::from(index) / 48.0);
            let line = |y: &dyn Fn(f64) -> f64| {
                (0..=48)
                    .map(|index| Point::new(size(index), y(size(index))))
                    .collect::<Vec<_>>()
            };
            let lines = [
                line(&|bytes| bytes / fit.seconds(bytes) / 1e6),
                line(&|bytes| fit.seconds(bytes) * 1e6),
            ];
            let words = format!(
                "fit: {:.1} us, {:.0} MB/s",
                fit.alpha_s * 1e6,
                fit.bandwidth_bytes_per_s / 1e6
            );
            for (series, line) in series.iter_mut().zip(lines) {
                series.push(Series {
                    name: words.clone(),
                    style: 6 - usize::from(is_inside),
                    kind: Kind::Fitted,
                    lines: vec![line],
                });
            }
        }
    }
    let [bandwidths, times] = series;
    if bandwidths.is_empty() {
        return Vec::new();
    }
    let figure = |what: &str, id: &str, axis: &str, series| {
        let (id, title) = (
            format!("{id}-{number}"),
            format!("{what} by message size: {name}"),
        );
        let caption = format!(
            "Half of a round trip between two ranks; dashed, latency and bandwidth fitted to all of them. Where the fit has a burst, which passes at once, half of a message of up to two bursts waits for the bandwidth, and all but the burst of a longer one. {}",
            circumstances(network)
        );
        let plot = LinePlot {
            x: sizes(),
            y: Axis::logarithmic(axis),
            series,
            band: None,
        };
        Figure {
            data: Table {
                id,
                title,
                ..data.clone()
            },
            caption,
            plot: Plot::Lines(plot),
        }
    };
    vec![
        figure("Bandwidth", "bandwidth", "MB/s", bandwidths),
        figure("Time", "latency", "microseconds", times),
    ]
}

/// Times of a collective of so many ranks, a line an algorithm, with what a simulation takes for it.
fn of_collectives(name: &str, network: &NetbenchResult, number: usize) -> Vec<Figure> {
    let mut groups: BTreeMap<(String, usize), Vec<&CollectiveTimes>> = BTreeMap::new();
    for times in &network.collectives {
        groups
            .entry((times.operation.to_string(), times.ranks))
            .or_default()
            .push(times);
    }
    let figure = |((operation, ranks), all): (&(String, usize), &Vec<&CollectiveTimes>)| {
        let id = format!("{operation}-{ranks}-ranks-{number}");
        let title = format!("Time of {operation}, {ranks} ranks: {name}");
        let columns = [
            "algorithm",
            "bytes",
            "seconds, median",
            "10th percentile",
            "90th percentile",
            "simulated seconds",
        ];
        let mut data = Table::new(id, title, &columns);
        let mut series = Vec::new();
        for (style, times) in all.iter().take(MOST_SERIES).enumerate() {
            let points = || times.points.iter().filter(|point| point.bytes > 0);
            let measured = points().map(|point| Point {
                x: point.bytes as f64,
                y: point.seconds_median * 1e6,
                range: Some((point.seconds_p10 * 1e6, point.seconds_p90 * 1e6)),
            });
            let simulated: Vec<Point> = points()
                .filter_map(|point| {
                    Some(Point::new(
                        point.bytes as f64,
                        point.simulated_seconds? * 1e6,
                    ))
                })
                .collect();
            series.push(Series {
                name: times.algorithm.clone(),
                style,
                kind: Kind::Measured,
                lines: vec![measured.collect()],
            });
            if !simulated.is_empty() {
                series.push(Series {
                    name: format!("{}, simulated", times.algorithm),
                    style,
                    kind: Kind::Predicted,
                    lines: vec![simulated],
                });
            }
            for point in points() {
                data.push(vec![
                    Cell::text(times.algorithm.clone()),
                    Cell::count(point.bytes),
                    Cell::number(point.seconds_median, 9),
                    Cell::number(point.seconds_p10, 9),
                    Cell::number(point.seconds_p90, 9),
                    Cell::number(point.simulated_seconds, 9),
                ]);
            }
        }
        let caption = format!(
            "Time of the slowest rank after a barrier. Hollow, on dashed lines: simulated with the fitted links. {}",
            circumstances(network)
        );
        let plot = LinePlot {
            x: sizes(),
            y: Axis::logarithmic("microseconds"),
            series,
            band: None,
        };
        Figure {
            caption,
            plot: Plot::Lines(plot),
            data,
        }
    };
    groups.iter().map(figure).collect()
}
