//! The batch script: its text for many requests, and its course with stand-ins for Slurm's programs.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use super::*;
use crate::failure::Outcome;
use crate::restart::tests::{Stage, WAIT};
use crate::slurm::submit::COMMAND;

/// The request of a command line; words are separated by blanks, `_` stands for a blank inside one.
fn read(line: &str) -> Outcome<Request> {
    let words: Vec<String> = line.split(' ').map(|word| word.replace('_', " ")).collect();
    Request::read(&COMMAND.parse(&words)?)
}

fn script_of(line: &str) -> String {
    let text = text(&read(line).unwrap(), Path::new("/opt/trainer"));
    let checked = Command::new("bash").args(["-n", "-c", &text]).output().unwrap();
    assert!(checked.status.success(), "{}\n{text}", String::from_utf8_lossy(&checked.stderr));
    text
}

fn refusal(line: &str) -> String {
    let failure = read(line).unwrap_err();
    assert_eq!(failure.exit_code(), 2, "{failure}");
    failure.to_string()
}

fn assert_lines(text: &str, lines: &[&str]) {
    for line in lines {
        assert!(text.lines().any(|found| found.trim() == *line), "no line `{line}` in:\n{text}");
    }
}

#[test]
fn every_resource_is_asked_for_on_a_line_of_its_own() {
    let text = script_of(
        "--nodes 2 --ntasks-per-node 8 --cpus-per-task 4 --gpus-per-task 1 --mem 32G --time 1-00:00:00 --partition p \
         --account a --qos q --constraint c&d --exclusive --dependency afterok:3 --name night --requeue --warn-seconds 300 \
         -- train --output-dir /d/run --epochs 3",
    );
    assert_lines(
        &text,
        &[
            "#SBATCH --job-name          night",
            "#SBATCH --nodes             2",
            "#SBATCH --ntasks-per-node   8",
            "#SBATCH --cpus-per-task     4",
            "#SBATCH --gpus-per-task     1",
            "#SBATCH --mem               32G",
            "#SBATCH --time              1-00:00:00",
            "#SBATCH --partition         p",
            "#SBATCH --account           a",
            "#SBATCH --qos               q",
            "#SBATCH --constraint        c&d",
            "#SBATCH --exclusive",
            "#SBATCH --dependency        afterok:3",
            "#SBATCH --requeue",
            "#SBATCH --signal            USR1@300",
            "#SBATCH --open-mode         append",
            "#SBATCH --output            /d/run/slurm-%j.out",
            "srun --mpi=pmix --kill-on-bad-exit=1 --cpu-bind=cores --cpus-per-task=4 \\",
            "/opt/trainer train --epochs 3 \\",
            "--output-dir \"$run_dir\" --resume </dev/null &",
        ],
    );
}

#[test]
fn the_plain_script_is_short() {
    let text = script_of("--ntasks-per-node 1 --name plain -- train");
    assert_lines(&text, &["#SBATCH --no-requeue", "#SBATCH --signal            USR1@120"]);
    for absent in ["scontrol requeue", "restarts_left", "module", "--array", "apptainer"] {
        assert!(!text.contains(absent), "{absent} in:\n{text}");
    }
}

#[test]
fn other_commands_get_their_own_words_alone() {
    let text = script_of("--ntasks-per-node 2 --name b -- bench --steps 3");
    assert_lines(&text, &["/opt/trainer bench --steps 3 </dev/null &"]);
    for absent in ["--resume", "--signal", "summary.json", "#SBATCH --requeue"] {
        assert!(!text.contains(absent), "{absent} in:\n{text}");
    }
    for flag in ["--requeue", "--restarts 2", "--warn-seconds 9"] {
        assert!(refusal(&format!("--ntasks-per-node 2 {flag} -- bench")).contains("`bench` has none"));
    }
}

#[test]
fn odd_words_reach_the_trainer_as_they_are() {
    let text =
        script_of("--ntasks-per-node 1 --name odd --env A=$HOME,B=it's -- train --data-dir a_b --note it's_\"$(x)\"");
    assert_lines(
        &text,
        &[
            "export A='$HOME'",
            r"export B='it'\''s'",
            r#"/opt/trainer train --data-dir 'a b' --note 'it'\''s "$(x)"' \"#,
        ],
    );
}

