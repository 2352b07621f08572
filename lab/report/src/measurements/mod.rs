//! Speed and memory by setting, from studies and from single runs.
//!
//! In: [`Sources`]. Out: [`Measurement`]s and their speedups. Invariant: repetitions stay separate until they are shown;
//! the reference of a speedup is one rank with the same settings, else the fewest ranks of the same line.

#[cfg(test)]
mod tests;

use super::sources::{Run, Sources, StudyFolder};
use records::{AttemptRecord, Estimate, Repeated, Spread, Status, StudyCell};
use std::collections::{BTreeMap, BTreeSet};

/// Settings by name.
pub(super) type Settings<'a> = BTreeMap<&'a str, &'a str>;

/// One setting at one number of ranks, measured once or several times.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Measurement {
    /// Id of the cell, or label of the run.
    pub(crate) id: String,
    /// Model, dtype, sync and whatever the study varies; the `kind`, and for a cell the number of its `study`.
    pub(crate) settings: BTreeMap<String, String>,
    /// Data and options of a rank's work, for a run outside studies; see [`work_of`].
    pub(crate) work: BTreeMap<String, String>,
    /// Parts of a rank's work that the result of a cell reports and its settings may leave out.
    pub(crate) reported_work: BTreeMap<String, String>,
    pub(crate) ranks: usize,
    /// `weak`, `strong` or `none`.
    pub(crate) scaling: String,
    /// Repetitions that count.
    pub(crate) repetitions: Vec<Repetition>,
}

/// One repetition of a measurement.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Repetition {
    /// Number from 1.
    pub(crate) number: u64,
    /// Start in UTC, RFC 3339; empty for a run.
    pub(crate) started: String,
    /// Images/s.
    pub(crate) speed: f64,
    /// Milliseconds per step that a rank waits for collectives, mean over the ranks.
    pub(crate) waiting_ms: Option<f64>,
    /// Largest memory of a rank, bytes.
    pub(crate) memory_bytes: Option<f64>,
    /// Milliseconds per step of the slowest rank, in the order of [`PHASES`].
    pub(crate) phases_ms: Option<[f64; PHASES.len()]>,
    /// True if the machine was not quiet.
    pub(crate) is_disturbed: bool,
}

/// Phases of a step.
pub(super) const PHASES: [&str; 6] = [
    "data",
    "forward",
    "backward",
    "communication",
    "optimizer",
    "other",
];

/// Settings of the amount of work, which differ along a line.
const SIZES: [&str; 2] = ["ranks", "scaling"];
const BATCHES: [&str; 2] = ["batch_size_per_rank", "global_batch_size"];

impl Measurement {
    /// Summarises images/s.
    pub(super) fn speed(&self) -> Option<Spread> {
        Spread::of(self.repetitions.iter().map(|one| one.speed))
    }

    /// Returns a setting; empty if it is absent.
    pub(super) fn setting(&self, key: &str) -> &str {
        self.settings.get(key).map_or("", String::as_str)
    }

    /// Returns true for a cell of the study with this number, from 1.
    pub(super) fn is_of_study(&self, number: usize) -> bool {
        self.setting("study") == number.to_string()
    }

    /// Returns the setting that stays the same as ranks are added.
    fn kept_batch(&self) -> &'static str {
        BATCHES[usize::from(self.scaling == "strong")]
    }

    /// Returns the settings that are equal along one line of a figure.
    pub(super) fn line(&self) -> Settings<'_> {
        let varies =
            |key: &str| SIZES.contains(&key) || BATCHES.contains(&key) && key != self.kept_batch();
        let settings = self
            .settings
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_str()));
        settings.filter(|(key, _)| !varies(key)).collect()
    }

    /// Returns the names of the settings that differ.
    fn differences<'a>(&'a self, other: &'a Self) -> BTreeSet<&'a str> {
        records::differences(&self.settings, &other.settings)
    }

    /// Returns true for a single rank that did the same work in the same way in the same study.
    fn is_reference_of(&self, other: &Self) -> bool {
        let may_differ = |key: &&str| {
            let is_size =
                SIZES.contains(key) || BATCHES.contains(key) || records::is_of_several(key);
            is_size && *key != other.kept_batch()
        };
        self.ranks == 1 && self.work == other.work && self.differences(other).iter().all(may_differ)
    }

    /// Returns the reference of the speedup: the single rank of the same work whose settings are nearest, else the
    /// fewest ranks of the line, else the measurement itself.
    pub(super) fn reference<'a>(&self, all: &'a [Self]) -> Option<&'a Self> {
        let line = self.line();
        let fewer = || all.iter().filter(|one| one.ranks < self.ranks);
        let is_on_line = |one: &&Self| one.line() == line && one.scaling == self.scaling;
        let base = fewer()
            .filter(|one| one.is_reference_of(self))
            .min_by_key(|one| (one.scaling != self.scaling, one.differences(self).len()))
            .or_else(|| fewer().filter(is_on_line).min_by_key(|one| one.ranks))
            .or_else(|| all.iter().find(|one| *one == self));
        base.filter(|base| base.speed().is_some_and(|speed| speed.median > 0.0))
    }

    /// Returns the speedup over one rank in each repetition that the reference has within an hour, so that drift of
    /// the machine affects both. A reference of several ranks counts as equally efficient.
    pub(super) fn speedups(&self, all: &[Self]) -> Vec<f64> {
        let Some(base) = self.reference(all) else {
            return Vec::new();
        };
        if base == self {
            // One rank begins a line of several numbers of ranks; without them it has no speedup.
            let begins_line = self.ranks == 1 && self.scaling != "none";
            return Vec::from_iter(begins_line.then_some(1.0));
        }
        let ratios = records::ratios(&self.repeated(), &base.repeated());
        ratios
            .into_iter()
            .map(|ratio| ratio * base.ranks as f64)
            .collect()
    }

    /// Returns the median speedup with its confidence interval.
    pub(super) fn speedup(&self, all: &[Self]) -> Option<Estimate> {
        Estimate::of(&self.speedups(all))
    }

    fn repeated(&self) -> Vec<Repeated<'_>> {
        let repetitions = self.repetitions.iter();
        let repeated = repetitions.map(|one| Repeated {
            number: one.number,
            started: &one.started,
            speed: one.speed,
        });
        repeated.collect()
    }

    pub(super) fn num_disturbed(&self) -> usize {
        self.repetitions
            .iter()
            .filter(|one| one.is_disturbed)
            .count()
    }
}

