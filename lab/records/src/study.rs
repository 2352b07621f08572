//! A study: its plan, `study.json`, and its attempts, a line each of `records.jsonl`.
//!
//! Invariant: what cannot be learned of a machine or a run is null, and so absent for a reader.

use crate::settings::text;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// What `study.json` says of itself.
pub const STUDY_SCHEMA: &str = "lockstep.study/1";

/// What a line of `records.jsonl` says of itself.
pub const ATTEMPT_SCHEMA: &str = "lockstep.study.record/1";

/// What was to be measured, where and why.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Study {
    /// [`STUDY_SCHEMA`].
    pub schema: String,
    /// Short name.
    pub name: String,
    /// One line.
    pub title: String,
    /// What it is for.
    pub about: String,
    /// Begin in UTC, RFC 3339.
    pub created: Option<String>,
    /// Commit of the program that made the first records.
    pub commit: Option<String>,
    /// SHA-256 of that program in hexadecimal; a commit does not tell what was changed and not
    /// committed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub program_sha256: Option<String>,
    /// Where it ran first.
    pub machine: Machine,
    /// Starts by another program, or on a machine with another system, than the start before them,
    /// in time.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub later_starts: Vec<StudyStart>,
    /// The whole study file.
    pub toml: String,
    /// What the command line set otherwise than the file, TOML.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub set: String,
    /// What was left out of each measurement.
    pub warmup: String,
    /// How speeds were counted.
    pub images_per_second_means: String,
    /// Accuracy that is aimed at, share 0..1, if the study names one.
    pub target_accuracy: Option<f64>,
    /// What was to be measured.
    pub cells: Vec<StudyCell>,
    /// What the plan has no more but records are of: such a cell may come back, and counts nowhere
    /// until then.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub earlier_cells: Vec<StudyCell>,
}

/// By what, where and from when on attempts were made; `started` tells which.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StudyStart {
    /// In UTC, RFC 3339.
    pub since: Option<String>,
    /// Commit of the program.
    pub commit: Option<String>,
    /// SHA-256 of the program in hexadecimal.
    pub program_sha256: Option<String>,
    /// Where.
    pub machine: Machine,
}

/// The machine of a study or comparison.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Machine {
    /// Processor.
    pub cpu_model: Option<String>,
    /// Processors to use.
    pub cpu_count: u64,
    /// Memory, bytes.
    pub memory_bytes: Option<u64>,
    /// Operating system and architecture.
    pub platform: String,
    /// Version of the operating system.
    pub kernel: Option<String>,
    /// Communication library.
    pub mpi: Option<String>,
}

/// One combination of settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StudyCell {
    /// Unique in the study.
    pub id: String,
    /// `bench`, `train` or `netbench`.
    pub kind: String,
    /// By name.
    pub settings: Map<String, Value>,
    /// The trainer's command and flags.
    pub arguments: Vec<String>,
    /// Repetitions to measure.
    pub repetitions: u64,
    /// Options of another framework that differ from its defaults, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub setting: BTreeMap<String, String>,
    /// Name of the option that a search for another framework's best setting varied.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tried: String,
}

impl StudyCell {
    /// A setting as text; empty without it.
    pub fn setting(&self, key: &str) -> String {
        self.settings.get(key).and_then(text).unwrap_or_default()
    }
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// It has a result.
    #[default]
    Ok,
    /// It has a result, but others used the processors meanwhile.
    Disturbed,
    /// It has none.
    Failed,
}

impl Status {
    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Status::Ok => "ok",
            Status::Disturbed => "disturbed",
            Status::Failed => "failed",
        }
    }
}

/// One attempt at one repetition of a cell.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AttemptRecord {
    /// [`ATTEMPT_SCHEMA`].
    pub schema: String,
    /// The cell's id.
    pub cell: String,
    /// From 1.
    pub repetition: u64,
    /// From 1.
    pub attempt: u64,
    /// How it ended.
    pub status: Status,
    /// Why it is not ok.
    pub why: Option<String>,
    /// Begin in UTC, RFC 3339.
    pub started: Option<String>,
    /// Seconds of the whole attempt.
    pub seconds: Option<f64>,
    /// As a shell reads it.
    pub command: String,
    /// Its files, below the study's directory.
    pub directory: String,
    /// How quiet the machine was, if somebody looked.
    pub quiet: Option<Quiet>,
    /// What the trainer wrote: a [`crate::BenchResult`], a [`crate::Summary`], or null; of any
    /// version, so as it was.
    pub result: Value,
}

impl AttemptRecord {
    /// Returns the speed in images/s, if the result has one: a number in a result of `bench`, a mean
    /// in one of `train`.
    pub fn images_per_second(&self) -> Option<f64> {
        let speed = &self.result["images_per_second"];
        let speed = speed.as_f64().or_else(|| speed["mean"].as_f64());
        speed.filter(|speed| *speed > 0.0)
    }

    /// What its result tells of a rank's work, if it is one of `bench`, under the names that
    /// settings have.
    pub fn work(&self) -> BTreeMap<String, String> {
        let own = ["kernels", "grad_accum_steps"].map(|key| (key, &self.result[key]));
        let options = self.result["options"].as_object().into_iter().flatten();
        let all = own
            .into_iter()
            .chain(options.map(|(key, value)| (key.as_str(), value)));
        all.filter_map(|(key, value)| Some((key.to_owned(), text(value)?)))
            .collect()
    }
}

/// What others took of the processors before and during a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Quiet {
    /// Before it, if somebody looked.
    pub before: Option<OtherCores>,
    /// During it.
    pub during: Option<OtherCores>,
    /// Lowest clock rate of any processor, megahertz.
    pub mhz_min: Option<f64>,
    /// Highest clock rate of any processor, megahertz.
    pub mhz_max: Option<f64>,
    /// Cores from which on a run counts as disturbed; none without a limit.
    pub limit_cores: Option<f64>,
}

/// What others took, in cores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OtherCores {
    /// Processor time of all processes that are not ours, by wall-clock time.
    pub other_cores: Option<f64>,
    /// Time that a hypervisor gave to other machines.
    pub steal_cores: Option<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_attempt_is_written_as_it_is_read_and_has_the_speed_of_its_result() {
        let mut value = json!({ "schema": ATTEMPT_SCHEMA, "cell": "a", "repetition": 1, "attempt": 2, "status": "disturbed",
            "why": "others", "started": null, "seconds": 1.5, "command": "x", "directory": "runs/a/r1a2",
            "quiet": { "before": null, "during": { "other_cores": 0.1, "steal_cores": 0.0 }, "mhz_min": null, "mhz_max": null,
                "limit_cores": 0.2 },
            "result": { "images_per_second": { "mean": 7.0 } } });
        let record: AttemptRecord = serde_json::from_value(value.clone()).unwrap();
        assert_eq!(
            (record.status.name(), record.images_per_second()),
            ("disturbed", Some(7.0))
        );
        assert_eq!(serde_json::to_value(&record).unwrap(), value);
        value["status"] = json!("asleep");
        assert!(serde_json::from_value::<AttemptRecord>(value).is_err());
    }
}
