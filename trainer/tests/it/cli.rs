//! Accepted and rejected flags and configuration files, with the remedies.

// tidy: long file because accepted and refused flags are two tables.

use crate::fixture::{program, succeed, trainer};
use clap::{CommandFactory, Parser, ValueEnum};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use trainer::config::cli::{Cli, Command, EvalArgs, ModelArgs, ModelSection, TrainArgs};
use trainer::config::recipes::Recipe;
use trainer::config::{
    BenchConfig, CifarFiles, ConfigError, DatasetChoice, DeviceChoice, EvalConfig, Family,
    ImageSize, InputKind, LossScaling, Recompute, TrainConfig, UpdateKind, WeightSource,
};

fn command(line: &str) -> Command {
    match Cli::try_parse_from(line.split_whitespace()) {
        Ok(cli) => cli.into_command(),
        Err(error) => panic!("{line}: {error}"),
    }
}

fn train_args(flags: &str) -> TrainArgs {
    let Command::Train(args) = command(&format!("trainer train {flags}")) else {
        panic!("expected train")
    };
    args.into_args().unwrap()
}

/// Returns the name of the network that a complete section selects.
fn network(model: &ModelSection) -> String {
    model.read::<ModelArgs>().unwrap().name()
}

fn eval_args(flags: &str) -> EvalArgs {
    let Command::Eval(args) = command(&format!("trainer eval {flags}")) else {
        panic!("expected eval")
    };
    args.into_args().unwrap()
}

fn bench_config(line: &str, world_size: usize) -> Result<BenchConfig, ConfigError> {
    let Command::Bench(args) = command(line) else {
        panic!("expected bench")
    };
    BenchConfig::resolve(&args.into_args().unwrap(), &Family::BUILT_IN, world_size)
}

fn resolved_for(flags: &str, world_size: usize) -> Result<TrainConfig, ConfigError> {
    TrainConfig::resolve(&train_args(flags), world_size)
}

fn resolved(flags: &str) -> TrainConfig {
    resolved_for(flags, 1).unwrap_or_else(|error| panic!("{flags}: {error}"))
}

/// Asserts the values of `section.key=value` words. An empty value stands for an absent option.
fn expect(config: &TrainConfig, expected: &str) {
    let settings: BTreeMap<String, String> = config.settings().into_iter().collect();
    for word in expected.split_whitespace() {
        let (key, value) = word.split_once('=').unwrap();
        let got = settings.get(key).map_or("", |got| got.trim_matches('"'));
        assert_eq!(got, value, "{key}");
    }
}

fn refusal(flags: &str) -> String {
    match resolved_for(flags, 2) {
        Ok(config) => panic!("{flags} was accepted: {config:?}"),
        Err(error) => error.to_string(),
    }
}

/// Resolves the flags on one rank, with priority over the configuration file.
fn over_file(text: &str, flags: &str) -> Result<TrainConfig, ConfigError> {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("run.toml");
    fs::write(&path, text).expect("a file in it");
    resolved_for(&format!("--config {} {flags}", path.display()), 1)
}

/// Flag sets that together use every option of `train`.
const VALID_FLAGS: [&str; 35] = [
    "",
    "--model resnet20 --shortcut a --dataset cifar10 --data-dir d --epochs 2 --global-batch-size 256 --learning-rate 0.1 \
     --schedule-epochs 3 --schedule cosine --warmup-epochs 1 --momentum 0.9 --weight-decay 1e-4 --seed 0 --dtype bf16 --threads 1 --cpu portable \
     --convolution direct --device flex --limit-train 10000 --limit-test 1000 --output-dir o --resume",
    "--model resnet --depth 110 --shortcut b --dataset cifar100 --data-dir d --batch-size-per-rank 128 --download \
     --grad-accum-steps 4 --batch-norm sync --bucket-mib 0.3 --augment none --drop-last --loader-threads 0",
    "--dataset image-folder --data-dir d --image-size 48 --on-bad-image skip --normalize-mean 0.485,0.456,0.406 \
     --normalize-std 0.229,0.224,0.225 --schedule one-cycle --warmup-epochs 7.5 --warmup-start-factor 0.2",
    "--dataset synthetic --synthetic-train 100 --synthetic-test 50 --synthetic-classes 7 --image-size 16 --augment \
     crop-flip --schedule constant --epochs 1 --weights w.pth",
    "--shapes-train 500 --shapes-test 100 --shapes-seed 9223372036854775807 --schedule multistep --epochs 9 \
     --milestones 3,6,8 --gamma 0.5 --zero-gamma --nesterov --decay-norm-and-bias=false",
    "--scale-learning-rate --reference-batch-size 64 --label-smoothing 0.1 --clip-grad-norm 5 --momentum 0.8 \
     --weight-decay 5e-4 --eval-every-epochs 2 --checkpoint-every-epochs 3 --checkpoint-every-steps 100",
    "--keep-checkpoints 4 --log-every-steps 10 --warmup-steps 20 --weight-decay 0 --schedule multistep --epochs 4",
    "--sync allreduce --reduction ring --overlap off --timeout 7 --trace t.json",
    "--reduction exact --virtual-shards 16",
    "--compress powersgd:4 --compress-warmup-steps 3",
    "--sync parameter-server --servers 1 --server-placement beside",
    "--sync async-parameter-server --staleness 3",
    "--sync post-local-sgd --every 4 --from-step 100",
    "--on-non-finite skip --max-skipped-steps 3 --resume --allow-changed-data",
    "--schedule multistep --epochs 9000000000000000000",
    "--device flex --dtype f16 --loss-scale dynamic",
    "--sync local-sgd --dtype bf16 --device flex --loss-scale 16777216",
    "--device flex --input device --update device",
    "--ema-decay 0.999 --sync parameter-server",
    "--optimizer adamw --beta1 0.8 --beta2 0.99 --epsilon 1e-7 --clip-grad-norm 1 --ema-decay 0.99",
    "--optimizer lars --trust-coefficient 0.01 --nesterov --momentum 0.8 --weight-decay 0 --decay-norm-and-bias=false",
    "--optimizer lamb --epsilon 0.1 --decay-norm-and-bias",
    "--freeze conv1,layer1 --learning-rate-factors layer2=0.1,linear=10 --weights w.pth --new-head",
    "--optimizer custom --dataset custom --learning-rate 0.1",
    "--augment trivial --mixup 0.2 --cutmix 1 --clip-grad-value 0.5",
    "--color-jitter 0.4,0.4,0.4,0.1 --rotation 15 --random-erasing 0.25",
    "--dataset image-folder --data-dir d --resolution 160 --eval-resize 224 --crop-scale 0.35:1 --rand-augment 7.5 --loader-threads 4",
    "--dataset shards --data-dir d --resolution 224 --on-bad-image skip --augment resized-crop",
    "--dataset shards --data-dir d --resolution 160:192@0.65:224@eval --loss binary-cross-entropy --schedule constant --schedule-epochs 20",
    "--recipe imagenet-a3 --data-dir d --epochs 3 --warmup-epochs 1",
    "--tensorboard d --tensorboard-every 10 --log-every-seconds 60 --log-steps --verbose",
    "--schedule cosine-restarts --restart-epochs 2 --restart-factor 2 --epochs 3",
    "--schedule polynomial --power 0.9 --schedule-epochs 20",
    "--schedule plateau --gamma 0.5 --plateau-patience 0 --plateau-threshold 0",
];

