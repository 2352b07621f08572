//! Where a run stands, from its files alone.
//!
//! In: the files of its directory, their changes while they are watched. Out: [`Live`].
//! Invariant: what an earlier session left is not taken for this one's: files say of which session they are, however they were copied.
//! A run is alive while its files change or its lock is held, and dead if this machine has given its lock back; no clock of another
//! machine, and no process number, which may be one of another container, decides that.

use std::collections::BTreeSet;
use std::fs::{self, TryLockError};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use anyhow::Result;
use records::{RunProgress, Summary};

use crate::Refusal;
use crate::sources::{Run, read_json};

/// A run that writes nothing for so long may be dead.
pub(super) const SILENCE: Duration = Duration::from_secs(60);

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

/// The changes of a run's files while they are watched.
#[derive(Debug)]
pub(super) struct Watched {
    since: Instant,
    /// When a change was seen last.
    changed: Option<Instant>,
    last: Option<Content>,
}

/// What a run that goes on changes: its progress, the number of lines in its log, the last one.
type Content = (Option<RunProgress>, usize, Option<String>);

impl Watched {
    /// Nothing is seen yet.
    pub(super) fn new() -> Self {
        Self {
            since: Instant::now(),
            changed: None,
            last: None,
        }
    }

    fn look(&mut self, progress: Option<&RunProgress>, log: &[String]) {
        let content = (progress.cloned(), log.len(), log.last().cloned());
        if self
            .last
            .replace(content.clone())
            .is_some_and(|last| last != content)
        {
            self.changed = Some(Instant::now());
        }
    }

    /// Returns for how long it has been watched.
    pub(super) fn duration(&self) -> Duration {
        self.since.elapsed()
    }
}

/// The process that writes to a run's directory.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Holder {
    /// It holds the lock.
    Alive,
    /// It ran on this machine, which has taken the lock back.
    Gone,
    /// There is no lock, or it is another machine's, whose file system may keep it there.
    Unknown,
}

/// Whether a run goes on.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Stage {
    /// No file says that it has begun: it may wait in a queue.
    NotBegun,
    /// It wrote this long ago.
    Running(Duration),
    /// It wrote nothing for so long.
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
    /// Reads the files, and compares them with those that `watched` has seen before.
    pub(super) fn read(directory: &Path, watched: &mut Watched) -> Result<Self> {
        if !directory.is_dir() {
            let got = format!("{}, which is none", directory.display());
            return Err(Refusal {
                option: "RUN",
                expected: "the directory of a run".to_owned(),
                got,
            }
            .into());
        }
        let run = Run::read(directory)?;
        let modified = |file: &str| {
            fs::metadata(directory.join(file))
                .and_then(|file| file.modified())
                .ok()
        };
        let session = modified("manifest.json");
        let started = run.manifest().map(|manifest| manifest.started.as_str());
        let progress: Option<RunProgress> = read_json(&directory.join("progress.json")).ok();
        let progress =
            progress.filter(|progress| started.is_none_or(|started| progress.started == started));
        let log = of_last_session(lines_at_end(&directory.join("train.log")));
        watched.look(progress.as_ref(), &log);
        let written = progress
            .as_ref()
            .map(|progress| progress.written.as_str())
            .or(started)
            .and_then(time_of);
        let is_of_session = |summary: &Summary| Some(summary.started.as_str()) == started;
        let stage = match (&run.summary, session) {
            (Some(summary), _) if is_of_session(summary) => {
                if summary.stopped_early {
                    Stage::Stopped
                } else {
                    Stage::Finished
                }
            }
            (_, None) => Stage::NotBegun,
            _ => stage(holder(directory), watched, written.or(session)),
        };
        let output = newest_output(directory)
            .map(|path| of_last_session(lines_at_end(&path)))
            .unwrap_or_default();
        Ok(Self {
            alerts: alerts(&log, &output),
            log,
            progress,
            stage,
            run,
        })
    }

    pub(super) fn epochs(&self) -> Option<u64> {
        let of_progress = self.progress.as_ref().map(|progress| progress.epochs);
        of_progress
            .or_else(|| self.run.setting("schedule.epochs")?.parse().ok())
            .filter(|epochs| *epochs > 0)
    }

    /// Steps done and steps of the whole run.
    pub(super) fn steps(&self) -> Option<(u64, u64)> {
        let progress = self.progress.as_ref()?;
        Some((progress.step, progress.all_steps()?)).filter(|(_, all)| *all > 0)
    }

    /// How long the rest takes, at the speed of this session, evaluations and checkpoints included; nothing where it does not go on.
    pub(super) fn time_left(&self) -> Option<Duration> {
        let is_running = matches!(self.stage, Stage::Running(_));
        self.progress.as_ref().filter(|_| is_running)?.time_left()
    }
}

fn time_of(text: &str) -> Option<SystemTime> {
    humantime::parse_rfc3339_weak(text).ok()
}

/// Judges a run that has not said that it ended, and that wrote last at `written` by its own clock.
fn stage(holder: Holder, watched: &Watched, written: Option<SystemTime>) -> Stage {
    if holder == Holder::Gone {
        return Stage::Dead;
    }
    if let Some(changed) = watched.changed {
        let still = changed.elapsed();
        return if still <= SILENCE {
            Stage::Running(still)
        } else {
            Stage::Silent(still)
        };
    }
    // Before a change is seen, the clocks say when the last one was: enough to call a living process running.
    let age = written.and_then(|at| SystemTime::now().duration_since(at).ok());
    match age {
        Some(age) if holder == Holder::Alive && age.max(watched.duration()) <= SILENCE => {
            Stage::Running(age)
        }
        _ => Stage::Silent(age.unwrap_or_default().max(watched.duration())),
    }
}

/// Tries the directory's lock, which the run holds while its process lives, whatever container that is in.
fn holder(directory: &Path) -> Holder {
    let path = directory.join(".lock");
    let Ok(file) = records::file::open(&path) else {
        return Holder::Unknown;
    };
    let text = records::file::read_to_string(&path).unwrap_or_default();
    let boot = text
        .lines()
        .find_map(|line| line.strip_prefix("boot "))
        .map(str::to_owned);
    // A run that starts at this moment waits longer than this is held.
    match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => Holder::Alive,
        Ok(()) if boot.is_some() && boot == records::boot_id() => Holder::Gone,
        Ok(()) | Err(TryLockError::Error(_)) => Holder::Unknown,
    }
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
    String::from_utf8_lossy(&bytes)
        .lines()
        .map(str::to_owned)
        .collect()
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
    outputs
        .max_by_key(|entry| entry.metadata().and_then(|file| file.modified()).ok())
        .map(|entry| entry.path())
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
