//! `cargo xtask chaos`: a training run whose ranks are killed at random until it has ended all the same, with the same bits.
//!
//! In: a [`Launcher`], a number of kills, a seed. Out: one line about the kills, or the first thing that broke.
//! Invariant: after every kill the job ends, every finished checkpoint is whole, and the newest is not older than before; each run
//! that reaches its end has the parameter hash of the undisturbed one.

mod life;
mod random;

use std::time::{Duration, Instant, SystemTime};

use crate::arguments::{Arguments, Command, Flag};
use crate::cargo::Mpi;
use crate::failure::{Failure, Outcome};
use crate::mpi_suite;
use crate::process::{self, Running};
use crate::setup::{self, NO_INSTALL};
use crate::slurm_suite;
use crate::suite::launcher::Launcher;
use crate::suite::run::{LIMIT_S, QUICK, Run, arguments, instead};
use crate::suite::{self, Ended, checkpoints, conclude, empty_folder, same};

use life::{End, Life, Victim, live};
use random::Random;

pub(crate) const COMMAND: Command = Command {
    name: "chaos",
    summary: "Kill ranks of a training run at random, again and again, and compare its end with an undisturbed one.",
    details: "\
Every kill is a SIGKILL to one rank, root included, after a random time from the start, so that it also hits the start-up,
evaluations and the writing of checkpoints. The run is restarted with --resume, on 2 to 4 ranks. The same seed kills the
same ranks after the same times. Example: cargo xtask chaos --kills 50 --launcher srun",
    subjects: &[],
    parts: &[],
    object: None,
    flags: &[
        Flag { name: "--kills", value: Some("N"), help: "how many (default 50)" },
        Flag { name: "--launcher", value: Some("NAME"), help: "mpirun or srun, in a cluster of its own (default mpirun)" },
        Flag { name: "--seed", value: Some("N"), help: "which random times and ranks (default 1)" },
        NO_INSTALL,
    ],
    passed_on: None,
    run,
};

/// Enough steps for several kills on their way.
pub(crate) const EPOCHS: usize = 60;
/// Earliest moment of a kill after the start.
const EARLIEST: Duration = Duration::from_millis(300);
/// Starts among which one may crash inside MPI.
const CRASHES_ONE_IN: usize = 20;
/// Numbers of ranks to go on with; with the exact reduction any has the same bits.
const RANKS: [usize; 5] = [2, 2, 2, 3, 4];

/// Ends and times of the undisturbed run.
pub(crate) struct Undisturbed {
    pub(crate) hash: String,
    /// How long it takes from the start to the first checkpoint.
    start_up: Duration,
}

fn run(arguments: Arguments) -> Outcome {
    let kills = arguments.count("--kills")?.unwrap_or(50);
    let seed = arguments.count("--seed")?.unwrap_or(1) as u64;
    let launcher = arguments.value("--launcher").unwrap_or("mpirun");
    if !["mpirun", "srun"].contains(&launcher) {
        return Err(Failure::Usage(format!("--launcher: expected mpirun or srun, got `{launcher}`")));
    }
    let found = setup::run(&arguments)?;
    let Some(mpirun) = found.mpirun.clone().filter(|_| found.can_build_mpi()) else {
        return Err(Failure::Failed("no mpirun with an MPI to build with: see `cargo xtask setup`".to_owned()));
    };
    let trainer = suite::trainer_program(Mpi::With)?;
    slurm_suite::stop_remains("chaos").map_err(Failure::Failed)?;
    let folder = empty_folder("chaos")?;
    let suite = mpi_suite::Suite::new(Some(mpirun), trainer, folder.clone());
    let line = if launcher == "srun" {
        if let Some(reason) = crate::slurm_cluster::lacking(&arguments) {
            return Err(Failure::Failed(reason));
        }
        slurm_suite::Suite::start(suite)
            .and_then(|suite| suite.quicken_kills().map(|()| suite))
            .and_then(|suite| whole_storm(&suite, kills, seed).and_then(|line| suite.stop().map(|()| line)))
    } else {
        whole_storm(&suite, kills, seed)
    };
    match line {
        Ok(line) => {
            println!("{line}");
            conclude(&folder, &[])
        }
        Err(text) => {
            println!("{text}");
            conclude(&folder, &["the run did not survive"])
        }
    }
}

fn whole_storm(launcher: &impl Launcher, kills: usize, seed: u64) -> Result<String, String> {
    let undisturbed = undisturbed(launcher)?;
    storm(launcher, "storm", &undisturbed, kills, seed)
}

