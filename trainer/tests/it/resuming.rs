//! Resumes with other options, a longer plan, changed data or an altered state, on thread-ranks.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::fixture::{Run, TINY, ended_with, flags, run, trainer, write_images};
use datasets::ImageSamples;
use distributed::ROOT;
use distributed::communicator::SingleCommunicator;
use records::EpochRecord;
use sha2::{Digest, Sha256};
use trainer::config::TrainConfig;
use trainer::config::cli::TrainArgs;
use trainer::measure::report::Reporter;
use trainer::model::data;
use trainer::run::checkpoint::{Checkpoint, CheckpointStore, Progress};
use trainer::run::directory::RunDirectory;
use trainer::run::resumption::Resumption;
use trainer::task::ModelInput;

pub(crate) fn tiny(further: &str) -> TrainArgs {
    flags(&[TINY, "--eval-every-epochs 100", further])
}

/// Returns every file below a run's directory except the lock, with its bytes.
fn files(run: &Run) -> BTreeMap<String, Vec<u8>> {
    fn collect(folder: &Path, found: &mut BTreeMap<String, Vec<u8>>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                collect(&path, found);
            } else if !path.ends_with(".lock") {
                found.insert(path.display().to_string(), fs::read(&path).unwrap());
            }
        }
    }
    let mut found = BTreeMap::new();
    collect(&run.directory(), &mut found);
    found
}

pub(crate) fn refusal(run: &Run, world_size: usize, with: &str) -> String {
    format!(
        "{:#}",
        run.again().try_go(world_size, &tiny(with)).unwrap_err()
    )
}

/// Returns the warnings and notes of a resume with these flags.
pub(crate) fn told(run: &Run, args: &TrainArgs) -> String {
    let mut args = args.clone();
    args.run.output_dir = Some(run.directory());
    let config = TrainConfig::resolve(&args, 1).unwrap();
    let directory = RunDirectory::lock(&config, "this test").unwrap();
    let alone = SingleCommunicator::new();
    let silent = Reporter::new(false);
    let data = data::open(
        &config.data,
        &config.train_split,
        0,
        || Ok(None),
        &alone,
        &silent,
    )
    .unwrap();
    let data = ImageSamples::splits(data, false);
    let input = ModelInput::of(&data.train, data.evaluated().unwrap());
    let resumption = Resumption::find(
        &directory,
        &config,
        (&data, Some(&input)),
        args.allow_changed_data,
    )
    .unwrap()
    .unwrap();
    [resumption.warnings, resumption.notes].concat().join("\n")
}

pub(crate) fn metrics(run: &Run) -> Vec<EpochRecord> {
    let text = fs::read_to_string(run.directory().join("metrics.jsonl")).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

pub(crate) fn newest(run: &Run) -> Checkpoint {
    CheckpointStore::new(&run.directory().join("checkpoints"), 1)
        .latest()
        .unwrap()
        .0
        .unwrap()
}

fn replace(file: &Path, from: &str, to: &str) {
    let text = fs::read_to_string(file).unwrap();
    assert!(text.contains(from), "{from} is not in {text}");
    fs::write(file, text.replacen(from, to, 1)).unwrap();
}

/// Writes the checksum of an altered state.
pub(crate) fn sign(checkpoint: &Path) {
    let sum = Sha256::digest(fs::read(checkpoint.join("state.json")).unwrap());
    let sum: String = sum.iter().map(|byte| format!("{byte:02x}")).collect();
    fs::write(
        checkpoint.join("state.sha256"),
        format!("{sum}  state.json\n"),
    )
    .unwrap();
}

#[test]
fn events_of_another_run_are_refused_and_those_of_the_resumed_run_are_not() {
    let events = tempfile::tempdir().unwrap();
    let with_events = format!(
        "--epochs 1 --resume --tensorboard {}",
        events.path().join("events").display()
    );
    let num_files = || fs::read_dir(events.path().join("events")).unwrap().count();
    let first = Run::in_empty_directory().go(1, &tiny(&with_events));
    let error = refusal(&Run::in_empty_directory(), 1, &with_events);
    assert!(
        error.contains("expected a directory without event files"),
        "{error}"
    );
    let own = tempfile::tempdir().unwrap();
    for began_with in [
        "--epochs 1".to_owned(),
        format!("--epochs 1 --tensorboard {}", own.path().display()),
    ] {
        let error = refusal(&run(1, &tiny(&began_with)), 1, &with_events);
        assert!(
            error.contains("got one with events of another run"),
            "{error}"
        );
    }
    assert_eq!(num_files(), 1);
    first.again().go(1, &tiny(&with_events));
    first.lose_checkpoints();
    first.again().go(1, &tiny(&with_events));
    assert_eq!(num_files(), 3);
}

#[test]
fn a_run_continues_without_an_event_file_that_cannot_be_created() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let run = Run::in_new_directory();
    let words = format!(
        "train {TINY} --output-dir {} --tensorboard",
        run.directory().display()
    );
    let text = ended_with(0, trainer(&words, &[&file.path().join("events")]));
    assert!(
        text.contains("warning: --tensorboard: cannot create"),
        "{text}"
    );
}

