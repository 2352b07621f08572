//! A tiny training run of the trainer or of an example task, and the files in its folder.
//!
//! In: a [`Suite`], ranks, flags. Out: how the run ended, its summary, its parameter hash.
//! Invariant: each rank computes with one thread, and every process has a deadline.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use cluster::json;
use cluster::process::{self, Running};

use super::start::Launcher;
use super::{Checked, Ended, Stop, Suite, checkpoints, expect, read, same};
use crate::at;

/// Seconds; longer than any of these runs takes on a busy machine.
pub(crate) const LIMIT_S: u64 = 600;

/// Flags with which every number of ranks has the same bits.
pub(crate) const EXACT: &str = "--reduction exact --virtual-shards 4 --batch-norm local";

/// A twelfth of the samples: still five steps in an epoch, the last with fewer samples than shards.
const FEW_SAMPLES: &str = "--shapes-train 18 --shapes-test 8 --global-batch-size 4";

/// Five steps in an epoch; the last has 10 samples, which 3 and 4 ranks share unevenly.
const TRAIN: &str = "train --model resnet8 --dataset shapes --shapes-train 202 --shapes-test 130 \
    --global-batch-size 48 --batch-norm sync --warmup-epochs 0 --learning-rate 0.05 --seed 0 \
    --threads 1 --device flex --epochs 1";

/// Few steps of a task, whose last step of an epoch is smaller.
const TRAIN_TASK: &str =
    "train --global-batch-size 48 --warmup-epochs 0 --seed 0 --threads 1 --device flex --epochs 2";

/// A training run, with a folder for its output.
#[derive(Clone)]
pub(crate) struct Run<'a> {
    pub(crate) suite: &'a Suite,
    pub(crate) name: String,
    pub(crate) folder: PathBuf,
    pub(crate) launcher: Launcher,
    pub(crate) ranks: usize,
    /// The trainer, or another program with its commands.
    pub(crate) program: PathBuf,
    /// Arguments of the program.
    pub(crate) words: Vec<String>,
}

impl Suite {
    /// Makes a run of one epoch on two ranks; removes the output of an earlier attempt.
    pub(crate) fn run(&self, name: &str) -> Run<'_> {
        self.run_of(self.trainer.clone(), TRAIN, name)
    }

    /// Makes a run of two epochs of an example task on two ranks.
    pub(crate) fn run_of_task(&self, task: &str, name: &str) -> Run<'_> {
        self.run_of(self.trainer.with_file_name(task), TRAIN_TASK, name)
    }

    fn run_of(&self, program: PathBuf, words: &str, name: &str) -> Run<'_> {
        let folder = self.folder.join(name);
        let _ = fs::remove_dir_all(&folder);
        // `--resume` needs an existing folder.
        let _ = fs::create_dir_all(&folder);
        let run = Run {
            suite: self,
            name: name.to_owned(),
            launcher: self.launcher(),
            ranks: 2,
            program,
            words: words.split_whitespace().map(str::to_owned).collect(),
            folder: PathBuf::new(),
        };
        run.into(folder)
    }
}

impl Suite {
    /// Starts a command, disturbs its process at a time, and waits for the end in any case, as a
    /// process that stays would disturb later checks.
    pub(crate) fn disturbed<T>(
        &self,
        command: Command,
        name: &str,
        is_time: impl Fn() -> bool,
        disturb: impl FnOnce(u32) -> Checked<T>,
    ) -> Checked<(Ended, Checked<T>)> {
        let line = process::shown(&command);
        let log = self.log(name);
        let limit = Duration::from_secs(LIMIT_S);
        let mut running = Running::start(command, &log)?;
        let mut is_now = false;
        process::wait_until(limit, Duration::from_millis(5), || {
            is_now = is_time();
            is_now || running.has_ended()
        });
        let disturbance = match is_now {
            true => disturb(running.id()),
            false => Err(format!("{name}: no time for the disturbance before the end").into()),
        };
        Ok((Ended::finish(line, running, limit)?, disturbance))
    }

