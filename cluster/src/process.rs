//! Programs that this one starts.
//!
//! In: a prepared `std::process::Command`. Out: its line as a shell would read it, its success, or what it wrote.
//! Invariant: standard input is empty, so that nothing waits for an answer that nobody gives.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

pub use records::quoted;

use crate::failure::{Failure, Outcome};
use crate::output::say;

/// The command as a line that can be pasted into a shell, with the variables that were set for it.
pub fn shown(command: &Command) -> String {
    let variables = command
        .get_envs()
        .filter_map(|(name, value)| Some(format!("{}={}", name.display(), quoted(value?))));
    let words = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(quoted);
    variables.chain(words).collect::<Vec<_>>().join(" ")
}

/// Prints the command, runs it and passes its output through.
pub fn run(mut command: Command) -> Outcome {
    say!("$ {}", shown(&command));
    let status = command
        .stdin(Stdio::null())
        .status()
        .map_err(|error| cannot_start(&command, &error))?;
    if status.success() {
        Ok(())
    } else {
        Err(Failure::Failed(format!(
            "`{}` failed: {status}",
            command.get_program().display()
        )))
    }
}

/// The standard output of a command that is asked silently, if it can be started and succeeds.
pub fn answer(program: impl AsRef<OsStr>, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// What to say of a program that is not there or may not be run.
pub fn cannot_start(command: &Command, error: &std::io::Error) -> Failure {
    Failure::Failed(format!(
        "`{}` cannot be started: {error}",
        command.get_program().display()
    ))
}

/// Whether this process runs as root.
pub fn is_root() -> bool {
    answer("id", &["-u"]).is_some_and(|id| id.trim() == "0")
}

/// A command that ended, or was ended.
#[derive(Debug)]
pub struct Finished {
    /// Absent when a signal or the deadline ended it.
    pub code: Option<i32>,
    /// Standard output and standard error in the order they were written.
    pub text: String,
    /// From its start to its end.
    pub elapsed: Duration,
}

/// A command that runs beside this program and writes into a file.
pub struct Running<'a> {
    child: Child,
    log: &'a Path,
    started: Instant,
}

impl<'a> Running<'a> {
    /// Starts it; both its streams go to the file.
    ///
    /// # Errors
    /// A file that cannot be made, a program that cannot be started.
    pub fn start(mut command: Command, log: &'a Path) -> Result<Self, String> {
        let file = File::create(log).map_err(|error| format!("{}: {error}", log.display()))?;
        let copy = file
            .try_clone()
            .map_err(|error| format!("{}: {error}", log.display()))?;
        command.stdin(Stdio::null()).stdout(file).stderr(copy);
        let child = command
            .spawn()
            .map_err(|error| cannot_start(&command, &error).to_string())?;
        Ok(Running {
            child,
            log,
            started: Instant::now(),
        })
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether it is no longer there.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits for the end; past the deadline the command is asked to stop, then killed.
    pub fn finish(mut self, limit: Duration) -> Result<Finished, String> {
        let mut was_asked = false;
        let status = loop {
            if let Some(status) = self.child.try_wait().map_err(|error| error.to_string())? {
                break status;
            }
            if !was_asked && self.started.elapsed() > limit {
                // mpirun ends its ranks when it is asked; killed outright it would leave them behind.
                send_signal(self.child.id(), "TERM")?;
                was_asked = true;
            }
            if self.started.elapsed() > limit + Duration::from_secs(10) {
                self.child.kill().map_err(|error| error.to_string())?;
            }
            sleep(Duration::from_millis(10));
        };
        let elapsed = self.started.elapsed();
        let bytes =
            fs::read(self.log).map_err(|error| format!("{}: {error}", self.log.display()))?;
        let code = if was_asked { None } else { status.code() };
        Ok(Finished {
            code,
            text: String::from_utf8_lossy(&bytes).into_owned(),
            elapsed,
        })
    }
}

impl Drop for Running<'_> {
    /// One that was not waited for, as in a panic, is not left behind.
    fn drop(&mut self) {
        if self.has_ended() {
            return;
        }
        let _ = send_signal(self.child.id(), "TERM");
        let start = Instant::now();
        while !self.has_ended() && start.elapsed() < Duration::from_secs(10) {
            sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a signal by the shell's own `kill`: the standard library has none, and the program is not everywhere.
pub fn send_signal(process: u32, signal: &str) -> Result<(), String> {
    let line = format!("kill -{signal} {process}");
    let status = Command::new("sh")
        .args(["-c", &line])
        .status()
        .map_err(|error| format!("sh: {error}"))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("`{line}` failed"))
    }
}

/// A signal whose shell is started beforehand: it is sent within moments that are shorter than the start of a process.
pub struct ReadySignal(Child);

impl ReadySignal {
    /// Starts the shell that will send it.
    ///
    /// # Errors
    /// A shell that cannot be started.
    pub fn new(process: u32, signal: &str) -> Result<Self, String> {
        let line = format!("read -r go && kill -{signal} {process}");
        let mut command = Command::new("sh");
        command
            .args(["-c", &line])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
            .spawn()
            .map(ReadySignal)
            .map_err(|error| cannot_start(&command, &error).to_string())
    }

    /// Sends it; false if the process is gone.
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
    /// One that is not sent ends with its input.
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

    fn log(name: &str) -> std::path::PathBuf {
        std::env::temp_dir().join(format!("lockstep-jobs-{}-{name}", std::process::id()))
    }

    #[test]
    fn a_shown_command_can_be_pasted_into_a_shell() {
        let mut command = Command::new("mpirun");
        command.args(["-n", "2", "a b", "it's"]).env("LIMIT", "3");
        assert_eq!(shown(&command), r"LIMIT=3 mpirun -n 2 'a b' 'it'\''s'");
    }

    #[test]
    fn both_streams_and_the_exit_code_are_kept() {
        let log = log("streams");
        let running = Running::start(shell("echo out; echo err >&2; exit 3"), &log).unwrap();
        let finished = running.finish(Duration::from_secs(20)).unwrap();
        fs::remove_file(log).unwrap();
        assert_eq!(
            (finished.code, finished.text.as_str()),
            (Some(3), "out\nerr\n")
        );
    }

    #[test]
    fn a_command_past_its_deadline_is_ended_and_has_no_code() {
        let log = log("deadline");
        let running = Running::start(shell("exec sleep 30"), &log).unwrap();
        let finished = running.finish(Duration::from_millis(50)).unwrap();
        fs::remove_file(log).unwrap();
        assert_eq!(finished.code, None);
        assert!(finished.elapsed < Duration::from_secs(10));
    }

    #[test]
    fn a_ready_signal_waits_to_be_sent() {
        let log = log("ready");
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
        fs::remove_file(log).unwrap();
        assert_eq!(finished.code, Some(7));
    }

    #[test]
    fn a_failing_command_is_a_failure_and_a_missing_one_says_so() {
        assert!(run(shell("exit 1")).is_err());
        let failure = run(Command::new("no-such-program-here")).unwrap_err();
        assert!(failure.to_string().contains("cannot be started"));
    }
}
