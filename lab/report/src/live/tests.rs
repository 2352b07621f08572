//! The page of runs in every state.

use super::*;
use crate::Refusal;
use records::{
    EpochRecord, Evaluation, LaunchFacts, Manifest, RankSeconds, RunProgress, Seconds, Summary,
};
use serde::Serialize;
use std::cell::Cell;
use std::fs;
use std::time::SystemTime;
use tempfile::TempDir;

fn write(folder: &TempDir, file: &str, value: &impl Serialize) {
    fs::write(
        folder.path().join(file),
        serde_json::to_string(value).unwrap(),
    )
    .unwrap();
}

fn rfc3339(seconds_ago: u64) -> String {
    humantime::format_rfc3339_seconds(SystemTime::now() - Duration::from_secs(seconds_ago))
        .to_string()
}

fn rfc3339_in(seconds: u64) -> String {
    humantime::format_rfc3339_seconds(SystemTime::now() + Duration::from_secs(seconds)).to_string()
}

fn progress(seconds_ago: u64) -> RunProgress {
    let rank = |rank, communication| RankSeconds {
        rank,
        node: "n1".to_owned(),
        num_steps: 10,
        forward: 1.0,
        backward: 1.0,
        communication,
        ..RankSeconds::default()
    };
    RunProgress {
        started: String::new(),
        written: rfc3339(seconds_ago),
        phase: "training".to_owned(),
        epoch: 2,
        epochs: 4,
        step: 25,
        step_in_epoch: 5,
        steps_per_epoch: 10,
        session_steps: 25,
        session_seconds: 50.0,
        global_batch_size: 64,
        loss: Some(0.5),
        top1: Some(0.75),
        learning_rate: 0.000_01,
        images_per_second: 123.4,
        seconds: Seconds {
            forward: 0.9,
            communication: 0.1,
            ..Seconds::default()
        },
        ranks: vec![rank(0, 0.0), rank(1, 2.0)],
    }
}

/// A run of two epochs of four, on 2 ranks.
fn run() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(
        folder.path().join("run.toml"),
        "[model]\nmodel = \"resnet20\"\n[data]\ndataset = \"shapes\"\n",
    )
    .unwrap();
    let launch = LaunchFacts {
        ranks: 2,
        threads_per_rank: 1,
        nodes: vec!["n1".to_owned()],
        ..LaunchFacts::default()
    };
    write(
        &folder,
        "manifest.json",
        &Manifest {
            launch,
            ..Manifest::default()
        },
    );
    let epoch = |epoch, loss, top1| EpochRecord {
        epoch,
        train_loss: Some(loss),
        train_top1: Some(top1),
        test: Some(Evaluation {
            loss: loss + 0.1,
            top1: Some(top1 - 0.1),
            ..Evaluation::default()
        }),
        images_per_second: 100.0,
        ..EpochRecord::default()
    };
    let lines = [epoch(0, 2.0, 0.3), epoch(1, 1.0, 0.6)]
        .map(|epoch| serde_json::to_string(&epoch).unwrap());
    fs::write(folder.path().join("metrics.jsonl"), lines.join("\n")).unwrap();
    folder
}

/// Writes the lock of a run on a machine, with a number of a process that lives on this one, and
/// holds it.
fn lock_of(folder: &TempDir, boot: &str) -> fs::File {
    let path = folder.path().join(".lock");
    fs::write(
        &path,
        format!(
            "process {} on n1 since 2026-01-01T00:00:00Z\nboot {boot}",
            std::process::id()
        ),
    )
    .unwrap();
    let file = fs::File::open(&path).unwrap();
    file.lock().unwrap();
    file
}

/// The lock of a run on this machine, held.
fn lock(folder: &TempDir) -> fs::File {
    lock_of(folder, &records::boot_id().unwrap())
}

/// Returns the summary of a finished run.
fn summary(started: String) -> Summary {
    let counts = Summary {
        epochs: 2,
        steps: 25,
        images: 1600,
        seconds_total: 50.0,
        ..Summary::default()
    };
    Summary {
        started,
        peak_memory_bytes: 1 << 20,
        ..counts
    }
}

/// The page at one look.
fn shown(folder: &TempDir) -> String {
    shown_within(folder, TEXT)
}

fn shown_within(folder: &TempDir, area: Rect) -> String {
    page(&seen_within(folder.path(), Duration::ZERO).unwrap(), area)
}

