//! Files that one program writes and another reads: one struct for both.
//!
//! In: nothing. Out: the structs, and pure functions shared by writers and readers.
//! Invariant: only `file` opens or writes files.

mod bench;
mod comparison;
mod estimate;
mod evaluation;
pub mod file;
mod hashes;
mod job;
mod json_lines;
mod measurement;
mod network;
mod number;
mod prediction;
mod profile;
mod progress;
mod run;
mod settings;
mod study;
mod summary;
mod trace;

pub use bench::{BenchResult, DeviceKernels, KernelAlone, KernelShare};
pub use comparison::{
    Comparison, ComparisonRow, Course, CourseEpoch, IMAGENET, LAST_COMPARED_UPDATE, OURS,
    PeerResult,
};
pub use estimate::{CONFIDENCE, Estimate, median_interval};
pub use evaluation::{Best, ClassScore, Confusion, Evaluation, EvaluationByClass, FinalTest};
pub use hashes::StepHashes;
pub use job::{ExportedJob, JOB_SCHEMA, SgdFacts};
pub use json_lines::{JsonLine, JsonLines, read_lines};
pub use measurement::Measurement;
pub use network::{
    CollectiveTimes, Environment, FitFacts, Links, NetbenchResult, Operation, Overlap, PairTimes,
    PointRules, SizeTimes, StoppedBy, limited_bytes,
};
pub use number::{
    Spread, bytes, counted, decimal, grouped, learning_rate, mean_and_deviation, median, rate,
    wrapped,
};
pub use prediction::{
    NetworkFacts, PREDICTION_SCHEMA, PredictionFile, PredictionRecord, ProfileFacts,
    PublishedFigure,
};
pub use profile::{BucketRecord, LayerSeconds, PROFILE_SCHEMA, ParameterRecord, ProfileFile};
pub use progress::RunProgress;
pub use run::{
    DatasetFacts, EpochRecord, GradientNoise, JOB_SCRIPT, LaunchFacts, Manifest, Seconds, quoted,
    quoted_line,
};
pub use settings::{OF_SYNCHRONISATION, WORK, count_all_passes, is_of_rank, method, name, text};
pub use study::{
    ATTEMPT_SCHEMA, AttemptRecord, Machine, OtherCores, Quiet, STUDY_SCHEMA, Status, Study,
    StudyCell, StudyStart,
};
pub use summary::{RankSeconds, SlowestRank, Summary, ThroughputStats};
pub use trace::{EventNames, TraceEvent};

use serde::de::DeserializeOwned;
use serde_json::Value;

/// Returns the time in UTC, RFC 3339.
pub fn now() -> String {
    humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string()
}

/// Returns the boot id of the machine, which its containers share; `None` if unknown.
pub fn boot_id() -> Option<String> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim().to_owned()).filter(|id| !id.is_empty())
}

/// Reads a record from JSON, in which null equals absent.
///
/// # Errors
/// If a required member is missing or a member has another type.
pub fn from_value<T: DeserializeOwned>(value: Value) -> serde_json::Result<T> {
    serde_json::from_value(without_nulls(value))
}

fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(members) => {
            let known = members.into_iter().filter(|(_, member)| !member.is_null());
            Value::Object(
                known
                    .map(|(key, member)| (key, without_nulls(member)))
                    .collect(),
            )
        }
        Value::Array(values) => Value::Array(values.into_iter().map(without_nulls).collect()),
        value => value,
    }
}
