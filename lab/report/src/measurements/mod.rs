//! Speeds and memory by setting, from studies and from single runs alike.
//!
//! In: [`Sources`]. Out: [`Measurement`]s, speedups, medians and ranges. Invariant: repetitions stay apart until they are shown; a
//! speedup is against one rank of the same setting, or says against how many.

#[cfg(test)]
mod tests;

use super::sources::{Run, Sources, StudyFolder};
use records::{AttemptRecord, Estimate, Repeated, Status, StudyCell};
use std::collections::{BTreeMap, BTreeSet};

/// One setting at one number of ranks, measured once or several times.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Measurement {
    /// The cell, or the run's label.
    pub(crate) id: String,
    /// By name: model, dtype, sync and whatever the study varies; its `kind`, and of a study's cell the `study` by its number from 1.
    pub(crate) settings: BTreeMap<String, String>,
    /// Of a run that belongs to no study, the data and options of a rank's work, [`work_of`].
    pub(crate) work: BTreeMap<String, String>,
    /// Of a study's cell, what a result tells of a rank's work that settings may leave out.
    pub(crate) told: BTreeMap<String, String>,
    pub(crate) ranks: usize,
    /// `weak`, `strong` or `none`.
    pub(crate) scaling: String,
    /// Images/s of every repetition that counts.
    pub(crate) speeds: Vec<f64>,
    /// What else a study tells of these repetitions, in their order.
    pub(crate) repetitions: Vec<Repetition>,
    /// Largest memory of a rank in every repetition, bytes.
    pub(crate) memory_bytes: Vec<f64>,
    /// The slowest rank's milliseconds of a step by phase, in the order of [`PHASES`], one list a repetition.
    pub(crate) phases_ms: Vec<[f64; PHASES.len()]>,
    /// Repetitions that count though the machine was not quiet.
    pub(crate) num_disturbed: usize,
}

/// A repetition of a study's cell.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Repetition {
    /// From 1.
    pub(crate) number: u64,
    /// Begin in UTC, RFC 3339.
    pub(crate) started: String,
    /// Milliseconds of a step in which a rank waits for collectives, mean over the ranks, if that is told.
    pub(crate) waiting_ms: Option<f64>,
}

/// Where a step's time goes.
pub(super) const PHASES: [&str; 6] = [
    "data",
    "forward",
    "backward",
    "communication",
    "optimizer",
    "other",
];

/// Settings that say how much was computed, not how.
const SIZES: [&str; 2] = ["ranks", "scaling"];

/// The batch sizes, of which one goes with the ranks.
const BATCHES: [&str; 2] = ["batch_size_per_rank", "global_batch_size"];

/// The middle of the values; of an even number, the mean of the two in the middle.
pub(super) fn median(values: &[f64]) -> Option<f64> {
    let mut finite: Vec<f64> = values
        .iter()
        .copied()
        .filter(|value| value.is_finite())
        .collect();
    (!finite.is_empty()).then(|| records::median(&mut finite))
}

/// Least and most, of several values.
pub(super) fn range(values: &[f64]) -> Option<(f64, f64)> {
    let finite = || values.iter().copied().filter(|value| value.is_finite());
    (finite().count() > 1).then(|| {
        (
            finite().fold(f64::INFINITY, f64::min),
            finite().fold(f64::NEG_INFINITY, f64::max),
        )
    })
}

impl Measurement {
    /// The middle of the speeds, images/s.
    pub(super) fn speed(&self) -> Option<f64> {
        median(&self.speeds)
    }

    /// A setting; empty without it.
    pub(super) fn setting(&self, key: &str) -> &str {
        self.settings.get(key).map_or("", String::as_str)
    }

    /// Whether it is of the study with this number, from 1.
    pub(super) fn is_of_study(&self, number: usize) -> bool {
        self.setting("study") == number.to_string()
    }

