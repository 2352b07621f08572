//! Runs that were measured, grouped by what they have in common.
//!
//! In: files of `bench --json`, directories of studies; predictions. Out: [`Measured`] groups with speedups.
//! Invariant: a speed is compared with that of one rank of the same work only.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use records::{
    AttemptRecord, ORIGIN, PredictionFile, PredictionRecord, Status, Study, StudyCell, WORK, median, method,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use simulate::karp_flatt;

/// What differs within a group, and what only says how it was started.
const NO_PART_OF_A_GROUP: [&str; 6] =
    ["ranks", "launcher", "communication", "global_batch_size", "batch_size_per_rank", "network"];

/// Runs that differ in their ranks only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// What they have in common.
    pub settings: BTreeMap<String, String>,
    /// By ranks.
    pub runs: Vec<Run>,
}

/// The measurements of one number of ranks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Ranks that trained.
    pub ranks: usize,
    /// Samples of one rank's step.
    pub batch_size_per_rank: usize,
    /// Median over the repetitions.
    pub images_per_second: f64,
    /// How many there are.
    pub repetitions: usize,
    /// Whether any was disturbed.
    pub disturbed: bool,
    /// Next to one rank, if that was measured.
    pub scaled: Option<Scaled>,
    /// Predicted over measured images a second, less 1, if there is a prediction; of several for single repetitions the median.
    pub gap: Option<f64>,
}

/// What a speed on several ranks tells, next to that on one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scaled {
    /// Times as fast as one rank.
    pub speedup: f64,
    /// Speedup a rank.
    pub efficiency: f64,
    /// Karp and Flatt's serial share of a work of fixed size; none for one rank, or where the work grows with the ranks.
    pub serial_fraction: Option<f64>,
}

/// Compares the speed of `ranks` ranks with that of one.
fn scaled(images_per_second: f64, of_one: f64, ranks: usize, is_strong: bool) -> Scaled {
    let speedup = images_per_second / of_one;
    let serial_fraction = karp_flatt(speedup, ranks).filter(|_| is_strong);
    Scaled { speedup, efficiency: speedup / ranks as f64, serial_fraction }
}

/// One configuration as it was measured.
#[derive(Clone, Debug, Default)]
struct Cell {
    id: Option<String>,
    /// Of a study's cell with its [`ORIGIN`]; files of `bench` belong together.
    settings: BTreeMap<String, String>,
    /// By repetition.
    speeds: BTreeMap<u64, (f64, bool)>,
}

impl Cell {
    fn number(&self, key: &str) -> usize {
        self.settings.get(key).and_then(|text| text.parse().ok()).unwrap_or(0)
    }

    fn is_strong(&self) -> bool {
        self.settings.get("scaling").is_some_and(|scaling| scaling == "strong")
    }

    /// The batch that stays as ranks are added.
    fn fixed_batch(&self) -> usize {
        if self.is_strong() { self.number("global_batch_size") } else { self.number("batch_size_per_rank") }
    }

    fn network(&self) -> Option<&String> {
        self.settings.get("network").filter(|_| self.number("ranks") > 1)
    }

    fn work(&self) -> Vec<Option<&String>> {
        WORK.iter().chain(&ORIGIN).map(|key| self.settings.get(*key)).collect()
    }

    fn median(&self) -> f64 {
        median(&mut self.speeds.values().map(|(speed, _)| *speed).collect::<Vec<_>>())
    }
}

/// Reads measured runs, and compares them with `predictions` and with those that lie in a study.
///
/// # Errors
/// When a file cannot be read, or there is no run in it.
pub fn read(paths: &[impl AsRef<Path>], predictions: &[PredictionFile]) -> Result<Vec<Measured>> {
    let mut cells = Vec::new();
    let mut predictions: Vec<(Option<String>, PredictionFile)> =
        predictions.iter().map(|file| (None, file.clone())).collect();
    for path in paths {
        let path = path.as_ref();
        let found = if path.is_dir() { study(path)? } else { bench_lines(path)? };
        ensure!(
            !found.is_empty(),
            "{}: expected lines of `trainer bench --json` or a study with runs that counted, got none",
            path.display()
        );
        cells.extend(found);
        if path.is_dir() {
            predictions.extend(study_predictions(path)?.into_iter().map(|file| (Some(study_name(path)), file)));
        }
    }
    Ok(groups(&cells, &predictions))
}

