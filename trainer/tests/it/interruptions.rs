//! Runs that are stopped, killed, damaged or disturbed: their files, and their resumed sessions.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::fixture::{Run, TINY, flags, run, trainer, write_images};
use crate::resuming::metrics;
use crate::signals::Running;
use distributed::ROOT;
use records::Best;
use records::EpochRecord;
use trainer::config::cli::TrainArgs;
use trainer::run::checkpoint::{Checkpoint, CheckpointStore, find};

fn tiny(further: &str) -> TrainArgs {
    flags(&[TINY, "--augment crop-flip", further])
}

/// Stops the tiny run at this read of the flag. Returns the steps of each rank and the resumed run.
fn stopped_and_resumed(world_size: usize, num_looks: u64) -> (Vec<u64>, Run) {
    let stopped = Run::in_new_directory()
        .stopping_after(num_looks)
        .go(world_size, &tiny(""));
    assert!(
        stopped
            .outcomes()
            .iter()
            .all(|outcome| outcome.stopped_early)
    );
    let steps = stopped
        .outcomes()
        .iter()
        .map(|outcome| outcome.progress.step)
        .collect();
    let resumed = stopped.again().go(world_size, &tiny("--resume"));
    assert!(!resumed.outcomes()[ROOT].stopped_early);
    (steps, resumed)
}

fn checkpoints(run: &Run) -> PathBuf {
    run.directory().join("checkpoints")
}

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_stop_at_any_moment_ends_all_ranks_at_one_step_and_the_rest_gives_the_same_bits() {
    let whole = run(2, &tiny(""));
    let record = whole.last_record();
    assert_eq!(record.test.as_ref().unwrap().num_samples, 40);
    // Stops happen during the start, after the first step, at an epoch's last step, during the
    // evaluation, at the evaluation's last batch, and at its end.
    for (num_looks, step) in [(0, 0), (1, 1), (5, 5), (6, 5), (7, 5), (8, 5), (9, 6)] {
        let (steps, resumed) = stopped_and_resumed(2, num_looks);
        assert_eq!(steps, [step, step], "after {num_looks} looks");
        assert_eq!(
            resumed.parameter_hash(),
            whole.parameter_hash(),
            "after {num_looks} looks"
        );
        let resumed = resumed.last_record();
        assert_eq!(
            (resumed.test, resumed.train_top1_correct),
            (record.test.clone(), record.train_top1_correct),
            "after {num_looks} looks"
        );
    }
}

#[test]
fn a_run_whose_directory_is_moved_or_replaced_ends_and_makes_no_other() {
    for is_replaced in [false, true] {
        let run = Run::in_new_directory();
        let there = run.directory();
        let moved = there.with_file_name("moved");
        let words = "train --epochs 1000 --checkpoint-every-steps 1 --output-dir";
        let mut train = trainer(words, &[&there]);
        let training = train.stdout(Stdio::null()).stderr(Stdio::piped());
        let training = training.spawn().unwrap();
        let store = CheckpointStore::new(&there.join("checkpoints"), 9);
        while !store.has_any().unwrap() {
            sleep(Duration::from_millis(20));
        }
        fs::rename(&there, &moved).unwrap();
        if is_replaced {
            fs::create_dir_all(there.join("checkpoints")).unwrap();
            fs::write(there.join(".lock"), "").unwrap();
        }
        let output = training.wait_with_output().unwrap();
        let words = String::from_utf8(output.stderr).unwrap();
        assert_eq!(
            words.matches("was moved or removed while the run").count(),
            1,
            "{words}"
        );
        assert_eq!(
            output.status.code(),
            Some(2),
            "a launcher does not restart the run: {words}"
        );
        assert_eq!(there.exists(), is_replaced);
        let checkpoint = CheckpointStore::new(&moved.join("checkpoints"), 9)
            .latest()
            .unwrap()
            .0;
        assert!(checkpoint.is_some(), "those of the run are whole");
    }
}

