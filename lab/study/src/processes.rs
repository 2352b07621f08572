//! The processes of one run, from start to end.
//!
//! In: prepared commands, a folder for their output. Out: whether all ended well, otherwise why
//! not.
//! Invariant: every process has a deadline. When one fails, the others are ended at once; none
//! outlives this program.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::peers::last_line;
use crate::quiet::MARK;
use cluster::failure::Outcome;
use cluster::guard::{Guarded, said};
use cluster::process;

const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Longest time of a server to end after the ranks.
const LEAVING: Duration = Duration::from_secs(10);

/// Standard output of the first process in the folder of a run.
pub(crate) const OUTPUT: &str = "output.log";

/// The processes of one run.
#[derive(Default)]
pub(crate) struct Processes {
    /// The run ends when all of them have ended.
    pub(crate) ranks: Vec<Command>,
    /// Servers, which end by themselves after the ranks.
    pub(crate) servers: Vec<Command>,
}

/// A process that did not end well.
#[derive(Debug, PartialEq)]
pub(crate) struct Failed {
    /// Exit code; absent if a signal or the limit ended the process.
    pub(crate) code: Option<i32>,
    pub(crate) why: String,
}

/// A process and its log.
type Started = (Guarded, PathBuf);

impl Processes {
    /// Returns the commands as lines that can be pasted into a shell.
    pub(crate) fn shown(&self) -> String {
        let all = self.servers.iter().chain(&self.ranks);
        all.map(process::shown).collect::<Vec<_>>().join(" & ")
    }

    /// Runs all processes; their output goes to [`OUTPUT`], `output-1.log` and so on in the folder.
    ///
    /// # Errors
    /// A process that cannot be started.
    pub(crate) fn run(
        self,
        folder: &Path,
        limit: Duration,
        mark: &str,
    ) -> Outcome<Result<(), Failed>> {
        let start = Instant::now();
        let num_ranks = self.ranks.len();
        let mut ranks: Vec<Started> = Vec::new();
        for (index, mut command) in self.ranks.into_iter().chain(self.servers).enumerate() {
            command.env(MARK, mark);
            let log = match index {
                0 => folder.join(OUTPUT),
                _ => folder.join(format!("output-{index}.log")),
            };
            ranks.push((Guarded::start_apart(&command, &log)?, log));
        }
        let mut servers = ranks.split_off(num_ranks);
        let has_ended = |(process, _): &mut Started| process.has_ended();
        let mut all_ended: Option<Instant> = None;
        loop {
            if let Some(index) = ranks.iter_mut().position(has_ended) {
                if let Err(failed) = ended_well(ranks.remove(index))? {
                    return Ok(Err(failed));
                }
                continue;
            }
            if let Some(index) = servers.iter_mut().position(has_ended) {
                // The ranks would wait for a failed server until the limit.
                if let Err(failed) = ended_well(servers.remove(index))? {
                    let why = format!("a server: {}", failed.why);
                    return Ok(Err(Failed { why, ..failed }));
                }
                continue;
            }
            if ranks.is_empty() && servers.is_empty() {
                return Ok(Ok(()));
            }
            if ranks.is_empty() && all_ended.get_or_insert_with(Instant::now).elapsed() > LEAVING {
                let why = format!(
                    "a server did not end within {} s of the ranks",
                    LEAVING.as_secs()
                );
                return Ok(Err(Failed { code: None, why }));
            }
            if start.elapsed() > limit {
                let logs: Vec<PathBuf> = ranks.iter().map(|(_, log)| log.clone()).collect();
                // The drop ends all processes.
                drop((ranks, servers));
                let last = logs.iter().map(|log| last_words(&said(log))).next();
                let why = format!(
                    "not ended within the limit of {} s: {}",
                    limit.as_secs(),
                    last.unwrap_or_default()
                );
                return Ok(Err(Failed { code: None, why }));
            }
            sleep(LOOK_EVERY);
        }
    }
}

fn ended_well((process, log): Started) -> Outcome<Result<(), Failed>> {
    let code = process.finish(Duration::MAX)?;
    let how = match code {
        Some(0) => return Ok(Ok(())),
        Some(code) => format!("exit code {code}"),
        None => "ended by a signal".to_owned(),
    };
    let why = format!("{how}: {}", last_words(&said(&log)));
    Ok(Err(Failed { code, why }))
}

/// Returns the line of a program's output that best says why it failed.
pub(crate) fn last_words(output: &str) -> String {
    // Launchers add their own words after the program's.
    let end = ["\n-----", "\nsrun: "]
        .iter()
        .filter_map(|mark| output.find(mark))
        .min()
        .unwrap_or(output.len());
    let own = match output[..end].trim() {
        "" => output,
        _ => &output[..end],
    };
    // Several ranks report the same error, and other lines may follow it.
    let error = own.lines().find(|line| line.trim().starts_with("error"));
    last_line(error.unwrap_or(own))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    fn run(ranks: &[&str], servers: &[&str], limit: Duration) -> Result<(), Failed> {
        let folder = tempfile::tempdir().unwrap();
        let of = |scripts: &[&str]| scripts.iter().map(|script| shell(script)).collect();
        let processes = Processes {
            ranks: of(ranks),
            servers: of(servers),
        };
        processes.run(folder.path(), limit, "-").unwrap()
    }

    #[test]
    fn a_run_ends_with_its_ranks_and_servers_and_a_failure_ends_all_at_once() {
        let start = Instant::now();
        let limit = Duration::from_secs(50);
        let failing = "echo step 1; echo no such thing >&2; exit 3";
        for (ranks, servers, expected) in [
            (&["true", "sleep 0.1"][..], &["sleep 0.2"][..], None),
            (&["sleep 0.3"], &["true"], None),
            (
                &["exec sleep 60", failing],
                &["exec sleep 60"],
                Some((3, "exit code 3: no such thing")),
            ),
            (
                &["exec sleep 60"],
                &["echo no port; exit 4"],
                Some((4, "a server: exit code 4: no port")),
            ),
        ] {
            let failed = run(ranks, servers, limit).err();
            let expected = expected.map(|(code, why)| Failed {
                code: Some(code),
                why: why.to_owned(),
            });
            assert_eq!(failed, expected);
        }
        let failed = run(
            &["echo begun; exec sleep 60"],
            &[],
            Duration::from_millis(300),
        )
        .unwrap_err();
        assert_eq!(failed.code, None);
        assert!(failed.why.contains("limit of 0 s: begun"), "{failed:?}");
        assert!(start.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn the_last_words_are_the_programs_and_not_its_launchers() {
        for (output, expected) in [
            (
                "ImportError: x\n-------\nPrimary job terminated\n-------\n",
                "ImportError: x",
            ),
            ("\n-------\nno slots\n", "no slots"),
            (
                "OSError: x\nsrun: error: n1: task 0: Exited\n",
                "OSError: x",
            ),
            ("x\nerror: y\nmpirun ended\n\n", "error: y"),
            ("", "no output"),
        ] {
            assert_eq!(last_words(output), expected);
        }
    }
}
