//! Tests of the console and the log of a run.

use super::*;
use crate::measure::metrics::ScoreSums;
use crate::measure::metrics::throughput;
use crate::measure::metrics::{record, sums};
use records::{Best, Evaluation, FinalTest, GradientNoise, RankSeconds, Seconds, SlowestRank};
use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

/// A console that can be read back.
#[derive(Clone, Default)]
struct Console(Arc<Mutex<Vec<u8>>>);

impl Console {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Console {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn reporter() -> (Reporter, Console, Console) {
    let console = Console::default();
    let warnings = Console::default();
    let reporter = Reporter::with_console(Box::new(console.clone()), Box::new(warnings.clone()));
    (reporter, console, warnings)
}

fn step_line(step_in_epoch: u64) -> StepLine {
    StepLine {
        epoch: 3,
        step_in_epoch,
        steps_per_epoch: 3900,
        scores: sums(1204.6, 1000, [563, 900]),
        learning_rate: 0.0921,
        duration: Duration::from_micros(41_700),
        seconds: Seconds {
            data: 0.0004,
            forward: 0.0131,
            backward: 0.022,
            communication: 0.0039,
            optimizer: 0.0023,
            ..Seconds::default()
        },
        global_num_samples: 512,
        time_left: Some(Duration::from_secs(1845)),
    }
}

fn summary(own_milliseconds_per_step: f64) -> Summary {
    Summary {
        started: String::new(),
        skipped_steps: 0,
        epochs: 5,
        steps: 785,
        images: 50_000,
        final_epoch: Some(record(4, Some(9))),
        best: Some(Best {
            epoch: 3,
            monitor: "test-top1".to_owned(),
            value: 1.0,
        }),
        test: None,
        patience_ended_after: None,
        parameter_hash: "ab12".to_owned(),
        seconds_total: 83.1,
        images_per_second: throughput(&[(64, Duration::from_millis(100)); 20]),
        slowest_rank: Some(SlowestRank {
            rank: 2,
            node: "n3".to_owned(),
            own_milliseconds_per_step,
            mean_milliseconds_per_step: 40.0,
        }),
        rank_seconds: Vec::new(),
        peak_memory_bytes: 412 << 20,
        staleness: None,
        stopped_early: false,
    }
}

#[test]
fn control_characters_of_names_are_escaped_and_letters_of_any_script_kept() {
    assert_eq!(
        printable("caf\u{e9} \u{1b}[2J\n\u{732b}"),
        "caf\u{e9} \\u{1b}[2J\\n\u{732b}"
    );
}

#[test]
fn a_step_line_has_units_and_a_hundred_columns_at_most_unless_verbose() {
    let short = StepLine {
        steps_per_epoch: 390,
        ..step_line(116)
    };
    assert_eq!(
        lines::step(&short, true),
        "epoch 4 step 117/390 | loss 1.2046 | acc 56.3 % | lr 0.0921 | 41.7 ms | 12,278 samples/s \
         | 31 min left | data  0.4 fwd  13.1 bwd  22.0 comm  3.9 opt  2.3"
    );
    assert_eq!(
        lines::step(&step_line(1171), false),
        "epoch 4 step 1172/3900 | loss 1.2046 | acc 56.3 % | lr 0.0921 | 12,278 samples/s | 31 min left",
        "the speed implies the time of a step"
    );
    let quick = StepLine {
        time_left: Some(Duration::from_secs(5)),
        ..short
    };
    assert!(lines::step(&quick, false).contains(" | 41.7 ms | "));
    let long = StepLine {
        epoch: 99,
        steps_per_epoch: 50_000,
        time_left: Some(Duration::from_secs(180_000)),
        ..step_line(0)
    };
    assert!(lines::step(&long, false).chars().count() <= 100);
    let nothing = StepLine {
        scores: ScoreSums::default(),
        ..step_line(0)
    };
    assert!(lines::step(&nothing, false).contains("| loss - | lr"));
}

#[test]
fn an_epoch_line_marks_the_best_and_its_details_have_a_line_of_their_own() {
    let line = "epoch 4 | train 0.5000 60.00 % | test 0.5000 70.00 %";
    let end = " | 5 samples/s | 3.0 s";
    let of = |record: &EpochRecord| lines::epoch(record, false, false);
    assert_eq!(of(&record(3, Some(7))), [format!("{line}{end}")]);
    let best = lines::epoch(&record(3, Some(7)), true, true);
    assert_eq!(
        best,
        [
            &format!("{line} *{end}"),
            "         data  0.0 fwd   0.5 bwd   1.0 comm  0.0 opt  0.0 | eval 0.0 save 0.0 s",
            "         peak 200 MiB"
        ]
    );
    assert!(of(&record(3, None))[0].contains("| not evaluated |"));
    let unmeasured = EpochRecord {
        images_per_second: 0.0,
        ..record(3, None)
    };
    assert!(
        of(&unmeasured)[0].contains(" | - samples/s |"),
        "as of a start that made no step of the epoch"
    );
    let noise = GradientNoise {
        batch_size: Some(1234.4),
        ..GradientNoise::default()
    };
    let measured = EpochRecord {
        joules_per_image: Some(0.25),
        gradient_noise: Some(noise),
        loss_scale: Some(1024),
        overflowed_steps: 1,
        ..record(3, None)
    };
    assert_eq!(
        of(&measured)[1..],
        [
            "         loss scale 1024, 1 step skipped | 0.250 J a sample",
            "         noise scale 1,234 samples"
        ]
    );
}

#[test]
fn metrics_of_a_task_follow_the_loss_or_have_a_line_of_their_own() {
    let of = |names: &[&str]| {
        let metrics = names.iter().map(|name| ((*name).to_owned(), 0.25));
        let scores = Evaluation {
            loss: 0.5,
            metrics: metrics.collect(),
            ..Evaluation::default()
        };
        let record = EpochRecord {
            val: Some(scores),
            ..record(0, None)
        };
        lines::epoch(&record, true, false)
    };
    let one = of(&["iou"]);
    assert!(
        one[0].contains("| val loss 0.5000 iou 0.2500 * |") && one.len() == 1,
        "{one:?}"
    );
    let three = of(&["accuracy", "dice", "iou"]);
    assert!(three[0].contains("| val loss 0.5000 * |"), "{three:?}");
    assert_eq!(
        three[1],
        "         accuracy 0.2500 | dice 0.2500 | iou 0.2500"
    );
}

#[test]
fn the_first_step_has_a_line_and_one_after_ten_seconds_without_one() {
    let (reporter, console, _) = reporter();
    for step in 0..3900 {
        if step == 1500 {
            let last = &mut reporter.lock().unwrap().last_step_line;
            *last = last.unwrap().checked_sub(LINE_EVERY);
        }
        reporter.step(
            &step_line(step),
            (step + 1).is_multiple_of(1000) || reporter.is_step_due(),
        );
    }
    let lines = console.text();
    let shown: Vec<String> = lines
        .lines()
        .filter(|line| line.contains(" step "))
        .map(|line| line[13..17].to_owned())
        .collect();
    assert_eq!(shown, ["   1", "1000", "1501", "2000", "3000"]);
    assert!(!reporter.is_step_due());
    reporter.set_lines(Duration::ZERO, false);
    assert!(reporter.is_step_due());
    assert!(
        !Reporter::new(false).is_step_due(),
        "other ranks print nothing"
    );
}

#[test]
fn a_long_process_prints_its_progress_after_an_interval_and_not_before() {
    let (reporter, console, _) = reporter();
    let paced = |line_every| {
        let items = reporter.paced_every(line_every, "eval", ("batch", 300), 0..2);
        assert!(items.eq(0..2));
        console.text()
    };
    assert_eq!(paced(Duration::from_secs(3600)), "");
    let lines = paced(Duration::ZERO);
    let [first, second] = lines.lines().collect::<Vec<_>>()[..] else {
        panic!("{lines}")
    };
    assert_eq!(first, "eval | batch 0/300");
    assert!(second.starts_with("eval | batch 1/300 | "), "{second}");
    for (done, line) in [
        (0, "eval | batch 0/300"),
        (2, "eval | batch 2/300 | 25 min left"),
    ] {
        let part_done = lines::part_done("eval", "batch", [done, 300], LINE_EVERY);
        assert_eq!(part_done, line);
    }
}

#[test]
fn the_log_has_the_text_of_the_console_and_the_warnings_but_no_json() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("train.log");
    let (reporter, console, warnings) = reporter();
    reporter.log_to(&path).unwrap();
    reporter.note("hello");
    reporter.warn("slow disk");
    reporter.json(&serde_json::json!({ "loss": 0.5 })).unwrap();
    assert_eq!(
        fs::read_to_string(&path).unwrap(),
        "hello\nwarning: slow disk\n"
    );
    assert_eq!(console.text(), "hello\n{\"loss\":0.5}\n");
    assert_eq!(warnings.text(), "warning: slow disk\n");
}

#[test]
fn a_log_that_was_replaced_is_opened_again_at_the_next_epoch() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("train.log");
    let (reporter, _, warnings) = reporter();
    reporter.log_to(&path).unwrap();
    reporter.epoch(&record(0, None), false);
    fs::rename(&path, path.with_extension("1")).unwrap();
    (1..3).for_each(|epoch| reporter.epoch(&record(epoch, None), false));
    let text = fs::read_to_string(&path).unwrap();
    assert_eq!(text.matches("epoch ").count(), 2, "{text}");
    assert!(
        warnings
            .text()
            .contains("train.log was replaced or removed during the run")
    );
    assert_eq!(text.matches("warning: ").count(), 1, "{text}");
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    (3..5).for_each(|epoch| reporter.epoch(&record(epoch, None), false));
    assert_eq!(
        warnings
            .text()
            .matches("the log of this run ends here")
            .count(),
        1,
        "{}",
        warnings.text()
    );
}