#[test]
fn an_epoch_of_skipped_steps_is_saved_and_resumed() {
    let broken = "--model resnet8 --shapes-train 32 --shapes-test 8 --global-batch-size 32 --learning-rate 1e38 \
                  --on-non-finite skip --epochs 3 --eval-every-epochs 100 --keep-checkpoints 1 --schedule constant \
                  --warmup-epochs 0";
    let run = Run::in_new_directory();
    let untested =
        |run: Run, with: &str| format!("{:#}", run.try_go(1, &flags(&[broken, with])).unwrap_err());
    // The first step's update breaks the parameters, so every later step is skipped.
    for with in ["", "--resume"] {
        assert!(untested(run.again(), with).contains("epoch 3: the test loss is not finite"));
        let records = metrics(&run);
        assert_eq!(
            records
                .iter()
                .map(|record| record.epoch)
                .collect::<Vec<_>>(),
            [0, 1]
        );
        assert!(records[0].train_loss.is_some());
        assert_eq!(
            (records[1].train_loss, records[1].train_num_samples),
            (None, 0)
        );
        assert_eq!(
            newest(&run).state.progress.last_record.as_ref(),
            records.last()
        );
        assert_eq!(
            fs::read_dir(run.directory().join("checkpoints"))
                .unwrap()
                .count(),
            1,
            "none is set aside"
        );
    }
}

#[test]
fn a_refused_resume_changes_no_file_and_a_plain_one_continues() {
    for world_size in [1, 2] {
        let whole = run(world_size, &tiny(""));
        let stopped = Run::in_new_directory()
            .stopping_after(2)
            .go(world_size, &tiny(""));
        let before = files(&stopped);
        for (with, expected) in [
            (
                "--resume --epochs 4",
                "schedule.epochs was 2, is 4 (the learning rate depends on it: ",
            ),
            (
                "--resume --momentum 0.5",
                "optimizer.momentum was 0.9, is 0.5 (the steps before and after ",
            ),
            (
                "--resume --seed 4",
                "run.seed was 0, is 4 (it determines the order of the samples)",
            ),
            (
                "--resume --global-batch-size 8",
                "is 8 (the position in the epoch is a number of batches)",
            ),
            (
                "--resume --model resnet14",
                "(the saved parameters belong to that network)",
            ),
            (
                "--resume --shapes-train 80",
                "train-split.shapes-train was 104, is 80 (the saved position is one in those images)",
            ),
            (
                "--resume --optimizer adamw",
                "resume: options differ from those of the run: optimizer.optimizer was \"sgd\", is \"adamw\" (the saved optimizer state \
                 belongs to that optimizer). Resume with its options, or begin another run",
            ),
            ("--resume --trace /dev/null/trace.json", "/dev/null"),
        ] {
            let text = refusal(&stopped, world_size, with);
            assert!(text.contains(expected), "{text}");
            assert!(files(&stopped) == before, "{with} changed a file");
        }
        let resumed = stopped.again().go(world_size, &flags(&["--resume"]));
        assert_eq!(resumed.parameter_hash(), whole.parameter_hash());
    }
}

#[test]
fn a_finished_run_without_its_checkpoints_is_not_started_over_its_records() {
    let ended = run(1, &tiny(""));
    fs::remove_dir_all(ended.directory().join("checkpoints")).unwrap();
    let before = files(&ended);
    let text = refusal(&ended, 1, "--resume");
    assert!(
        text.contains("has finished but has no checkpoint; restore"),
        "{text}"
    );
    // The same holds after a later session has renamed the summary.
    fs::rename(
        ended.directory().join("summary.json"),
        ended.directory().join("summary-1.json"),
    )
    .unwrap();
    fs::copy(
        ended.directory().join("manifest.json"),
        ended.directory().join("manifest-1.json"),
    )
    .unwrap();
    assert_eq!(refusal(&ended, 1, "--resume"), text);
    assert!(
        before.iter().all(
            |(path, bytes)| path.ends_with("summary.json") || fs::read(path).unwrap() == *bytes
        )
    );
}