#[test]
fn a_running_runs_page_has_its_place_its_curves_its_ranks_and_the_time_left() {
    let folder = run();
    let _lock = lock(&folder);
    write(&folder, "progress.json", &progress(1));
    let page = shown(&folder);
    for expected in [
        "running: training",
        "resnet20 on shapes | 2 ranks of 1 thread on n1",
        "123.4 samples/s | exposed communication 10.0 %",
        "step 25: loss 0.5000 accuracy 75.0 % rate 1.0e-5",
        "epoch 2: test loss 1.1000 accuracy 50.00 %",
        "epoch 3 of 4, step 5 of 10, 30s left",
        " samples/s ",
        "50.0 %",
        "ranks, last epoch of this session, ms per step",
    ] {
        assert!(page.contains(expected), "{expected}\n{page}");
    }
    // Each rank's half of 64 images in 10 steps, of which 2 s were not waiting.
    assert_eq!(page.matches("160.0").count(), 2, "{page}");
}

#[test]
fn a_run_is_silent_dead_stopped_or_finished_as_its_files_say() {
    let folder = run();
    write(&folder, "progress.json", &progress(300));
    assert!(
        shown(&folder).contains("silent for 5m"),
        "{}",
        shown(&folder)
    );
    let held = lock(&folder);
    assert!(
        shown(&folder).contains("silent for 5m"),
        "{}",
        shown(&folder)
    );
    drop(held);
    assert!(
        shown(&folder).contains("dead: its process ended"),
        "{}",
        shown(&folder)
    );
    drop(lock_of(&folder, "another machine's"));
    assert!(
        shown(&folder).contains("silent for 5m"),
        "its lock may be kept there: {}",
        shown(&folder)
    );
    let stopped = Summary {
        stopped_early: true,
        ..summary(String::new())
    };
    write(&folder, "summary.json", &stopped);
    let page = shown(&folder);
    assert!(page.contains("stopped with a checkpoint"), "{page}");
    let directory = folder.path().display();
    let command = format!("launch -n 2 -- train --resume --output-dir {directory}` continues");
    let words: Vec<&str> = page.split_whitespace().collect();
    assert!(words.join(" ").contains(&command), "{page}");
    write(
        &folder,
        "summary.json",
        &Summary {
            steps: 0,
            ..stopped
        },
    );
    assert!(shown(&folder).contains("stopped before its first step, without a checkpoint"));
    write(&folder, "summary.json", &summary(String::new()));
    assert!(shown(&folder).contains("finished"));
}

#[test]
fn curves_differ_without_colours_and_a_terminal_of_24_rows_has_room_for_everything() {
    let folder = run();
    let _lock = lock(&folder);
    write(&folder, "progress.json", &progress(1));
    let warning = "warning: the file system of the output directory has no locks: two runs in it would not notice it";
    fs::write(
        folder.path().join("train.log"),
        format!("run      runs/a | 0.1.0\n{warning}\nthe last line\n"),
    )
    .unwrap();
    let page = shown_within(
        &folder,
        Rect {
            x: 0,
            y: 0,
            width: 80,
            height: 24,
        },
    );
    for expected in [
        "running: training",
        "123.4 samples/s",
        "step 25:",
        "epoch 2: test loss 1.1000 accuracy 50.00 % | highest 50.00 % in epoch 2",
        "30s left",
        "warning: the file system",
        "would not notice it",
        "the last line",
        "n1 ",
    ] {
        assert!(page.contains(expected), "{expected}\n{page}");
    }
    assert!(
        page.contains("loss ⠒ train • test") && !page.contains("fwd"),
        "{page}"
    );
}

#[test]
fn before_the_first_epoch_the_scores_of_the_steps_are_drawn() {
    let folder = run();
    let _lock = lock(&folder);
    fs::write(folder.path().join("metrics.jsonl"), "").unwrap();
    let log = "run  a\nepoch 1 step  10/100 | loss 2.2500 | acc 10.0 % | lr 0.1 |  5.0 ms (data) |   1,234 samples/s\n";
    fs::write(folder.path().join("train.log"), log).unwrap();
    let at_step = RunProgress {
        epoch: 0,
        step: 30,
        loss: Some(0.75),
        ..progress(1)
    };
    write(&folder, "progress.json", &at_step);
    let page = shown(&folder);
    for expected in ["│2.25 ", "│0.75 ", "│75 ", "│1,234", "step 10", "30│"] {
        assert!(page.contains(expected), "{expected}\n{page}");
    }
}

