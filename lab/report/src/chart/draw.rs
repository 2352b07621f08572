//! Drawing of figures as SVG: title, legend, plot.
//!
//! In: a [`Figure`]. Out: SVG text, identical in the page and in its file.
//! Invariant: the drawing is as high as its contents; no text is cut off. maud escapes text;
//! control characters, which XML forbids, are replaced.
//! Source: Okabe & Ito 2008, Color Universal Design, for the colours.

use super::axis::Scale;
use super::{Axis, Bar, Figure, Kind, MOST_SERIES, Marks, Point, Series};
use maud::{Markup, html};
use records::wrapped;

/// Colours on white and on black: of the series, then [`INK`] and the others below.
pub(crate) const COLOURS: [(&str, &str); MOST_SERIES + 5] = [
    ("#0072B2", "#4DB0F0"),
    ("#D55E00", "#FF8C42"),
    ("#009E73", "#2ED1A2"),
    ("#B85C94", "#E59AC6"),
    ("#C98A00", "#F2B83A"),
    ("#3FA3DD", "#8AD0F7"),
    ("#5B5B66", "#B4B4C0"),
    ("#1C1E21", "#E8E9EC"),
    ("#636870", "#A3A8B2"),
    ("#E3E5E9", "#343840"),
    ("#FFFFFF", "#17191D"),
    ("#B4BAC2", "#585F6B"),
];
const INK: &str = COLOURS[MOST_SERIES].0;
const MUTED: &str = COLOURS[MOST_SERIES + 1].0;
const GRID: &str = COLOURS[MOST_SERIES + 2].0;
const SURFACE: &str = COLOURS[MOST_SERIES + 3].0;
const QUIET: &str = COLOURS[MOST_SERIES + 4].0;

/// Sizes in pixels.
const WIDTH: f64 = 520.0;
const SIDE: f64 = 12.0;
/// Line of text.
const LINE: f64 = 18.0;
/// Line of the title or legend.
const HEAD: f64 = 20.0;
const PLOT: f64 = 310.0;
const X_AXIS: f64 = 46.0;
const TEXT: f64 = 13.0;
const HEADING: f64 = 15.0;
/// Sample in the legend.
const SAMPLE: f64 = 30.0;
const BAR: f64 = 16.0;
/// Hollow bar below a bar.
const HOLLOW: f64 = 7.0;

/// Draws a figure.
pub(crate) fn draw(figure: &Figure) -> String {
    let title = wrapped(&figure.title, columns(WIDTH - 2.0 * SIDE, HEADING));
    let (legend, num_lines) = legend(&figure.marks);
    let legend_top = 10.0 + title.len() as f64 * HEAD;
    let top = legend_top + f64::from(num_lines) * HEAD + 6.0;
    let (plot, bottom) = match &figure.marks {
        Marks::Lines(y, series) => lines(&figure.x, y, series, top),
        Marks::Bars(_, all) => bars(&figure.x, all, top),
    };
    let height = bottom + X_AXIS;
    let svg = html! {
        svg width=(WIDTH) height=(height) viewBox={ "0 0 " (WIDTH) " " (height) }
            xmlns="http://www.w3.org/2000/svg" role="img" font-family="sans-serif" {
            title { (figure.title) }
            desc { (figure.caption) }
            rect width=(WIDTH) height=(height) fill=(SURFACE) {}
            @for (index, line) in title.iter().enumerate() {
                (heading(8.0 + index as f64 * HEAD, HEADING, line))
            }
            g transform={ "translate(0," (legend_top) ")" } { (legend) }
            (plot)
        }
    };
    let replaced = |c: char| match c >= ' ' || c == '\n' {
        true => c,
        false => char::REPLACEMENT_CHARACTER,
    };
    svg.into_string().chars().map(replaced).collect()
}

fn of_series(style: usize) -> &'static str {
    COLOURS[style % MOST_SERIES].0
}