#[test]
fn other_ranks_print_nothing() {
    let reporter = Reporter::new(false);
    assert!(reporter.output.is_none());
    reporter.note("not seen");
}

#[test]
fn details_are_printed_if_the_run_is_verbose() {
    let (reporter, console, _) = reporter();
    reporter.detail("not asked for");
    reporter.set_lines(LINE_EVERY, true);
    reporter.detail("asked for");
    assert_eq!(console.text(), "asked for\n");
}

#[test]
fn a_terminal_has_colours_and_the_log_has_none() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("train.log");
    let (reporter, console, warnings) = reporter();
    reporter.log_to(&path).unwrap();
    reporter.lock().unwrap().colors = [true; 2];
    reporter.epoch(&record(0, Some(7)), true);
    reporter.warn("slow disk");
    assert!(
        console
            .text()
            .contains(" \u{1b}[32m*\u{1b}[0m | 5 samples/s")
    );
    assert_eq!(warnings.text(), "\u{1b}[33mwarning:\u{1b}[0m slow disk\n");
    let text = fs::read_to_string(&path).unwrap();
    assert!(
        text.contains(" * | 5") && text.ends_with("\nwarning: slow disk\n"),
        "{text}"
    );
}

#[test]
fn the_end_warns_of_a_slow_rank_or_of_uneven_steps_but_not_after_few_steps() {
    let (reporter, console, warnings) = reporter();
    let next = ["trainer report runs/a", "trainer eval --checkpoint runs/a"].map(str::to_owned);
    reporter.finish(&summary(41.0), Some(Path::new("runs/a")), &next);
    assert_eq!(warnings.text(), "");
    assert_eq!(
        console.text(),
        "done     5 epochs | 785 steps | 50,000 samples | 83.1 s\n\
         best     test-top1 100.00 % | epoch 4\n\
         test     loss 0.5000 | top-1 90.00 % (9 of 10) | top-5 90.00 % (9 of 10)\n         epoch 5 (last)\n\
         speed    640.0 ± 0.0 samples/s (20 steps) | median step 100.0 ms | peak 412 MiB\n\
         files    runs/a\n\
         next     trainer report runs/a\n\
         \x20        trainer eval --checkpoint runs/a\n\
         parameters sha256 ab12\n"
    );
    let of = |steps: usize, own_milliseconds| Summary {
        images_per_second: throughput(
            &[64, 128]
                .repeat(steps / 2)
                .into_iter()
                .map(|time| (64, Duration::from_millis(time)))
                .collect::<Vec<_>>(),
        ),
        ..summary(own_milliseconds)
    };
    reporter.finish(&of(18, 60.0), None, &[]);
    assert_eq!(warnings.text(), "");
    reporter.finish(&of(20, 41.0), None, &[]);
    assert!(
        warnings
            .text()
            .starts_with("warning: step speeds vary by 34 %"),
        "{}",
        warnings.text()
    );
    reporter.finish(&summary(60.0), None, &[]);
    assert!(
        warnings
            .text()
            .contains("rank 2 on n3 needs 50 % more time"),
        "{}",
        warnings.text()
    );
}

