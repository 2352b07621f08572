//! Child processes that end with this program, also after an error, a panic, Ctrl-C or a kill.
//!
//! In: a prepared command. Out: [`Guarded`]; `Afterwards`, a command that runs at the end of this
//! program.
//! Invariant: the shell between this program and the child holds the reading end of a pipe whose
//! only writer is this program, so no signal is caught here. The shell sleeps and costs a measured
//! child nothing.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::failure::{Outcome, at, failed};
use crate::process;

/// Runs the program as a child, and a watcher that waits for the end of the pipe. With `setsid` the
/// program leads its own group, so that its children end with it; `set -m` would take the terminal.
const SCRIPT: &str = r#"
trap : INT HUP TERM
exec 3<&0
own=$(command -v setsid)
${own:+"$own"} "$@" </dev/null 3<&- &
child=$!
( trap '' INT HUP TERM
read -r _ <&3
kill -TERM -- "-$child" || kill -TERM "$child"
sleep 10
kill -KILL -- "-$child" || kill -KILL "$child" ) 2>/dev/null &
watcher=$!
disown "$watcher"
while :; do
    wait "$child"
    code=$?
    kill -0 "$child" 2>/dev/null || break
done
# What the program has left behind.
{ if kill -TERM -- "-$child"; then
    for _ in {1..100}; do
        kill -0 -- "-$child" || break
        sleep 0.1
    done
    kill -KILL -- "-$child"
fi; } 2>/dev/null
kill -KILL "$watcher"
exit "$code"
"#;

/// Interval of the looks at the child.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A child that gets SIGTERM, and SIGKILL after 10 s, when this value is dropped or this process
/// ends. Processes that the child started end with the child.
#[derive(Debug)]
pub struct Guarded {
    shell: Child,
    started: Instant,
}

impl Guarded {
    /// Starts the command; both its streams go to the file.
    ///
    /// # Errors
    /// The file cannot be made; the system has no bash.
    pub fn start(command: &Command, log: &Path) -> Outcome<Self> {
        let output = File::create(log).map_err(at(log))?;
        let errors = output.try_clone().map_err(at(log))?;
        Self::start_into(command, output, errors)
    }

    /// Starts the command with standard error in `NAME.err` next to the file, for output that is
    /// parsed. A launcher forwards both streams in pieces, so in one file a warning may split a
    /// line of the result. [`said`] reads both files.
    pub fn start_apart(command: &Command, log: &Path) -> Outcome<Self> {
        let create = |path: &Path| File::create(path).map_err(at(path));
        Self::start_into(command, create(log)?, create(&errors_beside(log))?)
    }

    fn start_into(command: &Command, output: File, errors: File) -> Outcome<Self> {
        let mut shell = Command::new("bash");
        shell
            .args(["-c", SCRIPT, "guard"])
            .arg(command.get_program())
            .args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        if let Some(folder) = command.get_current_dir() {
            shell.current_dir(folder);
        }
        shell.stdin(Stdio::piped()).stdout(output).stderr(errors);
        let child = shell
            .spawn()
            .map_err(|error| process::cannot_start(&shell, &error))?;
        Ok(Guarded {
            shell: child,
            started: Instant::now(),
        })
    }

    /// Returns whether the child has ended.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.shell.try_wait(), Ok(None))
    }

    /// Waits for the end, up to the limit; returns the exit code, absent if a signal or the limit
    /// ended the child.
    ///
    /// # Errors
    /// The system cannot report the end.
    pub fn finish(mut self, limit: Duration) -> Outcome<Option<i32>> {
        let mut was_asked = false;
        loop {
            let status: Option<ExitStatus> = self
                .shell
                .try_wait()
                .map_err(|error| failed!("cannot wait for a child process: {error}"))?;
            match status {
                Some(_) if was_asked => return Ok(None),
                // The shell reports a signal as 128 and more.
                Some(status) => return Ok(status.code().filter(|code| *code < 128)),
                None => {}
            }
            if !was_asked && self.started.elapsed() > limit {
                drop(self.shell.stdin.take());
                was_asked = true;
            }
            sleep(LOOK_EVERY);
        }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}