#[test]
fn every_specified_command_line_parses() {
    for flags in VALID_FLAGS {
        resolved(flags);
    }
    for dataset in [
        "shapes",
        "cifar10",
        "cifar100",
        "image-folder",
        "shards",
        "synthetic",
    ] {
        let directory = if dataset == "shapes" || dataset == "synthetic" {
            ""
        } else {
            "--data-dir d"
        };
        resolved(&format!("--dataset {dataset} {directory}"));
    }
    let eval = eval_args(
        "--model resnet44 --weights w.th --dataset cifar10 --data-dir d --normalize-mean 0.485,0.456,0.406 \
         --normalize-std 0.229,0.224,0.225 --json",
    );
    assert!(eval.json);
    let eval = EvalConfig::resolve(&eval, &Family::BUILT_IN, None).unwrap();
    assert_eq!(network(&eval.model), "resnet44");
    assert_eq!(eval.weights, WeightSource::File("w.th".into()));
    let normalization = eval.data.normalization.unwrap();
    assert_eq!(normalization.normalize_std, [0.229, 0.224, 0.225]);
    let bench = "trainer bench --model resnet44 --batch-size-per-rank 128 --steps 10 --warmup-steps 3 --dtype f32 \
                 --threads 1 --device flex --json";
    let config = bench_config(bench, 1).unwrap();
    assert_eq!((config.steps, config.model_name.as_str()), (10, "resnet44"));
    let predict = command("trainer predict --checkpoint c a.png b.jpg --json");
    let Command::Predict(args) = predict else {
        panic!("expected predict")
    };
    assert_eq!((args.images.len(), args.top, args.json), (2, 5, true));
}