/// Returns how many characters of this size fit into a width; pessimistic, as fonts differ.
fn columns(width: f64, size: f64) -> usize {
    (width / (0.58 * size)) as usize
}

/// Returns the width of a text in pixels.
fn width(text: &str) -> f64 {
    (text.chars().count() as f64 * 0.58 * TEXT).ceil()
}

/// Writes a text whose top is at `y`.
fn text(x: f64, y: f64, anchor: &str, colour: &str, text: &str) -> Markup {
    html! {
        text x=(x) y=(y) dy="0.76em" text-anchor=(anchor) font-size=(TEXT) fill=(colour) { (text) }
    }
}

fn heading(y: f64, size: f64, text: &str) -> Markup {
    html! {
        text x=(SIDE) y=(y) dy="0.76em" font-size=(size) font-weight="bold" fill=(INK) { (text) }
    }
}

fn shown(points: impl IntoIterator<Item = (f64, f64)>) -> String {
    let points = points.into_iter();
    let points: Vec<String> = points.map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    points.join(" ")
}

fn line(points: &[(f64, f64)], colour: &str, width: f64, dashes: Option<&str>) -> Markup {
    html! {
        polyline points=(shown(points.iter().copied())) fill="none" stroke=(colour)
            stroke-width=(width) stroke-dasharray=[dashes] {}
    }
}

/// Draws an interval along an axis with caps at its ends; `at` turns its coordinates.
fn range(ends: [f64; 2], across: f64, at: fn(f64, f64) -> (f64, f64), look: (&str, f64)) -> Markup {
    let cap = |end: f64| [-5.0, 5.0].map(|offset| at(end, across + offset));
    let [low, high] = ends;
    html! {
        @for stroke in [[at(low, across), at(high, across)], cap(low), cap(high)] {
            (line(&stroke, look.0, look.1, None))
        }
    }
}

fn rectangle(from: (f64, f64), to: (f64, f64), fill: &str, stroke: Option<&str>) -> Markup {
    html! {
        rect x=(from.0) y=(from.1) width=(to.0 - from.0) height=(to.1 - from.1) fill=(fill)
            stroke=[stroke] {}
    }
}

/// Draws the line of a series.
fn stroke(points: &[(f64, f64)], kind: Kind, style: usize) -> Markup {
    match kind {
        Kind::Scattered => html! {},
        Kind::Reference => line(points, MUTED, 1.0, None),
        Kind::Trained => line(points, of_series(style), 1.5, None),
        Kind::Measured | Kind::Evaluated => line(points, of_series(style), 2.0, None),
        Kind::Predicted | Kind::Fitted => line(points, of_series(style), 2.0, Some("6 5")),
    }
}

