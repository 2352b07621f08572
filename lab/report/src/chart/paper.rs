//! The sheet a chart is drawn on: heading, legend, the plot, a caption, and the frame of the SVG.
//!
//! In: a [`Figure`] and a [`Sheet`]. Out: SVG text. Invariant: the sheet is as high as what stands on it; text is escaped by plotters, and
//! characters that no XML may hold are replaced.

use super::look::{self, HEADING, INK, LINE_HEIGHT, MUTED, SURFACE, TEXT, text_width, wrapped};
use super::{Kind, Plot, Series, bars, lines};
use crate::document::Figure;
use anyhow::{Context, Result, anyhow};
use plotters::coord::Shift;
use plotters::element::{DashedPathElement, PathElement, Polygon, Rectangle, Text};
use plotters::prelude::{
    Color, DrawingArea, IntoDrawingArea, IntoFont, SVGBackend, ShapeStyle, TextStyle,
};
use plotters::style::RGBColor;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Where a chart will be seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sheet {
    /// In a page on a wide screen or on paper.
    Wide,
    /// In a page on a telephone.
    Narrow,
    /// In a file of its own, with its caption.
    Alone,
}

impl Sheet {
    fn width(self) -> i32 {
        match self {
            Self::Wide => 620,
            Self::Narrow => 370,
            Self::Alone => 720,
        }
    }

    /// Height of the rectangle that axes span, pixels.
    pub(super) fn plot_height(self) -> i32 {
        if self == Self::Narrow { 230 } else { 300 }
    }

    /// Ticks that fit to the right and upwards.
    pub(super) fn most_ticks(self) -> (usize, usize) {
        if self == Self::Narrow { (5, 5) } else { (9, 6) }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Wide => "wide",
            Self::Narrow => "narrow",
            Self::Alone => "alone",
        }
    }
}

/// Where lines, shapes and texts are drawn, by pixels.
pub(super) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// An entry of a legend.
struct Entry {
    name: String,
    kind: Kind,
    style: usize,
    is_hollow: bool,
}

const SIDE: i32 = 10;
const SAMPLE_WIDTH: i32 = 30;

/// Draws a figure as SVG.
///
/// # Errors
/// When plotters does not draw.
pub(crate) fn draw(figure: &Figure, sheet: Sheet) -> Result<String> {
    let width = sheet.width();
    let title = wrapped(&figure.data.title, HEADING * 1.16, width - 2 * SIDE);
    let legend = legend_rows(entries(&figure.plot), width);
    let caption = match sheet {
        Sheet::Alone => wrapped(&figure.caption, TEXT - 1.0, width - 2 * SIDE),
        Sheet::Wide | Sheet::Narrow => Vec::new(),
    };
    let title_height = 8 + title.len() as i32 * (LINE_HEIGHT + 2);
    let head = title_height + legend.len() as i32 * (LINE_HEIGHT + 2) + 4;
    let foot = if caption.is_empty() {
        4
    } else {
        caption.len() as i32 * LINE_HEIGHT + 14
    };
    let body = match &figure.plot {
        Plot::Lines(_) => lines::height(sheet),
        Plot::Bars(plot) => bars::height(plot, width),
    };
    let height = head + body + foot;
    let mut text = String::new();
    {
        let root =
            SVGBackend::with_string(&mut text, (width as u32, height as u32)).into_drawing_area();
        drawn(root.fill(&SURFACE))?;
        for (index, line) in title.iter().enumerate() {
            write_text(
                &root,
                line,
                (SIDE, 6 + index as i32 * (LINE_HEIGHT + 2)),
                &bold_style(HEADING),
            )?;
        }
        for (index, row) in legend.iter().enumerate() {
            draw_legend_row(&root, row, title_height + index as i32 * (LINE_HEIGHT + 2))?;
        }
        for (index, line) in caption.iter().enumerate() {
            let y = head + body + 8 + index as i32 * LINE_HEIGHT;
            write_text(
                &root,
                line,
                (SIDE, y),
                &text_style(TEXT - 1.0, MUTED, HPos::Left),
            )?;
        }
        let area = root.clone().shrink((0, head), (width as u32, body as u32));
        match &figure.plot {
            Plot::Lines(plot) => lines::draw(plot, &area, sheet)?,
            Plot::Bars(plot) => bars::draw(plot, &area, width)?,
        }
        drawn(root.present())?;
    }
    // The drawing's own line ends stay.
    let is_drawable = |c: char| c >= ' ' || c == '\n';
    let replaced = |c: char| {
        if is_drawable(c) {
            c
        } else {
            char::REPLACEMENT_CHARACTER
        }
    };
    Ok(framed(&text, figure, sheet)?
        .chars()
        .map(replaced)
        .collect())
}