    /// What must be equal for two measurements to lie on one line.
    pub(super) fn line(&self) -> BTreeMap<&str, &str> {
        // The batch that grows or shrinks with the ranks.
        let scaled = if self.scaling == "strong" {
            "batch_size_per_rank"
        } else {
            "global_batch_size"
        };
        let is_size = |key: &str| SIZES.contains(&key) || key == scaled;
        self.settings
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_str()))
            .filter(|(key, _)| !is_size(key))
            .collect()
    }

    /// The settings that are not the same in both.
    fn differences<'a>(&'a self, other: &'a Self) -> BTreeSet<&'a str> {
        records::differences(&self.settings, &other.settings)
    }

    /// Whether a single rank did the same work as this in the same way in the same study: a reference for its speedup.
    fn is_reference_of(&self, other: &Self) -> bool {
        let kept = if other.scaling == "strong" {
            "global_batch_size"
        } else {
            "batch_size_per_rank"
        };
        let may_differ = |key: &&str| {
            *key != kept
                && (SIZES.contains(key) || BATCHES.contains(key) || records::is_of_several(key))
        };
        self.ranks == 1 && self.work == other.work && self.differences(other).iter().all(may_differ)
    }

    /// Returns what this is compared with for its speedup: of the single ranks of the same work the one whose settings are nearest, else the
    /// fewest ranks on the line. Without fewer ranks than its own it is its own reference.
    pub(super) fn reference<'a>(&self, all: &'a [Self]) -> Option<&'a Self> {
        let line = self.line();
        let fewer = || all.iter().filter(|one| one.ranks < self.ranks);
        let base = fewer()
            .filter(|one| one.is_reference_of(self))
            .min_by_key(|one| (one.scaling != self.scaling, one.differences(self).len()))
            .or_else(|| {
                let on_line =
                    fewer().filter(|one| one.line() == line && one.scaling == self.scaling);
                on_line.min_by_key(|one| one.ranks)
            })
            .or_else(|| all.iter().find(|one| *one == self));
        base.filter(|base| base.speed().is_some_and(|speed| speed > 0.0))
    }

    /// How many times as fast as one rank, in each repetition that its reference has, too, within an hour, so that what drifts from one
    /// to the next meets both; where the reference has several ranks, they count as equally efficient, and it has no speedup of its own.
    pub(super) fn speedups(&self, all: &[Self]) -> Vec<f64> {
        let Some(base) = self.reference(all) else {
            return Vec::new();
        };
        if base == self {
            // One rank begins a line of several numbers of ranks; alone it has no speedup.
            return if self.ranks == 1 && self.scaling != "none" {
                vec![1.0]
            } else {
                Vec::new()
            };
        }
        let ratios = records::ratios(&self.repeated(), &base.repeated());
        ratios
            .into_iter()
            .map(|ratio| ratio * base.ranks as f64)
            .collect()
    }

    /// The middle of those, and where the true one lies.
    pub(super) fn speedup(&self, all: &[Self]) -> Option<Estimate> {
        Estimate::of(&self.speedups(all))
    }

    fn repeated(&self) -> Vec<Repeated<'_>> {
        let of = |(index, speed): (usize, &f64)| {
            let told = self
                .repetitions
                .get(index)
                .map(|one| (one.number, one.started.as_str()));
            let (number, started) = told.unwrap_or((index as u64 + 1, ""));
            Repeated {
                number,
                started,
                speed: *speed,
            }
        };
        self.speeds.iter().enumerate().map(of).collect()
    }
}

/// All measurements of the sources that have a speed, in their order.
pub(super) fn all(sources: &Sources) -> Vec<Measurement> {
    let of_studies = sources
        .studies
        .iter()
        .enumerate()
        .flat_map(|(index, study)| of_study(study, index + 1));
    of_studies.chain(of_runs(&sources.runs)).collect()
}

