//! One start of a run with a fault: from its launch to the end of its last process.
//!
//! In: a run, a fault, the checkpoints before. Out: how the start ended.
//! Invariant: no process is left, only the fault ended the start, and the checkpoints are whole and
//! none was lost.

use std::fs::{self, File};
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use cluster::process::{self, ReadySignal, Running};

use super::fault::{Fault, Kind};
use super::{CADENCE, TIMEOUT_S};
use crate::at;
use crate::suite::disk::Disk;
use crate::suite::run::{LIMIT_S, Run};
use crate::suite::{Checked, Ended, checkpoints};

/// Longest wait of a fault for a checkpoint that is being written.
const WRITING_LIMIT: Duration = Duration::from_secs(3);
/// Longest time from the fault to the job's end: the timeout, and the reaction of a busy machine.
const END_LIMIT: Duration = Duration::from_secs(TIMEOUT_S + 40);

pub(super) enum End {
    /// The run reached its last epoch.
    Reached,
    /// MPI crashed in `MPI_Init`.
    CrashedInStart,
    Hit(Consequence),
}

/// Consequence of a fault.
pub(super) struct Consequence {
    /// SIGKILL instead of a cut that is not possible.
    pub(super) kind: Kind,
    /// Time from the fault to the end.
    pub(super) to_end: Duration,
    /// True if an unfinished checkpoint is left.
    pub(super) was_writing: bool,
    pub(super) has_new_checkpoint: bool,
    pub(super) steps_lost: u64,
}

/// Starts the run once more and applies the fault.
pub(super) fn live(
    run: &Run<'_>,
    fault: Option<&Fault>,
    disk: Option<&Disk>,
    saved: &mut Saved,
) -> Checked<End> {
    let command = run.command()?;
    let line = process::shown(&command);
    let log = run.log();
    let start = Instant::now();
    let since = SystemTime::now();
    let mut running = Running::start(command, &log)?;
    let hit_at = match fault {
        Some(fault) => wait_and_hit(run, fault, disk, since, &mut running)?,
        None => None,
    };
    let limit = hit_at.map_or(Duration::from_secs(LIMIT_S), |hit_at| {
        hit_at - start + END_LIMIT
    });
    if let Some(disk) = disk
        && hit_at.is_some()
        && fault.is_some_and(|fault| fault.kind == Kind::FullDisk)
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
    ended.expect(
        ended.elapsed() < limit,
        &format!("an end within {END_LIMIT:?} of the fault"),
    )?;
    for rank in 0..run.ranks {
        let pause = Duration::from_millis(50);
        let has_ended = || run.process_of_rank(rank).is_none();
        if !process::wait_until(END_LIMIT, pause, has_ended)
            && let Some(process) = run.process_of_rank(rank)
        {
            let _ = process::send_signal(process, "KILL");
            ended.expect(false, &format!("an end of rank {rank} (process {process})"))?;
        }
    }
    let before = saved.newest();
    saved.look(run, &ended)?;
    if ended.succeeded() && !run.stopped_early()? {
        // The run may have ended before the fault.
        return Ok(End::Reached);
    }
    let (Some(fault), Some(hit_at)) = (fault, hit_at) else {
        ended.expect(ended.crashed_in_start(), "no end before the fault")?;
        return Ok(End::CrashedInStart);
    };
    let may_stop = fault.kind == Kind::Term;
    ended.expect(may_stop || !ended.succeeded(), "a stop only on SIGTERM")?;
    match fault.kind {
        Kind::FullDisk => ended.expect_text(&["No space left on device"])?,
        Kind::ReadOnly => ended.expect_text(&["Read-only file system"])?,
        Kind::Stop => ended.expect_text(&["no progress for"])?,
        // SIGTERM ends a rank until the program can catch it.
        Kind::Term if resumed(ended.text()).is_some() => ended.expect_success()?,
        Kind::Term | Kind::Kill | Kind::CutCheckpoint => {}
    }
    let has_new_checkpoint = saved.newest() > before;
    let mut kind = fault.kind;
    // The checkpoint before the newest counts until the newest has been written.
    let mut most = if ended.succeeded() { 0 } else { 2 * CADENCE };
    if kind == Kind::CutCheckpoint {
        if saved.cut_newest(run, fault.cut)? {
            most = 3 * CADENCE;
        } else {
            kind = Kind::Kill;
        }
    }
    let reached = reached(ended.text()).unwrap_or(0);
    let steps_lost = reached.saturating_sub(saved.newest());
    let expected = format!("at most {most} steps lost, not {steps_lost}");
    ended.expect(steps_lost <= most, &expected)?;
    let end_at = start + ended.elapsed();
    Ok(End::Hit(Consequence {
        kind,
        to_end: end_at.saturating_duration_since(hit_at),
        was_writing: checkpoints::is_being_written(&run.folder, since),
        has_new_checkpoint,
        steps_lost,
    }))
}