#[test]
fn a_run_is_named_by_its_name_or_by_the_options_that_differ_from_the_default() {
    for (words, expected) in [
        ("", "resnet20-shapes-seed0"),
        (
            "--optimizer sgd --learning-rate 0.1 --dtype f32 --sync allreduce --global-batch-size 64",
            "resnet20-shapes-seed0",
        ),
        (
            "--epochs 9 --threads 1 --log-every-steps 5 --seed 3",
            "resnet20-shapes-seed3",
        ),
        (
            "--optimizer adamw --learning-rate 0.003",
            "resnet20-shapes-adamw-lr0.003-seed0",
        ),
        (
            "--optimizer adamw --learning-rate 0.001",
            "resnet20-shapes-adamw-seed0",
        ),
        (
            "--learning-rate 0.001 --global-batch-size 256",
            "resnet20-shapes-bs256-lr0.001-seed0",
        ),
        (
            "--compress powersgd:4 --augment crop-flip",
            "resnet20-shapes-crop-flip-powersgd-4-seed0",
        ),
        ("--name first_try", "first_try"),
    ] {
        let config = resolved(words);
        assert_eq!(config.run_name(), expected, "{words}");
        assert_eq!(
            TrainConfig::from_toml(&config.to_toml(), 1)
                .unwrap()
                .run_name(),
            expected,
            "{words}, from its file"
        );
    }
    for (words, expected) in [
        (
            "--name a/b",
            "--name: expected the name of a directory in runs, without slashes, got a/b",
        ),
        (
            "--name a --output-dir b",
            "--name has no effect with --output-dir",
        ),
    ] {
        let text = TrainConfig::resolve(&train_args(words), 1)
            .unwrap_err()
            .to_string();
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn without_arguments_the_program_trains_resnet20_on_shapes() {
    let Command::Train(args) = command("trainer") else {
        panic!("expected train")
    };
    assert_eq!(args.into_args().unwrap(), train_args(""));
    let config = resolved("");
    assert_eq!(config.run_name(), "resnet20-shapes-seed0");
    expect(
        &config,
        "data.dataset=shapes train-split.shapes-train=10000 data.shapes-test=2000 data.shapes-seed=0",
    );
}

#[test]
fn what_config_prints_resolves_to_the_same_and_so_does_json() {
    for flags in VALID_FLAGS {
        for world_size in [1, 4] {
            // `--resume` belongs to one start and not to the run.
            let args = TrainArgs {
                resume: false,
                ..train_args(flags)
            };
            let config = TrainConfig::resolve(&args, world_size)
                .unwrap_or_else(|error| panic!("{flags}: {error}"));
            let text = config.to_toml();
            let again = TrainConfig::from_toml(&text, world_size)
                .unwrap_or_else(|error| panic!("{error}\n{text}"));
            assert_eq!(again, config, "{text}");
            let alone = TrainConfig::from_toml(&text, 1).map(|config| config.to_toml());
            let over_file = over_file(&text, "").map(|again| again.to_toml());
            assert_eq!(over_file.ok(), alone.ok(), "{text}");
            let json = serde_json::to_string(&config).unwrap();
            assert_eq!(
                serde_json::from_str::<TrainConfig>(&json).unwrap(),
                config,
                "{json}"
            );
        }
    }
}

#[test]
fn a_recipe_is_ordinary_options_below_the_file_and_the_flags() {
    for recipe in Recipe::value_variants() {
        let name = recipe.to_possible_value().unwrap();
        let config = resolved(&format!("--recipe {} --data-dir d", name.get_name()));
        assert!(!config.to_toml().contains("recipe"));
        assert_eq!(
            TrainConfig::from_toml(&config.to_toml(), 1).unwrap(),
            config
        );
    }
    let a3 = resolved("--recipe imagenet-a3 --data-dir d --epochs 8");
    expect(
        &a3,
        "model.model=resnet50 data.resolution=160:224@eval schedule.epochs=8 optimizer.weight-decay=0.02",
    );
    // Another data set or optimizer removes the recipe's options that apply only to the replaced
    // one.
    let other = resolved("--recipe imagenet-a3 --dataset shapes --optimizer sgd");
    expect(
        &other,
        "data.resolution= optimizer.weight-decay=0.0001 schedule.warmup-epochs=5.0",
    );
    // Separate files of the same images have the same cropping.
    let folder = resolved("--recipe imagenet-a3 --dataset image-folder --data-dir d --epochs 8");
    assert_eq!(folder.data.image_files(), a3.data.image_files());
    assert_eq!(folder.train_split, a3.train_split);
    let shards = "[data]\ndataset = \"shards\"\ndata-dir = \"d\"";
    let lacking = over_file(shards, "--dataset image-folder")
        .unwrap_err()
        .to_string();
    assert!(
        lacking.contains("--data-dir"),
        "files of one kind do not lie where those of another do: {lacking}"
    );
    let over_file = over_file(
        "[schedule]\nepochs = 7\n[data]\ndata-dir = \"d\"",
        "--recipe cifar-resnet18 --seed 3",
    )
    .unwrap();
    expect(
        &over_file,
        "schedule.epochs=7 run.seed=3 optimizer.weight-decay=0.0005",
    );
}

#[test]
fn flags_win_over_the_file_and_a_changed_choice_drops_the_files_details_of_the_old_one() {
    let cifar =
        "--dataset cifar10 --data-dir d --schedule multistep --epochs 10 --scale-learning-rate";
    for (file, flags, expected) in [
        (
            "[optimizer]\nlearning-rate = 0.3\nnesterov = true\n[batch]\nglobal-batch-size = 32\n[run]\nseed = 7\n",
            "--learning-rate 0.2 --nesterov=false --batch-size-per-rank 8",
            "optimizer.learning-rate=0.2 optimizer.nesterov=false batch.global-batch-size=8 run.seed=7",
        ),
        (
            &resolved(cifar).to_toml(),
            "--dataset shapes --schedule cosine --scale-learning-rate=false --depth 32 --warmup-epochs 0",
            "data.dataset=shapes data.data-dir= train-split.augment=none schedule.schedule=cosine \
             model.model=resnet32 schedule.epochs=10",
        ),
        (
            &resolved(cifar).to_toml(),
            "--dataset cifar10",
            "data.data-dir=d data.download=false",
        ),
        (
            &resolved("--model vit-tiny --stochastic-depth 0.1").to_toml(),
            "--model mobilenet-v2",
            "model.model=mobilenet-v2",
        ),
        (
            &resolved("--model vit-tiny --stochastic-depth 0.1").to_toml(),
            "--depth 32",
            "model.model=resnet32",
        ),
        (
            &resolved("--model vit-tiny --stochastic-depth 0.1").to_toml(),
            "--epochs 7",
            "model.stochastic-depth=0.1",
        ),
        (
            &resolved("--device flex --convolution direct").to_toml(),
            "--kernels stock",
            "compute.convolution=auto",
        ),
        (
            &resolved("").to_toml(),
            "--reduction exact",
            "sync.reduction=exact",
        ),
        // A whole number is a valid fraction.
        (
            "[schedule]\nwarmup-epochs = 1\n[optimizer]\nlearning-rate = 1\n",
            "",
            "schedule.warmup-epochs=1.0 optimizer.learning-rate=1.0",
        ),
    ] {
        expect(&over_file(file, flags).unwrap(), expected);
    }
}

#[test]
fn a_file_with_unknown_keys_or_values_is_refused_with_its_line() {
    for (text, parts) in [
        (
            "[optimizer]\nlr = 0.1\n",
            &[
                "run.toml",
                "line 2",
                "`lr`",
                "`learning-rate`",
                "trainer config",
            ][..],
        ),
        ("[optimiser]\n", &["`optimizer`"]),
        ("[compute]\ndtype = \"f64\"\n", &["`bf16`"]),
        ("[data]\ndataset = \"mnist\"\n", &["`shapes`"]),
        ("[compute]\ninput = \"gpu\"\n", &["`device`"]),
        ("[run]\nseed = -1\n", &["line 2"]),
        (
            "[optimizer]\nclass-weights = [1.0, 2.0]\n",
            &["expected a text"],
        ),
        ("", &["got an empty file"]),
        // A flag of another model family, such as the example's.
        (
            "[model]\nmodel = \"resnet20\"\nstem-channels = 4\n",
            &["`stem-channels`", "`depth`"],
        ),
        (
            "[run]\noutput-dir = \"\"\n",
            &["-dir: expected a path, `.` for the current folder, got an empty one"],
        ),
        (
            "[data]\ndataset = \"cifar10\"\ndata-dir = \"\"\n",
            &["-dir: expected a path, `.` for the current folder, got an empty one"],
        ),
        (
            "[data]\nshapes-seed = 9223372036854775808",
            &["up to 9223372036854775807"],
        ),
        (
            "[run]\nmax-skipped-steps = 18446744073709551615",
            &["up to 9223372036854775807"],
        ),
    ] {
        let error = over_file(text, "").unwrap_err().to_string();
        for part in parts {
            assert!(error.contains(part), "{text}: {part} is not in: {error}");
        }
    }
    let absent = resolved_for("--config no-such-file.toml", 1).unwrap_err();
    assert!(absent.to_string().contains("no-such-file.toml"), "{absent}");
}

#[test]
fn an_instruction_set_from_the_environment_is_named_so_and_an_empty_one_is_none() {
    let with = |value: &str| {
        program()
            .arg("config")
            .env("LOCKSTEP_CPU", value)
            .output()
            .unwrap()
    };
    let wrong = with("foo");
    let text = String::from_utf8_lossy(&wrong.stderr);
    assert!(
        wrong.status.code() == Some(2) && text.contains("'--cpu <SET>, or LOCKSTEP_CPU'"),
        "{text}"
    );
    let printed = with("");
    assert!(
        printed.status.success() && printed.stdout == succeed(trainer("config", &[])).as_bytes(),
        "{printed:?}"
    );
}

#[test]
fn the_loss_scale_follows_the_number_format_unless_it_is_given() {
    let scaling = |flags: &str| {
        resolved(&format!("--device flex {flags}"))
            .optimizer
            .loss_scale
    };
    assert_eq!(
        (scaling(""), scaling("--dtype bf16")),
        (LossScaling::None, LossScaling::None)
    );
    assert_eq!(
        (scaling("--dtype f16"), scaling("--loss-scale dynamic")),
        (LossScaling::Dynamic, LossScaling::Dynamic)
    );
    assert_eq!(
        scaling("--dtype f16 --loss-scale 1024"),
        LossScaling::Fixed(1024)
    );
    let file = "[optimizer]\nloss-scale = 4096\n[compute]\ndevice = \"flex\"\ndtype = \"f16\"\n";
    assert_eq!(
        over_file(file, "").unwrap().optimizer.loss_scale,
        LossScaling::Fixed(4096)
    );
    let without = over_file(file, "--dtype f32").unwrap().optimizer.loss_scale;
    assert_eq!(
        without,
        LossScaling::None,
        "a flag that changes the format drops the file's scale"
    );
}

#[test]
fn a_path_that_toml_cannot_hold_is_refused_as_one_and_nothing_is_written() {
    let not_text = OsStr::from_bytes(b"\xff");
    let folder = tempfile::tempdir().unwrap();
    let below = folder.path().join(not_text);
    fs::create_dir(&below).unwrap();
    let mut args = train_args("");
    args.run.output_dir = Some(not_text.into());
    let error = TrainConfig::resolve(&args, 1).unwrap_err().to_string();
    assert!(error.contains("paths in UTF-8"), "{error}");
    let words = "train --tensorboard events --output-dir run --model resnet8 --shapes-train 64 --epochs 1 --threads 1";
    let output = program()
        .args(words.split_whitespace())
        .current_dir(&below)
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(2)
            && error.contains("--tensorboard: expected a path in UTF-8"),
        "{error}"
    );
    assert!(fs::read_dir(&below).unwrap().next().is_none());
}

#[test]
fn the_global_batch_is_the_exact_product_or_refused() {
    let mut args = train_args("");
    for world_size in 1..=5 {
        for accumulation in 1..=4 {
            for global in 1..=48 {
                args.batch.global_batch_size = Some(global);
                args.batch.grad_accum_steps = Some(accumulation);
                match TrainConfig::resolve(&args, world_size) {
                    Ok(config) => {
                        assert_eq!(config.batch.global_batch_size, global);
                        let parts = config.batch.grad_accum_steps() * config.num_workers();
                        assert_eq!(config.micro_batch_size() * parts, global);
                    }
                    Err(error) => {
                        let parts = world_size * accumulation;
                        assert_ne!(global % parts, 0);
                        let above = global.next_multiple_of(parts);
                        let nearest = match above - parts {
                            0 => format!("take {above} or"),
                            below => format!("take {below}, {above} or"),
                        };
                        let text = error.to_string();
                        assert!(text.contains(&nearest), "{text}");
                    }
                }
            }
        }
    }
    let config = resolved_for("--batch-size-per-rank 12 --grad-accum-steps 2", 3).unwrap();
    assert_eq!(
        (config.batch.global_batch_size, config.micro_batch_size()),
        (72, 12)
    );
}

#[test]
fn the_batch_of_a_rank_has_no_upper_bound_in_training() {
    expect(
        &resolved("--batch-size-per-rank 2097152"),
        "batch.global-batch-size=2097152",
    );
}

#[test]
fn the_default_batch_divides_among_any_number_of_ranks() {
    for world_size in 1..=100 {
        let config = resolved_for("", world_size).unwrap();
        let global_batch_size = config.batch.global_batch_size;
        assert!(global_batch_size >= 64 && global_batch_size < 64 + world_size);
        assert_eq!(config.micro_batch_size() * world_size, global_batch_size);
    }
}

/// Rejected flags on two ranks, and parts of the error message.
const REFUSED: &str = "\
--dataset cifar10 => --data-dir & --download & --dataset shapes
--dataset image-folder => --data-dir & train/<class>
--dataset parquet => --data-dir & the downloaded data set
--dataset shards => --data-dir & train-*.tar & trainer shard
--data-dir d => --data-dir has no effect without --dataset cifar10 & remove --data-dir
--download => --download has no effect & cifar10 or cifar100
--dataset cifar10 --data-dir d --image-size 64 => --image-size & image-folder, shards, parquet or synthetic
--dataset cifar10 --data-dir d --shapes-seed 1 => --shapes-seed & shapes
--dataset cifar10 --data-dir d --shapes-train 10 => --shapes-train
--synthetic-classes 5 => --synthetic-classes & --dataset synthetic
--on-bad-image skip => --on-bad-image & image-folder
--resolution 224 => --resolution has no effect without --dataset image-folder
--dataset image-folder --data-dir d --eval-resize 256 => --eval-resize has no effect without --resolution
--dataset image-folder --data-dir d --resolution 224 --image-size 64 => --resolution contradicts --image-size & one of them
--dataset image-folder --data-dir d --resolution 16:4@0.5 => --resolution & 8 to 4096 & got 4
--dataset image-folder --data-dir d --resolution 16:32@eval --augment none => --augment contradicts --resolution with several sizes & resized-crop
--loss binary-cross-entropy --label-smoothing 0.1 => --label-smoothing has no effect without --loss cross-entropy
--recipe imagenet-a3 => --data-dir & train-*.tar
--dataset image-folder --data-dir d --resolution 4 => --resolution & 8 to 4096 & got 4
--dataset image-folder --data-dir d --resolution 224 --eval-resize 223 => --eval-resize & 224 to & got 223
--crop-scale 0.5:1 => --crop-scale has no effect without --augment resized-crop
--rand-augment 6 => --rand-augment has no effect without --augment resized-crop
--augment resized-crop --rand-augment 11 => --rand-augment & 0 to 10 & 11
--dataset synthetic --image-size 4 => --image-size & 8 to 4096 & got 4
--normalize-mean 0.5,0.5,0.5 => --normalize-std is missing & both or neither
--normalize-mean 0.5,0.5 --normalize-std 1,1 => --normalize-mean & three numbers & got 0.5,0.5
--normalize-mean 0.5,0.5,0.5 --normalize-std 1,0,1 => --normalize-std & above 0
--global-batch-size 64 --batch-size-per-rank 32 => contradicts --batch-size-per-rank & one of them
--global-batch-size 255 => 254, 256 & 2 ranks times 1 accumulation step & --batch-size-per-rank
--reduction exact --virtual-shards 8 --global-batch-size 12 => --global-batch-size 12 does not divide among 8 virtual shards: take 8, 16 or another --virtual-shards
--global-batch-size 0 => --global-batch-size & a whole number from 1
--grad-accum-steps 0 => --grad-accum-steps & a whole number from 1
--bucket-mib 0 => --bucket-mib & MiB
--learning-rate 0 => --learning-rate & above 0
--learning-rate NaN => --learning-rate & got NaN
--reference-batch-size 128 => no effect without --scale-learning-rate
--momentum 1 => --momentum & below 1
--nesterov --momentum 0 => --nesterov & --momentum 0 & above 0
--weight-decay 0 --decay-norm-and-bias=false => --decay-norm-and-bias has no effect without a --weight-decay above 0
--optimizer adamw --momentum 0.9 => --momentum has no effect without --optimizer sgd or lars & or remove --momentum
--optimizer lamb --nesterov => --nesterov has no effect without --optimizer sgd or lars
--beta1 0.9 => --beta1 has no effect without --optimizer adamw or lamb
--optimizer lars --beta2 0.9 => --beta2 has no effect without --optimizer adamw or lamb
--optimizer sgd --epsilon 1e-8 => --epsilon has no effect without --optimizer adamw or lamb
--optimizer lamb --trust-coefficient 1 => --trust-coefficient has no effect without --optimizer lars
--optimizer adamw --beta1 1 => --beta1 & below 1 & got 1
--optimizer adamw --beta2 1.5 => --beta2 & a number from 0, below 1 & got 1.5
--optimizer adamw --epsilon 0 => --epsilon & above 1e-38 & got 0
--optimizer lars --trust-coefficient 0 => --trust-coefficient & above 0
--optimizer adamw --weight-decay 0 --decay-norm-and-bias=false => --decay-norm-and-bias has no effect without a --weight-decay above 0
--optimizer adamw --sync parameter-server => --optimizer adamw contradicts --sync parameter-server & only --optimizer sgd; use --sync allreduce
--optimizer lars --sync local-sgd => --optimizer lars contradicts --sync local-sgd
--optimizer lamb --sync post-local-sgd --from-step 3 => --optimizer lamb contradicts --sync post-local-sgd
--label-smoothing 1 => --label-smoothing
--clip-grad-norm 0 => --clip-grad-norm & above 0
--clip-grad-value 0 => --clip-grad-value & above 0
--clip-grad-value 1 --clip-grad-norm 1 => --clip-grad-value contradicts --clip-grad-norm
--clip-grad-value 1 --sync local-sgd => --clip-grad-value contradicts --sync local-sgd
--new-head => --new-head has no effect without --weights
--learning-rate-factors layer1=2 --sync parameter-server => --learning-rate-factors contradicts --sync
--optimizer custom --momentum 0.9 => --momentum has no effect without --optimizer sgd or lars
--optimizer custom --weight-decay 0.1 => --weight-decay has no effect without --optimizer sgd, adamw
--optimizer custom --sync local-sgd => --optimizer custom contradicts --sync local-sgd
--mixup 0 => --mixup & above 0 & got 0
--color-jitter 0.4,0.4 => --color-jitter & brightness, contrast, saturation & got 0.4,0.4
--color-jitter 0.4,0.4,0.4,0.6 => --color-jitter & hue, 0 to 0.5 & got 0.4,0.4,0.4,0.6
--color-jitter 0.4,nan,0.4 => --color-jitter & got 0.4,NaN,0.4
--rotation 0 => --rotation & above 0 & got 0
--random-erasing 1.5 => --random-erasing & at most 1 & got 1.5
--random-erasing 0.5 --device flex --input device => --random-erasing contradicts --input device & --input host
--reduction exact --virtual-shards 9223372036854775807 => --virtual-shards & to 65536
--schedule multistep --epochs 9000000000000000000 --milestones 0 => --milestones & below the 9000000000000000000
--cutmix 1 --device flex --input device => --cutmix contradicts --input device & --input host
--ema-decay 1 => --ema-decay & below 1 & got 1
--ema-decay 0.9 --sync local-sgd => --ema-decay contradicts --sync local-sgd & --sync allreduce
--epochs 0 => --epochs & a whole number from 1
--milestones 2 => --milestones has no effect without --schedule multistep
--gamma 0.5 --schedule one-cycle => --gamma has no effect without --schedule multistep or plateau
--gamma 1 --schedule plateau => --gamma & below 1 with --schedule plateau, got 1
--power 2 => --power has no effect without --schedule polynomial
--power 11 --schedule polynomial => --power & at most 10, got 11
--restart-epochs 3 => --restart-epochs has no effect without --schedule cosine-restarts
--restart-factor 0 --schedule cosine-restarts => --restart-factor & a whole number from 1, got 0
--plateau-patience 3 --schedule multistep => --plateau-patience has no effect without --schedule plateau
--plateau-threshold 1 --schedule plateau => --plateau-threshold & below 1, got 1
--log-every-seconds 0 => --log-every-seconds & a whole number from 1, got 0
--schedule multistep --milestones 3,2 => ascending
--schedule multistep --epochs 1 => --epochs & at least 2 with --schedule multistep
--schedule multistep --milestones 5 => below the 5 of the run & got 5
--warmup-epochs 5 => below the 5 epochs
--threads 100000 => --threads & 1 to 1024 & got 100000
--shapes-train 100000000000 => --shapes-train & 1 to 16777216
--shapes-test 9223372036854775807 => --shapes-test & 1 to 16777216
--model resnet9999998 => --model & at most 10000 layers & resnet9999998
--schedule-epochs 2 --warmup-epochs 3 => below the 2 epochs
--schedule constant --schedule-epochs 3 => --schedule-epochs has no effect without --schedule cosine
--schedule multistep --schedule-epochs 3 => --schedule-epochs has no effect without --schedule cosine
--schedule one-cycle --warmup-epochs 0 => --warmup-epochs & above 0
--warmup-epochs 0 --warmup-start-factor 0.5 => --warmup-start-factor has no effect without warmup
--zero-gamma --weights w.pth => --zero-gamma has no effect with --weights
--threads 0 => --threads & 1 to 1024
--virtual-shards 4 => --virtual-shards has no effect without --reduction exact
--reduction exact --virtual-shards 1 => --virtual-shards & 2 to 65536
--reduction exact --grad-accum-steps 2 => --grad-accum-steps contradicts --reduction exact
--reduction exact --batch-norm sync => --batch-norm sync contradicts --reduction exact
--reduction ring --compress bf16 => --compress contradicts --reduction ring
--compress bf16 --compress-warmup-steps 3 => no effect without --compress powersgd or topk
--sync local-sgd --compress bf16 => --compress has no effect without --sync allreduce
--sync local-sgd --batch-norm sync => --batch-norm sync contradicts --sync local-sgd
--sync local-sgd --clip-grad-norm 1 => --clip-grad-norm contradicts --sync local-sgd
--sync post-local-sgd => --from-step is missing
--staleness 2 => --staleness has no effect without --sync async-parameter-server
--sync parameter-server --servers 3 => --servers & at most 2 of 2 ranks
--sync parameter-server --server-placement own --servers 2 => --servers & at most 1 of 2 ranks
--max-skipped-steps 3 => --max-skipped-steps has no effect without --on-non-finite skip
--sync local-sgd --on-non-finite skip => --on-non-finite skip contradicts --sync local-sgd
--device flex --dtype f16 --kernels stock => --dtype f16 contradicts & --device cuda or flex & --kernels fused
--sync local-sgd --loss-scale dynamic => --loss-scale dynamic & contradicts --sync local-sgd & --sync allreduce
--sync parameter-server --device flex --dtype f16 => the default of --dtype f16 & a fixed --loss-scale
--every 4 => --every has no effect without --sync local-sgd
--learning-rate inf => --learning-rate: expected a finite number above 0, got inf
--device flex --kernels stock --convolution direct => --convolution direct contradicts & --kernels stock & or remove --convolution direct
--model resnet19 => 18 and 20
--model resnet100 => 18, 34 or 101, got 100. The nearest are 98 and 101.
--model cifar-resnet101 => 18 or 34, got 101. The nearest are 98 and 104.
--depth 35 => 34 and 38
--model resnet50 --shortcut a => the one for small images is cifar-resnet50
--depth 21 => 20 and 26
--model resnet2 => 8 and 14
--model vgg16 => --model: expected resnet<6n+2> as in resnet20 & wide-resnet28-10, mobilenet-v2, convnext-tiny, vit-tiny & got vgg16
--model vit-tiny --depth 20 => --depth contradicts --model vit-tiny & remove --depth
--model wide-resnet28-10 --shortcut b => --shortcut contradicts --model wide-resnet28-10 & only residual networks
--stochastic-depth 0.1 => --stochastic-depth contradicts --model resnet20 & only convnext-tiny and vit-tiny
--model mobilenet-v2 --stochastic-depth 0 => --stochastic-depth contradicts --model mobilenet-v2
--model vit-tiny --stochastic-depth 1 => --stochastic-depth: expected a number from 0, below 1, got 1
--model convnext-tiny --stochastic-depth nan => --stochastic-depth & got NaN
--model resnet => --depth is missing
--model resnet20 --depth 32 => contradicts
--dataset synthetic --image-size 5000 => --image-size: expected a whole number from 8 to 4096, got 5000
--dataset synthetic --synthetic-classes 65537 => --synthetic-classes: expected a whole number from 2 to 65536
--loader-threads 1025 => --loader-threads: expected a whole number from 0 to 1024
--reduction nccl --compress bf16 => --compress contradicts --reduction nccl";

#[test]
fn contradictions_are_refused_with_the_remedy() {
    for row in REFUSED.lines() {
        let (flags, parts) = row.split_once(" => ").unwrap();
        let error = refusal(flags);
        for part in parts.split(" & ") {
            assert!(error.contains(part), "{flags}: `{part}` is not in: {error}");
        }
    }
}

#[test]
fn a_model_is_named_by_its_family_and_depth() {
    for (flags, name) in [
        ("--model resnet18", "resnet18"),
        ("--model cifar-resnet50", "cifar-resnet50"),
        ("--model resnet --depth 101", "resnet101"),
        ("--depth 1202", "resnet1202"),
        ("--model wide-resnet-28-10", "wide-resnet28-10"),
        ("--model wide-resnet28-10", "wide-resnet28-10"),
        ("--model vit-tiny --stochastic-depth 0.1", "vit-tiny"),
    ] {
        assert_eq!(network(&resolved(flags).model), name);
    }
}

#[test]
fn a_device_that_is_not_built_in_is_refused_with_the_feature() {
    if !DeviceChoice::built_in().contains(&"cuda") {
        let error = refusal("--device cuda:1");
        assert!(
            error.contains("--device cuda:1") && error.contains("--features cuda"),
            "{error}"
        );
    }
    assert_eq!("cuda:3".parse(), Ok(DeviceChoice::Cuda(Some(3))));
    assert!("cuda:x".parse::<DeviceChoice>().is_err());
    for device in [DeviceChoice::Cuda(None), DeviceChoice::Cuda(Some(0))] {
        assert_eq!(device.to_string().parse(), Ok(device));
    }
}

#[test]
fn a_sum_on_gpus_is_refused_with_the_feature_or_the_device_that_it_needs() {
    let error = refusal("--reduction nccl --device flex");
    match cfg!(feature = "nccl") {
        true => assert!(
            error.contains("--reduction nccl contradicts --device flex"),
            "{error}"
        ),
        false => assert!(
            error.contains("--features cuda") && error.ends_with("got nccl"),
            "{error}"
        ),
    }
}

#[test]
fn the_device_decides_who_makes_its_images_and_where_it_is_updated_unless_told() {
    let host = [DeviceChoice::Flex, DeviceChoice::Ndarray];
    let device = [DeviceChoice::Cuda(None), DeviceChoice::Cuda(Some(1))];
    assert_eq!(
        host.map(|device| (device.input(), device.update())),
        [(InputKind::Host, UpdateKind::Host); 2]
    );
    assert_eq!(
        device.map(|device| (device.input(), device.update())),
        [(InputKind::Device, UpdateKind::Device); 2]
    );
    assert_eq!(resolved("--device flex").compute.input, InputKind::Host);
    assert_eq!(
        resolved("--device flex --input device").compute.input,
        InputKind::Device
    );
    assert!(
        resolved("--device flex --input device")
            .to_toml()
            .contains("input = \"device\"")
    );
    // A run that started on a GPU is resumed without a GPU.
    let file = "[compute]\ndevice = \"cuda\"\ninput = \"device\"\n[sync]\nupdate = \"device\"\n";
    let without = over_file(file, "--device flex").unwrap();
    assert_eq!(
        (without.compute.input, without.sync.update),
        (InputKind::Host, UpdateKind::Host)
    );
}

#[test]
fn devices_update_except_with_an_option_that_needs_main_memory_which_is_refused_if_both_are_typed()
{
    let on_device = |flags: &str, world_size| {
        resolved_for(
            &format!("--device flex --update device {flags}"),
            world_size,
        )
    };
    assert_eq!(resolved("--device flex").sync.update, UpdateKind::Host);
    for flags in [
        "",
        "--reduction ring",
        "--optimizer adamw",
        "--optimizer lars",
        "--optimizer lamb",
        "--ema-decay 0.9",
        "--learning-rate-factors conv1=0.5",
        "--clip-grad-norm 1",
        "--compress bf16",
    ] {
        for world_size in [1, 4] {
            let config = on_device(flags, world_size).unwrap();
            assert_eq!(config.sync.update, UpdateKind::Device, "{flags}");
            assert_eq!(config.kept_from_device(), None);
        }
    }
    on_device("--batch-norm sync", 1).unwrap();
    for flags in [
        "--batch-norm sync",
        "--compress f16",
        "--gradient-noise",
        "--reduction exact",
        "--sync local-sgd",
        "--sync parameter-server",
    ] {
        let error = on_device(flags, 2).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("{flags} contradicts --update device"))
                && error.contains("give --update host"),
            "{error}"
        );
        // If only the device asks for it, the run continues in main memory and says why.
        let on_cpu = resolved_for(&format!("--device flex {flags}"), 2).unwrap();
        let mut saved = serde_json::to_value(&on_cpu).unwrap();
        saved["flags"]["compute"]["device"] = "cuda".into();
        saved["flags"]["sync"]
            .as_object_mut()
            .unwrap()
            .remove("update");
        let config: TrainConfig = serde_json::from_value(saved).unwrap();
        assert_eq!(config.sync.update, UpdateKind::Host, "{flags}");
        assert_eq!(config.kept_from_device().as_deref(), Some(flags));
    }
}

