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

use records::{NetbenchResult, OF_SYNCHRONISATION, PredictionFile, ProfileFile};

use crate::attempt::Attempt;
use crate::cell::{Cell, Place, folder_name};
use crate::file::Profile;
use crate::journal::Records;
use crate::plan;
use crate::processes::{Processes, last_words};
use crate::runs::{Runs, alone};
use cluster::cores;
use cluster::failure::{Failure, Outcome, at, failed};
use cluster::json;
use cluster::mpirun;
use cluster::output::say;
use cluster::process;

impl Runs<'_> {
    /// Writes the predictions of attempts that have not begun. A failure is printed and affects no
    /// other cell; existing files stay. `cells` are all cells, also those that measure networks.
    pub(crate) fn predict<'c>(
        &self,
        cells: &'c [Cell],
        records: &Records,
        next: impl Iterator<Item = Attempt<'c>>,
    ) {
        if self.file.predict.is_none() {
            return;
        }
        // A failed profile is not repeated for the next cell.
        let mut profiles = BTreeMap::new();
        for attempt in next {
            let Attempt {
                cell, repetition, ..
            } = attempt;
            // Written as `.json.unfinished`.
            let name = folder_name(format!("{}-r{repetition}", cell.id), 238);
            let target = self.directory.join(format!("predictions/{name}.json"));
            if !plan::is_predicted(cell) || target.exists() || self.is_submitted(&attempt) {
                continue;
            }
            // The newest quiet measurement of the network, otherwise the newest disturbed one.
            let measuring = cells.iter();
            let measuring = measuring.filter(|other| plan::measures_network_of(other, cell));
            let measured = measuring
                .filter_map(|other| records.newest(&other.id))
                .next();
            let predicted = match measured {
                None => Err("its network was not measured".to_owned()),
                Some(record) => {
                    let network = self.directory.join(&record.directory).join("network.json");
                    let profile = profiles.entry(key(cell)).or_insert_with(|| {
                        let profile = self.profile(cells, cell, repetition);
                        profile.map_err(|failure| failure.to_string())
                    });
                    profile.clone().and_then(|profile| {
                        self.predict_cell(&attempt, &profile, &network, &target)
                            .map_err(|failure| failure.to_string())
                    })
                }
            };
            if let Err(why) = predicted {
                say!("note: {}: not predicted: {why}", cell.id);
            }
        }
    }

    /// Profiles the step of one rank: of as many ranks at the same time as the largest run has, the
    /// slowest; with `profile = "alone"` of one rank.
    fn profile(&self, cells: &[Cell], cell: &Cell, repetition: usize) -> Outcome<PathBuf> {
        let key = key(cell);
        let is_alike = |other: &&Cell| plan::is_predicted(other) && self::key(other) == key;
        let alike = cells.iter().filter(is_alike);
        let most_ranks = alike.map(|other| other.ranks).max().unwrap_or(1);
        let num_copies = match self.file.predict.as_ref().map(|table| table.profile) {
            Some(Profile::Together) => most_ranks.min(cores::available() / cell.threads).max(1),
            _ => 1,
        };
        let folder = self.directory.join("profiles").join(&key);
        fs::create_dir_all(&folder).map_err(at(&folder))?;
        let outputs: Vec<PathBuf> = (0..num_copies)
            .map(|copy| folder.join(format!("r{repetition}c{copy}.json")))
            .collect();
        if !outputs.iter().all(|output| output.exists()) {
            let rank = |(copy, output): (usize, &PathBuf)| {
                let mut words = of_one_rank(&cell.arguments);
                words.extend(["--profile-output".to_owned(), output.display().to_string()]);
                alone(self.trainer, &words, copy, cell.threads)
            };
            // The last attempt counts, even if others disturbed it.
            for attempt in 1..=self.file.attempts {
                self.wait_for_quiet();
                let processes = Processes {
                    ranks: outputs.iter().enumerate().map(rank).collect(),
                    servers: Vec::new(),
                };
                let mark = format!("{}/profiles", self.file.name);
                let (ended, _, looks) = self.observed(processes, &folder, &mark)?;
                ended.map_err(|failed| failed!("{}: {}", folder.display(), failed.why))?;
                let Some(why) = self.disturbance(&looks.seen(None).quiet) else {
                    break;
                };
                let attempts = self.file.attempts;
                say!("note: the profile {key}, attempt {attempt} of {attempts}: {why}");
            }
        }
        // All ranks wait for the slowest.
        let mut slowest: Option<(f64, PathBuf)> = None;
        for output in outputs {
            let profile: ProfileFile = json::read(&output)?;
            let seconds = profile.forward_s + profile.backward_s;
            if slowest.as_ref().is_none_or(|(most, _)| seconds > *most) {
                slowest = Some((seconds, output));
            }
        }
        let slowest = slowest.map(|(_, output)| output);
        slowest.ok_or_else(|| failed!("no profile was taken"))
    }

    fn predict_cell(
        &self,
        attempt: &Attempt<'_>,
        profile: &Path,
        network: &Path,
        target: &Path,
    ) -> Outcome {
        let cell = attempt.cell;
        let measured: NetbenchResult = json::read(network)?;
        check_cpu(
            &json::read::<ProfileFile>(profile)?.cpu_model,
            &measured.environment.processor,
        )?;
        fs::create_dir_all(self.directory.join("predictions")).map_err(at(target))?;
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
        process::ask(&mut command)?.map_err(|text| Failure::Failed(last_words(&text)))?;
        let mut predictions: PredictionFile = json::read(partial)?;
        assign(&mut predictions, cell, attempt.repetition);
        json::write(target, &predictions)?;
        fs::remove_file(partial).map_err(at(target))
    }
}