#[test]
fn a_checkpoint_of_another_version_is_refused_and_not_skipped_as_damaged() {
    let run = run(1, &tiny("--checkpoint-every-steps 3 --keep-checkpoints 99"));
    let folder = newest(&run).directory;
    replace(&folder.join("state.json"), "\"format\": 3", "\"format\": 4");
    // The checksum is wrong, so the checkpoint counts as damaged. The run resumes from an older
    // one.
    assert!(told(&run, &tiny("--resume")).is_empty());
    // Another version may have other field names.
    replace(&folder.join("state.json"), "\"progress\"", "\"advance\"");
    sign(&folder);
    let before = files(&run);
    let text = refusal(&run, 1, "--resume");
    let version = env!("CARGO_PKG_VERSION");
    let remedy = format!("expected format 3, got 4. Use the version that wrote it ({version})");
    assert!(text.contains(&remedy), "{text}");
    assert!(files(&run) == before);
    // A state without a format is damaged.
    replace(&folder.join("state.json"), "\"format\": 4,", "");
    sign(&folder);
    let error = format!("{:#}", Checkpoint::open(&folder).unwrap_err());
    assert!(error.contains("missing field `format` at line "), "{error}");
}

#[test]
fn a_checkpoint_that_is_due_by_steps_is_written_where_its_step_ends_an_epoch_too() {
    let steps = |every: u32| {
        let with = format!(
            "--epochs 4 --checkpoint-every-epochs 99 --keep-checkpoints 99 --checkpoint-every-steps {every}"
        );
        let run = run(1, &tiny(&with));
        let names = fs::read_dir(run.directory().join("checkpoints")).unwrap();
        let mut names: Vec<String> = names
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
            .iter()
            .map(|name| name.strip_prefix("step-").unwrap().parse().unwrap())
            .collect::<Vec<u32>>()
    };
    // An epoch has five steps.
    assert_eq!(steps(5), [5, 10, 15, 20]);
    assert_eq!(steps(3), [3, 6, 9, 12, 15, 18, 20]);
}

#[test]
fn a_resume_of_independent_ranks_on_another_number_is_a_warning() {
    let servers = "--batch-norm sync --sync parameter-server --servers";
    for (begun_with, resumed_with, sentence) in [
        (
            "--sync local-sgd --every 2".to_owned(),
            "--sync local-sgd --every 2".to_owned(),
            "independent ranks: 1, 2 before",
        ),
        (
            "--sync async-parameter-server --servers 2".to_owned(),
            "--sync async-parameter-server --servers 1".to_owned(),
            "independent ranks: 1, 2 before",
        ),
        (format!("{servers} 2"), format!("{servers} 1"), ""),
    ] {
        let run = run(2, &tiny(&begun_with));
        let told = told(
            &run,
            &tiny(&format!(
                "--resume --epochs 3 --schedule-epochs 2 {resumed_with}"
            )),
        );
        assert!(told.contains(sentence), "{told}");
        assert_eq!(told.contains("will differ"), !sentence.is_empty(), "{told}");
    }
}

#[test]
fn a_length_in_epochs_that_is_no_short_binary_fraction_is_read_back_as_it_was_written() {
    // The one-cycle schedule rises during 0.3 of the epochs: 9.299999999999999 of 31.
    let long = tiny("--schedule one-cycle --epochs 31 --shapes-train 8 --global-batch-size 8");
    let stopped = Run::in_new_directory().stopping_after(1).go(1, &long);
    let resumed = stopped
        .again()
        .stopping_after(1)
        .try_go(1, &flags(&["--resume"]))
        .unwrap();
    assert_eq!(newest(&resumed).state.progress.step, 2);
}

#[test]
fn a_run_that_is_trained_longer_keeps_its_schedule_as_if_it_had_been_planned_so() {
    let planned = run(1, &tiny("--epochs 3 --schedule-epochs 2"));
    let base = run(1, &tiny(""));
    assert_eq!(told(&base, &tiny("--resume")), "");
    let longer = tiny("--epochs 3 --schedule-epochs 2 --resume");
    let sentence = "resume: 3 epochs, 2 were planned; the cosine schedule is kept: learning rate 2.447e-3 at the next step, 2.447e-3 before the change";
    assert_eq!(told(&base, &longer), sentence);
    let kept = base.again().go(1, &longer);
    assert_eq!(kept.parameter_hash(), planned.parameter_hash());
    let rates: Vec<f64> = metrics(&kept)
        .iter()
        .map(|record| record.learning_rate)
        .collect();
    assert_eq!(
        rates,
        metrics(&planned)
            .iter()
            .map(|record| record.learning_rate)
            .collect::<Vec<_>>()
    );
    assert!(rates[2] > 0.0 && rates[2] == rates[1], "{rates:?}");
}

