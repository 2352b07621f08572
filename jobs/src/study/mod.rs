//! `cargo xtask study`: a matrix of runs, repeated, on a quiet machine, recorded, resumed.
//!
//! In: a study file (studies/README.md). Out: a directory with study.json, records.jsonl, every run's own files, predictions, a report.
//! Invariant: every attempt is kept; a repetition that is done is never run again; a study that is stopped in any way goes on
//! where it was.

mod attempt;
mod batch;
mod cell;
mod changes;
mod file;
mod flags;
mod keys;
mod local;
mod plan;
mod predict;
mod records;
mod session;

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::process::Command as Process;

use serde_json::{Value, json};

use self::cell::{Cell, Place};
use self::file::StudyFile;
use self::session::Session;
use crate::arguments::{Arguments, Command, Flag};
use crate::failure::{Failure, Outcome};
use crate::hosts;
use crate::launch;
use crate::machine;
use crate::mpirun::Mpirun;
use crate::process;
use crate::setup::{self, NO_INSTALL};
use crate::slurm;

pub(crate) const COMMAND: Command = Command {
    name: "study",
    summary: "Run a study: a matrix of runs, repeated on a quiet machine, with predictions and a report.",
    details: "\
Example: cargo xtask study studies/two-hosts.toml
The same command again goes on where the study stopped. Ctrl-C ends the run in progress with all its ranks.
A run that others disturb (more than quiet_cores of the processors) is repeated, at most `attempts` times; --again-disturbed
tries those again, as often. --set changes keys of the file: --set data_dir=/data,steps=5,ranks=[1,2]
Networks hosts:RATE need root (`cargo xtask hosts --help`); network slurm needs a cluster (`cargo xtask cluster up`).
studies/README.md tells the keys of a study file.",
    subjects: &[],
    parts: &[],
    object: Some("FILE"),
    flags: &[
        Flag { name: "--output", value: Some("DIR"), help: "of the study (default runs/studies/NAME)" },
        Flag { name: "--only", value: Some("TEXT"), help: "only cells whose id has this text" },
        Flag { name: "--set", value: Some("K=V,K=V"), help: "other values for keys of the file" },
        Flag { name: "--repetitions", value: Some("N"), help: "instead of the file's" },
        Flag { name: "--dry-run", value: None, help: "print the cells; run nothing" },
        Flag { name: "--again-disturbed", value: None, help: "repeat also what was disturbed in every attempt" },
        Flag { name: "--no-quiet-check", value: None, help: "neither wait for a quiet machine nor repeat runs" },
        Flag { name: "--trainer", value: Some("PATH"), help: "a program that is built already" },
        Flag { name: "--no-report", value: None, help: "call no `trainer report` at the end" },
        NO_INSTALL,
    ],
    passed_on: None,
    run,
};

pub(super) const SCHEMA: &str = "lockstep.study/1";
const WARM_UP: &str =
    "one short run before the first cell, not recorded; in every run the first steps, by --warmup-steps";

fn run(arguments: Arguments) -> Outcome {
    let path = arguments.object.as_deref().ok_or_else(|| {
        Failure::Usage("no study file: name one, as in `cargo xtask study studies/two-hosts.toml`".to_owned())
    })?;
    let text = fs::read_to_string(path).map_err(|error| Failure::Usage(format!("cannot read {path}: {error}")))?;
    let mut file = StudyFile::read(path, &text, &changes::read(arguments.value("--set"))?)?;
    let repetitions = arguments.count("--repetitions")?;
    file.repetitions = repetitions.unwrap_or(file.repetitions);
    for matrix in &mut file.matrices {
        matrix.repetitions = repetitions.or(matrix.repetitions);
    }
    let cells = plan::cells(&file)?;
    let only = arguments.value("--only").unwrap_or_default();
    let chosen: Vec<&Cell> = cells.iter().filter(|cell| cell.id.contains(only)).collect();
    if chosen.is_empty() {
        let ids: Vec<&str> = cells.iter().map(|cell| cell.id.as_str()).collect();
        return Err(Failure::Usage(format!(
            "--only: no cell has `{only}` in its id, expected one of: {}",
            ids.join(", ")
        )));
    }
    if arguments.has("--dry-run") {
        print!("{}", listed(&chosen));
        return Ok(());
    }
    check_places(&chosen)?;
    let trainer = trainer(&arguments, &chosen)?;
    flags::check(&file, &trainer, &chosen)?;
    let directory = match arguments.value("--output") {
        Some(directory) => PathBuf::from(directory),
        None => Path::new("runs/studies").join(&file.name),
    };
    let directory = std::path::absolute(&directory)
        .map_err(|error| Failure::Failed(format!("{}: {error}", directory.display())))?;
    let _lock = lock(&directory)?;
    let mpirun = Mpirun::find();
    let options = session::Options {
        checks_quiet: !arguments.has("--no-quiet-check"),
        again_disturbed: arguments.has("--again-disturbed"),
    };
    let mut session = Session::open(&file, &cells, &directory, &trainer, mpirun.as_ref(), options)?;
    write_study(&file, &cells, &directory)?;
    println!("study {}: {} cells, {}", file.name, chosen.len(), directory.display());
    let failed = session.run(&chosen)?;
    if file.profile.is_some() {
        predict::run(&file, &cells, &chosen, &directory, &trainer, !arguments.has("--no-quiet-check"));
    }
    if !arguments.has("--no-report") {
        report(&trainer, &directory)?;
    }
    if failed.is_empty() {
        return Ok(());
    }
    Err(Failure::Failed(format!(
        "{} of {} cells have failed runs: {}; `why` in {}/records.jsonl says more, the same command tries them again",
        failed.len(),
        chosen.len(),
        failed.join(", "),
        directory.display()
    )))
}

