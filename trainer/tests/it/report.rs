//! `trainer report` on real runs, on a study, and on damaged, hostile or unrelated files.

use std::fs;
use std::path::{Path, PathBuf};

use crate::fixture::{Run, TINY, ended_with, flags, run, trainer};
use serde_json::{Value, json};
use trainer::config::cli::TrainArgs;

fn tiny(further: &str) -> TrainArgs {
    flags(&[
        TINY,
        "--shapes-train 64 --shapes-test 20 --global-batch-size 32",
        further,
    ])
}

fn report(code: i32, inputs: &[&Path], output: &Path, more: &[&str]) -> String {
    let mut command = trainer("report", inputs);
    command.arg("--output").arg(output).args(more);
    ended_with(code, command)
}

/// Writes a report, which must succeed, and returns its page.
fn page(inputs: &[&Path], output: &Path, more: &[&str]) -> String {
    report(0, inputs, output, more);
    fs::read_to_string(output.join("index.html")).unwrap()
}

/// Writes a study: two cells of speeds, a cell with the run, a prediction and a line cut by a
/// crash.
fn study(folder: &Path, run: &Run) -> PathBuf {
    let study = folder.join("study");
    let of_run = study.join("runs/train/r1a1/run");
    fs::create_dir_all(&of_run).unwrap();
    for file in ["run.toml", "manifest.json", "metrics.jsonl", "summary.json"] {
        fs::copy(run.directory().join(file), of_run.join(file)).unwrap();
    }
    let cell = |id: &str, kind: &str, ranks: usize| {
        json!({ "id": id, "kind": kind, "repetitions": 2, "arguments": [kind], "settings": {
            "model": "resnet20", "dtype": "f32", "ranks": ranks, "batch_size_per_rank": 32, "sync": "allreduce", "scaling": "weak" } })
    };
    let cells = [
        cell("one", "bench", 1),
        cell("two", "bench", 2),
        cell("train", "train", 1),
    ];
    let text = json!({ "schema": "lockstep.study/1", "name": "tiny", "title": "A <tiny> study & more", "cells": cells,
        "warmup": "3 steps", "images_per_second_means": "global samples over time", "machine": { "cpu_count": 2, "mpi": null }, "unknown": [1] });
    fs::write(study.join("study.json"), text.to_string()).unwrap();
    let record = |cell: &str, repetition: u64, status: &str, speed: f64| {
        json!({ "cell": cell, "repetition": repetition, "attempt": 1, "status": status, "directory": format!("runs/{cell}/r1a1"),
            "result": { "images_per_second": speed, "peak_memory_bytes": 1 << 28 } })
        .to_string()
    };
    let records = [
        record("one", 1, "ok", 100.0),
        record("one", 2, "ok", 102.0),
        record("two", 1, "ok", 150.0),
        record("two", 2, "disturbed", 140.0),
        record("train", 1, "ok", 50.0),
        "{\"cell\": \"one\", \"repet".to_owned(),
    ];
    fs::write(study.join("records.jsonl"), records.join("\n")).unwrap();
    fs::create_dir(study.join("predictions")).unwrap();
    let prediction = json!({ "schema": "lockstep.prediction/1", "network": { "name": "shared" },
        "predictions": [{ "cell": "two", "sync": "allreduce", "ranks": 2, "images_per_second": 160.0, "efficiency": 0.79 }] });
    fs::write(
        study.join("predictions/shared.json"),
        prediction.to_string(),
    )
    .unwrap();
    fs::write(
        study.join("predictions/torn.json"),
        "{\"schema\": \"lockstep.pred",
    )
    .unwrap();
    study
}

fn csv_lines(path: &Path) -> Vec<String> {
    fs::read_to_string(path)
        .unwrap()
        .lines()
        .map(str::to_owned)
        .collect()
}