/// Waits for the time of the fault and applies it; returns the time, or `None` if the run ended
/// before.
fn wait_and_hit(
    run: &Run<'_>,
    fault: &Fault,
    disk: Option<&Disk>,
    since: SystemTime,
    running: &mut Running<'_>,
) -> Checked<Option<Instant>> {
    let start = Instant::now();
    process::wait_until(fault.delay, Duration::from_millis(5), || {
        running.has_ended()
    });
    // Prepares the signal to the rank, if its process exists. To find a process and to start a
    // shell takes longer than to write some checkpoints.
    let ready_signal = || -> Checked<Option<ReadySignal>> {
        let process = run.process_of_rank(fault.rank);
        let (Some(signal), Some(process)) = (fault.kind.signal(), process) else {
            return Ok(None);
        };
        Ok(Some(ReadySignal::new(process, signal)?))
    };
    let mut ready = ready_signal()?;
    if fault.awaits_writing {
        process::wait_until(WRITING_LIMIT, Duration::from_micros(200), || {
            running.has_ended() || checkpoints::is_being_written(&run.folder, since)
        });
    }
    // The ranks may not have started yet, or may be ending.
    while !running.has_ended() && start.elapsed().as_secs() < LIMIT_S {
        let is_hit = match (fault.kind, disk) {
            (Kind::FullDisk, Some(disk)) => disk.fill().map(|()| true)?,
            (Kind::ReadOnly, Some(disk)) => disk.remount("ro"),
            // Before its first output, in `MPI_Init`, the program does not watch the ranks.
            (Kind::Stop, _) if !has_begun(run) => false,
            _ => ready.take().is_some_and(ReadySignal::send),
        };
        if is_hit {
            return Ok(Some(Instant::now()));
        }
        sleep(Duration::from_millis(2));
        ready = ready_signal()?;
    }
    Ok(None)
}

fn has_begun(run: &Run<'_>) -> bool {
    let text = fs::read_to_string(run.log()).unwrap_or_default();
    resumed(&text).is_some()
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

/// Files of a checkpoint that a fault may cut.
const FILES: [&str; 3] = ["model.safetensors", "training.safetensors", "state.json"];

/// Whole checkpoints of a run, oldest first, and the checkpoint with a cut file.
#[derive(Default)]
pub(super) struct Saved {
    steps: Vec<u64>,
    cut: Option<Cut>,
}

/// A file that was cut short, as a file system may leave it.
struct Cut {
    step: u64,
    file: PathBuf,
    len: u64,
}

impl Saved {
    fn newest(&self) -> u64 {
        self.steps.last().copied().unwrap_or(0)
    }

    /// Expects that a start resumed from the newest checkpoint, and that it left whole checkpoints,
    /// the newest not older than before.
    fn look(&mut self, run: &Run<'_>, ended: &Ended) -> Checked {
        let before = self.newest();
        let resumed = resumed(ended.text());
        ended.expect(
            resumed.is_none_or(|step| step == before),
            &format!("a resume at step {before}, not {resumed:?}"),
        )?;
        // The run may have put the cut checkpoint aside.
        self.cut.take_if(|cut| {
            let len = fs::metadata(&cut.file).map(|found| found.len());
            !len.is_ok_and(|len| len == cut.len)
        });
        let damaged = self.cut.as_ref().map(|cut| cut.step);
        self.steps = checkpoints::whole(&run.folder, damaged)?;
        let newest = self.newest();
        ended.expect(
            newest >= before,
            &format!("a checkpoint of step {before} or newer, not {newest}"),
        )
    }

    /// Cuts a file of the newest checkpoint if the one before is at most a cadence older.
    fn cut_newest(&mut self, run: &Run<'_>, (which, share): (f64, f64)) -> Checked<bool> {
        let [.., older, step] = self.steps[..] else {
            return Ok(false);
        };
        // After an earlier cut, only the best checkpoint may be left.
        if self.cut.is_some() || step - older > CADENCE {
            return Ok(false);
        }
        let checkpoint = format!("checkpoints/step-{step:08}");
        let name = FILES[(which * FILES.len() as f64) as usize];
        let file = run.folder.join(checkpoint).join(name);
        let opened = File::options().write(true).open(&file).map_err(at(&file))?;
        let whole = opened.metadata().map_err(at(&file))?.len();
        let len = (whole as f64 * share) as u64;
        opened.set_len(len).map_err(at(&file))?;
        self.steps.pop();
        self.cut = Some(Cut { step, file, len });
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_shows_where_a_start_resumed_and_which_step_it_reached() {
        for (text, expected) in [
            (
                "resumed at epoch 3 step 12 (written by 3 ranks)\nepoch 3 step 3/5 | loss 2.1\n\
                 epoch 3 step 4/5 | loss 2.0\ncheckpoint /d/step-00000014 (14 steps) written in 0.02 s\n",
                (Some(12), Some(14)),
            ),
            (
                "resume: no checkpoint yet, the run starts at its beginning\n",
                (Some(0), None),
            ),
            ("srun: error", (None, None)),
            ("resumed at epoch 2 step 12 (x)", (Some(12), None)),
        ] {
            assert_eq!((resumed(text), reached(text)), expected, "{text}");
        }
    }
}
