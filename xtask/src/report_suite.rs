//! Checks of `trainer report` in a browser, and of event files in TensorBoard.
//!
//! In: the trainer, a headless Chromium, a TensorBoard. Out: one line for each check.
//! Invariant: the browser opens the page from its file, as a user does. Only the checks of the
//! width and of the axes put the page into a frame: a window cannot be as narrow as a telephone,
//! and the page itself has no script.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use cluster::options::Installing;
use cluster::probe;

use crate::at;
use crate::cargo::{self, Mpi};
use crate::setup::{self, Need};
use crate::stages;
use crate::suite::{self, Check, Checked, Ended, Stop, Suite, expect};

const BROWSERS: [&str; 4] = [
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
];

/// No network, no first-run pages, no process after the end.
pub(crate) const BROWSER_FLAGS: &str = "--headless --no-sandbox --disable-gpu --disable-quic \
    --disable-dev-shm-usage --no-first-run --disable-background-networking \
    --disable-component-update --disable-sync --hide-scrollbars --allow-file-access-from-files \
    --enable-logging=stderr --v=0";

/// An image of the background only has fewer bytes.
const LEAST_IMAGE_BYTES: u64 = 20_000;

const CHECKS: [Check; 7] = [
    (
        "a report opens at 1280 pixels without console messages and shows something",
        |suite| is_seen(suite, "light", &[]),
    ),
    (
        "a report opens on a dark screen without console messages and shows something",
        |suite| is_seen(suite, "dark", &["--blink-settings=preferredColorScheme=0"]),
    ),
    (
        "a report is no wider than windows of 400, 800, 1200 and 1920 pixels",
        |suite| {
            [400, 800, 1200, 1920]
                .into_iter()
                .try_for_each(|width| fits(suite, width))
        },
    ),
    (
        "the curves of a report are shown over epochs, and over time if the reader chooses it",
        |suite| {
            shows_curves(suite, "epochs", 0)?;
            shows_curves(suite, "time", 2)
        },
    ),
    ("a report prints", |suite| {
        let paper = suite.folder.join("report.pdf");
        let flag = format!("--print-to-pdf={}", paper.display());
        open(suite, "paper", &page(suite), &[&flag])?;
        at_least(&paper, LEAST_IMAGE_BYTES)
    }),
    (
        "TensorBoard reads the curves, gradients and images of a run that lost its last epoch and resumed",
        shows_events,
    ),
    (
        "TensorBoard reads curves, gradients and images of every third step of a rank that its device updates",
        shows_every_third_step,
    ),
];

const TRAIN: &str = "train --model resnet8 --shapes-train 64 --shapes-test 20 \
    --global-batch-size 32 --epochs 2 --threads 1";

pub(crate) fn browser() -> Option<PathBuf> {
    BROWSERS.into_iter().find_map(probe::program)
}

/// Trains, makes a report, and runs the checks; installs missing tools if `may_install`.
pub(crate) fn run(trainer: &Path, only: Option<&str>, may_install: bool) -> Checked {
    if browser().is_none() && may_install {
        setup::provide(&[Need::Browser], Installing::default());
    }
    if browser().is_none() {
        let text = "no chromium; --all and --only report install it if allowed";
        return Err(Stop::Skipped(text.to_owned()));
    }
    if let Err(Stop::Failed(text)) = python(may_install) {
        println!("{text}");
    }
    let suite = Suite::new("report-suite", trainer, None)?;
    let events = suite.folder.join("events");
    let words = ["--log-every-steps", "1", "--tensorboard"];
    train(&suite, "run", |command| {
        command.args(words).arg(&events);
    })?;
    let mut report = Command::new(trainer);
    report.arg("report").arg(suite.folder.join("run"));
    report.args(["--target-accuracy", "0.01", "--output"]);
    report.arg(suite.folder.join("report"));
    suite.succeed(report, "report")?;
    Ok(suite::run(suite, only, &CHECKS)?)
}

/// Trains into a folder.
fn train(suite: &Suite, name: &str, add: impl FnOnce(&mut Command)) -> Checked {
    let mut command = Command::new(&suite.trainer);
    command.args(TRAIN.split_whitespace());
    command.arg("--output-dir").arg(suite.folder.join(name));
    add(&mut command);
    suite.succeed(command, name).map(drop)
}

/// Removes the last checkpoint and resumes, which writes the steps of the last epoch again.
fn shows_events(suite: &Suite) -> Checked {
    let python = python(false)?;
    let run = suite.folder.join("run");
    let last = run.join("checkpoints/step-00000004");
    fs::remove_dir_all(&last).map_err(at(&last))?;
    let mut resume = Command::new(&suite.trainer);
    resume.args(["train", "--resume", "--output-dir"]).arg(&run);
    suite.succeed(resume, "resume")?;
    let events = suite.folder.join("events");
    let files = fs::read_dir(&events).map_or(0, Iterator::count);
    let text = format!("expected an event file of each session, got {files}");
    expect(files >= 2, text)?;
    judge(suite, &python, &events, &run, None)
}

fn shows_every_third_step(suite: &Suite) -> Checked {
    let python = python(false)?;
    let events = suite.folder.join("third-events");
    let words = ["--device", "flex", "--update", "device"];
    train(suite, "third", |command| {
        command.args(words).args(["--tensorboard-every", "3"]);
        command.arg("--tensorboard").arg(&events);
    })?;
    judge(
        suite,
        &python,
        &events,
        &suite.folder.join("third"),
        Some(3),
    )
}

