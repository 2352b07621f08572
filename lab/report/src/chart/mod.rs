//! Charts as SVG, by the crate plotters.
//!
//! In: [`Plot`]s, which know nothing of pixels. Out: SVG text at a width.
//! Invariant: a predicted figure is hollow, and dashed where it is a line, a measured one is filled and solid; series differ by marker
//! too, not by colour alone; no text is cut off.
//! Source: Okabe & Ito 2008, Color Universal Design, for the colours.

mod axis;
mod bars;
mod lines;
mod look;
mod paper;

pub(crate) use axis::{Axis, Scale, Unit};
pub(crate) use look::COLOURS;
pub(crate) use paper::{Sheet, draw};

#[derive(Clone, Debug)]
pub(crate) enum Plot {
    /// Points over two axes.
    Lines(LinePlot),
    /// Bars from left to right, one a row.
    Bars(BarPlot),
}

/// Points over two axes, joined or not.
#[derive(Clone, Debug)]
pub(crate) struct LinePlot {
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    /// In the order of the legend.
    pub(crate) series: Vec<Series>,
    /// Shade where y is within this share of x.
    pub(crate) band: Option<f64>,
}

/// Points under one name.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    pub(crate) name: String,
    /// Which colour and marker, from 0.
    pub(crate) style: usize,
    /// How it is drawn.
    pub(crate) kind: Kind,
    /// Each is joined on its own: repetitions share a name.
    pub(crate) lines: Vec<Vec<Point>>,
}

/// How points are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Filled markers on a solid line.
    Measured,
    Scattered,
    /// Hollow markers on a dashed line.
    Predicted,
    /// A dashed line without markers: a fit.
    Fitted,
    /// A thin grey line without markers: what would be ideal.
    Reference,
    /// Columns from zero, one wide.
    Columns,
}

/// A value and the range it was seen in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Point {
    pub(crate) x: f64,
    pub(crate) y: f64,
    /// Least and most, where there were several.
    pub(crate) range: Option<(f64, f64)>,
}

impl Point {
    pub(crate) fn new(x: f64, y: f64) -> Self {
        Self { x, y, range: None }
    }
}

/// Bars from left to right.
#[derive(Clone, Debug)]
pub(crate) struct BarPlot {
    /// To the right; it begins at zero.
    pub(crate) x: Axis,
    /// Names of the parts, for the legend; one part has none.
    pub(crate) parts: Vec<String>,
    pub(crate) rows: Vec<Bar>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Bar {
    /// Stands above the first of the bars that follow each other with the same; may be empty.
    pub(crate) group: String,
    /// Stands beside or above the bar.
    pub(crate) label: String,
    /// One value a part; they are stacked.
    pub(crate) values: Vec<f64>,
    /// Least and most of the whole, where it was measured several times.
    pub(crate) range: Option<(f64, f64)>,
    /// Drawn hollow under the bar.
    pub(crate) predicted: Option<f64>,
    /// Stands in the place of a bar that does not exist.
    pub(crate) gap: Option<String>,
    /// Whether it is drawn in the colour that stands out; of a single part only.
    pub(crate) is_ours: bool,
    /// Which colour that is, from 0; of several parts, the first one's.
    pub(crate) style: usize,
}
