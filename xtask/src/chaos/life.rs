//! One start of a run that something happens to: from its launch to the end of its last process.
//!
//! In: a [`Launcher`], a [`Life`]. Out: how it ended. Invariant: nothing of it is left, and nothing but the fault ended it.

use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use super::disk::Disk;
use super::fault::{Fault, Kind};
use super::{TIMEOUT_S, words};
use crate::suite::launcher::Launcher;
use crate::suite::run::{LIMIT_S, Run};
use crate::suite::{Ended, checkpoints};
use cluster::process::{self, ReadySignal, Running};

/// How long a fault waits for a checkpoint to be written.
const WRITING_LIMIT: Duration = Duration::from_secs(3);
/// How long the job may take to end after the fault: the timeout, and what a busy machine needs to notice and to clear away.
const END_LIMIT: Duration = Duration::from_secs(TIMEOUT_S + 40);

/// One start of the run, and what happens to it.
pub(super) struct Life<'a> {
    pub(super) number: usize,
    pub(super) ranks: usize,
    pub(super) fault: Option<Fault>,
    pub(super) disk: Option<&'a Disk>,
}

/// How a life ended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum End {
    /// The run reached its last epoch.
    Reached,
    /// By the fault, so long after it.
    Hit(Duration),
    /// Before any rank had a say, in `MPI_Init`.
    CrashedInStart,
}

/// How a life ended, and what it told of itself.
pub(super) struct Lived {
    pub(super) end: End,
    /// The step it went on from, if it came so far as to say.
    pub(super) resumed: Option<u64>,
    /// The last step it said to be done.
    pub(super) reached: Option<u64>,
    /// Whether a checkpoint was left unfinished.
    pub(super) was_writing: bool,
    pub(super) ended: Ended,
}

/// Starts the run once more and lets the fault happen.
pub(super) fn live(launcher: &impl Launcher, run: &Run, life: &Life<'_>) -> Result<Lived, String> {
    let command = launcher.on_ranks(life.ranks, launcher.trainer(), &words(run))?;
    let line = process::shown(&command);
    let log = launcher
        .folder()
        .join(format!("{}-life-{}.log", run.name, life.number));
    let (start, since) = (Instant::now(), SystemTime::now());
    let mut running = Running::start(command, &log)?;
    let strike = life.fault.as_ref().map(|fault| Strike {
        launcher,
        run,
        fault,
        disk: life.disk,
        log: &log,
        since,
    });
    let hit_at = strike
        .as_ref()
        .map_or(Ok(None), |strike| strike.happen(&mut running))?;
    let limit = hit_at.map_or(Duration::from_secs(LIMIT_S), |hit_at| {
        hit_at - start + END_LIMIT
    });
    let fills = hit_at.is_some() && life.fault.is_some_and(|fault| fault.kind == Kind::FullDisk);
    if let Some(disk) = life.disk.filter(|_| fills) {
        // What the run removes makes space.
        while !running.has_ended() && start.elapsed() < limit {
            disk.fill()?;
            sleep(Duration::from_millis(5));
        }
    }
    let ended = Ended {
        line,
        finished: running.finish(limit)?,
    };
    life.disk.map_or(Ok(()), Disk::mend)?;
    ended.expect(
        ended.finished.elapsed < limit,
        &format!("an end within {} s of the fault", END_LIMIT.as_secs()),
    )?;
    let left: Vec<u32> = (0..life.ranks)
        .filter_map(|rank| outlives(launcher, run, rank))
        .collect();
    left.iter()
        .for_each(|process| drop(process::send_signal(*process, "KILL")));
    ended.expect(left.is_empty(), &format!("no rank left, not {left:?}"))?;
    let to_end =
        hit_at.map(|hit_at| (start + ended.finished.elapsed).saturating_duration_since(hit_at));
    let end = judge(run, life.fault.map(|fault| fault.kind), to_end, &ended)?;
    let text = &ended.finished.text;
    Ok(Lived {
        end,
        resumed: resumed(text),
        reached: reached(text),
        was_writing: checkpoints::is_being_written(&run.folder, since),
        ended,
    })
}

/// How it ended, which nothing but the fault may be the reason for.
fn judge(
    run: &Run,
    kind: Option<Kind>,
    to_end: Option<Duration>,
    ended: &Ended,
) -> Result<End, String> {
    let text = &ended.finished.text;
    if ended.finished.code == Some(0) {
        if !run.has_stopped_early()? {
            // Also when all the work was done before the fault.
            return Ok(End::Reached);
        }
        ended.expect(
            kind == Some(Kind::Term),
            "a stop only where one was asked for",
        )?;
    }
    let Some(to_end) = to_end else {
        if ended.has_crashed_in_start() {
            return Ok(End::CrashedInStart);
        }
        ended.expect_success()?;
        return Err(format!("{}: stopped before anybody asked", run.name));
    };
    let (is_told, what) = match kind {
        Some(Kind::FullDisk) => (
            text.contains("No space left on device"),
            "that the disk is full",
        ),
        Some(Kind::ReadOnly) => (
            text.contains("Read-only file system"),
            "that the folder is read-only",
        ),
        Some(Kind::Stop) => (text.contains("no progress for"), "who makes no progress"),
        // Before the program can catch it the system ends the rank.
        Some(Kind::Term) => (
            ended.finished.code == Some(0) || resumed(text).is_none(),
            "of a stop with exit code 0",
        ),
        Some(Kind::Kill | Kind::CutCheckpoint) | None => (true, ""),
    };
    ended.expect(is_told, &format!("a message that tells {what}"))?;
    Ok(End::Hit(to_end))
}

