//! Gradients and images in a run's event file. `xtask/src/report_suite.rs` reads such files with
//! TensorBoard.

use std::fs;

use crate::fixture::{Run, TINY, flags, run};

/// Returns the event file of a run of ten steps with these flags.
fn events(world_size: usize, with: &str) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let tensorboard = format!(
        "--eval-every-epochs 100 --tensorboard {}",
        folder.path().display()
    );
    run(world_size, &flags(&[TINY, &tensorboard, with]));
    let mut files = fs::read_dir(folder.path()).unwrap();
    let bytes = fs::read(files.next().unwrap().unwrap().path()).unwrap();
    assert!(files.next().is_none());
    bytes
}

/// Returns the bytes after each occurrence of the tag.
fn after<'a>(bytes: &'a [u8], tag: &'a str) -> Vec<&'a [u8]> {
    let places = bytes
        .windows(tag.len())
        .enumerate()
        .filter(|(_, window)| *window == tag.as_bytes());
    places.map(|(at, _)| &bytes[at + tag.len()..]).collect()
}

/// Returns the number of steps with a histogram of the classifier's gradient, and asserts that no
/// histogram is all zero. A histogram starts with its least value, and a zero would be omitted.
fn num_gradients(bytes: &[u8]) -> usize {
    let histograms = after(bytes, "gradients/linear.weight");
    for histogram in &histograms {
        let length = histogram[1..].iter().position(|byte| *byte < 0x80).unwrap() + 1;
        assert_eq!(
            (histogram[0], histogram[1 + length]),
            (0x2a, 0x09),
            "field 5 with field 1 of type double"
        );
    }
    histograms.len()
}

#[test]
fn gradients_are_shown_of_the_last_step_of_an_epoch_or_of_every_n_steps() {
    for (world_size, sync) in [
        (2, ""),
        (2, "--sync local-sgd --every 3"),
        (2, "--sync post-local-sgd --every 2 --from-step 6"),
        (1, "--update device"),
        (2, "--update device"),
    ] {
        let with = format!("--device flex {sync}");
        assert_eq!(num_gradients(&events(world_size, &with)), 2, "{with}");
        // The steps are 4, 5, 8 and 10.
        assert_eq!(
            num_gradients(&events(
                world_size,
                &format!("{with} --tensorboard-every 4")
            )),
            4,
            "{with}"
        );
    }
    assert_eq!(
        num_gradients(&events(2, "--sync parameter-server --servers 1")),
        0
    );
}

#[test]
fn curves_and_images_are_written_every_n_steps() {
    let [curves, images] = ["step/loss", "batch/images"];
    let plain = events(1, "--log-every-steps 1");
    assert_eq!(
        (after(&plain, curves).len(), after(&plain, images).len()),
        (10, 1)
    );
    let rare = events(1, "--log-every-steps 1 --tensorboard-every 4");
    assert_eq!(
        (after(&rare, curves).len(), after(&rare, images).len()),
        (4, 3)
    );
}

#[test]
fn a_speed_that_no_session_measured_is_in_no_curve() {
    let folder = tempfile::tempdir().unwrap();
    let events = folder.path().display();
    let words = format!("--warmup-steps 0 --tensorboard {events}");
    // The stop is during the evaluation of the first epoch.
    let stopped = Run::in_new_directory()
        .stopping_after(7)
        .go(1, &flags(&[TINY, &words]));
    let resumed = stopped.again().go(1, &flags(&[TINY, &words, "--resume"]));
    let speeds: Vec<_> = crate::resuming::metrics(&resumed)
        .iter()
        .map(|record| record.speed().is_some())
        .collect();
    assert_eq!(speeds, [false, true]);
    let files = fs::read_dir(folder.path()).unwrap();
    let bytes: Vec<u8> = files
        .flat_map(|file| fs::read(file.unwrap().path()).unwrap())
        .collect();
    assert_eq!(
        (
            after(&bytes, "epoch/images_per_second").len(),
            after(&bytes, "test/loss").len()
        ),
        (1, 2)
    );
}
