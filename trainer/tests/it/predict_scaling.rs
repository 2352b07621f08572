//! `trainer predict-scaling` and `trainer bench --profile-output`, as a user starts them.

use crate::fixture::{ended_with, last_line_as_json, succeed, trainer};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use records::{BenchResult, PredictionFile};
use simulate::read_profile;

const BRIEF: &str = "--batch-size-per-rank 4 --steps 3 --warmup-steps 1 --threads 1";

fn profile(path: &Path) -> String {
    succeed(trainer(
        &format!("bench {BRIEF} --json --profile-output"),
        &[path],
    ))
}

#[test]
fn gradients_of_a_step_of_several_passes_leave_in_the_last() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("step.json");
    let words =
        format!("bench --model resnet8 --grad-accum-steps 3 {BRIEF} --json --profile-output");
    let text = succeed(trainer(&words, &[&path]));
    let result: BenchResult = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!(
        (
            result.batch_size_per_rank,
            result.grad_accum_steps,
            result.global_batch_size
        ),
        (4, Some(3), 12)
    );
    // The result contains all options that affect a step's sizes or computation, and no others.
    let told: Vec<&str> = result.options.keys().map(String::as_str).collect();
    let expected = "batch_norm convolution cpu grad_accum_steps image_size input num_classes overlap recompute reduction shortcut sync update";
    assert_eq!(
        (
            told.join(" ").as_str(),
            result.options["image_size"].as_str()
        ),
        (expected, "32")
    );
    let file = read_profile(&path).unwrap();
    assert_eq!(
        (
            file.options["recompute"].as_str(),
            file.options.get("overlap")
        ),
        ("none", None)
    );
    assert_eq!(file.batch_size_per_rank, 12);
    let in_the_last =
        |ready_s: f64| (file.backward_s * 2.0 / 3.0..=file.backward_s).contains(&ready_s);
    assert!(
        file.parameters
            .iter()
            .all(|parameter| in_the_last(parameter.ready_s))
    );
}

#[test]
fn a_measured_step_is_written_and_predicted_from() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let text = profile(Path::new(&path("step.json")));
    let file = read_profile(Path::new(&path("step.json"))).unwrap();
    assert_eq!(
        (file.model.as_str(), file.batch_size_per_rank, file.threads),
        ("resnet20", 4, 1)
    );
    let parts = file.forward_s + file.backward_s + file.optimizer_s + file.input_s + file.other_s;
    assert!(
        (parts / file.step_s - 1.0).abs() < 0.02,
        "{parts} of {}",
        file.step_s
    );
    let elements: usize = file
        .parameters
        .iter()
        .map(|parameter| parameter.shape.iter().product::<usize>())
        .sum();
    assert_eq!(
        (
            elements,
            file.buckets.iter().map(|bucket| bucket.bytes).sum()
        ),
        (269_722, 4 * 269_722)
    );
    // The classifier's gradient is ready long before the first convolution's.
    let ready = |name: &str| {
        file.parameters
            .iter()
            .find(|parameter| parameter.name == name)
            .unwrap()
            .ready_s
    };
    assert!(
        ready("linear.weight") < ready("conv1.weight") && ready("conv1.weight") <= file.backward_s
    );
    assert!(!file.kernel_seconds.is_empty());

    // The table compares each kernel's time in a step with the kernel's isolated time.
    let result: BenchResult = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    let is_of_layers =
        |name: &&String| !["global average", "linear layer, gradients"].contains(&name.as_str());
    assert!(
        result
            .kernel_seconds
            .keys()
            .filter(is_of_layers)
            .eq(result.kernels_alone.keys()),
        "{result:?}"
    );
    assert!(
        result
            .kernels_alone
            .values()
            .all(|alone| alone.seconds_per_step > 0.0)
    );
    assert!(
        (9.0..13.0).contains(&result.activation_walks),
        "{}",
        result.activation_walks
    );
    assert!(text.contains("x their isolated time"), "{text}");

    // `--measured` reads the output of `bench`.
    std::fs::write(path("runs.txt"), &text).unwrap();
    let words = format!(
        "predict-scaling --profile {} --network ib-edr,1gbe --ranks 1,8 --output {} --measured {} --json",
        path("step.json"),
        path("scaling.json"),
        path("runs.txt")
    );
    let text = succeed(trainer(&words, &[]));
    assert!(text.contains("predicted over 1gbe (named"), "{text}");
    let json = last_line_as_json(&text);
    let run = &json["measured"][0]["runs"][0];
    assert_eq!(
        (run["ranks"].as_u64(), run["scaled"]["speedup"].as_f64()),
        (Some(1), Some(1.0))
    );
    assert!(
        run["gap"].as_f64().is_some_and(|gap| gap.abs() < 1.0),
        "{run}"
    );
    for name in ["ib-edr", "1gbe"] {
        let text = std::fs::read_to_string(path(&format!("scaling-{name}.json"))).unwrap();
        let file: PredictionFile = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (file.schema.as_str(), file.network.name.as_str()),
            ("lockstep.prediction/1", name)
        );
        assert_eq!(file.predictions.len(), 2 * 9);
        assert!(file.predictions.iter().all(|record| {
            record
                .efficiency
                .is_some_and(|share| share > 0.0 && share <= 1.0 + 1e-9)
        }));
    }
    assert_eq!(
        std::fs::read_dir(directory.path()).unwrap().count(),
        4,
        "nothing else is left"
    );
}

