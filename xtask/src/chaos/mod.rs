//! `cargo xtask chaos`: a training run with random faults, which ends with the undisturbed bits.
//!
//! In: a number of faults, a seed. Out: a table of the faults, or the first failure. Invariant:
//! after every fault the job ends, every finished checkpoint is whole, the newest is not older than
//! before, and the run resumes from it. Each run that reaches its end has the parameter hash and
//! the epochs of the undisturbed run.

mod fault;
mod life;

use std::path::Path;
use std::time::{Duration, Instant};

use clap::Args;
use cluster::failure::{Failure, Outcome, failed};
use cluster::options::{self, Installing};

use crate::cargo::{self, Mpi};
use crate::setup;
use crate::slurm_cluster;
use crate::suite::disk::Disk;
use crate::suite::run::Run;
use crate::suite::start::Launcher;
use crate::suite::{self, Checked, Stop, Suite, checkpoints, expect};
use fault::{Fault, KINDS, Kind, Random};
use life::{End, Saved, live};

const DETAILS: &str = "\
A fault is SIGKILL, SIGTERM or a long SIGSTOP to one rank, root included; a full disk; a read-only
folder of checkpoints; or SIGKILL and a newest checkpoint that is cut short. It comes at a random time
after the start, so that it also hits the start-up, evaluations and the writing of checkpoints. The
run is resumed on 2 to 4 ranks. The same seed draws the same faults. The disk is a small tmpfs; without
the right to mount one, kills replace the faults of a disk.
Example: cargo xtask chaos --kills 50 --launcher srun";

/// Flags of `cargo xtask chaos`.
#[derive(Debug, Args)]
#[command(after_help = DETAILS)]
pub(crate) struct ChaosArgs {
    /// Number of faults
    #[arg(long, value_name = "N", default_value = "50", value_parser = options::count)]
    kills: usize,
    /// Launcher of the ranks; srun runs in a new cluster
    #[arg(long, value_name = "NAME", default_value = "mpirun", value_parser = ["mpirun", "srun"])]
    launcher: String,
    /// Seed of the faults and their times
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,
    #[command(flatten)]
    installing: Installing,
}

/// Enough epochs for several faults, and for Slurm to look at a time limit.
pub(crate) const EPOCHS: usize = 200;
/// Steps from a checkpoint to the next.
const CADENCE: u64 = 3;
/// Longest wait of ranks for a stopped rank.
const TIMEOUT_S: u64 = 5;
/// One start in so many may crash inside MPI.
const CRASHES_ONE_IN: usize = 20;

impl ChaosArgs {
    pub(crate) fn run(&self) -> Outcome {
        let found = setup::run(self.installing)?;
        let mpirun = found.launcher().ok_or_else(|| {
            failed!("no mpirun with an MPI to build with: see `cargo xtask setup`")
        })?;
        let trainer = cargo::kept_trainer(Mpi::With)?;
        let mut suite = Suite::new("chaos", &trainer, Some(mpirun))?;
        let table = self.storm(&mut suite);
        println!("{}", table.map_err(failed)?);
        suite::run(suite, None, &[])
    }

    fn storm(&self, suite: &mut Suite) -> Checked<String> {
        // The nodes of a cluster keep the mounts that exist at their start.
        let disk = match mount(&suite.folder.join("disk")) {
            Err(Stop::Skipped(reason)) => {
                println!("{reason}: kills replace the faults of a disk");
                None
            }
            disk => Some(disk?),
        };
        if self.launcher == "srun" {
            if let Some(reason) = slurm_cluster::lacking(self.installing) {
                return Err(reason.into());
            }
            suite.start_cluster()?;
            suite.cluster()?.set_kill_wait(2)?;
        }
        let table = storm(suite, self.kills, self.seed, disk.as_ref());
        if let (Err(_), Some(disk)) = (&table, &disk) {
            disk.copy_to(&suite.folder.join("remains"));
        }
        table
    }
}

fn failed(stop: Stop) -> Failure {
    let (Stop::Failed(text) | Stop::Skipped(text)) = stop;
    Failure::Failed(text)
}

/// Mounts a disk for a run, and another one for its checkpoints, which can turn read-only while the
/// run has files open on the first. Each is several times as large as the output of a run.
fn mount(folder: &Path) -> Checked<Disk> {
    Disk::mount(&[folder, &folder.join("checkpoints")], "size=24m")
}

/// Result of the undisturbed run.
pub(crate) struct Undisturbed {
    pub(crate) hash: String,
    /// Time from the start to the first checkpoint.
    start_up: Duration,
}

