//! Bars from left to right, each under its label.
//!
//! In: a [`BarPlot`]. Out: bars, whole or in parts, with their totals. Invariant: labels stand above their bars, in as many lines as
//! they need, so that nothing is cut off on a narrow sheet.

use super::look::{self, GRID, INK, LINE_HEIGHT, MUTED, TEXT, text_width, wrapped};
use super::paper::{Area, drawn, text_style, write_text};
use super::{Bar, BarPlot};
use crate::study_report::document::grouped;
use anyhow::Result;
use plotters::element::{PathElement, Rectangle};
use plotters::prelude::Color;
use plotters::style::text_anchor::HPos;

const SIDE: i32 = 12;
const BAR: i32 = 16;
const GAP: i32 = 9;
const FOOT: i32 = 2 * LINE_HEIGHT + 8;

fn labels(bar: &Bar, width: i32) -> Vec<String> {
    wrapped(&bar.label, TEXT, width - 2 * SIDE)
}

/// Words in the place of a bar.
fn gap_lines(bar: &Bar, width: i32) -> Vec<String> {
    bar.gap.as_deref().map_or(Vec::new(), |gap| wrapped(gap, TEXT - 1.0, width - 2 * SIDE - 8))
}

fn row_height(bar: &Bar, width: i32) -> i32 {
    let further = gap_lines(bar, width).len().saturating_sub(1);
    (labels(bar, width).len() + further) as i32 * LINE_HEIGHT + BAR + GAP
}

/// Pixels that the bars with their axis take.
pub(super) fn height(plot: &BarPlot, width: i32) -> i32 {
    plot.rows.iter().map(|bar| row_height(bar, width)).sum::<i32>() + FOOT
}

pub(super) fn draw(plot: &BarPlot, area: &Area<'_>, width: i32) -> Result<()> {
    let ends = || plot.rows.iter().map(|bar| bar.values.iter().sum::<f64>());
    let largest = ends().chain(plot.rows.iter().filter_map(|bar| bar.range.map(|range| range.1)));
    let axis = plot.x.place(largest, if width < 500 { 4 } else { 7 });
    let step = axis.ticks.get(1).map_or(1.0, |tick| tick.0 - axis.ticks[0].0);
    let decimals = if step >= 10.0 {
        0
    } else if step >= 1.0 {
        1
    } else {
        2
    };
    let room = ends().map(|end| text_width(&grouped(end, decimals), TEXT)).max().unwrap_or(0) + 12;
    let pixels = f64::from(width - 2 * SIDE - room) / (axis.high - axis.low);
    let at = |value: f64| SIDE + ((value - axis.low) * pixels).round() as i32;
    let bottom = height(plot, width) - FOOT;

    for (value, text) in &axis.ticks {
        let x = at(*value);
        drawn(area.draw(&PathElement::new([(x, 0), (x, bottom)], GRID.stroke_width(1))))?;
        write_text(area, text, (x, bottom + 4), &text_style(TEXT - 1.0, MUTED, HPos::Center))?;
    }
    let label_at = (width / 2, bottom + LINE_HEIGHT + 6);
    write_text(area, &plot.x.label, label_at, &text_style(TEXT - 1.0, MUTED, HPos::Center))?;

    let mut top = 0;
    for bar in &plot.rows {
        for line in labels(bar, width) {
            write_text(area, &line, (SIDE, top + 2), &text_style(TEXT, INK, HPos::Left))?;
            top += LINE_HEIGHT;
        }
        let gap = gap_lines(bar, width);
        for (index, words) in gap.iter().enumerate() {
            let y = top + 1 + index as i32 * LINE_HEIGHT;
            write_text(area, words, (SIDE + 4, y), &text_style(TEXT - 1.0, MUTED, HPos::Left))?;
        }
        if gap.is_empty() {
            draw_bar(area, bar, plot.parts.len(), top, &at)?;
            let end = bar.values.iter().sum::<f64>();
            let x = at(bar.range.map_or(end, |range| range.1.max(end))) + 6;
            write_text(area, &grouped(end, decimals), (x, top + 1), &text_style(TEXT, INK, HPos::Left))?;
        }
        top += BAR + GAP + gap.len().saturating_sub(1) as i32 * LINE_HEIGHT;
    }
    Ok(())
}

fn draw_bar(area: &Area<'_>, bar: &Bar, num_parts: usize, top: i32, at: &dyn Fn(f64) -> i32) -> Result<()> {
    let mut from = 0.0;
    for (part, value) in bar.values.iter().enumerate() {
        let colour = if num_parts <= 1 && !bar.is_ours { look::QUIET } else { look::colour(part) };
        let corners = [(at(from), top), (at(from + value), top + BAR)];
        drawn(area.draw(&Rectangle::new(corners, colour.filled())))?;
        from += value;
    }
    if let Some((low, high)) = bar.range.filter(|(low, high)| low < high) {
        let middle = top + BAR / 2;
        let style = INK.stroke_width(1);
        drawn(area.draw(&PathElement::new([(at(low), middle), (at(high), middle)], style)))?;
        for end in [low, high] {
            drawn(area.draw(&PathElement::new([(at(end), middle - 4), (at(end), middle + 4)], style)))?;
        }
    }
    Ok(())
}
