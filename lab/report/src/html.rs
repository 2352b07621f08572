//! The report as one HTML file that needs nothing else.
//!
//! In: a [`Document`], its figures drawn. Out: HTML. Invariant: everything that comes from a file is escaped (by maud); nothing is
//! fetched; the page itself is never wider than its window.

use super::chart::{COLOURS, Sheet, draw};
use super::document::{Block, Cell, Document, Figure, Section, Table};
use anyhow::Result;
use maud::{DOCTYPE, Markup, PreEscaped, html};

/// Cells with more characters than this may break into lines.
const LONG: usize = 40;

/// Renders the document.
///
/// # Errors
/// When a chart cannot be drawn.
pub(super) fn page(document: &Document) -> Result<String> {
    let sections: Vec<Markup> = document
        .sections
        .iter()
        .map(section)
        .collect::<Result<_>>()?;
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
                    p.facts { "Made " (document.created) " by Lockstep " (env!("CARGO_PKG_VERSION")) " from " (document.inputs.join(", ")) "." }
                    nav aria-label="Sections" {
                        ul { @for section in &document.sections { li { a href={ "#" (section.id) } { (section.heading) } } } }
                    }
                }
                main { @for section in &sections { (section) } }
                footer {
                    p { "Beside this file: every table as CSV, JSON and LaTeX in " code { "tables" } ", every figure as SVG with its numbers as CSV in " code { "figures" } ", all of it in " code { "report.json" } "." }
                }
            }
        }
    };
    Ok(page.into_string())
}

/// Charts carry the colours of light paper; on a dark screen each has its counterpart.
fn dark_charts() -> String {
    let hex = |[red, green, blue]: [u8; 3]| format!("#{red:02X}{green:02X}{blue:02X}");
    let rules: String = COLOURS
        .iter()
        .map(|colour| {
            let (light, dark) = (hex(colour.light), hex(colour.dark));
            format!("figure svg [fill=\"{light}\"]{{fill:{dark}}}figure svg [stroke=\"{light}\"]{{stroke:{dark}}}")
        })
        .collect();
    format!("@media screen and (prefers-color-scheme:dark){{{rules}}}")
}

fn section(section: &Section) -> Result<Markup> {
    let mut parts: Vec<Markup> = Vec::new();
    let mut figures: Vec<Markup> = Vec::new();
    for block in &section.blocks {
        if let Block::Figure(one) = block {
            figures.push(figure(one)?);
            continue;
        }
        if !figures.is_empty() {
            parts.push(grid(&figures));
            figures.clear();
        }
        parts.push(match block {
            Block::Paragraph(text) => html! { p { (text) } },
            Block::Warning(text) => html! { p.warning { (text) } },
            Block::Table(one) => table(one),
            Block::FoldedTable(words, one) => {
                html! { details { summary { (words) } (table(one)) } }
            }
            Block::FoldedText(words, text) => {
                html! { details { summary { (words) } pre tabindex="0" { (text) } } }
            }
            Block::Figure(_) => continue,
        });
    }
    if !figures.is_empty() {
        parts.push(grid(&figures));
    }
    Ok(html! {
        section id=(section.id) { h2 { (section.heading) } @for part in &parts { (part) } }
    })
}

fn grid(figures: &[Markup]) -> Markup {
    html! { div.figures { @for one in figures { (one) } } }
}

fn figure(figure: &Figure) -> Result<Markup> {
    let (wide, narrow) = (draw(figure, Sheet::Wide)?, draw(figure, Sheet::Narrow)?);
    Ok(html! {
        figure id={ "figure-" (figure.data.id) } {
            (PreEscaped(wide)) (PreEscaped(narrow))
            figcaption { (figure.caption) }
            p.files { a href={ "figures/" (figure.data.id) ".svg" } { "SVG" } " · " a href={ "figures/" (figure.data.id) ".csv" } { "CSV" } }
        }
    })
}

fn table(table: &Table) -> Markup {
    let numeric: Vec<bool> = (0..table.columns.len())
        .map(|column| table.is_numeric(column))
        .collect();
    let class = |column: usize, cell: &Cell| match cell {
        _ if numeric[column] => "number",
        Cell::Text(text) if text.chars().count() > LONG => "long",
        _ => "",
    };
    html! {
        div.scroll tabindex="0" role="region" aria-label=(table.title) {
            table id={ "table-" (table.id) } {
                caption { (table.title) }
                thead { tr { @for (column, name) in table.columns.iter().enumerate() {
                    th scope="col" class=[numeric[column].then_some("number")] { (name) }
                } } }
                tbody { @for row in &table.rows { tr { @for (column, cell) in row.iter().enumerate() {
                    td class=[Some(class(column, cell)).filter(|class| !class.is_empty())] { (cell.shown()) }
                } } } }
            }
        }
    }
}