#[test]
fn a_measurement_refuses_what_its_step_would_not_do() {
    for (flags, world_size, parts) in [
        // A prediction for several ranks needs a profile of a step that updates on the host.
        (
            "--profile-output p.json --update device",
            1,
            &["--update device", "leave it out"][..],
        ),
        (
            "--simulate-network 10gbe --update device",
            1,
            &["--update device", "leave it out"],
        ),
        (
            "--reduction exact --batch-norm sync",
            2,
            &["--batch-norm sync contradicts --reduction exact"],
        ),
        (
            "--sync local-sgd --batch-norm sync",
            2,
            &["--batch-norm sync contradicts --sync local-sgd"],
        ),
        (
            "--sync async-parameter-server --batch-norm sync",
            2,
            &["--batch-norm sync contradicts --sync async-parameter-server"],
        ),
        (
            "--batch-size-per-rank 3 --reduction exact --virtual-shards 3 --export-job d",
            2,
            &["--virtual-shards", "a multiple of the 2 ranks"],
        ),
        (
            "--batch-size-per-rank 1048577",
            1,
            &["--batch-size-per-rank: expected a whole number from 1 to 1048576, got 1048577"],
        ),
        (
            "--model vit-tiny --export-job d",
            1,
            &[
                "--export-job contradicts --model vit-tiny",
                "remove --export-job",
            ],
        ),
        (
            "--simulate-ranks 2",
            1,
            &["--simulate-ranks has no effect without --simulate-network"],
        ),
        (
            "--simulate-network 10gbe --simulate-ranks 4097",
            1,
            &["--simulate-ranks: expected 1 to 4096 ranks, got 4097"],
        ),
        // Only Lockstep's kernels can recompute activations.
        (
            "--recompute norms --kernels stock",
            1,
            &["--recompute", "--device flex, --kernels fused"],
        ),
        (
            "--recompute norms --device ndarray",
            1,
            &["--recompute", "--device flex, --kernels fused"],
        ),
        (
            "--recompute norms --dtype f16",
            1,
            &["--recompute", "--device flex, --kernels fused"],
        ),
        (
            "--recompute norms --device cuda",
            1,
            &["--recompute", "--device flex, --kernels fused"],
        ),
    ] {
        let device = match flags.contains("--device") {
            true => "",
            false => "--device flex",
        };
        let line = format!("trainer bench {device} {flags}");
        let error = bench_config(&line, world_size).unwrap_err().to_string();
        for part in parts {
            assert!(error.contains(part), "{flags}: {part} is not in: {error}");
        }
    }
    let bench = |flags: &str, world_size| {
        bench_config(&format!("trainer bench --device flex {flags}"), world_size).unwrap()
    };
    let on_device = bench("--update device", 1);
    assert_eq!(on_device.sync.update, UpdateKind::Device);
    let predicted = bench("--simulate-network 10gbe", 1);
    assert_eq!(predicted.sync.update, UpdateKind::Host);
    let recomputed = bench("--recompute norms --dtype bf16", 1);
    assert_eq!(recomputed.compute.recompute, Some(Recompute::Norms));
    bench("--reduction exact --virtual-shards 6 --export-job d", 2);
    let warmup = |flags: &str| bench(flags, 2).step_options()["compress_warmup_steps"].clone();
    assert_eq!(warmup("--compress topk:1"), "0");
    assert_eq!(warmup("--compress topk:1 --compress-warmup-steps 4"), "4");
    expect(
        &resolved("--compress topk:1"),
        "sync.compress-warmup-steps=10",
    );
}