#[test]
fn a_stretched_schedule_stays_stretched_in_the_resumes_after_it() {
    let base = run(1, &tiny(""));
    let refused = refusal(&base, 1, "--resume --epochs 3");
    for flag in [
        "--schedule-epochs 3 to stretch",
        "--schedule-epochs 2 to keep",
    ] {
        assert!(refused.contains(flag), "{refused}");
    }
    let stretch = tiny("--resume --epochs 3 --schedule-epochs 3");
    let sentence = "the cosine schedule is stretched from 2 to 3 epochs: learning rate 2.500e-2 at the next step, 2.447e-3 before";
    assert!(
        told(&base, &stretch).contains(sentence),
        "{}",
        told(&base, &stretch)
    );
    // The run stops before it has a checkpoint of the new plan.
    base.again().stopping_after(0).go(1, &stretch);
    let ended = base.again().go(1, &flags(&["--resume"]));
    assert_eq!(ended.outcomes()[ROOT].progress.epoch, 3);
    let rates: Vec<f64> = metrics(&ended)
        .iter()
        .map(|record| record.learning_rate)
        .collect();
    let last = 0.05 * (1.0 + (std::f64::consts::PI * 14.0 / 15.0).cos());
    assert!((rates[2] - last).abs() < 1e-12, "{rates:?}");
}

#[test]
fn a_plateau_lowers_the_rate_on_any_number_of_ranks_and_after_a_resume() {
    // No evaluation after the first is better by 90 %.
    let options = "--schedule plateau --gamma 0.5 --plateau-patience 0 --plateau-threshold 0.9 --monitor loss \
                   --eval-every-epochs 1 --epochs 4 --warmup-epochs 0 --reduction exact --virtual-shards 2";
    let whole = run(2, &tiny(&format!("{options} --keep-checkpoints 99")));
    let rates = |run: &Run| -> Vec<f64> {
        let records = metrics(run).into_iter();
        records.map(|record| record.learning_rate).collect()
    };
    let first = rates(&whole)[0];
    let expected = [1.0, 1.0, 0.5, 0.25].map(|factor| factor * first);
    assert_eq!(rates(&whole), expected);
    let resumed = whole
        .with_checkpoint_alone(15)
        .go(1, &tiny(&format!("{options} --resume")));
    assert_eq!(rates(&resumed), expected[3..]);
    assert_eq!(resumed.parameter_hash(), whole.parameter_hash());
}

#[test]
fn lines_of_steps_have_neither_holes_nor_repetitions_after_a_resume() {
    let options = "--log-steps --checkpoint-every-steps 3 --keep-checkpoints 99";
    let whole = run(2, &tiny(options));
    let lines = |run: &Run| -> Vec<String> {
        let text = fs::read_to_string(run.directory().join("steps.csv")).unwrap();
        // Epoch, step, loss, accuracy and learning rate; the rest are times.
        let untimed = |line: &str| line.split(',').take(5).collect::<Vec<_>>().join(",");
        text.lines().map(untimed).collect()
    };
    let expected = lines(&whole);
    assert_eq!(expected[0], "epoch,step,loss,top1,learning_rate");
    assert_eq!(expected.len(), 11);
    assert!(expected[5].starts_with("0,5,") && expected[6].starts_with("1,6,"));
    for later in ["09", "10"] {
        let checkpoint = format!("checkpoints/step-000000{later}");
        fs::remove_dir_all(whole.directory().join(checkpoint)).unwrap();
    }
    let resumed = whole.again().go(2, &tiny("--resume"));
    assert_eq!(lines(&resumed), expected);
}

#[test]
fn milestones_may_change_as_long_as_they_have_not_passed() {
    let with = |milestones: &str| {
        tiny(&format!(
            "--schedule multistep --epochs 4 --milestones {milestones}"
        ))
    };
    let stopped = Run::in_new_directory()
        .stopping_after(7)
        .go(1, &with("1,3"));
    let change = |milestones: &str| with(&format!("{milestones} --resume"));
    let error = format!(
        "{:#}",
        stopped.again().try_go(1, &change("2,3")).unwrap_err()
    );
    assert!(
        error.contains(
            "schedule.milestones was [1, 3], is [2, 3] (passed milestones cannot change)"
        ),
        "{error}"
    );
    assert!(told(&stopped, &change("1,2")).contains("the multistep schedule has other milestones"));
    stopped.again().stopping_after(1).go(1, &change("1,2"));
}

