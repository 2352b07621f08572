//! Signals and limits of the operating system: the files and exit code of the program.

use std::fs::OpenOptions;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::fixture::{Run, TINY, make_pipe, program};
use trainer::run::checkpoint::CheckpointStore;

/// A process that is killed when its test ends.
pub(crate) struct Running(pub(crate) Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill().and_then(|()| self.0.wait());
    }
}

impl Running {
    pub(crate) fn signal(&self, signal: &str) {
        let pid = self.0.id().to_string();
        assert!(
            Command::new("kill")
                .args(["-s", signal, &pid])
                .status()
                .unwrap()
                .success()
        );
    }

    pub(crate) fn is_there(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }

    /// Sends these signals with short pauses. Returns the exit code, or `None` if the process
    /// stays.
    pub(crate) fn code_after(mut self, signals: &[&str]) -> Option<i32> {
        for signal in signals {
            self.signal(signal);
            sleep(Duration::from_millis(100));
        }
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(60) {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status.code();
            }
            sleep(Duration::from_millis(20));
        }
        None
    }
}

#[test]
fn a_second_sigterm_ends_a_program_that_waits_for_its_options_and_only_stops_one_that_trains() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    make_pipe(&pipe);
    let waiting = Running(
        program()
            .arg("train")
            .arg("--config")
            .arg(&pipe)
            .spawn()
            .unwrap(),
    );
    // The open returns as soon as the program has opened the other end.
    let _writer = OpenOptions::new().write(true).open(&pipe).unwrap();
    assert_eq!(waiting.code_after(&["TERM", "TERM"]), Some(143));
    let run = Run::in_new_directory();
    let training = trained_after("true", &run);
    await_step(&run);
    assert_eq!(training.code_after(&["TERM", "TERM", "TERM"]), Some(0));
    assert!(run.directory().join("summary.json").exists());
}

/// Starts a long training of this run, in a shell that first executes `before`.
fn trained_after(before: &str, run: &Run) -> Running {
    // A signal that is ignored at a program's start stays ignored. SIGHUP is ignored if the tests
    // run under nohup.
    let program = program();
    let mut shell = Command::new("env");
    shell
        .args(["--default-signal", "sh", "-c"])
        .arg(format!("{before}; exec \"$@\""))
        .arg("sh")
        .arg(program.get_program())
        .arg("train");
    shell
        .args(TINY.replace("--epochs 2", "--epochs 100000").split(' '))
        .arg("--output-dir")
        .arg(run.directory());
    for (name, _) in program.get_envs() {
        shell.env_remove(name);
    }
    Running(
        shell
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap(),
    )
}

/// Waits for the first step. From then on a signal leads to an orderly stop.
fn await_step(run: &Run) {
    let start = Instant::now();
    while !run.directory().join("progress.json").exists() {
        assert!(start.elapsed() < Duration::from_secs(60), "no step is made");
        sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_closed_terminal_and_a_schedulers_warning_stop_a_run_with_a_checkpoint_unless_it_ignores_them()
{
    let stops = ["INT", "HUP", "USR1", "USR2", "XCPU"].map(|signal| {
        let run = Run::in_new_directory();
        (signal, trained_after("true", &run), run)
    });
    for (signal, training, run) in stops {
        await_step(&run);
        assert_eq!(training.code_after(&[signal]), Some(0), "{signal}");
        let store = CheckpointStore::new(&run.directory().join("checkpoints"), 9);
        assert!(
            run.directory().join("summary.json").exists() && store.has_any().unwrap(),
            "{signal}"
        );
    }
    let run = Run::in_new_directory();
    let mut training = trained_after("trap '' HUP", &run);
    await_step(&run);
    training.signal("HUP");
    sleep(Duration::from_secs(1));
    assert!(training.is_there(), "as under nohup");
    assert_eq!(training.code_after(&["TERM"]), Some(0));
}

#[test]
fn a_checkpoint_beyond_the_limit_of_a_files_size_is_an_error_that_names_it_and_leaves_no_half() {
    let run = Run::in_new_directory();
    let mut training = trained_after("true", &run);
    await_step(&run);
    // The limit applies only from now on, because MPI writes larger files at its start.
    let limit = ["--fsize=65536:65536", "--pid", &training.0.id().to_string()];
    assert!(
        Command::new("prlimit")
            .args(limit)
            .status()
            .unwrap()
            .success()
    );
    let words = std::io::read_to_string(training.0.stderr.take().unwrap()).unwrap();
    assert_eq!(training.0.wait().unwrap().code(), Some(1), "{words}");
    assert!(
        words.contains("model.safetensors: File too large"),
        "{words}"
    );
    let left = std::fs::read_dir(run.directory().join("checkpoints")).unwrap();
    assert_eq!(left.count(), 0, "half a checkpoint");
}
