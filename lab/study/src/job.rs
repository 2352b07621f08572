//! Runs as jobs of Slurm, one after the other.
//!
//! In: an [`Attempt`]. Out: its record.
//! Invariant: the id of a job is in the run's directory before the study waits for the job, so that
//! a resumed study finds its job and submits none twice.

use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use records::AttemptRecord;
use toml::Value as Toml;

use super::attempt::Attempt;
use super::cell::Cell;
use super::file::{Kind, StudyFile, word};
use super::runs::Runs;
use crate::processes::last_words;
use crate::quiet::{MARK, Watch};
use cluster::failure::{Outcome, failed, usage};
use cluster::output::say;
use cluster::process;
use cluster::run_directory;
use cluster::slurm;

const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Consecutive failures of the queue after which the study fails.
const MOST_FAILURES: usize = 20;
/// Files of a job on other nodes appear some time after its end.
const FILE_PATIENCE: Duration = Duration::from_secs(15);

/// Flags that only the study sets.
const OUR_FLAGS: [&str; 8] = [
    "--nodes",
    "--ntasks-per-node",
    "--trainer",
    "--name",
    "--dependency",
    "--array",
    "--dry-run",
    "--restarts",
];

impl Runs<'_> {
    /// Submits the job of an attempt, or finds the job of an earlier session; waits for its end.
    pub(crate) fn run_job(
        &self,
        attempt: &Attempt<'_>,
        directory: &Path,
    ) -> Outcome<AttemptRecord> {
        let folder = folder(attempt, directory);
        let is_here = slurm::nodes_are_this_machine();
        // The watch starts with the job. The start of an earlier session's job is unknown.
        let (job, before) = match known_job(&folder)? {
            Some(job) => (job, None),
            None => {
                run_directory::fresh(directory)?;
                let before = is_here.then(|| self.wait_for_quiet());
                let mut flags = flags(self.file, attempt)?;
                flags.extend(["--trainer".to_owned(), self.trainer.display().to_string()]);
                let job = slurm::submit_into(&folder, &flags, &attempt.words(directory))?;
                (job, before)
            }
        };
        let mut watch = None;
        let is_known = wait(&job, || {
            if before.is_some() && watch.is_none() {
                watch = Some(Watch::start(&attempt.mark(&self.file.name))?);
            }
            Ok(())
        })?;
        let looks = before.zip(watch.map(Watch::finish));
        let file = folder.join(slurm::output_name(&job));
        process::wait_until(FILE_PATIENCE, LOOK_EVERY, || file.exists());
        let output = records::file::read(&file).unwrap_or_default();
        let output = String::from_utf8_lossy(&output);
        let state = slurm::field(&job, "JobState");
        let result = match attempt.result(directory, &output) {
            // The result decides about a job that Slurm has forgotten.
            Ok(result)
                if !is_known || state.as_deref().is_none_or(|state| state == "COMPLETED") =>
            {
                Ok(result)
            }
            other => Err(failed!(
                "job {job} {}: {}: {}",
                state.as_deref().unwrap_or("unknown to Slurm"),
                other.map_or_else(|why| why.to_string(), |_| "it has a result".to_owned()),
                last_words(&output)
            )),
        };
        let mut record = attempt.record();
        (record.started, record.seconds) = times(&job);
        record.command = format!(
            "sbatch {}",
            process::quoted(folder.join(records::JOB_SCRIPT))
        );
        self.judge(&mut record, result, looks);
        Ok(record)
    }

    /// Returns whether an earlier session has submitted the job of an attempt.
    pub(crate) fn is_submitted(&self, attempt: &Attempt<'_>) -> bool {
        let directory = self.directory.join(attempt.directory());
        known_job(&folder(attempt, &directory)).is_ok_and(|job| job.is_some())
    }
}

/// Returns the folder of the job's script and output: the run's own for a training.
fn folder(attempt: &Attempt<'_>, directory: &Path) -> PathBuf {
    match attempt.cell.kind {
        Kind::Train => directory.join("run"),
        Kind::Bench | Kind::Netbench => directory.to_owned(),
    }
}

/// Returns the submitted job of a folder, if Slurm remembers it or it has begun.
fn known_job(folder: &Path) -> Outcome<Option<String>> {
    let Some(job) = slurm::recorded_job(folder)? else {
        return Ok(None);
    };
    let is_known = folder.join(slurm::output_name(&job)).exists() || slurm::job(&job)?.is_some();
    Ok(is_known.then_some(job))
}

/// Waits for the end of a job; returns false if Slurm has forgotten the job. Calls `while_running`
/// whenever the job is seen running.
fn wait(job: &str, mut while_running: impl FnMut() -> Outcome) -> Outcome<bool> {
    let mut last_reason = String::new();
    let mut failures = 0;
    loop {
        match slurm::job(job) {
            Ok(Some(row)) if row.is_in_queue() => {
                failures = 0;
                if row.is_running() {
                    while_running()?;
                } else if row.reason != last_reason && row.reason != "None" {
                    say!("job {job} waits: {}", row.reason);
                    last_reason = row.reason;
                }
            }
            Ok(row) => return Ok(row.is_some()),
            // A controller may be busy.
            Err(failure) => {
                failures += 1;
                if failures == MOST_FAILURES {
                    return Err(failure);
                }
            }
        }
        sleep(LOOK_EVERY);
    }
}

