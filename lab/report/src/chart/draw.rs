//! Drawing of figures as SVG: title, legend, plot.
//!
//! In: a [`Figure`]. Out: SVG text, identical in the page and in its file.
//! Invariant: the drawing is as high as its contents; no text is cut off. plotters escapes text; control characters,
//! which XML forbids, are replaced.
//! Source: Okabe & Ito 2008, Color Universal Design, for the colours.

use super::{Axis, Bar, Figure, Kind, MOST_SERIES, Marks, Point, Series};
use anyhow::{Context, Result};
use plotters::chart::ChartBuilder;
use plotters::coord::Shift;
use plotters::element::{DashedPathElement, EmptyElement, PathElement, Polygon, Rectangle, Text};
use plotters::prelude::{
    Color, DrawingArea, IntoDrawingArea, IntoFont, SVGBackend, ShapeStyle, TextStyle,
};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{FontStyle, RGBColor};
use records::wrapped;

/// Colours on white and on black: of the series, then [`INK`] and the others below.
pub(crate) const COLOURS: [(u32, u32); MOST_SERIES + 5] = [
    (0x00_72b2, 0x4d_b0f0),
    (0xd5_5e00, 0xff_8c42),
    (0x00_9e73, 0x2e_d1a2),
    (0xb8_5c94, 0xe5_9ac6),
    (0xc9_8a00, 0xf2_b83a),
    (0x3f_a3dd, 0x8a_d0f7),
    (0x5b_5b66, 0xb4_b4c0),
    (0x1c_1e21, 0xe8_e9ec),
    (0x63_6870, 0xa3_a8b2),
    (0xe3_e5e9, 0x34_3840),
    (0xff_ffff, 0x17_191d),
    (0xb4_bac2, 0x58_5f6b),
];
const INK: RGBColor = colour(MOST_SERIES);
const MUTED: RGBColor = colour(MOST_SERIES + 1);
const GRID: RGBColor = colour(MOST_SERIES + 2);
const SURFACE: RGBColor = colour(MOST_SERIES + 3);
const QUIET: RGBColor = colour(MOST_SERIES + 4);

/// Sizes in pixels.
const WIDTH: i32 = 640;
const SIDE: i32 = 12;
const LINE: i32 = 18;
const PLOT: i32 = 350;
const X_AXIS: i32 = 46;
const TEXT: f64 = 13.0;
const HEADING: f64 = 15.0;
/// Sample in the legend.
const SAMPLE: i32 = 30;
const BAR: i32 = 16;
/// Hollow bar below a bar.
const HOLLOW: i32 = 7;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// An entry of the legend.
struct Entry<'a> {
    name: &'a str,
    style: usize,
    /// Kind of the series; `None` is a bar.
    kind: Option<Kind>,
    is_hollow: bool,
}

/// Labels and place of a bar.
struct Row<'a> {
    bar: &'a Bar,
    heading: Option<&'a str>,
    /// Lines to the left of the bar.
    label: Vec<String>,
    top: i32,
}

/// Draws a figure.
///
/// # Errors
/// When plotters fails.
pub(crate) fn draw(figure: &Figure) -> Result<String> {
    let title = wrapped(&figure.title, columns(WIDTH - 2 * SIDE, HEADING));
    let legend = legend(&figure.marks);
    let legend_top = 10 + title.len() as i32 * (LINE + 2);
    let top = legend_top + legend.len() as i32 * (LINE + 2) + 6;
    let rows = match &figure.marks {
        Marks::Bars(_, bars) => rows(bars),
        Marks::Lines(..) => Vec::new(),
    };
    let height = top + rows.last().map_or(PLOT, |row| row.bottom() + X_AXIS);
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH as u32, height as u32));
        let root = root.into_drawing_area();
        root.fill(&SURFACE)?;
        for (index, line) in title.into_iter().enumerate() {
            let at = (SIDE, 8 + index as i32 * (LINE + 2));
            root.draw(&Text::new(line, at, bold(HEADING)))?;
        }
        for (index, entries) in legend.iter().enumerate() {
            draw_legend(&root, entries, legend_top + index as i32 * (LINE + 2))?;
        }
        let area = root
            .clone()
            .shrink((0, top), (WIDTH as u32, (height - top) as u32));
        match &figure.marks {
            Marks::Lines(y, series) => draw_lines(&area, &figure.x, y, series)?,
            Marks::Bars(_, bars) => draw_bars(&area, &figure.x, bars, &rows)?,
        }
        root.present()?;
    }
    let (start, drawing) = svg
        .split_once('>')
        .context("chart: plotters wrote no svg element")?;
    let described = maud::html! { title { (figure.title) } desc { (figure.caption) } };
    let svg = format!(
        "{start} role=\"img\">\n{}{drawing}",
        described.into_string()
    );
    let is_drawable = |c: char| c >= ' ' || c == '\n';
    let replaced = |c| {
        if is_drawable(c) {
            c
        } else {
            char::REPLACEMENT_CHARACTER
        }
    };
    Ok(svg.chars().map(replaced).collect())
}

