//! Predictions of a study's runs: a step's profile and the measured network, put together by `trainer predict-scaling`.
//!
//! In: cells, network.json files of the study's own network measurements. Out: profiles/*.json, predictions/*.json.
//! Invariant: nothing is taken from the predicted runs; what is there already is not measured again.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use super::cell::Cell;
use super::file::{Profile, StudyFile};
use super::local::Local;
use super::{flags, local, plan, write_json};
use crate::cores;
use crate::failure::{Failure, Outcome};
use crate::guard::Guarded;
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

/// Makes the predictions of all cells that have what they need.
pub(super) fn run(file: &StudyFile, cells: &[Cell], directory: &Path, trainer: &Path, checks_quiet: bool) -> Outcome {
    let knows_profiles =
        process::answer(trainer, &["bench", "--help"]).is_some_and(|help| help.contains("--profile-output"));
    if !knows_profiles || !flags::has_command(trainer, "predict-scaling") {
        println!("note: this trainer has no `predict-scaling` or `bench --profile-output`: nothing is predicted");
        return Ok(());
    }
    for cell in cells.iter().filter(|cell| plan::is_predicted(cell)) {
        let network = cells.iter().filter(|other| plan::measures_network_of(other, cell));
        let Some(network) = network.flat_map(|other| measured(other, directory)).next() else {
            println!("note: {}: its network has not been measured: not predicted", cell.id);
            continue;
        };
        let profile = profile(file, cells, cell, directory, trainer, checks_quiet)?;
        match predict(cell, &profile, &network, directory, trainer) {
            Ok(()) => {}
            // What cannot be predicted, as a method that the simulation does not know, is no reason to lose the rest.
            Err(failure) => println!("note: {}: not predicted: {failure}", cell.id),
        }
    }
    Ok(())
}

/// The newest network file of a measuring cell that succeeded.
fn measured(cell: &Cell, directory: &Path) -> Option<PathBuf> {
    let runs = fs::read_dir(directory.join("runs").join(&cell.id)).ok()?;
    let files = runs.filter_map(|run| Some(run.ok()?.path().join("network.json"))).filter(|file| file.exists());
    files.max()
}

/// The profile of a cell's step on one rank, taken now if it is not there.
fn profile(
    file: &StudyFile,
    cells: &[Cell],
    cell: &Cell,
    directory: &Path,
    trainer: &Path,
    checks_quiet: bool,
) -> Outcome<PathBuf> {
    let key = key(cell);
    let path = directory.join("profiles").join(format!("{key}.json"));
    if path.exists() {
        return Ok(path);
    }
    let alike = cells.iter().filter(|other| plan::is_predicted(other) && self::key(other) == key);
    let most_ranks = alike.map(|other| other.ranks).max().unwrap_or(1);
    let num_copies = match file.profile {
        Some(Profile::Together) => most_ranks.min(cores::available() / cell.threads).max(1),
        _ => 1,
    };
    let folder = directory.join("profiles").join(&key);
    fs::create_dir_all(&folder).map_err(|error| Failure::Failed(format!("{}: {error}", folder.display())))?;
    let machine = Local::new(file, trainer, None, checks_quiet);
    let mut taken = Vec::new();
    for repetition in 1..=file.repetitions.max(1) {
        machine.wait_for_quiet();
        let copies = (0..num_copies).map(|copy| (copy, folder.join(format!("r{repetition}c{copy}.json")))).collect();
        taken.push(slowest_copy(file, cell, trainer, copies)?);
    }
    taken.sort_by(|a: &(f64, Value), b| a.0.total_cmp(&b.0));
    let (_, value) = taken.swap_remove(taken.len() / 2);
    write_json(&path, &value)?;
    println!("profile {key}: {num_copies} at once, the median of {} times", file.repetitions.max(1));
    Ok(path)
}

