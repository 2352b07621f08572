//! The report as one HTML file without external resources.
//!
//! In: a [`Document`]. Out: HTML.
//! Invariant: maud escapes everything that comes from a file. The page fetches nothing, runs no
//! script and is never wider than its window.

use super::chart::{COLOURS, Figure, draw};
use super::document::{Cell, Content, Document, Section, Table};
use maud::{DOCTYPE, Markup, PreEscaped, html};
use std::collections::BTreeSet;

/// Cells with more characters than this may break into lines.
const LONG: usize = 40;

/// Most columns that fit next to each other.
const MOST_COLUMNS: usize = 8;

/// Renders the document.
pub(super) fn page(document: &Document) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="generator" content={ "Lockstep " (env!("CARGO_PKG_VERSION")) };
                link rel="icon" href="data:,";
                title { (document.title) }
                style { (PreEscaped(include_str!("style.css"))) (PreEscaped(dark_charts())) }
            }
            body {
                header {
                    h1 { (document.title) }
                    @for result in &document.results { p.result { (result) } }
                    p.facts { "Written " (document.created) " by Lockstep " (env!("CARGO_PKG_VERSION")) " from " (document.inputs.join(", ")) "." }
                    nav aria-label="Sections" {
                        ul { @for section in &document.sections { li { a href={ "#" (section.id) } { (section.heading) } } } }
                    }
                }
                main { @for one in &document.sections { (section(one)) } }
                footer {
                    p { "In this directory: every table as CSV and LaTeX in " code { "tables" } ", every figure as SVG and CSV in " code { "figures" } ", everything in " code { "report.json" } "." }
                }
            }
        }
    };
    page.into_string()
}

/// Returns the rules that replace the colours of charts on a dark screen.
fn dark_charts() -> String {
    let rule = |(light, dark): &(&str, &str)| {
        format!(
            "figure svg [fill=\"{light}\"]{{fill:{dark}}}figure svg [stroke=\"{light}\"]{{stroke:{dark}}}"
        )
    };
    let rules: String = COLOURS.iter().map(rule).collect();
    format!("@media screen and (prefers-color-scheme:dark){{{rules}}}")
}

fn section(section: &Section) -> Markup {
    // Consecutive figures share a grid.
    let is_figure = |content: &Content| matches!(content, Content::Figure(_));
    let groups = section
        .contents
        .chunk_by(|a, b| is_figure(a) && is_figure(b));
    html! {
        section id=(section.id) {
            h2 { (section.heading) }
            (views(section))
            @for group in groups {
                @if is_figure(&group[0]) { (figures(group)) }
                @else { @for one in group { (content(one)) } }
            }
        }
    }
}

/// Shows figures side by side; a caption that they share stands above them.
fn figures(group: &[Content]) -> Markup {
    let captions = group.iter().map(|one| match one {
        Content::Figure(figure) => figure.caption.as_str(),
        _ => "",
    });
    let captions: BTreeSet<&str> = captions.collect();
    let shared = captions
        .first()
        .filter(|_| captions.len() == 1 && group.len() > 1);
    html! {
        @if let Some(caption) = shared { p.facts { (caption) } }
        div.figures { @for one in group { @if let Content::Figure(one) = one { (figure(one, shared.is_none())) } } }
    }
}

/// Offers the horizontal axes of a section's figures; the style sheet hides the other figures.
fn views(section: &Section) -> Markup {
    let view = |content: &Content| match content {
        Content::Figure(figure) => figure.view,
        _ => None,
    };
    let views: BTreeSet<_> = section.contents.iter().filter_map(view).collect();
    html! {
        @if views.len() > 1 {
            fieldset.views {
                legend { "Horizontal axis" }
                @for (index, (number, name)) in views.iter().enumerate() {
                    label {
                        input type="radio" name={ (section.id) "-by" } class={ "by-" (number) } checked[index == 0];
                        (name)
                    }
                }
            }
        }
    }
}

fn content(content: &Content) -> Markup {
    html! {
        @match content {
            Content::Paragraph(text) => p { (text) },
            Content::Warning(text) => p.warning { (text) },
            Content::Figure(one) => (figure(one, true)),
            Content::Table(one) if one.is_folded => details { summary { (one.title) } (table(one)) },
            Content::Table(one) => (table(one)),
            Content::FoldedText(summary, text) =>
                details { summary { (summary) } pre tabindex="0" { (text) } },
        }
    }
}

fn figure(figure: &Figure, has_caption: bool) -> Markup {
    html! {
        figure id={ "figure-" (figure.id) } class=[figure.view.map(|(view, _)| format!("of-{view}"))] {
            (PreEscaped(draw(figure)))
            @if has_caption { figcaption { (figure.caption) } }
            p.files { a href={ "figures/" (figure.id) ".svg" } { "SVG" } " · " a href={ "figures/" (figure.id) ".csv" } { "CSV" } }
        }
    }
}

fn table(table: &Table) -> Markup {
    let rows = &table.rows;
    let columns = 0..table.columns.len();
    let is_wide = columns.len() > MOST_COLUMNS && !table.is_shaded;
    // A column with one value is a sentence, unless its name is that of the rows.
    let (constant, columns): (Vec<usize>, Vec<usize>) = columns.partition(|column| {
        let is_same = |row: &Vec<Cell>| row[*column] == rows[0][*column];
        is_wide && *column > 0 && rows.len() > 1 && rows.iter().all(is_same)
    });
    let value = |column: &usize| format!("{} {}", table.columns[*column], rows[0][*column].shown());
    let constant = constant.iter().map(value).collect::<Vec<_>>().join("; ");
    let look = match columns.len() {
        _ if table.is_shaded => Some("matrix"),
        _ if is_wide && rows.len() == 1 => Some("wide cards"),
        0..7 => None,
        _ => Some("wide"),
    };
    let class = |column: usize, cell: &Cell| match cell {
        _ if table.is_numeric(column) => Some("number"),
        Cell::Text(text) if text.chars().count() > LONG => Some("long"),
        _ => None,
    };
    let number = |cell: &Cell| match cell {
        Cell::Number(value, _) => *value,
        _ => 0.0,
    };
    let shade = |row: &[Cell], column: usize| {
        let share = number(&row[column]) / row.iter().map(number).sum::<f64>();
        (table.is_shaded && share > 0.0).then(|| format!("--share:{share:.2}"))
    };
    html! {
        div.scroll tabindex="0" role="region" aria-label=(table.title) {
            table id={ "table-" (table.id) } class=[look] {
                caption { (table.title) @if !constant.is_empty() { p.facts { "Equal in all rows: " (constant) "." } } }
                thead { tr { @for column in &columns {
                    th scope="col" class=[table.is_numeric(*column).then_some("number")] { (table.columns[*column]) }
                } } }
                tbody { @for row in rows { tr { @for column in &columns {
                    td class=[class(*column, &row[*column])] data-name=(table.columns[*column]) style=[shade(row, *column)] { (row[*column].shown()) }
                } } } }
            }
        }
    }
}
