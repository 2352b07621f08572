//! Charts: their points and axes, and the table of all numbers that are drawn.
//!
//! In: measurements. Out: [`Plot`]s, which [`draw`] turns into SVG by the crate plotters.
//! Invariant: a prediction is hollow, and dashed where it is a line; a measurement is filled and solid. Series differ
//! by marker as well as by colour.

mod axis;
mod draw;

pub(crate) use axis::{Axis, Unit};
pub(crate) use draw::{COLOURS, draw};

use crate::document::{Cell, Figure, Table, number};
use records::Spread;

/// Most series that a reader can distinguish.
pub(crate) const MOST_SERIES: usize = 7;

#[derive(Clone, Debug)]
pub(crate) enum Plot {
    Lines(LinePlot),
    Bars(BarPlot),
}

/// Points over two axes.
#[derive(Clone, Debug)]
pub(crate) struct LinePlot {
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    /// Series in the order of the legend.
    pub(crate) series: Vec<Series>,
}

/// Points under one name.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    pub(crate) name: String,
    /// Number of the colour and marker.
    pub(crate) style: usize,
    pub(crate) kind: Kind,
    /// Lines, each joined separately: repetitions share a name.
    pub(crate) lines: Vec<Vec<Point>>,
}

/// Appearance of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Filled markers on a solid line.
    Measured,
    /// Filled markers without a line.
    Scattered,
    /// Hollow markers on a dashed line.
    Predicted,
    /// A dashed line without markers.
    Fitted,
    /// A thin grey line without markers.
    Reference,
}

/// A value with the range of its repetitions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Point {
    pub(crate) x: f64,
    pub(crate) y: f64,
    pub(crate) range: Option<(f64, f64)>,
}

/// Horizontal bars, one below the other.
#[derive(Clone, Debug)]
pub(crate) struct BarPlot {
    /// Axis from zero.
    pub(crate) x: Axis,
    /// Names of the stacked parts; empty for bars of one part.
    pub(crate) parts: Vec<&'static str>,
    pub(crate) bars: Vec<Bar>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Bar {
    /// Heading above consecutive bars of one group; may be empty.
    pub(crate) group: String,
    pub(crate) label: String,
    /// One value per stacked part.
    pub(crate) values: Vec<f64>,
    /// Range of the total over the repetitions.
    pub(crate) range: Option<(f64, f64)>,
    /// Prediction, drawn hollow below the bar.
    pub(crate) predicted: Option<f64>,
    /// Reason for a missing bar.
    pub(crate) gap: Option<String>,
    /// Number of the colour; `None` is grey.
    pub(crate) style: Option<usize>,
}

impl Point {
    pub(crate) fn new(x: f64, y: f64) -> Self {
        Self { x, y, range: None }
    }

    /// Returns the median of repetitions with their range.
    pub(crate) fn of(x: f64, spread: Spread) -> Self {
        let range = spread.range();
        Self {
            x,
            y: spread.median,
            range,
        }
    }
}

impl Series {
    pub(crate) fn line(
        name: impl Into<String>,
        style: usize,
        kind: Kind,
        line: Vec<Point>,
    ) -> Self {
        Self {
            name: name.into(),
            style,
            kind,
            lines: vec![line],
        }
    }

    pub(crate) fn points(&self) -> impl Iterator<Item = &Point> {
        self.lines.iter().flatten()
    }
}

impl Bar {
    /// Returns a bar of one part.
    pub(crate) fn of(label: impl Into<String>, spread: Option<Spread>) -> Self {
        Self {
            label: label.into(),
            values: spread.map(|spread| spread.median).into_iter().collect(),
            range: spread.and_then(|spread| spread.range()),
            style: Some(0),
            ..Self::default()
        }
    }

    pub(crate) fn total(&self) -> f64 {
        self.values.iter().sum()
    }
}

impl Figure {
    /// Returns all numbers that are drawn.
    pub(crate) fn data(&self) -> Table {
        let range = |range: Option<(f64, f64)>| {
            let (least, most) = range.unzip();
            [number(least, 4), number(most, 4)]
        };
        let (columns, rows): (Vec<String>, Vec<Vec<Cell>>) = match &self.plot {
            Plot::Lines(plot) => {
                let row = |series: &Series, point: &Point| {
                    let [least, most] = range(point.range);
                    vec![
                        Cell::from(&series.name),
                        number(point.x, 4),
                        number(point.y, 4),
                        least,
                        most,
                    ]
                };
                let rows = plot
                    .series
                    .iter()
                    .flat_map(|one| one.points().map(move |point| row(one, point)));
                let columns = ["series", &plot.x.label, &plot.y.label, "least", "most"];
                (columns.map(str::to_owned).into(), rows.collect())
            }
            Plot::Bars(plot) => {
                let mut columns = vec!["group".to_owned(), "bar".to_owned()];
                if plot.parts.is_empty() {
                    columns.push(plot.x.label.clone());
                } else {
                    columns.extend(plot.parts.iter().map(|part| (*part).to_owned()));
                }
                let num_values = columns.len() - 2;
                columns.extend(["least", "most", "predicted", "gap"].map(str::to_owned));
                let row = |bar: &Bar| {
                    let mut row = vec![Cell::from(&bar.group), Cell::from(&bar.label)];
                    row.extend(
                        (0..num_values).map(|part| number(bar.values.get(part).copied(), 4)),
                    );
                    row.extend(range(bar.range));
                    row.extend([number(bar.predicted, 4), bar.gap.as_ref().into()]);
                    row
                };
                (columns, plot.bars.iter().map(row).collect())
            }
        };
        let mut table = Table::with_columns(&self.id, &self.title, columns);
        table.rows = rows;
        table.without_empty_columns()
    }
}