#[test]
fn a_study_and_its_runs_become_one_page_with_every_number_in_files() {
    let folder = tempfile::tempdir().unwrap();
    let one = run(1, &tiny(""));
    let two = run(2, &tiny("--seed 5"));
    let study = study(folder.path(), &one);
    let output = folder.path().join("report");
    let page = page(
        &[&study, &two.directory()],
        &output,
        &["--target-accuracy", "0.01"],
    );

    for section in [
        "summary",
        "scaling",
        "time-to-accuracy",
        "curves",
        "step-time",
        "predictions",
        "differences",
        "runs",
        "records",
    ] {
        assert!(
            page.contains(&format!("<section id=\"{section}\">")),
            "{section}"
        );
    }
    for absent in ["comparison", "network", "staleness"] {
        assert!(
            !page.contains(&format!("<section id=\"{absent}\">")),
            "{absent}"
        );
    }
    let result = page.find("<p class=\"result\">Best of 2 by ").unwrap();
    assert!(result < page.find("<section").unwrap());
    // The horizontal axis is chosen without a script.
    for (axis, number) in [("epoch", 0), ("samples", 1), ("time", 2)] {
        assert!(page.contains(&format!("class=\"by-{number}\"")), "{axis}");
        assert!(page.contains(&format!("Loss by {axis}")), "{axis}");
    }
    assert!(page.contains("<h1>A &lt;tiny&gt; study &amp; more</h1>") && !page.contains("<tiny>"));
    assert!(page.contains("torn.json") && page.contains("so it is left out"));
    assert!(
        page.contains("1 of 6 lines cannot be read") && page.contains("the machine was not quiet")
    );
    // The page loads nothing: its only addresses are XML namespaces.
    assert!(
        !page
            .replace("http://www.w3.org/2000/svg", "")
            .contains("://")
    );
    assert!(!page.contains("<script"));
    for (open, close) in [
        ("<svg", "</svg>"),
        ("<table", "</table>"),
        ("<figure", "</figure>"),
        ("<details", "</details>"),
        ("<section", "</section>"),
    ] {
        assert_eq!(
            page.matches(open).count(),
            page.matches(close).count(),
            "{open}"
        );
    }

    let throughput = csv_lines(&output.join("tables/throughput.csv"));
    assert!(
        throughput[1].starts_with("one,weak,32,1,101,100,102,2,1,100,1,,256"),
        "{throughput:?}"
    );
    assert!(
        throughput[2].starts_with("two,weak,32,2,145,140,150,2,"),
        "{throughput:?}"
    );
    let compared = csv_lines(&output.join("tables/predicted-and-measured.csv"));
    assert!(
        compared[1].starts_with("two,shared.json,2,160,145,140,150,10.47"),
        "{compared:?}"
    );
    let drawn = csv_lines(&output.join("figures/throughput.csv"));
    assert!(
        drawn.iter().any(|line| line.contains("predicted,2,160")),
        "{drawn:?}"
    );
    let svg = fs::read_to_string(output.join("figures/throughput.svg")).unwrap();
    assert!(
        svg.contains("Scaling: weak") && svg.contains("Warm-up: 3 steps"),
        "the caption goes with the figure"
    );
    let index: Value =
        serde_json::from_str(&fs::read_to_string(output.join("report.json")).unwrap()).unwrap();
    assert_eq!(index["schema"], "lockstep.report/1");
    // The run of the study has a rank, the other has two.
    assert_eq!(csv_lines(&output.join("figures/step-time.csv")).len(), 4);
    assert!(page.contains("run.seed"), "the seeds differ");
    let entries = fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(entries, 2, "study and report alone are left");
}

#[test]
fn a_killed_run_with_torn_metrics_is_shown_as_far_as_it_went() {
    let folder = tempfile::tempdir().unwrap();
    let run = run(1, &tiny(""));
    let metrics = run.directory().join("metrics.jsonl");
    let text = fs::read_to_string(&metrics).unwrap();
    fs::write(
        &metrics,
        format!("{text}{{\"epoch\": 2, \"train_loss\": NaN}}\n\u{0}\n{{\"epo"),
    )
    .unwrap();
    fs::remove_file(run.directory().join("summary.json")).unwrap();
    fs::write(run.directory().join("manifest-1.json"), "[]").unwrap();
    let page = page(&[&run.directory()], &folder.path().join("report"), &[]);
    assert!(
        page.contains("still trains, or was killed")
            && page.contains("3 of 5 lines cannot be read"),
        "{page}"
    );
    assert!(csv_lines(&folder.path().join("report/figures/loss-by-epochs.csv")).len() == 5);

    fs::write(&metrics, "").unwrap();
    let empty = self::page(
        &[&run.directory()],
        &folder.path().join("report"),
        &["--title", "\"a\" <b>"],
    );
    assert!(
        empty.contains("no epoch in metrics.jsonl")
            && empty.contains("<h1>&quot;a&quot; &lt;b&gt;</h1>")
    );
}

#[test]
fn wrong_inputs_and_outputs_are_refused_with_code_2_and_left_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::create_dir_all(path("empty")).unwrap();
    fs::write(path("other.json"), "{\"schema\": \"else/1\"}").unwrap();
    fs::write(path("text"), "words").unwrap();
    for (input, said) in [
        ("absent", "does not exist"),
        ("empty", "without study.json"),
        ("other.json", "of another kind"),
        ("text", "not JSON"),
    ] {
        let text = report(2, &[&path(input)], &path("report"), &[]);
        assert!(
            text.contains(said) && text.contains("expected a run's"),
            "{input}: {text}"
        );
    }
    fs::write(
        path("p.json"),
        "{\"schema\": \"lockstep.prediction/9\", \"predictions\": []}",
    )
    .unwrap();
    let page = page(&[&path("p.json")], &path("report"), &[]);
    assert!(
        page.contains("lockstep.prediction/9 is not lockstep.prediction/1"),
        "{page}"
    );
    for (place, said) in [
        (path("text"), "not a directory"),
        (folder.path().to_owned(), "foreign file"),
        (PathBuf::from("."), "without a name"),
    ] {
        let text = report(2, &[&path("p.json")], &place, &[]);
        assert!(text.contains("--output") && text.contains(said), "{text}");
    }
    for foreign in ["notes.txt", "figures/mine.csv", "run/config.json"] {
        let foreign = path("report").join(foreign);
        fs::create_dir_all(foreign.parent().unwrap()).unwrap();
        fs::write(&foreign, "mine").unwrap();
        let text = report(2, &[&path("p.json")], &path("report"), &[]);
        assert!(text.contains("foreign file"), "{text}");
        assert_eq!(fs::read_to_string(&foreign).unwrap(), "mine");
        fs::remove_file(&foreign).unwrap();
    }
    fs::remove_dir(path("report").join("run")).unwrap();
    let target = ["--target-accuracy", "80"];
    report(2, &[&path("p.json")], &path("report"), &target);
    assert_eq!(fs::read_to_string(path("text")).unwrap(), "words");
}
