//! Trace of all ranks in one file, for chrome://tracing or Perfetto.
//!
//! In: spans of every rank. Out: Chrome's trace events, one process per rank, on root's clock.
//! Invariant: the file is complete or absent. Times of different ranks are comparable to about half
//! a message's round trip.
//! Source: "Trace Event Format" of the Chromium project.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use distributed::watchdog::Phase;
use distributed::{Communicator, ROOT};
use records::{EventNames, TraceEvent, file};

use crate::measure::clock_offset::ClockOffset;
use crate::measure::gather::{found_by_root, to_root};
use crate::measure::timer::{Activity, MAX_SPANS, Span};

/// First bytes of every trace.
const BEGINNING: &[u8] = b"[\n{\"name\"";

/// Path of the trace, and the offset of root's clock from this rank's clock.
#[derive(Clone, Debug)]
pub struct TraceClock {
    path: PathBuf,
    origin: Instant,
    /// Root's time at this rank's origin, seconds; negative if root's clock started later.
    offset_s: f64,
}

impl TraceClock {
    /// Compares clocks by messages to root and back, for a trace at `path`.
    ///
    /// Returns `None` without a path.
    /// Collective: all ranks.
    pub fn start(path: Option<&Path>, communicator: &dyn Communicator) -> Result<Option<Self>> {
        let Some(path) = path else { return Ok(None) };
        communicator.barrier()?;
        let origin = Instant::now();
        let now = || origin.elapsed().as_secs_f64();
        let ClockOffset { offset_s, .. } = ClockOffset::measure(communicator, now)?;
        Ok(Some(Self {
            path: path.to_owned(),
            origin,
            offset_s,
        }))
    }

    fn microseconds(&self, moment: Instant) -> f64 {
        let own = match moment.checked_duration_since(self.origin) {
            Some(later) => later.as_secs_f64(),
            None => -self.origin.duration_since(moment).as_secs_f64(),
        };
        (own + self.offset_s) * 1e6
    }

    /// Gathers the spans of all ranks, and writes the file on root.
    ///
    /// Root returns the error of writing, or a warning if the trace of a rank ends before the run.
    /// Collective: all ranks.
    ///
    /// # Errors
    /// If a collective fails.
    pub fn write(
        &self,
        spans: &[Span],
        communicator: &dyn Communicator,
    ) -> Result<Result<Option<String>>> {
        let rank = communicator.rank();
        let name = format!("rank {rank} on {}", communicator.topology().node);
        let names = [
            name_event("process_name", rank, 0, name),
            name_event("thread_name", rank, 0, "training".to_owned()),
            name_event("thread_name", rank, 1, "communication".to_owned()),
        ];
        let kept = spans.iter().take(MAX_SPANS);
        let mut own = String::new();
        for event in names
            .into_iter()
            .chain(kept.map(|span| self.event(span, rank)))
        {
            own.push_str(&serde_json::to_string(&event)?);
            own.push_str(",\n");
        }
        // The message starts with the time after which spans are missing.
        let end = spans.get(MAX_SPANS);
        let end = end.map_or(f64::INFINITY, |left_out| self.microseconds(left_out.start));
        let message = [&end.to_le_bytes()[..], own.as_bytes()].concat();
        let mut first_end = f64::INFINITY;
        let mut text = b"[\n".to_vec();
        to_root(communicator, message, |_, message| {
            let (end, events) = message.split_first_chunk().context("a part of the trace")?;
            first_end = first_end.min(f64::from_le_bytes(*end));
            text.extend_from_slice(events);
            Ok(())
        })?;
        if rank != ROOT {
            return Ok(Ok(None));
        }
        // The format has no trailing comma.
        text.extend_from_slice(b"{\"name\":\"end\",\"ph\":\"M\",\"pid\":0,\"tid\":0}\n]\n");
        let warning = first_end.is_finite().then(|| {
            let limit = records::grouped(MAX_SPANS as u64);
            let end_s = first_end / 1e6;
            format!("the trace ends after {end_s:.0} s, since a rank reached the limit of {limit} spans; trace a shorter run")
        });
        Ok(self.put(&text).context("--trace").map(|()| warning))
    }

