//! Child processes.
//!
//! In: a prepared `std::process::Command`. Out: its line for a shell, its success, or its output.
//! Invariant: standard input is empty, so that no child waits for an answer.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

pub use records::quoted;

use crate::failure::{Failure, Outcome, at, failed};
use crate::output::say;

/// Returns the command as a line that can be pasted into a shell, with its variables.
pub fn shown(command: &Command) -> String {
    let variables = command
        .get_envs()
        .filter_map(|(name, value)| Some(format!("{}={}", name.display(), quoted(value?))));
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words = records::quoted_line(words);
    variables.chain([words]).collect::<Vec<_>>().join(" ")
}

/// Prints the command, runs it and passes its output through.
pub fn run(mut command: Command) -> Outcome {
    say!("$ {}", shown(&command));
    let status = command
        .stdin(Stdio::null())
        .status()
        .map_err(|error| cannot_start(&command, &error))?;
    match status.success() {
        true => Ok(()),
        false => Err(failed!(
            "`{}` failed: {status}",
            command.get_program().display()
        )),
    }
}

/// Returns the standard output of a command, if it can be started and succeeds.
pub fn answer(program: impl AsRef<OsStr>, arguments: &[&str]) -> Option<String> {
    ask(Command::new(program).args(arguments)).ok()?.ok()
}

/// Returns the standard output of a command; the inner error is its standard error.
pub fn ask(command: &mut Command) -> Outcome<Result<String, String>> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| cannot_start(command, &error))?;
    if output.status.success() {
        return Ok(Ok(String::from_utf8_lossy(&output.stdout).into_owned()));
    }
    Ok(Err(String::from_utf8_lossy(&output.stderr)
        .trim()
        .to_owned()))
}

/// Returns the standard output of a command, which must succeed.
pub fn ask_for(command: &mut Command) -> Outcome<String> {
    ask(command)?.map_err(|complaint| failed!("`{}`: {complaint}", shown(command)))
}

/// Returns the error for a program that is absent or not executable.
pub fn cannot_start(command: &Command, error: &std::io::Error) -> Failure {
    failed!(
        "`{}` cannot be started: {error}",
        command.get_program().display()
    )
}

/// Returns whether this process runs as root.
pub fn is_root() -> bool {
    answer("id", &["-u"]).is_some_and(|id| id.trim() == "0")
}

/// A child that has ended.
#[derive(Debug)]
pub struct Finished {
    /// Absent if a signal or the deadline ended the child.
    pub code: Option<i32>,
    /// Standard output and standard error in the order of writing.
    pub text: String,
    /// Time from start to end.
    pub elapsed: Duration,
}

/// A child that runs while this program continues.
pub struct Running<'a> {
    child: Child,
    log: &'a Path,
    started: Instant,
}

impl<'a> Running<'a> {
    /// Starts the command; both its streams go to the file.
    ///
    /// # Errors
    /// The file cannot be made; the program cannot be started.
    pub fn start(mut command: Command, log: &'a Path) -> Outcome<Self> {
        let file = File::create(log).map_err(at(log))?;
        let copy = file.try_clone().map_err(at(log))?;
        command.stdin(Stdio::null()).stdout(file).stderr(copy);
        let child = command
            .spawn()
            .map_err(|error| cannot_start(&command, &error))?;
        Ok(Running {
            child,
            log,
            started: Instant::now(),
        })
    }

    /// Returns the process number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns whether the child has ended.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits for the end; past the deadline the child gets SIGTERM, then SIGKILL.
    pub fn finish(mut self, limit: Duration) -> Outcome<Finished> {
        let mut was_asked = false;
        let status = loop {
            let program = Path::new("a child process");
            if let Some(status) = self.child.try_wait().map_err(at(program))? {
                break status;
            }
            if !was_asked && self.started.elapsed() > limit {
                // mpirun ends its ranks on SIGTERM; SIGKILL would leave them running.
                send_signal(self.child.id(), "TERM")?;
                was_asked = true;
            }
            if self.started.elapsed() > limit + Duration::from_secs(10) {
                self.child.kill().map_err(at(program))?;
            }
            sleep(Duration::from_millis(10));
        };
        let elapsed = self.started.elapsed();
        let bytes = fs::read(self.log).map_err(at(self.log))?;
        Ok(Finished {
            code: status.code().filter(|_| !was_asked),
            text: String::from_utf8_lossy(&bytes).into_owned(),
            elapsed,
        })
    }
}

