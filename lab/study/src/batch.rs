//! Runs as jobs of Slurm: submits all, each after the one before it, and waits for them.
//!
//! In: [`Attempt`]s. Out: job ids in `slurm-jobs.jsonl`, [`Ended`].
//! Invariant: a job is recorded before the study waits for it, so that a resumed study finds its
//! jobs and submits none twice. Jobs of a study never run at the same time.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use records::Status;
use serde_json::{Value, json};
use toml::Value as Toml;

use super::attempt::{Attempt, Ended, measured_unix_s};
use super::cell::{Cell, Place};
use super::file::{Kind, StudyFile, word};
use super::local::Local;
use crate::processes::last_words;
use crate::quiet::{self, MARK, Watch};
use cluster::failure::{Failure, Outcome};
use cluster::output::say;
use cluster::process;
use cluster::slurm::{self, JobStage};

const FILE: &str = "slurm-jobs.jsonl";
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

/// Submitted jobs of a study.
pub(crate) struct Jobs {
    path: PathBuf,
    noted: Vec<(PathBuf, String)>,
}

impl Jobs {
    pub(crate) fn open(study: &Path) -> Outcome<Self> {
        let path = study.join(FILE);
        let text = if path.exists() {
            records::file::read_to_string(&path)
                .map_err(|error| Failure::Failed(format!("{}: {error}", path.display())))?
        } else {
            String::new()
        };
        let read = |line: &str| {
            let line: Value = serde_json::from_str(line).ok()?;
            Some((
                PathBuf::from(line["directory"].as_str()?),
                line["job"].as_str()?.to_owned(),
            ))
        };
        Ok(Jobs {
            path,
            noted: text.lines().filter_map(read).collect(),
        })
    }

    pub(crate) fn of(&self, attempt: &Attempt<'_>) -> Option<&str> {
        let directory = attempt.directory();
        self.noted
            .iter()
            .rev()
            .find(|(noted, _)| *noted == directory)
            .map(|(_, job)| job.as_str())
    }

    fn note(&mut self, attempt: &Attempt<'_>, job: &str) -> Outcome {
        let directory = attempt.directory();
        let line = json!({ "directory": directory, "job": job });
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.path);
        // A line feed first: a line torn by a crash stays a separate line.
        let text = format!("\n{line}\n");
        let written = file.and_then(|mut file| {
            file.write_all(text.as_bytes())
                .and_then(|()| file.sync_data())
        });
        written.map_err(|error| {
            Failure::Failed(format!(
                "job {job} is submitted, but {}: {error}",
                self.path.display()
            ))
        })?;
        self.noted.push((directory, job.to_owned()));
        Ok(())
    }
}

/// A job, and its stage when the waiting began.
pub(crate) struct Submitted {
    pub(crate) job: String,
    stage: JobStage,
}

impl Submitted {
    /// Returns whether Slurm remembers the job.
    pub(crate) fn is_known(&self) -> bool {
        self.stage != JobStage::Unknown
    }
}

/// Submits the job of an attempt after another job, or finds the job that was submitted before.
pub(crate) fn submit(
    jobs: &mut Jobs,
    file: &StudyFile,
    trainer: &Path,
    attempt: &Attempt<'_>,
    study: &Path,
    after: Option<&str>,
) -> Outcome<Submitted> {
    if let Some(job) = jobs.of(attempt) {
        let job = job.to_owned();
        let directory = study.join(attempt.directory());
        let stage = slurm::stage(&job)?;
        if stage != JobStage::Unknown || output_file(attempt, &directory, &job).exists() {
            return Ok(Submitted { job, stage });
        }
    }
    let directory = attempt.make_directory(study)?;
    let mut flags = flags(file, attempt)?;
    flags.extend(["--trainer".to_owned(), trainer.display().to_string()]);
    if let Some(after) = after {
        flags.extend(["--dependency".to_owned(), format!("afterany:{after}")]);
    }
    let job = slurm::submit_into(
        &job_directory(attempt, &directory),
        &flags,
        &attempt.words(&directory),
    )?;
    jobs.note(attempt, &job)?;
    Ok(Submitted {
        job,
        stage: JobStage::Waiting,
    })
}

