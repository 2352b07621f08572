//! Batch jobs of the suite: submission by `trainer slurm submit` and sbatch, states, logs.
//!
//! In: a [`Suite`], a run. Out: [`BatchJob`].
//! Invariant: a wait for a job has a deadline, and a dropped job is cancelled.

use std::fs;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::slurm;
use crate::at;
use crate::suite::run::{LIMIT_S, Run};
use crate::suite::{Checked, Stop, Suite, read};

/// A submitted job.
pub(super) struct BatchJob<'a> {
    suite: &'a Suite,
    pub(super) id: String,
    log: PathBuf,
}

impl<'a> BatchJob<'a> {
    /// Submits the script that `trainer slurm submit` writes for a run, which resumes after a stop.
    /// Options of sbatch override those in the script.
    pub(super) fn submit(run: &Run<'a>, options: &[&str]) -> Checked<Self> {
        let suite = run.suite;
        run.make_folder()?;
        let tasks = (run.ranks / 2).to_string();
        let words = run.clone().with("--resume").words;
        // Restarts are for crashes inside MPI's own start.
        let submit = ["submit", "--requeue", "--restarts", "2", "--dry-run"];
        let submit = [&submit[..], &["--ntasks-per-node", &tasks]].concat();
        let mut command = slurm(suite, &submit, &words)?;
        let output = command.output().map_err(|error| error.to_string())?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            return Err(text.into_owned().into());
        }
        let file = suite.folder.join(format!("{}.sbatch", run.name));
        fs::write(&file, &output.stdout).map_err(at(&file))?;
        Self::sbatch(suite, &run.name, options, &file.to_string_lossy())
    }

    /// Submits a script, or `--wrap=` with a command.
    pub(super) fn sbatch(
        suite: &'a Suite,
        name: &str,
        options: &[&str],
        script: &str,
    ) -> Checked<Self> {
        let log = suite.log(name);
        let output = format!("--output={}", log.display());
        let named = format!("--job-name={name}");
        let own = ["--parsable", "--open-mode=append", &output, &named];
        let words = [&own, options, &[script]].concat();
        let answer = suite.cluster()?.ask("sbatch", &words)?;
        let id = answer.trim().split(';').next().unwrap_or_default();
        Ok(BatchJob {
            suite,
            id: id.to_owned(),
            log,
        })
    }

    /// Returns the last job that `trainer slurm submit` recorded for a run.
    pub(super) fn last_of(run: &Run<'a>) -> Checked<Self> {
        let text = read(&run.folder.join("job-id"))?;
        let id = text.split_whitespace().next_back();
        let id = id.ok_or_else(|| format!("{}: no job in job-id", run.name))?;
        Ok(BatchJob {
            suite: run.suite,
            id: id.to_owned(),
            log: run.folder.join(format!("slurm-{id}.out")),
        })
    }

    /// Runs a command of Slurm with the job's id as its last word.
    pub(super) fn command(&self, program: &str, words: &[&str]) -> Checked {
        let words = [words, &[&self.id]].concat();
        self.suite.cluster()?.ask(program, &words)?;
        Ok(())
    }

    /// Returns a field of `scontrol show job`.
    fn field(&self, name: &str) -> Checked<String> {
        let words = ["show", "job", "--oneliner", &self.id];
        let text = self.suite.cluster()?.ask("scontrol", &words)?;
        let start = format!("{name}=");
        let mut words = text.split_whitespace();
        let field = words.find_map(|word| word.strip_prefix(&start));
        let missing = || format!("job {}: no {name} in: {text}", self.id);
        Ok(field.map(str::to_owned).ok_or_else(missing)?)
    }

    /// Waits for an event before the job's end.
    pub(super) fn wait_for(&self, what: &str, is_so: impl Fn() -> Checked<bool>) -> Checked {
        let start = Instant::now();
        loop {
            // Read before the question, so that an event at the job's end is not missed.
            let has_ended = self.has_ended()?;
            if is_so()? {
                return Ok(());
            }
            if has_ended || start.elapsed().as_secs() > LIMIT_S {
                return Err(self.error(&format!("expected {what} within {LIMIT_S} s")));
            }
            sleep(Duration::from_millis(100));
        }
    }

    pub(super) fn wait_for_restart(&self) -> Checked {
        self.wait_for("a restart", || Ok(self.restarts()? > 0))
    }

    /// Waits for the end and expects this state.
    pub(super) fn ends(&self, state: &str) -> Checked {
        let has_ended = || Ok(self.has_ended()? && self.field("JobState")? == state);
        self.wait_for(&format!("an end with state {state}"), has_ended)
    }

    fn has_ended(&self) -> Checked<bool> {
        // A requeued job looks completed until its nodes are free.
        let ends = ["COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"];
        Ok(ends.contains(&self.field("JobState")?.as_str()))
    }

    pub(super) fn restarts(&self) -> Checked<usize> {
        let text = self.field("Restarts")?;
        Ok(text.parse().map_err(|_| format!("Restarts: got {text}"))?)
    }

    pub(super) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Returns an error with the job's state and output.
    pub(super) fn error(&self, text: &str) -> Stop {
        let cluster = self.suite.cluster();
        let state = cluster.map(|cluster| cluster.ask("scontrol", &["show", "job", &self.id]));
        Stop::Failed(format!(
            "job {}: {text}\n{state:?}\noutput:\n{}",
            self.id,
            self.log()
        ))
    }
}

impl Drop for BatchJob<'_> {
    fn drop(&mut self) {
        if let Ok(cluster) = self.suite.cluster() {
            // Fails for a job that has ended.
            let _ = cluster.ask("scancel", &[&self.id]);
            let _ = cluster.wait_until_idle();
        }
    }
}
