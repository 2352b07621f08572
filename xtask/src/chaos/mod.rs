//! `cargo xtask chaos`: a training run with random faults, which ends with the undisturbed bits.
//!
//! In: a number of faults, a seed. Out: a table of the faults, or the first failure. Invariant:
//! after every fault the job ends, every finished checkpoint is whole, the newest is not older than
//! before, and the run resumes from it. Each run that reaches its end has the parameter hash and
//! the epochs of the undisturbed run.

mod fault;
mod life;
mod saved;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use clap::Args;
use cluster::failure::{Failure, Outcome};
use cluster::options::{self, Installing};

use crate::cargo::{self, Mpi};
use crate::setup;
use crate::slurm_cluster;
use crate::suite::disk::Disk;
use crate::suite::run::Run;
use crate::suite::start::Launcher;
use crate::suite::{Checked, Stop, Suite, checkpoints, expect};
use fault::{Fault, Kind, Random};
use life::{End, live};
use saved::Saved;

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
        if found.mpirun.is_none() || !found.can_build_mpi() {
            let text = "no mpirun with an MPI to build with: see `cargo xtask setup`";
            return Err(Failure::Failed(text.to_owned()));
        }
        let trainer = cargo::kept_trainer(Mpi::With)?;
        let mut suite = Suite::new("chaos", &trainer, found.mpirun.as_ref())?;
        // The nodes of a cluster keep the mounts that exist at their start.
        let disk = match RunDisk::mount(&suite.folder.join("disk")) {
            Err(Stop::Skipped(reason)) => {
                println!("{reason}: kills replace the faults of a disk");
                None
            }
            disk => Some(disk.map_err(failed)?),
        };
        if self.launcher == "srun" {
            if let Some(reason) = slurm_cluster::lacking(self.installing) {
                return Err(Failure::Failed(reason));
            }
            suite.start_cluster()?;
            suite.cluster().map_err(failed)?.set_kill_wait(2)?;
        }
        let storm = Storm {
            faults: self.kills,
            seed: self.seed,
            disk: disk.as_ref(),
        };
        let table = undisturbed(&suite).and_then(|undisturbed| storm.rage(&suite, undisturbed));
        if let (Err(_), Some(disk)) = (&table, &disk) {
            disk.outer.copy_to(&suite.folder.join("remains"));
        }
        println!("{}", table.map_err(failed)?);
        drop(disk);
        crate::suite::run(suite, None, &[])
    }
}

fn failed(stop: Stop) -> Failure {
    let (Stop::Failed(text) | Stop::Skipped(text)) = stop;
    Failure::Failed(text)
}

/// Disk of a run with another one for its checkpoints, which can turn read-only while the run has
/// files open on the first.
pub(crate) struct RunDisk {
    checkpoints: Disk,
    outer: Disk,
}

impl RunDisk {
    fn mount(folder: &Path) -> Checked<Self> {
        // Several times the output of a run.
        const SIZE: &str = "size=24m";
        let outer = Disk::mount(folder, SIZE)?;
        let checkpoints = Disk::mount(&folder.join("checkpoints"), SIZE)?;
        Ok(RunDisk { checkpoints, outer })
    }

    fn fill(&self) -> Checked {
        self.checkpoints.fill()?;
        self.outer.fill()
    }

    fn freeze(&self) -> bool {
        self.checkpoints.remount("ro")
    }

    fn repair(&self) -> Checked {
        self.checkpoints.repair()?;
        self.outer.repair()
    }

    fn clear(&self) -> Checked {
        self.checkpoints.clear()?;
        self.outer.clear()
    }
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
    let (ended, start_up) = run.disturbed(run.command()?, is_time, |_| Ok(start.elapsed()))?;
    ended.expect_success()?;
    let hash = run.hash()?;
    let start_up = start_up?;
    Ok(suite.storm.get_or_init(|| Undisturbed { hash, start_up }))
}

fn run<'a>(suite: &'a Suite, name: &str) -> Run<'a> {
    let cadence = CADENCE.to_string();
    let run = suite.run(name).epochs(EPOCHS).quick();
    run.with(&[
        "--checkpoint-every-steps",
        &cadence,
        "--keep-checkpoints",
        "2",
    ])
    .with(&[
        "--timeout",
        &TIMEOUT_S.to_string(),
        "--log-every-steps",
        "1",
    ])
    .with(&["--resume"])
}

/// Faults for one run; for several runs if one ends too early.
pub(crate) struct Storm<'a> {
    pub(crate) faults: usize,
    pub(crate) seed: u64,
    /// Without a disk, kills replace its faults.
    pub(crate) disk: Option<&'a RunDisk>,
}

