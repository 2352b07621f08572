//! TensorBoard, which reads the event files of `trainer train --tensorboard`.
//!
//! In: a Python. Out: an environment with TensorBoard, made once; a verdict on event files.
//! Invariant: a missing tool skips a check and never fails it.

use std::path::{Path, PathBuf};
use std::process::Command;

use cluster::{probe, process};

use crate::cargo;
use crate::suite::{Checked, Ended, Stop, Suite};

const REQUIREMENTS: [&str; 2] = ["tensorboard==2.21.0", "pillow==13.0.0"];
const IMPORTS: &str = "import PIL, tensorboard.backend.event_processing.event_accumulator";
const SCRIPT: &str = "xtask/src/event_files.py";

/// Seconds for an installation over a slow line.
const LIMIT_S: u64 = 900;

/// Returns a Python that can import TensorBoard; installs it into `target/tensorboard` if allowed.
pub(crate) fn python(may_install: bool) -> Checked<PathBuf> {
    let environment = cargo::target_folder().join("tensorboard");
    let python = environment.join("bin/python");
    if process::answer(&python, &["-c", IMPORTS]).is_some() {
        return Ok(python);
    }
    let skipped = |text: &str| Stop::Skipped(text.to_owned());
    if !may_install {
        let text = "no TensorBoard; --all and --only report install it if allowed";
        return Err(skipped(text));
    }
    let base = probe::program("python3").ok_or_else(|| skipped("no python3"))?;
    let log = environment.with_extension("txt");
    let mut make = Command::new(base);
    make.args(["-m", "venv"]).arg(&environment);
    Ended::run(make, &log, LIMIT_S)?.expect_success()?;
    let mut install = Command::new(&python);
    install.args(["-m", "pip", "install", "--quiet"]);
    install
        .arg("--disable-pip-version-check")
        .args(REQUIREMENTS);
    Ended::run(install, &log, LIMIT_S)?.expect_success()?;
    Ok(python)
}

/// Compares event files of every `every` steps with the metrics of their run.
pub(crate) fn judge(
    suite: &Suite,
    python: &Path,
    events: &Path,
    run: &Path,
    every: Option<u64>,
) -> Checked {
    let mut command = Command::new(python);
    command.arg(cargo::root().join(SCRIPT)).arg(events);
    command.arg(run.join("metrics.jsonl"));
    command.args(every.map(|every| every.to_string()));
    suite
        .finish(command, "event-files", LIMIT_S)?
        .expect_success()
}
