//! The unfinished runs of a study, one after the other.
//!
//! In: cells, earlier records. Out: further records; the ids of cells whose last attempts failed.
//! Invariant: repetitions come in rounds over all cells, so that a drift affects all cells alike.
//! Local runs come before jobs of Slurm, which might use the same machine.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;

use records::{AttemptRecord, ComparisonRow, STUDY_SCHEMA, Status, Study, StudyCell};

use crate::attempt::Attempt;
use crate::cell::Cell;
use crate::directory::DOCUMENT;
use crate::file::{Kind, StudyFile};
use crate::journal::Records;
use crate::peers::{Peers, Setting};
use crate::runs::{Runs, alone};
use crate::scores;
use crate::starts;
use cluster::failure::{Outcome, failed};
use cluster::guard::Guarded;
use cluster::json;
use cluster::output::say;

const WARM_UP: &str = "one short run before the first cell, not recorded; in every run the first steps, by --warmup-steps";

/// Definition of images/s in studies.
const IMAGES_PER_SECOND_MEANS: &str = "global samples of all ranks / the slowest rank's wall time over the measured steps, warm-up left out";

/// Choices of the command line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    pub(crate) checks_quiet: bool,
    pub(crate) again_disturbed: bool,
}

/// One start of a study.
pub(crate) struct StudyRunner<'a> {
    pub(crate) runs: Runs<'a>,
    again_disturbed: bool,
    /// All cells of the study, also those that were not chosen.
    cells: Vec<Cell>,
    /// Cells of the search for the settings of other frameworks.
    tried: Vec<Cell>,
    pub(crate) records: Records,
    /// study.json.
    pub(crate) study: Study,
    /// Cells in study.json when this start began.
    earlier_cells: Vec<StudyCell>,
    /// Cells of other frameworks that failed in this session.
    failed_peers: BTreeSet<String>,
}

impl<'a> StudyRunner<'a> {
    /// Reads the records, refuses those of other arguments or of another machine, and writes
    /// study.json.
    pub(crate) fn open(
        file: &'a StudyFile,
        cells: &[Cell],
        directory: &'a Path,
        trainer: &'a Path,
        options: Options,
    ) -> Outcome<Self> {
        let records = Records::open(directory)?;
        let earlier: Study = json::read(&directory.join(DOCUMENT)).unwrap_or_default();
        let earlier_cells = [&earlier.cells[..], &earlier.earlier_cells].concat();
        let mut cells = cells.to_vec();
        for cell in cells.iter_mut().filter(|cell| records.has_cell(&cell.id)) {
            let known = check_same(&earlier_cells, cell, directory)?;
            // All rounds of a cell with results have the same setting.
            if records.newest(&cell.id).is_some() {
                cell.chosen = Setting(known.setting.clone());
            }
        }
        let is_comparison = cells.iter().any(|cell| cell.framework.is_some());
        let own = starts::own(trainer);
        let study = starts::resumed(earlier, own, !records.is_empty(), is_comparison)
            .map_err(|failure| failed!("{}: {failure}", directory.display()))?;
        let mut session = StudyRunner {
            runs: Runs::new(file, trainer, directory, options.checks_quiet),
            again_disturbed: options.again_disturbed,
            cells,
            tried: Vec::new(),
            records,
            study,
            earlier_cells,
            failed_peers: BTreeSet::new(),
        };
        session.write_study()?;
        Ok(session)
    }

    /// Writes study.json with the present plan, and with cells of earlier plans that have records.
    fn write_study(&mut self) -> Outcome {
        let file = self.runs.file;
        let planned = self.cells.iter().chain(&self.tried);
        let cells: Vec<StudyCell> = planned.map(Cell::record).collect();
        let is_kept = |earlier: &&StudyCell| {
            self.records.has_cell(&earlier.id) && cells.iter().all(|cell| cell.id != earlier.id)
        };
        let earlier_cells = self.earlier_cells.iter().filter(is_kept).cloned().collect();
        self.study = Study {
            schema: STUDY_SCHEMA.to_owned(),
            name: file.name.clone(),
            title: file.title.clone(),
            about: file.about.clone(),
            toml: file.text.clone(),
            set: file.changes.to_string(),
            warmup: WARM_UP.to_owned(),
            images_per_second_means: IMAGES_PER_SECOND_MEANS.to_owned(),
            target_accuracy: file.target_accuracy,
            cells,
            earlier_cells,
            ..self.study.clone()
        };
        json::write(&self.runs.directory.join(DOCUMENT), &self.study)
    }

