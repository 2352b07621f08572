//! The comparison as a table for people.
//!
//! In: rows and accuracies. Out: Markdown.
//! Invariant: pure. In each group of equal job ours comes first, then what counts by its speed, then what does not, then gaps.

use records::{Block, Course, CourseEpoch, Estimate};

use super::row::{Judged, Key, Row};

const HEAD: &str = "\
| model | dtype | ranks | framework | how | images/s (rounds) | of ours (95 %) | speedup (95 %) | efficiency (95 %) | memory beyond the import, a rank / all, MiB | loss after 2 / 5 | note |
|---|---|---|---|---|---|---|---|---|---|---|---|
";

/// All rows.
pub(super) fn table(rows: &[Row]) -> String {
    let mut text = HEAD.to_owned();
    let mut groups: Vec<(&str, &str, usize)> = Vec::new();
    for row in rows {
        let group = (
            row.key.model.as_str(),
            row.key.dtype.as_str(),
            row.key.ranks,
        );
        if !groups.contains(&group) {
            groups.push(group);
        }
    }
    for group in groups {
        let of_group = rows.iter().filter(|row| {
            (
                row.key.model.as_str(),
                row.key.dtype.as_str(),
                row.key.ranks,
            ) == group
        });
        let mut lines: Vec<(&Row, Judged)> = of_group.map(|row| (row, row.judged(rows))).collect();
        lines.sort_by(|(first, a), (second, b)| {
            let place = |row: &Row, judged: &Judged| {
                (!row.is_ours(), !judged.counts, judged.median.is_none())
            };
            let by_speed = b.median.unwrap_or(0.0).total_cmp(&a.median.unwrap_or(0.0));
            place(first, a).cmp(&place(second, b)).then(by_speed)
        });
        lines
            .iter()
            .for_each(|(row, judged)| text.push_str(&line(row, judged)));
    }
    text
}

fn line(row: &Row, judged: &Judged) -> String {
    let number = |value: Option<f64>, decimals: usize| {
        value.map_or("–".to_owned(), |value| format!("{value:.decimals$}"))
    };
    let blocks: Vec<String> = row
        .blocks
        .iter()
        .map(|block| records::rate(block.images_per_second))
        .collect();
    let rate = match judged.median {
        None => "–".to_owned(),
        Some(median) => format!("{} ({})", records::rate(median), blocks.join(", ")),
    };
    let mebibytes = |pick: &dyn Fn(&Block) -> u64| {
        row.blocks
            .iter()
            .map(pick)
            .max()
            .map_or("–".to_owned(), |bytes| {
                format!("{:.0}", bytes as f64 / f64::from(1 << 20))
            })
    };
    let loss = |updates: usize| {
        number(
            row.blocks
                .first()
                .and_then(|block| block.loss_after(updates)),
            5,
        )
    };
    let setting = if row.is_ours() {
        "defaults".to_owned()
    } else {
        row.key.setting.shown()
    };
    let how = [
        &row.about.variant,
        &setting,
        &row.about.communication,
        &row.launcher,
    ];
    let how: Vec<&str> = how
        .into_iter()
        .map(String::as_str)
        .filter(|word| !["", "none"].contains(word))
        .collect();
    let estimate = |value: Option<Estimate>| value.map_or("–".to_owned(), |value| value.shown(2));
    format!(
        "| {} | {} | {}x{} | {} {} | {} | {rate} | {} | {} | {} | {} / {} | {} / {} | {} |\n",
        row.key.model,
        row.key.dtype,
        row.key.ranks,
        row.threads,
        row.key.framework,
        row.about.version,
        how.join("; "),
        estimate(judged.ratio),
        estimate(judged.speedup),
        estimate(judged.efficiency),
        // What a framework brings, whether it is used or not, is not its training's.
        mebibytes(&|block| block
            .peak_memory_bytes_rank
            .saturating_sub(block.import_memory_bytes_rank)),
        mebibytes(&|block| {
            block
                .peak_memory_bytes_total
                .saturating_sub(row.key.ranks as u64 * block.import_memory_bytes_rank)
        }),
        loss(2),
        loss(super::settings::LAST_COMPARED_STEP),
        note(row, judged),
    )
}

/// What a reader must know about a number, or why there is none.
fn note(row: &Row, judged: &Judged) -> String {
    let mut notes = Vec::new();
    if let Some(gap) = &row.gap {
        notes.push(format!("gap: {}", gap.replace('|', "/")));
    }
    match judged.loss_agrees {
        Some(false) => notes.push("other losses: does not count".to_owned()),
        None if judged.median.is_some() => {
            notes.push("nothing to compare its losses with: does not count".to_owned())
        }
        _ => {}
    }
    match judged.ratio {
        Some(ratio) if !row.is_ours() && ratio.interval.is_none() => {
            notes.push("fewer than 6 rounds: no interval".to_owned())
        }
        Some(ratio) if !row.is_ours() && !ratio.differs_from(1.0) => {
            notes.push("no difference from ours shown".to_owned())
        }
        _ => {}
    }
    let disturbed = row.blocks.iter().filter(|block| block.is_disturbed).count();
    if disturbed > 0 {
        notes.push(format!(
            "{disturbed} of {} rounds disturbed",
            row.blocks.len()
        ));
    }
    notes.join("; ")
}