/// What a dry run shows.
fn listed(cells: &[&Cell]) -> String {
    let mut text = String::new();
    for cell in cells {
        let processes = if cell.world_size == 1 { "process" } else { "processes" };
        text.push_str(&format!(
            "{}\n    {} times on {} {processes}, {}: trainer {}\n",
            cell.id,
            cell.repetitions,
            cell.world_size,
            cell.setting("launcher"),
            cell.arguments.iter().map(process::quoted).collect::<Vec<_>>().join(" ")
        ));
    }
    let runs: usize = cells.iter().map(|cell| cell.repetitions).sum();
    text.push_str(&format!("{} cells, {runs} runs\n", cells.len()));
    text
}

/// Refuses, before anything is built, places that this machine does not have.
fn check_places(cells: &[&Cell]) -> Outcome {
    if cells.iter().any(|cell| matches!(cell.place, Place::Hosts { .. })) {
        hosts::require()?;
    }
    if cells.iter().any(|cell| matches!(cell.place, Place::Slurm { .. })) {
        slurm::require()?;
    }
    Ok(())
}

fn trainer(arguments: &Arguments, cells: &[&Cell]) -> Outcome<PathBuf> {
    match launch::named_trainer(arguments)? {
        Some(trainer) => Ok(trainer),
        None => launch::build_for_ranks(&setup::run(arguments)?, cells.iter().any(|cell| cell.world_size > 1)),
    }
}

/// Keeps a second study out of the directory; the system releases it with this process, however it ends.
fn lock(directory: &Path) -> Outcome<File> {
    let path = directory.join("lock");
    let failed = |error: std::io::Error| Failure::Failed(format!("{}: {error}", path.display()));
    fs::create_dir_all(directory).map_err(failed)?;
    let file = File::create(&path).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Failure::Failed(format!(
            "{}: another `cargo xtask study` runs there: wait for it, or choose another --output",
            directory.display()
        ))),
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}

/// Writes study.json; a resumed study keeps the time of its beginning.
fn write_study(file: &StudyFile, cells: &[Cell], directory: &Path) -> Outcome {
    let path = directory.join("study.json");
    let earlier: Option<Value> = fs::read_to_string(&path).ok().and_then(|text| serde_json::from_str(&text).ok());
    let created = earlier.as_ref().and_then(|study| study["created"].as_str().map(str::to_owned)).or_else(machine::now);
    let study = json!({
        "schema": SCHEMA,
        "name": file.name,
        "title": file.title,
        "about": file.about,
        "created": created,
        "commit": machine::commit(),
        "machine": machine::machine(),
        "toml": file.text,
        "warmup": WARM_UP,
        "images_per_second_means": machine::IMAGES_PER_SECOND_MEANS,
        "target_accuracy": file.target_accuracy,
        "cells": cells.iter().map(Cell::to_json).collect::<Vec<_>>(),
    });
    crate::json::write(&path, &study)
}

fn report(trainer: &Path, directory: &Path) -> Outcome {
    if !flags::has_command(trainer, "report") {
        println!("note: this trainer has no `report` command: no report was written");
        return Ok(());
    }
    let mut command = Process::new(trainer);
    command.arg("report").arg(directory).arg("--output").arg(directory.join("report"));
    process::run(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_study_is_kept_out_of_a_directory() {
        let directory = std::env::temp_dir().join(format!("lockstep-xtask-{}-lock", std::process::id()));
        let first = lock(&directory).unwrap();
        assert!(lock(&directory).unwrap_err().to_string().contains("another `cargo xtask study`"));
        drop(first);
        drop(lock(&directory).unwrap());
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn every_study_of_the_workspace_is_a_right_one() {
        let folder = crate::cargo::root().join("studies");
        let mut num_studies = 0;
        let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        for path in paths.filter(|path| path.extension().is_some_and(|extension| extension == "toml")) {
            let text = fs::read_to_string(&path).unwrap();
            let file = StudyFile::read(&path.display().to_string(), &text, &toml::Table::new()).unwrap();
            assert_eq!(path.file_stem().unwrap().to_str().unwrap(), file.name);
            assert!(!plan::cells(&file).unwrap().is_empty());
            num_studies += 1;
        }
        assert!(num_studies >= 3);
    }
}