#[test]
fn a_run_whose_lock_metrics_and_log_are_removed_has_all_records_and_a_log() {
    let run = Run::in_new_directory();
    let path = |name: &str| run.directory().join(name);
    let words = format!("train {TINY} --output-dir").replace("--epochs 2", "--epochs 100000");
    let mut train = trainer(&words, &[&run.directory()]);
    let mut training = Running(train.stdout(Stdio::null()).spawn().unwrap());
    let start = Instant::now();
    let mut wait_for_epoch = || {
        // Waits until an epoch after the removal has written both files.
        while fs::metadata(path("metrics.jsonl")).map_or(true, |facts| facts.len() == 0)
            || !path("train.log").exists()
        {
            assert!(training.is_there() && start.elapsed() < Duration::from_secs(60));
            sleep(Duration::from_millis(20));
        }
    };
    wait_for_epoch();
    [".lock", "metrics.jsonl", "train.log"]
        .iter()
        .for_each(|name| fs::remove_file(path(name)).unwrap());
    wait_for_epoch();
    assert_eq!(training.code_after(&["TERM"]), Some(0));
    assert!(path("summary.json").exists() && path("train.log").exists());
    let epochs = metrics(&run).into_iter().map(|record| record.epoch);
    assert!(
        epochs
            .enumerate()
            .all(|(number, epoch)| number as u64 == epoch)
    );
}

#[test]
fn a_link_to_unmounted_checkpoints_is_not_a_run_without_checkpoints() {
    let done = run(1, &tiny("--epochs 1"));
    let metrics = done.directory().join("metrics.jsonl");
    let before = fs::read(&metrics).unwrap();
    let away = done.directory().join("away");
    fs::rename(checkpoints(&done), &away).unwrap();
    std::os::unix::fs::symlink("/nonexistent/scratch", checkpoints(&done)).unwrap();
    let error = format!(
        "{:#}",
        done.again()
            .try_go(1, &tiny("--epochs 1 --resume"))
            .unwrap_err()
    );
    assert!(
        error.contains("cannot read") && error.contains("checkpoints"),
        "{error}"
    );
    assert_eq!(fs::read(&metrics).unwrap(), before, "no new run is started");
    fs::remove_file(checkpoints(&done)).unwrap();
    std::os::unix::fs::symlink(&away, checkpoints(&done)).unwrap();
    done.again().go(1, &tiny("--epochs 1 --resume"));
}

#[test]
fn a_stop_during_the_start_leaves_no_checkpoint_and_those_that_were_there() {
    let new = Run::in_new_directory().stopping_after(0).go(1, &tiny(""));
    assert!(!checkpoints(&new).exists());
    let done = run(1, &tiny("--epochs 1 --schedule constant"));
    let before = names(&checkpoints(&done));
    let longer = tiny("--schedule constant --resume");
    let stopped = done.again().stopping_after(0).go(1, &longer);
    assert_eq!(names(&checkpoints(&stopped)), before);
}

#[test]
fn an_interrupted_evaluation_is_repeated_after_the_resume() {
    let whole = run(1, &tiny(""));
    let stopped = Run::in_new_directory().stopping_after(7).go(1, &tiny(""));
    assert!(metrics(&stopped).is_empty());
    let resumed = stopped.again().go(1, &tiny("--resume"));
    let scores = |run: &Run| -> Vec<_> {
        let records = metrics(run).into_iter();
        records
            .map(|record| (record.epoch, record.train_top1_correct, record.test))
            .collect()
    };
    assert_eq!(scores(&resumed), scores(&whole));
    assert_eq!(names(&checkpoints(&resumed)), names(&checkpoints(&whole)));
}

#[test]
fn a_checkpoint_of_two_ranks_is_resumed_on_one() {
    let stopped = Run::in_new_directory().stopping_after(1).go(2, &tiny(""));
    let resumed = stopped.again().go(1, &tiny("--resume"));
    assert_eq!(resumed.outcomes()[ROOT].progress.epoch, 2);
}

