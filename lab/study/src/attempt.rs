//! One attempt at one repetition of a cell: where its files are, what it came to, its record.
//!
//! In: a [`Cell`], numbers, files that the trainer wrote. Out: the line of `records.jsonl`.
//! Invariant: a result is what the trainer wrote itself; nothing is computed from it here.

use std::path::{Path, PathBuf};

use records::{ATTEMPT_SCHEMA, AttemptRecord, Quiet, Status};
use serde_json::Value;

use super::cell::Cell;
use super::file::Kind;
use cluster::failure::Outcome;
use cluster::{json, run_directory};

/// Which attempt.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attempt<'a> {
    pub(super) cell: &'a Cell,
    pub(super) repetition: usize,
    pub(super) number: usize,
}

/// What came of it.
#[derive(Debug)]
pub(super) struct Came {
    pub(super) status: Status,
    /// Why it is not ok.
    pub(super) why: Option<String>,
    pub(super) started: Option<String>,
    pub(super) seconds: Option<f64>,
    pub(super) command: String,
    pub(super) quiet: Option<Quiet>,
    pub(super) result: Value,
}

impl Attempt<'_> {
    /// Relative to the study's directory.
    pub(super) fn directory(&self) -> PathBuf {
        Path::new("runs")
            .join(&self.cell.id)
            .join(format!("r{}a{}", self.repetition, self.number))
    }

    /// The mark of its processes for the watch over the machine.
    pub(super) fn mark(&self, study: &str) -> String {
        format!("{study}/{}", self.directory().display())
    }

    /// Makes its directory anew; what lies there is of an attempt that was interrupted.
    pub(super) fn make_directory(&self, study: &Path) -> Outcome<PathBuf> {
        let directory = study.join(self.directory());
        run_directory::fresh(&directory)?;
        Ok(directory)
    }

    /// The trainer's words with the files that it writes. Each repetition of a training has a seed of its own, from the cell's on: with
    /// the same one it would be the same training, timed again.
    pub(super) fn words(&self, directory: &Path) -> Vec<String> {
        let mut words = self.cell.arguments.clone();
        let further = (self.repetition as u64).saturating_sub(1);
        if self.cell.kind == Kind::Train && further > 0 {
            match words
                .iter()
                .position(|word| word == "--seed")
                .and_then(|place| words.get_mut(place + 1))
            {
                // What is no number is the trainer's to refuse.
                Some(seed) => {
                    *seed = seed.parse().map_or(seed.clone(), |seed: u64| {
                        seed.wrapping_add(further).to_string()
                    })
                }
                None => words.extend(["--seed".to_owned(), further.to_string()]),
            }
        }
        let (flag, name) = match self.cell.kind {
            Kind::Bench => return words,
            Kind::Train => ("--output-dir", "run"),
            Kind::Netbench => ("--output", "network.json"),
        };
        words.extend([flag.to_owned(), directory.join(name).display().to_string()]);
        words
    }

    /// What the trainer wrote at its end; `output` is what it printed; in a job of Slurm also on standard error.
    pub(super) fn result(&self, directory: &Path, output: &str) -> Result<Value, String> {
        let read = |name: &str| -> Result<Value, String> {
            let text = records::file::read_to_string(&directory.join(name))
                .map_err(|error| format!("{name}: {error}"))?;
            serde_json::from_str(&text).map_err(|error| format!("{name}: expected JSON: {error}"))
        };
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
                let summary = read("run/summary.json")?;
                if summary["stopped_early"] == true {
                    return Err("the training was stopped before its end".to_owned());
                }
                Ok(summary)
            }
            Kind::Netbench => read("network.json").map(|_| Value::Null),
        }
    }

    /// The line of `records.jsonl`.
    pub(super) fn record(&self, came: Came) -> AttemptRecord {
        AttemptRecord {
            schema: ATTEMPT_SCHEMA.to_owned(),
            cell: self.cell.id.clone(),
            repetition: self.repetition as u64,
            attempt: self.number as u64,
            status: came.status,
            why: came.why,
            started: came.started,
            seconds: came.seconds.map(|seconds| (seconds * 1e3).round() / 1e3),
            command: came.command,
            directory: self.directory().display().to_string(),
            quiet: came.quiet,
            result: came.result,
        }
    }
}

/// Begin and end of the measured steps, seconds since 1970, where a result tells them.
pub(super) fn measured_unix_s(result: &Value) -> Option<[f64; 2]> {
    let measured = result["measured_unix_s"].as_array()?;
    Some([measured.first()?.as_f64()?, measured.get(1)?.as_f64()?])
}

/// The last words of a program, for a message.
pub(super) fn last_words(output: &str) -> String {
    let lines: Vec<&str> = output
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    // An error is often followed by what a launcher says about it, and said by several ranks.
    let error = lines.iter().find(|line| line.starts_with("error"));
    error
        .or(lines.last())
        .map_or("it wrote nothing".to_owned(), |line| {
            line.chars().take(400).collect()
        })
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
        let came = Came {
            status: Status::Failed,
            why: Some("no".into()),
            started: None,
            seconds: Some(1.23456),
            command: "a b".into(),
            quiet: None,
            result: Value::Null,
        };
        let record = attempt.record(came);
        assert_eq!(
            (record.schema.as_str(), record.status),
            (ATTEMPT_SCHEMA, Status::Failed)
        );
        assert_eq!((record.seconds, record.repetition), (Some(1.235), 2));
        assert_eq!(last_words("x\nerror: y\nmpirun ended\n\n"), "error: y");
        assert_eq!(last_words(""), "it wrote nothing");
    }
}