const fn colour(index: usize) -> RGBColor {
    let (rgb, _) = COLOURS[index];
    RGBColor((rgb >> 16) as u8, (rgb >> 8) as u8, rgb as u8)
}

/// Returns the colour of a series.
fn of_series(style: usize) -> RGBColor {
    colour(style % MOST_SERIES)
}

/// Returns how many characters of this size fit into a width; pessimistic, as fonts differ.
fn columns(width: i32, size: f64) -> usize {
    (f64::from(width) / (0.58 * size)) as usize
}

/// Returns the width of a text in pixels.
fn width(text: &str) -> i32 {
    (text.chars().count() as f64 * 0.58 * TEXT).ceil() as i32
}

/// Returns a text style; plotters writes font sizes divided by 1.24.
fn style(colour: RGBColor, horizontal: HPos, vertical: VPos) -> TextStyle<'static> {
    let font = ("sans-serif", TEXT * 1.24).into_font();
    font.color(&colour).pos(Pos::new(horizontal, vertical))
}

fn bold(size: f64) -> TextStyle<'static> {
    let font = ("sans-serif", size * 1.24)
        .into_font()
        .style(FontStyle::Bold);
    font.color(&INK).pos(Pos::new(HPos::Left, VPos::Top))
}

/// Returns the entries of the legend, each with its left edge, in as many rows as needed.
fn legend(marks: &Marks) -> Vec<Vec<(i32, Entry<'_>)>> {
    let entry = |name, style, kind, is_hollow| Entry {
        name,
        style,
        kind,
        is_hollow,
    };
    let grey = MOST_SERIES - 1;
    let entries: Vec<Entry<'_>> = match marks {
        Marks::Lines(_, series) => {
            let series = series.iter();
            series
                .map(|one| entry(&one.name, one.style, Some(one.kind), false))
                .collect()
        }
        Marks::Bars(parts, bars) if bars.iter().all(|bar| bar.predicted.is_none()) => {
            let parts = parts.iter().enumerate();
            parts
                .map(|(style, name)| entry(name, style, None, false))
                .collect()
        }
        Marks::Bars(..) => vec![
            entry("measured", grey, None, false),
            entry("predicted", grey, None, true),
        ],
    };
    let mut rows: Vec<Vec<(i32, Entry<'_>)>> = Vec::new();
    let mut left = WIDTH;
    for entry in entries {
        let needed = SAMPLE + width(entry.name) + 14;
        if left + needed > WIDTH {
            rows.push(Vec::new());
            left = SIDE;
        }
        if let Some(row) = rows.last_mut() {
            row.push((left, entry));
        }
        left += needed;
    }
    rows
}

fn draw_legend(root: &Area<'_>, entries: &[(i32, Entry<'_>)], top: i32) -> Result<()> {
    for (left, entry) in entries {
        let middle = top + LINE / 2;
        let ends = [(*left, middle), (left + SAMPLE - 6, middle)];
        let colour = of_series(entry.style);
        match entry.kind {
            None => {
                let corners = [(left + 6, middle - 6), (left + SAMPLE - 8, middle + 6)];
                let style = if entry.is_hollow {
                    colour.stroke_width(1)
                } else {
                    colour.filled()
                };
                root.draw(&Rectangle::new(corners, style))?;
            }
            Some(Kind::Predicted | Kind::Fitted) => {
                root.draw(&DashedPathElement::new(ends, 5, 4, colour.stroke_width(2)))?;
            }
            Some(kind) => root.draw(&PathElement::new(ends, stroke(kind, colour)))?,
        }
        if let Some((outline, fill)) = entry.kind.and_then(|kind| marker(kind, entry.style)) {
            let at = (left + (SAMPLE - 6) / 2, middle);
            let border = PathElement::new(outline.clone(), colour.stroke_width(2));
            root.draw(&(EmptyElement::at(at) + Polygon::new(outline, fill) + border))?;
        }
        let at = (left + SAMPLE, top + 2);
        root.draw(&Text::new(
            entry.name,
            at,
            style(INK, HPos::Left, VPos::Top),
        ))?;
    }
    Ok(())
}

