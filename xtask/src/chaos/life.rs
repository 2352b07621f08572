//! One start of a run with a fault: from its launch to the end of its last process.
//!
//! In: a run, a fault. Out: how the start ended.
//! Invariant: no process is left, and only the fault ended the start.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use cluster::process::{self, ReadySignal, Running};

use super::fault::{Fault, Kind};
use super::{RunDisk, TIMEOUT_S};
use crate::suite::run::{LIMIT_S, Run};
use crate::suite::{Checked, Ended, checkpoints};

/// Longest wait of a fault for a checkpoint that is being written.
const WRITING_LIMIT: Duration = Duration::from_secs(3);
/// Longest time from the fault to the job's end: the timeout, and the reaction of a busy machine.
const END_LIMIT: Duration = Duration::from_secs(TIMEOUT_S + 40);

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum End {
    /// The run reached its last epoch.
    Reached,
    /// The fault ended it after this time.
    Hit(Duration),
    /// MPI crashed in `MPI_Init`.
    CrashedInStart,
}

/// Outcome of a start.
pub(super) struct Lived {
    pub(super) end: End,
    /// Step that the run resumed at, if it printed one.
    pub(super) resumed: Option<u64>,
    /// Last step that it printed.
    pub(super) reached: Option<u64>,
    /// True if it left an unfinished checkpoint.
    pub(super) was_writing: bool,
    pub(super) ended: Ended,
}

/// Starts the run once more and applies the fault.
pub(super) fn live(run: &Run<'_>, fault: Option<&Fault>, disk: Option<&RunDisk>) -> Checked<Lived> {
    let command = run.command()?;
    let line = process::shown(&command);
    let log = run.log();
    let start = Instant::now();
    let since = SystemTime::now();
    let mut running = Running::start(command, &log)?;
    let mut hit_at = None;
    if let Some(fault) = fault {
        hit_at = Strike {
            run,
            fault,
            disk,
            since,
        }
        .wait_and_hit(&mut running)?;
    }
    let limit = hit_at.map_or(Duration::from_secs(LIMIT_S), |hit_at| {
        hit_at - start + END_LIMIT
    });
    if let (Some(disk), Some(Kind::FullDisk), Some(_)) =
        (disk, fault.map(|fault| fault.kind), hit_at)
    {
        // The run frees space when it removes files.
        while !running.has_ended() && start.elapsed() < limit {
            disk.fill()?;
            sleep(Duration::from_millis(5));
        }
    }
    let ended = Ended::finish(line, running, limit)?;
    if let Some(disk) = disk {
        disk.repair()?;
    }
    let is_in_time = ended.elapsed() < limit;
    ended.expect(
        is_in_time,
        &format!("an end within {END_LIMIT:?} of the fault"),
    )?;
    for rank in 0..run.ranks {
        if let Some(process) = outlives(run, rank) {
            let _ = process::send_signal(process, "KILL");
            ended.expect(false, &format!("an end of rank {rank} (process {process})"))?;
        }
    }
    let end_at = start + ended.elapsed();
    let to_end = hit_at.map(|hit_at| end_at.saturating_duration_since(hit_at));
    let end = judge(run, fault.map(|fault| fault.kind), to_end, &ended)?;
    Ok(Lived {
        end,
        resumed: resumed(ended.text()),
        reached: reached(ended.text()),
        was_writing: checkpoints::is_being_written(&run.folder, since),
        ended,
    })
}

/// Expects that nothing but the fault ended the start.
fn judge(
    run: &Run<'_>,
    kind: Option<Kind>,
    to_end: Option<Duration>,
    ended: &Ended,
) -> Checked<End> {
    if ended.succeeded() {
        if !run.stopped_early()? {
            // The run may have ended before the fault.
            return Ok(End::Reached);
        }
        ended.expect(kind == Some(Kind::Term), "a stop only on SIGTERM")?;
    }
    let Some(to_end) = to_end else {
        if ended.crashed_in_start() {
            return Ok(End::CrashedInStart);
        }
        ended.expect(false, "no end before the fault")?;
        return Ok(End::Reached);
    };
    match kind {
        Some(Kind::FullDisk) => ended.expect_text(&["No space left on device"])?,
        Some(Kind::ReadOnly) => ended.expect_text(&["Read-only file system"])?,
        Some(Kind::Stop) => ended.expect_text(&["no progress for"])?,
        // SIGTERM ends a rank until the program can catch it.
        Some(Kind::Term) if resumed(ended.text()).is_some() => ended.expect_success()?,
        Some(Kind::Term | Kind::Kill | Kind::CutCheckpoint) | None => {}
    }
    Ok(End::Hit(to_end))
}

