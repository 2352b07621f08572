//! One run: its processes from start to end, watched, and again where others disturbed it.
//!
//! In: prepared commands, a folder for their output. Out: what they left there, and how quiet the machine was.
//! Invariant: every process has a deadline; when one of them fails the others are ended at once, and none outlives this program.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::install::last_line;
use crate::quiet::{self, MARK, Watch};
use cluster::guard::{Guarded, said};
use cluster::process;

const LOOK_EVERY: Duration = Duration::from_millis(20);

/// How long a server may take to leave after the ranks.
const LEAVING: Duration = Duration::from_secs(10);

/// The processes of one run.
pub(super) struct Processes {
    /// Whose end is the end of the run.
    pub(super) ranks: Vec<Command>,
    /// Servers, which end by themselves after the ranks.
    pub(super) beside: Vec<Command>,
}

impl Processes {
    /// The commands as lines that can be pasted into a shell.
    pub(super) fn shown(&self) -> String {
        let lines: Vec<String> = self
            .beside
            .iter()
            .chain(&self.ranks)
            .map(process::shown)
            .collect();
        lines.join(" & ")
    }

    /// Starts all and waits until all ranks have ended well; their output goes to `process-<n>.log` and `.err` in the folder.
    pub(super) fn run(mut self, folder: &Path, limit: Duration, mark: &str) -> Result<(), String> {
        fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let start = Instant::now();
        let mut all = Vec::new();
        let num_ranks = self.ranks.len();
        self.ranks.append(&mut self.beside);
        for (index, mut command) in self.ranks.into_iter().enumerate() {
            command.env(MARK, mark);
            let log = folder.join(format!("process-{index}.log"));
            all.push((
                Guarded::start_apart(&command, &log).map_err(|failure| failure.to_string())?,
                log,
            ));
        }
        let mut left = all.into_iter();
        let mut ranks: Vec<(Guarded, PathBuf)> = left.by_ref().take(num_ranks).collect();
        let mut servers: Vec<(Guarded, PathBuf)> = left.collect();
        while !ranks.is_empty() {
            if start.elapsed() > limit {
                // Dropping asks them to end.
                return Err(format!("did not end within {} s", limit.as_secs()));
            }
            let has_ended = |(process, _): &mut (Guarded, PathBuf)| process.has_ended();
            if let Some(index) = ranks.iter_mut().position(has_ended) {
                ended_well(ranks.remove(index), limit)?;
            } else if let Some(index) = servers.iter_mut().position(has_ended) {
                // The ranks would wait for one that has failed until the limit.
                ended_well(servers.remove(index), limit)
                    .map_err(|reason| format!("a server {reason}"))?;
            } else {
                sleep(LOOK_EVERY);
            }
        }
        let all_done = Instant::now();
        for mut server in servers {
            while !server.0.has_ended() {
                if all_done.elapsed() > LEAVING {
                    return Err(format!(
                        "a server did not end within {} s of the ranks",
                        LEAVING.as_secs()
                    ));
                }
                sleep(LOOK_EVERY);
            }
            ended_well(server, limit).map_err(|reason| format!("a server {reason}"))?;
        }
        Ok(())
    }
}

fn ended_well((process, log): (Guarded, PathBuf), limit: Duration) -> Result<(), String> {
    match process
        .finish(limit)
        .map_err(|failure| failure.to_string())?
    {
        Some(0) => Ok(()),
        code => {
            let how = code.map_or_else(
                || "was ended".to_owned(),
                |code| format!("ended with exit code {code}"),
            );
            Err(format!("{how}: {}", last_line(complaint(&said(&log)))))
        }
    }
}

/// What mpirun, Open MPI and srun add to a program's complaint is left out, if the program made one.
fn complaint(text: &str) -> &str {
    let end = ["\n-----", "\nsrun: "]
        .iter()
        .filter_map(|mark| text.find(mark))
        .min()
        .unwrap_or(text.len());
    if text[..end].trim().is_empty() {
        text
    } else {
        &text[..end]
    }
}

/// What one run gave.
pub(super) struct Watched<T> {
    pub(super) result: T,
    pub(super) quiet: records::Quiet,
    pub(super) is_disturbed: bool,
}

/// How often a run is made and what is too much of others.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    pub(super) limit_cores: f64,
    pub(super) attempts: usize,
    /// How long a run waits for others to leave the machine alone.
    pub(super) patience: Duration,
}

