//! The report as one HTML file without external resources.
//!
//! In: a [`Document`]. Out: HTML.
//! Invariant: maud escapes everything that comes from a file. The page fetches nothing and is never
//! wider than its window: tables and figures scroll.

use super::chart::{COLOURS, Figure, draw};
use super::document::{Cell, Content, Document, Section, Table};
use maud::{DOCTYPE, Markup, PreEscaped, html};

/// Cells with more characters than this may break into lines.
const LONG: usize = 40;

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
            @for group in groups {
                @if is_figure(&group[0]) { div.figures { @for one in group { (content(one)) } } }
                @else { @for one in group { (content(one)) } }
            }
        }
    }
}

fn content(content: &Content) -> Markup {
    html! {
        @match content {
            Content::Paragraph(text) => p { (text) },
            Content::Warning(text) => p.warning { (text) },
            Content::Figure(one) => (figure(one)),
            Content::Table(one) if one.is_folded => details { summary { (one.title) } (table(one)) },
            Content::Table(one) => (table(one)),
            Content::FoldedText(summary, text) =>
                details { summary { (summary) } pre tabindex="0" { (text) } },
        }
    }
}

fn figure(figure: &Figure) -> Markup {
    html! {
        figure id={ "figure-" (figure.id) } {
            div.scroll tabindex="0" role="region" aria-label=(figure.title) { (PreEscaped(draw(figure))) }
            figcaption { (figure.caption) }
            p.files { a href={ "figures/" (figure.id) ".svg" } { "SVG" } " · " a href={ "figures/" (figure.id) ".csv" } { "CSV" } }
        }
    }
}

fn table(table: &Table) -> Markup {
    let numeric: Vec<bool> = (0..table.columns.len())
        .map(|column| table.is_numeric(column))
        .collect();
    let class = |column: usize, cell: &Cell| match cell {
        _ if numeric[column] => Some("number"),
        Cell::Text(text) if text.chars().count() > LONG => Some("long"),
        _ => None,
    };
    html! {
        div.scroll tabindex="0" role="region" aria-label=(table.title) {
            table id={ "table-" (table.id) } {
                caption { (table.title) }
                thead { tr { @for (column, name) in table.columns.iter().enumerate() {
                    th scope="col" class=[numeric[column].then_some("number")] { (name) }
                } } }
                tbody { @for row in &table.rows { tr { @for (column, cell) in row.iter().enumerate() {
                    td class=[class(column, cell)] { (cell.shown()) }
                } } } }
            }
        }
    }
}
