//! Checks of training on several processes through the program `trainer`.
//!
//! In: the program, a tiny training run. Out: checks of equality, of a clean stop, of launchers that were misunderstood.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::{Check, Ended, Suite};
use crate::json;
use crate::process::{self, Running};

pub(super) const CHECKS: [Check; 4] = [
    Check {
        claim: "a start that its launcher counts differently is refused with both numbers",
        needs_mpirun: false,
        run: refuses_misunderstood_launchers,
    },
    Check {
        claim: "training on 2, 3 and 4 ranks has the loss of training on 1, and only root writes",
        needs_mpirun: true,
        run: losses_agree,
    },
    Check {
        claim: "SIGTERM to one rank stops all, and the resumed run ends with the same parameters",
        needs_mpirun: true,
        run: |suite| stops_and_resumes(suite, "TERM", 1),
    },
    Check {
        claim: "SIGUSR1 to root stops all, and the resumed run ends with the same parameters",
        needs_mpirun: true,
        run: |suite| stops_and_resumes(suite, "USR1", 0),
    },
];

/// Longer than any of these runs takes on a busy machine.
const LIMIT_S: u64 = 600;
/// Losses of different world sizes differ by the order of the sums alone.
const LOSS_TOLERANCE: f64 = 1e-3;

fn refuses_misunderstood_launchers(suite: &Suite<'_>) -> Result<(), String> {
    for (variable, tasks) in [("SLURM_NTASKS", "3"), ("OMPI_COMM_WORLD_SIZE", "4")] {
        let mut command = suite.alone(&suite.trainer, &arguments(&suite.folder.join(variable), 1));
        command.env(variable, tasks);
        let ended = suite.finish(command, variable, 60)?;
        ended.expect(matches!(ended.finished.code, Some(1 | 2)), "exit code 1 or 2")?;
        let text = &ended.finished.text;
        let has_both = text.contains(variable) && has_number(text, tasks) && has_number(text, "1");
        ended.expect(has_both, &format!("a message with {variable}, {tasks} and 1"))?;
    }
    Ok(())
}

fn losses_agree(suite: &Suite<'_>) -> Result<(), String> {
    let alone = Run::new(suite, "alone");
    let ended = suite.finish(suite.alone(&suite.trainer, &arguments(&alone.folder, 1)), "alone", LIMIT_S)?;
    ended.expect_success()?;
    let expected = alone.metrics(&ended)?;
    for ranks in 2..=4 {
        let run = Run::new(suite, &format!("ranks-{ranks}"));
        let ended = run.train(suite, ranks, 1, &[])?;
        run.parameter_hash()?;
        let metrics = run.metrics(&ended)?;
        // Were every rank to write, there would be a multiple of the lines.
        ended.expect(metrics.num_lines == expected.num_lines, &format!("{} lines of metrics", expected.num_lines))?;
        let difference = (metrics.last_loss - expected.last_loss).abs() / expected.last_loss.abs();
        ended.expect(
            difference <= LOSS_TOLERANCE,
            &format!("the loss {} of one rank within {LOSS_TOLERANCE}, not {}", expected.last_loss, metrics.last_loss),
        )?;
    }
    Ok(())
}

fn stops_and_resumes(suite: &Suite<'_>, signal: &str, rank: usize) -> Result<(), String> {
    const RANKS: usize = 2;
    const EPOCHS: usize = 3;
    let undisturbed = Run::new(suite, &format!("undisturbed-{signal}"));
    undisturbed.train(suite, RANKS, EPOCHS, &[])?;
    let stopped = Run::new(suite, &format!("stopped-{signal}"));
    let ended = stopped.signalled(suite, RANKS, &arguments(&stopped.folder, EPOCHS), signal, rank)?.0;
    ended.expect_success()?;
    ended.expect(json::is_true(&stopped.summary()?, "stopped_early"), "stopped_early in summary.json")?;
    let resumed = stopped.train(suite, RANKS, EPOCHS, &["--resume"])?;
    let (expected, got) = (undisturbed.parameter_hash()?, stopped.parameter_hash()?);
    resumed.expect(got == expected, &format!("parameter hash {expected}, not {got}"))
}

/// Five steps an epoch, the last with 10 samples: uneven on 3 and 4 ranks.
pub(super) fn arguments(folder: &Path, epochs: usize) -> Vec<String> {
    let line = format!(
        "train --model resnet8 --dataset shapes --shapes-train 202 --shapes-test 130 --global-batch-size 48 --batch-norm sync \
         --epochs {epochs} --warmup-epochs 0 --learning-rate 0.05 --seed 0 --threads 1 --device flex"
    );
    let mut words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    words.extend(["--output-dir".to_owned(), folder.display().to_string()]);
    words
}

/// The words with the flags of `further` in place of the same ones among them.
pub(super) fn instead(mut words: Vec<String>, further: &[&str]) -> Vec<String> {
    for flag in further.iter().filter(|word| word.starts_with("--")) {
        if let Some(place) = words.iter().position(|word| word == flag) {
            words.drain(place..place + 2);
        }
    }
    words.extend(further.iter().map(|word| (*word).to_owned()));
    words
}

/// A training run and the folder it writes to.
pub(super) struct Run {
    pub(super) name: String,
    pub(super) folder: PathBuf,
}

struct Metrics {
    num_lines: usize,
    last_loss: f64,
}

