//! Charts: their points and axes, and the table of all numbers that are drawn.
//!
//! In: measurements. Out: [`Figure`]s, which [`draw`] turns into SVG.
//! Invariant: a prediction is hollow, and dashed if it is a line. A measurement is filled and
//! solid. Series differ by marker as well as by colour.

mod axis;
mod draw;

pub(crate) use axis::{Axis, Steps, Unit};
pub(crate) use draw::{COLOURS, draw};

use crate::document::{NamedRow, Table, number, row};
use records::Spread;

/// Most series that a reader can distinguish.
pub(crate) const MOST_SERIES: usize = 7;

/// Most horizontal bars of a figure.
pub(crate) const MOST_BARS: usize = 24;

/// A chart and its caption.
#[derive(Clone, Debug)]
pub(crate) struct Figure {
    /// Name of its files.
    pub(crate) id: String,
    pub(crate) title: String,
    /// Measured quantity and method.
    pub(crate) caption: String,
    /// Position and name of the horizontal axis among those that the reader may choose.
    pub(crate) view: Option<(usize, &'static str)>,
    pub(crate) x: Axis,
    pub(crate) marks: Marks,
}

/// Marks over the horizontal axis.
#[derive(Clone, Debug)]
pub(crate) enum Marks {
    /// Vertical axis, and series in the order of the legend.
    Lines(Axis, Vec<Series>),
    /// Names of the stacked parts (none for bars of one part), and bars, one below the other.
    Bars(Vec<&'static str>, Vec<Bar>),
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
    /// Filled markers on a solid line; ranges are bars.
    Measured,
    /// Filled markers on a solid line; ranges are a band.
    Evaluated,
    /// A thin line without markers; ranges are a band.
    Trained,
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

/// A horizontal bar.
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

    /// Returns the ends of the range, or the value twice.
    fn ends(&self) -> (f64, f64) {
        self.range.unwrap_or((self.y, self.y))
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
        let point = |range: Option<(f64, f64)>| {
            let (low, high) = range.unzip();
            row!["low" => number(low, 4), "high" => number(high, 4)]
        };
        let rows: Vec<NamedRow> = match &self.marks {
            Marks::Lines(y, series) => {
                let row = |one: &Series, at: &Point| {
                    let mut row = row![
                        "series" => &one.name,
                        &self.x.label => number(at.x, 4),
                        &y.label => number(at.y, 4),
                    ];
                    row.extend(point(at.range));
                    row
                };
                let points = |one| Series::points(one).map(move |at| row(one, at));
                series.iter().flat_map(points).collect()
            }
            Marks::Bars(parts, bars) => {
                let single = [self.x.label.as_str()];
                let parts = if parts.is_empty() {
                    &single
                } else {
                    &parts[..]
                };
                let row = |bar: &Bar| {
                    let mut row = row!["group" => &bar.group, "bar" => &bar.label];
                    let values = parts.iter().enumerate();
                    row.extend(values.map(|(part, name)| {
                        ((*name).to_owned(), number(bar.values.get(part).copied(), 4))
                    }));
                    row.extend(point(bar.range));
                    row.extend(
                        row!["predicted" => number(bar.predicted, 4), "gap" => bar.gap.as_ref()],
                    );
                    row
                };
                bars.iter().map(row).collect()
            }
        };
        Table::new(&self.id, &self.title, rows).unwrap_or_default()
    }
}
