//! What is asked of the prediction, and what becomes of its answer.

use super::*;
use crate::plan::tests::study;

fn cells(lines: &str) -> Vec<Cell> {
    study(&format!(
        "[[matrix]]\nbatch_size_per_rank = 8\nranks = 2\n{lines}"
    ))
    .unwrap()
    .1
}

#[test]
fn a_method_is_that_of_the_cells_settings_or_not_predicted() {
    let of = |lines: &str| method(&cells(lines)[0]);
    assert_eq!(
        of("sync = \"parameter-server\"\nservers = 2"),
        Ok("parameter-server:2".to_owned())
    );
    assert_eq!(
        of("sync = \"post-local-sgd\""),
        Err("no prediction is known for sync post-local-sgd".to_owned())
    );
}

#[test]
fn only_more_ranks_than_hosts_share_one() {
    for (lines, expected) in [
        ("", None),
        ("network = \"hosts:1gbit\"", None),
        (
            "network = \"hosts:1gbit\"\nsync = \"parameter-server\"\nserver_placement = \"own\"",
            Some(2),
        ),
        ("network = \"slurm\"\nhosts = 1", Some(2)),
    ] {
        assert_eq!(ranks_per_node(&cells(lines)[0]), expected, "{lines}");
    }
}

#[test]
fn a_strong_cells_prediction_tells_no_speedup() {
    let predictions = || serde_json::json!({ "predictions": [{ "ranks": 2, "scaling": "weak", "speedup": 1.9, "efficiency": 0.95 }, { "ranks": 4 }] });
    let mut weak = predictions();
    let cell = &cells("")[0];
    assign(&mut weak, cell, 3);
    assert_eq!(
        (
            &weak["predictions"][0]["cell"],
            &weak["predictions"][0]["speedup"]
        ),
        (&cell.id.as_str().into(), &1.9.into())
    );
    assert!(weak["predictions"][1]["cell"].is_null() && weak["predictions"][0]["repetition"] == 3);
    let (_, strong) =
        study("[[matrix]]\nscaling = \"strong\"\nglobal_batch_size = 8\nranks = 2\n").unwrap();
    let mut value = predictions();
    assign(&mut value, &strong[0], 1);
    let prediction = &value["predictions"][0];
    assert_eq!(prediction["scaling"], "strong");
    assert!(
        prediction["speedup"].is_null() && prediction["efficiency"].is_null(),
        "{prediction}"
    );
}

#[test]
fn the_network_is_of_the_newest_quiet_attempt_else_of_the_newest_disturbed_one() {
    let directory = tempfile::tempdir().unwrap();
    let cell = &cells("")[0];
    let mut records = Records::open(directory.path()).unwrap();
    assert_eq!(measured(cell, &records, directory.path()), None);
    let mut found = Vec::new();
    for (repetition, attempt, status) in [
        (1, 1, "failed"),
        (1, 2, "disturbed"),
        (1, 10, "ok"),
        (2, 1, "disturbed"),
        (2, 9, "failed"),
    ] {
        let record = serde_json::json!({ "cell": cell.id, "repetition": repetition, "attempt": attempt, "status": status,
            "directory": format!("r{repetition}a{attempt}") });
        records
            .append(serde_json::from_value(record).unwrap())
            .unwrap();
        found.push(measured(cell, &records, directory.path()));
    }
    let file = |attempt: &str| Some(directory.path().join(attempt).join("network.json"));
    assert_eq!(
        found,
        [
            None,
            file("r1a2"),
            file("r1a10"),
            file("r1a10"),
            file("r1a10")
        ]
    );
}

#[test]
fn cells_that_differ_in_what_concerns_other_ranks_share_a_profile() {
    let cells = cells(
        "sync = [\"allreduce\", { sync = \"local-sgd\", every = 4 }]\ncompress = [\"none\", \"bf16\"]\n",
    );
    assert_eq!(cells.len(), 4);
    assert!(cells.iter().all(|cell| key(cell) == key(&cells[0])));
    let words = of_one_rank(&cells[0].arguments).join(" ");
    assert_eq!(
        words,
        "bench --dtype f32 --model resnet20 --threads 1 --batch-size-per-rank 8 --json"
    );
    assert_eq!(
        key(&self::cells(&format!("data_dir = \"/{}\"", "x".repeat(300)))[0]).len(),
        230,
        "it is a folder's name"
    );
    assert_eq!(
        step_seconds(&serde_json::json!({ "profile": { "forward_s": 1.0, "backward_s": 2.0 } })),
        3.0
    );
}

#[test]
fn a_disturbed_profile_is_taken_again_as_often_as_is_allowed() {
    for (disturbed, runs) in [(0, 1), (1, 2), (9, 3)] {
        let mut made = 0;
        let run = || {
            made += 1;
            Ok((made <= disturbed).then(|| "others".to_owned()))
        };
        until_undisturbed(3, "a", run).unwrap();
        assert_eq!(made, runs);
    }
}

#[test]
fn a_step_of_another_processor_predicts_nothing() {
    let check = |step: &str, nodes: &str| {
        let network = serde_json::json!({ "environment": { "processor": nodes } });
        check_processor(&serde_json::json!({ "cpu_model": step }), &network)
    };
    assert_eq!(
        check("A", "A")
            .and(check("A", "unknown"))
            .and(check_processor(&Value::Null, &Value::Null)),
        Ok(())
    );
    let told = check("A", "B").unwrap_err();
    assert!(told.contains("profiled on `A`, expected `B`"), "{told}");
}