#[test]
fn ranks_agree_on_whether_there_is_a_trace_and_not_on_where() {
    let shared = |flags: &str| resolved(flags).shared_settings();
    assert_eq!(shared("--trace a.json"), shared("--trace b.json"));
    assert_ne!(shared("--trace a.json"), shared(""));
    assert_eq!(resolved("--trace a.json").hash(), resolved("").hash());
}

#[test]
fn eval_needs_exactly_one_source_of_weights_and_what_that_source_does_not_tell() {
    let trained = resolved("");
    let weights = "--weights w --model resnet20";
    for (flags, of_run, expected) in [
        ("", None, "--weights FILE"),
        (
            "--weights w --checkpoint c",
            None,
            "contradicts --checkpoint",
        ),
        ("--weights w --dataset shapes", None, "--model is missing"),
        (weights, None, "--dataset is missing"),
        (
            &format!("{weights} --dataset shapes --allow-changed-classes"),
            None,
            "--allow-changed-classes has no effect with --weights",
        ),
        (
            "--checkpoint c --model resnet20",
            Some(&trained),
            "leave it out",
        ),
        (
            "--checkpoint c --batch-size-per-rank 9223372036854775807",
            Some(&trained),
            "--batch-size-per-rank: expected a whole number from 1 to 1048576",
        ),
    ] {
        let error = EvalConfig::resolve(&eval_args(flags), &Family::BUILT_IN, of_run)
            .unwrap_err()
            .to_string();
        assert!(error.contains(expected), "{flags}: {error}");
    }
}

