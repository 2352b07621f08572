//! Bars from left to right, each with its label.
//!
//! In: a [`BarPlot`]. Out: bars, whole or in parts, with their totals. Invariant: labels stand left of the bars where all of them are
//! short, else above, in as many lines as they need, so that nothing is cut off on a narrow sheet.

use super::look::{self, GRID, INK, LINE_HEIGHT, MUTED, SURFACE, TEXT, text_width, wrapped};
use super::paper::{Area, bold_style, drawn, text_style, write_text};
use super::{Bar, BarPlot};
use crate::document::grouped;
use anyhow::Result;
use plotters::element::{PathElement, Rectangle};
use plotters::prelude::Color;
use plotters::style::text_anchor::HPos;

const SIDE: i32 = 12;
const BAR: i32 = 16;
/// Of a predicted bar, under the measured one.
const HOLLOW: i32 = 7;
const GAP: i32 = 9;
/// Above the name of a group.
const BETWEEN: i32 = 6;
const FOOT: i32 = 2 * LINE_HEIGHT + 8;
/// The share of the width that labels left of the bars may take.
const MOST_LABEL_SHARE: f64 = 0.4;

/// Where labels and bars go on a sheet of some width.
struct Layout<'a> {
    rows: &'a [Bar],
    width: i32,
    left: i32,
}

impl<'a> Layout<'a> {
    fn new(plot: &'a BarPlot, width: i32) -> Self {
        let widest = plot
            .rows
            .iter()
            .map(|bar| text_width(&bar.label, TEXT))
            .max()
            .unwrap_or(0);
        let has_room = f64::from(widest) <= f64::from(width) * MOST_LABEL_SHARE;
        Self {
            rows: &plot.rows,
            width,
            left: SIDE + if has_room { widest + 8 } else { 0 },
        }
    }

    /// Lines above a bar.
    fn labels(&self, bar: &Bar) -> Vec<String> {
        if self.left > SIDE {
            Vec::new()
        } else {
            wrapped(&bar.label, TEXT, self.width - 2 * SIDE)
        }
    }

    /// The name of a group, above its first bar.
    fn heading(&self, row: usize) -> Option<&'a str> {
        let group = |row: usize| self.rows[row].group.as_str();
        Some(group(row)).filter(|name| !name.is_empty() && (row == 0 || group(row - 1) != *name))
    }

    /// Words in the place of a bar.
    fn gap_lines(&self, bar: &Bar) -> Vec<String> {
        let room = self.width - self.left - SIDE - 8;
        bar.gap
            .as_deref()
            .map_or(Vec::new(), |gap| wrapped(gap, TEXT - 1.0, room))
    }

    fn row_height(&self, row: usize) -> i32 {
        let bar = &self.rows[row];
        let further = self.gap_lines(bar).len().saturating_sub(1);
        let num_lines = self.labels(bar).len() + further + usize::from(self.heading(row).is_some());
        let between = if self.heading(row).is_some() {
            BETWEEN
        } else {
            0
        };
        num_lines as i32 * LINE_HEIGHT
            + between
            + BAR
            + if bar.predicted.is_some() { HOLLOW } else { 0 }
            + GAP
    }

    fn height(&self) -> i32 {
        (0..self.rows.len())
            .map(|row| self.row_height(row))
            .sum::<i32>()
            + FOOT
    }
}

/// Pixels that the bars with their axis take.
pub(super) fn height(plot: &BarPlot, width: i32) -> i32 {
    Layout::new(plot, width).height()
}

/// The end of a bar, its whisker and its prediction.
fn reach(bar: &Bar) -> f64 {
    let whole = bar.values.iter().sum::<f64>();
    whole
        .max(bar.range.map_or(0.0, |range| range.1))
        .max(bar.predicted.unwrap_or(0.0))
}

