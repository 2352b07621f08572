//! `trainer study`: a matrix of runs, repeated, on a quiet machine, recorded, resumed.
//!
//! In: a study file (studies/README.md). Out: a directory with study.json, records.jsonl, every run's own files, predictions, comparisons, a report.
//! Invariant: every attempt is kept; a repetition that is done is never run again; a study that is stopped in any way goes on
//! where it was.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command as Process;

use clap::Args;
use records::{STUDY_SCHEMA, Study};

use crate::batch;
use crate::cell::{Cell, Place};
use crate::changes;
use crate::comparisons::{Around, Comparison};
use crate::directory;
use crate::environment;
use crate::file::StudyFile;
use crate::flags;
use crate::machine;
use crate::plan;
use crate::session::{self, Session};
use cluster::failure::{Failure, Outcome};
use cluster::hosts;
use cluster::mpirun::Mpirun;
use cluster::options;
use cluster::output::{self, say};
use cluster::process;
use cluster::slurm;

const WARM_UP: &str = "one short run before the first cell, not recorded; in every run the first steps, by --warmup-steps";

const DETAILS: &str = "\
Example: trainer study studies/two-hosts.toml
The same command again goes on where the study stopped. Ctrl-C ends the run in progress with all its ranks.
A run that others disturb (more than quiet_cores of the processors) is repeated, at most `attempts` times; --again-disturbed
tries those again, as often. --set changes keys of the file: --set data_dir=/data,steps=5,ranks=[1,2]
Networks hosts:RATE need root (`trainer hosts --help`); network slurm needs a cluster.
studies/README.md tells the keys of a study file.";

/// Flags of `trainer study`.
#[derive(Debug, Clone, Args)]
#[command(after_help = DETAILS)]
pub struct StudyArgs {
    /// The study's file.
    #[arg(value_name = "FILE")]
    file: String,

    /// Of the study [default: runs/studies/NAME]
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,

    /// Only cells, and comparisons compare-LAUNCHER, whose id has this text [default: all]
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,

    /// Other values for keys of the file, all in one list [default: the file's]
    #[arg(long, value_name = "K=V,K=V")]
    set: Option<String>,

    /// Runs of each cell [default: the file's]
    #[arg(long, value_name = "N", value_parser = options::count)]
    repetitions: Option<usize>,

    /// Leave out the other frameworks of [compare] [default: off]
    #[arg(long)]
    no_compare: bool,

    /// Print the cells; run nothing [default: off]
    #[arg(long)]
    dry_run: bool,

    /// Repeat also what was disturbed in every attempt [default: off]
    #[arg(long)]
    again_disturbed: bool,

    /// Neither wait for a quiet machine nor repeat runs [default: off]
    #[arg(long)]
    no_quiet_check: bool,

    /// Another program than this one, built already [default: this program]
    #[arg(long, value_name = "PATH")]
    trainer: Option<PathBuf>,

    /// Call no `trainer report` at the end [default: off]
    #[arg(long)]
    no_report: bool,
}

