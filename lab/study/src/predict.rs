//! Predictions of a study's runs, by `trainer predict-scaling` from a step's profile and the
//! measured network.
//!
//! In: cells, network.json files of the study. Out: profiles/*.json, predictions/*.json, one for
//! each repetition.
//! Invariant: a prediction is on disk before its run starts, uses nothing of the run, and is never
//! repeated.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use records::{NetbenchResult, OF_SYNCHRONISATION, PredictionFile, ProfileFile};
use serde::de::DeserializeOwned;

use crate::cell::{Cell, Place, folder_name};
use crate::file::{Profile, StudyFile};
use crate::journal::Records;
use crate::local::{Local, alone};
use crate::plan;
use crate::processes::last_words;
use crate::quiet::Watch;
use cluster::cores;
use cluster::failure::{Failure, Outcome};
use cluster::guard::Guarded;
use cluster::json;
use cluster::mpirun;
use cluster::output::say;

/// Predicts one repetition of all cells of a study.
pub(crate) struct Predicting<'a> {
    pub(crate) file: &'a StudyFile,
    /// All cells, also those that measure networks.
    pub(crate) cells: &'a [Cell],
    pub(crate) records: &'a Records,
    pub(crate) directory: &'a Path,
    pub(crate) trainer: &'a Path,
    pub(crate) checks_quiet: bool,
}

impl Predicting<'_> {
    /// Writes the predictions of a repetition that has not begun. A failure is printed and affects
    /// no other cell; existing files stay.
    pub(crate) fn freeze(&self, cells: &[&Cell], repetition: usize) {
        // A failed profile is not repeated for the next cell.
        let mut profiles = BTreeMap::new();
        for cell in cells.iter().filter(|cell| plan::is_predicted(cell)) {
            let target = self.path(cell, repetition);
            if target.exists() {
                continue;
            }
            let measuring = self.cells.iter();
            let measuring = measuring.filter(|other| plan::measures_network_of(other, cell));
            let Some(network) = measuring.filter_map(|other| self.network(other)).next() else {
                say!(
                    "note: {}: not predicted: its network was not measured",
                    cell.id
                );
                continue;
            };
            let profile = profiles.entry(key(cell)).or_insert_with(|| {
                let profile = self.profile(cell, repetition);
                profile.map_err(|failure| failure.to_string())
            });
            let predicted = match profile {
                Ok(profile) => self
                    .predict(cell, profile, &network, &target, repetition)
                    .map_err(|failure| failure.to_string()),
                Err(failure) => Err(failure.clone()),
            };
            if let Err(failure) = predicted {
                say!("note: {}: not predicted: {failure}", cell.id);
            }
        }
    }

    fn path(&self, cell: &Cell, repetition: usize) -> PathBuf {
        // Written as `.json.unfinished`.
        let name = folder_name(format!("{}-r{repetition}", cell.id), 238);
        let folder = self.directory.join("predictions");
        folder.join(format!("{name}.json"))
    }

    /// Returns the network file of a cell's newest quiet attempt, otherwise of the newest disturbed
    /// one.
    fn network(&self, cell: &Cell) -> Option<PathBuf> {
        let record = self.records.newest(&cell.id)?;
        Some(self.directory.join(&record.directory).join("network.json"))
    }

    /// Profiles the step of one rank: of as many ranks at the same time as the largest run has, the
    /// slowest; with `profile = "alone"` of one rank.
    fn profile(&self, cell: &Cell, repetition: usize) -> Outcome<PathBuf> {
        let key = key(cell);
        let is_alike = |other: &&Cell| plan::is_predicted(other) && self::key(other) == key;
        let alike = self.cells.iter().filter(is_alike);
        let most_ranks = alike.map(|other| other.ranks).max().unwrap_or(1);
        let num_copies = match self.file.predict.as_ref().map(|table| table.profile) {
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
            let local = Local::new(self.file, self.trainer, self.directory, self.checks_quiet);
            until_undisturbed(self.file.attempts, &key, || {
                local.wait_for_quiet();
                // Child processes need no mark.
                let watch = Watch::start("-")?;
                self.run_together(cell, &outputs)?;
                Ok(local.disturbance(&watch.finish().seen(None).quiet))
            })?;
        }
        // All ranks wait for the slowest.
        let mut slowest: Option<(f64, PathBuf)> = None;
        for output in outputs {
            let profile: ProfileFile = read(&output)?;
            let seconds = profile.forward_s + profile.backward_s;
            if slowest.as_ref().is_none_or(|(most, _)| seconds > *most) {
                slowest = Some((seconds, output));
            }
        }
        let slowest = slowest.map(|(_, output)| output);
        slowest.ok_or_else(|| Failure::Failed("no profile was taken".to_owned()))
    }

    /// Profiles a step on each of several independent ranks at the same time.
    fn run_together(&self, cell: &Cell, outputs: &[PathBuf]) -> Outcome {
        let mut running = Vec::new();
        for (copy, output) in outputs.iter().enumerate() {
            let mut words = of_one_rank(&cell.arguments);
            words.extend(["--profile-output".to_owned(), output.display().to_string()]);
            let command = alone(self.trainer, &words, copy, cell.threads);
            let log = output.with_extension("log");
            running.push((Guarded::start(&command, &log)?, log));
        }
        let limit = Duration::from_secs(self.file.limit_s as u64);
        for (guarded, log) in running {
            if guarded.finish(limit)? != Some(0) {
                let text = format!("the profile failed: see {}", log.display());
                return Err(Failure::Failed(text));
            }
        }
        Ok(())
    }

    fn predict(
        &self,
        cell: &Cell,
        profile: &Path,
        network: &Path,
        target: &Path,
        repetition: usize,
    ) -> Outcome {
        let measured: NetbenchResult = read(network)?;
        check_processor(
            &read::<ProfileFile>(profile)?.cpu_model,
            &measured.environment.processor,
        )?;
        let failed = |text: String| Failure::Failed(format!("{}: {text}", target.display()));
        let folder = target.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder).map_err(|error| failed(error.to_string()))?;
        // A partial file is never taken for a prediction.
        let partial = &target.with_extension("partial");
        let mut command = Command::new(self.trainer);
        command.arg("predict-scaling").arg("--profile").arg(profile);
        command.arg("--network").arg(network);
        command.args(["--ranks", &cell.ranks.to_string()]);
        command.args(["--methods", &method(cell)?]);
        command.arg("--output").arg(partial);
        for flag in ["bucket_mib", "overlap"] {
            let value = cell.setting(flag);
            if !value.is_empty() {
                command.args([format!("--{}", flag.replace('_', "-")), value]);
            }
        }
        if let Some(ranks) = ranks_per_node(cell) {
            command.args(["--ranks-per-node", &ranks.to_string()]);
        }
        mpirun::forget_surrounding_job(&mut command);
        let output = command
            .output()
            .map_err(|error| failed(error.to_string()))?;
        if !output.status.success() {
            let complaint = String::from_utf8_lossy(&output.stderr);
            return Err(Failure::Failed(last_words(&complaint)));
        }
        let mut predictions: PredictionFile = read(partial)?;
        assign(&mut predictions, cell, repetition);
        json::write(target, &predictions)?;
        fs::remove_file(partial).map_err(|error| failed(error.to_string()))
    }
}

