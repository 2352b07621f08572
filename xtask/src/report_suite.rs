//! `trainer report` in a real browser: the page of a short run, wide and narrow, light, dark and on paper. The run's event files in the
//! real TensorBoard.
//!
//! In: the trainer, a headless Chromium, a TensorBoard. Out: one line for each check. Invariant: the page itself is opened as a user opens it, from
//! its file; only the check of its width puts it into a frame, since a window cannot be as narrow as a telephone.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::packages::Need;
use crate::setup;
use crate::suite::{self, Check, Ended, check};
use crate::tensorboard;
use cluster::failure::{Failure, Outcome};
use cluster::options::Installing;
use cluster::probe;

/// Names of the browser on different systems.
const BROWSERS: [&str; 4] = [
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
];

/// Without network, first-run pages, or anything that outlives the call.
const QUIETLY: [&str; 13] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--allow-file-access-from-files",
    "--enable-logging=stderr",
    "--v=0",
];

const LIMIT_S: u64 = 120;

/// An image of nothing but background compresses to less than this.
const LEAST_IMAGE_BYTES: u64 = 20_000;

struct Suite {
    folder: PathBuf,
    browser: PathBuf,
    trainer: PathBuf,
    /// One that can import TensorBoard, where that can be had.
    python: PathBuf,
}

const CHECKS: [Check<Suite>; 4] = [
    check(
        "a report opens at 1280 pixels without a word on the console and shows something",
        |suite| suite.is_seen("light", 1280, &[]),
    ),
    check(
        "a report opens on a dark screen without a word on the console and shows something",
        |suite| suite.is_seen("dark", 1280, &["--blink-settings=preferredColorScheme=0"]),
    ),
    check(
        "a report is no wider than windows of 1280 and 400 pixels",
        |suite| {
            [1280, 400]
                .into_iter()
                .try_for_each(|width| suite.fits(width))
        },
    ),
    check("a report prints", Suite::prints),
];

const OF_EVENTS: [Check<Suite>; 2] = [
    check(
        "TensorBoard reads the curves, gradients and images of a run that lost its last epoch and went on",
        Suite::shows_events,
    ),
    check(
        "TensorBoard reads curves, gradients and images of every third step of a rank that its device updates",
        Suite::shows_every_third_step,
    ),
];

/// A short run.
const TRAIN: &str = "train --model resnet8 --shapes-train 64 --shapes-test 20 --global-batch-size 32 --epochs 2 --threads 1";

/// Why the suite cannot run here; a missing browser is installed where that was asked for and is allowed.
pub(crate) fn lacking(installing: Installing, may_provide: bool) -> Option<String> {
    if browser().is_none() && may_provide {
        setup::provide(&[Need::Browser], installing);
    }
    browser()
        .is_none()
        .then(|| "no chromium; --all and --only report install it where that is allowed".to_owned())
}

fn browser() -> Option<PathBuf> {
    BROWSERS.into_iter().find_map(probe::program)
}

/// Makes a report of a short run and looks at it.
pub(crate) fn run(trainer: &Path, only: Option<&str>, may_provide: bool) -> Outcome {
    let browser = browser().ok_or_else(|| Failure::Failed("no chromium".to_owned()))?;
    let folder = suite::empty_folder("report-suite")?;
    let python = tensorboard::python(may_provide);
    if let Err(reason) = &python {
        OF_EVENTS
            .iter()
            .for_each(|check| println!("skipped: {reason}: {}", check.claim));
    }
    let of_events = if python.is_ok() { &OF_EVENTS[..] } else { &[] };
    let suite = Suite {
        folder,
        browser,
        trainer: trainer.to_owned(),
        python: python.unwrap_or_default(),
    };
    suite.make().map_err(Failure::Failed)?;
    let failed = suite::run_all(&suite, true, only, CHECKS.iter().chain(of_events));
    suite::conclude(&suite.folder, &failed)
}

impl Suite {
    /// Trains and reports.
    fn make(&self) -> Result<(), String> {
        let run = self.folder.join("run");
        let mut train = Command::new(&self.trainer);
        train
            .args(TRAIN.split(' '))
            .args(["--log-every-steps", "1", "--output-dir"])
            .arg(&run);
        train.arg("--tensorboard").arg(self.folder.join("events"));
        Ended::of(train, &self.folder.join("train.txt"), LIMIT_S)?.expect_success()?;
        let mut report = Command::new(&self.trainer);
        report
            .arg("report")
            .arg(&run)
            .args(["--target-accuracy", "0.01", "--output"])
            .arg(self.folder.join("report"));
        Ended::of(report, &self.folder.join("report.txt"), LIMIT_S)?.expect_success()
    }

