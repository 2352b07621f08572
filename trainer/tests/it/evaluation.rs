//! Evaluation and prediction: the same model and data on all ranks, the training's classes, and
//! damaged checkpoints.

use std::fs;
use std::path::Path;

use crate::fixture::{
    Run, TINY, bitmap, ended_with, flags, parsed, run, silent, trainer, write_images,
};
use crate::resuming::sign;
use crate::shards::{photographs, sharded};
use anyhow::Result;
use distributed::communicator::SingleCommunicator;
use distributed::{Communicator, run_ranks};
use records::{Evaluation, EvaluationByClass};
use serde_json::Value;
use tempfile::TempDir;
use trainer::commands::eval::eval;
use trainer::commands::predict::predict;
use trainer::config::cli::{Command, TrainArgs};
use trainer::model::network::NetworkFamily;
use trainer::run::checkpoint::{self, CheckpointStore};
use trainer::task::Classification;

fn tiny(further: &str) -> TrainArgs {
    flags(&[
        TINY,
        "--shapes-train 48 --shapes-test 30 --epochs 1 --warmup-epochs 0",
        further,
    ])
}

/// Returns the result of `trainer eval` with the flags of each rank.
fn evaluated(
    world_size: usize,
    flags_of: impl Fn(usize) -> Vec<String> + Sync,
) -> Vec<Result<EvaluationByClass>> {
    run_ranks(world_size, |communicator| {
        let words = format!(
            "eval --threads 1 {}",
            flags_of(communicator.rank()).join(" ")
        );
        let Command::Eval(args) = parsed(&words) else {
            panic!("expected eval")
        };
        eval::<Classification<NetworkFamily>>(&args.into_args()?, &silent(communicator))
    })
}

fn of_checkpoint(directory: &Path, further: &[&str]) -> Vec<String> {
    let directory = directory.display().to_string();
    ["--checkpoint", &directory]
        .iter()
        .chain(further)
        .map(|word| (*word).to_owned())
        .collect()
}

/// Returns the evaluation of one rank, or the error.
pub(crate) fn alone(directory: &Path, further: &[&str]) -> Result<EvaluationByClass, String> {
    evaluated(1, |_| of_checkpoint(directory, further))
        .swap_remove(0)
        .map_err(|error| format!("{error:#}"))
}

/// Returns the error message, which must be the same on all ranks.
fn refusal(results: Vec<Result<EvaluationByClass>>) -> String {
    let texts: Vec<String> = results
        .into_iter()
        .map(|result| format!("{:#}", result.unwrap_err()))
        .collect();
    assert!(texts.windows(2).all(|pair| pair[0] == pair[1]), "{texts:?}");
    texts[0].clone()
}

/// Writes a folder of images of these classes. Later classes are brighter, and `offset` brightens
/// all classes.
fn image_folder(classes: &[&str], offset: u8) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (split, count) in [("train", 4_u8), ("test", 2)] {
        for (label, class) in (0_u8..).zip(classes) {
            write_images(
                folder.path(),
                split,
                class,
                (0..count).map(|image| offset + 60 * label + image),
            );
        }
    }
    folder
}

fn trained_on(folder: &TempDir) -> Run {
    let directory = folder.path().to_str().unwrap();
    let images = format!("--dataset image-folder --data-dir {directory} --image-size 8");
    run(
        1,
        &flags(&[
            "--model resnet8 --global-batch-size 4 --epochs 1 --warmup-epochs 0",
            &images,
        ]),
    )
}

#[test]
fn any_number_of_ranks_measures_what_one_does() {
    let run = run(1, &tiny(""));
    let expected = alone(&run.directory(), &[]).unwrap();
    assert_eq!(expected.scores.num_samples, 30);
    for world_size in [2, 3] {
        for result in evaluated(world_size, |_| of_checkpoint(&run.directory(), &[])) {
            let got = result.unwrap();
            assert!(
                (got.scores.loss - expected.scores.loss).abs() < 1e-5 * expected.scores.loss,
                "{} {}",
                got.scores.loss,
                expected.scores.loss
            );
            assert_eq!(
                EvaluationByClass {
                    scores: Evaluation {
                        loss: expected.scores.loss,
                        ..got.scores.clone()
                    },
                    ..got
                },
                expected
            );
        }
    }
}