#[test]
fn eval_of_a_checkpoint_uses_its_model_and_data_unless_told_otherwise() {
    let trained = resolved("--depth 32 --dataset cifar10 --data-dir d --limit-test 100");
    let eval = |flags: &str| {
        EvalConfig::resolve(&eval_args(flags), &Family::BUILT_IN, Some(&trained)).unwrap()
    };
    let like_trained = eval("--checkpoint c");
    assert_eq!(
        (&like_trained.model, &like_trained.data),
        (&trained.model, &trained.data)
    );
    let elsewhere = eval("--checkpoint c --data-dir e");
    let files = CifarFiles {
        data_dir: "e".into(),
        download: false,
    };
    assert_eq!(elsewhere.data.dataset, DatasetChoice::Cifar10(files));
    let other = eval("--checkpoint c --dataset shapes --shapes-seed 5");
    let shapes = DatasetChoice::Shapes {
        shapes_test: 2_000,
        shapes_seed: 5,
    };
    assert_eq!(other.data.dataset, shapes);
    assert_eq!(
        other.train_split.shapes_train,
        Some(1),
        "nothing to be trained on is drawn"
    );
    let at_own_size = resolved("--dataset image-folder --data-dir d --resolution 64");
    let args = eval_args("--checkpoint c --image-size 48");
    let squeezed = EvalConfig::resolve(&args, &Family::BUILT_IN, Some(&at_own_size))
        .unwrap()
        .data
        .clone();
    let size = &squeezed.image_files().unwrap().size;
    assert_eq!(*size, ImageSize::Square { image_size: 48 });
}

