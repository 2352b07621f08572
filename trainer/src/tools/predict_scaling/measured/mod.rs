//! Measured runs, grouped by their settings.
//!
//! In: files of `bench --json`, directories of studies; predictions. Out: [`Measured`] groups with
//! speedups.
//! Invariant: a speed is compared only with one rank of the same work.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use records::{
    AttemptRecord, Estimate, ORIGIN, PredictionFile, PredictionRecord, Repeated, Status, Study,
    StudyCell, WORK, count_all_passes, differences, is_in_time, is_of_work, median, method, ratios,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use simulate::karp_flatt;

/// Settings that differ within a group, or that describe only the start.
const NO_PART_OF_A_GROUP: [&str; 6] = [
    "ranks",
    "launcher",
    "communication",
    "global_batch_size",
    "batch_size_per_rank",
    "network",
];

/// Runs that differ in their ranks only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Common settings.
    pub settings: BTreeMap<String, String>,
    /// Ascending by ranks.
    pub runs: Vec<Run>,
}

/// The measurements of one number of ranks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    pub ranks: usize,
    /// Samples of one rank's step.
    pub batch_size_per_rank: usize,
    /// Median over the repetitions.
    pub images_per_second: f64,
    pub repetitions: usize,
    pub disturbed: bool,
    /// Comparison with one rank, if that was measured.
    pub scaled: Option<Scaled>,
    /// Predicted over measured images/s, minus 1; the median of several repetitions.
    pub gap: Option<f64>,
}

/// A speed on several ranks compared with one rank.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scaled {
    /// Speed over one rank's.
    pub speedup: f64,
    /// Speedup over ranks.
    pub efficiency: f64,
    /// Karp and Flatt's serial share for work of a fixed size; none for one rank, or if the work
    /// grows with the ranks.
    pub serial_fraction: Option<f64>,
}

/// Returns efficiency and serial share of a speedup.
fn scaled(speedup: f64, ranks: usize, is_strong: bool) -> Scaled {
    let serial_fraction = karp_flatt(speedup, ranks).filter(|_| is_strong);
    Scaled {
        speedup,
        efficiency: speedup / ranks as f64,
        serial_fraction,
    }
}

/// One measured configuration.
#[derive(Clone, Debug, Default)]
struct Configuration {
    id: Option<String>,
    /// Settings; a study's cell also has its [`ORIGIN`].
    settings: BTreeMap<String, String>,
    /// Parts of a rank's work that the result of a cell reports and its settings may leave out.
    reported_work: BTreeMap<String, String>,
    /// Speed of each repetition, and whether it was disturbed.
    speeds: BTreeMap<u64, (f64, bool)>,
    /// Begin of each repetition, if known.
    started: BTreeMap<u64, String>,
}

impl Configuration {
    fn number(&self, key: &str) -> usize {
        self.settings
            .get(key)
            .and_then(|text| text.parse().ok())
            .unwrap_or(0)
    }

    fn is_strong(&self) -> bool {
        self.settings
            .get("scaling")
            .is_some_and(|scaling| scaling == "strong")
    }

    /// Returns the batch that stays as ranks are added.
    fn fixed_batch(&self) -> usize {
        if self.is_strong() {
            self.number("global_batch_size")
        } else {
            self.number("batch_size_per_rank")
        }
    }

    fn network(&self) -> Option<&String> {
        self.settings
            .get("network")
            .filter(|_| self.number("ranks") > 1)
    }

    fn work(&self) -> Vec<Option<&String>> {
        WORK.iter()
            .chain(&ORIGIN)
            .map(|key| self.settings.get(*key))
            .collect()
    }

    /// Returns the speedup over `base`: of a study within repetitions, of lines of `bench` by
    /// medians.
    fn speedup(&self, base: &Self) -> Option<f64> {
        if self.id.is_none() {
            return Some(self.median() / base.median());
        }
        Estimate::of(&ratios(&self.repeated(), &base.repeated())).map(|speedup| speedup.median)
    }

    fn repeated(&self) -> Vec<Repeated<'_>> {
        let started = |number| self.started.get(number).map_or("", String::as_str);
        self.speeds
            .iter()
            .map(|(number, (speed, _))| Repeated {
                number: *number,
                started: started(number),
                speed: *speed,
            })
            .collect()
    }

    fn median(&self) -> f64 {
        median(
            &mut self
                .speeds
                .values()
                .map(|(speed, _)| *speed)
                .collect::<Vec<_>>(),
        )
    }
}

/// Settings that grow or shrink with the ranks.
const SIZES: [&str; 4] = [
    "ranks",
    "scaling",
    "batch_size_per_rank",
    "global_batch_size",
];

