//! `trainer verify` as a user starts it, on a backend that is not the reference.

use crate::fixture::{program, told};
use std::path::Path;
use std::process::Output;

use serde_json::Value;

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../burn-resnet/tests/golden");

fn verify(words: &str, output: &Path) -> Output {
    let mut command = program();
    command
        .arg("verify")
        .args(words.split_whitespace())
        .arg("--output")
        .arg(output);
    command.output().unwrap()
}

#[test]
fn the_reference_learns_in_flat_memory_also_from_short_batches() {
    let directory = tempfile::tempdir().unwrap();
    let output = verify(
        "--device flex --quick --threads 1 --only ten-steps,ranks,learning,memory",
        &directory.path().join("verify.json"),
    );
    assert_eq!(output.status.code(), Some(0), "{}", told(&output));
}

#[test]
fn wrong_numbers_fail_with_exit_code_1() {
    let directory = tempfile::tempdir().unwrap();
    let mut fixture = std::fs::read(Path::new(GOLDEN).join("resnet8.safetensors")).unwrap();
    // The sign or the least bits of a thousand numbers: of weights or gradients.
    let middle = fixture.len() / 2;
    fixture[middle..middle + 4000]
        .iter_mut()
        .for_each(|byte| *byte ^= 0x80);
    std::fs::write(directory.path().join("resnet8.safetensors"), fixture).unwrap();
    let file = directory.path().join("verify.json");
    let words = format!(
        "--device flex --only golden --data-dir {}",
        directory.path().display()
    );
    let output = verify(&words, &file);
    assert_eq!(output.status.code(), Some(1), "{}", told(&output));
    assert!(told(&output).contains("WRONG: "), "{}", told(&output));
    // The failing comparison names the changed weights.
    assert!(
        told(&output).contains("linear.weight "),
        "{}",
        told(&output)
    );
    let json: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(json["verdict"], "FAIL");
}

#[test]
fn unknown_checks_are_refused_with_the_known_ones() {
    let directory = tempfile::tempdir().unwrap();
    let output = verify(
        "--device flex --only golden,speed",
        &directory.path().join("verify.json"),
    );
    assert_eq!(output.status.code(), Some(2), "{}", told(&output));
    assert!(
        told(&output).contains("known-answer,golden,ten-steps")
            && told(&output).contains("got speed")
    );
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[cfg(feature = "ndarray")]
mod second_opinion {
    use super::*;

    fn verdicts(json: &Value) -> Vec<(&str, &str)> {
        let checks = json["checks"].as_array().unwrap();
        checks
            .iter()
            .map(|check| {
                (
                    check["name"].as_str().unwrap(),
                    check["verdict"].as_str().unwrap(),
                )
            })
            .collect()
    }

    /// The test below runs the checks with many steps, which are slow on this backend.
    #[test]
    fn another_backend_computes_what_the_reference_computes() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("verify.json");
        let only = "--only known-answer,golden,ten-steps,ranks,nccl,checkpoints";
        let output = verify(
            &format!("--device ndarray --quick {only} --data-dir {GOLDEN}"),
            &file,
        );
        assert_eq!(output.status.code(), Some(0), "{}", told(&output));
        let json: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        let expected = [
            ("known-answer", "skipped"),
            ("golden", "ok"),
            ("ten-steps", "ok"),
            ("ranks", "ok"),
            ("nccl", "skipped"),
            ("checkpoints", "ok"),
        ];
        assert_eq!(verdicts(&json), expected, "{}", told(&output));
        assert_eq!(
            (&json["verdict"], &json["precision"]),
            (&"ok".into(), &"f32".into())
        );
        assert!(
            json["checks"][0]["found"]
                .as_str()
                .unwrap()
                .contains("resnet20-12fca82f.th")
        );
        for check in json["checks"].as_array().unwrap() {
            assert!(check["claim"].is_string() && check["seconds"].is_f64());
            for comparison in check["comparisons"].as_array().into_iter().flatten() {
                assert!(
                    comparison["got"].is_string() && comparison["tolerance"].is_string(),
                    "{comparison}"
                );
            }
        }
        let words = told(&output);
        let words: Vec<&str> = words.split_whitespace().collect();
        let words = words.join(" ");
        assert!(words.contains("verify: ok: ndarray f32"), "{words}");
        assert!(
            words.contains("6 checks, 0 warn, 0 FAIL, 2 skipped (known-answer, nccl)"),
            "{words}"
        );
    }
}