#[test]
fn the_hash_ignores_what_differs_between_machines_and_nothing_else() {
    let hash = |flags: &str| resolved(flags).hash();
    let cifar = "--dataset cifar10 --data-dir";
    assert_eq!(
        hash(""),
        hash("--threads 2 --loader-threads 3 --output-dir o --input device")
    );
    assert_eq!(
        hash(&format!("{cifar} a")),
        hash(&format!("{cifar} b --download"))
    );
    // The path may differ between ranks, because all ranks use root's weights.
    assert_eq!(hash("--weights a/w"), hash("--weights b/w"));
    for flags in [
        "--seed 1",
        "--learning-rate 0.2",
        "--resume",
        "--epochs 6",
        "--drop-last",
    ] {
        assert_ne!(hash(""), hash(flags), "{flags}");
    }
    assert_ne!(
        hash("--batch-size-per-rank 64"),
        resolved_for("--global-batch-size 64", 2).unwrap().hash()
    );
    assert_eq!(hash("").len(), 64);
}

#[test]
fn differences_name_what_would_change_the_course_of_a_resumed_run() {
    let differences = |before: &str, now: &str| -> Vec<String> {
        let found = resolved(now).differences(&resolved(before));
        found.iter().map(ToString::to_string).collect()
    };
    assert_eq!(
        differences("", "--learning-rate 0.2"),
        ["optimizer.learning-rate was 0.1, is 0.2"]
    );
    assert_eq!(
        differences("", "--clip-grad-norm 1"),
        ["optimizer.clip-grad-norm was unset, is 1.0"]
    );
    assert_eq!(
        differences(
            "",
            "--threads 4 --log-every-steps 1 --keep-checkpoints 9 --output-dir x"
        ),
        [""; 0]
    );
    assert_eq!(
        differences("--schedule constant", "--schedule constant --epochs 9"),
        [""; 0]
    );
    assert_eq!(
        differences("", "--epochs 9"),
        ["schedule.epochs was 5, is 9"]
    );
    assert_eq!(differences("", "--epochs 9 --schedule-epochs 5"), [""; 0]);
    assert_eq!(differences("", "--epochs 9 --schedule-epochs 9"), [""; 0]);
    assert_eq!(differences("--schedule-epochs 9", "--epochs 9"), [""; 0]);
    assert_eq!(
        differences("--schedule-epochs 9", "--epochs 7"),
        ["schedule.epochs was 9, is 7"]
    );
    assert_eq!(
        differences("--schedule-epochs 9", ""),
        ["schedule.epochs was 9, is 5"]
    );
}

