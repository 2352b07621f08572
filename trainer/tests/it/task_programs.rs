//! The programs of the example tasks: runs, resumes, repetitions, evaluations, records, refusals.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;
use clap::{CommandFactory, Parser};
use distributed::{Communicator, ROOT, run_ranks};
use records::{EpochRecord, EvaluationByClass};
use serde_json::Value;
use tempfile::TempDir;
use trainer::commands::eval::eval;
use trainer::commands::report::report;
use trainer::commands::train::train;
use trainer::commands::verify_run::verify_run;
use trainer::config::cli::{CliOf, CommandOf, TrainArgs, VerifyRunArgs};
use trainer::config::{BenchConfig, EvalConfig, Family, TrainConfig};
use trainer::measure::report::Reporter;
use trainer::run::train::Outcome;
use trainer::task::{NoArgs, Task};
use trainer::world::ranks::World;
use trainer::world::stop::StopFlag;

use crate::tasks::char_gpt::CharGpt;
use crate::tasks::several_heads::SeveralHeads;
use crate::tasks::unet::Segmentation;

/// Few large steps: three in an epoch of the text or the U-Net, of which the last is uneven.
const FEW_STEPS: &str =
    "--optimizer adamw --learning-rate 0.01 --threads 1 --global-batch-size 246 --warmup-epochs 0";
const ONE_EPOCH: &str = "--epochs 1";

fn parsed<T: Task>(words: &str) -> CommandOf<T::Args> {
    let words = ["task"].into_iter().chain(words.split_whitespace());
    CliOf::try_parse_from(words).unwrap().into_command()
}

fn flags<T: Task>(words: &str) -> TrainArgs {
    let CommandOf::Train(args) = parsed::<T>(&format!("train {words}")) else {
        panic!("expected train")
    };
    args.into_args().unwrap()
}

/// Returns root's result or error. Each rank stops after this number of looks at its flag, if it is
/// known.
fn on_ranks<R: Send>(
    num_ranks: usize,
    num_looks: Option<u64>,
    work: impl Fn(&World) -> Result<R> + Sync,
) -> Result<R, String> {
    let mut results = run_ranks(num_ranks, |communicator| {
        let communicator: Arc<dyn Communicator> = Arc::new(communicator);
        let stop = num_looks.map_or_else(StopFlag::default, |num_looks| {
            StopFlag::default().or_after_looks(num_looks)
        });
        let world = World::reporting(communicator, stop, Reporter::new(false));
        work(&world).map_err(|error| format!("{error:#}"))
    });
    results.swap_remove(ROOT)
}

/// The directory of a run.
struct Run(TempDir);

impl Run {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn directory(&self) -> PathBuf {
        self.0.path().join("run")
    }

    fn try_train<T: Task>(
        &self,
        num_ranks: usize,
        num_looks: Option<u64>,
        words: &str,
    ) -> Result<Outcome<T::Model>, String> {
        let directory = self.directory();
        let words = format!("{words} --output-dir {}", directory.display());
        let args = flags::<T>(&words);
        on_ranks(num_ranks, num_looks, |world| train::<T>(&args, world))
    }

    fn train<T: Task>(&self, num_ranks: usize, words: &str) -> Outcome<T::Model> {
        self.try_train::<T>(num_ranks, None, words).unwrap()
    }

    fn evaluate<T: Task>(&self, num_ranks: usize) -> EvaluationByClass {
        let directory = self.directory();
        let words = format!("eval --threads 1 --checkpoint {}", directory.display());
        on_ranks(num_ranks, None, |world| {
            let CommandOf::Eval(args) = parsed::<T>(&words) else {
                panic!("expected eval")
            };
            eval::<T>(&args.into_args()?, world)
        })
        .unwrap()
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.directory().join(name)).unwrap()
    }

    fn epochs(&self) -> Vec<EpochRecord> {
        let text = self.text("metrics.jsonl");
        let lines = text.lines().map(serde_json::from_str);
        lines.collect::<Result<_, _>>().unwrap()
    }
}

