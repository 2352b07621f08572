//! Trace of all ranks, `--trace`, in Chrome's format.
//!
//! Source: "Trace Event Format" of the Chromium project.

use serde::{Deserialize, Serialize};

/// Interval (`ph` is `X`) or name of a rank or thread (`M`). Times are microseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TraceEvent {
    /// Name: a phase, `bucket 3`, `process_name`.
    pub name: String,
    /// Kind of the event.
    pub ph: String,
    /// Start by root's clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ts: Option<f64>,
    /// Duration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dur: Option<f64>,
    /// Rank.
    pub pid: u64,
    /// Thread of the rank: 0 trains, 1 communicates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tid: Option<u64>,
    /// Name given by an event of kind `M`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub args: Option<EventNames>,
}

/// Name of a rank or thread.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EventNames {
    /// Name.
    pub name: Option<String>,
}
