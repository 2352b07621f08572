//! `trainer study`: a matrix of runs, repeated on a quiet machine, recorded and resumed.
//!
//! In: a study file (docs/reference/studies.md). Out: a directory with study.json, records.jsonl,
//! the files of every run, predictions, a report.
//! Invariant: every attempt is kept, and a finished repetition is never run again. A study that was
//! stopped in any way can be resumed.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command as Process;

use clap::Args;

use crate::cell::{Cell, Place};
use crate::changes;
use crate::directory;
use crate::file::StudyFile;
use crate::job;
use crate::plan;
use crate::quiet::MARK;
use crate::session::{self, StudyRunner};
use cluster::failure::{Failure, Outcome, at, usage};
use cluster::hosts;
use cluster::options;
use cluster::output::{self, say};
use cluster::process;
use cluster::slurm;
use cluster::words;

const DETAILS: &str = "\
Example: trainer study lab/studies/two-hosts.toml
The same command resumes a stopped study. Ctrl-C ends the run in progress with all its ranks.
A run that others disturb (more than quiet_cores of the processors) is repeated, at most `attempts` times; --again-disturbed \
tries those again, as often. --set changes keys of the file: --set data_dir=/data,steps=5,ranks=[1,2]
Networks hosts:RATE need root (`trainer hosts --help`); network slurm needs a cluster.
docs/reference/studies.md describes the keys of a study file.";

/// Flags of `trainer study`.
#[derive(Debug, Clone, Args)]
#[command(after_help = DETAILS)]
pub struct StudyArgs {
    /// Study file.
    #[arg(value_name = "FILE")]
    file: String,

    /// Directory of the study [default: runs/studies/NAME]
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,

    /// Run only cells whose id contains this text [default: all]
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,

    /// Changed keys of the file, in one list [default: none]
    #[arg(long, value_name = "K=V,K=V")]
    set: Option<String>,

    /// Repetitions of each cell [default: the file's]
    #[arg(long, value_name = "N", value_parser = options::count)]
    repetitions: Option<usize>,

    /// Leave out cells of other frameworks [default: off]
    #[arg(long)]
    no_compare: bool,

    /// Print the cells; run nothing [default: off]
    #[arg(long)]
    dry_run: bool,

    /// Repeat also runs that were disturbed in every attempt [default: off]
    #[arg(long)]
    again_disturbed: bool,

    /// Neither wait for a quiet machine nor repeat runs [default: off]
    #[arg(long)]
    no_quiet_check: bool,

    /// Another built trainer [default: this program]
    #[arg(long, value_name = "PATH")]
    trainer: Option<PathBuf>,

    /// Write no report at the end [default: off]
    #[arg(long)]
    no_report: bool,
}

impl StudyArgs {
    /// Runs what the study has not run yet, and reports.
    ///
    /// # Errors
    /// An invalid file; a place that this machine lacks; cells with failed runs.
    pub fn run(&self) -> Outcome {
        let file = self.read()?;
        let cells = plan::cells(&file)?;
        let chosen = self.chosen(&cells)?;
        let trainer = options::trainer(self.trainer.as_deref())?;
        let mut warnings = BTreeSet::new();
        for cell in &chosen {
            job::check(&file, cell)?;
            warnings.extend(self.check_words(cell, &trainer)?);
        }
        for warning in warnings {
            eprintln!("warning: {warning}");
        }
        if self.dry_run {
            return output::result(&listed(&chosen));
        }
        let directory = match &self.output {
            Some(directory) => directory.clone(),
            None => Path::new("runs/studies").join(&file.name),
        };
        let options = session::Options {
            checks_quiet: !self.no_quiet_check,
            again_disturbed: self.again_disturbed,
        };
        let (failed, directory) = measure(&file, &cells, &chosen, &directory, &trainer, options)?;
        let mut failures: Vec<String> = Vec::new();
        if !self.no_report {
            let mut command = Process::new(&trainer);
            command.arg("report").arg(&directory);
            command.arg("--output").arg(directory.join("report"));
            let reported = process::run(command);
            failures.extend(reported.err().map(|failure| failure.to_string()));
        }
        if !failed.is_empty() {
            failures.push(format!(
                "{} of {} cells have failed runs: {}. See `why` in {}/records.jsonl. The same \
                 command repeats the failed runs.",
                failed.len(),
                chosen.len(),
                failed.join(", "),
                directory.display()
            ));
        }
        match failures.is_empty() {
            true => Ok(()),
            false => Err(Failure::Failed(failures.join("; "))),
        }
    }