/// Returns the parts of a record that a resume keeps.
fn scores(record: &EpochRecord) -> impl PartialEq + std::fmt::Debug + use<> {
    (
        record.step,
        record.train_loss,
        record.train_num_samples,
        record.train_metrics.clone(),
        record.test.clone(),
    )
}

/// Trains once as a whole and once with a stop after two steps; expects the same bits.
fn resumes_to_the_same_bits<T: Task>(num_ranks: usize, further: &str) {
    let words = format!("{FEW_STEPS} {ONE_EPOCH} {further}");
    let whole = Run::new();
    let expected = whole.train::<T>(num_ranks, &words).parameter_hash;
    let parts = Run::new();
    let stopped = parts.try_train::<T>(num_ranks, Some(2), &words).unwrap();
    assert!(
        stopped.stopped_early && stopped.progress.step == 2,
        "{}",
        stopped.progress.step
    );
    let resumed = parts.train::<T>(num_ranks, &format!("{words} --resume"));
    assert_eq!(resumed.parameter_hash, expected, "{} {further}", T::NAME);
    let [of_whole, of_parts] = [&whole, &parts].map(|run| scores(&run.epochs()[0]));
    assert_eq!(of_whole, of_parts, "{} {further}", T::NAME);
}

#[test]
fn a_run_that_stops_inside_an_epoch_resumes_to_the_same_bits() {
    resumes_to_the_same_bits::<CharGpt>(1, "--dtype bf16 --ema-decay 0.9 --clip-grad-norm 0.5");
    resumes_to_the_same_bits::<Segmentation>(2, "--batch-norm sync");
    resumes_to_the_same_bits::<SeveralHeads>(2, "--grad-accum-steps 3 --ema-decay 0.9");
}

#[test]
fn exact_runs_of_unequal_weights_have_the_same_bits_on_any_number_of_ranks() {
    // The last of three steps has 3 of the 495 pieces, on shards 0 to 2 of 6.
    let words = format!("{FEW_STEPS} {ONE_EPOCH} --reduction exact --virtual-shards 6");
    let [one, two, three] = [1, 2, 3].map(|num_ranks| {
        let run = Run::new();
        let hash = run.train::<CharGpt>(num_ranks, &words).parameter_hash;
        (hash, run.epochs()[0].train_loss)
    });
    assert_eq!(two.0, one.0);
    assert_eq!(three.0, one.0);
    let [one, two, three] = [one, two, three].map(|(_, loss)| loss.unwrap());
    assert!((two / one - 1.0).abs() < 1e-6 && (three / one - 1.0).abs() < 1e-6);
}

#[test]
fn a_checkpoint_evaluates_as_its_epoch_and_a_repetition_has_the_bits_of_the_run() {
    fn check<T: Task>(num_ranks: usize, words: &str) {
        let run = Run::new();
        run.train::<T>(num_ranks, &format!("{FEW_STEPS} {ONE_EPOCH} {words}"));
        let expected = run.epochs().remove(0).test.unwrap();
        for num_ranks in [1, 3] {
            let scores = run.evaluate::<T>(num_ranks).scores;
            assert!(
                (scores.loss / expected.loss - 1.0).abs() < 1e-6,
                "{scores:?}"
            );
            assert_eq!(scores.num_samples, expected.num_samples);
            assert_eq!(
                Vec::from_iter(scores.metrics.keys()),
                Vec::from_iter(expected.metrics.keys())
            );
            for (name, value) in &expected.metrics {
                let off = (scores.metrics[name] - value).abs();
                assert!(*value > 0.0 && off < 1e-6, "{name}: {scores:?}");
            }
        }
        let args = VerifyRunArgs {
            run: run.directory(),
            ..VerifyRunArgs::default()
        };
        let code = on_ranks(num_ranks, None, |world| verify_run::<T>(&args, world)).unwrap();
        assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::SUCCESS));
    }
    check::<CharGpt>(2, "--ema-decay 0.5");
    check::<Segmentation>(1, "");
    check::<SeveralHeads>(2, "--clip-grad-norm 1");
}