impl StudyArgs {
    /// Runs what the study has not run yet, and reports.
    ///
    /// # Errors
    /// A file that is not understood; a place that this machine lacks; cells with failed runs.
    pub fn run(&self) -> Outcome {
        let file = self.read()?;
        let cells = plan::cells(&file)?;
        let (chosen, comparisons) = self.chosen(&cells, &file.comparisons)?;
        let trainer = options::trainer(self.trainer.as_deref())?;
        flags::check(&file, &trainer, &chosen)?;
        chosen
            .iter()
            .try_for_each(|cell| batch::check(&file, cell))?;
        let directory = self
            .output
            .clone()
            .unwrap_or_else(|| Path::new("runs/studies").join(&file.name));
        let directory = std::path::absolute(&directory)
            .map_err(|error| Failure::Failed(format!("{}: {error}", directory.display())))?;
        let around = Around {
            directory: &directory,
            trainer: &trainer,
            quiet_cores: file.quiet_cores,
            attempts: file.attempts,
            is_watched: !self.no_quiet_check,
        };
        comparisons
            .iter()
            .try_for_each(|comparison| comparison.check_flags(around))?;
        if self.dry_run {
            return output::result(&listed(&chosen, &comparisons));
        }
        environment::refuse_switches(std::env::vars_os())?;
        check_places(&chosen)?;
        comparisons
            .iter()
            .try_for_each(|comparison| comparison.check(around))?;
        let _lock = directory::STUDY.lock(&directory)?;
        let mpirun = Mpirun::find();
        let options = session::Options {
            checks_quiet: !self.no_quiet_check,
            again_disturbed: self.again_disturbed,
        };
        let mut session = Session::open(
            &file,
            &cells,
            &directory,
            &trainer,
            mpirun.as_ref(),
            options,
        )?;
        write_study(&file, &session, &directory)?;
        say!(
            "study {}: {}, {}",
            file.name,
            counted(&chosen, &comparisons),
            directory.display()
        );
        let failed = session.run(&chosen)?;
        // With it go the emulated hosts of its cells.
        drop(session);
        let mut failures: Vec<String> = Vec::new();
        for comparison in &comparisons {
            failures.extend(
                comparison
                    .run(around)
                    .err()
                    .map(|failure| failure.to_string()),
            );
        }
        if !self.no_report {
            failures.extend(
                report(&trainer, &directory)
                    .err()
                    .map(|failure| failure.to_string()),
            );
        }
        if !failed.is_empty() {
            failures.push(format!(
                "{} of {} cells have failed runs: {}; `why` in {}/records.jsonl says more, the same command tries them again",
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

    /// The file with what the command line changes.
    fn read(&self) -> Outcome<StudyFile> {
        let path = &self.file;
        let text = fs::read_to_string(path)
            .map_err(|error| Failure::Usage(format!("cannot read {path}: {error}")))?;
        let mut file = StudyFile::read(path, &text, &changes::read(self.set.as_deref())?)?;
        file.repetitions = self.repetitions.unwrap_or(file.repetitions);
        for matrix in &mut file.matrices {
            matrix.repetitions = self.repetitions.or(matrix.repetitions);
        }
        Ok(file)
    }

    fn chosen<'c>(
        &self,
        cells: &'c [Cell],
        comparisons: &'c [Comparison],
    ) -> Outcome<(Vec<&'c Cell>, Vec<&'c Comparison>)> {
        let only = self.only.as_deref().unwrap_or_default();
        let chosen: Vec<&Cell> = cells.iter().filter(|cell| cell.id.contains(only)).collect();
        let is_chosen = |comparison: &&Comparison| !self.no_compare && comparison.id.contains(only);
        let compared: Vec<&Comparison> = comparisons.iter().filter(is_chosen).collect();
        if chosen.is_empty() && compared.is_empty() {
            let of_cells = cells.iter().map(|cell| cell.id.as_str());
            let ids: Vec<&str> = of_cells
                .chain(comparisons.iter().map(|comparison| comparison.id.as_str()))
                .collect();
            return Err(Failure::Usage(format!(
                "--only: no cell or comparison has `{only}` in its id, expected one of: {}",
                ids.join(", ")
            )));
        }
        Ok((chosen, compared))
    }
}

/// What a dry run shows.
fn listed(cells: &[&Cell], comparisons: &[&Comparison]) -> String {
    let mut text = String::new();
    for cell in cells {
        let processes = if cell.world_size == 1 {
            "process"
        } else {
            "processes"
        };
        text.push_str(&format!(
            "{}\n    {} times on {} {processes}, {}: trainer {}\n",
            cell.id,
            cell.repetitions,
            cell.world_size,
            cell.setting("launcher"),
            cell.arguments
                .iter()
                .map(process::quoted)
                .collect::<Vec<_>>()
                .join(" ")
        ));
    }
    let runs: usize = cells.iter().map(|cell| cell.repetitions).sum();
    text.extend(comparisons.iter().map(|comparison| comparison.listed()));
    text.push_str(&format!(
        "{}, {}\n",
        counted(cells, comparisons),
        records::counted(runs, "run")
    ));
    text
}

fn counted(cells: &[&Cell], comparisons: &[&Comparison]) -> String {
    let cells = records::counted(cells.len(), "cell");
    match comparisons.len() {
        0 => cells,
        num => format!("{cells}, {}", records::counted(num, "comparison")),
    }
}

/// Refuses, before anything is started, places that this machine does not have.
fn check_places(cells: &[&Cell]) -> Outcome {
    if cells
        .iter()
        .any(|cell| matches!(cell.place, Place::Hosts { .. }))
    {
        hosts::require()?;
    }
    if cells
        .iter()
        .any(|cell| matches!(cell.place, Place::Slurm { .. }))
    {
        slurm::require()?;
    }
    Ok(())
}

/// What an earlier start wrote, if it can be understood.
pub(crate) fn earlier(directory: &Path) -> Option<Study> {
    let text = records::file::read_to_string(&directory.join("study.json")).ok()?;
    records::from_value(serde_json::from_str(&text).ok()?).ok()
}

/// Writes study.json; a resumed study keeps the time, the program and the machine of its beginning.
pub(crate) fn write_study(file: &StudyFile, session: &Session<'_>, directory: &Path) -> Outcome {
    let earlier = earlier(directory).unwrap_or_default();
    let first = session.starts.first.clone();
    let study = Study {
        schema: STUDY_SCHEMA.to_owned(),
        name: file.name.clone(),
        title: file.title.clone(),
        about: file.about.clone(),
        cells: session.cells.iter().map(Cell::record).collect(),
        earlier_cells: session.earlier_cells(&earlier),
        created: earlier.created.or_else(machine::now),
        commit: first.commit,
        program_sha256: first.program_sha256,
        machine: first.machine,
        later_starts: session.starts.later.clone(),
        toml: file.text.clone(),
        set: file.changes.to_string(),
        warmup: WARM_UP.to_owned(),
        images_per_second_means: machine::IMAGES_PER_SECOND_MEANS.to_owned(),
        target_accuracy: file.target_accuracy,
    };
    cluster::json::write(&directory.join("study.json"), &study)
}

fn report(trainer: &Path, directory: &Path) -> Outcome {
    if !flags::has_command(trainer, "report") {
        say!("note: this trainer has no `report` command: no report was written");
        return Ok(());
    }
    let mut command = Process::new(trainer);
    command
        .arg("report")
        .arg(directory)
        .arg("--output")
        .arg(directory.join("report"));
    process::run(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_cell_is_counted_as_one() {
        let (_, cells) = plan::tests::study("[[matrix]]\nbatch_size_per_rank = 8\n").unwrap();
        let listed = listed(&cells.iter().collect::<Vec<_>>(), &[]);
        assert!(listed.ends_with("\n1 cell, 3 runs\n"), "{listed}");
    }

    #[cfg(unix)]
    #[test]
    fn a_named_pipe_in_place_of_the_document_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        assert!(
            std::process::Command::new("mkfifo")
                .arg(folder.path().join("study.json"))
                .status()
                .unwrap()
                .success()
        );
        assert!(earlier(folder.path()).is_none());
        let refusal = directory::STUDY
            .check(folder.path())
            .unwrap_err()
            .to_string();
        assert!(refusal.contains("choose another --output"), "{refusal}");
    }

    #[test]
    fn every_study_of_the_workspace_is_a_right_one() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../studies");
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
            assert!(!plan::cells(&file).unwrap().is_empty());
            num_studies += 1;
        }
        assert!(num_studies >= 3);
    }
}
