//! The runs of a study that are not done yet, one after the other, and what is said of them.
//!
//! In: cells, earlier records. Out: further records; the ids of cells whose last attempts failed.
//! Invariant: repetitions come in rounds over all cells, so that what drifts meets all cells alike; local runs before jobs of Slurm,
//! which might use the same machine.

use std::path::Path;

use records::{AttemptRecord, Status, Study, StudyCell};

use super::attempt::{Attempt, Came};
use super::batch::{self, Jobs, Submitted};
use super::cell::{Cell, Place};
use super::file::{Kind, StudyFile};
use super::journal::{Need, Records};
use super::local::Local;
use super::predict::Predicting;
use super::starts::{self, Starts};
use super::warm_up;
use cluster::failure::{Failure, Outcome};
use cluster::mpirun::Mpirun;
use cluster::output::say;
use cluster::slurm;

/// How the command line wants it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Options {
    pub(super) checks_quiet: bool,
    pub(super) again_disturbed: bool,
}

/// One start of a study.
pub(super) struct Session<'a> {
    file: &'a StudyFile,
    /// All of the study, also those that were not chosen.
    pub(super) cells: &'a [Cell],
    directory: &'a Path,
    trainer: &'a Path,
    options: Options,
    records: Records,
    local: Local<'a>,
    pub(super) starts: Starts,
}

/// A repetition of a cell that is not done, with its place in the count.
#[derive(Clone, Copy)]
struct Task<'a> {
    cell: &'a Cell,
    repetition: usize,
}

impl<'a> Session<'a> {
    /// Reads the records, and refuses to mix them with those of other arguments or of another machine.
    pub(super) fn open(
        file: &'a StudyFile,
        cells: &'a [Cell],
        directory: &'a Path,
        trainer: &'a Path,
        mpirun: Option<&'a Mpirun>,
        options: Options,
    ) -> Outcome<Self> {
        let records = Records::open(directory)?;
        let earlier = crate::command::earlier(directory).unwrap_or_default();
        check_same(&earlier, cells, &records, directory)?;
        let own = starts::own(trainer);
        let starts = if records.is_empty() {
            Starts::new(own)
        } else {
            Starts::with(&earlier, own, directory)?
        };
        let local = Local::new(file, trainer, mpirun, options.checks_quiet);
        Ok(Session {
            file,
            cells,
            directory,
            trainer,
            options,
            records,
            local,
            starts,
        })
    }

    /// Cells of before that the study has no more but records of.
    pub(super) fn earlier_cells(&self, earlier: &Study) -> Vec<StudyCell> {
        let is_kept = |earlier: &&StudyCell| {
            self.records.has_cell(&earlier.id)
                && self.cells.iter().all(|cell| cell.id != earlier.id)
        };
        all_cells(earlier).filter(is_kept).cloned().collect()
    }

    /// Runs what is not done; the ids of cells that have a failed repetition.
    pub(super) fn run(&mut self, cells: &[&Cell]) -> Outcome<Vec<String>> {
        let tasks = self.tasks(cells);
        let num_all: usize = cells.iter().map(|cell| cell.repetitions).sum();
        if tasks.len() < num_all {
            say!(
                "{} of {num_all} runs are done already",
                num_all - tasks.len()
            );
        }
        let is_job = |task: &Task<'_>| matches!(task.cell.place, Place::Slurm { .. });
        let (jobs, here): (Vec<Task<'_>>, Vec<Task<'_>>) = tasks.into_iter().partition(is_job);
        if let Some(task) = here.first() {
            warm_up::run(task.cell, self.file, self.trainer, self.directory)?;
        }
        let mut round = 0;
        for (index, task) in here.iter().enumerate() {
            // After the networks, which are measured first.
            if task.repetition != round && task.cell.kind != Kind::Netbench {
                round = task.repetition;
                self.freeze_predictions(&here[index..]);
            }
            let left = here[index + 1..].iter().chain(&jobs);
            self.repeat(
                task,
                &format!(
                    "[{}/{}]",
                    num_all - here.len() - jobs.len() + index + 1,
                    num_all
                ),
                left,
            )?;
        }
        // What is predicted waits for the networks, and for its predictions.
        let (networks, runs): (Vec<Task<'_>>, Vec<Task<'_>>) = jobs
            .into_iter()
            .partition(|task| task.cell.kind == Kind::Netbench);
        if !networks.is_empty() {
            self.run_jobs(&networks)?;
        }
        if !runs.is_empty() {
            // A job of an earlier session may run already.
            let jobs = Jobs::open(self.directory)?;
            let new: Vec<Task<'_>> = runs
                .iter()
                .filter(|task| jobs.of(&self.next_attempt(task)).is_none())
                .copied()
                .collect();
            for repetition in 1..=new.iter().map(|task| task.repetition).max().unwrap_or(0) {
                let of_round: Vec<Task<'_>> = new
                    .iter()
                    .filter(|task| task.repetition == repetition)
                    .copied()
                    .collect();
                self.freeze_predictions(&of_round);
            }
            self.run_jobs(&runs)?;
        }
        let is_failed = |cell: &&&Cell| {
            (1..=cell.repetitions).any(|repetition| {
                let status = self.records.status(&cell.id, repetition);
                status == Some(Status::Failed)
            })
        };
        Ok(cells
            .iter()
            .filter(is_failed)
            .map(|cell| cell.id.clone())
            .collect())
    }

