//! The comparison as a table for people.
//!
//! In: rows and accuracies. Out: Markdown.
//! Invariant: pure. In each group of equal job ours comes first, then what counts by its speed, then what does not, then gaps.

use records::{Block, Course, CourseEpoch};

use super::row::{Judged, Row};

const HEAD: &str = "\
| model | dtype | ranks | framework | how | images/s (blocks) | of ours | speedup | efficiency | memory a rank / all, MB | loss after 2 / 5 | note |
|---|---|---|---|---|---|---|---|---|---|---|---|
";

/// All rows.
pub(super) fn table(rows: &[Row]) -> String {
    let mut text = HEAD.to_owned();
    let mut groups: Vec<(&str, &str, usize)> = Vec::new();
    for row in rows {
        let group = (row.key.model.as_str(), row.key.dtype.as_str(), row.key.ranks);
        if !groups.contains(&group) {
            groups.push(group);
        }
    }
    for group in groups {
        let of_group =
            rows.iter().filter(|row| (row.key.model.as_str(), row.key.dtype.as_str(), row.key.ranks) == group);
        let mut lines: Vec<(&Row, Judged)> = of_group.map(|row| (row, row.judged(rows))).collect();
        lines.sort_by(|(first, a), (second, b)| {
            let place = |row: &Row, judged: &Judged| (!row.is_ours(), !judged.counts, judged.median.is_none());
            let by_speed = b.median.unwrap_or(0.0).total_cmp(&a.median.unwrap_or(0.0));
            place(first, a).cmp(&place(second, b)).then(by_speed)
        });
        lines.iter().for_each(|(row, judged)| text.push_str(&line(row, judged)));
    }
    text
}

fn line(row: &Row, judged: &Judged) -> String {
    let number =
        |value: Option<f64>, decimals: usize| value.map_or("–".to_owned(), |value| format!("{value:.decimals$}"));
    let blocks: Vec<String> = row.blocks.iter().map(|block| format!("{:.0}", block.images_per_second)).collect();
    let rate = match judged.median {
        None => "–".to_owned(),
        Some(median) => format!("{median:.0} ({})", blocks.join(", ")),
    };
    let megabytes = |pick: fn(&Block) -> u64| {
        row.blocks.iter().map(pick).max().map_or("–".to_owned(), |bytes| format!("{:.0}", bytes as f64 / 1e6))
    };
    let loss = |updates: usize| number(row.blocks.first().and_then(|block| block.loss_after(updates)), 5);
    let how = [&row.about.variant, &row.about.communication, &row.launcher];
    let how: Vec<&str> = how.into_iter().map(String::as_str).filter(|word| !["", "none"].contains(word)).collect();
    format!(
        "| {} | {} | {}x{} | {} {} | {} | {rate} | {} | {} | {} | {} / {} | {} / {} | {} |\n",
        row.key.model,
        row.key.dtype,
        row.key.ranks,
        row.threads,
        row.key.framework,
        row.about.version,
        how.join("; "),
        number(judged.ratio, 2),
        number(judged.speedup, 2),
        number(judged.efficiency, 2),
        megabytes(|block| block.peak_memory_bytes_rank),
        megabytes(|block| block.peak_memory_bytes_total),
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
        None if judged.median.is_some() => notes.push("nothing to compare its losses with: does not count".to_owned()),
        _ => {}
    }
    let disturbed = row.blocks.iter().filter(|block| block.is_disturbed).count();
    if disturbed > 0 {
        notes.push(format!("{disturbed} of {} blocks disturbed", row.blocks.len()));
    }
    notes.join("; ")
}

/// Test accuracy by epoch.
pub(super) fn accuracy(courses: &[Course]) -> String {
    let mut text = "| framework | model | dtype | threads | test accuracy after each epoch, % | seconds | images/s, last | note |\n|---|---|---|---|---|---|---|---|\n".to_owned();
    for course in courses {
        let shares = course.epochs.iter().filter_map(|epoch| epoch.test_top1);
        let shares: Vec<String> = shares.map(|share| format!("{:.1}", share * 100.0)).collect();
        let of_last = |pick: fn(&CourseEpoch) -> Option<f64>| {
            course.epochs.last().and_then(pick).map_or("–".to_owned(), |value| format!("{value:.0}"))
        };
        let word = |text: &str| text.replace('|', "/");
        text.push_str(&format!(
            "| {} {} | {} | {} | {} | {} | {} | {} | {} |\n",
            word(&course.framework),
            word(course.version.as_deref().unwrap_or_default()),
            word(&course.model),
            word(&course.dtype),
            course.threads,
            shares.join(", "),
            of_last(|epoch| epoch.elapsed_s),
            of_last(|epoch| epoch.images_per_second),
            course.gap.as_ref().map_or(String::new(), |gap| format!("gap: {}", word(gap))),
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::row::tests::row;
    use super::*;

    #[test]
    fn ours_comes_first_then_what_counts_by_speed_then_the_rest_with_its_reason() {
        let rows = [
            Row { gap: Some("no Python | 3.9".into()), ..row("MXNet", 1, &[], (0.0, 0.0)) },
            row("JAX", 1, &[900.0], (9.0, 2.0)),
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
        assert!(lines[0].contains("| 70 (60, 80) | 1.00 |"), "{}", lines[0]);
        assert!(lines[3].contains("does not count") && lines[4].contains("gap: no Python / 3.9"));
    }

    #[test]
    fn accuracies_are_percent_by_epoch() {
        let epoch = |test_top1: f64, elapsed_s: f64| CourseEpoch {
            test_top1: Some(test_top1),
            elapsed_s: Some(elapsed_s),
            images_per_second: Some(99.6),
            ..CourseEpoch::default()
        };
        let text = accuracy(&[Course {
            framework: "JAX".to_owned(),
            version: Some("1".to_owned()),
            model: "resnet20".to_owned(),
            dtype: "f32".to_owned(),
            threads: 2,
            epochs: vec![epoch(0.5, 10.0), epoch(0.625, 20.4)],
            ..Course::default()
        }]);
        assert!(text.ends_with("| JAX 1 | resnet20 | f32 | 2 | 50.0, 62.5 | 20 | 100 |  |\n"), "{text}");
    }
}
