//! The unfinished runs of a study, one after the other.
//!
//! In: cells, earlier records. Out: further records; the ids of cells whose last attempts failed.
//! Invariant: repetitions come in rounds over all cells, so that a drift affects all cells alike.
//! Local runs come before jobs of Slurm, which might use the same machine.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;

use records::{AttemptRecord, ComparisonRow, Status, Study, StudyCell};

use crate::attempt::{Attempt, Ended};
use crate::batch::{self, Jobs, Submitted};
use crate::cell::{Cell, Place};
use crate::command;
use crate::file::{Kind, PeerSettings, StudyFile};
use crate::journal::Records;
use crate::local::Local;
use crate::peers::{Peers, Setting};
use crate::predict::Predicting;
use crate::starts::{self, Starts};
use crate::warm_up;
use cluster::failure::{Failure, Outcome};
use cluster::output::say;
use cluster::slurm;

/// Choices of the command line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    pub(crate) checks_quiet: bool,
    pub(crate) again_disturbed: bool,
}

/// One start of a study.
pub(crate) struct StudyRunner<'a> {
    file: &'a StudyFile,
    /// All cells of the study, also those that were not chosen.
    pub(crate) cells: &'a [Cell],
    directory: &'a Path,
    trainer: &'a Path,
    options: Options,
    records: Records,
    local: Local<'a>,
    pub(crate) starts: Starts,
    earlier: Study,
    /// Settings with which cells of other frameworks compete.
    settings: BTreeMap<String, Setting>,
    /// Cells of the search for these settings.
    tried: Vec<Cell>,
    /// Cells of other frameworks that failed in this session.
    failed_peers: BTreeSet<String>,
}

/// An unfinished repetition of a cell.
#[derive(Clone, Copy)]
struct Task<'a> {
    cell: &'a Cell,
    repetition: usize,
}

impl<'a> StudyRunner<'a> {
    /// Reads the records, and refuses those of other arguments or of another machine.
    pub(crate) fn open(
        file: &'a StudyFile,
        cells: &'a [Cell],
        directory: &'a Path,
        trainer: &'a Path,
        options: Options,
    ) -> Outcome<Self> {
        let records = Records::open(directory)?;
        let earlier = command::earlier(directory).unwrap_or_default();
        check_same(&earlier, cells, &records, directory)?;
        let own = starts::own(trainer);
        let starts = if records.is_empty() {
            Starts::new(own)
        } else {
            let is_comparison = cells.iter().any(|cell| cell.framework.is_some());
            Starts::with(&earlier, own, directory, is_comparison)?
        };
        let settings = earlier
            .cells
            .iter()
            .filter(|cell| cell.tried.is_empty() && records.newest(&cell.id).is_some())
            .map(|cell| (cell.id.clone(), Setting(cell.setting.clone())))
            .collect();
        let local = Local::new(file, trainer, directory, options.checks_quiet);
        Ok(StudyRunner {
            file,
            cells,
            directory,
            trainer,
            options,
            records,
            local,
            starts,
            earlier,
            settings,
            tried: Vec::new(),
            failed_peers: BTreeSet::new(),
        })
    }

    /// Returns the plan as study.json has it: cells, then those of the search for settings.
    pub(crate) fn plan(&self) -> Vec<StudyCell> {
        let of = |cell: &Cell| StudyCell {
            setting: match self.settings.get(&cell.id) {
                Some(setting) => setting.0.clone(),
                None => cell.chosen.0.clone(),
            },
            ..cell.record()
        };
        self.cells.iter().chain(&self.tried).map(of).collect()
    }

    /// Returns cells of earlier plans that have records.
    pub(crate) fn earlier_cells(&self) -> Vec<StudyCell> {
        let is_planned = |id: &str| {
            self.cells
                .iter()
                .chain(&self.tried)
                .any(|cell| cell.id == id)
        };
        let is_kept =
            |earlier: &&StudyCell| self.records.has_cell(&earlier.id) && !is_planned(&earlier.id);
        all_cells(&self.earlier).filter(is_kept).cloned().collect()
    }

    pub(crate) fn searches(&self) -> bool {
        self.file.peers.settings == PeerSettings::Best
    }

    pub(crate) fn gap(&self, cell: &Cell) -> Option<String> {
        self.local.gap(cell)
    }

    /// Returns the setting of a cell with results: all of its rounds have the same one.
    pub(crate) fn frozen_setting(&self, cell: &str) -> Option<Setting> {
        self.settings.get(cell).cloned()
    }