fn of_study(study: &StudyFolder, number: usize) -> Vec<Measurement> {
    let mut measurements: Vec<Measurement> = Vec::new();
    for (cell, record) in study.counted() {
        let Some(speed) = speed_of(record) else {
            continue;
        };
        if measurements.last().is_none_or(|last| last.id != cell.id) {
            measurements.push(Measurement {
                told: record.work(),
                ..of_cell(cell, number)
            });
        }
        let Some(measurement) = measurements.last_mut() else {
            continue;
        };
        measurement.speeds.push(speed);
        measurement.repetitions.push(repetition_of(record));
        measurement
            .memory_bytes
            .extend(record.result["peak_memory_bytes"].as_f64());
        measurement.phases_ms.extend(phases_of(record, speed));
        measurement.num_disturbed += usize::from(record.status == Status::Disturbed);
    }
    measurements
}

fn of_cell(cell: &StudyCell, study: usize) -> Measurement {
    let mut settings: BTreeMap<String, String> = cell
        .settings
        .keys()
        .map(|key| (key.clone(), cell.setting(key)))
        .filter(|(_, value)| !value.is_empty())
        .collect();
    let ranks = settings
        .get("ranks")
        .and_then(|ranks| ranks.parse().ok())
        .unwrap_or(1);
    let scaling = settings
        .get("scaling")
        .cloned()
        .unwrap_or_else(|| "none".to_owned());
    settings.insert("kind".to_owned(), cell.kind.clone());
    settings.insert("study".to_owned(), study.to_string());
    records::count_all_passes(&mut settings);
    Measurement {
        id: cell.id.clone(),
        settings,
        ranks,
        scaling,
        ..Measurement::default()
    }
}

fn repetition_of(record: &AttemptRecord) -> Repetition {
    let of = |key: &str| record.result[key].as_f64();
    let waiting_ms = of("waiting_seconds")
        .zip(of("steps"))
        .map(|(seconds, steps)| seconds / steps * 1e3);
    Repetition {
        number: record.repetition,
        started: record.started.clone().unwrap_or_default(),
        waiting_ms,
    }
}

/// What `bench` says, or the summary of a run.
fn speed_of(record: &AttemptRecord) -> Option<f64> {
    record.images_per_second().filter(|speed| *speed > 0.0)
}

/// Of `bench`, whose seconds are those of the measured steps.
fn phases_of(record: &AttemptRecord, speed: f64) -> Option<[f64; PHASES.len()]> {
    let result = &record.result;
    let steps = result["steps"]
        .as_f64()
        .filter(|steps| *steps > 0.0 && result["seconds"].is_object())?;
    let mut phases = [0.0; PHASES.len()];
    for (phase, name) in phases.iter_mut().zip(PHASES).take(PHASES.len() - 1) {
        *phase = result["seconds"][name].as_f64()? / steps * 1e3;
    }
    let whole = result["global_batch_size"].as_f64()? / speed * 1e3;
    phases[PHASES.len() - 1] = (whole - phases.iter().sum::<f64>()).max(0.0);
    Some(phases)
}

/// Runs that belong to no study. Those that differ in their ranks tell by their batches how they scale, if their work is the same.
fn of_runs(runs: &[Run]) -> Vec<Measurement> {
    let alone = runs.iter().filter(|run| run.group.is_none());
    let (runs, mut measurements): (Vec<&Run>, Vec<Measurement>) =
        alone.filter_map(|run| Some((run, of_run(run)?))).unzip();
    let facts = measurements.clone();
    for measurement in &mut measurements {
        let has_partner = |key: &str| {
            facts.iter().any(|other| {
                let same = |key: &str| other.settings.get(key) == measurement.settings.get(key);
                other.ranks != measurement.ranks
                    && other.work == measurement.work
                    && same(key)
                    && ["model", "dtype", "threads"].iter().all(|key| same(key))
            })
        };
        measurement.scaling = match () {
            () if has_partner("global_batch_size") => "strong",
            () if has_partner("batch_size_per_rank") => "weak",
            () => "none",
        }
        .to_owned();
    }
    // What they have in common would only lengthen their names beside the cells of a study.
    let differing = |maps: &[&BTreeMap<String, String>], key: &String| {
        maps.iter().any(|map| map.get(key) != maps[0].get(key))
    };
    let works: Vec<_> = facts.iter().map(|one| &one.work).collect();
    let meetings: Vec<_> = runs.iter().map(|run| meeting_of(run)).collect();
    let of_several: Vec<_> = meetings
        .iter()
        .filter(|meeting| !meeting.is_empty())
        .collect();
    for (measurement, meeting) in measurements.iter_mut().zip(&meetings) {
        let work = measurement
            .work
            .iter()
            .filter(|(key, _)| differing(&works, key));
        let meeting = meeting
            .iter()
            .filter(|(key, _)| differing(&of_several, key));
        let told: Vec<_> = work
            .chain(meeting)
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        measurement.settings.extend(told);
    }
    measurements
}

