//! The report as one HTML file without external resources.
//!
//! In: a [`Document`]. Out: HTML.
//! Invariant: maud escapes everything that comes from a file. The page fetches nothing and is never
//! wider than its window: tables and figures scroll.

use super::chart::{COLOURS, Figure, draw};
use super::document::{Cell, Content, Document, Section, Table};
use anyhow::Result;
use maud::{DOCTYPE, Markup, PreEscaped, html};

/// Cells with more characters than this may break into lines.
const LONG: usize = 40;

/// Renders the document.
///
/// # Errors
/// When a chart cannot be drawn.
pub(super) fn page(document: &Document) -> Result<String> {
    let sections = document
        .sections
        .iter()
        .map(section)
        .collect::<Result<Vec<_>>>()?;
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
                main { @for section in &sections { (section) } }
                footer {
                    p { "In this directory: every table as CSV in " code { "tables" } ", every figure as SVG and CSV in " code { "figures" } ", everything in " code { "report.json" } "." }
                }
            }
        }
    };
    Ok(page.into_string())
}

/// Returns the rules that replace the colours of charts on a dark screen.
fn dark_charts() -> String {
    let rule = |(light, dark): &(u32, u32)| {
        format!(
            "figure svg [fill=\"#{light:06X}\"]{{fill:#{dark:06X}}}figure svg [stroke=\"#{light:06X}\"]{{stroke:#{dark:06X}}}"
        )
    };
    let rules: String = COLOURS.iter().map(rule).collect();
    format!("@media screen and (prefers-color-scheme:dark){{{rules}}}")
}

fn section(section: &Section) -> Result<Markup> {
    // Consecutive figures share a grid.
    let is_figure = |content: &Content| matches!(content, Content::Figure(_));
    let groups = section
        .contents
        .chunk_by(|a, b| is_figure(a) && is_figure(b));
    let mut parts: Vec<Markup> = Vec::new();
    for group in groups {
        let contents = group.iter().map(content).collect::<Result<Vec<_>>>()?;
        parts.push(html! {
            @if is_figure(&group[0]) { div.figures { @for one in &contents { (one) } } }
            @else { @for one in &contents { (one) } }
        });
    }
    Ok(html! {
        section id=(section.id) { h2 { (section.heading) } @for part in &parts { (part) } }
    })
}

fn content(content: &Content) -> Result<Markup> {
    Ok(match content {
        Content::Paragraph(text) => html! { p { (text) } },
        Content::Warning(text) => html! { p.warning { (text) } },
        Content::Figure(one) => figure(one)?,
        Content::Table(one) => match one.is_folded {
            true => html! { details { summary { (one.title) } (table(one)) } },
            false => table(one),
        },
        Content::FoldedText(summary, text) => {
            html! { details { summary { (summary) } pre tabindex="0" { (text) } } }
        }
    })
}

fn figure(figure: &Figure) -> Result<Markup> {
    let drawing = draw(figure)?;
    Ok(html! {
        figure id={ "figure-" (figure.id) } {
            div.scroll tabindex="0" role="region" aria-label=(figure.title) { (PreEscaped(drawing)) }
            figcaption { (figure.caption) }
            p.files { a href={ "figures/" (figure.id) ".svg" } { "SVG" } " · " a href={ "figures/" (figure.id) ".csv" } { "CSV" } }
        }
    })
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
