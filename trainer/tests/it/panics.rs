//! Effect of a panic on the job, in a separate process with the panic hook of `distributed`.

use std::process::{Command, ExitCode, Output};
use std::thread;

use trainer::world::launch::{Start, launch};
use trainer::world::panics::caught;

/// Environment variable with the kind of panic of the separate process.
const KIND: &str = "LOCKSTEP_TEST_PANIC";

#[test]
fn a_caught_panic_on_any_thread_ends_no_job_and_another_ends_it() {
    if let Ok(kind) = std::env::var(KIND) {
        assert_eq!(
            launch(Start::World, |_| {
                panic_as(&kind);
                Ok(())
            }),
            ExitCode::SUCCESS
        );
        return;
    }
    let run = |kind: &str| -> Output {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let name = "panics::a_caught_panic_on_any_thread_ends_no_job_and_another_ends_it";
        command
            .args(["--exact", name, "--nocapture"])
            .env(KIND, kind)
            .output()
            .unwrap()
    };
    let told = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
    for kind in ["caught", "caught on a thread"] {
        let output = run(kind);
        assert!(
            output.status.success(),
            "{kind}: {:?}: {}",
            output.status,
            told(&output)
        );
    }
    for kind in ["not caught", "on a thread"] {
        let output = run(kind);
        assert!(told(&output).contains("on purpose"), "{}", told(&output));
        assert_eq!(output.status.code(), Some(101), "{kind}");
        assert!(
            told(&output).contains("error (rank 0): panicked"),
            "{}",
            told(&output)
        );
    }
}

fn panic_as(kind: &str) {
    let words: Result<(), String> = match kind {
        "caught" => caught(|| panic!("on purpose")),
        "caught on a thread" => caught(|| thread::spawn(|| panic!("on purpose")).join().unwrap()),
        "on a thread" => {
            let _ = thread::spawn(|| panic!("on purpose")).join();
            return;
        }
        _ => panic!("on purpose"),
    };
    assert!(words.unwrap_err().starts_with("panic at "));
}

#[cfg(feature = "parquet")]
#[test]
fn a_parquet_file_that_makes_its_library_panic_is_an_error_and_ends_no_job_by_a_panic() {
    let folder = tempfile::tempdir().unwrap();
    let damaged = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/fuzz/corpus/parquet/crash-length-beyond-page"
    );
    for name in ["train-0.parquet", "val-0.parquet"] {
        std::fs::copy(damaged, folder.path().join(name)).unwrap();
    }
    let words = "train --dataset parquet --model resnet8 --image-size 8 --epochs 1 --on-bad-image skip --data-dir";
    let mut command = crate::fixture::trainer(words, &[folder.path()]);
    command.arg("--output-dir").arg(folder.path().join("run"));
    let text = crate::fixture::ended_with(1, command);
    assert!(
        text.contains("train") && !text.contains("panicked"),
        "{text}"
    );
}