/// Reads measured runs, and compares them with `predictions` and with those in a study. `warn` gets
/// what cannot be read.
///
/// # Errors
/// A file cannot be read, or has no run.
pub fn read(
    paths: &[impl AsRef<Path>],
    predictions: &[PredictionFile],
    warn: impl Fn(&str),
) -> Result<Vec<Measured>> {
    let mut cells = Vec::new();
    let mut predictions: Vec<(Option<String>, PredictionFile)> = predictions
        .iter()
        .map(|file| (None, file.clone()))
        .collect();
    for path in paths {
        let path = path.as_ref();
        let found = if path.is_dir() {
            study(path)?
        } else {
            bench_lines(path)?
        };
        ensure!(
            !found.is_empty(),
            "{}: expected lines of `trainer bench --json` or a study with runs that counted, got none",
            path.display()
        );
        cells.extend(found);
        if path.is_dir() {
            for file in study_predictions(path) {
                match file {
                    Ok(file) => predictions.push((Some(study_name(path)), file)),
                    Err(error) => warn(&format!("{error:#}, so that it is left out")),
                }
            }
        }
    }
    Ok(groups(&cells, &predictions))
}

/// Returns the name of a study in [`ORIGIN`].
fn study_name(directory: &Path) -> String {
    directory.display().to_string()
}

fn settings(object: &Map<String, Value>) -> BTreeMap<String, String> {
    object
        .iter()
        .filter_map(|(key, value)| Some((key.clone(), records::text(value)?)))
        .collect()
}