/// Returns a Python that can import TensorBoard; installs it into `target/tensorboard` if allowed.
pub(crate) fn python(may_install: bool) -> Checked<PathBuf> {
    stages::script("tensorboard", may_install, Mpi::Without, None)?;
    Ok(cargo::target_folder().join("tensorboard/bin/python"))
}

/// Compares event files of every `every` steps with the metrics of their run.
fn judge(suite: &Suite, python: &Path, events: &Path, run: &Path, every: Option<u64>) -> Checked {
    let mut command = Command::new(python);
    let script = cargo::root().join("xtask/src/event_files.py");
    command.arg(script).arg(events);
    command.arg(run.join("metrics.jsonl"));
    command.args(every.map(|every| every.to_string()));
    suite.succeed(command, "event-files").map(drop)
}

/// Opens a page in the browser and expects no console message.
fn open(suite: &Suite, name: &str, page: &Path, flags: &[&str]) -> Checked<Ended> {
    let mut command = Command::new(browser().ok_or_else(|| "no chromium".to_owned())?);
    let profile = suite.folder.join(format!("profile-{name}"));
    command.args(BROWSER_FLAGS.split_whitespace()).args(flags);
    command.arg(format!("--user-data-dir={}", profile.display()));
    command.arg(format!("file://{}", page.display()));
    let ended = suite.succeed(command, name)?;
    let messages = console(ended.text());
    let expected = format!("no message on the console, not {messages:?}");
    ended.expect(messages.is_empty(), &expected)?;
    Ok(ended)
}

fn page(suite: &Suite) -> PathBuf {
    suite.folder.join("report/index.html")
}

fn is_seen(suite: &Suite, name: &str, flags: &[&str]) -> Checked {
    let image = suite.folder.join(format!("{name}.png"));
    let shot = format!("--screenshot={}", image.display());
    let flags = [flags, &["--window-size=1280,2000", &shot]].concat();
    open(suite, name, &page(suite), &flags)?;
    at_least(&image, LEAST_IMAGE_BYTES)
}

fn fits(suite: &Suite, width: u32) -> Checked {
    let script = "this.contentDocument.documentElement.scrollWidth";
    let found = framed(suite, &format!("frame-{width}"), width, script)?;
    expect(
        found.parse().is_ok_and(|found: u32| found <= width),
        format!("expected content of at most {width} pixels, got {found:?}"),
    )
}

/// Chooses a horizontal axis and expects the figures over that axis only.
fn shows_curves(suite: &Suite, axis: &str, number: usize) -> Checked {
    let script = format!(
        "(this.contentDocument.querySelector('#curves .by-{number}').click(), \
         [...this.contentDocument.querySelectorAll('#curves figure')] \
         .filter(one => one.offsetParent).map(one => one.id).join(' '))"
    );
    let shown = framed(suite, &format!("curves-{number}"), 1200, &script)?;
    let figures = ["loss", "accuracy", "learning-rate"];
    let expected = figures.map(|figure| format!("figure-{figure}-by-{axis}"));
    expect(
        shown == expected.join(" "),
        format!("expected {expected:?}, got {shown}"),
    )
}

/// Puts the page into a frame and returns the value of an expression, whose `this` is the frame.
fn framed(suite: &Suite, name: &str, width: u32, expression: &str) -> Checked<String> {
    let frame = suite.folder.join(format!("{name}.html"));
    let text = format!(
        "<!doctype html><iframe id=\"f\" src=\"report/index.html\" \
         style=\"border:0;width:{width}px;height:900px\" \
         onload=\"document.body.dataset.value = {expression}\"></iframe>"
    );
    fs::write(&frame, text).map_err(at(&frame))?;
    let flags = ["--window-size=1400,1000", "--dump-dom"];
    let ended = open(suite, name, &frame, &flags)?;
    let value = value_in(ended.text()).map(str::to_owned);
    Ok(value.ok_or_else(|| format!("{name}: expected a value of the page, got none"))?)
}

/// Returns the browser's lines about console messages; each is an error, as the page prints none.
fn console(text: &str) -> Vec<&str> {
    let lines = text.lines();
    lines.filter(|line| line.contains(":CONSOLE")).collect()
}

fn value_in(text: &str) -> Option<&str> {
    let (_, after) = text.split_once("data-value=\"")?;
    Some(after.split_once('"')?.0)
}

fn at_least(file: &Path, bytes: u64) -> Checked {
    let length = fs::metadata(file).map_err(at(file))?.len();
    let file = file.display();
    expect(
        length >= bytes,
        format!("{file}: expected at least {bytes} bytes, got {length}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn console_messages_are_found() {
        let text = "[1:2:1121/1:ERROR:dbus/bus.cc:406] no bus\n[1:2:1121/2:INFO:CONSOLE(1)] \"x is not defined\", source: y\n";
        assert_eq!(console(text).len(), 1);
        assert!(console("12 bytes written to file a.png\n").is_empty());
    }

    #[test]
    fn the_value_is_read_from_the_frame() {
        assert_eq!(value_in("<body data-value=\"400\"><iframe>"), Some("400"));
        assert_eq!(value_in("<body><iframe>"), None);
    }
}