/// Draws the marker of a series.
fn marker((x, y): (f64, f64), kind: Kind, style: usize) -> Markup {
    let fill = match kind {
        Kind::Measured | Kind::Evaluated | Kind::Scattered => of_series(style),
        Kind::Predicted => SURFACE,
        Kind::Trained | Kind::Fitted | Kind::Reference => return html! {},
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
    let corner = |index: i32| {
        let turn = eighths / 8.0 + f64::from(index) / f64::from(corners);
        let radius = if index % 2 == 1 { 5.5 * inner } else { 5.5 };
        let (sine, cosine) = (turn * std::f64::consts::TAU).sin_cos();
        (x + radius * cosine, y + radius * sine)
    };
    html! {
        polygon points=(shown((0..corners).map(corner))) fill=(fill) stroke=(of_series(style))
            stroke-width="2" {}
    }
}

/// Draws the legend. Returns it with the number of its lines.
fn legend(marks: &Marks) -> (Markup, u8) {
    let bar = |style: usize, is_hollow: bool| {
        let colour = of_series(style);
        let fill = if is_hollow { "none" } else { colour };
        rectangle((6.0, 3.0), (SAMPLE - 8.0, 15.0), fill, Some(colour))
    };
    let grey = MOST_SERIES - 1;
    let middle = LINE / 2.0;
    let entries: Vec<(&str, Markup)> = match marks {
        Marks::Lines(_, series) => {
            let sample = |one: &Series| {
                let ends = [(0.0, middle), (SAMPLE - 6.0, middle)];
                html! {
                    (stroke(&ends, one.kind, one.style))
                    (marker(((SAMPLE - 6.0) / 2.0, middle), one.kind, one.style))
                }
            };
            // Many thin lines have the colours of the others.
            let evaluated = series.iter().filter(|one| one.kind == Kind::Evaluated);
            let is_omitted = evaluated.count() > 1;
            let series = series.iter();
            series
                .filter(|one| !one.name.is_empty() && (one.kind != Kind::Trained || !is_omitted))
                .map(|one| (one.name.as_str(), sample(one)))
                .collect()
        }
        Marks::Bars(_, bars) if bars.iter().any(|bar| bar.predicted.is_some()) => {
            vec![
                ("measured", bar(grey, false)),
                ("predicted", bar(grey, true)),
            ]
        }
        Marks::Bars(parts, _) => {
            let parts = parts.iter().enumerate();
            parts
                .map(|(style, name)| (*name, bar(style, false)))
                .collect()
        }
    };
    let mut num_lines = 0;
    let mut left = WIDTH;
    let mut placed = Vec::new();
    for (name, sample) in entries {
        let needed = SAMPLE + width(name) + 14.0;
        if left + needed > WIDTH {
            num_lines += 1;
            left = SIDE;
        }
        let top = f64::from(num_lines - 1) * HEAD;
        placed.push(html! {
            g transform={ "translate(" (left) "," (top) ")" } {
                (sample) (text(SAMPLE, 2.0, "start", INK, name))
            }
        });
        left += needed;
    }
    (html! { @for entry in placed { (entry) } }, num_lines)
}

/// Draws the horizontal axis with its grid.
fn x_axis(axis: &Axis, scale: &Scale<'_>, top: f64, bottom: f64) -> Markup {
    let [left, right] = scale.pixels;
    html! {
        @for (x, name) in &scale.ticks {
            (line(&[(*x, top), (*x, bottom)], GRID, 1.0, None))
            (text(*x, bottom + 7.0, "middle", MUTED, name))
        }
        (line(&[(left, bottom), (right, bottom)], MUTED, 1.0, None))
        (text(f64::midpoint(left, right), bottom + 27.0, "middle", MUTED, &axis.title()))
    }
}

/// Draws series over two axes. Returns them with their bottom.
fn lines(x_axis_: &Axis, y_axis: &Axis, all: &[Series], top: f64) -> (Markup, f64) {
    let points = || all.iter().flat_map(Series::points);
    let ends = points().flat_map(|point| {
        let (least, most) = point.ends();
        [point.y, least, most]
    });
    let bottom = top + PLOT - X_AXIS;
    let y = y_axis.place(ends, 7, [bottom, top + 6.0]);
    let labels = y.ticks.iter().map(|(_, name)| width(name));
    let left = SIDE + labels.fold(0.0, f64::max) + LINE + 8.0;
    let right = WIDTH - 2.0 * SIDE;
    let place =
        |most_ticks| x_axis_.place(points().map(|point| point.x), most_ticks, [left, right]);
    let is_legible = |scale: &Scale<'_>| {
        scale.ticks.windows(2).all(|pair| {
            let [(a, name), (b, next)] = pair else {
                return true;
            };
            b - a >= f64::midpoint(width(name), width(next)) + 8.0
        })
    };
    let legible = (3..9).rev().map(place).find(is_legible);
    let x = legible.unwrap_or_else(|| place(2));
    let middle = f64::midpoint(top + 6.0, bottom);
    let markup = html! {
        @for (at, name) in &y.ticks {
            (line(&[(left, *at), (right, *at)], GRID, 1.0, None))
            (text(left - 7.0, at - 5.0, "end", MUTED, name))
        }
        (line(&[(left, top + 6.0), (left, bottom)], MUTED, 1.0, None))
        g transform={ "translate(" (SIDE) "," (middle) ") rotate(-90)" } {
            (text(0.0, 0.0, "middle", MUTED, &y_axis.title()))
        }
        (x_axis(x_axis_, &x, top + 6.0, bottom))
        @for one in all { @for points in &one.lines { (of_line(one, points, &x, &y)) } }
    };
    (markup, bottom)
}

