//! A tiny training run of the trainer, and the files in its folder.
//!
//! In: a [`Suite`], ranks, flags. Out: how the run ended, its summary, its parameter hash.
//! Invariant: each rank computes with one thread, and every process has a deadline.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use cluster::json;
use cluster::process::{self, Running};

use super::start::Launcher;
use super::{Checked, Ended, Stop, Suite, checkpoints, expect, read, same};
use crate::at;

/// Seconds; longer than any of these runs takes on a busy machine.
pub(crate) const LIMIT_S: u64 = 600;

/// Flags with which every number of ranks has the same bits.
pub(crate) const EXACT: [&str; 6] = [
    "--reduction",
    "exact",
    "--virtual-shards",
    "4",
    "--batch-norm",
    "local",
];

/// A twelfth of the samples: still five steps in an epoch, the last with fewer samples than shards.
const FEW_SAMPLES: [&str; 6] = [
    "--shapes-train",
    "18",
    "--shapes-test",
    "8",
    "--global-batch-size",
    "4",
];

/// Five steps in an epoch; the last has 10 samples, which 3 and 4 ranks share unevenly.
const TRAIN: &str = "train --model resnet8 --dataset shapes --shapes-train 202 --shapes-test 130 \
    --global-batch-size 48 --batch-norm sync --warmup-epochs 0 --learning-rate 0.05 --seed 0 \
    --threads 1 --device flex";

/// A training run, with a folder for its output.
pub(crate) struct Run<'a> {
    pub(crate) suite: &'a Suite,
    pub(crate) name: String,
    pub(crate) folder: PathBuf,
    pub(crate) launcher: Launcher,
    pub(crate) ranks: usize,
    words: Vec<String>,
}

impl<'a> Run<'a> {
    /// Makes a run of one epoch on two ranks; removes the output of an earlier attempt.
    pub(super) fn new(suite: &'a Suite, name: &str) -> Self {
        let folder = suite.folder.join(name);
        let _ = fs::remove_dir_all(&folder);
        // `--resume` needs an existing folder.
        let _ = fs::create_dir_all(&folder);
        let run = Run {
            suite,
            name: name.to_owned(),
            launcher: suite.launcher(),
            ranks: 2,
            words: TRAIN.split_whitespace().map(str::to_owned).collect(),
            folder: PathBuf::new(),
        };
        run.epochs(1).into(folder)
    }

    pub(crate) fn on(mut self, ranks: usize) -> Self {
        self.ranks = ranks;
        self
    }

    pub(crate) fn epochs(self, epochs: usize) -> Self {
        self.with(&["--epochs", &epochs.to_string()])
    }

    /// Adds flags; each replaces an earlier flag of its name.
    pub(crate) fn with(mut self, flags: &[&str]) -> Self {
        self.words = instead(self.words, flags);
        self
    }

    /// Adds the flags for few samples and exact reduction.
    pub(crate) fn quick(self) -> Self {
        self.with(&EXACT).with(&FEW_SAMPLES)
    }

    pub(crate) fn by(mut self, launcher: Launcher) -> Self {
        self.launcher = launcher;
        self
    }

    pub(crate) fn into(mut self, folder: PathBuf) -> Self {
        self = self.with(&["--output-dir", &folder.display().to_string()]);
        self.folder = folder;
        self
    }

    /// Replaces the command and the folder by those of another command.
    pub(crate) fn of(mut self, words: Vec<String>, folder: &Path) -> Self {
        self.words = words;
        folder.clone_into(&mut self.folder);
        self
    }

    /// Returns the trainer's arguments.
    pub(crate) fn words(&self) -> Vec<String> {
        self.words.clone()
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.suite.log(&self.name)
    }

    pub(crate) fn command(&self) -> Checked<Command> {
        let Run { suite, words, .. } = self;
        if words.iter().any(|word| word == "--resume") {
            self.make_folder()?;
        }
        suite.on_ranks(self.launcher, self.ranks, &suite.trainer, words)
    }

