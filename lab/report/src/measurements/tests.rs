//! Lines of measurements, and the reference of a speedup.

use super::*;
use records::{DatasetFacts, EpochRecord, LaunchFacts, Manifest};

fn measurement(ranks: usize, speed: f64, sync: &str) -> Measurement {
    let settings = [
        ("model", "resnet20"),
        ("sync", sync),
        ("batch_size_per_rank", "32"),
    ];
    let settings = settings
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into();
    Measurement {
        ranks,
        repetitions: vec![repeated(1, speed)],
        scaling: "weak".to_owned(),
        settings,
        ..Measurement::default()
    }
}

fn repeated(number: u64, speed: f64) -> Repetition {
    Repetition {
        number,
        speed,
        ..Repetition::default()
    }
}

#[test]
fn speedup_is_against_one_rank_of_the_same_work() {
    let all = [
        measurement(1, 100.0, "none"),
        measurement(2, 180.0, "ring"),
        measurement(4, 320.0, "ring"),
    ];
    assert_eq!(
        [0, 2].map(|index| all[index].speedups(&all)),
        [[1.0], [3.2]]
    );
}

#[test]
fn speedups_are_taken_in_each_repetition_against_the_same_one_of_the_reference() {
    let numbered = |ranks: usize, speeds: &[(u64, f64)]| Measurement {
        repetitions: speeds
            .iter()
            .map(|(number, speed)| repeated(*number, *speed))
            .collect(),
        ..measurement(ranks, 0.0, "ring")
    };
    // The machine became twice as fast after the first repetition; the third of the reference failed.
    let all = [
        numbered(1, &[(1, 100.0), (2, 200.0), (4, 200.0)]),
        numbered(2, &[(1, 180.0), (2, 360.0), (3, 100.0), (4, 380.0)]),
    ];
    assert_eq!(all[1].speedups(&all), [1.8, 1.8, 1.9]);
    assert_eq!(
        all[1].speedup(&all),
        Some(Estimate {
            median: 1.8,
            interval: None
        })
    );
}

#[test]
fn repetitions_of_another_day_are_no_pair_and_a_reference_is_no_measurement_of_itself() {
    let begun = |ranks: usize, day: u32| {
        let of = |hour: u64| Repetition {
            started: format!("2026-01-{day:02}T{hour:02}:00:00Z"),
            ..repeated(hour, 100.0 * ranks as f64 + hour as f64)
        };
        Measurement {
            repetitions: (1..=6).map(of).collect(),
            ..measurement(ranks, 0.0, "ring")
        }
    };
    let all = [begun(1, 1), begun(2, 1), begun(4, 2)];
    assert_eq!(
        [0, 1, 2].map(|index| all[index].speedups(&all).len()),
        [1, 6, 0]
    );
    assert_eq!(
        all[0].speedup(&all),
        Some(Estimate {
            median: 1.0,
            interval: None
        })
    );
}

#[test]
fn a_single_rank_of_another_kind_study_or_work_is_no_reference() {
    for (key, value) in [
        ("kind", "train"),
        ("study", "2"),
        ("image_size", "64"),
        ("grad_accum_steps", "2"),
    ] {
        let mut other = measurement(1, 100.0, "none");
        other.settings.insert(key.to_owned(), value.to_owned());
        let two = measurement(2, 180.0, "ring");
        assert_eq!(
            two.reference(&[other.clone(), two.clone()]),
            Some(&two),
            "{key}"
        );
        let mut same = two.clone();
        same.settings.insert(key.to_owned(), value.to_owned());
        assert_ne!(same.line(), two.line(), "{key}");
        assert_eq!(
            same.reference(&[two, other.clone(), same.clone()]),
            Some(&other),
            "{key}"
        );
    }
}

#[test]
fn each_variant_is_compared_with_one_rank_of_the_same_variant_however_ranks_are_started() {
    let of = |ranks: usize, speed: f64, settings: &[(&str, &str)]| {
        let mut one = measurement(ranks, speed, "allreduce");
        let launcher = if ranks == 1 { "plain" } else { "mpirun" };
        let own = settings.iter().copied().chain([("launcher", launcher)]);
        one.settings
            .extend(own.map(|(key, value)| (key.to_owned(), value.to_owned())));
        one
    };
    for key in [
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
        let all = [
            ("a", 1, 100.0),
            ("a", 2, 180.0),
            ("b", 1, 50.0),
            ("b", 2, 95.0),
        ]
        .map(|(value, ranks, speed)| of(ranks, speed, &[(key, value)]));
        assert_eq!(
            [1, 3].map(|index| all[index].speedups(&all)),
            [[1.8], [1.9]],
            "{key}"
        );
    }
    let met = [
        ("bucket_mib", "2"),
        ("steps", "40"),
        ("learning_rate", "0.2"),
        ("batch_norm", "sync"),
    ];
    let all = [of(1, 100.0, &[("steps", "8")]), of(2, 150.0, &met)];
    assert_eq!(
        all[1].speedups(&all),
        [1.5],
        "a single rank is the reference of every method"
    );
    let all = [
        of(1, 100.0, &[("convolution", "auto")]),
        of(2, 180.0, &[("convolution", "direct")]),
    ];
    assert_eq!(
        all[1].reference(&all),
        Some(&all[1]),
        "no single rank of another variant"
    );
}