pub(super) fn draw(plot: &BarPlot, area: &Area<'_>, width: i32) -> Result<()> {
    let layout = Layout::new(plot, width);
    let ends = || plot.rows.iter().map(|bar| bar.values.iter().sum::<f64>());
    let axis = plot
        .x
        .place(plot.rows.iter().map(reach), if width < 500 { 4 } else { 7 });
    let step = axis
        .ticks
        .get(1)
        .map_or(1.0, |tick| tick.0 - axis.ticks[0].0);
    let decimals = if step >= 10.0 {
        0
    } else if step >= 1.0 {
        1
    } else {
        2
    };
    let room = ends()
        .map(|end| text_width(&grouped(end, decimals), TEXT))
        .max()
        .unwrap_or(0)
        + 12;
    let pixels = f64::from(width - layout.left - SIDE - room) / (axis.high - axis.low);
    let at = |value: f64| layout.left + ((value - axis.low) * pixels).round() as i32;
    let bottom = layout.height() - FOOT;

    for (value, text) in &axis.ticks {
        let x = at(*value);
        drawn(area.draw(&PathElement::new(
            [(x, 0), (x, bottom)],
            GRID.stroke_width(1),
        )))?;
        write_text(
            area,
            text,
            (x, bottom + 4),
            &text_style(TEXT - 1.0, MUTED, HPos::Center),
        )?;
    }
    let label_at = ((layout.left + width) / 2, bottom + LINE_HEIGHT + 6);
    write_text(
        area,
        &plot.x.label,
        label_at,
        &text_style(TEXT - 1.0, MUTED, HPos::Center),
    )?;

    let mut next = 0;
    for (row, bar) in plot.rows.iter().enumerate() {
        let mut top = next;
        next += layout.row_height(row);
        if let Some(heading) = layout.heading(row) {
            write_text(area, heading, (SIDE, top + BETWEEN), &bold_style(TEXT))?;
            top += LINE_HEIGHT + BETWEEN;
        }
        for line in layout.labels(bar) {
            write_text(
                area,
                &line,
                (SIDE, top + 2),
                &text_style(TEXT, INK, HPos::Left),
            )?;
            top += LINE_HEIGHT;
        }
        if layout.left > SIDE {
            write_text(
                area,
                &bar.label,
                (SIDE, top + 1),
                &text_style(TEXT, INK, HPos::Left),
            )?;
        }
        for (index, words) in layout.gap_lines(bar).iter().enumerate() {
            let y = top + 1 + index as i32 * LINE_HEIGHT;
            write_text(
                area,
                words,
                (layout.left + 4, y),
                &text_style(TEXT - 1.0, MUTED, HPos::Left),
            )?;
        }
        if bar.gap.is_none() {
            draw_bar(area, bar, plot.parts.len(), top, &at)?;
            let end = bar.values.iter().sum::<f64>();
            write_text(
                area,
                &grouped(end, decimals),
                (at(reach(bar)) + 6, top + 1),
                &text_style(TEXT, INK, HPos::Left),
            )?;
        }
    }
    Ok(())
}

fn draw_bar(
    area: &Area<'_>,
    bar: &Bar,
    num_parts: usize,
    top: i32,
    at: &dyn Fn(f64) -> i32,
) -> Result<()> {
    let mut from = 0.0;
    for (part, value) in bar.values.iter().enumerate() {
        let colour = if num_parts <= 1 && !bar.is_ours {
            look::QUIET
        } else {
            look::colour(bar.style + part)
        };
        let corners = [(at(from), top), (at(from + value), top + BAR)];
        drawn(area.draw(&Rectangle::new(corners, colour.filled())))?;
        from += value;
    }
    if let Some(predicted) = bar.predicted {
        let corners = [(at(0.0), top + BAR), (at(predicted), top + BAR + HOLLOW)];
        drawn(area.draw(&Rectangle::new(corners, SURFACE.filled())))?;
        drawn(area.draw(&Rectangle::new(
            corners,
            look::colour(bar.style).stroke_width(1),
        )))?;
    }
    if let Some((low, high)) = bar.range.filter(|(low, high)| low < high) {
        let middle = top + BAR / 2;
        // The edge keeps it visible on bars that are as bright or dark as its line.
        for style in [SURFACE.stroke_width(3), INK.stroke_width(1)] {
            drawn(area.draw(&PathElement::new(
                [(at(low), middle), (at(high), middle)],
                style,
            )))?;
            for end in [low, high] {
                drawn(area.draw(&PathElement::new(
                    [(at(end), middle - 4), (at(end), middle + 4)],
                    style,
                )))?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::Axis;
    use super::*;

    #[test]
    fn long_labels_stand_above_their_bars_and_a_group_is_named_once() {
        let bar = |group: &str, label: &str| Bar {
            group: group.to_owned(),
            label: label.to_owned(),
            ..Bar::default()
        };
        let rows = vec![
            bar("1gbit", "allreduce"),
            bar("1gbit", "local-sgd, every 8"),
            bar("fast", "allreduce"),
        ];
        let plot = BarPlot {
            x: Axis::from_zero("x"),
            parts: Vec::new(),
            rows,
        };
        let wide = Layout::new(&plot, 620);
        assert!(wide.left > SIDE && wide.labels(&plot.rows[1]).is_empty());
        let headings: Vec<Option<&str>> = (0..3).map(|row| wide.heading(row)).collect();
        assert_eq!(headings, [Some("1gbit"), None, Some("fast")]);
        let narrow = Layout::new(&plot, 200);
        assert_eq!((narrow.left, narrow.labels(&plot.rows[0]).len()), (SIDE, 1));
        assert!(narrow.height() > wide.height());
    }
}
