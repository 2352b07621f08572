//! Predictions of a study's runs: a step's profile and the measured network, put together by `trainer predict-scaling`.
//!
//! In: cells, network.json files of the study's own network measurements. Out: profiles/*.json, predictions/*.json, one a repetition.
//! Invariant: a prediction is on disk before the run that it predicts starts, and is never made anew; nothing is taken from that run.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use records::OF_SYNCHRONISATION;
use serde_json::Value;

use super::cell::{Cell, Place, folder_name};
use super::file::{Profile, StudyFile};
use super::journal::Records;
use super::local::Local;
use super::{flags, local, plan};
use crate::quiet::Watch;
use cluster::cores;
use cluster::failure::{Failure, Outcome};
use cluster::guard::Guarded;
use cluster::json;
use cluster::mpirun;
use cluster::output::say;
use cluster::process;

/// Predicts one repetition of all cells of a study.
pub(super) struct Predicting<'a> {
    pub(super) file: &'a StudyFile,
    /// All of them, also what measures networks.
    pub(super) cells: &'a [Cell],
    pub(super) records: &'a Records,
    pub(super) directory: &'a Path,
    pub(super) trainer: &'a Path,
    pub(super) checks_quiet: bool,
}

impl Predicting<'_> {
    /// Freezes the predictions of this repetition of these cells, which has not begun. What fails is said and no reason to lose the
    /// rest; what is there already stays as it is.
    pub(super) fn freeze(&self, cells: &[&Cell], repetition: usize) {
        let is_missing =
            |cell: &&&Cell| plan::is_predicted(cell) && !self.path(cell, repetition).exists();
        let cells: Vec<&Cell> = cells.iter().filter(is_missing).copied().collect();
        if cells.is_empty() || !self.can_predict() {
            return;
        }
        let mut profiles = BTreeMap::new();
        for cell in cells {
            let network = self
                .cells
                .iter()
                .filter(|other| plan::measures_network_of(other, cell));
            let Some(network) = network
                .flat_map(|other| measured(other, self.records, self.directory))
                .next()
            else {
                say!(
                    "note: {}: its network has not been measured: not predicted",
                    cell.id
                );
                continue;
            };
            // One that has failed is not tried again for the next cell.
            let profile = profiles.entry(key(cell)).or_insert_with(|| {
                self.profile(cell, repetition)
                    .map_err(|failure| failure.to_string())
            });
            let predicted = profile.as_ref().map_err(String::clone).and_then(|profile| {
                check_processor(
                    &read(profile).map_err(|failure| failure.to_string())?,
                    &read(&network).unwrap_or_default(),
                )?;
                // A method may be one that the simulation does not know.
                predict(
                    cell,
                    profile,
                    &network,
                    &self.path(cell, repetition),
                    self.trainer,
                    repetition,
                )
            });
            if let Err(failure) = predicted {
                say!("note: {}: not predicted: {failure}", cell.id);
            }
        }
    }

    fn can_predict(&self) -> bool {
        let knows_profiles = process::answer(self.trainer, &["bench", "--help"])
            .is_some_and(|help| help.contains("--profile-output"));
        let can = knows_profiles && flags::has_command(self.trainer, "predict-scaling");
        if !can {
            say!(
                "note: this trainer has no `predict-scaling` or `bench --profile-output`: nothing is predicted"
            );
        }
        can
    }

    fn path(&self, cell: &Cell, repetition: usize) -> PathBuf {
        // Written as `.json.unfinished`.
        let name = folder_name(format!("{}-r{repetition}", cell.id), 238);
        self.directory
            .join("predictions")
            .join(format!("{name}.json"))
    }

    /// The step of one rank, taken now: the slowest of as many ranks alone, at the same time, as the largest run of this step has; one
    /// where that was asked for.
    fn profile(&self, cell: &Cell, repetition: usize) -> Outcome<PathBuf> {
        let key = key(cell);
        let alike = self
            .cells
            .iter()
            .filter(|other| plan::is_predicted(other) && self::key(other) == key);
        let most_ranks = alike.map(|other| other.ranks).max().unwrap_or(1);
        let num_copies = match self.file.profile {
            Some(Profile::Together) => most_ranks.min(cores::available() / cell.threads).max(1),
            _ => 1,
        };
        let folder = self.directory.join("profiles").join(&key);
        fs::create_dir_all(&folder)
            .map_err(|error| Failure::Failed(format!("{}: {error}", folder.display())))?;
        let outputs: Vec<PathBuf> = (0..num_copies)
            .map(|copy| folder.join(format!("r{repetition}c{copy}.json")))
            .collect();
        if !outputs.iter().all(|output| output.exists()) {
            let local = Local::new(self.file, self.trainer, None, self.checks_quiet);
            until_undisturbed(self.file.attempts, &key, || {
                local.wait_for_quiet();
                // What it starts are our descendants, which need no mark.
                let watch = Watch::start("-")?;
                run_together(self.file, cell, self.trainer, &outputs)?;
                Ok(local.disturbance(&watch.finish().seen(None).quiet))
            })?;
        }
        let seconds = outputs
            .iter()
            .map(|output| Ok(step_seconds(&read(output)?)))
            .collect::<Outcome<Vec<f64>>>()?;
        // All ranks wait for the slowest.
        let slowest = seconds
            .into_iter()
            .zip(outputs)
            .max_by(|a, b| a.0.total_cmp(&b.0));
        slowest
            .map(|(_, output)| output)
            .ok_or_else(|| Failure::Failed("no profile was taken".to_owned()))
    }
}