/// Returns the style of a series' line; scattered points have none.
fn stroke(kind: Kind, colour: RGBColor) -> ShapeStyle {
    match kind {
        Kind::Reference => MUTED.stroke_width(1),
        Kind::Scattered => colour.stroke_width(0),
        Kind::Measured | Kind::Predicted | Kind::Fitted => colour.stroke_width(2),
    }
}

/// Returns the closed outline of a marker around the origin, and its fill.
fn marker(kind: Kind, style: usize) -> Option<(Vec<(i32, i32)>, ShapeStyle)> {
    let fill = match kind {
        Kind::Measured | Kind::Scattered => of_series(style),
        Kind::Predicted => SURFACE,
        Kind::Fitted | Kind::Reference => return None,
    };
    // Corners, eighths of a turn to the first one, distance of every second corner.
    let (corners, eighths, inner) = [
        (12, 0.0, 1.0),
        (4, 1.0, 1.0),
        (3, -2.0, 1.0),
        (4, 0.0, 1.0),
        (3, 2.0, 1.0),
        (8, 1.0, 0.4),
        (10, -2.0, 0.5),
    ][style % MOST_SERIES];
    let corner = |index: usize| {
        let turn = eighths / 8.0 + index as f64 / f64::from(corners);
        let radius = if index % 2 == 1 { 5.5 * inner } else { 5.5 };
        let angle = turn * std::f64::consts::TAU;
        let at = |value: f64| (radius * value).round() as i32;
        (at(angle.cos()), at(angle.sin()))
    };
    Some(((0..=corners as usize).map(corner).collect(), fill.filled()))
}

fn draw_lines(area: &Area<'_>, x_axis: &Axis, y_axis: &Axis, all: &[Series]) -> Result<()> {
    let points = || all.iter().flat_map(Series::points);
    let ends = points().flat_map(|point| {
        let (least, most) = point.range.unwrap_or((point.y, point.y));
        [point.y, least, most]
    });
    let x = x_axis.place(points().map(|point| point.x), 9);
    let y = y_axis.place(ends, 7);
    let labels = y.ticks.iter().map(|tick| width(&y_axis.text(*tick)));
    let mut builder = ChartBuilder::on(area);
    builder
        .margin_left(SIDE)
        .margin_right(2 * SIDE)
        .margin_top(6)
        .x_label_area_size(X_AXIS)
        .y_label_area_size(labels.max().unwrap_or(0) + LINE + 8);
    let mut chart = builder.build_cartesian_2d(x, y)?;
    let muted = style(MUTED, HPos::Center, VPos::Top);
    chart
        .configure_mesh()
        .max_light_lines(0)
        .bold_line_style(GRID.stroke_width(1))
        .axis_style(MUTED.stroke_width(1))
        .label_style(muted.clone())
        .axis_desc_style(muted)
        .x_desc(&x_axis.label)
        .y_desc(&y_axis.label)
        .x_label_formatter(&|at| x_axis.text(*at))
        .y_label_formatter(&|at| y_axis.text(*at))
        .draw()?;
    for series in all {
        let colour = of_series(series.style);
        for line in &series.lines {
            let at = |point: &Point| Some((x_axis.at(point.x)?, y_axis.at(point.y)?));
            let placed: Vec<(f64, f64)> = line.iter().filter_map(at).collect();
            match series.kind {
                Kind::Scattered => {}
                Kind::Predicted | Kind::Fitted => {
                    let dashes =
                        DashedPathElement::new(placed.clone(), 6, 5, colour.stroke_width(2));
                    chart.draw_series([dashes])?;
                }
                kind => {
                    chart.draw_series([PathElement::new(placed.clone(), stroke(kind, colour))])?;
                }
            }
            for point in line {
                let Some((least, most)) = point.range.filter(|(least, most)| least < most) else {
                    continue;
                };
                let place = (x_axis.at(point.x), y_axis.at(least), y_axis.at(most));
                if let (Some(x), Some(low), Some(high)) = place {
                    let thin = colour.stroke_width(1);
                    chart.draw_series([PathElement::new([(x, low), (x, high)], thin)])?;
                    let cap = |end| {
                        EmptyElement::at((x, end)) + PathElement::new([(-5, 0), (5, 0)], thin)
                    };
                    chart.draw_series([low, high].map(cap))?;
                }
            }
            // The markers of a long line would hide it.
            let every = placed.len().div_ceil(40).max(1);
            for at in placed.into_iter().step_by(every) {
                if let Some((outline, fill)) = marker(series.kind, series.style) {
                    let border = PathElement::new(outline.clone(), colour.stroke_width(2));
                    let shape = EmptyElement::at(at) + Polygon::new(outline, fill) + border;
                    chart.draw_series([shape])?;
                }
            }
        }
    }
    Ok(())
}

