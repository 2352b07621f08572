//! The program as a user starts it: files of a short run, signals, evaluation, prediction, errors.

use crate::fixture::{bitmap, ended, ended_with, last_line_as_json, succeed, trainer};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

const TINY: &str = "train --model resnet8 --shapes-train 96 --shapes-test 40 --global-batch-size 32 --threads 1 --seed 7";

const STUDY: &str =
    "name = \"s\"\ntitle = \"S\"\nabout = \"A.\"\n[[matrix]]\nranks = 1\nbatch_size_per_rank = 8\n";

fn json_file(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// `cargo test` builds these programs. With `--test it` they may be absent or outdated.
#[test]
fn the_examples_of_own_models_start_as_no_flag_of_theirs_is_a_general_one() {
    for name in ["networks", "own_model", "own_parts"] {
        let example = Path::new(env!("CARGO_BIN_EXE_trainer"))
            .with_file_name("examples")
            .join(name);
        if !example.exists() {
            eprintln!(
                "not tried: {} is absent; cargo build -p trainer --examples",
                example.display()
            );
            continue;
        }
        let mut command = Command::new(example);
        command.arg("config");
        assert!(succeed(command).contains("[model]"), "{name}");
    }
}

#[test]
fn a_process_without_a_launcher_initialises_no_mpi() {
    let directory = tempfile::tempdir().unwrap();
    // Without ssh, a folder for temporary files or a home, Open MPI cannot start anything.
    let mut command = trainer(
        &format!("{TINY} --epochs 1 --output-dir"),
        &[&directory.path().join("run")],
    );
    command
        .env("PATH", "/no/such")
        .env("TMPDIR", "/proc")
        .env_remove("HOME");
    succeed(command);
}

#[test]
fn a_launchers_variable_that_is_left_over_is_named_with_its_remedy_and_an_empty_one_does_not_count()
{
    let run = |words: &str, variables: &[(&str, &str)]| {
        let mut command = trainer(words, &[]);
        command.envs(variables.iter().copied());
        ended(command)
    };
    let bench =
        "bench --model resnet8 --threads 1 --steps 2 --warmup-steps 1 --batch-size-per-rank 2";
    for (words, variables, expected) in [
        (
            bench,
            &[("PMI_SIZE", "4"), ("PMI_RANK", "0")][..],
            "For one process: unset PMI_SIZE",
        ),
        (
            bench,
            &[("SLURM_NTASKS", "4")],
            "For one process: unset SLURM_NTASKS",
        ),
        (
            bench,
            &[("OMPI_COMM_WORLD_SIZE", "x")],
            "If no launcher set it: unset OMPI_COMM_WORLD_SIZE",
        ),
        (
            "launch -n 1 -- config",
            &[("PMI_SIZE", "4"), ("PMI_RANK", "0")],
            "unset PMI_SIZE if no launcher set it",
        ),
    ] {
        let (code, text) = run(words, variables);
        assert!(
            code == Some(1) && text.contains(expected),
            "{words} {variables:?}: {code:?} {text}"
        );
    }
    for (words, variables) in [
        (bench, [("SLURM_NTASKS", ""), ("PMI_SIZE", "")]),
        (bench, [("PMI_SIZE", "1"), ("PMI_FD", "77")]),
        (
            &format!("launch -n 1 -- {bench}"),
            [("SLURM_NTASKS", "4"), ("SLURM_JOB_ID", "7")],
        ),
    ] {
        let (code, text) = run(words, &variables);
        assert_eq!(code, Some(0), "{words} {variables:?}: {text}");
    }
}

#[test]
fn a_configuration_is_that_of_as_many_ranks_as_were_started_and_the_first_one_prints_it() {
    let config = |rank: &str| {
        let mut command = trainer("config --batch-size-per-rank 16", &[]);
        command
            .env("OMPI_COMM_WORLD_SIZE", "4")
            .env("OMPI_COMM_WORLD_RANK", rank)
            .env("PMIX_NAMESPACE", "7");
        succeed(command)
    };
    assert!(
        config("0").contains("global-batch-size = 64"),
        "{}",
        config("0")
    );
    assert_eq!(config("1"), "");
}

#[test]
fn a_run_leaves_metrics_summary_configuration_manifest_log_and_checkpoints() {
    let directory = tempfile::tempdir().unwrap();
    let run = directory.path().join("run");
    let stdout = succeed(trainer(&format!("{TINY} --epochs 2 --output-dir"), &[&run]));
    assert!(stdout.contains("epoch 2 | train"), "{stdout}");
    let metrics = std::fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let lines: Vec<Value> = metrics
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 2);
    for key in [
        "train_loss",
        "train_top1",
        "images_per_second",
        "learning_rate",
    ] {
        assert!(lines[1][key].is_f64(), "{key} in {metrics}");
    }
    for key in ["loss", "top1", "top5"] {
        assert!(lines[1]["test"][key].is_f64(), "{key} in {metrics}");
    }
    for key in ["data", "forward", "backward", "communication", "optimizer"] {
        assert!(lines[1]["seconds"][key].is_f64(), "{key} in {metrics}");
    }
    assert_eq!(lines[1]["epoch"], 1);
    assert!(lines[1]["peak_memory_bytes"].as_u64().unwrap() > 1 << 20);
    let summary = json_file(&run.join("summary.json"));
    assert_eq!(summary["parameter_hash"].as_str().unwrap().len(), 64);
    assert_eq!(
        (&summary["steps"], &summary["images"]),
        (&Value::from(6), &Value::from(192))
    );
    assert_eq!(
        json_file(&run.join("manifest.json"))["dataset"]["name"],
        "shapes"
    );
    assert!(
        std::fs::read_to_string(run.join("run.toml"))
            .unwrap()
            .contains("resnet8")
    );
    assert!(
        std::fs::read_to_string(run.join("train.log"))
            .unwrap()
            .contains("epoch 2 | train")
    );
    let mode = |file: &str| {
        std::fs::metadata(run.join("checkpoints/step-00000006").join(file))
            .unwrap()
            .permissions()
    };
    assert_eq!(
        mode("model.safetensors"),
        mode("state.json"),
        "who may read one may read the other"
    );
}