#[test]
fn an_altered_position_is_refused() {
    let whole = run(1, &tiny("--checkpoint-every-steps 3 --keep-checkpoints 99"));
    for (from, to, expected) in [
        (
            "\"step_in_epoch\": 3",
            "\"step_in_epoch\": 1",
            "expected step 1 at step 1 of 5 in epoch 0, got 3",
        ),
        (
            "\"step_in_epoch\": 3",
            "\"step_in_epoch\": 8",
            "expected step 8 at step 8 of 5 in epoch 0, got 3",
        ),
        (
            "\"epoch\": 0",
            "\"epoch\": 1",
            "expected step 8 at step 3 of 5 in epoch 1, got 3",
        ),
    ] {
        let copy = whole.with_checkpoint_alone(3);
        let folder = copy.directory().join("checkpoints/step-00000003");
        replace(&folder.join("state.json"), from, to);
        sign(&folder);
        let text = refusal(&copy, 1, "--resume");
        assert!(
            text.contains("step, epoch and step_in_epoch do not agree") && text.contains(expected),
            "{text}"
        );
    }
    let copy = whole.with_checkpoint_alone(3);
    let folder = copy.directory().join("checkpoints/step-00000003");
    fs::remove_file(folder.join("state.sha256")).unwrap();
    assert!(refusal(&copy, 1, "--resume").contains("state.sha256"));
}

#[test]
fn a_position_in_epochs_of_other_lengths_keeps_its_updates_and_its_place_in_the_schedule() {
    let mut progress = Progress {
        epoch: 2,
        step: 17,
        step_in_epoch: 7,
        ..Progress::default()
    };
    progress.check_position(5).unwrap_err();
    progress.move_to_epochs_of(3);
    assert_eq!(
        (
            progress.step,
            progress.step_in_epoch,
            progress.schedule_step()
        ),
        (17, 3, 9)
    );
    progress.check_position(3).unwrap();
    progress.move_to_epochs_of(100);
    assert_eq!(
        (
            progress.step,
            progress.step_in_epoch,
            progress.schedule_step()
        ),
        (17, 3, 203)
    );
    progress.check_position(100).unwrap();
    progress.check_position(3).unwrap_err();
}

#[test]
fn a_run_continues_with_fewer_or_more_images_if_changed_data_are_allowed() {
    for (world_size, num_left, steps_per_epoch) in [(1, 6, 3), (2, 6, 3), (1, 26, 13)] {
        let data = tempfile::tempdir().unwrap();
        let write = |split: &str, images: std::ops::Range<u8>| {
            for (class, base) in [("dark", 10), ("light", 200)] {
                write_images(
                    data.path(),
                    split,
                    class,
                    images.clone().map(|image| base + image),
                );
            }
        };
        write("train", 0..20);
        write("test", 0..2);
        let directory = data.path().to_str().unwrap().to_owned();
        let words = format!(
            "--dataset image-folder --model resnet8 --global-batch-size 4 --epochs 2 --augment none --data-dir {directory}"
        );
        // The run has done seven of ten steps of the epoch.
        let begun = Run::in_new_directory()
            .stopping_after(7)
            .go(world_size, &flags(&[&words]));
        assert_eq!(begun.outcomes()[ROOT].progress.step_in_epoch, 7);
        fs::remove_dir_all(data.path().join("train")).unwrap();
        write("train", 0..num_left);
        let resume = flags(&[&words, "--resume --allow-changed-data"]);
        assert_eq!(
            told(&begun, &resume).contains("it counts as trained"),
            steps_per_epoch < 7
        );
        let resumed = begun.again().go(world_size, &resume);
        let progress = &resumed.outcomes()[ROOT].progress;
        let left_of_epoch = steps_per_epoch - 7_u64.min(steps_per_epoch);
        assert_eq!(
            (progress.epoch, progress.step),
            (2, 7 + left_of_epoch + steps_per_epoch)
        );
        let last = 2 * steps_per_epoch - 1;
        let rate = 0.05 * (1.0 + (std::f64::consts::PI * last as f64 / (last + 1) as f64).cos());
        assert!((resumed.last_record().learning_rate - rate).abs() < 1e-12);
        // A second resume accepts the resumed run's files.
        resumed
            .again()
            .go(world_size, &flags(&[&words, "--resume"]));
    }
}
