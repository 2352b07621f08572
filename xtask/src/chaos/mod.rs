//! `cargo xtask chaos`: a training run that faults befall at random until it has ended all the same, with the same bits.
//!
//! In: a [`Launcher`], a number of faults, a seed. Out: a table of the faults, or the first thing that broke.
//! Invariant: after every fault the job ends, every finished checkpoint is whole, the newest is not older than before, and the run
//! goes on from it; each run that reaches its end has the parameter hash and the epochs of the undisturbed one.

mod cut;
mod disk;
mod fault;
mod life;
mod random;
mod tally;

use std::time::{Duration, Instant};

use clap::Args;

use crate::cargo::{self, Mpi};
use crate::mpi_suite;
use crate::setup;
use crate::slurm_suite;
use crate::suite::launcher::Launcher;
use crate::suite::run::{QUICK, Run, arguments, disturbed, instead};
use crate::suite::{checkpoints, conclude, empty_folder, same};
use cluster::failure::{Failure, Outcome};
use cluster::options::{self, Installing};

use cut::Cut;
use disk::Disk;
use fault::{Fault, Kind};
use life::{End, Life, Lived, live};
use random::Random;
use tally::{Consequence, Tally};

const DETAILS: &str = "\
A fault is a SIGKILL, a SIGTERM or a SIGSTOP for longer than --timeout to one rank, root included; a full disk; a folder of
checkpoints that turns read-only; or a SIGKILL after which the newest checkpoint is found cut short. It comes after a random
time from the start, so that it also hits the start-up, evaluations and the writing of checkpoints. The run is restarted
with --resume, on 2 to 4 ranks. The same seed draws the same faults. The disk is a small tmpfs; where this user may not
mount one, that is said, and kills stand in. Example: cargo xtask chaos --kills 50 --launcher srun";

/// Flags of `cargo xtask chaos`.
#[derive(Debug, Args)]
#[command(after_help = DETAILS)]
pub(crate) struct ChaosArgs {
    /// How many faults.
    #[arg(long, value_name = "N", default_value = "50", value_parser = options::count)]
    kills: usize,
    /// What starts the ranks; srun in a cluster of its own.
    #[arg(long, value_name = "NAME", default_value = "mpirun", value_parser = ["mpirun", "srun"])]
    launcher: String,
    /// Which faults at which times.
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,
    #[command(flatten)]
    installing: Installing,
}

/// Enough steps for several faults on their way, and for Slurm to look at a time limit meanwhile.
pub(crate) const EPOCHS: usize = 200;
/// Steps from a checkpoint to the next.
const CADENCE: u64 = 3;
/// How long ranks wait for one that has stopped.
const TIMEOUT_S: u64 = 5;
/// Starts among which one may crash inside MPI.
const CRASHES_ONE_IN: usize = 20;
/// Faults between two lines about them.
const FAULTS_A_LINE: usize = 50;

/// Ends and times of the undisturbed run.
pub(crate) struct Undisturbed {
    pub(crate) hash: String,
    /// How long it takes from the start to the first checkpoint.
    start_up: Duration,
}

impl ChaosArgs {
    pub(crate) fn run(&self) -> Outcome {
        let found = setup::run(self.installing)?;
        let Some(mpirun) = found.mpirun.clone().filter(|_| found.can_build_mpi()) else {
            return Err(Failure::Failed(
                "no mpirun with an MPI to build with: see `cargo xtask setup`".to_owned(),
            ));
        };
        let trainer = cargo::kept_trainer(Mpi::With)?;
        slurm_suite::stop_remains("chaos").map_err(Failure::Failed)?;
        let place = crate::cargo::target_folder().join("chaos").join("disk");
        Disk::unmount(&place);
        let folder = empty_folder("chaos")?;
        // Before the cluster, whose nodes keep the mounts that they find.
        let disk = Disk::mount(&place).inspect_err(|text| {
            println!("no small disk here ({text}): kills stand in for full and for read-only disks")
        });
        let storm = Storm {
            name: "storm",
            faults: self.kills,
            seed: self.seed,
            disk: disk.as_ref().ok(),
        };
        let suite = mpi_suite::Suite::new(Some(mpirun), trainer, folder.clone());
        let text = if self.launcher == "srun" {
            if let Some(reason) = crate::slurm_cluster::lacking(self.installing) {
                return Err(Failure::Failed(reason));
            }
            slurm_suite::Suite::start(suite)
                .and_then(|suite| suite.quicken_kills().map(|()| suite))
                .and_then(|suite| {
                    storm
                        .whole(&suite)
                        .and_then(|text| suite.stop().map(|()| text))
                })
        } else {
            storm.whole(&suite)
        };
        if let (Err(_), Ok(disk)) = (&text, &disk) {
            disk.keep(&folder.join("remains"));
        }
        drop(disk);
        match text {
            Ok(text) => {
                println!("{text}");
                conclude(&folder, &[])
            }
            Err(text) => {
                println!("{text}");
                conclude(&folder, &["the run did not survive"])
            }
        }
    }
}

