//! The generated shell, run with replacements for launchers.

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

/// A folder with programs, first in PATH, and with the files that they leave.
pub(crate) struct Stage {
    pub(crate) folder: PathBuf,
}

/// A script that runs, and the file of its output.
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
        // Bash cannot trap a signal that is ignored at its start, as HUP under nohup.
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
        // The files of a failed test are for reading.
        if !std::thread::panicking() {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

impl Playing {
    pub(crate) fn signal(&self, name: &str) {
        send_signal(self.child.id(), name).unwrap();
    }

    /// Returns the exit code, absent if a signal ended the script, and the output.
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

/// A failing program is restarted as often as requested, without a stop or wrong usage.
#[test]
fn the_exit_code_decides_about_restarts() {
    for (name, restarts, course, code, calls, outputs) in [
        ("success", 3, "exit 0", 0, 1, &[][..]),
        ("success-once", 0, "exit 0", 0, 1, &[]),
        ("once", 0, "exit 7", 7, 1, &[]),
        (
            "fails",
            2,
            "exit $((n + 2))",
            5,
            3,
            &[
                "exit code 3: starting again from the last checkpoint, 1 more restarts after this",
                "exit code 5, and no restart is left",
            ],
        ),
        (
            "killed",
            1,
            "[ $n = 2 ] || kill -KILL $$",
            0,
            2,
            &["exit code 137: starting again"],
        ),
        ("usage", 3, "exit 2", 2, 1, &["the command line is wrong"]),
    ] {
        let stage = Stage::new(name);
        stage.program("mpirun", course);
        let script = script(restarts, ScriptLauncher::Mpirun);
        let (found, text) = stage.play(&script, &stage.folder.join("output")).end();
        assert_eq!((found, stage.num_calls("mpirun")), (Some(code), calls));
        assert!(outputs.iter().all(|part| text.contains(part)), "{text}");
        assert!(code != 0 || calls > 1 || text.is_empty(), "{text}");
    }
}

/// Sends a signal to a started program; returns the exit code and the output after one call.
fn stopped(stage: &Stage, restarts: usize, signal: &str, program: &str) -> (Option<i32>, String) {
    stage.program("mpirun", program);
    let script = script(restarts, ScriptLauncher::Mpirun);
    let playing = stage.play(&script, &stage.folder.join("output"));
    stage.await_file("started");
    playing.signal(signal);
    let (code, text) = playing.end();
    assert_eq!(stage.num_calls("mpirun"), 1, "{signal}: {text}");
    (code, text)
}

#[test]
fn the_checkpoint_of_a_stopped_program_is_awaited() {
    // Ends gracefully on USR1, some time later, and leaves a file.
    let graceful =
        format!("trap 'sleep 0.3; touch checkpoint; exit 0' USR1; touch started; {WAIT}");
    for signal in ["TERM", "USR1", "HUP", "USR2", "XCPU"] {
        for restarts in [0, 2] {
            let stage = Stage::new(&format!("stop-{signal}-{restarts}"));
            let (code, text) = stopped(&stage, restarts, signal, &graceful);
            assert_eq!(code, Some(0), "{signal}: {text}");
            assert!(stage.folder.join("checkpoint").exists(), "{signal}");
        }
    }
}

#[test]
fn a_program_that_fails_or_loses_a_request_to_stop_is_not_restarted() {
    // As a launcher whose ranks are not there yet.
    let loses = "trap 'touch asked; trap \"exit 0\" USR1' USR1; touch started";
    for (name, program, restarts, code, output) in [
        (
            "fails",
            "trap 'exit 1' USR1; touch started",
            &[5][..],
            1,
            "exit code 1 after a signal; not started again",
        ),
        ("loses", loses, &[0, 2], 0, "launch: "),
        (
            "deaf",
            "touch started",
            &[0, 2],
            0,
            "launch: ended by the signal",
        ),
    ] {
        for restarts in restarts {
            let stage = Stage::new(&format!("{name}-{restarts}"));
            let program = format!("{program}; {WAIT}; exit 7");
            let (found, text) = stopped(&stage, *restarts, "TERM", &program);
            assert_eq!(found, Some(code), "{text}");
            assert!(text.contains(output), "{text}");
            let is_asked = stage.folder.join("asked").exists();
            assert_eq!(is_asked, name == "loses", "{text}");
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
fn a_second_signal_ends_a_program_that_does_not_stop() {
    // MPICH's mpirun hands TERM to its ranks; any mpirun ends them when it gets INT.
    for (launcher, trap, expected) in [
        (ScriptLauncher::Mpirun, "trap 'exit 130' INT;", 130),
        (ScriptLauncher::None, "", 137),
    ] {
        let stage = Stage::new(&format!("second-{launcher:?}"));
        stage.program(
            "mpirun",
            &format!("trap '' TERM; {trap} trap 'touch asked' USR1; touch started; {WAIT}"),
        );
        let playing = stage.play(&script(5, launcher), &stage.folder.join("output"));
        stage.await_file("started");
        playing.signal("TERM");
        stage.await_file("asked");
        playing.signal("TERM");
        let (code, text) = playing.end();
        assert_eq!((code, stage.num_calls("mpirun")), (Some(expected), 1));
        assert!(text.contains("asked again: ending at once"), "{text}");
    }
}
