//! Custom parts (optimizer, loss, metric, data set), and parts of a model with a separate
//! optimizer.

#[allow(dead_code)]
#[path = "../../examples/own_parts.rs"]
mod example;

use std::fs;

use burn::optim::{AdamWConfig, ModuleOptimizer};
use burn_resnet::{Head, load_weights_with, save_safetensors};
use datasets::DatasetSplits;
use distributed::replica::{ParameterLayout, read};
use trainer::config::cli::TrainArgs;
use trainer::config::{ConfigError, ModelOption};
use trainer::model::family::{ModelFamily, ModelRequest};
use trainer::model::network::{Network, NetworkFamily};
use trainer::run::checkpoint::find;

use crate::fixture::{Run, TINY, flags};
use example::{OwnParts, PartsArgs};

const OWN: &str = "--model resnet8 --dataset custom --limit-train 96 --limit-test 40 --global-batch-size 24 --epochs 2";

fn run_as<F: ModelFamily<Model = Network>>(
    world_size: usize,
    lines: &[&str],
) -> anyhow::Result<Run> {
    Run::in_new_directory().try_go_as::<F>(world_size, &flags(lines))
}

fn own(world_size: usize, options: &str) -> Run {
    run_as::<OwnParts>(world_size, &[OWN, options]).unwrap()
}

fn refusal<F: ModelFamily<Model = Network>>(lines: &[&str]) -> String {
    format!("{:#}", run_as::<F>(1, lines).unwrap_err())
}

#[test]
fn own_parts_learn_their_stripes_and_their_metric_stands_in_the_records() {
    let options =
        "--optimizer custom --learning-rate 0.003 --epochs 6 --schedule constant --warmup-epochs 0";
    let run = own(1, &format!("{options} --eval-every-epochs 6"));
    let record = run.last_record();
    let test = record.test.as_ref().unwrap();
    assert!(test.top1.unwrap() > 0.95, "{record:?}");
    // Both classes have the same number of images.
    assert_eq!(test.metrics["mean_class_accuracy"], test.top1.unwrap());
    let lines = fs::read_to_string(run.directory().join("metrics.jsonl")).unwrap();
    assert!(
        lines.contains("\"metrics\":{\"mean_class_accuracy\":"),
        "{lines}"
    );
}

#[test]
fn the_best_model_of_an_own_loss_is_that_of_the_lowest_loss_or_of_a_named_metric() {
    let of = |options: &str| own(1, options).outcomes()[0].progress.best.clone().unwrap();
    assert_eq!(of("").monitor, "test-loss");
    assert_eq!(
        of("--monitor mean_class_accuracy").monitor,
        "test-mean_class_accuracy"
    );
}

#[test]
fn an_own_optimizer_gives_the_same_bits_on_any_number_of_ranks_and_across_a_restart() {
    let exact = "--optimizer custom --learning-rate 0.001 --schedule constant --reduction exact --virtual-shards 2";
    let one = own(1, exact).parameter_hash();
    assert_eq!(own(2, exact).parameter_hash(), one);
    let half = own(2, &format!("{exact} --epochs 1"));
    let resumed = half
        .again()
        .try_go_as::<OwnParts>(2, &flags(&[OWN, exact, "--resume"]))
        .unwrap();
    assert_eq!(resumed.parameter_hash(), one);
    assert_ne!(
        own(1, &exact.replace("--optimizer custom", "--optimizer adamw")).parameter_hash(),
        one
    );
}

/// The same networks and images with another optimizer state and `CLASSES_LESS` fewer classes.
struct Other<const CLASSES_LESS: usize>;

impl<const CLASSES_LESS: usize> ModelFamily for Other<CLASSES_LESS> {
    const NAME: &'static str = OwnParts::NAME;
    const OPTIONS: &'static [ModelOption] = OwnParts::OPTIONS;
    type Args = PartsArgs;
    type Model = Network;

    fn fill(args: &mut PartsArgs) -> Result<(), ConfigError> {
        OwnParts::fill(args)
    }

    fn build(args: &PartsArgs, request: &ModelRequest<'_>) -> anyhow::Result<Network> {
        OwnParts::build(
            args,
            &ModelRequest {
                num_classes: request.num_classes - CLASSES_LESS,
                ..*request
            },
        )
    }

    fn optimizer(_: &PartsArgs) -> Option<ModuleOptimizer> {
        Some(AdamWConfig::new().init())
    }

    fn dataset(args: &PartsArgs) -> anyhow::Result<Option<DatasetSplits>> {
        OwnParts::dataset(args)
    }
}

