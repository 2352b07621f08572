//! One attempt at one repetition of a cell: its directory, result and record.
//!
//! In: a [`Cell`], numbers, files that the program wrote. Out: the line of `records.jsonl`.
//! Invariant: a result is what the trainer wrote. Only results of other frameworks are computed, by
//! [`peer_result`].

use std::path::{Path, PathBuf};

use records::{ATTEMPT_SCHEMA, AttemptRecord, Status};
use serde_json::Value;

use crate::cell::Cell;
use crate::file::Kind;
use crate::peers::{our_epochs, peer_result};
use cluster::failure::{Outcome, failed};
use cluster::json;

/// Cell, repetition and number of an attempt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempt<'a> {
    pub(crate) cell: &'a Cell,
    pub(crate) repetition: usize,
    pub(crate) number: usize,
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

    /// Returns the seed. Each repetition of a training has its own, beginning with the cell's: with
    /// the same seed it would be the same training. Repetitions of a measurement are the same job,
    /// so that losses of all frameworks in all rounds can be compared.
    pub(crate) fn seed(&self) -> u64 {
        let seed = self.cell.settings.get("seed").and_then(Value::as_u64);
        let further = match self.cell.kind {
            Kind::Train => (self.repetition as u64).saturating_sub(1),
            Kind::Bench | Kind::Netbench => 0,
        };
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
            Kind::Train if self.cell.peer().is_none() => ("--output-dir", "run"),
            Kind::Netbench => ("--output", "network.json"),
            Kind::Train | Kind::Bench => return words,
        };
        words.extend([flag.to_owned(), directory.join(name).display().to_string()]);
        words
    }

    /// Reads the result that the program wrote; `output` is what it printed.
    pub(crate) fn result(&self, directory: &Path, output: &str) -> Outcome<Value> {
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
                    failed!(
                        "expected a JSON object with images_per_second as the last line, got none"
                    )
                }),
            Kind::Train => {
                let mut summary: Value = json::read(&directory.join("run/summary.json"))?;
                if summary["stopped_early"] == true {
                    return Err(failed!("the training was stopped before its end"));
                }
                if self.cell.framework.is_some() {
                    let epochs = our_epochs(&directory.join("run/metrics.jsonl"))?;
                    summary["epochs"] = serde_json::json!(epochs);
                }
                Ok(summary)
            }
            Kind::Netbench => {
                json::read::<Value>(&directory.join("network.json")).map(|_| Value::Null)
            }
        }
    }

    /// Returns the line of `records.jsonl` for an attempt without a result.
    pub(crate) fn record(&self) -> AttemptRecord {
        AttemptRecord {
            schema: ATTEMPT_SCHEMA.to_owned(),
            cell: self.cell.id.clone(),
            repetition: self.repetition as u64,
            attempt: self.number as u64,
            status: Status::Failed,
            directory: self.directory().display().to_string(),
            ..AttemptRecord::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::study;
    use cluster::run_directory::write;
    use serde_json::json;

    fn cell(kind: &str) -> Cell {
        let text = format!("[[matrix]]\nkind = \"{kind}\"\nranks = 2\nbatch_size_per_rank = 8\n");
        study(&text).unwrap().1.remove(0)
    }

    fn attempt(cell: &Cell, repetition: usize) -> Attempt<'_> {
        Attempt {
            cell,
            repetition,
            number: 2,
        }
    }

    #[test]
    fn the_result_of_bench_is_its_last_object_with_a_speed() {
        let cell = cell("bench");
        let attempt = attempt(&cell, 1);
        for (output, expected) in [
            (
                "start\n{\"images_per_second\": 1.0}\n{\"images_per_second\": 2.5}\n{\"other\": 1}\n--- end\n",
                Ok(2.5),
            ),
            (
                "{\"images_per_second\": 3.5}warning: speeds vary\n\n",
                Ok(3.5),
            ),
            ("{broken\n", Err("got none")),
        ] {
            match (attempt.result(Path::new("/nonexistent"), output), expected) {
                (Ok(result), Ok(speed)) => assert_eq!(result["images_per_second"], speed),
                (Err(why), Err(part)) => assert!(why.to_string().contains(part), "{why}"),
                (result, _) => panic!("{output}: {result:?}"),
            }
        }
        assert!(attempt.directory().ends_with(format!("{}/r1a2", cell.id)));
    }

    #[test]
    fn repetitions_of_a_training_have_consecutive_seeds_from_the_seed_of_the_cell() {
        let with_seed = |cell: &Cell, repetition| {
            let words = attempt(cell, repetition).words(Path::new("/d"));
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
    fn repetitions_of_a_measurement_are_the_same_job_in_all_frameworks() {
        let mut cell = cell("bench");
        assert_eq!([1, 3].map(|round| attempt(&cell, round).seed()), [0, 0]);
        cell.settings.insert("seed".to_owned(), json!(7));
        assert_eq!([1, 3].map(|round| attempt(&cell, round).seed()), [7, 7]);
        cell.kind = Kind::Train;
        assert_eq!([1, 3].map(|round| attempt(&cell, round).seed()), [7, 9]);
    }

    #[test]
    fn a_training_that_stopped_early_has_no_result() {
        let cell = cell("train");
        let attempt = attempt(&cell, 1);
        let directory = tempfile::tempdir().unwrap();
        assert!(attempt.words(directory.path()).join(" ").ends_with("/run"));
        let missing = attempt
            .result(directory.path(), "")
            .unwrap_err()
            .to_string();
        assert!(missing.contains("run/summary.json"), "{missing}");
        for (stopped, is_result) in [(true, false), (false, true)] {
            let summary = json!({ "stopped_early": stopped }).to_string();
            write(&directory.path().join("run/summary.json"), &summary).unwrap();
            assert_eq!(attempt.result(directory.path(), "").is_ok(), is_result);
        }
    }
}