#[test]
fn the_best_epoch_is_that_of_the_task_or_of_a_named_metric_whichever_way_is_better() {
    fn best<T: Task>(words: &str) -> (String, f64, Vec<EpochRecord>) {
        let run = Run::new();
        let outcome = run.train::<T>(1, &format!("{FEW_STEPS} --epochs 3 {words}"));
        let best = outcome.progress.best.unwrap();
        (best.monitor, best.value, run.epochs())
    }
    let of = |epochs: &[EpochRecord], name: &str| -> Vec<f64> {
        let metrics = epochs
            .iter()
            .map(|epoch| &epoch.test.as_ref().unwrap().metrics);
        metrics.map(|metrics| metrics[name]).collect()
    };
    let (monitor, value, epochs) = best::<Segmentation>("");
    assert_eq!(monitor, "test-iou");
    assert_eq!(value, of(&epochs, "iou").into_iter().fold(0.0, f64::max));
    let (monitor, value, epochs) = best::<SeveralHeads>("");
    let losses = epochs.iter().map(|epoch| epoch.test.as_ref().unwrap().loss);
    assert_eq!(
        (monitor.as_str(), value),
        ("test-loss", losses.fold(f64::MAX, f64::min))
    );
    // The rate is so high that a later epoch is worse.
    let (monitor, value, epochs) =
        best::<SeveralHeads>("--monitor error --learning-rate-factors brightness=30");
    let errors = of(&epochs, "error");
    assert_eq!(monitor, "test-error");
    assert_eq!(
        value,
        errors.iter().copied().fold(f64::MAX, f64::min),
        "{errors:?}"
    );
    let refused = Run::new().try_train::<Segmentation>(
        1,
        None,
        &format!("{FEW_STEPS} {ONE_EPOCH} --monitor top1"),
    );
    let text = refused.unwrap_err();
    assert!(
        text.contains("expected one of test-loss, test-iou, got test-top1"),
        "{text}"
    );
}

#[test]
fn records_and_the_report_of_a_task_have_its_metrics_and_no_accuracy() {
    let run = Run::new();
    run.train::<Segmentation>(1, &format!("{FEW_STEPS} --epochs 2"));
    for line in run.text("metrics.jsonl").lines() {
        let record: Value = serde_json::from_str(line).unwrap();
        for metrics in [&record["train_metrics"], &record["test"]["metrics"]] {
            let iou = metrics["iou"].as_f64().unwrap();
            assert!((0.0..=1.0).contains(&iou), "{line}");
        }
        for accuracy in ["train_top1", "train_top5"] {
            assert!(record[accuracy].is_null(), "{line}");
        }
        let test = record["test"].as_object().unwrap();
        assert!(test.keys().all(|key| !key.starts_with("top")), "{line}");
    }
    let output = run.0.path().join("report");
    let args = report::Request {
        inputs: vec![run.directory()],
        output: output.clone(),
        ..report::Request::default()
    };
    on_ranks(1, None, |world| report(&args, world)).unwrap();
    let figures = fs::read_dir(output.join("figures")).unwrap();
    let figures = figures.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let figures: Vec<String> = figures.collect();
    for (name, is_expected) in [("iou-by-", true), ("accuracy", false)] {
        let is_there = figures.iter().any(|figure| figure.contains(name));
        assert_eq!(is_there, is_expected, "{figures:?}");
    }
}