/// Returns all measurements that have a speed, in the order of the sources.
pub(super) fn all(sources: &Sources) -> Vec<Measurement> {
    let studies = sources.studies.iter().enumerate();
    let of_studies = studies.flat_map(|(index, study)| of_study(study, index + 1));
    of_studies.chain(of_runs(&sources.runs)).collect()
}

fn of_study(study: &StudyFolder, number: usize) -> Vec<Measurement> {
    let mut measurements: Vec<Measurement> = Vec::new();
    for (cell, record) in study.counted() {
        let Some(speed) = record.images_per_second().filter(|speed| *speed > 0.0) else {
            continue;
        };
        let repetition = repetition(record, speed);
        match measurements.last_mut().filter(|last| last.id == cell.id) {
            Some(last) => last.repetitions.push(repetition),
            None => measurements.push(Measurement {
                reported_work: record.work(),
                repetitions: vec![repetition],
                ..of_cell(cell, number)
            }),
        }
    }
    measurements
}

fn of_cell(cell: &StudyCell, study: usize) -> Measurement {
    let values = cell
        .settings
        .keys()
        .map(|key| (key.clone(), cell.setting(key)));
    let mut settings: BTreeMap<String, String> =
        values.filter(|(_, value)| !value.is_empty()).collect();
    let ranks = settings.get("ranks").and_then(|ranks| ranks.parse().ok());
    let scaling = settings.get("scaling").cloned();
    settings.insert("kind".to_owned(), cell.kind.clone());
    settings.insert("study".to_owned(), study.to_string());
    records::count_all_passes(&mut settings);
    Measurement {
        id: cell.id.clone(),
        settings,
        ranks: ranks.unwrap_or(1),
        scaling: scaling.unwrap_or_else(|| "none".to_owned()),
        ..Measurement::default()
    }
}

fn repetition(record: &AttemptRecord, speed: f64) -> Repetition {
    let of = |key: &str| record.result[key].as_f64();
    let waiting = of("waiting_seconds").zip(of("steps"));
    Repetition {
        number: record.repetition,
        started: record.started.clone().unwrap_or_default(),
        speed,
        waiting_ms: waiting.map(|(seconds, steps)| seconds / steps * 1e3),
        memory_bytes: of("peak_memory_bytes"),
        phases_ms: phases(record, speed),
        is_disturbed: record.status == Status::Disturbed,
    }
}

/// Returns the phases of a result of `bench`, whose seconds are those of the measured steps.
fn phases(record: &AttemptRecord, speed: f64) -> Option<[f64; PHASES.len()]> {
    let result = &record.result;
    let steps = result["steps"].as_f64().filter(|steps| *steps > 0.0)?;
    let seconds = result["seconds"].as_object()?;
    let mut phases = [0.0; PHASES.len()];
    let (other, named) = phases.split_last_mut()?;
    for (phase, name) in named.iter_mut().zip(PHASES) {
        *phase = seconds.get(name)?.as_f64()? / steps * 1e3;
    }
    let step_ms = result["global_batch_size"].as_f64()? / speed * 1e3;
    *other = (step_ms - named.iter().sum::<f64>()).max(0.0);
    Some(phases)
}

