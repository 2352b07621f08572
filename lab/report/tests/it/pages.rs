//! Pages and their files, made of a study's folder.

use records::{EpochRecord, Evaluation, Summary};
use report::Request;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

/// A study of two methods on two ranks over two networks, one of them measured, each run predicted.
fn study_of_methods(folder: &Path) -> PathBuf {
    let study = folder.join("methods");
    fs::create_dir_all(study.join("predictions")).unwrap();
    let points = ["slow", "fast"]
        .map(|network| ["allreduce", "local-sgd"].map(|sync| (network, sync)))
        .concat();
    let cell = |(network, sync): &(&str, &str)| {
        json!({ "id": format!("{sync}-{network}"), "kind": "bench", "repetitions": 2, "settings": {
            "model": "resnet20", "dtype": "f32", "ranks": 2, "scaling": "weak", "batch_size_per_rank": 32, "sync": sync,
            "network": network } })
    };
    let text = json!({ "schema": "lockstep.study/1", "name": "methods", "cells": points.iter().map(cell).collect::<Vec<_>>() });
    fs::write(study.join("study.json"), text.to_string()).unwrap();
    let mut records = Vec::new();
    for (index, (network, sync)) in points.iter().enumerate() {
        let id = format!("{sync}-{network}");
        let speed = 100.0 * (index + 1) as f64;
        records.extend([(1, speed), (2, speed + 10.0)].map(|(repetition, speed)| {
            json!({ "cell": id, "repetition": repetition, "attempt": 1, "status": "ok", "directory": format!("runs/{id}/r1a1"),
                "result": { "images_per_second": speed } })
            .to_string()
        }));
        let prediction = json!({ "schema": "lockstep.prediction/1",
            "network": { "name": "network", "source": "measured runs/netbench/r1a1/network.json" },
            "predictions": [{ "cell": id, "sync": sync, "ranks": 2, "images_per_second": speed + 7.0 }] });
        fs::write(
            study.join(format!("predictions/{id}.json")),
            prediction.to_string(),
        )
        .unwrap();
    }
    fs::write(study.join("records.jsonl"), records.join("\n")).unwrap();
    study
}

#[test]
fn methods_at_one_number_of_ranks_stand_side_by_side_by_network_with_their_predictions() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("report");
    let inputs = vec![study_of_methods(folder.path())];
    report::write(&Request {
        inputs,
        output: output.clone(),
        ..Request::default()
    })
    .unwrap();
    let page = fs::read_to_string(output.join("index.html")).unwrap();
    let bars = csv_lines(&output.join("figures/side-by-side.csv"));
    let expected = [
        "slow,allreduce,105,100,110,107",
        "slow,local-sgd,205,200,210,207",
        "fast,allreduce,305,300,310,307",
        "fast,local-sgd,405,400,410,407",
    ];
    assert_eq!(bars[1..], expected);
    assert!(
        page.contains("Hollow bars are predictions") && !page.contains("Throughput: "),
        "{page}"
    );
    let named = csv_lines(&output.join("tables/predictions.csv"));
    let networks: Vec<&str> = named[1..]
        .iter()
        .filter_map(|line| line.split(',').nth(1))
        .collect();
    assert_eq!(
        networks,
        ["fast", "slow", "fast", "slow"],
        "by the study, not by the files"
    );
    let (before, _) = page.split_once("id=\"table-predictions\"").unwrap();
    assert!(
        before.rfind("<details").unwrap() > before.rfind("</details>").unwrap_or(0),
        "the list is folded"
    );
}