/// What a rank of a run does by itself: its data, and the options of model, input, optimizer and device, but for sizes of batches and
/// the learning rate that goes with them.
pub(super) fn work_of(run: &Run) -> BTreeMap<String, String> {
    let sections = ["model", "train-split", "batch", "optimizer", "compute"];
    let mut work = options(
        run,
        &sections,
        &[
            "global-batch-size",
            "batch-size-per-rank",
            "learning-rate",
            "threads",
        ],
    );
    let data = match run.manifest().map(|manifest| &manifest.dataset) {
        Some(data) => format!(
            "{} {}",
            data.name,
            data.train_checksum.get(..8).unwrap_or_default()
        ),
        None => run.setting("data.dataset").unwrap_or_default().to_owned(),
    };
    work.insert("data".to_owned(), data);
    work
}

/// How the ranks of a run meet; nothing of a single one.
pub(super) fn meeting_of(run: &Run) -> BTreeMap<String, String> {
    match run.ranks() {
        Some(ranks) if ranks > 1 => options(run, &["sync"], &["timeout", "trace"]),
        _ => BTreeMap::new(),
    }
}

/// The options of some sections but for some keys, under the names that a study has for them.
fn options(run: &Run, sections: &[&str], excluded: &[&str]) -> BTreeMap<String, String> {
    let settings = run
        .settings
        .iter()
        .filter_map(|(name, value)| Some((name.split_once('.')?, value)));
    settings
        .filter(|((section, key), _)| sections.contains(section) && !excluded.contains(key))
        .map(|((_, key), value)| (key.replace('-', "_"), value.trim_matches('"').to_owned()))
        .collect()
}

/// The settings of a run under the names that a study has for them.
pub(super) fn settings_of(run: &Run) -> BTreeMap<String, String> {
    let ranks = run.ranks().unwrap_or(1);
    let mut settings = BTreeMap::from([("kind".to_owned(), "train".to_owned())]);
    let keys = [
        // Another family than the residual networks, whose own flags follow.
        ("model", "model.family"),
        ("model", "model.model"),
        ("dtype", "compute.dtype"),
        ("compress", "sync.compress"),
        ("global_batch_size", "batch.global-batch-size"),
    ];
    for (name, key) in keys {
        settings.extend(
            run.setting(key)
                .map(|value| (name.to_owned(), value.to_owned())),
        );
    }
    if let Some(sync) = run.setting("sync.sync").filter(|_| ranks > 1) {
        settings.insert("sync".to_owned(), sync.to_owned());
    }
    let global: Option<usize> = run
        .setting("batch.global-batch-size")
        .and_then(|batch| batch.parse().ok());
    let per_rank = global.map(|global| (global / ranks.max(1)).to_string());
    settings.extend(per_rank.map(|batch| ("batch_size_per_rank".to_owned(), batch)));
    settings.extend(run.manifest().map(|manifest| {
        (
            "threads".to_owned(),
            manifest.launch.threads_per_rank.to_string(),
        )
    }));
    settings
}

fn of_run(run: &Run) -> Option<Measurement> {
    Some(Measurement {
        id: run.label.clone(),
        settings: settings_of(run),
        work: work_of(run),
        ranks: run.ranks()?,
        speeds: vec![run.images_per_second()?],
        memory_bytes: run
            .peak_memory_bytes()
            .map(|bytes| bytes as f64)
            .into_iter()
            .collect(),
        ..Measurement::default()
    })
}