/// Reads lines; a line torn by a crash may have any bytes.
fn text(path: &Path) -> Result<String> {
    let bytes =
        records::file::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns every line that is a result of `bench`.
fn bench_lines(path: &Path) -> Result<Vec<Configuration>> {
    let text = text(path)?;
    let mut cells: Vec<Configuration> = Vec::new();
    for line in text.lines().filter(|line| line.starts_with('{')) {
        let Ok(Value::Object(object)) = serde_json::from_str(line) else {
            continue;
        };
        let speed = object.get("images_per_second").and_then(Value::as_f64);
        let Some(speed) = speed.filter(|speed| *speed > 0.0) else {
            continue;
        };
        let keys = WORK.iter().chain(&[
            "method",
            "ranks",
            "batch_size_per_rank",
            "global_batch_size",
        ]);
        let all = settings(&object);
        let mut settings = object
            .get("options")
            .and_then(Value::as_object)
            .map(settings)
            .unwrap_or_default();
        settings.extend(keys.filter_map(|key| Some(((*key).to_owned(), all.get(*key)?.clone()))));
        count_all_passes(&mut settings);
        let index = cells
            .iter()
            .position(|cell| cell.settings == settings)
            .unwrap_or(cells.len());
        if index == cells.len() {
            cells.push(Configuration {
                settings,
                ..Configuration::default()
            });
        }
        let number = cells[index].speeds.len() as u64;
        cells[index].speeds.insert(number, (speed, false));
    }
    Ok(cells)
}

/// Returns the cells of a study with their runs that count.
fn study(directory: &Path) -> Result<Vec<Configuration>> {
    let path = directory.join("study.json");
    let context = || {
        format!(
            "cannot read {}, expected the directory of a study",
            path.display()
        )
    };
    let study: Value = serde_json::from_slice(&records::file::read(&path).with_context(context)?)
        .with_context(context)?;
    let study: Study = records::from_value(study).with_context(context)?;
    let cell = |cell: &StudyCell| {
        let mut settings = settings(&cell.settings);
        settings.insert("kind".to_owned(), cell.kind.clone());
        settings.insert("study".to_owned(), study_name(directory));
        count_all_passes(&mut settings);
        Configuration {
            id: Some(cell.id.clone()),
            settings,
            ..Configuration::default()
        }
    };
    let text = text(&directory.join("records.jsonl"))?;
    let attempts: Vec<AttemptRecord> = text
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    let mut cells: Vec<Configuration> = Vec::new();
    for (planned, attempt) in study.counted(&attempts) {
        let Some(speed) = attempt.images_per_second() else {
            continue;
        };
        if cells
            .last()
            .is_none_or(|last| last.id.as_ref() != Some(&planned.id))
        {
            cells.push(Configuration {
                reported_work: attempt.work(),
                ..cell(planned)
            });
        }
        let Some(cell) = cells.last_mut() else {
            continue;
        };
        cell.speeds.insert(
            attempt.repetition,
            (speed, attempt.status == Status::Disturbed),
        );
        cell.started.insert(
            attempt.repetition,
            attempt.started.clone().unwrap_or_default(),
        );
    }
    cells.retain(|cell| cell.number("ranks") > 0);
    Ok(cells)
}

fn study_predictions(directory: &Path) -> Vec<Result<PredictionFile>> {
    let entries = std::fs::read_dir(directory.join("predictions"))
        .into_iter()
        .flatten()
        .flatten();
    let paths = entries.map(|entry| entry.path());
    let is_json = |path: &PathBuf| {
        path.extension()
            .is_some_and(|extension| extension == "json")
    };
    let file = |path: PathBuf| {
        let context = || {
            format!(
                "cannot read {}, expected a file of predict-scaling --output",
                path.display()
            )
        };
        let value: Value =
            serde_json::from_slice(&records::file::read(&path).with_context(context)?)
                .with_context(context)?;
        records::from_value(value).with_context(context)
    };
    paths.filter(is_json).map(file).collect()
}

fn groups(
    cells: &[Configuration],
    predictions: &[(Option<String>, PredictionFile)],
) -> Vec<Measured> {
    type Key = (BTreeMap<String, String>, usize, Option<String>);
    let mut groups: Vec<(Key, Vec<&Configuration>)> = Vec::new();
    for cell in cells {
        let mut common = cell.settings.clone();
        common.retain(|key, _| !NO_PART_OF_A_GROUP.contains(&key.as_str()));
        let key = (
            common,
            cell.fixed_batch(),
            cell.settings.get("network").cloned(),
        );
        match groups.iter_mut().find(|(other, _)| *other == key) {
            Some((_, members)) => members.push(cell),
            None => groups.push((key, vec![cell])),
        }
    }
    groups
        .into_iter()
        .map(|((mut settings, batch, network), mut members)| {
            members.sort_by_key(|cell| cell.number("ranks"));
            let runs = members
                .iter()
                .map(|cell| run(cell, &members, cells, predictions))
                .collect();
            let name = if members[0].is_strong() {
                "global_batch_size"
            } else {
                "batch_size_per_rank"
            };
            settings.insert(name.to_owned(), batch.to_string());
            settings.extend(network.map(|network| ("network".to_owned(), network)));
            Measured { settings, runs }
        })
        .collect()
}

fn run(
    cell: &Configuration,
    group: &[&Configuration],
    all: &[Configuration],
    predictions: &[(Option<String>, PredictionFile)],
) -> Run {
    let ranks = cell.number("ranks");
    let speed = cell.median();
    let is_base = |other: &&Configuration| {
        other.number("ranks") == 1
            && other.work() == cell.work()
            && other.number("batch_size_per_rank") == cell.fixed_batch()
    };
    // One rank sends nothing, so network and method may differ, but no other option.
    let may_differ = |key: &&str| SIZES.contains(key) || records::is_of_several(key);
    let is_alike = |other: &&Configuration| {
        differences(&cell.settings, &other.settings)
            .iter()
            .all(may_differ)
    };
    let alone = group
        .iter()
        .copied()
        .chain(all)
        .filter(is_base)
        .filter(is_alike);
    let base = alone.min_by_key(|other| differences(&cell.settings, &other.settings).len());
    // A prediction in a study is for the study's own cells.
    let is_its =
        |study: &Option<String>| study.is_none() || study.as_ref() == cell.settings.get("study");
    let mut gaps: Vec<f64> = Vec::new();
    let files = predictions
        .iter()
        .filter(|(study, _)| is_its(study))
        .map(|(_, file)| file);
    for (file, record) in files.filter_map(|file| Some((file, predicted(cell, file)?))) {
        // A prediction for a repetition counts if it was written before the repetition began.
        let measured = match record.repetition {
            Some(repetition) => {
                let started = cell.started.get(&repetition).map(String::as_str);
                let speed = cell.speeds.get(&repetition).map(|(speed, _)| *speed);
                speed.filter(|_| is_in_time(&file.created, started))
            }
            None => Some(speed),
        };
        gaps.extend(
            record
                .images_per_second
                .zip(measured)
                .map(|(predicted, measured)| predicted / measured - 1.0),
        );
        if record.repetition.is_none() {
            break;
        }
    }
    Run {
        ranks,
        batch_size_per_rank: cell.number("batch_size_per_rank"),
        images_per_second: speed,
        repetitions: cell.speeds.len(),
        disturbed: cell.speeds.values().any(|(_, disturbed)| *disturbed),
        scaled: base
            .and_then(|base| cell.speedup(base))
            .map(|speedup| scaled(speedup, ranks, cell.is_strong())),
        gap: (!gaps.is_empty()).then(|| median(&mut gaps)),
    }
}

/// Returns the prediction that names a cell, otherwise one of the same configuration.
fn predicted<'a>(cell: &Configuration, file: &'a PredictionFile) -> Option<&'a PredictionRecord> {
    let is_named = |index: usize| {
        file.cell(index)
            .is_some_and(|id| Some(id) == cell.id.as_deref())
    };
    if let Some(index) = (0..file.predictions.len()).find(|index| is_named(*index)) {
        return file.predictions.get(index);
    }
    let is = |key: &str, value: &str| cell.settings.get(key).is_none_or(|text| text == value);
    if !(is("model", &file.model)
        && is("dtype", &file.dtype)
        && file
            .threads
            .is_none_or(|threads| is("threads", &threads.to_string()))
        && cell
            .network()
            .is_none_or(|network| *network == file.network.name)
        && [&cell.settings, &cell.reported_work]
            .iter()
            .all(|work| is_of_work(work, &file.work)))
    {
        return None;
    }
    let method = method(&cell.settings);
    file.predictions.iter().find(|record| {
        record.cell.is_none()
            && record.ranks == cell.number("ranks")
            && record.batch_size_per_rank == cell.number("batch_size_per_rank")
            && (record.ranks == 1 || method.as_ref() == Some(&record.method))
    })
}

#[cfg(test)]
mod tests;
