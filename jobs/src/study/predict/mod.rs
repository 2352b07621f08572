//! Predictions of a study's runs: a step's profile and the measured network, put together by `trainer predict-scaling`.
//!
//! In: cells, network.json files of the study's own network measurements. Out: profiles/*.json, predictions/*.json.
//! Invariant: nothing is taken from the predicted runs; what is there already is not measured again.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use super::cell::{Cell, Place};
use super::file::{Profile, StudyFile};
use super::local::Local;
use super::{flags, local, plan};
use crate::cores;
use crate::failure::{Failure, Outcome};
use crate::guard::Guarded;
use crate::json;
use crate::mpirun;
use crate::process;

/// Flags about other ranks, which a profile of one rank has not.
const OF_SYNCHRONISATION: [&str; 13] = [
    "--sync",
    "--reduction",
    "--virtual-shards",
    "--overlap",
    "--compress",
    "--compress-warmup-steps",
    "--servers",
    "--server-placement",
    "--staleness",
    "--every",
    "--from-step",
    "--timeout",
    "--trace",
];

/// Makes the predictions of the chosen cells that have what they need. What fails is said and no reason to lose the rest.
pub(super) fn run(
    file: &StudyFile,
    cells: &[Cell],
    chosen: &[&Cell],
    directory: &Path,
    trainer: &Path,
    checks_quiet: bool,
) {
    let knows_profiles =
        process::answer(trainer, &["bench", "--help"]).is_some_and(|help| help.contains("--profile-output"));
    if !knows_profiles || !flags::has_command(trainer, "predict-scaling") {
        println!("note: this trainer has no `predict-scaling` or `bench --profile-output`: nothing is predicted");
        return;
    }
    let mut profiles = BTreeMap::new();
    let how = Profiling { file, chosen, directory, trainer, checks_quiet };
    for cell in chosen.iter().copied().filter(|cell| plan::is_predicted(cell)) {
        let network = cells.iter().filter(|other| plan::measures_network_of(other, cell));
        let Some(network) = network.flat_map(|other| measured(other, directory)).next() else {
            println!("note: {}: its network has not been measured: not predicted", cell.id);
            continue;
        };
        // One that has failed is not tried again for the next cell.
        let profile =
            profiles.entry(key(cell)).or_insert_with(|| how.profile(cell).map_err(|failure| failure.to_string()));
        let predicted = profile.as_ref().map_err(String::clone).and_then(|profile| {
            // A method may be one that the simulation does not know.
            predict(cell, profile, &network, directory, trainer)
        });
        if let Err(failure) = predicted {
            println!("note: {}: not predicted: {failure}", cell.id);
        }
    }
}

/// The newest network file of a measuring cell that succeeded.
fn measured(cell: &Cell, directory: &Path) -> Option<PathBuf> {
    let runs = fs::read_dir(directory.join("runs").join(&cell.id)).ok()?;
    let files = runs.filter_map(|run| Some(run.ok()?.path().join("network.json"))).filter(|file| file.exists());
    files.max_by_key(|file| fs::metadata(file).and_then(|file| file.modified()).ok())
}

/// How profiles are taken.
pub(super) struct Profiling<'a> {
    pub(super) file: &'a StudyFile,
    pub(super) chosen: &'a [&'a Cell],
    pub(super) directory: &'a Path,
    pub(super) trainer: &'a Path,
    pub(super) checks_quiet: bool,
}