#[test]
fn a_damaged_checkpoint_is_set_aside_for_the_one_before_and_the_run_ends_with_the_same_bits() {
    type Damage = fn(&Path);
    let flip: Damage = |file| {
        let mut bytes = fs::read(file).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(file, bytes).unwrap();
    };
    let cut: Damage = |file| fs::write(file, &fs::read(file).unwrap()[..50]).unwrap();
    let remove: Damage = |file| fs::remove_file(file).unwrap();
    let edit: Damage = |file| {
        let text = fs::read_to_string(file).unwrap();
        fs::write(
            file,
            text.replacen("\"step_in_epoch\": 0", "\"step_in_epoch\": 1", 1),
        )
        .unwrap();
    };
    // One checkpoint is kept. If the damaged one counted, the new one would be removed.
    let whole = run(1, &tiny("--checkpoint-every-steps 3 --keep-checkpoints 1"));
    let two = run(1, &tiny("--checkpoint-every-steps 3 --keep-checkpoints 2"));
    for (file, damage) in [
        ("model.safetensors", flip),
        ("training.safetensors", flip),
        ("model.safetensors", cut),
        ("state.json", cut),
        ("training.safetensors", remove),
        ("state.json", remove),
        ("state.json", edit),
        ("state.sha256", remove),
        ("state.sha256", cut),
    ] {
        let copy = two.with_checkpoint_alone(9);
        fs::create_dir(checkpoints(&copy).join("step-00000010")).unwrap();
        for entry in fs::read_dir(checkpoints(&two).join("step-00000010")).unwrap() {
            let entry = entry.unwrap();
            fs::copy(
                entry.path(),
                checkpoints(&copy)
                    .join("step-00000010")
                    .join(entry.file_name()),
            )
            .unwrap();
        }
        damage(&checkpoints(&copy).join("step-00000010").join(file));
        let store = CheckpointStore::new(&checkpoints(&copy), 2);
        let (found, warnings) = store.latest().unwrap();
        assert_eq!(found.unwrap().state.progress.step, 9, "{file}");
        assert!(warnings[0].warning.contains(file), "{warnings:?}");
        let resumed = copy.again().go(1, &tiny("--resume --keep-checkpoints 1"));
        assert_eq!(resumed.parameter_hash(), whole.parameter_hash(), "{file}");
        let left = names(&checkpoints(&resumed));
        assert!(
            left.contains(&"step-00000010.damaged".to_owned()),
            "{left:?}"
        );
        Checkpoint::open(&checkpoints(&resumed).join("step-00000010")).unwrap();
    }
}

#[test]
fn a_run_without_a_whole_checkpoint_is_not_started_over_the_remains() {
    let run = run(1, &tiny("--epochs 1"));
    fs::write(checkpoints(&run).join("step-00000005/state.json"), "{").unwrap();
    let error = format!(
        "{:#}",
        run.again()
            .try_go(1, &tiny("--epochs 1 --resume"))
            .unwrap_err()
    );
    assert!(
        error.contains("no checkpoint in") && error.contains("is whole"),
        "{error}"
    );
    assert_eq!(names(&checkpoints(&run)), ["step-00000005"]);
    // A folder without a step in its name is not a checkpoint.
    let other = tempfile::tempdir().unwrap();
    fs::create_dir(other.path().join("step-")).unwrap();
    assert!(!CheckpointStore::new(other.path(), 1).has_any().unwrap());
}

#[test]
fn a_kill_while_a_checkpoint_is_replaced_or_removed_loses_nothing() {
    let whole = run(1, &tiny(""));
    let folder = checkpoints(&whole);
    let rename = |from: &str, to: &str| fs::rename(folder.join(from), folder.join(to)).unwrap();
    // Cases: killed between the two renames that replace an old checkpoint, during the removal of
    // an old checkpoint, or during the writing of a new one.
    rename("step-00000010", "step-00000010.replaced");
    rename("step-00000005", "step-00000005.removed");
    fs::remove_file(folder.join("step-00000005.removed/state.json")).unwrap();
    fs::create_dir(folder.join("step-00000011.unfinished")).unwrap();
    fs::write(
        folder.join("step-00000011.unfinished/model.safetensors"),
        "half",
    )
    .unwrap();
    // A reader finds the checkpoint too, and renames nothing.
    assert_eq!(find(&whole.directory()).unwrap().0.state.progress.step, 10);
    assert!(folder.join("step-00000010.replaced").exists());
    let longer = tiny("--resume --epochs 2");
    let resumed = whole.again().go(1, &longer);
    assert_eq!(resumed.parameter_hash(), whole.parameter_hash());
    let store = CheckpointStore::new(&folder, 2);
    let newest = store.latest().unwrap().0.unwrap();
    assert_eq!(newest.state.progress.step, 10);
    // The next checkpoint removes the remains.
    let tensors = newest.training_tensors().unwrap();
    let state = newest.state.clone();
    let model = fs::read(newest.model_path()).unwrap();
    store.save(state, &tensors, None, &model).unwrap();
    assert_eq!(names(&folder), ["step-00000010"]);
}