    /// Takes the last checkpoint away and goes on: the steps of the last epoch are written again.
    fn shows_events(&self) -> Result<(), String> {
        let run = self.folder.join("run");
        let last = run.join("checkpoints/step-00000004");
        fs::remove_dir_all(&last).map_err(|error| format!("{}: {error}", last.display()))?;
        let mut resume = Command::new(&self.trainer);
        resume.args(["train", "--resume", "--output-dir"]).arg(&run);
        Ended::of(resume, &self.folder.join("resume.txt"), LIMIT_S)?.expect_success()?;
        let files = fs::read_dir(self.folder.join("events")).map_or(0, Iterator::count);
        if files < 2 {
            return Err(format!(
                "expected an event file of each session, got {files}"
            ));
        }
        let files = (self.folder.join("events"), run.join("metrics.jsonl"));
        tensorboard::judge(&self.python, (&files.0, &files.1), None, &self.folder)
    }

    fn shows_every_third_step(&self) -> Result<(), String> {
        let (run, events) = (self.folder.join("third"), self.folder.join("third-events"));
        let mut train = Command::new(&self.trainer);
        train.args(TRAIN.split(' ')).args([
            "--device",
            "flex",
            "--update",
            "device",
            "--tensorboard-every",
            "3",
        ]);
        train
            .arg("--output-dir")
            .arg(&run)
            .arg("--tensorboard")
            .arg(&events);
        Ended::of(train, &self.folder.join("third.txt"), LIMIT_S)?.expect_success()?;
        tensorboard::judge(
            &self.python,
            (&events, &run.join("metrics.jsonl")),
            Some(3),
            &self.folder,
        )
    }

    /// Opens a page with further flags; what the browser wrote.
    fn open(&self, name: &str, page: &Path, flags: &[String]) -> Result<Ended, String> {
        let mut command = Command::new(&self.browser);
        let profile = self.folder.join(format!("profile-{name}"));
        command
            .args(QUIETLY)
            .arg(format!("--user-data-dir={}", profile.display()))
            .args(flags);
        command.arg(format!("file://{}", page.display()));
        let ended = Ended::of(command, &self.folder.join(format!("{name}.txt")), LIMIT_S)?;
        ended.expect_success()?;
        let words = console(&ended.finished.text);
        ended.expect(
            words.is_empty(),
            &format!("no word on the console, not {words:?}"),
        )?;
        Ok(ended)
    }

    fn page(&self) -> PathBuf {
        self.folder.join("report/index.html")
    }

    fn is_seen(&self, name: &str, width: u32, flags: &[&str]) -> Result<(), String> {
        let image = self.folder.join(format!("{name}.png"));
        let mut flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        flags.extend([
            format!("--window-size={width},2000"),
            format!("--screenshot={}", image.display()),
        ]);
        self.open(name, &self.page(), &flags)?;
        at_least(&image, LEAST_IMAGE_BYTES)
    }

    /// Puts the page into a frame of this width, whose own page says how wide the content is.
    fn fits(&self, width: u32) -> Result<(), String> {
        let frame = self.folder.join(format!("frame-{width}.html"));
        let text = format!(
            "<!doctype html><iframe id=\"f\" src=\"report/index.html\" style=\"border:0;width:{width}px;height:900px\" \
             onload=\"document.body.dataset.width = this.contentDocument.documentElement.scrollWidth\"></iframe>"
        );
        fs::write(&frame, text).map_err(|error| format!("{}: {error}", frame.display()))?;
        let name = format!("frame-{width}");
        let ended = self.open(
            &name,
            &frame,
            &[
                "--window-size=1400,1000".to_owned(),
                "--dump-dom".to_owned(),
            ],
        )?;
        let found = width_in(&ended.finished.text);
        ended.expect(
            found.is_some_and(|found| found <= width),
            &format!("content of at most {width} pixels, not {found:?}"),
        )
    }

    fn prints(&self) -> Result<(), String> {
        let paper = self.folder.join("report.pdf");
        self.open(
            "paper",
            &self.page(),
            &[format!("--print-to-pdf={}", paper.display())],
        )?;
        at_least(&paper, LEAST_IMAGE_BYTES)
    }
}

/// The lines in which a page speaks on the console; ours never does, so that each is an error.
fn console(text: &str) -> Vec<&str> {
    text.lines()
        .filter(|line| line.contains(":CONSOLE"))
        .collect()
}

/// What the frame's page said.
fn width_in(text: &str) -> Option<u32> {
    let (_, after) = text.split_once("data-width=\"")?;
    after.split_once('"')?.0.parse().ok()
}

fn at_least(file: &Path, bytes: u64) -> Result<(), String> {
    let length = fs::metadata(file)
        .map_err(|error| format!("{}: {error}", file.display()))?
        .len();
    if length >= bytes {
        Ok(())
    } else {
        Err(format!(
            "{}: expected at least {bytes} bytes, got {length}",
            file.display()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_page_says_on_the_console_is_found() {
        let text = "[1:2:1121/1:ERROR:dbus/bus.cc:406] no bus\n[1:2:1121/2:INFO:CONSOLE(1)] \"x is not defined\", source: y\n";
        assert_eq!(console(text).len(), 1);
        assert!(console("12 bytes written to file a.png\n").is_empty());
    }

    #[test]
    fn the_width_is_what_the_frame_said() {
        assert_eq!(width_in("<body data-width=\"400\"><iframe>"), Some(400));
        assert_eq!(width_in("<body><iframe>"), None);
    }
}
