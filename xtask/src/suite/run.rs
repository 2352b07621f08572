//! A tiny training run of the program `trainer`, and what it leaves in its folder.
//!
//! In: a [`Launcher`], flags. Out: [`Run`] with its summary, its hash, its lines of metrics.
//! Invariant: each rank computes with one thread, and every process has a deadline.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::Ended;
use super::launcher::Launcher;
use cluster::json;
use cluster::process::{self, Running};

/// Longer than any of these runs takes on a busy machine.
pub(crate) const LIMIT_S: u64 = 600;

/// Flags with which every number of ranks gives the same bits.
pub(crate) const EXACT: [&str; 6] = [
    "--reduction",
    "exact",
    "--virtual-shards",
    "4",
    "--batch-norm",
    "local",
];

/// The same with a twelfth of the samples: still five steps an epoch, the last with fewer samples than shards.
pub(crate) const QUICK: [&str; 12] = {
    let [reduction, exact, shards, four, norm, local] = EXACT;
    let (train, test, batch) = ("--shapes-train", "--shapes-test", "--global-batch-size");
    [
        reduction, exact, shards, four, norm, local, train, "18", test, "8", batch, "4",
    ]
};

/// Five steps an epoch, the last with 10 samples: uneven on 3 and 4 ranks.
pub(crate) fn arguments(folder: &Path, epochs: usize) -> Vec<String> {
    let line = format!(
        "train --model resnet8 --dataset shapes --shapes-train 202 --shapes-test 130 --global-batch-size 48 --batch-norm sync \
         --epochs {epochs} --warmup-epochs 0 --learning-rate 0.05 --seed 0 --threads 1 --device flex"
    );
    let mut words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    words.extend(["--output-dir".to_owned(), folder.display().to_string()]);
    words
}

/// The words with the flags of `further` in place of the same ones among them; of two in `further` the last counts.
pub(crate) fn instead(mut words: Vec<String>, further: &[&str]) -> Vec<String> {
    let is_flag = |word: &str| word.starts_with("--");
    for word in further {
        if let Some(place) = words
            .iter()
            .position(|earlier| is_flag(word) && earlier == word)
        {
            let values = words[place + 1..]
                .iter()
                .take_while(|value| !is_flag(value))
                .count();
            words.drain(place..=place + values);
        }
        words.push((*word).to_owned());
    }
    words
}

/// A training run and the folder it writes to.
pub(crate) struct Run {
    pub(crate) name: String,
    pub(crate) folder: PathBuf,
}

/// What `metrics.jsonl` says.
pub(crate) struct Metrics {
    pub(crate) num_lines: usize,
    pub(crate) last_loss: f64,
}

impl Run {
    /// One that has not begun: what an earlier try of its check left goes.
    pub(crate) fn new(launcher: &impl Launcher, name: &str) -> Self {
        let folder = launcher.folder().join(name);
        let _ = fs::remove_dir_all(&folder);
        Run {
            name: name.to_owned(),
            folder,
        }
    }

    /// Trains to the end.
    pub(crate) fn train(
        &self,
        launcher: &impl Launcher,
        ranks: usize,
        epochs: usize,
        further: &[&str],
    ) -> Result<Ended, String> {
        let words = instead(arguments(&self.folder, epochs), further);
        let name = format!("{}{}", self.name, further.concat().replace('/', "-"));
        let log = launcher.folder().join(format!("{name}.log"));
        let once = || {
            Ended::of(
                launcher.on_ranks(ranks, launcher.trainer(), &words)?,
                &log,
                LIMIT_S,
            )
        };
        let ended = again_if_mpi_crashed(once, |ended| ended)?;
        ended.expect_success()?;
        Ok(ended)
    }

    /// Starts it, waits until `is_time`, sends the signals one after the other to a rank each, and waits for its end: how it
    /// ended, and how long after the first signal.
    pub(crate) fn signalled(
        &self,
        launcher: &impl Launcher,
        ranks: usize,
        words: &[String],
        is_time: impl Fn() -> bool,
        signals: &[(&str, usize)],
    ) -> Result<(Ended, Duration), String> {
        let log = launcher.folder().join(format!("{}.log", self.name));
        let what = format!("the time to signal {}", self.name);
        let send = |_| {
            let start = Instant::now();
            signals.iter().try_for_each(|(signal, rank)| {
                let process = launcher.process_of_rank(&self.folder, *rank);
                let missing = || {
                    format!(
                        "no process of rank {rank} trains into {}",
                        self.folder.display()
                    )
                };
                process::send_signal(process.ok_or_else(missing)?, signal)
            })?;
            Ok(start)
        };
        let once = || {
            let command = launcher.on_ranks(ranks, launcher.trainer(), words)?;
            let (ended, sent) = disturbed(command, &log, &is_time, &what, send)?;
            Ok((ended, sent.map(|start| start.elapsed())))
        };
        let (ended, elapsed) = again_if_mpi_crashed(once, |(ended, _)| ended)?;
        if let Err(text) = &elapsed {
            ended.expect(false, &format!("a run that can be signalled ({text})"))?;
        }
        Ok((ended, elapsed?))
    }