/// All settings that were tried, those of one choice together.
pub(super) fn sweep(rows: &[Row]) -> String {
    let mut text = "| model | dtype | ranks | framework | tried | setting | images/s | note |\n|---|---|---|---|---|---|---|---|\n".to_owned();
    for row in rows.iter().filter(|row| !row.is_ours()) {
        let Key {
            framework,
            model,
            dtype,
            ranks,
            setting,
            tried,
        } = &row.key;
        let rate = row.median().map_or("–".to_owned(), records::rate);
        let ours = rows.iter().find(|ours| {
            ours.is_ours()
                && (&ours.key.model, &ours.key.dtype, ours.key.ranks) == (model, dtype, *ranks)
        });
        let loss_agrees = ours.and_then(|ours| row.agrees_with(ours));
        let judged = Judged {
            median: row.median(),
            loss_agrees,
            ..Judged::default()
        };
        let (setting, note) = (setting.shown(), note(row, &judged));
        text.push_str(&format!(
            "| {model} | {dtype} | {ranks} | {framework} | {tried} | {setting} | {rate} | {note} |\n"
        ));
    }
    text
}

/// Test accuracy after the last epoch: of each seed, their mean and spread.
pub(super) fn accuracy(courses: &[Course]) -> String {
    let mut text = "\
| framework | model | dtype | threads | epochs | test accuracy after the last epoch, % (seeds) | mean ± standard deviation | seconds, median | images/s of the last epoch, median | note |
|---|---|---|---|---|---|---|---|---|---|
"
    .to_owned();
    let mut groups: Vec<Vec<&Course>> = Vec::new();
    for course in courses {
        let key = |course: &Course| {
            let Course {
                framework,
                model,
                dtype,
                num_epochs,
                data_dir,
                ..
            } = course.clone();
            (framework, model, dtype, num_epochs, data_dir)
        };
        match groups.iter_mut().find(|group| key(group[0]) == key(course)) {
            Some(group) => group.push(course),
            None => groups.push(vec![course]),
        }
    }
    let is_folder_told = courses
        .iter()
        .any(|course| course.data_dir != courses[0].data_dir);
    groups
        .iter()
        .for_each(|seeds| text.push_str(&accuracy_line(seeds, is_folder_told)));
    text
}

/// One line, with the folder of the images if that is to be told.
fn accuracy_line(seeds: &[&Course], is_folder_told: bool) -> String {
    let course = seeds[0];
    let of_last = |pick: fn(&CourseEpoch) -> Option<f64>| -> Vec<f64> {
        seeds
            .iter()
            .filter_map(|course| course.epochs.last().and_then(pick))
            .collect()
    };
    let middle = |mut values: Vec<f64>, show: fn(f64) -> String| {
        if values.is_empty() {
            "–".to_owned()
        } else {
            show(records::median(&mut values))
        }
    };
    let percents: Vec<f64> = of_last(|epoch| epoch.test_top1)
        .iter()
        .map(|share| 100.0 * share)
        .collect();
    let shown: Vec<String> = percents
        .iter()
        .map(|percent| format!("{percent:.1}"))
        .collect();
    let word = |text: &str| text.replace('|', "/");
    let version = seeds
        .iter()
        .find_map(|course| course.version.as_deref())
        .unwrap_or_default();
    let folder = is_folder_told.then(|| format!("images of {}", word(&course.data_dir)));
    let gaps = seeds
        .iter()
        .filter_map(|course| Some(format!("gap: {}", word(course.gap.as_ref()?))));
    format!(
        "| {} {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |\n",
        word(&course.framework),
        word(version),
        word(&course.model),
        word(&course.dtype),
        course.threads,
        course.num_epochs,
        shown.join(", "),
        spread(&percents),
        middle(of_last(|epoch| epoch.elapsed_s), |seconds| format!(
            "{seconds:.0}"
        )),
        middle(of_last(|epoch| epoch.images_per_second), records::rate),
        folder
            .into_iter()
            .chain(gaps)
            .collect::<Vec<_>>()
            .join("; "),
    )
}

