//! The files of a report.
//!
//! In: a [`Document`], a directory. Out: `index.html`, `report.json`, `figures/`, `tables/`.
//! Invariant: nothing is written unless the directory is absent, empty or an earlier report without
//! other files. A reader sees a whole report, old or new.

use super::document::{Content, Document, Section};
use super::{chart, html};
use crate::{Refusal, Size};
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

const INDEX: &str = "report.json";
const PAGE: &str = "index.html";

/// Checks that a report may be written there.
///
/// # Errors
/// A [`Refusal`] if the directory has a file that no earlier report wrote.
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
        return refuse(format!("{shown}, without a name; use for example ./report"));
    }
    if !directory.exists() {
        return Ok(());
    }
    if !directory.is_dir() {
        return refuse(format!("{shown}, which is not a directory"));
    }
    let index = records::file::read(&directory.join(INDEX)).unwrap_or_default();
    let index: Value = serde_json::from_slice(&index).unwrap_or_default();
    let earlier = index["files"].as_array().into_iter().flatten();
    let earlier: Vec<&Path> = earlier
        .filter_map(|file| Some(Path::new(file.as_str()?)))
        .collect();
    let is_own = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let place = path.strip_prefix(directory).unwrap_or(path);
        name == ".DS_Store" || name.starts_with(".nfs") || earlier.contains(&place)
    };
    let files = files_below(directory).with_context(|| format!("cannot read {shown}"))?;
    match files.iter().find(|path| !is_own(path)) {
        None => Ok(()),
        Some(foreign) => refuse(format!(
            "{shown} with the foreign file {}; move the file elsewhere",
            foreign.display()
        )),
    }
}

/// Returns everything in a directory that is not a directory, except in links.
fn files_below(directory: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => files.extend(files_below(&entry.path())?),
            false => files.push(entry.path()),
        }
    }
    files.sort();
    Ok(files)
}

/// Writes the report and replaces an earlier one.
///
/// # Errors
/// When the directory has anything else or a file cannot be written.
pub(crate) fn write(document: &Document, directory: &Path) -> Result<Size> {
    check_free(directory)?;
    let contents = || document.sections.iter().flat_map(|one| &one.contents);
    let mut files: BTreeMap<String, String> = BTreeMap::new();
    for content in contents() {
        match content {
            Content::Figure(figure) => {
                let name = format!("figures/{}", figure.id);
                files.insert(format!("{name}.svg"), chart::draw(figure));
                files.insert(format!("{name}.csv"), figure.data().to_csv());
            }
            Content::Table(table) => {
                files.insert(format!("tables/{}.csv", table.id), table.to_csv());
                files.insert(format!("tables/{}.tex", table.id), table.to_latex());
            }
            _ => {}
        }
    }
    files.insert(PAGE.to_owned(), html::page(document));
    files.insert(INDEX.to_owned(), String::new());
    let index = index(document, files.keys().collect());
    let text = serde_json::to_string_pretty(&index)? + "\n";
    files.insert(INDEX.to_owned(), text);
    replace(directory, &files).with_context(|| format!("cannot write {}", directory.display()))?;
    Ok(Size {
        num_sections: document.sections.len(),
        num_figures: contents()
            .filter(|one| matches!(one, Content::Figure(_)))
            .count(),
        num_tables: contents()
            .filter(|one| matches!(one, Content::Table(_)))
            .count(),
    })
}

/// Writes the files next to the directory and exchanges both.
fn replace(directory: &Path, files: &BTreeMap<String, String>) -> std::io::Result<()> {
    let parent = directory.parent().unwrap_or(Path::new(""));
    fs::create_dir_all(parent)?;
    // Removed with its contents when this function returns.
    let scratch = tempfile::Builder::new()
        .prefix(".report-")
        .tempdir_in(Path::new(".").join(parent))?;
    let fresh = scratch.path().join("fresh");
    for folder in ["figures", "tables"] {
        fs::create_dir_all(fresh.join(folder))?;
    }
    for (name, text) in files {
        fs::write(fresh.join(name), text)?;
    }
    let earlier = scratch.path().join("earlier");
    let has_earlier = directory.exists();
    if has_earlier {
        fs::rename(directory, &earlier)?;
    }
    fs::rename(&fresh, directory).inspect_err(|_| {
        if has_earlier {
            // The first error matters more than one of this attempt to restore.
            let _ = fs::rename(&earlier, directory);
        }
    })
}

fn index(document: &Document, files: Vec<&String>) -> Value {
    let section = |section: &Section| {
        let mut figures = Vec::new();
        let mut tables = Vec::new();
        let mut words = Vec::new();
        for content in &section.contents {
            match content {
                Content::Paragraph(text) | Content::Warning(text) => words.push(text),
                Content::Figure(figure) => figures.push(json!({
                    "id": figure.id,
                    "title": figure.title,
                    "caption": figure.caption,
                    "data": figure.data().to_json(),
                })),
                Content::Table(table) => tables.push(json!({
                    "id": table.id,
                    "title": table.title,
                    "columns": table.columns,
                    "rows": table.to_json(),
                })),
                Content::FoldedText(..) => {}
            }
        }
        json!({
            "id": section.id,
            "heading": section.heading,
            "words": words,
            "figures": figures,
            "tables": tables,
        })
    };
    json!({
        "schema": "lockstep.report/1",
        "title": document.title,
        "created": document.created,
        "inputs": document.inputs,
        "files": files,
        "sections": document.sections.iter().map(section).collect::<Vec<_>>(),
    })
}