#[test]
fn a_directory_with_blanks_is_quoted_for_sbatch_and_for_bash() {
    let text = script_of("--ntasks-per-node 1 -- train --output-dir /d/a_b");
    assert_lines(&text, &["#SBATCH --output            \"/d/a b/slurm-%j.out\"", "run_dir='/d/a b'"]);
}

#[test]
fn modules_and_a_container_surround_the_trainer() {
    let image = std::env::temp_dir();
    let image = image.to_str().unwrap();
    let line = format!(
        "--ntasks-per-node 1 --gpus-per-task 1 --name c --module gcc/12,openmpi/4 --container {image} -- train --output-dir /d/c"
    );
    let text = script_of(&line);
    let apptainer = format!("apptainer exec --nv --bind \"$PWD\",\"$run_dir\" {} \\", image.trim_end_matches('/'));
    assert_lines(&text, &["module load gcc/12 openmpi/4 || exit 1", &apptainer]);
}

#[test]
fn every_task_of_an_array_has_its_directory_and_its_number() {
    let line = "--ntasks-per-node 1 --name sweep --array 0-3 --requeue --restarts 1 -- train --seed {task} --note=a_{task}.{task}";
    let text = script_of(line);
    let runs = std::env::current_dir().unwrap().join("runs/sweep");
    assert_lines(
        &text,
        &[
            "#SBATCH --array             0-3",
            &format!("#SBATCH --output            {}-%a/slurm-%A_%a.out", runs.display()),
            "job=\"${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID\"",
            &format!("run_dir={}-\"$SLURM_ARRAY_TASK_ID\"", runs.display()),
            "/opt/trainer train --seed \"$SLURM_ARRAY_TASK_ID\" '--note=a '\"$SLURM_ARRAY_TASK_ID\".\"$SLURM_ARRAY_TASK_ID\" \\",
            "scontrol requeue \"$job\" || { say \"could not be queued again\"; exit 1; }",
        ],
    );
    let directories: Vec<PathBuf> = read(line).unwrap().directories().into_iter().map(|(_, path)| path).collect();
    assert_eq!(directories.len(), 4);
    assert!(directories[3].ends_with("runs/sweep-3"));
}

#[test]
fn what_slurm_would_misunderstand_is_refused() {
    for (line, expected) in [
        ("--nodes 2 -- train", "--ntasks-per-node is missing"),
        ("--ntasks-per-node 1", "nothing to start"),
        ("--ntasks-per-node 1 --partition a_b -- train", "expected one word"),
        ("--ntasks-per-node 1 --account x#y -- train", "expected one word"),
        ("--ntasks-per-node 1 --env 1A=2 -- train", "got `1A=2`"),
        ("--ntasks-per-node 1 --time soon -- train", "got `soon`"),
        ("--ntasks-per-node 1 --time 00:02:00 -- train", "nothing would be trained"),
        ("--ntasks-per-node 1 --warn-seconds 70000 -- train", "at most 65535"),
        ("--ntasks-per-node 1 --container /no/image.sif -- train", "does not exist"),
        ("--ntasks-per-node 1 --trainer x --no-install -- train", "no effect"),
        ("--ntasks-per-node 1 -- train --seed {task}", "add --array"),
        ("--ntasks-per-node 1 --array 0-1 -- train --output-dir r{task}", "leave it out"),
        ("--ntasks-per-node 1 -- train --output-dir a\"b", "misread"),
        ("--ntasks-per-node 1 -- train --output-dir a,b", "misread"),
    ] {
        let got = refusal(line);
        assert!(got.contains(expected), "{line}: {got}");
    }
}

#[test]
fn a_warning_needs_room_in_every_notation_of_time() {
    for time in ["4", "3:01", "00:03:01", "0-1", "1-0:1", "1-00:00:00"] {
        read(&format!("--ntasks-per-node 1 --time {time} -- train")).unwrap();
    }
    for time in ["3", "2:59", "00:03:00", "0-0:3"] {
        assert!(refusal(&format!("--ntasks-per-node 1 --time {time} -- train")).contains("nothing would be trained"));
    }
    read("--ntasks-per-node 1 --time 3 --warn-seconds 60 -- train").unwrap();
}

