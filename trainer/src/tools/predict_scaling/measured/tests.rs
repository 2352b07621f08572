//! What speeds and predictions are compared with.

use super::*;

fn line(ranks: usize, speed: f64) -> String {
    format!(
        "{{\"model\":\"resnet20\",\"dtype\":\"f32\",\"threads\":1,\"ranks\":{ranks},\"batch_size_per_rank\":32,\
         \"global_batch_size\":{},\"method\":\"allreduce:ring\",\"images_per_second\":{speed}}}",
        32 * ranks
    )
}

#[test]
fn speeds_are_compared_with_that_of_one_rank() {
    let [weak, strong] = [false, true].map(|is_strong| scaled(1.8, 2, is_strong));
    assert_eq!(
        (weak.speedup, weak.efficiency, weak.serial_fraction),
        (1.8, 0.9, None)
    );
    assert!((strong.serial_fraction.unwrap() - 1.0 / 9.0).abs() < 1e-12);
}

#[test]
fn results_of_bench_are_grouped_over_ranks_and_repetitions() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("runs.txt");
    let lines = [
        line(2, 180.0),
        "some words".to_owned(),
        line(1, 100.0),
        line(2, 200.0),
        line(2, 190.0),
    ];
    std::fs::write(&path, lines.join("\n")).unwrap();
    let groups = read(&[&path], &[], |_| ()).unwrap();
    assert_eq!((groups.len(), groups[0].runs.len()), (1, 2));
    let two = &groups[0].runs[1];
    assert_eq!(
        (two.ranks, two.images_per_second, two.repetitions, two.gap),
        (2, 190.0, 3, None)
    );
    let scaled = two.scaled.unwrap();
    assert!((scaled.speedup - 1.9).abs() < 1e-12);
    for nothing in ["nothing".to_owned(), line(1, 0.0)] {
        std::fs::write(&path, nothing).unwrap();
        assert!(
            read(&[&path], &[], |_| ())
                .unwrap_err()
                .to_string()
                .contains("expected lines of `trainer bench --json`")
        );
    }
}

#[cfg(unix)]
#[test]
fn named_pipes_and_devices_are_refused_and_not_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let pipe = |name: &str| {
        let path = directory.path().join(name);
        assert!(
            std::process::Command::new("mkfifo")
                .arg(&path)
                .status()
                .unwrap()
                .success()
        );
        path
    };
    let refused = |path: &Path| {
        let error = format!("{:#}", read(&[path], &[], |_| ()).unwrap_err());
        assert!(error.contains("expected a regular file"), "{error}");
    };
    refused(Path::new("/dev/zero"));
    refused(&pipe("runs.txt"));
    pipe("study.json");
    refused(directory.path());
}

#[test]
fn a_study_counts_its_last_attempts_and_one_rank_alone_stands_for_every_network() {
    let directory = tempfile::tempdir().unwrap();
    let cell = |id: &str, ranks: usize, network: &str| {
        let batch = 32 * ranks;
        format!(
            "{{\"id\":\"{id}\",\"kind\":\"bench\",\"settings\":{{\"model\":\"resnet20\",\"dtype\":\"f32\",\"ranks\":{ranks},\
             \"threads\":1,\"batch_size_per_rank\":32,\"global_batch_size\":{batch},\"sync\":\"allreduce\",\
             \"compress\":\"none\",\"network\":\"{network}\",\"scaling\":\"weak\"}}}}"
        )
    };
    let cells = [
        cell("one", 1, "none"),
        cell("two", 2, "1gbit"),
        cell("failed", 2, "10gbit"),
    ]
    .join(",");
    std::fs::write(
        directory.path().join("study.json"),
        format!("{{\"cells\":[{cells}]}}"),
    )
    .unwrap();
    let record = |cell: &str, attempt: usize, status: &str, speed: f64| {
        format!(
            "{{\"cell\":\"{cell}\",\"repetition\":1,\"attempt\":{attempt},\"status\":\"{status}\",\
             \"result\":{{\"images_per_second\":{speed}}}}}\n"
        )
    };
    let records = record("one", 1, "ok", 100.0)
        + &record("two", 1, "disturbed", 100.0)
        + &record("two", 2, "ok", 160.0)
        + &record("failed", 1, "failed", 1.0)
        + "{\"cell\":\"tw";
    std::fs::write(
        directory.path().join("records.jsonl"),
        [records.as_bytes(), b"\xe2\x82"].concat(),
    )
    .unwrap();
    let predictions = directory.path().join("predictions");
    std::fs::create_dir(&predictions).unwrap();
    std::fs::write(predictions.join("torn.json"), "{").unwrap();
    let warnings = std::cell::RefCell::new(Vec::new());
    let groups = read(&[directory.path()], &[], |text| {
        warnings.borrow_mut().push(text.to_owned())
    })
    .unwrap();
    let warnings = warnings.into_inner();
    assert!(
        warnings.len() == 1 && warnings[0].contains("torn.json, expected a file of"),
        "{warnings:?}"
    );
    assert_eq!(groups.len(), 2);
    let two = &groups[1].runs[0];
    assert_eq!((two.images_per_second, two.disturbed), (160.0, false));
    assert!((two.scaled.unwrap().efficiency - 0.8).abs() < 1e-12);
    assert_eq!(groups[1].settings["network"], "1gbit");
}