#[test]
fn strong_scaling_of_another_batch_is_another_line_and_a_weak_one_grows_with_its_ranks() {
    let scaled = |scaling: &str, ranks: usize, global: &str| {
        let mut one = measurement(ranks, 100.0, "ring");
        one.scaling = scaling.to_owned();
        one.settings
            .insert("global_batch_size".to_owned(), global.to_owned());
        one
    };
    assert_ne!(
        scaled("strong", 2, "64").line(),
        scaled("strong", 2, "128").line()
    );
    assert_eq!(
        scaled("weak", 1, "32").line(),
        scaled("weak", 2, "64").line()
    );
}

/// Returns a run without a name, at 100 images/s, with these options.
fn run(ranks: usize, checksum: &str, options: &[(&str, &str)]) -> Run {
    let batch = [
        ("batch.global-batch-size", "64"),
        ("model.model", "\"resnet20\""),
        ("sync.sync", "\"allreduce\""),
    ];
    let settings = batch
        .iter()
        .chain(options)
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect();
    let launch = LaunchFacts {
        ranks,
        threads_per_rank: 1,
        ..LaunchFacts::default()
    };
    let dataset = DatasetFacts {
        name: "cifar10".to_owned(),
        train_checksum: checksum.to_owned(),
        ..DatasetFacts::default()
    };
    let manifest = Manifest {
        launch,
        dataset,
        ..Manifest::default()
    };
    let epochs = vec![EpochRecord {
        images_per_second: 5.0,
        ..EpochRecord::default()
    }];
    Run {
        settings,
        epochs,
        manifests: vec![manifest],
        ..Run::default()
    }
}

#[test]
fn runs_of_the_same_data_model_and_settings_are_one_curve_and_no_others() {
    let one = || run(1, "11111111aa", &[]);
    let same = of_runs(&[
        one(),
        run(2, "11111111aa", &[]),
        run(4, "11111111aa", &[("optimizer.learning-rate", "0.4")]),
    ]);
    assert!(same.iter().all(|one| one.scaling == "strong"), "{same:?}");
    assert_eq!(same[1].line(), same[2].line());
    assert_eq!(same[2].reference(&same).map(|base| base.ranks), Some(1));
    assert!(
        same.iter().all(|one| !one.settings.contains_key("data")),
        "what all have in common needs no words"
    );

    let others: [&[(&str, &str)]; 4] = [
        &[],
        &[("train-split.augment", "\"none\"")],
        &[("compute.kernels", "\"stock\"")],
        &[("optimizer.momentum", "0.5")],
    ];
    for options in others {
        let checksum = if options.is_empty() {
            "22222222bb"
        } else {
            "11111111aa"
        };
        let two = of_runs(&[one(), run(2, checksum, options)]);
        assert!(two.iter().all(|one| one.scaling == "none"), "{options:?}");
        assert_ne!(two[0].line(), two[1].line(), "{options:?}");
        assert_eq!(
            two[1].reference(&two).map(|base| base.ranks),
            Some(2),
            "{options:?}"
        );
    }

    let met = of_runs(&[
        one(),
        run(2, "11111111aa", &[]),
        run(4, "11111111aa", &[("sync.overlap", "\"off\"")]),
    ]);
    assert_ne!(met[1].line(), met[2].line(), "another synchronisation");
    assert_eq!(
        met[2].reference(&met).map(|base| base.ranks),
        Some(1),
        "a single rank is the reference of every method"
    );
}

#[test]
fn a_cells_batch_is_that_of_a_ranks_step_and_its_results_tell_what_its_settings_leave_out() {
    let plan = serde_json::json!({ "cells": [{ "id": "a", "kind": "bench",
        "settings": { "ranks": 2, "batch_size_per_rank": 16, "grad_accum_steps": 2 } }] });
    let attempt = serde_json::json!({ "cell": "a", "repetition": 1, "attempt": 1, "status": "ok",
        "result": { "images_per_second": 9.0, "kernels": "fused", "options": { "image_size": "64" } } });
    let study = StudyFolder {
        plan: serde_json::from_value(plan).unwrap(),
        attempts: vec![serde_json::from_value(attempt).unwrap()],
        ..StudyFolder::default()
    };
    let measured = &of_study(&study, 1)[0];
    assert_eq!(measured.setting("batch_size_per_rank"), "32");
    assert_eq!(
        (
            measured.reported_work["kernels"].as_str(),
            measured.reported_work["image_size"].as_str()
        ),
        ("fused", "64")
    );
}

#[test]
fn servers_of_their_own_are_no_ranks_of_a_run() {
    let mut own = run(3, "11111111aa", &[("sync.server-placement", "\"own\"")]);
    own.epochs[0].num_ranks = 2;
    let measured = of_run(&own).unwrap();
    assert_eq!(
        (measured.ranks, measured.setting("batch_size_per_rank")),
        (2, "32")
    );
}

#[test]
fn runs_on_equal_numbers_of_ranks_have_no_speedup() {
    for ranks in [1, 2] {
        let mut two = [100.0, 110.0].map(|speed| measurement(ranks, speed, "ring"));
        two.iter_mut()
            .for_each(|one| one.scaling = "none".to_owned());
        assert_eq!(
            [0, 1].map(|index| two[index].speedup(&two)),
            [None, None],
            "{ranks} ranks"
        );
    }
}

#[test]
fn without_one_rank_the_fewest_ranks_of_the_line_are_the_reference() {
    let all = [
        measurement(2, 180.0, "ring"),
        measurement(4, 324.0, "ring"),
        measurement(3, 999.0, "mpi"),
    ];
    assert_eq!(all[1].reference(&all), Some(&all[0]));
    assert_eq!(
        (all[0].speedup(&all), all[2].speedup(&all)),
        (None, None),
        "nothing to compare them with"
    );
    assert!((all[1].speedup(&all).unwrap().median - 3.6).abs() < 1e-12);
}