#[test]
fn a_second_step_of_other_work_is_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let [first, second] =
        ["a.json", "b.json"].map(|name| directory.path().join(name).to_str().unwrap().to_owned());
    profile(Path::new(&first));
    let text = std::fs::read_to_string(&first).unwrap();
    let other = |from: &str, to: &str| {
        assert!(text.contains(from), "{text}");
        std::fs::write(&second, text.replace(from, to)).unwrap();
        let words =
            format!("predict-scaling --profile {first} --profile {second} --scaling strong");
        ended_with(1, trainer(&words, &[]))
    };
    let batch = "\"batch_size_per_rank\": 4";
    assert!(
        other("\"image_size\": \"32\"", "\"image_size\": \"64\"")
            .contains("image_size 64 instead of 32")
    );
    let error = other("\"kernels\": \"fused\"", "\"kernels\": \"stock\"");
    assert!(
        error.contains("got batch 4, kernels stock instead of fused"),
        "{error}"
    );
    assert!(other(batch, batch).contains("expected the step of") && text.contains(batch));
}

#[test]
fn strong_scaling_measures_two_batches_by_itself() {
    let words =
        "predict-scaling --scaling strong --network 10gbe --ranks 1,2,3 --methods allreduce:ring";
    let text = succeed(trainer(&format!("{words} {BRIEF}"), &[]));
    for part in [
        "batch 4 a rank",
        "batch 1 a rank",
        "not predicted: allreduce:ring on 3 ranks: they do not divide a global batch of 4",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn published_figures_stand_beside_what_is_simulated_of_them() {
    let text = succeed(trainer("predict-scaling --published", &[]));
    assert!(
        text.contains("published efficiency 84.2 %, predicted"),
        "{text}"
    );
    assert_eq!(text.matches("\npublished ").count(), 8);
    assert_eq!(
        text.matches("\npredicted nodes of 8 H100, not measured")
            .count(),
        12
    );
    assert_eq!(text.matches("assumed: ").count(), 20);
    assert!(!text.contains("samples/s"), "nothing is measured");
}

#[test]
fn bench_simulates_methods_of_every_kind() {
    for method in [
        "--compress bf16",
        "--sync local-sgd",
        "--sync async-parameter-server",
    ] {
        let words = format!("bench --simulate-network 1gbe --simulate-ranks 2,4 {BRIEF} {method}");
        let text = succeed(trainer(&words, &[]));
        let predicted = text.lines().filter(|line| line.starts_with("predicted "));
        assert_eq!(predicted.count(), 4, "{text}");
    }
}

#[test]
fn wrong_usage_has_code_2_and_names_the_flag_and_bad_files_have_code_1() {
    for (words, code, expected) in [
        ("--methods ring", 2, "--methods: expected allreduce"),
        ("--ranks 0", 2, "--ranks: expected 1 to 4096 ranks"),
        ("--output /", 2, "--output: expected the name of a file"),
        ("--profile /absent/step.json", 1, "/absent/"),
        ("--measured /absent/runs.txt", 1, "/absent/"),
        ("--output /absent/scaling.json", 1, "/absent/"),
    ] {
        let text = ended_with(code, trainer(&format!("predict-scaling {words}"), &[]));
        assert!(text.contains(expected), "{words}: {text}");
        assert_eq!(
            text.lines().count(),
            1,
            "refused before anything is printed"
        );
    }
}

#[test]
fn paths_need_not_be_utf_8() {
    let path = Path::new(OsStr::from_bytes(b"/absent/\xff"));
    for flag in ["--measured", "--profile"] {
        let text = ended_with(1, trainer(&format!("predict-scaling {flag}"), &[path]));
        assert!(text.contains("/absent/\u{fffd}"), "{flag}: {text}");
    }
}
