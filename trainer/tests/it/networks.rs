//! The networks of crate `networks` as models of the program.

use std::fs;
use std::process::ExitCode;

use burn::tensor::Device;
use distributed::communicator::SingleCommunicator;
use distributed::replica::{ParameterLayout, read};
use trainer::commands::verify_run::verify_run;
use trainer::config::ComputeSection;
use trainer::config::cli::{ModelSection, VerifyRunArgs};
use trainer::model::family::ModelRequest;
use trainer::model::network::NetworkFamily;
use trainer::run::checkpoint;
use trainer::task::{Classification, build};

use crate::fixture::{
    Run, bitmap, ended_with, flags, last_line_as_json, run, silent, succeed, trainer, write_images,
};

/// Two epochs of three steps.
const SMALL: &str =
    "--shapes-train 12 --shapes-test 4 --global-batch-size 4 --epochs 2 --warmup-epochs 0";

fn refused(words: &str) -> String {
    let result = Run::in_new_directory().try_go(1, &flags(&[SMALL, words]));
    format!("{:#}", result.unwrap_err())
}

#[test]
fn a_mobilenet_gives_the_same_bits_on_any_number_of_ranks_and_across_a_restart() {
    let words = "--model mobilenet-v2 --reduction exact --virtual-shards 2 --schedule constant";
    let whole = run(1, &flags(&[SMALL, words]));
    let half = run(2, &flags(&[SMALL, words, "--epochs 1"]));
    let resumed = half.again().go(2, &flags(&[SMALL, words, "--resume"]));
    assert_eq!(resumed.parameter_hash(), whole.parameter_hash());
    let args = VerifyRunArgs {
        run: whole.directory(),
        ..VerifyRunArgs::default()
    };
    let verdict =
        verify_run::<Classification<NetworkFamily>>(&args, &silent(SingleCommunicator::new()))
            .unwrap();
    assert_eq!(format!("{verdict:?}"), format!("{:?}", ExitCode::SUCCESS));
}

/// Trains in a process, since the draws of a pass come from the random numbers of the process.
#[test]
fn a_transformer_trains_with_its_own_optimizer_and_stochastic_depth_and_resumes_with_its_bits() {
    let folder = tempfile::tempdir().unwrap();
    let train = |directory: &str, further: &str| {
        let small = SMALL.replace("--epochs 2", "");
        let words = format!(
            "train {small} --threads 1 --model vit-tiny --optimizer custom --learning-rate 0.001 --schedule constant \
             --keep-checkpoints 1 {further} --output-dir"
        );
        trainer(&words, &[&folder.path().join(directory)])
    };
    let hash = |text: &str| {
        let line = text.lines().rfind(|line| line.contains("sha256"));
        line.unwrap().to_owned()
    };
    let drop = "--stochastic-depth 0.5";
    let whole = hash(&succeed(train("whole", &format!("{drop} --epochs 2"))));
    succeed(train("half", &format!("{drop} --epochs 1")));
    let text = ended_with(
        1,
        train("half", "--stochastic-depth 0.4 --epochs 2 --resume"),
    );
    assert!(text.contains("stochastic-depth"), "{text}");
    assert_eq!(hash(&succeed(train("half", "--epochs 2 --resume"))), whole);
    assert_ne!(hash(&succeed(train("other", "--epochs 2"))), whole);
}

#[test]
fn names_of_tensors_are_those_of_the_network_in_options_and_in_files() {
    let source = run(1, &flags(&[SMALL, "--model vit-tiny --epochs 1"]));
    let (found, _) = checkpoint::find(&source.directory()).unwrap();
    let weights = found.model_path().display().to_string();
    let layout = ParameterLayout::new(&source.outcomes()[0].model);
    let paths: Vec<&str> = layout
        .entries()
        .iter()
        .map(|entry| entry.path.as_str())
        .collect();
    assert_eq!(paths[..3], ["patches.weight", "patches.bias", "cls_token"]);
    let tuned = run(
        1,
        &flags(&[
            SMALL,
            "--model vit-tiny --epochs 1 --freeze patches,cls_token,positions,blocks,norm --weights",
            &weights,
        ]),
    );
    // Frozen parameters are not trainable, so they are part of the state.
    let state = |run: &Run| {
        let model = &run.outcomes()[0].model;
        let layout = ParameterLayout::state(model);
        (layout.num_elements(), read(model, &layout))
    };
    let (num_frozen, frozen) = state(&tuned);
    let before = read(&source.outcomes()[0].model, &layout);
    let num_head = 193 * 10;
    assert_eq!(num_frozen, layout.num_elements() - num_head);
    assert_eq!(frozen, before[..num_frozen]);
    let evaluated = |words: String| {
        let words = format!("{words} --shapes-test 4 --threads 1 --json");
        last_line_as_json(&succeed(trainer(&words, &[])))
    };
    let directory = source.directory();
    let of_run = evaluated(format!("eval --checkpoint {}", directory.display()));
    let of_file = evaluated(format!(
        "eval --model vit-tiny --dataset shapes --weights {weights}"
    ));
    assert_eq!(of_run["loss_mean"], of_file["loss_mean"]);
    let large = tempfile::tempdir().unwrap();
    for class in ["a", "b"] {
        write_images(large.path(), "train", class, [10]);
        write_images(large.path(), "test", class, [10]);
    }
    let words = format!(
        "eval --model vit-tiny --weights {weights} --resolution 1536 --dataset image-folder --data-dir"
    );
    let text = ended_with(1, trainer(&words, &[large.path()]));
    let expected = "values, as many as the weights file has bytes";
    assert!(text.contains(expected), "{text}");
    let image = directory.join("grey.bmp");
    fs::write(&image, bitmap(128)).unwrap();
    let words = format!("predict --threads 1 --checkpoint {}", directory.display());
    assert!(succeed(trainer(&words, &[&image])).contains("grey.bmp"));
    let other = format!("eval --model mobilenet-v2 --dataset shapes --weights {weights}");
    let text = ended_with(1, trainer(&other, &[]));
    assert!(text.contains("missing [stem.0.weight,"), "{text}");
}