/// Consequences of all faults of a kind.
#[derive(Default)]
struct Consequences {
    num: usize,
    of_root: usize,
    while_writing: usize,
    longest: Duration,
    most_lost: u64,
}

/// Counters of a storm.
#[derive(Default)]
struct Course {
    kinds: BTreeMap<Kind, Consequences>,
    faults: usize,
    without_progress: usize,
    crashes_in_start: usize,
    runs: usize,
    starts: usize,
}

impl Storm<'_> {
    /// Applies the faults and returns a table of them.
    pub(crate) fn rage(&self, suite: &Suite, undisturbed: &Undisturbed) -> Checked<String> {
        let start = Instant::now();
        // Some faults come before the first checkpoint, but most leave the run time to progress.
        let latest = (2 * undisturbed.start_up).max(Duration::from_millis(2500));
        let mut random = Random(self.seed);
        let mut course = Course::default();
        while course.faults < self.faults || course.runs == 0 {
            course.runs += 1;
            let mut run = run(suite, &format!("storm-{}", course.runs));
            if let Some(disk) = self.disk {
                disk.clear()?;
                run = run.into(disk.outer.folder.clone());
            }
            self.one_run(&mut run, &mut random, latest, &mut course)?;
            run.expect_hash(&undisturbed.hash)?;
            let epochs = run.file("metrics.jsonl")?.lines().count();
            let text = format!("expected {EPOCHS} epochs in metrics.jsonl, got {epochs} lines");
            expect(epochs == EPOCHS, text)?;
            settle(suite)?;
        }
        let Course { runs, starts, .. } = course;
        Ok(format!(
            "{}seed {}: {} faults in {starts} starts, {} before a new checkpoint; {} crashes inside \
             MPI's own start; {runs} runs with the undisturbed hash, in {:.0} s",
            table(&course),
            self.seed,
            course.faults,
            course.without_progress,
            course.crashes_in_start,
            start.elapsed().as_secs_f64()
        ))
    }

    /// Starts the run repeatedly until it has reached its end.
    fn one_run(
        &self,
        run: &mut Run<'_>,
        random: &mut Random,
        latest: Duration,
        course: &mut Course,
    ) -> Checked {
        let mut saved = Saved::default();
        loop {
            let mut fault = Fault::draw(random, latest);
            if self.disk.is_none() {
                fault.kind = fault.kind.without_disk();
            }
            let is_last = course.faults >= self.faults;
            run.ranks = fault.ranks;
            course.starts += 1;
            let place = format!("run {}, after {} faults", course.runs, course.faults);
            let context = |stop| {
                let text = failed(stop);
                Stop::Failed(format!("seed {}, {place}, {fault:?}: {text}", self.seed))
            };
            let lived = live(run, (!is_last).then_some(&fault), self.disk).map_err(&context)?;
            let before = saved.newest();
            saved.look(run, &lived).map_err(&context)?;
            match lived.end {
                End::Reached => return Ok(()),
                End::CrashedInStart => course.crashes_in_start += 1,
                End::Hit(to_end) => {
                    let has_new = saved.newest() > before;
                    let (kind, lost) = saved.lost(run, &lived, &fault).map_err(&context)?;
                    course.faults += 1;
                    course.without_progress += usize::from(!has_new);
                    let row = course.kinds.entry(kind).or_default();
                    row.num += 1;
                    row.of_root += usize::from(kind.signal().is_some() && fault.rank == 0);
                    row.while_writing += usize::from(lived.was_writing);
                    row.longest = row.longest.max(to_end);
                    row.most_lost = row.most_lost.max(lost);
                }
            }
            let num = course.crashes_in_start;
            let is_rare = num <= 1 + course.starts / CRASHES_ONE_IN;
            expect(is_rare, format!("{num} starts crashed inside MPI"))?;
            settle(run.suite)?;
        }
    }
}

/// Waits for processes of an ended job on the other node.
fn settle(suite: &Suite) -> Checked {
    match suite.launcher() {
        Launcher::Srun => Ok(suite.cluster()?.wait_until_idle()?),
        Launcher::Mpirun => Ok(()),
    }
}

fn table(course: &Course) -> String {
    let mut text = "| fault | number | of root | while writing a checkpoint | longest end, s | \
                    most steps lost |\n|---|---|---|---|---|---|\n"
        .to_owned();
    for (kind, row) in &course.kinds {
        let Consequences {
            num,
            of_root,
            while_writing,
            longest,
            most_lost,
        } = row;
        let longest = longest.as_secs_f64();
        text.push_str(&format!(
            "| {kind} | {num} | {of_root} | {while_writing} | {longest:.1} | {most_lost} |\n"
        ));
    }
    text
}