/// A study as [`ORIGIN`] names it.
fn study_name(directory: &Path) -> String {
    directory.display().to_string()
}

/// Settings as text.
fn settings(object: &Map<String, Value>) -> BTreeMap<String, String> {
    object.iter().filter_map(|(key, value)| Some((key.clone(), records::text(value)?))).collect()
}

/// Every line that is a result of `bench`.
fn bench_lines(path: &Path) -> Result<Vec<Cell>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut cells: Vec<Cell> = Vec::new();
    for line in text.lines().filter(|line| line.starts_with('{')) {
        let Ok(Value::Object(object)) = serde_json::from_str(line) else { continue };
        let Some(speed) = object.get("images_per_second").and_then(Value::as_f64) else { continue };
        let keys = WORK.iter().chain(&["method", "ranks", "batch_size_per_rank", "global_batch_size"]);
        let all = settings(&object);
        let settings: BTreeMap<_, _> =
            keys.filter_map(|key| Some(((*key).to_owned(), all.get(*key)?.clone()))).collect();
        let index = cells.iter().position(|cell| cell.settings == settings).unwrap_or(cells.len());
        if index == cells.len() {
            cells.push(Cell { settings, ..Cell::default() });
        }
        let number = cells[index].speeds.len() as u64;
        cells[index].speeds.insert(number, (speed, false));
    }
    Ok(cells)
}

/// The cells of a study with their runs that counted.
fn study(directory: &Path) -> Result<Vec<Cell>> {
    let path = directory.join("study.json");
    let context = || format!("cannot read {}, expected the directory of a study", path.display());
    let study: Value = serde_json::from_slice(&std::fs::read(&path).with_context(context)?).with_context(context)?;
    let study: Study = records::from_value(study).with_context(context)?;
    let cell = |cell: &StudyCell| {
        let mut settings = settings(&cell.settings);
        settings.insert("kind".to_owned(), cell.kind.clone());
        settings.insert("study".to_owned(), study_name(directory));
        Cell { id: Some(cell.id.clone()), settings, speeds: BTreeMap::new() }
    };
    let mut cells: Vec<Cell> = study.cells.iter().map(cell).collect();
    let path = directory.join("records.jsonl");
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    // A line that a crash tore is no record.
    let attempts = text.lines().filter_map(|line| serde_json::from_str::<AttemptRecord>(line).ok());
    for attempt in attempts.filter(|attempt| attempt.status != Status::Failed) {
        let Some(speed) = attempt.images_per_second() else { continue };
        let Some(cell) = cells.iter_mut().find(|cell| cell.id.as_ref() == Some(&attempt.cell)) else { continue };
        let known = cell.speeds.get(&attempt.repetition);
        // A disturbed attempt counts as long as none was quiet.
        if known.is_none_or(|(_, disturbed)| *disturbed) {
            cell.speeds.insert(attempt.repetition, (speed, attempt.status == Status::Disturbed));
        }
    }
    cells.retain(|cell| !cell.speeds.is_empty() && cell.number("ranks") > 0);
    Ok(cells)
}

fn study_predictions(directory: &Path) -> Result<Vec<PredictionFile>> {
    let folder = directory.join("predictions");
    let mut files = Vec::new();
    let Ok(entries) = std::fs::read_dir(&folder) else { return Ok(files) };
    for entry in entries {
        let path = entry.with_context(|| format!("cannot read {}", folder.display()))?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            let context = || format!("cannot read {}, expected a file of predict-scaling --output", path.display());
            let text = std::fs::read(&path).with_context(context)?;
            let value: Value = serde_json::from_slice(&text).with_context(context)?;
            files.push(records::from_value(value).with_context(context)?);
        }
    }
    Ok(files)
}