#[test]
fn attempts_that_were_not_judged_are_counted_apart_from_undisturbed_ones() {
    let folder = tempfile::tempdir().unwrap();
    let (study, output) = (folder.path().join("s"), folder.path().join("report"));
    fs::create_dir_all(&study).unwrap();
    let cell = json!({ "id": "a", "kind": "bench", "repetitions": 5, "settings": { "ranks": 1 } });
    let plan = json!({ "schema": "lockstep.study/1", "name": "s", "cells": [cell] });
    fs::write(study.join("study.json"), plan.to_string()).unwrap();
    let quiet = |limit: Value| json!({ "during": { "other_cores": 1.6 }, "limit_cores": limit });
    let attempts = [
        ("ok", quiet(json!(2.0))),
        ("ok", quiet(Value::Null)),
        ("ok", Value::Null),
        ("disturbed", quiet(json!(0.2))),
        ("failed", Value::Null),
    ];
    let record = |(index, (status, quiet)): (usize, &(&str, Value))| {
        json!({ "cell": "a", "repetition": index + 1, "attempt": 1, "status": status, "quiet": quiet,
            "result": { "images_per_second": 9.0 } })
        .to_string()
    };
    let lines: Vec<String> = attempts.iter().enumerate().map(record).collect();
    fs::write(study.join("records.jsonl"), lines.join("\n")).unwrap();
    report::write(&Request {
        inputs: vec![study],
        output: output.clone(),
        ..Request::default()
    })
    .unwrap();
    let page = fs::read_to_string(output.join("index.html")).unwrap();
    assert!(
        page.contains("s: 2 of 4 measurements were not judged: the quiet check was off"),
        "{page}"
    );
    assert!(
        page.contains("1 disturbed, 1 failed.") && page.contains(" 2 were not judged: "),
        "{page}"
    );
}

#[test]
fn cells_of_two_studies_of_one_name_have_the_number_of_their_study() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("report");
    let inputs: Vec<PathBuf> = ["a", "b"]
        .map(|part| study_of_methods(&folder.path().join(part)))
        .into();
    report::write(&Request {
        inputs,
        output: output.clone(),
        ..Request::default()
    })
    .unwrap();
    for (table, column, count) in [("studies", "number", 1), ("throughput", "study", 4)] {
        let lines = csv_lines(&output.join(format!("tables/{table}.csv")));
        assert!(lines[0].ends_with(&format!(",{column}")), "{lines:?}");
        let numbers: Vec<&str> = lines[1..]
            .iter()
            .filter_map(|line| line.rsplit(',').next())
            .collect();
        assert_eq!(
            numbers,
            [vec!["1"; count], vec!["2"; count]].concat(),
            "{table}"
        );
    }
}

#[test]
fn the_largest_numbers_that_files_can_have_are_shown() {
    let folder = tempfile::tempdir().unwrap();
    let (run, output) = (folder.path().join("run"), folder.path().join("report"));
    fs::create_dir(&run).unwrap();
    let test = Some(Evaluation {
        top1: Some(0.5),
        ..Evaluation::default()
    });
    let epoch = EpochRecord {
        epoch: u64::MAX,
        train_loss: Some(1.0),
        test,
        ..EpochRecord::default()
    };
    fs::write(
        run.join("metrics.jsonl"),
        serde_json::to_string(&epoch).unwrap(),
    )
    .unwrap();
    let summary = Summary {
        staleness: Some(vec![u64::MAX, 1]),
        ..Summary::default()
    };
    fs::write(
        run.join("summary.json"),
        serde_json::to_string(&summary).unwrap(),
    )
    .unwrap();
    let request = Request {
        inputs: vec![run],
        output: output.clone(),
        target_accuracy: Some(0.4),
        ..Request::default()
    };
    report::write(&request).unwrap();
    let page = fs::read_to_string(output.join("index.html")).unwrap();
    assert!(
        page.contains(&format!(
            "{} updates of the servers",
            records::grouped(u64::MAX)
        )),
        "{page}"
    );
    let epochs = csv_lines(&output.join("tables/time-to-accuracy.csv"));
    assert!(
        epochs[1].contains(&(u64::MAX as f64).to_string()),
        "{epochs:?}"
    );
}

fn csv_lines(path: &Path) -> Vec<String> {
    fs::read_to_string(path)
        .unwrap()
        .lines()
        .map(str::to_owned)
        .collect()
}
