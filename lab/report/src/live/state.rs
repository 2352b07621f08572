//! State of a run, from its files.
//!
//! In: the files of its directory, their changes while they are watched. Out: [`Live`].
//! Invariant: files name their session, so those of an earlier session do not count. A run is alive
//! while its files change or its lock is held, and dead once this machine has released its lock.
//! Neither the clock of another machine nor a process number decides, as the number may be of
//! another container.

use std::collections::BTreeMap;
use std::fs::{self, TryLockError};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use anyhow::Result;
use records::RunProgress;

use crate::Refusal;
use crate::sources::{Run, alerts, last_session, read_json};

/// A run that writes nothing for this time may be dead.
pub(super) const SILENCE: Duration = Duration::from_secs(60);

/// A watched run.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) run: Run,
    pub(super) stage: Stage,
    /// Progress of this session.
    pub(super) progress: Option<RunProgress>,
    /// Warnings and errors of this session, the newest last.
    pub(super) alerts: Vec<String>,
    /// Known steps of this session by their number.
    pub(super) steps: BTreeMap<u64, StepScores>,
}

/// Loss, accuracy (share 0..1) and samples/s of a step.
pub(super) type StepScores = [Option<f64>; 3];

/// The changes of a run's files while they are watched.
#[derive(Debug)]
pub(super) struct Watched {
    since: Instant,
    /// Time of the last change.
    changed: Option<Instant>,
    last: Option<(Option<RunProgress>, Vec<String>)>,
    /// Steps of the progress so far; the log has only some steps.
    steps: BTreeMap<u64, StepScores>,
}

impl Default for Watched {
    fn default() -> Self {
        Self {
            since: Instant::now(),
            changed: None,
            last: None,
            steps: BTreeMap::new(),
        }
    }
}

impl Watched {
    fn look(&mut self, progress: Option<&RunProgress>, log: &[String]) {
        let files = (progress.cloned(), log.to_vec());
        if self.last.as_ref().is_some_and(|last| *last != files) {
            self.changed = Some(Instant::now());
        }
        self.last = Some(files);
        self.steps.extend(progress.map(|progress| {
            let speed = Some(progress.images_per_second).filter(|speed| *speed > 0.0);
            (progress.step, [progress.loss, progress.top1, speed])
        }));
    }

    pub(super) fn duration(&self) -> Duration {
        self.since.elapsed()
    }
}

/// The process that writes to a run's directory.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Holder {
    /// It holds the lock.
    Alive,
    /// It ran on this machine, which has released the lock.
    Gone,
    /// There is no lock, or the lock is of another machine, whose file system may keep it there.
    Unknown,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Stage {
    /// No manifest: the run may wait in a queue.
    NotBegun,
    /// It wrote this long ago.
    Running(Duration),
    /// It wrote nothing for this time.
    Silent(Duration),
    /// Its process is gone without a summary.
    Dead,
    /// Stopped before its last epoch, with a checkpoint if it ran a step.
    Stopped,
    Finished,
}

impl Stage {
    pub(super) fn has_ended(&self) -> bool {
        matches!(self, Stage::Dead | Stage::Stopped | Stage::Finished)
    }
}

impl Live {
    /// Reads the files and compares them with those of the last read.
    pub(super) fn read(directory: &Path, watched: &mut Watched) -> Result<Self> {
        if !directory.is_dir() {
            let expected = "the directory of a run".to_owned();
            let got = format!("{}, which is no directory", directory.display());
            return Err(Refusal {
                option: "RUN",
                expected,
                got,
            }
            .into());
        }
        let run = Run::read(directory)?;
        let started = run.manifest().map(|manifest| manifest.started.as_str());
        let progress: Option<RunProgress> = read_json(&directory.join("progress.json")).ok();
        let is_of_session =
            |progress: &RunProgress| started.is_none_or(|started| progress.started == started);
        let progress = progress.filter(is_of_session);
        watched.look(progress.as_ref(), &run.log);
        let written = progress
            .as_ref()
            .map(|progress| progress.written.as_str())
            .or(started);
        let written = written.and_then(|time| humantime::parse_rfc3339_weak(time).ok());
        let manifest = fs::metadata(directory.join("manifest.json"));
        let manifest_time = manifest.and_then(|file| file.modified()).ok();
        let summary = run.summary.as_ref();
        let summary = summary.filter(|summary| Some(summary.started.as_str()) == started);
        let stage = match summary {
            Some(summary) if summary.stopped_early => Stage::Stopped,
            Some(_) => Stage::Finished,
            None if manifest_time.is_none() => Stage::NotBegun,
            None => stage(holder(directory), watched, written.or(manifest_time)),
        };
        let output = newest_output(directory).map(|path| last_session(&path));
        let alerts = alerts(&run.log, &output.unwrap_or_default());
        let mut steps: BTreeMap<u64, StepScores> =
            run.log.iter().filter_map(|line| step(line)).collect();
        steps.extend(watched.steps.iter());
        Ok(Self {
            alerts,
            steps,
            progress,
            stage,
            run,
        })
    }