#[test]
fn bench_measures_every_network_in_bf16() {
    for name in [
        "wide-resnet28-10",
        "mobilenet-v2",
        "convnext-tiny",
        "vit-tiny",
    ] {
        let words = format!(
            "bench --model {name} --dtype bf16 --batch-size-per-rank 1 --image-size 16 --steps 1 --warmup-steps 0 --threads 1 \
             --device flex --json"
        );
        let result = last_line_as_json(&succeed(trainer(&words, &[])));
        assert_eq!(
            (result["model"].as_str(), result["kernels"].as_str()),
            (Some(name), Some("fused"))
        );
    }
}

#[test]
fn what_a_network_does_not_support_is_refused_before_anything_is_written() {
    for (words, parts) in [
        (
            "--model mobilenet-v2 --zero-gamma",
            &[
                "--zero-gamma has no effect with --model mobilenet-v2",
                "remove --zero-gamma",
            ][..],
        ),
        (
            "--model vit-tiny --device flex --dtype f16",
            &["--dtype: expected f32 or bf16 with --model vit-tiny, got f16"],
        ),
        (
            "--model mobilenet-v2 --optimizer custom",
            &["--optimizer custom", "got none for mobilenet-v2"],
        ),
        (
            "--model convnext-tiny --freeze stem,layer1",
            &[
                "--freeze layer1",
                "as stem, downsamplings, stages, norm, head",
            ],
        ),
    ] {
        let error = refused(words);
        for part in parts {
            assert!(error.contains(part), "{words}: {part} is not in: {error}");
        }
    }
    let bench = |words: &str| ended_with(1, trainer(&format!("bench --threads 1 {words}"), &[]));
    let text = bench("--model vit-tiny --image-size 30");
    let expected =
        "expected multiples of 4 pixels for ViT-Ti/4, got 30 x 30 pixels; change --image-size";
    assert!(text.contains(expected), "{text}");
    let text = bench("--model convnext-tiny --image-size 8");
    assert!(text.contains("expected at least 16 x 16 pixels"), "{text}");
}

#[test]
fn a_transformer_refuses_images_of_several_sizes_and_other_networks_train_on_them() {
    let folder = tempfile::tempdir().unwrap();
    for split in ["train", "val"] {
        write_images(folder.path(), split, "a", [10, 20]);
        write_images(folder.path(), split, "b", [200, 210]);
    }
    let words = |model: &str| {
        let data = folder.path().display();
        let words = format!(
            "--model {model} --dataset image-folder --data-dir {data} --resolution 16:24@eval"
        );
        flags(&[&words, "--global-batch-size 4 --epochs 1 --warmup-epochs 0"])
    };
    run(1, &words("mobilenet-v2"));
    let result = Run::in_new_directory().try_go(1, &words("vit-tiny"));
    let error = format!("{:#}", result.unwrap_err());
    let expected = "--resolution: expected one size of all images with --model vit-tiny";
    assert!(
        error.contains(expected) && error.contains("got 24 x 24 and 16 x 16 pixels"),
        "{error}"
    );
}

#[test]
fn a_seed_draws_the_same_initial_weights_again() {
    let device = Device::flex().autodiff();
    let compute = ComputeSection::default();
    let drawn = |name: &str, seed| {
        let section = ModelSection::from_iter([("model", name)]);
        let request = ModelRequest {
            seed,
            ..ModelRequest::new(10, &compute, &device)
        };
        let task = Classification::<NetworkFamily>::default();
        let model = build(&task, &section.read().unwrap(), &request).unwrap();
        read(&model, &ParameterLayout::new(&model))
    };
    for name in ["mobilenet-v2", "vit-tiny"] {
        assert_eq!(drawn(name, 1), drawn(name, 1));
        assert_ne!(drawn(name, 1), drawn(name, 2));
    }
}