    fn put(&self, text: &[u8]) -> Result<()> {
        expect_trace(&self.path)?;
        if let Some(folder) = self.path.parent() {
            file::create_folder(folder)?;
        }
        Ok(file::replace(&self.path, text)?)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    fn event(&self, span: &Span, rank: usize) -> TraceEvent {
        let (name, tid) = match span.what {
            Activity::Phase(phase) => (phase_name(phase), 0),
            Activity::Bucket(bucket) => (format!("bucket {bucket}"), 1),
        };
        let microseconds = |duration: Duration| duration.as_secs_f64() * 1e6;
        TraceEvent {
            name,
            ph: "X".to_owned(),
            ts: Some(self.microseconds(span.start)),
            dur: Some(microseconds(span.duration)),
            pid: rank as u64,
            tid: Some(tid),
            args: None,
        }
    }
}

/// Checks on root, before a run, that the trace can be written.
///
/// The path must not be one of the `others`, the files of the run. The check leaves no file.
/// Collective: all ranks, all with or all without a path.
///
/// # Errors
/// If the trace cannot be written, the same on all ranks.
pub fn check(
    path: Option<&Path>,
    others: &[PathBuf],
    communicator: &dyn Communicator,
) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    let attempt = || -> Result<()> {
        let is_taken = others.iter().any(|other| place(other) == place(path));
        ensure!(
            !is_taken,
            "expected another file than {}, which the run writes",
            path.display()
        );
        expect_trace(path)?;
        let is_missing = |folder: &&Path| !folder.as_os_str().is_empty() && !folder.exists();
        let missing: Vec<&Path> = path.ancestors().skip(1).take_while(is_missing).collect();
        let outcome = path
            .parent()
            .map_or(Ok(()), file::create_folder)
            .and_then(|()| file::check_replaceable(path));
        for folder in missing {
            // Another process may have put a file into the folder.
            let _ = fs::remove_dir(folder);
        }
        Ok(outcome?)
    };
    let failure = found_by_root(communicator, || {
        Ok(attempt().err().map(|error| format!("{error:#}")))
    })?;
    failure.map_or(Ok(()), |failure| {
        bail!("--trace: {failure}. Choose another file")
    })
}

/// Checks that the path has no file other than an earlier trace.
fn expect_trace(path: &Path) -> Result<()> {
    // A folder or a device causes an error when the file is written.
    if !fs::metadata(path).is_ok_and(|facts| facts.is_file() && facts.len() > 0) {
        return Ok(());
    }
    let mut beginning = Vec::new();
    let trace = fs::File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    trace
        .take(BEGINNING.len() as u64)
        .read_to_end(&mut beginning)?;
    ensure!(
        beginning == BEGINNING,
        "{} exists and is not a Lockstep trace (expected a new file or an earlier trace)",
        path.display()
    );
    Ok(())
}

/// Returns the path by which files are compared.
fn place(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let folder = path
        .parent()
        .and_then(|folder| fs::canonicalize(folder).ok());
    folder
        .zip(path.file_name())
        .map_or(path.clone(), |(folder, name)| folder.join(name))
}

fn name_event(kind: &str, rank: usize, thread: u64, name: String) -> TraceEvent {
    TraceEvent {
        name: kind.to_owned(),
        ph: "M".to_owned(),
        pid: rank as u64,
        tid: Some(thread),
        args: Some(EventNames { name: Some(name) }),
        ..TraceEvent::default()
    }
}