#[test]
fn a_flag_of_an_own_loss_changes_the_loss_and_stands_among_the_options() {
    let with_gamma = |gamma: f64| {
        let mut args = flags(&[OWN]);
        let model = format!("model = \"resnet8\"\nfocal-gamma = {gamma:?}");
        args.model = toml::from_str(&model).unwrap();
        Run::in_new_directory().try_go_as::<OwnParts>(1, &args)
    };
    let run = with_gamma(0.0).unwrap();
    assert_ne!(run.parameter_hash(), own(1, "").parameter_hash());
    let options = fs::read_to_string(run.directory().join("run.toml")).unwrap();
    assert!(options.contains("focal-gamma = 0.0"), "{options}");
    assert_eq!(
        format!("{:#}", with_gamma(11.0).unwrap_err()),
        "--focal-gamma: expected a number from 0 to 10, got 11"
    );
}

#[test]
fn the_state_of_another_own_optimizer_is_refused() {
    let half = own(1, "--optimizer custom --schedule constant --epochs 1");
    let lines = [OWN, "--optimizer custom --schedule constant --resume"];
    let message = format!(
        "{:#}",
        half.again()
            .try_go_as::<Other<0>>(1, &flags(&lines))
            .unwrap_err()
    );
    assert!(
        message.contains("tensors to be of this optimizer, got 0"),
        "{message}"
    );
    half.again()
        .try_go_as::<OwnParts>(1, &flags(&lines))
        .unwrap();
}

#[test]
fn what_a_program_does_not_bring_and_what_its_parts_ignore_is_refused_before_anything_is_written() {
    let resnet = Run::try_go_as::<NetworkFamily>;
    let own = Run::try_go_as::<OwnParts>;
    let fewer_classes = Run::try_go_as::<Other<1>>;
    type Start = fn(Run, usize, &TrainArgs) -> anyhow::Result<Run>;
    let cases: [(Start, &str, &str, &[&str]); 11] = [
        (
            resnet,
            TINY,
            "--optimizer custom",
            &["--optimizer custom", "brings an optimizer"],
        ),
        (resnet, OWN, "", &["--dataset custom", "has a data set"]),
        (
            resnet,
            TINY,
            "--freeze layer9",
            &["--freeze layer9", "layer1, layer2, layer3"],
        ),
        (
            resnet,
            TINY,
            "--freeze conv1,bn1,layer1,layer2,layer3,linear",
            &["got none"],
        ),
        (
            fewer_classes,
            TINY,
            "--grad-accum-steps 1",
            &["model: expected logits [24, 10 or more]"],
        ),
        (
            own,
            OWN,
            "--class-weights balanced",
            &["--class-weights: no effect, since the custom loss"],
        ),
        (
            own,
            OWN,
            "--monitor val-cost",
            &["(expected one of test-loss, test-mean_class_accuracy, test-top1, got val-cost)"],
        ),
        (
            own,
            OWN,
            "--label-smoothing 0.1",
            &["--label-smoothing: no effect", "resnet-with-own-parts"],
        ),
        (
            own,
            OWN,
            "--loss binary-cross-entropy",
            &["--loss: no effect", "resnet-with-own-parts"],
        ),
        (
            own,
            OWN,
            "--mixup 0.2",
            &["--mixup: the custom loss", "resnet-with-own-parts"],
        ),
        (
            own,
            OWN,
            "--cutmix 1",
            &["--cutmix: the custom loss", "resnet-with-own-parts"],
        ),
    ];
    for (start, lines, options, parts) in cases {
        let run = Run::in_new_directory();
        let error = start(run.again(), 1, &flags(&[lines, options])).unwrap_err();
        let text = format!("{error:#}");
        assert!(
            parts.iter().all(|part| text.contains(part)),
            "{options}: {text}"
        );
        let is_early = options.contains("custom") || parts.contains(&"resnet-with-own-parts");
        assert!(!is_early || !run.directory().exists(), "{options}");
    }
}

/// Returns the parameters of `part` after a run.
fn part(run: &Run, part: &str) -> Vec<f32> {
    let model = &run.outcomes()[0].model;
    let trained = ParameterLayout::new(model);
    let frozen = ParameterLayout::state(model);
    let of = |layout: &ParameterLayout| {
        let values = read(model, layout);
        let entries = layout
            .entries()
            .iter()
            .filter(|entry| entry.path.starts_with(part) && !entry.path.contains("running"));
        entries
            .flat_map(|entry| values[entry.range()].to_vec())
            .collect::<Vec<_>>()
    };
    [of(&trained), of(&frozen)].concat()
}

