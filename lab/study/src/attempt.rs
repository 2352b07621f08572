//! One attempt at one repetition of a cell: its directory, result and record.
//!
//! In: a [`Cell`], numbers, files that the program wrote. Out: the line of `records.jsonl`.
//! Invariant: a result is what the trainer wrote. Only results of other frameworks are computed, by
//! [`peer_result`].

use std::path::{Path, PathBuf};

use records::{ATTEMPT_SCHEMA, AttemptRecord, Quiet, Status};
use serde_json::Value;

use crate::cell::Cell;
use crate::file::Kind;
use crate::peers::{our_epochs, peer_result};
use cluster::failure::Outcome;
use cluster::{json, run_directory};

/// Cell, repetition and number of an attempt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempt<'a> {
    pub(crate) cell: &'a Cell,
    pub(crate) repetition: usize,
    pub(crate) number: usize,
}

/// The end of an attempt.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: Status,
    /// Reason for a status other than ok.
    pub(crate) why: Option<String>,
    pub(crate) started: Option<String>,
    pub(crate) seconds: Option<f64>,
    pub(crate) command: String,
    pub(crate) quiet: Option<Quiet>,
    pub(crate) result: Value,
}

impl Default for Ended {
    fn default() -> Self {
        Ended {
            status: Status::Ok,
            why: None,
            started: None,
            seconds: None,
            command: String::new(),
            quiet: None,
            result: Value::Null,
        }
    }
}

impl Ended {
    pub(crate) fn failed(why: String) -> Self {
        Ended {
            status: Status::Failed,
            why: Some(why),
            ..Ended::default()
        }
    }
}

impl Attempt<'_> {
    /// Returns the directory, relative to the study's.
    pub(crate) fn directory(&self) -> PathBuf {
        Path::new("runs")
            .join(&self.cell.id)
            .join(format!("r{}a{}", self.repetition, self.number))
    }

    /// Returns the mark by which the watch recognises the processes of the attempt.
    pub(crate) fn mark(&self, study: &str) -> String {
        format!("{study}/{}", self.directory().display())
    }

    /// Makes an empty directory; files in it are of an interrupted attempt.
    pub(crate) fn make_directory(&self, study: &Path) -> Outcome<PathBuf> {
        let directory = study.join(self.directory());
        run_directory::fresh(&directory)?;
        Ok(directory)
    }

    /// Returns the seed of a training: each repetition has its own, beginning with the cell's. With
    /// the same seed a repetition would be the same training.
    pub(crate) fn seed(&self) -> u64 {
        let seed = self.cell.settings.get("seed").and_then(Value::as_u64);
        let further = (self.repetition as u64).saturating_sub(1);
        seed.unwrap_or(0).wrapping_add(further)
    }

    /// Returns the words of the command, with the files that it writes.
    pub(crate) fn words(&self, directory: &Path) -> Vec<String> {
        let mut words = self.cell.arguments.clone();
        if self.cell.kind == Kind::Train && self.repetition > 1 {
            let seed = self.seed().to_string();
            match words.iter().position(|word| word == "--seed") {
                Some(place) => words[place + 1] = seed,
                None => words.extend(["--seed".to_owned(), seed]),
            }
        }
        let (flag, name) = match self.cell.kind {
            _ if self.cell.peer().is_some() => return words,
            Kind::Bench => return words,
            Kind::Train => ("--output-dir", "run"),
            Kind::Netbench => ("--output", "network.json"),
        };
        words.extend([flag.to_owned(), directory.join(name).display().to_string()]);
        words
    }

    /// Reads the result that the program wrote; `output` is what it printed.
    pub(crate) fn result(&self, directory: &Path, output: &str) -> Result<Value, String> {
        let read = |name: &str| -> Result<Value, String> {
            let text = records::file::read_to_string(&directory.join(name))
                .map_err(|error| format!("{name}: {error}"))?;
            serde_json::from_str(&text).map_err(|error| format!("{name}: expected JSON: {error}"))
        };
        if self.cell.peer().is_some() {
            return peer_result(self.cell, directory);
        }
        match self.cell.kind {
            Kind::Bench => output
                .lines()
                .rev()
                .filter(|line| line.starts_with('{'))
                .filter_map(|line| json::first(line).ok())
                .find(|value| value["images_per_second"].is_number())
                .ok_or_else(|| {
                    "expected a JSON object with images_per_second as the last line, got none"
                        .to_owned()
                }),
            Kind::Train => {
                let mut summary = read("run/summary.json")?;
                if summary["stopped_early"] == true {
                    return Err("the training was stopped before its end".to_owned());
                }
                if self.cell.framework.is_some() {
                    let epochs = our_epochs(&directory.join("run/metrics.jsonl"))?;
                    summary["epochs"] = serde_json::json!(epochs);
                }
                Ok(summary)
            }
            Kind::Netbench => read("network.json").map(|_| Value::Null),
        }
    }

    /// Returns the line of `records.jsonl`.
    pub(crate) fn record(&self, ended: Ended) -> AttemptRecord {
        AttemptRecord {
            schema: ATTEMPT_SCHEMA.to_owned(),
            cell: self.cell.id.clone(),
            repetition: self.repetition as u64,
            attempt: self.number as u64,
            status: ended.status,
            why: ended.why,
            started: ended.started,
            seconds: ended.seconds.map(|seconds| (seconds * 1e3).round() / 1e3),
            command: ended.command,
            directory: self.directory().display().to_string(),
            quiet: ended.quiet,
            result: ended.result,
        }
    }
}