    /// Makes the folder, which `--resume` needs also in the first session.
    pub(crate) fn make_folder(&self) -> Checked {
        Ok(fs::create_dir_all(&self.folder).map_err(at(&self.folder))?)
    }

    /// Trains to the end.
    pub(crate) fn train(&self) -> Checked<Ended> {
        let once = || Ended::run(self.command()?, &self.log(), LIMIT_S);
        let ended = again_if_mpi_crashed(once, |ended| ended)?;
        ended.expect_success()?;
        Ok(ended)
    }

    /// Continues the run to its end.
    pub(crate) fn resume(&self) -> Checked<Ended> {
        let resumed = Run {
            suite: self.suite,
            name: format!("{}-resumed", self.name),
            folder: self.folder.clone(),
            words: instead(self.words(), &["--resume"]),
            ..*self
        };
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
                let process = self
                    .suite
                    .process_of_rank(self.launcher, &self.folder, *rank);
                let missing = || format!("{}: no process of rank {rank}", self.name);
                process::send_signal(process.ok_or_else(missing)?, signal)?;
            }
            Ok(start)
        };
        let once = || {
            let (ended, sent) = self.disturbed(self.command()?, &is_time, send)?;
            Ok((ended, sent.map(|start| start.elapsed())))
        };
        let (ended, elapsed) = again_if_mpi_crashed(once, |(ended, _)| ended)?;
        if let Err(Stop::Failed(text)) = &elapsed {
            ended.expect(false, &format!("a run that accepts signals ({text})"))?;
        }
        Ok((ended, elapsed?))
    }

    /// Starts a command that trains into this run's folder, and disturbs it at a time.
    pub(crate) fn disturbed<T>(
        &self,
        command: Command,
        is_time: impl Fn() -> bool,
        disturb: impl FnOnce(u32) -> Checked<T>,
    ) -> Checked<(Ended, Checked<T>)> {
        disturbed(self.suite, command, &self.name, is_time, disturb)
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
fn again_if_mpi_crashed<T>(
    once: impl Fn() -> Checked<T>,
    ended: impl Fn(&T) -> &Ended,
) -> Checked<T> {
    let result = once()?;
    if !ended(&result).crashed_in_start() {
        return Ok(result);
    }
    println!("        MPI crashed in its own start; starting again");
    once()
}

/// Starts a command, disturbs its process at a time, and waits for the end in any case, as a
/// process that stays would disturb later checks.
pub(crate) fn disturbed<T>(
    suite: &Suite,
    command: Command,
    name: &str,
    is_time: impl Fn() -> bool,
    disturb: impl FnOnce(u32) -> Checked<T>,
) -> Checked<(Ended, Checked<T>)> {
    let line = process::shown(&command);
    let log = suite.log(name);
    let mut running = Running::start(command, &log)?;
    let start = Instant::now();
    let disturbance = loop {
        if is_time() {
            break disturb(running.id());
        }
        if running.has_ended() || start.elapsed().as_secs() > LIMIT_S {
            let text = format!("{name}: no time for the disturbance before the end");
            break Err(text.into());
        }
        sleep(Duration::from_millis(5));
    };
    let ended = Ended::finish(line, running, Duration::from_secs(LIMIT_S))?;
    Ok((ended, disturbance))
}

/// Returns the words with `flags` instead of the same flags among them; of two equal `flags` the
/// last counts.
fn instead(mut words: Vec<String>, flags: &[&str]) -> Vec<String> {
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
        words.push((*word).to_owned());
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_given_again_replaces_the_first() {
        let instead = |words: &str, flags: &[&str]| {
            let words = words.split(' ').map(str::to_owned).collect();
            super::instead(words, flags).join(" ")
        };
        assert_eq!(
            instead("train --seed 0 --epochs 2", &["--seed", "7", "--resume"]),
            "train --epochs 2 --seed 7 --resume"
        );
        assert_eq!(
            instead("--a 1 --b --c 3", &["--b", "--a", "2", "--a", "4"]),
            "--c 3 --b --a 4"
        );
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