impl Row<'_> {
    /// Returns the top of the bar below the heading.
    fn bar_top(&self) -> i32 {
        self.top + if self.heading.is_some() { LINE + 8 } else { 0 }
    }

    fn bottom(&self) -> i32 {
        let hollow = if self.bar.predicted.is_some() {
            HOLLOW
        } else {
            0
        };
        self.bar_top() + (BAR + hollow).max(self.label.len() as i32 * LINE) + 8
    }
}

/// Returns the width of the labels to the left of the bars.
fn label_width(bars: &[Bar]) -> i32 {
    let widest = bars.iter().map(|bar| width(&bar.label)).max().unwrap_or(0);
    widest.min(2 * WIDTH / 5)
}

fn rows(bars: &[Bar]) -> Vec<Row<'_>> {
    let label_columns = columns(label_width(bars), TEXT);
    let mut rows: Vec<Row<'_>> = Vec::new();
    for bar in bars {
        let previous = rows.last();
        let is_new = previous.is_none_or(|row| row.bar.group != bar.group);
        let heading = (is_new && !bar.group.is_empty()).then_some(bar.group.as_str());
        let top = previous.map_or(0, Row::bottom);
        // A word that is longer than a line is broken.
        let label = wrapped(&bar.label, label_columns)
            .into_iter()
            .flat_map(|line| {
                let characters: Vec<char> = line.chars().collect();
                let pieces = characters.chunks(label_columns.max(1));
                pieces.map(String::from_iter).collect::<Vec<_>>()
            });
        rows.push(Row {
            bar,
            heading,
            label: label.collect(),
            top,
        });
    }
    rows
}