impl Profiling<'_> {
    /// Takes the profiles of a round of runs, so that what drifts meets profiles and runs alike.
    pub(super) fn take_round(&self, repetition: usize) {
        let mut seen = BTreeSet::new();
        for cell in self.chosen.iter().filter(|cell| plan::is_predicted(cell) && seen.insert(key(cell))) {
            if let Err(failure) = self.take(cell, repetition) {
                println!("note: profile {}: {failure}", key(cell));
            }
        }
    }

    /// The profile of a cell's step on one rank: the median of those of all rounds, of which those that are not there are taken now.
    fn profile(&self, cell: &Cell) -> Outcome<PathBuf> {
        let key = key(cell);
        let path = self.directory.join("profiles").join(format!("{key}.json"));
        if path.exists() {
            return Ok(path);
        }
        let rounds = 1..=self.file.repetitions.max(1);
        let mut taken = rounds.map(|repetition| self.take(cell, repetition)).collect::<Outcome<Vec<_>>>()?;
        taken.sort_by(|a, b| a.0.total_cmp(&b.0));
        let number = taken.len();
        let (_, value) = taken.swap_remove(number / 2);
        json::write(&path, &value)?;
        println!("profile {key}: the median of {number}");
        Ok(path)
    }

    /// The slowest of as many ranks alone, at the same time, as the largest run of this step has; one where that was asked for.
    fn take(&self, cell: &Cell, repetition: usize) -> Outcome<(f64, Value)> {
        let key = key(cell);
        let alike = self.chosen.iter().filter(|other| plan::is_predicted(other) && self::key(other) == key);
        let most_ranks = alike.map(|other| other.ranks).max().unwrap_or(1);
        let num_copies = match self.file.profile {
            Some(Profile::Together) => most_ranks.min(cores::available() / cell.threads).max(1),
            _ => 1,
        };
        let folder = self.directory.join("profiles").join(&key);
        fs::create_dir_all(&folder).map_err(|error| Failure::Failed(format!("{}: {error}", folder.display())))?;
        let outputs: Vec<PathBuf> =
            (0..num_copies).map(|copy| folder.join(format!("r{repetition}c{copy}.json"))).collect();
        if !outputs.iter().all(|output| output.exists()) {
            Local::new(self.file, self.trainer, None, self.checks_quiet).wait_for_quiet();
            run_together(self.file, cell, self.trainer, &outputs)?;
        }
        let profiles = outputs.iter().map(|output| read(output)).collect::<Outcome<Vec<_>>>()?;
        // All ranks wait for the slowest.
        let slowest =
            profiles.into_iter().map(|profile| (step_seconds(&profile), profile)).max_by(|a, b| a.0.total_cmp(&b.0));
        slowest.ok_or_else(|| Failure::Failed("no profile was taken".to_owned()))
    }
}

/// Steps of as many ranks alone as there are `outputs`, at the same time.
fn run_together(file: &StudyFile, cell: &Cell, trainer: &Path, outputs: &[PathBuf]) -> Outcome {
    let mut running = Vec::new();
    for (copy, output) in outputs.iter().enumerate() {
        let mut words = of_one_rank(&cell.arguments);
        words.extend(["--profile-output".to_owned(), output.display().to_string()]);
        let command = local::alone(trainer, &words, copy, cell.threads);
        running.push((Guarded::start(&command, &output.with_extension("log"))?, output));
    }
    for (guarded, output) in running {
        if guarded.finish(Duration::from_secs(file.limit_s as u64))? != Some(0) {
            return Err(Failure::Failed(format!("the run for {} failed: see its log beside it", output.display())));
        }
    }
    Ok(())
}

fn read(profile: &Path) -> Outcome<Value> {
    let failed = |what: String| Failure::Failed(format!("the profile {}: {what}", profile.display()));
    let text = fs::read_to_string(profile).map_err(|error| failed(error.to_string()))?;
    serde_json::from_str(&text).map_err(|error| failed(format!("expected JSON: {error}")))
}

/// Cells with the same step on one rank have the same key.
fn key(cell: &Cell) -> String {
    let words = of_one_rank(&cell.arguments);
    let plain = |c: char| if c.is_ascii_alphanumeric() || ".-_".contains(c) { c } else { '_' };
    let further = words.iter().skip(1).filter(|word| *word != "--json").map(|word| word.trim_start_matches("--"));
    further.collect::<Vec<_>>().join("-").chars().map(plain).collect()
}

