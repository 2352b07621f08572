//! Throughput and efficiency against the number of ranks.
//!
//! In: measurements, predictions. Out: two figures for each network, number format and kind of scaling, bars for what was measured at
//! one number of ranks only, and one table of everything.
//! Invariant: points are medians; bars of speeds are the least and the most of the repetitions, those of efficiencies the interval of
//! ratios taken repetition by repetition, so that they have the reference's spread, too; what is predicted is hollow and dashed.
//! Source: Hoefler & Belli 2015, Scientific Benchmarking of Parallel Computing Systems, rules 1 (what a speedup is against) and 5.

use super::naming::{self, Settings};
use super::scores::counted;
use super::{Facts, MOST_SERIES, side_by_side};
use crate::chart::{Axis, Kind, LinePlot, Plot, Point, Scale, Series, Unit};
use crate::document::{Block, Cell, Figure, Table};
use crate::measurements::{Measurement, range};
use records::Estimate;
use std::collections::{BTreeMap, BTreeSet};

/// Settings by which a crowded figure is divided, first to last.
const DIVIDING: [&str; 7] = [
    "network",
    "batch_size_per_rank",
    "sync",
    "compress",
    "launcher",
    "threads",
    "reduction",
];

/// The name of a line without others.
const MEASURED: &str = "measured";

pub(super) fn blocks(facts: &Facts<'_>) -> Vec<Block> {
    if facts.measurements.is_empty() {
        return Vec::new();
    }
    let facets = facets(&facts.measurements);
    let lines = facets
        .iter()
        .enumerate()
        .flat_map(|(index, facet)| figures(facts, facet, index + 1));
    let bars = side_by_side::figures(facts, &facets.concat());
    let mut blocks: Vec<Block> = lines
        .chain(bars)
        .map(|figure| Block::Figure(Box::new(figure)))
        .collect();
    blocks.push(Block::Table(table(facts)));
    blocks
}

/// Measurements that belong into one figure: same network, format and scaling, at two numbers of ranks at least.
fn facets(all: &[Measurement]) -> Vec<Vec<&Measurement>> {
    let mut groups: BTreeMap<Vec<&str>, Vec<&Measurement>> = BTreeMap::new();
    for one in all.iter().filter(|one| one.scaling != "none") {
        groups
            .entry(vec![
                one.setting("model"),
                one.setting("dtype"),
                &one.scaling,
            ])
            .or_default()
            .push(one);
    }
    groups
        .into_values()
        .flat_map(|group| divided(group, &DIVIDING))
        .filter(|group| numbers_of_ranks(group).len() > 1)
        .collect()
}

fn divided<'a>(group: Vec<&'a Measurement>, keys: &[&str]) -> Vec<Vec<&'a Measurement>> {
    let lines: BTreeSet<_> = group.iter().map(|one| one.line()).collect();
    let Some((key, rest)) = keys.split_first().filter(|_| lines.len() > MOST_SERIES) else {
        return vec![group];
    };
    let mut parts: BTreeMap<&str, Vec<&Measurement>> = BTreeMap::new();
    for one in group {
        parts.entry(one.setting(key)).or_default().push(one);
    }
    parts
        .into_values()
        .flat_map(|part| divided(part, rest))
        .collect()
}

fn numbers_of_ranks(group: &[&Measurement]) -> BTreeSet<usize> {
    group.iter().map(|one| one.ranks).collect()
}

/// A line's name: what it has unlike the others.
fn name(line: &Settings<'_>, lines: &[Settings<'_>]) -> String {
    let words = naming::words(line, &naming::differing(lines));
    if words.is_empty() {
        MEASURED.to_owned()
    } else {
        words
    }
}

/// The two figures of a facet while they grow.
struct Drawing {
    speeds: Vec<Series>,
    efficiencies: Vec<Series>,
    speed_data: Table,
    efficiency_data: Table,
}

impl Drawing {
    fn new() -> Self {
        let columns = [
            "series",
            "kind",
            "ranks",
            "value",
            "least",
            "most",
            "repetitions",
        ];
        let (speed_data, efficiency_data) =
            (Table::new("", "", &columns), Table::new("", "", &columns));
        Self {
            speeds: Vec::new(),
            efficiencies: Vec::new(),
            speed_data,
            efficiency_data,
        }
    }