/// Runs once without faults under mpirun.
pub(crate) fn undisturbed(suite: &Suite) -> Checked<&Undisturbed> {
    if let Some(undisturbed) = suite.storm.get() {
        return Ok(undisturbed);
    }
    let run = run(suite, "chaos-undisturbed").by(Launcher::Mpirun);
    let start = Instant::now();
    let is_time = || checkpoints::whole(&run.folder, None).is_ok_and(|steps| !steps.is_empty());
    let measure = |_| Ok(start.elapsed());
    let (ended, start_up) = suite.disturbed(run.command()?, &run.name, is_time, measure)?;
    ended.expect_success()?;
    let hash = run.hash()?;
    let start_up = start_up?;
    Ok(suite.storm.get_or_init(|| Undisturbed { hash, start_up }))
}

fn run<'a>(suite: &'a Suite, name: &str) -> Run<'a> {
    let flags = format!(
        "--checkpoint-every-steps {CADENCE} --keep-checkpoints 2 --timeout {TIMEOUT_S} \
         --log-every-steps 1 --resume"
    );
    suite.run(name).epochs(EPOCHS).quick().with(&flags)
}

/// Consequences of all faults of a kind.
#[derive(Clone, Default)]
struct Consequences {
    num: usize,
    of_root: usize,
    while_writing: usize,
    longest: Duration,
    most_lost: u64,
}

/// Applies faults to a run, or to several if one ends too early, and returns a table of them.
/// Without a disk, kills replace its faults.
pub(crate) fn storm(
    suite: &Suite,
    faults: usize,
    seed: u64,
    disk: Option<&Disk>,
) -> Checked<String> {
    let undisturbed = undisturbed(suite)?;
    let start = Instant::now();
    // Some faults come before the first checkpoint, but most leave the run time to progress.
    let latest = (2 * undisturbed.start_up).max(Duration::from_millis(2500));
    let mut random = Random(seed);
    let mut rows = vec![Consequences::default(); KINDS.len()];
    let mut num = 0;
    let mut runs = 0;
    let mut starts = 0;
    let mut without_progress = 0;
    let mut crashes = 0;
    while num < faults || runs == 0 {
        runs += 1;
        let mut run = run(suite, &format!("storm-{runs}"));
        if let Some(disk) = disk {
            disk.clear()?;
            run = run.into(disk.folder().to_owned());
        }
        let mut saved = Saved::default();
        loop {
            let mut fault = Fault::draw(&mut random, latest);
            if disk.is_none() && fault.kind.signal().is_none() {
                fault.kind = Kind::Kill;
            }
            run.ranks = fault.ranks;
            starts += 1;
            let hit = (num < faults).then_some(&fault);
            let end = live(&run, hit, disk, &mut saved).map_err(|stop| {
                let text = failed(stop);
                Stop::Failed(format!(
                    "seed {seed}, run {runs}, after {num} faults, {fault:?}: {text}"
                ))
            })?;
            match end {
                End::Reached => break,
                End::CrashedInStart => crashes += 1,
                End::Hit(hit) => {
                    num += 1;
                    without_progress += usize::from(!hit.has_new_checkpoint);
                    let row = &mut rows[hit.kind as usize];
                    row.num += 1;
                    row.of_root += usize::from(hit.kind.signal().is_some() && fault.rank == 0);
                    row.while_writing += usize::from(hit.was_writing);
                    row.longest = row.longest.max(hit.to_end);
                    row.most_lost = row.most_lost.max(hit.steps_lost);
                }
            }
            let is_rare = crashes <= 1 + starts / CRASHES_ONE_IN;
            expect(is_rare, format!("{crashes} starts crashed inside MPI"))?;
            settle(suite)?;
        }
        run.expect_hash(&undisturbed.hash)?;
        let epochs = run.file("metrics.jsonl")?.lines().count();
        let text = format!("expected {EPOCHS} epochs in metrics.jsonl, got {epochs} lines");
        expect(epochs == EPOCHS, text)?;
        settle(suite)?;
    }
    let mut table = "| fault | number | of root | while writing a checkpoint | longest end, s | \
                     most steps lost |\n|---|---|---|---|---|---|\n"
        .to_owned();
    for ((.., name), row) in KINDS.iter().zip(&rows).filter(|(_, row)| row.num > 0) {
        table.push_str(&format!(
            "| {name} | {} | {} | {} | {:.1} | {} |\n",
            row.num,
            row.of_root,
            row.while_writing,
            row.longest.as_secs_f64(),
            row.most_lost
        ));
    }
    let seconds = start.elapsed().as_secs_f64();
    Ok(format!(
        "{table}seed {seed}: {num} faults in {starts} starts, {without_progress} before a new \
         checkpoint; {crashes} crashes inside MPI's own start; {runs} runs with the undisturbed \
         hash, in {seconds:.0} s"
    ))
}

/// Waits for processes of an ended job on the other node.
fn settle(suite: &Suite) -> Checked {
    match suite.launcher() {
        Launcher::Srun => Ok(suite.cluster()?.wait_until_idle()?),
        Launcher::Mpirun => Ok(()),
    }
}
