//! The generated shell, run with programs that stand in for launchers.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::*;
use crate::process::send_signal;

/// Longer than any of these scripts takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// A folder with programs, first in PATH, and with what they leave there.
pub(crate) struct Stage {
    pub(crate) folder: PathBuf,
}

/// A script that runs, and where its output goes.
pub(crate) struct Playing {
    child: Child,
    output: PathBuf,
}

impl Stage {
    pub(crate) fn new(name: &str) -> Self {
        let folder =
            std::env::temp_dir().join(format!("lockstep-jobs-{}-{name}", std::process::id()));
        fs::create_dir_all(folder.join("bin")).unwrap();
        Stage { folder }
    }

    /// Writes a program that records its call, counts its calls (`$n`), and runs a bash text in the
    /// folder.
    pub(crate) fn program(&self, name: &str, course: &str) {
        let file = self.folder.join("bin").join(name);
        let folder = self.folder.display();
        let calls = format!("echo \"{name}\" >>calls\nn=$(grep -c '^{name}$' calls)");
        fs::write(
            &file,
            format!("#!/bin/bash\ncd '{folder}'\n{calls}\n{course}\n"),
        )
        .unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    }

    pub(crate) fn play(&self, script: &str, output: &Path) -> Playing {
        let file = self.folder.join("script");
        fs::write(&file, script).unwrap();
        let path = format!(
            "{}:{}",
            self.folder.join("bin").display(),
            std::env::var("PATH").unwrap()
        );
        let stream = File::create(output).unwrap();
        // What is ignored when bash starts, as HUP under nohup, bash cannot trap.
        let child = Command::new("env")
            .args(["--default-signal", "bash"])
            .arg(file)
            .env("PATH", path)
            .env("SLURM_JOB_ID", "12")
            .stdin(Stdio::null())
            .stdout(stream.try_clone().unwrap())
            .stderr(stream)
            .spawn()
            .unwrap();
        Playing {
            child,
            output: output.to_owned(),
        }
    }

    pub(crate) fn num_calls(&self, name: &str) -> usize {
        let calls = fs::read_to_string(self.folder.join("calls")).unwrap_or_default();
        calls.lines().filter(|line| *line == name).count()
    }