/// A fault, and the start that it is meant for.
struct Strike<'a> {
    run: &'a Run<'a>,
    fault: &'a Fault,
    disk: Option<&'a RunDisk>,
    since: SystemTime,
}

impl Strike<'_> {
    /// Waits for the time of the fault and applies it; returns the time, or `None` if the run ended
    /// before.
    fn wait_and_hit(&self, running: &mut Running<'_>) -> Checked<Option<Instant>> {
        let start = Instant::now();
        let Fault {
            delay,
            awaits_writing,
            ..
        } = *self.fault;
        while start.elapsed() < delay && !running.has_ended() {
            sleep(Duration::from_millis(5));
        }
        // To find a process and to start a shell takes longer than to write some checkpoints.
        let mut ready = self.ready_signal()?;
        while awaits_writing && start.elapsed() < delay + WRITING_LIMIT && !running.has_ended() {
            if checkpoints::is_being_written(&self.run.folder, self.since) {
                break;
            }
            sleep(Duration::from_micros(200));
        }
        // The ranks may not have started yet, or may be ending.
        while !running.has_ended() && start.elapsed().as_secs() < LIMIT_S {
            if self.hits(ready.take())? {
                return Ok(Some(Instant::now()));
            }
            sleep(Duration::from_millis(2));
            ready = self.ready_signal()?;
        }
        Ok(None)
    }

    fn hits(&self, ready: Option<ReadySignal>) -> Checked<bool> {
        match (self.fault.kind, self.disk) {
            (Kind::FullDisk, Some(disk)) => disk.fill().map(|()| true),
            (Kind::ReadOnly, Some(disk)) => Ok(disk.freeze()),
            // Before its first output, in `MPI_Init`, the program does not watch the ranks.
            (Kind::Stop, _) if !self.has_begun() => Ok(false),
            _ => Ok(ready.is_some_and(ReadySignal::send)),
        }
    }

    fn has_begun(&self) -> bool {
        let text = fs::read_to_string(self.run.log()).unwrap_or_default();
        resumed(&text).is_some()
    }

    /// Prepares the signal to the rank, if its process exists.
    fn ready_signal(&self) -> Checked<Option<ReadySignal>> {
        let Run {
            suite,
            launcher,
            folder,
            ..
        } = self.run;
        let process = suite.process_of_rank(*launcher, folder, self.fault.rank);
        let (Some(signal), Some(process)) = (self.fault.kind.signal(), process) else {
            return Ok(None);
        };
        Ok(Some(ReadySignal::new(process, signal)?))
    }
}

/// Returns the process of a rank that still exists a while after its job's end.
fn outlives(run: &Run<'_>, rank: usize) -> Option<u32> {
    let start = Instant::now();
    loop {
        let process = run.suite.process_of_rank(run.launcher, &run.folder, rank)?;
        if start.elapsed() > END_LIMIT {
            return Some(process);
        }
        sleep(Duration::from_millis(50));
    }
}

/// Returns the step at which a run resumed.
fn resumed(text: &str) -> Option<u64> {
    if text.contains("resume: no checkpoint yet") {
        return Some(0);
    }
    let (_, place) = text.split_once("resumed at epoch ")?;
    let (_, step) = place.split_once(" step ")?;
    step.split_whitespace().next()?.parse().ok()
}

/// Returns the last printed step, counted from the run's beginning.
fn reached(text: &str) -> Option<u64> {
    let step = |line: &str| {
        let (_, place) = line.split_once("epoch ")?;
        let (epoch, place) = place.split_once(" step ")?;
        let (step, rest) = place.trim_start().split_once('/')?;
        let steps_per_epoch = rest.split_whitespace().next()?;
        let number = |text: &str| text.parse::<u64>().ok();
        Some((number(epoch)? - 1) * number(steps_per_epoch)? + number(step)?)
    };
    text.lines().rev().find_map(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_shows_where_a_start_resumed_and_which_step_it_reached() {
        let text = "resumed at epoch 3 step 12 (written by 3 ranks)\nepoch 3 step 3/5 | loss 2.1\n\
                    epoch 3 step 4/5 | loss 2.0\ncheckpoint /d/step-00000014 (14 steps) written in 0.02 s\n";
        assert_eq!((resumed(text), reached(text)), (Some(12), Some(14)));
        let text = "resume: no checkpoint yet, the run starts at its beginning\n";
        assert_eq!((resumed(text), reached(text)), (Some(0), None));
        assert_eq!(resumed("srun: error"), None);
        assert_eq!(reached("resumed at epoch 2 step 12 (x)"), None);
    }
}