#[test]
fn every_long_flag_tells_its_default_in_the_help() {
    fn check(command: &clap::Command) {
        let is_own = |argument: &&clap::Arg| argument.get_long().is_some_and(|long| long != "help");
        for argument in command.get_arguments().filter(is_own) {
            let help = argument
                .get_help()
                .map(ToString::to_string)
                .unwrap_or_default();
            let command = command.get_name();
            let name = argument.get_long().unwrap_or_default();
            assert!(
                help.contains("[default: ") || help.contains("[required]"),
                "{command} --{name}: {help}"
            );
        }
        command.get_subcommands().for_each(check);
    }
    Cli::command().get_subcommands().for_each(check);
}

#[test]
fn the_program_ends_with_code_2_and_a_remedy_on_wrong_usage() {
    for (words, remedy) in [
        ("train --learning-rate-factors layer1=0", "a number above 0"),
        ("train --bogus", "--bogus"),
        ("train --schedule linear", "cosine"),
        ("train --loss-scale 1000", "a power of two"),
        ("train --dataset cifar10", "--data-dir is missing"),
        ("config --milestones 2", "--schedule multistep"),
        (
            "train --weight-decay -1",
            "--weight-decay: expected a number from 0, got -1",
        ),
        ("eval --weights w", "--model is missing"),
        ("predict a.png", "--checkpoint"),
    ] {
        let output = trainer(words, &[]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{words}: {text}");
        assert!(text.contains(remedy), "{words}: {text}");
        assert!(output.stdout.is_empty(), "{words}");
    }
}

#[test]
fn the_program_prints_a_configuration_that_it_takes_back() {
    let printed = succeed(trainer("config --epochs 3", &[]));
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run.toml");
    fs::write(&path, &printed).unwrap();
    assert_eq!(succeed(trainer("config --config", &[&path])), printed);
    assert!(
        !Path::new("runs").exists(),
        "printing a configuration makes no directory"
    );
}

#[test]
fn the_version_names_the_program_and_the_commit() {
    for name in ["trainer", "small-net"] {
        let output = program().arg0(name).arg("--version").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let begins = text.starts_with(&format!("{name} "));
        assert!(
            output.status.success() && begins && text.contains("(commit "),
            "{text}"
        );
    }
}
