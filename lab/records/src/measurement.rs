//! Speeds of one setting, and their comparison: the analysis behind every table of speeds.
//!
//! In: a [`Study`] and its attempts. Out: [`Measurement`]s, speedups, the attempts that a
//! prediction stands for.
//! Invariant: a ratio is taken within a repetition, between attempts begun within an hour of each
//! other, so that drift of the machine affects both. The reference of a speedup is one rank with
//! the same settings, otherwise the fewest ranks of the same line.

use crate::settings::{count_all_passes, differences, is_of_several, is_of_work, method, text};
use crate::{AttemptRecord, Estimate, PredictionFile, PredictionRecord, Spread, Status};
use crate::{Study, StudyCell};
use humantime::parse_rfc3339_weak;
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

/// Settings of the amount of work, which differ along a line.
const SIZES: [&str; 2] = ["ranks", "scaling"];
const BATCHES: [&str; 2] = ["batch_size_per_rank", "global_batch_size"];

/// One setting at one number of ranks, measured once or several times.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measurement {
    /// Id of the cell, or name of a run.
    pub id: String,
    /// Settings, with the `kind` and, for a cell, the name of its `study`.
    pub settings: BTreeMap<String, String>,
    /// Parts of a rank's work that a result reports and the settings may omit.
    pub reported_work: BTreeMap<String, String>,
    /// Ranks that train.
    pub ranks: usize,
    /// `weak`, `strong` or `none`.
    pub scaling: String,
    /// Attempt of each repetition that has a speed.
    pub attempts: Vec<AttemptRecord>,
}

impl Measurement {
    /// Returns the measurement of each cell of a study that has a speed.
    pub fn of_study(study: &Study, attempts: &[AttemptRecord], name: &str) -> Vec<Self> {
        let of_cell = |cell: &StudyCell| {
            let counted = counted(cell, attempts).into_iter();
            let counted = counted.filter(|one| one.images_per_second().is_some());
            let attempts: Vec<AttemptRecord> = counted.cloned().collect();
            let reported_work = attempts.first()?.work();
            let mut settings: BTreeMap<String, String> = cell
                .settings
                .iter()
                .filter_map(|(key, value)| Some((key.clone(), text(value)?)))
                .collect();
            settings.insert("kind".to_owned(), cell.kind.clone());
            settings.insert("study".to_owned(), name.to_owned());
            count_all_passes(&mut settings);
            Some(Self {
                id: cell.id.clone(),
                reported_work,
                attempts,
                ..Self::of_settings(settings)
            })
        };
        study.cells.iter().filter_map(of_cell).collect()
    }

    /// Returns a measurement without attempts, whose ranks and scaling are those of its settings.
    pub fn of_settings(settings: BTreeMap<String, String>) -> Self {
        let ranks = settings.get("ranks").and_then(|ranks| ranks.parse().ok());
        let scaling = settings.get("scaling").map_or("none", String::as_str);
        Self {
            ranks: ranks.unwrap_or(1),
            scaling: scaling.to_owned(),
            settings,
            ..Self::default()
        }
    }

    /// Returns the images/s of all attempts.
    pub fn speeds(&self) -> Vec<f64> {
        let speeds = self.attempts.iter();
        speeds
            .filter_map(AttemptRecord::images_per_second)
            .collect()
    }

    /// Summarises images/s; `None` without attempts.
    pub fn speed(&self) -> Option<Spread> {
        Spread::of(self.speeds())
    }

    /// Returns the largest memory of a rank in any attempt, bytes.
    pub fn peak_memory_bytes(&self) -> Option<u64> {
        let attempts = self.attempts.iter();
        let bytes = attempts.filter_map(|one| one.result["peak_memory_bytes"].as_u64());
        bytes.max()
    }

    /// Returns a setting; empty if it is absent.
    pub fn setting(&self, key: &str) -> &str {
        self.settings.get(key).map_or("", String::as_str)
    }

    /// Returns the number of attempts during which other programs used the CPUs.
    pub fn num_disturbed(&self) -> usize {
        let is_disturbed = |one: &&AttemptRecord| one.status == Status::Disturbed;
        self.attempts.iter().filter(is_disturbed).count()
    }

