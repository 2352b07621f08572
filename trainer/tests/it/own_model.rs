//! A custom model family of burn's stock layers: flags, runs, checkpoints, measurements, errors.

// tidy: long file because one custom model family goes through every command
use std::path::{Path, PathBuf};

use anyhow::Result;
use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig, PaddingConfig2d};
use burn::tensor::activation::{relu, softmax};
use burn::tensor::{Device, Tensor, TensorData};
use clap::{Args, CommandFactory, Parser};
use datasets::{ImageShape, ShapesDataset};
use distributed::run_ranks;
use records::EvaluationByClass;
use serde::{Deserialize, Serialize};
use trainer::commands::eval::eval;
use trainer::commands::predict::predict;
use trainer::commands::train::train;
use trainer::config::cli::{CliOf, CommandOf, EvalArgs, PredictArgs, TrainArgs};
use trainer::config::{BenchConfig, ConfigError, Family, ModelOption, TrainConfig};
use trainer::model::family::{ModelFamily, ModelRequest};
use trainer::model::network::NetworkFamily;
use trainer::model::{ImageClassifier, floats};
use trainer::run::train::Outcome;
use trainer::task::Classification;
use trainer::tools::bench::measure;
use trainer::world::ranks::World;

use crate::fixture::{bitmap, flags as flags_of_resnet, silent};

pub(crate) const TINY: &str =
    "--shapes-train 48 --shapes-test 16 --global-batch-size 16 --schedule constant --threads 1";

/// A basic block with pytorch-cifar's names of parts.
#[derive(Module, Debug)]
struct Block {
    conv1: Conv2d,
    bn1: BatchNorm,
    shortcut: (Conv2d, BatchNorm),
}

#[derive(Module, Debug)]
pub(crate) struct Net {
    conv1: Conv2d,
    layer1: Vec<Block>,
    linear: Linear,
}

fn convolution(channels: [usize; 2], kernel: usize, device: &Device) -> Conv2d {
    let pad = kernel / 2;
    Conv2dConfig::new(channels, [kernel, kernel])
        .with_stride([2, 2])
        .with_padding(PaddingConfig2d::Explicit(pad, pad, pad, pad))
        .with_bias(false)
        .init(device)
}

impl Net {
    pub(crate) fn new(channels: usize, num_classes: usize, device: &Device) -> Self {
        let norm = || BatchNormConfig::new(8).init(device);
        let block = Block {
            conv1: convolution([channels, 8], 3, device),
            bn1: norm(),
            shortcut: (convolution([channels, 8], 1, device), norm()),
        };
        Self {
            conv1: convolution([3, channels], 3, device),
            layer1: vec![block],
            linear: LinearConfig::new(8, num_classes).init(device),
        }
    }
}

impl ImageClassifier for Net {
    fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let stem = relu(self.conv1.forward(images.permute([0, 3, 1, 2])));
        let features = self.layer1.iter().fold(stem, |x, block| {
            let shortcut = block
                .shortcut
                .1
                .forward(block.shortcut.0.forward(x.clone()));
            relu(block.bn1.forward(block.conv1.forward(x)) + shortcut)
        });
        self.linear
            .forward(features.mean_dim(3).mean_dim(2).flatten(1, 3))
    }
}

#[derive(Debug, Default, Args, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct TinyArgs {
    /// Channels of the stem [default: 4]
    #[arg(long, value_name = "CHANNELS")]
    stem_channels: Option<usize>,
}

struct TinyFamily;

impl ModelFamily for TinyFamily {
    const NAME: &'static str = "tiny-net";
    type Args = TinyArgs;
    type Model = Net;

    fn fill(args: &mut TinyArgs) -> Result<(), ConfigError> {
        args.stem_channels.get_or_insert(4);
        Ok(())
    }

    fn build(args: &TinyArgs, request: &ModelRequest<'_>) -> Result<Net> {
        Ok(Net::new(
            args.stem_channels.unwrap(),
            request.num_classes,
            request.device,
        ))
    }
}

/// One of several networks.
#[derive(Module, Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one network")]
enum AnyNet {
    Tiny(Net),
    #[allow(dead_code, reason = "an enum of one variant is no choice")]
    Single(Linear),
}