/// Returns begin and end of the measured steps, seconds since 1970, if the result has them.
pub(crate) fn measured_unix_s(result: &Value) -> Option<[f64; 2]> {
    let measured = result["measured_unix_s"].as_array()?;
    Some([measured.first()?.as_f64()?, measured.get(1)?.as_f64()?])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::study;
    use serde_json::json;
    use std::fs;

    fn cell(kind: &str) -> Cell {
        let batch = if kind == "netbench" {
            ""
        } else {
            "batch_size_per_rank = 8\n"
        };
        study(&format!(
            "[[matrix]]\nkind = \"{kind}\"\nranks = 2\n{batch}"
        ))
        .unwrap()
        .1
        .remove(0)
    }

    #[test]
    fn a_benchs_result_is_its_last_object_with_a_speed() {
        let cell = cell("bench");
        let attempt = Attempt {
            cell: &cell,
            repetition: 1,
            number: 2,
        };
        let output = "start\n{\"images_per_second\": 1.0}\n{\"images_per_second\": 2.5}\n{\"other\": 1}\n--- end\n";
        assert_eq!(
            attempt.result(Path::new("/nonexistent"), output).unwrap()["images_per_second"],
            2.5
        );
        let mixed = "{\"images_per_second\": 3.5}warning: speeds vary\n\n";
        assert_eq!(
            attempt.result(Path::new("/nonexistent"), mixed).unwrap()["images_per_second"],
            3.5
        );
        assert!(
            attempt
                .result(Path::new("/nonexistent"), "{broken\n")
                .unwrap_err()
                .contains("got none")
        );
        assert!(attempt.directory().ends_with(format!("{}/r1a2", cell.id)));
    }

    #[test]
    fn repetitions_of_a_training_have_seeds_from_that_of_the_cell_on() {
        let with_seed = |cell: &Cell, repetition| {
            let words = Attempt {
                cell,
                repetition,
                number: 1,
            }
            .words(Path::new("/d"));
            let place = words.iter().position(|word| word == "--seed");
            place.map(|place| words[place + 1].clone())
        };
        let mut cell = cell("train");
        let of_default = [1, 3].map(|repetition| with_seed(&cell, repetition));
        assert_eq!(of_default, [None, Some("2".to_owned())]);
        cell.settings.insert("seed".to_owned(), json!(7));
        cell.arguments.extend(["--seed".to_owned(), "7".to_owned()]);
        assert_eq!(
            [1, 3].map(|repetition| with_seed(&cell, repetition)),
            [Some("7".to_owned()), Some("9".to_owned())]
        );
        cell.kind = Kind::Bench;
        assert_eq!(with_seed(&cell, 3), Some("7".to_owned()));
    }

    #[test]
    fn a_training_that_stopped_early_has_no_result() {
        let cell = cell("train");
        let attempt = Attempt {
            cell: &cell,
            repetition: 1,
            number: 1,
        };
        let directory = tempfile::tempdir().unwrap();
        assert!(attempt.words(directory.path()).join(" ").ends_with("/run"));
        fs::create_dir_all(directory.path().join("run")).unwrap();
        assert!(
            attempt
                .result(directory.path(), "")
                .unwrap_err()
                .contains("run/summary.json")
        );
        for (stopped, is_result) in [(true, false), (false, true)] {
            fs::write(
                directory.path().join("run/summary.json"),
                json!({ "stopped_early": stopped }).to_string(),
            )
            .unwrap();
            assert_eq!(attempt.result(directory.path(), "").is_ok(), is_result);
        }
    }

    #[test]
    fn a_record_has_everything_that_is_known() {
        let cell = cell("netbench");
        let attempt = Attempt {
            cell: &cell,
            repetition: 2,
            number: 1,
        };
        let ended = Ended {
            status: Status::Failed,
            why: Some("no".into()),
            started: None,
            seconds: Some(1.23456),
            command: "a b".into(),
            quiet: None,
            result: Value::Null,
        };
        let record = attempt.record(ended);
        assert_eq!(
            (record.schema.as_str(), record.status),
            (ATTEMPT_SCHEMA, Status::Failed)
        );
        assert_eq!((record.seconds, record.repetition), (Some(1.235), 2));
    }
}
