//! A program's own model, of burn's stock layers: its runs, its checkpoints, the flags it takes and those it refuses.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig, PaddingConfig2d};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};
use clap::Parser;
use distributed::{Communicator, run_ranks};
use trainer::commands::eval::eval;
use trainer::commands::train::{train, train_model};
use trainer::config::cli::{Cli, Command, TrainArgs};
use trainer::config::{ModelOption, OwnModel, TrainConfig};
use trainer::measure::report::Reporter;
use trainer::model::ImageClassifier;
use trainer::world::ranks::World;
use trainer::world::stop::StopFlag;

const TINY: &str = "--shapes-train 48 --shapes-test 16 --global-batch-size 16 --schedule constant --threads 1";

/// A basic block as pytorch-cifar names its parts.
#[derive(Module, Debug)]
struct Block {
    conv1: Conv2d,
    bn1: BatchNorm,
    shortcut: (Conv2d, BatchNorm),
}

#[derive(Module, Debug)]
struct Net {
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
    fn new(num_classes: usize, device: &Device) -> Self {
        let norm = || BatchNormConfig::new(8).init(device);
        let block = Block {
            conv1: convolution([4, 8], 3, device),
            bn1: norm(),
            shortcut: (convolution([4, 8], 1, device), norm()),
        };
        Self {
            conv1: convolution([3, 4], 3, device),
            layer1: vec![block],
            linear: LinearConfig::new(8, num_classes).init(device),
        }
    }
}

impl ImageClassifier for Net {
    fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let stem = relu(self.conv1.forward(images.permute([0, 3, 1, 2])));
        let features = self.layer1.iter().fold(stem, |x, block| {
            let shortcut = block.shortcut.1.forward(block.shortcut.0.forward(x.clone()));
            relu(block.bn1.forward(block.conv1.forward(x)) + shortcut)
        });
        self.linear.forward(features.mean_dim(3).mean_dim(2).flatten(1, 3))
    }
}

fn own() -> OwnModel {
    OwnModel::new("tiny-net")
}

fn parsed(words: &str) -> Command {
    Cli::try_parse_from(["trainer"].into_iter().chain(words.split_whitespace())).unwrap().into_command()
}

fn flags(words: &str) -> TrainArgs {
    match parsed(&format!("train {words}")) {
        Command::Train(args) => *args,
        other => panic!("expected train, got {other:?}"),
    }
}

fn world(communicator: impl Communicator + 'static) -> World {
    World::reporting(Arc::new(communicator), StopFlag::new(), Reporter::new(false, None))
}