/// The run that nobody disturbs.
pub(crate) fn undisturbed(launcher: &impl Launcher) -> Result<Undisturbed, String> {
    let run = Run::new(launcher, "chaos-undisturbed");
    let log = launcher.folder().join("chaos-undisturbed.log");
    let command = launcher.on_ranks(2, launcher.trainer(), &words(&run))?;
    let start = Instant::now();
    let is_time = || checkpoints::whole(&run.folder).is_ok_and(|steps| !steps.is_empty());
    let (ended, start_up) = disturbed(command, &log, is_time, "the first checkpoint", |_| {
        Ok(start.elapsed())
    })?;
    ended.expect_success()?;
    Ok(Undisturbed {
        start_up: start_up?,
        hash: run.parameter_hash()?,
    })
}

fn words(run: &Run) -> Vec<String> {
    let (cadence, timeout) = (CADENCE.to_string(), TIMEOUT_S.to_string());
    let further = [
        [
            "--checkpoint-every-steps",
            &cadence,
            "--keep-checkpoints",
            "2",
        ],
        ["--timeout", &timeout, "--log-every-steps", "1"],
    ];
    instead(
        arguments(&run.folder, EPOCHS),
        &[&QUICK[..], &further.concat(), &["--resume"]].concat(),
    )
}

/// Faults for one run or, where that ends too early, several.
pub(crate) struct Storm<'a> {
    pub(crate) name: &'a str,
    pub(crate) faults: usize,
    pub(crate) seed: u64,
    /// Without one no disk is full or read-only.
    pub(crate) disk: Option<&'a Disk>,
}

impl Storm<'_> {
    /// The undisturbed run, then the faults.
    fn whole(&self, launcher: &impl Launcher) -> Result<String, String> {
        let undisturbed = undisturbed(launcher)?;
        self.rage(launcher, &undisturbed)
    }

    /// Lets so many faults happen; says what was hit.
    pub(crate) fn rage(
        &self,
        launcher: &impl Launcher,
        undisturbed: &Undisturbed,
    ) -> Result<String, String> {
        let start = Instant::now();
        // A fault may come before the first checkpoint, but not always: the run has to get on.
        let latest = (2 * undisturbed.start_up).max(Duration::from_millis(2500));
        println!(
            "seed {}: {} faults, each within {:.1} s of a start",
            self.seed,
            self.faults,
            latest.as_secs_f64()
        );
        let mut random = Random(self.seed);
        let mut course = Course::default();
        while course.tally.num() < self.faults || course.runs == 0 {
            course.runs += 1;
            let name = format!("{}-{}", self.name, course.runs);
            let run = match self.disk {
                Some(disk) => {
                    disk.clear()?;
                    Run {
                        name,
                        folder: disk.folder.clone(),
                    }
                }
                None => Run::new(launcher, &name),
            };
            self.one_run(launcher, &run, &mut random, latest, &mut course)?;
            let whose = format!("{}, seed {}, run {}", self.name, self.seed, course.runs);
            same(&whose, &undisturbed.hash, &run.parameter_hash()?)?;
            let epochs = run.file("metrics.jsonl")?.lines().count();
            if epochs != EPOCHS {
                return Err(format!(
                    "{whose}: expected {EPOCHS} epochs in metrics.jsonl, each once, got {epochs} lines"
                ));
            }
            launcher.settle()?;
        }
        let Course {
            tally,
            runs,
            lives,
            without_progress,
            crashes_in_start,
            ..
        } = course;
        Ok(format!(
            "{}\nseed {}: {} faults in {lives} starts, {without_progress} before a new checkpoint; {crashes_in_start} crashes inside \
             MPI's own start; {runs} runs with the undisturbed hash, in {:.0} s",
            tally.table(),
            self.seed,
            tally.num(),
            start.elapsed().as_secs_f64()
        ))
    }

    /// Starts the run again and again until it has reached its end.
    fn one_run(
        &self,
        launcher: &impl Launcher,
        run: &Run,
        random: &mut Random,
        latest: Duration,
        course: &mut Course,
    ) -> Result<(), String> {
        let mut saved = Saved {
            run,
            steps: Vec::new(),
            cut: None,
        };
        loop {
            let mut fault = Fault::draw(random, latest);
            if self.disk.is_none() {
                fault.kind = fault.kind.without_disk();
            }
            let is_last = course.tally.num() >= self.faults;
            let life = Life {
                number: course.lives,
                ranks: fault.ranks,
                fault: (!is_last).then_some(fault),
                disk: self.disk,
            };
            course.lives += 1;
            let after = course.tally.num();
            let with_fault = |text| {
                format!(
                    "{}, seed {}, after {after} faults, {:?}: {text}",
                    self.name, self.seed, life.fault
                )
            };
            let lived = live(launcher, run, &life).map_err(with_fault)?;
            let before = saved.newest();
            saved.look(&lived).map_err(with_fault)?;
            match lived.end {
                End::Reached => return Ok(()),
                End::CrashedInStart => course.crashes_in_start += 1,
                End::Hit(to_end) => {
                    course.without_progress += usize::from(saved.newest() == before);
                    let (kind, steps_lost) = saved.lost(&lived, &fault).map_err(with_fault)?;
                    let consequence = Consequence {
                        to_end,
                        steps_lost,
                        was_writing: lived.was_writing,
                    };
                    course.tally.add(kind, &fault, consequence);
                    if course.tally.num().is_multiple_of(FAULTS_A_LINE) {
                        println!(
                            "{} faults, run {} at step {}",
                            course.tally.num(),
                            course.runs,
                            saved.newest()
                        );
                    }
                }
            }
            if course.crashes_in_start > 1 + course.lives / CRASHES_ONE_IN {
                return Err(with_fault(format!(
                    "{} starts crashed by themselves",
                    course.crashes_in_start
                )));
            }
            launcher.settle()?;
        }
    }
}