    /// Runs a cell of the search for settings once, if it has no result.
    pub(crate) fn try_out(&mut self, cell: &Cell) -> Outcome<ComparisonRow> {
        if self.tried.iter().all(|known| known.id != cell.id) {
            self.tried.push(cell.clone());
            self.write_study()?;
        }
        let attempt = Attempt {
            cell,
            repetition: 1,
            number: 1,
        };
        self.repeat(attempt, "[search]", &[])?;
        Ok(ComparisonRow::of(&cell.record(), self.records.lines()))
    }

    /// Runs what is not done; returns the ids of our cells that have a failed repetition.
    pub(crate) fn run(&mut self, chosen: &[&Cell]) -> Outcome<Vec<String>> {
        if chosen.iter().any(|cell| cell.peer().is_some()) {
            let peers = Peers::prepare(self.runs.file, chosen, self.runs.directory)?;
            self.runs.peers = Some(peers);
        }
        let is_chosen = |cell: &&Cell| chosen.iter().any(|other| other.id == cell.id);
        let mut cells: Vec<Cell> = self.cells.iter().filter(is_chosen).cloned().collect();
        if self.runs.peers.is_some() {
            self.search_settings(&mut cells)?;
            for own in &mut self.cells {
                if let Some(cell) = cells.iter().find(|cell| cell.id == own.id) {
                    own.chosen.clone_from(&cell.chosen);
                }
            }
            self.write_study()?;
        }
        let attempts = self.attempts(&cells);
        let num_all: usize = cells.iter().map(|cell| cell.repetitions).sum();
        let num_done = num_all - attempts.len();
        if num_done > 0 {
            say!("{num_done} of {num_all} runs are done already");
        }
        let mut own_runs = attempts.iter().map(|attempt| attempt.cell);
        if let Some(cell) = own_runs.find(|cell| !cell.is_job() && cell.peer().is_none()) {
            self.warm_up(cell)?;
        }
        let round = |attempt: &Attempt<'_>| (attempt.cell.is_job(), attempt.repetition);
        let mut predicted = None;
        for (index, attempt) in attempts.iter().enumerate() {
            // Networks are measured first.
            if attempt.cell.kind != Kind::Netbench && predicted != Some(round(attempt)) {
                predicted = Some(round(attempt));
                let of_round = attempts[index..]
                    .iter()
                    .filter(|other| round(other) == round(attempt));
                self.runs
                    .predict(&self.cells, &self.records, of_round.copied());
            }
            let place = format!("[{}/{num_all}]", num_done + index + 1);
            self.repeat(*attempt, &place, &attempts[index + 1..])?;
        }
        let trainings = cells
            .iter()
            .filter(|cell| cell.kind == Kind::Train && cell.framework.is_none());
        let results = trainings.map(|cell| {
            let runs = (1..=cell.repetitions)
                .filter_map(|repetition| self.records.result(&cell.id, repetition));
            (cell.id.as_str(), runs.map(scores::of).collect())
        });
        for line in scores::table(results.collect()) {
            say!("{line}");
        }
        // A missing framework is a gap of the comparison.
        let is_failed = |cell: &&Cell| {
            cell.peer().is_none()
                && (1..=cell.repetitions).any(|repetition| {
                    self.records.status(&cell.id, repetition) == Some(Status::Failed)
                })
        };
        let failed = cells.iter().filter(is_failed);
        Ok(failed.map(|cell| cell.id.clone()).collect())
    }

