//! Where a run stands, from its files alone.
//!
//! In: the files of its directory, how old they are. Out: [`Live`].
//! Invariant: what an earlier session left is not taken for this one's: files say of which session they are, however they were copied.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::Result;
use records::{RunProgress, Summary};

use crate::Refusal;
use crate::sources::{Run, read_json};

/// A run that writes nothing for so long may be dead.
const SILENCE: Duration = Duration::from_secs(60);

/// How much of the end of a log is read, bytes.
const TAIL: u64 = 256 << 10;

/// A run to be watched.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) run: Run,
    pub(super) stage: Stage,
    /// Of this session.
    pub(super) progress: Option<RunProgress>,
    /// Warnings and errors of this session, the newest last.
    pub(super) alerts: Vec<String>,
    /// The end of its log.
    pub(super) log: Vec<String>,
}

/// Whether a run goes on.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Stage {
    /// No file says that it has begun: it may wait in a queue.
    NotBegun,
    /// It has written this long ago.
    Running(Duration),
    /// It has written nothing for so long, and nobody knows why.
    Silent(Duration),
    /// Its process is gone, and it has not said that it ended.
    Dead,
    /// Stopped before its last epoch: with a checkpoint, if it made a step.
    Stopped,
    Finished,
}

impl Stage {
    pub(super) fn has_ended(&self) -> bool {
        matches!(self, Stage::Dead | Stage::Stopped | Stage::Finished)
    }
}

impl Live {
    pub(super) fn read(directory: &Path) -> Result<Self> {
        if !directory.is_dir() {
            let got = format!("{}, which is none", directory.display());
            return Err(Refusal { option: "RUN", expected: "the directory of a run".to_owned(), got }.into());
        }
        let run = Run::read(directory)?;
        let modified = |file: &str| fs::metadata(directory.join(file)).and_then(|file| file.modified()).ok();
        let session = modified("manifest.json");
        let started = run.manifest().and_then(|manifest| time_of(&manifest.started));
        let progress: Option<RunProgress> = read_json(&directory.join("progress.json")).ok();
        let progress = progress.filter(|progress| time_of(&progress.written) >= started);
        let written = progress.as_ref().map_or(started.or(session), |progress| time_of(&progress.written));
        let age = written.and_then(|at| SystemTime::now().duration_since(at).ok()).unwrap_or_default();
        let is_of_session = |summary: &Summary| match (&summary.started, run.manifest()) {
            (Some(started), Some(manifest)) => *started == manifest.started,
            // Of an earlier version, whose files are told apart by their age alone.
            _ => session.is_none_or(|session| modified("summary.json") >= Some(session)),
        };
        let stage = match (&run.summary, session) {
            (Some(summary), _) if is_of_session(summary) => {
                if summary.stopped_early {
                    Stage::Stopped
                } else {
                    Stage::Finished
                }
            }
            (_, None) => Stage::NotBegun,
            _ if holder_is_gone(directory) => Stage::Dead,
            _ if age > SILENCE => Stage::Silent(age),
            _ => Stage::Running(age),
        };
        let log = of_last_session(lines_at_end(&directory.join("train.log")));
        let output = newest_output(directory).map(|path| of_last_session(lines_at_end(&path))).unwrap_or_default();
        Ok(Self { alerts: alerts(&log, &output), log, progress, stage, run })
    }

    pub(super) fn epochs(&self) -> Option<u64> {
        let of_progress = self.progress.as_ref().map(|progress| progress.epochs);
        of_progress.or_else(|| self.run.setting("schedule.epochs")?.parse().ok()).filter(|epochs| *epochs > 0)
    }

    /// Steps done and steps of the whole run.
    pub(super) fn steps(&self) -> Option<(u64, u64)> {
        let RunProgress { epochs, steps_per_epoch, step, .. } = self.progress.as_ref()?;
        Some((*step, epochs.checked_mul(*steps_per_epoch)?)).filter(|(_, all)| *all > 0)
    }

    /// How long the rest takes, at the speed of this session, evaluations and checkpoints included; nothing where it does not go on.
    pub(super) fn time_left(&self) -> Option<Duration> {
        let (Stage::Running(_), (done, all)) = (&self.stage, self.steps()?) else { return None };
        let progress = self.progress.as_ref().filter(|progress| progress.session_steps > 0)?;
        let per_step = progress.session_seconds / progress.session_steps as f64;
        Duration::try_from_secs_f64(all.saturating_sub(done) as f64 * per_step).ok()
    }
}

fn time_of(text: &str) -> Option<SystemTime> {
    humantime::parse_rfc3339_weak(text).ok()
}

/// Whether the process that the directory's lock names was on this machine and is there no more.
fn holder_is_gone(directory: &Path) -> bool {
    let Ok(text) = records::file::read_to_string(&directory.join(".lock")) else { return false };
    let words: Vec<&str> = text.split_whitespace().collect();
    let ["process", process, "on", node, ..] = words[..] else { return false };
    let own = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    node == own.trim() && Path::new("/proc/self").exists() && !Path::new("/proc").join(process).exists()
}

/// The last lines of a file, without one that was begun before them.
fn lines_at_end(path: &Path) -> Vec<String> {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = records::file::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().unwrap_or_default();
    String::from_utf8_lossy(&bytes).lines().map(str::to_owned).collect()
}

/// The lines since the table of options, which begins a session.
fn of_last_session(mut lines: Vec<String>) -> Vec<String> {
    let start = lines.iter().rposition(|line| line.starts_with("version "));
    lines.split_off(start.unwrap_or(0))
}

/// What the last job of Slurm wrote, all ranks together.
fn newest_output(directory: &Path) -> Option<PathBuf> {
    let outputs = fs::read_dir(directory).ok()?.flatten().filter(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        name.starts_with("slurm-") && name.ends_with(".out")
    });
    outputs.max_by_key(|entry| entry.metadata().and_then(|file| file.modified()).ok()).map(|entry| entry.path())
}

/// Warnings, errors and what the watchdog says of each rank, each once.
fn alerts(log: &[String], output: &[String]) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let mut of_error = false;
    let is_alert = |line: &&String| {
        let begins = line.starts_with("warning: ") || line.starts_with("error");
        of_error = line.starts_with("error") || (of_error && line.starts_with("  rank "));
        (begins || of_error) && seen.insert(line.to_string())
    };
    log.iter().chain(output).filter(is_alert).cloned().collect()
}