#[test]
fn a_prediction_for_a_repetition_counts_only_if_it_was_there_before_that_began() {
    let cell = Configuration {
        id: Some("a".to_owned()),
        settings: BTreeMap::from([("ranks".to_owned(), "2".to_owned())]),
        speeds: BTreeMap::from([(1, (100.0, false))]),
        started: BTreeMap::from([(1, "2026-01-01T00:01:00Z".to_owned())]),
        ..Configuration::default()
    };
    let gap = |created: &str, repetition: Option<u64>| {
        let record = PredictionRecord {
            cell: cell.id.clone(),
            images_per_second: Some(110.0),
            repetition,
            ..PredictionRecord::default()
        };
        let file = PredictionFile {
            created: created.to_owned(),
            predictions: vec![record],
            ..PredictionFile::default()
        };
        groups(std::slice::from_ref(&cell), &[(None, file)])[0].runs[0].gap
    };
    assert!((gap("2026-01-01T00:00:59Z", Some(1)).unwrap() - 0.1).abs() < 1e-12);
    assert_eq!(gap("2026-01-01T00:01:01Z", Some(1)), None);
    assert!(
        gap("2026-01-01T00:01:01Z", None).is_some(),
        "one of all repetitions is no forecast of one"
    );
}

#[test]
fn a_speed_is_not_compared_with_one_rank_of_another_study_or_kind() {
    let cell = |study: &str, kind: &str, ranks: usize, speed: f64| {
        let settings = [
            ("model", "resnet20"),
            ("batch_size_per_rank", "32"),
            ("study", study),
            ("kind", kind),
        ];
        let settings = settings
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into_iter();
        let settings = settings
            .chain([("ranks".to_owned(), ranks.to_string())])
            .collect();
        Configuration {
            id: Some("same".to_owned()),
            settings,
            speeds: BTreeMap::from([(1, (speed, false))]),
            ..Configuration::default()
        }
    };
    let others = [cell("a", "bench", 1, 100.0), cell("b", "train", 1, 50.0)];
    let groups_with = |base: Option<Configuration>| {
        let cells: Vec<Configuration> = others
            .iter()
            .cloned()
            .chain(base)
            .chain([cell("b", "bench", 2, 150.0)])
            .collect();
        groups(&cells, &[])
    };
    let last = |groups: &[Measured]| groups.last().unwrap().runs.last().unwrap().scaled;
    assert_eq!(last(&groups_with(None)), None);
    assert_eq!(
        last(&groups_with(Some(cell("b", "bench", 1, 100.0))))
            .unwrap()
            .speedup,
        1.5
    );
}

#[test]
fn a_speed_is_compared_with_one_rank_of_the_same_variant_however_that_was_started() {
    let cell = |convolution: &str, launcher: &str, ranks: usize, speed: f64| {
        let texts = [
            ("convolution", convolution),
            ("launcher", launcher),
            ("ranks", &ranks.to_string()),
        ];
        let settings = texts
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        Configuration {
            settings,
            speeds: BTreeMap::from([(1, (speed, false))]),
            ..Configuration::default()
        }
    };
    let alone = [
        cell("auto", "mpirun", 1, 400.0),
        cell("direct", "plain", 1, 100.0),
    ];
    let speedup = |alone: &[Configuration]| {
        let cells: Vec<Configuration> = alone
            .iter()
            .cloned()
            .chain([cell("direct", "mpirun", 2, 150.0)])
            .collect();
        let groups = groups(&cells, &[]);
        let of_two = groups
            .iter()
            .flat_map(|group| &group.runs)
            .find(|run| run.ranks == 2)
            .unwrap();
        of_two.scaled.map(|scaled| scaled.speedup)
    };
    assert_eq!(speedup(&alone), Some(1.5));
    assert_eq!(speedup(&alone[..1]), None);
}

