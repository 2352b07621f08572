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

pub use axis::{Axis, Scale, Unit};
pub use look::COLOURS;
pub use paper::{Sheet, draw};

/// What is drawn.
#[derive(Clone, Debug)]
pub enum Plot {
    /// Points over two axes.
    Lines(LinePlot),
    /// Bars from left to right, one a row.
    Bars(BarPlot),
}

/// Points over two axes, joined or not.
#[derive(Clone, Debug)]
pub struct LinePlot {
    /// To the right.
    pub x: Axis,
    /// Upwards.
    pub y: Axis,
    /// In the order of the legend.
    pub series: Vec<Series>,
    /// Shade where y is within this share of x.
    pub band: Option<f64>,
}

/// Points under one name.
#[derive(Clone, Debug)]
pub struct Series {
    /// In the legend.
    pub name: String,
    /// Which colour and marker, from 0.
    pub style: usize,
    /// How it is drawn.
    pub kind: Kind,
    /// Each is joined on its own: repetitions share a name.
    pub lines: Vec<Vec<Point>>,
}

/// How points are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Filled markers on a solid line.
    Measured,
    /// Filled markers alone.
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
pub struct Point {
    /// To the right.
    pub x: f64,
    /// Upwards.
    pub y: f64,
    /// Least and most, where there were several.
    pub range: Option<(f64, f64)>,
}

impl Point {
    /// A value alone.
    pub fn new(x: f64, y: f64) -> Self {
        Self { x, y, range: None }
    }
}

/// Bars from left to right.
#[derive(Clone, Debug)]
pub struct BarPlot {
    /// To the right; it begins at zero.
    pub x: Axis,
    /// Names of the parts, for the legend; one part has none.
    pub parts: Vec<String>,
    /// From above.
    pub rows: Vec<Bar>,
}

/// One bar.
#[derive(Clone, Debug, Default)]
pub struct Bar {
    /// Stands above the first of the bars that follow each other with the same; may be empty.
    pub group: String,
    /// Stands beside or above the bar.
    pub label: String,
    /// One value a part; they are stacked.
    pub values: Vec<f64>,
    /// Least and most of the whole, where it was measured several times.
    pub range: Option<(f64, f64)>,
    /// Drawn hollow under the bar.
    pub predicted: Option<f64>,
    /// Stands in the place of a bar that does not exist.
    pub gap: Option<String>,
    /// Whether it is drawn in the colour that stands out; of a single part only.
    pub is_ours: bool,
    /// Which colour that is, from 0; of several parts, the first one's.
    pub style: usize,
}