#[test]
fn ranks_that_were_told_different_things_are_refused_alike_and_by_name() {
    let runs = ["1", "2"].map(|seed| run(1, &tiny(&format!("--seed {seed}"))));
    let text = refusal(evaluated(2, |rank| {
        of_checkpoint(&runs[rank].directory(), &[])
    }));
    assert!(
        text.contains("--checkpoint of rank 1 differs from root's: expected "),
        "{text}"
    );
    let seeds = ["0", "5"];
    let text = refusal(evaluated(2, |rank| {
        of_checkpoint(&runs[0].directory(), &["--shapes-seed", seeds[rank]])
    }));
    assert!(
        text.contains("data.shapes-seed of rank 1 differs from root's: expected 0, got 5"),
        "{text}"
    );
    // Each rank may have a different number of loading threads.
    let results = evaluated(2, |rank| {
        of_checkpoint(
            &runs[0].directory(),
            &["--loader-threads", ["0", "2"][rank]],
        )
    });
    results
        .into_iter()
        .for_each(|result| assert_eq!(result.unwrap().scores.num_samples, 30));
}

#[test]
fn another_data_set_is_looked_at_as_the_training_did_unless_flags_say_otherwise() {
    let photographs = photographs();
    let shards = sharded(photographs.path(), 24);
    let words = "--model resnet8 --global-batch-size 4 --epochs 1 --warmup-epochs 0 --dataset image-folder \
                 --resolution 16 --normalize-mean 0,0,0 --normalize-std 1,1,1";
    let run = run(
        1,
        &flags(&[words, "--data-dir", photographs.path().to_str().unwrap()]),
    );
    let evaluated = |further: &str| {
        let data = [
            "--dataset",
            "shards",
            "--data-dir",
            shards.path().to_str().unwrap(),
        ];
        let further: Vec<&str> = further.split_whitespace().collect();
        alone(&run.directory(), &[&data, &*further].concat())
            .unwrap()
            .scores
            .loss
    };
    let expected = alone(&run.directory(), &[]).unwrap().scores.loss;
    assert_eq!(evaluated(""), expected);
    assert_ne!(
        evaluated("--normalize-mean 0.5,0.5,0.5 --normalize-std 0.1,0.1,0.1"),
        expected
    );
    assert_ne!(evaluated("--image-size 24"), expected);
}

#[test]
fn images_to_train_on_are_neither_read_nor_needed_to_evaluate() {
    let folder = image_folder(&["cat", "dog", "eel"], 0);
    let shards = sharded(folder.path(), 100);
    // Without a file of names, classes have numbers as names. The number of classes is the
    // training's.
    fs::remove_file(shards.path().join("classes.txt")).unwrap();
    let of_training = [
        ("image-folder", folder.path().join("train")),
        ("shards", shards.path().join("train-000000.tar")),
    ];
    for (dataset, path) in of_training {
        let dir = path.parent().unwrap().display();
        let images = format!("--dataset {dataset} --data-dir {dir} --image-size 8");
        let run = run(
            1,
            &flags(&[
                "--model resnet8 --global-batch-size 4 --epochs 1 --warmup-epochs 0",
                &images,
            ]),
        );
        let expected = alone(&run.directory(), &[]).unwrap();
        let damaged = if path.is_dir() {
            path.join("cat/0.bmp")
        } else {
            path.clone()
        };
        fs::write(&damaged, "nothing of the kind").unwrap();
        assert_eq!(alone(&run.directory(), &[]).unwrap(), expected);
        fs::rename(&path, path.with_file_name("away")).unwrap();
        assert_eq!(alone(&run.directory(), &[]).unwrap(), expected);
    }
}

