//! Trace of all ranks (`--trace`).
//!
//! In: Chrome's trace events. Out: the time of every rank by phase.
//! Invariant: only the training thread counts, because its intervals do not overlap.

use records::{RankSeconds, TraceEvent};
use serde::Deserialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Returns the sums over the steps of each rank; `None` if the JSON is not a trace.
pub(super) fn ranks(value: &Value) -> Option<Vec<RankSeconds>> {
    let events = value
        .as_array()
        .or_else(|| value["traceEvents"].as_array())?;
    let mut ranks: BTreeMap<u64, RankSeconds> = BTreeMap::new();
    // Ranks between a forward pass and the optimizer; the events of a rank are in order of time.
    let mut in_step = BTreeSet::new();
    let events = events.iter();
    for event in events.filter_map(|event| TraceEvent::deserialize(event).ok()) {
        let rank = ranks.entry(event.pid).or_insert_with(|| RankSeconds {
            rank: event.pid as usize,
            ..RankSeconds::default()
        });
        if event.name == "process_name"
            && let Some(name) = event.args.and_then(|args| args.name)
            && let Some((_, node)) = name.split_once(" on ")
        {
            rank.node = node.to_owned();
        }
        let (Some(duration), "X", Some(0)) = (event.dur, event.ph.as_str(), event.tid) else {
            continue;
        };
        let seconds = match event.name.as_str() {
            "input" => &mut rank.data,
            "forward" => {
                rank.num_steps += u64::from(in_step.insert(event.pid));
                &mut rank.forward
            }
            "backward" => &mut rank.backward,
            "exposed communication" => &mut rank.communication,
            "optimizer" => {
                in_step.remove(&event.pid);
                &mut rank.optimizer
            }
            _ => continue,
        };
        *seconds += duration / 1e6;
    }
    (!ranks.is_empty()).then(|| ranks.into_values().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_training_threads_time_is_summed_by_rank_and_phase() {
        let event = |name: &str, pid, tid, dur: f64| json!({"name": name, "ph": "X", "ts": 0.0, "dur": dur, "pid": pid, "tid": tid});
        let name =
            json!({"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "rank 1 on n1"}});
        let value = Value::Array(vec![
            name,
            event("forward", 0, 0, 2e6),
            event("backward", 0, 0, 4e6),
            event("forward", 0, 0, 1e6),
            event("optimizer", 0, 0, 1e6),
            event("optimizer", 0, 0, 1e6),
            event("forward", 0, 0, 1e6),
            event("bucket 0", 0, 1, 9e6),
            event("backward", 1, 0, 4e6),
        ]);
        assert_eq!(ranks(&Value::Array(Vec::new())), None);
        let expected = [
            RankSeconds {
                num_steps: 2,
                forward: 4.0,
                backward: 4.0,
                optimizer: 2.0,
                ..RankSeconds::default()
            },
            RankSeconds {
                rank: 1,
                node: "n1".to_owned(),
                backward: 4.0,
                ..RankSeconds::default()
            },
        ];
        assert_eq!(ranks(&value).unwrap(), expected);
    }
}