/// Repeats a run while it is disturbed, up to a number of attempts; the last one counts.
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

/// Refuses a profile of another CPU than the network's, as on a cluster whose nodes differ from
/// this machine.
fn check_processor(step: &str, nodes: &str) -> Outcome {
    let is_known = |name: &str| !name.is_empty() && name != "unknown";
    if is_known(step) && is_known(nodes) && step != nodes {
        return Err(Failure::Failed(format!(
            "the step was profiled on another CPU than the network (expected `{nodes}`, got `{step}`). \
             Start the study on such a machine."
        )));
    }
    Ok(())
}

fn read<T: DeserializeOwned>(path: &Path) -> Outcome<T> {
    let failed = |error: String| Failure::Failed(format!("{}: {error}", path.display()));
    let text = records::file::read_to_string(path).map_err(|error| failed(error.to_string()))?;
    let value = serde_json::from_str(&text).map_err(|error| failed(error.to_string()))?;
    records::from_value(value).map_err(|error| failed(error.to_string()))
}

/// Returns a key that cells with the same step on one rank have in common.
fn key(cell: &Cell) -> String {
    let words = of_one_rank(&cell.arguments);
    let words = words.iter().skip(1).filter(|word| *word != "--json");
    let words: Vec<&str> = words.map(|word| word.trim_start_matches("--")).collect();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
    let name = words.join("-").replace(|c: char| !is_plain(c), "_");
    // Endings such as `.json.unfinished` are added to the name.
    folder_name(name, 230)
}

/// Returns the words without options of synchronisation.
pub(crate) fn of_one_rank(arguments: &[String]) -> Vec<String> {
    let mut words = Vec::new();
    let mut rest = arguments.iter();
    while let Some(word) = rest.next() {
        let flag = word.split('=').next().unwrap_or_default();
        let key = flag.trim_start_matches("--").replace('-', "_");
        if !flag.starts_with("--") || !OF_SYNCHRONISATION.contains(&key.as_str()) {
            words.push(word.clone());
        } else if flag == word {
            rest.next();
        }
    }
    words
}

/// Returns the method as `predict-scaling` names it.
fn method(cell: &Cell) -> Outcome<String> {
    let settings = cell.settings.iter();
    let settings = settings.filter_map(|(key, value)| Some((key.clone(), records::text(value)?)));
    records::method(&settings.collect()).ok_or_else(|| {
        let sync = cell.setting("sync");
        Failure::Failed(format!("the simulation does not support sync {sync}"))
    })
}