/// The hash of the parameters that the run ends with, on root, or why it failed.
fn trained(directory: &Path, num_ranks: usize, words: &str) -> Result<String, String> {
    let epochs = if words.contains("--epochs") { "" } else { "--epochs 1" };
    let args = flags(&format!("{TINY} {epochs} --output-dir {} {words}", directory.display()));
    let results = run_ranks(num_ranks, |communicator| {
        train_model(&args, &world(communicator), &own(), |_, request| Ok(Net::new(request.num_classes, request.device)))
            .map(|outcome| outcome.parameter_hash)
            .map_err(|error| format!("{error:#}"))
    });
    results.into_iter().next().unwrap()
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn run(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

#[test]
fn equal_seeds_give_equal_weights_and_another_seed_others() {
    let folder = Folder::new();
    let hash = |run: &str, ranks, seed: u64| trained(&folder.run(run), ranks, &format!("--seed {seed}")).unwrap();
    assert_eq!(hash("a", 1, 3), hash("b", 1, 3));
    assert_ne!(hash("c", 1, 4), hash("d", 1, 3));
    assert_eq!(hash("e", 2, 3), hash("f", 2, 3));
}

#[test]
fn a_model_with_a_field_called_shortcut_goes_on_from_its_own_checkpoint() {
    let folder = Folder::new();
    let whole = trained(&folder.run("whole"), 1, "--epochs 2").unwrap();
    trained(&folder.run("parts"), 1, "").unwrap();
    assert_eq!(trained(&folder.run("parts"), 1, "--resume --epochs 2").unwrap(), whole);
    let saved = std::fs::read_to_string(folder.run("parts").join("run.toml")).unwrap();
    assert!(saved.contains("model = \"tiny-net\""), "{saved}");
    for absent in ["shortcut", "dtype", "kernels", "convolution", "cpu", "zero-gamma"] {
        assert!(!saved.contains(&format!("{absent} = ")), "{absent} has no effect, but is in {saved}");
    }
}

#[test]
fn training_begins_with_the_weights_of_a_file() {
    let folder = Folder::new();
    let hash = trained(&folder.run("source"), 1, "--seed 1").unwrap();
    let weights = folder.run("source").join("checkpoints/step-00000003/model.safetensors");
    // Steps so short that no parameter changes.
    let words = format!("--seed 2 --learning-rate 1e-37 --weight-decay 0 --weights {}", weights.display());
    assert_eq!(trained(&folder.run("begun"), 1, &words).unwrap(), hash);
}

#[test]
fn what_has_no_effect_or_cannot_be_is_refused_before_anything_is_written() {
    let folder = Folder::new();
    let run = folder.run("run");
    for (words, expected) in [
        ("--dtype bf16", "--dtype has no effect on the program's own model tiny-net: leave it out"),
        ("--kernels stock", "--kernels has no effect on the program's own model tiny-net"),
        ("--convolution direct", "--convolution has no effect on"),
        ("--cpu portable", "--cpu, or LOCKSTEP_CPU, has no effect on"),
        ("--zero-gamma", "--zero-gamma has no effect on"),
        ("--depth 20", "--depth has no effect on"),
        ("--shortcut b", "--shortcut has no effect on"),
        ("--model resnet110", "--model: expected tiny-net, the only model of this program, got resnet110"),
        ("--batch-norm sync", "--batch-norm sync: this model has no synchronised norm"),
        ("--weights /absent.pth", "/absent.pth: No such file"),
    ] {
        let text = trained(&run, 1, words).unwrap_err();
        assert!(text.starts_with(expected), "{words}: {text}");
        assert_eq!(text.matches("No such file").count(), usize::from(words.contains("absent")), "{text}");
        assert!(!run.exists(), "{words} left {}", run.display());
    }
}

#[test]
fn absent_weights_of_a_residual_network_leave_no_directory() {
    let folder = Folder::new();
    let run = folder.run("run");
    let args = flags(&format!("{TINY} --model resnet8 --weights /absent.pth --output-dir {}", run.display()));
    let results = run_ranks(1, |communicator| train(&args, &world(communicator)).map(drop));
    let text = format!("{:#}", results.into_iter().next().unwrap().unwrap_err());
    assert!(text.starts_with("/absent.pth: No such file"), "{text}");
    assert!(!run.exists());
}

#[test]
fn a_model_takes_the_options_that_it_names() {
    let own = own().taking(&[ModelOption::Dtype]);
    let resolve = |words: &str| TrainConfig::resolve_for(Some(&own), &flags(words), 1);
    let config = resolve("--dtype bf16 --model tiny-net").unwrap();
    let text = config.to_toml();
    assert!(text.contains("dtype = \"bf16\"") && !text.contains("kernels"), "{text}");
    assert_eq!(TrainConfig::resolve_over(&text, Some(&own), &flags(""), 1).unwrap(), config);
    assert_eq!(serde_json::from_value::<TrainConfig>(serde_json::to_value(&config).unwrap()).unwrap(), config);
    assert_eq!(config.run_name(), "tiny-net-shapes-seed0");
    assert!(resolve("--kernels stock").is_err());
    for name in ["", "a/b", "..", "a b"] {
        assert!(TrainConfig::resolve_for(Some(&OwnModel::new(name)), &flags(""), 1).is_err(), "`{name}`");
    }
}

#[test]
fn a_checkpoint_of_an_own_model_is_refused_by_name_where_only_residual_networks_are_known() {
    let folder = Folder::new();
    trained(&folder.run("run"), 1, "").unwrap();
    let Command::Eval(args) = parsed(&format!("eval --checkpoint {}", folder.run("run").display())) else {
        panic!("expected eval")
    };
    let results = run_ranks(1, |communicator| eval(&args, &world(communicator)));
    let text = format!("{:#}", results.into_iter().next().unwrap().unwrap_err());
    assert!(text.contains("got one of the model tiny-net, which only the program that trained it can build"), "{text}");
}