/// What the legend says; nothing where a single kind of thing is drawn.
fn entries(plot: &Plot) -> Vec<Entry> {
    let of_series = |one: &Series| Entry {
        name: one.name.clone(),
        kind: one.kind,
        style: one.style,
        is_hollow: false,
    };
    let of_bars = |name: &str, style: usize, is_hollow: bool| Entry {
        name: name.to_owned(),
        kind: Kind::Columns,
        style,
        is_hollow,
    };
    match plot {
        Plot::Lines(plot) if plot.series.len() == 1 && plot.series[0].kind == Kind::Columns => {
            Vec::new()
        }
        Plot::Lines(plot) => plot.series.iter().map(of_series).collect(),
        Plot::Bars(plot) if plot.parts.len() > 1 => plot
            .parts
            .iter()
            .enumerate()
            .map(|(style, name)| of_bars(name, style, false))
            .collect(),
        // In grey, as it is so for bars of every colour.
        Plot::Bars(plot) if plot.rows.iter().any(|bar| bar.predicted.is_some()) => {
            vec![
                of_bars("measured", look::NUM_SERIES - 1, false),
                of_bars("predicted", look::NUM_SERIES - 1, true),
            ]
        }
        Plot::Bars(_) => Vec::new(),
    }
}

/// Entries from left to right, as many a row as there is room for.
fn legend_rows(entries: Vec<Entry>, width: i32) -> Vec<Vec<(i32, Entry)>> {
    let mut rows: Vec<Vec<(i32, Entry)>> = Vec::new();
    let mut x = width;
    for mut entry in entries {
        let room = width - 2 * SIDE - SAMPLE_WIDTH - 14;
        if text_width(&entry.name, TEXT) > room {
            let shortened = wrapped(&entry.name, TEXT, room - 14)
                .first()
                .cloned()
                .unwrap_or_default();
            entry.name = format!("{shortened} …");
        }
        let needed = SAMPLE_WIDTH + text_width(&entry.name, TEXT) + 14;
        if x + needed > width - SIDE + 14 || rows.is_empty() {
            rows.push(Vec::new());
            x = SIDE;
        }
        rows.last_mut()
            .expect("a row was pushed first")
            .push((x, entry));
        x += needed;
    }
    rows
}

fn draw_legend_row(root: &Area<'_>, row: &[(i32, Entry)], top: i32) -> Result<()> {
    for (x, entry) in row {
        let (x, y) = (*x, top + LINE_HEIGHT / 2);
        let colour = look::colour(entry.style);
        let (from, to, middle) = (
            (x, y),
            (x + SAMPLE_WIDTH - 6, y),
            (x + (SAMPLE_WIDTH - 6) / 2, y),
        );
        match entry.kind {
            Kind::Measured => {
                drawn(root.draw(&PathElement::new([from, to], colour.stroke_width(2))))?
            }
            Kind::Reference => {
                drawn(root.draw(&PathElement::new([from, to], MUTED.stroke_width(1))))?
            }
            Kind::Predicted | Kind::Fitted => {
                drawn(root.draw(&DashedPathElement::new(
                    [from, to],
                    5,
                    4,
                    colour.stroke_width(2),
                )))?;
            }
            Kind::Columns => {
                let corners = [(x + 6, y - 6), (x + SAMPLE_WIDTH - 8, y + 6)];
                let style = if entry.is_hollow {
                    colour.stroke_width(1)
                } else {
                    colour.filled()
                };
                drawn(root.draw(&Rectangle::new(corners, style)))?;
            }
            Kind::Scattered => {}
        }
        for (outline, style) in marker_shapes(entry.kind, entry.style) {
            let outline = outline
                .into_iter()
                .map(|(dx, dy)| (middle.0 + dx, middle.1 + dy))
                .collect();
            draw_marker(root, outline, style)?;
        }
        write_text(
            root,
            &entry.name,
            (x + SAMPLE_WIDTH, top + 2),
            &text_style(TEXT, INK, HPos::Left),
        )?;
    }
    Ok(())
}