/// A fault that is to happen to a running life.
struct Strike<'a, L> {
    launcher: &'a L,
    run: &'a Run,
    fault: &'a Fault,
    disk: Option<&'a Disk>,
    log: &'a Path,
    since: SystemTime,
}

impl<L: Launcher> Strike<'_, L> {
    /// Waits for its time, lets it happen, and says when that was; `None` if the run ended before.
    fn happen(&self, running: &mut Running<'_>) -> Result<Option<Instant>, String> {
        let start = Instant::now();
        while start.elapsed() < self.fault.delay && !running.has_ended() {
            sleep(Duration::from_millis(5));
        }
        // Made ready before the wait: finding a process and starting a shell take longer than some checkpoints.
        let mut ready = self.ready_signal()?;
        while self.fault.awaits_writing
            && start.elapsed() < self.fault.delay + WRITING_LIMIT
            && !running.has_ended()
        {
            if checkpoints::is_being_written(&self.run.folder, self.since) {
                break;
            }
            sleep(Duration::from_micros(200));
        }
        // The launcher may not have come so far, or the run may be ending.
        while !running.has_ended() && start.elapsed().as_secs() < LIMIT_S {
            if self.happens(ready.take())? {
                return Ok(Some(Instant::now()));
            }
            sleep(Duration::from_millis(2));
            ready = self.ready_signal()?;
        }
        Ok(None)
    }

    fn happens(&self, ready: Option<ReadySignal>) -> Result<bool, String> {
        match (self.fault.kind, self.disk) {
            (Kind::FullDisk, Some(disk)) => disk.fill().map(|()| true),
            (Kind::ReadOnly, Some(disk)) => Ok(disk.freeze()),
            // Before the first words, in `MPI_Init`, nobody watches the ranks.
            (Kind::Stop, _)
                if resumed(&fs::read_to_string(self.log).unwrap_or_default()).is_none() =>
            {
                Ok(false)
            }
            _ => Ok(ready.is_some_and(ReadySignal::send)),
        }
    }

    /// The signal to the victim, if that is there already.
    fn ready_signal(&self) -> Result<Option<ReadySignal>, String> {
        let Some(signal) = self.fault.kind.signal() else {
            return Ok(None);
        };
        self.victim()
            .map(|process| ReadySignal::new(process, signal))
            .transpose()
    }

    fn victim(&self) -> Option<u32> {
        self.launcher
            .process_of_rank(&self.run.folder, self.fault.rank)
    }
}

/// The process of a rank that is still there a while after its job's end.
fn outlives(launcher: &impl Launcher, run: &Run, rank: usize) -> Option<u32> {
    let start = Instant::now();
    loop {
        let process = launcher.process_of_rank(&run.folder, rank)?;
        if start.elapsed() > END_LIMIT {
            return Some(process);
        }
        sleep(Duration::from_millis(50));
    }
}

/// The step that a resumed run says it goes on from.
fn resumed(text: &str) -> Option<u64> {
    if text.contains("resume: no checkpoint yet") {
        return Some(0);
    }
    let (_, place) = text.split_once("resumed at epoch ")?;
    let (_, step) = place.split_once(" step ")?;
    step.split_whitespace().next()?.parse().ok()
}

/// The last step whose line is there, counted from the run's beginning.
fn reached(text: &str) -> Option<u64> {
    let step = |line: &str| {
        let (_, place) = line.split_once("epoch ")?;
        let (epoch, place) = place.split_once(" step ")?;
        let (step, steps_per_epoch) = place.split_whitespace().next()?.split_once('/')?;
        let [epoch, step, steps_per_epoch] =
            [epoch, step, steps_per_epoch].map(|number| number.parse::<u64>().ok());
        Some(epoch? * steps_per_epoch? + step?)
    };
    text.lines().rev().find_map(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_life_tells_where_it_went_on_and_how_far_it_came() {
        let text = "resumed at epoch 2 step 12 (written by 3 ranks)\nepoch 02 step 000003/000005 | loss 2.1\n\
                    epoch 02 step 000004/000005 | loss 2.0\ncheckpoint /d/step-00000014 (14 steps) written in 0.02 s\n";
        assert_eq!((resumed(text), reached(text)), (Some(12), Some(14)));
        assert_eq!(
            resumed("resume: no checkpoint yet, the run starts at its beginning\n"),
            Some(0)
        );
        assert_eq!(
            (
                resumed("srun: error"),
                reached("resumed at epoch 2 step 12 (x)")
            ),
            (None, None)
        );
    }
}