#[test]
fn what_is_computed_again_takes_no_memory_and_leads_to_the_same_parameters() {
    let directory = tempfile::tempdir().unwrap();
    let [none, norms, convolutions] = ["none", "norms", "convolutions"].map(|recompute| {
        let run = directory.path().join(recompute);
        let flags =
            "train --model resnet32 --shapes-train 192 --shapes-test 10 --global-batch-size 96 --epochs 1 --threads 1";
        succeed(trainer(&format!("{flags} --recompute {recompute} --output-dir"), &[&run]));
        let (summary, metrics) = (json_file(&run.join("summary.json")), std::fs::read(run.join("metrics.jsonl")));
        let metrics: Value = serde_json::from_slice(&metrics.unwrap()).unwrap();
        (summary["parameter_hash"].clone(), metrics["peak_memory_bytes"].as_u64().unwrap() >> 20)
    });
    assert!(
        [&norms, &convolutions]
            .iter()
            .all(|(hash, _)| *hash == none.0)
    );
    // The unit is an activation of 16 channels, 6 MiB. The convolutions' outputs take 17.5 units,
    // of which `convolutions` keeps a few. The blocks' outputs take half as many, of which `norms`
    // keeps one stage at a time.
    let saved = [&norms, &convolutions].map(|(_, mib)| none.1 - mib);
    assert!(
        saved[0] >= 20 && saved[1] >= 60,
        "{none:?}, {norms:?}, {convolutions:?}"
    );
}

#[test]
fn a_watch_until_the_end_succeeds_only_if_the_run_has_finished() {
    let directory = tempfile::tempdir().unwrap();
    let run = directory.path().join("run");
    succeed(trainer(&format!("{TINY} --epochs 1 --output-dir"), &[&run]));
    let code = || {
        let (code, text) = ended(trainer("watch --until-end", &[&run]));
        (code, text.contains("stopped with a checkpoint"))
    };
    assert_eq!(code(), (Some(0), false));
    // A copy may write the summary before the manifest.
    let manifest = std::fs::File::options()
        .append(true)
        .open(run.join("manifest.json"))
        .unwrap();
    manifest
        .set_modified(std::time::SystemTime::now() + std::time::Duration::from_secs(9))
        .unwrap();
    assert_eq!(code(), (Some(0), false));
    let mut summary = json_file(&run.join("summary.json"));
    summary["stopped_early"] = true.into();
    std::fs::write(run.join("summary.json"), summary.to_string()).unwrap();
    assert_eq!(code(), (Some(3), true));
}

#[test]
fn a_checkpoint_evaluates_to_what_training_measured_and_predicts() {
    let directory = tempfile::tempdir().unwrap();
    let run = directory.path().join("run");
    succeed(trainer(&format!("{TINY} --epochs 1 --output-dir"), &[&run]));
    let eval = last_line_as_json(&succeed(trainer("eval --json --checkpoint", &[&run])));
    let metrics: Value = serde_json::from_str(
        std::fs::read_to_string(run.join("metrics.jsonl"))
            .unwrap()
            .trim(),
    )
    .unwrap();
    assert_eq!(eval["num_samples"], 40);
    assert_eq!(eval["top1_correct"], metrics["test"]["top1_correct"]);
    assert_eq!(eval["top5_correct"], metrics["test"]["top5_correct"]);
    // `eval` and the run's test sum the samples in batches of different sizes.
    let (eval_loss, test_loss) = (
        eval["loss"].as_f64().unwrap(),
        metrics["test"]["loss"].as_f64().unwrap(),
    );
    assert!(
        (eval_loss - test_loss).abs() < 1e-5 * test_loss,
        "{eval_loss} {test_loss}"
    );

    let white = directory.path().join("white.bmp");
    std::fs::write(&white, bitmap(255)).unwrap();
    let predicted = last_line_as_json(&succeed(trainer(
        "predict --json --checkpoint",
        &[&run, &white],
    )));
    let classes = predicted["images"][0]["classes"].as_array().unwrap();
    assert_eq!(classes.len(), 5);
    assert!(
        classes
            .windows(2)
            .all(|pair| pair[0]["probability"].as_f64() >= pair[1]["probability"].as_f64())
    );
}