    /// Returns the name of the batch that stays the same as ranks are added.
    pub fn kept_batch(&self) -> &'static str {
        BATCHES[usize::from(self.scaling == "strong")]
    }

    /// Returns the settings that are equal on all numbers of ranks of one line.
    pub fn line(&self) -> BTreeMap<&str, &str> {
        let is_kept = |key: &str| {
            !SIZES.contains(&key) && (!BATCHES.contains(&key) || key == self.kept_batch())
        };
        let settings = self.settings.iter();
        settings
            .map(|(key, value)| (key.as_str(), value.as_str()))
            .filter(|(key, _)| is_kept(key))
            .collect()
    }

    /// Returns true if the measurements differ only in ranks and in settings that a single rank
    /// does not have.
    pub fn is_same_work(&self, other: &Self) -> bool {
        let may_differ = |key: &&str| {
            (SIZES.contains(key) || BATCHES.contains(key) || is_of_several(key))
                && *key != other.kept_batch()
        };
        let differences = differences(&self.settings, &other.settings);
        differences.iter().all(may_differ)
    }

    /// Returns the reference of the speedup: the single rank of the same work with the nearest
    /// settings, otherwise the fewest ranks of the line, otherwise the measurement itself.
    pub fn reference<'a>(&self, all: &'a [Self]) -> Option<&'a Self> {
        let line = self.line();
        let fewer = || all.iter().filter(|one| one.ranks < self.ranks);
        let distance = |one: &&Self| {
            let differences = differences(&one.settings, &self.settings);
            (one.scaling != self.scaling, differences.len())
        };
        let is_on_line = |one: &&Self| one.line() == line && one.scaling == self.scaling;
        fewer()
            .filter(|one| one.ranks == 1 && one.is_same_work(self))
            .min_by_key(distance)
            .or_else(|| fewer().filter(is_on_line).min_by_key(|one| one.ranks))
            .or_else(|| all.iter().find(|one| *one == self))
    }

    /// Returns the speedup over one rank in each repetition that the reference has too. A reference
    /// of several ranks counts as equally efficient.
    pub fn speedups(&self, all: &[Self]) -> Vec<f64> {
        match self.reference(all) {
            None => Vec::new(),
            // One rank begins a line of several numbers of ranks; without them it has no speedup.
            Some(base) if base == self => {
                let begins_line = self.ranks == 1 && self.scaling != "none";
                Vec::from_iter(begins_line.then_some(1.0))
            }
            Some(base) => {
                let ratios = ratios(self.attempts.iter(), base.attempts.iter());
                ratios
                    .iter()
                    .map(|ratio| ratio * base.ranks as f64)
                    .collect()
            }
        }
    }

    /// Returns the median speedup with its confidence interval.
    pub fn speedup(&self, all: &[Self]) -> Option<Estimate> {
        Estimate::of(&self.speedups(all))
    }

    /// Returns true if a prediction names the cell, or names none and is of the same configuration.
    pub fn is_predicted_by(&self, file: &PredictionFile, prediction: &PredictionRecord) -> bool {
        if let Some(cell) = &prediction.cell {
            return *cell == self.id;
        }
        let is = |key: &str, value: &str| {
            let own = self.setting(key);
            own == value || own.is_empty() && value == "none"
        };
        let batch = prediction.batch_size_per_rank.to_string();
        let threads = file.threads.map(|threads| threads.to_string());
        // A single rank sends nothing, whatever the method and the network.
        let is_same_method = || {
            is("network", &file.network.name)
                && method(&self.settings).as_ref() == Some(&prediction.method)
        };
        self.ranks == prediction.ranks
            && is("model", &file.model)
            && is("dtype", &file.dtype)
            && is("batch_size_per_rank", &batch)
            && threads.is_none_or(|threads| ["", &threads].contains(&self.setting("threads")))
            && (self.ranks == 1 || is_same_method())
            && [&self.settings, &self.reported_work]
                .iter()
                .all(|settings| is_of_work(settings, &file.work))
    }

    /// Returns the attempts that a prediction stands for: the repetition that it names, if that
    /// began after the prediction was made, otherwise all.
    pub fn predicted(&self, created: &str, prediction: &PredictionRecord) -> Vec<&AttemptRecord> {
        let is_its = |one: &&AttemptRecord| match prediction.repetition {
            None => true,
            Some(number) => {
                let begun = one.started.as_deref().unwrap_or_default();
                one.repetition == number && !begun.is_empty() && created <= begun
            }
        };
        self.attempts.iter().filter(is_its).collect()
    }
}

impl Study {
    /// Returns the valid attempt of each repetition, in the order of the cells.
    pub fn counted<'a>(
        &'a self,
        attempts: &'a [AttemptRecord],
    ) -> Vec<(&'a StudyCell, &'a AttemptRecord)> {
        let of_cell = |cell: &'a StudyCell| {
            let counted = counted(cell, attempts).into_iter();
            counted.map(move |attempt| (cell, attempt))
        };
        self.cells.iter().flat_map(of_cell).collect()
    }
}

/// Returns the attempt that counts of each repetition of a cell: the last quiet one, otherwise the
/// last disturbed one.
pub(crate) fn counted<'a>(
    cell: &StudyCell,
    attempts: &'a [AttemptRecord],
) -> Vec<&'a AttemptRecord> {
    let mut counted: BTreeMap<u64, &AttemptRecord> = BTreeMap::new();
    let has_result = |one: &&AttemptRecord| one.cell == cell.id && one.status != Status::Failed;
    for attempt in attempts.iter().filter(has_result) {
        let rank = |one: &AttemptRecord| (one.status == Status::Ok, one.attempt);
        let known = counted.entry(attempt.repetition).or_insert(attempt);
        if rank(attempt) >= rank(known) {
            *known = attempt;
        }
    }
    counted.into_values().collect()
}

/// Returns the speeds over those of `base`, in each repetition that both have, begun within an hour
/// of each other.
pub(crate) fn ratios<'a>(
    own: impl Iterator<Item = &'a AttemptRecord>,
    base: impl Iterator<Item = &'a AttemptRecord> + Clone,
) -> Vec<f64> {
    let ratio = |one: &AttemptRecord| {
        let mut pairs = base.clone();
        let partner =
            pairs.find(|other| other.repetition == one.repetition && are_near(one, other));
        Some(one.images_per_second()? / partner?.images_per_second()?)
    };
    own.filter_map(ratio).collect()
}

/// Returns true if two attempts began within an hour, or if the begin of one is unknown.
fn are_near(a: &AttemptRecord, b: &AttemptRecord) -> bool {
    let begun = |one: &AttemptRecord| parse_rfc3339_weak(one.started.as_deref()?).ok();
    let distance = |(a, b): (SystemTime, SystemTime)| {
        let later = a.duration_since(b);
        later.unwrap_or_else(|earlier| earlier.duration())
    };
    let distance = begun(a).zip(begun(b)).map(distance);
    distance.is_none_or(|distance| distance <= Duration::from_secs(3600))
}

#[cfg(test)]
mod tests;