fn of_line(series: &Series, points: &[Point], x: &Scale<'_>, y: &Scale<'_>) -> Markup {
    let at = |point: &Point| Some((x.at(point.x)?, y.at(point.y)?));
    let placed: Vec<(f64, f64)> = points.iter().filter_map(at).collect();
    let colour = of_series(series.style);
    let is_band = matches!(series.kind, Kind::Evaluated | Kind::Trained);
    let ranges = points.iter().filter_map(|point| {
        let (least, most) = point.ends();
        let is_shown = is_band || least < most;
        Some((
            x.at(point.x).filter(|_| is_shown)?,
            [y.at(least)?, y.at(most)?],
        ))
    });
    let ranges: Vec<(f64, [f64; 2])> = ranges.collect();
    let end = |which: usize| {
        ranges
            .iter()
            .map(move |(across, ends)| (*across, ends[which]))
    };
    // The markers of a long line would hide it.
    let every = placed.len().div_ceil(40).max(1);
    html! {
        @if is_band && points.iter().any(|point| point.range.is_some()) {
            polygon points=(shown(end(0).chain(end(1).rev()))) fill=(colour) fill-opacity="0.18" {}
        }
        (stroke(&placed, series.kind, series.style))
        @if !is_band { @for (across, ends) in &ranges {
            (range(*ends, *across, |along, across| (across, along), (colour, 1.0)))
        } }
        @for at in placed.iter().step_by(every) { (marker(*at, series.kind, series.style)) }
    }
}

/// Draws horizontal bars, one below the other. Returns them with their bottom.
fn bars(axis: &Axis, all: &[Bar], top: f64) -> (Markup, f64) {
    let labels = all.iter().map(|bar| width(&bar.label));
    let label_width = labels.fold(0.0, f64::max).min(0.4 * WIDTH);
    let label_columns = columns(label_width, TEXT);
    let left = SIDE + label_width + 8.0;
    let reach = |bar: &Bar| {
        let most = bar.range.map_or(0.0, |(_, most)| most);
        bar.total().max(most).max(bar.predicted.unwrap_or(0.0))
    };
    // Room for the number behind the longest bar.
    let longest = all.iter().map(reach).fold(0.0, f64::max);
    let x = axis.place([0.0, longest * 1.12], 7, [left, WIDTH - SIDE]);
    let decimals = match longest {
        _ if longest >= 60.0 => 0,
        _ if longest >= 6.0 => 1,
        _ => 2,
    };
    let mut group = "";
    let mut bottom = top;
    let mut drawn = Vec::new();
    for bar in all {
        if bar.group != group {
            group = &bar.group;
            drawn.push(heading(bottom + 6.0, TEXT, group));
            bottom += LINE + 8.0;
        }
        let top = bottom;
        let label = lines_of(&bar.label, label_columns);
        let hollow = bar.predicted.map_or(0.0, |_| HOLLOW);
        bottom += (BAR + hollow).max(label.len() as f64 * LINE) + 8.0;
        let colour = |part: usize| bar.style.map_or(QUIET, |style| of_series(style + part));
        let at = |value: f64| x.at(value).unwrap_or(left);
        let mut parts = Vec::new();
        let mut from = 0.0;
        for (part, value) in bar.values.iter().enumerate() {
            let corners = [(at(from), top), (at(from + value), top + BAR)];
            parts.push(rectangle(corners[0], corners[1], colour(part), None));
            from += value;
        }
        let whisker = bar.range.filter(|(least, most)| least < most);
        let gap = |gap: &str| -> String {
            gap.chars()
                .take(columns(WIDTH - left - SIDE, TEXT))
                .collect()
        };
        drawn.push(html! {
            @for (index, line) in label.iter().enumerate() {
                (text(SIDE, top + 1.0 + index as f64 * LINE, "start", INK, line))
            }
            @for part in parts { (part) }
            @if let Some(predicted) = bar.predicted {
                (rectangle((left, top + BAR), (at(predicted), top + BAR + HOLLOW), "none", Some(colour(0))))
            }
            @if let Some((least, most)) = whisker {
                // The pale edge keeps the whisker visible on a dark bar.
                @for look in [(SURFACE, 3.0), (INK, 1.0)] {
                    (range([at(least), at(most)], top + BAR / 2.0, |along, across| (along, across), look))
                }
            }
            @match &bar.gap {
                Some(reason) => (text(left + 4.0, top + 1.0, "start", MUTED, &gap(reason))),
                None => (text(at(reach(bar)) + 6.0, top + 1.0, "start", INK, &records::decimal(bar.total(), decimals))),
            }
        });
    }
    let markup = html! {
        (x_axis(axis, &x, top, bottom))
        @for bar in drawn { (bar) }
    };
    (markup, bottom)
}