    /// Whether an epoch is done.
    pub(crate) fn has_line(&self) -> bool {
        fs::metadata(self.metrics_file()).is_ok_and(|file| file.len() > 0)
    }

    fn metrics_file(&self) -> PathBuf {
        self.folder.join("metrics.jsonl")
    }

    pub(crate) fn metrics(&self, ended: &Ended) -> Result<Metrics, String> {
        let text = read(&self.metrics_file())?;
        let last_loss = text
            .lines()
            .rev()
            .find_map(|line| json::number(line, "train_loss"));
        ended.expect(
            last_loss.is_some(),
            &format!("a train_loss in {}", self.metrics_file().display()),
        )?;
        Ok(Metrics {
            num_lines: text.lines().count(),
            last_loss: last_loss.unwrap_or(f64::NAN),
        })
    }

    pub(crate) fn file(&self, name: &str) -> Result<String, String> {
        read(&self.folder.join(name))
    }

    pub(crate) fn has_stopped_early(&self) -> Result<bool, String> {
        Ok(json::is_true(&self.file("summary.json")?, "stopped_early"))
    }

    /// The hash of the last session's parameters, if that session reached the last epoch.
    pub(crate) fn parameter_hash(&self) -> Result<String, String> {
        let summary = self.file("summary.json")?;
        json::text(&summary, "parameter_hash")
            .ok_or_else(|| format!("{}: no parameter_hash in its summary", self.name))
    }
}

/// What `once` ends with the second time if MPI crashed in its own start the first time; that is said.
fn again_if_mpi_crashed<T>(
    once: impl Fn() -> Result<T, String>,
    ended: impl Fn(&T) -> &Ended,
) -> Result<T, String> {
    let result = once()?;
    if !ended(&result).has_crashed_in_start() {
        return Ok(result);
    }
    println!("        MPI crashed in its own start; once more");
    once()
}

/// Starts a command, disturbs its process when it `is_time`, and waits for its end in any case, since one left behind would disturb
/// the checks after it: how it ended, and what came of the disturbance.
pub(crate) fn disturbed<T>(
    command: Command,
    log: &Path,
    is_time: impl Fn() -> bool,
    what: &str,
    disturb: impl FnOnce(u32) -> Result<T, String>,
) -> Result<(Ended, Result<T, String>), String> {
    let line = process::shown(&command);
    let mut running = Running::start(command, log)?;
    let start = Instant::now();
    let disturbance = loop {
        if is_time() {
            break disturb(running.id());
        }
        if running.has_ended() || start.elapsed().as_secs() > LIMIT_S {
            break Err(format!(
                "{what} did not come: expected it before the end and within {LIMIT_S} s"
            ));
        }
        sleep(Duration::from_millis(5));
    };
    Ok((
        Ended {
            line,
            finished: running.finish(Duration::from_secs(LIMIT_S))?,
        },
        disturbance,
    ))
}

fn read(file: &Path) -> Result<String, String> {
    fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_given_again_replaces_the_first() {
        let words = ["train", "--seed", "0", "--epochs", "2"]
            .map(str::to_owned)
            .to_vec();
        assert_eq!(
            instead(words, &["--seed", "7", "--resume"]).join(" "),
            "train --epochs 2 --seed 7 --resume"
        );
        let words = ["--a", "1", "--b", "--c", "3"].map(str::to_owned).to_vec();
        assert_eq!(
            instead(words, &["--b", "--a", "2", "--a", "4"]).join(" "),
            "--c 3 --b --a 4"
        );
    }

    #[test]
    fn the_tiny_run_has_a_last_step_that_is_uneven_on_several_ranks() {
        let words = arguments(Path::new("/out"), 2);
        let value = |flag: &str| {
            words
                .iter()
                .skip_while(|word| *word != flag)
                .nth(1)
                .unwrap()
                .parse::<usize>()
                .unwrap()
        };
        let (samples, batch) = (value("--shapes-train"), value("--global-batch-size"));
        assert!(
            (1..=4).all(|ranks| batch % ranks == 0),
            "every world size divides the global batch"
        );
        assert!(
            (3..=4).all(|ranks| (samples % batch) % ranks != 0),
            "the last batch is uneven"
        );
        assert_eq!(words.last().unwrap(), "/out");
    }
}