    /// Adds a series to both figures; `repetitions` are those behind a point.
    fn add(
        &mut self,
        (name, style, kind): (&str, usize, Kind),
        [speed, efficiency]: [Vec<Point>; 2],
        repetitions: impl Fn(&Point) -> usize,
    ) {
        let word = match kind {
            Kind::Predicted => "predicted",
            Kind::Reference => "ideal",
            _ => "measured",
        };
        record(&mut self.speed_data, name, word, &speed, &repetitions);
        record(
            &mut self.efficiency_data,
            name,
            word,
            &efficiency,
            &repetitions,
        );
        let series = |points| Series {
            name: name.to_owned(),
            style,
            kind,
            lines: vec![points],
        };
        self.speeds.push(series(speed));
        self.efficiencies.push(series(efficiency));
    }

    /// Adds a line as measured, and as predicted where it was.
    fn add_line(&mut self, facts: &Facts<'_>, name: &str, style: usize, members: &[&Measurement]) {
        let speed = |one: &&Measurement| {
            Some(Point {
                x: one.ranks as f64,
                y: one.speed()?,
                range: range(&one.speeds),
            })
        };
        let efficiency = |one: &&Measurement| {
            let speedups = one.speedups(&facts.measurements);
            let efficiency = Estimate::of(&speedups)?.scaled(1.0 / one.ranks as f64);
            let interval = efficiency.interval.map(|[low, high]| (low, high));
            let range = interval.or_else(|| {
                range(&speedups)
                    .map(|(low, high)| (low / one.ranks as f64, high / one.ranks as f64))
            });
            Some(Point {
                x: one.ranks as f64,
                y: efficiency.median,
                range,
            })
        };
        let points = [
            members.iter().filter_map(speed).collect(),
            members.iter().filter_map(efficiency).collect(),
        ];
        self.add((name, style, Kind::Measured), points, |point| {
            members
                .iter()
                .find(|one| one.ranks as f64 == point.x)
                .map_or(0, |one| one.speeds.len())
        });
        let (speed, efficiency) = predicted(facts, members);
        if !speed.is_empty() {
            // A line alone is called measured.
            let name = if name == MEASURED {
                "predicted".to_owned()
            } else {
                format!("{name}, predicted")
            };
            self.add((&name, style, Kind::Predicted), [speed, efficiency], |_| 0);
        }
    }

    fn ranks(&self) -> Vec<f64> {
        self.speeds
            .iter()
            .flat_map(|series| series.lines.iter().flatten())
            .map(|point| point.x)
            .collect()
    }

    /// Adds what as many ranks would do that cost each other nothing: a line from each reference.
    fn add_ideal(&mut self, facts: &Facts<'_>, facet: &[&Measurement]) {
        let ends = self
            .ranks()
            .into_iter()
            .fold([f64::INFINITY, 1.0], |[low, high]: [f64; 2], ranks| {
                [low.min(ranks), high.max(ranks)]
            });
        let by_rank = |one: &&Measurement| {
            let base = one.reference(&facts.measurements)?;
            Some(base.speed()? / base.ranks as f64)
        };
        let mut speeds: Vec<f64> = facet.iter().filter_map(by_rank).collect();
        speeds.sort_by(f64::total_cmp);
        speeds.dedup();
        let line =
            |at: &dyn Fn(f64) -> f64| ends.map(|ranks| Point::new(ranks, at(ranks))).to_vec();
        let lines: Vec<Vec<Point>> = speeds
            .into_iter()
            .map(|speed| line(&|ranks| speed * ranks))
            .collect();
        self.add(
            ("ideal", 0, Kind::Reference),
            [lines.concat(), line(&|_| 1.0)],
            |_| 0,
        );
        if let Some(drawn) = self.speeds.last_mut() {
            drawn.lines = lines;
        }
    }
}