/// Makes a run again while it tells what disturbed it, at most so often; the last one counts, and that is said.
fn until_undisturbed(
    attempts: usize,
    name: &str,
    mut run: impl FnMut() -> Outcome<Option<String>>,
) -> Outcome {
    for attempt in 1..=attempts {
        let Some(why) = run()? else { break };
        say!("note: the profile {name}, attempt {attempt} of {attempts}: {why}");
    }
    Ok(())
}

/// Refuses a step of another processor than the network's, as where a cluster's nodes are others than the machine that submits.
fn check_processor(profile: &Value, network: &Value) -> Result<(), String> {
    let told = |name: &Value| {
        name.as_str()
            .filter(|name| *name != "unknown")
            .map(str::to_owned)
    };
    match (
        told(&profile["cpu_model"]),
        told(&network["environment"]["processor"]),
    ) {
        (Some(step), Some(nodes)) if step != nodes => Err(format!(
            "its step was profiled on `{step}`, expected `{nodes}`, where its network was measured: start the study on such a machine"
        )),
        _ => Ok(()),
    }
}

/// The network file of a measuring cell's newest attempt that was quiet, else of the newest that was disturbed.
fn measured(cell: &Cell, records: &Records, directory: &Path) -> Option<PathBuf> {
    records
        .newest(&cell.id)
        .map(|record| directory.join(&record.directory).join("network.json"))
}

/// Steps of as many ranks alone as there are `outputs`, at the same time.
fn run_together(file: &StudyFile, cell: &Cell, trainer: &Path, outputs: &[PathBuf]) -> Outcome {
    let mut running = Vec::new();
    for (copy, output) in outputs.iter().enumerate() {
        let mut words = of_one_rank(&cell.arguments);
        words.extend(["--profile-output".to_owned(), output.display().to_string()]);
        let command = local::alone(trainer, &words, copy, cell.threads);
        running.push((
            Guarded::start(&command, &output.with_extension("log"))?,
            output,
        ));
    }
    for (guarded, output) in running {
        if guarded.finish(Duration::from_secs(file.limit_s as u64))? != Some(0) {
            return Err(Failure::Failed(format!(
                "the run for {} failed: see its log beside it",
                output.display()
            )));
        }
    }
    Ok(())
}

fn read(profile: &Path) -> Outcome<Value> {
    let failed =
        |what: String| Failure::Failed(format!("the profile {}: {what}", profile.display()));
    let text = records::file::read_to_string(profile).map_err(|error| failed(error.to_string()))?;
    serde_json::from_str(&text).map_err(|error| failed(format!("expected JSON: {error}")))
}

