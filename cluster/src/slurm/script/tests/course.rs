//! The batch script's course, with stand-ins for Slurm's programs.

use std::fs;
use std::path::{Path, PathBuf};

use super::super::text;
use crate::restart::tests::{Stage, WAIT};
use crate::slurm::request::tests::read;

/// A cluster of stand-ins with one run.
struct Cluster {
    stage: Stage,
    run: PathBuf,
}

/// Leaves a summary as the trainer does.
const SUMMARY: &str = "echo '{ \"steps\": 3, \"stopped_early\": true }' >run/summary.json";

impl Cluster {
    /// Makes a cluster from the text of srun and the answer of scontrol.
    fn new(name: &str, srun: &str, says: &str) -> Self {
        let stage = Stage::new(name);
        let run = stage.folder.join("run");
        fs::create_dir_all(&run).unwrap();
        stage.program("srun", srun);
        // Queued again, a job's script is ended by Slurm.
        let ended = "(while kill -TERM $PPID; do sleep 0.05; done) >/dev/null 2>&1 &";
        stage.program(
            "scontrol",
            &format!(
                "if [ $1 = requeue ]; then echo \"requeue $2\" >>calls; {ended}\nelse echo 'JobId=12 {says} X=1'; fi"
            ),
        );
        Cluster { stage, run }
    }

    fn script(&self, flags: &str) -> String {
        let line = format!("--ntasks-per-node 1 {flags} -- train --output-dir");
        let mut words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        words.push(self.run.to_str().unwrap().to_owned());
        text(&read(&words).unwrap(), Path::new("/opt/trainer"))
    }

    fn play(&self, flags: &str) -> (Option<i32>, String) {
        self.stage
            .play(&self.script(flags), &self.run.join("slurm-12.out"))
            .end()
    }
}

const RUNNING: &str = "JobState=RUNNING Reason=None Requeue=1";

#[test]
fn a_finished_run_is_the_end_of_its_job() {
    let cluster = Cluster::new(
        "job-done",
        "echo '{ \"stopped_early\": false }' >run/summary.json",
        RUNNING,
    );
    let (code, text) = cluster.play("--requeue --restarts 2");
    assert_eq!(
        (
            code,
            cluster.stage.num_calls("srun"),
            cluster.stage.num_calls("requeue 12")
        ),
        (Some(0), 1, 0),
        "{text}"
    );
}

#[test]
fn a_stopped_run_is_queued_again_once_and_its_job_does_not_end_before() {
    for flags in ["--requeue", "--requeue --restarts 2"] {
        let cluster = Cluster::new(&format!("job-stopped-{}", flags.len()), SUMMARY, RUNNING);
        let (code, text) = cluster.play(flags);
        assert_eq!(
            (code, cluster.stage.num_calls("requeue 12")),
            (None, 1),
            "ended by the signal: {text}"
        );
        assert!(text.contains("back into the queue"), "{text}");
    }
}

#[test]
fn a_cancelled_run_is_not_queued_again() {
    for (name, says) in [
        ("turned-off", "JobState=RUNNING Reason=None Requeue=0"),
        ("cancelled", "JobState=COMPLETING Reason=None Requeue=1"),
    ] {
        let cluster = Cluster::new(name, SUMMARY, says);
        let (code, text) = cluster.play("--requeue");
        assert_eq!((code, cluster.stage.num_calls("requeue 12")), (Some(0), 0));
        assert!(text.contains("not queued again from here"), "{text}");
    }
}

#[test]
fn a_stopped_run_without_requeueing_says_how_to_go_on() {
    let cluster = Cluster::new("job-plain", SUMMARY, RUNNING);
    let (code, text) = cluster.play("");
    assert_eq!((code, cluster.stage.num_calls("scontrol")), (Some(0), 0));
    assert!(text.contains("submitted again resumes"), "{text}");
}

#[test]
fn a_failing_run_is_started_again_within_its_job() {
    let cluster = Cluster::new("job-fails", "exit 143", RUNNING);
    let (code, text) = cluster.play("--requeue --restarts 2");
    assert_eq!(
        (
            code,
            cluster.stage.num_calls("srun"),
            cluster.stage.num_calls("requeue 12")
        ),
        (Some(143), 3, 0),
        "{text}"
    );
    assert!(
        text.contains("job 12: exit code 143, and no restart is left"),
        "{text}"
    );
}

#[test]
fn a_job_that_does_not_run_any_more_is_not_started_again() {
    let cluster = Cluster::new(
        "job-gone",
        "exit 143",
        "JobState=COMPLETING Reason=None Requeue=1",
    );
    let (code, text) = cluster.play("--requeue --restarts 2");
    assert_eq!(
        (code, cluster.stage.num_calls("srun")),
        (Some(143), 1),
        "{text}"
    );
}

#[test]
fn wrong_usage_is_told_from_failure_even_behind_the_code_of_ranks_that_were_ended() {
    let masked = "echo 'srun: error: n1: tasks 0-1: Exited with exit code 2' >&2; exit 143";
    for (name, srun) in [("usage-plain", "exit 2"), ("usage-masked", masked)] {
        let cluster = Cluster::new(name, srun, RUNNING);
        let (code, text) = cluster.play("--restarts 3");
        assert_eq!(
            (code, cluster.stage.num_calls("srun")),
            (Some(2), 1),
            "{text}"
        );
    }
}

#[test]
fn a_script_that_is_asked_to_end_waits_for_the_checkpoint() {
    let srun =
        format!("end() {{ sleep 0.3; {SUMMARY}; exit 0; }}; trap end USR1; touch started; {WAIT}");
    let cluster = Cluster::new(
        "job-term",
        &srun,
        "JobState=COMPLETING Reason=None Requeue=1",
    );
    let playing = cluster.stage.play(
        &cluster.script("--requeue --restarts 2"),
        &cluster.run.join("slurm-12.out"),
    );
    cluster.stage.await_file("started");
    playing.signal("TERM");
    playing.signal("TERM");
    let (code, text) = playing.end();
    assert_eq!(
        (
            code,
            cluster.stage.num_calls("srun"),
            cluster.stage.num_calls("requeue 12")
        ),
        (Some(0), 1, 0),
        "{text}"
    );
    assert!(cluster.run.join("summary.json").exists());
}