fn figures(facts: &Facts<'_>, facet: &[&Measurement], number: usize) -> Vec<Figure> {
    let mut drawing = Drawing::new();
    let lines = lines(facet);
    for (style, line) in lines.iter().enumerate() {
        drawing.add_line(
            facts,
            &name(line, &lines),
            style,
            &members(facts, facet, line),
        );
    }
    drawing.add_ideal(facts, facet);
    let x = Axis::of_counts("ranks", &drawing.ranks());
    let speed_axis = match x.scale {
        Scale::Linear => Axis::from_zero("images/s, all ranks"),
        Scale::Decimal | Scale::Binary => Axis::logarithmic("images/s, all ranks"),
    };
    let words = shared_words(facet);
    let notes = notes(
        facts,
        facet,
        drawing
            .speeds
            .iter()
            .any(|series| series.kind == Kind::Predicted),
    );
    let figure = |id: &str, title: String, what: &str, plot: LinePlot, data: Table| {
        let id = format!("{id}-{number}");
        Figure {
            data: Table { id, title, ..data },
            caption: format!("{what} {notes}"),
            plot: Plot::Lines(plot),
        }
    };
    vec![
        figure(
            "throughput",
            format!("Throughput: {words}"),
            "A grey line is the speed of one rank times the ranks; lines of different work by rank have one each.",
            LinePlot {
                x: x.clone(),
                y: speed_axis,
                series: drawing.speeds,
                band: None,
            },
            drawing.speed_data,
        ),
        figure(
            "efficiency",
            format!("Efficiency: {words}"),
            "Efficiency is the speed by rank over that of one rank in the same repetition; where no single rank was measured, over that of the fewest ranks. Bars are the interval that holds the true median with 95 %, from six repetitions on, and before that the least and most.",
            LinePlot {
                x,
                y: Axis::from_zero("efficiency").in_unit(Unit::Share),
                series: drawing.efficiencies,
                band: None,
            },
            drawing.efficiency_data,
        ),
    ]
}

/// What distinguishes the lines of a figure, each once.
fn lines<'a>(facet: &[&'a Measurement]) -> Vec<Settings<'a>> {
    let mut lines: Vec<Settings<'_>> = facet.iter().map(|one| one.line()).collect();
    lines.sort();
    lines.dedup();
    // Single ranks are drawn as the beginning of the lines that are compared with them.
    let goes_on =
        |line: &Settings<'_>| facet.iter().any(|one| one.ranks > 1 && one.line() == *line);
    if lines.iter().any(goes_on) {
        lines.retain(goes_on);
    }
    lines
}

/// The measurements on a line, fewest ranks first.
fn members<'a>(
    facts: &'a Facts<'_>,
    facet: &[&'a Measurement],
    line: &Settings<'_>,
) -> Vec<&'a Measurement> {
    let mut members: Vec<&Measurement> = facet
        .iter()
        .copied()
        .filter(|one| one.line() == *line)
        .collect();
    // A single rank needs no synchronisation, so that its own line is another one.
    if members.iter().all(|one| one.ranks > 1) {
        let reference = members[0].reference(&facts.measurements);
        members.extend(reference.filter(|one| one.ranks == 1));
    }
    members.sort_by_key(|one| one.ranks);
    members
}

/// How to read both figures.
fn notes(facts: &Facts<'_>, facet: &[&Measurement], has_predicted: bool) -> String {
    let mut notes = format!(
        "Scaling: {}. Points are medians of the repetitions.",
        scaling_words(facet[0])
    );
    if has_predicted {
        notes.push_str(" Hollow markers on dashed lines are predictions.");
    }
    notes.push_str(&disturbed_words(facet));
    format!("{notes} {}", facts.speed_words())
}

/// How many of the repetitions were disturbed, as a sentence after others; nothing if none was.
pub(super) fn disturbed_words(members: &[&Measurement]) -> String {
    match members.iter().map(|one| one.num_disturbed).sum::<usize>() {
        0 => String::new(),
        number => format!(" {number} of the repetitions count although the machine was not quiet."),
    }
}

fn scaling_words(one: &Measurement) -> String {
    match one.scaling.as_str() {
        "weak" => "weak, every rank has a batch of its own of fixed size".to_owned(),
        "strong" => "strong, a global batch of fixed size is divided among the ranks".to_owned(),
        other => other.to_owned(),
    }
}

/// What all measurements of a figure have in common, for its title.
pub(super) fn shared_words(facet: &[&Measurement]) -> String {
    let first = facet[0];
    let shared = |key: &str| {
        let of_several = || {
            facet
                .iter()
                .filter(|one| one.ranks > 1 || !["sync", "network", "launcher"].contains(&key))
        };
        let value = of_several().next().map_or("", |one| one.setting(key));
        (!value.is_empty() && of_several().all(|one| one.setting(key) == value))
            .then(|| value.to_owned())
    };
    let mut words: Vec<String> = ["model", "dtype", "sync", "network"]
        .iter()
        .filter_map(|key| shared(key))
        .filter(|word| word != "none")
        .collect();
    if first.scaling != "none" {
        words.push(format!("{} scaling", first.scaling));
    }
    let (key, what) = if first.scaling == "strong" {
        ("global_batch_size", "global batch")
    } else {
        ("batch_size_per_rank", "batch per rank")
    };
    words.extend(shared(key).map(|batch| format!("{what} {batch}")));
    words.join(", ")
}

