//! `cargo xtask book --pictures`: pictures of the report, `watch`, TensorBoard and a trace.
//!
//! In: the trainer, a headless Chromium, TensorBoard, records in `docs/results`. Out: files in
//! `docs/figures`. Invariant: a picture is committed, so the book builds without these programs.

use std::ffi::OsStr;
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use cluster::failure::{Outcome, failed};
use cluster::process;

use super::drawing;
use crate::at;
use crate::cargo;
use crate::report_suite::{self, BROWSER_FLAGS};

const FIGURES: &str = "docs/figures";
const RESULTS: &str = "docs/results/2026-11-24-xeon-amx";
const MOST_BYTES: u64 = 150_000;
/// Longest start of TensorBoard.
const START: Duration = Duration::from_secs(60);

/// The run of the pictures: short, but with a curve.
const TRAIN: &str = "train --model resnet8 --shapes-train 4000 --shapes-test 500 --epochs 8 \
    --global-batch-size 64 --threads 1 --log-every-steps 10 --seed 1";

/// Step of the trace that is drawn.
const STEP: usize = 100;

/// Figures of the report: the study, the figure, and its name in the book.
const OF_STUDIES: [(&str, &str, &str); 3] = [
    (
        "accuracy",
        "comparison-accuracy-by-time.svg",
        "accuracy.svg",
    ),
    ("two-hosts.tar.gz", "side-by-side.svg", "two-hosts.svg"),
    ("buckets.tar.gz", "side-by-side.svg", "buckets.svg"),
];

/// Makes all pictures.
pub(super) fn run(trainer: &Path) -> Outcome {
    let folder = cargo::target_folder().join("pictures");
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(at(&folder))?;
    }
    fs::create_dir_all(&folder).map_err(at(&folder))?;
    let root = cargo::root();
    let figures = root.join(FIGURES);
    for (study, figure, name) in OF_STUDIES {
        let study = unpacked(&root.join(RESULTS).join(study), &folder)?;
        let report = folder.join(name);
        start(
            trainer,
            &[
                OsStr::new("report"),
                study.as_os_str(),
                OsStr::new("--output"),
                report.as_os_str(),
            ],
            &folder,
        )?;
        let from = report.join("figures").join(figure);
        fs::copy(&from, figures.join(name)).map_err(at(&from))?;
    }
    let words = TRAIN
        .split_whitespace()
        .chain("--output-dir run --tensorboard run/events --trace trace.json".split_whitespace());
    let ranks = ["launch", "-n", "2", "--"].into_iter().chain(words);
    start(trainer, &ranks.map(OsStr::new).collect::<Vec<_>>(), &folder)?;
    let words = ["report", "run", "trace.json", "--output", "report"].map(OsStr::new);
    start(trainer, &words, &folder)?;
    let page = format!("file://{}", folder.join("report/index.html").display());
    photograph(&page, "report.png", (1280, 1150), &[])?;
    let trace = folder.join("trace.json");
    let trace = fs::read_to_string(&trace).map_err(at(&trace))?;
    let path = figures.join("trace.svg");
    fs::write(&path, drawing::step_of_trace(&trace, STEP)?).map_err(at(&path))?;
    let mut watch = Command::new(trainer);
    watch.args(["watch", "run", "--once"]).current_dir(&folder);
    let text = process::ask_for(&mut watch)?;
    let path = figures.join("watch.svg");
    fs::write(&path, drawing::terminal("trainer watch", &text)).map_err(at(&path))?;
    tensorboard(&folder)
}

fn start(trainer: &Path, words: &[&OsStr], folder: &Path) -> Outcome {
    let mut command = Command::new(trainer);
    command.args(words).current_dir(folder);
    process::run(command)
}

/// Returns the folder of a study, which may be an archive.
fn unpacked(study: &Path, folder: &Path) -> Outcome<PathBuf> {
    let name = study
        .file_name()
        .and_then(OsStr::to_str)
        .unwrap_or_default();
    let Some(name) = name.strip_suffix(".tar.gz") else {
        return Ok(study.to_owned());
    };
    let mut unpack = Command::new("tar");
    unpack.arg("xzf").arg(study).arg("-C").arg(folder);
    process::run(unpack)?;
    Ok(folder.join(name))
}

fn photograph(page: &str, name: &str, size: (u32, u32), flags: &[&str]) -> Outcome {
    let picture = cargo::root().join(FIGURES).join(name);
    let browser = report_suite::browser()
        .ok_or_else(|| failed!("no Chromium. Install it with `cargo xtask test --only report`."))?;
    let mut command = Command::new(browser);
    command.args(BROWSER_FLAGS.split_whitespace()).args(flags);
    command.arg(format!("--window-size={},{}", size.0, size.1));
    command.arg(format!("--screenshot={}", picture.display()));
    command.arg(page).stderr(Stdio::null());
    process::run(command)?;
    let bytes = fs::metadata(&picture).map_err(at(&picture))?.len();
    match bytes <= MOST_BYTES {
        true => Ok(()),
        false => Err(failed!(
            "{name}: {bytes} bytes (expected at most {MOST_BYTES}). Use a smaller window."
        )),
    }
}

/// Photographs TensorBoard with the events of the run.
fn tensorboard(folder: &Path) -> Outcome {
    let python = report_suite::python(true).map_err(|stop| failed!("{stop:?}"))?;
    let free = TcpListener::bind("127.0.0.1:0").map_err(at(folder))?;
    let address = free.local_addr().map_err(at(folder))?;
    drop(free);
    let mut command = Command::new(python);
    command.args([
        "-m",
        "tensorboard.main",
        "--host",
        "127.0.0.1",
        "--logdir",
        "run/events",
    ]);
    command
        .args(["--port", &address.port().to_string()])
        .current_dir(folder);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut server = command
        .spawn()
        .map_err(|error| process::cannot_start(&command, &error))?;
    let begin = Instant::now();
    while TcpStream::connect(address).is_err() && begin.elapsed() < START {
        sleep(Duration::from_millis(200));
    }
    let page = format!("http://{address}/#scalars&tagFilter=loss|accuracy");
    let done = photograph(
        &page,
        "tensorboard.png",
        (1040, 640),
        &["--virtual-time-budget=30000"],
    );
    let stopped = server
        .kill()
        .and_then(|()| server.wait())
        .map_err(at(folder));
    done.and(stopped.map(drop))
}