/// Breaks a label into lines; a word that is longer than a line is broken.
fn lines_of(label: &str, columns: usize) -> Vec<String> {
    let broken = |line: String| {
        let characters: Vec<char> = line.chars().collect();
        let pieces = characters.chunks(columns.max(1));
        pieces.map(String::from_iter).collect::<Vec<_>>()
    };
    wrapped(label, columns)
        .into_iter()
        .flat_map(broken)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(title: &str, bars: &[(&str, &str)]) -> String {
        let bar = |(group, label): &(&str, &str)| Bar {
            group: (*group).to_owned(),
            ..Bar::of(*label, records::Spread::of([1.0]))
        };
        draw(&Figure {
            id: "id".to_owned(),
            title: title.to_owned(),
            caption: title.to_owned(),
            view: None,
            x: Axis::from_zero("s"),
            marks: Marks::Bars(Vec::new(), bars.iter().map(bar).collect()),
        })
    }

    #[test]
    fn control_characters_of_a_label_are_replaced_since_no_svg_may_have_them() {
        let label = "run\u{1b}[31m\u{0}\tend";
        let svg = drawn(label, &[("", label)]);
        assert!(svg.contains("run\u{fffd}[31m\u{fffd}"), "{svg}");
        assert!(svg.chars().all(|c| c >= ' ' || c == '\n'), "{svg}");
    }

    #[test]
    fn a_group_is_named_once_and_a_long_label_takes_more_lines() {
        let long = "a label of many words ".repeat(6);
        let svg = drawn("", &[("1gbit", "x"), ("1gbit", &long), ("fast", "x")]);
        let groups = ["1gbit", "fast"].map(|group| svg.matches(group).count());
        assert_eq!(groups, [1, 1]);
        assert!(svg.matches("a label").count() > 3, "{svg}");
    }

    #[test]
    fn the_first_series_differ_in_marker_and_colour() {
        let markers: std::collections::BTreeSet<String> = (0..MOST_SERIES)
            .map(|style| marker((0.0, 0.0), Kind::Measured, style).into_string())
            .map(|svg| svg.split(" fill").next().unwrap().to_owned())
            .collect();
        let colours: std::collections::BTreeSet<&str> = (0..MOST_SERIES).map(of_series).collect();
        assert_eq!((markers.len(), colours.len()), (MOST_SERIES, MOST_SERIES));
    }
}
