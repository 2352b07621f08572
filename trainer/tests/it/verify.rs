//! `trainer verify` as a user starts it, on a backend that is not the reference.

use crate::fixture::{ended_with, trainer};
use std::path::Path;

use serde_json::Value;

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../burn-resnet/tests/golden");

fn verify(code: i32, words: &str, output: &Path) -> String {
    ended_with(
        code,
        trainer(&format!("verify {words} --output"), &[output]),
    )
}

#[test]
fn the_reference_learns_in_flat_memory_also_from_short_batches() {
    let directory = tempfile::tempdir().unwrap();
    let words = "--device flex --quick --threads 1 --only ten-steps,ranks,learning,memory";
    verify(0, words, &directory.path().join("verify.json"));
}

#[test]
fn wrong_numbers_fail_with_exit_code_1() {
    let directory = tempfile::tempdir().unwrap();
    let mut fixture = std::fs::read(Path::new(GOLDEN).join("resnet8.safetensors")).unwrap();
    // Flips bits of a thousand weights or gradients.
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
    let text = verify(1, &words, &file);
    // The name of the failing comparison identifies the changed weights.
    assert!(
        text.contains("WRONG: ") && text.contains("linear.weight "),
        "{text}"
    );
    let json: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(json["verdict"], "FAIL");
}

#[test]
fn unknown_checks_are_refused_with_the_known_ones() {
    let directory = tempfile::tempdir().unwrap();
    let words = "--device flex --only golden,speed";
    let text = verify(2, words, &directory.path().join("verify.json"));
    assert!(
        text.contains("known-answer,golden,ten-steps") && text.contains("got speed"),
        "{text}"
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

    /// The test below runs checks with many steps, which are slow on this backend.
    #[test]
    fn another_backend_computes_what_the_reference_computes() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("verify.json");
        let only = "--only known-answer,golden,ten-steps,ranks,nccl,checkpoints";
        let words = format!("--device ndarray --quick {only} --data-dir {GOLDEN}");
        let text = verify(0, &words, &file);
        let json: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        let expected = [
            ("known-answer", "skipped"),
            ("golden", "ok"),
            ("ten-steps", "ok"),
            ("ranks", "ok"),
            ("nccl", "skipped"),
            ("checkpoints", "ok"),
        ];
        assert_eq!(verdicts(&json), expected, "{text}");
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
        let words: Vec<&str> = text.split_whitespace().collect();
        let words = words.join(" ");
        assert!(words.contains("verify: ok: ndarray f32"), "{words}");
        assert!(
            words.contains("6 checks, 0 warn, 0 FAIL, 2 skipped (known-answer, nccl)"),
            "{words}"
        );
    }
}