fn spread(values: &[f64]) -> String {
    match records::mean_and_deviation(values) {
        None => "–".to_owned(),
        Some((mean, None)) => format!("{mean:.1}"),
        Some((mean, Some(deviation))) => format!("{mean:.1} ± {deviation:.1}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::row::tests::row;
    use super::*;

    #[test]
    fn ours_comes_first_then_what_counts_by_speed_then_the_rest_with_its_reason() {
        let mut jax = row("JAX", 1, &[900.0], (9.0, 2.0));
        (
            jax.blocks[0].peak_memory_bytes_rank,
            jax.blocks[0].import_memory_bytes_rank,
        ) = (5 << 20, 2 << 20);
        let rows = [
            Row {
                gap: Some("no Python | 3.9".into()),
                ..row("MXNet", 1, &[], (0.0, 0.0))
            },
            jax,
            row("TensorFlow", 1, &[50.0], (2.5, 2.0)),
            row("PyTorch DDP", 1, &[70.0], (2.5, 2.0)),
            row("Lockstep", 1, &[60.0, 80.0], (2.5, 2.0)),
        ];
        let text = table(&rows);
        let lines: Vec<&str> = text.lines().skip(2).collect();
        let names = ["Lockstep", "PyTorch DDP", "TensorFlow", "JAX", "MXNet"];
        for (line, name) in lines.iter().zip(names) {
            assert!(line.contains(&format!("| {name} ")), "{line}");
            assert_eq!(line.matches('|').count(), 13, "{line}");
        }
        assert!(
            lines[0].contains("| 70.0 (60.0, 80.0) | 1.00 |"),
            "{}",
            lines[0]
        );
        assert!(
            text.contains("memory beyond the import, a rank / all, MiB")
                && lines[3].contains("| 3 / 0 |"),
            "{text}"
        );
        assert!(lines[3].contains("does not count") && lines[4].contains("gap: no Python / 3.9"));
    }

    #[test]
    fn what_no_interval_tells_apart_from_ours_is_said() {
        let rows = [
            row("Lockstep", 1, &[100.0; 6], (2.5, 2.0)),
            row(
                "JAX",
                1,
                &[95.0, 105.0, 99.0, 101.0, 100.0, 98.0],
                (2.5, 2.0),
            ),
            row("MXNet", 1, &[50.0; 5], (2.5, 2.0)),
        ];
        let text = table(&rows);
        assert!(
            text.contains("| 0.99 (0.95 to 1.05) |")
                && text.contains("| no difference from ours shown |"),
            "{text}"
        );
        assert!(
            text.contains("| fewer than 6 rounds: no interval |"),
            "{text}"
        );
    }

    #[test]
    fn accuracies_of_several_seeds_have_a_mean_and_a_spread() {
        let epoch = |test_top1: f64, elapsed_s: f64| CourseEpoch {
            test_top1: Some(test_top1),
            elapsed_s: Some(elapsed_s),
            images_per_second: Some(99.6),
            ..CourseEpoch::default()
        };
        let course = |seed: u64, test_top1: f64| Course {
            framework: "JAX".to_owned(),
            version: Some("1".to_owned()),
            model: "resnet20".to_owned(),
            dtype: "f32".to_owned(),
            threads: 2,
            num_epochs: 2,
            seed,
            epochs: vec![epoch(0.9, 10.0), epoch(test_top1, 20.4)],
            ..Course::default()
        };
        let text = accuracy(&[course(0, 0.5), course(1, 0.52), course(2, 0.54)]);
        let expected =
            "| JAX 1 | resnet20 | f32 | 2 | 2 | 50.0, 52.0, 54.0 | 52.0 ± 2.0 | 20 | 99.6 |  |\n";
        assert!(text.ends_with(expected), "{text}");
        assert_eq!(text.lines().count(), 3);
    }

    #[test]
    fn accuracies_on_other_images_are_another_line_that_names_them() {
        let course = |data_dir: &str, num_epochs: u64, test_top1: f64| Course {
            framework: "JAX".to_owned(),
            num_epochs,
            data_dir: data_dir.to_owned(),
            epochs: vec![CourseEpoch {
                test_top1: Some(test_top1),
                ..CourseEpoch::default()
            }],
            ..Course::default()
        };
        let text = accuracy(&[
            course("/dA", 2, 0.2),
            course("/dB", 2, 0.0),
            course("/dB", 3, 0.3),
        ]);
        let lines: Vec<&str> = text.lines().skip(2).collect();
        for (line, parts) in lines.iter().zip([
            ["| 2 | 20.0 | 20.0 |", "| images of /dA |"],
            ["| 2 | 0.0 | 0.0 |", "| images of /dB |"],
            ["| 3 | 30.0 | 30.0 |", "| images of /dB |"],
        ]) {
            assert!(parts.iter().all(|part| line.contains(part)), "{line}");
        }
        assert_eq!(lines.len(), 3, "{text}");
        assert!(
            !accuracy(&[course("/dA", 2, 0.2)]).contains("/dA"),
            "one folder is the command's"
        );
    }
}