/// Returns the measurements of runs outside studies. Runs of the same work on different numbers of ranks form a line,
/// whose scaling follows from their batch sizes.
fn of_runs(runs: &[Run]) -> Vec<Measurement> {
    let single = runs.iter().filter(|run| run.group.is_none());
    let (runs, mut measurements): (Vec<&Run>, Vec<Measurement>) =
        single.filter_map(|run| Some((run, of_run(run)?))).unzip();
    let facts = measurements.clone();
    for measurement in &mut measurements {
        let has_partner = |batch: &str| {
            let is_partner = |other: &&Measurement| {
                let is_same =
                    |key: &&str| other.settings.get(*key) == measurement.settings.get(*key);
                other.ranks != measurement.ranks
                    && other.work == measurement.work
                    && [batch, "model", "dtype", "threads"].iter().all(is_same)
            };
            facts.iter().any(|other| is_partner(&other))
        };
        let scaling = match () {
            () if has_partner("global_batch_size") => "strong",
            () if has_partner("batch_size_per_rank") => "weak",
            () => "none",
        };
        measurement.scaling = scaling.to_owned();
    }
    // Options that all runs share would only lengthen their names.
    let differs = |maps: &[&BTreeMap<String, String>], key: &String| {
        maps.iter().any(|map| map.get(key) != maps[0].get(key))
    };
    let works: Vec<_> = facts.iter().map(|one| &one.work).collect();
    let meetings: Vec<_> = runs.iter().map(|run| synchronisation_of(run)).collect();
    let of_several: Vec<_> = meetings
        .iter()
        .filter(|meeting| !meeting.is_empty())
        .collect();
    for ((measurement, work), meeting) in measurements.iter_mut().zip(&works).zip(&meetings) {
        let work = work.iter().filter(|(key, _)| differs(&works, key));
        let meeting = meeting.iter().filter(|(key, _)| differs(&of_several, key));
        let chosen = work
            .chain(meeting)
            .map(|(key, value)| (key.clone(), value.clone()));
        measurement.settings.extend(chosen);
    }
    measurements
}

/// Returns what a rank of a run does by itself: its data, and the options of model, input, optimizer and device
/// without batch sizes and learning rate.
pub(super) fn work_of(run: &Run) -> BTreeMap<String, String> {
    let sections = ["model", "train-split", "batch", "optimizer", "compute"];
    let excluded = [
        "global-batch-size",
        "batch-size-per-rank",
        "learning-rate",
        "threads",
    ];
    let mut work = options(run, &sections, &excluded);
    let data = match run.manifest().map(|manifest| &manifest.dataset) {
        Some(data) => {
            format!(
                "{} {}",
                data.name,
                data.train_checksum.get(..8).unwrap_or_default()
            )
        }
        None => run.setting("data.dataset").unwrap_or_default().to_owned(),
    };
    work.insert("data".to_owned(), data);
    work
}

/// Returns how the ranks of a run synchronise; empty for one rank.
pub(super) fn synchronisation_of(run: &Run) -> BTreeMap<String, String> {
    match run.ranks() {
        Some(ranks) if ranks > 1 => options(run, &["sync"], &["timeout", "trace"]),
        _ => BTreeMap::new(),
    }
}

/// Returns the options of some sections under the names that studies use.
fn options(run: &Run, sections: &[&str], excluded: &[&str]) -> BTreeMap<String, String> {
    let split = run
        .settings
        .iter()
        .filter_map(|(name, value)| Some((name.split_once('.')?, value)));
    let chosen =
        split.filter(|((section, key), _)| sections.contains(section) && !excluded.contains(key));
    chosen
        .map(|((_, key), value)| (key.replace('-', "_"), value.trim_matches('"').to_owned()))
        .collect()
}

/// Returns the settings of a run under the names that studies use.
pub(super) fn settings_of(run: &Run) -> BTreeMap<String, String> {
    let ranks = run.ranks().unwrap_or(1);
    let mut settings = BTreeMap::from([("kind".to_owned(), "train".to_owned())]);
    let mut insert = |name: &str, value: Option<String>| {
        settings.extend(value.map(|value| (name.to_owned(), value)));
    };
    let option = |key: &str| run.setting(key).map(str::to_owned);
    insert("model", option("model.model").or(option("model.family")));
    insert("dtype", option("compute.dtype"));
    insert("compress", option("sync.compress"));
    insert("global_batch_size", option("batch.global-batch-size"));
    insert("sync", option("sync.sync").filter(|_| ranks > 1));
    let global = option("batch.global-batch-size").and_then(|batch| batch.parse::<usize>().ok());
    insert(
        "batch_size_per_rank",
        global.map(|global| (global / ranks.max(1)).to_string()),
    );
    let threads = run
        .manifest()
        .map(|manifest| manifest.launch.threads_per_rank);
    insert("threads", threads.map(|threads| threads.to_string()));
    settings
}

fn of_run(run: &Run) -> Option<Measurement> {
    let repetition = Repetition {
        number: 1,
        speed: run.images_per_second()?,
        memory_bytes: run.peak_memory_bytes().map(|bytes| bytes as f64),
        ..Repetition::default()
    };
    Some(Measurement {
        id: run.label.clone(),
        settings: settings_of(run),
        work: work_of(run),
        ranks: run.ranks()?,
        repetitions: vec![repetition],
        ..Measurement::default()
    })
}