/// Cells with the same step on one rank have the same key.
fn key(cell: &Cell) -> String {
    let words = of_one_rank(&cell.arguments);
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() || ".-_".contains(c) {
            c
        } else {
            '_'
        }
    };
    let further = words
        .iter()
        .skip(1)
        .filter(|word| *word != "--json")
        .map(|word| word.trim_start_matches("--"));
    // With what is added, such as `.json.unfinished`, it is a file's name.
    folder_name(
        further
            .collect::<Vec<_>>()
            .join("-")
            .chars()
            .map(plain)
            .collect(),
        230,
    )
}

/// The words without what concerns other ranks.
pub(super) fn of_one_rank(arguments: &[String]) -> Vec<String> {
    let mut words = Vec::new();
    let mut rest = arguments.iter();
    while let Some(word) = rest.next() {
        let (flag, value) = word
            .split_once('=')
            .map_or((word.as_str(), None), |(flag, value)| (flag, Some(value)));
        let key = flag
            .strip_prefix("--")
            .unwrap_or_default()
            .replace('-', "_");
        if !OF_SYNCHRONISATION.contains(&key.as_str()) {
            words.push(word.clone());
        } else if value.is_none() {
            rest.next();
        }
    }
    words
}

/// Forward and backward pass, wherever the file has them.
fn step_seconds(profile: &Value) -> f64 {
    let text = profile.to_string();
    ["forward_s", "backward_s"]
        .iter()
        .filter_map(|key| json::number(&text, key))
        .sum()
}

/// The method as `predict-scaling` calls it.
fn method(cell: &Cell) -> Result<String, String> {
    let settings = cell
        .settings
        .iter()
        .filter_map(|(key, value)| Some((key.clone(), records::text(value)?)));
    records::method(&settings.collect())
        .ok_or_else(|| format!("no prediction is known for sync {}", cell.setting("sync")))
}

fn predict(
    cell: &Cell,
    profile: &Path,
    network: &Path,
    target: &Path,
    trainer: &Path,
    repetition: usize,
) -> Result<(), String> {
    let folder = target.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    // Whole or not there: what is there is never made again.
    let path = &target.with_extension("partial");
    let mut command = std::process::Command::new(trainer);
    command
        .arg("predict-scaling")
        .arg("--profile")
        .arg(profile)
        .arg("--network")
        .arg(network);
    command
        .args([
            "--ranks",
            &cell.ranks.to_string(),
            "--methods",
            &method(cell)?,
        ])
        .arg("--output")
        .arg(path);
    for flag in ["bucket_mib", "overlap"] {
        let value = cell.setting(flag);
        if !value.is_empty() {
            command
                .arg(format!("--{}", flag.replace('_', "-")))
                .arg(value);
        }
    }
    if let Some(ranks) = ranks_per_node(cell) {
        command.args(["--ranks-per-node", &ranks.to_string()]);
    }
    mpirun::forget_surrounding_job(&mut command);
    let output = command.output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(super::attempt::last_words(&String::from_utf8_lossy(
            &output.stderr,
        )));
    }
    let text = records::file::read_to_string(path)
        .map_err(|error| format!("{}: {error}", path.display()))?;
    let mut value: Value =
        serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?;
    assign(&mut value, cell, repetition);
    json::write(target, &value).map_err(|failure| failure.to_string())?;
    fs::remove_file(path).map_err(|error| format!("{}: {error}", path.display()))
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

/// Says in a file of predictions which of them are the cell's, for which repetition, and how the cell scales: its step is predicted from its own batch, so
/// against one rank with the same batch no speedup of a strong scaling is told.
fn assign(file: &mut Value, cell: &Cell, repetition: usize) {
    let predictions = file["predictions"].as_array_mut().into_iter().flatten();
    for prediction in
        predictions.filter(|prediction| prediction.is_object() && prediction["ranks"] == cell.ranks)
    {
        prediction["cell"] = Value::String(cell.id.clone());
        prediction["repetition"] = Value::from(repetition);
        if cell.setting("scaling") == "strong" {
            prediction["scaling"] = Value::String("strong".to_owned());
            prediction["speedup"] = Value::Null;
            prediction["efficiency"] = Value::Null;
        }
    }
}

#[cfg(test)]
mod tests;