    /// Starts a command, sends a signal to its process at a time, and waits for the end.
    pub(crate) fn signalled(
        &self,
        command: Command,
        name: &str,
        is_time: impl Fn() -> bool,
        signal: &str,
    ) -> Checked<Ended> {
        let send = |process| Ok(process::send_signal(process, signal)?);
        let (ended, sent) = self.disturbed(command, name, is_time, send)?;
        sent.map(|()| ended)
    }
}

impl Run<'_> {
    pub(crate) fn on(mut self, ranks: usize) -> Self {
        self.ranks = ranks;
        self
    }

    pub(crate) fn epochs(self, epochs: usize) -> Self {
        self.with(&format!("--epochs {epochs}"))
    }

    /// Adds flags; each replaces an earlier flag of its name.
    pub(crate) fn with(mut self, flags: &str) -> Self {
        replace_flags(&mut self.words, flags.split_whitespace());
        self
    }

    /// Adds the flags for few samples and exact reduction.
    pub(crate) fn quick(self) -> Self {
        self.with(EXACT).with(FEW_SAMPLES)
    }

    pub(crate) fn by(mut self, launcher: Launcher) -> Self {
        self.launcher = launcher;
        self
    }

    pub(crate) fn into(mut self, folder: PathBuf) -> Self {
        let output = ["--output-dir", &folder.to_string_lossy()];
        replace_flags(&mut self.words, output.into_iter());
        self.folder = folder;
        self
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.suite.log(&self.name)
    }

    pub(crate) fn command(&self) -> Checked<Command> {
        let Run { suite, words, .. } = self;
        if words.iter().any(|word| word == "--resume") {
            self.make_folder()?;
        }
        suite.on_ranks(self.launcher, self.ranks, &self.program, words)
    }

    /// Returns the command in which `trainer launch` starts two ranks.
    pub(crate) fn launch(&self) -> Command {
        let launch = ["launch", "-n", "2", "--"].map(str::to_owned);
        self.suite.alone(&[&launch[..], &self.words].concat())
    }

    /// Makes the folder, which `--resume` needs also in the first session.
    pub(crate) fn make_folder(&self) -> Checked {
        Ok(fs::create_dir_all(&self.folder).map_err(at(&self.folder))?)
    }

    /// Returns the program's command as a shell line; `before` may set variables.
    pub(crate) fn line(&self, before: &str) -> String {
        let program = self.program.display();
        format!("{before} exec {program} {}", self.words.join(" "))
    }

    /// Trains to the end.
    pub(crate) fn train(&self) -> Checked<Ended> {
        let train = || Ok((self.suite.finish(self.command()?, &self.name)?, ()));
        let (ended, ()) = again_if_mpi_crashed(train)?;
        ended.expect_success()?;
        Ok(ended)
    }

    /// Continues the run to its end.
    pub(crate) fn resume(&self) -> Checked<Ended> {
        let mut resumed = self.clone().with("--resume");
        resumed.name.push_str("-resumed");
        resumed.train()
    }

    /// Trains once and returns the parameter hash.
    pub(crate) fn trained_hash(&self) -> Checked<String> {
        self.train()?;
        self.hash()
    }

    /// Starts the run, waits for `is_time`, sends signals to ranks, and waits for the end. Returns
    /// the time between the first signal and the end as well.
    pub(crate) fn signalled(
        &self,
        is_time: impl Fn() -> bool,
        signals: &[(&str, usize)],
    ) -> Checked<(Ended, Duration)> {
        let send = |_| {
            let start = Instant::now();
            for (signal, rank) in signals {
                let process = self.process_of_rank(*rank);
                let missing = || format!("{}: no process of rank {rank}", self.name);
                process::send_signal(process.ok_or_else(missing)?, signal)?;
            }
            Ok(start)
        };
        let (ended, elapsed) = again_if_mpi_crashed(|| {
            let command = self.command()?;
            let (ended, sent) = self.suite.disturbed(command, &self.name, &is_time, send)?;
            Ok((ended, sent.map(|start| start.elapsed())))
        })?;
        if let Err(Stop::Failed(text)) = &elapsed {
            ended.expect(false, &format!("a run that accepts signals ({text})"))?;
        }
        Ok((ended, elapsed?))
    }

    /// Returns the process of a rank that trains into this run's folder.
    pub(crate) fn process_of_rank(&self, rank: usize) -> Option<u32> {
        let folder = self.folder.display().to_string();
        let mut ranks = self.suite.ranks().into_iter();
        let found = ranks.find(|found| found.rank == rank && found.words.contains(&folder));
        found.map(|found| found.process)
    }

    /// Returns true once the first epoch is done.
    pub(crate) fn has_line(&self) -> bool {
        let metrics = self.folder.join("metrics.jsonl");
        fs::metadata(metrics).is_ok_and(|file| file.len() > 0)
    }

    pub(crate) fn file(&self, name: &str) -> Checked<String> {
        read(&self.folder.join(name))
    }

    pub(crate) fn stopped_early(&self) -> Checked<bool> {
        Ok(json::is_true(&self.file("summary.json")?, "stopped_early"))
    }

    /// Returns the steps of the checkpoints, all of which are whole.
    pub(crate) fn checkpoints(&self) -> Checked<Vec<u64>> {
        Ok(checkpoints::whole(&self.folder, None)?)
    }

    /// Expects an early stop with a checkpoint of the last step.
    pub(crate) fn expect_stopped_with_checkpoint(&self) -> Checked {
        let steps = json::number(&self.file("summary.json")?, "steps");
        let saved = self.checkpoints()?;
        let has_last = steps == saved.last().map(|step| *step as f64);
        expect(
            self.stopped_early()? && has_last,
            format!(
                "{}: expected an early stop with a checkpoint of step {steps:?}, got {saved:?}",
                self.name
            ),
        )
    }

    /// Returns the parameter hash; an error if the last session ended before the last epoch.
    pub(crate) fn hash(&self) -> Checked<String> {
        let hash = json::text(&self.file("summary.json")?, "parameter_hash");
        Ok(hash.ok_or_else(|| format!("{}: no parameter_hash in summary.json", self.name))?)
    }

    pub(crate) fn expect_hash(&self, expected: &str) -> Checked {
        same(&self.name, expected, &self.hash()?)
    }
}

