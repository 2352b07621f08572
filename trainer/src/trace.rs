//! A trace of all ranks in one file, for chrome://tracing or Perfetto.
//!
//! In: every rank's stretches of time. Out: Chrome's trace events, a process a rank, on root's clock.
//! Invariant: the file is whole or not there; times of different ranks are comparable to about half a message's round trip.
//! Source: "Trace Event Format" of the Chromium project.

use std::fs;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use distributed::{Communicator, ROOT};
use serde::Serialize;

use crate::clock::{Activity, Phase, Span};
use crate::clock_offset::ClockOffset;

/// This rank's clock beside root's, and where the trace goes.
#[derive(Clone, Debug)]
pub struct TraceClock {
    path: PathBuf,
    origin: Instant,
    /// Root's time at this rank's origin, seconds; negative if root's clock began later.
    offset_s: f64,
}

impl TraceClock {
    /// Compares clocks by messages to root and back, for a trace at `path`, which root begins; nothing without a path.
    ///
    /// # Errors
    /// When a message fails, or the file cannot be made: now, not when the run is over.
    ///
    /// # Collective
    /// Must be called by all ranks.
    pub fn start(path: Option<&Path>, communicator: &dyn Communicator) -> Result<Option<Self>> {
        let Some(path) = path.map(Path::to_owned) else { return Ok(None) };
        if communicator.rank() == ROOT {
            create(&path).with_context(|| format!("trace {}", path.display()))?;
        }
        Self::compare(path, communicator).map(Some)
    }

    fn compare(path: PathBuf, communicator: &dyn Communicator) -> Result<Self> {
        communicator.barrier()?;
        let origin = Instant::now();
        let ClockOffset { offset_s, .. } = ClockOffset::measure(communicator, || origin.elapsed().as_secs_f64())?;
        Ok(Self { path, origin, offset_s })
    }

    fn microseconds(&self, moment: Instant) -> f64 {
        let own = match moment.checked_duration_since(self.origin) {
            Some(later) => later.as_secs_f64(),
            None => -self.origin.duration_since(moment).as_secs_f64(),
        };
        (own + self.offset_s) * 1e6
    }

    /// Brings all ranks' stretches together in a file, which root writes.
    ///
    /// # Errors
    /// When a collective fails, or root cannot write.
    ///
    /// # Collective
    /// Must be called by all ranks.
    pub fn write(&self, spans: &[Span], communicator: &dyn Communicator) -> Result<()> {
        let events: Vec<Event> = spans.iter().map(|span| self.event(span, communicator.rank())).collect();
        let name = format!("rank {} on {}", communicator.rank(), communicator.topology().node);
        let mut own = metadata("process_name", communicator.rank(), 0, &name);
        own.push_str(&metadata("thread_name", communicator.rank(), 0, "training"));
        own.push_str(&metadata("thread_name", communicator.rank(), 1, "communication"));
        for event in events {
            own.push_str(&serde_json::to_string(&event)?);
            own.push_str(",\n");
        }
        let all = communicator.all_gather(own.as_bytes())?;
        if communicator.rank() != ROOT {
            return Ok(());
        }
        let write = || -> std::io::Result<()> {
            let mut file = BufWriter::new(create(&self.path)?);
            file.write_all(b"[\n")?;
            for text in &all {
                file.write_all(text)?;
            }
            // The format has no trailing comma.
            file.write_all(b"{\"name\":\"end\",\"ph\":\"M\",\"pid\":0,\"tid\":0}\n]\n")?;
            file.into_inner()?.sync_all()?;
            fs::rename(unfinished(&self.path), &self.path)
        };
        write().with_context(|| format!("trace {}", self.path.display()))
    }

    /// Where the trace will be.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn event(&self, span: &Span, rank: usize) -> Event {
        let (name, tid) = match span.what {
            Activity::Phase(phase) => (phase_name(phase).to_owned(), 0),
            Activity::Bucket(bucket) => (format!("bucket {bucket}"), 1),
        };
        let microseconds = |duration: Duration| duration.as_secs_f64() * 1e6;
        Event { name, ph: "X", ts: self.microseconds(span.start), dur: microseconds(span.duration), pid: rank, tid }
    }
}

/// The name of a trace that is not whole yet.
fn unfinished(path: &Path) -> PathBuf {
    path.with_extension("unfinished")
}

fn create(path: &Path) -> std::io::Result<fs::File> {
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        fs::create_dir_all(parent)?;
    }
    fs::File::create(unfinished(path))
}

/// A complete event; times in microseconds.
#[derive(Serialize)]
struct Event {
    name: String,
    ph: &'static str,
    ts: f64,
    dur: f64,
    pid: usize,
    tid: usize,
}

fn metadata(kind: &str, rank: usize, thread: usize, name: &str) -> String {
    let name = serde_json::Value::from(name);
    format!("{{\"name\":\"{kind}\",\"ph\":\"M\",\"pid\":{rank},\"tid\":{thread},\"args\":{{\"name\":{name}}}}},\n")
}

fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Data => "input",
        Phase::Forward => "forward",
        Phase::Backward => "backward",
        Phase::Communication => "exposed communication",
        Phase::Optimizer => "optimizer",
        Phase::Evaluation => "evaluation",
        Phase::Checkpoint => "checkpoint",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use distributed::run_ranks;

    #[test]
    fn a_trace_that_cannot_be_written_is_refused_at_the_start() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let path = file.join("trace.json");
        let error = run_ranks(1, |communicator| TraceClock::start(Some(&path), &communicator).unwrap_err()).remove(0);
        assert!(format!("{error:#}").starts_with(&format!("trace {}: ", path.display())), "{error:#}");
    }

    #[test]
    fn a_trace_of_three_ranks_is_one_json_array_on_one_clock() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/trace.json");
        run_ranks(3, |communicator| {
            let clock = TraceClock::start(Some(&path), &communicator).unwrap().unwrap();
            communicator.barrier().unwrap();
            let start = Instant::now();
            let duration = Duration::from_millis(5);
            let what = [Activity::Phase(Phase::Backward), Activity::Bucket(2)];
            let spans = what.map(|what| Span { what, start, duration });
            clock.write(&spans, &communicator).unwrap();
            communicator.barrier().unwrap();
        });
        let events: Vec<serde_json::Value> = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        let backward: Vec<&serde_json::Value> = events.iter().filter(|event| event["name"] == "backward").collect();
        assert_eq!(backward.len(), 3);
        assert!(backward.iter().all(|event| event["dur"] == 5000.0 && event["tid"] == 0));
        let starts: Vec<f64> = backward.iter().map(|event| event["ts"].as_f64().unwrap()).collect();
        // They left one barrier: within a second of each other also on a machine that is busy with other things.
        assert!(starts.iter().all(|ts| (ts - starts[0]).abs() < 1e6), "{starts:?}");
        assert_eq!(events.iter().filter(|event| event["name"] == "bucket 2" && event["tid"] == 1).count(), 3);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "an unfinished file was left");
    }
}