#[test]
fn the_end_of_a_run_with_a_val_split_has_the_best_model_and_its_test() {
    let of = record(4, Some(9));
    let best = Some(Best {
        epoch: 3,
        monitor: "val-loss".to_owned(),
        value: 0.25,
    });
    let scores = Evaluation {
        loss: 0.5,
        top1: Some(0.875),
        top5: Some(1.0),
        ..Evaluation::default()
    };
    let summary = Summary {
        final_epoch: Some(EpochRecord {
            val: of.test.clone(),
            test: None,
            ..of
        }),
        best,
        test: Some(FinalTest { epoch: 3, scores }),
        patience_ended_after: Some(4),
        ..summary(41.0)
    };
    assert_eq!(
        lines::finish(&summary),
        [
            "done     5 epochs | 785 steps | 50,000 samples | 83.1 s",
            "         patience ended after 4 evaluations",
            "best     val-loss 0.2500 | epoch 4",
            "test     loss 0.5000 | top-1 87.50 % | epoch 4 (best)",
        ]
    );
}

#[test]
fn a_table_of_classes_has_a_matrix_of_few_classes_and_the_worst_of_many() {
    let by_class = |num_classes: u32| {
        let names: Vec<String> = (0..num_classes)
            .map(|class| format!("class {class}"))
            .collect();
        let pairs = (0..num_classes)
            .flat_map(|class| [((class, class), 8), ((class, 0), u64::from(class) + 1)]);
        EvaluationByClass::default().with_counts(&names, &pairs.collect::<BTreeMap<_, _>>())
    };
    let none = lines::classes(&EvaluationByClass::default());
    assert!(none.is_empty(), "{none:?}");
    let few = lines::classes(&by_class(3));
    assert_eq!(few[1], "  class 2  72.73 % (8 of 11) | taken for class 0 3");
    assert_eq!(
        few[5..],
        [
            "            0 1 2",
            "  class 0 0 1 0 0",
            "  class 1 1 2 8 0",
            "  class 2 2 3 0 8"
        ]
    );
    let many = lines::classes(&by_class(1000));
    assert_eq!(many[0], "the 16 of 1,000 classes with the lowest accuracy");
    assert_eq!(
        (many.len(), many[18].as_str()),
        (34, "  class 999 taken for class 0: 1,000")
    );
}