#[derive(Module, Debug)]
struct Chosen {
    network: AnyNet,
}

impl ImageClassifier for Chosen {
    fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        match &self.network {
            AnyNet::Tiny(net) => net.forward(images),
            AnyNet::Single(linear) => linear.forward(images.flatten(1, 3)),
        }
    }
}

struct ChosenFamily;

impl ModelFamily for ChosenFamily {
    const NAME: &'static str = "chosen-net";
    type Args = LabelArgs;
    type Model = Chosen;

    fn build(_: &LabelArgs, request: &ModelRequest<'_>) -> Result<Chosen> {
        Ok(Chosen {
            network: AnyNet::Tiny(Net::new(4, request.num_classes, request.device)),
        })
    }
}

#[derive(Debug, Default, Args, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct LabelArgs {
    #[arg(long)]
    label: Option<String>,
}

/// A family that supports `--dtype` and that a flag names.
struct LabelledFamily;

impl ModelFamily for LabelledFamily {
    const NAME: &'static str = "labelled";
    const OPTIONS: &'static [ModelOption] = &[ModelOption::Dtype];
    type Args = LabelArgs;
    type Model = Net;

    fn name(args: &LabelArgs) -> String {
        args.label.clone().unwrap_or_else(|| "labelled".to_owned())
    }

    fn build(_: &LabelArgs, request: &ModelRequest<'_>) -> Result<Net> {
        Ok(Net::new(4, request.num_classes, request.device))
    }
}

fn parsed<F: ModelFamily>(words: &str) -> CommandOf<F::Args> {
    CliOf::try_parse_from(["own"].into_iter().chain(words.split_whitespace()))
        .unwrap()
        .into_command()
}

pub(crate) fn flags<F: ModelFamily>(words: &str) -> TrainArgs {
    let CommandOf::Train(args) = parsed::<F>(&format!("train {words}")) else {
        panic!("expected train")
    };
    args.into_args().unwrap()
}

fn eval_flags<F: ModelFamily>(words: &str) -> EvalArgs {
    let CommandOf::Eval(args) = parsed::<F>(&format!("eval --threads 1 {words}")) else {
        panic!("expected eval")
    };
    args.into_args().unwrap()
}

fn bench_config(words: &str) -> Result<BenchConfig, ConfigError> {
    let words = format!("bench --threads 1 {words}");
    let CommandOf::Bench(args) = parsed::<TinyFamily>(&words) else {
        panic!("expected bench")
    };
    BenchConfig::resolve(
        &args.into_args()?,
        &Family::of::<Classification<TinyFamily>>(),
        1,
    )
}

fn predict_flags(words: &str) -> PredictArgs {
    let words = format!("predict --threads 1 {words}");
    let CommandOf::Predict(args) = parsed::<TinyFamily>(&words) else {
        panic!("expected predict")
    };
    args
}

/// Returns root's result or error.
pub(crate) fn on_root<T: Send>(
    num_ranks: usize,
    work: impl Fn(&World) -> Result<T> + Sync,
) -> Result<T, String> {
    let results = run_ranks(num_ranks, |communicator| {
        work(&silent(communicator)).map_err(|error| format!("{error:#}"))
    });
    results.into_iter().next().unwrap()
}

fn run(directory: &Path, num_ranks: usize, words: &str) -> Result<Outcome<Net>, String> {
    let epochs = if words.contains("--epochs") {
        ""
    } else {
        "--epochs 1"
    };
    let args = flags::<TinyFamily>(&format!(
        "{TINY} {epochs} --output-dir {} {words}",
        directory.display()
    ));
    on_root(num_ranks, |world| {
        train::<Classification<TinyFamily>>(&args, world)
    })
}

/// Returns the hash of the run's final parameters.
fn trained(directory: &Path, num_ranks: usize, words: &str) -> Result<String, String> {
    run(directory, num_ranks, words).map(|outcome| outcome.parameter_hash)
}

pub(crate) fn evaluated<F: ModelFamily>(
    directory: &Path,
    words: &str,
) -> Result<EvaluationByClass, String> {
    let args = eval_flags::<F>(&format!("--checkpoint {} {words}", directory.display()));
    on_root(1, |world| eval::<Classification<F>>(&args, world))
}