impl Patience {
    /// Makes a run until one is undisturbed, at most so often; the last one counts. One that fails is made once more. A run also tells
    /// begin and end of its measured part, in which alone others disturb it.
    pub(super) fn watched<T>(
        &self,
        mark: &str,
        mut run: impl FnMut(usize) -> Result<(T, Option<[f64; 2]>), String>,
    ) -> Result<Watched<T>, String> {
        let mut failures = 0;
        let mut attempt = 0;
        loop {
            attempt += 1;
            let before = quiet::wait(self.limit_cores, self.patience);
            let watch = Watch::start(mark).map_err(|failure| failure.to_string())?;
            let result = run(attempt);
            let looks = watch.finish();
            match result {
                Err(reason) if failures > 0 => return Err(reason),
                Err(_) => failures += 1,
                Ok((result, measured_unix_s)) => {
                    let seen = looks.seen(measured_unix_s);
                    let is_disturbed = seen.quiet.cores() > self.limit_cores;
                    if !is_disturbed || attempt >= self.attempts {
                        let quiet = quiet::record(Some(before), &seen, Some(self.limit_cores));
                        return Ok(Watched {
                            result,
                            quiet,
                            is_disturbed,
                        });
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Others are never too many.
    const EASY: Patience = Patience {
        limit_cores: 1e9,
        attempts: 3,
        patience: Duration::ZERO,
    };

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    fn run(ranks: &[&str], beside: &[&str], limit: Duration) -> Result<(), String> {
        let folder = tempfile::tempdir().unwrap();
        let of = |scripts: &[&str]| scripts.iter().map(|script| shell(script)).collect();
        Processes {
            ranks: of(ranks),
            beside: of(beside),
        }
        .run(folder.path(), limit, "-")
    }

    #[test]
    fn a_run_ends_with_its_last_rank_and_its_servers() {
        assert_eq!(
            run(
                &["true", "sleep 0.1"],
                &["sleep 0.2"],
                Duration::from_secs(20)
            ),
            Ok(())
        );
    }

    #[test]
    fn a_failed_rank_ends_the_others_and_its_last_line_of_both_streams_is_the_reason() {
        let start = Instant::now();
        let reason = run(
            &[
                "exec sleep 60",
                "echo step 1; echo no such thing >&2; exit 3",
            ],
            &["exec sleep 60"],
            Duration::from_secs(50),
        );
        assert_eq!(
            reason,
            Err("ended with exit code 3: no such thing".to_owned())
        );
        assert!(start.elapsed() < Duration::from_secs(20));
    }

    #[test]
    fn a_failed_server_ends_the_ranks_at_once_and_one_that_has_ended_well_does_not() {
        let start = Instant::now();
        let limit = Duration::from_secs(50);
        let reason = run(&["exec sleep 60"], &["echo no port; exit 4"], limit);
        assert_eq!(
            reason,
            Err("a server ended with exit code 4: no port".to_owned())
        );
        assert!(start.elapsed() < Duration::from_secs(20));
        assert_eq!(run(&["sleep 0.3"], &["true"], limit), Ok(()));
    }

    #[test]
    fn a_run_past_its_deadline_is_ended() {
        let reason = run(&["exec sleep 60"], &[], Duration::from_millis(100)).unwrap_err();
        assert!(reason.contains("did not end within"), "{reason}");
    }

    #[test]
    fn a_launchers_own_words_are_not_the_reason() {
        assert_eq!(
            last_line(complaint(
                "ImportError: x\n-------\nPrimary job terminated\n-------\n"
            )),
            "ImportError: x"
        );
        assert_eq!(last_line(complaint("\n-------\nno slots\n")), "no slots");
        assert_eq!(
            last_line(complaint("OSError: x\nsrun: error: n1: task 0: Exited\n")),
            "OSError: x"
        );
    }

    #[test]
    fn a_run_that_fails_is_made_once_more() {
        let mut made = 0;
        let reason = EASY.watched::<()>("-", |_| {
            made += 1;
            Err("no".to_owned())
        });
        assert_eq!((reason.err().as_deref(), made), (Some("no"), 2));
    }

    #[test]
    fn an_undisturbed_run_is_made_once_and_tells_the_limit() {
        let seen = EASY.watched("-", |attempt| Ok((attempt, None))).unwrap();
        assert_eq!((seen.result, seen.is_disturbed), (1, false));
        assert_eq!(seen.quiet.limit_cores, Some(1e9));
    }

    #[test]
    fn a_disturbed_run_is_repeated_as_often_as_allowed_and_marked() {
        let strict = Patience {
            limit_cores: -1.0,
            attempts: 2,
            patience: Duration::ZERO,
        };
        let seen = strict.watched("-", |attempt| Ok((attempt, None))).unwrap();
        assert_eq!((seen.result, seen.is_disturbed), (2, true));
    }
}