/// Refuses a cell of Slurm whose flags [`submit`] would refuse.
pub(crate) fn check(file: &StudyFile, cell: &Cell) -> Outcome {
    if !matches!(cell.place, Place::Slurm { .. }) {
        return Ok(());
    }
    let attempt = Attempt {
        cell,
        repetition: 1,
        number: 1,
    };
    slurm::check(&flags(file, &attempt)?, &attempt.words(Path::new("/")))
        .map_err(|failure| Failure::Usage(format!("{}: [slurm]: {failure}", file.path)))
}

/// Returns the flags of `slurm submit` for a cell.
fn flags(file: &StudyFile, attempt: &Attempt<'_>) -> Outcome<Vec<String>> {
    let Place::Slurm { hosts } = attempt.cell.place else {
        return Err(Failure::Failed(format!(
            "{}: this cell is no job of Slurm",
            attempt.cell.id
        )));
    };
    let nodes = hosts.min(attempt.cell.world_size);
    let tasks = attempt.cell.world_size / nodes;
    let mut flags = vec![
        format!("--nodes={nodes}"),
        format!("--ntasks-per-node={tasks}"),
        format!("--name={}", file.name),
    ];
    let mut env = format!("{MARK}={}", attempt.mark(&file.name));
    let mut is_exclusive = true;
    let mut has_cores = attempt.cell.threads == 1;
    for (key, value) in &file.slurm {
        let flag = format!("--{}", key.replace('_', "-"));
        let refused =
            |text: String| Failure::Usage(format!("{}: [slurm]: {key}: {text}", file.path));
        if OUR_FLAGS.contains(&flag.as_str()) {
            return Err(refused("the study decides it: remove it".to_owned()));
        }
        match (flag.as_str(), value) {
            ("--exclusive", Toml::Boolean(truth)) => is_exclusive = *truth,
            ("--env", Toml::String(more)) => env = format!("{env},{more}"),
            (_, Toml::Boolean(truth)) => flags.extend(truth.then(|| flag.clone())),
            (_, value) => {
                let value = word(value).ok_or_else(|| {
                    refused("expected one value: write it as for `slurm submit`".to_owned())
                })?;
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
        flags.push(format!("--cpus-per-task={}", attempt.cell.threads));
    }
    Ok(flags)
}

/// Returns the folder of the job's script and output: the run's own for a training.
fn job_directory(attempt: &Attempt<'_>, directory: &Path) -> PathBuf {
    if attempt.cell.kind == Kind::Train {
        directory.join("run")
    } else {
        directory.to_owned()
    }
}

fn output_file(attempt: &Attempt<'_>, directory: &Path, job: &str) -> PathBuf {
    job_directory(attempt, directory).join(format!("slurm-{job}.out"))
}

/// Waits for the end of a job, and watches this machine if the nodes are on it.
// tidy: long function because one loop follows the stages of a job
pub(crate) fn wait(
    attempt: &Attempt<'_>,
    submitted: &Submitted,
    study: &Path,
    local: &Local<'_>,
    is_here: bool,
) -> Outcome<Ended> {
    let job = submitted.job.as_str();
    let mark = attempt.mark(&local.file.name);
    let mut watch = None;
    let mut last_reason = String::new();
    let mut failures = 0;
    let stage = loop {
        let stage = match slurm::stage_and_reason(job) {
            Ok((stage, reason)) => {
                failures = 0;
                if stage == JobStage::Waiting && reason != last_reason && reason != "None" {
                    say!("job {job} waits: {reason}");
                    last_reason = reason;
                }
                stage
            }
            // A controller may be busy or restarting.
            Err(failure) if failures == MOST_FAILURES => return Err(failure),
            Err(_) => {
                failures += 1;
                JobStage::Waiting
            }
        };
        match stage {
            // A job that already runs was not watched from its begin.
            JobStage::Running
                if is_here && submitted.stage == JobStage::Waiting && watch.is_none() =>
            {
                watch = Some(Watch::start(&mark)?);
            }
            JobStage::Waiting | JobStage::Running => {}
            JobStage::Ended | JobStage::Unknown => break stage,
        }
        sleep(LOOK_EVERY);
    };
    let looks = watch.map(Watch::finish);
    let directory = study.join(attempt.directory());
    let file = output_file(attempt, &directory, job);
    let start = Instant::now();
    while !file.exists() && start.elapsed() < FILE_PATIENCE {
        sleep(LOOK_EVERY);
    }
    let output =
        String::from_utf8_lossy(&records::file::read(&file).unwrap_or_default()).into_owned();
    let state = slurm::field(job, "JobState");
    let result = attempt.result(&directory, &output);
    let measured = result.as_ref().ok().and_then(measured_unix_s);
    let seen = looks.map(|looks| looks.seen(measured));
    let (status, why, result) = match result {
        // The result decides about a job that Slurm has forgotten.
        Ok(result)
            if stage == JobStage::Unknown
                || state.as_deref().is_none_or(|state| state == "COMPLETED") =>
        {
            let why = seen
                .as_ref()
                .and_then(|seen| local.disturbance(&seen.quiet));
            (
                if why.is_some() {
                    Status::Disturbed
                } else {
                    Status::Ok
                },
                why,
                result,
            )
        }
        other => {
            let state = state.unwrap_or_else(|| "unknown to Slurm".to_owned());
            let text = other
                .err()
                .unwrap_or_else(|| "it has a result all the same".to_owned());
            (
                Status::Failed,
                Some(format!(
                    "job {job} {state}: {text}: {}",
                    last_words(&output)
                )),
                Value::Null,
            )
        }
    };
    let (started, seconds) = times(job);
    let command = format!(
        "sbatch {}",
        process::quoted(job_directory(attempt, &directory).join("job.sbatch"))
    );
    // The job starts when the one before has ended, without a look at the machine.
    let quiet = seen.map(|seen| quiet::record(None, &seen, local.limit_cores()));
    Ok(Ended {
        status,
        why,
        started,
        seconds,
        command,
        quiet,
        result,
    })
}

/// Returns start in UTC and duration of a job, while Slurm remembers it.
fn times(job: &str) -> (Option<String>, Option<f64>) {
    // Slurm's times have no zone; `date -u` would read them as UTC.
    let seconds_of = |name: &str| {
        let time = slurm::field(job, name)?;
        process::answer("date", &["-d", &time, "+%s"])?
            .trim()
            .parse::<f64>()
            .ok()
    };
    let start = seconds_of("StartTime");
    let end = seconds_of("EndTime");
    let started = start.and_then(|start| {
        process::answer(
            "date",
            &["-u", "-d", &format!("@{start}"), "+%Y-%m-%dT%H:%M:%SZ"],
        )
        .map(|text| text.trim().to_owned())
    });
    (started, start.zip(end).map(|(start, end)| end - start))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::study;
    use std::fs;

    #[test]
    fn what_slurm_submit_would_refuse_is_refused_before_anything_runs() {
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
    fn a_job_that_is_noted_behind_a_torn_line_is_found_again() {
        let folder = tempfile::tempdir().unwrap();
        let cell = &study("[[matrix]]\nbatch_size_per_rank = 8\n").unwrap().1[0];
        let attempt = Attempt {
            cell,
            repetition: 1,
            number: 1,
        };
        fs::write(folder.path().join(FILE), "{\"direc").unwrap();
        Jobs::open(folder.path())
            .unwrap()
            .note(&attempt, "12")
            .unwrap();
        assert_eq!(Jobs::open(folder.path()).unwrap().of(&attempt), Some("12"));
    }
}
