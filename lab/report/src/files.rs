//! The files of a report.
//!
//! In: a [`Document`], a directory. Out: `index.html`, `report.json`, `figures/`, `tables/`.
//! Invariant: the directory is an earlier report and nothing else, empty or absent, or nothing is written; a reader sees a whole report, old or new.

use super::chart::{Sheet, draw};
use super::document::{Block, Document, Section, Table};
use super::{html, tables};
use crate::Refusal;
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::{fs, io};

pub(crate) const SCHEMA: &str = "lockstep.report/1";

const INDEX: &str = "report.json";
const PAGE: &str = "index.html";
const FIGURES: &str = "figures";
const TABLES: &str = "tables";

/// Whether a report may be written there.
///
/// # Errors
/// A [`Refusal`] if something else is there.
pub(crate) fn check_free(directory: &Path) -> Result<()> {
    let invalid = |got: String| Refusal {
        option: "--output",
        expected: "a directory that is absent, empty or an earlier report".to_owned(),
        got,
    };
    if directory.file_name().is_none() {
        let got = format!(
            "{}, which ends in no name; give one such as ./report",
            directory.display()
        );
        return Err(invalid(got).into());
    }
    if !directory.exists() {
        return Ok(());
    }
    let Ok(entries) = fs::read_dir(directory) else {
        return Err(invalid(format!("{}, which is no directory", directory.display())).into());
    };
    let mut names = entries
        .map(|entry| entry.map(|entry| entry.file_name()))
        .collect::<io::Result<Vec<_>>>()?;
    names.sort();
    let index = || -> Option<Value> {
        let index: Value =
            serde_json::from_str(&records::file::read_to_string(&directory.join(INDEX)).ok()?)
                .ok()?;
        index["schema"]
            .as_str()?
            .starts_with("lockstep.report/")
            .then_some(index)
    };
    let index = index();
    if !names.is_empty() && index.is_none() {
        return Err(invalid(format!("{}, which holds other files", directory.display())).into());
    }
    // It is replaced as a whole.
    let ids = index.as_ref().map(ids).unwrap_or_default();
    match names
        .iter()
        .find_map(|name| foreign(&directory.join(name), &ids))
    {
        None => Ok(()),
        Some(foreign) => {
            let got = format!(
                "one that holds {}, which that report has not; move it elsewhere",
                foreign.display()
            );
            Err(invalid(got).into())
        }
    }
}

/// The names of a report's figures and tables, without endings.
fn ids(index: &Value) -> BTreeSet<&str> {
    let sections = index["sections"].as_array().into_iter().flatten();
    let blocks = sections.flat_map(|section| [&section["figures"], &section["tables"]]);
    blocks
        .filter_map(Value::as_array)
        .flatten()
        .filter_map(|block| block["id"].as_str())
        .collect()
}

/// What of this entry of a report's folder that report has not; what systems leave in any folder is nobody's.
fn foreign(path: &Path, ids: &BTreeSet<&str>) -> Option<PathBuf> {
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
    let is_ours = |path: &PathBuf| {
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        let parts = name.rsplit_once('.').filter(|_| path.is_file());
        is_of_system(name)
            || parts.is_some_and(|(id, ending)| ids.contains(id) && endings.contains(&ending))
    };
    entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| !is_ours(path))
}

/// Writes the report, in place of an earlier one; how many figures and tables it has.
///
/// # Errors
/// When something else is there, a chart cannot be drawn, or a file cannot be written.
pub(crate) fn write(document: &Document, directory: &Path) -> Result<(usize, usize)> {
    clear_up(directory)?;
    check_free(directory)?;
    let fresh = beside(directory, "partial");
    let written = write_files(document, &fresh);
    if written.is_err() {
        // What is there of it is of no use, and the error that matters is known.
        let _ = fs::remove_dir_all(&fresh);
    }
    let counts = written?;
    let context = || format!("cannot write {}", directory.display());
    let earlier = beside(directory, "earlier");
    let has_earlier = directory.exists();
    if has_earlier {
        fs::rename(directory, &earlier).with_context(context)?;
    }
    let placed = fs::rename(&fresh, directory);
    if placed.is_err() {
        if has_earlier {
            // An earlier report is better than none, and the error that matters is known.
            let _ = fs::rename(&earlier, directory);
        }
        let _ = fs::remove_dir_all(&fresh);
    }
    placed.with_context(context)?;
    if earlier.exists() {
        fs::remove_dir_all(&earlier)
            .with_context(|| format!("cannot remove {}", earlier.display()))?;
    }
    Ok(counts)
}

/// A name of this process's own in the same folder.
fn beside(directory: &Path, what: &str) -> PathBuf {
    let name = directory.file_name().unwrap_or_default().to_string_lossy();
    directory.with_file_name(format!(".{name}.{what}-{}", std::process::id()))
}