#[test]
fn the_phases_of_every_rank_fit_into_100_columns_and_the_key_to_quit_is_named() {
    let folder = run();
    write(&folder, "progress.json", &progress(1));
    let area = Rect { width: 100, ..TEXT };
    let page = shown_within(&folder, area);
    let mut lines = page.lines();
    let header = lines.find(|line| line.contains("waits")).unwrap();
    for phase in ["data", "fwd", "bwd", "comm", "opt"] {
        assert!(header.contains(phase), "{header}");
    }
    let mut buffer = Buffer::empty(area);
    view::key(area, &mut buffer);
    let last = (0..area.width).map(|x| buffer[(x, area.height - 1)].symbol());
    assert!(last.collect::<String>().contains(" q: quit "));
}

#[test]
fn a_run_is_waited_for_until_it_has_ended_or_the_program_ends() {
    let folder = run();
    let held = lock(&folder);
    write(&folder, "progress.json", &progress(1));
    let looks = Cell::new(0);
    assert!(!wait(folder.path(), || looks.replace(looks.get() + 1) == 2).unwrap());
    assert_eq!(looks.get(), 3);
    drop(held);
    assert!(!wait(folder.path(), || unreachable!("it is dead")).unwrap());
}

#[test]
fn a_run_is_running_while_its_files_change_whatever_its_clock_and_machine() {
    for written in [rfc3339(600), rfc3339_in(600)] {
        let folder = run();
        drop(lock_of(&folder, "another machine's"));
        let at = |step| RunProgress {
            written: written.clone(),
            step,
            ..progress(0)
        };
        let mut watched = Watched::default();
        let mut stage = |step| {
            write(&folder, "progress.json", &at(step));
            Live::read(folder.path(), &mut watched).unwrap().stage
        };
        assert!(
            matches!(stage(25), Stage::Silent(_)),
            "no change is seen yet"
        );
        assert!(matches!(stage(26), Stage::Running(_)));
        assert!(
            matches!(stage(26), Stage::Running(_)),
            "a step may take a while"
        );
    }
}

#[test]
fn a_resumed_run_is_not_taken_for_the_session_before_it() {
    let folder = run();
    let _lock = lock(&folder);
    write(&folder, "progress.json", &progress(300));
    write(&folder, "summary.json", &summary(rfc3339(300)));
    write(
        &folder,
        "manifest.json",
        &Manifest {
            started: rfc3339(10),
            ..Manifest::default()
        },
    );
    assert!(
        shown(&folder).contains("running: starting (written 1"),
        "{}",
        shown(&folder)
    );
}

#[test]
fn a_finished_run_that_was_resumed_without_work_is_shown_as_finished() {
    let folder = run();
    let options = "[schedule]\nepochs = 2\n";
    fs::write(folder.path().join("run.toml"), options).unwrap();
    let started = rfc3339(10);
    let manifest = Manifest {
        started: started.clone(),
        ..Manifest::default()
    };
    write(&folder, "manifest.json", &manifest);
    write(&folder, "summary.json", &summary(started));
    // progress.json is that of the session that trained.
    write(
        &folder,
        "progress.json",
        &RunProgress {
            started: rfc3339(900),
            ..progress(600)
        },
    );
    let page = shown(&folder);
    assert!(
        page.contains("finished") && page.contains("100 % | 2 of 2 epochs"),
        "{page}"
    );
    assert!(!page.contains("step 0"), "{page}");
}

#[test]
fn a_run_whose_files_were_copied_has_ended_as_its_summary_states() {
    let folder = run();
    let started = rfc3339(600);
    write(
        &folder,
        "manifest.json",
        &Manifest {
            started: started.clone(),
            ..Manifest::default()
        },
    );
    write(
        &folder,
        "progress.json",
        &RunProgress {
            started: started.clone(),
            ..progress(300)
        },
    );
    drop(lock(&folder));
    write(&folder, "summary.json", &summary(started));
    assert!(shown(&folder).contains("finished"), "{}", shown(&folder));
    write(&folder, "summary.json", &summary(rfc3339(900)));
    let page = shown(&folder);
    assert!(
        page.contains("dead: its process ended in training"),
        "{page}"
    );
}