/// Refuses a profile of another CPU than the network's, as on a cluster whose nodes differ from
/// this machine.
fn check_cpu(step: &str, nodes: &str) -> Outcome {
    let is_known = |name: &str| !name.is_empty() && name != "unknown";
    if is_known(step) && is_known(nodes) && step != nodes {
        return Err(failed!(
            "the step was profiled on another CPU than the network (expected `{nodes}`, got `{step}`). \
             Start the study on such a machine."
        ));
    }
    Ok(())
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
        failed!("the simulation does not support sync {sync}")
    })
}

/// Returns the ranks on each host, if there are more ranks than hosts.
fn ranks_per_node(cell: &Cell) -> Option<usize> {
    let hosts = cell.place.hosts();
    let is_shared = cell.place != Place::Machine && cell.world_size > hosts;
    is_shared.then(|| cell.world_size.div_ceil(hosts))
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
    fn method_and_ranks_of_a_host_follow_from_the_settings() {
        let own = "sync = \"parameter-server\"\nservers = 2\nserver_placement = \"own\"";
        let hosts = "network = \"hosts:1gbit\"";
        for (lines, expected, on_each) in [
            ("", Ok("allreduce:hierarchical"), None),
            (hosts, Ok("allreduce:hierarchical"), None),
            (
                "network = \"slurm\"\nhosts = 1",
                Ok("allreduce:hierarchical"),
                Some(2),
            ),
            (
                &format!("{hosts}\n{own}"),
                Ok("parameter-server:2@own"),
                Some(2),
            ),
            (
                "sync = \"post-local-sgd\"",
                Err("does not support sync post-local-sgd"),
                None,
            ),
        ] {
            let cell = &cells(lines)[0];
            assert_eq!(ranks_per_node(cell), on_each, "{lines}");
            match (method(cell), expected) {
                (Ok(method), Ok(expected)) => assert_eq!(method, expected, "{lines}"),
                (Err(failure), Err(part)) => assert!(failure.to_string().contains(part)),
                (method, _) => panic!("{lines}: {method:?}"),
            }
        }
    }

    #[test]
    fn a_prediction_of_strong_scaling_has_no_speedup() {
        let assigned = |scaling: &str, batch: &str| {
            let text = format!("[[matrix]]\nscaling = \"{scaling}\"\n{batch} = 8\nranks = 2\n");
            let (_, cells) = study(&text).unwrap();
            let value = serde_json::json!({ "predictions": [{ "ranks": 2, "speedup": 1.9 }, { "ranks": 4 }] });
            let mut file = serde_json::from_value(value).unwrap();
            assign(&mut file, &cells[0], 3);
            assert_eq!(file.predictions[0].cell.as_ref(), Some(&cells[0].id));
            assert_eq!(
                (file.predictions[0].repetition, &file.predictions[1].cell),
                (Some(3), &None)
            );
            (
                file.predictions[0].scaling.clone(),
                file.predictions[0].speedup,
            )
        };
        assert_eq!(assigned("weak", "batch_size_per_rank").1, Some(1.9));
        let strong = assigned("strong", "global_batch_size");
        assert_eq!(strong, ("strong".to_owned(), None));
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
    fn a_step_of_another_cpu_predicts_nothing() {
        for (step, nodes) in [("A", "A"), ("A", "unknown"), ("", "")] {
            check_cpu(step, nodes).unwrap();
        }
        let refusal = check_cpu("A", "B").unwrap_err().to_string();
        assert!(refusal.contains("expected `B`, got `A`"), "{refusal}");
    }
}
