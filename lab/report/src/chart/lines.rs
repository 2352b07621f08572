//! Points over two axes.
//!
//! In: a [`LinePlot`]. Out: axes, grid, lines, markers and error bars on a sheet.
//! Invariant: what cannot be placed, as zero on a logarithmic axis, is left out; every other point lies inside the axes.

use super::axis::Placed;
use super::look::{self, BAND, GRID, LINE_HEIGHT, MUTED, TEXT, text_width};
use super::paper::{Area, Sheet, closed, drawn, marker_shapes, text_style, write_text};
use super::{Kind, LinePlot, Point, Series};
use anyhow::Result;
use plotters::chart::{ChartBuilder, ChartContext};
use plotters::coord::cartesian::Cartesian2d;
use plotters::element::{DashedPathElement, EmptyElement, PathElement, Polygon, Rectangle};
use plotters::prelude::{Color, SVGBackend, ShapeStyle};
use plotters::style::text_anchor::HPos;

const AXIS_HEIGHT: i32 = 2 * LINE_HEIGHT + 8;
const MARGIN: i32 = 10;

/// Pixels that a plot with its axes takes.
pub(super) fn height(sheet: Sheet) -> i32 {
    LINE_HEIGHT + sheet.plot_height() + AXIS_HEIGHT
}

pub(super) fn draw(plot: &LinePlot, area: &Area<'_>, sheet: Sheet) -> Result<()> {
    let (most_x, most_y) = sheet.most_ticks();
    let points = || {
        plot.series
            .iter()
            .flat_map(|series| series.lines.iter().flatten())
    };
    let column = if plot
        .series
        .iter()
        .any(|series| series.kind == Kind::Columns)
    {
        0.5
    } else {
        0.0
    };
    let x = plot.x.place(
        points().flat_map(|point| [point.x - column, point.x + column]),
        most_x,
    );
    let values = |point: &Point| {
        [
            point.y,
            point.range.map_or(point.y, |range| range.0),
            point.range.map_or(point.y, |range| range.1),
        ]
    };
    let y = plot.y.place(points().flat_map(values), most_y);

    write_text(
        area,
        &plot.y.label,
        (MARGIN, 0),
        &text_style(TEXT - 1.0, MUTED, HPos::Left),
    )?;
    let (width, height) = area.dim_in_pixel();
    let label_style = text_style(TEXT - 1.0, MUTED, HPos::Right);
    let middle = (width as i32 / 2, height as i32 - LINE_HEIGHT);
    write_text(
        area,
        &plot.x.label,
        middle,
        &text_style(TEXT - 1.0, MUTED, HPos::Center),
    )?;

    let widest = y
        .ticks
        .iter()
        .map(|(_, text)| text_width(text, TEXT))
        .max()
        .unwrap_or(0);
    let mut builder = ChartBuilder::on(area);
    builder
        .margin_left(MARGIN - 4)
        .margin_right(MARGIN + 10)
        .margin_top(LINE_HEIGHT + 6)
        .margin_bottom(LINE_HEIGHT)
        .x_label_area_size(LINE_HEIGHT + 8)
        .y_label_area_size(widest + 8);
    let mut chart = drawn(builder.build_cartesian_2d(x.clone(), y.clone()))?;
    let text_at = |placed: &Placed, at: f64| {
        let near = |tick: &&(f64, String)| (tick.0 - at).abs() <= 1e-9 * (placed.high - placed.low);
        placed
            .ticks
            .iter()
            .find(near)
            .map_or(String::new(), |(_, text)| text.clone())
    };
    drawn(
        chart
            .configure_mesh()
            .light_line_style(GRID.stroke_width(0))
            .bold_line_style(GRID.stroke_width(1))
            .axis_style(MUTED.stroke_width(1))
            .label_style(label_style)
            .x_label_formatter(&|at| text_at(&x, *at))
            .y_label_formatter(&|at| text_at(&y, *at))
            .draw(),
    )?;
    if let Some(share) = plot.band {
        draw_band(&mut chart, (&x, &y), share)?;
    }
    for series in &plot.series {
        draw_series(&mut chart, series, (&x, &y))?;
    }
    Ok(())
}