#[test]
fn labels_are_those_of_the_training_s_classes_by_name_whatever_classes_the_data_have() {
    let folder = image_folder(&["cat", "dog", "eel"], 0);
    let run = trained_on(&folder);
    let at = |folder: &Path, further: &[&str]| {
        let data_dir = folder.to_str().unwrap();
        alone(
            &run.directory(),
            &[&["--data-dir", data_dir], further].concat(),
        )
    };
    let by_position = ["--allow-changed-classes"];
    let expected = at(folder.path(), &[]).unwrap();
    assert_eq!(at(folder.path(), &by_position).unwrap(), expected);

    // Each class is evaluated in a separate folder, in which it has another label. The results add
    // up to the result of the whole folder.
    let mut right = 0;
    let mut num_samples = 0;
    for class in ["cat", "dog", "eel"] {
        let subset = image_folder(&["cat", "dog", "eel"], 0);
        for split in ["train", "test"] {
            for other in ["cat", "dog", "eel"]
                .iter()
                .filter(|other| **other != class)
            {
                fs::remove_dir_all(subset.path().join(split).join(other)).unwrap();
            }
        }
        let got = at(subset.path(), &[]).unwrap();
        right += got.scores.top1_correct.unwrap();
        num_samples += got.scores.num_samples;
    }
    assert_eq!(
        (right, num_samples),
        (
            expected.scores.top1_correct.unwrap(),
            expected.scores.num_samples
        )
    );

    // Unknown class names are rejected unless labels are positions.
    let renamed = image_folder(&["dog", "eel", "zebra"], 0);
    let text = at(renamed.path(), &[]).unwrap_err();
    assert!(
        text.contains("got images of others: zebra") && text.contains("--allow-changed-classes"),
        "{text}"
    );
    let got = at(renamed.path(), &by_position).unwrap();
    assert_eq!((got.scores.num_samples, got.scores), (6, expected.scores));
    let more = image_folder(&["cat", "dog", "eel", "fox"], 0);
    let text = at(more.path(), &by_position).unwrap_err();
    assert!(
        text.contains(r#"class 3 of 3: expected none, got "fox""#) && text.contains("no answer"),
        "{text}"
    );
}

#[test]
fn images_that_cannot_be_read_are_reported_beside_the_predictions_of_the_others() {
    let folder = image_folder(&["cat", "dog"], 0);
    let run = trained_on(&folder);
    let bad = folder.path().join("bad.jpg");
    fs::write(&bad, "no image").unwrap();
    let absent = folder.path().join("absent.png");
    let cats = folder.path().join("test/cat");
    let of_cats = fs::read_dir(&cats).unwrap().count();
    fs::write(cats.join("._hidden.jpg"), "no image").unwrap();
    let empty = tempfile::tempdir().unwrap();
    let named = [
        bad.as_path(),
        cats.as_path(),
        absent.as_path(),
        cats.as_path(),
        empty.path(),
    ];
    let words = named.iter().fold(
        format!(
            "predict --threads 1 --checkpoint {}",
            run.directory().display()
        ),
        |words, path| format!("{words} {}", path.display()),
    );
    let Command::Predict(args) = parsed(&words) else {
        panic!("expected predict")
    };
    let predictions = predict::<NetworkFamily>(&args, &silent(SingleCommunicator::new())).unwrap();
    assert_eq!(
        predictions.images.len(),
        of_cats + 3,
        "a folder named twice counts once, a hidden image does not count"
    );
    assert_eq!(predictions.exit_code(), std::process::ExitCode::FAILURE);
    let json = serde_json::to_value(&predictions).unwrap();
    let mut errors = Vec::new();
    for image in json["images"].as_array().unwrap() {
        let has_error = image.get("error").is_some();
        assert_eq!(
            image["classes"].as_array().unwrap().is_empty(),
            has_error,
            "{image}"
        );
        errors.extend(has_error.then(|| image["error"].as_str().unwrap().to_owned()));
    }
    assert_eq!(errors.len(), 3);
    for (error, path) in errors.iter().zip([&*bad, &*absent, empty.path()]) {
        assert!(error.contains(path.to_str().unwrap()), "{error}");
    }
}

/// Copies the run's checkpoint with a changed configuration. The copy is otherwise valid.
fn with_config(run: &Run, change: impl FnOnce(&mut Value)) -> TempDir {
    let (found, _) = checkpoint::find(&run.directory()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut state = found.state.clone();
    change(&mut state.config);
    let store = CheckpointStore::new(&folder.path().join("checkpoints"), 1);
    let model = fs::read(found.model_path()).unwrap();
    store
        .save(state, &found.training_tensors().unwrap(), None, &model)
        .unwrap();
    folder
}

#[test]
fn what_a_checkpoint_claims_beyond_its_weights_is_refused_before_memory_is_asked_for() {
    let run = run(1, &tiny(""));
    let image = run.directory().join("grey.bmp");
    fs::write(&image, bitmap(128)).unwrap();
    let predicted = |directory: &Path| {
        let words = format!(
            "predict --threads 1 --checkpoint {} {}",
            directory.display(),
            image.display()
        );
        let Command::Predict(args) = parsed(&words) else {
            panic!("expected predict")
        };
        let world = silent(SingleCommunicator::new());
        predict::<NetworkFamily>(&args, &world).map_err(|error| format!("{error:#}"))
    };
    assert_eq!(
        predicted(with_config(&run, |_| ()).path())
            .unwrap()
            .images
            .len(),
        1
    );
    let beyond_file = [
        "resnet9998 for 10 classes",
        "values, as many as the weights file has bytes",
    ];
    let no_network = [
        "--model: expected a network of at most 10000 layers",
        "got resnet",
    ];
    for (depth, words) in [
        (9_998_u64, beyond_file),
        (6_000_002, no_network),
        ((1 << 62) / 6 * 6 + 2, no_network),
    ] {
        let folder = with_config(&run, |config| {
            config["flags"]["model"]["model"] = format!("resnet{depth}").into()
        });
        for text in [
            alone(folder.path(), &[]).unwrap_err(),
            predicted(folder.path()).unwrap_err(),
        ] {
            assert!(words.iter().all(|word| text.contains(word)), "{text}");
        }
    }
    let folder = with_config(&run, |config| {
        config["flags"]["data"]["shapes-test"] = (1_u64 << 50).into()
    });
    let text = alone(folder.path(), &[]).unwrap_err();
    assert!(
        text.contains("--shapes-test: expected a whole number from 1 to 16777216"),
        "{text}"
    );
    let folder = with_config(&run, |config| {
        config["flags"]["data"]["shapes-test"] = (1_u64 << 24).into()
    });
    let text = alone(folder.path(), &[]).unwrap_err();
    assert!(
        text.contains("--shapes-test: expected at most 4294967296 bytes of images"),
        "{text}"
    );
    assert_eq!(
        alone(folder.path(), &["--shapes-test", "30"])
            .unwrap()
            .scores
            .num_samples,
        30
    );
    let folder = with_config(&run, |config| {
        config["flags"]["train-split"]["shapes-train"] = (1_u64 << 24).into()
    });
    let text = alone(folder.path(), &["--split", "train"]).unwrap_err();
    assert!(
        text.contains("--split: expected training images of at most 4294967296 bytes"),
        "{text}"
    );
    let folder = with_config(&run, |config| {
        config["flags"]["data"]["loader-threads"] = (1_u64 << 40).into()
    });
    let text = alone(folder.path(), &[]).unwrap_err();
    assert!(
        text.contains("--loader-threads: expected a whole number from 0 to 1024"),
        "{text}"
    );
}

#[test]
fn a_best_checkpoint_that_is_not_whole_gives_way_to_the_newest_and_that_is_said() {
    let run = run(
        1,
        &tiny("--epochs 2 --keep-checkpoints 9 --checkpoint-every-steps 1"),
    );
    let checkpoints = run.directory().join("checkpoints");
    let [first, third, last] = ["step-00000001", "step-00000003", "step-00000004"];
    let damage = |name: &str| {
        fs::write(
            checkpoints.join(name).join("model.safetensors"),
            "no tensors",
        )
        .unwrap()
    };
    let mark = |best: &str| {
        for name in ["step-00000001", "step-00000002", third, last] {
            let path = checkpoints.join(name).join("state.json");
            let mut state: Value =
                serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
            state["progress"]["epoch"] = 1.into();
            state["progress"]["step_in_epoch"] = u64::from(name != best).into();
            state["progress"]["best"] =
                serde_json::json!({"epoch": 0, "monitor": "test-top1", "value": 1.0});
            fs::write(path, state.to_string()).unwrap();
            sign(&checkpoints.join(name));
        }
    };
    mark(first);
    let (found, warnings) = checkpoint::find(&run.directory()).unwrap();
    assert_eq!(
        (found.directory.ends_with(first), warnings.len()),
        (true, 0)
    );
    // A newer checkpoint with an unreadable state might be better, so a warning names it.
    let state = checkpoints.join(last).join("state.json");
    let text = fs::read_to_string(&state).unwrap();
    fs::write(&state, &text[..text.len() / 2]).unwrap();
    let (found, warnings) = checkpoint::find(&run.directory()).unwrap();
    assert!(
        found.directory.ends_with(first) && warnings.len() == 1 && warnings[0].contains(last),
        "{warnings:?}"
    );
    fs::write(&state, text).unwrap();

    damage(first);
    let newest = alone(&checkpoints.join(last), &[]).unwrap();
    assert_eq!(alone(&run.directory(), &[]).unwrap(), newest);
    let said = ended_with(
        0,
        trainer("eval --threads 1 --checkpoint", &[&run.directory()]),
    );
    assert!(
        said.contains("warning: the best checkpoint cannot be read"),
        "{said}"
    );
    assert!(said.contains(first) && said.contains(last), "{said}");

    // The lost checkpoint may be absent, may be the newest, or may be one of several.
    mark("step-00000099");
    assert!(
        checkpoint::find(&run.directory())
            .unwrap()
            .0
            .directory
            .ends_with(last)
    );
    mark(last);
    damage(last);
    let (found, warnings) = checkpoint::find(&run.directory()).unwrap();
    assert!(
        found.directory.ends_with(third),
        "{}",
        found.directory.display()
    );
    assert_eq!(
        warnings
            .iter()
            .filter(|warning| warning.contains(last))
            .count(),
        1,
        "{warnings:?}"
    );
    for entry in fs::read_dir(&checkpoints).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.starts_with("step-") {
            damage(&name);
        }
    }
    let text = format!("{:#}", checkpoint::find(&run.directory()).unwrap_err());
    assert!(
        text.contains("no checkpoint") && text.contains(third) && text.contains(last),
        "{text}"
    );
    // An explicitly named checkpoint is not replaced by another one.
    assert!(checkpoint::find(&checkpoints.join(last)).is_err());
}