#[test]
fn values_that_were_not_measured_are_shown_as_dashes() {
    let folder = run();
    // The epoch's record of a session that found all steps of the epoch completed.
    let idle = RankSeconds {
        num_steps: 0,
        ..RankSeconds::default()
    };
    let _lock = lock(&folder);
    let at_start = RunProgress {
        images_per_second: 0.0,
        seconds: Seconds::default(),
        ranks: vec![idle],
        ..progress(1)
    };
    write(&folder, "progress.json", &at_start);
    let mut lines = fs::read_to_string(folder.path().join("metrics.jsonl")).unwrap();
    let val = Some(Evaluation {
        top1: Some(0.7),
        ..Evaluation::default()
    });
    let unmeasured = EpochRecord {
        epoch: 2,
        val,
        ..EpochRecord::default()
    };
    lines.push_str(&format!(
        "\n{}",
        serde_json::to_string(&unmeasured).unwrap()
    ));
    fs::write(folder.path().join("metrics.jsonl"), lines).unwrap();
    let page = shown(&folder);
    for expected in [
        "- samples/s | exposed communication - %",
        "known after the first epoch",
        "│100.00│",
    ] {
        assert!(page.contains(expected), "{expected}\n{page}");
    }
    write(&folder, "summary.json", &summary(String::new()));
    assert!(
        shown(&folder).contains("100.0 samples/s | exposed communication - %"),
        "{}",
        shown(&folder)
    );
}

#[test]
fn a_run_of_a_task_without_classes_is_shown_with_its_task_and_its_metrics() {
    let folder = run();
    let options = "[model]\nfamily = \"unet\"\n[data]\ndataset = \"custom\"\n";
    fs::write(folder.path().join("run.toml"), options).unwrap();
    let scores = Evaluation {
        metrics: [("iou".to_owned(), 0.625)].into(),
        ..Evaluation::default()
    };
    let epoch = EpochRecord {
        test: Some(scores),
        ..EpochRecord::default()
    };
    write(&folder, "metrics.jsonl", &epoch);
    let page = shown(&folder);
    for expected in ["unet on custom | ", "iou 0.6250", "┌ iou "] {
        assert!(page.contains(expected), "{expected}\n{page}");
    }
    assert!(!page.contains("accuracy"), "{page}");
}

#[cfg(unix)]
#[test]
fn named_pipes_among_the_files_are_not_waited_for() {
    let folder = run();
    for file in [
        "run.toml",
        "manifest.json",
        "progress.json",
        "summary.json",
        "train.log",
        ".lock",
        "slurm-1.out",
    ] {
        let _ = fs::remove_file(folder.path().join(file));
        assert!(
            std::process::Command::new("mkfifo")
                .arg(folder.path().join(file))
                .status()
                .unwrap()
                .success()
        );
    }
    assert!(
        shown(&folder).contains("highest 50.00 % in epoch 2"),
        "{}",
        shown(&folder)
    );
    fs::rename(
        folder.path().join("run.toml"),
        folder.path().join("metrics.jsonl"),
    )
    .unwrap();
    let error = format!("{:#}", snapshot(folder.path(), CADENCE).unwrap_err());
    assert!(
        error.contains("metrics.jsonl: expected a regular file, got a folder, pipe or device"),
        "{error}"
    );
}

#[test]
fn alerts_are_the_warnings_and_errors_of_this_session_each_once() {
    let folder = run();
    write(&folder, "progress.json", &progress(1));
    let log = "run      runs/a | 0.1.0\nwarning: an old one\nrun      runs/a | 0.1.0\nepoch 00 done\nwarning: slow rank\nerror (rank 0): silent\n  rank 1: stopped\nx\n";
    fs::write(folder.path().join("train.log"), log).unwrap();
    let output = "run      runs/a | 0.1.0\nerror: of the session before\nrun      runs/a | 0.1.0\nwarning: slow rank\nerror: killed\n  rank 0: y\n";
    fs::write(folder.path().join("slurm-7.out"), output).unwrap();
    let live = Live::read(folder.path(), &mut Watched::default()).unwrap();
    assert_eq!(
        live.alerts,
        [
            "warning: slow rank",
            "error (rank 0): silent",
            "  rank 1: stopped",
            "error: killed",
            "  rank 0: y"
        ]
    );
}

#[test]
fn numbers_that_no_run_has_are_shown_without_a_time_left() {
    let folder = run();
    let _lock = lock(&folder);
    let most = RunProgress {
        epoch: u64::MAX,
        epochs: u64::MAX,
        step: 1,
        ..progress(1)
    };
    let endless = RunProgress {
        session_seconds: f64::MAX,
        ..progress(1)
    };
    for numbers in [most, endless] {
        write(&folder, "progress.json", &numbers);
        let page = shown(&folder);
        assert!(
            page.contains("running: training") && !page.contains(" left"),
            "{page}"
        );
    }
}

#[test]
fn an_empty_directory_is_not_started_and_a_missing_one_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    assert!(shown(&folder).contains("not started"));
    let error = snapshot(&folder.path().join("none"), CADENCE).unwrap_err();
    assert!(error.is::<Refusal>(), "{error}");
}
