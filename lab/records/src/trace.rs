//! A trace of all ranks, `--trace`: Chrome's trace events.
//!
//! Source: "Trace Event Format" of the Chromium project.

use serde::{Deserialize, Serialize};

/// One event: a stretch of time (`ph` is `X`), or a name (`M`) for the rank or thread in its `args`. Times are microseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TraceEvent {
    /// What it is: a phase, `bucket 3`, `process_name`.
    pub name: String,
    /// Kind of the event.
    pub ph: String,
    /// Begin, on root's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ts: Option<f64>,
    /// How long it took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dur: Option<f64>,
    /// Rank.
    pub pid: u64,
    /// Thread of the rank: 0 trains, 1 communicates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tid: Option<u64>,
    /// Of a name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args: Option<EventNames>,
}

/// How a rank or thread is called.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EventNames {
    /// Its name.
    #[serde(default)]
    pub name: Option<String>,
}