impl Run {
    pub(super) fn new(suite: &Suite<'_>, name: &str) -> Self {
        Run { name: name.to_owned(), folder: suite.folder.join(name) }
    }

    pub(super) fn train(
        &self,
        suite: &Suite<'_>,
        ranks: usize,
        epochs: usize,
        further: &[&str],
    ) -> Result<Ended, String> {
        let words = instead(arguments(&self.folder, epochs), further);
        let command = suite.on_ranks(ranks, &suite.trainer, &words)?;
        let ended = suite.finish(command, &format!("{}{}", self.name, further.concat()), LIMIT_S)?;
        ended.expect_success()?;
        Ok(ended)
    }

    /// Starts it, sends `signal` to one rank once it has written a line, and waits for its end: how it ended, and how long after the
    /// signal.
    pub(super) fn signalled(
        &self,
        suite: &Suite<'_>,
        ranks: usize,
        words: &[String],
        signal: &str,
        rank: usize,
    ) -> Result<(Ended, Duration), String> {
        let command = suite.on_ranks(ranks, &suite.trainer, words)?;
        let line = process::shown(&command);
        let log = suite.folder.join(format!("{}.log", self.name));
        let mut running = Running::start(command, &log)?;
        let target = wait_for_first_line(self, &mut running).and_then(|()| process_of_rank(suite, self, rank));
        // The program is waited for in any case; a run left behind would disturb the checks after it.
        let sent = target.and_then(|process| process::send_signal(process, signal));
        let start = Instant::now();
        let ended = Ended { line, finished: running.finish(Duration::from_secs(LIMIT_S))? };
        sent?;
        Ok((ended, start.elapsed()))
    }

    fn metrics_file(&self) -> PathBuf {
        self.folder.join("metrics.jsonl")
    }

    fn metrics(&self, ended: &Ended) -> Result<Metrics, String> {
        let text = read(&self.metrics_file())?;
        let last_loss = text.lines().rev().find_map(|line| json::number(line, "train_loss"));
        ended.expect(last_loss.is_some(), &format!("a train_loss in {}", self.metrics_file().display()))?;
        Ok(Metrics { num_lines: text.lines().count(), last_loss: last_loss.unwrap_or(f64::NAN) })
    }

    fn summary(&self) -> Result<String, String> {
        read(&self.folder.join("summary.json"))
    }

    pub(super) fn parameter_hash(&self) -> Result<String, String> {
        json::text(&self.summary()?, "parameter_hash")
            .ok_or_else(|| format!("{}: no parameter_hash in its summary", self.name))
    }
}

fn read(file: &Path) -> Result<String, String> {
    fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))
}

fn wait_for_first_line(run: &Run, running: &mut Running<'_>) -> Result<(), String> {
    let start = Instant::now();
    while fs::metadata(run.metrics_file()).map_or(0, |file| file.len()) == 0 {
        if running.has_ended() || start.elapsed().as_secs() > LIMIT_S {
            return Err(format!("{} stayed empty: expected a line for each epoch", run.metrics_file().display()));
        }
        sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Finds a rank's process by its arguments and its environment, as Linux shows them.
fn process_of_rank(suite: &Suite<'_>, run: &Run, rank: usize) -> Result<u32, String> {
    let variable = suite.mpirun.map_or("", |mpirun| mpirun.rank_variable());
    let mark = format!("{variable}={rank}");
    let folder = run.folder.display().to_string();
    let has = |process: u32, file: &str, word: &str| {
        let bytes = fs::read(format!("/proc/{process}/{file}")).unwrap_or_default();
        bytes.split(|byte| *byte == 0).any(|entry| entry == word.as_bytes())
    };
    let processes = fs::read_dir("/proc").map_err(|error| format!("/proc: {error}"))?;
    processes
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .find(|process| has(*process, "environ", &mark) && has(*process, "cmdline", &folder))
        .ok_or_else(|| format!("no process with {mark} trains into {folder}"))
}

/// Whether the number stands in the text by itself, not as part of a longer one.
fn has_number(text: &str, number: &str) -> bool {
    text.split(|c: char| !c.is_ascii_digit()).any(|digits| digits == number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_inside_a_longer_one_does_not_count() {
        assert!(has_number("SLURM_NTASKS says 3 tasks, the world has 1", "3"));
        assert!(!has_number("step 31, 13 ranks", "3"));
    }

    #[test]
    fn a_flag_given_again_replaces_the_first() {
        let words = ["train", "--seed", "0", "--epochs", "2"].map(str::to_owned).to_vec();
        assert_eq!(instead(words, &["--seed", "7", "--resume"]).join(" "), "train --epochs 2 --seed 7 --resume");
    }

    #[test]
    fn the_tiny_run_has_a_last_step_that_is_uneven_on_several_ranks() {
        let words = arguments(Path::new("/out"), 2);
        let value =
            |flag: &str| words.iter().skip_while(|word| *word != flag).nth(1).unwrap().parse::<usize>().unwrap();
        let (samples, batch) = (value("--shapes-train"), value("--global-batch-size"));
        assert!((1..=4).all(|ranks| batch % ranks == 0), "every world size divides the global batch");
        assert!((3..=4).all(|ranks| (samples % batch) % ranks != 0), "the last batch is uneven");
        assert_eq!(words.last().unwrap(), "/out");
    }
}