    /// Runs a cell of the search for settings once, if it has no result.
    pub(crate) fn try_out(&mut self, cell: &Cell) -> Outcome<ComparisonRow> {
        if self.tried.iter().all(|known| known.id != cell.id) {
            self.tried.push(cell.clone());
            command::write_study(self.file, self, self.directory)?;
        }
        let task = Task {
            cell,
            repetition: 1,
        };
        if self.need(&task).is_some() {
            self.repeat(&task, "[search]", std::iter::empty())?;
        }
        Ok(ComparisonRow::of(&cell.record(), self.records.lines()))
    }

    /// Runs what is not done; returns the ids of our cells that have a failed repetition.
    pub(crate) fn run(&mut self, cells: &[&Cell]) -> Outcome<Vec<String>> {
        let mut owned: Vec<Cell> = cells.iter().map(|cell| (*cell).clone()).collect();
        if cells.iter().any(|cell| cell.peer().is_some()) {
            self.local.peers = Some(Peers::prepare(self.file, cells, self.directory)?);
            self.search_settings(&mut owned)?;
            for cell in &owned {
                self.settings.insert(cell.id.clone(), cell.chosen.clone());
            }
            command::write_study(self.file, self, self.directory)?;
        }
        let cells: Vec<&Cell> = owned.iter().collect();
        let cells = cells.as_slice();
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
        let mut ours = here.iter().filter(|task| task.cell.peer().is_none());
        if let Some(task) = ours.next() {
            warm_up::run(task.cell, self.file, self.trainer, self.directory)?;
        }
        let mut round = 0;
        for (index, task) in here.iter().enumerate() {
            // Networks are measured first.
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
        // Predicted runs wait for the networks, and for their predictions.
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
        // A missing framework is a gap of the comparison.
        let is_failed = |cell: &&&Cell| {
            cell.peer().is_none()
                && (1..=cell.repetitions).any(|repetition| {
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

    /// Predicts those of the next tasks that belong to one repetition.
    fn freeze_predictions(&self, tasks: &[Task<'_>]) {
        let (Some(first), Some(_)) = (tasks.first(), &self.file.predict) else {
            return;
        };
        let of_round = tasks
            .iter()
            .filter(|task| task.repetition == first.repetition);
        let next: Vec<&Cell> = of_round.map(|task| task.cell).collect();
        let StudyRunner {
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

    /// Returns first repetitions of all cells, then the second ones; in each the networks first.
    /// Frameworks take turns in an order that is random, but always the same for the same study;
    /// their trainings on images come last.
    fn tasks<'c>(&self, cells: &[&'c Cell]) -> Vec<Task<'c>> {
        let created = self.starts.first.since.as_deref();
        let place = |task: &Task<'_>| {
            let cell = task.cell;
            let is_compared = cell.framework.is_some();
            let job = (cell.setting("model"), cell.setting("dtype"), cell.ranks);
            let order = [(&job, ""), (&job, cell.id.as_str())].map(|of| {
                if is_compared {
                    hash((created, task.repetition, of))
                } else {
                    0
                }
            });
            (
                is_compared && cell.kind == Kind::Train,
                task.repetition,
                cell.kind != Kind::Netbench,
                is_compared,
                order,
            )
        };
        let mut tasks = Vec::new();
        for &cell in cells {
            let all = (1..=cell.repetitions).map(|repetition| Task { cell, repetition });
            tasks.extend(all.filter(|task| self.need(task).is_some()));
        }
        tasks.sort_by_cached_key(place);
        tasks
    }

    fn need(&self, task: &Task<'_>) -> Option<usize> {
        self.records.need(
            &task.cell.id,
            task.repetition,
            self.file.attempts,
            self.options.again_disturbed,
        )
    }

    /// Repeats one repetition until an attempt counts.
    fn repeat<'t>(
        &mut self,
        task: &Task<'_>,
        place: &str,
        left: impl Iterator<Item = &'t Task<'t>>,
    ) -> Outcome {
        let left: Vec<&str> = left.map(|task| task.cell.id.as_str()).collect();
        let is_peer = task.cell.peer().is_some();
        if is_peer && self.failed_peers.contains(&task.cell.id) {
            return Ok(());
        }
        for _ in 0..self.file.attempts {
            let Some(number) = self.need(task) else {
                break;
            };
            let attempt = Attempt {
                cell: task.cell,
                repetition: task.repetition,
                number,
            };
            let (ended, code) = match self.local.gap(task.cell) {
                // A gap is permanent, like wrong usage.
                Some(gap) => (Ended::failed(gap), Some(2)),
                None => self.local.run(&attempt)?,
            };
            let status = ended.status;
            self.keep(&attempt, ended, place, &left)?;
            if status == Status::Failed && is_peer {
                self.failed_peers.insert(task.cell.id.clone());
            }
            if status == Status::Ok || (status == Status::Failed && code == Some(2)) {
                self.failed_peers
                    .retain(|id| status == Status::Failed || *id != task.cell.id);
                break;
            }
        }
        Ok(())
    }

    /// Records an attempt and prints a line.
    fn keep(&mut self, attempt: &Attempt<'_>, ended: Ended, place: &str, left: &[&str]) -> Outcome {
        let record = attempt.record(ended);
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

    /// Submits all jobs and waits for them in their order; then again those that were disturbed or
    /// failed.
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
            // Jobs of an earlier session come first: new ones start after them.
            attempts.sort_by_key(|attempt| jobs.of(attempt).is_none());
            let mut submitted: Vec<(Attempt<'_>, Submitted)> = Vec::new();
            for attempt in attempts {
                // Slurm refuses a dependency on a job that it has forgotten.
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
                let ended = batch::wait(attempt, job, self.directory, &self.local, is_here)?;
                let left: Vec<&str> = submitted[index + 1..]
                    .iter()
                    .map(|(next, _)| next.cell.id.as_str())
                    .collect();
                self.keep(
                    attempt,
                    ended,
                    &format!("[job {}, {}/{}]", job.job, index + 1, submitted.len()),
                    &left,
                )?;
            }
            tasks.retain(|task| self.need(task).is_some());
            if tasks.is_empty() {
                break;
            }
        }
        Ok(())
    }
}

/// Returns the line about an attempt.
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

/// Returns a number that orders things at random, the same for the same keys.
fn hash(of: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

fn span(seconds: f64) -> String {
    if seconds < 90.0 {
        format!("{seconds:.0} s")
    } else {
        format!("{:.0} min", seconds / 60.0)
    }
}

/// Returns the cells of the plan, then those of earlier plans.
fn all_cells(study: &Study) -> impl Iterator<Item = &StudyCell> {
    study.cells.iter().chain(&study.earlier_cells)
}

/// Refuses records of other arguments for a cell of the same id.
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
            earlier.map_or("arguments missing in study.json".to_owned(), |earlier| {
                format!("`{}`", earlier.arguments.join(" "))
            }),
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
        // Without arguments the meaning of a record is unknown.
        let text = check_same(&Study::default(), &cells(5), &records, directory.path())
            .unwrap_err()
            .to_string();
        assert!(text.contains("arguments missing in study.json"), "{text}");
    }

    /// Starts a study of these batches, and records what is not done.
    fn start(directory: &Path, batches: &str, steps: usize) -> Outcome {
        let text =
            format!("[base]\nsteps = {steps}\n[[matrix]]\nbatch_size_per_rank = {batches}\n");
        let (file, cells) = study(&text)?;
        let trainer = Path::new("/bin/true");
        let options = Options {
            checks_quiet: false,
            again_disturbed: false,
        };
        let mut session = StudyRunner::open(&file, &cells, directory, trainer, options)?;
        command::write_study(&file, &session, directory)?;
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
        let mut found = Vec::new();
        for set in [None, Some("steps=5,cpu=portable")] {
            let file =
                StudyFile::read("s.toml", text, &crate::changes::read(set).unwrap()).unwrap();
            let cells = crate::plan::cells(&file).unwrap();
            let trainer = Path::new("/bin/true");
            let options = Options {
                checks_quiet: false,
                again_disturbed: false,
            };
            let session =
                StudyRunner::open(&file, &cells, directory.path(), trainer, options).unwrap();
            command::write_study(&file, &session, directory.path()).unwrap();
            let study = command::earlier(directory.path()).unwrap();
            assert_eq!(study.toml, text);
            found.push(study.set);
        }
        assert_eq!(found, ["", "cpu = \"portable\"\nsteps = 5\n"]);
    }

    #[test]
    fn a_cell_that_comes_back_with_other_arguments_is_refused_its_records() {
        let directory = tempfile::tempdir().unwrap();
        start(directory.path(), "[4, 8]", 2).unwrap();
        start(directory.path(), "8", 2).unwrap();
        let without = command::earlier(directory.path()).unwrap();
        start(directory.path(), "8", 2).unwrap();
        let other = start(directory.path(), "[4, 8]", 50)
            .unwrap_err()
            .to_string();
        let same = start(directory.path(), "[4, 8]", 2);
        let ids: Vec<String> = all_cells(&command::earlier(directory.path()).unwrap())
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
