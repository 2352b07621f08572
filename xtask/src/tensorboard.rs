//! The real TensorBoard, as the judge of what `trainer train --tensorboard` writes.
//!
//! In: a folder of the build, a Python. Out: an environment with TensorBoard, made once; its verdict on event files.
//! Invariant: what cannot be had is a reason, never a failure.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cargo;
use crate::suite::Ended;
use cluster::{probe, process};

const REQUIREMENTS: [&str; 2] = ["tensorboard==2.21.0", "pillow==13.0.0"];
const IMPORTS: &str = "import PIL, tensorboard.backend.event_processing.event_accumulator";
const JUDGE: &str = include_str!("event_files.py");

/// Of one program: wheels over a slow line.
const LIMIT_S: u64 = 900;

/// A Python that can import TensorBoard; it is installed into an environment of the build's folder, where it `may_install`.
pub(crate) fn python(may_install: bool) -> Result<PathBuf, String> {
    let environment = cargo::target_folder().join("tensorboard");
    let python = environment.join("bin/python");
    let is_usable = || process::answer(&python, &["-c", IMPORTS]).is_some();
    if is_usable() {
        return Ok(python);
    }
    if !may_install {
        return Err(
            "no TensorBoard; --all and --only report install it where that is allowed".to_owned(),
        );
    }
    let base = probe::program("python3").ok_or("no TensorBoard, as there is no python3")?;
    println!("installing TensorBoard into {}", environment.display());
    let step = |mut command: Command, words: &[&str]| {
        command.args(words);
        Ended::of(command, &environment.with_extension("txt"), LIMIT_S)?.expect_success()
    };
    let mut make = Command::new(base);
    make.args(["-m", "venv"]).arg(&environment);
    step(make, &[])?;
    let pip = || {
        let mut pip = Command::new(&python);
        pip.args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
        ]);
        pip
    };
    step(pip(), &REQUIREMENTS)?;
    if is_usable() {
        Ok(python)
    } else {
        Err(format!("TensorBoard is installed, but `{IMPORTS}` fails"))
    }
}

/// Holds the event files in a directory, written `every` so many steps, against the metrics of their run.
pub(crate) fn judge(
    python: &Path,
    (events, metrics): (&Path, &Path),
    every: Option<u64>,
    folder: &Path,
) -> Result<(), String> {
    let script = folder.join("event_files.py");
    fs::write(&script, JUDGE).map_err(|error| format!("{}: {error}", script.display()))?;
    let mut command = Command::new(python);
    command
        .arg(&script)
        .arg(events)
        .arg(metrics)
        .args(every.map(|every| every.to_string()));
    Ended::of(command, &folder.join("event_files.txt"), LIMIT_S)?.expect_success()
}
