//! One start of a run whose ranks are killed: from its launch to the end of its last process.
//!
//! In: a [`Launcher`], a [`Life`]. Out: how it ended. Invariant: nothing of it is left, and nothing but the kill ended it.

use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use super::words;
use crate::process::{self, Running};
use crate::suite::launcher::Launcher;
use crate::suite::run::{LIMIT_S, Run};
use crate::suite::{Ended, checkpoints};

/// How long a kill waits for a checkpoint to be written.
const WRITING_LIMIT: Duration = Duration::from_secs(3);
/// How long the job may take to end after one of its ranks was killed.
const END_LIMIT: Duration = Duration::from_secs(90);

/// One start of the run, and who is killed when.
#[derive(Debug)]
pub(super) struct Life {
    pub(super) ranks: usize,
    pub(super) victim: Option<Victim>,
    pub(super) number: usize,
}

#[derive(Debug)]
pub(super) struct Victim {
    pub(super) rank: usize,
    pub(super) delay: Duration,
    /// Whether it is killed when next a checkpoint is written, if one is within a while.
    pub(super) awaits_writing: bool,
}

/// How a life ended.
pub(super) enum End {
    /// The run reached its last epoch.
    Reached,
    Killed,
    /// Before any rank had a say, in `MPI_Init`.
    CrashedInStart,
}

/// Starts the run once more and kills its victim.
pub(super) fn live(launcher: &impl Launcher, run: &Run, life: &Life) -> Result<End, String> {
    let command = launcher.on_ranks(life.ranks, launcher.trainer(), &words(run))?;
    let line = process::shown(&command);
    let log = launcher.folder().join(format!("{}-life-{}.log", run.name, life.number));
    let (start, since) = (Instant::now(), SystemTime::now());
    let mut running = Running::start(command, &log)?;
    let mut has_killed = false;
    if let Some(Victim { rank, delay, awaits_writing }) = life.victim {
        while start.elapsed() < delay && !running.has_ended() {
            sleep(Duration::from_millis(5));
        }
        let victim = launcher.process_of_rank(&run.folder, rank).filter(|_| awaits_writing);
        while start.elapsed() < delay + WRITING_LIMIT && !running.has_ended() {
            if victim.is_none() || checkpoints::is_being_written(&run.folder, since) {
                break;
            }
            sleep(Duration::from_millis(1));
        }
        // The launcher may not have come so far, or the run may be ending.
        while !running.has_ended() && !has_killed && start.elapsed().as_secs() < LIMIT_S {
            let victim = victim.or_else(|| launcher.process_of_rank(&run.folder, rank));
            has_killed = victim.is_some_and(|process| process::send_signal(process, "KILL").is_ok());
            sleep(Duration::from_millis(5));
        }
    }
    let limit = if has_killed { start.elapsed() + END_LIMIT } else { Duration::from_secs(LIMIT_S) };
    let ended = Ended { line, finished: running.finish(limit)? };
    ended.expect(ended.finished.elapsed < limit, &format!("an end within {} s of the kill", END_LIMIT.as_secs()))?;
    if ended.finished.code == Some(0) {
        // Also when a victim had done all its work before it was killed.
        return Ok(End::Reached);
    }
    let left = (0..life.ranks).find(|rank| outlives(launcher, run, *rank));
    ended.expect(left.is_none(), &format!("no rank left, not rank {left:?}"))?;
    if !has_killed && ended.has_crashed_in_start() {
        return Ok(End::CrashedInStart);
    }
    // Nobody else than the victim may be the reason.
    ended.expect(has_killed, "exit code 0")?;
    Ok(End::Killed)
}

/// Whether a rank is still there a while after its job's end.
fn outlives(launcher: &impl Launcher, run: &Run, rank: usize) -> bool {
    let start = Instant::now();
    while launcher.process_of_rank(&run.folder, rank).is_some() {
        if start.elapsed() > END_LIMIT {
            return true;
        }
        sleep(Duration::from_millis(50));
    }
    false
}