fn groups(cells: &[Cell], predictions: &[(Option<String>, PredictionFile)]) -> Vec<Measured> {
    type Key = (BTreeMap<String, String>, usize, Option<String>);
    let mut groups: Vec<(Key, Vec<&Cell>)> = Vec::new();
    for cell in cells {
        let mut common = cell.settings.clone();
        common.retain(|key, _| !NO_PART_OF_A_GROUP.contains(&key.as_str()));
        let key = (common, cell.fixed_batch(), cell.settings.get("network").cloned());
        match groups.iter_mut().find(|(other, _)| *other == key) {
            Some((_, members)) => members.push(cell),
            None => groups.push((key, vec![cell])),
        }
    }
    groups
        .into_iter()
        .map(|((mut settings, batch, network), mut members)| {
            members.sort_by_key(|cell| cell.number("ranks"));
            let runs = members.iter().map(|cell| run(cell, &members, cells, predictions)).collect();
            let name = if members[0].is_strong() { "global_batch_size" } else { "batch_size_per_rank" };
            settings.insert(name.to_owned(), batch.to_string());
            settings.extend(network.map(|network| ("network".to_owned(), network)));
            Measured { settings, runs }
        })
        .collect()
}

fn run(cell: &Cell, group: &[&Cell], all: &[Cell], predictions: &[(Option<String>, PredictionFile)]) -> Run {
    let (ranks, speed) = (cell.number("ranks"), cell.median());
    let is_base = |other: &&Cell| {
        other.number("ranks") == 1
            && other.work() == cell.work()
            && other.number("batch_size_per_rank") == cell.fixed_batch()
    };
    // One rank alone sends nothing, so that one of another network or method will do.
    let base = group.iter().copied().find(is_base).or_else(|| all.iter().find(is_base));
    // What lies in a study stands for the study's own cells.
    let is_its = |study: &Option<String>| study.is_none() || study.as_ref() == cell.settings.get("study");
    let mut gaps: Vec<f64> = Vec::new();
    for record in predictions.iter().filter(|(study, _)| is_its(study)).filter_map(|(_, file)| predicted(cell, file)) {
        // One that was made for a repetition stands for that alone.
        let measured = match record.repetition {
            Some(repetition) => cell.speeds.get(&repetition).map(|(speed, _)| *speed),
            None => Some(speed),
        };
        gaps.extend(record.images_per_second.zip(measured).map(|(predicted, measured)| predicted / measured - 1.0));
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
        scaled: base.map(|base| scaled(speed, base.median(), ranks, cell.is_strong())),
        gap: (!gaps.is_empty()).then(|| median(&mut gaps)),
    }
}

/// The prediction for a cell: the one that names it, else one of the same configuration.
fn predicted<'a>(cell: &Cell, file: &'a PredictionFile) -> Option<&'a PredictionRecord> {
    let is_named = |index: usize| file.cell(index).is_some_and(|id| Some(id) == cell.id.as_deref());
    if let Some(index) = (0..file.predictions.len()).find(|index| is_named(*index)) {
        return file.predictions.get(index);
    }
    let is = |key: &str, value: &str| cell.settings.get(key).is_none_or(|text| text == value);
    if !(is("model", &file.model)
        && is("dtype", &file.dtype)
        && file.threads.is_none_or(|threads| is("threads", &threads.to_string()))
        && cell.network().is_none_or(|network| *network == file.network.name))
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
mod tests {
    use super::*;

    fn line(ranks: usize, speed: f64) -> String {
        format!(
            "{{\"model\":\"resnet20\",\"dtype\":\"f32\",\"threads\":1,\"ranks\":{ranks},\"batch_size_per_rank\":32,\
             \"global_batch_size\":{},\"method\":\"allreduce:ring\",\"images_per_second\":{speed}}}",
            32 * ranks
        )
    }

    #[test]
    fn speeds_are_compared_with_that_of_one_rank() {
        let [weak, strong] = [false, true].map(|is_strong| scaled(180.0, 100.0, 2, is_strong));
        assert_eq!((weak.speedup, weak.efficiency, weak.serial_fraction), (1.8, 0.9, None));
        assert!((strong.serial_fraction.unwrap() - 1.0 / 9.0).abs() < 1e-12);
    }