/// Speeds and efficiencies that were predicted for the cells of a line.
fn predicted(facts: &Facts<'_>, members: &[&Measurement]) -> (Vec<Point>, Vec<Point>) {
    let mut points: Vec<(Point, Option<Point>)> = Vec::new();
    for (file, prediction, measured) in super::predictions::all(facts) {
        let is_member =
            |measured: &&Measurement| members.iter().any(|one| std::ptr::eq(*one, *measured));
        let Some(measured) = measured.filter(is_member) else {
            continue;
        };
        let its = (file, prediction, measured);
        let Some(speed) = counted(its, |one| one.images_per_second) else {
            continue;
        };
        let ranks = prediction.ranks as f64;
        let scaling = if prediction.scaling.is_empty() {
            "weak"
        } else {
            &prediction.scaling
        };
        // That of another kind of scaling is against another batch of the single rank.
        let efficiency = counted(its, |one| one.efficiency).filter(|_| measured.scaling == scaling);
        points.push((
            Point::new(ranks, speed),
            efficiency.map(|efficiency| Point::new(ranks, efficiency)),
        ));
    }
    points.sort_by(|a, b| a.0.x.total_cmp(&b.0.x));
    (
        points.iter().map(|point| point.0).collect(),
        points.iter().filter_map(|point| point.1).collect(),
    )
}

fn record(
    table: &mut Table,
    series: &str,
    kind: &str,
    points: &[Point],
    repetitions: impl Fn(&Point) -> usize,
) {
    for point in points {
        let (low, high) = point.range.unwrap_or((point.y, point.y));
        table.push(vec![
            Cell::text(series),
            Cell::text(kind),
            Cell::number(point.x, 0),
            Cell::number(point.y, 4),
            Cell::number(low, 4),
            Cell::number(high, 4),
            Cell::count(repetitions(point) as u64),
        ]);
    }
}

fn table(facts: &Facts<'_>) -> Table {
    let all = &facts.measurements;
    let has_disturbed = all.iter().any(|one| one.num_disturbed > 0);
    let row = |one: &Measurement| {
        let (low, high) =
            range(&one.speeds).map_or((None, None), |(low, high)| (Some(low), Some(high)));
        let speedup = one.speedup(all);
        let interval = speedup.and_then(|speedup| speedup.interval);
        let mut row = vec![
            ("measurement", Cell::text(one.id.clone())),
            ("scaling", Cell::text(one.scaling.clone())),
            (
                "batch per rank",
                Cell::number(one.setting("batch_size_per_rank").parse::<f64>().ok(), 0),
            ),
            ("ranks", Cell::count(one.ranks as u64)),
            ("images/s, median", Cell::number(one.speed(), 1)),
            ("least", Cell::number(low, 1)),
            ("most", Cell::number(high, 1)),
            ("repetitions", Cell::count(one.speeds.len() as u64)),
            (
                "speedup",
                Cell::number(speedup.map(|speedup| speedup.median), 2),
            ),
            (
                "with 95 % between",
                interval.map_or(Cell::Missing, |[low, high]| {
                    Cell::text(format!("{low:.2} and {high:.2}"))
                }),
            ),
            (
                "efficiency, %",
                Cell::number(
                    speedup.map(|speedup| 100.0 * speedup.median / one.ranks as f64),
                    1,
                ),
            ),
            (
                "compared with, ranks",
                Cell::count(
                    speedup
                        .and(one.reference(all))
                        .map(|base| base.ranks as u64),
                ),
            ),
        ];
        let study = || {
            (
                "study",
                Cell::count(one.setting("study").parse::<u64>().ok()),
            )
        };
        row.extend(
            has_disturbed.then(|| ("of them disturbed", Cell::count(one.num_disturbed as u64))),
        );
        row.extend(facts.has_several_studies().then(study));
        row
    };
    Table::of(
        "throughput",
        "Throughput of all measurements",
        all.iter().map(row),
    )
}