fn run_toml(directory: &Path) -> String {
    std::fs::read_to_string(directory.join("run.toml")).unwrap()
}

fn train_resnet(directory: &Path) {
    let args = flags_of_resnet(&[
        TINY,
        "--model resnet8 --epochs 1 --output-dir",
        directory.to_str().unwrap(),
    ]);
    on_root(1, |world| {
        train::<Classification<NetworkFamily>>(&args, world).map(drop)
    })
    .unwrap();
}

pub(crate) struct Folder(tempfile::TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn run(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

#[test]
fn a_model_with_a_field_called_shortcut_goes_on_from_its_own_checkpoint() {
    let folder = Folder::new();
    let whole = trained(&folder.run("whole"), 1, "--epochs 2").unwrap();
    trained(&folder.run("parts"), 1, "").unwrap();
    assert_eq!(
        trained(&folder.run("parts"), 1, "--resume --epochs 2").unwrap(),
        whole
    );
    let saved = run_toml(&folder.run("parts"));
    assert!(saved.contains("family = \"tiny-net\""), "{saved}");
    for absent in [
        "shortcut",
        "dtype",
        "kernels",
        "convolution",
        "cpu",
        "zero-gamma",
    ] {
        assert!(
            !saved.contains(&format!("{absent} = ")),
            "{absent} has no effect, but is in {saved}"
        );
    }
}

#[test]
fn training_begins_with_the_weights_of_a_file() {
    let folder = Folder::new();
    let hash = trained(&folder.run("source"), 1, "--seed 1").unwrap();
    let weights = folder
        .run("source")
        .join("checkpoints/step-00000003/model.safetensors");
    // The steps are so short that no parameter changes.
    let words = format!(
        "--seed 2 --learning-rate 1e-37 --weight-decay 0 --weights {}",
        weights.display()
    );
    assert_eq!(trained(&folder.run("begun"), 1, &words).unwrap(), hash);
}

#[test]
fn parts_of_a_network_in_an_enum_have_the_names_of_that_network_in_options_and_files() {
    let folder = Folder::new();
    let source = run(&folder.run("source"), 1, "--seed 1").unwrap();
    let weights = folder
        .run("source")
        .join("checkpoints/step-00000003/model.safetensors");
    let chosen = |name: &str, words: &str| {
        let directory = folder.run(name);
        let args = format!(
            "{TINY} --epochs 1 --output-dir {} {words}",
            directory.display()
        );
        let args = flags::<ChosenFamily>(&args);
        on_root(1, |world| {
            train::<Classification<ChosenFamily>>(&args, world)
        })
        .map(|outcome| match outcome.model.network {
            AnyNet::Tiny(net) => net,
            AnyNet::Single(_) => panic!("the network changed"),
        })
    };
    let of = |tensor: Tensor<4>| floats(tensor.into_data()).unwrap();
    let (conv1, block) = (
        of(source.model.conv1.weight.val()),
        of(source.model.layer1[0].conv1.weight.val()),
    );
    for part in ["conv1", "network.conv1"] {
        let factors = format!(
            "--learning-rate-factors layer1.0.conv1=0.5 --weights {}",
            weights.display()
        );
        let net = chosen(part, &format!("--freeze {part} {factors}")).unwrap();
        assert_eq!(of(net.conv1.weight.val()), conv1, "{part} is frozen");
        assert_ne!(of(net.layer1[0].conv1.weight.val()), block);
    }
    let text = chosen("unknown", "--freeze stem").unwrap_err();
    assert!(
        text.contains("as conv1, layer1, linear, or one within them"),
        "{text}"
    );
    let written = folder
        .run("conv1")
        .join("checkpoints/step-00000003/model.safetensors");
    trained(
        &folder.run("back"),
        1,
        &format!("--weights {}", written.display()),
    )
    .unwrap();
}

#[test]
fn what_has_no_effect_or_cannot_be_is_refused_before_anything_is_written() {
    let folder = Folder::new();
    let run = folder.run("run");
    for (words, expected) in [
        (
            "--dtype bf16",
            "--dtype has no effect on models of the family tiny-net: leave it out",
        ),
        (
            "--kernels stock",
            "--kernels has no effect on models of the family tiny-net",
        ),
        ("--convolution direct", "--convolution has no effect on"),
        ("--cpu portable", "--cpu, or LOCKSTEP_CPU, has no effect on"),
        ("--zero-gamma", "--zero-gamma has no effect on"),
        (
            "--batch-norm sync",
            "--batch-norm sync: this model has no synchronised norm",
        ),
        (
            "--weights /absent.pth",
            "--weights: /absent.pth: No such file",
        ),
    ] {
        let text = trained(&run, 1, words).unwrap_err();
        assert!(text.starts_with(expected), "{words}: {text}");
        assert_eq!(
            text.matches("No such file").count(),
            usize::from(words.contains("absent")),
            "{text}"
        );
        assert!(!run.exists(), "{words} left {}", run.display());
    }
}

#[test]
fn a_family_heeds_the_options_that_it_names_and_its_models_have_names() {
    let family = Family::of::<Classification<LabelledFamily>>();
    let resolve =
        |words: &str| TrainConfig::resolve_for(&family, &flags::<LabelledFamily>(words), 1);
    let config = resolve("--device flex --dtype bf16 --label first").unwrap();
    let text = config.to_toml();
    assert!(
        text.contains("dtype = \"bf16\"") && !text.contains("kernels"),
        "{text}"
    );
    assert_eq!(
        TrainConfig::resolve_over(&text, &family, &flags::<LabelledFamily>(""), 1).unwrap(),
        config
    );
    assert_eq!(
        serde_json::from_value::<TrainConfig>(serde_json::to_value(&config).unwrap()).unwrap(),
        config
    );
    assert_eq!(config.run_name(), "first-shapes-bf16-seed0");
    assert!(resolve("--kernels stock").is_err());
    for name in ["a/b", "..", ".hidden", "a=b"] {
        let text = resolve(&format!("--label {name}")).unwrap_err().to_string();
        assert!(text.contains("name of the model"), "{text}");
    }
}

#[test]
fn a_familys_flags_stand_in_the_help_and_those_of_another_are_unknown() {
    let program = CliOf::<TinyArgs>::command();
    for command in ["train", "eval", "bench", "config", "predict-scaling"] {
        let help = program
            .find_subcommand(command)
            .unwrap()
            .clone()
            .render_long_help()
            .to_string();
        assert!(
            help.contains("Model:") && help.contains("--stem-channels"),
            "{help}"
        );
        assert!(!help.contains("--shortcut"), "{help}");
        for flag in ["--model", "--depth", "--shortcut"] {
            let error = CliOf::<TinyArgs>::try_parse_from(["own", command, flag, "20"])
                .unwrap_err()
                .to_string();
            assert!(
                error.contains(&format!("unexpected argument '{flag}'")),
                "{error}"
            );
        }
    }
}

#[test]
fn a_familys_flag_changes_the_model_and_must_stay_when_the_run_goes_on() {
    let folder = Folder::new();
    let plain = folder.run("plain");
    let wide = folder.run("wide");
    assert_ne!(
        trained(&plain, 1, "").unwrap(),
        trained(&wide, 1, "--stem-channels 6").unwrap()
    );
    assert!(
        run_toml(&plain).contains("stem-channels = 4"),
        "{}",
        run_toml(&plain)
    );
    assert!(
        run_toml(&wide).contains("stem-channels = 6"),
        "{}",
        run_toml(&wide)
    );
    let text = trained(&wide, 1, "--resume --epochs 2 --stem-channels 5").unwrap_err();
    assert!(text.contains("model.stem-channels was 6, is 5"), "{text}");
    trained(&wide, 1, "--resume --epochs 2").unwrap();
    let text = trained(
        &folder.run("other"),
        1,
        &format!("--config {}", wide.join("run.toml").display()),
    );
    assert!(text.is_ok(), "{text:?}");
    assert!(run_toml(&folder.run("other")).contains("stem-channels = 6"));
}

#[test]
fn a_checkpoint_evaluates_and_predicts_as_its_model_did_at_the_end_of_training() {
    let folder = Folder::new();
    let directory = folder.run("run");
    let outcome = run(&directory, 1, "--stem-channels 6").unwrap();
    let record = outcome.progress.last_record.unwrap();
    let test = record.test.as_ref().unwrap();
    let evaluation = evaluated::<TinyFamily>(&directory, "").unwrap();
    assert_eq!(
        (
            evaluation.scores.num_samples,
            evaluation.scores.top1_correct
        ),
        (16, test.top1_correct)
    );
    assert!(
        (evaluation.scores.loss - test.loss).abs() < 1e-5,
        "{evaluation:?} {record:?}"
    );
    let text = evaluated::<TinyFamily>(&directory, "--stem-channels 6").unwrap_err();
    assert!(
        text.contains("--stem-channels has no effect with --checkpoint"),
        "{text}"
    );
    assert!(
        evaluated::<TinyFamily>(&directory, "--dtype bf16")
            .unwrap_err()
            .contains("--dtype has no effect")
    );

    let image = folder.run("grey.bmp");
    std::fs::write(&image, bitmap(128)).unwrap();
    let args = predict_flags(&format!(
        "--top 99 --checkpoint {} {}",
        directory.display(),
        image.display()
    ));
    let predictions = on_root(1, |world| predict::<TinyFamily>(&args, world)).unwrap();
    let expected = probabilities_of_grey(&outcome.model.valid(), 128);
    assert_eq!(predictions.images[0].classes.len(), expected.len());
    for class in &predictions.images[0].classes {
        assert!(
            (class.probability - expected[class.label]).abs() < 1e-5,
            "{class:?} {expected:?}"
        );
    }
}

/// Returns the model's output for an image of this grey level. The image has the training's size.
fn probabilities_of_grey(model: &Net, value: u8) -> Vec<f32> {
    let data = ShapesDataset::new(48, 16, 0).unwrap();
    let ImageShape {
        height,
        width,
        channels,
    } = data.train.image_shape();
    let pixel = |channel| {
        (f32::from(value) / 255.0 - data.normalization.mean[channel])
            / data.normalization.std[channel]
    };
    let pixels: Vec<f32> = (0..height * width * channels)
        .map(|index| pixel(index % channels))
        .collect();
    let images = Tensor::<4>::from_data(
        TensorData::new(pixels, [1, height, width, channels]),
        &Device::flex(),
    );
    floats(softmax(model.forward(images), 1).into_data()).unwrap()
}

#[test]
fn a_family_is_measured_and_exports_no_job() {
    let words = "--stem-channels 6 --batch-size-per-rank 4 --steps 2 --warmup-steps 1";
    let config = bench_config(words).unwrap();
    let measured = || {
        on_root(1, |world| {
            measure::<Classification<TinyFamily>>(&config, world)
        })
        .unwrap()
        .unwrap()
    };
    let measurement = measured();
    assert_eq!(
        measurement.result.losses,
        measured().result.losses,
        "its weights are those of the seed"
    );
    assert_eq!(
        (
            measurement.result.model.as_str(),
            measurement.result.kernels.as_str()
        ),
        ("tiny-net", "stock")
    );
    assert!(
        measurement
            .result
            .losses
            .iter()
            .all(|loss| loss.is_finite())
    );
    assert!(
        measurement
            .profile
            .parameters
            .iter()
            .any(|parameter| parameter.shape == [6, 3, 3, 3])
    );
    let error = bench_config("--export-job d").unwrap_err().to_string();
    assert!(
        error.contains("--export-job has no effect on models of the family tiny-net"),
        "{error}"
    );
}

#[test]
fn a_checkpoint_of_another_family_is_refused_by_name() {
    let folder = Folder::new();
    let own = folder.run("own");
    let residual = folder.run("residual");
    trained(&own, 1, "").unwrap();
    train_resnet(&residual);
    let text = evaluated::<NetworkFamily>(&own, "").unwrap_err();
    assert!(
        text.contains("expected a run of the model family resnet, got one of the family tiny-net"),
        "{text}"
    );
    let text = evaluated::<TinyFamily>(&residual, "").unwrap_err();
    assert!(
        text.contains("expected a run of the model family tiny-net, got one of the family resnet"),
        "{text}"
    );
    let text = trained(&residual, 1, "--resume").unwrap_err();
    assert!(
        text.contains("expected a run of the model family tiny-net, got one of the family resnet"),
        "{text}"
    );
    assert!(
        run_toml(&residual).contains("resnet8"),
        "a refusal changes nothing"
    );
}