type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Placed, Placed>>;

/// Where y is within a share of x.
fn draw_band(chart: &mut Chart<'_, '_>, (x, y): (&Placed, &Placed), share: f64) -> Result<()> {
    // Many corners, since the band is cut off where it leaves the axes.
    const NUM_CORNERS: usize = 64;
    let value = |index: usize| x.low + (x.high - x.low) * index as f64 / NUM_CORNERS as f64;
    let edge = |factor: f64| {
        let at = move |index: usize| {
            let raised = x.scaled(value(index), factor).clamp(y.low, y.high);
            (value(index), raised)
        };
        (0..=NUM_CORNERS).map(at).collect::<Vec<_>>()
    };
    let mut outline = edge(1.0 + share);
    outline.extend(edge(1.0 - share).into_iter().rev());
    drawn(chart.draw_series([Polygon::new(outline, BAND.filled())])).map(drop)
}

fn draw_series(
    chart: &mut Chart<'_, '_>,
    series: &Series,
    (x, y): (&Placed, &Placed),
) -> Result<()> {
    let colour = look::colour(series.style);
    for line in &series.lines {
        let placed: Vec<(f64, f64)> = line
            .iter()
            .filter_map(|point| Some((x.at(point.x)?, y.at(point.y)?)))
            .collect();
        let thin: ShapeStyle = MUTED.stroke_width(1);
        match series.kind {
            Kind::Measured => {
                drawn(chart.draw_series([PathElement::new(placed.clone(), colour.stroke_width(2))]))
                    .map(drop)?
            }
            Kind::Reference => {
                drawn(chart.draw_series([PathElement::new(placed.clone(), thin)])).map(drop)?
            }
            Kind::Predicted | Kind::Fitted => {
                drawn(chart.draw_series([DashedPathElement::new(
                    placed.clone(),
                    6,
                    5,
                    colour.stroke_width(2),
                )]))
                .map(drop)?;
            }
            Kind::Columns => {
                let column = |(x, y): &(f64, f64)| {
                    Rectangle::new([(x - 0.4, 0.0), (x + 0.4, *y)], colour.filled())
                };
                drawn(chart.draw_series(placed.iter().map(column))).map(drop)?;
            }
            Kind::Scattered => {}
        }
        draw_ranges(chart, line, (x, y), colour.stroke_width(1))?;
        // Markers of long lines would hide them.
        let every = placed.len().div_ceil(40).max(1);
        for at in placed.iter().step_by(every) {
            for (outline, style) in marker_shapes(series.kind, series.style) {
                if style.filled {
                    drawn(
                        chart.draw_series([EmptyElement::at(*at) + Polygon::new(outline, style)]),
                    )
                    .map(drop)?;
                } else {
                    drawn(chart.draw_series([
                        EmptyElement::at(*at) + PathElement::new(closed(outline), style)
                    ]))
                    .map(drop)?;
                }
            }
        }
    }
    Ok(())
}

fn draw_ranges(
    chart: &mut Chart<'_, '_>,
    line: &[Point],
    (x, y): (&Placed, &Placed),
    style: ShapeStyle,
) -> Result<()> {
    for point in line {
        let Some((low, high)) = point.range.filter(|(low, high)| low < high) else {
            continue;
        };
        let (Some(at), Some(low), Some(high)) = (x.at(point.x), y.at(low), y.at(high)) else {
            continue;
        };
        drawn(chart.draw_series([PathElement::new([(at, low), (at, high)], style)])).map(drop)?;
        let cap =
            |end: f64| EmptyElement::at((at, end)) + PathElement::new([(-5, 0), (5, 0)], style);
        drawn(chart.draw_series([low, high].map(cap))).map(drop)?;
    }
    Ok(())
}