/// Steps of as many ranks alone as there are `copies`, at the same time: the slowest, as all ranks wait for it.
fn slowest_copy(file: &StudyFile, cell: &Cell, trainer: &Path, copies: Vec<(usize, PathBuf)>) -> Outcome<(f64, Value)> {
    let mut running = Vec::new();
    for (copy, output) in copies {
        let mut words = of_one_rank(&cell.arguments);
        words.extend(["--profile-output".to_owned(), output.display().to_string()]);
        let mut command = local::alone(trainer, &words, copy, cell.threads);
        mpirun::forget_surrounding_job(&mut command);
        running.push((Guarded::start(&command, &output.with_extension("log"))?, output));
    }
    let mut slowest: Option<(f64, Value)> = None;
    for (guarded, output) in running {
        let code = guarded.finish(Duration::from_secs(file.limit_s as u64))?;
        let failed =
            |what: &str| Failure::Failed(format!("the profile {}: {what}: see its log beside it", output.display()));
        if code != Some(0) {
            return Err(failed("the run failed"));
        }
        let text = fs::read_to_string(&output).map_err(|error| failed(&error.to_string()))?;
        let value: Value = serde_json::from_str(&text).map_err(|error| failed(&format!("expected JSON: {error}")))?;
        let seconds = step_seconds(&value);
        if slowest.as_ref().is_none_or(|(most, _)| seconds > *most) {
            slowest = Some((seconds, value));
        }
    }
    slowest.ok_or_else(|| Failure::Failed("no profile was taken".to_owned()))
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
    ["forward_s", "backward_s"].iter().filter_map(|key| crate::json::number(&text, key)).sum()
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
    mpirun::forget_surrounding_job(&mut command);
    let output = command.output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(super::attempt::last_words(&String::from_utf8_lossy(&output.stderr)));
    }
    let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut value: Value = serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?;
    for prediction in value["predictions"].as_array_mut().into_iter().flatten() {
        if prediction["ranks"] == cell.ranks && prediction.is_object() {
            prediction["cell"] = Value::String(cell.id.clone());
        }
    }
    write_json(&path, &value).map_err(|failure| failure.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use toml::Table;

    fn cells(lines: &str) -> Vec<Cell> {
        let text = format!(
            "name = \"a\"\ntitle = \"A\"\nabout = \"a\"\n[[matrix]]\nbatch_size_per_rank = 8\nranks = 2\n{lines}"
        );
        plan::cells(&StudyFile::read("s.toml", &text, &Table::new()).unwrap()).unwrap()
    }

    #[test]
    fn methods_are_called_as_the_prediction_calls_them() {
        for (lines, expected) in [
            ("", "allreduce"),
            ("reduction = \"ring\"", "allreduce:ring"),
            ("compress = \"bf16\"", "allreduce+bf16"),
            ("reduction = \"exact\"", "exact"),
            ("sync = \"parameter-server\"\nservers = 2", "parameter-server:2"),
            ("sync = \"async-parameter-server\"", "async-parameter-server:1"),
            (
                "sync = \"async-parameter-server\"\nstaleness = 2\nserver_placement = \"own\"",
                "async-parameter-server:1:2@own",
            ),
            ("sync = \"local-sgd\"\ncompress = \"powersgd:4\"", "local-sgd:8+powersgd:4"),
        ] {
            assert_eq!(method(&cells(lines)[0]).unwrap(), expected);
        }
        assert!(method(&cells("sync = \"post-local-sgd\"")[0]).is_err());
    }

    #[test]
    fn cells_that_differ_in_what_concerns_other_ranks_share_a_profile() {
        let cells =
            cells("sync = [\"allreduce\", { sync = \"local-sgd\", every = 4 }]\ncompress = [\"none\", \"bf16\"]\n");
        assert_eq!(cells.len(), 4);
        assert!(cells.iter().all(|cell| key(cell) == key(&cells[0])));
        let words = of_one_rank(&cells[0].arguments).join(" ");
        assert_eq!(words, "bench --dtype f32 --model resnet20 --threads 1 --batch-size-per-rank 8 --json");
        assert_eq!(step_seconds(&serde_json::json!({ "profile": { "forward_s": 1.0, "backward_s": 2.0 } })), 3.0);
    }
}