fn errors_beside(log: &Path) -> PathBuf {
    log.with_extension("err")
}

/// Returns standard output and standard error of a program.
pub fn said(log: &Path) -> String {
    let read =
        |path: &Path| String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned();
    format!("{}\n{}", read(log), read(&errors_beside(log)))
}

/// A command that runs once this value is dropped or this process has ended.
pub(crate) struct Afterwards {
    shell: Child,
}

impl Afterwards {
    /// Prepares the command; its files must still exist at the end of this process.
    pub(crate) fn run(program: &Path, arguments: &[&str]) -> Outcome<Self> {
        let mut shell = Command::new("bash");
        shell.args([
            "-c",
            "trap '' INT HUP TERM; read -r _; exec \"$@\" </dev/null >/dev/null",
            "afterwards",
        ]);
        shell.arg(program).args(arguments).stdin(Stdio::piped());
        let shell = shell
            .spawn()
            .map_err(|error| process::cannot_start(&shell, &error))?;
        Ok(Afterwards { shell })
    }
}

impl Drop for Afterwards {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn output_exit_code_and_environment_of_a_program_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("a.log");
        let mut command = shell("echo $WORD; echo err >&2; exit 3");
        command.env("WORD", "a b");
        let code = Guarded::start(&command, &log).unwrap().finish(LIMIT);
        let text = fs::read_to_string(&log).unwrap();
        assert_eq!((code.unwrap(), text.as_str()), (Some(3), "a b\nerr\n"));
        // A warning in the middle of a result is in another file.
        let command = shell("printf '{\"a\": '; echo 'warning: slow' >&2; echo '1}'");
        let code = Guarded::start_apart(&command, &log).unwrap().finish(LIMIT);
        let text = fs::read_to_string(&log).unwrap();
        assert_eq!((code.unwrap(), text.as_str()), (Some(0), "{\"a\": 1}\n"));
        assert_eq!(said(&log), "{\"a\": 1}\n\nwarning: slow\n");
    }

    #[test]
    fn a_program_past_its_limit_has_no_code_and_a_dropped_one_is_ended() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("a.log");
        let start = Instant::now();
        let running = Guarded::start(&shell("exec sleep 30"), &log).unwrap();
        let code = running.finish(Duration::from_millis(50)).unwrap();
        assert_eq!(code, None);
        drop(Guarded::start(&shell("exec sleep 30"), &log).unwrap());
        assert!(start.elapsed() < LIMIT);
    }

    #[test]
    fn child_processes_of_a_program_end_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("a.log");
        for script in ["sleep 60 & echo $!; wait", "sleep 60 & echo $!"] {
            let guarded = Guarded::start(&shell(script), &log).unwrap();
            let start = Instant::now();
            let started = loop {
                let text = fs::read_to_string(&log).unwrap();
                if let Some(number) = text.strip_suffix('\n') {
                    break number.to_owned();
                }
                assert!(start.elapsed() < LIMIT, "{text}");
                sleep(LOOK_EVERY);
            };
            drop(guarded);
            // A zombie has ended.
            let stat = fs::read_to_string(format!("/proc/{started}/stat")).unwrap_or_default();
            assert!(stat.is_empty() || stat.contains(") Z "), "{script}: {stat}");
        }
    }

    #[test]
    fn a_command_for_afterwards_does_not_run_before() {
        let folder = tempfile::tempdir().unwrap();
        let made = folder.path().join("made");
        let afterwards = Afterwards::run(Path::new("touch"), &[made.to_str().unwrap()]).unwrap();
        sleep(Duration::from_millis(50));
        assert!(!made.exists());
        drop(afterwards);
        assert!(made.exists());
    }
}