fn draw_marker(root: &Area<'_>, outline: Vec<(i32, i32)>, style: ShapeStyle) -> Result<()> {
    if style.filled {
        return drawn(root.draw(&Polygon::new(outline, style)));
    }
    drawn(root.draw(&PathElement::new(closed(outline), style)))
}

/// The first point once more at the end.
pub(super) fn closed(mut outline: Vec<(i32, i32)>) -> Vec<(i32, i32)> {
    outline.extend(outline.first().copied());
    outline
}

/// The shapes that a marker consists of, one over the other: filled, or hollow over what lies behind.
pub(super) fn marker_shapes(kind: Kind, style: usize) -> Vec<(Vec<(i32, i32)>, ShapeStyle)> {
    let colour = look::colour(style);
    match kind {
        Kind::Measured | Kind::Scattered => vec![(look::marker(style), colour.filled())],
        Kind::Predicted => {
            vec![
                (look::marker(style), SURFACE.filled()),
                (look::marker(style), colour.stroke_width(2)),
            ]
        }
        Kind::Fitted | Kind::Reference | Kind::Columns => Vec::new(),
    }
}

pub(super) fn bold_style(size: f64) -> TextStyle<'static> {
    let font = ("sans-serif", size * 1.24)
        .into_font()
        .style(plotters::style::FontStyle::Bold);
    font.color(&INK).pos(Pos::new(HPos::Left, VPos::Top))
}

/// The style of ordinary text. The SVG backend writes sizes divided by 1.24.
pub(super) fn text_style(size: f64, colour: RGBColor, anchor: HPos) -> TextStyle<'static> {
    ("sans-serif", size * 1.24)
        .into_font()
        .color(&colour)
        .pos(Pos::new(anchor, VPos::Top))
}

pub(super) fn write_text(
    area: &Area<'_>,
    text: &str,
    at: (i32, i32),
    style: &TextStyle<'static>,
) -> Result<()> {
    drawn(area.draw(&Text::new(text.to_owned(), at, style.clone())))
}

/// The error of a drawing call.
pub(super) fn drawn<T, E: std::fmt::Display>(result: Result<T, E>) -> Result<T> {
    result.map_err(|error| anyhow!("chart: {error}"))
}

/// Gives the drawing its role and words for those who do not see it; plotters writes neither.
fn framed(drawing: &str, figure: &Figure, sheet: Sheet) -> Result<String> {
    let (_, after) = drawing
        .split_once("<svg ")
        .context("chart: expected an svg element of plotters")?;
    let (attributes, inside) = after
        .split_once('>')
        .context("chart: expected the svg element of plotters to close")?;
    let view_box = attributes
        .find("viewBox")
        .map_or("", |at| &attributes[at..]);
    let view_box: String = view_box
        .splitn(3, '"')
        .take(2)
        .collect::<Vec<_>>()
        .join("\"");
    let size = match sheet {
        Sheet::Alone => attributes.split(" viewBox").next().unwrap_or_default(),
        Sheet::Wide | Sheet::Narrow => "",
    };
    let id = format!("{}-{}", figure.data.id, sheet.name());
    let named = maud::html! {
        title id={ (id) "-title" } { (figure.data.title) }
        desc id={ (id) "-desc" } { (figure.caption) }
    };
    Ok(format!(
        "<svg class=\"{}\" {size} {view_box}\" xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" aria-labelledby=\"{id}-title {id}-desc\">\n{}{}",
        sheet.name(),
        named.into_string(),
        inside.trim_start()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chart::{Axis, Bar, BarPlot};
    use crate::document::Table;

    #[test]
    fn control_characters_of_a_label_are_replaced_since_no_svg_may_hold_them() {
        let label = "run\u{1b}[31m\u{0}\tend".to_owned();
        let figure = Figure {
            caption: label.clone(),
            data: Table::new("id", label.clone(), &[]),
            plot: Plot::Bars(BarPlot {
                x: Axis::from_zero("s"),
                parts: Vec::new(),
                rows: vec![Bar {
                    label,
                    values: vec![1.0],
                    ..Bar::default()
                }],
            }),
        };
        for sheet in [Sheet::Wide, Sheet::Narrow, Sheet::Alone] {
            let svg = draw(&figure, sheet).unwrap();
            assert!(svg.contains("run\u{fffd}[31m\u{fffd}"), "{svg}");
            assert!(svg.chars().all(|c| c >= ' ' || c == '\n'), "{svg}");
        }
    }
}