#[test]
fn results_of_other_options_are_no_repetitions() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("runs.txt");
    let with = |options: &str, speed: f64| {
        line(1, speed).replace('{', &format!("{{\"options\":{{{options}}},"))
    };
    let lines = [
        with("\"image_size\":\"32\"", 100.0),
        with("\"image_size\":\"64\"", 25.0),
        line(1, 90.0),
    ];
    std::fs::write(&path, lines.join("\n")).unwrap();
    let speeds: Vec<f64> = read(&[&path], &[], |_| ())
        .unwrap()
        .iter()
        .map(|group| group.runs[0].images_per_second)
        .collect();
    assert_eq!(speeds, [100.0, 25.0, 90.0]);
}

#[test]
fn a_prediction_is_compared_with_the_same_work_alone_whose_batch_is_that_of_all_passes() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("runs.txt");
    let gap = |result: &str, work: &[(&str, &str)], batch_size_per_rank: usize| {
        std::fs::write(&path, line(1, 100.0).replace('{', &format!("{{{result}"))).unwrap();
        let record = PredictionRecord {
            ranks: 1,
            batch_size_per_rank,
            images_per_second: Some(110.0),
            ..PredictionRecord::default()
        };
        let file = PredictionFile {
            model: "resnet20".to_owned(),
            dtype: "f32".to_owned(),
            work: work
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect(),
            predictions: vec![record],
            ..PredictionFile::default()
        };
        read(&[&path], &[file], |_| ()).unwrap()[0].runs[0].gap
    };
    let fused = [("kernels", "fused"), ("image_size", "64")];
    assert!(gap("", &fused, 32).is_some() && gap("\"kernels\":\"fused\",", &fused, 32).is_some());
    assert_eq!(gap("\"kernels\":\"stock\",", &fused, 32), None);
    assert_eq!(
        gap("\"options\":{\"image_size\":\"32\"},", &fused, 32),
        None
    );
    let two_passes = "\"grad_accum_steps\":2,";
    assert!(gap(two_passes, &[], 32).is_none() && gap(two_passes, &[], 64).is_some());
}

#[test]
fn a_study_compares_its_last_attempts_repetition_by_repetition() {
    let directory = tempfile::tempdir().unwrap();
    let cell = |id: &str, ranks: usize| {
        format!(
            "{{\"id\":\"{id}\",\"kind\":\"bench\",\"settings\":{{\"ranks\":{ranks},\"batch_size_per_rank\":32,\"scaling\":\"weak\"}}}}"
        )
    };
    let plan = format!("{{\"cells\":[{},{}]}}", cell("one", 1), cell("two", 2));
    std::fs::write(directory.path().join("study.json"), plan).unwrap();
    let record = |cell: &str, repetition: u64, attempt: u64, speed: f64| {
        format!(
            "{{\"cell\":\"{cell}\",\"repetition\":{repetition},\"attempt\":{attempt},\"status\":\"ok\",\
             \"result\":{{\"images_per_second\":{speed}}}}}\n"
        )
    };
    let one: String = [(1, 100.0), (2, 200.0), (3, 300.0)]
        .map(|(number, speed)| record("one", number, 1, speed))
        .concat();
    let two: String = [(1, 190.0), (2, 280.0), (3, 540.0)]
        .map(|(number, speed)| record("two", number, 1, speed))
        .concat();
    std::fs::write(
        directory.path().join("records.jsonl"),
        one + &two + &record("two", 2, 2, 340.0),
    )
    .unwrap();
    let groups = read(&[directory.path()], &[], |_| ()).unwrap();
    let two = &groups[0].runs[1];
    assert_eq!(
        (two.images_per_second, two.scaled.unwrap().speedup),
        (340.0, 1.8)
    );
}
