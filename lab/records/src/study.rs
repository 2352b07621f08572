//! A study: `study.json`, the plan, and `records.jsonl`, its attempts.
//!
//! Invariant: unknown facts about a machine or a run are null, which equals absent.

use crate::settings::text;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Value of `schema` in `study.json`.
pub const STUDY_SCHEMA: &str = "lockstep.study/1";

/// Value of `schema` in a line of `records.jsonl`.
pub const ATTEMPT_SCHEMA: &str = "lockstep.study.record/1";

/// Plan of a study, and the machines on which it ran.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Study {
    /// [`STUDY_SCHEMA`].
    pub schema: String,
    /// Short name.
    pub name: String,
    /// Title in one line.
    pub title: String,
    /// Question of the study.
    pub about: String,
    /// First start in UTC, RFC 3339.
    pub created: Option<String>,
    /// Commit of the program that made the first records.
    pub commit: Option<String>,
    /// SHA-256 of that program in hexadecimal; shows uncommitted changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub program_sha256: Option<String>,
    /// Machine of the first start.
    pub machine: Machine,
    /// Restarts after the program or the system changed, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub later_starts: Vec<StudyStart>,
    /// Text of the study file.
    pub toml: String,
    /// Keys that the command line changed, TOML.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub set: String,
    /// Steps left out of each measurement.
    pub warmup: String,
    /// Definition of images/s.
    pub images_per_second_means: String,
    /// Target accuracy, share 0..1; absent (null) without one.
    pub target_accuracy: Option<f64>,
    /// Cells of the plan.
    pub cells: Vec<StudyCell>,
    /// Cells of earlier plans that have records. They do not count unless the plan names them
    /// again.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub earlier_cells: Vec<StudyCell>,
}

/// Restart of a study after the program or the system changed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StudyStart {
    /// Start in UTC, RFC 3339.
    pub since: Option<String>,
    /// Commit of the program.
    pub commit: Option<String>,
    /// SHA-256 of the program in hexadecimal.
    pub program_sha256: Option<String>,
    /// Machine.
    pub machine: Machine,
}

/// Machine of a study.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Machine {
    /// Name of the CPU.
    pub cpu_model: Option<String>,
    /// CPUs available to the process.
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
    /// Identifier, unique in the study.
    pub id: String,
    /// `bench`, `train` or `netbench`.
    pub kind: String,
    /// Settings by name.
    pub settings: Map<String, Value>,
    /// Command and flags of the trainer.
    pub arguments: Vec<String>,
    /// Repetitions to measure.
    pub repetitions: u64,
    /// Options of the other framework that differ from its defaults, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub setting: BTreeMap<String, String>,
    /// Name of the option that a search for another framework's best setting varied.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tried: String,
}

impl StudyCell {
    /// Returns a setting as text; empty if absent.
    pub fn setting(&self, key: &str) -> String {
        self.settings.get(key).and_then(text).unwrap_or_default()
    }
}

/// Status of an attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// The attempt has a result.
    #[default]
    Ok,
    /// The attempt has a result, but other programs used the CPUs.
    Disturbed,
    /// The attempt has no result.
    Failed,
}

/// One attempt at one repetition of a cell.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AttemptRecord {
    /// [`ATTEMPT_SCHEMA`].
    #[serde(default)]
    pub schema: String,
    /// Id of the cell.
    pub cell: String,
    /// Repetition, from 1.
    pub repetition: u64,
    /// Attempt, from 1.
    pub attempt: u64,
    /// Status at the end.
    pub status: Status,
    /// Reason for a status other than `ok`.
    #[serde(default)]
    pub why: Option<String>,
    /// Start in UTC, RFC 3339.
    #[serde(default)]
    pub started: Option<String>,
    /// Seconds of the whole attempt.
    #[serde(default)]
    pub seconds: Option<f64>,
    /// Command line, quoted for a shell.
    #[serde(default)]
    pub command: String,
    /// Directory of its files, below the study's directory.
    #[serde(default)]
    pub directory: String,
    /// Use of the machine by other programs; absent (null) if not observed.
    #[serde(default)]
    pub quiet: Option<Quiet>,
    /// Output of the trainer: a [`crate::BenchResult`], a [`crate::Summary`], or null.
    #[serde(default)]
    pub result: Value,
}

impl AttemptRecord {
    /// Returns the speed in images/s, if the result has one: a number in a result of `bench`, a
    /// mean in one of `train`.
    pub fn images_per_second(&self) -> Option<f64> {
        let speed = &self.result["images_per_second"];
        let speed = speed.as_f64().or_else(|| speed["mean"].as_f64());
        speed.filter(|speed| *speed > 0.0)
    }

    /// Returns the parts of a rank's work that a result of `bench` reports, by the names of
    /// settings.
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

/// Use of the CPUs by other programs before and during a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Quiet {
    /// Use before the run; absent (null) if not observed.
    pub before: Option<OtherCores>,
    /// Use during the run.
    pub during: Option<OtherCores>,
    /// Lowest clock rate of any CPU, megahertz.
    pub mhz_min: Option<f64>,
    /// Highest clock rate of any CPU, megahertz.
    pub mhz_max: Option<f64>,
    /// Cores above which a run counts as disturbed; absent (null) without a limit.
    pub limit_cores: Option<f64>,
}

/// Use of the CPUs, in cores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OtherCores {
    /// CPU time of other processes per second of wall time.
    pub other_cores: Option<f64>,
    /// CPU time that a hypervisor gave to other machines, per second of wall time.
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
            (
                crate::name(record.status).as_str(),
                record.images_per_second()
            ),
            ("disturbed", Some(7.0))
        );
        assert_eq!(serde_json::to_value(&record).unwrap(), value);
        value["status"] = json!("asleep");
        assert!(serde_json::from_value::<AttemptRecord>(value).is_err());
    }
}
