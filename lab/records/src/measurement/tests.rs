//! Attempts that count, lines of measurements, references of speedups, and predictions.

use super::*;
use serde_json::json;

fn settings(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let pairs = pairs.iter();
    pairs
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

fn attempt(repetition: u64, started: &str, speed: f64) -> AttemptRecord {
    AttemptRecord {
        repetition,
        started: Some(started.to_owned()),
        result: json!({ "images_per_second": speed }),
        ..AttemptRecord::default()
    }
}

fn measurement(ranks: usize, speed: f64, sync: &str) -> Measurement {
    Measurement {
        ranks,
        attempts: vec![attempt(1, "", speed)],
        scaling: "weak".to_owned(),
        settings: settings(&[
            ("model", "resnet20"),
            ("sync", sync),
            ("batch_size_per_rank", "32"),
        ]),
        ..Measurement::default()
    }
}

fn with(mut one: Measurement, more: &[(&str, &str)]) -> Measurement {
    one.settings.extend(settings(more));
    one
}

#[test]
fn the_last_undisturbed_attempt_counts_before_a_disturbed_one_and_a_failed_one_never() {
    let record = |(repetition, attempt, status)| AttemptRecord {
        cell: "a".to_owned(),
        repetition,
        attempt,
        status,
        ..AttemptRecord::default()
    };
    let attempts = [
        (1, 1, Status::Disturbed),
        (1, 2, Status::Ok),
        (2, 1, Status::Disturbed),
        (2, 2, Status::Disturbed),
        (3, 1, Status::Failed),
        (4, 2, Status::Ok),
        (4, 1, Status::Ok),
        (4, 3, Status::Disturbed),
    ]
    .map(record);
    let study: Study = serde_json::from_value(json!({ "cells": [{ "id": "a" }] })).unwrap();
    let counted = study.counted(&attempts).into_iter();
    let counted: Vec<(u64, u64)> = counted
        .map(|(_, record)| (record.repetition, record.attempt))
        .collect();
    assert_eq!(counted, [(1, 2), (2, 2), (4, 2)]);
}

#[test]
fn the_batch_of_a_cell_is_a_ranks_step_and_results_report_work_that_settings_omit() {
    let study = json!({ "cells": [{ "id": "a", "kind": "bench",
        "settings": { "ranks": 2, "batch_size_per_rank": 16, "grad_accum_steps": 2 } }] });
    let result =
        json!({ "images_per_second": 9.0, "kernels": "fused", "options": { "image_size": "64" } });
    let attempts = [AttemptRecord {
        cell: "a".to_owned(),
        result,
        ..AttemptRecord::default()
    }];
    let study: Study = serde_json::from_value(study).unwrap();
    let measured = &Measurement::of_study(&study, &attempts, "1")[0];
    assert_eq!(measured.setting("batch_size_per_rank"), "32");
    let expected = settings(&[("image_size", "64"), ("kernels", "fused")]);
    assert_eq!(measured.reported_work, expected);
}

#[test]
fn speedups_compare_each_repetition_with_that_of_one_rank_within_an_hour() {
    let numbered = |ranks: usize, attempts: &[(u64, &str, f64)]| Measurement {
        attempts: attempts
            .iter()
            .map(|(number, started, speed)| attempt(*number, started, *speed))
            .collect(),
        ..measurement(ranks, 0.0, "ring")
    };
    // The third repetition of the reference failed, the fifth is from another day.
    let all = [
        numbered(
            1,
            &[
                (1, "2028-02-28T23:30:00Z", 100.0),
                (2, "", 200.0),
                (4, "2027-12-31T23:59:59Z", 200.0),
                (5, "2028-02-28T23:30:00Z", 200.0),
            ],
        ),
        numbered(
            2,
            &[
                (1, "2028-02-29T00:29:59.5Z", 180.0),
                (2, "2028-01-01T00:00:00Z", 360.0),
                (3, "", 100.0),
                (4, "2028-01-01T00:59:59Z", 380.0),
                (5, "2028-02-29T00:31:00Z", 360.0),
            ],
        ),
    ];
    assert_eq!(all[1].speedups(&all), [1.8, 1.8, 1.9]);
    let expected = Estimate {
        median: 1.8,
        interval: None,
    };
    assert_eq!(all[1].speedup(&all), Some(expected));
    assert_eq!(all[0].speedups(&all), [1.0], "a reference of other ranks");
}

#[test]
fn without_one_rank_the_fewest_ranks_of_the_line_are_the_reference() {
    let all = [
        measurement(2, 180.0, "ring"),
        measurement(4, 324.0, "ring"),
        measurement(3, 999.0, "mpi"),
    ];
    assert_eq!(all[1].reference(&all), Some(&all[0]));
    let nothing_to_compare_with = (all[0].speedup(&all), all[2].speedup(&all));
    assert_eq!(nothing_to_compare_with, (None, None));
    assert!((all[1].speedup(&all).unwrap().median - 3.6).abs() < 1e-12);
    for ranks in [1, 2] {
        let mut two = [100.0, 110.0].map(|speed| measurement(ranks, speed, "ring"));
        for one in &mut two {
            one.scaling = "none".to_owned();
        }
        let speedups = two.each_ref().map(|one| one.speedup(&two));
        assert_eq!(speedups, [None, None], "twice {ranks} ranks");
    }
}

#[test]
fn a_single_rank_of_another_kind_study_work_or_variant_is_not_a_reference() {
    for key in [
        "kind",
        "study",
        "image_size",
        "grad_accum_steps",
        "convolution",
        "recompute",
        "cpu",
        "depth",
        "input",
        "batch_norm",
        "update",
        "optimizer",
        "num_classes",
    ] {
        let of = |value: &str, ranks: usize, speed: f64| {
            let launcher = if ranks == 1 { "plain" } else { "mpirun" };
            let own = [(key, value), ("launcher", launcher)];
            with(measurement(ranks, speed, "allreduce"), &own)
        };
        let all = [
            of("a", 1, 100.0),
            of("a", 2, 180.0),
            of("b", 1, 50.0),
            of("b", 2, 95.0),
        ];
        let speedups = [1, 3].map(|index| all[index].speedups(&all));
        assert_eq!(speedups, [[1.8], [1.9]], "{key}");
        assert_ne!(all[1].line(), all[3].line(), "{key}");
    }
    let variant = |ranks, value| with(measurement(ranks, 1.0, ""), &[("convolution", value)]);
    let all = [variant(1, "auto"), variant(2, "direct")];
    assert_eq!(all[1].reference(&all), Some(&all[1]));
}

#[test]
fn one_rank_is_the_reference_of_every_method() {
    let one = with(measurement(1, 100.0, "none"), &[("steps", "8")]);
    let met = [
        ("bucket_mib", "2"),
        ("steps", "40"),
        ("learning_rate", "0.2"),
        ("batch_norm", "sync"),
    ];
    let all = [one, with(measurement(2, 150.0, "ring"), &met)];
    assert_eq!(all[1].speedups(&all), [1.5]);
}

#[test]
fn strong_scaling_of_another_batch_is_another_line_and_a_weak_one_grows_with_its_ranks() {
    let scaled = |scaling: &str, ranks: usize, global: &str| Measurement {
        scaling: scaling.to_owned(),
        ..with(
            measurement(ranks, 100.0, "ring"),
            &[("global_batch_size", global)],
        )
    };
    let [a, b] = ["64", "128"].map(|global| scaled("strong", 2, global));
    assert_ne!(a.line(), b.line());
    let [a, b] = [(1, "32"), (2, "64")].map(|(ranks, global)| scaled("weak", ranks, global));
    assert_eq!(a.line(), b.line());
}

#[test]
fn a_prediction_stands_for_its_cell_or_for_the_same_method_and_work_as_far_as_they_are_known() {
    let file = PredictionFile {
        model: "resnet20".to_owned(),
        threads: Some(1),
        work: settings(&[("kernels", "fused"), ("image_size", "64")]),
        ..PredictionFile::default()
    };
    let prediction = PredictionRecord {
        method: "allreduce:ring".to_owned(),
        ranks: 2,
        batch_size_per_rank: 32,
        ..PredictionRecord::default()
    };
    let method = [("sync", "allreduce"), ("reduction", "ring")];
    for (own, reported, expected) in [
        (&[][..], &[][..], true),
        (&[("image_size", "64")], &[("kernels", "fused")], true),
        (&[("kernels", "stock")], &[], false),
        (&[], &[("image_size", "32")], false),
        (&[("reduction", "hierarchical")], &[], false),
        (&[("threads", "1")], &[], true),
        (&[("threads", "2")], &[], false),
        (&[("network", "1gbit")], &[], false),
    ] {
        let mut one = with(with(measurement(2, 1.0, ""), &method), own);
        one.reported_work = settings(reported);
        let found = one.is_predicted_by(&file, &prediction);
        assert_eq!(found, expected, "{own:?} {reported:?}");
        one.ranks = 1;
        let alone = PredictionRecord {
            ranks: 1,
            method: String::new(),
            ..prediction.clone()
        };
        let is_about_several = own.iter().any(|(key, _)| is_of_several(key));
        let found = one.is_predicted_by(&file, &alone);
        assert_eq!(found, expected || is_about_several, "one rank, {own:?}");
        let named = PredictionRecord {
            cell: Some("a".to_owned()),
            ..prediction.clone()
        };
        assert!(!one.is_predicted_by(&file, &named));
        one.id = "a".to_owned();
        assert!(one.is_predicted_by(&file, &named));
    }
    let mut on_network = file;
    for (network, own, expected) in [
        ("10gbe", &[][..], false),
        ("10gbe", &[("network", "10gbe")], true),
        ("none", &[], true),
    ] {
        network.clone_into(&mut on_network.network.name);
        let one = with(with(measurement(2, 1.0, ""), &method), own);
        let found = one.is_predicted_by(&on_network, &prediction);
        assert_eq!(found, expected, "{network} {own:?}");
    }
}

#[test]
fn a_prediction_of_a_repetition_counts_only_if_it_was_made_before_that_began() {
    let measured = Measurement {
        attempts: vec![
            attempt(1, "2026-01-01T00:01:00Z", 100.0),
            attempt(2, "", 100.0),
        ],
        ..Measurement::default()
    };
    for (created, repetition, expected) in [
        ("2026-01-01T00:00:59Z", Some(1), 1),
        ("2026-01-01T00:01:01Z", Some(1), 0),
        ("2026-01-01T00:00:59Z", Some(2), 0),
        ("2026-01-01T00:01:01Z", None, 2),
    ] {
        let prediction = PredictionRecord {
            repetition,
            ..PredictionRecord::default()
        };
        let attempts = measured.predicted(created, &prediction);
        assert_eq!(attempts.len(), expected, "{created} {repetition:?}");
    }
}