/// Returns the name of a phase in the trace.
fn phase_name(phase: Phase) -> String {
    match phase {
        Phase::Data => "input".to_owned(),
        Phase::Waiting => "exposed communication".to_owned(),
        phase => phase.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::timer::Timer;
    use distributed::run_ranks;

    #[test]
    fn a_trace_that_cannot_be_written_is_refused_before_the_run_on_all_ranks_alike() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let pipe = folder.path().join("pipe");
        assert!(
            std::process::Command::new("mkfifo")
                .arg(&pipe)
                .status()
                .unwrap()
                .success()
        );
        let long = folder
            .path()
            .join("new")
            .join("x".repeat(300))
            .join("trace.json");
        for path in [
            file.join("trace.json"),
            folder.path().to_owned(),
            folder.path().join(".."),
            pipe,
            long,
        ] {
            let errors = run_ranks(2, |communicator| {
                format!("{:#}", check(Some(&path), &[], &communicator).unwrap_err())
            });
            assert!(
                errors[0].starts_with("--trace: cannot ")
                    && errors[0].ends_with(". Choose another file"),
                "{errors:?}"
            );
            assert_eq!(errors[0], errors[1]);
        }
        assert_eq!(
            fs::read_dir(folder.path()).unwrap().count(),
            2,
            "a trial was left"
        );
    }

    #[test]
    fn a_trace_takes_the_place_of_another_trace_and_of_no_other_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let alone = distributed::communicator::SingleCommunicator::new();
        let checked =
            |path: &Path| check(Some(path), &[], &alone).map_err(|error| error.to_string());
        let clock = TraceClock::start(Some(&path), &alone).unwrap().unwrap();
        for text in ["", "[\n{\"name\":\"process_name\"}]"] {
            fs::write(&path, text).unwrap();
            assert_eq!(checked(&path), Ok(()), "{text}");
        }
        assert_eq!(clock.write(&[], &alone).unwrap().unwrap(), None);
        assert_eq!(checked(&path), Ok(()));
        let others = [folder.path().join("run.toml")];
        let error = check(Some(&folder.path().join("./run.toml")), &others, &alone)
            .unwrap_err()
            .to_string();
        assert!(error.contains("run.toml, which the run writes"), "{error}");
        // Another program may write the file during the run.
        fs::write(&path, "precious").unwrap();
        assert!(
            format!("{:#}", clock.write(&[], &alone).unwrap().unwrap_err())
                .contains("is not a Lockstep trace")
        );
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
        let error = checked(&path).unwrap_err();
        assert!(
            error.contains("is not a Lockstep trace (expected a new file or an earlier trace)"),
            "{error}"
        );
    }

    #[test]
    fn root_warns_of_a_trace_that_ends_on_one_rank_before_the_run() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.json");
        let warnings = run_ranks(2, |communicator| {
            let timer = Timer::default().keeping_spans(true);
            let clock = TraceClock::start(Some(&path), &communicator)
                .unwrap()
                .unwrap();
            let num_spans = MAX_SPANS + 9 * communicator.rank();
            let late = clock.origin + Duration::from_secs(7);
            (0..num_spans).for_each(|_| timer.add_bucket(0, late, late));
            let written = clock.write(&timer.take_spans(), &communicator);
            written.unwrap().unwrap()
        });
        let warning = warnings[0].as_ref().unwrap();
        assert!(warning.contains("the trace ends after 7 s"), "{warning}");
        assert_eq!(warnings[1], None);
    }

    #[test]
    fn a_trace_of_three_ranks_is_one_json_array_on_one_clock() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/trace.json");
        run_ranks(3, |communicator| {
            check(Some(&path), &[], &communicator).unwrap();
            let clock = TraceClock::start(Some(&path), &communicator)
                .unwrap()
                .unwrap();
            communicator.barrier().unwrap();
            let start = Instant::now();
            let duration = Duration::from_millis(5);
            let what = [Activity::Phase(Phase::Backward), Activity::Bucket(2)];
            let spans = what.map(|what| Span {
                what,
                start,
                duration,
            });
            clock.write(&spans, &communicator).unwrap().unwrap();
            communicator.barrier().unwrap();
        });
        let events: Vec<serde_json::Value> =
            serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        let backward: Vec<&serde_json::Value> = events
            .iter()
            .filter(|event| event["name"] == "backward")
            .collect();
        assert_eq!(backward.len(), 3);
        assert!(
            backward
                .iter()
                .all(|event| event["dur"] == 5000.0 && event["tid"] == 0)
        );
        let starts: Vec<f64> = backward
            .iter()
            .map(|event| event["ts"].as_f64().unwrap())
            .collect();
        // The ranks left one barrier. Their times differ by less than a second even on a busy
        // machine.
        assert!(
            starts.iter().all(|ts| (ts - starts[0]).abs() < 1e6),
            "{starts:?}"
        );
        assert_eq!(
            events
                .iter()
                .filter(|event| event["name"] == "bucket 2" && event["tid"] == 1)
                .count(),
            3
        );
        assert_eq!(
            fs::read_dir(path.parent().unwrap()).unwrap().count(),
            1,
            "an unfinished file was left"
        );
    }
}
