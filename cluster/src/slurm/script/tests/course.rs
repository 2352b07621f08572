//! The course of the batch script, with replacements for Slurm's programs.

use std::fs;
use std::path::{Path, PathBuf};

use super::super::text;
use crate::restart::tests::{Stage, WAIT};
use crate::slurm::request::tests::read;

/// A cluster of replacements with one run.
struct Cluster {
    stage: Stage,
    run: PathBuf,
}

/// Leaves a summary as the trainer does.
const SUMMARY: &str = "echo '{ \"steps\": 3, \"stopped_early\": true }' >run/summary.json";
const FINISHED: &str = "echo '{ \"stopped_early\": false }' >run/summary.json";

const RUNNING: &str = "JobState=RUNNING Reason=None Requeue=1";
const COMPLETING: &str = "JobState=COMPLETING Reason=None Requeue=1";

impl Cluster {
    /// Makes a cluster from the text of srun and the answer of scontrol.
    fn new(name: &str, srun: &str, says: &str) -> Self {
        let stage = Stage::new(name);
        let run = stage.folder.join("run");
        fs::create_dir_all(&run).unwrap();
        stage.program("srun", srun);
        // Slurm ends the script of a requeued job.
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

    fn output(&self) -> PathBuf {
        self.run.join("slurm-12.out")
    }
}

/// A stopped run is requeued, a failing one is restarted within its job; wrong usage is found even
/// if srun returns the code of ranks that it ended.
#[test]
fn the_end_of_a_run_decides_about_restarts_and_a_requeue() {
    let masked = "echo 'srun: error: n1: tasks 0-1: Exited with exit code 2' >&2; exit 143";
    let turned_off = "JobState=RUNNING Reason=None Requeue=0";
    let both = "--requeue --restarts 2";
    for (name, srun, says, flags, code, runs, requeues, output) in [
        ("done", FINISHED, RUNNING, both, Some(0), 1, 0, ""),
        // Ended by the signal.
        (
            "stopped",
            SUMMARY,
            RUNNING,
            "--requeue",
            None,
            1,
            1,
            "back into the queue",
        ),
        (
            "stopped-restarts",
            SUMMARY,
            RUNNING,
            both,
            None,
            1,
            1,
            "back into the queue",
        ),
        (
            "turned-off",
            SUMMARY,
            turned_off,
            "--requeue",
            Some(0),
            1,
            0,
            "not queued again from here",
        ),
        (
            "cancelled",
            SUMMARY,
            COMPLETING,
            "--requeue",
            Some(0),
            1,
            0,
            "not queued again from here",
        ),
        (
            "plain",
            SUMMARY,
            RUNNING,
            "",
            Some(0),
            1,
            0,
            "submitted again resumes",
        ),
        (
            "fails",
            "exit 143",
            RUNNING,
            both,
            Some(143),
            3,
            0,
            "job 12: exit code 143, and no restart is left",
        ),
        (
            "gone",
            "exit 143",
            COMPLETING,
            both,
            Some(143),
            1,
            0,
            "not started again",
        ),
        (
            "usage",
            "exit 2",
            RUNNING,
            "--restarts 3",
            Some(2),
            1,
            0,
            "command line is wrong",
        ),
        (
            "usage-masked",
            masked,
            RUNNING,
            "--restarts 3",
            Some(2),
            1,
            0,
            "command line is wrong",
        ),
    ] {
        let cluster = Cluster::new(&format!("job-{name}"), srun, says);
        let playing = cluster
            .stage
            .play(&cluster.script(flags), &cluster.output());
        let (found, text) = playing.end();
        let calls = ["srun", "requeue 12"].map(|call| cluster.stage.num_calls(call));
        assert_eq!((found, calls), (code, [runs, requeues]), "{name}: {text}");
        assert!(text.contains(output), "{name}: {text}");
    }
}

#[test]
fn a_script_that_is_asked_to_end_waits_for_the_checkpoint() {
    let srun =
        format!("end() {{ sleep 0.3; {SUMMARY}; exit 0; }}; trap end USR1; touch started; {WAIT}");
    let cluster = Cluster::new("job-term", &srun, COMPLETING);
    let script = cluster.script("--requeue --restarts 2");
    let playing = cluster.stage.play(&script, &cluster.output());
    cluster.stage.await_file("started");
    playing.signal("TERM");
    playing.signal("TERM");
    let (code, text) = playing.end();
    let calls = ["srun", "requeue 12"].map(|call| cluster.stage.num_calls(call));
    assert_eq!((code, calls), (Some(0), [1, 0]), "{text}");
    assert!(cluster.run.join("summary.json").exists());
}
