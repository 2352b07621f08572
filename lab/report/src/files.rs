//! The files of a report.
//!
//! In: a [`Document`], a directory. Out: `index.html`, `report.json`, `figures/`, `tables/`.
//! Invariant: nothing is written unless the directory is absent, empty or holds an earlier report and nothing else; a
//! reader sees a whole report, old or new.

use super::chart::draw;
use super::document::{Content, Document, Section, Table};
use super::{html, tables};
use crate::{Refusal, Size};
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::{fs, io};

const SCHEMA: &str = "lockstep.report/1";
const INDEX: &str = "report.json";
const PAGE: &str = "index.html";
const FIGURES: &str = "figures";
const TABLES: &str = "tables";

/// Checks that a report may be written there.
///
/// # Errors
/// A [`Refusal`] if the directory holds anything else.
pub(crate) fn check_free(directory: &Path) -> Result<()> {
    let shown = directory.display();
    let refuse = |got: String| {
        let expected = "a directory that is absent, empty or an earlier report".to_owned();
        Err(Refusal {
            option: "--output",
            expected,
            got,
        }
        .into())
    };
    if directory.file_name().is_none() {
        return refuse(format!(
            "{shown}, which has no name; use for example ./report"
        ));
    }
    if !directory.exists() {
        return Ok(());
    }
    let Ok(entries) = fs::read_dir(directory) else {
        return refuse(format!("{shown}, which is no directory"));
    };
    let paths = entries.map(|entry| entry.map(|entry| entry.path()));
    let mut paths = paths.collect::<io::Result<Vec<PathBuf>>>()?;
    paths.sort();
    let ids = match index_of(directory) {
        Some(index) => ids(&index),
        None if paths.is_empty() => return Ok(()),
        None => return refuse(format!("{shown}, which holds other files")),
    };
    match paths.iter().find_map(|path| foreign(path, &ids)) {
        None => Ok(()),
        Some(foreign) => refuse(format!(
            "a report with the foreign file {}; move it elsewhere",
            foreign.display()
        )),
    }
}

/// Reads the index of an earlier report.
fn index_of(directory: &Path) -> Option<Value> {
    let text = records::file::read_to_string(&directory.join(INDEX)).ok()?;
    let index: Value = serde_json::from_str(&text).ok()?;
    index["schema"]
        .as_str()?
        .starts_with("lockstep.report/")
        .then_some(index)
}

/// Returns the ids of a report's figures and tables.
fn ids(index: &Value) -> BTreeSet<String> {
    let sections = index["sections"].as_array().into_iter().flatten();
    let lists = sections.flat_map(|section| [&section["figures"], &section["tables"]]);
    let items = lists.filter_map(Value::as_array).flatten();
    items
        .filter_map(|item| Some(item["id"].as_str()?.to_owned()))
        .collect()
}

/// Returns the first file below an entry of a report's directory that is not part of the report.
fn foreign(path: &Path, ids: &BTreeSet<String>) -> Option<PathBuf> {
    let is_of_system = |name: &str| name == ".DS_Store" || name.starts_with(".nfs");
    let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
    let endings: &[&str] = match name {
        INDEX | PAGE if path.is_file() => return None,
        name if is_of_system(name) => return None,
        FIGURES => &["svg", "csv"],
        TABLES => &["csv", "tex", "json"],
        _ => return Some(path.to_owned()),
    };
    let Ok(entries) = fs::read_dir(path) else {
        return Some(path.to_owned());
    };
    let is_of_report = |path: &PathBuf| {
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        let is_known = |(id, ending): (&str, &str)| ids.contains(id) && endings.contains(&ending);
        is_of_system(name) || path.is_file() && name.rsplit_once('.').is_some_and(is_known)
    };
    let mut paths = entries.flatten().map(|entry| entry.path());
    paths.find(|path| !is_of_report(path))
}

/// Writes the report and replaces an earlier one.
///
/// # Errors
/// When the directory holds anything else, a chart cannot be drawn, or a file cannot be written.
pub(crate) fn write(document: &Document, directory: &Path) -> Result<Size> {
    check_free(directory)?;
    let parent = match directory.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let context = || format!("cannot write {}", directory.display());
    fs::create_dir_all(parent).with_context(context)?;
    // Removed with its contents when this function returns.
    let scratch = tempfile::Builder::new()
        .prefix(".report-")
        .tempdir_in(parent)
        .with_context(context)?;
    let fresh = scratch.path().join("fresh");
    let size = write_files(document, &fresh)?;
    let earlier = scratch.path().join("earlier");
    let has_earlier = directory.exists();
    if has_earlier {
        fs::rename(directory, &earlier).with_context(context)?;
    }
    if let Err(error) = fs::rename(&fresh, directory) {
        if has_earlier {
            // The first error matters more than one of this attempt to restore.
            let _ = fs::rename(&earlier, directory);
        }
        return Err(error).with_context(context);
    }
    Ok(size)
}

fn write_files(document: &Document, directory: &Path) -> Result<Size> {
    let figures = directory.join(FIGURES);
    let tables = directory.join(TABLES);
    for folder in [&figures, &tables] {
        fs::create_dir_all(folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
    }
    let put = |folder: &Path, name: String, text: String| {
        let path = folder.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    let mut size = Size {
        num_sections: document.sections.len(),
        num_figures: 0,
        num_tables: 0,
    };
    for content in document
        .sections
        .iter()
        .flat_map(|section| &section.contents)
    {
        match content {
            Content::Figure(figure) => {
                size.num_figures += 1;
                put(&figures, format!("{}.svg", figure.id), draw(figure)?)?;
                put(
                    &figures,
                    format!("{}.csv", figure.id),
                    tables::csv(&figure.data()),
                )?;
            }
            Content::Table(table) => {
                size.num_tables += 1;
                put(&tables, format!("{}.csv", table.id), tables::csv(table))?;
                put(&tables, format!("{}.tex", table.id), tables::latex(table))?;
                put(
                    &tables,
                    format!("{}.json", table.id),
                    pretty(&table_json(table))?,
                )?;
            }
            Content::Paragraph(_) | Content::Warning(_) | Content::FoldedText(..) => {}
        }
    }
    put(directory, INDEX.to_owned(), pretty(&index(document))?)?;
    put(directory, PAGE.to_owned(), html::page(document)?)?;
    Ok(size)
}

fn pretty(value: &Value) -> Result<String> {
    Ok(serde_json::to_string_pretty(value)? + "\n")
}

fn table_json(table: &Table) -> Value {
    json!({ "id": table.id, "title": table.title, "columns": table.columns, "rows": table.to_json() })
}

fn index(document: &Document) -> Value {
    let section = |section: &Section| {
        let mut figures = Vec::new();
        let mut tables = Vec::new();
        let mut text = Vec::new();
        for content in &section.contents {
            match content {
                Content::Paragraph(words) | Content::Warning(words) => text.push(words.clone()),
                Content::Figure(figure) => figures.push(json!({
                    "id": figure.id, "title": figure.title, "caption": figure.caption, "data": figure.data().to_json(),
                })),
                Content::Table(table) => tables.push(table_json(table)),
                Content::FoldedText(..) => {}
            }
        }
        json!({ "id": section.id, "heading": section.heading, "words": text, "figures": figures, "tables": tables })
    };
    json!({
        "schema": SCHEMA,
        "title": document.title,
        "created": document.created,
        "inputs": document.inputs,
        "sections": document.sections.iter().map(section).collect::<Vec<_>>(),
    })
}