#[test]
fn frozen_parts_stay_and_the_rest_learns_on_any_number_of_ranks() {
    for options in [
        "",
        "--reduction exact --virtual-shards 3",
        "--sync local-sgd --every 2",
        "--optimizer adamw --ema-decay 0.5",
    ] {
        let start = run_as::<NetworkFamily>(
            1,
            &[TINY, "--freeze conv1,bn1,layer1,layer2,layer3 --epochs 1"],
        )
        .unwrap();
        for world_size in [1, 3] {
            let run = run_as::<NetworkFamily>(
                world_size,
                &[TINY, "--freeze conv1,bn1,layer1 --epochs 1", options],
            )
            .unwrap();
            for frozen in ["conv1", "bn1", "layer1"] {
                assert_eq!(
                    part(&run, frozen),
                    part(&start, frozen),
                    "{frozen} {options} {world_size}"
                );
            }
            assert_ne!(
                part(&run, "layer2"),
                part(&start, "layer2"),
                "{options} {world_size}"
            );
        }
    }
}

#[test]
fn a_run_with_frozen_parts_goes_on_to_the_same_bits_and_no_rank_has_them_among_its_statistics() {
    let lines = [TINY, "--freeze conv1,bn1,layer1"];
    let whole = run_as::<NetworkFamily>(2, &lines).unwrap();
    let stopped = Run::in_new_directory()
        .stopping_after(4)
        .try_go_as::<NetworkFamily>(2, &flags(&lines))
        .unwrap();
    let (checkpoint, _) = find(&stopped.directory()).unwrap();
    let layout = ParameterLayout::statistics(&stopped.outcomes()[0].model);
    for row in checkpoint.training_tensors().unwrap().norm_statistics {
        assert_eq!(row.len(), layout.num_elements());
    }
    let resumed = stopped
        .again()
        .try_go_as::<NetworkFamily>(2, &flags(&[TINY, "--resume"]))
        .unwrap();
    assert_eq!(resumed.parameter_hash(), whole.parameter_hash());
    assert_eq!(part(&resumed, "layer1"), part(&whole, "layer1"));
}

#[test]
fn a_factor_on_the_rate_of_every_part_is_that_rate_and_the_longest_name_counts() {
    let plain = "--epochs 1 --schedule constant --warmup-epochs 0";
    let run = |options: &str| {
        run_as::<NetworkFamily>(1, &[TINY, plain, options])
            .unwrap()
            .parameter_hash()
    };
    let halved = run("--learning-rate 0.05");
    let all = "conv1=0.5,bn1=0.5,layer1=0.5,layer2=0.5,layer3=0.5,linear=0.5";
    assert_eq!(
        run(&format!(
            "--learning-rate 0.1 --learning-rate-factors {all}"
        )),
        halved
    );
    assert_eq!(
        run(&format!(
            "--learning-rate 0.1 --learning-rate-factors {all},layer1.0=0.5"
        )),
        halved
    );
    assert_ne!(
        run(&format!(
            "--learning-rate 0.1 --learning-rate-factors {all},layer1.0=0.25"
        )),
        halved
    );
}

#[test]
fn a_new_head_leaves_the_last_layer_of_a_file_with_other_classes_out() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ten_classes.safetensors");
    let trained = run_as::<NetworkFamily>(1, &[TINY, "--epochs 1"]).unwrap();
    save_safetensors(&trained.outcomes()[0].model, &file).unwrap();
    let still = format!(
        "--learning-rate 1e-30 --weight-decay 0 --epochs 1 --weights {}",
        file.display()
    );
    let message = refusal::<OwnParts>(&[OWN, &still]);
    assert!(
        message.contains("misshaped") && message.contains("linear.weight"),
        "{message}"
    );
    let tuned = run_as::<OwnParts>(1, &[OWN, &still, "--new-head"]).unwrap();
    for taken in ["conv1", "layer1", "layer3"] {
        assert_eq!(part(&tuned, taken), part(&trained, taken), "{taken}");
    }
    assert_eq!(part(&tuned, "linear").len(), 64 * 2 + 2);
    let (_, loaded) =
        load_weights_with(tuned.outcomes()[0].model.clone(), &file, Head::Own).unwrap();
    assert_eq!(
        (loaded.kept, loaded.taken.len()),
        (
            vec!["linear.weight".to_owned(), "linear.bias".to_owned()],
            35
        )
    );
}
