//! Trace of all ranks (`--trace`).
//!
//! In: Chrome's trace events. Out: [`Trace`], the time of every rank by phase.
//! Invariant: only the training thread counts, because its intervals do not overlap.

use records::TraceEvent;
use serde::Deserialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Time of every rank by phase.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Trace {
    /// Names by rank.
    pub(crate) names: BTreeMap<u64, String>,
    /// Seconds by rank and phase.
    pub(crate) seconds: BTreeMap<u64, BTreeMap<String, f64>>,
    /// Steps by rank; a step ends with the optimizer.
    pub(crate) num_steps: BTreeMap<u64, u64>,
}

impl Trace {
    /// Returns true if JSON looks like a trace.
    pub(crate) fn is_one(value: &Value) -> bool {
        events(value).is_some_and(|events| {
            events
                .iter()
                .any(|event| event["ph"].is_string() && event["pid"].is_number())
        })
    }

    /// Sums the events and ignores unknown ones.
    pub(crate) fn from_value(value: &Value) -> Self {
        let mut trace = Self::default();
        // Ranks between a forward pass and the optimizer; the events of a rank are in order of time.
        let mut in_step = BTreeSet::new();
        for event in events(value)
            .into_iter()
            .flatten()
            .filter_map(|event| TraceEvent::deserialize(event).ok())
        {
            let rank = event.pid;
            let name = event.name;
            if event.ph == "M" && name == "process_name" {
                let called = event
                    .args
                    .and_then(|args| args.name)
                    .unwrap_or_else(|| format!("rank {rank}"));
                trace.names.insert(rank, called);
            } else if let (Some(duration), "X", Some(0)) = (event.dur, event.ph.as_str(), event.tid)
            {
                match name.as_str() {
                    "forward" if in_step.insert(rank) => {
                        *trace.num_steps.entry(rank).or_default() += 1
                    }
                    "optimizer" => _ = in_step.remove(&rank),
                    _ => {}
                }
                *trace
                    .seconds
                    .entry(rank)
                    .or_default()
                    .entry(name)
                    .or_default() += duration / 1e6;
            }
        }
        trace
    }
}

fn events(value: &Value) -> Option<&Vec<Value>> {
    value.as_array().or_else(|| value["traceEvents"].as_array())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_training_threads_time_is_summed_by_rank_and_phase() {
        let event = |name: &str, pid, tid, dur: f64| serde_json::json!({"name": name, "ph": "X", "ts": 0.0, "dur": dur, "pid": pid, "tid": tid});
        let value = Value::Array(vec![
            event("forward", 0, 0, 2e6),
            event("backward", 0, 0, 4e6),
            event("forward", 0, 0, 1e6),
            event("optimizer", 0, 0, 1e6),
            event("optimizer", 0, 0, 1e6),
            event("forward", 0, 0, 1e6),
            event("bucket 0", 0, 1, 9e6),
            event("backward", 1, 0, 4e6),
        ]);
        assert!(Trace::is_one(&value) && !Trace::is_one(&Value::Array(Vec::new())));
        let trace = Trace::from_value(&value);
        assert_eq!(
            (
                trace.seconds[&0]["forward"],
                trace.num_steps[&0],
                trace.seconds[&1]["backward"]
            ),
            (4.0, 2, 4.0)
        );
        assert!(!trace.seconds[&0].contains_key("bucket 0"));
    }
}