#[test]
fn a_printed_configuration_resolves_to_itself() {
    fn check<T: Task>(words: &str) {
        let family = Family::of::<T>();
        let config = TrainConfig::resolve_for(&family, &flags::<T>(words), 2).unwrap();
        let text = config.to_toml();
        let again = TrainConfig::resolve_over(&text, &family, &flags::<T>(""), 2).unwrap();
        assert_eq!(again, config, "{text}");
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("options.toml");
        fs::write(&file, &text).unwrap();
        let words = format!("--config {}", file.display());
        let again = TrainConfig::resolve_for(&family, &flags::<T>(&words), 2).unwrap();
        assert_eq!(again, config, "{text}");
        assert!(
            config.run_name().starts_with(T::NAME),
            "{}",
            config.run_name()
        );
    }
    check::<CharGpt>("");
    check::<CharGpt>("--optimizer adamw --dtype bf16 --ema-decay 0.9 --loader-threads 2");
    check::<Segmentation>("--batch-norm sync --reduction ring");
    check::<SeveralHeads>("--monitor test-error --drop-last --patience 3");
}

/// Returns what a program answers to each value of a flag that the parser accepts.
fn answers(
    command: &str,
    flag: &clap::Arg,
    resolve: impl Fn(&str) -> Option<Result<(), String>>,
) -> Vec<Result<(), String>> {
    let name = flag.get_long().unwrap();
    let possible = flag.get_possible_values();
    let names = possible.iter().map(|value| value.get_name());
    let any = ["9", "224", "0.5", "0.1:0.5", "0.4,0.4,0.4"];
    let values: Vec<String> = names.chain(any).map(|value| format!("={value}")).collect();
    let words = [String::new()].into_iter().chain(values);
    let words = words.map(|value| format!("{command} --{name}{value}"));
    words.filter_map(|words| resolve(&words)).collect()
}

#[test]
fn the_options_of_images_are_refused_by_name() {
    const GENERAL: [&str; 2] = ["loader-threads", "drop-last"];
    const OF_OTHER_SECTIONS: [&str; 6] = [
        "loss",
        "label-smoothing",
        "class-weights",
        "new-head",
        "image-size",
        "num-classes",
    ];
    let family = Family::of::<CharGpt>();
    let program = CliOf::<NoArgs>::command();
    let resolve = |words: &str| {
        let words = ["task"].into_iter().chain(words.split_whitespace());
        let command = CliOf::<NoArgs>::try_parse_from(words).ok()?.into_command();
        let resolved = match command {
            CommandOf::Train(args) => {
                let args = args.into_args().unwrap();
                TrainConfig::resolve_for(&family, &args, 1).map(drop)
            }
            CommandOf::Eval(args) => {
                let args = args.into_args().unwrap();
                EvalConfig::resolve(&args, &family, None).map(drop)
            }
            CommandOf::Bench(args) => {
                let args = args.into_args().unwrap();
                BenchConfig::resolve(&args, &family, 1).map(drop)
            }
            _ => panic!("expected train, eval or bench"),
        };
        Some(resolved.map_err(|error| error.to_string()))
    };
    for (name, command, num_expected) in [
        ("train", "train", 32),
        ("eval", "eval --weights file", 15),
        ("bench", "bench", 2),
    ] {
        let flags = program.find_subcommand(name).unwrap().get_arguments();
        let mut num_refused = 0;
        for flag in flags {
            let long = flag.get_long().unwrap();
            let is_of_section = matches!(flag.get_help_heading(), Some("Data" | "Train split"));
            if GENERAL.contains(&long) || !is_of_section && !OF_OTHER_SECTIONS.contains(&long) {
                continue;
            }
            let texts: Vec<String> = answers(command, flag, resolve)
                .into_iter()
                .filter_map(Result::err)
                .collect();
            let expected = format!(
                "--{long} has no effect on the task char-gpt, which has its own data and loss"
            );
            let is_named = |text: &String| text.starts_with(&expected);
            assert!(
                !texts.is_empty() && texts.iter().all(is_named),
                "{name} --{long}: {texts:?}"
            );
            num_refused += 1;
        }
        assert_eq!(num_refused, num_expected, "{name}");
    }
}
