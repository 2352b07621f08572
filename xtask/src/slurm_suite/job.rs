//! Batch jobs of the suite: the script that `trainer slurm submit` writes, its submission, and its states.
//!
//! In: a [`Suite`], a run. Out: [`Job`].
//! Invariant: a job is waited for with a deadline, and cancelled when it is dropped.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::{EPOCHS, NODES, Suite};
use crate::suite::launcher::Launcher;
use crate::suite::run::{LIMIT_S, QUICK, Run, arguments, instead};

/// What a job asks for.
#[derive(Clone, Copy)]
pub(super) struct Request<'a> {
    pub(super) ranks: usize,
    /// Further options of sbatch.
    pub(super) options: &'a [&'a str],
    /// Further flags of the trainer.
    pub(super) further: &'a [&'a str],
    pub(super) epochs: usize,
}

impl Default for Request<'_> {
    fn default() -> Self {
        Request {
            ranks: NODES,
            options: &[],
            further: &[],
            epochs: EPOCHS,
        }
    }
}

/// A submitted job.
pub(super) struct Job<'a> {
    suite: &'a Suite,
    pub(super) id: String,
    log: std::path::PathBuf,
}

/// The script that `trainer slurm submit` writes for the training: it goes on when it was stopped before its end.
fn script(suite: &Suite, run: &Run, request: &Request<'_>) -> Result<String, String> {
    let tasks = (request.ranks / NODES).to_string();
    // The restarts are for crashes inside MPI's own start.
    let own = ["--requeue", "--restarts", "2", "--dry-run"];
    let words = instead(
        arguments(&run.folder, request.epochs),
        &[&QUICK[..], request.further, &["--resume"]].concat(),
    );
    let output = suite
        .slurm(
            &[&["submit", "--ntasks-per-node", &tasks][..], &own].concat(),
            &words,
        )
        .output();
    let output = output.map_err(|error| format!("trainer slurm submit: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

impl<'a> Job<'a> {
    /// Submits the training; `options` win over those in the script.
    pub(super) fn submit(
        suite: &'a Suite,
        run: &Run,
        request: Request<'_>,
    ) -> Result<Self, String> {
        let file = suite.folder().join(format!("{}.sbatch", run.name));
        fs::write(&file, script(suite, run, &request)?)
            .map_err(|error| format!("{}: {error}", file.display()))?;
        Self::submit_script(
            suite,
            &run.name,
            request.options,
            &[&file.display().to_string()],
        )
    }

    /// Submits what `words` say, a script's path or `--wrap` with a command.
    pub(super) fn submit_script(
        suite: &'a Suite,
        name: &str,
        options: &[&str],
        words: &[&str],
    ) -> Result<Self, String> {
        let log = suite.folder().join(format!("{name}.log"));
        let output = format!("--output={}", log.display());
        let named = format!("--job-name={name}");
        let own = [
            "--parsable",
            "--open-mode=append",
            output.as_str(),
            named.as_str(),
        ];
        let answer = suite
            .cluster
            .ask("sbatch", &[&own, options, words].concat())?;
        let id = answer
            .trim()
            .split(';')
            .next()
            .unwrap_or_default()
            .to_owned();
        Ok(Job { suite, id, log })
    }

    /// A job that was submitted otherwise, and writes to `log`.
    pub(super) fn noted(suite: &'a Suite, id: &str, log: std::path::PathBuf) -> Self {
        Job {
            suite,
            id: id.to_owned(),
            log,
        }
    }

    /// Runs a command of Slurm about this job; `NAME` at the end of the words stands for `NAME=id`.
    pub(super) fn tell(&self, program: &str, words: &[&str]) -> Result<(), String> {
        let mut words = words.to_vec();
        let last = match words.last().copied() {
            Some("JobId") => format!("{}={}", words.pop().unwrap_or_default(), self.id),
            _ => self.id.clone(),
        };
        words.push(&last);
        self.suite.cluster.ask(program, &words).map(drop)
    }

    /// A field of `scontrol show job`.
    pub(super) fn field(&self, name: &str) -> Result<String, String> {
        let text = self
            .suite
            .cluster
            .ask("scontrol", &["show", "job", "--oneliner", &self.id])?;
        let start = format!("{name}=");
        let field = text
            .split_whitespace()
            .find_map(|word| word.strip_prefix(&start));
        field
            .map(str::to_owned)
            .ok_or_else(|| format!("job {}: no {name} in: {text}", self.id))
    }

    /// Waits for something; an end of the job before it is an error.
    pub(super) fn wait_for(
        &self,
        what: &str,
        is_so: impl Fn() -> Result<bool, String>,
    ) -> Result<(), String> {
        let start = Instant::now();
        loop {
            // Read before the question, so that what came with the job's end is not missed.
            let has_ended = self.has_ended()?;
            if is_so()? {
                return Ok(());
            }
            if has_ended || start.elapsed().as_secs() > LIMIT_S {
                return Err(self.but(&format!(
                    "expected {what} before its end and within {LIMIT_S} s"
                )));
            }
            sleep(Duration::from_millis(100));
        }
    }

    /// Waits for the end and expects this state.
    pub(super) fn ends(&self, state: &str) -> Result<(), String> {
        let start = Instant::now();
        while !self.has_ended()? {
            if start.elapsed().as_secs() > LIMIT_S {
                return Err(self.but(&format!("expected an end within {LIMIT_S} s")));
            }
            sleep(Duration::from_millis(200));
        }
        let got = self.field("JobState")?;
        if got == state {
            Ok(())
        } else {
            Err(self.but(&format!("expected state {state}, got {got}")))
        }
    }

    fn has_ended(&self) -> Result<bool, String> {
        let state = self.field("JobState")?;
        // A requeued job looks completed until its nodes are free.
        let is_over =
            ["COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"].contains(&state.as_str());
        Ok(is_over)
    }

    /// How often Slurm started it again.
    pub(super) fn restarts(&self) -> Result<usize, String> {
        let text = self.field("Restarts")?;
        text.parse()
            .map_err(|_| format!("job {}: expected a number of restarts, got {text}", self.id))
    }

    pub(super) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The text with the job's state and what it wrote.
    pub(super) fn but(&self, text: &str) -> String {
        let state = self
            .suite
            .cluster
            .ask("scontrol", &["show", "job", &self.id])
            .unwrap_or_else(|text| text);
        format!(
            "job {}: {text}\n{state}\nit wrote:\n{}",
            self.id,
            self.log()
        )
    }
}

impl Drop for Job<'_> {
    fn drop(&mut self) {
        // One that has ended is not there to be cancelled, which is as well.
        let _ = self.suite.cluster.ask("scancel", &[&self.id]);
        let _ = self.suite.settle();
    }
}