/// Returns the ranks on each host, if there are more ranks than hosts.
fn ranks_per_node(cell: &Cell) -> Option<usize> {
    match cell.place {
        Place::Hosts { hosts, .. } | Place::Slurm { hosts } if cell.world_size > hosts => {
            Some(cell.world_size.div_ceil(hosts))
        }
        _ => None,
    }
}

/// Adds cell, repetition and scaling to the cell's predictions. With strong scaling a prediction
/// has no speedup: its step has another batch than one rank's.
fn assign(file: &mut PredictionFile, cell: &Cell, repetition: usize) {
    let own = file.predictions.iter_mut();
    for prediction in own.filter(|prediction| prediction.ranks == cell.ranks) {
        prediction.cell = Some(cell.id.clone());
        prediction.repetition = Some(repetition as u64);
        if cell.setting("scaling") == "strong" {
            "strong".clone_into(&mut prediction.scaling);
            prediction.speedup = None;
            prediction.efficiency = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::study;

    fn cells(lines: &str) -> Vec<Cell> {
        let text = format!("[[matrix]]\nbatch_size_per_rank = 8\nranks = 2\n{lines}");
        study(&text).unwrap().1
    }

    #[test]
    fn a_method_follows_from_the_cells_settings_or_is_not_predicted() {
        let of = |lines: &str| method(&cells(lines)[0]).map_err(|failure| failure.to_string());
        let servers = of("sync = \"parameter-server\"\nservers = 2");
        assert_eq!(servers.as_deref(), Ok("parameter-server:2"));
        let unknown = of("sync = \"post-local-sgd\"").unwrap_err();
        assert!(unknown.contains("does not support sync post-local-sgd"));
    }

    #[test]
    fn ranks_share_a_host_only_if_there_are_more_of_them() {
        for (lines, expected) in [
            ("", None),
            ("network = \"hosts:1gbit\"", None),
            (
                "network = \"hosts:1gbit\"\nsync = \"parameter-server\"\nserver_placement = \"own\"",
                Some(2),
            ),
            ("network = \"slurm\"\nhosts = 1", Some(2)),
        ] {
            assert_eq!(ranks_per_node(&cells(lines)[0]), expected, "{lines}");
        }
    }

    #[test]
    fn a_strong_cells_prediction_has_no_speedup() {
        let assigned = |cell: &Cell| {
            let value = serde_json::json!({ "predictions": [{ "ranks": 2, "speedup": 1.9 }, { "ranks": 4 }] });
            let mut file = serde_json::from_value(value).unwrap();
            assign(&mut file, cell, 3);
            file.predictions
        };
        let weak = &cells("")[0];
        let predictions = assigned(weak);
        assert_eq!(predictions[0].cell.as_ref(), Some(&weak.id));
        assert_eq!(predictions[0].repetition, Some(3));
        assert_eq!(
            (predictions[0].speedup, &predictions[1].cell),
            (Some(1.9), &None)
        );
        let text = "[[matrix]]\nscaling = \"strong\"\nglobal_batch_size = 8\nranks = 2\n";
        let (_, strong) = study(text).unwrap();
        let predictions = assigned(&strong[0]);
        assert_eq!(predictions[0].scaling, "strong");
        assert_eq!(predictions[0].speedup, None);
    }

    #[test]
    fn cells_that_differ_in_synchronisation_share_a_profile() {
        let cells = cells(
            "sync = [\"allreduce\", { sync = \"local-sgd\", every = 4 }]\ncompress = [\"none\", \"bf16\"]\n",
        );
        assert_eq!(cells.len(), 4);
        assert!(cells.iter().all(|cell| key(cell) == key(&cells[0])));
        assert_eq!(
            of_one_rank(&cells[0].arguments).join(" "),
            "bench --dtype f32 --model resnet20 --threads 1 --batch-size-per-rank 8 --json"
        );
        let long = format!("data_dir = \"/{}\"", "x".repeat(300));
        assert_eq!(key(&self::cells(&long)[0]).len(), 230, "a folder's name");
    }

    #[test]
    fn a_disturbed_profile_is_repeated_up_to_the_number_of_attempts() {
        for (disturbed, runs) in [(0, 1), (1, 2), (9, 3)] {
            let mut made = 0;
            let run = || {
                made += 1;
                Ok((made <= disturbed).then(|| "others".to_owned()))
            };
            until_undisturbed(3, "a", run).unwrap();
            assert_eq!(made, runs);
        }
    }

    #[test]
    fn a_step_of_another_cpu_predicts_nothing() {
        for (step, nodes) in [("A", "A"), ("A", "unknown"), ("", "")] {
            check_processor(step, nodes).unwrap();
        }
        let refusal = check_processor("A", "B").unwrap_err().to_string();
        assert!(refusal.contains("expected `B`, got `A`"), "{refusal}");
    }
}
