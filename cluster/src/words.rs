//! Checks of a command of the trainer before its ranks start.
//!
//! In: a trainer, the words of a command, a number of ranks. Out: a refusal, or a warning.
//! Invariant: the trainer itself judges the words, since a program may have custom flags.

use std::path::Path;
use std::process::{Command as Process, Stdio};

use crate::failure::{Failure, Outcome};
use crate::mpirun;

/// Refuses words that the trainer would refuse on so many ranks. Returns a warning if a training
/// finds no data here. A trainer that cannot be started here refuses nothing.
///
/// # Errors
/// A command line that the trainer rejects, in its words.
pub fn check(trainer: &Path, words: &[String], ranks: usize) -> Outcome<Option<String>> {
    let trains = words.first().is_some_and(|command| command == "train");
    let mut command = Process::new(trainer);
    if trains {
        command.arg("config").args(&words[1..]);
    } else {
        // clap reads the flags before --help.
        command.args(words).arg("--help");
    }
    mpirun::forget_surrounding_job(&mut command);
    command.env("SLURM_NTASKS", ranks.to_string());
    let Ok(output) = command.stdin(Stdio::null()).output() else {
        return Ok(None);
    };
    if output.status.code() == Some(2) {
        let text = String::from_utf8_lossy(&output.stderr);
        let lines = text.lines().map(str::trim);
        let lines = lines.take_while(|line| !line.starts_with("Usage:"));
        let lines: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
        let problem = lines.join("; ");
        let problem = problem.trim_start_matches("error: ").to_owned();
        return Err(Failure::Usage(problem));
    }
    let config = String::from_utf8_lossy(&output.stdout);
    let config = config.parse::<toml::Table>().unwrap_or_default();
    let data = config.get("data");
    let folder = data.and_then(|data| data.get("data-dir")?.as_str());
    let downloads = data.and_then(|data| data.get("download")?.as_bool()) == Some(true);
    Ok(folder
        .filter(|folder| !downloads && !Path::new(folder).exists())
        .map(|folder| format!("--data-dir: {folder} does not exist on this machine")))
}