    /// Waits until a program has left this file.
    pub(crate) fn await_file(&self, name: &str) {
        let start = Instant::now();
        while !self.folder.join(name).exists() {
            assert!(start.elapsed() < LIMIT, "{name} does not appear");
            sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // What a failed test left is for reading.
        if !std::thread::panicking() {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

impl Playing {
    pub(crate) fn signal(&self, name: &str) {
        send_signal(self.child.id(), name).unwrap();
    }

    /// The exit code, absent when a signal ended the script, and what was written.
    pub(crate) fn end(mut self) -> (Option<i32>, String) {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if start.elapsed() > LIMIT {
                self.child.kill().unwrap();
                panic!(
                    "the script does not end; it wrote:\n{}",
                    fs::read_to_string(&self.output).unwrap()
                );
            }
            sleep(Duration::from_millis(5));
        };
        (status.code(), fs::read_to_string(&self.output).unwrap())
    }
}

/// Waits for a signal; ends some time after the test.
pub(crate) const WAIT: &str = "for _ in {1..4000}; do sleep 0.02; done";

fn script(restarts: usize, launcher: ScriptLauncher) -> String {
    let start = Start {
        command: "mpirun -n 2 trainer",
        restarts,
        launcher,
    };
    format!(
        "say() {{ echo \"launch: $*\" >&2; }}\n{}{}\nexit \"$code\"\n",
        launcher.signals(),
        start.text()
    )
}

/// Plays the loop to its end: exit code, calls, output.
fn play(name: &str, restarts: usize, course: &str) -> (Option<i32>, usize, String) {
    let stage = Stage::new(name);
    stage.program("mpirun", course);
    let (code, text) = stage
        .play(
            &script(restarts, ScriptLauncher::Mpirun),
            &stage.folder.join("output"),
        )
        .end();
    (code, stage.num_calls("mpirun"), text)
}

#[test]
fn success_is_the_end() {
    assert_eq!(play("success", 3, "exit 0"), (Some(0), 1, String::new()));
    assert_eq!(
        play("success-once", 0, "exit 0"),
        (Some(0), 1, String::new())
    );
}

#[test]
fn without_restarts_the_exit_code_is_the_programs() {
    assert_eq!(play("once", 0, "exit 7"), (Some(7), 1, String::new()));
}

#[test]
fn a_failing_program_is_started_again_so_often_and_no_oftener() {
    let (code, num_calls, text) = play("fails", 2, "exit $((n + 2))");
    assert_eq!((code, num_calls), (Some(5), 3));
    assert!(
        text.contains(
            "exit code 3: starting again from the last checkpoint, 1 more restarts after this"
        ),
        "{text}"
    );
    assert!(
        text.contains("exit code 5, and no restart is left"),
        "{text}"
    );
}

#[test]
fn a_program_that_was_killed_is_started_again() {
    let (code, num_calls, text) = play("killed", 1, "[ $n = 2 ] || kill -KILL $$");
    assert_eq!((code, num_calls), (Some(0), 2));
    assert!(text.contains("exit code 137: starting again"), "{text}");
}

#[test]
fn wrong_usage_is_not_tried_again() {
    let (code, num_calls, text) = play("usage", 3, "exit 2");
    assert_eq!((code, num_calls), (Some(2), 1));
    assert!(text.contains("the command line is wrong"), "{text}");
}

#[test]
fn the_checkpoint_of_a_stopped_program_is_awaited() {
    for signal in ["TERM", "USR1", "HUP", "USR2", "XCPU"] {
        for restarts in [0, 2] {
            let stage = Stage::new(&format!("stop-{signal}-{restarts}"));
            // Ends gracefully on USR1, some time later, and writes down that it did.
            let graceful =
                format!("trap 'sleep 0.3; touch checkpoint; exit 0' USR1; touch started; {WAIT}");
            stage.program("mpirun", &graceful);
            let playing = stage.play(
                &script(restarts, ScriptLauncher::Mpirun),
                &stage.folder.join("output"),
            );
            stage.await_file("started");
            playing.signal(signal);
            let (code, text) = playing.end();
            assert_eq!(
                (code, stage.num_calls("mpirun")),
                (Some(0), 1),
                "{signal}: {text}"
            );
            assert!(stage.folder.join("checkpoint").exists(), "{signal}");
        }
    }
}

#[test]
fn a_terminal_that_stops_background_output_does_not_stop_the_program() {
    let stage = Stage::new("tostop");
    stage.program("mpirun", "echo trained; exit 3");
    let inner = stage.folder.join("inner");
    fs::write(&inner, script(0, ScriptLauncher::Mpirun)).unwrap();
    let line = format!(
        "exec script -qec 'stty tostop; exec bash {}' /dev/null",
        inner.display()
    );
    let (code, text) = stage.play(&line, &stage.folder.join("output")).end();
    assert!(
        code == Some(3) && text.contains("trained"),
        "{code:?} {text}"
    );
}

#[test]
fn a_program_that_fails_while_it_stops_is_not_started_again() {
    let stage = Stage::new("stop-fails");
    stage.program(
        "mpirun",
        &format!("trap 'exit 1' USR1; touch started; {WAIT}"),
    );
    let playing = stage.play(
        &script(5, ScriptLauncher::Mpirun),
        &stage.folder.join("output"),
    );
    stage.await_file("started");
    playing.signal("TERM");
    let (code, text) = playing.end();
    assert_eq!((code, stage.num_calls("mpirun")), (Some(1), 1));
    assert!(
        text.contains("exit code 1 after a signal; not started again"),
        "{text}"
    );
}

#[test]
fn a_program_that_loses_the_first_wish_to_stop_is_asked_again() {
    for restarts in [0, 2] {
        let stage = Stage::new(&format!("loses-{restarts}"));
        // As a launcher whose ranks are not there yet.
        stage.program(
            "mpirun",
            &format!(
                "trap 'touch asked; trap \"exit 0\" USR1' USR1; touch started; {WAIT}; exit 7"
            ),
        );
        let playing = stage.play(
            &script(restarts, ScriptLauncher::Mpirun),
            &stage.folder.join("output"),
        );
        stage.await_file("started");
        playing.signal("TERM");
        let (code, text) = playing.end();
        assert_eq!((code, stage.num_calls("mpirun")), (Some(0), 1), "{text}");
        assert!(
            stage.folder.join("asked").exists() && text.lines().count() == 1,
            "{text}"
        );
    }
}

#[test]
fn a_program_that_a_wish_to_stop_ends_before_it_listens_was_stopped() {
    for restarts in [0, 2] {
        let stage = Stage::new(&format!("deaf-{restarts}"));
        stage.program("mpirun", &format!("touch started; {WAIT}"));
        let playing = stage.play(
            &script(restarts, ScriptLauncher::Mpirun),
            &stage.folder.join("output"),
        );
        stage.await_file("started");
        playing.signal("TERM");
        let (code, text) = playing.end();
        assert_eq!((code, stage.num_calls("mpirun")), (Some(0), 1), "{text}");
        assert!(text.contains("launch: ended by the signal"), "{text}");
    }
}

#[test]
fn a_second_signal_ends_a_program_that_does_not_stop() {
    for launcher in [ScriptLauncher::Mpirun, ScriptLauncher::None] {
        let stage = Stage::new(&format!("second-{launcher:?}"));
        // MPICH's mpirun hands TERM to its ranks; any mpirun ends them when it gets INT.
        let deafness = if launcher == ScriptLauncher::None {
            "trap '' TERM;"
        } else {
            "trap '' TERM; trap 'exit 130' INT;"
        };
        stage.program(
            "mpirun",
            &format!("{deafness} trap 'touch asked' USR1; touch started; {WAIT}"),
        );
        let playing = stage.play(&script(5, launcher), &stage.folder.join("output"));
        stage.await_file("started");
        playing.signal("TERM");
        stage.await_file("asked");
        playing.signal("TERM");
        let (code, text) = playing.end();
        let expected = if launcher == ScriptLauncher::None {
            137
        } else {
            130
        };
        assert_eq!(
            (code, stage.num_calls("mpirun")),
            (Some(expected), 1),
            "{text}"
        );
        assert!(text.contains("asked again: ending at once"), "{text}");
    }
}