/// Repeats a start if MPI crashed in the first one, and prints that.
fn again_if_mpi_crashed<T>(start: impl Fn() -> Checked<(Ended, T)>) -> Checked<(Ended, T)> {
    let (ended, result) = start()?;
    if !ended.crashed_in_start() {
        return Ok((ended, result));
    }
    println!("        MPI crashed in its own start; starting again");
    start()
}

/// Appends flags and removes earlier ones of the same names.
fn replace_flags<'w>(words: &mut Vec<String>, flags: impl Iterator<Item = &'w str>) {
    let is_flag = |word: &str| word.starts_with("--");
    for word in flags {
        let earlier = words.iter().position(|earlier| earlier == word);
        if let Some(place) = earlier
            && is_flag(word)
        {
            let values = words[place + 1..].iter();
            let num_values = values.take_while(|value| !is_flag(value)).count();
            words.drain(place..=place + num_values);
        }
        words.push(word.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_given_again_replaces_the_first() {
        for (words, flags, expected) in [
            (
                "train --seed 0 --epochs 2",
                "--seed 7 --resume",
                "train --epochs 2 --seed 7 --resume",
            ),
            ("--a 1 --b --c 3", "--b --a 2 --a 4", "--c 3 --b --a 4"),
        ] {
            let mut words: Vec<String> = words.split(' ').map(str::to_owned).collect();
            replace_flags(&mut words, flags.split(' '));
            assert_eq!(words.join(" "), expected);
        }
    }

    #[test]
    fn the_tiny_run_has_a_last_step_that_is_uneven_on_several_ranks() {
        let value = |flag: &str| {
            let mut words = TRAIN.split_whitespace().skip_while(|word| *word != flag);
            words.nth(1).unwrap().parse::<usize>().unwrap()
        };
        let samples = value("--shapes-train");
        let batch = value("--global-batch-size");
        assert!((1..=4).all(|ranks| batch % ranks == 0));
        assert!((3..=4).all(|ranks| (samples % batch) % ranks != 0));
    }
}