    #[test]
    fn results_of_bench_are_grouped_over_ranks_and_repetitions() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("runs.txt");
        let lines = [line(2, 180.0), "some words".to_owned(), line(1, 100.0), line(2, 200.0), line(2, 190.0)];
        std::fs::write(&path, lines.join("\n")).unwrap();
        let groups = read(&[&path], &[]).unwrap();
        assert_eq!((groups.len(), groups[0].runs.len()), (1, 2));
        let two = &groups[0].runs[1];
        assert_eq!((two.ranks, two.images_per_second, two.repetitions, two.gap), (2, 190.0, 3, None));
        let scaled = two.scaled.unwrap();
        assert!((scaled.speedup - 1.9).abs() < 1e-12);
        std::fs::write(&path, "nothing").unwrap();
        assert!(read(&[&path], &[]).unwrap_err().to_string().contains("expected lines of `trainer bench --json`"));
    }

    #[test]
    fn a_study_counts_its_last_attempts_and_one_rank_alone_stands_for_every_network() {
        let directory = tempfile::tempdir().unwrap();
        let cell = |id: &str, ranks: usize, network: &str| {
            let batch = 32 * ranks;
            format!(
                "{{\"id\":\"{id}\",\"kind\":\"bench\",\"settings\":{{\"model\":\"resnet20\",\"dtype\":\"f32\",\"ranks\":{ranks},\
                 \"threads\":1,\"batch_size_per_rank\":32,\"global_batch_size\":{batch},\"sync\":\"allreduce\",\
                 \"compress\":\"none\",\"network\":\"{network}\",\"scaling\":\"weak\"}}}}"
            )
        };
        let cells = [cell("one", 1, "none"), cell("two", 2, "1gbit"), cell("failed", 2, "10gbit")].join(",");
        std::fs::write(directory.path().join("study.json"), format!("{{\"cells\":[{cells}]}}")).unwrap();
        let record = |cell: &str, attempt: usize, status: &str, speed: f64| {
            format!(
                "{{\"cell\":\"{cell}\",\"repetition\":1,\"attempt\":{attempt},\"status\":\"{status}\",\
                 \"result\":{{\"images_per_second\":{speed}}}}}\n"
            )
        };
        let records = record("one", 1, "ok", 100.0)
            + &record("two", 1, "disturbed", 100.0)
            + &record("two", 2, "ok", 160.0)
            + &record("failed", 1, "failed", 1.0)
            + "{\"cell\":\"tw";
        std::fs::write(directory.path().join("records.jsonl"), records).unwrap();
        let groups = read(&[directory.path()], &[]).unwrap();
        assert_eq!(groups.len(), 2);
        let two = &groups[1].runs[0];
        assert_eq!((two.images_per_second, two.disturbed), (160.0, false));
        assert!((two.scaled.unwrap().efficiency - 0.8).abs() < 1e-12);
        assert_eq!(groups[1].settings["network"], "1gbit");
    }

    #[test]
    fn a_speed_is_not_compared_with_one_rank_of_another_study_or_kind() {
        let cell = |study: &str, kind: &str, ranks: usize, speed: f64| {
            let settings = [("model", "resnet20"), ("batch_size_per_rank", "32"), ("study", study), ("kind", kind)];
            let settings = settings.map(|(key, value)| (key.to_owned(), value.to_owned())).into_iter();
            let settings = settings.chain([("ranks".to_owned(), ranks.to_string())]).collect();
            Cell { id: Some("same".to_owned()), settings, speeds: BTreeMap::from([(1, (speed, false))]) }
        };
        let others = [cell("a", "bench", 1, 100.0), cell("b", "train", 1, 50.0)];
        let groups_with = |base: Option<Cell>| {
            let cells: Vec<Cell> = others.iter().cloned().chain(base).chain([cell("b", "bench", 2, 150.0)]).collect();
            groups(&cells, &[])
        };
        let last = |groups: &[Measured]| groups.last().unwrap().runs.last().unwrap().scaled;
        assert_eq!(last(&groups_with(None)), None);
        assert_eq!(last(&groups_with(Some(cell("b", "bench", 1, 100.0)))).unwrap().speedup, 1.5);
    }
}