#[test]
fn a_checkpoint_that_cannot_be_written_leaves_the_others_and_nothing_of_itself() {
    let run = run(1, &tiny("--epochs 1"));
    let store = CheckpointStore::new(&checkpoints(&run), 2);
    let newest = store.latest().unwrap().0.unwrap();
    let mut state = newest.state.clone();
    state.progress.step += 1;
    let tensors = newest.training_tensors().unwrap();
    let failed = [Err(anyhow::anyhow!("no space left on device"))];
    let error = store.save(state, &tensors, failed, b"half");
    assert_eq!(
        format!("{:#}", error.unwrap_err()),
        "checkpoint of step 6: no space left on device"
    );
    assert_eq!(names(&checkpoints(&run)), ["step-00000005"]);
}

#[test]
fn the_best_checkpoint_is_kept_though_its_run_was_killed_as_soon_as_it_was_in_place() {
    let run = run(1, &tiny("--epochs 1"));
    let folder = checkpoints(&run);
    let store = CheckpointStore::new(&folder, 1);
    let first = store.best().unwrap().unwrap();
    let tensors = first.training_tensors().unwrap();
    let model = fs::read(first.model_path()).unwrap();
    let put = |step, step_in_epoch| {
        let mut state = first.state.clone();
        let last_record = state.progress.last_record.take();
        (
            state.progress.epoch,
            state.progress.step,
            state.progress.step_in_epoch,
        ) = (2, step, step_in_epoch);
        state.progress.best = Some(Best {
            epoch: 1,
            monitor: "test-top1".to_owned(),
            value: 1.0,
        });
        state.progress.last_record = last_record.map(|record| EpochRecord {
            epoch: 1,
            step: 10,
            ..record
        });
        store.save(state, &tensors, None, &model).unwrap();
    };
    let best = || store.best().unwrap().unwrap().state.progress.step;
    assert_eq!(best(), 5);
    // Only the new checkpoint is marked as the best.
    fs::write(folder.join("best"), "step-00000005").unwrap();
    put(10, 0);
    assert_eq!(best(), 10);
    put(11, 1);
    assert_eq!(best(), 10);
    assert_eq!(names(&folder), ["best", "step-00000010", "step-00000011"]);
}

#[test]
fn data_that_changed_between_sessions_are_refused_unless_that_is_allowed() {
    let data = tempfile::tempdir().unwrap();
    for split in ["train", "test"] {
        write_images(data.path(), split, "dark", 10..14);
        write_images(data.path(), split, "light", 200..204);
    }
    let options = format!(
        "--dataset image-folder --data-dir {} --model resnet8 --global-batch-size 4 --epochs 1 --augment none",
        data.path().display()
    );
    let begun = Run::in_new_directory()
        .stopping_after(1)
        .go(1, &flags(&[&options]));
    for (changed, value) in [("test", 77), ("train", 78)] {
        write_images(data.path(), changed, "dark", [value]);
        let error = format!(
            "{:#}",
            begun
                .again()
                .try_go(1, &flags(&[&options, "--resume"]))
                .unwrap_err()
        );
        let expected = format!("resume: the {changed} split has changed: expected sha256 ");
        assert!(
            error.starts_with(&expected) && error.contains("--allow-changed-data"),
            "{error}"
        );
    }
    let forced = begun
        .again()
        .go(1, &flags(&[&options, "--resume --allow-changed-data"]));
    assert!(!forced.outcomes()[ROOT].stopped_early);
}