    /// Refuses a cell whose command the trainer would refuse. Returns a warning if the data of a
    /// dry run or of a job are not here.
    fn check_words(&self, cell: &Cell, trainer: &Path) -> Outcome<Option<String>> {
        if cell.peer().is_some() {
            return Ok(None);
        }
        let refused = |text: &str| usage!("{}: cell {}: {text}", self.file, cell.id);
        let checked = words::check(trainer, &cell.arguments, cell.world_size);
        let missing = checked.map_err(|failure| refused(&failure.to_string()))?;
        match missing {
            Some(missing) if !self.dry_run && !cell.is_job() => Err(refused(&missing)),
            missing => Ok(missing),
        }
    }

    /// Reads the file with the changes of the command line.
    fn read(&self) -> Outcome<StudyFile> {
        let path = &self.file;
        let text =
            fs::read_to_string(path).map_err(|error| usage!("cannot read {path}: {error}"))?;
        let mut file = StudyFile::read(path, &text, &changes::read(self.set.as_deref())?)?;
        file.repetitions = self.repetitions.unwrap_or(file.repetitions);
        for matrix in &mut file.matrices {
            matrix.repetitions = self.repetitions.or(matrix.repetitions);
        }
        Ok(file)
    }

    fn chosen<'c>(&self, cells: &'c [Cell]) -> Outcome<Vec<&'c Cell>> {
        let only = self.only.as_deref().unwrap_or_default();
        let is_chosen =
            |cell: &&Cell| cell.id.contains(only) && !(self.no_compare && cell.framework.is_some());
        let chosen: Vec<&Cell> = cells.iter().filter(is_chosen).collect();
        if chosen.is_empty() {
            let ids: Vec<&str> = cells.iter().map(|cell| cell.id.as_str()).collect();
            return Err(usage!(
                "--only: no cell has `{only}` in its id (expected one of: {})",
                ids.join(", ")
            ));
        }
        Ok(chosen)
    }
}

/// Runs what a study's directory does not have yet; returns the cells with failed runs, and the
/// absolute directory.
pub(crate) fn measure(
    file: &StudyFile,
    cells: &[Cell],
    chosen: &[&Cell],
    directory: &Path,
    trainer: &Path,
    options: session::Options,
) -> Outcome<(Vec<String>, PathBuf)> {
    let directory = std::path::absolute(directory).map_err(at(directory))?;
    refuse_switches(std::env::vars_os())?;
    let has = |is_place: fn(&Place) -> bool| chosen.iter().any(|cell| is_place(&cell.place));
    if has(|place| matches!(place, Place::Hosts { .. })) {
        hosts::require()?;
    }
    if has(|place| matches!(place, Place::Slurm { .. })) {
        slurm::require()?;
    }
    let _lock = directory::lock(&directory)?;
    let mut session = StudyRunner::open(file, cells, &directory, trainer, options)?;
    say!(
        "study {}: {}, {}",
        file.name,
        records::counted(chosen.len(), "cell"),
        directory.display()
    );
    let failed = session.run(chosen)?;
    drop(session);
    Ok((failed, directory))
}