#[test]
fn bench_ends_with_one_line_of_json_and_writes_its_job_for_other_programs() {
    let directory = tempfile::tempdir().unwrap();
    let job = directory.path().join("job");
    let words = "bench --model resnet8 --batch-size-per-rank 4 --steps 2 --warmup-steps 1 --threads 1 --device flex --json --export-job";
    let result = last_line_as_json(&succeed(trainer(words, &[&job])));
    assert!(result["images_per_second"].as_f64().unwrap() > 0.0);
    assert!(result["step_milliseconds_median"].as_f64().unwrap() > 0.0);
    assert!(result["peak_memory_bytes"].as_u64().unwrap() > 1 << 20);
    assert_eq!(
        (&result["ranks"], &result["threads"]),
        (&Value::from(1), &Value::from(1))
    );
    let losses: Vec<f64> = result["losses"]
        .as_array()
        .unwrap()
        .iter()
        .map(|loss| loss.as_f64().unwrap())
        .collect();
    assert_eq!(
        (losses.len(), result["loss_mean"].as_f64()),
        (3, losses.last().copied())
    );
    let told = json_file(&job.join("job.json"));
    assert_eq!(
        (&told["schema"], &told["depth"], &told["shortcut"]),
        (&"lockstep.job/1".into(), &8.into(), &"a".into())
    );
    assert_eq!(told["sgd"]["momentum"], 0.9);
    let bytes = std::fs::read(job.join("batches-rank0.safetensors")).unwrap();
    let batches = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(batches.tensor("images").unwrap().shape(), [4, 4, 32, 32, 3]);
    let bytes = std::fs::read(job.join("weights.safetensors")).unwrap();
    let weights = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(weights.tensor("linear.weight").unwrap().shape(), [10, 64]);
}

#[test]
fn a_run_is_not_begun_in_a_folder_of_images_even_with_resume() {
    let images = tempfile::tempdir().unwrap();
    std::fs::create_dir(images.path().join("train")).unwrap();
    let words = format!("{TINY} --resume --output-dir");
    let text = ended_with(2, trainer(&words, &[images.path()]));
    assert!(text.contains("holds the folders of a data set"), "{text}");
    assert_eq!(std::fs::read_dir(images.path()).unwrap().count(), 1);
}

#[test]
fn a_wrong_command_of_many_ranks_is_one_error_and_nothing_is_started_or_written() {
    let folder = tempfile::tempdir().unwrap();
    for (words, expected) in [
        (
            "launch -n 2 -- train --epochs 0",
            "error: --epochs: expected a whole number from 1, got 0",
        ),
        ("launch -n 2 -- train --epoch 1", "'--epochs'"),
        ("launch -n 2 -- bench --epochs 1", "--epochs for `train`"),
        (
            "launch -n 2 -- train --resume --output-dir none",
            "resume, got none, which does not exist",
        ),
        ("launch -n 2 -- train --resume", "resume, got none. Name"),
        ("train --resume", "resume, got none. Name the run"),
    ] {
        let mut command = trainer(words, &[]);
        // Without a PATH there is no mpirun.
        command.current_dir(folder.path()).env("PATH", "");
        let text = ended_with(2, command);
        assert!(text.contains(expected), "{words}: {text}");
        assert_eq!(text.matches("error: ").count(), 1, "{words}: {text}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn what_a_command_was_asked_for_is_printed_whole_or_is_an_error_unless_the_reader_has_left() {
    let directory = tempfile::tempdir().unwrap();
    let study = directory.path().join("study.toml");
    std::fs::write(&study, STUDY).unwrap();
    for words in [
        "config",
        "completions bash",
        "launch --dry-run -n 1 -- train",
        "study --dry-run",
    ] {
        let of = |stdout: Stdio| {
            let mut command = trainer(words, &[]);
            command.args(words.starts_with("study").then_some(&study));
            let output = command.stdout(stdout).output().unwrap();
            (
                output.status.code(),
                String::from_utf8_lossy(&output.stderr).into_owned(),
            )
        };
        let full = std::fs::File::options()
            .write(true)
            .open("/dev/full")
            .unwrap();
        let (code, text) = of(full.into());
        assert!(
            code == Some(1) && text.contains("standard output"),
            "{words}: {code:?} {text}"
        );
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let (code, text) = of(writer.into());
        assert!(
            code == Some(0) && !text.contains("panicked"),
            "{words}: {code:?} {text}"
        );
    }
}