impl Drop for Running<'_> {
    /// Ends a child that was not waited for, as in a panic.
    fn drop(&mut self) {
        if self.has_ended() {
            return;
        }
        let _ = send_signal(self.child.id(), "TERM");
        let pause = Duration::from_millis(10);
        wait_until(Duration::from_secs(10), pause, || self.has_ended());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until `is_so` returns true, up to the limit; returns whether it did.
pub fn wait_until(limit: Duration, pause: Duration, mut is_so: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    loop {
        if is_so() {
            return true;
        }
        if start.elapsed() > limit {
            return false;
        }
        sleep(pause);
    }
}

/// Sends a signal.
///
/// # Errors
/// The process has ended, or is another user's.
pub fn send_signal(process: u32, signal: &str) -> Outcome {
    match ReadySignal::new(process, signal)?.send() {
        true => Ok(()),
        false => Err(failed!("`kill -{signal} {process}` failed")),
    }
}

/// A signal whose shell is already running, so that it is sent faster than a process starts. The
/// shell's own `kill` sends it: the standard library has none, and not every system has the
/// program.
pub struct ReadySignal(Child);

impl ReadySignal {
    /// Starts the shell.
    ///
    /// # Errors
    /// The shell cannot be started.
    pub fn new(process: u32, signal: &str) -> Outcome<Self> {
        let line = format!("read -r go && kill -{signal} {process}");
        let mut command = Command::new("sh");
        command
            .args(["-c", &line])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = command.spawn();
        child
            .map(ReadySignal)
            .map_err(|error| cannot_start(&command, &error))
    }

    /// Sends the signal; returns false if the process has ended.
    pub fn send(mut self) -> bool {
        let asked = self
            .0
            .stdin
            .take()
            .is_some_and(|mut input| input.write_all(b"go\n").is_ok());
        asked && self.0.wait().is_ok_and(|status| status.success())
    }
}

impl Drop for ReadySignal {
    /// Ends the shell of a signal that was not sent.
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_shown_command_can_be_pasted_into_a_shell() {
        let mut command = Command::new("mpirun");
        command.args(["-n", "2", "a b", "it's"]).env("LIMIT", "3");
        assert_eq!(shown(&command), r"LIMIT=3 mpirun -n 2 'a b' 'it'\''s'");
    }

    #[test]
    fn streams_and_exit_code_of_a_child_are_kept_up_to_its_deadline() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("a.log");
        for (script, limit_s, expected) in [
            (
                "echo out; echo err >&2; exit 3",
                20.0,
                (Some(3), "out\nerr\n"),
            ),
            ("exec sleep 30", 0.05, (None, "")),
        ] {
            let running = Running::start(shell(script), &log).unwrap();
            let finished = running.finish(Duration::from_secs_f64(limit_s)).unwrap();
            assert_eq!((finished.code, finished.text.as_str()), expected);
            assert!(finished.elapsed < Duration::from_secs(20));
        }
    }

    #[test]
    fn a_ready_signal_waits_to_be_sent() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("a.log");
        let script = "trap 'kill $!; exit 7' USR1; sleep 30 & echo ready; wait";
        let mut running = Running::start(shell(script), &log).unwrap();
        while fs::read(&log).unwrap().is_empty() {
            sleep(Duration::from_millis(10));
        }
        drop(ReadySignal::new(running.id(), "USR1").unwrap());
        let ready = ReadySignal::new(running.id(), "USR1").unwrap();
        assert!(!running.has_ended());
        assert!(ready.send());
        let finished = running.finish(Duration::from_secs(20)).unwrap();
        assert_eq!(finished.code, Some(7));
    }

    #[test]
    fn a_failing_or_missing_program_is_a_failure() {
        assert!(run(shell("exit 1")).is_err());
        let complaint = ask(&mut shell("echo no >&2; exit 1")).unwrap();
        assert_eq!(complaint, Err("no".to_owned()));
        let failure = run(Command::new("no-such-program-here")).unwrap_err();
        assert!(failure.to_string().contains("cannot be started"));
    }
}