#[test]
fn a_download_prints_each_tenth() {
    let (reporter, console, _) = reporter();
    (0..=1000).for_each(|done| reporter.download("cifar-10", done << 20, Some(1000 << 20)));
    assert_eq!(console.text().lines().count(), 10);
    assert!(
        console
            .text()
            .starts_with("cifar-10: 100 MiB of 1000 MiB\n"),
        "{}",
        console.text()
    );
}

#[test]
fn staleness_is_printed_as_a_histogram_with_its_mean() {
    assert_eq!(
        lines::staleness(&[3, 0, 1]),
        "staleness | 0: 3 | 1: 0 | 2: 1 | mean 0.50 updates, n = 4"
    );
}

#[test]
fn the_end_has_the_time_and_the_steps_of_the_session() {
    let of_root = |num_steps| {
        vec![RankSeconds {
            num_steps,
            ..RankSeconds::default()
        }]
    };
    let line = |rank_seconds| {
        let summary = Summary {
            rank_seconds,
            stopped_early: true,
            epochs: 1,
            ..summary(40.0)
        };
        lines::finish(&summary).remove(0)
    };
    let totals = "stopped  1 epoch | 785 steps | 50,000 samples";
    assert_eq!(line(of_root(785)), format!("{totals} | 83.1 s"));
    assert_eq!(
        line(of_root(157)),
        format!("{totals} | this session 157 steps in 83.1 s")
    );
}