/// The words without what concerns other ranks.
fn of_one_rank(arguments: &[String]) -> Vec<String> {
    let mut words = Vec::new();
    let mut rest = arguments.iter();
    while let Some(word) = rest.next() {
        if OF_SYNCHRONISATION.contains(&word.as_str()) {
            rest.next();
        } else if word.split_once('=').is_none_or(|(flag, _)| !OF_SYNCHRONISATION.contains(&flag)) {
            words.push(word.clone());
        }
    }
    words
}

/// Forward and backward pass, wherever the file has them.
fn step_seconds(profile: &Value) -> f64 {
    let text = profile.to_string();
    ["forward_s", "backward_s"].iter().filter_map(|key| json::number(&text, key)).sum()
}

/// The method as `predict-scaling` calls it.
fn method(cell: &Cell) -> Result<String, String> {
    let or = |name: &str, default: &str| match cell.setting(name) {
        empty if empty.is_empty() => default.to_owned(),
        value => value,
    };
    let place = if cell.setting("server_placement") == "own" { "@own" } else { "" };
    let staleness = cell.setting("staleness");
    let staleness = if staleness.is_empty() { staleness } else { format!(":{staleness}") };
    let method = match cell.setting("sync").as_str() {
        "allreduce" => match cell.setting("reduction").as_str() {
            "" => "allreduce".to_owned(),
            "exact" => "exact".to_owned(),
            reduction => format!("allreduce:{reduction}"),
        },
        "parameter-server" => format!("parameter-server:{}{place}", or("servers", "1")),
        "async-parameter-server" => format!("async-parameter-server:{}{staleness}{place}", or("servers", "1")),
        "local-sgd" => format!("local-sgd:{}", or("every", "8")),
        other => return Err(format!("no prediction is known for sync {other}")),
    };
    let compression = cell.setting("compress");
    Ok(if compression == "none" { method } else { format!("{method}+{compression}") })
}

fn predict(cell: &Cell, profile: &Path, network: &Path, directory: &Path, trainer: &Path) -> Result<(), String> {
    let path = directory.join("predictions").join(format!("{}.json", cell.id));
    let folder = directory.join("predictions");
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut command = std::process::Command::new(trainer);
    command.arg("predict-scaling").arg("--profile").arg(profile).arg("--network").arg(network);
    command.args(["--ranks", &cell.ranks.to_string(), "--methods", &method(cell)?]).arg("--output").arg(&path);
    for flag in ["bucket_mib", "overlap"] {
        let value = cell.setting(flag);
        if !value.is_empty() {
            command.arg(format!("--{}", flag.replace('_', "-"))).arg(value);
        }
    }
    if let Some(ranks) = ranks_per_node(cell) {
        command.args(["--ranks-per-node", &ranks.to_string()]);
    }
    mpirun::forget_surrounding_job(&mut command);
    let output = command.output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(super::attempt::last_words(&String::from_utf8_lossy(&output.stderr)));
    }
    let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut value: Value = serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?;
    assign(&mut value, cell);
    json::write(&path, &value).map_err(|failure| failure.to_string())
}

/// Ranks on each host where there are more of them than hosts.
fn ranks_per_node(cell: &Cell) -> Option<usize> {
    match cell.place {
        Place::Hosts { hosts, .. } | Place::Slurm { hosts } if cell.world_size > hosts => {
            Some(cell.world_size.div_ceil(hosts))
        }
        _ => None,
    }
}

/// Says in a file of predictions which of them are the cell's, and how the cell scales: its step is predicted from its own batch, so
/// against one rank with the same batch no speedup of a strong scaling is told.
fn assign(file: &mut Value, cell: &Cell) {
    let predictions = file["predictions"].as_array_mut().into_iter().flatten();
    for prediction in predictions.filter(|prediction| prediction.is_object() && prediction["ranks"] == cell.ranks) {
        prediction["cell"] = Value::String(cell.id.clone());
        if cell.setting("scaling") == "strong" {
            prediction["scaling"] = Value::String("strong".to_owned());
            prediction["speedup"] = Value::Null;
            prediction["efficiency"] = Value::Null;
        }
    }
}

#[cfg(test)]
mod tests;