fn draw_bars(area: &Area<'_>, x_axis: &Axis, bars: &[Bar], rows: &[Row<'_>]) -> Result<()> {
    let left = SIDE + label_width(bars) + 8;
    let bottom = rows.last().map_or(0, Row::bottom);
    let reach = |bar: &Bar| {
        let most = bar.range.map_or(0.0, |(_, most)| most);
        bar.total().max(most).max(bar.predicted.unwrap_or(0.0))
    };
    // Room for the number behind the longest bar.
    let longest = bars.iter().map(reach).fold(0.0, f64::max);
    let x = x_axis.place([0.0, longest * 1.12], 7);
    let step = x.ticks.get(1).copied().unwrap_or(1.0);
    let decimals = match step {
        _ if step >= 10.0 => 0,
        _ if step >= 1.0 => 1,
        _ => 2,
    };
    let mut builder = ChartBuilder::on(area);
    builder
        .margin_left(left)
        .margin_right(SIDE)
        .x_label_area_size(X_AXIS);
    let mut chart = builder.build_cartesian_2d(x, f64::from(bottom)..0.0)?;
    let muted = style(MUTED, HPos::Center, VPos::Top);
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .max_light_lines(0)
        .bold_line_style(GRID.stroke_width(1))
        .axis_style(MUTED.stroke_width(1))
        .label_style(muted.clone())
        .axis_desc_style(muted)
        .x_desc(&x_axis.label)
        .x_label_formatter(&|at| x_axis.text(*at))
        .draw()?;
    let ink = style(INK, HPos::Left, VPos::Top);
    for row in rows {
        let bar = row.bar;
        let top = row.bar_top();
        if let Some(heading) = row.heading {
            area.draw(&Text::new(heading, (SIDE, row.top + 6), bold(TEXT)))?;
        }
        for (index, line) in row.label.iter().enumerate() {
            let at = (SIDE, top + 1 + index as i32 * LINE);
            area.draw(&Text::new(line.as_str(), at, ink.clone()))?;
        }
        if let Some(gap) = &bar.gap {
            let most = columns(WIDTH - left - SIDE, TEXT);
            let text: String = gap.chars().take(most).collect();
            let muted = style(MUTED, HPos::Left, VPos::Top);
            area.draw(&Text::new(text, (left + 4, top + 1), muted))?;
            continue;
        }
        let y = |offset: i32| f64::from(top + offset);
        let mut from = 0.0;
        for (part, value) in bar.values.iter().enumerate() {
            let fill = bar.style.map_or(QUIET, |style| of_series(style + part));
            let corners = [(from, y(0)), (from + value, y(BAR))];
            chart.draw_series([Rectangle::new(corners, fill.filled())])?;
            from += value;
        }
        if let Some(predicted) = bar.predicted {
            let corners = [(0.0, y(BAR)), (predicted, y(BAR + HOLLOW))];
            let border = bar.style.map_or(QUIET, of_series).stroke_width(1);
            chart.draw_series([Rectangle::new(corners, border)])?;
        }
        if let Some((least, most)) = bar.range.filter(|(least, most)| least < most) {
            // The pale edge keeps the whisker visible on a dark bar.
            for line in [SURFACE.stroke_width(3), INK.stroke_width(1)] {
                let ends = [(least, y(BAR / 2)), (most, y(BAR / 2))];
                chart.draw_series([PathElement::new(ends, line)])?;
                let cap = |end| PathElement::new([(end, y(4)), (end, y(12))], line);
                chart.draw_series([least, most].map(cap))?;
            }
        }
        let text = records::decimal(bar.total(), decimals);
        let number = EmptyElement::at((reach(bar), y(1))) + Text::new(text, (6, 0), ink.clone());
        chart.draw_series([number])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(title: &str, bars: Vec<Bar>) -> Figure {
        Figure {
            id: "id".to_owned(),
            title: title.to_owned(),
            caption: title.to_owned(),
            x: Axis::from_zero("s"),
            marks: Marks::Bars(Vec::new(), bars),
        }
    }

    #[test]
    fn control_characters_of_a_label_are_replaced_since_no_svg_may_hold_them() {
        let label = "run\u{1b}[31m\u{0}\tend";
        let spread = records::Spread::of([1.0]);
        let svg = draw(&figure(label, vec![Bar::of(label, spread)])).unwrap();
        assert!(svg.contains("run\u{fffd}[31m\u{fffd}"), "{svg}");
        assert!(svg.chars().all(|c| c >= ' ' || c == '\n'), "{svg}");
    }

    #[test]
    fn a_group_is_named_once_and_a_long_label_takes_more_lines() {
        let bar = |group: &str, label: &str| Bar {
            group: group.to_owned(),
            ..Bar::of(label, None)
        };
        let long = "a label of many words ".repeat(6);
        let bars = [
            bar("1gbit", "allreduce"),
            bar("1gbit", &long),
            bar("fast", "allreduce"),
        ];
        let rows = rows(&bars);
        let headings: Vec<Option<&str>> = rows.iter().map(|row| row.heading).collect();
        assert_eq!(headings, [Some("1gbit"), None, Some("fast")]);
        assert!(rows[1].label.len() > 1 && rows[1].bottom() - rows[1].top > rows[0].bottom());
    }

    #[test]
    fn the_first_series_differ_in_marker_and_colour() {
        let outline = |style| marker(Kind::Measured, style).unwrap().0;
        for one in 0..MOST_SERIES {
            for other in 0..one {
                assert_ne!(outline(one), outline(other));
                assert_ne!(of_series(one), of_series(other));
            }
        }
    }
}