    /// Writes down, before they run, what the next of these tasks will do, as far as they are of one repetition.
    fn freeze_predictions(&self, tasks: &[Task<'_>]) {
        let (Some(first), Some(_)) = (tasks.first(), &self.file.profile) else {
            return;
        };
        let of_round = tasks
            .iter()
            .filter(|task| task.repetition == first.repetition);
        let next: Vec<&Cell> = of_round.map(|task| task.cell).collect();
        let Session {
            file,
            cells,
            directory,
            trainer,
            ref records,
            options,
            ..
        } = *self;
        let predicting = Predicting {
            file,
            cells,
            records,
            directory,
            trainer,
            checks_quiet: options.checks_quiet,
        };
        predicting.freeze(&next, first.repetition);
    }

    /// First repetitions of all cells, then the second ones; in each the networks first.
    fn tasks<'c>(&self, cells: &[&'c Cell]) -> Vec<Task<'c>> {
        let most = cells.iter().map(|cell| cell.repetitions).max().unwrap_or(0);
        let mut cells = cells.to_vec();
        cells.sort_by_key(|cell| cell.kind != Kind::Netbench);
        let cells = &cells;
        let all = (1..=most)
            .flat_map(|repetition| cells.iter().map(move |&cell| Task { cell, repetition }));
        all.filter(|task| task.repetition <= task.cell.repetitions)
            .filter(|task| self.need(task) != Need::Nothing)
            .collect()
    }

    fn need(&self, task: &Task<'_>) -> Need {
        self.records.need(
            &task.cell.id,
            task.repetition,
            self.file.attempts,
            self.options.again_disturbed,
        )
    }

    /// Attempts at one repetition until one counts.
    fn repeat<'t>(
        &mut self,
        task: &Task<'_>,
        place: &str,
        left: impl Iterator<Item = &'t Task<'t>>,
    ) -> Outcome {
        let left: Vec<&str> = left.map(|task| task.cell.id.as_str()).collect();
        for _ in 0..self.file.attempts {
            let Need::Attempt(number) = self.need(task) else {
                break;
            };
            let attempt = Attempt {
                cell: task.cell,
                repetition: task.repetition,
                number,
            };
            let (came, code) = self.local.run(&attempt, self.directory)?;
            let status = came.status;
            self.keep(&attempt, came, place, &left)?;
            // Wrong usage stays wrong.
            if status == Status::Ok || (status == Status::Failed && code == Some(2)) {
                break;
            }
        }
        Ok(())
    }

    /// Records an attempt and says a line.
    fn keep(&mut self, attempt: &Attempt<'_>, came: Came, place: &str, left: &[&str]) -> Outcome {
        let record = attempt.record(came);
        let line = line(attempt.cell, &record);
        self.records.append(record)?;
        let left_s: f64 = left
            .iter()
            .filter_map(|id| self.records.expected_seconds(id))
            .sum();
        let left = if left_s > 0.0 {
            format!("; about {} left", span(left_s))
        } else {
            String::new()
        };
        say!("{place} {line}{left}");
        Ok(())
    }

    fn next_attempt<'c>(&self, task: &Task<'c>) -> Attempt<'c> {
        let number = self.records.next_attempt(&task.cell.id, task.repetition);
        Attempt {
            cell: task.cell,
            repetition: task.repetition,
            number,
        }
    }

    /// Submits all jobs, waits for them in their order; then once more those that were disturbed or failed.
    fn run_jobs(&mut self, tasks: &[Task<'_>]) -> Outcome {
        let is_here = slurm::nodes_are_this_machine();
        let mut jobs = Jobs::open(self.directory)?;
        let mut tasks = tasks.to_vec();
        for round in 1..=self.file.attempts {
            if is_here && self.options.checks_quiet {
                self.local.wait_for_quiet();
            }
            let mut attempts: Vec<Attempt<'_>> =
                tasks.iter().map(|task| self.next_attempt(task)).collect();
            // Jobs that are found again come first, so that new ones come after them and none runs beside another.
            attempts.sort_by_key(|attempt| jobs.of(attempt).is_none());
            let mut submitted: Vec<(Attempt<'_>, Submitted)> = Vec::new();
            for attempt in attempts {
                // Slurm refuses to let a job come after one that it has forgotten.
                let after = submitted
                    .iter()
                    .rfind(|(_, job)| job.is_known())
                    .map(|(_, last)| last.job.as_str());
                let job = batch::submit(
                    &mut jobs,
                    self.file,
                    self.trainer,
                    &attempt,
                    self.directory,
                    after,
                )?;
                submitted.push((attempt, job));
            }
            let ids: Vec<&str> = submitted
                .iter()
                .map(|(_, submitted)| submitted.job.as_str())
                .collect();
            say!(
                "round {round}: {} jobs of Slurm, one after the other: {}",
                ids.len(),
                ids.join(", ")
            );
            for (index, (attempt, job)) in submitted.iter().enumerate() {
                let came = batch::wait(attempt, job, self.directory, &self.local, is_here)?;
                let left: Vec<&str> = submitted[index + 1..]
                    .iter()
                    .map(|(next, _)| next.cell.id.as_str())
                    .collect();
                self.keep(
                    attempt,
                    came,
                    &format!("[job {}, {}/{}]", job.job, index + 1, submitted.len()),
                    &left,
                )?;
            }
            tasks.retain(|task| self.need(task) != Need::Nothing);
            if tasks.is_empty() {
                break;
            }
        }
        Ok(())
    }
}

/// What is said of an attempt.
fn line(cell: &Cell, record: &AttemptRecord) -> String {
    let again = if record.attempt > 1 {
        format!(", attempt {}", record.attempt)
    } else {
        String::new()
    };
    let mut line = format!(
        "{}, repetition {} of {}{again}",
        cell.id, record.repetition, cell.repetitions
    );
    if let Some(rate) = record.images_per_second() {
        line.push_str(&format!(" | {} images/s", records::rate(rate)));
    }
    if let Some(seconds) = record.seconds {
        line.push_str(&format!(" | {seconds:.1} s"));
    }
    let during = record.quiet.and_then(|quiet| quiet.during);
    if let Some((others, steal)) =
        during.and_then(|during| during.other_cores.zip(during.steal_cores))
    {
        line.push_str(&format!(" | others {:.2} cores", others + steal));
    }
    match (record.status, &record.why) {
        (Status::Ok, _) => {}
        (status, why) => line.push_str(&format!(
            " | {}: {}",
            status.name(),
            why.as_deref().unwrap_or("?")
        )),
    }
    line
}

fn span(seconds: f64) -> String {
    if seconds < 90.0 {
        format!("{seconds:.0} s")
    } else {
        format!("{:.0} min", seconds / 60.0)
    }
}

/// Those of a study's plan, then those of earlier plans.
fn all_cells(study: &Study) -> impl Iterator<Item = &StudyCell> {
    study.cells.iter().chain(&study.earlier_cells)
}

/// Refuses to go on with another study's records: a cell of the same id must have been run with the same arguments.
fn check_same(study: &Study, cells: &[Cell], records: &Records, directory: &Path) -> Outcome {
    for cell in cells.iter().filter(|cell| records.has_cell(&cell.id)) {
        let earlier = all_cells(study).find(|earlier| earlier.id == cell.id);
        if earlier.is_some_and(|earlier| {
            earlier.arguments == cell.arguments && earlier.settings == cell.settings
        }) {
            continue;
        }
        return Err(Failure::Failed(format!(
            "{}: cell {} has records of {}, expected `{}`: choose another --output, or remove the directory",
            directory.display(),
            cell.id,
            earlier.map_or(
                "arguments that study.json does not tell".to_owned(),
                |earlier| { format!("`{}`", earlier.arguments.join(" ")) }
            ),
            cell.arguments.join(" ")
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::study;

    #[test]
    fn spans_of_time_are_told_in_their_unit() {
        assert_eq!(
            (span(12.3).as_str(), span(600.0).as_str()),
            ("12 s", "10 min")
        );
    }

    #[test]
    fn records_of_other_arguments_are_not_gone_on_with() {
        let directory = tempfile::tempdir().unwrap();
        let cells = |steps: usize| {
            study(&format!(
                "[base]\nsteps = {steps}\n[[matrix]]\nbatch_size_per_rank = 8\n"
            ))
            .unwrap()
            .1
        };
        let of_five = Study {
            cells: cells(5).iter().map(Cell::record).collect(),
            ..Study::default()
        };
        let mut records = Records::open(directory.path()).unwrap();
        check_same(&of_five, &cells(6), &records, directory.path()).unwrap();
        let record = serde_json::json!({ "cell": cells(5)[0].id, "repetition": 1, "attempt": 1, "status": "ok" });
        records
            .append(serde_json::from_value(record).unwrap())
            .unwrap();
        check_same(&of_five, &cells(5), &records, directory.path()).unwrap();
        let text = check_same(&of_five, &cells(6), &records, directory.path())
            .unwrap_err()
            .to_string();
        assert!(
            text.contains("--steps 5") && text.contains("--steps 6"),
            "{text}"
        );
        // Without the arguments of a record nobody knows what it is of.
        let text = check_same(&Study::default(), &cells(5), &records, directory.path())
            .unwrap_err()
            .to_string();
        assert!(
            text.contains("arguments that study.json does not tell"),
            "{text}"
        );
    }

    /// A start of a study of these batches: what is not done gets a record.
    fn start(directory: &Path, batches: &str, steps: usize) -> Outcome {
        let text =
            format!("[base]\nsteps = {steps}\n[[matrix]]\nbatch_size_per_rank = {batches}\n");
        let ((file, cells), trainer) = (study(&text)?, Path::new("/bin/true"));
        let options = Options {
            checks_quiet: false,
            again_disturbed: false,
        };
        let mut session = Session::open(&file, &cells, directory, trainer, None, options)?;
        crate::command::write_study(&file, &session, directory)?;
        for task in session.tasks(&cells.iter().collect::<Vec<_>>()) {
            let record = serde_json::json!({ "cell": task.cell.id, "repetition": task.repetition, "attempt": 1, "status": "ok" });
            session
                .records
                .append(serde_json::from_value(record).unwrap())?;
        }
        Ok(())
    }

    #[test]
    fn what_the_command_line_sets_otherwise_stands_beside_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let text =
            "name = \"a\"\ntitle = \"A\"\nabout = \"a\"\n[[matrix]]\nbatch_size_per_rank = 8\n";
        let mut told = Vec::new();
        for set in [None, Some("steps=5,cpu=portable")] {
            let file =
                StudyFile::read("s.toml", text, &crate::changes::read(set).unwrap()).unwrap();
            let (cells, trainer) = (crate::plan::cells(&file).unwrap(), Path::new("/bin/true"));
            let options = Options {
                checks_quiet: false,
                again_disturbed: false,
            };
            let session =
                Session::open(&file, &cells, directory.path(), trainer, None, options).unwrap();
            crate::command::write_study(&file, &session, directory.path()).unwrap();
            let study = crate::command::earlier(directory.path()).unwrap();
            assert_eq!(study.toml, text);
            told.push(study.set);
        }
        assert_eq!(told, ["", "cpu = \"portable\"\nsteps = 5\n"]);
    }

    #[test]
    fn a_cell_that_comes_back_with_other_arguments_is_refused_its_records() {
        let directory = tempfile::tempdir().unwrap();
        start(directory.path(), "[4, 8]", 2).unwrap();
        start(directory.path(), "8", 2).unwrap();
        let without = crate::command::earlier(directory.path()).unwrap();
        start(directory.path(), "8", 2).unwrap();
        let other = start(directory.path(), "[4, 8]", 50)
            .unwrap_err()
            .to_string();
        let same = start(directory.path(), "[4, 8]", 2);
        let ids: Vec<String> = all_cells(&crate::command::earlier(directory.path()).unwrap())
            .map(|cell| cell.id.clone())
            .collect();
        assert!(
            other.contains("-b4-") && other.contains("--steps 2") && other.contains("--steps 50"),
            "{other}"
        );
        same.unwrap();
        assert_eq!(
            (without.cells.len(), without.earlier_cells.len()),
            (1, 1),
            "it counts in no report"
        );
        assert_eq!(ids.len(), 2, "each once: {ids:?}");
        assert!(
            without.program_sha256.is_some() && without.later_starts.is_empty(),
            "{without:?}"
        );
    }
}