/// Puts a report back that a process moved aside and was killed before another took its place, and removes what has this process's own
/// number. What else lies there may be another machine's, at work.
fn clear_up(directory: &Path) -> Result<()> {
    let name = directory
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let parent = directory
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let processes = Path::new("/proc");
    let is_dead = |process: u32| {
        processes.join("self").exists() && !processes.join(process.to_string()).exists()
    };
    for path in fs::read_dir(parent)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
    {
        let own = path
            .file_name()
            .and_then(OsStr::to_str)
            .and_then(|file| file.strip_prefix(&format!(".{name}.")));
        let Some((what, process)) = own
            .and_then(|own| own.split_once('-'))
            .filter(|_| path.is_dir())
        else {
            continue;
        };
        let Ok(process) = process.parse() else {
            continue;
        };
        let is_own = process == std::process::id();
        let is_lost = what == "earlier" && (is_own || is_dead(process)) && !directory.exists();
        if is_lost && path.join(INDEX).is_file() {
            fs::rename(&path, directory)
                .with_context(|| format!("cannot put back {}", path.display()))?;
        } else if is_own && ["earlier", "partial"].contains(&what) {
            fs::remove_dir_all(&path)
                .with_context(|| format!("cannot remove {}", path.display()))?;
        }
    }
    Ok(())
}

fn write_files(document: &Document, directory: &Path) -> Result<(usize, usize)> {
    let (figures, tables_folder) = (directory.join(FIGURES), directory.join(TABLES));
    for folder in [&figures, &tables_folder] {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    let put = |path: PathBuf, text: String| {
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    let (mut num_figures, mut num_tables) = (0, 0);
    for block in document.sections.iter().flat_map(|section| &section.blocks) {
        match block {
            Block::Figure(figure) => {
                num_figures += 1;
                put(
                    figures.join(format!("{}.svg", figure.data.id)),
                    draw(figure, Sheet::Alone)?,
                )?;
                put(
                    figures.join(format!("{}.csv", figure.data.id)),
                    tables::csv(&figure.data),
                )?;
            }
            Block::Table(table) | Block::FoldedTable(_, table) => {
                num_tables += 1;
                let path =
                    |extension: &str| tables_folder.join(format!("{}.{extension}", table.id));
                put(path("csv"), tables::csv(table))?;
                put(path("tex"), tables::latex(table))?;
                put(path("json"), pretty(&table_json(table))?)?;
            }
            Block::Paragraph(_) | Block::Warning(_) | Block::FoldedText(..) => {}
        }
    }
    put(directory.join(INDEX), pretty(&index(document))?)?;
    put(directory.join(PAGE), html::page(document)?)?;
    Ok((num_figures, num_tables))
}

fn pretty(value: &Value) -> Result<String> {
    Ok(serde_json::to_string_pretty(value)? + "\n")
}

fn table_json(table: &Table) -> Value {
    json!({ "id": table.id, "title": table.title, "columns": table.columns, "rows": table.to_json() })
}

fn index(document: &Document) -> Value {
    let section = |section: &Section| {
        let (mut figures, mut tables, mut words) = (Vec::new(), Vec::new(), Vec::new());
        for block in &section.blocks {
            match block {
                Block::Paragraph(text) | Block::Warning(text) => words.push(text.clone()),
                Block::Figure(figure) => {
                    let data = &figure.data;
                    figures.push(
                        json!({ "id": data.id, "title": data.title, "caption": figure.caption, "data": data.to_json() }),
                    );
                }
                Block::Table(table) | Block::FoldedTable(_, table) => {
                    tables.push(table_json(table))
                }
                Block::FoldedText(..) => {}
            }
        }
        json!({ "id": section.id, "heading": section.heading, "words": words, "figures": figures, "tables": tables })
    };
    json!({
        "schema": SCHEMA,
        "title": document.title,
        "created": document.created,
        "inputs": document.inputs,
        "sections": document.sections.iter().map(section).collect::<Vec<_>>(),
    })
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_report_that_a_killed_process_moved_aside_is_put_back_and_what_may_be_of_others_stays() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        // No system has so many processes.
        let (dead, own, alive) = (
            u32::MAX,
            std::process::id(),
            std::os::unix::process::parent_id(),
        );
        let lost = [
            format!(".report.earlier-{dead}"),
            format!(".report.partial-{own}"),
        ];
        let kept = [
            format!(".report.partial-{dead}"),
            format!(".report.earlier-{alive}"),
            format!(".other.earlier-{dead}"),
            ".report.earlier-x".to_owned(),
        ];
        for name in lost.iter().chain(&kept) {
            fs::create_dir(at(name)).unwrap();
            fs::write(at(name).join(INDEX), name).unwrap();
        }
        let [of_another, no_report] =
            [1, 2].map(|number| format!(".report.earlier-{}", dead - number));
        fs::write(at(&of_another), "a file").unwrap();
        fs::create_dir(at(&no_report)).unwrap();
        clear_up(&at("report")).unwrap();
        assert_eq!(
            fs::read_to_string(at("report").join(INDEX)).unwrap(),
            lost[0],
            "put back"
        );
        fs::create_dir(at(&lost[0])).unwrap();
        clear_up(&at("report")).unwrap();
        assert_eq!(
            lost.each_ref().map(|name| at(name).exists()),
            [true, false],
            "an empty one is no report"
        );
        assert_eq!(kept.map(|name| at(&name).exists()), [true; 4]);
        assert!(at(&of_another).exists() && at(&no_report).exists());
    }
}