/// The whole checkpoints of a run, oldest first, and the one that was cut.
struct Saved<'a> {
    run: &'a Run,
    steps: Vec<u64>,
    cut: Option<Cut>,
}

impl Saved<'_> {
    fn newest(&self) -> u64 {
        self.steps.last().copied().unwrap_or(0)
    }

    /// Looks at what a life left: it went on from the newest checkpoint, and every one is whole and none was lost.
    fn look(&mut self, lived: &Lived) -> Result<(), String> {
        let before = self.newest();
        let has_gone_on = lived.resumed.is_none_or(|step| step == before);
        lived.ended.expect(
            has_gone_on,
            &format!("a resume at step {before}, not {:?}", lived.resumed),
        )?;
        self.cut.take_if(|cut| !cut.is_there());
        self.steps =
            checkpoints::whole_but(&self.run.folder, self.cut.as_ref().map(|cut| cut.step))?;
        let is_kept = self.newest() >= before;
        lived.ended.expect(
            is_kept,
            &format!(
                "a checkpoint of step {before} or newer, not {:?}",
                self.steps
            ),
        )
    }

    /// Cuts the newest checkpoint if that is the fault, and counts the steps that are to be done again. A cut that cannot be made,
    /// as there is no older checkpoint, was a kill.
    fn lost(&mut self, lived: &Lived, fault: &Fault) -> Result<(Kind, u64), String> {
        let mut kind = fault.kind;
        // While a checkpoint is written beside training, until the next one is due, the one before it is the newest.
        let mut most = if lived.ended.finished.code == Some(0) {
            0
        } else {
            2 * CADENCE
        };
        if kind == Kind::CutCheckpoint {
            let cut = if self.cut.is_none() {
                Cut::make(&self.run.folder, &self.steps, fault.cut)?
            } else {
                None
            };
            match cut {
                Some(cut) => {
                    self.steps.pop();
                    self.cut = Some(cut);
                    most = 3 * CADENCE;
                }
                None => kind = Kind::Kill,
            }
        }
        let lost = lived
            .reached
            .map_or(0, |step| step.saturating_sub(self.newest()));
        lived.ended.expect(
            lost <= most,
            &format!("at most {most} steps lost, not {lost}"),
        )?;
        Ok((kind, lost))
    }
}

/// What has happened so far.
#[derive(Default)]
struct Course {
    tally: Tally,
    without_progress: usize,
    crashes_in_start: usize,
    runs: usize,
    lives: usize,
}