/// A cluster of stand-ins with one run.
struct Cluster {
    stage: Stage,
    run: PathBuf,
}

/// Leaves a summary as the trainer does.
const SUMMARY: &str = "echo '{ \"steps\": 3, \"stopped_early\": true }' >run/summary.json";

impl Cluster {
    /// What srun does, and what scontrol says of the job.
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
        text(&Request::read(&COMMAND.parse(&words).unwrap()).unwrap(), Path::new("/opt/trainer"))
    }

    fn play(&self, flags: &str) -> (Option<i32>, String) {
        self.stage.play(&self.script(flags), &self.run.join("slurm-12.out")).end()
    }
}

const RUNNING: &str = "JobState=RUNNING Reason=None Requeue=1";

#[test]
fn a_finished_run_is_the_end_of_its_job() {
    let cluster = Cluster::new("job-done", "echo '{ \"stopped_early\": false }' >run/summary.json", RUNNING);
    let (code, text) = cluster.play("--requeue --restarts 2");
    assert_eq!(
        (code, cluster.stage.num_calls("srun"), cluster.stage.num_calls("requeue 12")),
        (Some(0), 1, 0),
        "{text}"
    );
}

#[test]
fn a_stopped_run_is_queued_again_once_and_its_job_does_not_end_before() {
    for flags in ["--requeue", "--requeue --restarts 2"] {
        let cluster = Cluster::new(&format!("job-stopped-{}", flags.len()), SUMMARY, RUNNING);
        let (code, text) = cluster.play(flags);
        assert_eq!((code, cluster.stage.num_calls("requeue 12")), (None, 1), "ended by the signal: {text}");
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
    assert!(text.contains("submitted again goes on"), "{text}");
}

#[test]
fn a_failing_run_is_started_again_within_its_job() {
    let cluster = Cluster::new("job-fails", "exit 143", RUNNING);
    let (code, text) = cluster.play("--requeue --restarts 2");
    assert_eq!(
        (code, cluster.stage.num_calls("srun"), cluster.stage.num_calls("requeue 12")),
        (Some(143), 3, 0),
        "{text}"
    );
    assert!(text.contains("job 12: exit code 143, and no restart is left"), "{text}");
}

#[test]
fn a_job_that_does_not_run_any_more_is_not_started_again() {
    let cluster = Cluster::new("job-gone", "exit 143", "JobState=COMPLETING Reason=None Requeue=1");
    let (code, text) = cluster.play("--requeue --restarts 2");
    assert_eq!((code, cluster.stage.num_calls("srun")), (Some(143), 1), "{text}");
}

#[test]
fn wrong_usage_is_told_from_failure_even_behind_the_code_of_ranks_that_were_ended() {
    let masked = "echo 'srun: error: n1: tasks 0-1: Exited with exit code 2' >&2; exit 143";
    for (name, srun) in [("usage-plain", "exit 2"), ("usage-masked", masked)] {
        let cluster = Cluster::new(name, srun, RUNNING);
        let (code, text) = cluster.play("--restarts 3");
        assert_eq!((code, cluster.stage.num_calls("srun")), (Some(2), 1), "{text}");
    }
}

#[test]
fn a_script_that_is_asked_to_end_waits_for_the_checkpoint() {
    let srun = format!("end() {{ sleep 0.3; {SUMMARY}; exit 0; }}; trap end USR1; touch started; {WAIT}");
    let cluster = Cluster::new("job-term", &srun, "JobState=COMPLETING Reason=None Requeue=1");
    let playing = cluster.stage.play(&cluster.script("--requeue --restarts 2"), &cluster.run.join("slurm-12.out"));
    cluster.stage.await_file("started");
    playing.signal("TERM");
    playing.signal("TERM");
    let (code, text) = playing.end();
    assert_eq!(
        (code, cluster.stage.num_calls("srun"), cluster.stage.num_calls("requeue 12")),
        (Some(0), 1, 0),
        "{text}"
    );
    assert!(cluster.run.join("summary.json").exists());
}