    /// Returns the epochs of the whole run.
    pub(super) fn epochs(&self) -> Option<u64> {
        let of_progress = self.progress.as_ref().map(|progress| progress.epochs);
        let epochs = of_progress.or_else(|| self.run.setting("schedule.epochs")?.parse().ok());
        epochs.filter(|epochs| *epochs > 0)
    }

    /// Returns the steps done and those of the whole run.
    pub(super) fn num_steps(&self) -> Option<(u64, u64)> {
        let progress = self.progress.as_ref()?;
        Some((progress.step, progress.all_steps()?)).filter(|(_, all)| *all > 0)
    }

    /// Returns the time left of a running run, with evaluations and checkpoints, at the speed of
    /// this session.
    pub(super) fn time_left(&self) -> Option<Duration> {
        match self.stage {
            Stage::Running(_) => self.progress.as_ref()?.time_left(),
            _ => None,
        }
    }
}

/// Judges a run without a summary that last wrote at `written` by its own clock.
fn stage(holder: Holder, watched: &Watched, written: Option<SystemTime>) -> Stage {
    if holder == Holder::Gone {
        return Stage::Dead;
    }
    if let Some(changed) = watched.changed {
        return match changed.elapsed() {
            still if still <= SILENCE => Stage::Running(still),
            still => Stage::Silent(still),
        };
    }
    // Until a change is seen, the clocks suffice to call a living process running.
    let age = written.and_then(|at| SystemTime::now().duration_since(at).ok());
    match age {
        Some(age) if holder == Holder::Alive && age.max(watched.duration()) <= SILENCE => {
            Stage::Running(age)
        }
        _ => Stage::Silent(age.unwrap_or_default().max(watched.duration())),
    }
}

/// Tries the lock of the directory, which the run holds while its process lives, in any container.
fn holder(directory: &Path) -> Holder {
    let path = directory.join(".lock");
    let Ok(file) = records::file::open(&path) else {
        return Holder::Unknown;
    };
    let text = records::file::read_to_string(&path).unwrap_or_default();
    let boot = text.lines().find_map(|line| line.strip_prefix("boot "));
    let is_here = boot.is_some_and(|boot| Some(boot) == records::boot_id().as_deref());
    // A run that starts at this moment waits longer than this lock is held.
    match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => Holder::Alive,
        Ok(()) if is_here => Holder::Gone,
        Ok(()) | Err(TryLockError::Error(_)) => Holder::Unknown,
    }
}

/// Returns the output of the last Slurm job, which has the lines of all ranks.
fn newest_output(directory: &Path) -> Option<PathBuf> {
    let is_output = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("slurm-") && name.ends_with(".out")
    };
    let paths = fs::read_dir(directory)
        .ok()?
        .flatten()
        .map(|entry| entry.path());
    let time = |path: &PathBuf| fs::metadata(path).and_then(|file| file.modified()).ok();
    paths.filter(is_output).max_by_key(time)
}

/// Reads a line of the log such as `epoch 2 step 5/10 | loss 0.5 | acc 75.0 % | … | 123 samples/s`.
/// Returns the number of the step since the start of the run, and its scores.
fn step(line: &str) -> Option<(u64, StepScores)> {
    let mut parts = line.split(" | ");
    let (epoch, step) = parts.next()?.strip_prefix("epoch ")?.split_once(" step ")?;
    let (step, of_epoch) = step.split_once('/')?;
    let whole = |text: &str| text.trim().parse::<u64>().ok();
    let before = whole(epoch)?
        .checked_sub(1)?
        .checked_mul(whole(of_epoch)?)?;
    let mut scores = [None; 3];
    for part in parts {
        let number = |text: &str| text.trim().replace(',', "").parse::<f64>().ok();
        if let Some(loss) = part.strip_prefix("loss ") {
            scores[0] = number(loss);
        } else if let Some(top1) = part.strip_prefix("acc ") {
            scores[1] = number(top1.trim_end_matches(" %")).map(|top1| top1 / 100.0);
        } else if let Some(speed) = part.strip_suffix(" samples/s") {
            scores[2] = number(speed);
        }
    }
    Some((before.checked_add(whole(step)?)?, scores))
}