    /// Returns first repetitions of all cells, then the second ones; in each the networks first.
    /// Frameworks take turns in an order that is random, but always the same for the same study;
    /// their trainings on images come last.
    fn attempts<'c>(&self, cells: &'c [Cell]) -> Vec<Attempt<'c>> {
        let created = &self.study.created;
        let place = |attempt: &Attempt<'_>| {
            let cell = attempt.cell;
            let is_compared = cell.framework.is_some();
            let job = (cell.setting("model"), cell.setting("dtype"), cell.ranks);
            let order = [(&job, ""), (&job, cell.id.as_str())].map(|of| match is_compared {
                true => hash((created, attempt.repetition, of)),
                false => 0,
            });
            (
                cell.is_job(),
                is_compared && cell.kind == Kind::Train,
                attempt.repetition,
                cell.kind != Kind::Netbench,
                is_compared,
                order,
            )
        };
        let mut attempts = Vec::new();
        for cell in cells {
            for repetition in 1..=cell.repetitions {
                if let Some(number) = self.need(&cell.id, repetition) {
                    attempts.push(Attempt {
                        cell,
                        repetition,
                        number,
                    });
                }
            }
        }
        attempts.sort_by_cached_key(place);
        attempts
    }

    fn need(&self, cell: &str, repetition: usize) -> Option<usize> {
        let attempts = self.runs.file.attempts;
        self.records
            .need(cell, repetition, attempts, self.again_disturbed)
    }

    /// Repeats one repetition until an attempt counts; `left` are the attempts after it.
    fn repeat(&mut self, mut attempt: Attempt<'_>, place: &str, left: &[Attempt<'_>]) -> Outcome {
        let cell = attempt.cell;
        if self.failed_peers.contains(&cell.id) {
            return Ok(());
        }
        for _ in 0..self.runs.file.attempts {
            let Some(number) = self.need(&cell.id, attempt.repetition) else {
                break;
            };
            attempt.number = number;
            let (record, is_final) = self.runs.run(&attempt)?;
            let status = record.status;
            let line = line(cell, &record);
            self.records.append(record)?;
            let seconds = left
                .iter()
                .filter_map(|next| self.records.expected_seconds(&next.cell.id));
            let left = match seconds.sum::<f64>() {
                0.0 => String::new(),
                seconds if seconds < 90.0 => format!("; about {seconds:.0} s left"),
                seconds => format!("; about {:.0} min left", seconds / 60.0),
            };
            say!("{place} {line}{left}");
            if status == Status::Ok {
                self.failed_peers.remove(&cell.id);
                break;
            }
            if status == Status::Failed && cell.peer().is_some() {
                self.failed_peers.insert(cell.id.clone());
            }
            if status == Status::Failed && is_final {
                break;
            }
        }
        Ok(())
    }

    /// Loads program and network into the caches by a run that is not recorded. A failure is only
    /// printed: the attempts of the cell decide.
    fn warm_up(&self, cell: &Cell) -> Outcome {
        let words = match cell.kind {
            Kind::Netbench => vec!["--version".to_owned()],
            Kind::Bench | Kind::Train => warm_up_words(cell),
        };
        let log = self.runs.directory.join("warm-up.log");
        let command = alone(self.runs.trainer, &words, 0, cell.threads);
        if Guarded::start(&command, &log)?.finish(self.runs.limit())? != Some(0) {
            say!("note: the warm-up run failed: see {}", log.display());
        }
        Ok(())
    }
}

/// Returns `bench` with one step of a cell on one rank.
fn warm_up_words(cell: &Cell) -> Vec<String> {
    let one_step = [("steps", "1"), ("warmup_steps", "0")];
    cell.bench_words(&one_step.map(|(key, value)| (key, value.to_owned())))
}

/// Returns the line about an attempt.
fn line(cell: &Cell, record: &AttemptRecord) -> String {
    let mut line = format!(
        "{}, repetition {} of {}",
        cell.id, record.repetition, cell.repetitions
    );
    if record.attempt > 1 {
        line.push_str(&format!(", attempt {}", record.attempt));
    }
    if let Some(rate) = record.images_per_second() {
        line.push_str(&format!(" | {} images/s", records::rate(rate)));
    }
    for (name, value) in scores::of(&record.result) {
        line.push_str(&format!(" | {}", scores::shown(&name, value, None)));
    }
    if let Some(seconds) = record.seconds {
        line.push_str(&format!(" | {seconds:.1} s"));
    }
    let during = record.quiet.and_then(|quiet| quiet.during);
    if let Some(during) = during
        && let Some((others, steal)) = during.other_cores.zip(during.steal_cores)
    {
        line.push_str(&format!(" | others {:.2} cores", others + steal));
    }
    if record.status != Status::Ok {
        let why = record.why.as_deref().unwrap_or("?");
        line.push_str(&format!(" | {}: {why}", records::name(record.status)));
    }
    line
}

