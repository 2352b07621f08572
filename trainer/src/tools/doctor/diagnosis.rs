//! What the doctor says: rows with a verdict, and where the ranks are.

use serde::Serialize;

use super::facts::RankFacts;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Verdict {
    /// Nothing to do.
    #[serde(rename = "ok")]
    Ok,
    /// A job would train, but slower than it could, or with a risk.
    #[serde(rename = "warn")]
    Warn,
    /// A job would fail, or train wrongly, or at a fraction of its speed.
    #[serde(rename = "FAIL")]
    Fail,
}

impl Verdict {
    /// The word in the table.
    pub fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "FAIL",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    pub name: &'static str,
    pub verdict: Verdict,
    pub found: String,
    /// What to do about it; `None` where nothing is to be done.
    pub remedy: Option<String>,
}

impl Row {
    /// A check that found nothing wrong.
    pub fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self {
            name,
            verdict: Verdict::Ok,
            found: found.into(),
            remedy: None,
        }
    }

    /// A check after which a job would train badly.
    pub fn warn(name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            name,
            verdict: Verdict::Warn,
            found: found.into(),
            remedy: Some(remedy.into()),
        }
    }

    /// A check after which no job should be started.
    pub fn fail(name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            name,
            verdict: Verdict::Fail,
            found: found.into(),
            remedy: Some(remedy.into()),
        }
    }
}

/// Ranks of one node with the same processors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MapLine {
    pub node: String,
    /// The ranks, as `0-3,8`.
    pub ranks: String,
    /// The processors that each of them may use, as `0-3,8`.
    pub cores: String,
    /// Compute threads of each of them; `None` where it could not compute.
    pub threads: Option<usize>,
}

/// All that the doctor says; `--json` prints it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Diagnosis {
    /// The worst of the rows.
    pub verdict: Verdict,
    pub ranks: usize,
    pub nodes: usize,
    pub rows: Vec<Row>,
    pub map: Vec<MapLine>,
    /// What was found, by rank.
    pub facts: Vec<RankFacts>,
}