/// Refuses a cell of Slurm whose flags `slurm submit` would refuse.
pub(crate) fn check(file: &StudyFile, cell: &Cell) -> Outcome {
    if !cell.is_job() {
        return Ok(());
    }
    let attempt = Attempt {
        cell,
        repetition: 1,
        number: 1,
    };
    let checked = flags(file, &attempt)
        .and_then(|flags| slurm::check(&flags, &attempt.words(Path::new("/"))));
    checked.map_err(|failure| usage!("{}: [slurm]: {failure}", file.path))
}

/// Returns the flags of `slurm submit` for a cell.
fn flags(file: &StudyFile, attempt: &Attempt<'_>) -> Outcome<Vec<String>> {
    let cell = attempt.cell;
    let nodes = cell.place.hosts().min(cell.world_size);
    let mut flags = vec![
        format!("--nodes={nodes}"),
        format!("--ntasks-per-node={}", cell.world_size / nodes),
        format!("--name={}", file.name),
    ];
    let mut env = format!("{MARK}={}", attempt.mark(&file.name));
    let mut is_exclusive = true;
    let mut has_cores = cell.threads == 1;
    for (key, value) in &file.slurm {
        let flag = format!("--{}", key.replace('_', "-"));
        let refused = |text: &str| usage!("{key}: {text}");
        if OUR_FLAGS.contains(&flag.as_str()) {
            return Err(refused("the study decides it: remove it"));
        }
        match (flag.as_str(), value) {
            ("--exclusive", Toml::Boolean(truth)) => is_exclusive = *truth,
            ("--env", Toml::String(more)) => env = format!("{env},{more}"),
            (_, Toml::Boolean(truth)) => flags.extend(truth.then(|| flag.clone())),
            (_, value) => {
                let value = word(value)
                    .ok_or_else(|| refused("expected one value: write it as for `slurm submit`"))?;
                has_cores |= flag == "--cpus-per-task";
                flags.push(format!("{flag}={value}"));
            }
        }
    }
    flags.push(format!("--env={env}"));
    if is_exclusive {
        flags.push("--exclusive".to_owned());
    }
    if !has_cores {
        flags.push(format!("--cpus-per-task={}", cell.threads));
    }
    Ok(flags)
}

/// Returns start in UTC and duration of a job, while Slurm remembers it.
fn times(job: &str) -> (Option<String>, Option<f64>) {
    let date = |words: &[&str]| Some(process::answer("date", words)?.trim().to_owned());
    // Slurm's times have no zone; `date -u` would read them as UTC.
    let seconds_of = |name: &str| {
        let time = slurm::field(job, name)?;
        date(&["-d", &time, "+%s"])?.parse::<f64>().ok()
    };
    let Some(start) = seconds_of("StartTime") else {
        return (None, None);
    };
    let started = date(&["-u", "-d", &format!("@{start}"), "+%Y-%m-%dT%H:%M:%SZ"]);
    (started, seconds_of("EndTime").map(|end| end - start))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::study;

    #[test]
    fn flags_that_slurm_submit_would_refuse_are_refused_before_any_run() {
        let checked = |slurm: &str, network: &str| {
            let matrix = format!(
                "[[matrix]]\nbatch_size_per_rank = 8\nranks = 2\nnetwork = \"{network}\"\n"
            );
            let (file, cells) = study(&format!("[slurm]\n{slurm}\n{matrix}")).unwrap();
            check(&file, &cells[0])
        };
        for (slurm, expected) in [
            ("partitoin = \"p\"", "unexpected argument '--partitoin'"),
            ("nodes = 2", "nodes: the study decides it"),
            (
                "partition = [\"p\", \"q\"]",
                "partition: expected one value: write it as for `slurm submit`",
            ),
        ] {
            let failure = checked(slurm, "slurm").unwrap_err();
            let text = failure.to_string();
            assert!(
                failure.exit_code() == 2
                    && text.starts_with("s.toml: [slurm]: ")
                    && text.contains(expected),
                "{text}"
            );
        }
        checked("partition = \"p\"\nexclusive = false", "slurm").unwrap();
        checked("partitoin = \"p\"", "machine").unwrap();
    }

    #[test]
    fn the_job_of_an_earlier_session_is_found_by_its_output() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(known_job(folder.path()).unwrap(), None);
        for (file, text) in [("job-id", "12\n"), ("slurm-12.out", "")] {
            std::fs::write(folder.path().join(file), text).unwrap();
        }
        assert_eq!(known_job(folder.path()).unwrap().as_deref(), Some("12"));
    }
}