/// Returns a number that orders things at random, the same for the same keys.
fn hash(of: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

/// Returns the earlier cell of the same id; refuses one with other arguments.
fn check_same<'e>(
    earlier_cells: &'e [StudyCell],
    cell: &Cell,
    directory: &Path,
) -> Outcome<&'e StudyCell> {
    let earlier = earlier_cells.iter().find(|earlier| earlier.id == cell.id);
    match earlier {
        Some(earlier)
            if earlier.arguments == cell.arguments && earlier.settings == cell.settings =>
        {
            Ok(earlier)
        }
        _ => Err(failed!(
            "{}: cell {} has records of other arguments (expected `{}`, got `{}`). Choose another --output, or remove the directory.",
            directory.display(),
            cell.id,
            cell.arguments.join(" "),
            earlier.map_or("none in study.json".to_owned(), |earlier| {
                earlier.arguments.join(" ")
            })
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::study;

    const OPTIONS: Options = Options {
        checks_quiet: false,
        again_disturbed: false,
    };

    /// Starts a study of these batches, and records what is not done.
    fn start(directory: &Path, batches: &str, steps: usize) -> Outcome<Study> {
        let text =
            format!("[base]\nsteps = {steps}\n[[matrix]]\nbatch_size_per_rank = {batches}\n");
        let (file, cells) = study(&text)?;
        let trainer = Path::new("/bin/true");
        let mut session = StudyRunner::open(&file, &cells, directory, trainer, OPTIONS)?;
        for attempt in session.attempts(&cells) {
            let mut record = attempt.record();
            record.status = Status::Ok;
            session.records.append(record)?;
        }
        Ok(session.study)
    }

    #[test]
    fn the_warm_up_is_a_step_of_the_cell_with_all_that_bench_knows_of_it() {
        let words_of = |rest: &str| {
            let (_, cells) = study(&format!("[[matrix]]\nranks = 2\n{rest}")).unwrap();
            warm_up_words(&cells[0]).join(" ")
        };
        let own = "model = \"resnet\"\ndepth = [8, 14]\nsteps = 20\nwarmup_steps = 3\nbatch_size_per_rank = 4\n";
        let of_one = "--batch-size-per-rank 4 --dtype f32 --model resnet --steps 1 --threads 1 --warmup-steps 0 --depth 8";
        assert_eq!(words_of(own), format!("bench {of_one}"));
        let training = "kind = \"train\"\nmodel = \"resnet\"\ndepth = 8\nepochs = 2\ndownload = true\nbatch_size_per_rank = 4\n";
        assert_eq!(words_of(training), format!("bench {of_one}"));
    }

    #[test]
    fn changes_of_the_command_line_are_listed_next_to_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let text =
            "name = \"a\"\ntitle = \"A\"\nabout = \"a\"\n[[matrix]]\nbatch_size_per_rank = 8\n";
        for (set, expected) in [
            (None, ""),
            (
                Some("steps=5,cpu=portable"),
                "cpu = \"portable\"\nsteps = 5\n",
            ),
        ] {
            let file =
                StudyFile::read("s.toml", text, &crate::changes::read(set).unwrap()).unwrap();
            let cells = crate::plan::cells(&file).unwrap();
            let trainer = Path::new("/bin/true");
            StudyRunner::open(&file, &cells, directory.path(), trainer, OPTIONS).unwrap();
            let study: Study = json::read(&directory.path().join(DOCUMENT)).unwrap();
            assert_eq!((study.toml.as_str(), study.set.as_str()), (text, expected));
        }
    }

    #[test]
    fn a_cell_that_returns_with_other_arguments_is_refused_its_records() {
        let directory = tempfile::tempdir().unwrap();
        start(directory.path(), "[4, 8]", 2).unwrap();
        let without = start(directory.path(), "8", 2).unwrap();
        start(directory.path(), "8", 2).unwrap();
        let other = start(directory.path(), "[4, 8]", 50)
            .unwrap_err()
            .to_string();
        assert!(
            other.contains("-b4-") && other.contains("--steps 2") && other.contains("--steps 50"),
            "{other}"
        );
        let with = start(directory.path(), "[4, 8]", 2).unwrap();
        let counts = |study: &Study| (study.cells.len(), study.earlier_cells.len());
        assert_eq!((counts(&without), counts(&with)), ((1, 1), (2, 0)));
        assert!(without.program_sha256.is_some() && without.later_starts.is_empty());
        // Without arguments the meaning of a record is unknown.
        std::fs::remove_file(directory.path().join("study.json")).unwrap();
        let unknown = start(directory.path(), "8", 2).unwrap_err().to_string();
        assert!(unknown.contains("none in study.json"), "{unknown}");
    }
}