/// Lists the cells for a dry run.
fn listed(cells: &[&Cell]) -> String {
    let mut text = String::new();
    for cell in cells {
        let program = match cell.peer() {
            Some(_) => "peers/run.py",
            None => "trainer",
        };
        text.push_str(&format!(
            "{}\n    {} on {}, {}: {program} {}\n",
            cell.id,
            records::counted(cell.repetitions, "time"),
            records::counted(cell.world_size, "rank"),
            cell.setting("launcher"),
            records::quoted_line(&cell.arguments)
        ));
    }
    let runs: usize = cells.iter().map(|cell| cell.repetitions).sum();
    text.push_str(&format!(
        "{}, {}\n",
        records::counted(cells.len(), "cell"),
        records::counted(runs, "run")
    ));
    text
}

/// Variables that change no measurement.
const OF_NO_CONCERN: [&str; 6] = [
    "LOCKSTEP_NO_INSTALL",
    "LOCKSTEP_COMMIT",
    "LOCKSTEP_DATA",
    "LOCKSTEP_FUZZ_CHANGES",
    "LOCKSTEP_TEST_PANIC",
    MARK,
];

/// Refuses variables that change measurements, as records do not contain them.
fn refuse_switches(variables: impl Iterator<Item = (OsString, OsString)>) -> Outcome {
    let is_switch = |name: &str| name.starts_with("LOCKSTEP_") && !OF_NO_CONCERN.contains(&name);
    for (name, value) in variables {
        if let Some(name) = name.to_str().filter(|name| is_switch(name)) {
            return Err(usage!(
                "{name}: changes measurements, and records would not contain it (got `{}`). \
                 Unset {name}; a flag, such as --cpu, is a key of a study file",
                value.to_string_lossy()
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::json;
    use records::Study;

    #[test]
    fn one_cell_is_counted_as_one() {
        let (_, cells) = plan::tests::study("[[matrix]]\nbatch_size_per_rank = 8\n").unwrap();
        let listed = listed(&cells.iter().collect::<Vec<_>>());
        assert!(listed.ends_with("\n1 cell, 3 runs\n"), "{listed}");
    }

    #[test]
    fn a_named_pipe_in_place_of_the_document_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("study.json");
        let made = Process::new("mkfifo").arg(pipe).status().unwrap();
        assert!(made.success());
        let document = json::read::<Study>(&folder.path().join(directory::DOCUMENT));
        assert!(document.is_err());
        let refusal = directory::check(folder.path()).unwrap_err().to_string();
        assert!(refusal.contains("hoose another --output"), "{refusal}");
    }

    #[test]
    fn every_study_of_the_workspace_is_a_right_one() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../studies");
        let mut num_studies = 0;
        let paths = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        for path in paths.filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "toml")
        }) {
            let text = fs::read_to_string(&path).unwrap();
            let file =
                StudyFile::read(&path.display().to_string(), &text, &toml::Table::new()).unwrap();
            assert_eq!(path.file_stem().unwrap().to_str().unwrap(), file.name);
            assert!(!plan::cells(&file).unwrap().is_empty(), "{}", file.name);
            num_studies += 1;
        }
        assert!(num_studies >= 3);
    }

    #[test]
    fn a_variable_that_changes_what_is_measured_is_refused_by_name() {
        let refuse = |names: &[&str]| {
            refuse_switches(names.iter().map(|name| (name.into(), "portable".into())))
        };
        refuse(&["PATH", "LOCKSTEP_NO_INSTALL", "LOCKSTEP_WATCH"]).unwrap();
        for name in [
            "LOCKSTEP_CPU",
            "LOCKSTEP_NORM",
            "LOCKSTEP_PEER_RANK",
            "LOCKSTEP_NEW",
        ] {
            let failure = refuse(&["PATH", name]).unwrap_err();
            assert_eq!(failure.exit_code(), 2);
            let found = failure.to_string();
            assert!(
                found.starts_with(name) && found.contains("got `portable`). Unset"),
                "{found}"
            );
        }
    }
}