/// The run that nobody disturbs.
pub(crate) fn undisturbed(launcher: &impl Launcher) -> Result<Undisturbed, String> {
    let run = Run::new(launcher, "chaos-undisturbed");
    let log = launcher.folder().join("chaos-undisturbed.log");
    let command = launcher.on_ranks(2, launcher.trainer(), &words(&run))?;
    let line = process::shown(&command);
    let start = Instant::now();
    let mut running = Running::start(command, &log)?;
    let is_time = || checkpoints::whole(&run.folder).is_ok_and(|steps| !steps.is_empty());
    let waited = suite::run::wait_until(&mut running, &is_time, "the first checkpoint");
    let start_up = start.elapsed();
    let ended = Ended { line, finished: running.finish(Duration::from_secs(LIMIT_S))? };
    ended.expect_success()?;
    waited?;
    Ok(Undisturbed { hash: run.parameter_hash()?, start_up })
}

fn words(run: &Run) -> Vec<String> {
    let cadence = ["--checkpoint-every-steps", "3", "--keep-checkpoints", "2", "--resume"];
    instead(arguments(&run.folder, EPOCHS), &[&QUICK[..], &cadence].concat())
}

/// Kills so many ranks, in one run or, where that ends too early, several; says what was hit.
pub(crate) fn storm(
    launcher: &impl Launcher,
    name: &str,
    undisturbed: &Undisturbed,
    kills: usize,
    seed: u64,
) -> Result<String, String> {
    let start = Instant::now();
    let mut random = Random(seed);
    let mut hits = Hits::default();
    // A kill may come before the first checkpoint, but not always: the run has to get on.
    let latest = (2 * undisturbed.start_up).max(Duration::from_millis(2500));
    while hits.kills < kills || hits.runs == 0 {
        hits.runs += 1;
        let run = Run::new(launcher, &format!("{name}-{}", hits.runs));
        let mut newest = 0;
        loop {
            let ranks = RANKS[random.below(RANKS.len())];
            let rank = random.below(ranks);
            let delay = EARLIEST + (latest - EARLIEST).mul_f64(random.share());
            let is_last = hits.kills >= kills;
            // Writing is short: a part of the kills wait for it.
            let awaits_writing = random.below(4) == 0;
            let victim = (!is_last).then_some(Victim { rank, delay, awaits_writing });
            let life = Life { ranks, victim, number: hits.lives };
            hits.lives += 1;
            let num_kills = hits.kills;
            let with_kill = |text| format!("{name}, seed {seed}, after {num_kills} kills, {life:?}: {text}");
            let since = SystemTime::now();
            let end = live(launcher, &run, &life).map_err(with_kill)?;
            let is_unfinished = checkpoints::is_being_written(&run.folder, since);
            let steps = checkpoints::whole(&run.folder).map_err(with_kill)?;
            let now_newest = steps.last().copied().unwrap_or(0);
            if now_newest < newest {
                return Err(with_kill(format!("expected a checkpoint of step {newest} or newer, got {steps:?}")));
            }
            match end {
                End::Reached => break,
                End::CrashedInStart => hits.crashes_in_start += 1,
                End::Killed => {
                    hits.kills += 1;
                    hits.of_root += usize::from(rank == 0);
                }
            }
            if hits.crashes_in_start > 1 + hits.lives / CRASHES_ONE_IN {
                return Err(with_kill(format!("{} starts crashed by themselves", hits.crashes_in_start)));
            }
            hits.without_progress += usize::from(now_newest == newest);
            hits.while_writing += usize::from(is_unfinished);
            newest = now_newest;
            launcher.settle()?;
        }
        same(&format!("{name}, seed {seed}, run {}", hits.runs), &undisturbed.hash, &run.parameter_hash()?)?;
        if run.has_stopped_early()? {
            return Err(format!("{}: expected a run to its last epoch, got one that stopped early", run.name));
        }
        launcher.settle()?;
    }
    let Hits { kills, of_root, without_progress, while_writing, crashes_in_start, runs, .. } = hits;
    Ok(format!(
        "{kills} kills, {of_root} of root, {without_progress} before a new checkpoint, {while_writing} while one was written; \
         {crashes_in_start} crashes inside MPI's own start; {runs} runs with the undisturbed hash, in {:.0} s",
        start.elapsed().as_secs_f64()
    ))
}

/// What the kills hit.
#[derive(Default)]
struct Hits {
    kills: usize,
    of_root: usize,
    without_progress: usize,
    while_writing: usize,
    crashes_in_start: usize,
    runs: usize,
    lives: usize,
}
